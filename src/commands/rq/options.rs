//! The options of `RQ.*`, read into the engine's terms: durations in µs, instants in µs since the
//! epoch.

use crate::engine::bucket::Limits;
use crate::engine::journal::Journal;
use crate::engine::queue::{Backoff, Few, OnDup, OnFull, PushOptions, Receipt, Settings};
use crate::engine::queue::{Queue, State};
use crate::engine::time::{MS, Micros};
use crate::server::blocking::claim_waiters::Ask;
use crate::server::command::args::{Args, MAX_COUNT, flag, is, once};
use crate::server::command::call::Call;
use crate::server::error::Error;

/// The most messages one claim asks for, or one page lists.
pub const MAX_BATCH: i64 = 10_000;

pub fn receipt(word: &[u8]) -> Result<Receipt, Error> {
    Receipt::parse(word).ok_or(Error::new("ERR invalid receipt: expected <id>@<claim>"))
}

/// The receipts from here to the end; at least one by the command's arity.
pub fn receipts(args: &mut Args<'_>) -> Result<Few<Receipt>, Error> {
    let mut all = Few::with_capacity(args.left());
    while let Some(word) = args.option() {
        all.push(receipt(word)?);
    }
    Ok(all)
}

/// What follows `RECEIPTS`: how many, and so many receipts.
pub fn counted_receipts(args: &mut Args<'_>) -> Result<Few<Receipt>, Error> {
    let n = usize::try_from(args.count("receipts")?).unwrap_or(usize::MAX);
    if n > args.left() {
        args.skip(n, "receipts")?;
    }
    (0..n).map(|_| receipt(args.next("receipt")?)).collect()
}

/// The options of PUSH and MPUSH. `id` is only taken where the command knows it.
pub fn push<'a>(
    args: &mut Args<'a>,
    now: Micros,
    with_id: bool,
) -> Result<(PushOptions<'a>, Option<&'a [u8]>), Error> {
    const EXPECTED: &str = "ID, DELAY, AT, PRIORITY, GROUP, TTL, LEASE, MAXDELIVERIES, DEDUP or ONDUP";
    let (mut id, mut delay, mut at, mut priority, mut on_dup) = (None, None, None, None, None);
    let mut options = PushOptions::default();
    while let Some(word) = args.option() {
        if with_id && is(word, "ID") {
            once(&mut id, "ID", args.label("id")?)?;
        } else if is(word, "DELAY") {
            once(&mut delay, "DELAY", args.duration("delay", 0)? * MS)?;
        } else if is(word, "AT") {
            once(&mut at, "AT", args.instant("at")? * MS)?;
        } else if is(word, "PRIORITY") {
            let value = args.int("priority", 0, i64::from(u8::MAX))?;
            once(&mut priority, "PRIORITY", u8::try_from(value).unwrap_or(u8::MAX))?;
        } else if is(word, "GROUP") {
            once(&mut options.group, "GROUP", args.label("group")?)?;
        } else if is(word, "TTL") {
            once(&mut options.ttl, "TTL", args.duration("ttl", 1)? * MS)?;
        } else if is(word, "LEASE") {
            once(&mut options.lease, "LEASE", args.duration("lease", 1)? * MS)?;
        } else if is(word, "MAXDELIVERIES") {
            once(&mut options.max_deliveries, "MAXDELIVERIES", whole(args, "maxdeliveries")?)?;
        } else if is(word, "DEDUP") {
            once(&mut options.dedup, "DEDUP", args.duration("dedup", 1)? * MS)?;
        } else if is(word, "ONDUP") {
            once(&mut on_dup, "ONDUP", duplicate(args.next("ONDUP")?)?)?;
        } else {
            return Err(Error::unknown_option(word, EXPECTED));
        }
    }
    if delay.is_some() && at.is_some() {
        return Err(Error::new("ERR syntax error: DELAY and AT exclude each other"));
    }
    options.due = at.or(delay.map(|d| now.saturating_add(d)));
    options.priority = priority.unwrap_or(0);
    options.on_dup = on_dup.unwrap_or(OnDup::Reject);
    Ok((options, id))
}

