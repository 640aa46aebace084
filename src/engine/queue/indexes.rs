//! Where a message is found by its state: `shelve` enters it into the orders that its state asks
//! for, `unshelve` takes it out. A message changes state, place or follower only between the two.
//! Neither touches seats: whoever changed a lane calls `reseat` when done.
//!
//! Orders, each by instant, then by a number that makes it total:
//! - ready: one per lane and priority, by place; `heads` holds the first of each, so that the
//!   longest ready of all is at hand;
//! - delayed: by due instant, then place order; in flight: by deadline, then claim, and once more
//!   by claim;
//! - not in flight and with a TTL: by the instant at which it expires; with the queue's TTL: by the
//!   instant from which that counts, so that another TTL needs no new order (it is built when the
//!   queue gets a TTL);
//! - dead: by the number of their death.

use super::Queue;
use super::message::{Message, More, Own, Place, Stage, State};
use crate::engine::collections::lazy::Lazy;
use crate::engine::collections::slab::{NONE, Slab};
use crate::engine::time::Micros;
use std::cmp::Ordering;

fn seq_of(messages: &Slab<Message>, slot: u32) -> u64 {
    messages.get(slot).map_or(0, Message::seq)
}

/// Where `other` lies in place order, relative to the message `slot` with this place.
fn by_place(messages: &Slab<Message>, other: u32, place: Place, slot: u32) -> Ordering {
    messages.get(other).map_or((0, 0), Message::place).cmp(&place).then(other.cmp(&slot))
}

/// The same among entries by instant that are told apart by place order.
fn by_instant(messages: &Slab<Message>, other: (Micros, u32), at: Micros, slot: u32) -> Ordering {
    other
        .0
        .cmp(&at)
        .then_with(|| seq_of(messages, other.1).cmp(&seq_of(messages, slot)))
        .then(other.1.cmp(&slot))
}

/// The number of the delivery of a message in flight.
fn claim_of(messages: &Slab<Message>, more: &Slab<More>, slot: u32) -> u64 {
    match messages.get(slot).map(|m| m.stage(more.get(m.more))) {
        Some(Stage::InFlight { claim, .. }) => claim,
        _ => 0,
    }
}

impl Queue {
    pub(super) fn more_of(&self, slot: u32) -> Option<&More> {
        self.more.get(self.messages.get(slot)?.more)
    }

    pub(super) fn stage(&self, slot: u32) -> Option<Stage> {
        let m = self.messages.get(slot)?;
        Some(m.stage(self.more.get(m.more)))
    }

    pub(super) fn own(&self, slot: u32) -> Own {
        self.more_of(slot).map_or(Own::NONE, More::own)
    }

    /// The TTL of its own; 0: none.
    fn own_ttl(&self, slot: u32) -> Micros {
        self.more_of(slot).and_then(|x| x.own.as_deref()).map_or(0, |own| own.ttl)
    }

    /// From when its TTL counts.
    pub(super) fn ttl_base(&self, slot: u32) -> Micros {
        let Some(m) = self.messages.get(slot) else { return 0 };
        match self.more.get(m.more) {
            None => m.ready_at,
            Some(x) => match x.own().ttl_base {
                0 => x.pushed_at,
                base => base,
            },
        }
    }

    /// When it expires; None: never.
    pub(super) fn expires(&self, slot: u32) -> Option<Micros> {
        let ttl = match self.own_ttl(slot) {
            0 => self.config.ttl,
            own => own,
        };
        (ttl > 0).then(|| self.ttl_base(slot).saturating_add(ttl))
    }

    /// Bytes it counts for: its payload and its follower's.
    pub(super) fn weight(&self, slot: u32) -> u64 {
        self.messages.get(slot).map_or(0, |m| self.weight_of(m))
    }

    #[inline]
    pub(super) fn weight_of(&self, m: &Message) -> u64 {
        if m.more == NONE {
            return m.payload.len() as u64;
        }
        let follower = self.more.get(m.more).and_then(|x| self.messages.get(x.follower));
        m.payload.len() as u64 + follower.map_or(0, |f| f.payload.len() as u64)
    }

