//! A lane: the messages of one group, or (lane 0) those without one; and where it sits among the
//! lanes to be served.
//!
//! A lane's record is there as long as anything refers to its name: a message in any state, a
//! pause, a rate that is not full. Its *turn* means something only while it has live messages:
//! without any it is forgotten, and begins anew with the next.
//!
//! Seats: a lane with ready messages whose claims are not paused is `Seated` by (members in flight
//! or to be retried, turn): the first seat is served next. One that was found without a token is
//! `Parked` until its next. All others have no seat.
//!
//! Invariants: `seat` is exactly the lane's entry in the queue's `seats` or `parked`; `runs` are
//! sorted by falling priority; `ready` is the sum of their lengths; lane 0 is always there, and its
//! pauses are those of the whole queue.

use super::Queue;
use super::config::NO_PAUSE;
use super::tokens::Tokens;
use crate::engine::collections::lazy::{Blank, Lazy};
use crate::engine::collections::order::Order;
use crate::engine::collections::slab::{NONE, Slab};
use crate::engine::footprint::block;
use crate::engine::names_hash::of_name;
use crate::engine::time::Micros;

/// The lane of the messages without group.
pub const PLAIN: u32 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seat {
    None,
    Seated { busy: u32, turn: u64 },
    Parked { until: Micros },
}

/// The ready messages of one lane and priority, by place.
#[derive(Debug, Clone)]
pub struct Run {
    pub priority: u8,
    pub order: Order<u32>,
}

#[derive(Debug, Clone)]
pub struct Lane {
    /// Empty for lane 0.
    pub name: Box<[u8]>,
    /// Messages of any state, pauses and a rate that refer to it.
    pub references: u64,
    pub live: u32,
    pub ready: u32,
    /// Members in flight or waiting for their retry.
    pub busy: u32,
    pub turn: u64,
    /// The command (by its number) in which it was last forgotten: until that ends, it keeps its
    /// turn.
    pub left_in: u64,
    pub runs: Vec<Run>,
    pub paused_push: Micros,
    pub paused_claim: Micros,
    /// None: full.
    pub tokens: Option<Box<Tokens>>,
    pub seat: Seat,
}

impl Default for Lane {
    fn default() -> Self {
        Self::new(Box::default())
    }
}

impl Lane {
    pub fn new(name: Box<[u8]>) -> Self {
        Self {
            name,
            references: 0,
            live: 0,
            ready: 0,
            busy: 0,
            turn: 0,
            left_in: 0,
            runs: Vec::new(),
            paused_push: NO_PAUSE,
            paused_claim: NO_PAUSE,
            tokens: None,
            seat: Seat::None,
        }
    }

    pub fn run(&self, priority: u8) -> Option<&Run> {
        self.runs.iter().find(|r| r.priority == priority)
    }

    /// The order of this priority, made if it is missing.
    pub fn order_mut(&mut self, priority: u8) -> Option<&mut Order<u32>> {
        let first = self.runs.first().is_some_and(|r| r.priority == priority);
        let at = if first { 0 } else { self.runs.partition_point(|r| r.priority > priority) };
        if self.runs.get(at).is_none_or(|r| r.priority != priority) {
            self.runs.reserve_exact(1);
            self.runs.insert(at, Run { priority, order: Order::new() });
        }
        self.runs.get_mut(at).map(|r| &mut r.order)
    }
}

/// All lanes by their number: that of the messages without group beside the others, of which most
/// queues have none.
#[derive(Debug, Clone)]
pub struct Lanes {
    plain: Lane,
    groups: Lazy<Slab<Lane>>,
}

impl Blank for Slab<Lane> {
    const BLANK: &'static Self = &Self::new();

    fn blank() -> Self {
        Self::new()
    }
}

impl Lanes {
    pub fn new() -> Self {
        // It has itself as a reference: it is never given back.
        Self { plain: Lane { references: 1, ..Lane::new(Box::default()) }, groups: Lazy::new() }
    }

