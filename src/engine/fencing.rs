//! The one counter of this server that numbers deliveries, permits and holds: a fencing token.
//!
//! Invariant: [`FencingCounter::draw`] never returns a number twice and always a larger one than
//! any it has answered or was [raised](FencingCounter::raise) to. Tied to the clock (µs) it also
//! rises over a restart that lost its tail, as long as fewer than a million numbers are drawn a
//! second on average.
//!
//! What is read from bytes is *gathered* in a counter of its own ([`FencingCounter::gather`]) and
//! counts for the server's only when the object has been checked as a whole: bytes that are refused
//! leave no trace.
//!
//! How far the counter is ahead of the clock is what a loss of data must not hide. So it is saved
//! together with the clock ([`Mark`]): whoever reads that later knows that by then it was no
//! further ahead ([`FencingCounter::resume`]).

use super::time::Micros;

#[derive(Debug)]
pub struct FencingCounter {
    last: u64,
    /// The largest number that may be gathered.
    most: u64,
}

/// The largest number an effect or snapshot may bring: far above any clock, far below where `draw`
/// would run out.
pub const MAX_FENCE: u64 = 1 << 62;

/// How far ahead of the clock a number may be that a client brings. Far more than clocks of servers
/// differ and restarts add up to, far less than what would use up numbers.
pub const MOST_AHEAD: Micros = 24 * 3_600 * 1_000_000;

/// What is added at load and at promotion: by as much may the clock here be behind another
/// server's, less what is lost of a tail.
pub const MARGIN: u64 = 6_000_000;

/// Where the counter stood, and the clock that it was read by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub last: u64,
    pub at: Micros,
}

impl Mark {
    /// How far the counter was ahead of the clock.
    pub fn lead(self) -> u64 {
        self.last.saturating_sub(unsigned(self.at))
    }
}

fn unsigned(at: Micros) -> u64 {
    u64::try_from(at).unwrap_or(0)
}

impl Default for FencingCounter {
    fn default() -> Self {
        Self::new()
    }
}

impl FencingCounter {
    pub const fn new() -> Self {
        Self::gather(MAX_FENCE)
    }

    /// For what bytes bring: no number of theirs may be above `most`.
    pub const fn gather(most: u64) -> Self {
        Self { last: 0, most }
    }

    /// The next number: `max(last + 1, now)`.
    pub fn draw(&mut self, now: Micros) -> u64 {
        self.last = self.last.saturating_add(1).max(unsigned(now));
        self.last
    }

    /// Numbers up to and including `to` are taken.
    pub fn raise(&mut self, to: u64) {
        self.last = self.last.max(to);
    }

    /// The last number given or heard of; 0: none ever.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The largest number that may be gathered.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Whether no number gathered is above what may be.
    pub fn is_near(&self) -> bool {
        self.last <= self.most
    }

    /// The largest number that may be gathered from a client. What was drawn here is never refused
    /// here.
    pub fn most_of_client(&self, now: Micros) -> u64 {
        self.last.max(unsigned(now.saturating_add(MOST_AHEAD))).min(MAX_FENCE)
    }

    pub fn mark(&self, now: Micros) -> Mark {
        Mark { last: self.last, at: now }
    }

    /// Goes on where others may have drawn what is not known here: a process that lost its tail, or
    /// a master that is gone. None of them was further ahead of the clock than `mark` says, or than
    /// what was heard of since. Of two that go on from the same data, the later goes on higher, as
    /// its clock does. A counter that never gave a number stays as it is.
    pub fn resume(&mut self, mark: Option<Mark>, now: Micros) {
        if self.last == 0 && mark.is_none() {
            return;
        }
        if let Some(mark) = mark {
            self.raise(mark.last.saturating_add(unsigned(now.saturating_sub(mark.at))).min(MAX_FENCE));
        }
        self.raise(unsigned(now));
        self.last = self.last.saturating_add(MARGIN).min(self.last.max(MAX_FENCE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Micros = 1_000_000;

    #[test]
    fn rises_with_the_clock_and_without_it() {
        let mut f = FencingCounter::new();
        assert_eq!(f.draw(1_000), 1_000);
        assert_eq!(f.draw(500), 1_001);
        f.raise(5_000);
        f.raise(10);
        assert_eq!(f.draw(2_000), 5_001);
    }

    #[test]
    fn a_counter_that_never_gave_a_number_is_not_raised() {
        let mut f = FencingCounter::new();
        f.resume(None, 1_000 * S);
        assert_eq!((f.last(), f.draw(1_000 * S)), (0, 1_000 * S as u64));
    }

    /// A server that loads the same data again and again, as each life loses all it wrote.
    #[test]
    fn of_two_that_go_on_from_the_same_data_the_later_is_higher() {
        let saved = Mark { last: 2_000 * S as u64, at: 1_000 * S };
        let life = |now: Micros| {
            let mut f = FencingCounter::new();
            f.raise(1_999 * S as u64);
            f.resume(Some(saved), now);
            f
        };
        let mut first = life(1_001 * S);
        let drawn = (0..1_000).map(|_| first.draw(1_001 * S)).last().unwrap();
        let second = life(1_001 * S + 2_000).draw(1_001 * S + 2_000);
        assert!(second > drawn, "{second} after {drawn}");
        // Ahead of the clock by what it was, not by how long it was down.
        assert!(life(9_000 * S).last() <= (9_000 + 1_000 + 6) as u64 * S as u64);
    }

    #[test]
    fn one_whose_clock_is_behind_goes_on_above() {
        // A master ahead of the clock by two seconds, whose last words were lost; here it is five
        // seconds earlier.
        let mark = Mark { last: 1_002 * S as u64, at: 1_000 * S };
        for elapsed in [0, 1, 4, 6, 60] {
            let lost = (1_002 + elapsed) as u64 * S as u64;
            let mut f = FencingCounter::new();
            f.resume(Some(mark), (1_000 + elapsed - 5) * S);
            assert!(f.draw(0) > lost, "{elapsed} s later");
        }
    }

    #[test]
    fn an_hour_back_is_no_step_back_for_the_counter() {
        let mut f = FencingCounter::new();
        f.raise(10_000 * S as u64);
        f.resume(Some(Mark { last: 9_000 * S as u64, at: 9_000 * S }), 6_400 * S);
        assert_eq!(f.draw(6_400 * S), 10_000 * S as u64 + MARGIN + 1);
    }

    #[test]
    fn what_a_client_brings_is_near_the_clock_or_was_drawn_here() {
        let mut f = FencingCounter::new();
        let near = f.most_of_client(1_000 * S);
        assert_eq!(near, (1_000 * S + MOST_AHEAD) as u64);
        f.raise(near);
        let drawn = f.draw(1_000 * S);
        let mut gathered = FencingCounter::gather(f.most_of_client(1_000 * S));
        gathered.raise(drawn);
        assert!(gathered.is_near());
        gathered.raise(drawn + 1);
        assert!(!gathered.is_near());
    }
}
