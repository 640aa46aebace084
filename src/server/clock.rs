//! The server's clock as the engine sees it: unix µs, or the frozen test clock of `SLUICE.CLOCK`.
//!
//! Only this file reads a clock.

use crate::engine::time::{MS, Micros};
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

/// The wall clock, whatever the test clock says.
#[inline]
pub fn wall() -> Micros {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on every system the servers run on, and `at` is ours to be written. Asked directly: every command does.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut at) };
    at.tv_sec.saturating_mul(1_000_000).saturating_add(at.tv_nsec / 1_000)
}

/// A clock that nobody steps, from any instant (µs): what the timer sleeps by, and what waits in real time are measured by.
#[inline]
pub fn monotonic() -> Micros {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as in `wall`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut at) };
    at.tv_sec.saturating_mul(1_000_000).saturating_add(at.tv_nsec / 1_000)
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
