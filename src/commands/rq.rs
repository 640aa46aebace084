//! `RQ.*`: the reliable queue. What the commands mean: docs/commands/rq.md; how they decide:
//! engine/queue. The table of the commands is in rq_table.rs, their options in rq_options.rs, the
//! maps they answer in rq_view.rs.

use super::rq_options::{self as options, Claim, MAX_BATCH};
use super::rq_view;
use crate::engine::journal::Journal;
use crate::engine::names_hash::{Keyed, Set};
use crate::engine::queue::{
    Cursor, Few, Id, Movable, NackOptions, Pause, Queue, Receipt, Receipted, Refusal, Scope, State, Which,
};
use crate::engine::time::{MS, Micros};
use crate::server::blocking::claim_waiters::{self, Wrap};
use crate::server::blocking::clients::{self, End, Newcomer, Waits};
use crate::server::command::args::{Args, flag, is, once};
use crate::server::command::call::Call;
use crate::server::config;
use crate::server::error::Error;
use crate::server::reply::message::messages;
use crate::server::reply::owned::OwnedReply;
use crate::server::reply::writer::Reply;
use crate::server::work::{serve, wait};

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Paused => Self::new("PAUSED pushing is paused"),
            Refusal::Full => Self::new("QFULL the queue is full"),
            Refusal::Numbers => Self::new("ERR the queue has no own numbers left: give an ID"),
        }
    }
}

fn reply_id(reply: Reply<'_>, id: &Id) {
    reply.bulk(id.text(&mut itoa::Buffer::new()));
}

fn check_payload(payload: &[u8]) -> Result<(), Error> {
    let most = config::max_payload();
    if payload.len() > most {
        return Err(Error::of(format!("ERR payload must be at most {most} bytes (sluice.max-payload)")));
    }
    Ok(())
}

pub fn push(call: &Call<'_>) -> Result<(), Error> {
    const PAYLOAD: usize = 2;
    let mut args = call.args();
    args.next("key")?;
    let payload = args.next("payload")?;
    let (options, id) = options::push(&mut args, call.now(), true)?;
    check_payload(payload)?;
    let pushed = call.change::<Queue, _>(1, |queue, now, journal| {
        queue.push(now, payload, PAYLOAD, id.map(Id::parse), &options, journal)
    })?;
    match pushed? {
        Some(id) => reply_id(call.reply(), &id),
        None => call.reply().nil(),
    }
    Ok(())
}

pub fn mpush(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let n = usize::try_from(args.count("n")?).unwrap_or(usize::MAX);
    let first = args.position();
    args.skip(n, "payloads")?;
    let (options, _) = options::push(&mut args, call.now(), false)?;
    let payloads: Vec<&[u8]> = (first..first + n).map(|i| call.arg(i)).collect();
    payloads.iter().try_for_each(|p| check_payload(p))?;
    let pushed = call
        .change::<Queue, _>(1, |queue, now, journal| queue.mpush(now, &payloads, first, &options, journal))?;
    let (ids, reply) = (pushed?, call.reply());
    reply.array(ids.len());
    ids.iter().for_each(|id| reply_id(reply, id));
    Ok(())
}

/// Has the client wait at `keys`, the first of which is the argument at `first`; when its time (0:
/// for ever) is over it is told `wrap` around nothing.
fn wait(call: &Call<'_>, first: usize, keys: Vec<Box<[u8]>>, claim: Claim, block: i64, wrap: Wrap) {
    let over = match &wrap {
        Wrap::Acks(acks) => OwnedReply::Array(vec![OwnedReply::ints(acks), OwnedReply::NilArray]),
        Wrap::Plain | Wrap::Key => OwnedReply::NilArray,
    };
    let ticket = clients::ticket();
    let end = if block == 0 { End::Never } else { End::Real(block.saturating_mul(MS)) };
    let newcomer = Newcomer {
        ticket,
        command: call.arg(0),
        keys: call.keys_from(first),
        counted: first > 1,
        end,
        waits: Waits::Claim { over },
    };
    wait::block(call.context(), newcomer);
    serve::join(call.context(), ticket, keys, claim.ask, wrap);
}

