//! `SLUICE.APPLY`: what a master decided, done again on a replica or from a file.
//!
//! It is one change of the command's key, or a list of changes of several (engine/unit.rs). Each
//! part is made whole or not at all, but for a master's batch that breaks off: a part that cannot
//! be made does not keep the others from being made, as it would not if they had come one by one;
//! the first error is told.
//!
//! What is made is carried on. A master's word goes on as it came, unless some of it could not be
//! made; of a client's word each part goes on by itself, as a change that is decided here does, so
//! nothing is carried that was not made.

use super::expiry::schedule;
use super::finish::give_ttl;
use super::handle::open_of;
use super::value::{Value, for_family};
use crate::engine::codec::{Corrupt, FORMAT};
use crate::engine::family::Family;
use crate::engine::journal::{Batch, Blob, Journal};
use crate::engine::object::{Object, apply_each, apply_whole};
use crate::engine::time::Micros;
use crate::engine::unit::{self, Step};
use crate::server::blocking::access::open;
use crate::server::blocking::claim_waiters;
use crate::server::cluster::slots;
use crate::server::error::Error;
use crate::server::ffi::call::{How, call_words};
use crate::server::ffi::context::{Ctx, InDb};
use crate::server::ffi::events::listen;
use crate::server::ffi::key::Mode;
use crate::server::ffi::replicate;
use crate::server::ffi::strings::Str;
use crate::server::replication::trust::{self, Word};
use crate::server::replication::{carry, fencing, listeners};
use crate::server::stats;
use crate::server::time::{clock, due_index};
use std::ffi::{CStr, c_int};
use std::ops::Range;

const NOT_OURS: Error = Error::new("ERR SLUICE.APPLY: not an effect of this version");
const NO_DATABASE: Error = Error::new("ERR SLUICE.APPLY: no such database");

/// Where the head stands among the arguments of the command; behind it are those that its parts
/// take.
const HEAD: usize = 3;

/// Makes the change, or all that a unit says, and has it carried on. `argv` are the arguments of
/// the running command: `SLUICE.APPLY key expire head …`.
pub fn apply(ctx: Ctx<'_>, expire: i64, argv: &[Str<'_>]) -> Result<(), Error> {
    let word = trust::may_apply(ctx)?;
    let (Some(name), Some(head)) = (argv.get(1), argv.get(HEAD)) else { return Err(Error::INTERNAL) };
    let mut told = Told { ctx, word, argv, db: ctx.db(), name: *name };
    let head = head.bytes();
    // What was put off and done before this command comes before it.
    carry::flush(ctx);
    if unit::is_unit(head) {
        let steps = unit::read(head, HEAD + 1..argv.len()).map_err(corrupt)?;
        told.may_have(&steps)?;
        told.make_all(&steps)
    } else {
        told.make_all(&[Step::Effects { expire, head: HEAD, blobs: HEAD + 1..argv.len() }])
    }
}

fn corrupt(why: Corrupt) -> Error {
    Error::of(format!("ERR SLUICE.APPLY: {}", why.0))
}

fn family(number: u8) -> Result<Family, Error> {
    Family::ALL.into_iter().find(|f| *f as u8 == number).ok_or(NOT_OURS)
}

/// What is told, by whom, and which key it is about by now. The arguments are live.
#[derive(Clone, Copy)]
struct Told<'a> {
    ctx: Ctx<'a>,
    word: Word,
    argv: &'a [Str<'a>],
    db: c_int,
    name: Str<'a>,
}

