//! Events of the server: what C hands over is made safe here.

use super::api::{OK, rm};
use super::context::Ctx;
use super::guard::shield;
use super::strings::Str;
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    RoleChanged {
        master: bool,
    },
    /// A database (-1: all of them) is about to be emptied.
    Flush {
        db: i32,
    },
    Swapped {
        one: i32,
        other: i32,
    },
    Loading(Loading),
    /// A replica loads a new data set beside its old one (`repl-diskless-load swapdb`).
    LoadingBeside(Beside),
    Child {
        born: bool,
    },
    Persistence {
        ended: bool,
    },
    Replica {
        online: bool,
    },
    Cron,
    BeforeSleep,
    /// Valkey 9: slots move at once.
    Slots(Slots),
    /// Redis 8.4: the same, without saying which.
    RedisSlots(Stage),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loading {
    /// An append only file.
    AofBegins,
    OtherBegins,
    Ended,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    Started,
    Aborted,
    Completed,
}

/// A job that moves slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slots {
    pub stage: Stage,
    pub job: Box<[u8]>,
    pub ranges: Vec<RangeInclusive<u16>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    ImportStarted,
    ImportAborted,
    ImportCompleted,
    ExportStarted,
    ExportAborted,
    ExportCompleted,
}

/// Which event of moving slots a server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotEvents {
    None,
    Valkey,
    Redis,
}

/// The events' numbers are those of the servers' headers; Valkey's 18 is another event.
const VALKEY_SLOTS: u64 = 19;
const REDIS_SLOTS: u64 = 18;

/// Redis: keys are deleted one by one, with our hooks called, only if somebody subscribes to this;
/// otherwise their values would be freed behind our back.
const NOTIFY_KEY_TRIMMED: c_int = 1 << 17;

/// What Valkey's event hands over.
#[repr(C)]
struct ValkeyInfo {
    _version: u64,
    job: [c_char; 41],
    ranges: *const ValkeyRange,
    count: u32,
}

#[repr(C)]
struct ValkeyRange {
    first: c_int,
    last: c_int,
}

