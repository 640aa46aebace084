//! The arithmetic of one token bucket: exact integers, no clock, no key. `TB`, the stages of
//! `GATE`, the subjects of `HOT` and the rates of a queue all reckon with it.
//!
//! A bucket of `capacity` tokens gains `tokens` every `period`. Its level is counted in *units* of
//! 1/`period in µs` token, so that it gains `tokens` units a µs and nothing is ever rounded. While
//! a warm-up goes on (see [`ramp`]) a level has a *part* of a unit besides.
//!
//! States: a level at an instant `at`; between changes only reckoned on, never stored. Below the
//! capacity the bucket is gaining; at the capacity it is full, since `at` or later; [`EVER`] as
//! `at` means: as long as anyone remembers. A bucket with a warm-up that has been full that long is
//! *cold*.
//!
//! Invariants:
//! - `-DEEPEST units <= level <= capacity`; the part is below [`Bucket::parts`] and 0 without a
//!   warm-up.
//! - The clock may step back (`now < at`): the level is then less by the step × rate, but not below
//!   min(0, level), and what was full is full.
//! - Bounds that keep all of it in `i128`: capacity, tokens <= 10¹² < 2⁴⁰, a period in µs < 2⁴⁵,
//!   hence a full bucket < 2⁸⁵ units; the deepest debt is 2¹²⁶; an instant's distance from another
//!   < 2⁶³, hence a gain < 2¹⁰³.

pub(crate) mod narrow;
mod ramp;
mod scale;
#[cfg(test)]
pub(crate) mod tests;

pub use scale::Policy;

use super::codec::Corrupt;
use super::time::{MAX_DURATION_MS, MAX_INSTANT, MS, Micros};
use serde::{Deserialize, Serialize};

/// The largest capacity, refill, cost or count an argument may give.
pub const MAX_COUNT: i64 = 1_000_000_000_000;

/// A debt is cut here (units; at least 10²⁴ tokens). Only a chain of `LEVEL SCALE` could pass it.
pub(crate) const DEEPEST: i128 = 1 << 126;

/// The instant at which a bucket became full that was never seen otherwise: before every instant of
/// any clock.
pub const EVER: Micros = -(1 << 61);

/// No limits were given, and none are known: the key is absent, or unpinned and says the same as
/// absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoLimits;

/// What a bucket is configured with: it holds `capacity` and gains (or leaks) `tokens` every
/// `period` ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    capacity: u64,
    tokens: u64,
    period: u64,
}

impl Limits {
    /// None if a value is out of range.
    pub const fn new(capacity: i64, tokens: i64, period_ms: i64) -> Option<Self> {
        if capacity < 1 || capacity > MAX_COUNT || tokens < 1 || tokens > MAX_COUNT {
            return None;
        }
        if period_ms < 1 || period_ms > MAX_DURATION_MS {
            return None;
        }
        Some(Self { capacity: capacity as u64, tokens: tokens as u64, period: period_ms as u64 })
    }

    /// Checks limits that nobody vouches for.
    pub fn check(self) -> Result<Self, Corrupt> {
        let valid = |n: u64, most: i64| n >= 1 && n <= most.unsigned_abs();
        if valid(self.capacity, MAX_COUNT)
            && valid(self.tokens, MAX_COUNT)
            && valid(self.period, MAX_DURATION_MS)
        {
            Ok(self)
        } else {
            Err(Corrupt("limits out of range"))
        }
    }

    pub const fn capacity(self) -> i64 {
        self.capacity as i64
    }

    pub const fn tokens(self) -> i64 {
        self.tokens as i64
    }

    pub const fn period_ms(self) -> i64 {
        self.period as i64
    }

    /// Units in a token: the period in µs.
    pub const fn unit(self) -> u64 {
        self.period * MS as u64
    }

    /// Units gained in a µs.
    pub const fn rate(self) -> u64 {
        self.tokens
    }

    /// `tokens` in units.
    pub const fn units(self, tokens: i64) -> i128 {
        tokens as i128 * self.unit() as i128
    }

    /// The units of a full bucket.
    pub const fn full(self) -> i128 {
        self.units(self.capacity as i64)
    }

    /// How long a full drain takes, in µs, cut at the largest.
    pub fn drain(self) -> Micros {
        i64::try_from(div_ceil(self.full(), self.tokens)).unwrap_or(i64::MAX)
    }

