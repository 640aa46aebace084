//! Tests of what the families have in common, and what their tests share.

pub mod folding;
pub mod golden;
mod whole;

use crate::engine::journal::Journal;
use crate::engine::object::Family;
use crate::engine::time::Micros;
use std::cell::Cell;

/// A journal whose numbers go on from those of the journals before it, as on a server.
pub fn journal(family: Family, carry: bool) -> Journal {
    thread_local!(static LAST: Cell<u64> = const { Cell::new(0) });
    fn draw(now: Micros) -> u64 {
        LAST.with(|last| {
            last.set((last.get() + 1).max(now.unsigned_abs()));
            last.get()
        })
    }
    Journal::drawing(family, carry, draw)
}
