//! What the server tells: databases flushed and swapped, keys renamed, roles changed, forks, loads,
//! the cron.

mod migration;
mod truncated;

use crate::engine::family::Family;
use crate::server::blocking::deferred::{self, Deferred};
use crate::server::blocking::{claim_waiters, clients, ends};
use crate::server::cluster::migration::{learn, slot_events, staged};
use crate::server::ffi::context::Ctx;
use crate::server::ffi::events::{self, Beside, Event, Loading, SlotEvents};
use crate::server::ffi::strings::Str;
use crate::server::key::handle::family;
use crate::server::key::place;
use crate::server::replication::{fencing, listeners};
use crate::server::stats;
use crate::server::time::due_index::{self, Place};
use crate::server::time::{alarm, clock};
use crate::server::work::timer;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Subscribes to everything below. Which events of moving slots the server has. Only within
/// `RedisModule_OnLoad`.
pub fn subscribe(ctx: Ctx<'_>) -> Result<SlotEvents, &'static str> {
    if !events::subscribe(ctx, on_event) {
        return Err("a server event cannot be subscribed to");
    }
    let slots = learn(|kind| events::subscribe_slots(ctx, kind, on_event))?;
    events::listen_when_needed(|| events::subscribe_keys(Ctx::own(), slot_events(), on_key_event));
    Ok(slots)
}

fn on_event(ctx: Ctx<'_>, event: Event) {
    match event {
        Event::RoleChanged { master } => role_changed(ctx, master),
        Event::Flush { db } => flushed(db),
        Event::Swapped { one, other } => swapped(one, other),
        Event::Loading(what) => loading(ctx, what),
        Event::LoadingBeside(what) => loading_beside(ctx, what),
        Event::Child { born: true } => {
            listeners::somebody_listens();
            fencing::tell_again();
        }
        Event::Persistence { ended: false } | Event::Replica { online: true } => {
            listeners::somebody_listens();
        }
        Event::Child { born: false }
        | Event::Persistence { ended: true }
        | Event::Replica { online: false } => listeners::reconsider(),
        Event::Cron => cron(ctx),
        Event::BeforeSleep => {
            migration::before_sleep(ctx);
            clients::before_sleep(ctx);
        }
        Event::Slots(what) => migration::happened(ctx, &what),
        Event::RedisSlots(stage) => migration::happened_on_redis(ctx, stage),
    }
}

/// A key got its value from elsewhere: the object lives there now, and who waits there is served.
fn on_key_event(ctx: Ctx<'_>, event: &[u8], key: Str<'_>) {
    let (db, name) = (ctx.db(), key.bytes());
    if matches!(event, b"rename_to" | b"move_to" | b"copy_to" | b"restore") {
        if let Some(family) = place::arrived(ctx, key) {
            if event == b"restore" && ctx.decides() && !staged(name) {
                deferred::add(Deferred::Bound { family, place: Place { db, key: name.into() } });
            }
            timer::arm(ctx);
        }
        claim_waiters::look_again(db, name);
    }
    match event {
        // In a transaction it may have become something else by its end: who waits is told then
        // what it is.
        b"del" | b"rename_from" | b"expired" | b"evicted"
            if !claim_waiters::nobody() && !ctx.flags().atomic() =>
        {
            claim_waiters::vanished(db, name);
        }
        b"move_from" => place::came_from(db),
        b"persist" => persisted(ctx, key),
        b"move_to" | b"copy_to" => place::go_back(ctx),
        _ => {}
    }
}

/// A limiter that goes by itself cannot be kept by taking away its TTL: it would be full, and stay.
fn persisted(ctx: Ctx<'_>, key: Str<'_>) {
    if Family::ALL.into_iter().all(|family| stats::objects(family) == 0) || !ctx.decides() {
        return;
    }
    let name = key.bytes();
    if let Some(family) = family(ctx, key).filter(|_| !staged(name)) {
        deferred::add(Deferred::Bound { family, place: Place { db: ctx.db(), key: name.into() } });
    }
}

fn flushed(db: i32) {
    ends::flushed(&due_index::flush(db));
    claim_waiters::emptied(db);
}

fn swapped(one: i32, other: i32) {
    due_index::swap(one, other);
    claim_waiters::look_again_all(one);
    claim_waiters::look_again_all(other);
}

fn role_changed(ctx: Ctx<'_>, master: bool) {
    listeners::reconsider();
    if master {
        fencing::resume();
    } else {
        ends::role_lost();
    }
    alarm::soon(ctx);
}

fn loading(ctx: Ctx<'_>, what: Loading) {
    listeners::reconsider();
    match what {
        Loading::AofBegins => truncated::begins(ctx),
        Loading::Ended => truncated::ended(ctx),
        Loading::OtherBegins | Loading::Failed => {}
    }
    if matches!(what, Loading::Ended | Loading::Failed) {
        // A replica draws nothing: it resumes when it is promoted.
        if ctx.flags().master() {
            fencing::resume();
        }
        claim_waiters::look_again_all(-1);
        alarm::soon(ctx);
    }
}

fn loading_beside(ctx: Ctx<'_>, what: Beside) {
    match what {
        Beside::Started => due_index::load_beside(),
        Beside::Aborted => due_index::stay(),
        Beside::Completed => {
            ends::flushed(&due_index::replace());
            claim_waiters::emptied(-1);
            claim_waiters::look_again_all(-1);
            timer::arm(ctx);
        }
    }
}

fn cron(ctx: Ctx<'_>) {
    /// Cron runs between two looks whether anybody still listens; about ten seconds each.
    const LOOKS: u32 = 100;
    static RUNS: AtomicU32 = AtomicU32::new(0);
    static STEPS_SEEN: AtomicU64 = AtomicU64::new(0);
    if fencing::tell(ctx) {
        // Alone, lest the server makes a transaction of it and of what else is carried here.
        return;
    }
    listeners::tell(ctx);
    let steps = clock::STEPS_BACK.load(Ordering::Relaxed);
    if ctx.decides() && STEPS_SEEN.swap(steps, Ordering::Relaxed) != steps {
        timer::stepped_back(ctx);
    }
    timer::cron(ctx);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    if run % LOOKS == LOOKS - 1 {
        listeners::reconsider();
    }
}
