//! The module API, one thin wrapper a function: types, and the reason why each call is sound.
//!
//! [`Ctx`] stands for the context of a running callback and lives no longer than it. Everything here runs on the server's main thread, but for
//! what says otherwise. Functions that some servers lack are answered with an `Option` or documented as doing nothing there: presence is asked of the
//! pointer, never of a version.

use redis_module::raw;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

pub type RawString = *mut raw::RedisModuleString;

pub const OK: c_int = raw::REDISMODULE_OK as c_int;
pub const ERR: c_int = raw::REDISMODULE_ERR as c_int;

/// Calls a function of the module API that every supported server has (checked once at load, see [`missing`]).
macro_rules! rm {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        match redis_module::raw::$name {
            Some(f) => f($($arg),*),
            None => $crate::server::api::absent(stringify!($name)),
        }
    }};
}
pub(super) use rm;

/// A function that was there at load is gone: cannot happen; ends in an error reply, not in the server's end.
#[cold]
pub(super) fn absent(name: &str) -> ! {
    panic!("module API function {name} is missing")
}

/// The names of the functions we cannot live without that this server lacks.
pub fn missing() -> Vec<&'static str> {
    let mut lacking = Vec::new();
    macro_rules! need {
        ($($name:ident)*) => { $(
            // SAFETY: reading a pointer that is only written while the module is loaded, on this thread.
            if unsafe { raw::$name }.is_none() { lacking.push(stringify!($name)); }
        )* };
    }
    need!(
        RedisModule_Alloc RedisModule_Calloc RedisModule_Realloc RedisModule_Free RedisModule_CreateCommand
        RedisModule_GetCommand RedisModule_SetCommandInfo RedisModule_OpenKey RedisModule_CloseKey RedisModule_KeyType
        RedisModule_ModuleTypeGetType RedisModule_ModuleTypeGetValue RedisModule_ModuleTypeSetValue RedisModule_SetAbsExpire RedisModule_GetExpire
        RedisModule_DeleteKey RedisModule_SignalModifiedKey RedisModule_Replicate RedisModule_ReplicateVerbatim
        RedisModule_NotifyKeyspaceEvent RedisModule_Call RedisModule_FreeCallReply RedisModule_CallReplyArrayElement
        RedisModule_DeauthenticateAndCloseClient RedisModule_CallReplyType RedisModule_CallReplyStringPtr
        RedisModule_CallReplyLength RedisModule_CallReplyInteger
        RedisModule_BlockClientOnKeys RedisModule_UnblockClient RedisModule_SetDisconnectCallback RedisModule_BlockedClientDisconnected
        RedisModule_GetDetachedThreadSafeContext RedisModule_GetBlockedClientPrivateData RedisModule_GetClientId
        RedisModule_GetClientUserNameById RedisModule_GetModuleUserFromUserName RedisModule_ACLCheckCommandPermissions
        RedisModule_FreeModuleUser RedisModule_CreateTimer
        RedisModule_StopTimer RedisModule_SelectDb RedisModule_GetSelectedDb RedisModule_GetContextFlags
        RedisModule_AvoidReplicaTraffic RedisModule_StringPtrLen RedisModule_CreateString RedisModule_FreeString
        RedisModule_RegisterNumericConfig RedisModule_RegisterBoolConfig RedisModule_LoadConfigs RedisModule_CreateDataType
        RedisModule_SubscribeToServerEvent RedisModule_SubscribeToKeyspaceEvents RedisModule_RegisterInfoFunc
        RedisModule_InfoAddSection RedisModule_InfoAddFieldULongLong RedisModule_InfoAddFieldCString
        RedisModule_SaveStringBuffer RedisModule_LoadStringBuffer RedisModule_SaveUnsigned RedisModule_LoadUnsigned
        RedisModule_IsIOError RedisModule_EmitAOF RedisModule_DigestAddStringBuffer RedisModule_DigestEndSequence
        RedisModule_GetKeyNameFromOptCtx RedisModule_GetDbIdFromOptCtx RedisModule_GetToKeyNameFromOptCtx
        RedisModule_GetToDbIdFromOptCtx RedisModule_GetKeyNameFromIO RedisModule_GetDbIdFromIO RedisModule_DefragAlloc
        RedisModule_DefragShouldStop RedisModule_DefragCursorGet RedisModule_DefragCursorSet RedisModule_ReplyWithArray
        RedisModule_ReplyWithMap RedisModule_ReplyWithLongLong RedisModule_ReplyWithStringBuffer RedisModule_ReplyWithNull
        RedisModule_ReplyWithNullArray RedisModule_ReplyWithError RedisModule_ReplyWithSimpleString
        RedisModule_SetModuleOptions RedisModule_Log RedisModule_GetServerInfo RedisModule_ServerInfoGetFieldUnsigned
        RedisModule_FreeServerInfo RedisModule_Scan RedisModule_ScanCursorCreate RedisModule_ScanCursorDestroy
    );
    lacking
}

