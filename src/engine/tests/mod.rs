//! Tests of what the families have in common, and what their tests share.

pub mod folding;
pub mod golden;
mod hashing;
mod whole;

use crate::engine::family::Family;
use crate::engine::journal::Journal;
use crate::engine::time::Micros;
use std::cell::Cell;

thread_local!(static LAST: Cell<u64> = const { Cell::new(0) });

/// Numbers begin anew, as on a server that was just started.
pub fn no_numbers() {
    LAST.with(|last| last.set(0));
}

/// A journal whose numbers go on from those of the journals before it, as on a server.
pub fn journal(family: Family, carry: bool) -> Journal {
    fn draw(now: Micros) -> u64 {
        LAST.with(|last| {
            last.set((last.get() + 1).max(now.unsigned_abs()));
            last.get()
        })
    }
    Journal::drawing(family, carry, draw)
}
