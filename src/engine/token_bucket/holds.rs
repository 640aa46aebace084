//! The open holds of a token bucket, by id and by deadline.

use super::effect::Hold;
use crate::engine::footprint::tree;
use crate::engine::time::Micros;
use std::collections::{BTreeMap, BTreeSet};

/// Invariant: each hold is in `by_id` and, by its end, in one of the other two.
#[derive(Debug, Clone, Default)]
pub(super) struct Holds {
    by_id: BTreeMap<u64, Hold>,
    /// Those that are put back when their time is over, with what they took.
    refunds: BTreeMap<(Micros, u64), i64>,
    others: BTreeSet<(Micros, u64)>,
}

impl Holds {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn get(&self, id: u64) -> Option<Hold> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn insert(&mut self, id: u64, hold: Hold) {
        self.remove(id);
        self.by_id.insert(id, hold);
        if hold.refund {
            self.refunds.insert((hold.until, id), hold.cost);
        } else {
            self.others.insert((hold.until, id));
        }
    }

    pub(super) fn remove(&mut self, id: u64) {
        if let Some(hold) = self.by_id.remove(&id) {
            if hold.refund {
                self.refunds.remove(&(hold.until, id));
            } else {
                self.others.remove(&(hold.until, id));
            }
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// By id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Hold)> {
        self.by_id.iter().map(|(id, hold)| (*id, *hold))
    }

    /// The first instant after `from` and up to `to` at which something comes back, and how much.
    pub(super) fn next_refund(&self, from: Micros, to: Micros) -> Option<(Micros, i64)> {
        if from >= to {
            return None;
        }
        let mut ending = self.refunds.range((from, u64::MAX)..=(to, u64::MAX));
        let ((at, _), first) = ending.next()?;
        let same = ending.take_while(|((end, _), _)| end == at).map(|(_, cost)| *cost);
        Some((*at, same.fold(*first, i64::saturating_add)))
    }

    pub(super) fn memory(&self) -> usize {
        tree(self.by_id.len(), size_of::<(u64, Hold)>())
            + tree(self.refunds.len(), size_of::<(Micros, u64, i64)>())
            + tree(self.others.len(), size_of::<(Micros, u64)>())
    }

    fn first(&self) -> Option<(Micros, u64)> {
        let refund = self.refunds.first_key_value().map(|(end, _)| *end);
        [refund, self.others.first().copied()].into_iter().flatten().min()
    }

    /// The first whose time is over at `now`.
    pub(super) fn first_over(&self, now: Micros) -> Option<u64> {
        self.first().filter(|(end, _)| *end <= now).map(|(_, id)| id)
    }

    /// How many have time left after `now`.
    pub(super) fn open(&self, now: Micros) -> usize {
        let over =
            self.refunds.range(..=(now, u64::MAX)).count() + self.others.range(..=(now, u64::MAX)).count();
        self.len() - over
    }

    pub(super) fn first_end(&self) -> Option<Micros> {
        self.first().map(|(end, _)| end)
    }

    pub(super) fn last_end(&self) -> Option<Micros> {
        let refund = self.refunds.last_key_value().map(|((end, _), _)| *end);
        refund.max(self.others.last().map(|(end, _)| *end))
    }
}
