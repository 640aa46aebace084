//! `LB`: the leaky bucket in a key, a shaper that says how long to wait.
//!
//! A [`Leaky`] (the arithmetic is there) with what a key adds to it: limits that come with the
//! calls or are *pinned* by `LB.SET`, and clients who were admitted and whose replies are held
//! until their wait is over.
//!
//! States: *blank* (no limits known, the same as no key), *unpinned* (empty it forgets its limits:
//! the same as absent), *pinned*.
//!
//! Invariants:
//! - A refused call changes nothing, but that a level may be cut which a step back of the clock put
//!   too far ahead.
//! - What is due is that clients may go on, and each of them is connected: that is all done before
//!   the next decision, and told in pieces.
//! - The instant at which a waiting client goes on is fixed when it is admitted. If it goes away
//!   before, its place is given back, which helps later comers only.
//! - A plain bucket (unpinned, nobody waits) has no extras: 40 bytes, no allocation of its own.
//! - Not state, so in no effect, snapshot or copy: those who wait, the answers not yet told and the
//!   two counters.

mod object;
#[cfg(test)]
pub(crate) mod tests;

pub use object::Effect;

use super::bucket::{Limits, NoLimits};
use super::journal::Journal;
use super::leaky::Leaky;
use super::shared::pass::Look;
use super::shared::waiting::{Answer, Ticket};
use super::time::{MAX_INSTANT, MS, Micros};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// See the head of the file.
#[derive(Debug, Default)]
pub struct LeakyBucket {
    /// [`Limits::pack`]ed; zeros: blank.
    limits: [u64; 2],
    /// Units inside, if they fit; else 0 and in the extras.
    inside: i64,
    at: Micros,
    extras: Option<Box<Extras>>,
}

/// What only some buckets have.
#[derive(Debug, Default)]
struct Extras {
    pinned: bool,
    /// Units inside that need more than 64 bits.
    wide: Option<i128>,
    line: Line,
    answers: VecDeque<(Ticket, Answer)>,
    granted: i64,
    refused: i64,
}

/// Clients whose wait goes on. Invariant: both hold the same clients.
#[derive(Debug, Default)]
struct Line {
    places: BTreeMap<Ticket, Place>,
    by_end: BTreeSet<(Micros, Ticket)>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    cost: i64,
    /// The capacity at admission: what the client is told if the key goes away.
    capacity: i64,
    /// When it may go on.
    until: Micros,
}

impl Line {
    fn push(&mut self, ticket: Ticket, place: Place) {
        self.remove(ticket);
        self.places.insert(ticket, place);
        self.by_end.insert((place.until, ticket));
    }

    fn remove(&mut self, ticket: Ticket) -> Option<Place> {
        let place = self.places.remove(&ticket)?;
        self.by_end.remove(&(place.until, ticket));
        Some(place)
    }

    fn drain(&mut self) -> impl Iterator<Item = (Ticket, Place)> {
        self.by_end.clear();
        std::mem::take(&mut self.places).into_iter()
    }
}

/// `LB.INFO`, in its order. Durations in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Info {
    pub capacity: i64,
    pub tokens: i64,
    pub period: i64,
    pub pinned: i64,
    pub inside: i64,
    pub free: i64,
    pub wait: i64,
    pub drained_after: i64,
    pub waiting: i64,
    pub granted: i64,
    pub refused: i64,
}

impl LeakyBucket {
    /// `LB.TAKE`: the six fields.
    pub fn take(
        &mut self,
        limits: Option<Limits>,
        cost: i64,
        maxwait_ms: Option<i64>,
        now: Micros,
        journal: &mut Journal,
    ) -> Result<[i64; 6], NoLimits> {
        self.ask(limits, cost, maxwait_ms, now, journal)
    }

    /// `LB.TAKE … BLOCK`: None if it is admitted and has to wait; the client is answered when its
    /// wait is over.
    pub fn take_or_wait(
        &mut self,
        limits: Option<Limits>,
        cost: i64,
        maxwait_ms: Option<i64>,
        ticket: Ticket,
        now: Micros,
        journal: &mut Journal,
    ) -> Result<Option<[i64; 6]>, NoLimits> {
        let reply = self.ask(limits, cost, maxwait_ms, now, journal)?;
        let [granted, capacity, _, _, wait, _] = reply;
        if granted == 0 || wait == 0 {
            return Ok(Some(reply));
        }
        let until = wait.saturating_mul(MS).saturating_add(now).min(MAX_INSTANT);
        self.extras().line.push(ticket, Place { cost, capacity, until });
        Ok(None)
    }

    /// When a client that was admitted may go on; None: it does not wait here.
    pub fn turn_of(&self, ticket: Ticket) -> Option<Micros> {
        self.extras.as_ref()?.line.places.get(&ticket).map(|place| place.until)
    }

