//! Clients that are blocked on keys: the handle of one, and the server's callbacks about it.
//!
//! A client is known by a number (its ticket), which the server keeps beside the handle as private
//! data and never follows. A handle is live until `freed` is called for it.

use super::api::{ERR, OK, rm};
use super::context::Ctx;
use super::guard::shield;
use super::strings::{Str, vector};
use redis_module::raw;
use std::ffi::{c_int, c_void};

/// What the server is told and asked about a blocked client.
pub trait Callbacks: 'static {
    /// The server wants the reply: of a client that was handed over, or of one that somebody
    /// unblocks.
    fn reply(ctx: Ctx<'_>, ticket: u64);
    /// The client disconnected, was killed, sent away, or unblocked with an error.
    fn disconnected(ticket: u64);
    /// The server lets go of the handle: the end, in each case; `gone`: the client had gone before.
    fn freed(ticket: u64, gone: bool);
}

/// The handle of a blocked client.
#[derive(Debug, Clone, Copy)]
pub struct Blocked(*mut raw::RedisModuleBlockedClient);

impl Blocked {
    /// Blocks the running command's client, which the context allows, on these keys, without end.
    pub fn on_keys<C: Callbacks>(ctx: Ctx<'_>, keys: &[Str<'_>], ticket: u64) -> Self {
        let private = usize::try_from(ticket).unwrap_or(usize::MAX) as *mut c_void;
        // SAFETY: a live command context that may block; static callbacks; live names, which the
        // server keeps alive; the private data is a number, which nobody follows.
        unsafe {
            let handle = rm!(RedisModule_BlockClientOnKeys(
                ctx.raw(),
                Some(on_ready),
                Some(on_timeout::<C>),
                Some(on_free::<C>),
                0,
                vector(keys),
                keys.len() as c_int,
                private
            ));
            rm!(RedisModule_SetDisconnectCallback(handle, Some(on_disconnect::<C>)));
            Self(handle)
        }
    }

    /// Hands the client over to be answered. Once, and before `freed`.
    pub fn hand_over(self) {
        // SAFETY: the handle is live and has not been handed over, see above.
        unsafe { rm!(RedisModule_UnblockClient(self.0, std::ptr::null_mut())) };
    }
}

/// The ticket that the context of a callback is about.
///
/// # Safety
/// `ctx` is the context of a running callback of a blocked client.
unsafe fn ticket_of(ctx: *mut raw::RedisModuleCtx) -> u64 {
    // SAFETY: by the contract; the private data is a ticket.
    unsafe { rm!(RedisModule_GetBlockedClientPrivateData(ctx)) as usize as u64 }
}

/// The server has seen that a key came to be, and asks whether the client can be served: that is
/// not the server's to ask.
unsafe extern "C" fn on_ready(
    _ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    ERR
}

unsafe extern "C" fn on_timeout<C: Callbacks>(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the context of a running callback.
    shield(|| unsafe { C::reply(Ctx::new(ctx), ticket_of(ctx)) }, || ());
    OK
}

unsafe extern "C" fn on_disconnect<C: Callbacks>(
    ctx: *mut raw::RedisModuleCtx,
    _handle: *mut raw::RedisModuleBlockedClient,
) {
    // SAFETY: the context of a running callback.
    shield(|| C::disconnected(unsafe { ticket_of(ctx) }), || ());
}

unsafe extern "C" fn on_free<C: Callbacks>(ctx: *mut raw::RedisModuleCtx, private: *mut c_void) {
    shield(
        || {
            // SAFETY: the context of a running callback.
            let gone = unsafe { rm!(RedisModule_BlockedClientDisconnected(ctx)) != 0 };
            C::freed(private as usize as u64, gone);
        },
        || (),
    );
}
