//! Who asks most, recent first: a sketch of bounded size (space-saving, with decay). Not state.
//!
//! At most [`TRACKED`] subjects are counted. One that is not takes the place of the least of them
//! and *inherits* its weight, which only keeps its place: it is never told as the newcomer's own.
//! All weights are halved every [`HALF_LIFE`]. So, with N the sum of all decayed calls: whoever
//! made more than N / TRACKED of them is counted, and what is told of a subject is never too much,
//! and too little by at most N / TRACKED.

use crate::engine::time::{MS, Micros};
use hashbrown::HashTable;
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
    /// The counters by the hash of their subject.
    index: HashTable<u32>,
    counters: Vec<Counter>,
    /// Each counter once, least first, by a weight it once had: weights only grow between halvings.
    order: BinaryHeap<Reverse<(u64, u32)>>,
    halved_at: Micros,
    /// Bytes of the subjects' names.
    name_bytes: usize,
}

#[derive(Debug, Clone, Default)]
struct Counter {
    subject: Vec<u8>,
    hash: u64,
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

/// One of the hottest: how many calls were granted and refused, older ones counting less (rounded
/// up).
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
        if self.counters.is_empty() || now < self.halved_at {
            // The first call, or the clock stepped back.
            self.halved_at = now;
            return;
        }
        let times = self.halvings(now);
        if times == 0 {
            return;
        }
        // What is left of a half-life goes on counting.
        self.halved_at += (now - self.halved_at) / HALF_LIFE * HALF_LIFE;
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
                self.name_bytes += kept.subject.capacity();
                let hash = kept.hash;
                self.counters.push(kept);
                self.list(hash, slot);
            }
        }
    }

    /// Has the counter found by its subject's hash.
    fn list(&mut self, hash: u64, slot: u32) {
        let counters = &self.counters;
        self.index.insert_unique(hash, slot, |slot| counters.get(*slot as usize).map_or(0, |c| c.hash));
    }

    /// One call of the subject, whose name has this hash.
    pub(super) fn count(&mut self, subject: &[u8], hash: u64, granted: bool, now: Micros) {
        self.decay(now);
        let same = |slot: &u32| self.counters.get(*slot as usize).is_some_and(|c| c.subject == subject);
        let slot = match self.index.find(hash, same) {
            Some(slot) => *slot,
            None => self.track(subject, hash),
        };
        if let Some(counter) = self.counters.get_mut(slot as usize) {
            let to = if granted { &mut counter.granted } else { &mut counter.refused };
            *to = to.saturating_add(CALL);
        }
    }

    /// The counter of least weight, which is about to get one call more, and is listed so.
    fn least(&mut self) -> Option<u32> {
        loop {
            let mut top = self.order.peek_mut()?;
            let Reverse((listed, slot)) = *top;
            let weight = self.counters.get(slot as usize)?.weight();
            *top = Reverse((if weight == listed { weight.saturating_add(CALL) } else { weight }, slot));
            if weight == listed {
                return Some(slot);
            }
        }
    }

    /// A counter for one that has none.
    fn track(&mut self, subject: &[u8], hash: u64) -> u32 {
        let least = if self.counters.len() < TRACKED { None } else { self.least() };
        let slot = least.unwrap_or(self.counters.len() as u32);
        match self.counters.get_mut(slot as usize) {
            Some(counter) => {
                if let Ok(entry) = self.index.find_entry(counter.hash, |listed| *listed == slot) {
                    entry.remove();
                }
                // The buffer of its name is used again: with many subjects this is the usual path.
                self.name_bytes -= counter.subject.capacity();
                counter.inherited = counter.weight();
                (counter.granted, counter.refused, counter.hash) = (0, 0, hash);
                counter.subject.clear();
                counter.subject.extend_from_slice(subject);
                self.name_bytes += counter.subject.capacity();
            }
            None => {
                let new = Counter { subject: subject.into(), hash, ..Counter::default() };
                self.name_bytes += new.subject.capacity();
                self.counters.push(new);
                self.order.push(Reverse((CALL, slot)));
            }
        }
        self.list(hash, slot);
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
        let each = size_of::<Counter>() + size_of::<(u64, u32)>();
        self.name_bytes + self.counters.len() * each + self.index.allocation_size()
    }
}
