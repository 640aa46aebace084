//! The rule and its subjects as the object of a key: effects, snapshots, time.

use super::names::MAX_NAME;
use super::subjects::{Deficit, MOST};
use super::{Hot, LINGER};
use crate::engine::bucket::{Bucket, Level, Limits, MAX_COUNT, up_to_ms};
use crate::engine::codec::{Corrupt, Reader, instant};
use crate::engine::family::Family;
use crate::engine::fencing::FencingCounter;
use crate::engine::footprint::{block, tree};
use crate::engine::journal::Journal;
use crate::engine::object::{AT_ONCE, Lifetime, Object};
use crate::engine::time::Micros;
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::ffi::CStr;

/// One change. The order of the variants is their wire number: new ones go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect<'a> {
    /// The rule from `at` on: every subject without an exception is carried over, those full are
    /// dropped, those for whom there is no room are forgotten, nearest to full first. Not made any
    /// more but on an object without subjects: `Rule` leaves that for later.
    Set { limits: Limits, max: i64, at: Micros },
    /// A subject that is not kept has limits of its own, or the rule's again.
    Except {
        #[serde(serialize_with = "serde_bytes::serialize", deserialize_with = "name")]
        subject: Cow<'a, [u8]>,
        limits: Option<Limits>,
    },
    /// The level of a subject.
    Taken {
        #[serde(serialize_with = "serde_bytes::serialize", deserialize_with = "name")]
        subject: Cow<'a, [u8]>,
        units: i128,
        at: Micros,
    },
    /// A subject is not kept any more; counted: as forgotten.
    Drop {
        #[serde(serialize_with = "serde_bytes::serialize", deserialize_with = "name")]
        subject: Cow<'a, [u8]>,
        counted: bool,
    },
    /// The first `count` subjects, in the order in which they become full, are not kept any more.
    Forget { count: u64 },
    /// How many were forgotten so far.
    Forgotten { total: u64 },
    /// The rule from `at` on: every subject without an exception is as if carried over, those full
    /// then as if dropped.
    Rule { limits: Limits, max: i64, at: Option<Micros> },
    /// Of the subjects that were there when the rule was changed at most so many are still to be
    /// carried over; what is told and kept is the same as before.
    Converted { left: u64 },
    /// The first `count` subjects, in the order in which they become full, are forgotten.
    Evict { count: u64 },
}

/// Reads a name without trusting its length: only what is there is allocated.
fn name<'de, 'a, D: Deserializer<'de>>(from: D) -> Result<Cow<'a, [u8]>, D::Error> {
    let bytes = <&serde_bytes::Bytes>::deserialize(from)?;
    if bytes.is_empty() || bytes.len() > MAX_NAME {
        return Err(serde::de::Error::custom("subject"));
    }
    Ok(Cow::Owned(bytes.to_vec()))
}

impl Hot {
    /// [`Object::apply`] by another name: changes the state and nothing else.
    pub(super) fn make(&mut self, effect: Effect<'_>) {
        match effect {
            Effect::Set { limits, max, at } => self.set_at_once(limits, max, at),
            Effect::Except { subject, limits } => {
                self.bring_up(&subject);
                let old = match limits {
                    Some(limits) => self.exceptions.insert(subject[..].into(), limits),
                    None => self.exceptions.remove(&subject[..]),
                };
                match (old, limits) {
                    (None, Some(_)) => self.exception_bytes += block(subject.len()),
                    (Some(_), None) => self.exception_bytes -= block(subject.len()),
                    _ => {}
                }
            }
            Effect::Taken { subject, units, at } => {
                self.bring_up(&subject);
                if let Some(limits) = self.limits(&subject) {
                    let slot = self.subjects.find_or_add(&subject);
                    self.taken(slot, limits, units, at);
                }
            }
            Effect::Drop { subject, counted } => {
                self.bring_up(&subject);
                if let Some(slot) = self.subjects.find(&subject) {
                    self.subjects.remove(slot);
                    self.forgotten = self.forgotten.saturating_add(u64::from(counted));
                }
            }
            Effect::Forget { count } => {
                self.convert_down_to(0);
                self.forget_first(count);
            }
            Effect::Forgotten { total } => self.forgotten = total,
            Effect::Rule { limits, max, at } => self.change_rule(limits, max, at),
            Effect::Converted { left } => self.convert_down_to(usize::try_from(left).unwrap_or(usize::MAX)),
            Effect::Evict { count } => {
                self.convert_down_to(0);
                self.forget_first(count);
                self.forgotten = self.forgotten.saturating_add(count);
            }
        }
    }

    /// The level of a subject that is kept.
    pub(super) fn taken(&mut self, slot: u32, limits: Limits, units: i128, at: Micros) {
        self.subjects.put(slot, Deficit { missing: limits.full() - units, at }, limits.rate());
        self.latest = self.latest.max(at);
    }

