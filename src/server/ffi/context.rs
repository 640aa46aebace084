//! The context of a running callback, and what the server tells and does by it.
//!
//! [`Ctx`] lives no longer than the callback. Everything here runs on the server's main thread.

use super::api::{OK, rm};
use super::guard::shield;
use super::strings::{OwnedString, Str};
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

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
    /// A file is loaded and nobody is served: what runs comes from it. (While a replica takes over
    /// a new data set in the background clients are served.)
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

/// A database is selected for as long as this lives, then the former one again. Also after a panic:
/// the context may be that of a client that goes on.
pub struct InDb<'a> {
    ctx: Ctx<'a>,
    back: Option<Back>,
}

struct Back {
    db: c_int,
    entered: (*mut raw::RedisModuleCtx, c_int),
}

/// The context for which an [`InDb`] lives, and its database. In a transaction Valkey 9.1 goes on
/// telling the database that the client has selected.
static ENTERED: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(std::ptr::null_mut());
static ENTERED_DB: AtomicI32 = AtomicI32::new(0);

/// Says which database a context is in from now on. Returns what was said before.
fn say_entered(ctx: *mut raw::RedisModuleCtx, db: c_int) -> (*mut raw::RedisModuleCtx, c_int) {
    (ENTERED.swap(ctx, Ordering::Relaxed), ENTERED_DB.swap(db, Ordering::Relaxed))
}

impl Drop for InDb<'_> {
    fn drop(&mut self) {
        if let Some(Back { db, entered }) = self.back.take() {
            self.ctx.select(db);
            say_entered(entered.0, entered.1);
        }
    }
}

impl<'a> Ctx<'a> {
    /// # Safety
    /// `raw` is the context the server gave to a callback that is running for all of `'a`, on the
    /// main thread.
    pub(super) unsafe fn new(raw: *mut raw::RedisModuleCtx) -> Self {
        Self { raw, life: PhantomData }
    }

