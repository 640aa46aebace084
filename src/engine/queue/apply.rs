//! Where the changes of a queue are made, and nowhere else.
//!
//! The deciding code makes a command's changes one by one (`step`, `push_one`, `claim_one`) and
//! records them together, as the same calls will be made by whoever applies the record. The numbers
//! that a change uses up (`next_seq`, `next_turn`, …) are raised by making it, so deciding only
//! reads them.

use super::Queue;
use super::config::{Config, NO_PAUSE};
use super::effect::*;
use super::lane::PLAIN;
use super::message::{Id, Message, More, Own, Stage};
use super::tokens::Tokens;
use crate::engine::collections::lazy::Lazy;
use crate::engine::collections::slab::NONE;
use crate::engine::time::Micros;

impl Queue {
    pub(super) fn change(&mut self, effect: Effect) {
        if !matches!(effect, Effect::Header(_) | Effect::Lanes(_) | Effect::Windows(_) | Effect::Load(_)) {
            self.end_load();
        }
        match effect {
            Effect::Config { config, now, tokens } => {
                self.configure(*config, now, tokens);
                // Where nothing is decided nothing is put off.
                self.index_ttls(usize::MAX);
            }
            Effect::Pause { group, push, claim } => self.change_pauses(group.as_deref(), push, claim),
            Effect::Push { push, messages } => {
                for (n, (id, payload)) in messages.into_iter().enumerate() {
                    self.push_one(&push, n as u64, id, payload);
                }
            }
            Effect::Claim { claim, items } => {
                for (n, item) in items.into_iter().enumerate() {
                    self.claim_one(&claim, n as u64, item);
                }
                self.set_level(claim.level, claim.now);
            }
            Effect::Steps(steps) => {
                for (slot, step) in &steps {
                    self.step(*slot, step);
                }
            }
            Effect::Purge(scope) => self.purge_scope(scope),
            Effect::EndWindow(window) => self.close_window(window),
            Effect::EndWindows { through } => self.end_windows(through),
            Effect::Refill { through } => self.refill(through),
            Effect::StepBack { now } => self.step_back(now),
            Effect::Renumber => self.renumber(),
            // That is all it does.
            Effect::CutOff => {}
            Effect::Arrive(records) => {
                self.totals.moved_in = self.totals.moved_in.saturating_add(records.len() as u64);
                for (record, id, payload) in records {
                    self.restore(&record, id, payload, NONE);
                }
            }
            Effect::Header(header) => self.begin(*header),
            Effect::Lanes(lanes) => lanes.iter().for_each(|l| self.restore_lane(l)),
            Effect::Windows(windows) => {
                for (id, until) in windows {
                    self.open_window(super::windows::Window { id, until, owner: NONE });
                }
            }
            Effect::Load(records) => self.load(records),
            Effect::Untake(records) => self.come_again(records),
        }
    }

    pub(super) fn configure(&mut self, config: Config, now: Micros, tokens: Option<Tokens>) {
        if self.config.group_rate != config.group_rate
            && let Some(old) = self.config.group_rate
        {
            let lanes: Vec<u32> = self.refills.iter().map(|(_, lane)| *lane).collect();
            let mut kept = Vec::new();
            for lane in lanes {
                let tokens = self.lanes.get(lane).and_then(|l| l.tokens.as_deref().copied());
                if let (Some(tokens), Some(new)) = (tokens, config.group_rate) {
                    // Held until its new tokens are set below.
                    if let Some(l) = self.lanes.get_mut(lane) {
                        l.references += 1;
                    }
                    kept.push((lane, tokens.change(old, new, now)));
                }
                self.set_tokens(lane, None);
            }
            self.config.group_rate = config.group_rate;
            for (lane, tokens) in kept {
                self.set_tokens(lane, Some(tokens));
                self.release_lane(lane);
            }
        }
        let had_ttl = self.config.ttl > 0;
        self.config = Lazy::of(config);
        self.set_own_tokens(tokens);
        self.latest_level = self.latest_level.max(tokens.map_or(0, |t| t.at));
        if had_ttl != (self.config.ttl > 0) {
            self.begin_default_ttls();
        }
        for (_, lane) in std::mem::replace(&mut self.parked, Lazy::new()).iter().copied() {
            if let Some(l) = self.lanes.get_mut(lane) {
                l.seat = super::lane::Seat::None;
            }
            self.reseat(lane);
        }
    }

