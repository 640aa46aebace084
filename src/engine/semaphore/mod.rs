//! `SEM`: a counting semaphore whose permits are leases.
//!
//! Who acquires gets a *receipt* for `count` permits until its lease ends, is released or renewed.
//! At most `limit` permits are held, except after the limit was lowered: then nobody new comes in
//! until enough are back.
//!
//! States: *blank* (no limit known, the same as no key), *unpinned* (the limit of the last
//! acquisition; without a lease it is the same as absent), *pinned* by `SEM.SET`. A lease is held
//! or it is gone: an ended one never comes back.
//!
//! Invariants:
//! - A lease that is over at `now` counts as gone, whether or not it was taken away; an ended one
//!   is never revived.
//! - At one instant: leases end, then the line is served, then those in line whose time is over are
//!   refused.
//! - Every write first does all that is due in the line (each who is served there is a client that
//!   is connected), and takes away as many leases as it may: the timer takes the others. Only what
//!   is counted of ended leases lags.
//! - While somebody waits nobody else gets a permit; the line is served strictly in order.
//! - Receipts rise on each semaphore. Each is drawn when its permits are granted, also to one who
//!   has waited.
//! - Not state: the line, the answers not yet told, the counters.

mod due;
mod object;
#[cfg(test)]
mod tests;

pub use object::Effect;

use super::bucket::{MAX_COUNT, NoLimits};
use super::journal::Journal;
use super::shared::leases::{Ahead, Permits};
use super::shared::line::Line;
use super::shared::waiting::{Answer, Permit, Ticket};
use super::time::{MAX_INSTANT, MS, Micros, ceil_ms};
use std::collections::VecDeque;

/// How long a lease lasts if nobody says otherwise (ms).
pub const DEFAULT_LEASE_MS: i64 = 30_000;

/// The longest name of an owner.
pub const MAX_OWNER: usize = 512;

/// See the head of the file.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub struct Semaphore {
    /// 0: blank.
    limit: i64,
    lease_ms: i64,
    pinned: bool,
    permits: Permits,
    line: Line<Waiter>,
    answers: VecDeque<(Ticket, Answer)>,
    counts: Counts,
}

/// Since the object was made or loaded.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    granted: i64,
    refused: i64,
    /// Leases released, and those that ended by themselves.
    released: u64,
    ended: u64,
}

/// What an acquisition asks for.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    pub limit: Option<i64>,
    pub count: i64,
    pub lease_ms: Option<i64>,
    pub owner: &'a [u8],
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
struct Waiter {
    limit: Option<i64>,
    count: i64,
    lease_ms: Option<i64>,
    /// The lease it would have had when it began to wait: others reckon with it.
    expected_ms: i64,
    owner: Box<[u8]>,
}

/// `SEM.INFO`, in its order, and its `HOLDERS`. Durations in ms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    pub limit: i64,
    pub lease: i64,
    pub pinned: i64,
    pub held: i64,
    pub free: i64,
    pub waiting: i64,
    /// Until the next lease ends; -1: none.
    pub next_end: i64,
    pub granted: i64,
    pub refused: i64,
    /// Leases that ended by themselves.
    pub timed_out: i64,
}

/// One of `SEM.HOLDERS`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder<'a> {
    pub receipt: u64,
    pub count: i64,
    pub owner: &'a [u8],
    pub left_ms: i64,
}

impl Semaphore {
    /// `SEM.ACQUIRE`.
    pub fn acquire(&mut self, ask: Ask<'_>, now: Micros, journal: &mut Journal) -> Result<Permit, NoLimits> {
        self.begin(now, journal);
        if let Some(permit) = self.grant_now(ask, now, journal)? {
            return Ok(permit);
        }
        self.counts.refused += 1;
        self.refusal(ask.limit, ask.count, None, now)
    }

