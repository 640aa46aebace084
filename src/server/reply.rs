//! Replies, written straight into the client's buffer; and [`Tree`], a reply that is kept until a blocked client is answered.

use super::answers;
use super::api::{Ctx, rm};
use super::error::Error;
use crate::engine::waiting::Answer;
use std::ffi::{CStr, c_long};

/// Writes one reply. An array or map announces its length and is followed by its elements.
#[derive(Clone, Copy)]
pub struct Reply<'a> {
    ctx: Ctx<'a>,
}

// In this file: SAFETY of every call: `self.ctx` is a live context (Ctx's contract), buffers are borrowed for the call.
impl<'a> Reply<'a> {
    pub fn new(ctx: Ctx<'a>) -> Self {
        Self { ctx }
    }

    pub fn int(self, n: i64) {
        // SAFETY: see above.
        unsafe { rm!(RedisModule_ReplyWithLongLong(self.ctx.raw(), n)) };
    }

    pub fn bulk(self, bytes: &[u8]) {
        // SAFETY: see above.
        unsafe { rm!(RedisModule_ReplyWithStringBuffer(self.ctx.raw(), bytes.as_ptr().cast(), bytes.len())) };
    }

    /// `<id>@<claim>` as a bulk string. The usual short ones are put together without an allocation.
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
        // SAFETY: see above.
        unsafe { rm!(RedisModule_ReplyWithNull(self.ctx.raw())) };
    }

    /// Nil where an array was asked for, as BLPOP answers when its time is over.
    pub fn nil_array(self) {
        // SAFETY: see above.
        unsafe { rm!(RedisModule_ReplyWithNullArray(self.ctx.raw())) };
    }

    pub fn array(self, len: usize) {
        // SAFETY: see above.
        unsafe { rm!(RedisModule_ReplyWithArray(self.ctx.raw(), len as c_long)) };
    }

    /// A map of `len` pairs; a flat array in RESP2.
    pub fn map(self, len: usize) {
        // SAFETY: see above.
        unsafe { rm!(RedisModule_ReplyWithMap(self.ctx.raw(), len as c_long)) };
    }

    pub fn simple(self, text: &CStr) {
        // SAFETY: see above.
        unsafe { rm!(RedisModule_ReplyWithSimpleString(self.ctx.raw(), text.as_ptr())) };
    }

    pub fn ok(self) {
        self.simple(c"OK");
    }

    pub fn error(self, error: &Error) {
        // SAFETY: see above.
        unsafe { rm!(RedisModule_ReplyWithError(self.ctx.raw(), error.text().as_ptr())) };
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

    pub fn tree(self, tree: &Tree) {
        match tree {
            Tree::Int(n) => self.int(*n),
            Tree::Bulk(bytes) => self.bulk(bytes),
            Tree::Nil => self.nil(),
            Tree::NilArray => self.nil_array(),
            Tree::Error(error) => self.error(error),
            Tree::Answer(answer) => answers::answer(self, answer),
            Tree::Array(items) => {
                self.array(items.len());
                items.iter().for_each(|item| self.tree(item));
            }
        }
    }
}

/// A reply that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tree {
    Int(i64),
    Bulk(Box<[u8]>),
    Nil,
    NilArray,
    Error(Error),
    /// A limiter's.
    Answer(Answer),
    Array(Vec<Tree>),
}

impl Tree {
    pub fn ints(values: &[i64]) -> Self {
        Self::Array(values.iter().map(|n| Self::Int(*n)).collect())
    }

    pub fn bulk(bytes: &[u8]) -> Self {
        Self::Bulk(bytes.into())
    }
}
