//! The token bucket as the object of a key: effects, snapshots, time.

use super::{Effect, Extras, TokenBucket};
use crate::engine::bucket::narrow::Narrow;
use crate::engine::bucket::{Bucket, Level, Limits, up_to_ms};
use crate::engine::codec::{Corrupt, Reader};
use crate::engine::family::Family;
use crate::engine::fencing::FencingCounter;
use crate::engine::footprint::block;
use crate::engine::journal::Journal;
use crate::engine::object::{AT_ONCE, Lifetime, Object};
use crate::engine::shared::waiting::{Answer, Ticket, first_of};
use crate::engine::time::Micros;
use std::ffi::CStr;

impl TokenBucket {
    /// [`Object::apply`] by another name: changes the state and nothing else.
    pub(super) fn make(&mut self, effect: Effect) {
        match effect {
            Effect::Level { units, at } => {
                self.at = at;
                self.put_units(units);
            }
            Effect::Begin { limits, units, at } => {
                self.limits = limits.pack();
                self.at = at;
                self.put_units(units);
            }
            Effect::Warm { units, part, at, ramp } => {
                self.at = at;
                self.put_units(units);
                let extras = self.extras();
                (extras.part, extras.ramp) = (part, ramp);
            }
            Effect::Pinned { limits, warmup, units, part, at, ramp } => {
                self.limits = limits.pack();
                self.at = at;
                self.put_units(units);
                let extras = self.extras();
                (extras.pinned, extras.warmup_ms) = (true, warmup);
                (extras.part, extras.ramp) = (part, ramp);
            }
            Effect::Ban { until } => self.extras().ban = until,
            Effect::Hold { id, hold } => self.extras().holds.insert(id, hold),
            Effect::Closed { id } => {
                self.extras().holds.remove(id);
                self.drop_idle_extras();
            }
            Effect::Reset => {
                if let Some(extras) = &mut self.extras {
                    extras.ban = 0;
                    extras.holds.clear();
                }
                if !self.pinned() {
                    (self.limits, self.at) = ([0; 2], 0);
                    self.put_units(0);
                }
                self.drop_idle_extras();
            }
        }
    }

    /// Stores a level where it fits.
    fn put_units(&mut self, units: i128) {
        match i64::try_from(units) {
            Ok(narrow) => {
                self.level = narrow;
                if let Some(extras) = &mut self.extras {
                    extras.wide = None;
                    self.drop_idle_extras();
                }
            }
            Err(_) => {
                self.level = 0;
                self.extras().wide = Some(units);
            }
        }
    }

    /// The effects that make a blank object equal to this one.
    fn whole(&self) -> impl Iterator<Item = Effect> {
        let bucket = self.bucket().map(|b| {
            let (limits, warmup) = (b.limits(), b.warmup_ms());
            let (Level { units, part }, at, ramp) = (b.level(), b.at(), b.ramp());
            if self.pinned() {
                Effect::Pinned { limits, warmup, units, part, at, ramp }
            } else {
                Effect::Begin { limits, units, at }
            }
        });
        let ban = Some(self.ban()).filter(|until| *until != 0).map(|until| Effect::Ban { until });
        let holds = self.holds().into_iter().flat_map(|h| h.iter());
        bucket.into_iter().chain(ban).chain(holds.map(|(id, hold)| Effect::Hold { id, hold }))
    }
}

impl Object for TokenBucket {
    const FAMILY: Family = Family::TokenBucket;
    type Effect = Effect;

    fn blank() -> Self {
        Self::default()
    }

    fn apply(&mut self, effect: Effect) {
        self.make(effect);
    }

    fn read(
        &self,
        input: &mut Reader<'_>,
        _blobs: &mut dyn Iterator<Item = Box<[u8]>>,
        fencing: &mut FencingCounter,
    ) -> Result<Effect, Corrupt> {
        let effect: Effect = input.read()?;
        effect.check(self, fencing)?;
        Ok(effect)
    }

    fn snapshot(&self, journal: &mut Journal, flush: &mut dyn FnMut(&mut Journal)) {
        for (written, effect) in self.whole().enumerate() {
            journal.record(&effect, []);
            if written % 1_000 == 999 {
                flush(journal);
            }
        }
    }

    fn next_event(&self) -> Option<Micros> {
        let extras = self.extras.as_ref()?;
        if !extras.answers.is_empty() {
            return Some(AT_ONCE);
        }
        // Served on a whole ms: a reply speaks in ms, and no timer is finer.
        let ready = self.bucket().and_then(|b| extras.line.ready_at(&b)).map(up_to_ms);
        [extras.holds.first_end(), ready].into_iter().flatten().min()
    }

