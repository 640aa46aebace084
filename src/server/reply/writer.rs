//! Replies, written straight into the client's buffer.

use crate::server::error::Error;
use crate::server::ffi::context::Ctx;
use crate::server::ffi::guard::trip;
use crate::server::ffi::reply;
use std::ffi::CStr;
use std::sync::atomic::{AtomicI64, Ordering};

/// How many elements the reply that is being written lacks; [`NOTHING`]: it has not been begun. On
/// the main thread only.
static LACKS: AtomicI64 = AtomicI64::new(NOTHING);
const NOTHING: i64 = i64::MIN;

/// A call of the server begins in which one reply may be written. What it was when it ends is put
/// back by [`end`].
#[inline]
pub fn begin() -> i64 {
    LACKS.swap(NOTHING, Ordering::Relaxed)
}

/// The call that began with [`begin`] has ended.
#[inline]
pub fn end(before: i64) {
    LACKS.store(before, Ordering::Relaxed);
}

/// One element is written, which announces so many more.
#[inline]
fn wrote(announced: i64) {
    let lacks = LACKS.load(Ordering::Relaxed);
    let lacks = if lacks == NOTHING { 1 } else { lacks };
    LACKS.store(lacks - 1 + announced, Ordering::Relaxed);
}

/// Nothing sensible can be written any more. What was not begun is an error. What was begun is
/// filled up with errors, so that nothing that follows is taken for its rest (a script's reply is
/// read in the server), and the client's connection is closed, as it cannot tell what it was told.
#[cold]
pub fn abandon(ctx: Ctx<'_>, error: &Error) {
    let reply = Reply::new(ctx);
    match LACKS.load(Ordering::Relaxed) {
        NOTHING => reply.error(error),
        lacks if lacks > 0 => {
            (0..lacks).for_each(|_| reply.error(error));
            ctx.close_client();
        }
        _ => {}
    }
}

/// Writes one reply. An array or map announces its length and is followed by its elements.
#[derive(Clone, Copy)]
pub struct Reply<'a> {
    ctx: Ctx<'a>,
}

impl<'a> Reply<'a> {
    pub fn new(ctx: Ctx<'a>) -> Self {
        Self { ctx }
    }

    pub fn int(self, n: i64) {
        wrote(0);
        reply::int(self.ctx, n);
    }

    pub fn bulk(self, bytes: &[u8]) {
        wrote(0);
        reply::bulk(self.ctx, bytes);
    }

    /// `<id>@<claim>` as a bulk string. The usual short ones are put together without an
    /// allocation.
    pub fn receipt(self, id: &[u8], claim: u64) {
        const SHORT: usize = 64;
        let mut buffer = itoa::Buffer::new();
        let digits = buffer.format(claim).as_bytes();
        let len = id.len() + 1 + digits.len();
        if len > SHORT {
            return self.bulk(&[id, b"@", digits].concat());
        }
        let mut text = [0u8; SHORT];
        text[..id.len()].copy_from_slice(id);
        text[id.len()] = b'@';
        text[id.len() + 1..len].copy_from_slice(digits);
        self.bulk(&text[..len]);
    }

    pub fn nil(self) {
        wrote(0);
        reply::nil(self.ctx);
    }

    /// Nil where an array was asked for, as BLPOP answers when its time is over.
    pub fn nil_array(self) {
        wrote(0);
        reply::nil_array(self.ctx);
    }

    pub fn array(self, len: usize) {
        wrote(len as i64);
        reply::array(self.ctx, len);
        trip("replying");
    }

    /// A map of `len` pairs; a flat array in RESP2.
    pub fn map(self, len: usize) {
        wrote(2 * len as i64);
        reply::map(self.ctx, len);
    }

    pub fn simple(self, text: &CStr) {
        wrote(0);
        reply::simple(self.ctx, text);
    }

    pub fn ok(self) {
        self.simple(c"OK");
    }

    pub fn error(self, error: &Error) {
        wrote(0);
        reply::error(self.ctx, &error.text());
    }

    pub fn ints(self, values: &[i64]) {
        self.array(values.len());
        for n in values {
            self.int(*n);
        }
    }

    /// A map of names to integers, in the given order.
    pub fn int_map(self, fields: &[(&str, i64)]) {
        self.map(fields.len());
        self.int_fields(fields);
    }

    /// Fields of a map that was announced.
    pub fn int_fields(self, fields: &[(&str, i64)]) {
        for (name, value) in fields {
            self.bulk(name.as_bytes());
            self.int(*value);
        }
    }
}
