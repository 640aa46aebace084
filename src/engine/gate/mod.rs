//! `GATE`: several stages in a row, passed all or not at all: token buckets, leaky buckets,
//! permits.
//!
//! States: *blank* (no stages, the same as no key) or *set*: 1 … 16 stages with unique names, at
//! most one of which gives permits. A set gate stays until it is deleted.
//!
//! Invariants:
//! - A pass is judged by all stages before it is charged by any (see shared/pass.rs); refused, it
//!   leaves no more than a bucket's refusal may.
//! - Permits are leases as a semaphore's (see [`super::semaphore`]): over at their instant, whether
//!   or not they were taken away, which the timer may do later.
//! - At one instant: leases end, then the line is served, then those in line whose time is over are
//!   refused.
//! - While somebody waits a newcomer is refused or joins the line. The first in line is tried
//!   whenever a lease ends, one leaves, the gate is set, and at `retry_at`, when the stages as they
//!   stand would let it through.
//! - Not state: the line, the answers not yet told, the counters.

mod due;
mod effect;
mod object;
mod stage;
#[cfg(test)]
mod tests;

pub use effect::Effect;
pub use stage::{Config, Kind};

use super::journal::Journal;
use super::shared::leases::Permits;
use super::shared::line::Line;
use super::shared::pass::{Look, Name, Pass, Row};
use super::shared::waiting::{Answer, Ticket};
use super::time::{MAX_INSTANT, MS, Micros};
use stage::{Stage, State};
use std::collections::VecDeque;

/// The most stages a gate may have.
pub const MAX_STAGES: usize = 16;

/// The longest name of a stage.
pub const MAX_NAME: usize = 512;

/// See the head of the file.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub struct Gate {
    stages: Vec<Stage>,
    permits: Permits,
    line: Line<Waiter>,
    /// When the first in line is to be tried again, and when it was last tried.
    retry_at: Micros,
    tried_at: Micros,
    answers: VecDeque<(Ticket, Answer)>,
    granted: i64,
    refused: i64,
}

#[derive(Debug, Clone, Copy)]
struct Waiter {
    cost: i64,
    maxwait_ms: Option<i64>,
}

/// `GATE.INFO`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    pub stages: Vec<StageInfo>,
    pub waiting: i64,
    pub granted: i64,
    pub refused: i64,
}

/// A stage in `GATE.INFO`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageInfo {
    pub name: Name,
    /// As a pass of cost 1 would be told if it were refused.
    pub row: Row,
    pub config: Config,
    /// How often it was among those that refused.
    pub refused: i64,
}

impl Gate {
    /// `GATE.SET`: the stages, in order; those whose name and kind stay keep their level. The names
    /// are unique, at most one is a semaphore.
    pub fn set(&mut self, stages: &[(&[u8], Config)], now: Micros, journal: &mut Journal) {
        self.begin(now, journal);
        let old = |name: &[u8], kind| self.stages.iter().find(|s| *s.name == *name && s.state.kind() == kind);
        let new: Vec<_> = stages
            .iter()
            .map(|(name, config)| Stage::configured(name, *config, old(name, config.kind()), now))
            .collect();
        let same = new.len() == self.stages.len() && new.iter().zip(&self.stages).all(|(a, b)| a.equals(b));
        if !same {
            self.commit(Effect::Set { stages: new }, journal);
            self.serve_now(now, journal);
        }
    }

    /// `GATE.PASS`.
    pub fn pass(&mut self, cost: i64, maxwait_ms: Option<i64>, now: Micros, journal: &mut Journal) -> Pass {
        self.begin(now, journal);
        let looks = self.looks(None, cost, maxwait_ms, now);
        let pass = Pass::judge(&looks, cost);
        self.finish(pass, &looks, cost, now, journal)
    }

