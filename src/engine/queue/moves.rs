//! MOVE: from one queue to the end of another.

use super::Queue;
use super::effect::Step;
use super::effect_batch::EffectBatch;
use super::message::{Id, Place, Stage, State};
use super::wire::Wire;
use crate::engine::collections::slab::NONE;
use crate::engine::journal::{Blob, Journal};
use crate::engine::time::Micros;

/// Ready messages looked at at a time.
const PAGE: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Movable {
    Ready,
    Dead,
}

impl Queue {
    /// Moves up to `count` messages to the end of `to`, in this queue's order; skips ids that are
    /// live there, stops at its bounds; returns how many.
    pub fn move_to(
        &mut self,
        to: &mut Queue,
        now: Micros,
        what: Movable,
        count: u64,
        journal: &mut Journal,
        to_journal: &mut Journal,
    ) -> u64 {
        self.begin_command();
        to.begin_command();
        let mut batch = EffectBatch::new(journal);
        let moved = match what {
            Movable::Ready => self.move_ready(to, now, count, &mut batch, to_journal),
            Movable::Dead => self.move_dead(to, count, &mut batch, to_journal),
        };
        batch.flush();
        if moved > 0 {
            to.apply_most_due(now, to_journal.left(), to_journal);
        }
        moved
    }

    fn move_ready(
        &mut self,
        to: &mut Queue,
        now: Micros,
        count: u64,
        batch: &mut EffectBatch<'_>,
        to_journal: &mut Journal,
    ) -> u64 {
        let mut moved = 0;
        let mut from: Option<(u8, Place)> = None;
        // Followers that enter meanwhile stay.
        let before = self.next_seq;
        let (over, to_is_behind) = (self.any_over(now), to.is_behind(now));
        loop {
            let page = self.ready_from(from, None, PAGE.min(usize::try_from(count - moved).unwrap_or(PAGE)));
            if page.is_empty() {
                return moved;
            }
            for slot in page {
                let Some(m) = self.messages.get(slot) else { continue };
                from = Some((m.priority, m.place()));
                if over && self.is_over(slot, now) {
                    if batch.journal.left() == 0 {
                        return moved;
                    }
                    self.expire(slot, now, batch);
                    continue;
                }
                if to_is_behind {
                    let mut to_pen = EffectBatch::new(to_journal);
                    to.bring_up(m.id.as_ref(), now, &mut to_pen);
                    to_pen.flush();
                }
                if m.seq() >= before || to.find_live(m.id.as_ref()).is_some() {
                    continue;
                }
                if !to.has_room(m.payload.len() as u64) {
                    return moved;
                }
                to.take_in(self, slot, Some(now), to_journal);
                let after = self.what_follows(slot, now, None);
                self.commit(batch, slot, &Step::Depart { after });
                moved += 1;
                if moved >= count {
                    return moved;
                }
            }
        }
    }

    fn move_dead(
        &mut self,
        to: &mut Queue,
        count: u64,
        batch: &mut EffectBatch<'_>,
        to_journal: &mut Journal,
    ) -> u64 {
        let mut moved = 0;
        while moved < count
            && let Some((_, slot)) = self.next_dead(0)
        {
            to.take_in(self, slot, None, to_journal);
            self.commit(batch, slot, &Step::Depart { after: super::effect::After::None });
            if to.too_many_dead() {
                let mut to_pen = EffectBatch::new(to_journal);
                to.drop_dead(&mut to_pen, 1);
                to_pen.flush();
            }
            moved += 1;
        }
        moved
    }

    /// Takes in a message of another queue: ready as of `now`, or dead.
    fn take_in(&mut self, from: &Queue, slot: u32, now: Option<Micros>, journal: &mut Journal) {
        let Some((mut record, id, payload)) = from.record(slot) else { return };
        match (now, record.stage) {
            (None, Stage::Dead { died_at, .. }) => {
                record.stage = Stage::Dead { number: self.next_death, died_at, older: NONE, newer: NONE };
            }
            _ => {
                record.stage = Stage::Ready;
                record.place = (now.unwrap_or(0), self.next_seq);
                record.turn = self.turn_to_join(record.group.as_deref());
            }
        }
        record.owns_window = false;
        if journal.carries() {
            journal.record(&Wire::Arrive(vec![(record.clone(), id)]), [Blob::Bytes(payload.into())]);
        } else {
            journal.touch();
        }
        let id: Id = id.to_id();
        self.totals.moved_in = self.totals.moved_in.saturating_add(1);
        self.restore(&record, id, payload.into(), NONE);
    }

    /// Ready messages (of one lane, or of all) in the order of service, after a place in it.
    pub(super) fn ready_from(&self, after: Option<(u8, Place)>, lane: Option<u32>, most: usize) -> Vec<u32> {
        let after = after.map(|(priority, place)| self.rank(priority, place));
        let rank = |slot: u32, priority: u8| {
            let place = self.messages.get(slot).map_or((0, 0), |m| m.place());
            self.rank(priority, place)
        };
        // The first of each run that lies behind; the best of them is next, and its successor takes
        // its stead.
        let mut heap = std::collections::BinaryHeap::new();
        let one = lane.and_then(|l| self.lanes.get(l)).into_iter();
        let all = self.lanes.iter().map(|(_, l)| l).filter(|_| lane.is_none());
        let mut runs = Vec::new();
        for run in one.chain(all).flat_map(|l| &l.runs) {
            let mut rest = run.order.iter_from(|e| match after {
                Some(after) if rank(*e, run.priority) <= after => std::cmp::Ordering::Less,
                _ => std::cmp::Ordering::Greater,
            });
            if let Some(slot) = rest.next() {
                heap.push(std::cmp::Reverse((rank(slot, run.priority), slot, runs.len())));
                runs.push((rest, run.priority));
            }
        }
        let mut out = Vec::new();
        while out.len() < most
            && let Some(std::cmp::Reverse((_, slot, run))) = heap.pop()
        {
            out.push(slot);
            if let Some((rest, priority)) = runs.get_mut(run)
                && let Some(next) = rest.next()
            {
                heap.push(std::cmp::Reverse((rank(next, *priority), next, run)));
            }
        }
        out
    }

    /// Where a ready message stands in the order of service: smallest first.
    pub(super) fn rank(&self, priority: u8, (ready_at, seq): Place) -> (i128, i128, u64) {
        let (priority, ready_at) = (i128::from(priority), i128::from(ready_at));
        match self.config.aging {
            0 => (-priority, ready_at, seq),
            aging => (ready_at - priority * i128::from(aging), -priority, seq),
        }
    }

    /// How many messages there are in a state; None: live.
    pub fn len(&self, state: Option<State>) -> u64 {
        match state {
            Some(State::Ready) => self.ready,
            Some(State::Delayed) => self.delayed.len() as u64,
            Some(State::InFlight) => self.claims.len() as u64,
            Some(State::Dead) => self.deaths.len() as u64,
            Some(State::Follower) => self.followers,
            None => (self.live.len() + self.numbers.len()) as u64,
        }
    }
}