    /// How many groups there are.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    #[inline(always)]
    pub fn get(&self, lane: u32) -> Option<&Lane> {
        if lane == PLAIN { Some(&self.plain) } else { self.groups.get(lane - 1) }
    }

    #[inline(always)]
    pub fn get_mut(&mut self, lane: u32) -> Option<&mut Lane> {
        if lane == PLAIN { Some(&mut self.plain) } else { self.group_mut(lane - 1) }
    }

    fn group_mut(&mut self, group: u32) -> Option<&mut Lane> {
        if self.groups.len() == 0 { None } else { self.groups.get_mut(group) }
    }

    fn insert(&mut self, lane: Lane) -> u32 {
        match self.groups.insert(lane) {
            NONE => NONE,
            group => group + 1,
        }
    }

    fn remove(&mut self, lane: u32) {
        if let Some(group) = lane.checked_sub(1) {
            self.groups.remove(group);
            self.groups.give_back(|groups| groups.len() > 0);
        }
    }

    /// All of them, by number: an order that says nothing.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Lane)> {
        let groups = self.groups.iter().map(|(group, lane)| (group + 1, lane));
        std::iter::once((PLAIN, &self.plain)).chain(groups)
    }

    /// Bytes on the heap; of groups that have messages it is about what each takes.
    pub fn memory(&self) -> usize {
        let own: usize = self.plain.runs.iter().map(|r| r.order.memory()).sum();
        let plain = block(self.plain.runs.capacity() * size_of::<Run>()) + own;
        plain + Lazy::memory(&self.groups) + Slab::memory(&self.groups)
    }
}

impl Queue {
    /// The lane of a group, if anything refers to it.
    #[inline]
    pub(super) fn find_lane(&self, group: Option<&[u8]>) -> Option<u32> {
        group.map_or(Some(PLAIN), |name| self.find_group(name))
    }

    fn find_group(&self, name: &[u8]) -> Option<u32> {
        self.lane_index.find(of_name(name), |l| self.lanes.get(l).is_some_and(|x| &*x.name == name))
    }

    /// The lane of a group, referred to once more.
    pub(super) fn refer_lane(&mut self, group: Option<&[u8]>) -> u32 {
        let lane = self.find_lane(group).unwrap_or_else(|| {
            let name = group.unwrap_or_default();
            let lane = self.lanes.insert(Lane::new(name.into()));
            self.heap += name.len() + 16;
            let lanes = &self.lanes;
            self.lane_index.insert(of_name(name), lane, |l| lanes.get(l).map_or(0, |x| of_name(&x.name)));
            lane
        });
        if let Some(l) = self.lanes.get_mut(lane) {
            l.references += 1;
        }
        lane
    }

    /// One reference less; the last takes the record with it.
    pub(super) fn release_lane(&mut self, lane: u32) {
        let Some(l) = self.lanes.get_mut(lane) else { return };
        l.references = l.references.saturating_sub(1);
        if l.references > 0 || lane == PLAIN {
            return;
        }
        let key = of_name(&l.name);
        self.heap -= l.name.len() + 16;
        self.unseat(lane);
        let lanes = &self.lanes;
        self.lane_index.remove(key, lane, |l| lanes.get(l).map_or(0, |x| of_name(&x.name)));
        self.lanes.remove(lane);
        if self.lanes.groups() == 0 {
            self.lane_index.give_back(|_| false);
            self.parked.give_back(|_| false);
            self.refills.give_back(|_| false);
            self.pause_ends.give_back(|ends| !ends.is_empty());
        }
    }

    pub(super) fn group_of(&self, lane: u32) -> Option<&[u8]> {
        if lane == PLAIN { None } else { self.lanes.get(lane).map(|l| &*l.name) }
    }

    /// The turn that an effect must bring for a message that now joins the group: None when the
    /// group has its turn already.
    pub(super) fn turn_to_join(&self, group: Option<&[u8]>) -> Option<u64> {
        self.turn_to_join_lane(self.find_lane(group).unwrap_or(NONE), None)
    }

