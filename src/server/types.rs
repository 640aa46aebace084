//! The data types: one table of hooks for every family, all alike. A hook turns the server's pointer into an object and calls the engine.
//!
//! RDB body: per batch of the snapshot an unsigned `1 + number of blobs`, the head, the blobs; at the end a 0. The head carries its own format
//! version and family, so a payload is checked as hostile input, as a carried effect is.
//!
//! All hooks run on the main thread but `free`, which may run in the background: it only drops the object, and tells the registry when it
//! happens to be on the main thread; there a large object is dropped by a thread of ours. A value that goes has been `unlink`ed before on the main thread, or flushed, which fires an event.

use super::api::{Ctx, OwnedString, adopt, bytes, rm};
use super::guard::shield;
use super::key::{schedule, wake};
use super::registry::{self, Identity};
use super::{background, block, clock, events, lines, numbers, stats, trust};
use crate::engine::footprint::block;
use crate::engine::gate::Gate;
use crate::engine::hot::Hot;
use crate::engine::journal::{Blob, Journal};
use crate::engine::leaky_bucket::LeakyBucket;
use crate::engine::object::{Family, Lifetime, Object, apply_batch};
use crate::engine::queue::Queue;
use crate::engine::semaphore::Semaphore;
use crate::engine::token_bucket::TokenBucket;
use redis_module::raw;
use std::ffi::{CStr, c_int, c_ulong, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::thread::ThreadId;

/// What a key's value pointer points to: the object, and what only this server notes about it.
pub struct Value<O> {
    /// Its number, never used again on this server: what the registry knows it by.
    pub id: u64,
    pub object: O,
    /// The TTL last given to the key (unix ms); 0: none was given; -1: not known, after a load.
    pub expires_ms: i64,
}

impl<O: Object> Value<O> {
    pub fn new(object: O) -> Self {
        Self { id: next_id(), object, expires_ms: 0 }
    }

    pub fn identity(&self) -> Identity {
        Identity { id: self.id }
    }

    /// An object that came with its key from elsewhere: what TTL the key has is not known, but for one that never has one of ours.
    pub fn arrived(object: O) -> Self {
        let forever = object.lifetime(clock::now()) == Lifetime::Forever;
        Self { id: next_id(), object, expires_ms: if forever { 0 } else { -1 } }
    }

    /// All its bytes.
    pub fn memory(&self) -> usize {
        size_of::<Self>() - size_of::<O>() + self.object.memory()
    }
}

/// Numbers for values. On the main thread, but for a load that a server runs elsewhere.
fn next_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Calls `$f::<O>(…)` for the object type of a family.
macro_rules! for_family {
    ($family:expr, $f:ident($($arg:expr),*)) => {
        match $family {
            $crate::engine::object::Family::TokenBucket => $f::<$crate::engine::token_bucket::TokenBucket>($($arg),*),
            $crate::engine::object::Family::LeakyBucket => $f::<$crate::engine::leaky_bucket::LeakyBucket>($($arg),*),
            $crate::engine::object::Family::Semaphore => $f::<$crate::engine::semaphore::Semaphore>($($arg),*),
            $crate::engine::object::Family::Gate => $f::<$crate::engine::gate::Gate>($($arg),*),
            $crate::engine::object::Family::Hot => $f::<$crate::engine::hot::Hot>($($arg),*),
            $crate::engine::object::Family::Queue => $f::<$crate::engine::queue::Queue>($($arg),*),
        }
    };
}
pub(crate) use for_family;

const FAMILIES: usize = 7;
static HANDLES: [AtomicPtr<raw::RedisModuleType>; FAMILIES] =
    [const { AtomicPtr::new(null_mut()) }; FAMILIES];
static MAIN: std::sync::OnceLock<ThreadId> = std::sync::OnceLock::new();

/// The server's handle of a family's type.
#[inline]
pub fn handle(family: Family) -> *mut raw::RedisModuleType {
    HANDLES[family as usize].load(Ordering::Relaxed)
}

/// Names of the types as `TYPE` and `SCAN … TYPE` know them; exactly nine characters.
fn name(family: Family) -> &'static CStr {
    match family {
        Family::TokenBucket => c"sluice-tb",
        Family::LeakyBucket => c"sluice-lb",
        Family::Semaphore => c"sluice-sm",
        Family::Gate => c"sluice-gt",
        Family::Hot => c"sluice-ht",
        Family::Queue => c"sluice-rq",
    }
}

/// The version of the RDB body; older ones must stay loadable.
const ENCODING: c_int = 1;

