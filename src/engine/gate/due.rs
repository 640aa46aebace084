//! What time does to a gate: leases end, the line is let through, those in it give up; each at its
//! own instant, in time order.

use super::Effect;
use super::Gate;
use super::stage::State;
use crate::engine::journal::Journal;
use crate::engine::object::AT_ONCE;
use crate::engine::shared::pass::Pass;
use crate::engine::shared::waiting::{Answer, Ticket};
use crate::engine::time::Micros;

impl Gate {
    /// What a command decides on: the line as it is at `now`. Leases are taken away as many as
    /// there may be.
    pub(super) fn begin(&mut self, now: Micros, journal: &mut Journal) {
        if !self.end_due(now, journal.left(), journal) {
            self.advance(now, usize::MAX, journal);
        }
    }

    /// The line may go on at `now`, after something was decided: as far as the command may go, the
    /// rest is due at once.
    pub(super) fn serve_now(&mut self, now: Micros, journal: &mut Journal) {
        self.retry_at = self.retry_at.min(now);
        let steps = self.serve(now, now, journal.left(), journal);
        journal.spend(steps);
    }

    /// Does what is due in the line up to `now`, instant by instant, at most `most` steps; returns
    /// how many were done. Leases need not be taken away for that.
    pub(super) fn advance(&mut self, now: Micros, most: usize, journal: &mut Journal) -> usize {
        if self.line.len() == 0 {
            self.permits.reach(now);
            return 0;
        }
        let mut steps = 0;
        if now < self.tried_at {
            // The clock stepped back: what was reckoned ahead is no longer so.
            self.try_again_after(0, now);
            steps += self.serve(now, now, most, journal);
        }
        while steps < most
            && let Some(instant) = self.next_turn().filter(|at| *at <= now)
        {
            self.permits.reach(instant);
            // What is cut short here is tried again: the line's first is due at once then.
            self.retry_at = self.retry_at.min(instant);
            steps += self.serve(instant, now, most - steps, journal);
            if steps < most
                && let Some((_, ticket)) = self.line.first_end().filter(|(end, _)| *end <= instant)
            {
                self.time_out(ticket, instant, journal);
                steps += 1;
                steps += self.serve(instant, now, most - steps, journal);
            }
        }
        if steps < most {
            self.permits.reach(now);
            if self.tried_at != now {
                // `retry_at` counts in whole ms: what is there a little sooner serves whoever comes
                // to wait, before a newcomer.
                steps += self.serve(now, now, most - steps, journal);
            }
        }
        journal.spend(steps);
        steps
    }

    /// When the line moves next: its first is to be tried, as a permit is back or it is time, or
    /// somebody in it gives up.
    fn next_turn(&self) -> Option<Micros> {
        let (end, _) = self.line.first_end()?;
        let limit = self.stages.iter().find_map(|stage| match &stage.state {
            State::Permits { limit, .. } => Some(*limit),
            State::Bucket(_) | State::Leaky(_) => None,
        });
        let lacking = limit.map(|limit| self.permits.held() + 1 - limit).filter(|lacking| *lacking > 0);
        let permit = lacking.and_then(|lacking| self.permits.back(lacking));
        [Some(end), Some(self.retry_at), permit].into_iter().flatten().min()
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
    fn end_first(&mut self, journal: &mut Journal) -> bool {
        let Some(receipt) = self.permits.first_over() else {
            return false;
        };
        self.commit(Effect::Ended { receipt }, journal);
        true
    }

    fn time_out(&mut self, ticket: Ticket, at: Micros, journal: &mut Journal) {
        let Some(waiter) = self.line.get(ticket).copied() else {
            return;
        };
        let looks = self.looks_from(Some(ticket), None, waiter.cost, waiter.maxwait_ms, at);
        let pass = Pass::judge(&looks, waiter.cost);
        self.refuse(&looks, at, journal);
        self.line.remove(ticket);
        self.answers.push_back((ticket, Answer::Pass(Box::new(pass))));
    }

    /// When something is to be done; [`AT_ONCE`]: somebody is still to be told.
    pub(super) fn next_instant(&self) -> Option<Micros> {
        if !self.answers.is_empty() {
            return Some(AT_ONCE);
        }
        let end = self.permits.first_end().map(|(end, _)| end);
        let timeout = self.line.first_end().map(|(end, _)| end);
        [end, timeout, timeout.map(|_| self.retry_at)].into_iter().flatten().min()
    }
}
