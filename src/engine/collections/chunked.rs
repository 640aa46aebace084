//! A vector in pieces: it grows and shrinks without ever moving what is there, and leaves at most
//! one piece unused.

const PIECE: usize = 1_024;

/// Invariant: all pieces but the last are full, and the last is not empty.
#[derive(Debug, Clone)]
pub struct Chunked<T> {
    pieces: Vec<Vec<T>>,
}

impl<T> Default for Chunked<T> {
    fn default() -> Self {
        Self { pieces: Vec::new() }
    }
}

impl<T: Copy> Chunked<T> {
    pub fn len(&self) -> usize {
        self.pieces.last().map_or(0, |last| (self.pieces.len() - 1) * PIECE + last.len())
    }

    pub fn get(&self, index: usize) -> Option<T> {
        self.pieces.get(index / PIECE)?.get(index % PIECE).copied()
    }

    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.pieces.get_mut(index / PIECE)?.get_mut(index % PIECE)
    }

    /// Overwrites what is at `index`, if there is anything.
    pub fn set(&mut self, index: usize, value: T) {
        if let Some(place) = self.get_mut(index) {
            *place = value;
        }
    }

    pub fn push(&mut self, value: T) {
        match self.pieces.last_mut().filter(|last| last.len() < PIECE) {
            Some(last) => last.push(value),
            None => {
                // The first piece starts small: most objects are.
                let mut piece = Vec::with_capacity(if self.pieces.is_empty() { 4 } else { PIECE });
                piece.push(value);
                self.pieces.push(piece);
            }
        }
    }

    pub fn pop(&mut self) -> Option<T> {
        let last = self.pieces.last_mut()?;
        let value = last.pop();
        if last.is_empty() {
            self.pieces.pop();
            if self.pieces.len() * 4 < self.pieces.capacity() {
                self.pieces.shrink_to(self.pieces.len() * 2);
            }
        }
        value
    }

    /// Bytes on the heap.
    pub fn memory(&self) -> usize {
        let last = self.pieces.last().map_or(0, Vec::capacity);
        let others = self.pieces.len().saturating_sub(1) * PIECE;
        (others + last) * size_of::<T>() + self.pieces.capacity() * size_of::<Vec<T>>()
    }

    pub fn allocations(&self) -> usize {
        self.pieces.len()
    }
}
