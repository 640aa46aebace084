//! Commands of the server that the module has it run, and what they answered: read while it lives,
//! freed once.

use super::api::{OK, rm};
use super::context::Ctx;
use super::strings::{OwnedString, Str, vector};
use redis_module::raw;
use std::ffi::{CStr, c_int};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// How a command is run. Each is the server's format of modes, with "v": all arguments as one
/// vector.
#[derive(Debug, Clone, Copy)]
pub enum How {
    /// As the module.
    Plain,
    /// As the module; what stops the call is a reply, too.
    Told,
    /// As a script, with all the checks that a script's write meets; what stops the call is a
    /// reply, too. (Without that Valkey 9.1 follows a wild pointer while the cluster is down.)
    Checked,
    /// Not at all: whether it would be let through (from 7.2).
    Dry,
}

impl How {
    fn format(self) -> &'static CStr {
        match self {
            Self::Plain => c"v",
            Self::Told => c"Ev",
            Self::Checked => c"SEv",
            Self::Dry => c"Dv",
        }
    }
}

/// Why a call is not let through in a cluster: another node answers for its key.
pub const ELSEWHERE: c_int = libc::EPERM;

/// Runs a command. Its reply, if the server had anything to say, and why it was not let through (an
/// errno), or 0.
pub fn call(ctx: Ctx<'_>, command: &CStr, how: How, arguments: &[Str<'_>]) -> (Option<CallReply>, c_int) {
    // SAFETY: errno is this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; a live context; the format names a vector of live strings with its length;
    // the reply is ours to free.
    unsafe {
        *errno = 0;
        let reply = rm!(RedisModule_Call(
            ctx.raw(),
            command.as_ptr(),
            how.format().as_ptr(),
            vector(arguments),
            arguments.len()
        ));
        (NonNull::new(reply).map(CallReply), *errno)
    }
}

/// The same with words as arguments.
pub fn call_words(ctx: Ctx<'_>, command: &CStr, how: How, words: &[&[u8]]) -> Option<CallReply> {
    let words: Vec<OwnedString> = words.iter().map(|word| OwnedString::new(word)).collect();
    call(ctx, command, how, OwnedString::as_strs(&words)).0
}

/// Whether the client's user may (still) run a command on a key. `argv` is the command as it would
/// be sent. A client that is gone may.
pub fn permits(ctx: Ctx<'_>, client: u64, argv: &[Str<'_>]) -> bool {
    // SAFETY: a live context; the name, if there is one, is ours to free, and so is the user; the
    // arguments are live strings.
    unsafe {
        let name = rm!(RedisModule_GetClientUserNameById(ctx.raw(), client));
        if name.is_null() {
            return true;
        }
        let user: *mut raw::RedisModuleUser = rm!(RedisModule_GetModuleUserFromUserName(name));
        rm!(RedisModule_FreeString(ctx.raw(), name));
        if user.is_null() {
            // Made by another module: there is nothing to check it by. A user that was deleted has
            // no clients any more.
            return true;
        }
        let permitted =
            rm!(RedisModule_ACLCheckCommandPermissions(user, vector(argv), argv.len() as c_int)) == OK;
        rm!(RedisModule_FreeModuleUser(user));
        permitted
    }
}

/// A whole reply, ours to free.
pub struct CallReply(NonNull<raw::RedisModuleCallReply>);

/// A reply, or an element of one, for as long as the whole lives.
#[derive(Clone, Copy)]
pub struct Part<'r>(NonNull<raw::RedisModuleCallReply>, PhantomData<&'r CallReply>);

impl CallReply {
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