/// Registers all types. Only within `RedisModule_OnLoad`.
pub fn register(ctx: Ctx<'_>) -> Result<(), &'static str> {
    let _ = MAIN.set(std::thread::current().id());
    create::<TokenBucket>(ctx)?;
    create::<LeakyBucket>(ctx)?;
    create::<Semaphore>(ctx)?;
    create::<Gate>(ctx)?;
    create::<Hot>(ctx)?;
    create::<Queue>(ctx)
}

fn create<O: Object>(ctx: Ctx<'_>) -> Result<(), &'static str> {
    // One type saves what is the whole module's.
    let saves = O::FAMILY == Family::Queue;
    // SAFETY: reading a pointer; a function without arguments.
    let known = unsafe { raw::RedisModule_GetTypeMethodVersion.map_or(0, |version| version()) };
    /// From this version of the table on the server leaves out data of which nothing was written.
    const LEAVES_OUT: c_int = 5;
    let leaves_out = known >= LEAVES_OUT;
    let mut methods = raw::RedisModuleTypeMethods {
        version: u64::from(raw::REDISMODULE_TYPE_METHOD_VERSION),
        rdb_load: Some(rdb_load::<O>),
        rdb_save: Some(rdb_save::<O>),
        aof_rewrite: Some(aof_rewrite::<O>),
        mem_usage: Some(mem_usage::<O>),
        digest: Some(digest::<O>),
        free: Some(free::<O>),
        aux_load: if saves { Some(numbers::load) } else { None },
        aux_save: if saves && !leaves_out { Some(numbers::save_always) } else { None },
        aux_save_triggers: if saves { raw::REDISMODULE_AUX_BEFORE_RDB as c_int } else { 0 },
        free_effort: Some(free_effort::<O>),
        unlink: None,
        copy: None,
        defrag: Some(defrag::<O>),
        mem_usage2: None,
        free_effort2: None,
        unlink2: Some(unlink::<O>),
        copy2: Some(copy::<O>),
        aux_save2: if saves && leaves_out { Some(numbers::save) } else { None },
    };
    // SAFETY: within OnLoad; the server copies the table.
    let handle = unsafe {
        rm!(RedisModule_CreateDataType(ctx.raw(), name(O::FAMILY).as_ptr(), ENCODING, &mut methods))
    };
    if handle.is_null() {
        return Err("a data type cannot be registered; is another module using its name?");
    }
    HANDLES[O::FAMILY as usize].store(handle, Ordering::Relaxed);
    Ok(())
}

/// Borrows the object behind a hook's value pointer.
///
/// # Safety
/// `value` is a value of family `O` that the server holds, and nothing else reaches it for `'a`.
unsafe fn object<'a, O>(value: *const c_void) -> &'a O {
    // SAFETY: by the contract; values of this type are only made by `Box::into_raw` of a `Value<O>`.
    unsafe { &(*value.cast::<Value<O>>()).object }
}

/// Takes a snapshot apart: calls `each` for every batch.
fn each_batch<O: Object>(object: &O, each: &mut dyn FnMut(&[u8], &[Blob])) {
    let mut journal = Journal::new(O::FAMILY, true);
    let mut flush = |journal: &mut Journal| journal.take().iter().for_each(|b| each(&b.head, &b.blobs));
    object.snapshot(&mut journal, &mut flush);
    flush(&mut journal);
}

fn blob(blob: &Blob) -> &[u8] {
    match blob {
        Blob::Bytes(bytes) => bytes,
        Blob::Arg(_) => &[],
    }
}

unsafe extern "C" fn rdb_save<O: Object>(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    shield(
        || {
            // SAFETY: a hook's value; the io handle is live for the hook; buffers are copied by the server.
            unsafe {
                each_batch(object::<O>(value), &mut |head, blobs| {
                    rm!(RedisModule_SaveUnsigned(io, 1 + blobs.len() as u64));
                    rm!(RedisModule_SaveStringBuffer(io, head.as_ptr().cast(), head.len()));
                    for b in blobs.iter().map(blob) {
                        rm!(RedisModule_SaveStringBuffer(io, b.as_ptr().cast(), b.len()));
                    }
                });
                rm!(RedisModule_SaveUnsigned(io, 0));
            }
        },
        || (),
    );
}

unsafe extern "C" fn rdb_load<O: Object>(io: *mut raw::RedisModuleIO, encoding: c_int) -> *mut c_void {
    shield(
        || {
            if encoding != ENCODING {
                return null_mut();
            }
            // SAFETY: the io handle is live for the hook.
            let Some(object) = (unsafe { load::<O>(io) }) else { return null_mut() };
            let value = Value::arrived(object);
            stats::born(O::FAMILY, value.memory());
            events::on_its_way();
            let value = Box::into_raw(Box::new(value));
            // SAFETY: the io handle is live; its key name, if any, is a live string; the value was just made.
            unsafe {
                let key = rm!(RedisModule_GetKeyNameFromIO(io));
                if !key.is_null() {
                    let db = rm!(RedisModule_GetDbIdFromIO(io));
                    if let Some(at) = wake(&(*value).object, clock::now()) {
                        registry::loaded(O::FAMILY, (*value).identity(), at, || (db, bytes(key).into()));
                    }
                }
            }
            value.cast()
        },
        null_mut,
    )
}

/// Reads a whole object; None if anything is wrong with the payload.
///
/// # Safety
/// `io` is the live handle of a load hook.
unsafe fn load<O: Object>(io: *mut raw::RedisModuleIO) -> Option<O> {
    /// More blobs than a batch of 64 KiB of head can name.
    const MOST_BLOBS: u64 = 1 << 17;
    let failed = || {
        // SAFETY: the io handle is live. A failed read is noticed by this before anything of it is used.
        unsafe { rm!(RedisModule_IsIOError(io)) != 0 }
    };
    let unsigned = || {
        // SAFETY: the io handle is live.
        let n = unsafe { rm!(RedisModule_LoadUnsigned(io)) };
        (!failed()).then_some(n)
    };
    let buffer = || {
        let mut len = 0usize;
        // SAFETY: the io handle is live; the buffer is allocated for us by the server's allocator.
        let bytes = unsafe { adopt(rm!(RedisModule_LoadStringBuffer(io, &mut len)), len) };
        (!failed()).then_some(bytes)
    };
    let mut object = O::blank();
    let mut brought = trust::gather(trust::of_payload());
    while let Some(count) = unsigned()?.checked_sub(1) {
        if count > MOST_BLOBS {
            return None;
        }
        let head = buffer()?;
        let mut broken = false;
        let mut left = count;
        let mut blobs = std::iter::from_fn(|| {
            left = left.checked_sub(1)?;
            let next = buffer();
            broken |= next.is_none();
            next
        });
        apply_batch(&mut object, &head, &mut blobs, &mut brought).ok()?;
        if broken || left != 0 {
            return None;
        }
    }
    // Of a queue the rest may still be on its way: slots move by pieces, and are stored and sent to replicas meanwhile.
    if !object.is_partial() {
        object.check().ok()?;
    }
    // Only now: what is refused must not have moved the server's counter.
    numbers::raise(brought.last());
    Some(object)
}

unsafe extern "C" fn aof_rewrite<O: Object>(
    aof: *mut raw::RedisModuleIO,
    key: *mut raw::RedisModuleString,
    value: *mut c_void,
) {
    shield(
        || {
            // SAFETY: a hook's value; the handle and the key are live for the hook; the format names in order a string, an integer
            // as C string, a buffer with its length and a vector of live strings with its length.
            unsafe {
                each_batch(object::<O>(value), &mut |head, blobs| {
                    let owned: Vec<OwnedString> = blobs.iter().map(|b| OwnedString::new(blob(b))).collect();
                    let mut raws: Vec<_> = owned.iter().map(OwnedString::raw).collect();
                    rm!(RedisModule_EmitAOF(
                        aof,
                        c"SLUICE.APPLY".as_ptr(),
                        c"scbv".as_ptr(),
                        key,
                        c"0".as_ptr(),
                        head.as_ptr(),
                        head.len(),
                        raws.as_mut_ptr(),
                        raws.len()
                    ));
                });
            }
        },
        || (),
    );
}

unsafe extern "C" fn mem_usage<O: Object>(value: *const c_void) -> usize {
    /// What the server makes of a value of ours: its own object, and the pointer to the type.
    const SERVERS: usize = 32;
    shield(
        || {
            // SAFETY: a hook's value.
            let value = unsafe { &*value.cast::<Value<O>>() };
            let timed = if value.object.next_event().is_some() { registry::EACH } else { 0 };
            let own = size_of::<Value<O>>();
            SERVERS + value.memory() + block(own) - own + timed
        },
        || 0,
    )
}

unsafe extern "C" fn free_effort<O: Object>(
    _key: *mut raw::RedisModuleString,
    value: *const c_void,
) -> usize {
    shield(
        || {
            // SAFETY: a hook's value.
            let object = unsafe { object::<O>(value) };
            // Who waits on it is told by `free`, so that must not happen in the background.
            if object.waiting() > 0 { 1 } else { object.effort() }
        },
        || 1,
    )
}

unsafe extern "C" fn digest<O: Object>(md: *mut raw::RedisModuleDigest, value: *mut c_void) {
    shield(
        || {
            // SAFETY: a hook's value; the digest handle is live; buffers are borrowed for the call.
            unsafe {
                each_batch(object::<O>(value), &mut |head, blobs| {
                    rm!(RedisModule_DigestAddStringBuffer(md, head.as_ptr().cast(), head.len()));
                    for b in blobs.iter().map(blob) {
                        rm!(RedisModule_DigestAddStringBuffer(md, b.as_ptr().cast(), b.len()));
                    }
                });
                rm!(RedisModule_DigestEndSequence(md));
            }
        },
        || (),
    );
}

unsafe extern "C" fn free<O: Object>(value: *mut c_void) {
    shield(
        || {
            // SAFETY: the server gives the value up; it was made by Box::into_raw.
            let mut value = unsafe { Box::from_raw(value.cast::<Value<O>>()) };
            stats::died(O::FAMILY, value.memory());
            if MAIN.get() == Some(&std::thread::current().id()) {
                registry::forget(value.id);
                block::orphaned(&mut value.object);
                let effort = value.object.effort();
                background::drop_lazily(value, effort);
            }
        },
        || (),
    );
}

unsafe extern "C" fn unlink<O: Object>(opt: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) {
    shield(
        || {
            // Who waits on the object stays with it: it may have another key already (RENAME, MOVE), else `free` follows.
            events::on_its_way();
            // SAFETY: a hook's value.
            registry::forget(unsafe { (*value.cast::<Value<O>>()).id });
            if O::FAMILY.queue() {
                // SAFETY: the handle is live for the hook; its key name is a live string.
                unsafe {
                    let key = rm!(RedisModule_GetKeyNameFromOptCtx(opt));
                    if !key.is_null() {
                        lines::look_again(rm!(RedisModule_GetDbIdFromOptCtx(opt)), bytes(key));
                    }
                }
            }
        },
        || (),
    );
}

unsafe extern "C" fn copy<O: Object>(
    opt: *mut raw::RedisModuleKeyOptCtx,
    value: *const c_void,
) -> *mut c_void {
    shield(
        || {
            // SAFETY: a hook's value.
            let object = unsafe { object::<O>(value) }.duplicate();
            let copy = Value::arrived(object);
            stats::born(O::FAMILY, copy.memory());
            events::on_its_way();
            let copy = Box::into_raw(Box::new(copy));
            // SAFETY: the handle is live for the hook, its key name is a live string; the copy was just made.
            unsafe {
                events::came_from(rm!(RedisModule_GetDbIdFromOptCtx(opt)));
                let key = rm!(RedisModule_GetToKeyNameFromOptCtx(opt));
                if !key.is_null() {
                    let db = rm!(RedisModule_GetToDbIdFromOptCtx(opt));
                    schedule(&*copy, clock::now(), || (db, bytes(key).into()));
                }
            }
            copy.cast()
        },
        null_mut,
    )
}

unsafe extern "C" fn defrag<O: Object>(
    ctx: *mut raw::RedisModuleDefragCtx,
    _key: *mut raw::RedisModuleString,
    value: *mut *mut c_void,
) -> c_int {
    shield(
        || {
            // SAFETY: the hook lends the value pointer; DefragAlloc answers a moved block (the old one is freed) or null (not moved).
            unsafe {
                let moved = rm!(RedisModule_DefragAlloc(ctx, *value));
                if !moved.is_null() {
                    *value = moved;
                }
                let object = &mut (*(*value).cast::<Value<O>>()).object;
                let mut cursor: c_ulong = 0;
                rm!(RedisModule_DefragCursorGet(ctx, &mut cursor));
                let mut relocate = |block: Box<[u8]>| {
                    let len = block.len();
                    if len == 0 {
                        return block;
                    }
                    let ptr = Box::into_raw(block).cast::<u8>();
                    let moved = rm!(RedisModule_DefragAlloc(ctx, ptr.cast())).cast::<u8>();
                    let ptr = if moved.is_null() { ptr } else { moved };
                    Box::from_raw(std::ptr::slice_from_raw_parts_mut(ptr, len))
                };
                let mut stop = || rm!(RedisModule_DefragShouldStop(ctx)) != 0;
                match object.defrag(cursor, &mut relocate, &mut stop) {
                    Some(next) => {
                        rm!(RedisModule_DefragCursorSet(ctx, next));
                        1
                    }
                    None => 0,
                }
            }
        },
        || 0,
    )
}
