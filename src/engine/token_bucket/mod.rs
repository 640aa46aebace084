//! `TB`: the token bucket in a key.
//!
//! A [`Bucket`] (the arithmetic is there) with what a key adds to it: limits that come with the
//! calls or are *pinned* by `TB.SET`, a ban, open holds, and clients who have booked tokens and
//! wait.
//!
//! States:
//! - *blank*: no limits known. The same as no key; only a ban can be in force.
//! - *unpinned*: limits came with a call. Full, without holds, it *forgets* its limits: full is the
//!   same as absent.
//! - *pinned*: limits were set and stay.
//!
//! Invariants:
//! - A refused call changes nothing, but for two repairs: a level that a step back of the clock put
//!   too far ahead may be cut, and the first ask of a cold bucket starts its warm-up.
//! - A hold whose time is over counts as closed. Every write first puts back what such holds give
//!   back, each as of its own instant: so a level holds all that came back up to its instant, and a
//!   hold that ended by then gives nothing any more. The holds themselves may be closed later.
//! - A plain bucket (unpinned, no ban, no holds, nobody waits) has no extras: 40 bytes, no
//!   allocation of its own.
//! - Not state, so in no effect, snapshot or copy: the line, the answers not yet told and the two
//!   counters.

mod bookings;
mod effect;
mod holds;
mod object;
mod set;
mod take;
#[cfg(test)]
mod tests;

pub use effect::{Effect, Hold};
pub use set::Info;
pub use take::{Mode, NoSuchHold};

use super::bucket::{Bucket, Level, Limits, NoLimits, Policy};
use super::journal::Journal;
use super::shared::waiting::{Answer, Ticket};
use super::time::Micros;
use bookings::Line;
use holds::Holds;
use std::collections::VecDeque;

/// See the head of the file.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub struct TokenBucket {
    /// [`Limits::pack`]ed; zeros: blank.
    limits: [u64; 2],
    /// The level in units, if it fits; else 0 and in the extras.
    level: i64,
    at: Micros,
    extras: Option<Box<Extras>>,
}

/// What only some buckets have.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
struct Extras {
    pinned: bool,
    warmup_ms: i64,
    ramp: Option<Micros>,
    part: u64,
    /// A level that needs more than 64 bits.
    wide: Option<i128>,
    ban: Micros,
    holds: Holds,
    line: Line,
    answers: VecDeque<(Ticket, Answer)>,
    granted: i64,
    refused: i64,
}

impl Extras {
    /// Whether it is at most pinned.
    fn plain(&self) -> bool {
        self.warmup_ms == 0
            && self.wide.is_none()
            && self.ban == 0
            && self.holds.len() == 0
            && self.line.len() == 0
    }

    /// Whether a bucket without extras would be the same.
    fn idle(&self) -> bool {
        !self.pinned && self.plain() && self.answers.is_empty()
    }
}

impl TokenBucket {
    /// The bucket as stored; None when blank.
    pub(super) fn bucket(&self) -> Option<Bucket> {
        let limits = Limits::unpack(self.limits)?;
        Some(match &self.extras {
            None => Bucket::plain(limits, i128::from(self.level), self.at),
            Some(extras) => {
                let units = extras.wide.unwrap_or(i128::from(self.level));
                Bucket::plain(limits, units, self.at).warming(extras.warmup_ms, extras.part, extras.ramp)
            }
        })
    }

    pub fn pinned(&self) -> bool {
        self.extras.as_ref().is_some_and(|e| e.pinned)
    }

    /// The capacity as configured; 0: no limits are known.
    pub fn capacity(&self) -> i64 {
        self.bucket().map_or(0, |b| b.limits().capacity())
    }

    /// How many clients wait for tokens they have booked.
    pub fn waiting(&self) -> usize {
        self.extras.as_ref().map_or(0, |e| e.line.len())
    }

    fn holds(&self) -> Option<&Holds> {
        self.extras.as_ref().map(|e| &e.holds)
    }

    fn ban(&self) -> Micros {
        self.extras.as_ref().map_or(0, |e| e.ban)
    }

    fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    fn drop_idle_extras(&mut self) {
        if self.extras.as_ref().is_some_and(|e| e.idle()) {
            self.extras = None;
        }
    }

    /// The bucket as it is at `now`, and whether a hold is open: holds that are over are accounted
    /// for although still there.
    fn seen(&self, now: Micros) -> (Option<Bucket>, bool) {
        let mut bucket = self.bucket();
        let Some(holds) = self.holds() else {
            return (bucket, false);
        };
        while let Some(b) = bucket.as_mut()
            && let Some((at, tokens)) = holds.next_refund(b.at(), now)
            && !b.is_full(at)
        {
            b.bring(at);
            b.put(tokens);
        }
        (bucket, holds.last_end().is_some_and(|end| end > now))
    }

    /// Whether it says the same as an absent bucket, bans and waiters left aside: then its limits
    /// are forgotten.
    fn forgets(&self, bucket: &Bucket, holds_open: bool, now: Micros) -> bool {
        !holds_open && !self.pinned() && bucket.is_full(now)
    }

    /// The bucket that a call with these limits is about, not yet brought to `now`.
    fn open(&self, limits: Option<Limits>, now: Micros) -> Result<Bucket, NoLimits> {
        let (bucket, holds_open) = self.seen(now);
        match (bucket.filter(|b| !self.forgets(b, holds_open, now)), limits) {
            (Some(bucket), Some(limits)) if limits != bucket.limits() && !self.pinned() => {
                Ok(bucket.changed(now, limits, 0, Policy::Keep))
            }
            (Some(bucket), _) => Ok(bucket),
            (None, Some(limits)) => Ok(Bucket::new(limits, 0)),
            (None, None) => Err(NoLimits),
        }
    }