pub fn claim(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let claim = options::claim(&mut args, false)?;
    call.comes_after_waiters(1..2);
    let mut key = call.write::<Queue>(1)?;
    let now = key.now();
    if key.existing().is_some() {
        let (queue, journal) = key.parts();
        let deliveries = queue.claim(now, &claim.ask.at_once(), journal);
        if !deliveries.is_empty() {
            messages(call.reply(), queue, &deliveries);
            serve::finish(key);
            return Ok(());
        }
    }
    serve::finish(key);
    match claim.block {
        None => call.reply().array(0),
        Some(ms) if call.may_block() => wait(call, 1, vec![call.arg(1).into()], claim, ms, Wrap::Plain),
        Some(_) => call.reply().nil_array(),
    }
    Ok(())
}

pub fn mclaim(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    let keys = call.counted_keys(&mut args)?;
    let claim = options::claim(&mut args, false)?;
    for i in keys.clone() {
        call.expect::<Queue>(i)?;
    }
    call.comes_after_waiters(keys.clone());
    for i in keys.clone() {
        let mut key = call.write::<Queue>(i)?;
        let now = key.now();
        if key.existing().is_some() {
            let (queue, journal) = key.parts();
            let deliveries = queue.claim(now, &claim.ask.at_once(), journal);
            if !deliveries.is_empty() {
                let reply = call.reply();
                reply.array(2);
                reply.bulk(call.arg(i));
                messages(reply, queue, &deliveries);
                serve::finish(key);
                return Ok(());
            }
        }
        serve::finish(key);
    }
    match claim.block {
        Some(ms) if call.may_block() => {
            let mut seen = Set::with_capacity_and_hasher(keys.len(), Keyed);
            let first = keys.start;
            let names = keys.map(|i| call.arg(i)).filter(|name| seen.insert(*name));
            wait(call, first, names.map(Into::into).collect(), claim, ms, Wrap::Key);
        }
        _ => call.reply().nil_array(),
    }
    Ok(())
}

pub fn next(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let claim = options::claim(&mut args, true)?;
    let receipts = claim.receipts.as_deref().unwrap_or_default();
    call.comes_after_waiters(1..2);
    let mut key = call.write::<Queue>(1)?;
    let now = key.now();
    let mut acks = vec![Receipted::Gone as i64; receipts.len()];
    if key.existing().is_some() {
        let (queue, journal) = key.parts();
        acks = queue.ack(now, receipts, journal).into_iter().map(|a| a as i64).collect();
        let deliveries = queue.claim(now, &claim.ask.at_once(), journal);
        if !deliveries.is_empty() {
            let reply = call.reply();
            reply.array(2);
            reply.ints(&acks);
            messages(reply, queue, &deliveries);
            serve::finish(key);
            return Ok(());
        }
    }
    serve::finish(key);
    match claim.block {
        Some(ms) if call.may_block() => wait(call, 1, vec![call.arg(1).into()], claim, ms, Wrap::Acks(acks)),
        block => {
            let reply = call.reply();
            reply.array(2);
            reply.ints(&acks);
            if block.is_some() { reply.nil_array() } else { reply.array(0) }
        }
    }
    Ok(())
}

/// Does something with receipts, if there is a queue, and replies what came of each.
fn by_receipt(
    call: &Call<'_>,
    receipts: &[Receipt],
    act: impl FnOnce(&mut Queue, Micros, &mut Journal) -> Few<Receipted>,
) -> Result<(), Error> {
    let results = call.change_existing(1, act)?;
    let reply = call.reply();
    reply.array(receipts.len());
    match results {
        Some(results) => results.into_iter().for_each(|r| reply.int(r as i64)),
        None => receipts.iter().for_each(|_| reply.int(Receipted::Gone as i64)),
    }
    Ok(())
}

