//! RQ.CLAIM, RQ.MCLAIM and RQ.NEXT: messages at once, or when there are some.

use super::options::{self, Claim};
use crate::engine::names_hash::{Keyed, Set};
use crate::engine::queue::{Queue, Receipted};
use crate::engine::time::MS;
use crate::server::blocking::claim_waiters::Wrap;
use crate::server::blocking::clients::{self, End, Newcomer, Waits};
use crate::server::command::call::Call;
use crate::server::error::Error;
use crate::server::reply::message::messages;
use crate::server::reply::owned::OwnedReply;
use crate::server::work::{serve, wait};

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
