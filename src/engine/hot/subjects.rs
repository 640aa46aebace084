//! The subjects of a rule that are not full: found by name, and in the order in which they become
//! full.
//!
//! Each has an *entry* of 32 bytes in a dense array of slots, its name beside it (see
//! [`super::names`]), 4 bytes in a heap and 4 in a hash table that grows and shrinks one bucket at
//! a time (linear hashing). So a call costs O(log n) and none ever stops to move everything.
//!
//! An entry does not hold the level but when the bucket is full again: `full_at`, how long that is
//! from its own instant (`since`), and by how much it is over then (`over`, less than a µs's gain).
//! With the refill rate that is the exact level. What does not fit (full only after 12 days or
//! later) lies in a map of its own.
//!
//! When the rule changes what every entry means, a new *generation* begins: the heap begins empty,
//! and an entry is *old*, and in no order, until it is put again (see [`super::due`]). So beginning
//! costs nothing, however many there are.
//!
//! Invariants: slots are 0 … len-1; the table holds each slot once, the heap each that is not old;
//! an entry knows its place in the heap, if it is there, and the next of its bucket. The order is
//! total: (instant of fullness in whole ms, rounded up; name).

mod heap;

use super::names::Names;
use crate::engine::bucket::div_ceil;
use crate::engine::collections::chunked::Chunked;
use crate::engine::names_hash::of_name;
use crate::engine::time::Micros;
use std::collections::BTreeMap;

const NONE: u32 = u32::MAX;

/// More cannot be numbered.
pub(super) const MOST: usize = NONE as usize;

const SINCE_BITS: u32 = 40;
const FAR: u64 = (1 << SINCE_BITS) - 1;
/// The bits of `since` that share a word with `over`.
const SINCE_LOW: u32 = 24;

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// In µs, rounded up; cut, if it is far.
    full_at: Micros,
    /// `over` (40 bits), then the low bits of `since`.
    over_since: u64,
    since_high: u16,
    /// The length of the name less one (9 bits), the generation (3 bits), and some bits of the
    /// hash, so that a stranger's name is rarely looked at.
    len_tag: u16,
    name: u32,
    /// The next slot in the same bucket of the table.
    next: u32,
    /// The place in the heap; of an old one it means nothing.
    place: u32,
}

/// How many generations are told apart.
pub(super) const GENERATIONS: usize = 8;
const GENERATION_SHIFT: u32 = 9;
const GENERATION: u16 = (GENERATIONS as u16 - 1) << GENERATION_SHIFT;

/// What does not fit into an entry.
#[derive(Debug, Clone, Copy)]
struct Far {
    missing: i128,
    at: Micros,
    full_at: i128,
}

/// What a subject has left, in units, as what is missing to a full bucket at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deficit {
    pub missing: i128,
    pub at: Micros,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Subjects {
    entries: Chunked<Entry>,
    names: Names,
    heap: Chunked<u32>,
    /// The first slot of each bucket.
    table: Chunked<u32>,
    far: BTreeMap<u32, Far>,
    /// That of what is put now, where an entry has it.
    generation: u16,
}

impl Subjects {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn entry(&self, slot: u32) -> Option<Entry> {
        self.entries.get(slot as usize)
    }

    pub(super) fn name(&self, slot: u32) -> &[u8] {
        self.entry(slot).map_or(&[], |e| self.names.get(e.len(), e.name))
    }

    /// The bucket of the table for a hash.
    fn bucket(&self, hash: u64) -> usize {
        let buckets = self.table.len();
        let wide = buckets.next_power_of_two();
        let index = hash as usize & (wide - 1);
        if index < buckets { index } else { index & (wide / 2 - 1) }
    }