    pub(super) fn change_pauses(
        &mut self,
        group: Option<&[u8]>,
        push: Option<Micros>,
        claim: Option<Micros>,
    ) {
        if self.find_lane(group).is_none()
            && push.unwrap_or(NO_PAUSE) == NO_PAUSE
            && claim.unwrap_or(NO_PAUSE) == NO_PAUSE
        {
            return;
        }
        let lane = self.refer_lane(group);
        if let Some(until) = push {
            self.set_pause(lane, true, until);
        }
        if let Some(until) = claim {
            self.set_pause(lane, false, until);
        }
        self.release_lane(lane);
    }

    pub(super) fn set_level(&mut self, level: Option<i128>, at: Micros) {
        if let (Some(level), Some(_)) = (level, self.config.rate) {
            self.set_own_tokens(Some(Tokens { level, at }));
            self.latest_level = self.latest_level.max(at);
        }
    }

    pub(super) fn refill(&mut self, through: Micros) {
        while let Some((at, lane)) = self.refills.first().copied()
            && at <= through
        {
            self.refills.remove(&(at, lane));
            self.set_tokens(lane, None);
        }
    }

    pub(super) fn step_back(&mut self, now: Micros) {
        let cut =
            |t: Tokens, limits| if t.at > now { Tokens { level: t.level(limits, now), at: now } } else { t };
        if let (Some(limits), Some(tokens)) = (self.config.rate, self.own_tokens()) {
            self.set_own_tokens(Some(cut(tokens, limits)));
        }
        if let Some(limits) = self.config.group_rate {
            let lanes: Vec<u32> = self.refills.iter().map(|(_, lane)| *lane).collect();
            for lane in lanes {
                if let Some(tokens) = self.lanes.get(lane).and_then(|l| l.tokens.as_deref().copied()) {
                    self.set_tokens(lane, Some(cut(tokens, limits)));
                    self.unpark(lane);
                }
            }
        }
        self.latest_level = now;
    }

    pub(super) fn push_one(&mut self, push: &Push<'_>, n: u64, id: Id, payload: Box<[u8]>) {
        let old = match push.mode {
            Mode::New => NONE,
            Mode::Replace | Mode::Follow => self.find_live(id.as_ref()).unwrap_or(NONE),
        };
        if let (false, Id::Num(number)) = (push.named, &id) {
            self.next_id = self.next_id.max(number.saturating_add(1));
        }
        let entry = Entry {
            seq: push.entry.seq.saturating_add(n),
            turn: if n == 0 { push.entry.turn } else { None },
            ..push.entry
        };
        let stage = match push.mode {
            Mode::Follow => Stage::Follower { due: entry.at },
            Mode::New | Mode::Replace if entry.delayed => Stage::Delayed { due: entry.at, retry: false },
            Mode::New | Mode::Replace => Stage::Ready,
        };
        let lane = self.refer_lane(push.group.as_deref());
        let mut message = Message::new(id, payload, push.priority, lane);
        message.set_state(stage);
        if stage != Stage::Ready || push.own != Own::NONE || entry.at != push.now {
            let mut more = More::new(push.now);
            more.keep(stage);
            if push.own != Own::NONE {
                more.own = Some(Box::new(push.own));
                self.heap += size_of::<Own>();
            }
            message.more = self.more.insert(more);
        }
        if push.mode != Mode::Follow {
            message.set_place((entry.at, entry.seq));
            self.next_seq = self.next_seq.max(entry.seq.saturating_add(1));
        }
        let slot = self.store(message);
        self.totals.pushed = self.totals.pushed.saturating_add(1);
        match push.mode {
            Mode::New => self.join(slot, entry.turn),
            Mode::Replace => {
                // First in, then out: a group of its own keeps its turn.
                self.join(slot, entry.turn);
                if old != NONE {
                    let replaced = self.take_away(old);
                    self.totals.replaced = self.totals.replaced.saturating_add(replaced);
                }
            }
            Mode::Follow => {
                let replaced = self.follow(old, slot);
                self.totals.replaced = self.totals.replaced.saturating_add(replaced);
            }
        }
        if push.named {
            self.take_window(slot, push.window);
        }
    }

