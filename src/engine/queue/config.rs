//! What a queue is configured with, and what it counts.
//!
//! Durations are µs; 0 means off for all but `lease`. `Settings` is the part of a configuration
//! that one `RQ.SET` gives.

use crate::engine::bucket::{Limits, MAX_COUNT};
use crate::engine::codec::Corrupt;
use crate::engine::collections::lazy::Blank;
use crate::engine::time::{MAX_DURATION_MS, MS, Micros};
use serde::{Deserialize, Serialize};

/// The longest duration, in µs.
pub const MAX_DURATION: Micros = MAX_DURATION_MS * MS;

/// How long a message that came back counted waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backoff {
    None,
    Fixed(Micros),
    /// `min(base × 2ⁿ⁻¹, max)` for the n-th time.
    Exp {
        base: Micros,
        max: Micros,
    },
}

impl Backoff {
    /// The wait of the n-th return; 0: none.
    pub fn wait(self, n: u64) -> Micros {
        match self {
            Self::None => 0,
            Self::Fixed(wait) => wait,
            Self::Exp { base, max } => {
                let doublings = u32::try_from(n.saturating_sub(1)).unwrap_or(u32::MAX).min(60);
                let wait = i128::from(base) << doublings;
                i64::try_from(wait).unwrap_or(i64::MAX).min(max)
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnFull {
    Reject,
    DropOld,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    pub lease: Micros,
    pub max_deliveries: u64,
    pub backoff: Backoff,
    pub max_len: u64,
    pub max_bytes: u64,
    pub on_full: OnFull,
    pub max_in_flight: u64,
    pub group_in_flight: u64,
    pub rate: Option<Limits>,
    pub group_rate: Option<Limits>,
    pub dedup: Micros,
    pub max_dead: u64,
    pub ttl: Micros,
    pub aging: Micros,
}

impl Config {
    pub const DEFAULT: Self = Self {
        lease: 30_000 * MS,
        max_deliveries: 16,
        backoff: Backoff::None,
        max_len: 0,
        max_bytes: 0,
        on_full: OnFull::Reject,
        max_in_flight: 0,
        group_in_flight: 0,
        rate: None,
        group_rate: None,
        dedup: 0,
        max_dead: 0,
        ttl: 0,
        aging: 0,
    };
}

impl Default for Config {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Blank for Config {
    const BLANK: &'static Self = &Self::DEFAULT;

    fn blank() -> Self {
        Self::DEFAULT
    }
}

impl Config {
    /// Checks a configuration that nobody vouches for.
    pub fn check(&self) -> Result<(), Corrupt> {
        let duration = |d: Micros, least: Micros| (least..=MAX_DURATION).contains(&d);
        let count = |n: u64| n <= MAX_COUNT.unsigned_abs();
        let durations =
            duration(self.lease, 1) && [self.dedup, self.ttl, self.aging].iter().all(|d| duration(*d, 0));
        let counts = [
            self.max_deliveries,
            self.max_len,
            self.max_bytes,
            self.max_in_flight,
            self.group_in_flight,
            self.max_dead,
        ];
        let backoff = match self.backoff {
            Backoff::None => true,
            Backoff::Fixed(wait) => duration(wait, 1),
            Backoff::Exp { base, max } => duration(base, 1) && duration(max, base),
        };
        if !durations || !backoff || !counts.into_iter().all(count) {
            return Err(Corrupt("configuration out of range"));
        }
        for limits in [self.rate, self.group_rate].into_iter().flatten() {
            limits.check()?;
        }
        Ok(())
    }
}

/// The options of one `RQ.SET`; None: stays as it is.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub lease: Option<Micros>,
    pub max_deliveries: Option<u64>,
    pub backoff: Option<Backoff>,
    pub max_len: Option<u64>,
    pub max_bytes: Option<u64>,
    pub on_full: Option<OnFull>,
    pub max_in_flight: Option<u64>,
    pub group_in_flight: Option<u64>,
    pub rate: Option<Option<Limits>>,
    pub group_rate: Option<Option<Limits>>,
    pub dedup: Option<Micros>,
    pub max_dead: Option<u64>,
    pub ttl: Option<Micros>,
    pub aging: Option<Micros>,
}

impl Settings {
    /// The configuration with these options changed.
    pub fn over(&self, old: &Config) -> Config {
        Config {
            lease: self.lease.unwrap_or(old.lease),
            max_deliveries: self.max_deliveries.unwrap_or(old.max_deliveries),
            backoff: self.backoff.unwrap_or(old.backoff),
            max_len: self.max_len.unwrap_or(old.max_len),
            max_bytes: self.max_bytes.unwrap_or(old.max_bytes),
            on_full: self.on_full.unwrap_or(old.on_full),
            max_in_flight: self.max_in_flight.unwrap_or(old.max_in_flight),
            group_in_flight: self.group_in_flight.unwrap_or(old.group_in_flight),
            rate: self.rate.unwrap_or(old.rate),
            group_rate: self.group_rate.unwrap_or(old.group_rate),
            dedup: self.dedup.unwrap_or(old.dedup),
            max_dead: self.max_dead.unwrap_or(old.max_dead),
            ttl: self.ttl.unwrap_or(old.ttl),
            aging: self.aging.unwrap_or(old.aging),
        }
    }
}

/// Messages by event, since the queue exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Totals {
    pub pushed: u64,
    pub delivered: u64,
    pub acked: u64,
    pub nacked: u64,
    pub timed_out: u64,
    pub requeued: u64,
    pub dead: u64,
    pub redriven: u64,
    pub dropped: u64,
    pub expired: u64,
    pub deleted: u64,
    pub replaced: u64,
    pub moved_in: u64,
    pub moved_out: u64,
}

impl Totals {
    /// The bits that any of them has: below a power of two exactly when all are.
    pub fn bits(&self) -> u64 {
        let came = self.pushed | self.moved_in | self.delivered | self.redriven;
        let back = self.nacked | self.timed_out | self.requeued | self.dead;
        let gone = self.acked | self.dropped | self.expired | self.deleted | self.replaced | self.moved_out;
        came | back | gone
    }

    /// What came in less what went out: the messages that must be there. None if that cannot be.
    pub fn held(&self) -> Option<u64> {
        let came = u128::from(self.pushed) + u128::from(self.moved_in);
        let went: u128 =
            [self.acked, self.expired, self.dropped, self.deleted, self.replaced, self.moved_out]
                .into_iter()
                .map(u128::from)
                .sum();
        u64::try_from(came.checked_sub(went)?).ok()
    }
}

/// How long pushes or claims are paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    Forever,
    /// Over at this instant.
    Until(Micros),
}

/// A pause as it is kept: an instant, 0 for none, `i64::MAX` for one without end.
pub const NO_PAUSE: Micros = 0;
pub const FOREVER: Micros = i64::MAX;

impl Pause {
    pub(super) fn kept(self) -> Micros {
        match self {
            Self::Forever => FOREVER,
            Self::Until(at) => at,
        }
    }

    pub(super) fn told(kept: Micros) -> Option<Self> {
        match kept {
            NO_PAUSE => None,
            FOREVER => Some(Self::Forever),
            at => Some(Self::Until(at)),
        }
    }
}
