//! A reliable queue: what a key of type `sluice-rq` holds.
//!
//! A message is ready, delayed or in flight (*live*), or dead; or it follows the one in flight with
//! its id. How one is kept is in [`message`], where it is found by its state in [`indexes`] and by
//! its id in [`lifecycle`] (own numbers in `numbers`, others in `index`), what lanes (groups)
//! and their seats are in [`lane`], what can happen in [`effect`], how that is carried in [`wire`],
//! the whole in [`snapshot`]. The commands decide: [`push`], [`claim`], [`ack`] (ACK, NACK, EXTEND,
//! REQUEUE), [`dead`] (REDRIVE, DEL, PURGE), [`settings`], [`moves`]; [`due`] does what time does;
//! [`view`] only looks.
//!
//! What is due may be *put off*: a command does a bounded part of it, and decides right about what
//! it meets of the rest (see [`due`]).
//!
//! A command may take several steps: each is decided on the state that the one before has left;
//! whatever could refuse the command as a whole is asked before the first.
//!
//! Costs: everything is O(log n) in messages and groups but what must touch each message it is
//! about (PURGE, a SET that makes many expire at once), LIST and MOVE READY over many groups (one
//! look at each group's first) and CONSUMER in REQUEUE (one look at each in flight).
//!
//! Invariants (checked by `audit` in tests): every message is in exactly the orders its state asks
//! for; counts are sums; live ids are unique; `next_*` are above all that is there.

mod ack;
mod apply;
mod claim;
mod config;
mod dead;
mod due;
mod effect;
mod effect_batch;
mod indexes;
mod lane;
mod lifecycle;
mod message;
mod moves;
mod object;
mod push;
mod renumber;
mod room;
mod settings;
mod snapshot;
#[cfg(test)]
mod tests;
mod tokens;
mod view;
mod windows;
mod wire;

pub use ack::{NackOptions, Receipted, Which};
pub use claim::{ClaimOptions, Delivery, Taken};
pub use config::{Backoff, Config, OnFull, Pause, Settings, Totals};
pub use effect::{Effect, Scope};
pub use message::{Id, IdRef, Receipt, State};

/// A list that mostly holds one element, for which nothing is allocated.
pub type Few<T> = smallvec::SmallVec<[T; 1]>;
pub use moves::Movable;
pub use push::{OnDup, PushOptions, Refusal};
pub use view::{Cursor, Info, View};

use super::collections::index::Index;
use super::collections::lazy::{Blank, Lazy};
use super::collections::names::Names;
use super::collections::numbers::Numbers;
use super::collections::order::Order;
use super::collections::ranked::Ranked;
use super::collections::slab::Slab;
use super::time::Micros;
use dead::Doomed;
use lane::Lanes;
use message::{Message, More};
use room::Over;
use std::collections::BTreeSet;
use tokens::Tokens;
use windows::Window;

impl Blank for Slab<Window> {
    const BLANK: &'static Self = &Self::new();

    fn blank() -> Self {
        Self::new()
    }
}

#[derive(Debug, Clone)]
pub struct Queue {
    config: Lazy<Config>,
    totals: Totals,
    /// Pushes refused on this server since the module was loaded: not state.
    rejected: u64,
    /// The queue's own bucket: there exactly when there is a RATE.
    tokens: Option<Box<Tokens>>,

    messages: Slab<Message>,
    more: Slab<More>,
    names: Names,
    /// Live messages by id: under numbers of the queue's own, and under what callers gave.
    numbers: Numbers,
    live: Lazy<Index>,
    /// The dead one of each id that died last; windows by id.
    dead: Lazy<Index>,
    windows: Lazy<Slab<Window>>,
    window_index: Lazy<Index>,
    window_ends: Lazy<Order<(Micros, u32)>>,

    lanes: Lanes,
    lane_index: Lazy<Index>,
    /// (busy, turn, lane) of the seated lanes; (instant, lane) of the parked ones.
    seats: Ranked<(u32, u64, u32)>,
    parked: Lazy<BTreeSet<(Micros, u32)>>,
    /// When each group's bucket is full: then it is forgotten.
    refills: Lazy<BTreeSet<(Micros, u32)>>,
    /// (instant, lane, of pushes) of each pause.
    pause_ends: Lazy<BTreeSet<(Micros, u32, bool)>>,

