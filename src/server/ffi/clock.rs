//! The system's clocks. Asked directly, as every command does.

use crate::engine::time::Micros;

/// The wall clock, in unix µs.
#[inline]
pub fn wall() -> Micros {
    read(libc::CLOCK_REALTIME)
}

/// A clock that nobody steps, from any instant (µs).
#[inline]
pub fn monotonic() -> Micros {
    read(libc::CLOCK_MONOTONIC)
}

#[inline]
fn read(clock: libc::clockid_t) -> Micros {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both clocks exist on every system the servers run on, and `at` is ours to be written.
    unsafe { libc::clock_gettime(clock, &mut at) };
    at.tv_sec.saturating_mul(1_000_000).saturating_add(at.tv_nsec / 1_000)
}
