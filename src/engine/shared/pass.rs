//! How a pass is judged: over the stages of one gate, or of several keys in one step.
//!
//! First every stage is *looked* at and says what it would do alone ([`Look`]); then all of them
//! are judged together ([`Pass`]); only then is a granted pass charged everywhere, or a refused one
//! leaves what a refusal may change.

use super::leases::Permits;
use crate::engine::bucket::Bucket;
use crate::engine::leaky::Leaky;
use crate::engine::time::{Micros, ceil_ms};
use std::sync::Arc;

/// The name of a stage as rows tell it.
pub type Name = Arc<[u8]>;

/// `limit, remaining, retry_after, wait, reset_after` of a stage.
pub type Row = [i64; 5];

/// What one stage says of a pass.
#[derive(Debug, Clone)]
pub struct Look {
    name: Name,
    /// ms until it would let the pass through, seen alone; 0: now, -1: never.
    retry: i64,
    wait: i64,
    /// The row if the pass as a whole is refused, and if it is granted.
    refused: Row,
    granted: Row,
    /// ms a permit's lease lasts, for a stage that gives one.
    lease_ms: Option<i64>,
}

impl Look {
    /// A token bucket, brought to now, that says `retry` of the cost.
    pub(crate) fn bucket(name: Name, bucket: &Bucket, cost: i64, retry: i64) -> Self {
        let limit = bucket.limits().capacity();
        let refused = [limit, bucket.remaining(), retry, 0, bucket.reset_after()];
        let mut granted = refused;
        if retry == 0 {
            let mut after = *bucket;
            after.charge(cost);
            granted = [limit, after.remaining(), 0, 0, after.reset_after()];
        }
        Self { name, retry, wait: 0, refused, granted, lease_ms: None }
    }

    /// A leaky bucket, brought to now.
    pub(crate) fn leaky(name: Name, bucket: &Leaky, cost: i64, maxwait_ms: Option<i64>) -> Self {
        let limit = bucket.limits().capacity();
        let (retry, wait) = (bucket.retry(cost, maxwait_ms), bucket.wait());
        let refused = [limit, bucket.free(), retry, wait, wait];
        let mut granted = refused;
        if retry == 0 {
            let mut after = *bucket;
            after.admit(cost);
            granted = [limit, after.free(), 0, wait, after.wait()];
        }
        Self { name, retry, wait, refused, granted, lease_ms: None }
    }

    /// A stage that gives one permit.
    pub(crate) fn permits(name: Name, permits: &Permits, limit: i64, lease_ms: i64, now: Micros) -> Self {
        let used = permits.used(now);
        let retry = ceil_ms(permits.wait(now, std::iter::empty(), 1, limit));
        let last = permits.last_end().map_or(0, |end| ceil_ms(end - now));
        Self {
            name,
            retry,
            wait: 0,
            refused: [limit, (limit - used).max(0), retry, 0, last],
            granted: [limit, (limit - used - 1).max(0), 0, 0, last],
            lease_ms: Some(lease_ms),
        }
    }

    /// The same stage as it looks to one behind another who looks at it as `first` and must wait:
    /// it refuses whom it refuses the first, at least as long, and nothing is free.
    pub(crate) fn behind(self, first: &Self) -> Self {
        let retry = if self.retry == -1 || first.retry == -1 { -1 } else { self.retry.max(first.retry) };
        let [limit, _, _, wait, reset] = self.refused;
        Self { retry, refused: [limit, 0, retry, wait, reset], ..self }
    }

    /// The row of a refused pass.
    pub fn row(&self) -> Row {
        self.refused
    }

    pub(crate) fn retry(&self) -> i64 {
        self.retry
    }

    /// Whether it gives a permit.
    pub fn gives_permit(&self) -> bool {
        self.lease_ms.is_some()
    }
}

/// The reply of PASS, MPASS and PEEK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
    /// The cost, or 0.
    pub granted: i64,
    /// ms: the longest of the leaky stages.
    pub wait: i64,
    /// ms: the longest of the refusing stages, -1 if one of them says never; 0 if granted.
    pub retry: i64,
    pub refused_by: Vec<Name>,
    pub receipt: Option<u64>,
    pub stages: Vec<(Name, Row)>,
}

impl Pass {
    /// Judges the looks of all stages. A granted pass has no receipt yet.
    pub fn judge(looks: &[Look], cost: i64) -> Self {
        let wait = looks.iter().map(|l| l.wait).max().unwrap_or(0);
        let refusing = || looks.iter().filter(|l| l.retry != 0);
        let granted = refusing().next().is_none();
        let never = refusing().any(|l| l.retry == -1);
        let retry = if never { -1 } else { refusing().map(|l| l.retry).max().unwrap_or(0) };
        let stages = looks.iter().map(|look| {
            if !granted {
                return (look.name.clone(), look.refused);
            }
            let [limit, remaining, retry, waited, reset] = look.granted;
            let lease = look.lease_ms.map_or(0, |ms| wait.saturating_add(ms));
            (look.name.clone(), [limit, remaining, retry, waited, reset.max(lease)])
        });
        Self {
            granted: if granted { cost } else { 0 },
            wait,
            retry,
            refused_by: refusing().map(|l| l.name.clone()).collect(),
            receipt: None,
            stages: stages.collect(),
        }
    }
}
