//! Who asks most, recent first: a sketch of bounded size (space-saving, with decay). Not state.
//!
//! At most [`TRACKED`] subjects are counted. One that is not takes the place of the least of them and *inherits* its weight, which only
//! keeps its place: it is never told as the newcomer's own. All weights are halved every [`HALF_LIFE`]. So, with N the sum of all
//! decayed calls: whoever made more than N / TRACKED of them is counted, and what is told of a subject is never too much, and too little by at most
//! N / TRACKED.

use crate::engine::time::{MS, Micros};
use hashbrown::HashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How many subjects are counted.
pub const TRACKED: usize = 512;

/// After this long a call counts half.
pub const HALF_LIFE: Micros = 60_000 * MS;

/// A call's weight: ten half-lives until nothing is left of it.
const CALL: u64 = 1 << 10;

#[derive(Debug, Default)]
pub(super) struct Top {
    index: HashMap<Box<[u8]>, u32>,
    counters: Vec<Counter>,
    /// Each counter once, least first, by a weight it once had: weights only grow between halvings.
    order: BinaryHeap<Reverse<(u64, u32)>>,
    halved_at: Micros,
    /// Bytes of the subjects' names.
    name_bytes: usize,
}

#[derive(Debug, Clone, Default)]
struct Counter {
    subject: Box<[u8]>,
    granted: u64,
    refused: u64,
    inherited: u64,
}

impl Counter {
    fn weight(&self) -> u64 {
        self.granted.saturating_add(self.refused).saturating_add(self.inherited)
    }

    fn own(&self) -> u64 {
        self.granted.saturating_add(self.refused)
    }
}

/// One of the hottest: how many calls were granted and refused, older ones counting less (rounded up).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hottest<'a> {
    pub subject: &'a [u8],
    pub granted: i64,
    pub refused: i64,
}

impl Top {
    /// How often weights are to be halved at `now`.
    fn halvings(&self, now: Micros) -> u32 {
        u32::try_from((now - self.halved_at) / HALF_LIFE).unwrap_or(0).min(63)
    }

    fn decay(&mut self, now: Micros) {
        let times = self.halvings(now);
        if times == 0 && now >= self.halved_at {
            return;
        }
        self.halved_at = now;
        if times == 0 {
            return; // the clock stepped back
        }
        let counters = std::mem::take(&mut self.counters);
        self.index.clear();
        self.order.clear();
        self.name_bytes = 0;
        for counter in counters {
            let (granted, refused) = (counter.granted >> times, counter.refused >> times);
            let kept = Counter { granted, refused, inherited: counter.inherited >> times, ..counter };
            if kept.own() > 0 {
                let slot = self.counters.len() as u32;
                self.order.push(Reverse((kept.weight(), slot)));
                self.index.insert(kept.subject.clone(), slot);
                self.name_bytes += kept.subject.len();
                self.counters.push(kept);
            }
        }
    }

    /// One call of the subject.
    pub(super) fn count(&mut self, subject: &[u8], granted: bool, now: Micros) {
        self.decay(now);
        let slot = match self.index.get(subject) {
            Some(slot) => *slot,
            None => self.track(subject),
        };
        if let Some(counter) = self.counters.get_mut(slot as usize) {
            let to = if granted { &mut counter.granted } else { &mut counter.refused };
            *to = to.saturating_add(CALL);
        }
    }

    /// Takes the least counter out of the order.
    fn pop_least(&mut self) -> Option<(u64, u32)> {
        loop {
            let Reverse((listed, slot)) = self.order.pop()?;
            let weight = self.counters.get(slot as usize)?.weight();
            if weight == listed {
                return Some((weight, slot));
            }
            self.order.push(Reverse((weight, slot)));
        }
    }

    /// A counter for one that has none.
    fn track(&mut self, subject: &[u8]) -> u32 {
        let new = Counter { subject: subject.into(), ..Counter::default() };
        let least = if self.counters.len() < TRACKED { None } else { self.pop_least() };
        let (inherited, slot) = least.unwrap_or((0, self.counters.len() as u32));
        match self.counters.get_mut(slot as usize) {
            Some(counter) => {
                self.name_bytes -= counter.subject.len();
                self.index.remove(&counter.subject);
                *counter = Counter { inherited, ..new };
            }
            None => self.counters.push(new),
        }
        self.name_bytes += subject.len();
        self.order.push(Reverse((inherited, slot)));
        self.index.insert(subject.into(), slot);
        slot
    }

    /// The `most` hottest.
    pub(super) fn hottest(&self, most: usize, now: Micros) -> Vec<Hottest<'_>> {
        let times = self.halvings(now);
        let told = |weight: u64| i64::try_from((weight >> times).div_ceil(CALL)).unwrap_or(i64::MAX);
        let mut all: Vec<&Counter> = self.counters.iter().filter(|c| c.own() >> times > 0).collect();
        all.sort_unstable_by(|a, b| b.own().cmp(&a.own()).then_with(|| a.subject.cmp(&b.subject)));
        all.truncate(most);
        all.into_iter()
            .map(|c| Hottest { subject: &c.subject, granted: told(c.granted), refused: told(c.refused) })
            .collect()
    }

    pub(super) fn memory(&self) -> usize {
        2 * self.name_bytes + self.counters.len() * (2 * size_of::<Counter>() + size_of::<(u64, u32)>())
    }
}
