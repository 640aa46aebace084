//! The one counter of this server that numbers deliveries, permits and holds: a fencing token.
//!
//! Invariant: [`Fencing::draw`] never answers a number twice and always a larger one than any it has answered or was
//! [raised](Fencing::raise) to. Tied to the clock (µs) it also rises over a restart that lost its tail, as long as fewer
//! than a million numbers are drawn a second on average. Whoever loads or applies state with such numbers raises it.

use super::time::Micros;

#[derive(Debug, Default)]
pub struct Fencing {
    last: u64,
}

impl Fencing {
    pub const fn new() -> Self {
        Self { last: 0 }
    }

    /// The next number: `max(last + 1, now)`.
    pub fn draw(&mut self, now: Micros) -> u64 {
        self.last = self.last.saturating_add(1).max(u64::try_from(now).unwrap_or(0));
        self.last
    }

    /// Numbers up to and including `to` are taken.
    pub fn raise(&mut self, to: u64) {
        self.last = self.last.max(to);
    }

    pub fn last(&self) -> u64 {
        self.last
    }
}

/// The largest number an effect or snapshot may bring: far above any clock, far below where `draw` would run out.
pub const MAX_FENCE: u64 = 1 << 62;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rises_with_the_clock_and_without_it() {
        let mut f = Fencing::new();
        assert_eq!(f.draw(1_000), 1_000);
        assert_eq!(f.draw(500), 1_001);
        f.raise(5_000);
        f.raise(10);
        assert_eq!(f.draw(2_000), 5_001);
    }
}