    /// Whole ms, rounded up, until `units` are gained or leaked at the whole rate; cut at the
    /// largest.
    pub(crate) fn ms_for(self, units: i128) -> i64 {
        i64::try_from(self.ms_wide(units)).unwrap_or(i64::MAX)
    }

    /// The same, not cut.
    pub(crate) fn ms_wide(self, units: i128) -> i128 {
        div_ceil(units, self.tokens * MS as u64)
    }

    /// Two words that hold the three values: what objects of which there are many keep.
    pub(crate) const fn pack(self) -> [u64; 2] {
        [self.capacity | (self.tokens << 40), (self.tokens >> 24) | (self.period << 16)]
    }

    /// The reverse of [`Limits::pack`]; None for two zeros.
    pub(crate) const fn unpack(words: [u64; 2]) -> Option<Self> {
        let [low, high] = words;
        let capacity = low & ((1 << 40) - 1);
        if capacity == 0 {
            return None;
        }
        let tokens = (low >> 40) | ((high & 0xffff) << 24);
        Some(Self { capacity, tokens, period: high >> 16 })
    }
}

/// The first whole ms (in µs) not before `at`: when a timer serves what is ready at `at`, as
/// replies and timers count in ms.
pub(crate) fn up_to_ms(at: Micros) -> Micros {
    if at <= 0 { at } else { ((at - 1) / MS * MS).saturating_add(MS) }
}

/// `⌈n / d⌉` for n > 0 (0 otherwise), with a division of one word in the usual case.
pub(crate) fn div_ceil(n: i128, d: u64) -> i128 {
    match u64::try_from(n) {
        Ok(n) => i128::from(n.div_ceil(d)),
        Err(_) if n <= 0 => 0,
        Err(_) => (n - 1) / i128::from(d) + 1,
    }
}

/// `⌊n / d⌋` for n > 0 (0 otherwise), likewise.
pub(crate) fn div_floor(n: i128, d: u64) -> i128 {
    match u64::try_from(n) {
        Ok(n) => i128::from(n / d),
        Err(_) if n <= 0 => 0,
        Err(_) => n / i128::from(d),
    }
}

/// An exact amount of tokens: units and a part of a unit, which counts in 1/[`Bucket::parts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Level {
    pub units: i128,
    pub part: u64,
}

impl Level {
    pub const fn whole(units: i128) -> Self {
        Self { units, part: 0 }
    }

    pub(crate) fn add(self, other: Self, parts: u64) -> Self {
        let part = self.part + other.part;
        if part >= parts {
            Self { units: self.units + other.units + 1, part: part - parts }
        } else {
            Self { units: self.units + other.units, part }
        }
    }

    pub(crate) fn sub(self, other: Self, parts: u64) -> Self {
        if self.part >= other.part {
            Self { units: self.units - other.units, part: self.part - other.part }
        } else {
            Self { units: self.units - other.units - 1, part: self.part + parts - other.part }
        }
    }

    /// The fewest units that are not less.
    pub(crate) fn ceil(self) -> i128 {
        self.units + i128::from(self.part > 0)
    }
}

/// A token bucket. See the head of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    limits: Limits,
    /// The warm-up in µs; 0: none.
    warmup: u64,
    level: Level,
    at: Micros,
    /// Since when the warm-up goes on; None: it is over or there is none.
    ramp: Option<Micros>,
}

impl Bucket {
    /// A bucket that has been full for ever: the same as an absent one; cold, if it has a warm-up.
    pub const fn new(limits: Limits, warmup_ms: i64) -> Self {
        let warmup = warmup_ms as u64 * MS as u64;
        Self { limits, warmup, level: Level::whole(limits.full()), at: EVER, ramp: None }
    }

    /// A bucket without a warm-up whose state the caller vouches for.
    pub(crate) const fn plain(limits: Limits, units: i128, at: Micros) -> Self {
        Self { limits, warmup: 0, level: Level::whole(units), at, ramp: None }
    }

    /// The same bucket with a warm-up and what goes with it.
    pub(crate) const fn warming(self, warmup_ms: i64, part: u64, ramp: Option<Micros>) -> Self {
        let level = Level { units: self.level.units, part };
        Self { warmup: warmup_ms as u64 * MS as u64, level, ramp, ..self }
    }

