//! An ordered set whose first element is kept beside its tree.
//!
//! Most sets of a queue (of seats, of heads of runs) hold one element most of the time, and it is
//! the first that is asked for and replaced: that touches no tree and allocates nothing.
//!
//! Invariant: `first` lies before all of `rest`; when there is none, `rest` is empty.

use super::lazy::{Blank, Lazy};
use crate::engine::footprint::tree;
use std::collections::BTreeSet;

#[derive(Debug, Clone)]
pub struct Ranked<T: 'static> {
    first: Option<T>,
    rest: Lazy<BTreeSet<T>>,
}

impl<T: 'static> Blank for BTreeSet<T> {
    const BLANK: &'static Self = &Self::new();

    fn blank() -> Self {
        Self::new()
    }
}

impl<T: Ord + Copy + 'static> Ranked<T> {
    pub const fn new() -> Self {
        Self { first: None, rest: Lazy::new() }
    }

    pub fn first(&self) -> Option<T> {
        self.first
    }

    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    pub fn insert(&mut self, element: T) {
        match self.first {
            None => self.first = Some(element),
            Some(first) if element < first => {
                self.rest.insert(first);
                self.first = Some(element);
            }
            Some(first) if element > first => {
                self.rest.insert(element);
            }
            Some(_) => {}
        }
    }

    pub fn remove(&mut self, element: &T) {
        if self.first.as_ref() == Some(element) {
            self.first = if self.rest.is_empty() { None } else { self.rest.pop_first() };
        } else if !self.rest.is_empty() {
            self.rest.remove(element);
        }
    }

    pub fn clear(&mut self) {
        self.first = None;
        self.rest = Lazy::new();
    }

    /// Bytes on the heap.
    pub fn memory(&self) -> usize {
        self.rest.memory() + tree(self.rest.len(), size_of::<T>())
    }

    /// Room that nothing needs is given back.
    pub fn give_back(&mut self) {
        self.rest.give_back(|rest| !rest.is_empty());
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        self.first.into_iter().chain(self.rest.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn is_a_set(steps in prop::collection::vec((any::<bool>(), 0..12u8), 0..200)) {
            let (mut ranked, mut naive) = (Ranked::new(), BTreeSet::new());
            for (enters, element) in steps {
                if enters {
                    ranked.insert(element);
                    naive.insert(element);
                } else {
                    ranked.remove(&element);
                    naive.remove(&element);
                }
                prop_assert_eq!((ranked.first(), ranked.len()), (naive.first().copied(), naive.len()));
                prop_assert!(ranked.iter().eq(naive.iter().copied()));
            }
            ranked.clear();
            prop_assert_eq!(ranked.first(), None);
        }
    }
}
