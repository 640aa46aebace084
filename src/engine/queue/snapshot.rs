//! The whole queue as effects, and back.
//!
//! A snapshot is: the header; what groups have besides messages (pauses, rates); windows, by end;
//! live messages in the order of their places, each with its follower right behind it; dead ones in
//! the order of death. The first message of a lane brings the lane's turn. Nothing depends on slots
//! or hashes, so the same state gives the same bytes.
//!
//! Until all messages have come that its totals speak of, a queue is a *torso*: a state that can be
//! stored and loaded as any other, and then goes on to be loaded. Time does nothing to it. The
//! first command that would change it takes what has come for all there will be.
//!
//! While it is loaded, each place order and death number is larger than the last one and below the
//! header's next, so no two messages share one. Whatever other effect comes ends the loading.

use super::Queue;
use super::config::{Config, NO_PAUSE};
use super::effect::{Brought, Header, LaneState, Record};
use super::lane::PLAIN;
use super::message::{Id, IdRef, Message, More, Own, Stage, State};
use super::wire::Wire;
use crate::engine::collections::slab::NONE;
use crate::engine::journal::{Blob, Journal};
use crate::engine::time::Micros;
use std::borrow::Cow;

/// Messages in one effect of a snapshot, and the bytes of payload after which one ends all the
/// same.
const PIECE: usize = 256;
const PIECE_BYTES: usize = 4 << 20;

impl Queue {
    /// Nothing more is loaded: what was still to come counts as deleted.
    pub(super) fn end_load(&mut self) {
        if let Some(loading) = self.loading.take()
            && loading.missing > 0
        {
            self.totals.deleted = self.totals.deleted.saturating_add(loading.missing);
            self.look_for_wear();
        }
    }

    pub(super) fn record(&self, slot: u32) -> Option<(Record<'_>, IdRef<'_>, &[u8])> {
        let m = self.messages.get(slot)?;
        let more = self.more.get(m.more);
        let stage = m.stage(more);
        let name = |n: Option<u32>| n.and_then(|n| self.names.get(n)).map(Cow::Borrowed);
        let record = Record {
            stage,
            priority: m.priority,
            group: self.group_of(m.lane).map(Cow::Borrowed),
            place: if matches!(m.state(), State::Dead | State::Follower) { (0, 0) } else { m.place() },
            pushed_at: more.map_or(m.ready_at, |x| x.pushed_at),
            own: more.and_then(|x| x.own.as_deref().copied()),
            counters: more.map_or([0; 3], |x| [x.deliveries, x.failures, x.timeouts]),
            consumer: name(more.map(|x| x.consumer)),
            reason: name(more.map(|x| x.reason)),
            owns_window: m.owns_window(),
            turn: None,
        };
        Some((record, m.id.as_ref(), &m.payload))
    }

    /// Puts a message where its record says: live, dead, or behind `leader` when it is a follower.
    pub(super) fn restore(&mut self, record: &Record<'_>, id: Id, payload: Box<[u8]>, leader: u32) -> u32 {
        let lane = self.refer_lane(record.group.as_deref());
        let mut message = Message::new(id, payload, record.priority, lane);
        let plain = record.stage == Stage::Ready
            && record.pushed_at == record.place.0
            && record.own.is_none()
            && record.counters == [0; 3]
            && record.consumer.is_none()
            && record.reason.is_none();
        if !plain {
            let mut more = More::new(record.pushed_at);
            more.own = record.own.map(Box::new);
            self.heap += if more.own.is_some() { size_of::<Own>() } else { 0 };
            [more.deliveries, more.failures, more.timeouts] = record.counters;
            more.consumer = record.consumer.as_deref().map_or(NONE, |c| self.names.refer(c));
            more.reason = record.reason.as_deref().map_or(NONE, |r| self.names.refer(r));
            message.more = self.more.insert(more);
        }
        let slot = self.store(message);
        if record.owns_window
            && let Some(w) = self.messages.get(slot).and_then(|m| self.find_window(m.id.as_ref()))
            && let Some(window) = self.windows.get_mut(w)
            && window.owner == NONE
        {
            window.owner = slot;
            if let Some(m) = self.messages.get_mut(slot) {
                m.set_owns_window(true);
            }
        }
        match record.stage {
            Stage::Dead { number, died_at, .. } => self.bury(slot, number, died_at),
            Stage::Follower { .. } => {
                self.set_stage(slot, record.stage);
                self.follow(leader, slot);
            }
            stage => {
                self.set_place(slot, record.place);
                self.set_stage(slot, stage);
                self.join(slot, record.turn);
            }
        }
        slot
    }

    pub(super) fn restore_lane(&mut self, state: &LaneState<'_>) {
        let lane = self.refer_lane(Some(&state.name));
        self.set_pause(lane, true, state.paused_push);
        self.set_pause(lane, false, state.paused_claim);
        self.set_tokens(lane, state.tokens);
        self.release_lane(lane);
    }

