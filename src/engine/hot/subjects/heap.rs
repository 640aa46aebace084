//! The order in which subjects become full: a heap of slots with four children each. Those that are
//! old are not in it.

use super::{FAR, GENERATION, Subjects, ms};
use std::cmp::Ordering;

impl Subjects {
    /// One that was old comes into the order.
    pub(super) fn enter(&mut self, slot: u32) {
        let (place, generation) = (self.heap.len(), self.generation);
        self.heap.push(slot);
        if let Some(entry) = self.entries.get_mut(slot as usize) {
            entry.place = place as u32;
            entry.len_tag = entry.len_tag & !GENERATION | generation;
        }
        self.rise(place);
    }

    fn order(&self, a: u32, b: u32) -> Ordering {
        let by_time = match (self.entry(a), self.entry(b)) {
            (Some(x), Some(y)) if x.since() != FAR && y.since() != FAR => {
                ms(i128::from(x.full_at)).cmp(&ms(i128::from(y.full_at)))
            }
            _ => ms(self.full_at(a)).cmp(&ms(self.full_at(b))),
        };
        by_time.then_with(|| self.name(a).cmp(self.name(b)))
    }

    pub(super) fn settle_at(&mut self, place: usize) {
        self.rise(place);
        if let Some(slot) = self.heap.get(place) {
            let place = self.entry(slot).map_or(place, |e| e.place as usize);
            self.sink(place);
        }
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 4;
            if !self.swap_if_less(place, parent) {
                return;
            }
            place = parent;
        }
    }

    pub(super) fn sink(&mut self, mut place: usize) {
        loop {
            let children = (place * 4 + 1..=place * 4 + 4).filter_map(|p| Some((p, self.heap.get(p)?)));
            let Some((least, _)) = children.min_by(|a, b| self.order(a.1, b.1)) else {
                return;
            };
            if !self.swap_if_less(least, place) {
                return;
            }
            place = least;
        }
    }

    /// Swaps what is at `lower` with what is at `upper` if it comes first.
    fn swap_if_less(&mut self, lower: usize, upper: usize) -> bool {
        let (Some(a), Some(b)) = (self.heap.get(lower), self.heap.get(upper)) else {
            return false;
        };
        if self.order(a, b) != Ordering::Less {
            return false;
        }
        self.set_place(upper, a);
        self.set_place(lower, b);
        true
    }

    fn set_place(&mut self, place: usize, slot: u32) {
        self.heap.set(place, slot);
        if let Some(entry) = self.entries.get_mut(slot as usize) {
            entry.place = place as u32;
        }
    }

    pub(super) fn leave_heap(&mut self, place: usize) {
        let Some(last) = self.heap.pop() else {
            return;
        };
        if place < self.heap.len() {
            self.set_place(place, last);
            self.settle_at(place);
        }
    }

    /// The invariants.
    #[cfg(test)]
    pub(in crate::engine::hot) fn audit(&self) {
        let young = self.slots().filter(|slot| self.age(*slot) == 0).count();
        assert_eq!(self.heap.len(), young, "who is not old is in order");
        for slot in self.slots() {
            assert_eq!(self.find(self.name(slot)), Some(slot), "each is found");
            let Some(place) = self.entry(slot).map(|e| e.place as usize) else { continue };
            if self.age(slot) == 0 {
                assert_eq!(self.heap.get(place), Some(slot), "each knows its place");
                let parent = self.heap.get(place.saturating_sub(1) / 4);
                assert!(parent.is_none_or(|p| self.order(p, slot) != Ordering::Greater), "in order");
            }
        }
        assert_eq!(
            self.far.len(),
            self.slots().filter(|s| self.entry(*s).is_some_and(|e| e.since() == FAR)).count()
        );
    }
}
