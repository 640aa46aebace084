//! The module's allocator: the server's when there is one, else the system's.
//!
//! Everything the module holds is then counted by the server (`used_memory`, `maxmemory`, active
//! defrag), and tests and benches that link the library without a server still run. The two never
//! mix: the server's functions are set before the first allocation of `RedisModule_OnLoad` and
//! never unset; without a server they are never set.
//!
//! The server's allocator promises 8-byte alignment and no more: the jemalloc that Redis 8 brings
//! along has size classes such as 24 and 40. What wants more (hash tables do, for their vector
//! instructions, and 128-bit integers) is over-allocated, with the server's pointer kept right
//! before the aligned block.

use redis_module::raw;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;

pub struct ServerAlloc;

/// The alignment every block of the server's allocator has.
const NATURAL: usize = 8;
const HEADER: usize = size_of::<*mut c_void>();

// SAFETY: each method hands the request to one allocator that is fixed for the life of the process
// (see above) and returns what that allocator returned, or for large alignments a block inside it;
// `dealloc` and `realloc` undo precisely what `alloc` did, by the same layout.
unsafe impl GlobalAlloc for ServerAlloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: reading a pointer that is written once, on the main thread, before any other
        // thread of ours exists.
        match unsafe { raw::RedisModule_Alloc } {
            // SAFETY: the server's malloc; size is not 0 by GlobalAlloc's contract.
            Some(alloc) if layout.align() <= NATURAL => unsafe { alloc(layout.size()).cast() },
            // SAFETY: as above, with room for the header and the alignment.
            Some(alloc) => unsafe {
                align_up(alloc(layout.size() + layout.align() + HEADER).cast(), layout.align())
            },
            // SAFETY: GlobalAlloc's contract is System's.
            None => unsafe { System.alloc(layout) },
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in alloc.
        match unsafe { raw::RedisModule_Calloc } {
            // SAFETY: the server's calloc.
            Some(calloc) if layout.align() <= NATURAL => unsafe { calloc(1, layout.size()).cast() },
            // SAFETY: as in alloc, all of it zeroed.
            Some(calloc) => unsafe {
                align_up(calloc(1, layout.size() + layout.align() + HEADER).cast(), layout.align())
            },
            // SAFETY: GlobalAlloc's contract is System's.
            None => unsafe { System.alloc_zeroed(layout) },
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as in alloc.
        match unsafe { raw::RedisModule_Free } {
            // SAFETY: `block` came from the server's allocator in `alloc` with this layout.
            Some(free) if layout.align() <= NATURAL => unsafe { free(block.cast()) },
            // SAFETY: `align_up` left the server's pointer right before the block.
            Some(free) => unsafe { free(block.cast::<*mut c_void>().sub(1).read_unaligned()) },
            // SAFETY: GlobalAlloc's contract is System's.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as in alloc.
        match unsafe { raw::RedisModule_Realloc } {
            // SAFETY: `block` came from the server's allocator with natural alignment.
            Some(realloc) if layout.align() <= NATURAL => unsafe { realloc(block.cast(), new_size).cast() },
            // SAFETY: a new block, the smaller of both sizes copied, the old one freed: as
            // GlobalAlloc's default does.
            Some(_) => unsafe {
                let new = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
                if !new.is_null() {
                    std::ptr::copy_nonoverlapping(block, new, layout.size().min(new_size));
                    self.dealloc(block, layout);
                }
                new
            },
            // SAFETY: GlobalAlloc's contract is System's.
            None => unsafe { System.realloc(block, layout, new_size) },
        }
    }
}

/// Places a block of alignment `align` inside `base`, with `base` itself written right before it.
///
/// # Safety
/// `base` is null or has room for the header, the alignment and the block.
unsafe fn align_up(base: *mut u8, align: usize) -> *mut u8 {
    if base.is_null() {
        return base;
    }
    // SAFETY: at most HEADER + align - 1 bytes are skipped, which the caller allocated besides the
    // block.
    unsafe {
        let past = base.add(HEADER);
        let block = past.add(past.align_offset(align));
        block.cast::<*mut c_void>().sub(1).write_unaligned(base.cast());
        block
    }
}
