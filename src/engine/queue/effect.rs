//! The changes a queue can undergo. `apply.rs` makes them, `wire.rs` carries them.
//!
//! All values are absolute: places, instants, claim numbers, turns and own numbers are in the
//! effect. A message is meant by its slot here; on the wire (see `wire.rs`) by its id or the number
//! of its death, which are the same on every server.

use super::config::{Config, Totals};
use super::message::{Id, Own, Place, Stage};
use super::tokens::Tokens;
use crate::engine::time::Micros;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A new place: ready at once, or delayed until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub at: Micros,
    pub delayed: bool,
    pub seq: u64,
    /// The turn of its lane, if the lane has no live message yet.
    pub turn: Option<u64>,
}

/// What becomes of the follower of a message that is live no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum After {
    /// There is none.
    None,
    /// Its TTL was over already.
    Expired,
    Enter(Entry),
}

/// Why a message in flight came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    Nack { counted: bool },
    Timeout,
    Requeue,
}

/// What happens to one message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step<'a> {
    /// In flight, and done.
    Ack {
        after: After,
    },
    /// Gone since its TTL is over: where it was, or (with a cause) as it came back.
    Expire {
        cause: Option<Cause>,
        after: After,
    },
    /// Came back once too often.
    Die {
        cause: Cause,
        #[serde(borrow, with = "serde_bytes")]
        reason: Cow<'a, [u8]>,
        at: Micros,
        number: u64,
        after: After,
    },
    /// Came back: ready, or delayed until `due`; to its own place, or a new one.
    Back {
        cause: Cause,
        #[serde(borrow, with = "serde_bytes")]
        reason: Option<Cow<'a, [u8]>>,
        due: Option<Micros>,
        place: Option<Place>,
    },
    /// Its delay is over.
    Due,
    Extend {
        deadline: Micros,
    },
    /// Gone to make room: a ready one with its follower, or a dead one.
    Drop,
    /// Gone by command, with its follower.
    Delete,
    /// Gone to another queue.
    Depart {
        after: After,
    },
    /// Dead, and made live again.
    Redrive {
        now: Micros,
        entry: Entry,
    },
}

impl Step<'_> {
    pub fn into_owned(self) -> Step<'static> {
        match self {
            Step::Ack { after } => Step::Ack { after },
            Step::Expire { cause, after } => Step::Expire { cause, after },
            Step::Die { cause, reason, at, number, after } => {
                Step::Die { cause, reason: Cow::Owned(reason.into_owned()), at, number, after }
            }
            Step::Back { cause, reason, due, place } => {
                Step::Back { cause, reason: reason.map(|r| Cow::Owned(r.into_owned())), due, place }
            }
            Step::Due => Step::Due,
            Step::Extend { deadline } => Step::Extend { deadline },
            Step::Drop => Step::Drop,
            Step::Delete => Step::Delete,
            Step::Depart { after } => Step::Depart { after },
            Step::Redrive { now, entry } => Step::Redrive { now, entry },
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    New,
    /// In place of the live one with its id, which is not in flight.
    Replace,
    /// Behind the one in flight with its id.
    Follow,
}

/// What the messages of one push have in common; the n-th has place `entry.seq + n`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Push<'a> {
    pub mode: Mode,
    pub now: Micros,
    /// Of a follower only `at` counts: when it is due, 0 for at once.
    pub entry: Entry,
    pub priority: u8,
    #[serde(borrow, with = "serde_bytes")]
    pub group: Option<Cow<'a, [u8]>>,
    pub own: Own,
    /// The id was the caller's.
    pub named: bool,
    /// Until when the id is taken from now on.
    pub window: Option<Micros>,
}

/// What the deliveries of one claim have in common; the n-th has the n-th claim number and turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim<'a> {
    pub now: Micros,
    /// The first claim number; None: NOACK.
    pub first: Option<u64>,
    pub turn: u64,
    #[serde(borrow, with = "serde_bytes")]
    pub consumer: Option<Cow<'a, [u8]>>,
    /// The level of the queue's bucket after it.
    pub level: Option<i128>,
}