    fn check_effect(&self, effect: &Effect<'_>) -> Result<(), Corrupt> {
        let kept = |subject: &[u8]| self.subjects.find(subject).and_then(|slot| self.bucket(slot)).is_some();
        match effect {
            Effect::Set { limits, max, at } => check_rule(limits, *max, Some(*at)),
            Effect::Rule { limits, max, at } => check_rule(limits, *max, *at),
            _ if self.rule.is_none() => Err(Corrupt("a subject without a rule")),
            Effect::Except { subject, limits } => {
                if kept(subject) || limits.is_none() && !self.exceptions.contains_key(&subject[..]) {
                    return Err(Corrupt("exception"));
                }
                limits.map_or(Ok(()), |l| l.check().map(drop))
            }
            Effect::Taken { subject, units, at } => {
                let limits = self.limits(subject).ok_or(Corrupt("a subject without a rule"))?;
                Bucket::restore(limits, 0, Level::whole(*units), *at, None)?;
                if *units < 0 || *units >= limits.full() || *at < 0 {
                    return Err(Corrupt("level out of range"));
                }
                // More than `max` may be there, and still to be forgotten.
                if !kept(subject) && self.subjects.len() >= MOST {
                    return Err(Corrupt("too many subjects"));
                }
                Ok(())
            }
            Effect::Drop { subject, .. } => {
                kept(subject).then_some(()).ok_or(Corrupt("drops an unknown subject"))
            }
            Effect::Forget { count } | Effect::Evict { count } => {
                let enough = usize::try_from(*count).is_ok_and(|count| count <= self.subjects.len());
                enough.then_some(()).ok_or(Corrupt("drops unknown subjects"))
            }
            Effect::Forgotten { .. } | Effect::Converted { .. } => Ok(()),
        }
    }

    /// When the timer may drop the first full subject.
    fn drop_at(&self) -> Option<Micros> {
        let full_at = self.subjects.full_at(self.subjects.first()?);
        i64::try_from(full_at).ok().map(|at| up_to_ms(at).saturating_add(LINGER))
    }
}

impl Object for Hot {
    const FAMILY: Family = Family::Hot;
    type Effect = Effect<'static>;

    fn blank() -> Self {
        Self::default()
    }

    fn apply(&mut self, effect: Effect<'static>) {
        self.make(effect);
    }

    fn read(
        &self,
        input: &mut Reader<'_>,
        _blobs: &mut dyn Iterator<Item = Box<[u8]>>,
        _fencing: &mut FencingCounter,
    ) -> Result<Effect<'static>, Corrupt> {
        let effect: Effect<'static> = input.read()?;
        self.check_effect(&effect)?;
        Ok(effect)
    }

    fn snapshot(&self, journal: &mut Journal, flush: &mut dyn FnMut(&mut Journal)) {
        let Some(limits) = self.rule else {
            return;
        };
        journal.record(&Effect::Set { limits, max: self.max, at: 0 }, []);
        journal.record(&Effect::Forgotten { total: self.forgotten }, []);
        let mut written = 0;
        let mut flush_now_and_then = |journal: &mut Journal| {
            written += 1;
            if written % 1_000 == 0 {
                flush(journal);
            }
        };
        for (subject, limits) in &self.exceptions {
            journal.record(&Effect::Except { subject: subject[..].into(), limits: Some(*limits) }, []);
            flush_now_and_then(journal);
        }
        for slot in self.subjects.by_name() {
            if let Some(bucket) = self.bucket(slot) {
                let (units, at) = (bucket.level().units, bucket.at());
                journal.record(&Effect::Taken { subject: self.subjects.name(slot).into(), units, at }, []);
                flush_now_and_then(journal);
            }
        }
    }

    fn next_event(&self) -> Option<Micros> {
        if self.is_unfinished() { Some(AT_ONCE) } else { self.drop_at() }
    }

    fn apply_due(&mut self, now: Micros, most: usize, journal: &mut Journal) -> bool {
        let mut done = self.settle_most(now, most, journal);
        if self.past.is_empty() {
            done += self.forget_full(now.saturating_sub(LINGER), most.saturating_sub(done), journal);
        }
        journal.spend(done);
        self.next_event().is_none_or(|at| at > now)
    }

    fn event(&self, effect: &Self::Effect, _now: Micros) -> Option<&'static CStr> {
        matches!(effect, Effect::Set { .. } | Effect::Rule { .. }).then_some(c"hot.set")
    }

    fn lifetime(&self, _now: Micros) -> Lifetime {
        if self.rule.is_some() { Lifetime::Forever } else { Lifetime::Gone }
    }

    fn memory(&self) -> usize {
        let exceptions = tree(self.exceptions.len(), size_of::<(Box<[u8]>, Limits)>()) + self.exception_bytes;
        size_of::<Self>() + self.subjects.memory() + exceptions + self.top.memory()
    }

    fn effort(&self) -> usize {
        1 + self.subjects.allocations() + self.exceptions.len()
    }

    fn duplicate(&self) -> Self {
        Self {
            rule: self.rule,
            max: self.max,
            past: self.past.clone(),
            unconverted: self.unconverted,
            subjects: self.subjects.clone(),
            exceptions: self.exceptions.clone(),
            exception_bytes: self.exception_bytes,
            forgotten: self.forgotten,
            latest: self.latest,
            ..Self::default()
        }
    }
}

fn check_rule(limits: &Limits, max: i64, at: Option<Micros>) -> Result<(), Corrupt> {
    limits.check()?;
    if !(1..=MAX_COUNT).contains(&max) {
        return Err(Corrupt("maxsubjects out of range"));
    }
    at.map_or(Ok(()), instant)
}