    /// Records and makes one change.
    fn commit(&mut self, effect: Effect, journal: &mut Journal) {
        journal.record(&effect, []);
        self.make(effect);
    }

    /// Makes `bucket` the state. The line has been told of gains and changes.
    fn write(&mut self, bucket: &Bucket, pinned: bool, journal: &mut Journal) {
        let (limits, warmup) = (bucket.limits(), bucket.warmup_ms());
        let Level { units, part } = bucket.level();
        let (at, ramp) = (bucket.at(), bucket.ramp());
        let same = self.limits == limits.pack() && self.pinned() == pinned;
        let effect = if pinned && !same || self.warmup_ms() != warmup {
            Effect::Pinned { limits, warmup, units, part, at, ramp }
        } else if !same {
            Effect::Begin { limits, units, at }
        } else if warmup > 0 {
            Effect::Warm { units, part, at, ramp }
        } else {
            Effect::Level { units, at }
        };
        self.commit(effect, journal);
    }

    fn warmup_ms(&self) -> i64 {
        self.extras.as_ref().map_or(0, |e| e.warmup_ms)
    }

    /// Tells the line what was gained up to `now`.
    fn line_gain(&mut self, now: Micros) {
        if self.waiting() == 0 {
            return;
        }
        if let Some(bucket) = self.bucket().filter(|b| now >= b.at()) {
            self.extras().line.gain(bucket.gain(bucket.at(), now), bucket.parts());
        }
    }

    /// Tells the line that the stored bucket is about to be replaced by one with other limits.
    fn line_change(&mut self, new: &Bucket, policy: Policy) {
        let Some(old) = self.bucket().filter(|_| self.waiting() > 0) else {
            return;
        };
        let change = |own: Level| {
            Level::whole(if policy == Policy::Full { 0 } else { old.converted(own, new.limits(), policy) })
        };
        self.extras().line.change(old.parts(), new.parts(), change);
    }

    /// Makes the changed, brought `bucket` the state.
    fn store(&mut self, bucket: &Bucket, journal: &mut Journal) {
        if self.waiting() > 0 {
            self.line_gain(bucket.at());
            if self.bucket().is_some_and(|b| b.limits() != bucket.limits()) {
                self.line_change(bucket, Policy::Keep);
            }
        }
        self.write(bucket, self.pinned(), journal);
    }

    /// Brings the stored bucket to `now`.
    fn store_brought(&mut self, now: Micros, journal: &mut Journal) {
        if let Some(bucket) = self.bucket() {
            self.store(&bucket.brought(now), journal);
        }
    }

    /// Puts `tokens` back as of `now`; returns the whole tokens put back and the bucket then. Those
    /// waiting gain all of it.
    fn put_back(
        &mut self,
        mut bucket: Bucket,
        tokens: i64,
        now: Micros,
        journal: &mut Journal,
    ) -> (i64, Bucket) {
        bucket.bring(now);
        let back = bucket.put(tokens);
        self.store(&bucket, journal);
        if self.waiting() > 0 {
            let gained = Level::whole(bucket.limits().units(tokens));
            self.extras().line.gain(gained, bucket.parts());
        }
        (back, bucket)
    }

    /// Puts back what holds that are over give back. Once the bucket is full at one's instant it is
    /// full at the next ones', too: so that takes as many steps as there are tokens to come back,
    /// at most.
    fn account(&mut self, now: Micros, journal: &mut Journal) {
        while let Some(bucket) = self.bucket()
            && let Some((at, tokens)) = self.holds().and_then(|h| h.next_refund(bucket.at(), now))
            && !bucket.is_full(at)
        {
            self.put_back(bucket, tokens, at, journal);
        }
    }

    /// Closes the first hold that ended by `end`, if there is one.
    fn close_first(&mut self, end: Micros, journal: &mut Journal) -> bool {
        let over = self.holds().and_then(|h| h.first_over(end));
        if let Some(id) = over {
            self.commit(Effect::Closed { id }, journal);
        }
        over.is_some()
    }

    /// What a command decides on: what came back, and the line as it is at `now`. Holds are closed
    /// as many as there may be.
    fn begin(&mut self, now: Micros, journal: &mut Journal) {
        if !self.close_due(now, journal.left(), journal) {
            self.serve(now, usize::MAX);
        }
    }

    /// Puts back what comes back, closes holds that are over, then serves the line, at most `most`
    /// in all; true when nothing due is left.
    fn close_due(&mut self, now: Micros, most: usize, journal: &mut Journal) -> bool {
        if self.extras.is_none() {
            return true;
        }
        if now < self.at {
            // The clock stepped back: what is in the level must not come back again.
            while self.close_first(self.at, journal) {}
        }
        self.account(now, journal);
        let mut left = most;
        while left > 0 && self.close_first(now, journal) {
            left -= 1;
        }
        journal.spend(most - left);
        if self.waiting() > 0 && self.bucket().is_some_and(|b| b.is_ahead(now)) {
            self.store_brought(now, journal);
        }
        self.serve(now, left) && left > 0
    }

    /// Answers those in line whose tokens are there, at most `most`; true when none of them is
    /// left.
    fn serve(&mut self, now: Micros, most: usize) -> bool {
        let Some(bucket) = self.bucket().filter(|_| self.waiting() > 0) else {
            return true;
        };
        let seen = bucket.brought(now);
        let extras = self.extras();
        for _ in 0..most {
            if extras.line.ready_at(&bucket).is_none_or(|ready| ready > now) {
                return true;
            }
            if let Some((ticket, cost)) = extras.line.pop(bucket.parts()) {
                extras.answers.push_back((ticket, Answer::Six(seen.six(cost, 0))));
            }
        }
        extras.line.ready_at(&bucket).is_none_or(|ready| ready > now)
    }
}
