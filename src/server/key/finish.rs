//! The end of the work on an open key, and all that follows a change: create or delete the key,
//! move its TTL, carry the effects, signal, notify, and answer who waits on it.
//!
//! Invariants: a key is created, deleted, signalled or carried only if the journal recorded a
//! change. Notifications come last, when the key is closed. What was decided is kept also if a
//! panic ends all else.

use super::expiry::{schedule_from, ttl};
use super::open::{Counts, Opened};
use super::value::Value;
use crate::engine::object::{Lifetime, Object};
use crate::engine::shared::waiting::{Answer, Ticket};
use crate::engine::time::{MS, Micros};
use crate::server::blocking::claim_waiters;
use crate::server::blocking::clients::{self, Gives};
use crate::server::error::Error;
use crate::server::ffi::events::listen;
use crate::server::ffi::guard::{self, shield, trip};
use crate::server::ffi::key::KeyOf;
use crate::server::replication::{carry, listeners};
use crate::server::reply::limiter;
use crate::server::reply::owned::OwnedReply;
use crate::server::stats;
use crate::server::time::budget;
use crate::server::time::due_index::{Identity, Place};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread::panicking;

impl<O: Object> Opened<'_, O> {
    /// Ends the work on the key, as dropping it does. Returns what the object is known by (None:
    /// there is no key), and what the caller has to do now.
    pub fn finish(mut self) -> (Option<Identity>, FollowUp) {
        self.end()
    }

    /// All that follows what was decided. Once; on an error as well, as what was due has been
    /// applied by then.
    fn end(&mut self) -> (Option<Identity>, FollowUp) {
        if std::mem::replace(&mut self.ended, true) {
            return (None, FollowUp(None));
        }
        trip("deciding");
        let (answers, denied) = self.answers();
        let changed = self.journal.changed();
        // Counted before the key may go: what happened last has happened, too.
        let mut after = self.before;
        if let (true, Some(object)) = (changed && !O::EVENTS.is_empty(), self.existing()) {
            object.counts(&mut after);
        }
        self.keep();
        let identity = self.identity();
        // From here on other code may run and change the key.
        self.key.close();
        self.counted = None;
        trip("telling");
        for (ticket, answer) in answers {
            clients::answer(O::FAMILY, identity, ticket, answer);
        }
        for ticket in denied {
            clients::send(ticket, OwnedReply::Error(Error::NO_PERMISSION), Gives::Nothing);
        }
        (identity, if changed { self.tell(&after) } else { FollowUp(None) })
    }

    /// What was applied stands: it is in the key, carried, reckoned with and looked at when it is
    /// due. Once; also when a panic ends all else.
    fn keep(&mut self) {
        /// A key whose settling ends in a panic lets the others be settled before it is tried
        /// again.
        const AFTER_A_PANIC: Micros = 1_000 * MS;
        if std::mem::replace(&mut self.kept, true) {
            return;
        }
        if !self.timed {
            budget::spend(self.allowed.saturating_sub(self.journal.left()));
        }
        if self.journal.changed() {
            self.commit();
        }
        let Some(value) = self.key.value() else { return };
        stats::grew(O::FAMILY, value.memory() as i64 - self.bytes_before as i64);
        // What is left over comes after what is due by now on other keys.
        let not_before = match (panicking(), self.timed && !self.settled) {
            (true, _) => self.now.saturating_add(AFTER_A_PANIC),
            (false, true) => self.now,
            (false, false) => Micros::MIN,
        };
        schedule_from(value, self.now, not_before, || (self.ctx.db(), self.name.bytes().into()));
    }

    /// Who can be told, and what, as many as may be now; and who may not have what it was served.
    /// That, and what was for a client that went away meanwhile, is given back, which may serve
    /// others.
    fn answers(&mut self) -> (Vec<(Ticket, Answer)>, Vec<Ticket>) {
        /// A client costs as much to tell as so much of what is put off costs to do.
        const A_CLIENT: usize = 8;
        let (mut answers, mut denied) = (Vec::new(), Vec::new());
        if self.existing().is_none() {
            return (answers, denied);
        }
        let (ctx, name, now) = (self.ctx, self.name, self.now);
        let mut most = self.tells.unwrap_or(self.journal.left().div_ceil(A_CLIENT).max(1));
        let (object, journal) = self.parts();
        loop {
            let told = object.answers(most);
            if told.is_empty() {
                return (answers, denied);
            }
            most -= told.len();
            journal.spend(told.len() * A_CLIENT);
            for (ticket, answer) in told {
                let may_have = || clients::may_have(ctx, ticket, name.bytes());
                if !clients::waits(ticket) {
                    object.undo(&answer, now, journal);
                } else if !limiter::granted(&answer) || may_have() {
                    answers.push((ticket, answer));
                } else {
                    object.undo(&answer, now, journal);
                    denied.push(ticket);
                }
            }
        }
    }

    /// Keyspace events and counts; who waits for messages follows.
    fn tell(&self, after: &Counts) -> FollowUp {
        let (ctx, name) = (self.ctx, self.name);
        if let Some(event) = self.event {
            ctx.notify(event, name);
        }
        self.count_events(after);
        if self.removed && !self.reaped {
            ctx.notify_deleted(name);
        }
        // Who waits is served once all that is due has happened; until then the timer comes back.
        let serves = O::FAMILY.queue() && self.settled && !self.timed;
        if !serves || claim_waiters::nobody() || claim_waiters::serving() {
            return FollowUp(None);
        }
        let (db, key) = (ctx.db(), name.bytes());
        FollowUp(claim_waiters::is_line(db, key).then(|| Place { db, key: key.into() }))
    }

    fn count_events(&self, after: &Counts) {
        for (i, event) in O::EVENTS.iter().enumerate() {
            let n = after[i].saturating_sub(self.before[i]);
            if n > 0 {
                stats::event(O::FAMILY, i, n);
                if let Some(event) = event {
                    self.ctx.notify(event, self.name);
                }
            }
        }
    }

    /// Key, TTL, carrying and signal. After it `value` is the object in the key, or null.
    fn commit(&mut self) {
        let now = self.now;
        let lifetime = self.existing().map_or(Lifetime::Gone, |o| o.lifetime(now));
        if lifetime == Lifetime::Gone {
            self.remove();
            return;
        }
        if self.key.value().is_none() {
            let Some(fresh) = self.fresh.take() else { return };
            if let Err(fresh) = self.key.put(fresh) {
                self.fresh = Some(fresh);
                return;
            }
            self.bytes_before = self.memory();
            stats::born(O::FAMILY, self.bytes_before);
            listen();
        }
        let expire = self.key.value().and_then(|value| ttl(value.expires_ms, lifetime, now));
        let batches = self.journal.take();
        if let Some(ms) = expire {
            give_ttl(&mut self.key, ms);
        }
        let (ctx, name) = (self.ctx, self.name);
        if !batches.is_empty() {
            carry::effects(ctx, name, self.argv, batches, expire);
        } else if let Some(ms) = expire.filter(|_| listeners::wanted(ctx)) {
            carry::expires(ctx, name, O::FAMILY, ms);
        } else {
            listeners::untold();
        }
        ctx.signal_modified(name);
    }

    /// The object says the same as no object: the key goes, if there is one.
    fn remove(&mut self) {
        if self.key.value().is_none() {
            return;
        }
        // The free hook reckons with the object as it is by now; the unlink hook takes it out of
        // the due index.
        stats::grew(O::FAMILY, self.memory() as i64 - self.bytes_before as i64);
        self.key.delete();
        self.ctx.signal_modified(self.name);
        if listeners::wanted(self.ctx) {
            carry::gone(self.ctx, self.name);
        } else {
            listeners::untold();
        }
        self.removed = true;
    }
}

