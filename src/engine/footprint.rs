//! What data structures take from the allocator: more than what they hold. Near enough for `MEMORY
//! USAGE`, and cheap.

/// What the allocator gives for so many bytes: it has four sizes between a power of two and the
/// next, and below 128 bytes one every 16.
pub const fn block(bytes: usize) -> usize {
    const FINE: usize = 128;
    if bytes <= FINE {
        return bytes.next_multiple_of(16);
    }
    let step = bytes.next_power_of_two() / 8;
    bytes.next_multiple_of(step)
}

/// A B-tree of so many entries of `each` bytes. A node has room for eleven; filled in order, as
/// ours are by time or number, it has six, and one more is in the node above.
pub const fn tree(len: usize, each: usize) -> usize {
    const ROOM: usize = 11;
    const FILLED: usize = 7;
    let leaf = block(ROOM * each + 16);
    let inner = block(ROOM * each + 16 + (ROOM + 1) * size_of::<usize>());
    if len == 0 {
        return 0;
    }
    if len <= ROOM {
        return leaf;
    }
    let leaves = len.div_ceil(FILLED);
    leaves * leaf + leaves.div_ceil(FILLED) * inner
}

/// A hash table with room for `capacity` entries of `each` bytes: an eighth of its buckets is kept
/// free, and each has a byte more.
pub const fn table(capacity: usize, each: usize) -> usize {
    if capacity == 0 {
        return 0;
    }
    let buckets = if capacity < 8 { capacity + 1 } else { capacity * 8 / 7 }.next_power_of_two();
    block(buckets * (each + 1) + 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_those_of_the_allocator() {
        for (bytes, given) in
            [(0, 0), (1, 16), (16, 16), (100, 112), (129, 160), (456, 512), (513, 640), (83_984, 98_304)]
        {
            assert_eq!(block(bytes), given, "{bytes}");
        }
    }

    #[test]
    fn what_is_empty_takes_nothing_and_more_takes_more() {
        assert_eq!((tree(0, 40), table(0, 40)), (0, 0));
        let mut before = 0;
        for len in [1, 11, 12, 100, 1_000] {
            assert!(tree(len, 40) > before || len == 11, "{len}");
            before = tree(len, 40);
        }
        assert_eq!(table(1_792, 40), 98_304);
    }
}
