//! When leases end, in order, with how many permits each gives back: sums over them are asked at
//! each refusal, so they must not cost a walk over all leases.
//!
//! Sorted by (end, receipt), in blocks that know their sum. Leases mostly come in the order of
//! their ends and go at the front; in the middle an entry is found by halving. A sum or the
//! instant at which enough is back costs a look at each block and one walk within a block. (The
//! orders of a queue are kept in the same way, but know no sums.)
//!
//! Invariants: no block is empty or longer than [`FULL`]; a block's `count` is the sum of its
//! entries' counts.

use crate::engine::time::Micros;
use std::collections::VecDeque;

const FULL: usize = 256;

#[derive(Debug, Clone, Copy)]
struct End {
    at: Micros,
    receipt: u64,
    count: i64,
}

impl End {
    fn key(&self) -> (Micros, u64) {
        (self.at, self.receipt)
    }
}

#[derive(Debug, Clone, Default)]
struct Block {
    entries: VecDeque<End>,
    count: i64,
}

impl Block {
    fn last_key(&self) -> Option<(Micros, u64)> {
        self.entries.back().map(End::key)
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Ends {
    blocks: Vec<Block>,
}

impl Ends {
    /// The block in which the key is or would be; the number of blocks: it is after all.
    fn find(&self, key: (Micros, u64)) -> usize {
        self.blocks.partition_point(|block| block.last_key().is_some_and(|last| last < key))
    }

    /// A receipt that is not there yet.
    pub(super) fn insert(&mut self, at: Micros, receipt: u64, count: i64) {
        let key = (at, receipt);
        let mut b = self.find(key);
        if b == self.blocks.len() {
            match b.checked_sub(1) {
                // After all: at the end of the last block, or in a new one.
                Some(last) if self.blocks.get(last).is_some_and(|block| block.entries.len() < FULL) => {
                    b = last
                }
                _ => self.blocks.push(Block::default()),
            }
        } else if let Some(block) = self.blocks.get_mut(b).filter(|block| block.entries.len() >= FULL) {
            let entries = block.entries.split_off(FULL / 2);
            let count = entries.iter().map(|end| end.count).sum();
            block.count -= count;
            self.blocks.insert(b + 1, Block { entries, count });
            b = self.find(key);
        }
        if let Some(block) = self.blocks.get_mut(b) {
            let place = block.entries.partition_point(|end| end.key() < key);
            block.entries.insert(place, End { at, receipt, count });
            block.count += count;
        }
    }

    pub(super) fn remove(&mut self, at: Micros, receipt: u64) {
        let b = self.find((at, receipt));
        let Some(block) = self.blocks.get_mut(b) else { return };
        let Ok(place) = block.entries.binary_search_by_key(&(at, receipt), End::key) else { return };
        if let Some(end) = block.entries.remove(place) {
            block.count -= end.count;
        }
        if block.entries.is_empty() {
            self.blocks.remove(b);
        } else if block.entries.len() <= FULL / 8
            && self.blocks.get(b + 1).is_some_and(|next| next.entries.len() <= FULL / 2)
        {
            // Thinned out: the next one moves in, so that few entries never keep many blocks.
            let mut next = self.blocks.remove(b + 1);
            if let Some(block) = self.blocks.get_mut(b) {
                block.entries.append(&mut next.entries);
                block.count += next.count;
            }
        }
    }

    /// The lease that ends first.
    pub(super) fn first(&self) -> Option<(Micros, u64)> {
        self.blocks.first()?.entries.front().map(End::key)
    }

    /// When the last one ends.
    pub(super) fn last(&self) -> Option<Micros> {
        self.blocks.last()?.entries.back().map(|end| end.at)
    }

    /// When the next lease ends after `now`.
    pub(super) fn next_after(&self, now: Micros) -> Option<Micros> {
        let later = (now.saturating_add(1), 0);
        let block = self.blocks.get(self.find(later))?;
        block.entries.get(block.entries.partition_point(|end| end.key() < later)).map(|end| end.at)
    }

    /// How many permits are back by the leases that end after `from` and at `to` or before.
    pub(super) fn back_between(&self, from: Micros, to: Micros) -> i64 {
        let (after, last) = ((from, u64::MAX), (to, u64::MAX));
        let (first, end) = (self.find(after), self.find(last));
        let part = |b: usize, (at, receipt): (Micros, u64)| {
            let before = self.blocks.get(b).into_iter().flat_map(|block| &block.entries);
            before.take_while(|end| end.key() <= (at, receipt)).map(|end| end.count).sum::<i64>()
        };
        let whole = self.blocks.get(first..end).into_iter().flatten().map(|block| block.count).sum::<i64>();
        if from < to { whole + part(end, last) - part(first, after) } else { 0 }
    }

    /// When the leases that end first have given back `count` permits (1 or more), those that are
    /// over already among them; None: all of them together do not.
    pub(super) fn back(&self, count: i64) -> Option<Micros> {
        let mut left = count;
        for block in &self.blocks {
            if block.count < left {
                left -= block.count;
                continue;
            }
            for end in &block.entries {
                left -= end.count;
                if left <= 0 {
                    return Some(end.at);
                }
            }
        }
        None
    }

    pub(super) fn memory(&self) -> usize {
        let entries: usize = match self.blocks.as_slice() {
            [only] => only.entries.capacity(),
            // Blocks in the middle are of about one size.
            blocks => blocks.len() * FULL,
        };
        entries * size_of::<End>() + self.blocks.capacity() * size_of::<Block>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn sums_are_those_of_a_sorted_list(
            steps in prop::collection::vec((0..4u8, 1..400i64, 1..5i64), 0..3000),
            rising in any::<bool>(),
        ) {
            let mut ends = Ends::default();
            let mut naive: BTreeMap<(Micros, u64), i64> = BTreeMap::new();
            for (receipt, (what, at, count)) in (1u64..).zip(steps) {
                if what < 3 {
                    let at = if rising { receipt as Micros / 3 } else { at };
                    ends.insert(at, receipt, count);
                    naive.insert((at, receipt), count);
                } else if let Some((key, _)) = naive.iter().nth(at as usize % naive.len().max(1)) {
                    let key = *key;
                    ends.remove(key.0, key.1);
                    naive.remove(&key);
                }
                prop_assert_eq!(ends.first(), naive.keys().next().copied());
                prop_assert_eq!(ends.last(), naive.keys().last().map(|(at, _)| *at));
            }
            let total: i64 = naive.values().sum();
            for now in [0, 1, 100, 250, 399, 1_000] {
                let back: i64 = naive.iter().filter(|((at, _), _)| *at <= now).map(|(_, n)| n).sum();
                prop_assert_eq!(ends.back_between(Micros::MIN, now), back);
                for from in [-1, 0, 99, 100, 250, 2_000] {
                    let until = naive.iter().filter(|((at, _), _)| *at <= from.min(now)).map(|(_, n)| n);
                    prop_assert_eq!(ends.back_between(from, now), back - until.sum::<i64>());
                }
                let next = naive.keys().map(|(at, _)| *at).find(|at| *at > now);
                prop_assert_eq!(ends.next_after(now), next);
            }
            for count in [1, 2, total / 3 + 1, total.max(1), total + 1] {
                let mut sum = 0;
                let at = naive.iter().find_map(|((at, _), n)| {
                    sum += n;
                    (sum >= count).then_some(*at)
                });
                prop_assert_eq!(ends.back(count), at);
            }
        }
    }
}
