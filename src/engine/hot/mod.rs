//! `HOT`: one resource limited per subject by one rule, with exceptions, in bounded memory.
//!
//! Every subject has a token bucket. One that is full needs no entry (full is the same as absent),
//! so only subjects in debt to their limit are kept, compactly (see [`subjects`]).
//!
//! States: *blank* (no rule, the same as no key) or *set*; a rule stays until it is deleted.
//!
//! Invariants:
//! - A subject with an exception is reckoned by that, every other by the rule.
//! - At most `max` subjects are kept, or more for a moment after the rule was changed. A granted
//!   take of a new one first drops those that are full, then, if there is no room, the one nearest
//!   to full, which is counted as forgotten. Nearest: by instant of fullness in ms, then by name.
//! - Full ones are dropped when a new one comes, when the rule is set, and by the timer once they
//!   have been full for [`LINGER`]: until then a clock that steps back finds them as they were.
//! - What a changed rule makes of very many subjects is done in pieces, and seen at once (see
//!   [`due`]).
//! - A refused take changes nothing, but that a level may be cut which a step back of the clock put
//!   too far ahead.
//! - `Set`, `Rule`, `Forget` and `Evict` are the effects that reckon when applied: exact functions
//!   of the state and of what they carry, so that a rule for a million subjects is changed by a few
//!   bytes. All others are absolute; `Converted` changes nothing that is told or kept.
//! - Not state: the hottest, the counters of takes.

mod due;
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
use super::bucket::{Bucket, Limits, Policy};
use super::journal::Journal;
use super::names_hash::of_name;
use super::time::{MS, Micros};
use due::Past;
use std::collections::{BTreeMap, VecDeque};
use subjects::{Deficit, MOST, Subjects};
use top::Top;

/// How many subjects a rule keeps if nobody says otherwise.
pub const DEFAULT_MAX: i64 = 1_000_000;

/// How long a full subject is still kept at most.
pub const LINGER: Micros = 300_000 * MS;

/// At most so many full ones are taken off when the subjects are counted: no call stops for long.
const COUNTED: usize = 10_000;

/// There is no rule: "ERR no such rule".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRule;

/// See the head of the file.
#[derive(Debug, Default)]
pub struct Hot {
    rule: Option<Limits>,
    max: i64,
    /// The rules before it by which some subjects are still kept, oldest first; and up to where
    /// they may be.
    past: VecDeque<Past>,
    unconverted: usize,
    subjects: Subjects,
    /// A tree: however many there are, one more never makes it move them all.
    exceptions: BTreeMap<Box<[u8]>, Limits>,
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
        // Who is full now goes: also those who are to be converted to a rule that stays the same.
        let at = (self.rule != Some(limits) || !self.past.is_empty()).then_some(now);
        if at.is_some() || self.max != max {
            self.commit(Effect::Rule { limits, max, at }, journal);
        }
        let done = self.settle_most(now, journal.left(), journal);
        journal.spend(done);
        if self.past.is_empty() {
            let done = self.forget_full(now, journal.left(), journal);
            journal.spend(done);
            if self.is_any_full(now) {
                // The rest goes as those do who are to be converted.
                self.commit(Effect::Rule { limits, max, at: Some(now) }, journal);
            }
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

    /// `HOT.EXCEPT … DEL`: the rule holds for the subject again; returns how many exceptions were
    /// removed.
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
        self.bring_up(subject);
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
        let hash = of_name(subject);
        if !at_most && let Some(six) = self.take_plain(subject, hash, cost, now, journal) {
            return Ok(six);
        }
        self.bring_up(subject);
        let (stored, limits) = self.open(subject, now)?;
        let mut bucket = stored.unwrap_or(Bucket::new(limits, 0)).brought(now);
        let (granted, mut retry) = verdict(&bucket, cost, at_most);
        self.count(subject, hash, granted > 0, now);
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
        hash: u64,
        cost: i64,
        now: Micros,
        journal: &mut Journal,
    ) -> Option<[i64; 6]> {
        let limits = self.limits(subject)?;
        let slot = self.subjects.find_by(subject, hash).filter(|slot| self.subjects.age(*slot) == 0)?;
        let Deficit { missing, at } = self.subjects.deficit(slot, limits.rate())?;
        let level = i64::try_from(limits.full() - missing).ok()?;
        let mut bucket = Narrow::brought(limits, level, at, now).filter(|b| !b.is_full())?;
        let taken = bucket.take(cost);
        self.count(subject, hash, taken.is_ok(), now);
        if let Err(retry) = taken {
            return Some(bucket.six(0, retry));
        }
        let units = i128::from(bucket.level());
        journal.record(&Effect::Taken { subject: subject.into(), units, at: now }, []);
        self.taken(slot, limits, units, now);
        Some(bucket.six(cost, 0))
    }

    fn count(&mut self, subject: &[u8], hash: u64, granted: bool, now: Micros) {
        self.top.count(subject, hash, granted, now);
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
            subjects: (self.subjects.len() - self.subjects.count_full(now, COUNTED)) as i64,
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

    /// The bucket in a slot, by the rule of now; None: it was full when the rule was changed, so it
    /// is as if it were not there.
    fn bucket(&self, slot: u32) -> Option<Bucket> {
        let limits = self.limits(self.subjects.name(slot))?;
        let Deficit { missing, at } = match self.subjects.age(slot) {
            0 => self.subjects.deficit(slot, limits.rate()),
            age => self.converted(slot, age),
        }?;
        Some(Bucket::plain(limits, limits.full() - missing, at))
    }

    /// The subject's bucket, if it is kept and not full, and its limits.
    fn open(&self, subject: &[u8], now: Micros) -> Result<(Option<Bucket>, Limits), NoRule> {
        let limits = self.limits(subject).ok_or(NoRule)?;
        let bucket = self.subjects.find(subject).and_then(|slot| self.bucket(slot));
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
