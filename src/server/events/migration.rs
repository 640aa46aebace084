//! What follows when slots move as a whole (cluster/migration.rs): who listens, what was staged,
//! and who waits at a key that goes away.

use crate::server::blocking::access::{self, Access};
use crate::server::blocking::{claim_waiters, clients, ends};
use crate::server::cluster::{migration, slots};
use crate::server::error::Error;
use crate::server::ffi::call::{How, Part, call_words};
use crate::server::ffi::context::Ctx;
use crate::server::ffi::events::{Slots, Stage};
use crate::server::replication::listeners;
use crate::server::time::{alarm, clock, due_index};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};

/// Something happened to moving slots, on Valkey.
pub fn happened(ctx: Ctx<'_>, event: &Slots) {
    migration::note(event);
    listen(event.stage);
    match event.stage {
        Stage::ExportCompleted | Stage::ImportStarted => send_away_soon(),
        Stage::ImportCompleted => look_at_all(ctx),
        Stage::ImportAborted | Stage::ExportStarted | Stage::ExportAborted => {}
    }
}

/// The same on Redis.
pub fn happened_on_redis(ctx: Ctx<'_>, stage: Stage) {
    migration::note_stage(stage);
    listen(stage);
    match stage {
        Stage::ExportAborted | Stage::ExportCompleted | Stage::ImportStarted => send_away_soon(),
        Stage::ImportCompleted => look_at_all(ctx),
        Stage::ImportAborted | Stage::ExportStarted => {}
    }
}

fn listen(stage: Stage) {
    match stage {
        Stage::ExportStarted => listeners::somebody_listens(),
        Stage::ExportAborted | Stage::ExportCompleted => listeners::reconsider(),
        Stage::ImportStarted | Stage::ImportAborted | Stage::ImportCompleted => {}
    }
}

/// What was staged is ours now: whatever is due on it, or came to be due meanwhile, and whoever
/// waits for it.
fn look_at_all(ctx: Ctx<'_>) {
    due_index::look_at_all(clock::now());
    claim_waiters::look_again_all(-1);
    alarm::soon(ctx);
}

/// Some who wait may wait for slots of another node. The server would send them away within a
/// second or so.
static SEND_AWAY: AtomicBool = AtomicBool::new(false);

fn send_away_soon() {
    SEND_AWAY.store(true, Ordering::Relaxed);
}

/// The server is about to sleep: whatever it had to do to its own view of the slots is done. Who
/// waits for a slot of another node is told which, in the server's words.
pub fn before_sleep(ctx: Ctx<'_>) {
    if !SEND_AWAY.swap(false, Ordering::Relaxed) || clients::waiting() == 0 {
        return;
    }
    access::anew();
    let nodes = nodes(ctx);
    ends::send_away(|place| {
        if ctx.in_db(place.db, || access::to(ctx, &place.key)) != Access::Elsewhere {
            return None;
        }
        let slot = slots::of(&place.key);
        let (_, node) = nodes.iter().find(|(range, _)| range.contains(&slot))?;
        Some(Error::of(format!("MOVED {slot} {node}")))
    });
}

/// Who serves which slots, as `host:port`.
fn nodes(ctx: Ctx<'_>) -> Vec<(RangeInclusive<u16>, String)> {
    let reply = call_words(ctx, c"CLUSTER", How::Told, &[b"SLOTS"]);
    reply.iter().flat_map(|reply| reply.whole().elements()).filter_map(row).collect()
}

/// First slot, last slot, `[host, port, …]` of the master, …
fn row(row: Part<'_>) -> Option<(RangeInclusive<u16>, String)> {
    let slot = |i| u16::try_from(row.element(i)?.integer()).ok();
    let node = row.element(2)?;
    // A node that does not say its address is meant by none: the client goes on with the one it
    // knows.
    let host = String::from_utf8_lossy(node.element(0)?.bytes().unwrap_or_default());
    let port = node.element(1)?.integer();
    Some((slot(0)?..=slot(1)?, format!("{host}:{port}")))
}
