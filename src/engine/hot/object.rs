//! The rule and its subjects as the object of a key: effects, snapshots, time.

use super::names::MAX_NAME;
use super::subjects::Deficit;
use super::{Hot, LINGER, most};
use crate::engine::bucket::{Bucket, Level, Limits, MAX_COUNT, Policy, up_to_ms};
use crate::engine::codec::{Corrupt, Reader, instant};
use crate::engine::family::Family;
use crate::engine::fencing::Fencing;
use crate::engine::footprint::{block, table};
use crate::engine::journal::Journal;
use crate::engine::object::{Lifetime, Object};
use crate::engine::time::Micros;
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::ffi::CStr;

/// One change. The order of the variants is their wire number: new ones go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect<'a> {
    /// The rule from `at` on: every subject without an exception is carried over, those full are dropped, those for whom there is no
    /// room are forgotten, nearest to full first.
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
            Effect::Set { limits, max, at } => self.carry_over(limits, max, at),
            Effect::Except { subject, limits } => {
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
                if let Some(limits) = self.limits(&subject) {
                    let slot = self.subjects.find_or_add(&subject);
                    self.taken(slot, limits, units, at);
                }
            }
            Effect::Drop { subject, counted } => {
                if let Some(slot) = self.subjects.find(&subject) {
                    self.subjects.remove(slot);
                    self.forgotten = self.forgotten.saturating_add(u64::from(counted));
                }
            }
            Effect::Forget { count } => self.forget_first(count),
            Effect::Forgotten { total } => self.forgotten = total,
        }
    }

    /// The level of a subject that is kept.
    pub(super) fn taken(&mut self, slot: u32, limits: Limits, units: i128, at: Micros) {
        self.subjects.put(slot, Deficit { missing: limits.full() - units, at }, limits.rate());
        self.latest = self.latest.max(at);
    }

    fn carry_over(&mut self, limits: Limits, max: i64, at: Micros) {
        let old = self.rule.replace(limits);
        self.max = max;
        if let Some(old) = old.filter(|old| *old != limits) {
            let exceptions = &self.exceptions;
            let mut latest = self.latest;
            self.subjects.change(|subjects, slot| {
                let excepted = !exceptions.is_empty() && exceptions.contains_key(subjects.name(slot));
                let Deficit { missing, at: then } =
                    subjects.deficit(slot, old.rate()).filter(|_| !excepted)?;
                let bucket = Bucket::plain(old, old.full() - missing, then);
                let new = bucket.changed(at, limits, 0, Policy::Keep);
                latest = latest.max(new.at());
                Some((Deficit { missing: limits.full() - new.level().units, at: new.at() }, limits.rate()))
            });
            self.latest = latest;
        }
        // From the last slot down: a removed one's place is taken by one that was looked at.
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

    fn check_effect(&self, effect: &Effect<'_>) -> Result<(), Corrupt> {
        let kept = |subject: &[u8]| self.subjects.find(subject).is_some();
        match effect {
            Effect::Set { limits, max, at } => {
                limits.check()?;
                if !(1..=MAX_COUNT).contains(max) {
                    return Err(Corrupt("maxsubjects out of range"));
                }
                instant(*at)
            }
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
                if !kept(subject) && self.subjects.len() >= most(self.max) {
                    return Err(Corrupt("too many subjects"));
                }
                Ok(())
            }
            Effect::Drop { subject, .. } => {
                kept(subject).then_some(()).ok_or(Corrupt("drops an unknown subject"))
            }
            Effect::Forget { count } => {
                let enough = usize::try_from(*count).is_ok_and(|count| count <= self.subjects.len());
                enough.then_some(()).ok_or(Corrupt("drops unknown subjects"))
            }
            Effect::Forgotten { .. } => Ok(()),
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
        _fencing: &mut Fencing,
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
        let mut exceptions: Vec<_> = self.exceptions.iter().collect();
        exceptions.sort_unstable_by_key(|(subject, _)| *subject);
        let mut written = 0;
        let mut flush_now_and_then = |journal: &mut Journal| {
            written += 1;
            if written % 1_000 == 0 {
                flush(journal);
            }
        };
        for (subject, limits) in exceptions {
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
        self.drop_at()
    }

    fn settle(&mut self, now: Micros, most: usize, journal: &mut Journal) -> bool {
        let full = now.saturating_sub(LINGER);
        self.forget_full(full, most, journal) < most || self.drop_at().is_none_or(|at| at > now)
    }

    fn event(&self, effect: &Self::Effect, _now: Micros) -> Option<&'static CStr> {
        matches!(effect, Effect::Set { .. }).then_some(c"hot.set")
    }

    fn lifetime(&self, _now: Micros) -> Lifetime {
        if self.rule.is_some() { Lifetime::Forever } else { Lifetime::Gone }
    }

    fn memory(&self) -> usize {
        let exceptions =
            table(self.exceptions.capacity(), size_of::<(Box<[u8]>, Limits)>()) + self.exception_bytes;
        size_of::<Self>() + self.subjects.memory() + exceptions + self.top.memory()
    }

    fn effort(&self) -> usize {
        1 + self.subjects.allocations() + self.exceptions.len()
    }

    fn duplicate(&self) -> Self {
        Self {
            rule: self.rule,
            max: self.max,
            subjects: self.subjects.clone(),
            exceptions: self.exceptions.clone(),
            exception_bytes: self.exception_bytes,
            forgotten: self.forgotten,
            latest: self.latest,
            ..Self::default()
        }
    }
}
