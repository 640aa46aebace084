//! `HOT`: one resource limited per subject by one rule, with exceptions, in bounded memory.
//!
//! Every subject has a token bucket. One that is full needs no entry (full is the same as absent), so only subjects in debt to
//! their limit are kept, compactly (see [`subjects`]).
//!
//! States: *blank* (no rule, the same as no key) or *set*; a rule stays until it is deleted.
//!
//! Invariants:
//! - A subject with an exception is reckoned by that, every other by the rule.
//! - At most `max` subjects are kept. A granted take of a new one first drops those that are full, then, if there is no room, the one
//!   nearest to full, which is counted as forgotten. Nearest: by instant of fullness in ms, then by name.
//! - Full ones are dropped when a new one comes, when the rule is set, and by the timer once they have been full for [`LINGER`]: until
//!   then a clock that steps back finds them as they were.
//! - A refused take changes nothing, but that a level may be cut which a step back of the clock put too far ahead.
//! - `Set` and `Forget` are the two effects that reckon when applied: exact functions of the state and of what they carry, so that a rule
//!   for a million subjects is changed by a few bytes. All others are absolute.
//! - Not state: the hottest, the counters of takes.

mod chunked;
mod names;
mod object;
mod subjects;
#[cfg(test)]
mod tests;
mod top;

pub use names::MAX_NAME;
pub use object::Effect;
pub use top::{HALF_LIFE, Hottest, TRACKED};

use super::bucket::narrow::Narrow;
use super::bucket::{Bucket, Level, Limits, Policy};
use super::journal::Journal;
use super::time::{MS, Micros};
use hashbrown::HashMap;
use subjects::{Deficit, MOST, Subjects, ms};
use top::Top;

/// How many subjects a rule keeps if nobody says otherwise.
pub const DEFAULT_MAX: i64 = 1_000_000;

/// How long a full subject is still kept at most.
pub const LINGER: Micros = 300_000 * MS;

/// At most so many full subjects are dropped by one take: no call stops for long.
const DROPS: usize = 1_000;

/// With more subjects than this, and a clock that stepped back, the nearest to full is not sought among all.
const SEARCHED: usize = 4_096;

/// There is no rule: "ERR no such rule".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRule;

/// See the head of the file.
#[derive(Debug, Default)]
pub struct Hot {
    rule: Option<Limits>,
    max: i64,
    subjects: Subjects,
    exceptions: HashMap<Box<[u8]>, Limits>,
    exception_bytes: usize,
    forgotten: u64,
    /// No subject's own instant is later.
    latest: Micros,
    top: Top,
    granted: i64,
    refused: i64,
}

/// `HOT.INFO`, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    pub capacity: i64,
    pub tokens: i64,
    pub period: i64,
    pub maxsubjects: i64,
    pub subjects: i64,
    pub exceptions: i64,
    pub forgotten: i64,
    pub granted: i64,
    pub refused: i64,
    pub bytes: i64,
}

impl Hot {
    /// `HOT.SET`: the rule of all subjects without an exception; their tokens are kept.
    pub fn set(&mut self, limits: Limits, max: i64, now: Micros, journal: &mut Journal) {
        if (self.rule, self.max) == (Some(limits), max) {
            self.forget_full(now, usize::MAX, journal);
        } else {
            self.commit(Effect::Set { limits, max, at: now }, journal);
        }
    }

    /// `HOT.EXCEPT`: limits of its own for a subject.
    pub fn except(
        &mut self,
        subject: &[u8],
        limits: Limits,
        now: Micros,
        journal: &mut Journal,
    ) -> Result<(), NoRule> {
        self.rule.ok_or(NoRule)?;
        if self.exceptions.get(subject) != Some(&limits) {
            self.set_exception(subject, Some(limits), now, journal);
        }
        Ok(())
    }

    /// `HOT.EXCEPT … DEL`: the rule holds for the subject again; answers how many exceptions were removed.
    pub fn except_no_more(
        &mut self,
        subject: &[u8],
        now: Micros,
        journal: &mut Journal,
    ) -> Result<i64, NoRule> {
        self.rule.ok_or(NoRule)?;
        if !self.exceptions.contains_key(subject) {
            return Ok(0);
        }
        self.set_exception(subject, None, now, journal);
        Ok(1)
    }

