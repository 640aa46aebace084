//! Slots that move as a whole, while the server goes on serving (`CLUSTER MIGRATESLOTS` of Valkey 9): what must not happen to their keys meanwhile.
//!
//! The source sends a snapshot of the slots, then every effect on them; when both are equal the target becomes their owner at one instant.
//!
//! - *Source*: while an export runs somebody listens, and no effect may be left out (propagate.rs).
//! - *Target*: keys of slots that are imported are *staged*: another node decides on them and tells us. Until the import is complete nothing is decided on them
//!   here; then all of them are looked at at once. A slot that moves key by key is another matter: each key that has come is ours to look after.
//! - Who waits at a key that goes away is sent away.
//!
//! Valkey tells of it by an event. Redis 8.4 has the same feature in another form: it tells by an event of another number and shape, and answers for each slot
//! whether it may be touched. Which of the two a server is, is asked of the functions that it has.
//!
//! A replica gets to know of an import, too, by the command that begins it; it decides on nothing anyway. If it knows of one from a snapshot only, there was no event
//! when it began, but there is one when it ends. When such a replica is promoted, the server deletes the staged keys before it serves anybody.

use super::access::{self, Access};
use super::api::{Ctx, OK, function, rm};
use super::call_reply::{CallReply, Part};
use super::error::Error;
use super::main_thread::MainThread;
use super::{block, clock, lines, propagate, registry, slots, timer};
use hashbrown::{HashMap, HashSet};
use redis_module::raw;
use std::ffi::{c_char, c_int, c_void};
use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The events, and what they tell. The numbers are those of the servers' headers; Valkey's 18 is another event.
const VALKEY_EVENT: u64 = 19;
const REDIS_EVENT: u64 = 18;

mod valkey {
    pub const IMPORT_STARTED: u64 = 0;
    pub const EXPORT_STARTED: u64 = 1;
    pub const IMPORT_ABORTED: u64 = 2;
    pub const EXPORT_ABORTED: u64 = 3;
    pub const IMPORT_COMPLETED: u64 = 4;
    pub const EXPORT_COMPLETED: u64 = 5;
}

mod redis {
    pub const IMPORT_STARTED: u64 = 0;
    pub const IMPORT_COMPLETED: u64 = 2;
    pub const EXPORT_STARTED: u64 = 3;
    pub const EXPORT_FAILED: u64 = 4;
    pub const EXPORT_COMPLETED: u64 = 5;
}

/// By this option of a module Valkey learns that it may be loaded while slots move. On Redis the bit may mean anything else.
const HANDLES_MIGRATION: u32 = 1 << 5;

/// Redis: keys are deleted one by one, with our hooks called, only if somebody subscribes to this; otherwise their values would be freed behind our back.
const NOTIFY_KEY_TRIMMED: c_int = 1 << 17;

type CanAccess = unsafe extern "C" fn(c_int) -> c_int;

/// What the server can do of all this.
#[derive(Debug, Clone, Copy)]
enum Kind {
    None,
    Valkey,
    Redis(CanAccess),
}

static KIND: OnceLock<Kind> = OnceLock::new();

fn kind() -> Kind {
    *KIND.get_or_init(|| Kind::None)
}

/// What Valkey's event hands over.
#[repr(C)]
struct Info {
    _version: u64,
    job: [c_char; 41],
    ranges: *const Range,
    count: u32,
}

#[repr(C)]
struct Range {
    first: c_int,
    last: c_int,
}

#[derive(Default)]
struct Running {
    exports: HashSet<Box<[u8]>>,
    imports: HashMap<Box<[u8]>, Vec<RangeInclusive<u16>>>,
}

static RUNNING: std::sync::LazyLock<MainThread<Running>> =
    std::sync::LazyLock::new(|| MainThread::new(Running::default()));

/// How many exports run, and whether any import does: for those who ask often.
static EXPORTS: AtomicUsize = AtomicUsize::new(0);
static IMPORTING: AtomicBool = AtomicBool::new(false);