    pub(super) fn shelve(&mut self, slot: u32) {
        let Some(m) = self.messages.get(slot) else { return };
        let lane = m.lane;
        match m.stage(self.more.get(m.more)) {
            Stage::Ready => {
                self.ready += 1;
                self.ready_bytes += self.weight_of(m);
                self.enter_run(slot);
                self.watch_ttl(slot, true);
            }
            Stage::Delayed { due, retry } => {
                let messages = &self.messages;
                self.delayed.insert((due, slot), |e| by_instant(messages, *e, due, slot));
                if retry {
                    self.occupy(lane, true);
                }
                self.watch_ttl(slot, true);
            }
            Stage::InFlight { claim, deadline, .. } => {
                self.claims.insert((claim, slot), |e| e.cmp(&(claim, slot)));
                self.enter_deadline(slot, claim, deadline);
                self.occupy(lane, true);
            }
            Stage::Dead { number, .. } => self.deaths.insert((number, slot), |e| e.cmp(&(number, slot))),
            Stage::Follower { .. } => {}
        }
    }

    pub(super) fn unshelve(&mut self, slot: u32) {
        let Some(m) = self.messages.get(slot) else { return };
        let lane = m.lane;
        match m.stage(self.more.get(m.more)) {
            Stage::Ready => {
                self.ready -= 1;
                let weight = self.weight_of(m);
                self.ready_bytes -= weight;
                self.over.left(m.seq(), weight);
                self.leave_run(slot);
                self.watch_ttl(slot, false);
            }
            Stage::Delayed { due, retry } => {
                let messages = &self.messages;
                self.delayed.remove((due, slot), |e| by_instant(messages, *e, due, slot));
                if retry {
                    self.occupy(lane, false);
                }
                self.watch_ttl(slot, false);
            }
            Stage::InFlight { claim, deadline, .. } => {
                self.claims.remove((claim, slot), |e| e.cmp(&(claim, slot)));
                self.leave_deadline(slot, claim, deadline);
                self.occupy(lane, false);
            }
            Stage::Dead { number, .. } => {
                self.deaths.remove((number, slot), |e| e.cmp(&(number, slot)));
            }
            Stage::Follower { .. } => {}
        }
    }

    pub(super) fn enter_deadline(&mut self, slot: u32, claim: u64, deadline: Micros) {
        let (messages, more) = (&self.messages, &self.more);
        self.deadlines.insert((deadline, slot), |e| {
            let rest = || (claim_of(messages, more, e.1), e.1).cmp(&(claim, slot));
            e.0.cmp(&deadline).then_with(rest)
        });
    }

    pub(super) fn leave_deadline(&mut self, slot: u32, claim: u64, deadline: Micros) {
        let (messages, more) = (&self.messages, &self.more);
        let place = |e: &(Micros, u32)| {
            let rest = || (claim_of(messages, more, e.1), e.1).cmp(&(claim, slot));
            e.0.cmp(&deadline).then_with(rest)
        };
        // What was claimed together has one deadline, and mostly lies in the order of slots: to
        // compare claims is to look at a message each.
        self.deadlines.remove_near((deadline, slot), |e| e.cmp(&(deadline, slot)), place);
    }

