//! What is handed to replicas and the append only file.
//!
//! In each call, the format names the arguments that follow it, in order: live strings, integers, a
//! buffer with its length, a vector of live strings with its length. The server copies or keeps
//! alive what it goes on using.

use super::api::rm;
use super::context::Ctx;
use super::strings::{Str, vector};

/// `SLUICE.APPLY name expire head blobs…`
pub fn apply(ctx: Ctx<'_>, name: Str<'_>, expire: i64, head: &[u8], blobs: &[Str<'_>]) {
    // SAFETY: a live context; see above.
    unsafe {
        rm!(RedisModule_Replicate(
            ctx.raw(),
            c"SLUICE.APPLY".as_ptr(),
            c"slbv".as_ptr(),
            name.raw(),
            expire,
            head.as_ptr(),
            head.len(),
            vector(blobs),
            blobs.len()
        ));
    }
}

/// `PEXPIREAT name at`, or `PERSIST name` if `at` is negative.
pub fn expire(ctx: Ctx<'_>, name: Str<'_>, at: i64) {
    // SAFETY: a live context; see above.
    unsafe {
        if at < 0 {
            rm!(RedisModule_Replicate(ctx.raw(), c"PERSIST".as_ptr(), c"s".as_ptr(), name.raw()));
        } else {
            rm!(RedisModule_Replicate(ctx.raw(), c"PEXPIREAT".as_ptr(), c"sl".as_ptr(), name.raw(), at));
        }
    }
}

/// `UNLINK name`
pub fn unlink(ctx: Ctx<'_>, name: Str<'_>) {
    // SAFETY: a live context; see above.
    unsafe { rm!(RedisModule_Replicate(ctx.raw(), c"UNLINK".as_ptr(), c"s".as_ptr(), name.raw())) };
}

/// `SLUICE.FENCE last at`
pub fn fence(ctx: Ctx<'_>, last: i64, at: i64) {
    // SAFETY: a live context; see above.
    unsafe { rm!(RedisModule_Replicate(ctx.raw(), c"SLUICE.FENCE".as_ptr(), c"ll".as_ptr(), last, at)) };
}

/// The running command as it came.
pub fn verbatim(ctx: Ctx<'_>) {
    // SAFETY: the context of the running command.
    unsafe { rm!(RedisModule_ReplicateVerbatim(ctx.raw())) };
}

/// Nothing, to nobody: it only raises the server's count of changes, for its save points.
pub fn count_change(ctx: Ctx<'_>) {
    // SAFETY: a live context; a format without arguments; "AR" leaves out AOF and replicas.
    unsafe { rm!(RedisModule_Replicate(ctx.raw(), c"SLUICE.APPLY".as_ptr(), c"AR".as_ptr())) };
}
