//! What a change of limits does to the level.
//!
//! The tokens there are kept (or added to, scaled, or filled: [`Policy`]), rounded down to a unit
//! of the new period and cut to the new capacity; a full bucket stays full, a debt stays.

use super::{Bucket, DEEPEST, Level, Limits};
use crate::engine::time::Micros;

/// `LEVEL` of `TB.SET`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    Keep,
    Add,
    Scale,
    Full,
}

impl Bucket {
    /// The bucket with other limits from `now` on.
    pub fn changed(&self, now: Micros, limits: Limits, warmup_ms: i64, policy: Policy) -> Self {
        let mut new = Self::new(limits, warmup_ms);
        if policy == Policy::Full {
            new.at = now;
        } else if self.is_full(now) {
            new.at = self.full_since(now);
        } else {
            new.level = Level::whole(self.converted(self.raw(now), limits, policy).min(limits.full()));
            new.at = now;
            // A warm-up goes on if it is not over by either measure.
            let shorter = self.warmup.min(new.warmup) as i64;
            new.ramp = self.ramp.filter(|start| shorter > 0 && now - start < shorter);
        }
        new
    }

    /// A level of this bucket as `policy` carries it over to other limits, in their units, rounded
    /// down, not cut to the capacity.
    pub(crate) fn converted(&self, level: Level, limits: Limits, policy: Policy) -> i128 {
        let (from, to) = (self.limits.capacity().unsigned_abs(), limits.capacity().unsigned_abs());
        let (scale_to, scale_from) = if policy == Policy::Scale { (to, from) } else { (1, 1) };
        let kept = ratio(
            level,
            self.parts(),
            [limits.unit(), scale_to],
            [self.parts(), self.limits.unit(), scale_from],
        );
        let more = if policy == Policy::Add && to > from { limits.units((to - from) as i64) } else { 0 };
        kept.clamp(-DEEPEST, DEEPEST) + more
    }
}

/// ⌊(units × parts + part) × times / over⌋, cut to ±`i128::MAX`. The product stays below
/// 2¹²⁷⁺⁴⁷⁺⁴⁵⁺⁴⁰ = 2²⁵⁹.
fn ratio(level: Level, parts: u64, times: [u64; 2], over: [u64; 3]) -> i128 {
    // A negative level as -(units × parts - part) keeps the part positive in the magnitude.
    let negative = level.units < 0;
    let mut wide = Wide::from(level.units.unsigned_abs());
    wide.multiply(parts);
    if negative {
        wide.subtract(level.part);
    } else {
        wide.add(level.part);
    }
    for factor in times {
        wide.multiply(factor);
    }
    let mut rest = false;
    for divisor in over {
        rest |= wide.divide(divisor);
    }
    let magnitude = wide.low();
    if negative { -magnitude.saturating_add(i128::from(rest)) } else { magnitude }
}

/// An unsigned integer of 320 bits, least word first.
struct Wide([u64; 5]);

impl Wide {
    fn from(n: u128) -> Self {
        Self([n as u64, (n >> 64) as u64, 0, 0, 0])
    }

    fn multiply(&mut self, factor: u64) {
        let mut carry = 0u128;
        for word in &mut self.0 {
            let product = u128::from(*word) * u128::from(factor) + carry;
            *word = product as u64;
            carry = product >> 64;
        }
    }

    fn add(&mut self, n: u64) {
        let mut carry = n;
        for word in &mut self.0 {
            let (sum, over) = word.overflowing_add(carry);
            *word = sum;
            carry = u64::from(over);
        }
    }

    fn subtract(&mut self, n: u64) {
        let mut borrow = n;
        for word in &mut self.0 {
            let (difference, under) = word.overflowing_sub(borrow);
            *word = difference;
            borrow = u64::from(under);
        }
    }

    /// Divides, rounding down; returns whether anything was left over.
    fn divide(&mut self, divisor: u64) -> bool {
        let divisor = u128::from(divisor.max(1));
        let mut rest = 0u128;
        for word in self.0.iter_mut().rev() {
            let part = (rest << 64) | u128::from(*word);
            *word = (part / divisor) as u64;
            rest = part % divisor;
        }
        rest > 0
    }

    /// The value, cut to `i128::MAX`.
    fn low(&self) -> i128 {
        let [a, b, above @ ..] = self.0;
        let low = u128::from(a) | (u128::from(b) << 64);
        if above != [0; 3] { i128::MAX } else { i128::try_from(low).unwrap_or(i128::MAX) }
    }
}
