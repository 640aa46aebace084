//! A sorted sequence of small entries in short blocks: the orders of a queue.
//!
//! What comes to a queue comes nearly in order, and what leaves it leaves near its front: both ends
//! cost a few instructions. In the middle an entry is found by halving, and moves no more than half
//! a block. Keys are not kept here unless they are part of the entry: the caller compares, by
//! `place(&entry)`, which tells where the entry lies *relative to the one sought*.
//!
//! When the last entry goes, all but a little room is given back.
//!
//! Invariants: entries are sorted by the caller's order, which is total; only `first` may be empty,
//! and only when `rest` is.

use super::lazy::{Blank, Lazy};
use crate::engine::footprint::block;
use std::cmp::Ordering;
use std::collections::VecDeque;

const FULL: usize = 512;
/// Room for so many entries is kept when there is none any more.
const FEW: usize = 4;

/// What an order holds, and the form without padding in which it is kept.
pub trait Entry: Copy + PartialEq + 'static {
    type Kept: Copy + 'static;
    fn keep(self) -> Self::Kept;
    fn of(kept: Self::Kept) -> Self;
}

impl Entry for u32 {
    type Kept = Self;

    fn keep(self) -> Self {
        self
    }

    fn of(kept: Self) -> Self {
        kept
    }
}

impl Entry for (u64, u32) {
    type Kept = [u32; 3];

    fn keep(self) -> [u32; 3] {
        [(self.0 >> 32) as u32, self.0 as u32, self.1]
    }

    fn of([high, low, slot]: [u32; 3]) -> Self {
        (u64::from(high) << 32 | u64::from(low), slot)
    }
}

impl Entry for (i64, u32) {
    type Kept = [u32; 3];

    fn keep(self) -> [u32; 3] {
        (self.0 as u64, self.1).keep()
    }

    fn of(kept: [u32; 3]) -> Self {
        let (bits, slot) = <(u64, u32)>::of(kept);
        (bits as i64, slot)
    }
}

#[derive(Debug, Clone)]
struct Block<K> {
    /// Its first entry once more, so that looking for a block touches no block.
    first: K,
    entries: VecDeque<K>,
}

#[derive(Debug, Clone)]
pub struct Order<E: Entry> {
    first: VecDeque<E::Kept>,
    rest: Lazy<VecDeque<Block<E::Kept>>>,
    len: usize,
}

impl<K: 'static> Blank for VecDeque<Block<K>> {
    const BLANK: &'static Self = &Self::new();

    fn blank() -> Self {
        Self::new()
    }
}

impl<E: Entry> Blank for Order<E> {
    const BLANK: &'static Self = &Self::new();

    fn blank() -> Self {
        Self::new()
    }
}

