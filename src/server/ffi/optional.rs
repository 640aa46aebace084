//! Functions of the module API that only some servers have and that the bindings do not know,
//! looked up by name. Each is asked for once, while the module is loaded.

use super::api::function;
use super::context::Ctx;
use redis_module::raw;
use std::ffi::{CStr, c_int, c_void};

/// Whether the server is a Valkey: only Valkey knows its functions by these names, too.
pub fn is_valkey() -> bool {
    function(c"ValkeyModule_SubscribeToServerEvent").is_some()
}

/// Redis 8.4: whether a slot may be touched while slots move.
#[derive(Debug, Clone, Copy)]
pub struct CanAccessSlot(unsafe extern "C" fn(c_int) -> c_int);

impl CanAccessSlot {
    pub fn find() -> Option<Self> {
        let found = function(c"RedisModule_ClusterCanAccessKeysInSlot")?;
        // SAFETY: the server's function of that name takes a slot and answers an int.
        Some(Self(unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> c_int>(found.as_ptr())
        }))
    }

    pub fn ask(self, slot: u16) -> bool {
        // SAFETY: takes a slot only; on the main thread.
        unsafe { (self.0)(c_int::from(slot)) != 0 }
    }
}

type AskContext = unsafe extern "C" fn(*mut raw::RedisModuleCtx) -> c_int;

/// Valkey: whether the running command comes from somebody whom the server has to obey.
#[derive(Debug, Clone, Copy)]
pub struct MustObey(AskContext);

impl MustObey {
    pub fn find() -> Option<Self> {
        let found = function(c"RedisModule_MustObeyClient")?;
        // SAFETY: the server's function of that name takes a context and answers an int.
        Some(Self(unsafe { std::mem::transmute::<*mut c_void, AskContext>(found.as_ptr()) }))
    }

    pub fn ask(self, ctx: Ctx<'_>) -> bool {
        // SAFETY: a live context.
        unsafe { (self.0)(ctx.raw()) != 0 }
    }
}

/// Declares an ACL category of our own, where the server knows categories of modules; true if it
/// does.
pub fn add_acl_category(ctx: Ctx<'_>, name: &CStr) -> bool {
    // SAFETY: reading a pointer; calling it within OnLoad with a NUL-terminated string.
    unsafe {
        raw::RedisModule_AddACLCategory.is_some_and(|add| add(ctx.raw(), name.as_ptr()) == super::api::OK)
    }
}

/// Whether the server keeps the reply of a blocked client beside its handle until it lets go of it:
/// it came with the functions to block with flags.
pub fn keeps_replies() -> bool {
    // SAFETY: reading a pointer that is only written while the module is loaded, on this thread.
    unsafe { raw::RedisModule_BlockClientOnKeysWithFlags }.is_some()
}

/// The version of the table of type methods that the server knows; 0: it does not tell.
pub fn type_methods() -> c_int {
    // SAFETY: reading a pointer; a function without arguments.
    unsafe { raw::RedisModule_GetTypeMethodVersion.map_or(0, |version| version()) }
}

/// The modes in which the server can open keys; 0: it does not tell.
pub fn open_key_modes() -> u32 {
    // SAFETY: reading a pointer; a function without arguments.
    unsafe { raw::RedisModule_GetOpenKeyModesAll.map_or(0, |modes| modes()) }.cast_unsigned()
}
