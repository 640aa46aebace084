//! `CL.THROTTLE`, as redis-cell has it, on the token bucket: same key type as `TB.*`, same
//! decisions, redis-cell's five integers.
//!
//! Times are whole seconds, rounded up. Registered only when the module is loaded with `cl-throttle
//! yes`.

use crate::engine::bucket::Limits;
use crate::engine::family::Family;
use crate::engine::token_bucket::{Mode, TokenBucket};
use crate::server::command::args::MAX_COUNT;
use crate::server::command::call::Call;
use crate::server::command::register::{Command, KeyUse, Keys, Registrar};
use crate::server::error::Error;
use crate::server::stats;

pub fn register(r: &Registrar<'_>) -> Result<(), String> {
    let command = Command {
        name: "cl.throttle",
        flags: "write deny-oom fast",
        syntax: "key max-burst count period-seconds [quantity]",
        keys: Keys::First(KeyUse::Update),
        summary: "Takes from a token bucket, with the arguments and the reply of redis-cell.",
        complexity: "O(1)",
    };
    r.add(&command, throttle)
}

fn throttle(call: &Call<'_>) -> Result<(), Error> {
    const LONGEST_PERIOD: i64 = 31_622_400;
    let mut args = call.args();
    args.next("key")?;
    let burst = args.int("max_burst", 0, MAX_COUNT - 1)?;
    let count = args.count("count")?;
    let period = args.int("period", 1, LONGEST_PERIOD)?;
    let quantity = if args.more() { args.int("quantity", 0, MAX_COUNT)? } else { 1 };
    args.end()?;
    let limits = Limits::new(burst + 1, count, period * 1_000).ok_or(Error::INTERNAL)?;
    let [granted, limit, remaining, retry, _, reset] = if quantity == 0 {
        call.look::<TokenBucket, _>(|bucket, now| bucket.look(Some(limits), now)).map_err(explain)??
    } else {
        let take = |bucket: &mut TokenBucket, now, journal: &mut _| {
            bucket.take(Some(limits), quantity, Mode::Whole, now, journal)
        };
        let six = call.change(1, take).map_err(explain)??;
        stats::decision(Family::TokenBucket, six[0] > 0);
        six
    };
    let limited = granted == 0 && quantity > 0;
    let retry = if limited && retry >= 0 { seconds(retry) } else { -1 };
    call.reply().ints(&[i64::from(limited), limit, remaining, retry, seconds(reset)]);
    Ok(())
}

/// Whole seconds, rounded up.
fn seconds(ms: i64) -> i64 {
    ms / 1_000 + i64::from(ms % 1_000 > 0)
}

/// A key that redis-cell itself wrote is a string.
fn explain(error: Error) -> Error {
    if error == Error::WRONG_TYPE {
        return Error::new(
            "WRONGTYPE Operation against a key holding the wrong kind of value; keys written by redis-cell are strings: delete them once when you change over",
        );
    }
    error
}
