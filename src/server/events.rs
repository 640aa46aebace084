//! What the server tells: databases flushed and swapped, keys renamed, roles changed, forks, loads, the cron.

use super::api::{Ctx, RawString, bytes, rm};
use super::census::note;
use super::chores::{self, Chore};
use super::guard::shield;
use super::info::FAMILIES;
use super::key::Handle;
use super::registry::{self, Place};
use super::{block, clock, lines, migration, numbers, propagate, stats, timer, truncated};
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Subscribes to everything below. Only within `RedisModule_OnLoad`.
pub fn subscribe(ctx: Ctx<'_>) -> Result<(), &'static str> {
    for id in [
        raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
        raw::REDISMODULE_EVENT_FLUSHDB,
        raw::REDISMODULE_EVENT_SWAPDB,
        raw::REDISMODULE_EVENT_LOADING,
        raw::REDISMODULE_EVENT_FORK_CHILD,
        raw::REDISMODULE_EVENT_PERSISTENCE,
        raw::REDISMODULE_EVENT_REPLICA_CHANGE,
        raw::REDISMODULE_EVENT_CRON_LOOP,
        raw::REDISMODULE_EVENT_EVENTLOOP,
        raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD,
    ] {
        // SAFETY: within OnLoad; a static callback.
        let done = unsafe {
            rm!(RedisModule_SubscribeToServerEvent(
                ctx.raw(),
                raw::RedisModuleEvent { id, dataver: 1 },
                Some(on_event)
            ))
        };
        if done != super::api::OK {
            return Err("a server event cannot be subscribed to");
        }
    }
    migration::subscribe(ctx, Some(on_event))?;
    let classes = raw::REDISMODULE_NOTIFY_GENERIC
        | raw::REDISMODULE_NOTIFY_EXPIRED
        | raw::REDISMODULE_NOTIFY_EVICTED
        | migration::keyspace_events();
    // SAFETY: as above.
    let done = unsafe { rm!(RedisModule_SubscribeToKeyspaceEvents(ctx.raw(), classes, Some(on_key_event))) };
    if done == super::api::OK { Ok(()) } else { Err("keyspace events cannot be subscribed to") }
}

/// The server's one way in for all events of [`subscribe`]: what C hands over is made safe here, and a panic ends here, so that below only
/// what an event means is left. The server hands back the event as it was subscribed to, so its id tells which one it is.
unsafe extern "C" fn on_event(
    ctx: *mut raw::RedisModuleCtx,
    event: raw::RedisModuleEvent,
    sub: u64,
    data: *mut c_void,
) {
    shield(
        || {
            // SAFETY: the context of a running callback.
            let ctx = unsafe { Ctx::new(ctx) };
            match event.id {
                raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED => role_changed(ctx, sub),
                raw::REDISMODULE_EVENT_FLUSHDB => {
                    // SAFETY: this event's data is a RedisModuleFlushInfo that outlives the callback, if it is there.
                    flushed(sub, unsafe { data.cast::<raw::RedisModuleFlushInfo>().as_ref() });
                }
                raw::REDISMODULE_EVENT_SWAPDB => {
                    // SAFETY: this event's data is a RedisModuleSwapDbInfo that outlives the callback, if it is there.
                    swapped(unsafe { data.cast::<raw::RedisModuleSwapDbInfo>().as_ref() });
                }
                raw::REDISMODULE_EVENT_LOADING => loading(ctx, sub),
                raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD => loading_beside(ctx, sub),
                raw::REDISMODULE_EVENT_FORK_CHILD => child(sub),
                raw::REDISMODULE_EVENT_PERSISTENCE => persistence(sub),
                raw::REDISMODULE_EVENT_REPLICA_CHANGE => replica(sub),
                raw::REDISMODULE_EVENT_CRON_LOOP => cron(ctx),
                raw::REDISMODULE_EVENT_EVENTLOOP
                    if sub == raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP =>
                {
                    migration::before_sleep(ctx);
                    block::before_sleep(ctx);
                }
                // SAFETY: the data that came with this event.
                id if migration::is_event(id) => unsafe { migration::happened(ctx, sub, data) },
                _ => {}
            }
        },
        || (),
    );
}

/// A key got its value from elsewhere: the object lives there now, and who waits there is served.
unsafe extern "C" fn on_key_event(
    ctx: *mut raw::RedisModuleCtx,
    _class: c_int,
    event: *const c_char,
    key: RawString,
) -> c_int {
    shield(
        || {
            // SAFETY: the event's name is a C string, the context and the key are live during the callback.
            let (ctx, event, name) = unsafe { (Ctx::new(ctx), CStr::from_ptr(event).to_bytes(), bytes(key)) };
            if matches!(event, b"rename_to" | b"move_to" | b"copy_to" | b"restore") {
                let db = ctx.db();
                if let Some(family) =
                    ON_ITS_WAY.swap(false, Ordering::Relaxed).then(|| note(ctx, key)).flatten()
                {
                    if event == b"restore" && timer::ready(ctx) && !migration::staged(name) {
                        chores::add(Chore::Bound { family, place: Place { db, key: name.into() } });
                    }
                    timer::arm(ctx);
                }
                lines::look_again(db, name);
            }
            match event {
                // In a transaction it may have become something else by its end: who waits is told then what it is.
                b"del" | b"rename_from" | b"expired" | b"evicted"
                    if !lines::nobody() && !ctx.flags().atomic() =>
                {
                    lines::vanished(ctx.db(), name);
                }
                b"move_from" => came_from(ctx.db()),
                b"persist" => persisted(ctx, key),
                b"move_to" | b"copy_to" => go_back(ctx),
                _ => {}
            }
            super::api::OK
        },
        || super::api::OK,
    )
}

/// A value of ours was loaded, copied or taken out of its key since a key last got its value from elsewhere: so that may be it. All other keys are left alone:
/// looking at each would cost who has none of ours.
static ON_ITS_WAY: AtomicBool = AtomicBool::new(false);

/// A value of ours may be about to get another key.
pub fn on_its_way() {
    ON_ITS_WAY.store(true, Ordering::Relaxed);
}

/// The database a key is being moved or copied out of; -1: not known.
static ORIGIN: AtomicI32 = AtomicI32::new(-1);

/// A key of this database is being moved or copied to another place.
pub fn came_from(db: c_int) {
    ORIGIN.store(db, Ordering::Relaxed);
}

/// Valkey 8.1 tells of a key's arrival in another database with the client itself, which it leaves there (valkey#4024), so that its next
/// commands, or those of our master, would run in the wrong database: the client is sent back. Elsewhere the context is our own.
fn go_back(ctx: Ctx<'_>) {
    let db = ORIGIN.swap(-1, Ordering::Relaxed);
    if db >= 0 {
        ctx.select(db);
    }
}

/// A limiter that goes by itself cannot be kept by taking away its TTL: it would be full, and stay.
fn persisted(ctx: Ctx<'_>, key: RawString) {
    if FAMILIES.iter().all(|(family, _)| stats::objects(*family) == 0) || !timer::ready(ctx) {
        return;
    }
    // SAFETY: the key is live during the callback.
    let (family, name) = unsafe { (Handle::unseen(ctx, key).family(), bytes(key)) };
    if let Some(family) = family.filter(|_| !migration::staged(name)) {
        chores::add(Chore::Bound { family, place: Place { db: ctx.db(), key: name.into() } });
    }
}

fn flushed(sub: u64, info: Option<&raw::RedisModuleFlushInfo>) {
    if let (raw::REDISMODULE_SUBEVENT_FLUSHDB_START, Some(info)) = (sub, info) {
        block::flushed(&registry::flush(info.dbnum));
        lines::emptied(info.dbnum);
    }
}

fn swapped(info: Option<&raw::RedisModuleSwapDbInfo>) {
    if let Some(info) = info {
        let (one, other) = (info.dbnum_first, info.dbnum_second);
        registry::swap(one, other);
        lines::look_again_all(one);
        lines::look_again_all(other);
    }
}

fn role_changed(ctx: Ctx<'_>, sub: u64) {
    propagate::reconsider();
    if sub == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER {
        numbers::resume();
    } else {
        block::role_lost();
    }
    timer::soon(ctx);
}

fn loading(ctx: Ctx<'_>, sub: u64) {
    propagate::reconsider();
    match sub {
        raw::REDISMODULE_SUBEVENT_LOADING_AOF_START => truncated::begins(ctx),
        raw::REDISMODULE_SUBEVENT_LOADING_ENDED => truncated::ended(ctx),
        _ => {}
    }
    if sub == raw::REDISMODULE_SUBEVENT_LOADING_ENDED || sub == raw::REDISMODULE_SUBEVENT_LOADING_FAILED {
        // A replica draws nothing: it resumes when it is promoted.
        if ctx.flags().master() {
            numbers::resume();
        }
        lines::look_again_all(-1);
        timer::soon(ctx);
    }
}

/// A replica loads a new data set beside its old one (`repl-diskless-load swapdb`).
fn loading_beside(ctx: Ctx<'_>, sub: u64) {
    match sub {
        raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_STARTED => registry::load_beside(),
        raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_ABORTED => registry::stay(),
        raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_COMPLETED => {
            block::flushed(&registry::replace());
            lines::emptied(-1);
            lines::look_again_all(-1);
            timer::arm(ctx);
        }
        _ => {}
    }
}

fn child(sub: u64) {
    match sub {
        raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN => {
            propagate::somebody_listens();
            numbers::tell_again();
        }
        _ => propagate::reconsider(),
    }
}

fn persistence(sub: u64) {
    match sub {
        raw::REDISMODULE_SUBEVENT_PERSISTENCE_ENDED | raw::REDISMODULE_SUBEVENT_PERSISTENCE_FAILED => {
            propagate::reconsider();
        }
        _ => propagate::somebody_listens(),
    }
}

fn replica(sub: u64) {
    match sub {
        raw::REDISMODULE_SUBEVENT_REPLICA_CHANGE_ONLINE => propagate::somebody_listens(),
        _ => propagate::reconsider(),
    }
}

fn cron(ctx: Ctx<'_>) {
    /// Cron runs between two looks whether anybody still listens; about ten seconds each.
    const LOOKS: u32 = 100;
    static RUNS: AtomicU32 = AtomicU32::new(0);
    static STEPS_SEEN: AtomicU64 = AtomicU64::new(0);
    if numbers::tell(ctx) {
        // Alone, lest the server makes a transaction of it and of what else is carried here.
        return;
    }
    propagate::tell(ctx);
    let steps = clock::STEPS_BACK.load(Ordering::Relaxed);
    if timer::ready(ctx) && STEPS_SEEN.swap(steps, Ordering::Relaxed) != steps {
        timer::stepped_back(ctx);
    }
    timer::cron(ctx);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    if run % LOOKS == LOOKS - 1 {
        propagate::reconsider();
    }
}
