//! Data types of keys: the server's table of hooks for each, all alike. A hook turns the server's
//! pointer into a value and calls [`DataType`]; key/hooks.rs says what each does.
//!
//! All hooks run on the main thread but `free`, which may run in the background, and `save` and
//! `rewrite`, which run in a forked child.

use super::api::{OK, rm};
use super::context::Ctx;
use super::guard::shield;
use super::rdb::{Aof, Digest, Reader, Writer};
use super::strings::Str;
use redis_module::raw;
use std::ffi::{CStr, c_int, c_ulong, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread::ThreadId;

/// Where a value lives: database and key.
pub type Address<'p> = (i32, &'p [u8]);

/// What a key of ours points to, and what the server asks of it.
pub trait DataType: Sized + 'static {
    /// Its index among the data types of the module.
    const INDEX: usize;
    /// What `TYPE` and `SCAN … TYPE` know it as; exactly nine characters.
    const NAME: &'static CStr;

    /// Writes the value to a file, a payload or another node.
    fn save(&self, out: &Writer);
    /// Reads a value; None: the payload is damaged.
    fn load(input: &Reader) -> Option<Self>;
    /// A value was loaded into a key.
    fn loaded(&self, address: Address<'_>);
    /// Writes the commands that make the value.
    fn rewrite(&self, out: &Aof<'_>);
    /// All its bytes.
    fn bytes(&self) -> usize;
    fn digest(&self, into: &Digest);
    /// The server gives the value up. `main`: this is the main thread.
    fn free(self: Box<Self>, main: bool);
    /// How many allocations freeing it takes, roughly.
    fn effort(&self) -> usize;
    /// The value is taken out of its key; what comes of it is not said. The key may be not known.
    fn unlink(&self, address: Option<Address<'_>>);
    /// An equal value for another key; `from`: the database it is copied from.
    fn copy(&self, from: i32) -> Self;
    /// The copy has its address.
    fn copied(&self, to: Address<'_>);
    /// Hands large blocks to `relocate` from `cursor` on until `stop` says so. The cursor to go on
    /// with, or None when all was seen.
    fn defrag(
        &mut self,
        cursor: u64,
        relocate: &mut dyn FnMut(Box<[u8]>) -> Box<[u8]>,
        stop: &mut dyn FnMut() -> bool,
    ) -> Option<u64>;
}

/// What is saved in files besides keys, before all of them; the first type's hooks carry it.
pub trait Aux: 'static {
    /// Writes what there is; nothing if there is nothing.
    fn save(out: &Writer);
    /// The same for a server that wants something in any case.
    fn save_always(out: &Writer);
    /// False: it is damaged.
    fn load(input: &Reader) -> bool;
}

/// The most data types of the module.
const MOST: usize = 16;
static HANDLES: [AtomicPtr<raw::RedisModuleType>; MOST] = [const { AtomicPtr::new(null_mut()) }; MOST];
static MAIN: OnceLock<ThreadId> = OnceLock::new();

/// The server's handle of a type.
#[inline]
pub(super) fn handle_of<T: DataType>() -> *mut raw::RedisModuleType {
    HANDLES[T::INDEX].load(Ordering::Relaxed)
}

/// The index of a type by its handle; None: it is none of ours.
pub(super) fn index_of(handle: *mut raw::RedisModuleType) -> Option<usize> {
    HANDLES.iter().position(|known| !handle.is_null() && known.load(Ordering::Relaxed) == handle)
}

/// The version of the RDB body; older ones must stay loadable.
const ENCODING: c_int = 1;

/// Registers a data type. Only within `RedisModule_OnLoad`, as [`register_with`].
pub fn register<T: DataType>(ctx: Ctx<'_>) -> bool {
    // SAFETY: a plain C struct of numbers and pointers to functions: all zero is a valid value.
    create::<T>(ctx, unsafe { std::mem::zeroed() })
}

/// The same, with what is saved besides keys.
pub fn register_with<T: DataType, A: Aux>(ctx: Ctx<'_>) -> bool {
    /// From this version of the table on the server leaves out data of which nothing was written.
    const LEAVES_OUT: c_int = 5;
    let leaves_out = super::optional::type_methods() >= LEAVES_OUT;
    // SAFETY: as in `register`.
    let mut methods: raw::RedisModuleTypeMethods = unsafe { std::mem::zeroed() };
    methods.aux_load = Some(aux_load::<A>);
    methods.aux_save_triggers = raw::REDISMODULE_AUX_BEFORE_RDB as c_int;
    if leaves_out {
        methods.aux_save2 = Some(aux_save::<A>);
    } else {
        methods.aux_save = Some(aux_save_always::<A>);
    }
    create::<T>(ctx, methods)
}

fn create<T: DataType>(ctx: Ctx<'_>, aux: raw::RedisModuleTypeMethods) -> bool {
    let _ = MAIN.set(std::thread::current().id());
    let mut methods = raw::RedisModuleTypeMethods {
        version: u64::from(raw::REDISMODULE_TYPE_METHOD_VERSION),
        rdb_load: Some(rdb_load::<T>),
        rdb_save: Some(rdb_save::<T>),
        aof_rewrite: Some(aof_rewrite::<T>),
        mem_usage: Some(mem_usage::<T>),
        digest: Some(digest::<T>),
        free: Some(free::<T>),
        free_effort: Some(free_effort::<T>),
        defrag: Some(defrag::<T>),
        unlink2: Some(unlink::<T>),
        copy2: Some(copy::<T>),
        ..aux
    };
    // SAFETY: within OnLoad; the server copies the table.
    let handle =
        unsafe { rm!(RedisModule_CreateDataType(ctx.raw(), T::NAME.as_ptr(), ENCODING, &mut methods)) };
    HANDLES[T::INDEX].store(handle, Ordering::Relaxed);
    !handle.is_null()
}

/// Borrows the value behind a hook's pointer.
///
/// # Safety
/// `value` is a value of type `T` that the server holds, and nothing else reaches it for `'a`.
unsafe fn value<'a, T>(value: *const c_void) -> &'a T {
    // SAFETY: by the contract; values of this type are only made by `Box::into_raw` of a `T`.
    unsafe { &*value.cast::<T>() }
}

unsafe extern "C" fn rdb_save<T: DataType>(io: *mut raw::RedisModuleIO, of: *mut c_void) {
    // SAFETY: a hook's value; the io handle is live for the hook.
    shield(|| unsafe { value::<T>(of).save(&Writer::new(io)) }, || ());
}

unsafe extern "C" fn rdb_load<T: DataType>(io: *mut raw::RedisModuleIO, encoding: c_int) -> *mut c_void {
    shield(
        || {
            if encoding != ENCODING {
                return null_mut();
            }
            // SAFETY: the io handle is live for the hook; its key name, if any, is a live string.
            unsafe {
                let Some(loaded) = T::load(&Reader::new(io)) else { return null_mut() };
                let loaded = Box::new(loaded);
                let key = rm!(RedisModule_GetKeyNameFromIO(io));
                if !key.is_null() {
                    loaded.loaded((rm!(RedisModule_GetDbIdFromIO(io)), Str::new(key.cast_mut()).bytes()));
                }
                Box::into_raw(loaded).cast()
            }
        },
        null_mut,
    )
}

unsafe extern "C" fn aof_rewrite<T: DataType>(
    aof: *mut raw::RedisModuleIO,
    key: *mut raw::RedisModuleString,
    of: *mut c_void,
) {
    // SAFETY: a hook's value; the handle and the key are live for the hook.
    shield(|| unsafe { value::<T>(of).rewrite(&Aof::new(aof, Str::new(key))) }, || ());
}

unsafe extern "C" fn mem_usage<T: DataType>(of: *const c_void) -> usize {
    // SAFETY: a hook's value.
    shield(|| unsafe { value::<T>(of).bytes() }, || 0)
}

unsafe extern "C" fn free_effort<T: DataType>(_: *mut raw::RedisModuleString, of: *const c_void) -> usize {
    // SAFETY: a hook's value.
    shield(|| unsafe { value::<T>(of).effort() }, || 1)
}

unsafe extern "C" fn digest<T: DataType>(md: *mut raw::RedisModuleDigest, of: *mut c_void) {
    // SAFETY: a hook's value; the digest handle is live.
    shield(|| unsafe { value::<T>(of).digest(&Digest::new(md)) }, || ());
}

unsafe extern "C" fn free<T: DataType>(of: *mut c_void) {
    shield(
        || {
            // SAFETY: the server gives the value up; it was made by Box::into_raw.
            let value = unsafe { Box::from_raw(of.cast::<T>()) };
            value.free(MAIN.get() == Some(&std::thread::current().id()));
        },
        || (),
    );
}

/// # Safety
/// `key` is null or a live string for `'p`.
unsafe fn address<'p>(db: c_int, key: *const raw::RedisModuleString) -> Option<Address<'p>> {
    // SAFETY: by the contract.
    (!key.is_null()).then(|| (db, unsafe { Str::new(key.cast_mut()).bytes() }))
}

unsafe extern "C" fn unlink<T: DataType>(opt: *mut raw::RedisModuleKeyOptCtx, of: *const c_void) {
    shield(
        || {
            // SAFETY: a hook's value; the handle is live for the hook, and so is its key name.
            unsafe {
                let db = rm!(RedisModule_GetDbIdFromOptCtx(opt));
                value::<T>(of).unlink(address(db, rm!(RedisModule_GetKeyNameFromOptCtx(opt))));
            }
        },
        || (),
    );
}

unsafe extern "C" fn copy<T: DataType>(
    opt: *mut raw::RedisModuleKeyOptCtx,
    of: *const c_void,
) -> *mut c_void {
    shield(
        || {
            // SAFETY: a hook's value; the handle is live for the hook, and so is its key name.
            unsafe {
                let from = rm!(RedisModule_GetDbIdFromOptCtx(opt));
                let db = rm!(RedisModule_GetToDbIdFromOptCtx(opt));
                let to = address(db, rm!(RedisModule_GetToKeyNameFromOptCtx(opt)));
                let copy = Box::new(value::<T>(of).copy(from));
                to.into_iter().for_each(|to| copy.copied(to));
                Box::into_raw(copy).cast()
            }
        },
        null_mut,
    )
}

unsafe extern "C" fn defrag<T: DataType>(
    ctx: *mut raw::RedisModuleDefragCtx,
    _key: *mut raw::RedisModuleString,
    of: *mut *mut c_void,
) -> c_int {
    shield(
        || {
            // SAFETY: the hook lends the value pointer; DefragAlloc answers a moved block (the old
            // one is freed) or null (not moved).
            unsafe {
                let moved = rm!(RedisModule_DefragAlloc(ctx, *of));
                if !moved.is_null() {
                    *of = moved;
                }
                let value = &mut *(*of).cast::<T>();
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
                match value.defrag(cursor, &mut relocate, &mut stop) {
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

unsafe extern "C" fn aux_save<A: Aux>(io: *mut raw::RedisModuleIO, _when: c_int) {
    // SAFETY: the server's handle.
    shield(|| A::save(&unsafe { Writer::new(io) }), || ());
}

unsafe extern "C" fn aux_save_always<A: Aux>(io: *mut raw::RedisModuleIO, _when: c_int) {
    // SAFETY: the server's handle.
    shield(|| A::save_always(&unsafe { Writer::new(io) }), || ());
}

unsafe extern "C" fn aux_load<A: Aux>(io: *mut raw::RedisModuleIO, _encoding: c_int, _when: c_int) -> c_int {
    shield(
        || {
            // SAFETY: the server's handle.
            let good = A::load(&unsafe { Reader::new(io) });
            if good { OK } else { super::api::ERR }
        },
        || super::api::ERR,
    )
}
