//! The warm-up of a bucket: `s` µs after its start it has gained rate × (s/3 + s²/(3w)) up to s =
//! w, and the whole rate from then on (and, should the clock step back behind the start, the whole
//! rate before it).
//!
//! With `D = 3w` *parts* to a unit the gain rate × s(w + s)/D is exact as a pair (units, parts).
//! Bounds: w < 2⁴⁵ and s <= w, so s(w + s) < 2⁹²; a remainder below D < 2⁴⁷ times the rate < 2⁸⁷.
//! Nothing here leaves 128 bits.

use super::{Bucket, Level, div_ceil};

impl Bucket {
    /// The gain from the start of the warm-up to `s` µs after it; negative before it.
    pub(super) fn ramp_total(&self, s: i64) -> Level {
        let rate = i128::from(self.limits.rate());
        let w = self.warmup as i64;
        if s <= 0 {
            return Level::whole(rate * i128::from(s));
        }
        if s >= w {
            let whole = self.ramp_gain(w);
            return Level { units: whole.units + rate * i128::from(s - w), part: whole.part };
        }
        self.ramp_gain(s)
    }

    /// rate × s(w + s)/D for 0 <= s <= w.
    fn ramp_gain(&self, s: i64) -> Level {
        let (rate, d) = (u128::from(self.limits.rate()), u128::from(self.parts()));
        let s = u128::from(s.unsigned_abs());
        let square = s * (u128::from(self.warmup) + s);
        let rest = rate * (square % d);
        // Below 2⁸⁷, so it fits; the part is below D, which is one word.
        Level { units: (rate * (square / d) + rest / d) as i128, part: (rest % d) as u64 }
    }

    /// From `s` µs after the start on: the µs until `need` (> 0) more is gained, rounded up.
    pub(super) fn ramp_reach(&self, s: i64, need: Level) -> i128 {
        let rate = self.limits.rate();
        let goal = self.ramp_total(s).add(need, self.parts());
        let top = self.ramp_gain(self.warmup as i64);
        let reached = if goal <= Level::default() {
            // Still before the start: -⌊-goal / rate⌋.
            -super::div_floor(-goal.ceil(), rate)
        } else if goal <= top {
            self.ramp_inverse(goal)
        } else {
            i128::from(self.warmup) + div_ceil(goal.sub(top, self.parts()).ceil(), rate)
        };
        (reached - i128::from(s)).max(0)
    }

    /// The smallest s with rate × s(w + s)/D >= goal, for 0 < goal <= the gain of the whole
    /// warm-up.
    fn ramp_inverse(&self, goal: Level) -> i128 {
        let (rate, d, w) =
            (u128::from(self.limits.rate()), u128::from(self.parts()), u128::from(self.warmup));
        let units = goal.units.unsigned_abs();
        // s(w + s) must be at least ⌈(D × units + part) / rate⌉, taken apart so that no product
        // passes 2⁹³.
        let square = d * (units / rate) + (d * (units % rate) + u128::from(goal.part)).div_ceil(rate);
        let mut s = ((w * w + 4 * square).isqrt() - w) / 2;
        while s < w && s * (w + s) < square {
            s += 1; // at most twice: the root was rounded down
        }
        s as i128
    }
}
