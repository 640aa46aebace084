//! What the server tells: databases flushed and swapped, keys renamed, roles changed, forks, loads, the cron.

use super::api::{Ctx, RawString, bytes, rm};
use super::chores::{self, Chore};
use super::guard::shield;
use super::info::FAMILIES;
use super::key::{read, wake};
use super::registry::{self, Place};
use super::types::{Value, for_family};
use super::{block, clock, lines, propagate, stats, timer};
use crate::engine::object::Object;
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Subscribes to everything below. Only within `RedisModule_OnLoad`.
pub fn subscribe(ctx: Ctx<'_>) -> Result<(), &'static str> {
    let wanted: [(u64, raw::RedisModuleEventCallback); 8] = [
        (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, Some(on_role)),
        (raw::REDISMODULE_EVENT_FLUSHDB, Some(on_flush)),
        (raw::REDISMODULE_EVENT_SWAPDB, Some(on_swap)),
        (raw::REDISMODULE_EVENT_LOADING, Some(on_load)),
        (raw::REDISMODULE_EVENT_FORK_CHILD, Some(on_fork)),
        (raw::REDISMODULE_EVENT_PERSISTENCE, Some(on_persistence)),
        (raw::REDISMODULE_EVENT_REPLICA_CHANGE, Some(on_replica)),
        (raw::REDISMODULE_EVENT_CRON_LOOP, Some(on_cron)),
    ];
    for (id, callback) in wanted {
        // SAFETY: within OnLoad; static callbacks.
        let done = unsafe {
            rm!(RedisModule_SubscribeToServerEvent(
                ctx.raw(),
                raw::RedisModuleEvent { id, dataver: 1 },
                callback
            ))
        };
        if done != super::api::OK {
            return Err("a server event cannot be subscribed to");
        }
    }
    // SAFETY: as above.
    let done = unsafe {
        rm!(RedisModule_SubscribeToKeyspaceEvents(
            ctx.raw(),
            raw::REDISMODULE_NOTIFY_GENERIC
                | raw::REDISMODULE_NOTIFY_EXPIRED
                | raw::REDISMODULE_NOTIFY_EVICTED,
            Some(on_key_event)
        ))
    };
    if done == super::api::OK { Ok(()) } else { Err("keyspace events cannot be subscribed to") }
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
            let (ctx, event) = unsafe { (Ctx::new(ctx), CStr::from_ptr(event)) };
            if matches!(event.to_bytes(), b"rename_to" | b"move_to" | b"copy_to" | b"restore") {
                let db = ctx.db();
                for (family, _) in FAMILIES {
                    let found = for_family!(family, arrived(ctx, key));
                    if found && event.to_bytes() == b"restore" && timer::ready(ctx) {
                        // SAFETY: the key is live.
                        let place = Place { db, key: unsafe { bytes(key) }.into() };
                        chores::add(Chore::Bound { family, place });
                    }
                }
                // SAFETY: the key is live.
                lines::look_again(db, unsafe { bytes(key) });
                registry::arm(ctx);
            }
            match event.to_bytes() {
                // In a transaction it may have become something else by its end: who waits is told then what it is.
                b"del" | b"rename_from" | b"expired" | b"evicted" if !ctx.flags().atomic() => {
                    // SAFETY: the key is live.
                    lines::vanished(ctx.db(), unsafe { bytes(key) });
                }
                b"move_from" => came_from(ctx.db()),
                b"move_to" | b"copy_to" => go_back(ctx),
                _ => {}
            }
            super::api::OK
        },
        || super::api::OK,
    )
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

/// Whether the key holds an object of this family.
fn arrived<O: Object>(ctx: Ctx<'_>, key: RawString) -> bool {
    // SAFETY: the key is live during the callback; the address is only compared.
    let found = unsafe {
        read::<O, _>(ctx, key, |object| {
            object.map(|o| {
                let address = std::ptr::from_ref(o) as usize - std::mem::offset_of!(Value<O>, object);
                (address, wake(o, clock::now()))
            })
        })
    };
    let Ok(Some((address, next))) = found else { return false };
    // SAFETY: as above.
    let place = Place { db: ctx.db(), key: unsafe { bytes(key) }.into() };
    registry::relocate(address, place.clone());
    if let Some(at) = next {
        registry::schedule(O::FAMILY, address, at, || (place.db, place.key));
    }
    true
}