/// Looks what the server can do, and subscribes to it. Only within `RedisModule_OnLoad`.
pub fn subscribe(ctx: Ctx<'_>, callback: raw::RedisModuleEventCallback) -> Result<(), &'static str> {
    // SAFETY: within OnLoad; a static callback; the server refuses an event that it does not know.
    let subscribe = |id| unsafe {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        rm!(RedisModule_SubscribeToServerEvent(ctx.raw(), event, callback)) == OK
    };
    let found = if let Some(can_access) = function(c"RedisModule_ClusterCanAccessKeysInSlot") {
        if !subscribe(REDIS_EVENT) {
            return Err("the events of moving slots cannot be subscribed to");
        }
        // SAFETY: the server's function of that name takes a slot and answers whether it may be touched.
        Kind::Redis(unsafe { std::mem::transmute::<*mut c_void, CanAccess>(can_access.as_ptr()) })
    } else if function(c"ValkeyModule_SubscribeToServerEvent").is_some() && subscribe(VALKEY_EVENT) {
        // Only Valkey knows its functions by these names, too.
        Kind::Valkey
    } else {
        Kind::None
    };
    let _ = KIND.set(found);
    Ok(())
}

/// The options by which the server lets slots move with this module.
pub fn options() -> u32 {
    if matches!(kind(), Kind::Valkey) { HANDLES_MIGRATION } else { 0 }
}

/// The classes of keyspace events that must be heard for the sake of moving slots.
pub fn keyspace_events() -> c_int {
    if matches!(kind(), Kind::Redis(_)) { NOTIFY_KEY_TRIMMED } else { 0 }
}

/// Whether an event is about moving slots.
pub fn is_event(id: u64) -> bool {
    match kind() {
        Kind::None => false,
        Kind::Valkey => id == VALKEY_EVENT,
        Kind::Redis(_) => id == REDIS_EVENT,
    }
}

/// Something happened to moving slots.
///
/// # Safety
/// `data` is what the server handed over with the event [`is_event`] is true of.
pub unsafe fn happened(ctx: Ctx<'_>, sub: u64, data: *mut c_void) {
    match kind() {
        Kind::None => {}
        // SAFETY: by the contract.
        Kind::Valkey => unsafe { happened_on_valkey(ctx, sub, data.cast::<Info>().as_ref()) },
        Kind::Redis(_) => happened_on_redis(ctx, sub),
    }
}

/// # Safety
/// `info` is the event's data, whose ranges are live.
unsafe fn happened_on_valkey(ctx: Ctx<'_>, sub: u64, info: Option<&Info>) {
    let Some(info) = info else { return };
    let job: Box<[u8]> = info.job.iter().map(|c| c.cast_unsigned()).take_while(|c| *c != 0).collect();
    let ranges: &[Range] = if info.ranges.is_null() {
        &[]
    } else {
        // SAFETY: by the contract: an array of `count` ranges.
        unsafe { std::slice::from_raw_parts(info.ranges, usize::try_from(info.count).unwrap_or(0)) }
    };
    let slot = |n: c_int| u16::try_from(n).unwrap_or(u16::MAX);
    let ranges: Vec<RangeInclusive<u16>> = ranges.iter().map(|r| slot(r.first)..=slot(r.last)).collect();
    match sub {
        valkey::EXPORT_STARTED => {
            RUNNING.with(|r| r.exports.insert(job));
            propagate::somebody_listens();
        }
        valkey::EXPORT_ABORTED | valkey::EXPORT_COMPLETED => {
            RUNNING.with(|r| r.exports.remove(&job));
            propagate::reconsider();
        }
        valkey::IMPORT_STARTED => drop(RUNNING.with(|r| r.imports.insert(job, ranges))),
        valkey::IMPORT_ABORTED | valkey::IMPORT_COMPLETED => drop(RUNNING.with(|r| r.imports.remove(&job))),
        _ => {}
    }
    RUNNING.with(|r| {
        EXPORTS.store(r.exports.len(), Ordering::Relaxed);
        IMPORTING.store(!r.imports.is_empty(), Ordering::Relaxed);
    });
    match sub {
        valkey::EXPORT_COMPLETED | valkey::IMPORT_STARTED => send_away_soon(),
        valkey::IMPORT_COMPLETED => look_at_all(ctx),
        _ => {}
    }
}

fn happened_on_redis(ctx: Ctx<'_>, sub: u64) {
    match sub {
        redis::EXPORT_STARTED => {
            EXPORTS.fetch_add(1, Ordering::Relaxed);
            propagate::somebody_listens();
        }
        redis::EXPORT_FAILED | redis::EXPORT_COMPLETED => {
            EXPORTS.store(EXPORTS.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
            propagate::reconsider();
            send_away_soon();
        }
        redis::IMPORT_STARTED => send_away_soon(),
        redis::IMPORT_COMPLETED => look_at_all(ctx),
        _ => {}
    }
}

/// What was staged is ours now: whatever is due on it, or came to be due meanwhile, and whoever waits for it.
fn look_at_all(ctx: Ctx<'_>) {
    registry::look_at_all(clock::now());
    lines::look_again_all(-1);
    timer::soon(ctx);
}

/// Some who wait may wait for slots of another node. The server would send them away within a second or so.
static SEND_AWAY: AtomicBool = AtomicBool::new(false);

fn send_away_soon() {
    SEND_AWAY.store(true, Ordering::Relaxed);
}

/// The server is about to sleep: whatever it had to do to its own view of the slots is done. Who waits for a slot of another node is told which, in the server's
/// words.
pub fn before_sleep(ctx: Ctx<'_>) {
    if !SEND_AWAY.swap(false, Ordering::Relaxed) || block::waiting() == 0 {
        return;
    }
    access::anew();
    let nodes = nodes(ctx);
    block::send_away(|place| {
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
    let reply = CallReply::of_cluster(ctx, c"SLOTS");
    reply.iter().flat_map(|reply| reply.whole().elements()).filter_map(row).collect()
}

/// First slot, last slot, `[host, port, …]` of the master, …
fn row(row: Part<'_>) -> Option<(RangeInclusive<u16>, String)> {
    let slot = |i| u16::try_from(row.element(i)?.integer()).ok();
    let node = row.element(2)?;
    // A node that does not say its address is meant by none: the client goes on with the one it knows.
    let host = String::from_utf8_lossy(node.element(0)?.bytes().unwrap_or_default());
    let port = node.element(1)?.integer();
    Some((slot(0)?..=slot(1)?, format!("{host}:{port}")))
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
        Kind::Redis(can_access) => {
            // SAFETY: takes a slot only; on the main thread.
            Ctx::own().flags().cluster() && unsafe { can_access(c_int::from(slots::of(key))) } == 0
        }
    }
}

fn is_imported(slot: u16) -> bool {
    RUNNING.with(|r| r.imports.values().flatten().any(|range| range.contains(&slot)))
}
