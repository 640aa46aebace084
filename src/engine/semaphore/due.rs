//! What time does to a semaphore: leases end, the line is served, those in it give up; each at its
//! own instant, in time order.

use super::Effect;
use super::Semaphore;
use crate::engine::bucket::NoLimits;
use crate::engine::journal::Journal;
use crate::engine::object::AT_ONCE;
use crate::engine::shared::waiting::{Answer, Permit, Ticket};
use crate::engine::time::Micros;

impl Semaphore {
    /// What a command decides on: the line as it is at `now`. Leases are taken away as many as
    /// there may be.
    pub(super) fn begin(&mut self, now: Micros, journal: &mut Journal) {
        if !self.end_due(now, journal.left(), journal) {
            self.advance(now, usize::MAX, journal);
        }
    }

    /// Serves the line as far as it goes at the instant that was reached, at most `most`; returns
    /// how many that were. Leases begin at `now`.
    fn serve(&mut self, now: Micros, most: usize, journal: &mut Journal) -> usize {
        let mut steps = 0;
        while steps < most
            && let Some((ticket, first)) = self.line.first()
        {
            let (count, used) = (first.count, self.permits.held());
            match self.limit_among(first.limit, used) {
                Ok(all) if count <= all && used + count > all => break,
                Ok(all) if count <= all => {
                    if let Some(w) = self.line.remove(ticket) {
                        let lease_ms = w.lease_ms.unwrap_or(self.lease_ms);
                        let permit = self.grant(count, all, lease_ms, w.owner, now, journal);
                        self.answers.push_back((ticket, Answer::Permit(permit)));
                    }
                }
                Ok(limit) => {
                    self.line.remove(ticket);
                    let never =
                        Permit { granted: 0, limit, free: (limit - used).max(0), retry: -1, receipt: None };
                    self.counts.refused += 1;
                    self.answers.push_back((ticket, Answer::Permit(never)));
                }
                Err(NoLimits) => {
                    self.line.remove(ticket);
                    self.answers.push_back((ticket, Answer::NoLimits));
                }
            }
            steps += 1;
        }
        steps
    }

    /// Does what is due in the line up to `now`, instant by instant, at most `most` steps; returns
    /// how many were done. Leases need not be taken away for that.
    pub(super) fn advance(&mut self, now: Micros, most: usize, journal: &mut Journal) -> usize {
        if self.line.len() == 0 {
            self.permits.reach(now);
            return 0;
        }
        // An earlier call may have stopped short of this.
        let mut steps = self.serve(now, most, journal);
        while steps < most
            && let Some(instant) = self.next_turn().filter(|at| *at <= now)
        {
            self.permits.reach(instant);
            steps += self.serve(now, most - steps, journal);
            if steps < most
                && let Some((_, ticket)) = self.line.first_end().filter(|(end, _)| *end <= instant)
            {
                self.time_out(ticket, instant);
                steps += 1;
                steps += self.serve(now, most - steps, journal);
            }
        }
        if steps < most {
            self.permits.reach(now);
        }
        journal.spend(steps);
        steps
    }

    /// How many permits the first in line lacks at the instant that was reached; 0: it can be told.
    /// None: nobody waits.
    fn lacking(&self) -> Option<i64> {
        let (_, first) = self.line.first()?;
        let held = self.permits.held();
        Some(match self.limit_among(first.limit, held) {
            Ok(all) if first.count <= all => (held + first.count - all).max(0),
            _ => 0,
        })
    }

    /// When the line moves next, which has been served: there is enough for its first, or somebody
    /// in it gives up.
    fn next_turn(&self) -> Option<Micros> {
        let enough = self.permits.back(self.lacking()?);
        [enough, self.line.first_end().map(|(end, _)| end)].into_iter().flatten().min()
    }

    /// Does what is due at `now`: first in the line, then leases that are over are taken away, in
    /// the order of their ends; at most `most` steps. True when nothing due is left.
    pub(super) fn end_due(&mut self, now: Micros, most: usize, journal: &mut Journal) -> bool {
        if now < self.permits.over_to() {
            // What was over by then stays so.
            while self.end_first(journal) {}
            self.permits.step_back(now);
        }
        let mut steps = self.advance(now, most, journal);
        let in_line = steps;
        while steps < most && self.end_first(journal) {
            steps += 1;
        }
        journal.spend(steps - in_line);
        steps < most
    }

    /// Takes away the first lease that is over, if there is one.
    pub(super) fn end_first(&mut self, journal: &mut Journal) -> bool {
        let Some(receipt) = self.permits.first_over() else {
            return false;
        };
        self.counts.ended += 1;
        self.commit(Effect::Ended { receipt }, journal);
        true
    }

    fn time_out(&mut self, ticket: Ticket, at: Micros) {
        let Some(waiter) = self.line.get(ticket) else {
            return;
        };
        let answer = match self.refusal(waiter.limit, waiter.count, Some(ticket), at) {
            Ok(permit) => Answer::Permit(permit),
            Err(NoLimits) => Answer::NoLimits,
        };
        self.counts.refused += 1;
        self.line.remove(ticket);
        self.answers.push_back((ticket, answer));
    }

    /// When something is to be done; [`AT_ONCE`]: something was left undone.
    pub(super) fn next_instant(&self) -> Option<Micros> {
        if !self.answers.is_empty() || self.lacking() == Some(0) {
            return Some(AT_ONCE);
        }
        let end = self.permits.first_end().map(|(end, _)| end);
        let timeout = self.line.first_end().map(|(end, _)| end);
        [end, timeout].into_iter().flatten().min()
    }
}