pub fn ack(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let receipts = options::receipts(&mut args)?;
    by_receipt(call, &receipts, |queue, now, journal| queue.ack(now, &receipts, journal))
}

pub fn extend(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let lease = args.duration("ms", 1)? * MS;
    let receipts = options::receipts(&mut args)?;
    by_receipt(call, &receipts, |queue, now, journal| queue.extend(now, lease, &receipts, journal))
}

pub fn nack(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let mut o = NackOptions::default();
    let mut receipts = None;
    while let Some(word) = args.option() {
        if is(word, "DELAY") {
            once(&mut o.delay, "DELAY", args.duration("delay", 0)? * MS)?;
        } else if is(word, "BACK") {
            flag(&mut o.back, "BACK")?;
        } else if is(word, "NOCOUNT") {
            flag(&mut o.no_count, "NOCOUNT")?;
        } else if is(word, "DEAD") {
            flag(&mut o.dead, "DEAD")?;
        } else if is(word, "REASON") {
            once(&mut o.reason, "REASON", args.next("reason")?)?;
        } else if is(word, "RECEIPTS") {
            once(&mut receipts, "RECEIPTS", options::counted_receipts(&mut args)?)?;
        } else {
            return Err(Error::unknown_option(
                word,
                "DELAY ms, BACK, NOCOUNT, DEAD, REASON text or RECEIPTS n receipt",
            ));
        }
    }
    let receipts = receipts.ok_or_else(|| Error::missing("RECEIPTS"))?;
    if o.dead && (o.no_count || o.back || o.delay.is_some()) {
        return Err(Error::new("ERR syntax error: DEAD excludes DELAY, BACK and NOCOUNT"));
    }
    by_receipt(call, &receipts, |queue, now, journal| queue.nack(now, &receipts, &o, journal))
}

/// Does something that returns a number, if there is a queue; 0 if there is none.
fn number(call: &Call<'_>, act: impl FnOnce(&mut Queue, Micros, &mut Journal) -> u64) -> Result<(), Error> {
    let n = call.change_existing(1, act)?.unwrap_or(0);
    call.reply().int(i64::try_from(n).unwrap_or(i64::MAX));
    Ok(())
}

/// COUNT n, at most all.
fn count(args: &mut Args<'_>, slot: &mut Option<u64>) -> Result<(), Error> {
    once(slot, "COUNT", args.count("count")?.unsigned_abs())
}

