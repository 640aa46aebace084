//! Settings of the module, as the server keeps them: each is read from and written to an atomic.

use super::api::{OK, rm};
use super::context::Ctx;
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// Registers a yes/no setting with its present value as the default. `fixed`: not once the module
/// is loaded. False: the server refused it. Only within `RedisModule_OnLoad`, as all of these.
pub fn register_switch(ctx: Ctx<'_>, name: &'static CStr, value: &'static AtomicBool, fixed: bool) -> bool {
    let flags = if fixed { raw::REDISMODULE_CONFIG_IMMUTABLE } else { raw::REDISMODULE_CONFIG_DEFAULT };
    let data = std::ptr::from_ref(value).cast_mut().cast::<c_void>();
    let default = c_int::from(value.load(Ordering::Relaxed));
    // SAFETY: within OnLoad; the name is static; the callbacks get the static atomic back as their
    // data.
    unsafe {
        rm!(RedisModule_RegisterBoolConfig(
            ctx.raw(),
            name.as_ptr(),
            default,
            flags,
            Some(get_switch),
            Some(set_switch),
            None,
            data
        )) == OK
    }
}

/// Registers a number between `low` and `high`; the server checks the range.
pub fn register_number(
    ctx: Ctx<'_>,
    name: &'static CStr,
    value: &'static AtomicI64,
    low: i64,
    high: i64,
) -> bool {
    let data = std::ptr::from_ref(value).cast_mut().cast::<c_void>();
    // SAFETY: as in `register_switch`.
    unsafe {
        rm!(RedisModule_RegisterNumericConfig(
            ctx.raw(),
            name.as_ptr(),
            value.load(Ordering::Relaxed),
            raw::REDISMODULE_CONFIG_DEFAULT,
            low,
            high,
            Some(get_number),
            Some(set_number),
            None,
            data
        )) == OK
    }
}

/// Applies the configuration file, after all settings are registered; false: something in it is
/// wrong.
pub fn load(ctx: Ctx<'_>) -> bool {
    // SAFETY: within OnLoad.
    unsafe { rm!(RedisModule_LoadConfigs(ctx.raw())) == OK }
}

/// # Safety
/// `data` is what `register_switch` gave to the server.
unsafe fn switch<'a>(data: *mut c_void) -> &'a AtomicBool {
    // SAFETY: by the contract it points to a static atomic.
    unsafe { &*data.cast::<AtomicBool>() }
}

/// # Safety
/// `data` is what `register_number` gave to the server.
unsafe fn number<'a>(data: *mut c_void) -> &'a AtomicI64 {
    // SAFETY: by the contract it points to a static atomic.
    unsafe { &*data.cast::<AtomicI64>() }
}

unsafe extern "C" fn get_switch(_name: *const c_char, data: *mut c_void) -> c_int {
    // SAFETY: the server hands back our data.
    c_int::from(unsafe { switch(data) }.load(Ordering::Relaxed))
}

unsafe extern "C" fn set_switch(
    _name: *const c_char,
    value: c_int,
    data: *mut c_void,
    _err: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the server hands back our data.
    unsafe { switch(data) }.store(value != 0, Ordering::Relaxed);
    OK
}

unsafe extern "C" fn get_number(_name: *const c_char, data: *mut c_void) -> c_longlong {
    // SAFETY: the server hands back our data.
    unsafe { number(data) }.load(Ordering::Relaxed)
}

unsafe extern "C" fn set_number(
    _name: *const c_char,
    value: c_longlong,
    data: *mut c_void,
    _err: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the server hands back our data; it has checked the range.
    unsafe { number(data) }.store(value, Ordering::Relaxed);
    OK
}
