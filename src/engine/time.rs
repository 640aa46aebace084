//! Time inside the engine: instants and durations are whole microseconds, instants counted from the
//! unix epoch.
//!
//! Commands speak milliseconds. What comes in is multiplied, what goes out is rounded so that
//! waiting that long is enough.

/// An instant (µs since the unix epoch) or a duration (µs).
pub type Micros = i64;

/// One millisecond.
pub const MS: Micros = 1_000;

/// The longest duration an argument may give: 366 days, in ms.
pub const MAX_DURATION_MS: i64 = 31_622_400_000;

/// The latest instant an argument may give: the end of the year 9999, in unix ms.
pub const MAX_INSTANT_MS: i64 = 253_402_300_799_999;

/// The latest instant that may stand in an effect or a snapshot. Twice the latest argument leaves
/// room for sums, and no sum of two such values and a duration overflows.
pub const MAX_INSTANT: Micros = 2 * MAX_INSTANT_MS * MS;

/// A duration as a reply tells it: whole ms, rounded up, never below 0.
pub fn ceil_ms(us: Micros) -> i64 {
    if us <= 0 { 0 } else { (us - 1) / MS + 1 }
}

/// The same for a duration that was computed wide; cut at the largest integer a reply can hold.
pub fn ceil_ms_wide(us: i128) -> i64 {
    if us <= 0 { 0 } else { i64::try_from((us - 1) / i128::from(MS) + 1).unwrap_or(i64::MAX) }
}

/// An instant that lies behind, as a reply tells it (unix ms): rounded down, so it is never in the
/// future.
pub fn past_ms(at: Micros) -> i64 {
    at.div_euclid(MS)
}

/// An instant that lies ahead, as a reply tells it (unix ms): rounded up, so it is over once that
/// ms has come.
pub fn future_ms(at: Micros) -> i64 {
    at.div_euclid(MS) + i64::from(at.rem_euclid(MS) > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_round_up_and_instants_never_lie() {
        assert_eq!([-5, 0, 1, 999, 1000, 1001].map(ceil_ms), [0, 0, 1, 1, 1, 2]);
        assert_eq!([0, 1, 1000, 1001].map(ceil_ms_wide), [0, 1, 1, 2]);
        assert_eq!(ceil_ms_wide(i128::MAX), i64::MAX);
        assert_eq!((past_ms(1999), future_ms(1999)), (1, 2));
        assert_eq!((past_ms(2000), future_ms(2000)), (2, 2));
    }
}
