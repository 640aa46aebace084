//! One stage of a gate.

use super::MAX_NAME;
use crate::engine::bucket::{Bucket, Level, Limits, Policy};
use crate::engine::codec::Corrupt;
use crate::engine::codec::bytes;
use crate::engine::leaky::Leaky;
use crate::engine::shared::leases::check_setting;
use crate::engine::shared::pass::Name;
use crate::engine::time::Micros;
use serde::{Deserialize, Serialize};

/// What a stage is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Bucket,
    Leaky,
    Permits,
}

/// What a stage is set to. Durations in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Config {
    Bucket { limits: Limits, warmup: i64 },
    Leaky { limits: Limits },
    Permits { limit: i64, lease: i64 },
}

impl Config {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Bucket { .. } => Kind::Bucket,
            Self::Leaky { .. } => Kind::Leaky,
            Self::Permits { .. } => Kind::Permits,
        }
    }
}

/// The leases of the stage that gives permits are the gate's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Bucket(Bucket),
    Leaky(Leaky),
    Permits { limit: i64, lease_ms: i64 },
}

impl State {
    pub(super) fn kind(&self) -> Kind {
        self.config().kind()
    }

    pub(super) fn config(&self) -> Config {
        match *self {
            Self::Bucket(b) => Config::Bucket { limits: b.limits(), warmup: b.warmup_ms() },
            Self::Leaky(b) => Config::Leaky { limits: b.limits() },
            Self::Permits { limit, lease_ms } => Config::Permits { limit, lease: lease_ms },
        }
    }
}

/// A stage and how often it refused since the gate was set or loaded (which is not state).
#[derive(Debug, Clone)]
pub struct Stage {
    pub(super) name: Name,
    pub(super) state: State,
    pub(super) refused: i64,
}

impl Stage {
    /// A stage with this configuration from `now` on, that was `old` before.
    pub(super) fn configured(name: &[u8], config: Config, old: Option<&Self>, now: Micros) -> Self {
        let state = match (config, old.map(|o| o.state)) {
            (config, Some(old)) if config == old.config() => old,
            (Config::Bucket { limits, warmup }, Some(State::Bucket(b))) => {
                State::Bucket(b.changed(now, limits, warmup, Policy::Keep))
            }
            (Config::Bucket { limits, warmup }, _) => State::Bucket(Bucket::new(limits, warmup)),
            (Config::Leaky { limits }, Some(State::Leaky(b))) => State::Leaky(b.changed(now, limits)),
            (Config::Leaky { limits }, _) => State::Leaky(Leaky::new(limits)),
            (Config::Permits { limit, lease }, _) => State::Permits { limit, lease_ms: lease },
        };
        Self { name: name.into(), state, refused: old.map_or(0, |o| o.refused) }
    }

    /// Whether both are the same state.
    pub(super) fn equals(&self, other: &Self) -> bool {
        self.name == other.name && self.state == other.state
    }
}

/// A stage as it is carried.
#[derive(Serialize, Deserialize)]
struct Carried {
    #[serde(serialize_with = "serde_bytes::serialize", deserialize_with = "bytes")]
    name: Box<[u8]>,
    state: CarriedState,
}

/// The order of the variants is their wire number: new ones go to the end.
#[derive(Serialize, Deserialize)]
enum CarriedState {
    Bucket { limits: Limits, warmup: i64, units: i128, part: u64, at: Micros, ramp: Option<Micros> },
    Leaky { limits: Limits, inside: i128, at: Micros },
    Permits { limit: i64, lease_ms: i64 },
}

impl Serialize for Stage {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let state = match self.state {
            State::Bucket(b) => CarriedState::Bucket {
                limits: b.limits(),
                warmup: b.warmup_ms(),
                units: b.level().units,
                part: b.level().part,
                at: b.at(),
                ramp: b.ramp(),
            },
            State::Leaky(b) => CarriedState::Leaky { limits: b.limits(), inside: b.inside(), at: b.at() },
            State::Permits { limit, lease_ms } => CarriedState::Permits { limit, lease_ms },
        };
        Carried { name: (*self.name).into(), state }.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Stage {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let Carried { name, state } = Carried::deserialize(from)?;
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(D::Error::custom("stage name"));
        }
        let state = match state {
            CarriedState::Bucket { limits, warmup, units, part, at, ramp } => {
                Bucket::restore(limits, warmup, Level { units, part }, at, ramp).map(State::Bucket)
            }
            CarriedState::Leaky { limits, inside, at } => {
                Leaky::restore(limits, inside, at).map(State::Leaky)
            }
            CarriedState::Permits { limit, lease_ms } => {
                check_setting(limit, lease_ms).map(|()| State::Permits { limit, lease_ms })
            }
        };
        let state = state.map_err(|Corrupt(why)| D::Error::custom(why))?;
        Ok(Self { name: name.into(), state, refused: 0 })
    }
}