unsafe extern "C" fn on_flush(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    data: *mut c_void,
) {
    shield(
        || {
            if sub == raw::REDISMODULE_SUBEVENT_FLUSHDB_START && !data.is_null() {
                // SAFETY: this event's data is a RedisModuleFlushInfo.
                let db = unsafe { (*data.cast::<raw::RedisModuleFlushInfo>()).dbnum };
                for (family, address) in registry::flush(db) {
                    for_family!(family, orphan(address));
                }
                lines::emptied(db);
            }
        },
        || (),
    );
}

fn orphan<O: Object>(address: usize) {
    // SAFETY: the registry knows only live objects (each is forgotten at unlink, free or flush), and this one is flushed only after
    // this event; nothing else reaches it meanwhile.
    let value = unsafe { &mut *(address as *mut Value<O>) };
    let before = value.memory();
    block::orphaned(&mut value.object);
    stats::grew(O::FAMILY, value.memory() as i64 - before as i64);
}

unsafe extern "C" fn on_swap(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    _: u64,
    data: *mut c_void,
) {
    shield(
        || {
            if data.is_null() {
                return;
            }
            // SAFETY: this event's data is a RedisModuleSwapDbInfo.
            let (one, other) = unsafe {
                let info = &*data.cast::<raw::RedisModuleSwapDbInfo>();
                (info.dbnum_first, info.dbnum_second)
            };
            registry::swap(one, other);
            lines::look_again_all(one);
            lines::look_again_all(other);
        },
        || (),
    );
}

unsafe extern "C" fn on_role(
    ctx: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    _: *mut c_void,
) {
    shield(
        || {
            propagate::reconsider();
            if sub == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER {
                clock::raise_fencing();
            }
            // SAFETY: the context of a running callback.
            timer::soon(unsafe { Ctx::new(ctx) });
        },
        || (),
    );
}

unsafe extern "C" fn on_load(
    ctx: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    _: *mut c_void,
) {
    shield(
        || {
            propagate::reconsider();
            if sub == raw::REDISMODULE_SUBEVENT_LOADING_ENDED
                || sub == raw::REDISMODULE_SUBEVENT_LOADING_FAILED
            {
                clock::raise_fencing();
                lines::look_again_all(-1);
                // SAFETY: the context of a running callback.
                timer::soon(unsafe { Ctx::new(ctx) });
            }
        },
        || (),
    );
}

unsafe extern "C" fn on_fork(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    _: *mut c_void,
) {
    match sub {
        raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN => propagate::somebody_listens(),
        _ => propagate::reconsider(),
    }
}

unsafe extern "C" fn on_persistence(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    _: *mut c_void,
) {
    match sub {
        raw::REDISMODULE_SUBEVENT_PERSISTENCE_ENDED | raw::REDISMODULE_SUBEVENT_PERSISTENCE_FAILED => {
            propagate::reconsider();
        }
        _ => propagate::somebody_listens(),
    }
}

unsafe extern "C" fn on_replica(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    _: *mut c_void,
) {
    match sub {
        raw::REDISMODULE_SUBEVENT_REPLICA_CHANGE_ONLINE => propagate::somebody_listens(),
        _ => propagate::reconsider(),
    }
}

unsafe extern "C" fn on_cron(
    ctx: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    _: u64,
    _: *mut c_void,
) {
    /// Cron runs between two looks whether anybody still listens; about ten seconds each.
    const LOOKS: u32 = 100;
    /// Cron runs between two looks whether the slots that clients wait for are still ours; about a second each.
    const SLOT_LOOKS: u32 = 10;
    static RUNS: AtomicU32 = AtomicU32::new(0);
    shield(
        || {
            // SAFETY: the context of a running callback.
            let ctx = unsafe { Ctx::new(ctx) };
            propagate::tell(ctx);
            static STEPS_SEEN: AtomicU64 = AtomicU64::new(0);
            let steps = clock::STEPS_BACK.load(Ordering::Relaxed);
            if STEPS_SEEN.swap(steps, Ordering::Relaxed) != steps && timer::ready(ctx) {
                timer::stepped_back(ctx);
            }
            // Whatever may have come between an entry and its timer: it is found here.
            registry::arm(ctx);
            let run = RUNS.fetch_add(1, Ordering::Relaxed);
            if run % LOOKS == LOOKS - 1 {
                propagate::reconsider();
            }
            if run.is_multiple_of(SLOT_LOOKS) && ctx.flags().cluster() {
                lines::send_away(ctx);
            }
        },
        || (),
    );
}
