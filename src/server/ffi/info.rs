//! The module's part of `INFO`.

use super::api::{OK, rm};
use super::context::Ctx;
use super::guard::shield;
use redis_module::raw;
use std::ffi::{CStr, CString, c_int};

/// Where the sections are written to while the server asks for them.
pub struct Sections(*mut raw::RedisModuleInfoCtx);

impl Sections {
    pub fn begin(&self, name: &CStr) {
        // SAFETY: the info handle is live during the callback.
        unsafe { rm!(RedisModule_InfoAddSection(self.0, name.as_ptr())) };
    }

    pub fn number(&self, field: &str, value: u64) {
        if let Ok(field) = CString::new(field) {
            // SAFETY: as above.
            unsafe { rm!(RedisModule_InfoAddFieldULongLong(self.0, field.as_ptr(), value)) };
        }
    }

    pub fn text(&self, field: &CStr, value: &CStr) {
        // SAFETY: as above; the strings are copied.
        unsafe { rm!(RedisModule_InfoAddFieldCString(self.0, field.as_ptr(), value.as_ptr())) };
    }
}

/// Has `report` write the sections when they are asked for, but not in a crash report, which may be
/// written by another thread. False: the server refused it. Only within `RedisModule_OnLoad`.
pub fn register<F: Fn(&Sections) + Copy + 'static>(ctx: Ctx<'_>, _report: F) -> bool {
    // SAFETY: within OnLoad; a static callback.
    unsafe { rm!(RedisModule_RegisterInfoFunc(ctx.raw(), Some(report::<F>))) == OK }
}

unsafe extern "C" fn report<F: Fn(&Sections) + Copy + 'static>(
    info: *mut raw::RedisModuleInfoCtx,
    crash: c_int,
) {
    if crash == 0 {
        // SAFETY: `register` was given the function.
        shield(|| unsafe { super::context::function_of::<F>() }(&Sections(info)), || ());
    }
}
