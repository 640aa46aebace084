//! The small token bucket of a queue's RATE and of each group's GROUPRATE: only a level and its
//! instant, sixteen bytes fewer than a whole [`Bucket`](crate::engine::bucket::Bucket) for each of
//! many groups, since all groups share their limits.
//!
//! It follows the same rules: the level counts units of 1/`period in µs` token, nothing is rounded,
//! and before its own instant it is less by the step × rate, but not below 0, and what was full is
//! full. A bucket that is not there is full.
//!
//! Invariant: 0 <= level <= the limits' full level < 2⁸⁵.

use crate::engine::bucket::Limits;
use crate::engine::codec::Corrupt;
use crate::engine::time::{MAX_INSTANT, Micros};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    pub level: i128,
    pub at: Micros,
}

impl Tokens {
    pub fn full(limits: Limits, at: Micros) -> Self {
        Self { level: limits.full(), at }
    }

    /// The level at `now`.
    pub fn level(self, limits: Limits, now: Micros) -> i128 {
        let full = limits.full();
        if self.level >= full {
            return full;
        }
        let gained = i128::from(now.saturating_sub(self.at)) * i128::from(limits.rate());
        self.level.saturating_add(gained).clamp(0, full)
    }

    /// Whether a whole token is there.
    pub fn has_one(self, limits: Limits, now: Micros) -> bool {
        self.level(limits, now) >= i128::from(limits.unit())
    }

    /// The bucket after one token was taken at `now`.
    pub fn less_one(self, limits: Limits, now: Micros) -> Self {
        Self { level: (self.level(limits, now) - i128::from(limits.unit())).max(0), at: now }
    }

    /// The earliest instant at which a whole token is there; of a full bucket, its own.
    pub fn one_at(self, limits: Limits) -> Micros {
        if self.level >= limits.full() {
            return self.at;
        }
        self.reaches(i128::from(limits.unit()), limits)
    }

    /// The earliest instant at which it is full: the same as not there.
    pub fn full_at(self, limits: Limits) -> Micros {
        self.reaches(limits.full().max(self.level), limits)
    }

    /// When the level is, or was, this one.
    fn reaches(self, level: i128, limits: Limits) -> Micros {
        let rate = i128::from(limits.rate());
        // ⌈missing / rate⌉, also for what lies behind.
        let wait = -(self.level - level).div_euclid(rate);
        let wait = i64::try_from(wait).unwrap_or(if wait < 0 { i64::MIN } else { i64::MAX });
        self.at.saturating_add(wait)
    }

    /// Other limits from `now` on: the tokens there are kept, cut to the new capacity; a full
    /// bucket stays full.
    pub fn change(self, old: Limits, new: Limits, now: Micros) -> Self {
        let level = self.level(old, now);
        if level >= old.full() {
            return Self::full(new, now);
        }
        // level < 2⁸⁵ and a unit < 2⁴⁵ exceed 128 bits together: whole tokens and the rest of one
        // are converted apart.
        let (from, to) = (i128::from(old.unit()), i128::from(new.unit()));
        let level = (level / from) * to + (level % from) * to / from;
        Self { level: level.min(new.full()), at: now }
    }

    /// Checks a bucket that nobody vouches for.
    pub fn check(self, limits: Limits) -> Result<Self, Corrupt> {
        let level = (0..=limits.full()).contains(&self.level);
        if level && (0..=MAX_INSTANT).contains(&self.at) {
            Ok(self)
        } else {
            Err(Corrupt("rate out of range"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gains_exactly_and_told_instants_are_sharp() {
        let limits = Limits::new(2, 3, 10).unwrap();
        let mut t = Tokens::full(limits, 0).less_one(limits, 1_000).less_one(limits, 1_000);
        for _ in 0..50 {
            let one = t.one_at(limits);
            assert!(!t.has_one(limits, one - 1) && t.has_one(limits, one));
            t = t.less_one(limits, one);
        }
        assert_eq!(t.full_at(limits), t.at + (20_000 - t.level as i64 + 2) / 3);
        let early = Tokens { level: 25_000, at: 90_000 };
        let wide = Limits::new(9, 3, 10).unwrap();
        assert!(early.has_one(wide, 85_000) && !early.has_one(wide, 84_999) && early.one_at(wide) == 85_000);
        assert_eq!(t.level(limits, t.at - 1_000_000), 0);
        assert_eq!(Tokens::full(limits, 5_000).level(limits, 0), 20_000);
    }

    #[test]
    fn other_limits_keep_the_tokens() {
        let (a, b) = (Limits::new(10, 1, 1_000).unwrap(), Limits::new(4, 7, 30).unwrap());
        let t = Tokens { level: 2_500_000, at: 0 };
        assert_eq!(t.change(a, b, 0), Tokens { level: 75_000, at: 0 });
        assert_eq!(Tokens { level: 9_000_000, at: 0 }.change(a, b, 0), Tokens::full(b, 0));
        assert_eq!(Tokens::full(a, 0).change(a, b, 9), Tokens::full(b, 9));
    }
}
