//! The leaky bucket as the object of a key: effects, snapshots, time.

use super::{Extras, LeakyBucket, Place};
use crate::engine::bucket::Limits;
use crate::engine::codec::{Corrupt, Reader};
use crate::engine::family::Family;
use crate::engine::fencing::FencingCounter;
use crate::engine::footprint::{block, tree};
use crate::engine::journal::Journal;
use crate::engine::leaky::Leaky;
use crate::engine::object::{AT_ONCE, Lifetime, Object};
use crate::engine::shared::waiting::{Answer, Ticket, first_of};
use crate::engine::time::Micros;
use serde::{Deserialize, Serialize};
use std::ffi::CStr;

/// One change. The order of the variants is their wire number: new ones go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// The units inside, under the limits there are.
    Level { inside: i128, at: Micros },
    /// Limits and units inside of an unpinned bucket.
    Begin { limits: Limits, inside: i128, at: Micros },
    /// Everything about a pinned bucket.
    Pinned { limits: Limits, inside: i128, at: Micros },
    /// An unpinned bucket is as if it had never been.
    Reset,
}

impl LeakyBucket {
    /// [`Object::apply`] by another name: changes the state and nothing else.
    pub(super) fn make(&mut self, effect: Effect) {
        match effect {
            Effect::Level { inside, at } => self.put(inside, at),
            Effect::Begin { limits, inside, at } => {
                self.limits = limits.pack();
                self.put(inside, at);
            }
            Effect::Pinned { limits, inside, at } => {
                self.limits = limits.pack();
                self.extras().pinned = true;
                self.put(inside, at);
            }
            Effect::Reset => {
                self.limits = [0; 2];
                self.put(0, 0);
            }
        }
    }

    /// Stores the units inside where they fit.
    fn put(&mut self, inside: i128, at: Micros) {
        self.at = at;
        match i64::try_from(inside) {
            Ok(narrow) => {
                self.inside = narrow;
                if let Some(extras) = &mut self.extras {
                    extras.wide = None;
                    self.drop_idle_extras();
                }
            }
            Err(_) => {
                self.inside = 0;
                self.extras().wide = Some(inside);
            }
        }
    }
}

impl Object for LeakyBucket {
    const FAMILY: Family = Family::LeakyBucket;
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
        _fencing: &mut FencingCounter,
    ) -> Result<Effect, Corrupt> {
        let effect: Effect = input.read()?;
        match effect {
            Effect::Level { inside, at } => {
                let bucket = self.bucket().ok_or(Corrupt("a level without limits"))?;
                Leaky::restore(bucket.limits(), inside, at)?;
            }
            Effect::Begin { .. } | Effect::Reset if self.pinned() => {
                return Err(Corrupt("unpins a pinned bucket"));
            }
            Effect::Begin { limits, inside, at } | Effect::Pinned { limits, inside, at } => {
                Leaky::restore(limits, inside, at)?;
            }
            Effect::Reset => {}
        }
        Ok(effect)
    }

    fn snapshot(&self, journal: &mut Journal, _flush: &mut dyn FnMut(&mut Journal)) {
        if let Some(bucket) = self.bucket() {
            let (limits, inside, at) = (bucket.limits(), bucket.inside(), bucket.at());
            let effect = if self.pinned() {
                Effect::Pinned { limits, inside, at }
            } else {
                Effect::Begin { limits, inside, at }
            };
            journal.record(&effect, []);
        }
    }

    fn next_event(&self) -> Option<Micros> {
        let extras = self.extras.as_ref()?;
        if !extras.answers.is_empty() {
            return Some(AT_ONCE);
        }
        extras.line.by_end.first().map(|(until, _)| *until)
    }

    fn apply_due(&mut self, now: Micros, most: usize, _journal: &mut Journal) -> bool {
        self.serve(now, most)
    }

    fn catch_up(&mut self, now: Micros, _journal: &mut Journal) {
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
        self.serve(now, usize::MAX);
        let place = self.extras.as_mut().and_then(|e| e.line.remove(ticket));
        if let (Some(place), Some(mut bucket)) = (place, self.bucket()) {
            bucket.bring(now);
            bucket.give_up(place.cost);
            self.store(&bucket, journal);
        }
        self.drop_idle_extras();
    }

    fn forget(&mut self, ticket: Ticket) {
        if let Some(extras) = &mut self.extras {
            extras.line.remove(ticket);
            self.drop_idle_extras();
        }
    }

    fn last_instant(&self) -> Micros {
        self.at
    }

    fn waiting(&self) -> usize {
        LeakyBucket::waiting(self)
    }

    fn orphans(&mut self) -> Vec<(Ticket, Option<Answer>)> {
        let mut told = self.answers(usize::MAX);
        told.extend(self.dismiss());
        told.into_iter().map(|(ticket, answer)| (ticket, Some(answer))).collect()
    }

    fn event(&self, effect: &Self::Effect, _now: Micros) -> Option<&'static CStr> {
        matches!(effect, Effect::Pinned { .. }).then_some(c"lb.set")
    }

    fn lifetime(&self, now: Micros) -> Lifetime {
        if self.pinned() {
            return Lifetime::Forever;
        }
        let empty = self.bucket().map_or(now, |b| b.empty_at(now));
        let last = self.extras.as_ref().and_then(|e| e.line.by_end.last()).map_or(now, |(until, _)| *until);
        if empty <= now && self.waiting() == 0 {
            return Lifetime::Gone;
        }
        Lifetime::Until { full: empty.max(last), slack: self.bucket().map_or(0, |b| b.limits().drain()) }
    }

    fn memory(&self) -> usize {
        let extras = self.extras.as_ref().map_or(0, |e| {
            let places = e.line.places.len();
            block(size_of::<Extras>())
                + tree(places, size_of::<(Ticket, Place)>())
                + tree(places, size_of::<(Micros, Ticket)>())
                + e.answers.capacity() * size_of::<(Ticket, Answer)>()
        });
        size_of::<Self>() + extras
    }

    fn effort(&self) -> usize {
        self.extras.as_ref().map_or(1, |e| 2 + e.line.places.len() / 4)
    }

    fn duplicate(&self) -> Self {
        let extras = self.extras.as_ref();
        let extras = extras.map(|e| Box::new(Extras { pinned: e.pinned, wide: e.wide, ..Extras::default() }));
        let mut copy = Self { limits: self.limits, inside: self.inside, at: self.at, extras };
        copy.drop_idle_extras();
        copy
    }
}

const _: () = assert!(size_of::<LeakyBucket>() <= 40);