    fn apply_due(&mut self, now: Micros, most: usize, journal: &mut Journal) -> bool {
        self.close_due(now, most, journal)
    }

    fn catch_up(&mut self, now: Micros, journal: &mut Journal) {
        self.account(now, journal);
        self.serve(now, usize::MAX);
    }

    fn answers(&mut self, most: usize) -> Vec<(Ticket, Answer)> {
        let Some(extras) = &mut self.extras else {
            return Vec::new();
        };
        let told = first_of(&mut extras.answers, most);
        if !told.is_empty() {
            self.drop_idle_extras();
        }
        told
    }

    fn depart(&mut self, ticket: Ticket, now: Micros, journal: &mut Journal) {
        self.begin(now, journal);
        let Some(stored) = self.bucket().filter(|_| self.waiting() > 0) else {
            return;
        };
        if let Some(cost) = self.extras().line.remove(ticket, &stored)
            && !stored.is_full(now)
        {
            let mut bucket = stored.brought(now);
            bucket.put(cost);
            self.store(&bucket, journal);
        }
        self.serve(now, usize::MAX);
        self.drop_idle_extras();
    }

    fn forget(&mut self, ticket: Ticket) {
        if let Some(stored) = self.bucket().filter(|_| self.waiting() > 0) {
            self.extras().line.remove(ticket, &stored);
            self.drop_idle_extras();
        }
    }

    fn last_instant(&self) -> Micros {
        self.at
    }

    fn undo(&mut self, answer: &Answer, now: Micros, journal: &mut Journal) {
        if let Answer::Six([granted, ..]) = answer
            && *granted > 0
        {
            self.refund(*granted, now, journal);
        }
    }

    fn waiting(&self) -> usize {
        TokenBucket::waiting(self)
    }

    fn orphans(&mut self) -> Vec<(Ticket, Option<Answer>)> {
        let mut told = self.answers(usize::MAX);
        told.extend(self.dismiss());
        told.into_iter().map(|(ticket, answer)| (ticket, Some(answer))).collect()
    }

    fn event(&self, effect: &Self::Effect, _now: Micros) -> Option<&'static CStr> {
        matches!(effect, Effect::Pinned { .. }).then_some(c"tb.set")
    }

    fn lifetime(&self, now: Micros) -> Lifetime {
        if self.pinned() {
            return Lifetime::Forever;
        }
        if self.extras.is_none()
            && let Some(limits) = Limits::unpack(self.limits)
            && let Some(bucket) = Narrow::brought(limits, self.level, self.at, now)
        {
            // The usual bucket, quickly.
            if bucket.is_full() {
                return Lifetime::Gone;
            }
            return Lifetime::Until { full: now.saturating_add(bucket.full_in()), slack: limits.drain() };
        }
        let full = self.bucket().map_or(now, |b| b.full_at(now));
        let hold = self.holds().and_then(|h| h.last_end()).unwrap_or(now);
        let last = full.max(hold).max(self.ban());
        if last <= now && self.waiting() == 0 {
            return Lifetime::Gone;
        }
        Lifetime::Until { full: last, slack: self.bucket().map_or(0, |b| b.limits().drain()) }
    }

    fn memory(&self) -> usize {
        let extras = self.extras.as_ref().map_or(0, |e| {
            block(size_of::<Extras>())
                + e.holds.memory()
                + e.line.memory()
                + e.answers.capacity() * size_of::<(Ticket, Answer)>()
        });
        size_of::<Self>() + extras
    }

    fn effort(&self) -> usize {
        self.extras.as_ref().map_or(1, |e| 2 + e.holds.len() / 4 + e.line.len() / 8)
    }

    fn duplicate(&self) -> Self {
        let extras = self.extras.as_ref().map(|e| {
            Box::new(Extras {
                pinned: e.pinned,
                warmup_ms: e.warmup_ms,
                ramp: e.ramp,
                part: e.part,
                wide: e.wide,
                ban: e.ban,
                holds: e.holds.clone(),
                ..Extras::default()
            })
        });
        let mut copy = Self { limits: self.limits, level: self.level, at: self.at, extras };
        copy.drop_idle_extras();
        copy
    }
}

const _: () = assert!(size_of::<TokenBucket>() == 40);
const _: () = assert!(size_of::<Limits>() == 24 && size_of::<Bucket>() <= 112);