impl<'a> Told<'a> {
    fn argument(&self, at: usize) -> Result<Str<'a>, Error> {
        self.argv.get(at).copied().ok_or(Error::INTERNAL)
    }

    /// Of a client's list the server has only looked at the first key.
    fn may_have(&self, steps: &[Step]) -> Result<(), Error> {
        if self.word == Word::Master {
            return Ok(());
        }
        let others = steps.iter().filter_map(|step| match step {
            Step::Key(at) => self.argv.get(*at),
            _ => None,
        });
        let keys: Vec<Str<'_>> = std::iter::once(&self.name).chain(others).copied().collect();
        slots::together(self.ctx, &keys)
    }

    fn make_all(&mut self, steps: &[Step]) -> Result<(), Error> {
        let begin = *self;
        let (mut by_parts, mut result) = (self.word == Word::Client, Ok(()));
        for (i, step) in steps.iter().enumerate() {
            match self.make(step) {
                Ok(()) if by_parts => self.carry(step),
                Ok(()) => {}
                Err(error) => {
                    if !std::mem::replace(&mut by_parts, true) {
                        begin.carry_all(steps.get(..i).unwrap_or_default());
                    }
                    result = result.and(Err(error));
                }
            }
        }
        if !by_parts {
            replicate::verbatim(self.ctx);
        }
        result
    }

    fn make(&mut self, step: &Step) -> Result<(), Error> {
        fn effects<O: Object>(
            told: &Told<'_>,
            expire: i64,
            head: &[u8],
            blobs: &[Str<'_>],
        ) -> Result<(), Error> {
            told.effects::<O>(expire, head, blobs)
        }
        fn expires<O: Object>(told: &Told<'_>, at: i64) -> Result<(), Error> {
            told.expires::<O>(at)
        }
        match step {
            Step::Database(db) => self.db = *db,
            Step::Key(at) => self.name = self.argument(*at)?,
            Step::Effects { expire, head, blobs } => {
                let _there = enter(self.ctx, self.db)?;
                let head = self.argument(*head)?.bytes();
                let [FORMAT, number, ..] = head else { return Err(NOT_OURS) };
                let (family, expire) = (family(*number)?, *expire);
                let blobs = self.argv.get(blobs.clone()).ok_or(Error::INTERNAL)?;
                for_family!(family, effects(self, expire, head, blobs))?;
            }
            Step::Expires { family: number, at } => {
                let _there = enter(self.ctx, self.db)?;
                let (family, at) = (family(*number)?, *at);
                for_family!(family, expires(self, at))?;
            }
            Step::Gone => {
                let _there = enter(self.ctx, self.db)?;
                self.gone();
            }
        }
        Ok(())
    }

    /// Steps that were made as long as nothing was carried.
    fn carry_all(mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Database(db) => self.db = *db,
                Step::Key(at) => self.name = self.argument(*at).unwrap_or(self.name),
                _ => {}
            }
            self.carry(step);
        }
    }

    /// A step that was made goes on its way, as what is decided here does.
    fn carry(&self, step: &Step) {
        let ctx = self.ctx;
        if matches!(step, Step::Database(_) | Step::Key(_)) {
            return;
        }
        if !listeners::wanted(ctx) {
            listeners::untold();
            return;
        }
        let (name, argv) = (self.name, self.argv);
        ctx.in_db(self.db, || match step {
            Step::Effects { expire, head, blobs } => {
                let Ok(head) = self.argument(*head) else { return };
                let batch = Batch { head: head.bytes().to_vec(), blobs: arguments(blobs) };
                carry::effects(ctx, name, argv, vec![batch], (*expire != 0).then_some(*expire));
            }
            Step::Expires { family: number, at } => {
                if let Ok(family) = family(*number) {
                    carry::expires(ctx, name, family, *at);
                }
            }
            Step::Gone => carry::gone(ctx, name),
            Step::Database(_) | Step::Key(_) => {}
        });
    }

    /// What was decided on one key, done again here. Decides nothing.
    fn effects<O: Object>(&self, expire: i64, head: &[u8], blobs: &[Str<'_>]) -> Result<(), Error> {
        let mut key = open_of::<O>(self.ctx, self.name, Mode::Write)?;
        let (existed, mut fresh) = (key.value().is_some(), None);
        let bytes_before = key.value().map_or(0, Value::memory);
        let object = match key.value_mut() {
            Some(value) => &mut value.object,
            None => fresh.insert(O::blank()),
        };
        let blobs = || blobs.iter().map(|s| Box::from(s.bytes()));
        let mut brought = fencing::gather(self.word);
        let mut events = Events::before(object);
        let made = match self.word {
            Word::Master => {
                let mut look = |object: &O, effect: &O::Effect| events.notice(object, effect);
                apply_each(object, head, &mut blobs(), &mut brought, &mut look).map_err(corrupt)
            }
            Word::Client => {
                apply_whole(object, head, &|| blobs().collect(), &mut brought).map_err(corrupt)?;
                // A change that was read leaves a key sound; a new one has to be it.
                if !existed {
                    sound(object).map_err(corrupt)?;
                }
                Ok(())
            }
        };
        // From here on also for a batch that broke off: what came before the break was made.
        fencing::raise(brought.last());
        match fresh {
            None => stats::grew(O::FAMILY, key.value().map_or(0, Value::memory) as i64 - bytes_before as i64),
            Some(fresh) => {
                made.clone()?;
                // The TTL may come right after, by a command of its own: so it is in a rewritten
                // AOF.
                key.put(Box::new(Value::arrived(fresh))).map_err(|_| Error::INTERNAL)?;
                stats::born(O::FAMILY, key.value().map_or(0, Value::memory));
                listen();
            }
        }
        if expire != 0 && made.is_ok() {
            give_ttl(&mut key, expire);
        }
        if let Some(value) = key.value() {
            self.look_soon(value);
            events.count(&value.object);
        }
        self.ctx.signal_modified(self.name);
        drop(key);
        events.tell::<O>(|event| self.ctx.notify(event, self.name));
        made
    }

    /// The timer comes when something is due on the object, and at once for who waits there, whom a
    /// master's word finds nowhere.
    fn look_soon<O: Object>(&self, value: &Value<O>) {
        let (db, key) = (self.db, self.name.bytes());
        let now = clock::now();
        schedule(value, now, || (db, key.into()));
        if self.word == Word::Client {
            if O::FAMILY.queue() {
                claim_waiters::look_again(db, key);
            } else if value.object.waiting() > 0 {
                due_index::schedule(O::FAMILY, value.identity(), now, || (db, key.into()));
            }
        }
    }

    /// The key gets the TTL that it was given (unix ms), or loses it (-1). Nothing if there is no
    /// such key.
    fn expires<O: Object>(&self, at: i64) -> Result<(), Error> {
        let mut key = open_of::<O>(self.ctx, self.name, Mode::Write)?;
        if key.value().is_some() {
            give_ttl(&mut key, at);
            self.ctx.signal_modified(self.name);
        }
        Ok(())
    }

    /// The key goes, as where it was decided.
    fn gone(&self) {
        let mut key = open(self.ctx, self.name, Mode::Write);
        if !key.is_empty() {
            key.delete();
            self.ctx.signal_modified(self.name);
            drop(key);
            // The event as from UNLINK.
            self.ctx.notify_deleted(self.name);
        }
    }
}

