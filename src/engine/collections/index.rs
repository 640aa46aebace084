//! A hash index from keys that live elsewhere to slots, which grows and shrinks in small steps.
//!
//! Linear hashing over many small tables: when they are full on average, one table is split in two,
//! and when they are nearly empty, the last one is merged back. So no insertion or removal ever
//! moves more than one table's entries, at a million as at a thousand.
//!
//! Nothing is allocated before the first entry; when the last one goes, all but a little room is
//! given back.
//!
//! Invariant: there are `count` tables (the only one may be without memory), and an entry with hash
//! `h` is in table `table_of(h)`.

use super::lazy::Blank;
use crate::engine::footprint::block;
use hashbrown::HashTable;

/// The average number of entries of a table above which one is split, and below which one is
/// merged.
const SPLIT: usize = 56;
const MERGE: usize = 16;
/// Tables are kept in pages, so that growing moves no more than a page's list.
const PAGE: usize = 256;
/// Room for so many entries is kept when there is none any more.
const FEW: usize = 7;

#[derive(Debug, Clone)]
pub struct Index {
    pages: Vec<Vec<HashTable<u32>>>,
    count: usize,
    len: usize,
}

impl Blank for Index {
    const BLANK: &'static Self = &Self::new();

    fn blank() -> Self {
        Self::new()
    }
}

/// The bits of a hash that choose the table: hashbrown uses the lowest for the place in it and the
/// highest for the tag.
const TABLE_BITS: u64 = 0xffff_ffff << TABLE_SHIFT;
const TABLE_SHIFT: u32 = 16;

/// What sets the hash of one of eight apart from those of the others, in the same table: places
/// side by side, and the tag.
pub const fn apart(n: u64) -> u64 {
    n << 57 | n
}

impl Index {
    pub const fn new() -> Self {
        Self { pages: Vec::new(), count: 1, len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes on the heap: about nine an entry, and the tables themselves.
    pub fn memory(&self) -> usize {
        match self.pages.first().map(Vec::as_slice) {
            None => 0,
            Some([only]) => {
                let lists = block(size_of::<Vec<HashTable<u32>>>()) + block(size_of::<HashTable<u32>>());
                lists + block(only.allocation_size())
            }
            Some(_) => self.len * 9 + self.count * size_of::<HashTable<u32>>(),
        }
    }

    fn table_of(&self, hash: u64) -> usize {
        let bits = ((hash & TABLE_BITS) >> TABLE_SHIFT) as usize;
        let whole = self.count.next_power_of_two();
        let t = bits & (whole - 1);
        if t < self.count { t } else { t - whole / 2 }
    }

    fn table(&self, t: usize) -> Option<&HashTable<u32>> {
        self.pages.get(t / PAGE)?.get(t % PAGE)
    }

    fn table_mut(&mut self, t: usize) -> Option<&mut HashTable<u32>> {
        self.pages.get_mut(t / PAGE)?.get_mut(t % PAGE)
    }

    pub fn find(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        self.table(self.table_of(hash))?.find(hash, |slot| is(*slot)).copied()
    }

    /// Adds a slot whose key is not there. `hash_of` returns the hash of any slot in the index.
    pub fn insert(&mut self, hash: u64, slot: u32, hash_of: impl Fn(u32) -> u64) {
        if self.len >= self.count * SPLIT {
            self.split(&hash_of);
        }
        if self.pages.is_empty() {
            self.pages = vec![vec![HashTable::new()]];
        }
        let t = self.table_of(hash);
        if let Some(table) = self.table_mut(t) {
            table.insert_unique(hash, slot, |s| hash_of(*s));
            self.len += 1;
        }
    }

    /// Puts another slot in place of the one whose key has this hash; false when there is none.
    pub fn replace(&mut self, hash: u64, is: impl Fn(u32) -> bool, slot: u32) -> bool {
        let t = self.table_of(hash);
        match self.table_mut(t).and_then(|table| table.find_mut(hash, |s| is(*s))) {
            Some(entry) => {
                *entry = slot;
                true
            }
            None => false,
        }
    }

    pub fn remove(&mut self, hash: u64, slot: u32, hash_of: impl Fn(u32) -> u64) -> bool {
        let t = self.table_of(hash);
        let Some(table) = self.table_mut(t) else { return false };
        let Ok(entry) = table.find_entry(hash, |s| *s == slot) else { return false };
        entry.remove();
        self.len -= 1;
        if self.count > 1 && self.len < self.count * MERGE {
            self.merge(&hash_of);
        } else if self.len == 0 && self.table(0).is_some_and(|t| t.capacity() > FEW) {
            *self = Self::new();
        }
        true
    }

    fn split(&mut self, hash_of: &impl Fn(u32) -> u64) {
        let new = self.count;
        // The table whose entries the new one shares: the new number without its highest bit.
        let old = new - (new + 1).next_power_of_two() / 2;
        if self.pages.last().is_none_or(|p| p.len() == PAGE) {
            self.pages.push(Vec::new());
        }
        if let Some(page) = self.pages.last_mut() {
            page.push(HashTable::new());
        }
        self.count += 1;
        let Some(entries) = self.table_mut(old).map(std::mem::take) else { return };
        let (stay, go): (Vec<_>, Vec<_>) =
            entries.into_iter().map(|s| (hash_of(s), s)).partition(|(h, _)| self.table_of(*h) == old);
        for (t, list) in [(old, stay), (new, go)] {
            if let Some(table) = self.table_mut(t) {
                table.reserve(list.len(), |s| hash_of(*s));
                for (h, s) in list {
                    table.insert_unique(h, s, |s| hash_of(*s));
                }
            }
        }
    }

    fn merge(&mut self, hash_of: &impl Fn(u32) -> u64) {
        let last = self.count - 1;
        let into = last - self.count.next_power_of_two() / 2;
        let gone = self.pages.last_mut().and_then(Vec::pop);
        if self.pages.last().is_some_and(Vec::is_empty) {
            self.pages.pop();
        }
        self.count -= 1;
        if let (Some(gone), Some(table)) = (gone, self.table_mut(into)) {
            for s in gone {
                table.insert_unique(hash_of(s), s, |s| hash_of(*s));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::names_hash::of_number;

    #[test]
    fn every_entry_is_found_while_tables_split_and_merge() {
        let mut index = Index::new();
        let hash = |s: u32| of_number(u64::from(s) * 7);
        for n in 0..20_000u32 {
            index.insert(hash(n), n, hash);
            assert_eq!(index.find(hash(n / 2), |s| s == n / 2), Some(n / 2));
        }
        assert!(index.count > 300 && index.len() == 20_000);
        assert!(index.replace(hash(5), |s| s == 5, 5) && !index.replace(hash(20_001), |s| s == 20_001, 1));
        for n in 0..20_000u32 {
            assert!(index.remove(hash(n), n, hash));
            assert!(!index.remove(hash(n), n, hash));
            let other = 19_999 - (19_999 - n) / 2;
            assert_eq!(index.find(hash(other), |s| s == other), (other > n).then_some(other));
        }
        assert_eq!((index.count, index.len()), (1, 0));
    }
}