    fn set_exception(&mut self, subject: &[u8], limits: Option<Limits>, now: Micros, journal: &mut Journal) {
        let new = limits.or(self.rule);
        let bucket = self.subjects.find(subject).and_then(|slot| self.bucket(slot));
        if bucket.is_some() {
            self.commit(Effect::Drop { subject: subject.into(), counted: false }, journal);
        }
        self.commit(Effect::Except { subject: subject.into(), limits }, journal);
        if let (Some(bucket), Some(new)) = (bucket, new) {
            let same = bucket.limits() == new;
            let changed = if same { bucket } else { bucket.changed(now, new, 0, Policy::Keep) };
            if changed.level().units < new.full() {
                self.store(subject, &changed, journal);
            }
        }
    }

    /// `HOT.TAKE`: the six fields.
    pub fn take(
        &mut self,
        subject: &[u8],
        cost: i64,
        at_most: bool,
        now: Micros,
        journal: &mut Journal,
    ) -> Result<[i64; 6], NoRule> {
        if !at_most && let Some(six) = self.take_plain(subject, cost, now, journal) {
            return Ok(six);
        }
        let (stored, limits) = self.open(subject, now)?;
        let mut bucket = stored.unwrap_or(Bucket::new(limits, 0)).brought(now);
        let (granted, mut retry) = verdict(&bucket, cost, at_most);
        self.count(subject, granted > 0, now);
        if granted > 0 {
            bucket.charge(granted);
            if granted < cost && retry > 0 {
                retry = bucket.until(cost);
            }
            if stored.is_none() {
                self.make_room(subject, now, journal);
            }
            self.store(subject, &bucket, journal);
        } else if stored.is_some_and(|b| b.is_ahead(now)) {
            self.store(subject, &bucket, journal);
        }
        Ok(bucket.six(granted, retry))
    }

    /// The usual take, quickly: of a subject that is kept and not full. None: it is another case.
    #[inline]
    fn take_plain(
        &mut self,
        subject: &[u8],
        cost: i64,
        now: Micros,
        journal: &mut Journal,
    ) -> Option<[i64; 6]> {
        let limits = self.limits(subject)?;
        let slot = self.subjects.find(subject)?;
        let Deficit { missing, at } = self.subjects.deficit(slot, limits.rate())?;
        let level = i64::try_from(limits.full() - missing).ok()?;
        let mut bucket = Narrow::brought(limits, level, at, now).filter(|b| !b.is_full())?;
        let taken = bucket.take(cost);
        self.count(subject, taken.is_ok(), now);
        if let Err(retry) = taken {
            return Some(bucket.six(0, retry));
        }
        let units = i128::from(bucket.level());
        journal.record(&Effect::Taken { subject: subject.into(), units, at: now }, []);
        self.taken(slot, limits, units, now);
        Some(bucket.six(cost, 0))
    }

    fn count(&mut self, subject: &[u8], granted: bool, now: Micros) {
        self.top.count(subject, granted, now);
        self.granted += i64::from(granted);
        self.refused += i64::from(!granted);
    }

    /// `HOT.PEEK`: what a take would answer.
    pub fn peek(&self, subject: &[u8], cost: i64, now: Micros) -> Result<[i64; 6], NoRule> {
        let (stored, limits) = self.open(subject, now)?;
        let mut bucket = stored.unwrap_or(Bucket::new(limits, 0)).brought(now);
        let (granted, retry) = verdict(&bucket, cost, false);
        bucket.charge(granted);
        Ok(bucket.six(granted, retry))
    }