/// `[COUNT n]`, to the end.
fn only_count(args: &mut Args<'_>) -> Result<Option<u64>, Error> {
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

pub fn requeue(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let (mut which, mut most) = (None, None);
    while let Some(word) = args.option() {
        let chosen = if is(word, "STALE") {
            Which::Stale(args.duration("stale", 1)? * MS)
        } else if is(word, "CONSUMER") {
            Which::Consumer(args.label("consumer")?)
        } else if is(word, "ALL") {
            Which::All
        } else if is(word, "COUNT") {
            count(&mut args, &mut most)?;
            continue;
        } else {
            return Err(Error::unknown_option(word, "STALE ms, CONSUMER name, ALL or COUNT n"));
        };
        if which.replace(chosen).is_some() {
            return Err(Error::new(
                "ERR syntax error: STALE, CONSUMER and ALL exclude each other, and stand once",
            ));
        }
    }
    number(call, |queue, now, journal| {
        // Without an option: those whose lease is over. They have come back already, as on every
        // command.
        which.map_or(0, |which| queue.requeue(now, which, most.unwrap_or(u64::MAX), journal))
    })
}

pub fn redrive(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let (mut ids, mut most, mut delay) = (None, None, None);
    while let Some(word) = args.option() {
        if is(word, "IDS") {
            let n = usize::try_from(args.count("ids")?).unwrap_or(usize::MAX);
            if n > args.left() {
                args.skip(n, "ids")?;
            }
            let list = (0..n).map(|_| args.next("id").map(Id::parse)).collect::<Result<Vec<_>, _>>()?;
            once(&mut ids, "IDS", list)?;
        } else if is(word, "COUNT") {
            count(&mut args, &mut most)?;
        } else if is(word, "DELAY") {
            once(&mut delay, "DELAY", args.duration("delay", 0)? * MS)?;
        } else {
            return Err(Error::unknown_option(word, "IDS n id, COUNT n or DELAY ms"));
        }
    }
    number(call, |queue, now, journal| {
        queue.redrive(now, ids.as_deref(), most.unwrap_or(u64::MAX), delay.unwrap_or(0), journal)
    })
}

pub fn del(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let mut ids = Vec::with_capacity(args.left());
    while let Some(word) = args.option() {
        ids.push(Id::parse(word));
    }
    number(call, |queue, now, journal| queue.delete(now, &ids, journal))
}

pub fn purge(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let word = args.next("state")?;
    let scope =
        [("READY", Scope::Ready), ("DELAYED", Scope::Delayed), ("DEAD", Scope::Dead), ("ALL", Scope::All)]
            .into_iter()
            .find_map(|(name, scope)| is(word, name).then_some(scope))
            .ok_or(Error::new("ERR syntax error: expected READY, DELAYED, DEAD or ALL"))?;
    let most = only_count(&mut args)?;
    number(call, |queue, _, journal| queue.purge(scope, most, journal))
}

fn state(word: &[u8]) -> Result<State, Error> {
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

pub fn get(call: &Call<'_>) -> Result<(), Error> {
    let id = Id::parse(call.arg(2));
    let reply = call.reply();
    let bring = |queue: &mut Queue, now, journal: &mut Journal| queue.bring(now, &id, journal);
    call.read_after(1, bring, |queue| match queue.and_then(|q| q.get(&id)) {
        Some(view) => rq_view::message(reply, &view, true),
        None => reply.nil(),
    })
}

pub fn list(call: &Call<'_>) -> Result<(), Error> {
    const PAGE: i64 = 10;
    let mut args = call.args();
    args.next("key")?;
    let state = state(args.next("state")?)?;
    let (mut group, mut cursor, mut count, mut no_payload) = (None, None, None, false);
    while let Some(word) = args.option() {
        if is(word, "GROUP") {
            once(&mut group, "GROUP", args.label("group")?)?;
        } else if is(word, "NOPAYLOAD") {
            flag(&mut no_payload, "NOPAYLOAD")?;
        } else if is(word, "CURSOR") {
            let parsed = Cursor::parse(args.next("cursor")?).ok_or(BAD_CURSOR)?;
            once(&mut cursor, "CURSOR", parsed)?;
        } else if is(word, "COUNT") {
            once(&mut count, "COUNT", args.int("count", 1, MAX_BATCH)?)?;
        } else {
            return Err(Error::unknown_option(word, "GROUP g, NOPAYLOAD, CURSOR c or COUNT n"));
        }
    }
    let cursor = cursor.unwrap_or(Cursor::Start);
    let count = usize::try_from(count.unwrap_or(PAGE)).unwrap_or(1);
    let most_bytes = if no_payload { usize::MAX } else { config::max_reply_bytes() };
    let reply = call.reply();
    call.read::<Queue, _>(1, |queue| {
        let (next, page) = match queue {
            Some(queue) => queue.list(state, group, cursor, count, most_bytes).ok_or(BAD_CURSOR)?,
            None => (Cursor::Start, Vec::new()),
        };
        reply.array(2);
        reply.bulk(next.to_string().as_bytes());
        reply.array(page.len());
        page.iter().for_each(|view| rq_view::message(reply, view, !no_payload));
        Ok(())
    })?
}

const BAD_CURSOR: Error = Error::new("ERR invalid cursor: give 0, or what the same RQ.LIST answered");

pub fn len(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let state = args.option().map(state).transpose()?;
    args.end()?;
    let n = call.read::<Queue, _>(1, |queue| queue.map_or(0, |q| q.len(state)))?;
    call.reply().int(i64::try_from(n).unwrap_or(i64::MAX));
    Ok(())
}

pub fn info(call: &Call<'_>) -> Result<(), Error> {
    let reply = call.reply();
    let waiting = claim_waiters::waiting(call.context().db(), call.arg(1));
    call.read::<Queue, _>(1, |queue| match queue {
        Some(queue) => rq_view::info(reply, &queue.info(call.now()), waiting),
        None => reply.nil(),
    })
}

pub fn set(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let settings = options::settings(&mut args)?;
    // Settings take as much room as those they replace.
    call.may_create::<Queue>(1)?;
    let mut key = call.write::<Queue>(1)?;
    let now = key.now();
    let (queue, journal) = key.parts();
    queue.set(now, &settings, journal);
    key.notify(c"rq.set");
    serve::finish(key);
    call.reply().ok();
    Ok(())
}

pub fn pause(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let (mut push, mut claim, mut group, mut until) = (false, false, None, None);
    while let Some(word) = args.option() {
        if is(word, "PUSH") {
            flag(&mut push, "PUSH")?;
        } else if is(word, "CLAIM") {
            flag(&mut claim, "CLAIM")?;
        } else if is(word, "GROUP") {
            once(&mut group, "GROUP", args.label("group")?)?;
        } else if is(word, "UNTIL") {
            once(&mut until, "UNTIL", args.instant("until")? * MS)?;
        } else {
            return Err(Error::unknown_option(word, "PUSH, CLAIM, GROUP g or UNTIL unix-ms"));
        }
    }
    if push && claim {
        return Err(Error::new(
            "ERR syntax error: PUSH and CLAIM exclude each other; leave both out to pause both",
        ));
    }
    let mut key = call.write::<Queue>(1)?;
    if !key.existing().is_some_and(|queue| queue.knows(group)) {
        call.may_grow()?;
    }
    let now = key.now();
    // A pause that is over before it begins lifts what there is, and makes no key.
    if key.existing().is_some() || until.is_none_or(|at| at > now) {
        let until = until.map_or(Pause::Forever, Pause::Until);
        let (queue, journal) = key.parts();
        queue.pause(now, !claim, !push, group, until, journal);
    }
    serve::finish(key);
    call.reply().ok();
    Ok(())
}

pub fn resume(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let mut group = None;
    while let Some(word) = args.option() {
        if is(word, "GROUP") {
            once(&mut group, "GROUP", args.label("group")?)?;
        } else {
            return Err(Error::unknown_option(word, "GROUP g"));
        }
    }
    call.change_existing::<Queue, _>(1, |queue, _, journal| queue.resume(group, journal))?;
    call.reply().ok();
    Ok(())
}

pub fn r#move(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    let (src, dst) = (args.next("src")?, args.next("dst")?);
    let word = args.next("state")?;
    let what = if is(word, "READY") {
        Movable::Ready
    } else if is(word, "DEAD") {
        Movable::Dead
    } else {
        return Err(Error::new("ERR syntax error: expected READY or DEAD"));
    };
    let most = only_count(&mut args)?;
    if src == dst {
        return Err(Error::new("ERR source and destination are the same key"));
    }
    // Messages take as much room there as here.
    call.may_create::<Queue>(2)?;
    let mut from = call.write::<Queue>(1)?;
    let mut to = call.write::<Queue>(2)?;
    let now = from.now();
    let mut n = 0;
    if from.existing().is_some() {
        let (source, source_journal) = from.parts();
        let (target, target_journal) = to.parts();
        n = source.move_to(target, now, what, most.unwrap_or(u64::MAX), source_journal, target_journal);
    }
    serve::finish(from);
    serve::finish(to);
    call.reply().int(i64::try_from(n).unwrap_or(i64::MAX));
    Ok(())
}