    /// `GATE.PASS … BLOCK ms`: None if the client has to wait; it is answered when it passes or its
    /// time is over.
    #[allow(clippy::too_many_arguments)] // the command's arguments, no more
    pub fn pass_or_wait(
        &mut self,
        cost: i64,
        maxwait_ms: Option<i64>,
        block_ms: i64,
        ticket: Ticket,
        now: Micros,
        journal: &mut Journal,
    ) -> Option<Pass> {
        self.begin(now, journal);
        let looks = self.looks(None, cost, maxwait_ms, now);
        let pass = Pass::judge(&looks, cost);
        let too_long = |l: &Look| !l.gives_permit() && l.retry() > block_ms;
        if pass.granted > 0 || pass.retry == -1 || looks.iter().any(too_long) {
            return Some(self.finish(pass, &looks, cost, now, journal));
        }
        self.repair(&looks, now, journal);
        let first = self.line.len() == 0;
        let waiter = Waiter { cost, maxwait_ms };
        self.line.push(ticket, now.saturating_add(block_ms.saturating_mul(MS)), waiter);
        if first {
            self.try_again_after(pass.retry, now);
        }
        None
    }

    /// `GATE.PEEK`: what the stages say of a pass now, those waiting left aside.
    pub fn peek(&self, cost: i64, maxwait_ms: Option<i64>, now: Micros) -> Pass {
        Pass::judge(&self.own_looks(None, cost, maxwait_ms, now), cost)
    }

    /// What each stage says of a pass by a newcomer; the names are those of the stages, or
    /// `key/stage`. The first step of `MPASS`, for which the object must have been settled.
    pub fn looks(&self, key: Option<&[u8]>, cost: i64, maxwait_ms: Option<i64>, now: Micros) -> Vec<Look> {
        self.looks_from(None, key, cost, maxwait_ms, now)
    }

    /// The same from a place in the line, or behind it all.
    fn looks_from(
        &self,
        place: Option<Ticket>,
        key: Option<&[u8]>,
        cost: i64,
        maxwait_ms: Option<i64>,
        now: Micros,
    ) -> Vec<Look> {
        let own = self.own_looks(key, cost, maxwait_ms, now);
        match self.line.first() {
            Some((ticket, first)) if Some(ticket) != place => {
                let firsts = self.own_looks(None, first.cost, first.maxwait_ms, now);
                own.into_iter().zip(&firsts).map(|(own, first)| own.behind(first)).collect()
            }
            _ => own,
        }
    }

    /// What each stage says, those waiting left aside.
    fn own_looks(&self, key: Option<&[u8]>, cost: i64, maxwait_ms: Option<i64>, now: Micros) -> Vec<Look> {
        let looks = self.stages.iter().map(|stage| {
            let name =
                key.map_or_else(|| stage.name.clone(), |key| [key, b"/", &stage.name[..]].concat().into());
            match &stage.state {
                State::Bucket(bucket) => {
                    let brought = bucket.brought(now);
                    let never = cost > brought.limits().capacity();
                    Look::bucket(name, &brought, cost, if never { -1 } else { brought.until(cost) })
                }
                State::Leaky(bucket) => Look::leaky(name, &bucket.brought(now), cost, maxwait_ms),
                State::Permits { limit, lease_ms } => {
                    Look::permits(name, &self.permits, *limit, *lease_ms, now)
                }
            }
        });
        looks.collect()
    }

    /// Whether somebody waits: then a newcomer, also one of `MPASS`, must not pass.
    pub fn waiting(&self) -> usize {
        self.line.len()
    }

    fn finish(
        &mut self,
        mut pass: Pass,
        looks: &[Look],
        cost: i64,
        now: Micros,
        journal: &mut Journal,
    ) -> Pass {
        if pass.granted > 0 {
            pass.receipt = self.gives_permits().then(|| journal.draw(now));
            self.charge(cost, &pass, now, now, journal);
        } else {
            self.refuse(looks, now, journal);
        }
        pass
    }

    /// Whether a pass gets a receipt here.
    pub fn gives_permits(&self) -> bool {
        self.stages.iter().any(|s| s.state.kind() == Kind::Permits)
    }

    /// Charges a pass that all have granted, as of `at`; a permit's lease runs from `now` + wait.
    /// The last step of a granted `MPASS`.
    pub fn charge(&mut self, cost: i64, pass: &Pass, at: Micros, now: Micros, journal: &mut Journal) {
        self.granted += 1;
        for index in 0..self.stages.len() {
            let effect = match self.stages.get(index).map(|s| &s.state) {
                Some(State::Bucket(bucket)) => {
                    let mut bucket = bucket.brought(at);
                    bucket.charge(cost);
                    Effect::bucket(index, &bucket)
                }
                Some(State::Leaky(bucket)) => {
                    let mut bucket = bucket.brought(at);
                    bucket.admit(cost);
                    Effect::Leaky { stage: index as u8, inside: bucket.inside(), at }
                }
                Some(State::Permits { lease_ms, .. }) => {
                    let until = now.saturating_add(pass.wait.saturating_add(*lease_ms).saturating_mul(MS));
                    Effect::Granted { receipt: pass.receipt.unwrap_or(0), until: until.min(MAX_INSTANT) }
                }
                None => continue,
            };
            self.commit(effect, journal);
        }
    }

