//! What a command of the server answered that we had it run: read while it lives, freed once.

use super::api::{Ctx, rm};
use redis_module::raw;
use std::ffi::{CStr, c_int};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// A whole reply, ours to free.
pub struct CallReply(NonNull<raw::RedisModuleCallReply>);

/// A reply, or an element of one, for as long as the whole lives.
#[derive(Clone, Copy)]
pub struct Part<'r>(NonNull<raw::RedisModuleCallReply>, PhantomData<&'r CallReply>);

impl CallReply {
    /// None: the server had nothing to say.
    ///
    /// # Safety
    /// `reply` is null, or what `RedisModule_Call` answered, and nobody else frees it.
    pub unsafe fn new(reply: *mut raw::RedisModuleCallReply) -> Option<Self> {
        NonNull::new(reply).map(Self)
    }

    /// What `CLUSTER` answers to one word.
    pub fn of_cluster(ctx: Ctx<'_>, word: &CStr) -> Option<Self> {
        // SAFETY: a live context; one C string as argument; an error is an answer, too ("E").
        unsafe {
            let (command, format) = (c"CLUSTER".as_ptr(), c"Ec".as_ptr());
            Self::new(rm!(RedisModule_Call(ctx.raw(), command, format, word.as_ptr())))
        }
    }

    pub fn whole(&self) -> Part<'_> {
        Part(self.0, PhantomData)
    }

    pub fn is_error(&self) -> bool {
        self.whole().is(raw::REDISMODULE_REPLY_ERROR)
    }
}

impl Drop for CallReply {
    fn drop(&mut self) {
        // SAFETY: a live reply of our own (`new`); nothing of it is lent any more.
        unsafe { rm!(RedisModule_FreeCallReply(self.0.as_ptr())) };
    }
}

impl<'r> Part<'r> {
    fn is(self, kind: isize) -> bool {
        // SAFETY: a live reply.
        unsafe { rm!(RedisModule_CallReplyType(self.0.as_ptr())) == kind as c_int }
    }

    /// The elements of an array; none of what is no array.
    pub fn elements(self) -> impl Iterator<Item = Self> {
        // SAFETY: a live reply.
        let length = unsafe { rm!(RedisModule_CallReplyLength(self.0.as_ptr())) };
        let length = if self.is(raw::REDISMODULE_REPLY_ARRAY) { length } else { 0 };
        (0..length).filter_map(move |i| self.element(i))
    }

    /// An element of an array; None: there is none.
    pub fn element(self, i: usize) -> Option<Self> {
        // SAFETY: a live reply; of what is no array, and behind the end, there is nothing: null.
        let element = unsafe { rm!(RedisModule_CallReplyArrayElement(self.0.as_ptr(), i)) };
        NonNull::new(element).map(|element| Self(element, PhantomData))
    }

    /// An integer; 0 or less of what is none.
    pub fn integer(self) -> i64 {
        // SAFETY: a live reply.
        unsafe { rm!(RedisModule_CallReplyInteger(self.0.as_ptr())) }
    }

    /// The bytes of a text, also of an error; None of what is none.
    pub fn bytes(self) -> Option<&'r [u8]> {
        let mut len = 0usize;
        // SAFETY: a live reply, which keeps its bytes as long as it lives.
        unsafe {
            let text = rm!(RedisModule_CallReplyStringPtr(self.0.as_ptr(), &mut len));
            (!text.is_null()).then(|| std::slice::from_raw_parts(text.cast::<u8>(), len))
        }
    }
}
