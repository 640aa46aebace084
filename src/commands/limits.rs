//! What TB and LB commands have in common: the three limits, and the reply to a decision.

use crate::engine::bucket::{Limits, NoLimits};
use crate::engine::family::Family;
use crate::engine::shared::waiting::Answer;
use crate::server::blocking::clients::Decided;
use crate::server::command::args::Args;
use crate::server::command::call::Call;
use crate::server::error::Error;
use crate::server::stats;

/// `capacity tokens period`, required.
pub fn limits(args: &mut Args<'_>) -> Result<Limits, Error> {
    let (capacity, tokens, period) =
        (args.count("capacity")?, args.count("tokens")?, args.duration("period", 1)?);
    Limits::new(capacity, tokens, period).ok_or(Error::INTERNAL)
}

/// `[capacity tokens period]`: there if the next argument is none of the command's keywords. What
/// is neither is read as a capacity, so that the error says what was expected of it.
pub fn inline_limits(args: &mut Args<'_>, keywords: &[&str]) -> Result<Option<Limits>, Error> {
    match args.peek() {
        Some(word) if !keywords.iter().any(|k| word.eq_ignore_ascii_case(k.as_bytes())) => {
            limits(args).map(Some)
        }
        _ => Ok(None),
    }
}

impl From<NoLimits> for Error {
    fn from(_: NoLimits) -> Self {
        Self::new("ERR no limits: give capacity tokens period, or TB.SET the key first")
    }
}

/// A decision as the reply of a client that may be blocked, counted.
pub fn told(family: Family, six: &[i64; 6]) -> Decided {
    stats::decision(family, six[0] > 0);
    Decided::Told(Answer::Six(*six))
}

/// Replies to a decision and counts it.
pub fn decided(call: &Call<'_>, family: Family, six: &[i64; 6]) {
    stats::decision(family, six[0] > 0);
    call.reply().ints(six);
}
