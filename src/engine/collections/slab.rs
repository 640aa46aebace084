//! A chunked slab: values with a stable small number each.
//!
//! It grows by one chunk at a time, so no insertion ever moves what is there, and gives chunks back
//! as they empty (but one, so that a queue going up and down around a chunk's edge does not
//! allocate each time).
//!
//! A place that was freed holds a default value, so that none is wasted on telling. Only the first
//! chunk grows, from one place by doubling: few values take little. When the last value goes, all
//! but a few places are given back.
//!
//! Invariant: `open` holds exactly the chunks with a free place; a chunk without memory is wholly
//! free; places behind a chunk's items are free.

use super::ranked::Ranked;
use crate::engine::footprint::block;

/// No slot.
pub const NONE: u32 = u32::MAX;

const SIZE: usize = 256;
/// So many places are kept when there is no value any more.
const FEW: u32 = 4;
const WORDS: usize = SIZE / 64;

#[derive(Debug, Clone)]
struct Chunk<T> {
    /// As far as places were ever taken; nothing when the chunk has no memory.
    items: Vec<T>,
    /// A bit set for each free place.
    free: [u64; WORDS],
    used: usize,
}

impl<T> Chunk<T> {
    fn is_free(&self, place: usize) -> bool {
        self.free.get(place / 64).is_none_or(|word| word >> (place % 64) & 1 == 1)
    }
}

#[derive(Debug, Clone)]
pub struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    open: Ranked<u32>,
    len: u32,
    /// Places with memory; chunks with memory that are empty.
    backed: u32,
    spare: u32,
}

impl<T: Default> Slab<T> {
    pub const fn new() -> Self {
        Self { chunks: Vec::new(), open: Ranked::new(), len: 0, backed: 0, spare: 0 }
    }

    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// All slots are below this.
    pub fn slots(&self) -> u32 {
        u32::try_from(self.chunks.len() * SIZE).unwrap_or(NONE)
    }

    /// Bytes on the heap, without what the values own.
    pub fn memory(&self) -> usize {
        let items = match self.chunks.as_slice() {
            [only] => block(only.items.capacity() * size_of::<T>()),
            _ => self.backed as usize * size_of::<T>(),
        };
        items + block(self.chunks.capacity() * size_of::<Chunk<T>>()) + self.open.memory()
    }

    pub fn get(&self, slot: u32) -> Option<&T> {
        let chunk = self.chunks.get(slot as usize / SIZE)?;
        let place = slot as usize % SIZE;
        if chunk.is_free(place) { None } else { chunk.items.get(place) }
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        let chunk = self.chunks.get_mut(slot as usize / SIZE)?;
        let place = slot as usize % SIZE;
        if chunk.is_free(place) { None } else { chunk.items.get_mut(place) }
    }

    /// Stores the value; returns its slot. (2³² values do not fit into any server's memory; past
    /// that the value is lost.)
    pub fn insert(&mut self, value: T) -> u32 {
        let index = match self.open.first() {
            Some(i) => i,
            None => {
                let Ok(i) = u32::try_from(self.chunks.len()) else { return NONE };
                if i >= NONE / SIZE as u32 {
                    return NONE;
                }
                if i == 0 {
                    self.chunks.reserve_exact(1);
                }
                self.chunks.push(Chunk { items: Vec::new(), free: [u64::MAX; WORDS], used: 0 });
                self.open.insert(i);
                i
            }
        };
        let Some(chunk) = self.chunks.get_mut(index as usize) else { return NONE };
        if chunk.used == 0 && !chunk.items.is_empty() {
            self.spare = self.spare.saturating_sub(1);
        }
        let Some((w, word)) = chunk.free.iter_mut().enumerate().find(|(_, word)| **word != 0) else {
            return NONE;
        };
        let place = w * 64 + word.trailing_zeros() as usize;
        *word &= *word - 1;
        match chunk.items.get_mut(place) {
            Some(item) => *item = value,
            None => {
                let before = chunk.items.capacity();
                if before == 0 {
                    chunk.items.reserve_exact(if index > 0 { SIZE } else { 1 });
                }
                chunk.items.push(value);
                self.backed += (chunk.items.capacity() - before) as u32;
            }
        }
        chunk.used += 1;
        self.len += 1;
        if chunk.used == SIZE {
            self.open.remove(&index);
        }
        index * SIZE as u32 + place as u32
    }

    pub fn remove(&mut self, slot: u32) -> Option<T> {
        let index = slot as usize / SIZE;
        let place = slot as usize % SIZE;
        let chunk = self.chunks.get_mut(index)?;
        if chunk.is_free(place) {
            return None;
        }
        let value = std::mem::take(chunk.items.get_mut(place)?);
        if let Some(word) = chunk.free.get_mut(place / 64) {
            *word |= 1 << (place % 64);
        }
        if chunk.used == SIZE {
            self.open.insert(index as u32);
        }
        chunk.used -= 1;
        self.len -= 1;
        if chunk.used == 0 {
            if self.len == 0 && self.backed > FEW {
                *self = Self::new();
            } else if self.spare == 0 {
                self.spare = 1;
            } else {
                self.backed -= chunk.items.capacity() as u32;
                chunk.items = Vec::new();
                self.trim();
            }
        }
        Some(value)
    }

    /// Forgets chunks without memory at the end.
    fn trim(&mut self) {
        while self.chunks.last().is_some_and(|c| c.items.is_empty()) {
            self.chunks.pop();
            self.open.remove(&(self.chunks.len() as u32));
        }
    }

    /// All values, by slot: an order that says nothing.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.chunks.iter().enumerate().flat_map(|(c, chunk)| {
            let used = chunk.items.iter().enumerate().filter(|(place, _)| !chunk.is_free(*place));
            used.map(move |(place, value)| ((c * SIZE + place) as u32, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_stable_reused_and_given_back() {
        let mut s = Slab::new();
        let slots: Vec<u32> = (0..1000u32).map(|v| s.insert(v)).collect();
        for (v, slot) in slots.iter().enumerate() {
            assert_eq!(s.get(*slot), Some(&(v as u32)));
        }
        assert_eq!(s.remove(slots[300]), Some(300));
        assert_eq!((s.remove(slots[300]), s.get(slots[300])), (None, None));
        assert_eq!(s.insert(7), slots[300]);
        let full = s.memory();
        for slot in &slots {
            assert!(s.remove(*slot).is_some());
        }
        assert_eq!(s.len(), 0);
        assert!(full > 4_000 && s.memory() == 0 && s.iter().next().is_none());
        let slot = s.insert(1);
        assert_eq!(s.get(slot), Some(&1));
        assert_eq!(s.get(NONE), None);
    }
}