/// A function of the module API by its name, for what not every server has; None: this one lacks it. Only after
/// the module was initialized.
pub fn function(name: &CStr) -> Option<NonNull<c_void>> {
    let mut found: *mut c_void = std::ptr::null_mut();
    // SAFETY: reading a pointer that was set when the module was initialized; the server writes a function pointer, or nothing, to `found`.
    let there = unsafe {
        raw::RedisModule_GetApi.is_some_and(|get| get(name.as_ptr(), (&raw mut found).cast::<c_void>()) == OK)
    };
    NonNull::new(found).filter(|_| there)
}

/// The bytes of a server string.
///
/// # Safety
/// `s` is a live string of the server and is neither freed nor changed for `'a`.
pub unsafe fn bytes<'a>(s: *const raw::RedisModuleString) -> &'a [u8] {
    let mut len = 0usize;
    // SAFETY: `s` is live by this function's contract; the server answers its buffer and length.
    unsafe {
        let ptr = rm!(RedisModule_StringPtrLen(s, &mut len));
        if ptr.is_null() { &[] } else { std::slice::from_raw_parts(ptr.cast(), len) }
    }
}

/// A server string of our own, freed on drop.
pub struct OwnedString(RawString);

impl OwnedString {
    pub fn new(bytes: &[u8]) -> Self {
        // SAFETY: a null context is allowed: the string is then ours alone to free. The bytes are copied.
        Self(unsafe {
            rm!(RedisModule_CreateString(std::ptr::null_mut(), bytes.as_ptr().cast(), bytes.len()))
        })
    }

    pub fn raw(&self) -> RawString {
        self.0
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: a string of our own, which lives as long as `self` and is not changed.
        unsafe { bytes(self.0) }
    }
}

impl Drop for OwnedString {
    fn drop(&mut self) {
        // SAFETY: created by `new` with a null context and not freed elsewhere.
        unsafe { rm!(RedisModule_FreeString(std::ptr::null_mut(), self.0)) }
    }
}

/// The context of a running callback.
#[derive(Clone, Copy)]
pub struct Ctx<'a> {
    raw: *mut raw::RedisModuleCtx,
    life: PhantomData<&'a ()>,
}

static OWN: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(std::ptr::null_mut());

/// What the server says of the running context.
#[derive(Clone, Copy)]
pub struct Flags(c_int);