    fn hash_of(&self, slot: u32) -> u64 {
        of_name(self.name(slot))
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<u32> {
        if self.table.len() == 0 { None } else { self.find_by(name, of_name(name)) }
    }

    /// The same, for who knows the hash of the name.
    pub(super) fn find_by(&self, name: &[u8], hash: u64) -> Option<u32> {
        if self.table.len() == 0 {
            return None;
        }
        let mut slot = self.table.get(self.bucket(hash))?;
        while let Some(entry) = self.entry(slot) {
            if entry.len_tag & !GENERATION == len_tag(name, hash)
                && self.names.get(name.len(), entry.name) == name
            {
                return Some(slot);
            }
            slot = entry.next;
        }
        None
    }

    /// How many generations ago the subject was put; 0: it is not old.
    #[inline]
    pub(super) fn age(&self, slot: u32) -> usize {
        self.entry(slot).map_or(0, |e| self.age_of(&e))
    }

    fn age_of(&self, entry: &Entry) -> usize {
        usize::from(
            (self.generation.wrapping_sub(entry.len_tag & GENERATION) & GENERATION) >> GENERATION_SHIFT,
        )
    }

    /// A new generation begins: all are one older. At most [`GENERATIONS`] - 1 times until all have
    /// been put.
    pub(super) fn grow_old(&mut self) {
        self.generation = self.generation.wrapping_add(1 << GENERATION_SHIFT) & GENERATION;
        self.heap = Chunked::default();
    }

    /// What the subject is missing; `rate` is that under which it was put.
    pub(super) fn deficit(&self, slot: u32, rate: u64) -> Option<Deficit> {
        let entry = self.entry(slot)?;
        if let Some(far) = self.far.get(&slot).filter(|_| entry.since() == FAR) {
            return Some(Deficit { missing: far.missing, at: far.at });
        }
        let since = entry.since();
        let over = entry.over_since >> SINCE_LOW;
        let missing = i128::from(since) * i128::from(rate) - i128::from(over);
        Some(Deficit { missing, at: entry.full_at - since as i64 })
    }

    /// When the subject is full again (µs, rounded up).
    pub(super) fn full_at(&self, slot: u32) -> i128 {
        match self.entry(slot) {
            Some(entry) if entry.since() == FAR => self.far.get(&slot).map_or(0, |far| far.full_at),
            Some(entry) => i128::from(entry.full_at),
            None => 0,
        }
    }

    /// The first to be full of those that are not old.
    pub(super) fn first(&self) -> Option<u32> {
        self.heap.get(0)
    }

    /// All slots, in no order that means anything.
    pub(super) fn slots(&self) -> std::ops::Range<u32> {
        0..self.len() as u32
    }

    /// All slots by name.
    pub(super) fn by_name(&self) -> Vec<u32> {
        let mut slots: Vec<u32> = self.slots().collect();
        slots.sort_unstable_by(|a, b| self.name(*a).cmp(self.name(*b)));
        slots
    }

    /// How many are full at `now`, of the first `looked_at`. As the order goes by whole ms, one
    /// that is full may stand behind one that is not quite.
    pub(super) fn count_full(&self, now: Micros, looked_at: usize) -> usize {
        self.until_ms(now).take(looked_at).filter(|slot| self.full_at(*slot) <= i128::from(now)).count()
    }

    /// One that is full at `now` though the first is not, if it is found without looking far.
    pub(super) fn full_behind(&self, now: Micros) -> Option<u32> {
        self.until_ms(now).take(64).find(|slot| self.full_at(*slot) <= i128::from(now))
    }

    /// Those that are full at the end of the ms of `now`, from the top of the heap down.
    fn until_ms(&self, now: Micros) -> impl Iterator<Item = u32> {
        let (edge, mut open) = (ms(i128::from(now)), vec![0usize]);
        std::iter::from_fn(move || {
            while let Some(place) = open.pop() {
                if let Some(slot) = self.heap.get(place).filter(|slot| ms(self.full_at(*slot)) <= edge) {
                    open.extend(place * 4 + 1..=place * 4 + 4);
                    return Some(slot);
                }
            }
            None
        })
    }

    /// The subject's slot; a new one is missing nothing until it is [put](Self::put).
    pub(super) fn find_or_add(&mut self, name: &[u8]) -> u32 {
        let hash = of_name(name);
        if let Some(slot) = self.find_by(name, hash) {
            return slot;
        }
        let slot = self.len() as u32;
        let index = self.names.insert(name, slot);
        let place = self.heap.len() as u32;
        let entry = Entry {
            full_at: 0,
            over_since: 0,
            since_high: 0,
            len_tag: len_tag(name, hash) | self.generation,
            name: index,
            next: NONE,
            place,
        };
        self.entries.push(entry);
        self.heap.push(slot);
        if self.table.len() < self.entries.len() {
            self.table.push(NONE);
            self.split();
        }
        self.link(slot, hash);
        slot
    }

    /// Keeps what a subject is missing (> 0) under a refill of `rate`. It is not old any more.
    pub(super) fn put(&mut self, slot: u32, deficit: Deficit, rate: u64) {
        if self.age(slot) > 0 {
            self.write(slot, deficit, rate);
            self.enter(slot);
            return;
        }
        // A new one's is 0, so it rises; one that was there is nearly always full later than
        // before, so it sinks.
        let before = self.full_at(slot);
        self.write(slot, deficit, rate);
        let place = self.entry(slot).map_or(0, |e| e.place as usize);
        if before > 0 && self.full_at(slot) >= before {
            self.sink(place);
        } else {
            self.settle_at(place);
        }
    }

    fn write(&mut self, slot: u32, deficit: Deficit, rate: u64) {
        let Deficit { missing, at } = deficit;
        let since = div_ceil(missing, rate);
        let full_at = i128::from(at) + since;
        let Some(entry) = self.entries.get_mut(slot as usize) else {
            return;
        };
        if since < i128::from(FAR) {
            let since = since as u64;
            // Below the rate, which is below 2⁴⁰.
            let over = (i128::from(since) * i128::from(rate) - missing) as u64;
            entry.full_at = at + since as i64;
            entry.over_since = over << SINCE_LOW | since & ((1 << SINCE_LOW) - 1);
            entry.since_high = (since >> SINCE_LOW) as u16;
            if !self.far.is_empty() {
                self.far.remove(&slot);
            }
        } else {
            entry.full_at = i64::try_from(full_at).unwrap_or(i64::MAX);
            (entry.over_since, entry.since_high) = (FAR & ((1 << SINCE_LOW) - 1), u16::MAX);
            self.far.insert(slot, Far { missing, at, full_at });
        }
    }

    pub(super) fn remove(&mut self, slot: u32) {
        let Some(entry) = self.entry(slot) else {
            return;
        };
        self.unlink(slot, self.hash_of(slot));
        if self.age_of(&entry) == 0 {
            self.leave_heap(entry.place as usize);
        }
        if let Some(moved) = self.names.remove(entry.len(), entry.name)
            && let Some(owner) = self.entries.get_mut(moved as usize)
        {
            owner.name = entry.name;
        }
        self.far.remove(&slot);
        self.fill(slot);
        self.merge();
    }

    /// Moves the last entry into a slot that was given up.
    fn fill(&mut self, slot: u32) {
        let last = (self.len() - 1) as u32;
        if last != slot
            && let Some(entry) = self.entry(last)
        {
            let hash = self.hash_of(last);
            self.unlink(last, hash);
            self.entries.set(slot as usize, entry);
            if self.age_of(&entry) == 0 {
                self.heap.set(entry.place as usize, slot);
            }
            self.names.set_owner(entry.len(), entry.name, slot);
            if let Some(far) = self.far.remove(&last) {
                self.far.insert(slot, far);
            }
            self.link(slot, hash);
        }
        self.entries.pop();
    }

    // The table.

    fn link(&mut self, slot: u32, hash: u64) {
        let bucket = self.bucket(hash);
        let next = self.table.get(bucket).unwrap_or(NONE);
        self.table.set(bucket, slot);
        if let Some(entry) = self.entries.get_mut(slot as usize) {
            entry.next = next;
        }
    }

    fn unlink(&mut self, slot: u32, hash: u64) {
        let bucket = self.bucket(hash);
        let after = self.entry(slot).map_or(NONE, |e| e.next);
        let Some(mut at) = self.table.get(bucket) else {
            return;
        };
        if at == slot {
            self.table.set(bucket, after);
            return;
        }
        while let Some(entry) = self.entries.get_mut(at as usize) {
            if entry.next == slot {
                entry.next = after;
                return;
            }
            at = entry.next;
        }
    }

    /// The last bucket is new: it takes what is its from the one it was split off.
    fn split(&mut self) {
        let new = self.table.len() - 1;
        if new > 0 {
            self.relink(new - previous_power(new));
        }
    }

    /// Gives the last bucket up if there are more than twice as many as subjects.
    fn merge(&mut self) {
        while self.table.len() > 2 * self.len() {
            let chain = self.table.pop().unwrap_or(NONE);
            self.relink_chain(chain);
        }
    }

    fn relink(&mut self, bucket: usize) {
        let chain = self.table.get(bucket).unwrap_or(NONE);
        self.table.set(bucket, NONE);
        self.relink_chain(chain);
    }

    fn relink_chain(&mut self, mut slot: u32) {
        while let Some(entry) = self.entry(slot) {
            self.link(slot, self.hash_of(slot));
            slot = entry.next;
        }
    }

    pub(super) fn memory(&self) -> usize {
        let far = self.far.len() * size_of::<(u32, Far)>() * 5 / 4;
        self.entries.memory() + self.heap.memory() + self.table.memory() + self.names.memory() + far
    }

    pub(super) fn allocations(&self) -> usize {
        self.entries.allocations()
            + self.heap.allocations()
            + self.table.allocations()
            + self.names.allocations()
    }
}

/// See [`Entry`]; a name has 1 … 512 bytes. Without the generation.
fn len_tag(name: &[u8], hash: u64) -> u16 {
    name.len().saturating_sub(1) as u16 | (hash >> 60 << 12) as u16
}

impl Entry {
    fn len(&self) -> usize {
        usize::from(self.len_tag & ((1 << GENERATION_SHIFT) - 1)) + 1
    }

    fn since(&self) -> u64 {
        u64::from(self.since_high) << SINCE_LOW | self.over_since & ((1 << SINCE_LOW) - 1)
    }
}

/// An instant in whole ms, rounded up.
pub(super) fn ms(us: i128) -> i128 {
    match i64::try_from(us) {
        Ok(us) if us > 0 => i128::from((us - 1) / 1_000 + 1),
        _ => (us + 999).div_euclid(1_000),
    }
}

fn previous_power(n: usize) -> usize {
    1 << n.ilog2()
}

const _: () = assert!(size_of::<Entry>() == 32);