impl<E: Entry> Order<E> {
    pub const fn new() -> Self {
        Self { first: VecDeque::new(), rest: Lazy::new(), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn front(&self) -> Option<E> {
        self.first.front().copied().map(E::of)
    }

    pub fn second(&self) -> Option<E> {
        self.iter().nth(1)
    }

    /// The entry that so many others lie before.
    pub fn nth(&self, n: usize) -> Option<E> {
        let mut before = n;
        for b in 0..=self.rest.len() {
            let block = self.block(b)?;
            if before < block.len() {
                return block.get(before).copied().map(E::of);
            }
            before -= block.len();
        }
        None
    }

    fn block(&self, b: usize) -> Option<&VecDeque<E::Kept>> {
        if b == 0 { Some(&self.first) } else { self.rest.get(b - 1).map(|block| &block.entries) }
    }

    fn block_mut(&mut self, b: usize) -> Option<&mut VecDeque<E::Kept>> {
        if b == 0 { Some(&mut self.first) } else { self.rest.get_mut(b - 1).map(|block| &mut block.entries) }
    }

    /// The block in which the sought entry is or would be: the last that begins at or before it.
    fn find_block(&self, place: &impl Fn(&E) -> Ordering) -> usize {
        if self.rest.is_empty() || self.first.back().is_some_and(|e| place(&E::of(*e)).is_ge()) {
            return 0;
        }
        let begins_before = |b: &Block<E::Kept>| place(&E::of(b.first)).is_le();
        if self.rest.back().is_some_and(begins_before) {
            return self.rest.len();
        }
        self.rest.partition_point(begins_before)
    }

    pub fn insert(&mut self, entry: E, place: impl Fn(&E) -> Ordering) {
        self.len += 1;
        let kept = entry.keep();
        let one = self.rest.is_empty();
        let last = if one { None } else { self.rest.back_mut() };
        let last = last.map_or(&mut self.first, |block| &mut block.entries);
        if last.back().is_none_or(|e| place(&E::of(*e)).is_lt()) {
            if last.len() < FULL {
                last.push_back(kept);
            } else {
                let mut entries = VecDeque::with_capacity(FULL);
                entries.push_back(kept);
                self.rest.push_back(Block { first: kept, entries });
            }
            return;
        }
        let mut b = self.find_block(&place);
        if let Some(block) = self.block_mut(b).filter(|block| block.len() >= FULL) {
            let entries = block.split_off(FULL / 2);
            if let Some(first) = entries.front().copied() {
                self.rest.insert(b, Block { first, entries });
                b += usize::from(place(&E::of(first)).is_le());
            }
        }
        if let Some(block) = self.block_mut(b) {
            let at = block.partition_point(|e| place(&E::of(*e)).is_lt());
            block.insert(at, kept);
        }
        self.note_first(b);
    }

    /// A block other than the first may begin with another entry now.
    fn note_first(&mut self, b: usize) {
        if let Some(block) = b.checked_sub(1).and_then(|b| self.rest.get_mut(b))
            && let Some(first) = block.entries.front()
        {
            block.first = *first;
        }
    }

    pub fn pop_front(&mut self) -> Option<E> {
        let kept = self.first.pop_front()?;
        self.len -= 1;
        if self.first.is_empty() {
            self.next_block();
        }
        Some(E::of(kept))
    }

    /// The first block is empty: the next takes its place, or room is given back.
    fn next_block(&mut self) {
        if !self.rest.is_empty() {
            self.first = self.rest.pop_front().map(|block| block.entries).unwrap_or_default();
        } else if self.first.capacity() > FEW {
            *self = Self::new();
        }
    }

    /// Bytes on the heap.
    pub fn memory(&self) -> usize {
        // Blocks are between half and wholly full.
        let rest = self.len - self.first.len();
        let each = size_of::<E::Kept>();
        let blocks = self.rest.capacity() * size_of::<Block<E::Kept>>();
        block(self.first.capacity() * each) + self.rest.memory() + block(blocks) + rest * each * 5 / 4
    }

    /// Removes the entry, for which `place` says Equal; false when it is not there.
    pub fn remove(&mut self, entry: E, place: impl Fn(&E) -> Ordering) -> bool {
        if self.front() == Some(entry) {
            return self.pop_front().is_some();
        }
        let b = self.find_block(&place);
        let Some(block) = self.block(b) else { return false };
        let Ok(at) = block.binary_search_by(|e| place(&E::of(*e))) else { return false };
        self.remove_at(b, at)
    }

    /// The same where it is dear to compare: the entry is looked for by `guess` first, another
    /// order that is mostly the same among neighbours.
    pub fn remove_near(
        &mut self,
        entry: E,
        guess: impl Fn(&E) -> Ordering,
        place: impl Fn(&E) -> Ordering,
    ) -> bool {
        if self.front() == Some(entry) {
            return self.pop_front().is_some();
        }
        let b = self.find_block(&guess);
        let found = self.block(b).and_then(|block| {
            let at = block.binary_search_by(|e| guess(&E::of(*e))).ok()?;
            block.get(at).filter(|e| E::of(**e) == entry).map(|_| at)
        });
        match found {
            Some(at) => self.remove_at(b, at),
            None => self.remove(entry, place),
        }
    }

    fn remove_at(&mut self, b: usize, at: usize) -> bool {
        let Some(block) = self.block_mut(b) else { return false };
        block.remove(at);
        let left = block.len();
        self.len -= 1;
        if left == 0 {
            if b == 0 {
                self.next_block();
            } else {
                self.rest.remove(b - 1);
            }
            return true;
        }
        if left <= FULL / 8 && self.block(b + 1).is_some_and(|next| next.len() <= FULL / 2) {
            // Thinned out: the next block moves in, so that few entries never keep many blocks.
            if let (Some(mut next), Some(block)) = (self.rest.remove(b), self.block_mut(b)) {
                block.append(&mut next.entries);
            }
        }
        self.note_first(b);
        true
    }

    pub fn iter(&self) -> impl Iterator<Item = E> {
        let rest = self.rest.iter().flat_map(|block| &block.entries);
        self.first.iter().chain(rest).copied().map(E::of)
    }

    /// The entries from the first that does not lie before the sought place.
    pub fn iter_from(&self, place: impl Fn(&E) -> Ordering) -> impl Iterator<Item = E> {
        let b = self.find_block(&place);
        let at = self.block(b).map_or(0, |block| block.partition_point(|e| place(&E::of(*e)).is_lt()));
        let head = self.block(b).into_iter().flat_map(move |block| block.iter().skip(at));
        let rest = self.rest.iter().skip(b).flat_map(|block| &block.entries);
        head.chain(rest).copied().map(E::of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn is_a_sorted_vector(steps in prop::collection::vec((0..4u8, 0..3000u32), 0..6000), rising in any::<bool>()) {
            let mut order = Order::new();
            let mut naive: Vec<u32> = Vec::new();
            for (next, (what, value)) in (1..).zip(steps) {
                let value = if rising && what < 3 { next } else { value };
                match what {
                    0..=2 => {
                        if let Err(at) = naive.binary_search(&value) {
                            naive.insert(at, value);
                            order.insert(value, |e| e.cmp(&value));
                        }
                    }
                    _ => {
                        let there = naive.binary_search(&value);
                        let removed = if value % 2 == 0 {
                            order.remove(value, |e| e.cmp(&value))
                        } else {
                            order.remove_near(value, |e| (e / 16, !e).cmp(&(value / 16, !value)), |e| e.cmp(&value))
                        };
                        prop_assert_eq!(removed, there.is_ok());
                        if let Ok(at) = there {
                            naive.remove(at);
                        }
                    }
                }
                prop_assert_eq!((order.len(), order.front()), (naive.len(), naive.first().copied()));
            }
            prop_assert_eq!(order.iter().collect::<Vec<_>>(), naive.clone());
            for n in [0, 1, 600, naive.len().saturating_sub(1), naive.len()] {
                prop_assert_eq!(order.nth(n), naive.get(n).copied());
            }
            for from in [0, 1, 700, 1500, 2999] {
                let at = naive.partition_point(|v| *v < from);
                prop_assert_eq!(order.iter_from(|e| e.cmp(&from)).collect::<Vec<_>>(), naive[at..].to_vec());
            }
            for value in naive {
                prop_assert_eq!(order.pop_front(), Some(value));
            }
            prop_assert!(order.is_empty());
        }
    }
}