    /// `SEM.ACQUIRE … BLOCK ms`: None if the client has to wait; it is answered when it is served
    /// or its time is over.
    pub fn acquire_or_wait(
        &mut self,
        ask: Ask<'_>,
        block_ms: i64,
        ticket: Ticket,
        now: Micros,
        journal: &mut Journal,
    ) -> Result<Option<Permit>, NoLimits> {
        self.begin(now, journal);
        if let Some(permit) = self.grant_now(ask, now, journal)? {
            return Ok(Some(permit));
        }
        if ask.count > self.limit_for(ask.limit, now)? {
            self.counts.refused += 1;
            return self.refusal(ask.limit, ask.count, None, now).map(Some);
        }
        let waiter = Waiter {
            limit: ask.limit,
            count: ask.count,
            lease_ms: ask.lease_ms,
            expected_ms: ask.lease_ms.unwrap_or(self.lease_ms),
            owner: ask.owner.into(),
        };
        self.line.push(ticket, now.saturating_add(block_ms.saturating_mul(MS)), waiter);
        Ok(None)
    }

    /// `SEM.PEEK`: what an acquisition would answer, without a receipt.
    pub fn peek(&self, limit: Option<i64>, count: i64, now: Micros) -> Result<Permit, NoLimits> {
        let all = self.limit_for(limit, now)?;
        let used = self.permits.used(now);
        if self.line.len() == 0 && used + count <= all {
            return Ok(Permit {
                granted: count,
                limit: all,
                free: all - used - count,
                retry: 0,
                receipt: None,
            });
        }
        self.refusal(limit, count, None, now)
    }

    /// Grants if nobody waits and enough is free.
    fn grant_now(
        &mut self,
        ask: Ask<'_>,
        now: Micros,
        journal: &mut Journal,
    ) -> Result<Option<Permit>, NoLimits> {
        let all = self.limit_for(ask.limit, now)?;
        if self.line.len() > 0 || self.permits.used(now) + ask.count > all {
            return Ok(None);
        }
        let lease_ms = ask.lease_ms.unwrap_or(self.lease_ms);
        Ok(Some(self.grant(ask.count, all, lease_ms, ask.owner.into(), now, journal)))
    }

    fn grant(
        &mut self,
        count: i64,
        limit: i64,
        lease_ms: i64,
        owner: Box<[u8]>,
        now: Micros,
        journal: &mut Journal,
    ) -> Permit {
        let until = now.saturating_add(lease_ms.saturating_mul(MS)).min(MAX_INSTANT);
        self.counts.granted += 1;
        let receipt = journal.draw(now);
        // No more than so many are there, over or not: a follower would not take it.
        while self.permits.all() + count > MAX_COUNT && self.end_first(journal) {}
        self.commit(Effect::Granted { receipt, count, until, limit, owner }, journal);
        Permit {
            granted: count,
            limit,
            free: limit - self.permits.used(now),
            retry: 0,
            receipt: Some(receipt),
        }
    }

    /// The limit of a call that brings `limit`.
    fn limit_for(&self, limit: Option<i64>, now: Micros) -> Result<i64, NoLimits> {
        self.limit_among(limit, self.permits.used(now))
    }

    /// The same while `used` permits are held.
    fn limit_among(&self, limit: Option<i64>, used: i64) -> Result<i64, NoLimits> {
        match limit {
            Some(limit) if !self.pinned => Ok(limit),
            _ if self.pinned || used > 0 => Ok(self.limit),
            _ => Err(NoLimits),
        }
    }

    /// The refusal of one who comes now, or of one in line (`place`).
    fn refusal(
        &self,
        limit: Option<i64>,
        count: i64,
        place: Option<Ticket>,
        now: Micros,
    ) -> Result<Permit, NoLimits> {
        let all = self.limit_for(limit, now)?;
        let ahead = self.line.ahead_of(place).map(|(until, w)| Ahead {
            count: w.count,
            lease: w.expected_ms.saturating_mul(MS),
            until,
            limit: if self.pinned { self.limit } else { w.limit.unwrap_or(all) },
        });
        let mut ahead = ahead.peekable();
        let free = if ahead.peek().is_some() { 0 } else { (all - self.permits.used(now)).max(0) };
        let retry = if count > all { -1 } else { ceil_ms(self.permits.wait(now, ahead, count, all)) };
        Ok(Permit { granted: 0, limit: all, free, retry, receipt: None })
    }

