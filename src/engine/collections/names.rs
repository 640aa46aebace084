//! Names that many messages share (consumers, reasons), each kept once and counted.
//!
//! Invariant: a name is there as long as somebody refers to it, and is found by its bytes.

use super::index::Index;
use super::lazy::{Blank, Lazy};
use super::slab::{NONE, Slab};
use crate::engine::names_hash::of_name;

#[derive(Debug, Clone, Default)]
struct Name {
    bytes: Box<[u8]>,
    references: u64,
}

#[derive(Debug, Clone)]
pub struct Names {
    names: Lazy<Slab<Name>>,
    index: Lazy<Index>,
    heap: usize,
}

impl Blank for Slab<Name> {
    const BLANK: &'static Self = &Self::new();

    fn blank() -> Self {
        Self::new()
    }
}

impl Names {
    pub const fn new() -> Self {
        Self { names: Lazy::new(), index: Lazy::new(), heap: 0 }
    }

    pub fn memory(&self) -> usize {
        let lazy = Lazy::memory(&self.names) + Lazy::memory(&self.index);
        lazy + Slab::memory(&self.names) + Index::memory(&self.index) + self.heap
    }

    pub fn get(&self, name: u32) -> Option<&[u8]> {
        self.names.get(name).map(|n| &*n.bytes)
    }

    /// The number of a name, referred to once more.
    pub fn refer(&mut self, bytes: &[u8]) -> u32 {
        let key = of_name(bytes);
        let names = &mut self.names;
        if let Some(found) = self.index.find(key, |n| names.get(n).is_some_and(|x| &*x.bytes == bytes)) {
            if let Some(name) = names.get_mut(found) {
                name.references += 1;
            }
            return found;
        }
        let slot = names.insert(Name { bytes: bytes.into(), references: 1 });
        self.heap += bytes.len() + 16;
        self.index.insert(key, slot, |n| names.get(n).map_or(0, |x| of_name(&x.bytes)));
        slot
    }

    /// One reference less; NONE: nobody's.
    #[inline]
    pub fn release(&mut self, name: u32) {
        if name != NONE {
            self.let_go(name);
        }
    }

    fn let_go(&mut self, name: u32) {
        let Some(entry) = self.names.get_mut(name) else { return };
        entry.references -= 1;
        if entry.references > 0 {
            return;
        }
        let key = of_name(&entry.bytes);
        self.heap -= entry.bytes.len() + 16;
        let names = &self.names;
        self.index.remove(key, name, |n| names.get(n).map_or(0, |x| of_name(&x.bytes)));
        self.names.remove(name);
    }
}
