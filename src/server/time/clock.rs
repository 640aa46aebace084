//! The server's clock as the engine sees it: unix µs, or the frozen test clock of `SLUICE.CLOCK`.
//!
//! Only this file reads the clock for decisions.

use crate::engine::time::{MS, Micros};
pub use crate::server::ffi::clock::{monotonic, wall};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// The instant at which the test clock stands, or [`RUNNING`].
static FROZEN: AtomicI64 = AtomicI64::new(RUNNING);
const RUNNING: i64 = i64::MIN;

/// The latest instant ever told, to notice steps back.
static LATEST: AtomicI64 = AtomicI64::new(0);

/// Steps back of the wall clock by a millisecond or more, since the module was loaded.
pub static STEPS_BACK: AtomicU64 = AtomicU64::new(0);

/// Now, as everything in the module sees it.
#[inline]
pub fn now() -> Micros {
    match FROZEN.load(Ordering::Relaxed) {
        RUNNING => {
            let now = wall();
            let latest = LATEST.load(Ordering::Relaxed);
            if now < latest {
                if latest - now >= MS {
                    STEPS_BACK.fetch_add(1, Ordering::Relaxed);
                    LATEST.store(now, Ordering::Relaxed);
                }
            } else {
                LATEST.store(now, Ordering::Relaxed);
            }
            now
        }
        frozen => frozen,
    }
}

pub fn frozen() -> bool {
    FROZEN.load(Ordering::Relaxed) != RUNNING
}

pub fn freeze(at: Micros) {
    FROZEN.store(at.max(0), Ordering::Relaxed);
}

pub fn run() {
    FROZEN.store(RUNNING, Ordering::Relaxed);
}