    /// `SEM.RELEASE`: for each receipt 1 (released) or 0 (not held).
    pub fn release(&mut self, receipts: &[u64], now: Micros, journal: &mut Journal) -> Vec<i64> {
        self.begin(now, journal);
        let replies = receipts.iter().map(|receipt| {
            let held = self.permits.running(*receipt).is_some();
            if held {
                self.counts.released += 1;
                self.commit(Effect::Ended { receipt: *receipt }, journal);
            }
            i64::from(held)
        });
        let replies = replies.collect();
        self.advance(now, journal.left(), journal);
        replies
    }

    /// `SEM.RENEW`: for each receipt `ms`, the time it has left from now on, or 0 (not held).
    pub fn renew(&mut self, ms: i64, receipts: &[u64], now: Micros, journal: &mut Journal) -> Vec<i64> {
        self.begin(now, journal);
        let until = now.saturating_add(ms.saturating_mul(MS)).min(MAX_INSTANT);
        let replies = receipts.iter().map(|receipt| match self.permits.running(*receipt) {
            None => 0,
            Some(lease) => {
                if lease.until != until {
                    self.commit(Effect::Renewed { receipt: *receipt, until }, journal);
                }
                ms
            }
        });
        replies.collect()
    }

    /// `SEM.SET`: pins the limit; those waiting are decided anew.
    pub fn set(&mut self, limit: i64, lease_ms: i64, now: Micros, journal: &mut Journal) {
        self.begin(now, journal);
        if (self.pinned, self.limit, self.lease_ms) != (true, limit, lease_ms) {
            self.commit(Effect::Set { limit, lease_ms }, journal);
            self.advance(now, journal.left(), journal);
        }
    }

    /// `SEM.INFO`; None if it says the same as an absent key.
    pub fn info(&self, now: Micros) -> Option<Info> {
        let held = self.permits.used(now);
        if !self.pinned && held == 0 {
            return None;
        }
        let waiting = self.line.len();
        let next_end = self.permits.next_end(now).map(|end| ceil_ms(end - now));
        Some(Info {
            limit: self.limit,
            lease: self.lease_ms,
            pinned: i64::from(self.pinned),
            held,
            free: if waiting > 0 { 0 } else { (self.limit - held).max(0) },
            waiting: waiting as i64,
            next_end: next_end.unwrap_or(-1),
            granted: self.counts.granted,
            refused: self.counts.refused,
            timed_out: i64::try_from(self.counts.ended).unwrap_or(i64::MAX),
        })
    }

    /// `SEM.INFO … HOLDERS`: by receipt.
    pub fn holders(&self, now: Micros) -> impl Iterator<Item = Holder<'_>> {
        self.holders_above(0, now)
    }

    /// `SEM.HOLDERS`: those whose receipts are above this one, by receipt.
    pub fn holders_above(&self, receipt: u64, now: Micros) -> impl Iterator<Item = Holder<'_>> {
        self.permits.running_above(receipt, now).map(move |(receipt, lease)| Holder {
            receipt,
            count: lease.count,
            owner: &lease.owner,
            left_ms: ceil_ms(lease.until - now),
        })
    }

    pub fn pinned(&self) -> bool {
        self.pinned
    }

    /// How many clients wait.
    pub fn waiting(&self) -> usize {
        self.line.len()
    }

    fn commit(&mut self, effect: Effect, journal: &mut Journal) {
        journal.record(&effect, []);
        self.make(effect);
    }
}
