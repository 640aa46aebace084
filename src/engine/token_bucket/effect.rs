//! The changes of a token bucket as they are carried: absolute, checked before they are applied.

use super::TokenBucket;
use crate::engine::bucket::{Bucket, Level, Limits, MAX_COUNT};
use crate::engine::codec::{Corrupt, instant};
use crate::engine::fencing::{FencingCounter, MAX_FENCE};
use crate::engine::time::Micros;
use serde::{Deserialize, Serialize};

/// One change. The order of the variants is their wire number: new ones go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// The level, under the limits there are, without a warm-up.
    Level { units: i128, at: Micros },
    /// Limits and level of an unpinned bucket.
    Begin { limits: Limits, units: i128, at: Micros },
    /// The level, where there is a warm-up.
    Warm { units: i128, part: u64, at: Micros, ramp: Option<Micros> },
    /// Everything about a pinned bucket but its ban and holds.
    Pinned { limits: Limits, warmup: i64, units: i128, part: u64, at: Micros, ramp: Option<Micros> },
    /// Takes are refused until then; 0: no longer.
    Ban { until: Micros },
    /// A hold was opened.
    Hold { id: u64, hold: Hold },
    /// A hold was closed, settled or over.
    Closed { id: u64 },
    /// Ban and holds are dropped; an unpinned bucket is as if it had never been.
    Reset,
}

/// An estimate that was taken and is to be settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    pub cost: i64,
    pub until: Micros,
    /// Whether it is put back if nobody settles it.
    pub refund: bool,
}

impl Effect {
    /// Whether it may be applied to `to`.
    pub(super) fn check(&self, to: &TokenBucket, fencing: &mut FencingCounter) -> Result<(), Corrupt> {
        match *self {
            Self::Level { units, at } => {
                let bucket = to.bucket().ok_or(Corrupt("a level without limits"))?;
                if bucket.warmup_ms() != 0 {
                    return Err(Corrupt("a level without its warm-up"));
                }
                Bucket::restore(bucket.limits(), 0, Level::whole(units), at, None).map(drop)
            }
            Self::Begin { limits, units, at } => {
                if to.pinned() {
                    return Err(Corrupt("limits of a pinned bucket"));
                }
                Bucket::restore(limits, 0, Level::whole(units), at, None).map(drop)
            }
            Self::Warm { units, part, at, ramp } => {
                let bucket = to.bucket().ok_or(Corrupt("a level without limits"))?;
                Bucket::restore(bucket.limits(), bucket.warmup_ms(), Level { units, part }, at, ramp)
                    .map(drop)
            }
            Self::Pinned { limits, warmup, units, part, at, ramp } => {
                Bucket::restore(limits, warmup, Level { units, part }, at, ramp).map(drop)
            }
            Self::Ban { until } => instant(until),
            Self::Hold { id, hold } => {
                if id == 0 || id > MAX_FENCE || to.holds().is_some_and(|h| h.get(id).is_some()) {
                    return Err(Corrupt("hold id"));
                }
                if !(1..=MAX_COUNT).contains(&hold.cost) || to.bucket().is_none() {
                    return Err(Corrupt("hold"));
                }
                instant(hold.until)?;
                fencing.raise(id);
                Ok(())
            }
            Self::Closed { id } => {
                to.holds().and_then(|h| h.get(id)).map(drop).ok_or(Corrupt("closes an unknown hold"))
            }
            Self::Reset => Ok(()),
        }
    }
}