    pub(super) fn load(&mut self, records: Vec<Brought>) {
        let mut leader = NONE;
        for (record, id, payload) in records {
            if let Some(loading) = &mut self.loading {
                loading.missing = loading.missing.saturating_sub(1);
                match record.stage {
                    Stage::Dead { number, .. } => loading.death = number.saturating_add(1),
                    Stage::Follower { .. } => {}
                    _ => loading.seq = record.place.1.saturating_add(1),
                }
            }
            let slot = self.restore(&record, id, payload, leader);
            if !matches!(record.stage, Stage::Follower { .. }) {
                leader = slot;
            }
        }
    }

    pub(super) fn header(&self) -> Header {
        let (paused_push, paused_claim) =
            self.lanes.get(PLAIN).map_or((NO_PAUSE, NO_PAUSE), |l| (l.paused_push, l.paused_claim));
        Header {
            config: Config::clone(&self.config),
            totals: self.totals,
            next_id: self.next_id,
            next_seq: self.next_seq,
            next_turn: self.next_turn,
            next_death: self.next_death,
            last_claim: self.last_claim,
            paused_push,
            paused_claim,
            tokens: self.own_tokens(),
        }
    }

    /// Live messages in the order of their places, without followers.
    pub(super) fn live_in_order(&self) -> Vec<u32> {
        let live = |m: &Message| matches!(m.state(), State::Ready | State::Delayed | State::InFlight);
        let mut slots: Vec<(u64, u32)> =
            self.messages.iter().filter(|(_, m)| live(m)).map(|(slot, m)| (m.seq(), slot)).collect();
        slots.sort_unstable();
        slots.into_iter().map(|(_, slot)| slot).collect()
    }

    pub(super) fn write_snapshot(&self, journal: &mut Journal, flush: &mut dyn FnMut(&mut Journal)) {
        journal.record(&Wire::Header(Box::new(self.header())), []);
        self.write_lanes(journal);
        self.write_windows(journal);
        flush(journal);
        let mut seen = crate::engine::names_hash::Set::default();
        let mut piece = Piece::default();
        for slot in self.live_in_order() {
            let first = self.messages.get(slot).is_some_and(|m| seen.insert(m.lane));
            self.add_to(&mut piece, slot, first);
            if let Some(follower) = self.more_of(slot).map(|x| x.follower) {
                self.add_to(&mut piece, follower, false);
            }
            piece.write(journal, flush, false);
        }
        for (_, slot) in self.deaths.iter() {
            self.add_to(&mut piece, slot, false);
            piece.write(journal, flush, false);
        }
        piece.write(journal, flush, true);
    }

    fn add_to<'a>(&'a self, piece: &mut Piece<'a>, slot: u32, first: bool) {
        if let Some((mut record, id, payload)) = self.record(slot) {
            let lane = self.messages.get(slot).map_or(PLAIN, |m| m.lane);
            record.turn = if first { self.lanes.get(lane).map(|l| l.turn) } else { None };
            piece.bytes += payload.len();
            piece.records.push((record, id));
            piece.blobs.push(Blob::Bytes(payload.into()));
        }
    }

    /// What groups have besides messages, by name.
    pub(super) fn lane_states(&self) -> Vec<LaneState<'_>> {
        let mut lanes: Vec<LaneState<'_>> = self
            .lanes
            .iter()
            .filter(|(slot, l)| {
                *slot != PLAIN && (l.paused_push, l.paused_claim, l.tokens.is_none()) != (0, 0, true)
            })
            .map(|(_, l)| LaneState {
                name: Cow::Borrowed(&l.name),
                paused_push: l.paused_push,
                paused_claim: l.paused_claim,
                tokens: l.tokens.as_deref().copied(),
            })
            .collect();
        lanes.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        lanes
    }

    fn write_lanes(&self, journal: &mut Journal) {
        let mut lanes = self.lane_states().into_iter();
        while lanes.len() > 0 {
            journal.record(&Wire::Lanes(lanes.by_ref().take(PIECE).collect()), []);
        }
    }

    fn write_windows(&self, journal: &mut Journal) {
        let mut windows: Vec<(IdRef<'_>, Micros)> =
            self.windows.iter().map(|(_, w)| (w.id.as_ref(), w.until)).collect();
        windows.sort_unstable_by_key(|(id, until)| (*until, *id));
        let mut windows = windows.into_iter();
        while windows.len() > 0 {
            journal.record(&Wire::Windows(windows.by_ref().take(PIECE).collect()), []);
        }
    }
}

/// The effect of a snapshot that is being filled.
#[derive(Default)]
struct Piece<'a> {
    records: Vec<(Record<'a>, IdRef<'a>)>,
    blobs: Vec<Blob>,
    bytes: usize,
}

impl Piece<'_> {
    /// Records it when it is full, or anyway.
    fn write(&mut self, journal: &mut Journal, flush: &mut dyn FnMut(&mut Journal), anyway: bool) {
        let full = self.records.len() >= PIECE || self.bytes >= PIECE_BYTES;
        if self.records.is_empty() || !(full || anyway) {
            return;
        }
        journal.record(&Wire::Load(std::mem::take(&mut self.records)), std::mem::take(&mut self.blobs));
        self.bytes = 0;
        flush(journal);
    }
}
