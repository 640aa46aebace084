//! What one command changed, on its way to replicas and the AOF.
//!
//! The engine records each effect right before it applies it. When nobody listens (`carry` is
//! false) recording costs a flag. Effects are gathered in *batches*: one batch becomes one
//! `SLUICE.APPLY key head blob …`. Payloads travel beside the head as blobs, in the order in which
//! the effects of the head consume them.

use super::codec::{FORMAT, encode};
use super::family::Family;
use super::fencing::FencingCounter;
use super::time::Micros;
use serde::Serialize;

/// A payload that travels beside the head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blob {
    /// The argument of the running command at this index: the server hands it on without copying.
    Arg(usize),
    Bytes(Box<[u8]>),
}

/// One `SLUICE.APPLY`: `[FORMAT, family, effect …]` and the payloads its effects consume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub head: Vec<u8>,
    pub blobs: Vec<Blob>,
}

/// A new batch is begun when the head of the running one has grown to this many bytes.
const FULL: usize = 64 << 10;

/// Where a journal takes the numbers from that what it records needs.
#[derive(Debug)]
enum Numbers {
    /// The one counter of the server.
    Server(fn(Micros) -> u64),
    /// One of its own, where there is no server.
    Own(FencingCounter),
}

#[derive(Debug)]
pub struct Journal {
    family: Family,
    carry: bool,
    changed: bool,
    batches: Vec<Batch>,
    numbers: Numbers,
    /// How much of what is put off the command may still do besides what it is asked for.
    left: usize,
}

impl Journal {
    pub fn new(family: Family, carry: bool) -> Self {
        Self {
            family,
            carry,
            changed: false,
            batches: Vec::new(),
            numbers: Numbers::Own(FencingCounter::new()),
            left: usize::MAX,
        }
    }

    /// A journal that draws fencing numbers by `draw`: the one way in which an object gets them.
    pub fn drawing(family: Family, carry: bool, draw: fn(Micros) -> u64) -> Self {
        Self { numbers: Numbers::Server(draw), ..Self::new(family, carry) }
    }

    /// Has the command do so much at most of what is put off, besides what it is asked for.
    pub fn allow(&mut self, most: usize) {
        self.left = most;
    }

    /// How much it may still do of that.
    pub fn left(&self) -> usize {
        self.left
    }

    /// So much of what is put off was done.
    pub fn spend(&mut self, done: usize) {
        self.left = self.left.saturating_sub(done);
    }

    /// The next fencing number, for what is granted at `now`.
    pub fn draw(&mut self, now: Micros) -> u64 {
        match &mut self.numbers {
            Numbers::Server(draw) => draw(now),
            Numbers::Own(fencing) => fencing.draw(now),
        }
    }

    /// Whether effects are encoded at all: the caller may skip preparing what only the encoding
    /// needs.
    pub fn carries(&self) -> bool {
        self.carry
    }

    /// Whether anything was recorded: the key is modified.
    pub fn changed(&self) -> bool {
        self.changed
    }

    /// Records that state changes, without anything to carry yet (see [`Journal::record`]).
    pub fn touch(&mut self) {
        self.changed = true;
    }

    /// Records one effect (its wire form) and the payloads it consumes.
    pub fn record<T: Serialize>(&mut self, wire: &T, blobs: impl IntoIterator<Item = Blob>) {
        self.changed = true;
        if !self.carry {
            return;
        }
        if self.batches.last().is_none_or(|b| b.head.len() >= FULL) {
            self.batches.push(Batch { head: vec![FORMAT, self.family as u8], blobs: Vec::new() });
        }
        if let Some(batch) = self.batches.last_mut() {
            encode(wire, &mut batch.head);
            batch.blobs.extend(blobs);
        }
    }

    /// Takes what was recorded so far; `changed` stays.
    pub fn take(&mut self) -> Vec<Batch> {
        std::mem::take(&mut self.batches)
    }
}