    /// Counts a refusal and makes the repairs that it may make. The last step of a refused `MPASS`;
    /// `looks` are this gate's.
    pub fn refuse(&mut self, looks: &[Look], now: Micros, journal: &mut Journal) {
        self.refused += 1;
        for (stage, look) in self.stages.iter_mut().zip(looks) {
            stage.refused += i64::from(look.retry() != 0);
        }
        self.repair(looks, now, journal);
    }

    /// What a refusal may change; nothing while somebody waits.
    fn repair(&mut self, looks: &[Look], now: Micros, journal: &mut Journal) {
        if self.line.len() > 0 {
            return;
        }
        for (index, look) in looks.iter().enumerate() {
            let effect = match self.stages.get(index).map(|s| &s.state) {
                Some(State::Bucket(b)) if b.is_ahead(now) || look.retry() > 0 && b.is_cold(now) => {
                    Effect::bucket(index, &b.brought(now))
                }
                Some(State::Leaky(b)) if b.is_ahead(now) => {
                    Effect::Leaky { stage: index as u8, inside: b.brought(now).inside(), at: now }
                }
                _ => continue,
            };
            self.commit(effect, journal);
        }
    }

    /// `GATE.LEAVE`: for each receipt 1 (released) or 0 (not held).
    pub fn leave(&mut self, receipts: &[u64], now: Micros, journal: &mut Journal) -> Vec<i64> {
        self.begin(now, journal);
        let replies = receipts.iter().map(|receipt| {
            let held = self.permits.running(*receipt).is_some();
            if held {
                self.commit(Effect::Ended { receipt: *receipt }, journal);
            }
            i64::from(held)
        });
        let replies: Vec<i64> = replies.collect();
        if replies.contains(&1) {
            self.serve_now(now, journal);
        }
        replies
    }

    /// `GATE.INFO`; None if there is no gate.
    pub fn info(&self, now: Micros) -> Option<Info> {
        if self.stages.is_empty() {
            return None;
        }
        let looks = self.own_looks(None, 1, None, now);
        let stages = self.stages.iter().zip(&looks).map(|(stage, look)| StageInfo {
            name: stage.name.clone(),
            row: look.row(),
            config: stage.state.config(),
            refused: stage.refused,
        });
        Some(Info {
            stages: stages.collect(),
            waiting: self.line.len() as i64,
            granted: self.granted,
            refused: self.refused,
        })
    }

    /// Whether there is a gate at all.
    pub fn is_set(&self) -> bool {
        !self.stages.is_empty()
    }

    fn commit(&mut self, effect: Effect, journal: &mut Journal) {
        journal.record(&effect, []);
        self.make(effect);
    }

    fn try_again_after(&mut self, retry_ms: i64, at: Micros) {
        self.tried_at = at;
        self.retry_at = at.saturating_add(retry_ms.max(1).saturating_mul(MS));
    }

    /// Lets the line through as far as it goes at `at`, at most `most`; returns how many that were.
    /// Leases begin at `now`.
    fn serve(&mut self, at: Micros, now: Micros, most: usize, journal: &mut Journal) -> usize {
        let mut steps = 0;
        while steps < most
            && let Some((ticket, first)) = self.line.first()
        {
            let first = *first;
            let looks = self.own_looks(None, first.cost, first.maxwait_ms, at);
            let mut pass = Pass::judge(&looks, first.cost);
            if pass.granted > 0 {
                pass.receipt = self.gives_permits().then(|| journal.draw(now));
                self.charge(first.cost, &pass, at, now, journal);
            } else if pass.retry == -1 {
                self.refuse(&looks, at, journal);
            } else {
                self.try_again_after(pass.retry, at);
                break;
            }
            self.line.remove(ticket);
            self.answers.push_back((ticket, Answer::Pass(Box::new(pass))));
            steps += 1;
        }
        steps
    }
}
