//! What a queue is set to: RQ.SET, RQ.PAUSE and RQ.RESUME.

use super::options::{self};
use crate::engine::queue::{Pause, Queue};
use crate::engine::time::MS;
use crate::server::command::args::{flag, is, once};
use crate::server::command::call::Call;
use crate::server::error::Error;
use crate::server::work::serve;

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