fn duplicate(word: &[u8]) -> Result<OnDup, Error> {
    [("REJECT", OnDup::Reject), ("REPLACE", OnDup::Replace), ("KEEPLAST", OnDup::KeepLast)]
        .into_iter()
        .find_map(|(name, value)| is(word, name).then_some(value))
        .ok_or(Error::new("ERR ONDUP must be REJECT, REPLACE or KEEPLAST"))
}

/// A count from 0 (off).
fn whole(args: &mut Args<'_>, name: &str) -> Result<u64, Error> {
    Ok(args.int(name, 0, MAX_COUNT)?.unsigned_abs())
}

/// What a claim asks for, and how long its client waits (ms, 0: for ever).
pub struct Claim {
    pub ask: Ask,
    pub block: Option<i64>,
    /// Of NEXT.
    pub receipts: Option<Few<Receipt>>,
}

/// The options of CLAIM and MCLAIM, and of NEXT, which also has RECEIPTS.
pub fn claim(args: &mut Args<'_>, with_receipts: bool) -> Result<Claim, Error> {
    let (mut count, mut lease, mut consumer, mut group) = (None, None, None, None);
    let (mut no_ack, mut block, mut acks, mut max_bytes) = (false, None, None, None);
    while let Some(word) = args.option() {
        if is(word, "COUNT") {
            once(&mut count, "COUNT", args.int("count", 1, MAX_BATCH)?)?;
        } else if is(word, "LEASE") {
            once(&mut lease, "LEASE", args.duration("lease", 1)? * MS)?;
        } else if is(word, "CONSUMER") {
            once(&mut consumer, "CONSUMER", args.label("consumer")?.into())?;
        } else if is(word, "GROUP") {
            once(&mut group, "GROUP", args.label("group")?.into())?;
        } else if is(word, "MAXBYTES") {
            let most = args.count("maxbytes")?;
            once(&mut max_bytes, "MAXBYTES", usize::try_from(most).unwrap_or(usize::MAX))?;
        } else if is(word, "NOACK") {
            flag(&mut no_ack, "NOACK")?;
        } else if is(word, "BLOCK") {
            once(&mut block, "BLOCK", args.duration("block", 0)?)?;
        } else if with_receipts && is(word, "RECEIPTS") {
            once(&mut acks, "RECEIPTS", counted_receipts(args)?)?;
        } else {
            return Err(Error::unknown_option(
                word,
                "COUNT, LEASE, CONSUMER, GROUP, MAXBYTES, NOACK or BLOCK",
            ));
        }
    }
    if with_receipts && acks.is_none() {
        return Err(Error::missing("RECEIPTS"));
    }
    let count = usize::try_from(count.unwrap_or(1)).unwrap_or(1);
    Ok(Claim { ask: Ask { count, lease, consumer, group, no_ack, max_bytes }, block, receipts: acks })
}

/// The options of SET, at least one.
pub fn settings(args: &mut Args<'_>) -> Result<Settings, Error> {
    const EXPECTED: &str = "LEASE, MAXDELIVERIES, BACKOFF, MAXLEN, MAXBYTES, ONFULL, MAXINFLIGHT, GROUPINFLIGHT, RATE, GROUPRATE, \
                            DEDUP, MAXDEAD, TTL or AGING";
    let mut s = Settings::default();
    while let Some(word) = args.option() {
        if is(word, "LEASE") {
            once(&mut s.lease, "LEASE", args.duration("lease", 1)? * MS)?;
        } else if is(word, "MAXDELIVERIES") {
            once(&mut s.max_deliveries, "MAXDELIVERIES", whole(args, "maxdeliveries")?)?;
        } else if is(word, "BACKOFF") {
            once(&mut s.backoff, "BACKOFF", backoff(args)?)?;
        } else if is(word, "MAXLEN") {
            once(&mut s.max_len, "MAXLEN", whole(args, "maxlen")?)?;
        } else if is(word, "MAXBYTES") {
            once(&mut s.max_bytes, "MAXBYTES", whole(args, "maxbytes")?)?;
        } else if is(word, "ONFULL") {
            once(&mut s.on_full, "ONFULL", on_full(args.next("ONFULL")?)?)?;
        } else if is(word, "MAXINFLIGHT") {
            once(&mut s.max_in_flight, "MAXINFLIGHT", whole(args, "maxinflight")?)?;
        } else if is(word, "GROUPINFLIGHT") {
            once(&mut s.group_in_flight, "GROUPINFLIGHT", whole(args, "groupinflight")?)?;
        } else if is(word, "RATE") {
            once(&mut s.rate, "RATE", rate(args)?)?;
        } else if is(word, "GROUPRATE") {
            once(&mut s.group_rate, "GROUPRATE", rate(args)?)?;
        } else if is(word, "DEDUP") {
            once(&mut s.dedup, "DEDUP", args.duration("dedup", 0)? * MS)?;
        } else if is(word, "MAXDEAD") {
            once(&mut s.max_dead, "MAXDEAD", whole(args, "maxdead")?)?;
        } else if is(word, "TTL") {
            once(&mut s.ttl, "TTL", args.duration("ttl", 0)? * MS)?;
        } else if is(word, "AGING") {
            once(&mut s.aging, "AGING", args.duration("aging", 0)? * MS)?;
        } else {
            return Err(Error::unknown_option(word, EXPECTED));
        }
    }
    Ok(s)
}

