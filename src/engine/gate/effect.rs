//! The changes of a gate as they are carried: absolute, checked before they are applied.

use super::stage::{Stage, State};
use super::{Gate, Kind, MAX_STAGES};
use crate::engine::bucket::{Bucket, Level};
use crate::engine::codec::Corrupt;
use crate::engine::fencing::FencingCounter;
use crate::engine::leaky::Leaky;
use crate::engine::shared::leases::{check_lease, check_receipt};
use crate::engine::time::Micros;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

/// One change. The order of the variants is their wire number: new ones go to the end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Effect {
    /// All stages with their levels. The leases go on if the stage that gives them keeps its name,
    /// else they are gone.
    Set {
        #[serde(deserialize_with = "few")]
        stages: Vec<Stage>,
    },
    /// The level of a token bucket.
    Bucket { stage: u8, units: i128, part: u64, at: Micros, ramp: Option<Micros> },
    /// What is inside a leaky bucket.
    Leaky { stage: u8, inside: i128, at: Micros },
    /// A lease begins.
    Granted { receipt: u64, until: Micros },
    /// A lease is over.
    Ended { receipt: u64 },
    /// Receipts up to this one were given (snapshots only).
    Drawn { receipt: u64 },
}

/// Reads no more stages than a gate may have, and allocates for those only.
fn few<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Stage>, D::Error> {
    struct Few;
    impl<'de> Visitor<'de> for Few {
        type Value = Vec<Stage>;

        fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(to, "at most {MAX_STAGES} stages")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
            let mut stages = Vec::new();
            while let Some(stage) = from.next_element()? {
                if stages.len() == MAX_STAGES {
                    return Err(serde::de::Error::custom("too many stages"));
                }
                stages.push(stage);
            }
            Ok(stages)
        }
    }
    from.deserialize_seq(Few)
}

impl Effect {
    pub(super) fn bucket(stage: usize, bucket: &Bucket) -> Self {
        let Level { units, part } = bucket.level();
        Self::Bucket { stage: stage as u8, units, part, at: bucket.at(), ramp: bucket.ramp() }
    }

    /// Whether it may be applied to `to`.
    pub(super) fn check(&self, to: &Gate, fencing: &mut FencingCounter) -> Result<(), Corrupt> {
        let state =
            |stage: u8| to.stages.get(usize::from(stage)).map(|s| s.state).ok_or(Corrupt("unknown stage"));
        match self {
            Self::Set { stages } => {
                let twice = |(i, stage): (usize, &Stage)| {
                    let permits = |s: &Stage| s.state.kind() == Kind::Permits;
                    stages.iter().skip(i + 1).any(|s| s.name == stage.name || permits(s) && permits(stage))
                };
                if stages.is_empty() || stages.iter().enumerate().any(twice) {
                    return Err(Corrupt("stages"));
                }
                Ok(())
            }
            Self::Bucket { stage, units, part, at, ramp } => {
                let State::Bucket(b) = state(*stage)? else {
                    return Err(Corrupt("a stage of another kind"));
                };
                let level = Level { units: *units, part: *part };
                Bucket::restore(b.limits(), b.warmup_ms(), level, *at, *ramp).map(drop)
            }
            Self::Leaky { stage, inside, at } => {
                let State::Leaky(b) = state(*stage)? else {
                    return Err(Corrupt("a stage of another kind"));
                };
                Leaky::restore(b.limits(), *inside, *at).map(drop)
            }
            Self::Granted { receipt, until } => {
                if !to.gives_permits() {
                    return Err(Corrupt("a lease without a stage that gives one"));
                }
                check_lease(&to.permits, *receipt, 1, *until)?;
                fencing.raise(*receipt);
                Ok(())
            }
            Self::Ended { receipt } => {
                to.permits.get(*receipt).map(drop).ok_or(Corrupt("ends an unknown lease"))
            }
            Self::Drawn { receipt } => {
                check_receipt(*receipt)?;
                fencing.raise(*receipt);
                Ok(())
            }
        }
    }
}
