//! A sorted sequence of small entries in short blocks: the orders of a queue.
//!
//! What comes to a queue comes nearly in order, and what leaves it leaves near its front: both ends cost a few instructions. In the
//! middle an entry is found by halving, and moves no more than half a block. Keys are not kept here unless they are part of the
//! entry: the caller compares, by `place(&entry)`, which tells where the entry lies *relative to the one sought*.
//!
//! Invariants: entries are sorted by the caller's order, which is total; only `first` may be empty, and only when `rest` is.

use std::cmp::Ordering;
use std::collections::VecDeque;

const FULL: usize = 512;

#[derive(Debug, Clone)]
pub struct Order<E> {
    first: VecDeque<E>,
    rest: VecDeque<VecDeque<E>>,
    len: usize,
}

impl<E: Copy> Order<E> {
    pub const fn new() -> Self {
        Self { first: VecDeque::new(), rest: VecDeque::new(), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes on the heap, roughly: blocks are between half and wholly full.
    pub fn memory(&self) -> usize {
        self.len * size_of::<E>() * 5 / 4 + self.rest.capacity() * size_of::<VecDeque<E>>()
    }

    pub fn front(&self) -> Option<E> {
        self.first.front().copied()
    }

    pub fn second(&self) -> Option<E> {
        self.iter().nth(1)
    }

    fn block(&self, b: usize) -> Option<&VecDeque<E>> {
        if b == 0 { Some(&self.first) } else { self.rest.get(b - 1) }
    }

    fn block_mut(&mut self, b: usize) -> Option<&mut VecDeque<E>> {
        if b == 0 { Some(&mut self.first) } else { self.rest.get_mut(b - 1) }
    }

    /// The block in which the sought entry is or would be: the last that begins at or before it.
    fn find_block(&self, place: &impl Fn(&E) -> Ordering) -> usize {
        if self.rest.is_empty() || self.first.back().is_some_and(|e| place(e).is_ge()) {
            return 0;
        }
        let begins_before = |b: &VecDeque<E>| b.front().is_some_and(|e| place(e).is_le());
        if self.rest.back().is_some_and(begins_before) {
            return self.rest.len();
        }
        self.rest.partition_point(begins_before)
    }

    pub fn insert(&mut self, entry: E, place: impl Fn(&E) -> Ordering) {
        self.len += 1;
        let last = self.rest.back_mut().unwrap_or(&mut self.first);
        if last.back().is_none_or(|e| place(e).is_lt()) {
            if last.len() < FULL {
                last.push_back(entry);
            } else {
                self.rest.push_back(VecDeque::from([entry]));
            }
            return;
        }
        let mut b = self.find_block(&place);
        if let Some(block) = self.block_mut(b).filter(|block| block.len() >= FULL) {
            let tail = block.split_off(FULL / 2);
            let after = tail.front().is_some_and(|e| place(e).is_le());
            self.rest.insert(b, tail);
            b += usize::from(after);
        }
        if let Some(block) = self.block_mut(b) {
            let at = block.partition_point(|e| place(e).is_lt());
            block.insert(at, entry);
        }
    }

    pub fn pop_front(&mut self) -> Option<E> {
        let entry = self.first.pop_front()?;
        self.len -= 1;
        if self.first.is_empty()
            && let Some(next) = self.rest.pop_front()
        {
            self.first = next;
        }
        Some(entry)
    }

    /// Removes the entry for which `place` says Equal; false when there is none.
    pub fn remove(&mut self, place: impl Fn(&E) -> Ordering) -> bool {
        if self.first.front().is_some_and(|e| place(e).is_eq()) {
            return self.pop_front().is_some();
        }
        let b = self.find_block(&place);
        let Some(block) = self.block_mut(b) else { return false };
        let Ok(at) = block.binary_search_by(&place) else { return false };
        block.remove(at);
        let left = block.len();
        self.len -= 1;
        if left == 0 {
            if b == 0 {
                self.first = self.rest.pop_front().unwrap_or_default();
            } else {
                self.rest.remove(b - 1);
            }
        } else if left <= FULL / 8 && self.block(b + 1).is_some_and(|next| next.len() <= FULL / 2) {
            // Thinned out: the next block moves in, so that few entries never keep many blocks.
            if let (Some(mut next), Some(block)) = (self.rest.remove(b), self.block_mut(b)) {
                block.append(&mut next);
            }
        }
        true
    }

    pub fn iter(&self) -> impl Iterator<Item = E> {
        self.first.iter().chain(self.rest.iter().flatten()).copied()
    }

    /// The entries from the first that does not lie before the sought place.
    pub fn iter_from(&self, place: impl Fn(&E) -> Ordering) -> impl Iterator<Item = E> {
        let b = self.find_block(&place);
        let at = self.block(b).map_or(0, |block| block.partition_point(|e| place(e).is_lt()));
        let head = self.block(b).into_iter().flat_map(move |block| block.iter().skip(at));
        head.chain(self.rest.iter().skip(b).flatten()).copied()
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
            let mut next = 0;
            for (what, value) in steps {
                next += 1;
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
                        prop_assert_eq!(order.remove(|e| e.cmp(&value)), there.is_ok());
                        if let Ok(at) = there {
                            naive.remove(at);
                        }
                    }
                }
                prop_assert_eq!((order.len(), order.front()), (naive.len(), naive.first().copied()));
            }
            prop_assert_eq!(order.iter().collect::<Vec<_>>(), naive.clone());
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