/// One delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claimed {
    pub slot: u32,
    /// NOACK: not used.
    pub lease: Micros,
    /// The level of the group's bucket after it.
    pub level: Option<i128>,
    /// NOACK: what follows.
    pub after: After,
}

/// Which messages PURGE takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    Ready,
    Delayed,
    Dead,
    All,
}

/// Whatever is no message, at the head of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub config: Config,
    pub totals: Totals,
    pub next_id: u64,
    pub next_seq: u64,
    pub next_turn: u64,
    pub next_death: u64,
    pub last_claim: u64,
    pub paused_push: Micros,
    pub paused_claim: Micros,
    pub tokens: Option<Tokens>,
}

/// One checked change.
#[derive(Debug)]
pub enum Effect {
    Config {
        config: Box<Config>,
        now: Micros,
        tokens: Option<Tokens>,
    },
    /// New pauses of a group or the queue: None stays as it is.
    Pause {
        group: Option<Box<[u8]>>,
        push: Option<Micros>,
        claim: Option<Micros>,
    },
    Push {
        push: Push<'static>,
        messages: Vec<(Id, Box<[u8]>)>,
    },
    Claim {
        claim: Claim<'static>,
        items: Vec<Claimed>,
    },
    Steps(Vec<(u32, Step<'static>)>),
    Purge(Scope),
    EndWindow(u32),
    /// All windows that are over by then are gone.
    EndWindows {
        through: Micros,
    },
    /// All rates of groups that are full by then are gone.
    Refill {
        through: Micros,
    },
    /// The clock was found to have stepped back to here: levels of later instants are cut to what
    /// they say now.
    StepBack {
        now: Micros,
    },
    /// Places, turns and deaths are numbered anew, in the order they have.
    Renumber,
    /// Of a snapshot that was being loaded nothing more comes.
    CutOff,
    Arrive(Vec<Brought>),
    Header(Box<Header>),
    Lanes(Vec<LaneState<'static>>),
    Windows(Vec<(Id, Micros)>),
    Load(Vec<Brought>),
    /// Handed out with NOACK, and never received.
    Untake(Vec<Brought>),
}

/// A message, all of it but id and payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record<'a> {
    pub stage: Stage,
    pub priority: u8,
    #[serde(borrow, with = "serde_bytes")]
    pub group: Option<Cow<'a, [u8]>>,
    pub place: Place,
    pub pushed_at: Micros,
    pub own: Option<Own>,
    /// Deliveries, failures, timeouts.
    pub counters: [u32; 3],
    #[serde(borrow, with = "serde_bytes")]
    pub consumer: Option<Cow<'a, [u8]>>,
    #[serde(borrow, with = "serde_bytes")]
    pub reason: Option<Cow<'a, [u8]>>,
    pub owns_window: bool,
    /// The turn of its lane, when it is the first in it.
    pub turn: Option<u64>,
}

impl Record<'_> {
    pub fn into_owned(self) -> Record<'static> {
        let own = |text: Option<Cow<'_, [u8]>>| text.map(|t| Cow::Owned(t.into_owned()));
        Record {
            stage: self.stage,
            priority: self.priority,
            group: own(self.group),
            place: self.place,
            pushed_at: self.pushed_at,
            own: self.own,
            counters: self.counters,
            consumer: own(self.consumer),
            reason: own(self.reason),
            owns_window: self.owns_window,
            turn: self.turn,
        }
    }
}

/// A message as an effect brings it: record, id, payload.
pub type Brought = (Record<'static>, Id, Box<[u8]>);

/// What a group has besides messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneState<'a> {
    #[serde(borrow, with = "serde_bytes")]
    pub name: Cow<'a, [u8]>,
    pub paused_push: Micros,
    pub paused_claim: Micros,
    pub tokens: Option<Tokens>,
}

/// How far a load has come.
#[derive(Debug, Clone, Copy, Default)]
pub struct Loading {
    pub seq: u64,
    pub death: u64,
    /// How many messages are still to come.
    pub missing: u64,
}