fn on_full(word: &[u8]) -> Result<OnFull, Error> {
    if is(word, "REJECT") {
        Ok(OnFull::Reject)
    } else if is(word, "DROPOLD") {
        Ok(OnFull::DropOld)
    } else {
        Err(Error::new("ERR ONFULL must be REJECT or DROPOLD"))
    }
}

fn backoff(args: &mut Args<'_>) -> Result<Backoff, Error> {
    let kind = args.next("BACKOFF")?;
    if is(kind, "NONE") {
        Ok(Backoff::None)
    } else if is(kind, "FIXED") {
        Ok(Backoff::Fixed(args.duration("backoff", 1)? * MS))
    } else if is(kind, "EXP") {
        let (base, max) = (args.duration("backoff base", 1)? * MS, args.duration("backoff max", 1)? * MS);
        if base > max {
            return Err(Error::new("ERR backoff base must not be above its max"));
        }
        Ok(Backoff::Exp { base, max })
    } else {
        Err(Error::new("ERR BACKOFF must be NONE, FIXED ms or EXP base max"))
    }
}

/// `tokens per-ms capacity`, or NONE.
fn rate(args: &mut Args<'_>) -> Result<Option<Limits>, Error> {
    if args.peek().is_some_and(|word| is(word, "NONE")) {
        args.next("rate")?;
        return Ok(None);
    }
    let (tokens, period) = (args.count("rate tokens")?, args.duration("rate period", 1)?);
    let capacity = args.count("rate capacity")?;
    Limits::new(capacity, tokens, period).map(Some).ok_or(Error::INTERNAL)
}

/// Does something that returns a number, if there is a queue; 0 if there is none.
pub fn number(
    call: &Call<'_>,
    act: impl FnOnce(&mut Queue, Micros, &mut Journal) -> u64,
) -> Result<(), Error> {
    let n = call.change_existing(1, act)?.unwrap_or(0);
    call.reply().int(i64::try_from(n).unwrap_or(i64::MAX));
    Ok(())
}

/// COUNT n, at most all.
pub fn count(args: &mut Args<'_>, slot: &mut Option<u64>) -> Result<(), Error> {
    once(slot, "COUNT", args.count("count")?.unsigned_abs())
}

/// `[COUNT n]`, to the end.
pub fn only_count(args: &mut Args<'_>) -> Result<Option<u64>, Error> {
    let mut most = None;
    while let Some(word) = args.option() {
        if is(word, "COUNT") {
            count(args, &mut most)?;
        } else {
            return Err(Error::unknown_option(word, "COUNT n"));
        }
    }
    Ok(most)
}

pub fn state(word: &[u8]) -> Result<State, Error> {
    [
        ("READY", State::Ready),
        ("DELAYED", State::Delayed),
        ("INFLIGHT", State::InFlight),
        ("DEAD", State::Dead),
    ]
    .into_iter()
    .find_map(|(name, state)| is(word, name).then_some(state))
    .ok_or(Error::new("ERR syntax error: expected READY, DELAYED, INFLIGHT or DEAD"))
}
