//! The bytes of subjects: names of about the same length lie side by side in blocks of one size,
//! without gaps.
//!
//! A block is the slot of its owner (4 bytes) and the name, filled up to a multiple of 4. A removed
//! block's place is taken by the last of its size, so nothing is ever left over; whoever removes
//! must tell the owner of the moved block.

/// The longest name of a subject.
pub const MAX_NAME: usize = 512;

/// Blocks in a piece.
const PIECE: usize = 512;
const OWNER: usize = 4;

#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    /// By the number of 4-byte words in the name, less one.
    sizes: Vec<Size>,
}

/// All blocks of one size. Invariant: all pieces but the last hold `PIECE` blocks, and the last is
/// not empty.
#[derive(Debug, Clone, Default)]
struct Size {
    pieces: Vec<Vec<u8>>,
}

fn words(len: usize) -> usize {
    len.div_ceil(4).max(1)
}

fn block(len: usize) -> usize {
    OWNER + 4 * words(len)
}

impl Names {
    fn size(&self, len: usize) -> Option<&Size> {
        self.sizes.get(words(len) - 1)
    }

    /// The name of `len` bytes at `index`.
    pub(super) fn get(&self, len: usize, index: u32) -> &[u8] {
        let block = self.size(len).and_then(|s| s.block(block(len), index as usize));
        block.and_then(|b| b.get(OWNER..OWNER + len)).unwrap_or_default()
    }

    /// Keeps a name for the owner; returns its index.
    pub(super) fn insert(&mut self, name: &[u8], owner: u32) -> u32 {
        let (class, block) = (words(name.len()) - 1, block(name.len()));
        if self.sizes.len() <= class {
            self.sizes.resize_with(class + 1, Size::default);
        }
        let Some(size) = self.sizes.get_mut(class) else {
            return 0;
        };
        let index = size.len(block);
        if size.pieces.last().is_none_or(|last| last.len() == PIECE * block) {
            let blocks = if size.pieces.is_empty() { 1 } else { PIECE };
            size.pieces.push(Vec::with_capacity(blocks * block));
        }
        if let Some(last) = size.pieces.last_mut() {
            last.extend_from_slice(&owner.to_le_bytes());
            last.extend_from_slice(name);
            last.resize(last.len() + block - OWNER - name.len(), 0);
        }
        index as u32
    }

    /// Drops a name; returns whose name lies at its index now.
    pub(super) fn remove(&mut self, len: usize, index: u32) -> Option<u32> {
        let block = block(len);
        let size = self.sizes.get_mut(words(len) - 1)?;
        let last = size.pop(block)?;
        if index as usize == size.len(block) {
            return None;
        }
        let place = size.block_mut(block, index as usize)?;
        place.copy_from_slice(&last);
        owner(&last)
    }

    /// The owner of a name has another slot.
    pub(super) fn set_owner(&mut self, len: usize, index: u32, owner: u32) {
        let size = self.sizes.get_mut(words(len) - 1);
        if let Some(place) = size.and_then(|s| s.block_mut(block(len), index as usize)?.get_mut(..OWNER)) {
            place.copy_from_slice(&owner.to_le_bytes());
        }
    }

    pub(super) fn memory(&self) -> usize {
        // All pieces but the last of a size are full.
        let bytes = |(class, size): (usize, &Size)| {
            let last = size.pieces.last().map_or(0, Vec::capacity);
            let others = size.pieces.len().saturating_sub(1) * PIECE * (OWNER + 4 * (class + 1));
            size.pieces.capacity() * size_of::<Vec<u8>>() + others + last
        };
        self.sizes.capacity() * size_of::<Size>() + self.sizes.iter().enumerate().map(bytes).sum::<usize>()
    }

    pub(super) fn allocations(&self) -> usize {
        self.sizes.iter().map(|s| s.pieces.len()).sum()
    }
}

fn owner(block: &[u8]) -> Option<u32> {
    block.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

impl Size {
    fn len(&self, block: usize) -> usize {
        self.pieces.last().map_or(0, |last| (self.pieces.len() - 1) * PIECE + last.len() / block)
    }

    fn block(&self, block: usize, index: usize) -> Option<&[u8]> {
        let at = index % PIECE * block;
        self.pieces.get(index / PIECE)?.get(at..at + block)
    }

    fn block_mut(&mut self, block: usize, index: usize) -> Option<&mut [u8]> {
        let at = index % PIECE * block;
        self.pieces.get_mut(index / PIECE)?.get_mut(at..at + block)
    }

    fn pop(&mut self, block: usize) -> Option<Vec<u8>> {
        let piece = self.pieces.last_mut()?;
        let last = piece.split_off(piece.len().checked_sub(block)?);
        if piece.is_empty() {
            self.pieces.pop();
            if self.pieces.len() * 4 < self.pieces.capacity() {
                self.pieces.shrink_to(self.pieces.len() * 2);
            }
        }
        Some(last)
    }
}
