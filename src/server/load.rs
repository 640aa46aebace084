//! `RedisModule_OnLoad`: the order in which the module makes itself known, and what stops it.

use super::api::{Ctx, ERR, OK, RawString, missing};
use super::command::Registrar;
use super::error::Error;
use super::guard::shield;
use super::{api::rm, config, events, info, migration, slots, trust, types};
use crate::commands;
use redis_module::raw;
use std::ffi::{CStr, c_int};

const NAME: &CStr = c"sluice";
/// As a number: major * 10000 + minor * 100 + patch.
const VERSION: c_int = 100;

/// Called by the server when the module is loaded.
///
/// # Safety
/// Called by the server only, with its context and `argc` live arguments.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the first call on the context, as the API wants it; it sets the function pointers before anything of ours allocates.
    if unsafe {
        raw::Export_RedisModule_Init(ctx, NAME.as_ptr(), VERSION, raw::REDISMODULE_APIVER_1 as c_int)
    } != OK
    {
        return ERR;
    }
    // SAFETY: the context of a running callback; the server gives argc live arguments.
    let (ctx, options) = unsafe {
        let len = usize::try_from(argc).unwrap_or(0);
        (Ctx::new(ctx), if argv.is_null() { &[][..] } else { std::slice::from_raw_parts(argv, len) })
    };
    shield(
        || match load(ctx, options) {
            Ok(()) => OK,
            Err(why) => {
                // SAFETY: reading a pointer.
                if unsafe { raw::RedisModule_Log }.is_some() {
                    ctx.warn(&format!("sluice was not loaded: {why}"));
                }
                ERR
            }
        },
        || ERR,
    )
}

fn load(ctx: Ctx<'_>, options: &[RawString]) -> Result<(), String> {
    let lacking = missing();
    if !lacking.is_empty() {
        return Err(format!("this server lacks {}; Redis 7.0 or Valkey 8 is needed", lacking.join(", ")));
    }
    ctx.keep();
    slots::learn(ctx);
    trust::learn();
    types::register(ctx)?;
    config::register(ctx, options)?;
    commands::register(&Registrar::new(ctx))?;
    events::subscribe(ctx)?;
    // SAFETY: within OnLoad; the callback is static. The options: a failed read of a damaged payload is reported to us instead of ending the
    // server, a key counts as modified only when we say so, and a new data set may be loaded beside the one that is served.
    unsafe {
        rm!(RedisModule_SetModuleOptions(ctx.raw(), (OPTIONS | migration::options()).cast_signed()));
        if rm!(RedisModule_RegisterInfoFunc(ctx.raw(), Some(info::report))) != OK {
            return Err("the INFO section was refused".into());
        }
    }
    Ok(())
}

/// The second is REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED, whose name bindgen does not carry.
const OPTIONS: u32 =
    raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS | 1 << 1 | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;

/// An effect in the AOF that cannot be applied: starting without it would silently lose what it says, so the server does not start, as with
/// any other damaged AOF. Nothing outside a load is ever ended by this.
pub fn refuse_damaged_aof(ctx: Ctx<'_>, error: &Error) {
    if ctx.flags().reads_file() {
        ctx.warn(&format!(
            "sluice: the append only file cannot be loaded: {}",
            error.text().to_string_lossy()
        ));
        std::process::exit(1);
    }
}