    /// The module's own context: for what a hook without a context must set going. Null before
    /// [`Ctx::keep`].
    pub fn own() -> Ctx<'static> {
        Ctx { raw: OWN.load(Ordering::Relaxed), life: PhantomData }
    }

    /// Makes the module's own context. Only within `RedisModule_OnLoad`.
    pub fn keep(self) {
        // SAFETY: a live context; the new one is bound to no client and lives as long as the
        // module.
        let own = unsafe { rm!(RedisModule_GetDetachedThreadSafeContext(self.raw)) };
        OWN.store(own, Ordering::Relaxed);
    }

    pub(super) fn raw(self) -> *mut raw::RedisModuleCtx {
        self.raw
    }

    pub fn flags(self) -> Flags {
        // SAFETY: a live context (Ctx's contract).
        Flags(unsafe { rm!(RedisModule_GetContextFlags(self.raw)) })
    }

    /// Whether this server decides now what is not in a client's command: a master that neither
    /// loads nor has its replicas paused. (The server aborts on a module that writes while they
    /// are.)
    pub fn decides(self) -> bool {
        let flags = self.flags();
        flags.master() && !flags.loading() && !replicas_paused()
    }

    /// The id of the client whose command runs; 0: there is none.
    pub fn client(self) -> u64 {
        // SAFETY: a live context.
        unsafe { rm!(RedisModule_GetClientId(self.raw)) }
    }

    /// Closes the connection of the context's client as soon as the running command is done.
    /// Nothing for a script's client.
    pub fn close_client(self) {
        // SAFETY: a live context; a client whose id is not listed is refused by the server. Who is
        // logged out is closed, which is what is wanted: the server has no other way for a module.
        unsafe {
            let id = rm!(RedisModule_GetClientId(self.raw));
            rm!(RedisModule_DeauthenticateAndCloseClient(self.raw, id));
        }
    }

    pub fn db(self) -> c_int {
        if ENTERED.load(Ordering::Relaxed) == self.raw && !self.raw.is_null() {
            return ENTERED_DB.load(Ordering::Relaxed);
        }
        // SAFETY: a live context.
        unsafe { rm!(RedisModule_GetSelectedDb(self.raw)) }
    }

    /// Runs `f` with another database selected, one that is there, then selects the former one
    /// again.
    pub fn in_db<R>(self, db: c_int, f: impl FnOnce() -> R) -> R {
        let _there = self.enter(db);
        f()
    }

    /// Selects a database until what is returned is dropped; None, and nothing is changed, if there
    /// is none of that number.
    pub fn enter(self, db: c_int) -> Option<InDb<'a>> {
        let before = self.db();
        if before == db {
            return Some(InDb { ctx: self, back: None });
        }
        self.select(db).then(|| {
            let entered = say_entered(self.raw, db);
            InDb { ctx: self, back: Some(Back { db: before, entered }) }
        })
    }

    /// Selects a database; false, and nothing is changed, if there is none of that number.
    pub fn select(self, db: c_int) -> bool {
        // SAFETY: a live context; a number out of range changes nothing.
        unsafe { rm!(RedisModule_SelectDb(self.raw, db)) == OK }
    }

    /// The names of all keys of the selected database.
    pub fn names(self) -> Vec<OwnedString> {
        let mut names: Vec<OwnedString> = Vec::new();
        // SAFETY: the cursor lives from its creation to its end below; the callback gets the list,
        // which outlives the calls.
        unsafe {
            let cursor = rm!(RedisModule_ScanCursorCreate());
            while rm!(RedisModule_Scan(self.raw, cursor, Some(gather), (&raw mut names).cast())) != 0 {}
            rm!(RedisModule_ScanCursorDestroy(cursor));
        }
        names
    }

    /// Logs at the level `warning`.
    pub fn warn(self, text: &str) {
        let text: Vec<u8> = text.bytes().filter(|b| *b != 0).chain([0]).collect();
        // SAFETY: a printf-like call with one `%s` and one NUL-terminated argument.
        unsafe {
            rm!(RedisModule_Log(
                self.raw,
                c"warning".as_ptr(),
                c"%s".as_ptr(),
                text.as_ptr().cast::<c_char>()
            ));
        }
    }

    /// Emits a keyspace event of class `d` (module).
    pub fn notify(self, event: &CStr, key: Str<'_>) {
        self.notify_of(raw::REDISMODULE_NOTIFY_MODULE, event, key);
    }

    /// Emits the generic event `del`, as the server's own commands do when they leave a key empty.
    pub fn notify_deleted(self, key: Str<'_>) {
        self.notify_of(raw::REDISMODULE_NOTIFY_GENERIC, c"del", key);
    }

    fn notify_of(self, class: c_int, event: &CStr, key: Str<'_>) {
        // SAFETY: a live context and string.
        unsafe { rm!(RedisModule_NotifyKeyspaceEvent(self.raw, class, event.as_ptr(), key.raw())) };
    }

    /// The key was changed: transactions that watch it fail, and clients that cache it are told.
    pub fn signal_modified(self, key: Str<'_>) {
        // SAFETY: a live context and string.
        unsafe { rm!(RedisModule_SignalModifiedKey(self.raw, key.raw())) };
    }

    /// Starts a timer: `body` is run, shielded by itself, in so many ms. The timer's number, which
    /// is never 0.
    pub fn timer<F: Fn(Ctx<'_>) + Copy + 'static>(self, ms: i64, _body: F) -> u64 {
        // SAFETY: a live context, a static callback.
        unsafe { rm!(RedisModule_CreateTimer(self.raw, ms.max(0), Some(fire::<F>), std::ptr::null_mut())) }
    }

    /// Stops a timer that has not fired yet. Never called from the timer's own callback: some
    /// servers free it twice then.
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

/// Whether nothing may be written now because replicas must not get traffic: `CLIENT PAUSE`, a
/// manual failover.
pub fn replicas_paused() -> bool {
    // SAFETY: takes no argument, reads server state on the main thread.
    unsafe { rm!(RedisModule_AvoidReplicaTraffic()) != 0 }
}

/// A function item, or a closure that captures nothing but such, by its type alone: so there is one
/// C function for each.
///
/// # Safety
/// A value of type `F` has been made (it was handed over when the callback was registered).
pub(super) unsafe fn function_of<F: Copy + 'static>() -> F {
    const { assert!(size_of::<F>() == 0, "a callback has no data") };
    // SAFETY: a value of a type without data is nothing, and by the contract there is one.
    unsafe { std::mem::zeroed() }
}

unsafe extern "C" fn fire<F: Fn(Ctx<'_>) + Copy + 'static>(
    ctx: *mut raw::RedisModuleCtx,
    _data: *mut c_void,
) {
    // SAFETY: the context of a running timer callback; `Ctx::timer` was given the body.
    shield(|| unsafe { function_of::<F>()(Ctx::new(ctx)) }, || ());
}

unsafe extern "C" fn gather(
    _: *mut raw::RedisModuleCtx,
    name: *mut raw::RedisModuleString,
    _: *mut raw::RedisModuleKey,
    names: *mut c_void,
) {
    // SAFETY: the list that `names` handed over; the name is live during the callback.
    shield(
        || unsafe { (*names.cast::<Vec<OwnedString>>()).push(OwnedString::new(Str::new(name).bytes())) },
        || (),
    );
}
