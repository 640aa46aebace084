//! The functions of the module API: how one is called, and which a server must have.
//!
//! A function that only some servers have is asked for by its pointer or its name, never by the
//! server's version.

use redis_module::raw;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

pub const OK: c_int = raw::REDISMODULE_OK as c_int;
pub const ERR: c_int = raw::REDISMODULE_ERR as c_int;

/// Calls a function of the module API that every supported server has (checked once at load, see
/// [`missing`]).
macro_rules! rm {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        match redis_module::raw::$name {
            Some(f) => f($($arg),*),
            None => $crate::server::ffi::api::absent(stringify!($name)),
        }
    }};
}
pub(super) use rm;

/// A function that was there at load is gone: cannot happen; ends in an error reply, not in the
/// server's end.
#[cold]
pub(super) fn absent(name: &str) -> ! {
    panic!("module API function {name} is missing")
}

/// The names of the functions we cannot live without that this server lacks.
pub fn missing() -> Vec<&'static str> {
    let mut lacking = Vec::new();
    macro_rules! need {
        ($($name:ident)*) => { $(
            // SAFETY: reading a pointer that is only written while the module is loaded, on this
            // thread.
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
        RedisModule_AvoidReplicaTraffic RedisModule_StringPtrLen RedisModule_CreateString RedisModule_FreeString RedisModule_RetainString RedisModule_RetainString
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

/// A function of the module API by its name; None: this server lacks it. Only after the module was
/// initialized.
pub fn function(name: &CStr) -> Option<NonNull<c_void>> {
    let mut found: *mut c_void = std::ptr::null_mut();
    // SAFETY: reading a pointer that was set when the module was initialized; the server writes a
    // function pointer, or nothing, to `found`.
    let there = unsafe {
        raw::RedisModule_GetApi.is_some_and(|get| get(name.as_ptr(), (&raw mut found).cast::<c_void>()) == OK)
    };
    NonNull::new(found).filter(|_| there)
}
