//! Whose word bytes are: a master's and a file's count, a client's are doubted. The one place that
//! decides who may `SLUICE.APPLY`.

use crate::server::config;
use crate::server::error::Error;
use crate::server::ffi::context::Ctx;
use crate::server::ffi::optional::MustObey;
use std::sync::OnceLock;

/// Who says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// A master, or a file that is loaded: it has decided.
    Master,
    /// Anybody else.
    Client,
}

/// Valkey tells by this whom a server has to obey: besides its master and its own AOF that is, from
/// 9.0, the node that a slot is imported from, which no context flag tells. Redis has no such
/// function: to Redis 8.4 that node is a master like its own, and the flag tells so.
static MUST_OBEY: OnceLock<MustObey> = OnceLock::new();

/// Looks what this server can be asked. Only within `RedisModule_OnLoad`.
pub fn learn() {
    if let Some(found) = MustObey::find() {
        let _ = MUST_OBEY.set(found);
    }
}

/// Whose word the running command is.
pub fn of_command(ctx: Ctx<'_>) -> Word {
    let flags = ctx.flags();
    let obeyed = || MUST_OBEY.get().is_some_and(|function| function.ask(ctx));
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

/// Whose word the payload of a key is that is being loaded. On a replica only its master restores,
/// whose clock may differ.
pub fn of_payload() -> Word {
    let flags = Ctx::own().flags();
    if flags.loading() || !flags.master() { Word::Master } else { Word::Client }
}

/// A change in the append only file that cannot be made: starting without it would silently lose
/// what it says, so the server does not start, as with any other damaged file. Nothing outside a
/// load is ever ended by this.
pub fn refuse_damaged_aof(ctx: Ctx<'_>, error: &Error) {
    if ctx.flags().reads_file() {
        ctx.warn(&format!(
            "sluice: the append only file cannot be loaded: {}",
            error.text().to_string_lossy()
        ));
        std::process::exit(1);
    }
}