    /// Returns the payload when the message is gone by it.
    pub(super) fn claim_one(&mut self, claim: &Claim<'_>, n: u64, item: Claimed) -> Option<Box<[u8]>> {
        let slot = item.slot;
        let lane = self.messages.get(slot)?.lane;
        let turn = claim.turn.saturating_add(n);
        if let Some(l) = self.lanes.get_mut(lane) {
            l.turn = turn;
            self.next_turn = self.next_turn.max(turn.saturating_add(1));
        }
        if let Some(level) = item.level {
            self.set_tokens(lane, Some(Tokens { level, at: claim.now }));
        }
        self.totals.delivered = self.totals.delivered.saturating_add(1);
        match claim.first {
            None => {
                self.leave(slot, item.after);
                self.totals.acked = self.totals.acked.saturating_add(1);
                self.free(slot).map(|m| m.payload)
            }
            Some(first) => {
                self.unshelve(slot);
                let consumer = claim.consumer.as_deref().map_or(NONE, |c| self.names.refer(c));
                let deadline = claim.now.saturating_add(item.lease);
                let number = first.saturating_add(n);
                self.last_claim = self.last_claim.max(number);
                let stage = Stage::InFlight { claim: number, claimed_at: claim.now, deadline };
                let mut before = NONE;
                if let Some(more) = self.grow(slot) {
                    more.deliveries = more.deliveries.saturating_add(1);
                    before = std::mem::replace(&mut more.consumer, consumer);
                    more.keep(stage);
                }
                self.names.release(before);
                if let Some(m) = self.messages.get_mut(slot) {
                    m.set_state(stage);
                }
                self.shelve(slot);
                self.reseat(lane);
                None
            }
        }
    }

    pub(super) fn step(&mut self, slot: u32, step: &Step<'_>) {
        match step {
            Step::Ack { after } => {
                self.leave(slot, *after);
                self.free(slot);
                self.totals.acked = self.totals.acked.saturating_add(1);
            }
            Step::Expire { cause, after } => {
                if let Some(cause) = cause {
                    self.blame(slot, *cause);
                }
                self.leave(slot, *after);
                self.free(slot);
                self.totals.expired = self.totals.expired.saturating_add(1);
            }
            Step::Die { cause, reason, at, number, after } => {
                self.blame(slot, *cause);
                self.set_reason(slot, reason);
                self.leave(slot, *after);
                self.bury(slot, *number, *at);
                self.totals.dead = self.totals.dead.saturating_add(1);
            }
            Step::Back { cause, reason, due, place } => {
                self.unshelve(slot);
                self.blame(slot, *cause);
                if let Some(reason) = reason {
                    self.set_reason(slot, reason);
                }
                if let Some(place) = place {
                    self.set_place(slot, *place);
                }
                self.set_stage(slot, due.map_or(Stage::Ready, |due| Stage::Delayed { due, retry: true }));
                self.reshelve(slot);
            }
            Step::Due => {
                self.unshelve(slot);
                self.set_stage(slot, Stage::Ready);
                self.reshelve(slot);
            }
            Step::Extend { deadline } => self.extend_to(slot, *deadline),
            Step::Drop => {
                let gone = self.take_away(slot);
                self.totals.dropped = self.totals.dropped.saturating_add(gone);
            }
            Step::Delete => {
                let gone = self.take_away(slot);
                self.totals.deleted = self.totals.deleted.saturating_add(gone);
            }
            Step::Depart { after } => {
                if matches!(self.stage(slot), Some(Stage::Dead { .. })) {
                    self.exhume(slot);
                } else {
                    self.leave(slot, *after);
                }
                self.free(slot);
                self.totals.moved_out = self.totals.moved_out.saturating_add(1);
            }
            Step::Redrive { now, entry } => self.revive(slot, *now, *entry),
        }
    }

