//! Where live messages are found by a number that the queue gave out itself: a few in a list, more
//! in pages of consecutive numbers.
//!
//! Own numbers are drawn, claimed and settled nearly in order, so neighbours share a page, and most
//! look-ups meet one of the two pages at hand: that last entered and that last left. A page goes
//! with its last number, so what lags behind keeps no more than its own page. The list takes
//! numbers as long as there are no pages, so that a small queue has none.
//!
//! Invariants: a number is in the list or in its page, once; each page is in `index` once and holds
//! at least one number; `len` counts what pages hold; the pages at hand are there.

use super::index::Index;
use super::lazy::{Blank, Lazy};
use super::slab::{NONE, Slab};
use crate::engine::footprint::block;
use crate::engine::names_hash::of_number;
use smallvec::SmallVec;

/// Numbers in a page: neighbours enough to share a look-up, few enough that a lone number is not
/// dear.
const SIZE: u64 = 16;
/// Numbers in the list: so many are looked through as fast as a page is found.
const FEW: usize = 8;
/// Room for so many in the list is kept when there is none any more.
const KEPT: usize = 4;

#[derive(Debug, Clone)]
pub struct Numbers {
    few: SmallVec<[(u64, u32); 1]>,
    pages: Lazy<Pages>,
}

impl Numbers {
    pub fn new() -> Self {
        Self { few: SmallVec::new(), pages: Lazy::new() }
    }

    pub fn len(&self) -> usize {
        self.few.len() + self.pages.len
    }

    pub fn memory(&self) -> usize {
        let list = if self.few.spilled() { block(self.few.capacity() * size_of::<(u64, u32)>()) } else { 0 };
        list + self.pages.memory() + self.pages.held()
    }

    /// The slot under a number.
    pub fn get(&self, number: u64) -> Option<u32> {
        match self.few.iter().find(|(n, _)| *n == number) {
            Some((_, slot)) => Some(*slot),
            None => self.pages.get(number),
        }
    }

    /// Enters a slot under a number; false when there is one already.
    pub fn insert(&mut self, number: u64, slot: u32) -> bool {
        if self.few.iter().any(|(n, _)| *n == number) {
            return false;
        }
        if self.few.len() < FEW && self.pages.len == 0 {
            self.few.push((number, slot));
            return true;
        }
        self.pages.insert(number, slot)
    }

    /// Takes a slot from under its number; false when it is not there.
    pub fn remove(&mut self, number: u64, slot: u32) -> bool {
        if let Some(at) = self.few.iter().position(|(n, _)| *n == number) {
            let is_it = self.few.get(at).is_some_and(|(_, s)| *s == slot);
            if is_it {
                self.few.swap_remove(at);
                self.give_back();
            }
            return is_it;
        }
        let is_it = self.pages.len > 0 && self.pages.remove(number, slot);
        if is_it {
            self.give_back();
        }
        is_it
    }

    fn give_back(&mut self) {
        if self.few.is_empty() {
            if self.few.capacity() > KEPT {
                self.few = SmallVec::new();
            }
            self.pages.give_back(|pages| pages.len > 0);
        }
    }
}

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
struct Pages {
    pages: Slab<Page>,
    index: Index,
    len: usize,
    /// The pages last entered and last left, and where they are.
    entered: (u64, u32),
    left: (u64, u32),
}

/// No page.
const NOWHERE: (u64, u32) = (u64::MAX, NONE);

impl Blank for Pages {
    const BLANK: &'static Self = &Self::new();

    fn blank() -> Self {
        Self::new()
    }
}

impl Pages {
    const fn new() -> Self {
        Self { pages: Slab::new(), index: Index::new(), len: 0, entered: NOWHERE, left: NOWHERE }
    }

    fn held(&self) -> usize {
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
    fn get(&self, number: u64) -> Option<u32> {
        let page = self.pages.get(self.find_page(number)?)?;
        page.slots.get((number % SIZE) as usize).copied().filter(|slot| *slot != NONE)
    }

    /// Enters a slot under a number; false when there is one already.
    fn insert(&mut self, number: u64, slot: u32) -> bool {
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
    fn remove(&mut self, number: u64, slot: u32) -> bool {
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
            prop_assert_eq!((numbers.len(), numbers.pages.held()), (0, 0));
        }
    }
}
