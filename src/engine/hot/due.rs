//! What time and a changed rule do to the subjects: full ones go, all are carried over to the new
//! rule, and those for whom there is no room are forgotten.
//!
//! **Put off.** With very many subjects that is done in pieces (see `queue/due.rs` for the same in
//! queues). A command decides right before the rest is done:
//!
//! - A subject that is still kept by an older rule is *judged* as converted: from rule to rule, at
//!   the instants at which they were changed. Converting it changes nothing that is told, kept or
//!   compared ([`Hot::bucket`] is the same before and after), so a snapshot tells the converted
//!   state, and it does not matter how far a replica has come. What is decided on is converted
//!   first.
//! - While some are not converted nobody knows who is nearest to full: nobody is forgotten, and
//!   there may be more than `max`.
//! - Until its turn comes a subject above `max` is limited by what it really has. So nobody is
//!   granted more than by the rule, and `forgotten` counts those who are given the rest. A new
//!   subject has as many forgotten for it as the command may do, one at least.
//!
//! Nothing of it is noted but by being done: a rest is there if rules of the past are, or more
//! subjects than `max`.

use super::subjects::{Deficit, GENERATIONS, ms};
use super::{Effect, Hot, most};
use crate::engine::bucket::{Bucket, Level, Limits, Policy};
use crate::engine::journal::Journal;
use crate::engine::time::Micros;

/// At most so many full subjects are dropped by one take: no call stops for long.
const DROPS: usize = 1_000;

/// With more subjects than this, and a clock that stepped back, the nearest to full is not sought
/// among all.
const SEARCHED: usize = 4_096;

/// So many are looked at for it in the time of one step.
const SEARCHED_A_STEP: usize = 16;

/// A rule that was replaced at `until`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Past {
    limits: Limits,
    until: Micros,
}

impl Hot {
    /// Another rule from `at` on. Subjects are old until they are converted. None: nothing but
    /// `max` is another one.
    pub(super) fn change_rule(&mut self, limits: Limits, max: i64, at: Option<Micros>) {
        let old = self.rule.replace(limits);
        self.max = max;
        let Some((old, at)) = old.zip(at).filter(|_| self.subjects.len() > 0) else { return };
        if self.past.len() + 1 == GENERATIONS {
            // No more can be told apart: whoever changes the rule again and again has it done at
            // once.
            self.rule = Some(old);
            self.convert_down_to(0);
            self.rule = Some(limits);
        }
        self.past.push_back(Past { limits: old, until: at });
        self.subjects.grow_old();
        self.unconverted = self.subjects.len();
        self.latest = self.latest.max(at);
    }

    /// What a subject of that age is missing by the rule of now; None: it was full when a rule was
    /// changed, and went.
    pub(super) fn converted(&self, slot: u32, age: usize) -> Option<Deficit> {
        let (first, rule) = (self.past.len().checked_sub(age)?, self.rule?);
        let excepted = self.exceptions.get(self.subjects.name(slot));
        let limits = *excepted.unwrap_or(&self.past.get(first)?.limits);
        let Deficit { missing, at } = self.subjects.deficit(slot, limits.rate())?;
        let mut bucket = Bucket::plain(limits, limits.full() - missing, at);
        for (i, past) in self.past.iter().enumerate().skip(first) {
            if bucket.is_full(past.until) {
                return None;
            }
            let next = self.past.get(i + 1).map_or(rule, |past| past.limits);
            if excepted.is_none() && next != past.limits {
                bucket = bucket.changed(past.until, next, 0, Policy::Keep);
                if bucket.level().units >= next.full() {
                    return None;
                }
            }
        }
        Some(Deficit { missing: bucket.limits().full() - bucket.level().units, at: bucket.at() })
    }

    /// A subject that is about to be decided on is converted first, if it is there.
    #[inline]
    pub(super) fn bring_up(&mut self, subject: &[u8]) {
        if !self.past.is_empty()
            && let Some(slot) = self.subjects.find(subject)
        {
            self.convert(slot);
        }
    }

    fn convert(&mut self, slot: u32) {
        let age = self.subjects.age(slot);
        if age == 0 {
            return;
        }
        match (self.converted(slot, age), self.limits(self.subjects.name(slot))) {
            (Some(deficit), Some(limits)) => self.subjects.put(slot, deficit, limits.rate()),
            _ => self.subjects.remove(slot),
        }
    }

    /// Goes on with converting, from the last slot down: in the place of one that goes comes one
    /// that was looked at. Returns how many it looked at.
    fn convert_most(&mut self, most: usize) -> usize {
        let left = self.subjects.len().min(self.unconverted);
        self.convert_down_to(left.saturating_sub(most));
        left - self.unconverted
    }