impl Flags {
    fn any(self, bits: u32) -> bool {
        self.0 & bits.cast_signed() != 0
    }
    pub fn master(self) -> bool {
        self.any(raw::REDISMODULE_CTX_FLAGS_MASTER)
    }
    pub fn loading(self) -> bool {
        self.any(raw::REDISMODULE_CTX_FLAGS_LOADING | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING)
    }
    pub fn cluster(self) -> bool {
        self.any(raw::REDISMODULE_CTX_FLAGS_CLUSTER)
    }
    pub fn aof(self) -> bool {
        self.any(raw::REDISMODULE_CTX_FLAGS_AOF)
    }
    /// The server saves by itself after so many changes.
    pub fn save_points(self) -> bool {
        self.any(raw::REDISMODULE_CTX_FLAGS_RDB)
    }
    pub fn child_running(self) -> bool {
        self.any(raw::REDISMODULE_CTX_FLAGS_ACTIVE_CHILD)
    }
    /// A file is loaded and nobody is served: what runs comes from it. (While a replica takes over a new data set in the background clients are served.)
    pub fn reads_file(self) -> bool {
        self.any(raw::REDISMODULE_CTX_FLAGS_LOADING) && !self.any(raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING)
    }
    /// The running command comes from our master.
    pub fn replicated(self) -> bool {
        self.any(raw::REDISMODULE_CTX_FLAGS_REPLICATED)
    }
    /// A transaction or a script: nothing may block, and what it does is seen as one step.
    pub fn atomic(self) -> bool {
        self.any(raw::REDISMODULE_CTX_FLAGS_LUA | raw::REDISMODULE_CTX_FLAGS_MULTI)
    }
    /// More is used than `maxmemory` allows, and nothing could be evicted.
    pub fn out_of_memory(self) -> bool {
        self.any(raw::REDISMODULE_CTX_FLAGS_OOM)
    }
    pub fn may_block(self) -> bool {
        !self.any(
            raw::REDISMODULE_CTX_FLAGS_LUA
                | raw::REDISMODULE_CTX_FLAGS_MULTI
                | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING,
        )
    }
}

/// A database is selected for as long as this lives, then the former one again. Also after a panic: the context may be that of a client that goes on.
pub struct InDb<'a> {
    ctx: Ctx<'a>,
    back: Option<c_int>,
}

impl Drop for InDb<'_> {
    fn drop(&mut self) {
        if let Some(db) = self.back {
            self.ctx.select(db);
        }
    }
}

impl<'a> Ctx<'a> {
    /// # Safety
    /// `raw` is the context the server gave to a callback that is running for all of `'a`, on the main thread.
    pub unsafe fn new(raw: *mut raw::RedisModuleCtx) -> Self {
        Self { raw, life: PhantomData }
    }

