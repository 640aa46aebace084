//! `RedisModule_OnLoad`, by which the server makes the module known to itself.

use super::api::{ERR, OK, rm};
use super::context::Ctx;
use super::guard::shield;
use super::strings::Str;
use redis_module::raw;
use std::ffi::{CStr, c_int};

/// Defines the function that the server calls when it loads the module: `load(ctx, options)` says
/// what is wrong, if anything is.
macro_rules! on_load {
    ($name:expr, $version:expr, $load:path) => {
        /// Called by the server when the module is loaded.
        ///
        /// # Safety
        /// Called by the server only, with its context and `argc` live arguments.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn RedisModule_OnLoad(
            ctx: *mut redis_module::raw::RedisModuleCtx,
            argv: *mut *mut redis_module::raw::RedisModuleString,
            argc: std::ffi::c_int,
        ) -> std::ffi::c_int {
            // SAFETY: by the contract.
            unsafe { $crate::server::ffi::entry::on_load(ctx, argv, argc, $name, $version, $load) }
        }
    };
}
pub(crate) use on_load as define_on_load;

/// What `on_load!` expands to.
///
/// # Safety
/// As `RedisModule_OnLoad`.
pub unsafe fn on_load(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
    name: &'static CStr,
    version: c_int,
    load: fn(Ctx<'_>, &[Str<'_>]) -> Result<(), String>,
) -> c_int {
    // SAFETY: the first call on the context, as the API wants it; it sets the function pointers
    // before anything of ours allocates.
    let known = unsafe {
        raw::Export_RedisModule_Init(ctx, name.as_ptr(), version, raw::REDISMODULE_APIVER_1 as c_int)
    };
    if known != OK {
        return ERR;
    }
    shield(
        || {
            // SAFETY: the context of a running callback; the server gives argc live arguments.
            let (ctx, options) = unsafe { (Ctx::new(ctx), Str::slice(argv, argc)) };
            match load(ctx, options) {
                Ok(()) => OK,
                Err(why) => {
                    // SAFETY: reading a pointer.
                    if unsafe { raw::RedisModule_Log }.is_some() {
                        ctx.warn(&format!("sluice was not loaded: {why}"));
                    }
                    ERR
                }
            }
        },
        || ERR,
    )
}

/// What the module can bear: a failed read of a damaged payload is reported to us instead of ending
/// the server, a key counts as modified only when we say so, and a new data set may be loaded
/// beside the one that is served. `more` as the server names it. Only within `RedisModule_OnLoad`.
pub fn set_options(ctx: Ctx<'_>, more: u32) {
    /// REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED, whose name bindgen does not carry.
    const NO_IMPLICIT_SIGNAL: u32 = 1 << 1;
    const OPTIONS: u32 = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | NO_IMPLICIT_SIGNAL
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;
    // SAFETY: within OnLoad.
    unsafe { rm!(RedisModule_SetModuleOptions(ctx.raw(), (OPTIONS | more).cast_signed())) };
}
