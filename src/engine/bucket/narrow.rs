//! A bucket without a warm-up whose levels fit one word, as nearly all do: the same arithmetic as
//! [`Bucket`](super::Bucket)'s, several times as fast. What it cannot do (a clock that stepped
//! back, other limits) is left to that one; a test holds them equal.
//!
//! Bounds: a full bucket <= 2⁶¹ units and a level >= -2⁶¹, so that sums and differences of two stay
//! in a word.

use super::{Limits, Micros};
use crate::engine::time::MS;

const MOST: u64 = 1 << 61;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Narrow {
    limits: Limits,
    full: i64,
    level: i64,
}

impl Narrow {
    /// A full bucket; None if it does not fit.
    #[inline]
    pub(crate) fn full(limits: Limits) -> Option<Self> {
        let full = limits.capacity.checked_mul(limits.unit()).filter(|full| *full <= MOST)? as i64;
        Some(Self { limits, full, level: full })
    }

    /// The bucket that held `level` at `at`, brought to `now`; None if it does not fit or `now` is
    /// before.
    #[inline]
    pub(crate) fn brought(limits: Limits, level: i64, at: Micros, now: Micros) -> Option<Self> {
        let bucket = Self::full(limits)?;
        if now < at || level < -(MOST as i64) {
            return None;
        }
        if level >= bucket.full {
            return Some(bucket);
        }
        // A gain that does not fit fills any bucket: the deepest debt and the capacity together do.
        let gain =
            limits.rate().checked_mul((now - at).unsigned_abs()).and_then(|gain| i64::try_from(gain).ok());
        let level = gain.map_or(bucket.full, |gain| level.saturating_add(gain).min(bucket.full));
        Some(Self { level, ..bucket })
    }

    pub(crate) fn level(&self) -> i64 {
        self.level
    }

    pub(crate) fn is_full(&self) -> bool {
        self.level == self.full
    }

    /// µs until it is full, rounded up.
    #[inline]
    pub(crate) fn full_in(&self) -> Micros {
        (self.full - self.level).unsigned_abs().div_ceil(self.limits.rate()) as Micros
    }

    /// Takes the whole cost out if it is there; else answers how many ms that takes (-1: it never
    /// will be).
    #[inline]
    pub(crate) fn take(&mut self, cost: i64) -> Result<(), i64> {
        if cost > self.limits.capacity() {
            return Err(-1);
        }
        // At most the capacity, so it fits.
        let units = cost * self.limits.unit() as i64;
        if self.level < units {
            return Err(self.until(units));
        }
        self.level -= units;
        Ok(())
    }

    /// ms until the level is `units`, rounded up.
    #[inline]
    fn until(&self, units: i64) -> i64 {
        if self.level >= units {
            return 0;
        }
        (units - self.level).unsigned_abs().div_ceil(self.limits.rate() * MS as u64) as i64
    }

    /// The reply of TB.
    #[inline]
    pub(crate) fn six(&self, granted: i64, retry: i64) -> [i64; 6] {
        let unit = self.limits.unit() as i64;
        let remaining = self.level.max(0) / unit;
        let next = if self.is_full() { 0 } else { self.until((remaining + 1) * unit) };
        [granted, self.limits.capacity(), remaining, retry, next, self.until(self.full)]
    }
}