    /// One more, or one less, keeps the lane busy.
    fn occupy(&mut self, lane: u32, more: bool) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.busy = if more { lane.busy.saturating_add(1) } else { lane.busy.saturating_sub(1) };
        }
    }

    fn enter_run(&mut self, slot: u32) {
        let Self { messages, lanes, heads, .. } = self;
        let Some(m) = messages.get(slot) else { return };
        let Some(lane) = lanes.get_mut(m.lane) else { return };
        lane.ready += 1;
        let Some(order) = lane.order_mut(m.priority) else { return };
        let before = order.front();
        let place = m.place();
        order.insert(slot, |e| by_place(messages, *e, place, slot));
        if order.front() == Some(slot) {
            if let Some((ready_at, seq)) = before.and_then(|b| messages.get(b)).map(Message::place) {
                heads.remove(&(ready_at, seq, m.lane, m.priority));
            }
            heads.insert((place.0, place.1, m.lane, m.priority));
        }
    }

    fn leave_run(&mut self, slot: u32) {
        let Self { messages, lanes, heads, .. } = self;
        let Some(m) = messages.get(slot) else { return };
        let Some(lane) = lanes.get_mut(m.lane) else { return };
        lane.ready = lane.ready.saturating_sub(1);
        let Some(order) = lane.order_mut(m.priority) else { return };
        let was_front = order.front() == Some(slot);
        let place = m.place();
        order.remove(slot, |e| by_place(messages, *e, place, slot));
        if was_front {
            heads.remove(&(place.0, place.1, m.lane, m.priority));
            if let Some((ready_at, seq)) = order.front().and_then(|f| messages.get(f)).map(Message::place) {
                heads.insert((ready_at, seq, m.lane, m.priority));
            }
        }
        // An empty run is kept for the next message, but not many of them.
        if order.is_empty() && lane.runs.len() > 4 {
            lane.runs.retain(|r| !r.order.is_empty());
        }
    }

    /// Enters it into, or takes it out of, the order of what expires.
    #[inline]
    fn watch_ttl(&mut self, slot: u32, enter: bool) {
        let own = self.own_ttl(slot);
        let awaits_index = || own == 0 && self.unindexed.is_some_and(|from| slot >= from);
        if (own != 0 || self.config.ttl != 0) && !awaits_index() {
            self.change_ttl(slot, own, enter);
        }
    }

    fn change_ttl(&mut self, slot: u32, own: Micros, enter: bool) {
        let base = self.ttl_base(slot);
        let (order, at) = if own == 0 {
            (&mut self.default_ttls, base)
        } else {
            (&mut self.own_ttls, base.saturating_add(own))
        };
        let messages = &self.messages;
        if enter {
            order.insert((at, slot), |e| by_instant(messages, *e, at, slot));
        } else {
            order.remove((at, slot), |e| by_instant(messages, *e, at, slot));
        }
    }

    /// The queue has got a TTL, or has none any more: its order is begun anew.
    pub(super) fn begin_default_ttls(&mut self) {
        self.default_ttls = Lazy::new();
        self.unindexed = (self.config.ttl > 0 && self.messages.len() > 0).then_some(0);
    }

    /// Enters messages into the order of what expires by the queue's TTL; looks at up to `most`
    /// slots and returns at how many.
    pub(super) fn index_ttls(&mut self, most: usize) -> usize {
        let Some(from) = self.unindexed else { return 0 };
        let most = u32::try_from(most).unwrap_or(NONE);
        let until = from.saturating_add(most).min(self.messages.slots()).max(from);
        // A slot counts as entered from here on.
        self.unindexed = (until < self.messages.slots()).then_some(until);
        for slot in from..until {
            let waits = self.messages.get(slot).map(|m| matches!(m.state(), State::Ready | State::Delayed));
            if waits == Some(true) && self.own_ttl(slot) == 0 {
                self.change_ttl(slot, 0, true);
            }
        }
        ((until - from) as usize).max(1)
    }

    /// What expires next, and when.
    pub(super) fn next_to_expire(&self) -> Option<(Micros, u32)> {
        let own = self.own_ttls.front();
        let default =
            self.default_ttls.front().map(|(base, slot)| (base.saturating_add(self.config.ttl), slot));
        let key = |(at, slot): &(Micros, u32)| (*at, seq_of(&self.messages, *slot));
        [own, default].into_iter().flatten().min_by_key(key)
    }

    /// Gives a message its `More`, if it has none yet: it was pushed when it became ready.
    pub(super) fn grow(&mut self, slot: u32) -> Option<&mut More> {
        let m = self.messages.get_mut(slot)?;
        if m.more == NONE {
            m.more = self.more.insert(More::new(m.ready_at));
        }
        self.more.get_mut(m.more)
    }

    /// Sets state and stage together.
    pub(super) fn set_stage(&mut self, slot: u32, stage: Stage) {
        if stage != Stage::Ready || self.messages.get(slot).is_some_and(|m| m.more != NONE) {
            match self.grow(slot) {
                Some(more) => more.keep(stage),
                None => return,
            }
        }
        if let Some(m) = self.messages.get_mut(slot) {
            m.set_state(stage);
        }
    }
}
