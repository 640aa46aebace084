//! Room for what comes: the bounds MAXLEN and MAXBYTES, and who is dropped for a push under `ONFULL
//! DROPOLD`.
//!
//! A push that is taken may ask for very many to be dropped, as bounds can be lowered below what is
//! there. It drops some itself and notes how much is *over*; the rest is put off (see
//! [`due`](super::due)). Every later push is decided as if all that were gone. A message that
//! leaves the ready ones in another way meanwhile need not be dropped any more.
//!
//! What is over is not state: after a restart the next push that finds the queue full notes it
//! anew.

use super::Queue;
use super::config::OnFull;
use super::effect::Step;
use super::effect_batch::EffectBatch;
use super::message::{Place, State};
use super::push::Refusal;
use crate::engine::journal::Journal;
use crate::engine::time::Micros;

/// How much is still to be dropped, longest ready first.
#[derive(Debug, Clone, Copy, Default)]
pub struct Over {
    messages: u64,
    bytes: u64,
    /// Only of places given before this one.
    before: u64,
    /// The place of the message that the push replaces in place.
    spared: Option<Place>,
}

impl Over {
    pub(super) fn is_any(&self) -> bool {
        self.messages > 0 || self.bytes > 0
    }

    /// A ready message leaves.
    #[inline]
    pub(super) fn left(&mut self, seq: u64, weight: u64) {
        if self.is_any() && seq < self.before {
            self.messages = self.messages.saturating_sub(1);
            self.bytes = self.bytes.saturating_sub(weight);
        }
    }
}

impl Queue {
    /// Live messages and bytes without what is still to be dropped.
    fn filled(&self) -> (u64, u64) {
        let (len, bytes) = (self.len(None), self.bytes);
        (len.saturating_sub(self.over.messages), bytes.saturating_sub(self.over.bytes))
    }

    /// Whether one more live message of this size passes no bound.
    pub(super) fn has_room(&self, size: u64) -> bool {
        let (max_len, max_bytes) = (self.config.max_len, self.config.max_bytes);
        let (len, bytes) = self.filled();
        (max_len == 0 || len < max_len)
            && (max_bytes == 0 || size == 0 || bytes.saturating_add(size) <= max_bytes)
    }

    /// Makes sure that `more` messages and `size` bytes pass no bound: there is room, or the
    /// longest ready are dropped (but not `keep`).
    pub(super) fn make_room(
        &mut self,
        now: Micros,
        more: u64,
        size: i128,
        keep: u32,
        asked: u64,
        journal: &mut Journal,
    ) -> Result<(), Refusal> {
        let (max_len, max_bytes) = (self.config.max_len, self.config.max_bytes);
        if max_len == 0 && max_bytes == 0 {
            return Ok(());
        }
        let fits = |(len, bytes): (u64, u64)| {
            (more == 0 || max_len == 0 || len.saturating_add(more) <= max_len)
                && (size <= 0 || max_bytes == 0 || i128::from(bytes) + size <= i128::from(max_bytes))
        };
        if fits(self.filled()) {
            return Ok(());
        }
        let mut batch = EffectBatch::new(journal);
        while let Some(slot) =
            self.next_over(now).filter(|_| batch.journal.left() > 0 && !fits(self.filled()))
        {
            self.expire(slot, now, &mut batch);
        }
        batch.flush();
        let (len, bytes) = self.filled();
        if fits((len, bytes)) {
            return Ok(());
        }
        let kept = self.messages.get(keep).filter(|m| m.state() == State::Ready);
        let spared = kept.map(|m| m.place());
        let droppable = self.ready - u64::from(kept.is_some());
        let droppable_bytes = self.ready_bytes - kept.map_or(0, |m| self.weight_of(m));
        let enough = fits((self.len(None) - droppable, self.bytes - droppable_bytes));
        if self.config.on_full == OnFull::Reject || !enough {
            self.rejected = self.rejected.saturating_add(asked);
            return Err(Refusal::Full);
        }
        let messages =
            if more > 0 && max_len > 0 { (len.saturating_add(more)).saturating_sub(max_len) } else { 0 };
        let past = i128::from(bytes) + size - i128::from(max_bytes);
        let past = if size > 0 && max_bytes > 0 { u64::try_from(past).unwrap_or(0) } else { 0 };
        self.over = Over {
            messages: self.over.messages.saturating_add(messages),
            bytes: self.over.bytes.saturating_add(past),
            before: self.next_seq,
            spared,
        };
        let most = batch.journal.left();
        let done = self.drop_ready(&mut batch, most);
        batch.flush();
        journal.spend(done);
        self.begin_command();
        Ok(())
    }

    /// Drops up to `most` of what is over; returns how many (1 if nothing can be).
    pub(super) fn drop_ready(&mut self, batch: &mut EffectBatch<'_>, most: usize) -> usize {
        let mut done = 0;
        while done < most && self.over.is_any() {
            let first = self.longest_ready(self.over.spared).filter(|slot| self.may_be_dropped(*slot));
            match first.or_else(|| self.ready_behind_newer()) {
                Some(victim) => self.commit(batch, victim, &Step::Drop),
                None => self.over = Over::default(),
            }
            done += 1;
        }
        done
    }

    fn may_be_dropped(&self, slot: u32) -> bool {
        let m = self.messages.get(slot);
        m.is_some_and(|m| m.seq() < self.over.before && Some(m.place()) != self.over.spared)
    }

    /// After the clock stepped back what was pushed later may lie before: the first behind it that
    /// may be dropped, unless very many lie before.
    fn ready_behind_newer(&self) -> Option<u32> {
        const RUNS: usize = 8;
        const MESSAGES: usize = 64;
        let runs = self.heads.iter().take(RUNS);
        let runs =
            runs.filter_map(|(_, _, lane, priority)| Some(&self.lanes.get(lane)?.run(priority)?.order));
        let first = |o: &crate::engine::collections::order::Order<u32>| {
            o.iter().take(MESSAGES).find(|slot| self.may_be_dropped(*slot))
        };
        runs.filter_map(first).min_by_key(|slot| self.messages.get(*slot).map(|m| m.place()))
    }

    /// A message whose TTL is over, if one is known.
    fn next_over(&self, now: Micros) -> Option<u32> {
        let known = self.next_to_expire().filter(|(at, _)| *at <= now).map(|(_, slot)| slot);
        let met = || self.longest_ready(None).filter(|slot| self.is_over(*slot, now));
        known.or_else(|| self.unindexed.and_then(|_| met()))
    }

    /// The message that has been ready longest, other than the one at this place.
    pub(super) fn longest_ready(&self, but: Option<Place>) -> Option<u32> {
        let place = |slot: &u32| self.messages.get(*slot).map(|m| m.place());
        let mut heads = self
            .heads
            .iter()
            .filter_map(|(_, _, lane, priority)| Some(&self.lanes.get(lane)?.run(priority)?.order));
        let first = heads.next()?;
        let front = first.front()?;
        if but.is_none() || place(&front) != but {
            return Some(front);
        }
        let others = [first.second(), heads.next().and_then(|o| o.front())];
        others.into_iter().flatten().min_by_key(place)
    }
}
