//! The queue as the object in a key.

use super::Queue;
use super::effect::Effect;
use super::lane::Run;
use super::tokens::Tokens;
use crate::engine::codec::{Corrupt, Reader};
use crate::engine::collections::index::Index;
use crate::engine::collections::lazy::Lazy;
use crate::engine::collections::order::Order;
use crate::engine::collections::slab::Slab;
use crate::engine::family::Family;
use crate::engine::fencing::FencingCounter;
use crate::engine::footprint::{block, tree};
use crate::engine::journal::Journal;
use crate::engine::object::{Lifetime, Object};
use crate::engine::time::Micros;
use std::ffi::CStr;

/// What the messages of a run take in its order, if they are few.
const RUN: usize = 16;

impl Queue {
    /// Bytes of what waits for an instant by lane.
    fn waits_memory(&self) -> usize {
        let two = [&self.parked, &self.refills];
        let two = two.iter().map(|s| Lazy::memory(s) + tree(s.len(), size_of::<(Micros, u32)>()));
        let pauses = tree(self.pause_ends.len(), size_of::<(Micros, u32, bool)>());
        // Each bucket of a group is a block of its own.
        let tokens = self.refills.len() * block(size_of::<Tokens>());
        two.sum::<usize>() + Lazy::memory(&self.pause_ends) + pauses + tokens
    }
}

impl Object for Queue {
    const FAMILY: Family = Family::Queue;

    const EVENTS: &'static [Option<&'static CStr>] = &[
        Some(c"rq.timeout"),
        Some(c"rq.ack"),
        Some(c"rq.nack"),
        Some(c"rq.dead"),
        Some(c"rq.expire"),
        Some(c"rq.drop"),
        Some(c"rq.push"),
        Some(c"rq.claim"),
    ];

    type Effect = Effect;

    fn blank() -> Self {
        Self::new()
    }

    fn apply(&mut self, effect: Effect) {
        self.begin_command();
        self.change(effect);
    }

    fn read(
        &self,
        input: &mut Reader<'_>,
        blobs: &mut dyn Iterator<Item = Box<[u8]>>,
        fencing: &mut FencingCounter,
    ) -> Result<Effect, Corrupt> {
        self.read_effect(input, blobs, fencing)
    }

    fn check(&self) -> Result<(), Corrupt> {
        if self.adds_up() { Ok(()) } else { Err(Corrupt("totals that do not add up")) }
    }

    fn is_partial(&self) -> bool {
        self.is_torso()
    }

    fn snapshot(&self, journal: &mut Journal, flush: &mut dyn FnMut(&mut Journal)) {
        self.write_snapshot(journal, flush);
    }

    fn next_event(&self) -> Option<Micros> {
        if self.is_torso() { None } else { self.next_settling() }
    }

    fn is_ahead(&self, now: Micros) -> bool {
        self.latest_level > now || self.is_torso()
    }

    fn apply_due(&mut self, now: Micros, most: usize, journal: &mut Journal) -> bool {
        self.apply_most_due(now, most, journal)
    }

    fn counts(&self, into: &mut [u64]) {
        let t = &self.totals;
        let counts = [t.timed_out, t.acked, t.nacked, t.dead, t.expired, t.dropped, t.pushed, t.delivered];
        into.iter_mut().zip(counts).for_each(|(slot, count)| *slot = count);
    }

    fn event(&self, effect: &Self::Effect, _now: Micros) -> Option<&'static CStr> {
        matches!(effect, Effect::Config { .. }).then_some(c"rq.set")
    }

    fn lifetime(&self, _now: Micros) -> Lifetime {
        Lifetime::Forever
    }

    fn memory(&self) -> usize {
        let slabs = self.messages.memory() + self.more.memory() + self.lanes.memory() + self.names.memory();
        let indexes = [&self.live, &self.dead, &self.window_index, &self.lane_index];
        let indexes = indexes.iter().map(|i| Lazy::memory(i) + Index::memory(i)).sum::<usize>();
        let windows = Lazy::memory(&self.windows) + Slab::memory(&self.windows);
        let instants =
            [&self.delayed, &self.deadlines, &self.own_ttls, &self.default_ttls, &self.window_ends];
        let numbers = [&self.claims, &self.deaths];
        let instants = instants.iter().map(|o| Lazy::memory(o) + Order::memory(o)).sum::<usize>();
        let numbers = numbers.iter().map(|o| Lazy::memory(o) + Order::memory(o)).sum::<usize>();
        let trees = self.seats.memory() + self.heads.memory() + self.waits_memory();
        let rare = self.config.memory() + self.tokens.as_ref().map_or(0, |_| block(size_of::<Tokens>()));
        // A group that has messages has at least one run, of a few messages.
        let runs = self.lanes.groups().min(self.messages.len()) * (block(size_of::<Run>()) + RUN);
        let own = self.numbers.memory() + self.heap + rare + runs;
        size_of::<Self>() + slabs + windows + indexes + instants + numbers + trees + own
    }

    fn effort(&self) -> usize {
        self.messages.len()
    }

    /// Payloads are the blocks there are most of.
    fn defrag(
        &mut self,
        cursor: u64,
        relocate: &mut dyn FnMut(Box<[u8]>) -> Box<[u8]>,
        stop: &mut dyn FnMut() -> bool,
    ) -> Option<u64> {
        /// Payloads between two looks at the time.
        const STEP: u32 = 16;
        for slot in u32::try_from(cursor).unwrap_or(0)..self.messages.slots() {
            if let Some(message) = self.messages.get_mut(slot) {
                message.payload = relocate(std::mem::take(&mut message.payload));
            }
            if slot % STEP == STEP - 1 && stop() {
                return Some(u64::from(slot) + 1);
            }
        }
        None
    }

    fn duplicate(&self) -> Self {
        // A copy has the past of its original, in all its totals.
        // One of which more is to come stays that.
        Self { loading: self.loading.filter(|_| self.is_torso()), ..self.clone() }
    }
}
