//! Slots that move as a whole, while the server goes on serving (`CLUSTER MIGRATESLOTS` of Valkey
//! 9): which do so right now. What follows from it is in events/migration.rs.
//!
//! The source sends a snapshot of the slots, then every effect on them; when both are equal the
//! target becomes their owner at one instant.
//!
//! - *Source*: while an export runs somebody listens, and no effect may be left out
//!   (replication/listeners.rs).
//! - *Target*: keys of slots that are imported are *staged*: another node decides on them and tells
//!   us. Until the import is complete nothing is decided on them here. A slot that moves key by key
//!   is another matter: each key that has come is ours to look after.
//!
//! Valkey tells of it by an event. Redis 8.4 has the same feature in another form: it tells by an
//! event of another number and shape, and answers for each slot whether it may be touched. Which of
//! the two a server is, is asked of the functions that it has.
//!
//! A replica gets to know of an import, too, by the command that begins it; it decides on nothing
//! anyway. If it knows of one from a snapshot only, there was no event when it began, but there is
//! one when it ends. When such a replica is promoted, the server deletes the staged keys before it
//! serves anybody.

use super::slots;
use crate::engine::names_hash::{Map, Set};
use crate::server::ffi::context::Ctx;
use crate::server::ffi::events::{SlotEvents, Slots, Stage};
use crate::server::ffi::main_thread::MainThread;
use crate::server::ffi::optional::{CanAccessSlot, is_valkey};
use lazy_static::lazy_static;
use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What the server can do of all this.
#[derive(Debug, Clone, Copy)]
enum Kind {
    None,
    Valkey,
    Redis(CanAccessSlot),
}

static KIND: OnceLock<Kind> = OnceLock::new();

fn kind() -> Kind {
    *KIND.get_or_init(|| Kind::None)
}

#[derive(Default)]
struct Running {
    exports: Set<Box<[u8]>>,
    imports: Map<Box<[u8]>, Vec<RangeInclusive<u16>>>,
}

lazy_static! {
    static ref RUNNING: MainThread<Running> = MainThread::new(Running::default());
}

/// How many exports run, and whether any import does: for those who ask often.
static EXPORTS: AtomicUsize = AtomicUsize::new(0);
static IMPORTING: AtomicBool = AtomicBool::new(false);

/// Looks what the server can do, and has `subscribe` say whether it takes the subscription to these
/// events. Only within `RedisModule_OnLoad`.
pub fn learn(subscribe: impl Fn(SlotEvents) -> bool) -> Result<SlotEvents, &'static str> {
    let found = if let Some(can_access) = CanAccessSlot::find() {
        if !subscribe(SlotEvents::Redis) {
            return Err("the events of moving slots cannot be subscribed to");
        }
        Kind::Redis(can_access)
    } else if is_valkey() && subscribe(SlotEvents::Valkey) {
        Kind::Valkey
    } else {
        Kind::None
    };
    let _ = KIND.set(found);
    Ok(slot_events())
}

/// By which events the server tells of moving slots.
pub fn slot_events() -> SlotEvents {
    match kind() {
        Kind::None => SlotEvents::None,
        Kind::Valkey => SlotEvents::Valkey,
        Kind::Redis(_) => SlotEvents::Redis,
    }
}

/// A job began or ended, on Valkey.
pub fn note(event: &Slots) {
    RUNNING.with(|r| {
        let job = || event.job.clone();
        match event.stage {
            Stage::ExportStarted => drop(r.exports.insert(job())),
            Stage::ExportAborted | Stage::ExportCompleted => drop(r.exports.remove(&event.job)),
            Stage::ImportStarted => drop(r.imports.insert(job(), event.ranges.clone())),
            Stage::ImportAborted | Stage::ImportCompleted => drop(r.imports.remove(&event.job)),
        }
        EXPORTS.store(r.exports.len(), Ordering::Relaxed);
        IMPORTING.store(!r.imports.is_empty(), Ordering::Relaxed);
    });
}

/// The same on Redis, which answers for each slot.
pub fn note_stage(stage: Stage) {
    let exports = EXPORTS.load(Ordering::Relaxed);
    match stage {
        Stage::ExportStarted => EXPORTS.store(exports + 1, Ordering::Relaxed),
        Stage::ExportAborted | Stage::ExportCompleted => {
            EXPORTS.store(exports.saturating_sub(1), Ordering::Relaxed);
        }
        Stage::ImportStarted | Stage::ImportAborted | Stage::ImportCompleted => {}
    }
}

/// Whether any node gets the effects on slots that are exported to it.
#[inline]
pub fn exports() -> bool {
    EXPORTS.load(Ordering::Relaxed) > 0
}

/// Whether another node decides on this key, though it is here.
#[inline]
pub fn staged(key: &[u8]) -> bool {
    match kind() {
        Kind::None => false,
        Kind::Valkey => IMPORTING.load(Ordering::Relaxed) && is_imported(slots::of(key)),
        Kind::Redis(can_access) => Ctx::own().flags().cluster() && !can_access.ask(slots::of(key)),
    }
}

fn is_imported(slot: u16) -> bool {
    RUNNING.with(|r| r.imports.values().flatten().any(|range| range.contains(&slot)))
}