    /// (ready since, seq, lane, priority) of the first of each run.
    heads: Ranked<(Micros, u64, u32, u8)>,
    delayed: Lazy<Order<(Micros, u32)>>,
    deadlines: Lazy<Order<(Micros, u32)>>,
    claims: Lazy<Order<(u64, u32)>>,
    own_ttls: Lazy<Order<(Micros, u32)>>,
    default_ttls: Lazy<Order<(Micros, u32)>>,
    /// The messages from this slot on are yet to be entered into `default_ttls`: not state.
    unindexed: Option<u32>,
    /// No TTL of the queue's has been as it is before this instant: not state.
    ttl_since: Micros,
    deaths: Lazy<Order<(u64, u32)>>,
    doomed: Doomed,
    over: Over,

    ready: u64,
    ready_bytes: u64,
    followers: u64,
    groups: u64,
    bytes: u64,
    /// What messages, names and windows own on the heap.
    heap: usize,

    next_id: u64,
    /// No number from `next_id` on that a message or window ever had is above this one: not state.
    highest_given: u64,
    next_seq: u64,
    next_turn: u64,
    next_death: u64,
    /// The last claim number drawn here: no later one anywhere may be smaller, also when all its
    /// messages are gone.
    last_claim: u64,

    /// No bucket's level is of a later instant: else the clock has stepped back.
    latest_level: Micros,
    /// The number of the running command, or of the instant being settled: not state.
    epoch: u64,
    settled_to: Micros,
    /// Set while a snapshot is loaded.
    loading: Option<effect::Loading>,
    /// A total is so large that all begin anew.
    worn: bool,
}

impl Default for Queue {
    fn default() -> Self {
        Self::new()
    }
}

impl Queue {
    pub fn new() -> Self {
        Self {
            config: Lazy::new(),
            totals: Totals::default(),
            rejected: 0,
            tokens: None,
            messages: Slab::new(),
            more: Slab::new(),
            names: Names::new(),
            numbers: Numbers::new(),
            live: Lazy::new(),
            dead: Lazy::new(),
            windows: Lazy::new(),
            window_index: Lazy::new(),
            window_ends: Lazy::new(),
            lanes: Lanes::new(),
            lane_index: Lazy::new(),
            seats: Ranked::new(),
            parked: Lazy::new(),
            refills: Lazy::new(),
            pause_ends: Lazy::new(),
            heads: Ranked::new(),
            delayed: Lazy::new(),
            deadlines: Lazy::new(),
            claims: Lazy::new(),
            own_ttls: Lazy::new(),
            default_ttls: Lazy::new(),
            unindexed: None,
            ttl_since: Micros::MIN,
            deaths: Lazy::new(),
            doomed: Doomed::default(),
            over: Over::default(),
            ready: 0,
            ready_bytes: 0,
            followers: 0,
            groups: 0,
            bytes: 0,
            heap: 0,
            next_id: 1,
            highest_given: 0,
            next_seq: 1,
            next_turn: 1,
            next_death: 1,
            last_claim: 0,
            latest_level: 0,
            epoch: 1,
            settled_to: 0,
            loading: None,
            worn: false,
        }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A new command begins: groups that the last one emptied have lost their turn.
    fn begin_command(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        // What is settled after it is another instant, or comes as if it were.
        self.settled_to = Micros::MIN;
    }

    /// The queue's own bucket.
    fn own_tokens(&self) -> Option<Tokens> {
        self.tokens.as_deref().copied()
    }

    fn set_own_tokens(&mut self, tokens: Option<Tokens>) {
        match (&mut self.tokens, tokens) {
            (Some(kept), Some(tokens)) => **kept = tokens,
            (kept, tokens) => *kept = tokens.map(Box::new),
        }
    }

    /// No message is left: parts that only messages need are given back.
    fn slim(&mut self) {
        self.live.give_back(|_| false);
        self.dead.give_back(|_| false);
        self.delayed.give_back(|_| false);
        self.own_ttls.give_back(|_| false);
        self.default_ttls.give_back(|_| false);
        self.deaths.give_back(|_| false);
        self.heads.give_back();
        self.seats.give_back();
    }

    /// Whether the messages that must be there are there.
    fn adds_up(&self) -> bool {
        self.totals.held() == Some(self.messages.len() as u64)
    }

    /// Whether it is a snapshot of which messages are still to come.
    fn is_torso(&self) -> bool {
        self.loading.is_some_and(|loading| loading.missing > 0)
    }

    /// Whether nothing was ever recorded here.
    fn is_blank(&self) -> bool {
        self.next_seq == 1
            && self.next_id == 1
            && self.next_death == 1
            && self.messages.len() == 0
            && self.windows.len() == 0
            && self.lanes.groups() == 0
            && self.pause_ends.is_empty()
            && *self.config == Config::DEFAULT
            && self.totals == Totals::default()
            && self.loading.is_none()
    }
}