    fn reshelve(&mut self, slot: u32) {
        self.shelve(slot);
        if let Some(lane) = self.messages.get(slot).map(|m| m.lane) {
            self.reseat(lane);
        }
    }

    /// Counts why a message in flight came back.
    fn blame(&mut self, slot: u32, cause: Cause) {
        let total = match cause {
            Cause::Nack { .. } => &mut self.totals.nacked,
            Cause::Timeout => &mut self.totals.timed_out,
            Cause::Requeue => &mut self.totals.requeued,
        };
        *total = total.saturating_add(1);
        if let Some(more) = self.grow(slot) {
            match cause {
                Cause::Nack { counted: true } => more.failures = more.failures.saturating_add(1),
                Cause::Timeout => more.timeouts = more.timeouts.saturating_add(1),
                Cause::Nack { counted: false } | Cause::Requeue => {}
            }
        }
    }

    fn set_reason(&mut self, slot: u32, reason: &[u8]) {
        let name = self.names.refer(reason);
        let before = self.grow(slot).map_or(name, |more| std::mem::replace(&mut more.reason, name));
        self.names.release(before);
    }

    fn extend_to(&mut self, slot: u32, to: Micros) {
        let Some(Stage::InFlight { claim, claimed_at, deadline }) = self.stage(slot) else { return };
        self.leave_deadline(slot, claim, deadline);
        self.set_stage(slot, Stage::InFlight { claim, claimed_at, deadline: to });
        self.enter_deadline(slot, claim, to);
    }

    /// A dead message becomes live with fresh counters, TTL and place.
    fn revive(&mut self, slot: u32, now: Micros, entry: Entry) {
        let Some(id) = self.messages.get(slot).map(|m| m.id.as_ref()) else { return };
        if self.find_live(id).is_some() {
            return;
        }
        self.exhume(slot);
        let Some(m) = self.messages.get(slot) else { return };
        let Some(more) = self.more.get_mut(m.more) else { return };
        let own = Own { ttl_base: now, ..more.own() };
        if more.own.is_none() {
            self.heap += size_of::<Own>();
        }
        more.own = Some(Box::new(own));
        (more.deliveries, more.failures, more.timeouts) = (0, 0, 0);
        let names = [std::mem::replace(&mut more.consumer, NONE), std::mem::replace(&mut more.reason, NONE)];
        names.into_iter().for_each(|n| self.names.release(n));
        self.enter(slot, entry);
        self.join(slot, entry.turn);
        self.totals.redriven = self.totals.redriven.saturating_add(1);
    }

    /// The head of a snapshot, on a blank queue.
    pub(super) fn begin(&mut self, header: Header) {
        self.config = Lazy::of(header.config);
        self.totals = header.totals;
        self.next_id = header.next_id;
        self.next_seq = header.next_seq;
        self.next_turn = header.next_turn;
        self.next_death = header.next_death;
        self.last_claim = header.last_claim;
        self.set_own_tokens(header.tokens);
        self.latest_level = header.tokens.map_or(0, |t| t.at);
        self.set_pause(PLAIN, true, header.paused_push);
        self.set_pause(PLAIN, false, header.paused_claim);
        // Nothing is here yet. Totals that cannot be miss nothing: the whole is refused by them.
        let missing = self.totals.held().unwrap_or(0);
        self.loading = Some(Loading { missing, ..Default::default() });
        self.look_for_wear();
    }
}
