//! What time does: lease ends, due delays, TTLs, ends of pauses and windows, full buckets: each at
//! its own instant, in time order.
//!
//! At one instant the order is that of [`Due`]'s variants, within lease ends that of the claims,
//! else that of places. One thing is done at a time and the next is looked up anew, so stopping
//! anywhere and going on later gives the same.
//!
//! **Put off.** A command applies a bounded part of what is due and the timer goes on; what a
//! lowered bound makes superfluous (dead letters above MAXDEAD, messages dropped for a push) is due
//! after all that has an instant. Nothing of it is written down but by being done: all is derived
//! from the state, so a restart or another master goes on with it. A command that comes before the
//! rest is done decides right all the same:
//!
//! - What it names by id or receipt is *brought up*: what is due on those messages happens first,
//!   out of turn.
//! - A ready message whose TTL is over is never handed out, moved or in the way of a push: it goes
//!   when it is met.
//! - A message in flight whose lease is over is not requeued, a dead one above MAXDEAD neither
//!   redriven nor moved, and no id means it.
//!
//! Counts and lists may lag. The end is the same in whatever pieces it is done, unless commands
//! come in between: then what the order of events decides may differ (the turns of groups, the
//! places of followers, the order of deaths).

use super::Queue;
use super::ack::Return;
use super::config::{FOREVER, NO_PAUSE};
use super::effect::{Cause, Step};
use super::effect_batch::EffectBatch;
use super::message::{IdRef, Stage};
use super::wire::Wire;
use crate::engine::collections::order::Order;
use crate::engine::journal::Journal;
use crate::engine::object::AT_ONCE;
use crate::engine::time::Micros;

/// Windows that end at one instant are ended one by one if they are more.
const WINDOWS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    Lease(u32),
    Delay(u32),
    Ttl(u32),
    Pause { lane: u32, push: bool },
    Window,
    Refill,
}

/// What is to be done next.
enum Next {
    /// Messages are entered into the order of what expires, before anything expires.
    Index,
    Due(Micros, Due),
    /// The oldest dead one goes.
    Dead,
    /// The longest ready one goes.
    Room,
}

impl Queue {
    /// The first thing that is due, and when.
    pub(super) fn next_due(&self) -> Option<(Micros, Due)> {
        let lease = self.deadlines.front().map(|(at, slot)| (at, Due::Lease(slot)));
        let delay = self.delayed.front().map(|(at, slot)| (at, Due::Delay(slot)));
        let ttl = self.next_to_expire().map(|(at, slot)| (at, Due::Ttl(slot)));
        let pause = self.next_pause_end().map(|(at, lane, push)| (at, Due::Pause { lane, push }));
        let window = self.window_ends.front().map(|(at, _)| (at, Due::Window));
        let refill = self.refills.first().map(|(at, _)| (*at, Due::Refill));
        [lease, delay, ttl, pause, window, refill].into_iter().flatten().min()
    }

    fn next_pause_end(&self) -> Option<(Micros, u32, bool)> {
        self.pause_ends.first().copied().filter(|(at, ..)| *at < FOREVER)
    }

    /// When the next lease, delay, TTL or pause ends: what INFO tells.
    pub(super) fn next_change(&self) -> Option<Micros> {
        let lease = self.deadlines.front().map(|(at, _)| at);
        let delay = self.delayed.front().map(|(at, _)| at);
        let ttl = self.next_to_expire().map(|(at, _)| at);
        let pause = self.next_pause_end().map(|(at, ..)| at);
        [lease, delay, ttl, pause].into_iter().flatten().min()
    }

    /// When `settle` has something to do: the instant of `next_due`. Asked twice a command, so it
    /// looks at no message.
    pub(super) fn next_settling(&self) -> Option<Micros> {
        const NEVER: Micros = Micros::MAX;
        let front = |order: &Order<(Micros, u32)>| order.front().map_or(NEVER, |(at, _)| at);
        let ttl = self.next_ttl();
        let lane = self.pause_ends.first().map_or(NEVER, |(at, ..)| *at);
        let lane = lane.min(self.refills.first().map_or(NEVER, |(at, _)| *at));
        let message = front(&self.deadlines).min(front(&self.delayed));
        let at = message.min(ttl).min(front(&self.window_ends)).min(lane);
        // Numbers that run out are an event that is due at once, as is what needs no instant.
        let at_once =
            self.is_crowded() || self.unindexed.is_some() || self.too_many_dead() || self.over.is_any();
        let at = if at_once { AT_ONCE } else { at };
        (at < NEVER).then_some(at)
    }

    /// When the first TTL is over that is known. Looks at no message.
    fn next_ttl(&self) -> Micros {
        let front = |order: &Order<(Micros, u32)>| order.front().map_or(Micros::MAX, |(at, _)| at);
        front(&self.default_ttls).saturating_add(self.config.ttl).min(front(&self.own_ttls))
    }

    /// Whether anything due at `now` is put off still.
    pub fn is_behind(&self, now: Micros) -> bool {
        self.next_settling().is_some_and(|at| at <= now)
    }

    /// What is to be done next at `now`.
    fn next(&self, now: Micros) -> Option<Next> {
        if self.unindexed.is_some() {
            return Some(Next::Index);
        }
        match self.next_due() {
            Some((at, due)) if at <= now => Some(Next::Due(at, due)),
            _ if self.too_many_dead() => Some(Next::Dead),
            _ if self.over.is_any() => Some(Next::Room),
            _ => None,
        }
    }

