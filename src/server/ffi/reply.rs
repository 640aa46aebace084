//! One element of a reply, written to the context's client. What is written when is up to
//! `reply/writer.rs`.

use super::api::rm;
use super::context::Ctx;
use std::ffi::{CStr, c_long};

// SAFETY of every call: a live context; buffers are borrowed for the call.

pub fn int(ctx: Ctx<'_>, n: i64) {
    // SAFETY: see above.
    unsafe { rm!(RedisModule_ReplyWithLongLong(ctx.raw(), n)) };
}

pub fn bulk(ctx: Ctx<'_>, bytes: &[u8]) {
    // SAFETY: see above.
    unsafe { rm!(RedisModule_ReplyWithStringBuffer(ctx.raw(), bytes.as_ptr().cast(), bytes.len())) };
}

pub fn nil(ctx: Ctx<'_>) {
    // SAFETY: see above.
    unsafe { rm!(RedisModule_ReplyWithNull(ctx.raw())) };
}

pub fn nil_array(ctx: Ctx<'_>) {
    // SAFETY: see above.
    unsafe { rm!(RedisModule_ReplyWithNullArray(ctx.raw())) };
}

/// Announces so many elements.
pub fn array(ctx: Ctx<'_>, len: usize) {
    // SAFETY: see above.
    unsafe { rm!(RedisModule_ReplyWithArray(ctx.raw(), len as c_long)) };
}

/// Announces so many pairs.
pub fn map(ctx: Ctx<'_>, len: usize) {
    // SAFETY: see above.
    unsafe { rm!(RedisModule_ReplyWithMap(ctx.raw(), len as c_long)) };
}

pub fn simple(ctx: Ctx<'_>, text: &CStr) {
    // SAFETY: see above.
    unsafe { rm!(RedisModule_ReplyWithSimpleString(ctx.raw(), text.as_ptr())) };
}

pub fn error(ctx: Ctx<'_>, text: &CStr) {
    // SAFETY: see above.
    unsafe { rm!(RedisModule_ReplyWithError(ctx.raw(), text.as_ptr())) };
}
