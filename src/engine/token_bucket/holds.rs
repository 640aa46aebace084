//! The open holds of a token bucket, by id and by deadline.

use super::effect::Hold;
use crate::engine::time::Micros;
use std::collections::{BTreeMap, BTreeSet};

/// Invariant: both maps hold the same holds.
#[derive(Debug, Clone, Default)]
pub(super) struct Holds {
    by_id: BTreeMap<u64, Hold>,
    by_end: BTreeSet<(Micros, u64)>,
}

impl Holds {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn get(&self, id: u64) -> Option<Hold> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn insert(&mut self, id: u64, hold: Hold) {
        if let Some(old) = self.by_id.insert(id, hold) {
            self.by_end.remove(&(old.until, id));
        }
        self.by_end.insert((hold.until, id));
    }

    pub(super) fn remove(&mut self, id: u64) {
        if let Some(hold) = self.by_id.remove(&id) {
            self.by_end.remove(&(hold.until, id));
        }
    }

    pub(super) fn clear(&mut self) {
        self.by_id.clear();
        self.by_end.clear();
    }

    /// By id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Hold)> {
        self.by_id.iter().map(|(id, hold)| (*id, *hold))
    }

    /// Those whose time is over at `now`, in the order in which they are closed.
    pub(super) fn due(&self, now: Micros) -> impl Iterator<Item = (u64, Hold)> {
        let due = self.by_end.iter().take_while(move |(end, _)| *end <= now);
        due.filter_map(|(_, id)| self.get(*id).map(|hold| (*id, hold)))
    }

    pub(super) fn first_end(&self) -> Option<Micros> {
        self.by_end.first().map(|(end, _)| *end)
    }

    pub(super) fn last_end(&self) -> Option<Micros> {
        self.by_end.last().map(|(end, _)| *end)
    }
}