    /// Converts until no slot from `left` on is old.
    pub(super) fn convert_down_to(&mut self, left: usize) {
        self.unconverted = self.unconverted.min(self.subjects.len());
        while self.unconverted > left {
            self.unconverted -= 1;
            self.convert(self.unconverted as u32);
        }
        if self.unconverted == 0 {
            self.past.clear();
        }
    }

    /// Whether anything is put off that needs no instant.
    pub(super) fn is_unfinished(&self) -> bool {
        !self.past.is_empty() || self.subjects.len() > most(self.max)
    }

    /// Does what is put off, about `most` steps; returns how many it did.
    pub(super) fn settle_most(&mut self, now: Micros, most: usize, journal: &mut Journal) -> usize {
        let mut done = 0;
        if !self.past.is_empty() {
            done = self.convert_most(most);
            journal.record(&Effect::Converted { left: self.unconverted as u64 }, []);
        }
        let over = self.subjects.len().saturating_sub(super::most(self.max));
        if self.past.is_empty() && over > 0 && done < most {
            done += self.forget(over, most - done, now, journal);
        }
        done
    }

    /// So many subjects go, or as many as `most` steps allow, at least one: the full ones first,
    /// then those nearest to full, which are counted. Returns the steps it took.
    fn forget(&mut self, count: usize, most: usize, now: Micros, journal: &mut Journal) -> usize {
        let mut gone = self.forget_full(now, count.min(most.max(1)), journal);
        let mut steps = gone;
        while gone < count && (gone == 0 || steps < most) {
            if let Some(slot) = self.subjects.full_behind(now) {
                self.drop_slot(slot, false, journal);
            } else if now >= self.latest || self.subjects.len() > SEARCHED {
                let rest = (count - gone).min(most.saturating_sub(steps).max(1)).min(self.subjects.len());
                self.commit(Effect::Evict { count: rest as u64 }, journal);
                return steps + rest;
            } else if let Some(slot) = self.nearest(now) {
                steps += self.subjects.len() / SEARCHED_A_STEP;
                let counted = self.bucket(slot).is_none_or(|b| !b.is_full(now));
                self.drop_slot(slot, counted, journal);
            } else {
                break;
            }
            gone += 1;
            steps += 1;
        }
        steps
    }

    fn drop_slot(&mut self, slot: u32, counted: bool, journal: &mut Journal) {
        let subject = self.subjects.name(slot).to_vec().into();
        self.commit(Effect::Drop { subject, counted }, journal);
    }

    /// Makes room for a new subject: drops what is full (an old entry of its own, too), and if need
    /// be the nearest to full.
    pub(super) fn make_room(&mut self, subject: &[u8], now: Micros, journal: &mut Journal) {
        if self.past.is_empty() {
            let mut dropped = self.forget_full(now, DROPS, journal);
            while dropped < DROPS
                && let Some(slot) = self.subjects.full_behind(now)
            {
                self.drop_slot(slot, false, journal);
                dropped += 1;
            }
        }
        if let Some(slot) = self.subjects.find(subject) {
            self.drop_slot(slot, false, journal);
        }
        let over = (self.subjects.len() + 1).saturating_sub(most(self.max));
        if self.past.is_empty() && over > 0 {
            let done = self.forget(over, journal.left().saturating_add(1), now, journal);
            journal.spend(done.saturating_sub(1));
        }
    }

    /// Drops subjects that are full at `now`, first come first, at most `most`; returns how many.
    pub(super) fn forget_full(&mut self, now: Micros, most: usize, journal: &mut Journal) -> usize {
        let mut count = 0;
        // Counted by doing it: the effect says how many, and applies to nothing more here.
        while count < most && self.is_any_full(now) {
            self.forget_first(1);
            count += 1;
        }
        if count > 0 {
            journal.record(&Effect::Forget { count: count as u64 }, []);
        }
        count
    }

    /// Whether any subject is full at `now`, by the rule by which it is kept.
    pub(super) fn is_any_full(&self, now: Micros) -> bool {
        self.subjects.first().is_some_and(|slot| self.subjects.full_at(slot) <= i128::from(now))
    }

    pub(super) fn forget_first(&mut self, count: u64) {
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

    /// `Effect::Set`, of an earlier build, and the head of a snapshot: the same as `Rule` with all
    /// that follows.
    pub(super) fn set_at_once(&mut self, limits: Limits, max: i64, at: Micros) {
        self.change_rule(limits, max, Some(at));
        self.convert_down_to(0);
        // From the last slot down, as above.
        for slot in self.subjects.slots().rev() {
            if self.subjects.full_at(slot) <= i128::from(at) {
                self.subjects.remove(slot);
            }
        }
        while self.subjects.len() > most(max)
            && let Some(slot) = self.nearest(at)
        {
            self.subjects.remove(slot);
            self.forgotten = self.forgotten.saturating_add(1);
        }
    }
}
