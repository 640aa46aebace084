//! What is done to many messages at once: RQ.REQUEUE, RQ.REDRIVE, RQ.DEL, RQ.PURGE and RQ.MOVE.

use super::options::{count, number, only_count};
use crate::engine::queue::{Id, Movable, Queue, Scope, Which};
use crate::engine::time::MS;
use crate::server::command::args::{is, once};
use crate::server::command::call::Call;
use crate::server::error::Error;
use crate::server::work::serve;

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