    /// What a client that was admitted with this cost is told when its turn has come.
    pub fn at_its_turn(&self, cost: i64, now: Micros) -> [i64; 6] {
        let seen = self.bucket().map(|b| b.brought(now));
        let [all, free, drained] =
            seen.map_or([cost, cost, 0], |b| [b.limits().capacity(), b.free(), b.wait()]);
        [cost, all, free, 0, 0, drained]
    }

    /// `LB.PEEK`: what a take would answer.
    pub fn peek(
        &self,
        limits: Option<Limits>,
        cost: i64,
        maxwait_ms: Option<i64>,
        now: Micros,
    ) -> Result<[i64; 6], NoLimits> {
        let mut bucket = self.open(limits, now)?.brought(now);
        Ok(Self::decide(&mut bucket, cost, maxwait_ms))
    }

    /// Decides on a brought bucket and lets the cost in if it may come.
    fn decide(bucket: &mut Leaky, cost: i64, maxwait_ms: Option<i64>) -> [i64; 6] {
        let (retry, wait) = (bucket.retry(cost, maxwait_ms), bucket.wait());
        if retry != 0 {
            return [0, bucket.limits().capacity(), bucket.free(), retry, wait, wait];
        }
        bucket.admit(cost);
        [cost, bucket.limits().capacity(), bucket.free(), 0, wait, bucket.wait()]
    }

    fn ask(
        &mut self,
        limits: Option<Limits>,
        cost: i64,
        maxwait_ms: Option<i64>,
        now: Micros,
        journal: &mut Journal,
    ) -> Result<[i64; 6], NoLimits> {
        self.serve(now, usize::MAX);
        let mut bucket = self.open(limits, now)?.brought(now);
        let reply = Self::decide(&mut bucket, cost, maxwait_ms);
        let granted = reply[0] > 0;
        if let Some(extras) = self.extras.as_mut().filter(|e| e.pinned) {
            extras.granted += i64::from(granted);
            extras.refused += i64::from(!granted);
        }
        if granted {
            self.store(&bucket, journal);
        } else {
            self.repair(now, journal);
        }
        Ok(reply)
    }

    /// What a refusal may change: see the head of the file.
    fn repair(&mut self, now: Micros, journal: &mut Journal) {
        if let Some(stored) = self.bucket().filter(|b| b.is_ahead(now)) {
            self.store(&stored.brought(now), journal);
        }
    }

    /// What this bucket, pinned, says of an `MPASS`; None: it is not pinned.
    pub fn look_for_pass(&self, key: &[u8], cost: i64, maxwait_ms: Option<i64>, now: Micros) -> Option<Look> {
        let bucket = self.bucket().filter(|_| self.pinned())?.brought(now);
        Some(Look::leaky(key.into(), &bucket, cost, maxwait_ms))
    }

    /// Lets in a pass that all have granted.
    pub fn charge_pass(&mut self, cost: i64, now: Micros, journal: &mut Journal) {
        if let Some(mut bucket) = self.bucket().map(|b| b.brought(now)) {
            bucket.admit(cost);
            self.store(&bucket, journal);
        }
    }

    /// Makes the repair that a refused pass may make.
    pub fn refuse_pass(&mut self, now: Micros, journal: &mut Journal) {
        self.repair(now, journal);
    }

    /// `LB.REFUND`: the six fields, `granted` = whole units given up; zeros when there is no
    /// bucket.
    pub fn refund(&mut self, tokens: i64, now: Micros, journal: &mut Journal) -> [i64; 6] {
        self.serve(now, usize::MAX);
        let Some(stored) = self.bucket().filter(|b| !self.forgets(b, now)) else {
            return [0; 6];
        };
        let mut bucket = stored.brought(now);
        let back = bucket.give_up(tokens);
        if !stored.is_empty(now) {
            self.store(&bucket, journal);
        }
        [back, bucket.limits().capacity(), bucket.free(), 0, bucket.wait(), bucket.wait()]
    }

    /// `LB.SET`: pins the limits; other limits keep the units inside.
    pub fn set(&mut self, limits: Limits, now: Micros, journal: &mut Journal) {
        let new = match self.bucket() {
            None => Leaky::new(limits),
            Some(stored) if stored.limits() == limits => stored,
            Some(stored) => stored.changed(now, limits),
        };
        if !self.pinned() || self.bucket() != Some(new) {
            let (inside, at) = (new.inside(), new.at());
            self.commit(Effect::Pinned { limits, inside, at }, journal);
        }
    }