/// Subscribes to every [`Event`] but those of slots. Only within `RedisModule_OnLoad`, as all of
/// these.
pub fn subscribe<F: Fn(Ctx<'_>, Event) + Copy + 'static>(ctx: Ctx<'_>, handler: F) -> bool {
    [
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
    ]
    .into_iter()
    .all(|id| subscribe_to(ctx, id, handler))
}

/// Subscribes to the events of moving slots; false: the server does not know them.
pub fn subscribe_slots<F>(ctx: Ctx<'_>, kind: SlotEvents, handler: F) -> bool
where
    F: Fn(Ctx<'_>, Event) + Copy + 'static,
{
    match kind {
        SlotEvents::None => true,
        SlotEvents::Valkey => subscribe_to(ctx, VALKEY_SLOTS, handler),
        SlotEvents::Redis => subscribe_to(ctx, REDIS_SLOTS, handler),
    }
}

fn subscribe_to<F>(ctx: Ctx<'_>, id: u64, _handler: F) -> bool
where
    F: Fn(Ctx<'_>, Event) + Copy + 'static,
{
    let event = raw::RedisModuleEvent { id, dataver: 1 };
    // SAFETY: within OnLoad; a static callback; the server refuses an event that it does not know.
    unsafe { rm!(RedisModule_SubscribeToServerEvent(ctx.raw(), event, Some(on_event::<F>))) == OK }
}

/// The server hands back the event as it was subscribed to, so its id tells which one it is.
unsafe extern "C" fn on_event<F: Fn(Ctx<'_>, Event) + Copy + 'static>(
    ctx: *mut raw::RedisModuleCtx,
    event: raw::RedisModuleEvent,
    sub: u64,
    data: *mut c_void,
) {
    shield(
        || {
            // SAFETY: the data that came with this event; the context of a running callback; the
            // handler was given when it was subscribed to.
            unsafe {
                if let Some(event) = read(event.id, sub, data) {
                    super::context::function_of::<F>()(Ctx::new(ctx), event);
                }
            }
        },
        || (),
    );
}

/// None: it says nothing that anybody wants to know.
///
/// # Safety
/// `data` is what the server handed over with the event.
unsafe fn read(id: u64, sub: u64, data: *mut c_void) -> Option<Event> {
    Some(match id {
        raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED => {
            Event::RoleChanged { master: sub == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER }
        }
        raw::REDISMODULE_EVENT_FLUSHDB if sub == raw::REDISMODULE_SUBEVENT_FLUSHDB_START => {
            // SAFETY: this event's data is a RedisModuleFlushInfo that outlives the callback, if it
            // is there.
            Event::Flush { db: unsafe { data.cast::<raw::RedisModuleFlushInfo>().as_ref() }?.dbnum }
        }
        raw::REDISMODULE_EVENT_SWAPDB => {
            // SAFETY: this event's data is a RedisModuleSwapDbInfo that outlives the callback, if
            // it is there.
            let info = unsafe { data.cast::<raw::RedisModuleSwapDbInfo>().as_ref() }?;
            Event::Swapped { one: info.dbnum_first, other: info.dbnum_second }
        }
        raw::REDISMODULE_EVENT_LOADING => Event::Loading(match sub {
            raw::REDISMODULE_SUBEVENT_LOADING_AOF_START => Loading::AofBegins,
            raw::REDISMODULE_SUBEVENT_LOADING_ENDED => Loading::Ended,
            raw::REDISMODULE_SUBEVENT_LOADING_FAILED => Loading::Failed,
            _ => Loading::OtherBegins,
        }),
        raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD => Event::LoadingBeside(match sub {
            raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_STARTED => Beside::Started,
            raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_ABORTED => Beside::Aborted,
            raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_COMPLETED => Beside::Completed,
            _ => return None,
        }),
        raw::REDISMODULE_EVENT_FORK_CHILD => {
            Event::Child { born: sub == raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN }
        }
        raw::REDISMODULE_EVENT_PERSISTENCE => Event::Persistence {
            ended: sub == raw::REDISMODULE_SUBEVENT_PERSISTENCE_ENDED
                || sub == raw::REDISMODULE_SUBEVENT_PERSISTENCE_FAILED,
        },
        raw::REDISMODULE_EVENT_REPLICA_CHANGE => {
            Event::Replica { online: sub == raw::REDISMODULE_SUBEVENT_REPLICA_CHANGE_ONLINE }
        }
        raw::REDISMODULE_EVENT_CRON_LOOP => Event::Cron,
        raw::REDISMODULE_EVENT_EVENTLOOP if sub == raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP => {
            Event::BeforeSleep
        }
        // SAFETY: as the contract says.
        VALKEY_SLOTS => Event::Slots(unsafe { valkey_slots(sub, data.cast::<ValkeyInfo>().as_ref()) }?),
        REDIS_SLOTS => Event::RedisSlots(match sub {
            0 => Stage::ImportStarted,
            2 => Stage::ImportCompleted,
            3 => Stage::ExportStarted,
            4 => Stage::ExportAborted,
            5 => Stage::ExportCompleted,
            _ => return None,
        }),
        _ => return None,
    })
}

/// # Safety
/// `info` is the event's data, whose ranges are live.
unsafe fn valkey_slots(sub: u64, info: Option<&ValkeyInfo>) -> Option<Slots> {
    let info = info?;
    let stage = match sub {
        0 => Stage::ImportStarted,
        1 => Stage::ExportStarted,
        2 => Stage::ImportAborted,
        3 => Stage::ExportAborted,
        4 => Stage::ImportCompleted,
        5 => Stage::ExportCompleted,
        _ => return None,
    };
    let ranges: &[ValkeyRange] = if info.ranges.is_null() {
        &[]
    } else {
        // SAFETY: by the contract: an array of `count` ranges.
        unsafe { std::slice::from_raw_parts(info.ranges, usize::try_from(info.count).unwrap_or(0)) }
    };
    let slot = |n: c_int| u16::try_from(n).unwrap_or(u16::MAX);
    Some(Slots {
        stage,
        job: info.job.iter().map(|c| c.cast_unsigned()).take_while(|c| *c != 0).collect(),
        ranges: ranges.iter().map(|r| slot(r.first)..=slot(r.last)).collect(),
    })
}

/// Subscribes to the keyspace events, when they are needed.
static SUBSCRIBE: OnceLock<fn() -> bool> = OnceLock::new();
static LISTENS: AtomicBool = AtomicBool::new(false);

/// Has `subscribe` called (it says whether that went well) when the first value of ours is there,
/// or the first client waits for one. The server's own work to tell one module of an event is a
/// tenth of a `DEL` and a quarter of a `RENAME`: who has the module loaded and does not use it does
/// not pay that.
pub fn listen_when_needed(subscribe: fn() -> bool) {
    let _ = SUBSCRIBE.set(subscribe);
}

/// Keyspace events are needed from now on. If it fails it is tried again with the next call.
#[inline]
pub fn listen() {
    if !LISTENS.load(Ordering::Relaxed) {
        LISTENS.store(SUBSCRIBE.get().is_some_and(|subscribe| subscribe()), Ordering::Relaxed);
    }
}

/// Subscribes to the keyspace events of all commands that move keys and values about: `handler`
/// gets the event's name and the key.
pub fn subscribe_keys<F>(ctx: Ctx<'_>, slots: SlotEvents, _handler: F) -> bool
where
    F: Fn(Ctx<'_>, &[u8], Str<'_>) + Copy + 'static,
{
    let trimmed = if slots == SlotEvents::Redis { NOTIFY_KEY_TRIMMED } else { 0 };
    let classes =
        raw::REDISMODULE_NOTIFY_GENERIC | raw::REDISMODULE_NOTIFY_EXPIRED | raw::REDISMODULE_NOTIFY_EVICTED;
    // SAFETY: a live context on the main thread; a static callback.
    unsafe {
        rm!(RedisModule_SubscribeToKeyspaceEvents(ctx.raw(), classes | trimmed, Some(on_key_event::<F>)))
            == OK
    }
}

unsafe extern "C" fn on_key_event<F>(
    ctx: *mut raw::RedisModuleCtx,
    _class: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int
where
    F: Fn(Ctx<'_>, &[u8], Str<'_>) + Copy + 'static,
{
    shield(
        || {
            // SAFETY: the event's name is a C string, the context and the key are live during the
            // callback; the handler was given when it was subscribed to.
            unsafe {
                let name = CStr::from_ptr(event).to_bytes();
                super::context::function_of::<F>()(Ctx::new(ctx), name, Str::new(key));
            }
        },
        || (),
    );
    OK
}

/// The option by which Valkey learns that the module may be loaded while slots move. On Redis the
/// bit may mean anything else.
pub const HANDLES_SLOT_MIGRATION: u32 = 1 << 5;