    /// Applies what is due at `now`, at most `most` things; true when nothing is left.
    pub(super) fn apply_most_due(&mut self, now: Micros, most: usize, journal: &mut Journal) -> bool {
        if self.is_torso() {
            journal.record(&Wire::CutOff, []);
            self.end_load();
        }
        if self.is_crowded() {
            journal.record(&Wire::Renumber, []);
            self.renumber();
        }
        if self.latest_level > now {
            journal.record(&Wire::StepBack(now), []);
            self.step_back(now);
        }
        self.doom();
        let mut batch = EffectBatch::new(journal);
        let mut done = 0;
        while let Some(next) = self.next(now) {
            if done >= most {
                break;
            }
            done += match next {
                Next::Index => self.index_ttls(most - done),
                Next::Due(at, due) => {
                    let at = self.instant(at, due, now);
                    if at != self.settled_to {
                        // Another instant: groups that the last one emptied have lost their turn.
                        self.begin_command();
                        self.settled_to = at;
                    }
                    self.settle_one(at, due, &mut batch);
                    1
                }
                Next::Dead => self.drop_dead(&mut batch, 1),
                Next::Room => self.drop_ready(&mut batch, 1),
            };
        }
        batch.flush();
        journal.spend(done);
        !self.is_behind(now)
    }

    /// As of when something due happens: a TTL that was set when it was over counts from then.
    fn instant(&self, at: Micros, due: Due, now: Micros) -> Micros {
        match due {
            Due::Ttl(slot) if self.own(slot).ttl == 0 => at.max(self.ttl_since).min(now),
            _ => at,
        }
    }

    fn settle_one(&mut self, at: Micros, due: Due, batch: &mut EffectBatch<'_>) {
        match due {
            Due::Lease(slot) => {
                let way =
                    Return { cause: Cause::Timeout, reason: Some(b"timeout"), delay: None, back: false };
                self.come_back(batch, slot, at, &way);
            }
            Due::Delay(slot) => self.commit(batch, slot, &Step::Due),
            Due::Ttl(slot) => {
                let after = self.what_follows(slot, at, None);
                self.commit(batch, slot, &Step::Expire { cause: None, after });
            }
            Due::Pause { lane, push } => {
                batch.flush();
                let group: Option<Box<[u8]>> = self.group_of(lane).map(Into::into);
                let (of_push, of_claim) = if push { (Some(NO_PAUSE), None) } else { (None, Some(NO_PAUSE)) };
                self.set_pauses(group.as_deref(), of_push, of_claim, batch.journal);
            }
            Due::Window => {
                batch.flush();
                self.end_window_at(at, batch.journal);
            }
            Due::Refill => {
                batch.flush();
                batch.journal.record(&Wire::Refill(at), []);
                self.refill(at);
            }
        }
    }

    /// The windows that end at this instant end; if they are many, one of them.
    fn end_window_at(&mut self, at: Micros, journal: &mut Journal) {
        let ending = self.window_ends.iter().take(WINDOWS + 1).take_while(|(until, _)| *until <= at);
        if ending.count() > WINDOWS
            && let Some((_, window)) = self.window_ends.front()
            && let Some(w) = self.windows.get(window)
        {
            journal.record(&Wire::EndWindow(w.id.as_ref()), []);
            self.close_window(window);
        } else {
            journal.record(&Wire::EndWindows(at), []);
            self.end_windows(at);
        }
    }

    /// The first thing that time does to a live message, and when.
    fn due_of(&self, slot: u32) -> Option<(Micros, Due)> {
        let ttl = || self.expires(slot).map(|at| (at, Due::Ttl(slot)));
        match self.stage(slot)? {
            Stage::InFlight { deadline, .. } => Some((deadline, Due::Lease(slot))),
            Stage::Delayed { due, .. } => Some((due, Due::Delay(slot))).into_iter().chain(ttl()).min(),
            Stage::Ready => ttl(),
            Stage::Dead { .. } | Stage::Follower { .. } => None,
        }
    }

    /// A command decides on this id: what is due on the live message with it, and on what follows
    /// that, happens at once, out of turn.
    pub(super) fn bring_up(&mut self, id: IdRef<'_>, now: Micros, batch: &mut EffectBatch<'_>) {
        while let Some(slot) = self.find_live(id)
            && let Some((at, due)) = self.due_of(slot).filter(|(at, _)| *at <= now)
        {
            let at = self.instant(at, due, now);
            self.settle_one(at, due, batch);
        }
    }

    /// The same for many ids, if anything is put off.
    pub(super) fn bring_up_all<'a>(
        &mut self,
        ids: impl IntoIterator<Item = IdRef<'a>>,
        now: Micros,
        journal: &mut Journal,
    ) {
        if self.is_behind(now) {
            let mut batch = EffectBatch::new(journal);
            ids.into_iter().for_each(|id| self.bring_up(id, now, &mut batch));
            batch.flush();
        }
    }

    /// Whether some TTL may be over of a message that is still there.
    pub(super) fn any_over(&self, now: Micros) -> bool {
        self.unindexed.is_some() || self.next_ttl() <= now
    }

    /// Whether a message that is not in flight is past its TTL.
    pub(super) fn is_over(&self, slot: u32, now: Micros) -> bool {
        self.expires(slot).is_some_and(|at| at <= now)
    }

    /// A message past its TTL was met: it goes, out of turn.
    pub(super) fn expire(&mut self, slot: u32, now: Micros, batch: &mut EffectBatch<'_>) {
        if let Some(at) = self.expires(slot) {
            let due = Due::Ttl(slot);
            let at = self.instant(at, due, now);
            self.settle_one(at, due, batch);
            batch.journal.spend(1);
        }
    }
}