    /// The same bucket with another level, which may be any: what a booking waits for is reckoned
    /// so.
    pub(crate) const fn with_level(self, level: Level) -> Self {
        Self { level, ..self }
    }

    /// The same bucket, full and warm since `now`.
    pub(crate) const fn refilled(self, now: Micros) -> Self {
        Self { level: Level::whole(self.limits.full()), at: now, ramp: None, ..self }
    }

    /// A bucket of known state, from an effect or snapshot nobody vouches for.
    pub fn restore(
        limits: Limits,
        warmup_ms: i64,
        level: Level,
        at: Micros,
        ramp: Option<Micros>,
    ) -> Result<Self, Corrupt> {
        let limits = limits.check()?;
        if !(0..=MAX_DURATION_MS).contains(&warmup_ms) {
            return Err(Corrupt("warm-up out of range"));
        }
        let bucket = Self { level, at, ramp, ..Self::new(limits, warmup_ms) };
        let full = Level::whole(limits.full());
        if level > full || level.units < -DEEPEST || level.part >= bucket.parts() {
            return Err(Corrupt("level out of range"));
        }
        if !(at == EVER && level == full || (0..=MAX_INSTANT).contains(&at)) {
            return Err(Corrupt("instant out of range"));
        }
        if ramp.is_some_and(|u| warmup_ms == 0 || !(0..=MAX_INSTANT).contains(&u)) {
            return Err(Corrupt("warm-up out of range"));
        }
        Ok(bucket)
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    pub fn warmup_ms(&self) -> i64 {
        (self.warmup / MS as u64) as i64
    }

    pub fn level(&self) -> Level {
        self.level
    }

    pub fn at(&self) -> Micros {
        self.at
    }

    pub fn ramp(&self) -> Option<Micros> {
        self.ramp
    }

    /// How many parts make a unit: 3 × the warm-up in µs, at most 9.5 × 10¹³.
    pub(crate) fn parts(&self) -> u64 {
        if self.warmup == 0 { 1 } else { 3 * self.warmup }
    }

    fn full(&self) -> Level {
        Level::whole(self.limits.full())
    }

    /// What is gained from `from` to `to` (`from <= to`), the capacity left aside.
    pub(crate) fn gain(&self, from: Micros, to: Micros) -> Level {
        match self.ramp {
            None => Level::whole(i128::from(self.limits.rate()) * i128::from(to - from)),
            Some(start) => self.ramp_total(to - start).sub(self.ramp_total(from - start), self.parts()),
        }
    }

    /// The level at `now`, without cooling.
    fn raw(&self, now: Micros) -> Level {
        let full = self.full();
        if self.level >= full {
            return full;
        }
        if now >= self.at {
            return full.min(self.level.add(self.gain(self.at, now), self.parts()));
        }
        let less = self.level.sub(self.gain(now, self.at), self.parts());
        less.max(self.level.min(Level::default()))
    }

    pub fn is_full(&self, now: Micros) -> bool {
        self.raw(now) >= self.full()
    }

    /// Whether it has been full for its whole warm-up, so that the next take starts one.
    pub fn is_cold(&self, now: Micros) -> bool {
        if self.warmup == 0 {
            return false;
        }
        let then = now - self.warmup as i64;
        then >= self.at && self.level.add(self.gain(self.at, then), self.parts()) >= self.full()
    }

    /// Whether a step back of the clock has put the state further ahead than its level allows: a
    /// write repairs that.
    pub fn is_ahead(&self, now: Micros) -> bool {
        now < self.at
            && self.level < self.full()
            && self.level.sub(self.gain(now, self.at), self.parts()) < self.level.min(Level::default())
    }

    /// Makes the state one of the instant `now`. Says the same as before, but that a cold bucket
    /// starts its warm-up.
    pub fn bring(&mut self, now: Micros) {
        if self.is_cold(now) {
            let third = self.limits.capacity().unsigned_abs().div_ceil(3);
            self.level = Level::whole(i128::from(third) * i128::from(self.limits.unit()));
            self.ramp = Some(now);
        } else {
            self.level = self.raw(now);
            if self.ramp.is_some_and(|start| now - start >= self.warmup as i64) {
                self.ramp = None;
            }
        }
        self.at = now;
    }

    /// The bucket as it says at `now`.
    pub fn brought(&self, now: Micros) -> Self {
        let mut copy = *self;
        copy.bring(now);
        copy
    }

    /// Takes `tokens` out, whatever there is. The bucket must be [brought](Bucket::bring).
    pub fn charge(&mut self, tokens: i64) {
        self.level.units = (self.level.units - self.limits.units(tokens)).max(-DEEPEST);
    }

    /// Takes `tokens` out, but only down to one capacity of debt; returns the whole tokens taken.
    /// The bucket must be brought.
    pub fn charge_bounded(&mut self, tokens: i64) -> i64 {
        let floor = Level::whole(-self.limits.full());
        if self.level <= floor {
            return 0;
        }
        let before = self.level;
        let wanted = Level { units: before.units - self.limits.units(tokens), part: before.part };
        self.level = wanted.max(floor);
        self.whole(before.sub(self.level, self.parts()).units)
    }

    /// Puts `tokens` back, up to the capacity; returns the whole tokens put back. The bucket must
    /// be brought.
    pub fn put(&mut self, tokens: i64) -> i64 {
        let before = self.level;
        let wanted = Level { units: before.units + self.limits.units(tokens), part: before.part };
        self.level = wanted.min(self.full());
        self.whole(self.level.sub(before, self.parts()).units)
    }

    /// Takes out what there is; a debt stays. The bucket must be brought.
    pub fn empty(&mut self) {
        self.level = self.level.min(Level::default());
    }

    /// Whole tokens in some units >= 0.
    fn whole(&self, units: i128) -> i64 {
        i64::try_from(div_floor(units, self.limits.unit())).unwrap_or(i64::MAX)
    }

    /// Whether `tokens` are there. The bucket must be brought.
    pub fn has(&self, tokens: i64) -> bool {
        self.level.units >= self.limits.units(tokens)
    }

    /// Whole tokens there, 0 … capacity. The bucket must be brought.
    pub fn remaining(&self) -> i64 {
        self.whole(self.level.units)
    }

    /// Whole tokens of debt, rounded up. The bucket must be brought.
    pub fn debt(&self) -> i64 {
        i64::try_from(div_ceil(-self.level.units, self.limits.unit())).unwrap_or(i64::MAX)
    }

    /// µs from `at` until the level is `target`, rounded up; 0 if it is there.
    pub(crate) fn reach(&self, target: Level) -> i128 {
        if self.level >= target {
            return 0;
        }
        let need = target.sub(self.level, self.parts());
        match self.ramp {
            None => div_ceil(need.ceil(), self.limits.rate()),
            Some(start) => self.ramp_reach(self.at - start, need),
        }
    }

    /// Whole ms, rounded up, until there are `tokens` (which may be negative, and more than the
    /// capacity). The bucket must be brought.
    pub fn until(&self, tokens: i64) -> i64 {
        let target = Level::whole(self.limits.units(tokens));
        match self.ramp {
            None => self.limits.ms_for(target.sub(self.level, self.parts()).ceil()),
            Some(_) => super::time::ceil_ms_wide(self.reach(target)),
        }
    }

    /// ms until one more whole token is there; 0 when full. The bucket must be brought.
    pub fn next_after(&self) -> i64 {
        if self.level >= self.full() { 0 } else { self.until(self.remaining() + 1) }
    }

    /// ms until full; 0 when full. The bucket must be brought.
    pub fn reset_after(&self) -> i64 {
        self.until(self.limits.capacity())
    }

    /// The reply of TB. The bucket must be brought.
    pub fn six(&self, granted: i64, retry: i64) -> [i64; 6] {
        let remaining = self.remaining();
        let next = if self.level >= self.full() { 0 } else { self.until(remaining + 1) };
        [granted, self.limits.capacity(), remaining, retry, next, self.reset_after()]
    }

    /// Since when it has been full, if it is full at `now`.
    pub(crate) fn full_since(&self, now: Micros) -> Micros {
        if self.level >= self.full() || now < self.at {
            return self.at;
        }
        let since = i128::from(self.at) + self.reach(self.full());
        i64::try_from(since).unwrap_or(now).min(now)
    }

    /// The instant at which it will be full if nobody comes, seen at `now`; cut at the largest.
    pub fn full_at(&self, now: Micros) -> Micros {
        let brought = self.brought(now);
        i64::try_from(i128::from(now) + brought.reach(brought.full())).unwrap_or(i64::MAX)
    }
}