    /// `HOT.TOP`: the hottest by calls, recent first. See [`top`] for what is told and its error.
    pub fn top(&self, most: usize, now: Micros) -> Result<Vec<Hottest<'_>>, NoRule> {
        self.rule.ok_or(NoRule)?;
        Ok(self.top.hottest(most, now))
    }

    /// `HOT.INFO`; None if there is no rule.
    pub fn info(&self, now: Micros) -> Option<Info> {
        let rule = self.rule?;
        Some(Info {
            capacity: rule.capacity(),
            tokens: rule.tokens(),
            period: rule.period_ms(),
            maxsubjects: self.max,
            subjects: (self.subjects.len() - self.subjects.full(now).count()) as i64,
            exceptions: self.exceptions.len() as i64,
            forgotten: i64::try_from(self.forgotten).unwrap_or(i64::MAX),
            granted: self.granted,
            refused: self.refused,
            bytes: i64::try_from(super::object::Object::memory(self)).unwrap_or(i64::MAX),
        })
    }

    /// Whether there is a rule.
    pub fn is_set(&self) -> bool {
        self.rule.is_some()
    }

    /// The limits of a subject.
    fn limits(&self, subject: &[u8]) -> Option<Limits> {
        if self.exceptions.is_empty() {
            return self.rule;
        }
        self.exceptions.get(subject).copied().or(self.rule)
    }

    /// The bucket in a slot.
    fn bucket(&self, slot: u32) -> Option<Bucket> {
        let limits = self.limits(self.subjects.name(slot))?;
        let Deficit { missing, at } = self.subjects.deficit(slot, limits.rate())?;
        Some(Bucket::plain(limits, limits.full() - missing, at))
    }

    /// The subject's bucket, if it is kept and not full, and its limits.
    fn open(&self, subject: &[u8], now: Micros) -> Result<(Option<Bucket>, Limits), NoRule> {
        let limits = self.limits(subject).ok_or(NoRule)?;
        let stored = self.subjects.find(subject).and_then(|slot| self.subjects.deficit(slot, limits.rate()));
        let bucket = stored.map(|d| Bucket::plain(limits, limits.full() - d.missing, d.at));
        Ok((bucket.filter(|b| !b.is_full(now)), limits))
    }

    fn store(&mut self, subject: &[u8], bucket: &Bucket, journal: &mut Journal) {
        let (units, at) = (bucket.level().units, bucket.at());
        self.commit(Effect::Taken { subject: subject.into(), units, at }, journal);
    }

    fn commit(&mut self, effect: Effect<'_>, journal: &mut Journal) {
        journal.record(&effect, []);
        self.make(effect);
    }

    /// Makes room for a new subject: drops what is full (an old entry of its own, too), and if need be the nearest to full.
    fn make_room(&mut self, subject: &[u8], now: Micros, journal: &mut Journal) {
        if self.forget_full(now, DROPS, journal) < DROPS {
            while let Some(slot) = self.subjects.full_behind(now) {
                let subject = self.subjects.name(slot).to_vec().into();
                self.commit(Effect::Drop { subject, counted: false }, journal);
            }
        }
        if self.subjects.find(subject).is_some() {
            self.commit(Effect::Drop { subject: subject.into(), counted: false }, journal);
        }
        while self.subjects.len() >= most(self.max) {
            let Some(slot) = self.nearest(now) else {
                return;
            };
            let counted = self.bucket(slot).is_none_or(|b| !b.is_full(now));
            let subject = self.subjects.name(slot).to_vec().into();
            self.commit(Effect::Drop { subject, counted }, journal);
        }
    }

    /// Drops subjects that are full at `now`, first come first, at most `most`; answers how many.
    fn forget_full(&mut self, now: Micros, most: usize, journal: &mut Journal) -> usize {
        let full =
            |o: &Self| o.subjects.first().is_some_and(|slot| o.subjects.full_at(slot) <= i128::from(now));
        let mut count = 0;
        // Counted by doing it: the effect says how many, and applies to nothing more here.
        while count < most && full(self) {
            self.forget_first(1);
            count += 1;
        }
        if count > 0 {
            journal.record(&Effect::Forget { count: count as u64 }, []);
        }
        count
    }

    fn forget_first(&mut self, count: u64) {
        for _ in 0..count {
            let Some(slot) = self.subjects.first() else {
                return;
            };
            self.subjects.remove(slot);
        }
    }

    /// The subject nearest to full, seen at `now`.
    fn nearest(&self, now: Micros) -> Option<u32> {
        if now >= self.latest || self.subjects.len() > SEARCHED {
            return self.subjects.first();
        }
        // The clock has stepped back: one whose level that cut is nearer than its entry says.
        let nearness = |slot: u32| {
            let brought = self.bucket(slot)?.brought(now);
            let full_at = i128::from(now) + brought.reach(Level::whole(brought.limits().full()));
            Some((ms(full_at), self.subjects.name(slot)))
        };
        self.subjects.slots().min_by_key(|slot| nearness(*slot))
    }
}

/// How many subjects may be kept.
fn most(max: i64) -> usize {
    usize::try_from(max).unwrap_or(MOST).min(MOST)
}

/// What a brought bucket would grant, and ms until it would grant the whole cost (-1: never).
fn verdict(bucket: &Bucket, cost: i64, at_most: bool) -> (i64, i64) {
    if bucket.has(cost) {
        return (cost, 0);
    }
    let retry = if cost > bucket.limits().capacity() { -1 } else { bucket.until(cost) };
    (if at_most { bucket.remaining() } else { 0 }, retry)
}
