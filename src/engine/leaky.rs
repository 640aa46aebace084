//! The arithmetic of one leaky bucket, a shaper: exact integers, no clock, no key. `LB` and the
//! stages of `GATE` reckon with it.
//!
//! A bucket that holds `capacity` leaks `tokens` every `period`. What is inside counts in units of
//! 1/`period in µs`, so that `tokens` units leak a µs (see [`super::bucket`]).
//!
//! Invariants:
//! - `0 <= inside <= 10¹²` as units inside stay, also above a smaller capacity; below 2⁸⁵ units.
//! - The clock may step back: more is inside then by the step × rate, up to the larger of the
//!   capacity and what was inside; what was empty is empty.

use super::bucket::{Limits, MAX_COUNT, div_floor};
use super::codec::Corrupt;
use super::time::{MAX_INSTANT, Micros};

/// See the head of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaky {
    limits: Limits,
    inside: i128,
    at: Micros,
}

impl Leaky {
    /// An empty bucket: the same as an absent one.
    pub const fn new(limits: Limits) -> Self {
        Self { limits, inside: 0, at: 0 }
    }

    /// A bucket whose state the caller vouches for.
    pub(crate) const fn plain(limits: Limits, inside: i128, at: Micros) -> Self {
        Self { limits, inside, at }
    }

    /// A bucket of known state, from an effect or snapshot nobody vouches for.
    pub fn restore(limits: Limits, inside: i128, at: Micros) -> Result<Self, Corrupt> {
        let limits = limits.check()?;
        if !(0..=limits.units(MAX_COUNT)).contains(&inside) {
            return Err(Corrupt("level out of range"));
        }
        if !(0..=MAX_INSTANT).contains(&at) {
            return Err(Corrupt("instant out of range"));
        }
        Ok(Self { limits, inside, at })
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Units inside at [`Leaky::at`].
    pub fn inside(&self) -> i128 {
        self.inside
    }

    pub fn at(&self) -> Micros {
        self.at
    }

    fn leaked(&self, from: Micros, to: Micros) -> i128 {
        i128::from(self.limits.rate()) * i128::from(to - from)
    }

    fn raw(&self, now: Micros) -> i128 {
        if now >= self.at {
            return (self.inside - self.leaked(self.at, now)).max(0);
        }
        if self.inside == 0 {
            return 0;
        }
        (self.inside + self.leaked(now, self.at)).min(self.inside.max(self.limits.full()))
    }

    pub fn is_empty(&self, now: Micros) -> bool {
        self.raw(now) == 0
    }

    /// Whether a step back of the clock has put more inside than fits: a write repairs that.
    pub fn is_ahead(&self, now: Micros) -> bool {
        now < self.at
            && self.inside > 0
            && self.inside + self.leaked(now, self.at) > self.inside.max(self.limits.full())
    }

    /// Makes the state one of the instant `now`; says the same as before.
    pub fn bring(&mut self, now: Micros) {
        self.inside = self.raw(now);
        self.at = now;
    }

    /// The bucket as it says at `now`.
    pub fn brought(&self, now: Micros) -> Self {
        let mut copy = *self;
        copy.bring(now);
        copy
    }

    /// Lets `tokens` in. The bucket must be [brought](Leaky::bring), and they must fit.
    pub fn admit(&mut self, tokens: i64) {
        self.inside += self.limits.units(tokens);
    }

    /// Takes `tokens` out again, as far as they are inside; returns the whole tokens taken out. The
    /// bucket must be brought.
    pub fn give_up(&mut self, tokens: i64) -> i64 {
        let back = self.limits.units(tokens).min(self.inside);
        self.inside -= back;
        self.whole(back)
    }

    fn whole(&self, units: i128) -> i64 {
        i64::try_from(div_floor(units, self.limits.unit())).unwrap_or(i64::MAX)
    }

    /// Whole units that still fit. The bucket must be brought.
    pub fn free(&self) -> i64 {
        self.whole(self.limits.full() - self.inside)
    }

    /// Whole units inside, rounded up. The bucket must be brought.
    pub fn held(&self) -> i64 {
        self.whole(self.inside + i128::from(self.limits.unit() - 1))
    }

    /// ms until all that is inside has leaked. The bucket must be brought.
    pub fn wait(&self) -> i64 {
        self.limits.ms_for(self.inside)
    }

    /// ms until `tokens` fit and their wait is within `maxwait`: 0 = now, -1 = never. The bucket
    /// must be brought.
    pub fn retry(&self, tokens: i64, maxwait_ms: Option<i64>) -> i64 {
        if tokens > self.limits.capacity() {
            return -1;
        }
        let over = self.inside + self.limits.units(tokens) - self.limits.full();
        let late = maxwait_ms.map_or(0, |most| self.limits.ms_wide(self.inside) - i128::from(most));
        i64::try_from(self.limits.ms_wide(over).max(late)).unwrap_or(i64::MAX)
    }

    /// The bucket with other limits from `now` on: the units inside are kept, rounded up to a unit
    /// of the new period.
    pub fn changed(&self, now: Micros, limits: Limits) -> Self {
        // Below 2⁸⁵ × 2⁴⁵ would not fit: whole tokens and the rest of one are carried over apart.
        let (old, new) = (i128::from(self.limits.unit()), i128::from(limits.unit()));
        let inside = self.raw(now);
        let (tokens, rest) = (inside / old, inside % old);
        Self { limits, inside: tokens * new + (rest * new + old - 1) / old, at: now }
    }

    /// The instant at which it will be empty if nobody comes, seen at `now`; cut at the largest.
    pub fn empty_at(&self, now: Micros) -> Micros {
        let us = super::bucket::div_ceil(self.raw(now), self.limits.rate());
        i64::try_from(i128::from(now) + us).unwrap_or(i64::MAX)
    }
}
