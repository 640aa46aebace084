//! What time does: lease ends, due delays, TTLs, ends of pauses and windows, full buckets: each at its own instant, in time order.
//!
//! At one instant the order is that of [`Due`]'s variants, within lease ends that of the claims, else that of places. One thing is done at a
//! time and the next is looked up anew, so stopping anywhere and going on later gives the same.

use super::Queue;
use super::answer::Return;
use super::config::{FOREVER, NO_PAUSE};
use super::effect::{Cause, Step};
use super::order::Order;
use super::pen::Pen;
use super::wire::Wire;
use crate::engine::journal::Journal;
use crate::engine::time::Micros;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    Lease(u32),
    Delay(u32),
    Ttl(u32),
    Pause { lane: u32, push: bool },
    Window,
    Refill,
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

    /// When `settle` has something to do: the instant of `next_due`. Asked twice a command, so it looks at no message.
    pub(super) fn next_settling(&self) -> Option<Micros> {
        const NEVER: Micros = Micros::MAX;
        let front = |order: &Order<(Micros, u32)>| order.front().map_or(NEVER, |(at, _)| at);
        let ttl = front(&self.default_ttls).saturating_add(self.config.ttl).min(front(&self.own_ttls));
        let lane = self.pause_ends.first().map_or(NEVER, |(at, ..)| *at);
        let lane = lane.min(self.refills.first().map_or(NEVER, |(at, _)| *at));
        let message = front(&self.deadlines).min(front(&self.delayed));
        let at = message.min(ttl).min(front(&self.window_ends)).min(lane);
        // Numbers that run out are an event that is due at once.
        let at = if self.is_crowded() { 0 } else { at };
        (at < NEVER).then_some(at)
    }

    /// Applies what is due at `now`, at most `most` things; true when nothing is left. What was due before `floor` came to be due only then.
    pub(super) fn settle_from(
        &mut self,
        floor: Micros,
        now: Micros,
        most: usize,
        journal: &mut Journal,
    ) -> bool {
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
        let mut pen = Pen::new(journal);
        let mut done = 0;
        while let Some((at, due)) = self.next_due().filter(|(at, _)| *at <= now) {
            if done >= most {
                pen.flush();
                return false;
            }
            done += 1;
            let at = at.max(floor);
            if at != self.settled_to {
                // Another instant: groups that the last one emptied have lost their turn.
                self.settled_to = at;
                self.begin_command();
            }
            self.settle_one(at, due, &mut pen);
        }
        pen.flush();
        true
    }

    fn settle_one(&mut self, at: Micros, due: Due, pen: &mut Pen<'_>) {
        match due {
            Due::Lease(slot) => {
                let way =
                    Return { cause: Cause::Timeout, reason: Some(b"timeout"), delay: None, back: false };
                self.come_back(pen, slot, at, &way);
            }
            Due::Delay(slot) => self.commit(pen, slot, &Step::Due),
            Due::Ttl(slot) => {
                let after = self.what_follows(slot, at, None);
                self.commit(pen, slot, &Step::Expire { cause: None, after });
            }
            Due::Pause { lane, push } => {
                pen.flush();
                let group: Option<Box<[u8]>> = self.group_of(lane).map(Into::into);
                let (of_push, of_claim) = if push { (Some(NO_PAUSE), None) } else { (None, Some(NO_PAUSE)) };
                self.set_pauses(group.as_deref(), of_push, of_claim, pen.journal);
            }
            Due::Window => {
                pen.flush();
                pen.journal.record(&Wire::EndWindows(at), []);
                self.end_windows(at);
            }
            Due::Refill => {
                pen.flush();
                pen.journal.record(&Wire::Refill(at), []);
                self.refill(at);
            }
        }
    }
}