    /// `LB.RESET`: empty; an unpinned bucket is as if it had never been. Those waiting go on at
    /// once.
    pub fn reset(&mut self, now: Micros, journal: &mut Journal) {
        let Some(bucket) = self.bucket() else {
            return;
        };
        if self.pinned() {
            self.commit(Effect::Level { inside: 0, at: now }, journal);
            if let Some(extras) = &mut self.extras {
                let all = bucket.limits().capacity();
                let line =
                    extras.line.drain().map(|(ticket, p)| (ticket, Answer::Six([p.cost, all, all, 0, 0, 0])));
                extras.answers.extend(line);
            }
        } else {
            let told = self.dismiss();
            self.commit(Effect::Reset, journal);
            if !told.is_empty() {
                self.extras().answers.extend(told);
            }
        }
    }

    /// `LB.INFO`; None if it says the same as an absent key.
    pub fn info(&self, now: Micros) -> Option<Info> {
        let bucket = self.bucket().filter(|b| !self.forgets(b, now) || self.waiting() > 0)?.brought(now);
        let (granted, refused) = self.extras.as_ref().map_or((0, 0), |e| (e.granted, e.refused));
        Some(Info {
            capacity: bucket.limits().capacity(),
            tokens: bucket.limits().tokens(),
            period: bucket.limits().period_ms(),
            pinned: i64::from(self.pinned()),
            inside: bucket.held(),
            free: bucket.free(),
            wait: bucket.wait(),
            drained_after: bucket.wait(),
            waiting: self.waiting() as i64,
            granted,
            refused,
        })
    }

    /// The bucket as stored; None when blank.
    pub(super) fn bucket(&self) -> Option<Leaky> {
        let limits = Limits::unpack(self.limits)?;
        let wide = self.extras.as_ref().and_then(|e| e.wide);
        Some(Leaky::plain(limits, wide.unwrap_or(i128::from(self.inside)), self.at))
    }

    pub fn pinned(&self) -> bool {
        self.extras.as_ref().is_some_and(|e| e.pinned)
    }

    /// The capacity as configured; 0: no limits are known.
    pub fn capacity(&self) -> i64 {
        self.bucket().map_or(0, |b| b.limits().capacity())
    }

    /// How many clients wait until they may go on.
    pub fn waiting(&self) -> usize {
        self.extras.as_ref().map_or(0, |e| e.line.places.len())
    }

    fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    fn drop_idle_extras(&mut self) {
        if self.extras.as_ref().is_some_and(|e| {
            !e.pinned && e.wide.is_none() && e.line.places.is_empty() && e.answers.is_empty()
        }) {
            self.extras = None;
        }
    }

    fn forgets(&self, bucket: &Leaky, now: Micros) -> bool {
        !self.pinned() && bucket.is_empty(now)
    }

    /// The bucket that a call with these limits is about, not yet brought to `now`.
    fn open(&self, limits: Option<Limits>, now: Micros) -> Result<Leaky, NoLimits> {
        match (self.bucket().filter(|b| !self.forgets(b, now)), limits) {
            (Some(bucket), Some(limits)) if limits != bucket.limits() && !self.pinned() => {
                Ok(bucket.changed(now, limits))
            }
            (Some(bucket), _) => Ok(bucket),
            (None, Some(limits)) => Ok(Leaky::new(limits)),
            (None, None) => Err(NoLimits),
        }
    }

    fn commit(&mut self, effect: Effect, journal: &mut Journal) {
        journal.record(&effect, []);
        self.make(effect);
    }

    /// Makes the brought `bucket` the state.
    fn store(&mut self, bucket: &Leaky, journal: &mut Journal) {
        let (limits, inside, at) = (bucket.limits(), bucket.inside(), bucket.at());
        let effect = if self.limits == limits.pack() {
            Effect::Level { inside, at }
        } else {
            Effect::Begin { limits, inside, at }
        };
        self.commit(effect, journal);
    }

    /// Answers those whose wait is over, at most `most`; true when none of them is left.
    fn serve(&mut self, now: Micros, most: usize) -> bool {
        let Some(bucket) = self.bucket().filter(|_| self.waiting() > 0) else {
            return true;
        };
        let seen = bucket.brought(now);
        let (all, free, drained) = (seen.limits().capacity(), seen.free(), seen.wait());
        let extras = self.extras();
        for _ in 0..most {
            let Some((_, ticket)) = extras.line.by_end.first().copied().filter(|(until, _)| *until <= now)
            else {
                return true;
            };
            if let Some(place) = extras.line.remove(ticket) {
                extras.answers.push_back((ticket, Answer::Six([place.cost, all, free, 0, 0, drained])));
            }
        }
        extras.line.by_end.first().is_none_or(|(until, _)| *until > now)
    }

    /// Takes all who wait; they have been admitted, and a missing key is empty.
    fn dismiss(&mut self) -> Vec<(Ticket, Answer)> {
        let Some(extras) = &mut self.extras else {
            return Vec::new();
        };
        let six = |p: Place| Answer::Six([p.cost, p.capacity, p.capacity, 0, 0, 0]);
        extras.line.drain().map(|(ticket, place)| (ticket, six(place))).collect()
    }
}
