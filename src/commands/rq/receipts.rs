//! What is done with receipts: RQ.ACK, RQ.NACK and RQ.EXTEND.

use super::options::{self};
use crate::engine::journal::Journal;
use crate::engine::queue::{Few, NackOptions, Queue, Receipt, Receipted};
use crate::engine::time::{MS, Micros};
use crate::server::command::args::{flag, is, once};
use crate::server::command::call::Call;
use crate::server::error::Error;

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