/// Gives a key, which is open for writing, a TTL (unix ms), or takes it away (-1), and notes it.
pub fn give_ttl<O: Object>(key: &mut KeyOf<Value<O>>, ms: i64) {
    key.expire(ms);
    if let Some(value) = key.value_mut() {
        value.expires_ms = ms.max(0);
    }
}

/// What is to be done when the work on a key has ended: the line of clients at it is served. If it
/// is dropped instead, by a panic or an error, that is put off.
#[must_use]
pub struct FollowUp(Option<Place>);

impl FollowUp {
    /// Where a line is to be served.
    pub fn take(mut self) -> Option<Place> {
        self.0.take()
    }
}

impl Drop for FollowUp {
    fn drop(&mut self) {
        if let Some(place) = self.0.take() {
            claim_waiters::look_again(place.db, &place.key);
        }
    }
}

impl<O: Object> Drop for Opened<'_, O> {
    fn drop(&mut self) {
        // What was decided has been applied, whatever ends the work on the key. If that is a panic
        // it may have come out of the end itself: it is kept at least.
        let ended = if self.ended { Ok(()) } else { catch_unwind(AssertUnwindSafe(|| drop(self.end()))) };
        if !self.kept {
            shield(|| self.keep(), || ());
        }
        match ended {
            Err(panic) if !panicking() => resume_unwind(panic),
            Err(_) => guard::caught(),
            Ok(_) => {}
        }
    }
}
