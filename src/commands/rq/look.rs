//! What only looks: RQ.GET, RQ.LIST, RQ.LEN and RQ.INFO.

use super::options::{MAX_BATCH, state};
use super::replies;
use crate::engine::journal::Journal;
use crate::engine::queue::{Cursor, Id, Queue};
use crate::server::blocking::claim_waiters::{self};
use crate::server::command::args::{flag, is, once};
use crate::server::command::call::Call;
use crate::server::config;
use crate::server::error::Error;

pub fn get(call: &Call<'_>) -> Result<(), Error> {
    let id = Id::parse(call.arg(2));
    let reply = call.reply();
    let bring = |queue: &mut Queue, now, journal: &mut Journal| queue.bring(now, &id, journal);
    call.read_after(1, bring, |queue| match queue.and_then(|q| q.get(&id)) {
        Some(view) => replies::message(reply, &view, true),
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
        page.iter().for_each(|view| replies::message(reply, view, !no_payload));
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
        Some(queue) => replies::info(reply, &queue.info(call.now()), waiting),
        None => reply.nil(),
    })
}
