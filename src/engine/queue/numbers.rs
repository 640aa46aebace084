//! Where live messages are found by a number that the queue gave out itself: pages of consecutive numbers.
//!
//! Own numbers are drawn, claimed and settled nearly in order, so neighbours share a page, and most look-ups meet one of the two pages at
//! hand: that last entered and that last left. A page goes with its last number, so what lags behind keeps no more than its own page.
//!
//! Invariants: each page is in `index` once and holds at least one number; `len` counts them all; the pages at hand are there.

use super::index::Index;
use super::slab::{NONE, Slab};
use crate::engine::names_hash::of_number;

/// Numbers in a page: neighbours enough to share a look-up, few enough that a lone number is not dear.
const SIZE: u64 = 16;

#[derive(Debug, Clone)]
struct Page {
    /// Which it is: its numbers divided by `SIZE`.
    page: u64,
    used: u32,
    slots: [u32; SIZE as usize],
}

impl Default for Page {
    fn default() -> Self {
        Self { page: 0, used: 0, slots: [NONE; SIZE as usize] }
    }
}

#[derive(Debug, Clone)]
pub struct Numbers {
    pages: Slab<Page>,
    index: Index,
    len: usize,
    /// The pages last entered and last left, and where they are.
    entered: (u64, u32),
    left: (u64, u32),
}

/// No page.
const NOWHERE: (u64, u32) = (u64::MAX, NONE);

impl Numbers {
    pub fn new() -> Self {
        Self { pages: Slab::new(), index: Index::new(), len: 0, entered: NOWHERE, left: NOWHERE }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn memory(&self) -> usize {
        self.pages.memory() + self.index.memory()
    }

    fn find_page(&self, number: u64) -> Option<u32> {
        let page = number / SIZE;
        if self.entered.0 == page {
            Some(self.entered.1)
        } else if self.left.0 == page {
            Some(self.left.1)
        } else {
            self.search(page)
        }
    }

    fn search(&self, page: u64) -> Option<u32> {
        self.index.find(of_number(page), |p| self.pages.get(p).is_some_and(|x| x.page == page))
    }

    /// The slot under a number.
    pub fn get(&self, number: u64) -> Option<u32> {
        let page = self.pages.get(self.find_page(number)?)?;
        page.slots.get((number % SIZE) as usize).copied().filter(|slot| *slot != NONE)
    }

    /// Enters a slot under a number; false when there is one already.
    pub fn insert(&mut self, number: u64, slot: u32) -> bool {
        let p = self.find_page(number).unwrap_or_else(|| self.add_page(number / SIZE));
        let Some(page) = self.pages.get_mut(p) else { return false };
        let Some(place) = page.slots.get_mut((number % SIZE) as usize).filter(|s| **s == NONE) else {
            return false;
        };
        *place = slot;
        page.used += 1;
        self.len += 1;
        self.entered = (number / SIZE, p);
        true
    }

    fn add_page(&mut self, page: u64) -> u32 {
        let p = self.pages.insert(Page { page, ..Page::default() });
        let pages = &self.pages;
        self.index.insert(of_number(page), p, |p| pages.get(p).map_or(0, |x| of_number(x.page)));
        p
    }

    /// Takes a slot from under its number; false when it is not there.
    pub fn remove(&mut self, number: u64, slot: u32) -> bool {
        let Some(p) = self.find_page(number) else { return false };
        let Some(page) = self.pages.get_mut(p) else { return false };
        let Some(place) = page.slots.get_mut((number % SIZE) as usize).filter(|s| **s == slot) else {
            return false;
        };
        *place = NONE;
        page.used -= 1;
        self.len -= 1;
        self.left = (number / SIZE, p);
        if page.used == 0 {
            self.drop_page(number / SIZE, p);
        }
        true
    }

    fn drop_page(&mut self, page: u64, p: u32) {
        let pages = &self.pages;
        self.index.remove(of_number(page), p, |p| pages.get(p).map_or(0, |x| of_number(x.page)));
        self.pages.remove(p);
        for at_hand in [&mut self.entered, &mut self.left] {
            if at_hand.0 == page {
                *at_hand = NOWHERE;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn is_a_map(steps in prop::collection::vec((0..3u8, 0..400u64, any::<bool>()), 0..2000)) {
            let (mut numbers, mut naive) = (Numbers::new(), HashMap::new());
            for (slot, (what, number, far)) in (0u32..).zip(steps) {
                let number = if far { u64::MAX - number } else { number };
                match what {
                    0 | 1 => {
                        let free = !naive.contains_key(&number);
                        prop_assert_eq!(numbers.insert(number, slot), free);
                        naive.entry(number).or_insert(slot);
                    }
                    _ => {
                        prop_assert!(!numbers.remove(number, slot));
                        let there = naive.remove(&number);
                        prop_assert_eq!(numbers.remove(number, there.unwrap_or(slot)), there.is_some());
                    }
                }
                prop_assert_eq!((numbers.get(number), numbers.len()), (naive.get(&number).copied(), naive.len()));
            }
            for (number, slot) in naive {
                prop_assert_eq!(numbers.get(number), Some(slot));
                prop_assert!(numbers.remove(number, slot));
            }
            prop_assert_eq!((numbers.len(), numbers.pages.len(), numbers.index.len()), (0, 0, 0));
        }
    }
}