    /// `next`: the number of the next turn, if it is not the queue's next.
    pub(super) fn turn_to_join_lane(&self, lane: u32, next: Option<u64>) -> Option<u64> {
        match self.lanes.get(lane) {
            Some(l) if l.live > 0 => None,
            Some(l) if l.left_in == self.epoch => Some(l.turn),
            _ => Some(next.unwrap_or(self.next_turn)),
        }
    }

    fn unseat(&mut self, lane: u32) {
        if let Some(l) = self.lanes.get_mut(lane) {
            let left = std::mem::replace(&mut l.seat, Seat::None);
            self.change_seat(lane, left, Seat::None);
        }
    }

    fn change_seat(&mut self, lane: u32, left: Seat, taken: Seat) {
        match left {
            Seat::None => {}
            Seat::Seated { busy, turn } => self.seats.remove(&(busy, turn, lane)),
            Seat::Parked { until } => {
                self.parked.remove(&(until, lane));
            }
        }
        match taken {
            Seat::None => {}
            Seat::Seated { busy, turn } => self.seats.insert((busy, turn, lane)),
            Seat::Parked { until } => {
                self.parked.insert((until, lane));
            }
        }
    }

    /// Gives the lane the seat that its state asks for. A parked one with ready messages stays
    /// parked.
    pub(super) fn reseat(&mut self, lane: u32) {
        let Some(l) = self.lanes.get_mut(lane) else { return };
        let paused = lane != PLAIN && l.paused_claim != NO_PAUSE;
        let wanted = match l.seat {
            _ if l.ready == 0 || paused => Seat::None,
            parked @ Seat::Parked { .. } => parked,
            _ => Seat::Seated { busy: l.busy, turn: l.turn },
        };
        if wanted != l.seat {
            let left = std::mem::replace(&mut l.seat, wanted);
            self.change_seat(lane, left, wanted);
        }
    }

    /// Its tokens or the bounds have changed: a parked lane is seated again.
    pub(super) fn unpark(&mut self, lane: u32) {
        if self.lanes.get(lane).is_some_and(|l| matches!(l.seat, Seat::Parked { .. })) {
            self.unseat(lane);
            self.reseat(lane);
        }
    }

    /// It has no token until then.
    pub(super) fn park(&mut self, lane: u32, until: Micros) {
        if let Some(l) = self.lanes.get_mut(lane) {
            let parked = Seat::Parked { until };
            let left = std::mem::replace(&mut l.seat, parked);
            self.change_seat(lane, left, parked);
        }
    }

    /// Sets the tokens of a group; None: full.
    pub(super) fn set_tokens(&mut self, lane: u32, tokens: Option<Tokens>) {
        let Some(limits) = self.config.group_rate else { return };
        let Some(l) = self.lanes.get_mut(lane) else { return };
        let before = l.tokens.take();
        if let Some(old) = &before {
            self.refills.remove(&(old.full_at(limits), lane));
        }
        match tokens {
            Some(new) => {
                l.tokens = Some(Box::new(new));
                l.references += u64::from(before.is_none());
                self.latest_level = self.latest_level.max(new.at);
                self.refills.insert((new.full_at(limits), lane));
            }
            None if before.is_some() => {
                self.unpark(lane);
                self.release_lane(lane);
            }
            None => {}
        }
    }

    /// Sets a pause of a group, or (lane 0) of the queue. The caller holds a reference to the lane.
    pub(super) fn set_pause(&mut self, lane: u32, push: bool, until: Micros) {
        let Some(l) = self.lanes.get_mut(lane) else { return };
        let kept = if push { &mut l.paused_push } else { &mut l.paused_claim };
        let before = std::mem::replace(kept, until);
        if before != NO_PAUSE {
            self.pause_ends.remove(&(before, lane, push));
        }
        if until != NO_PAUSE {
            self.pause_ends.insert((until, lane, push));
        }
        match (before != NO_PAUSE, until != NO_PAUSE) {
            (false, true) => l.references += 1,
            (true, false) => {
                self.reseat(lane);
                self.release_lane(lane);
                return;
            }
            _ => {}
        }
        self.reseat(lane);
    }
}
