//! Whose word bytes are: a master's and a file's count, a client's are doubted. The one place that decides who may `SLUICE.APPLY`.

use super::api::{Ctx, function};
use super::error::Error;
use super::{clock, config, numbers};
use crate::engine::fencing::{Fencing, MAX_FENCE};
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

/// Who says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// A master, or a file that is loaded: it has decided.
    Master,
    /// Anybody else.
    Client,
}

type MustObey = unsafe extern "C" fn(*mut raw::RedisModuleCtx) -> c_int;

/// Valkey tells by this whom a server has to obey: besides its master and its own AOF that is, from 9.0, the node that a slot is imported from, which no
/// context flag tells. Redis has no such function: to Redis 8.4 that node is a master like its own, and the flag tells so.
static MUST_OBEY: OnceLock<MustObey> = OnceLock::new();

/// Looks what this server can be asked. Only within `RedisModule_OnLoad`.
pub fn learn() {
    if let Some(found) = function(c"RedisModule_MustObeyClient") {
        // SAFETY: the server's function of that name takes a context and answers an int.
        let _ = MUST_OBEY.set(unsafe { std::mem::transmute::<*mut c_void, MustObey>(found.as_ptr()) });
    }
}

/// Whose word the running command is.
pub fn of_command(ctx: Ctx<'_>) -> Word {
    let flags = ctx.flags();
    // SAFETY: a live context.
    let obeyed = || MUST_OBEY.get().is_some_and(|ask| unsafe { ask(ctx.raw()) != 0 });
    if flags.reads_file() || flags.replicated() || obeyed() { Word::Master } else { Word::Client }
}

/// Whose word a command is that makes what a master decided; an error if it may not.
pub fn may_apply(ctx: Ctx<'_>) -> Result<Word, Error> {
    match of_command(ctx) {
        Word::Client if !config::apply_from_clients() => Err(Error::new(
            "ERR only a master or a file may tell what was decided (sluice.apply-from-clients)",
        )),
        word => Ok(word),
    }
}

/// For the numbers that are brought: none may be larger than this word allows.
pub fn gather(word: Word) -> Fencing {
    Fencing::gather(match word {
        Word::Master => MAX_FENCE,
        Word::Client => numbers::with_fencing(|f| f.most_of_client(clock::now())),
    })
}

/// Whose word the payload of a key is that is being loaded. On a replica only its master restores, whose clock may differ.
pub fn of_payload() -> Word {
    let flags = Ctx::own().flags();
    if flags.loading() || !flags.master() { Word::Master } else { Word::Client }
}