    /// The module's own context: for what a hook without a context must set going. Null before [`Ctx::keep`].
    pub fn own() -> Ctx<'static> {
        Ctx { raw: OWN.load(Ordering::Relaxed), life: PhantomData }
    }

    /// Makes the module's own context. Only within `RedisModule_OnLoad`.
    pub fn keep(self) {
        // SAFETY: a live context; the new one is bound to no client and lives as long as the module.
        let own = unsafe { rm!(RedisModule_GetDetachedThreadSafeContext(self.raw)) };
        OWN.store(own, Ordering::Relaxed);
    }

    pub fn raw(self) -> *mut raw::RedisModuleCtx {
        self.raw
    }

    pub fn flags(self) -> Flags {
        // SAFETY: a live context (Ctx's contract).
        Flags(unsafe { rm!(RedisModule_GetContextFlags(self.raw)) })
    }

    /// The id of the client whose command runs; 0: there is none.
    pub fn client(self) -> u64 {
        // SAFETY: a live context.
        unsafe { rm!(RedisModule_GetClientId(self.raw)) }
    }

    pub fn db(self) -> c_int {
        // SAFETY: a live context.
        unsafe { rm!(RedisModule_GetSelectedDb(self.raw)) }
    }

    /// Runs `f` with another database selected, one that is there, then selects the former one again.
    pub fn in_db<R>(self, db: c_int, f: impl FnOnce() -> R) -> R {
        let _there = self.enter(db);
        f()
    }

    /// Selects a database until what is answered is dropped; None, and nothing is changed, if there is none of that number.
    pub fn enter(self, db: c_int) -> Option<InDb<'a>> {
        let before = self.db();
        if before == db {
            return Some(InDb { ctx: self, back: None });
        }
        self.select(db).then_some(InDb { ctx: self, back: Some(before) })
    }

    /// Selects a database; false, and nothing is changed, if there is none of that number.
    pub fn select(self, db: c_int) -> bool {
        // SAFETY: a live context; a number out of range changes nothing.
        unsafe { rm!(RedisModule_SelectDb(self.raw, db)) == OK }
    }

    pub fn log(self, level: &CStr, text: &str) {
        let text: Vec<u8> = text.bytes().filter(|b| *b != 0).chain([0]).collect();
        // SAFETY: a printf-like call with one `%s` and one NUL-terminated argument.
        unsafe {
            rm!(RedisModule_Log(self.raw, level.as_ptr(), c"%s".as_ptr(), text.as_ptr().cast::<c_char>()))
        };
    }

    pub fn warn(self, text: &str) {
        self.log(c"warning", text);
    }

    /// Closes the connection of the context's client as soon as the running command is done. Nothing for a script's client.
    pub fn close_client(self) {
        // SAFETY: a live context; a client whose id is not listed is refused by the server. Who is logged out is closed, which is what is wanted: the server has
        // no other way for a module.
        unsafe {
            let id = rm!(RedisModule_GetClientId(self.raw));
            rm!(RedisModule_DeauthenticateAndCloseClient(self.raw, id));
        }
    }

    /// Emits a keyspace event of class `d` (module).
    ///
    /// # Safety
    /// `key` is a live string of the server.
    pub unsafe fn notify(self, event: &CStr, key: RawString) {
        // SAFETY: a live context and string.
        unsafe {
            rm!(RedisModule_NotifyKeyspaceEvent(
                self.raw,
                raw::REDISMODULE_NOTIFY_MODULE,
                event.as_ptr(),
                key
            ))
        };
    }

    /// Emits the generic event `del`, as the server's own commands do when they leave a key empty.
    ///
    /// # Safety
    /// As [`Ctx::notify`].
    pub unsafe fn notify_deleted(self, key: RawString) {
        // SAFETY: a live context and string.
        unsafe {
            rm!(RedisModule_NotifyKeyspaceEvent(
                self.raw,
                raw::REDISMODULE_NOTIFY_GENERIC,
                c"del".as_ptr(),
                key
            ))
        };
    }

    /// Starts a timer; the callback gets no data.
    pub fn timer(self, ms: i64, callback: raw::RedisModuleTimerProc) -> u64 {
        // SAFETY: a live context, a static callback.
        unsafe { rm!(RedisModule_CreateTimer(self.raw, ms.max(0), callback, std::ptr::null_mut())) }
    }

    /// Stops a timer that has not fired yet. Never called from the timer's own callback: some servers free it twice then.
    pub fn stop_timer(self, id: u64) {
        // SAFETY: a live context; an id that is not known any more is refused by the server.
        unsafe { rm!(RedisModule_StopTimer(self.raw, id, std::ptr::null_mut())) };
    }

    /// One unsigned field of an INFO section; None when the server has no such field.
    pub fn info_field(self, section: &CStr, field: &CStr) -> Option<u64> {
        let mut failed: c_int = 0;
        // SAFETY: a live context; the data is read before it is freed and freed once.
        unsafe {
            let data = rm!(RedisModule_GetServerInfo(self.raw, section.as_ptr()));
            let value = rm!(RedisModule_ServerInfoGetFieldUnsigned(data, field.as_ptr(), &mut failed));
            rm!(RedisModule_FreeServerInfo(self.raw, data));
            (failed == OK).then_some(value)
        }
    }
}

/// Whether nothing may be written now because replicas must not get traffic: `CLIENT PAUSE`, a manual failover. The server
/// aborts on a module that propagates then.
pub fn replicas_paused() -> bool {
    // SAFETY: takes no argument, reads server state on the main thread.
    unsafe { rm!(RedisModule_AvoidReplicaTraffic()) != 0 }
}

/// Builds an owned slice from a buffer the server allocated for us, without copying.
///
/// # Safety
/// `ptr` is null or was allocated by the server's `RedisModule_Alloc` with room for `len` bytes, and is owned by the caller.
pub unsafe fn adopt(ptr: *mut c_char, len: usize) -> Box<[u8]> {
    if ptr.is_null() || len == 0 {
        if !ptr.is_null() {
            // SAFETY: ours to free; a boxed slice of length 0 would never free it.
            unsafe { rm!(RedisModule_Free(ptr.cast::<c_void>())) };
        }
        return Box::default();
    }
    // SAFETY: our global allocator is the server's (alloc.rs), so a block of `len` bytes with alignment 1 may be freed by Box;
    // the buffer is initialised by the server and nobody else holds it.
    unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(ptr.cast::<u8>(), len)) }
}