/// The keyspace events of what is applied: each once, and in the order in which a command tells
/// them.
struct Events {
    now: Micros,
    before: [u64; stats::MOST_EVENTS],
    after: [u64; stats::MOST_EVENTS],
    told: Vec<&'static CStr>,
}

impl Events {
    fn before<O: Object>(object: &O) -> Self {
        let mut before = [0; stats::MOST_EVENTS];
        object.counts(&mut before);
        Self { now: clock::now(), before, after: before, told: Vec::new() }
    }

    /// This effect is about to be applied.
    fn notice<O: Object>(&mut self, object: &O, effect: &O::Effect) {
        self.told.extend(object.event(effect, self.now));
    }

    fn count<O: Object>(&mut self, object: &O) {
        object.counts(&mut self.after);
    }

    fn tell<O: Object>(&self, tell: impl Fn(&'static CStr)) {
        let counted = |event: &CStr| O::EVENTS.contains(&Some(event));
        if let Some(set) = self.told.iter().find(|event| !counted(event)) {
            tell(set);
        }
        for (i, event) in O::EVENTS.iter().enumerate() {
            let risen = self.after.get(i) > self.before.get(i);
            if let Some(event) = event.filter(|event| risen || self.told.contains(event)) {
                tell(event);
            }
        }
    }
}

/// The payloads of a batch, as arguments of the command.
fn arguments(at: &Range<usize>) -> Vec<Blob> {
    at.clone().map(Blob::Arg).collect()
}

/// Whether a client may make a key of this object.
fn sound<O: Object>(object: &O) -> Result<(), Corrupt> {
    if object.is_partial() {
        return Ok(());
    }
    object.check()?;
    // (It may be over by now: so it is in an AOF that is piped.)
    let mut told = Journal::new(O::FAMILY, false);
    object.snapshot(&mut told, &mut |_| {});
    if told.changed() { Ok(()) } else { Err(Corrupt("it says the same as no key")) }
}

/// Selects the database of a part, if the server would let a client have it: Redis gives a node of
/// a cluster others than the first, too, but no slots in them.
fn enter(ctx: Ctx<'_>, db: c_int) -> Result<InDb<'_>, Error> {
    // It is another client that selects.
    let may = || {
        let number = db.to_string();
        let reply = call_words(ctx, c"SELECT", How::Plain, &[number.as_bytes()]);
        reply.is_some_and(|reply| !reply.is_error())
    };
    if db != 0 && db != ctx.db() && ctx.flags().cluster() && !may() {
        return Err(NO_DATABASE);
    }
    ctx.enter(db).ok_or(NO_DATABASE)
}
