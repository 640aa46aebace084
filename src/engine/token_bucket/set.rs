//! What an operator does to a token bucket: SET, RESET, BAN, INFO.

use super::{Effect, TokenBucket};
use crate::engine::bucket::{Bucket, Limits, Policy};
use crate::engine::journal::Journal;
use crate::engine::shared::waiting::{Answer, Ticket};
use crate::engine::time::{MAX_INSTANT, MS, Micros, ceil_ms};

/// `TB.INFO`, in its order. Durations in ms; limits are 0 where none are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Info {
    pub capacity: i64,
    pub tokens: i64,
    pub period: i64,
    pub warmup: i64,
    pub pinned: i64,
    pub remaining: i64,
    pub debt: i64,
    pub next_after: i64,
    pub reset_after: i64,
    pub banned_for: i64,
    pub holds: i64,
    pub granted: i64,
    pub refused: i64,
}

impl TokenBucket {
    /// `TB.SET`: pins the limits.
    pub fn set(
        &mut self,
        limits: Limits,
        warmup_ms: i64,
        policy: Policy,
        now: Micros,
        journal: &mut Journal,
    ) {
        self.begin(now, journal);
        let (stored, holds_open) = self.seen(now);
        let old = stored.filter(|b| !self.forgets(b, holds_open, now));
        let new = match old {
            None if policy == Policy::Full => Bucket::new(limits, warmup_ms).refilled(now),
            None => Bucket::new(limits, warmup_ms),
            Some(old) if policy == Policy::Keep && old.limits() == limits && old.warmup_ms() == warmup_ms => {
                old
            }
            Some(old) => old.changed(now, limits, warmup_ms, policy),
        };
        if stored != Some(new) {
            self.line_gain(now);
            self.line_change(&new, if old.is_none() { Policy::Keep } else { policy });
        } else if self.pinned() {
            return;
        }
        self.write(&new, true, journal);
        self.serve(now, usize::MAX);
    }

    /// `TB.RESET`: full and warm, without ban and holds; an unpinned bucket is as if it had never
    /// been. Those waiting get their tokens.
    pub fn reset(&mut self, now: Micros, journal: &mut Journal) {
        self.begin(now, journal);
        let Some(bucket) = self.bucket() else {
            if self.ban() != 0 {
                self.commit(Effect::Reset, journal);
                self.drop_idle_extras();
            }
            return;
        };
        if self.pinned() {
            self.commit(Effect::Reset, journal);
            if let Some(extras) = &mut self.extras {
                let seen = bucket.refilled(now);
                let line =
                    extras.line.drain().map(|(ticket, cost, _)| (ticket, Answer::Six(seen.six(cost, 0))));
                extras.answers.extend(line);
            }
            self.write(&bucket.refilled(now), true, journal);
        } else {
            let told = self.dismiss();
            self.commit(Effect::Reset, journal);
            if !told.is_empty() {
                self.extras().answers.extend(told);
            }
        }
    }

    /// Takes all who wait; what they have booked is theirs, as a missing key is full.
    pub(super) fn dismiss(&mut self) -> Vec<(Ticket, Answer)> {
        let Some(extras) = &mut self.extras else {
            return Vec::new();
        };
        let line = extras.line.drain();
        line.map(|(ticket, cost, all)| (ticket, Answer::Six([cost, all, all, 0, 0, 0]))).collect()
    }

    /// `TB.BAN`: refuses takes for `ms` from now; 0 lifts a ban. Those who have booked already are
    /// not delayed.
    pub fn ban_for(&mut self, ms: i64, now: Micros, journal: &mut Journal) {
        self.begin(now, journal);
        let until = if ms == 0 { 0 } else { (now + ms * MS).min(MAX_INSTANT) };
        if until != self.ban() {
            self.commit(Effect::Ban { until }, journal);
        }
        if self.waiting() > 0 {
            self.extras().line.not_later(until.max(now));
            self.serve(now, usize::MAX);
        }
        self.drop_idle_extras();
    }

    /// `TB.INFO`; None if it says the same as an absent key.
    pub fn info(&self, now: Micros) -> Option<Info> {
        let (bucket, holds_open) = self.seen(now);
        let banned_for = ceil_ms(self.ban() - now);
        let known = bucket.filter(|b| !self.forgets(b, holds_open, now)).map(|b| b.brought(now));
        if known.is_none() && banned_for == 0 && self.waiting() == 0 {
            return None;
        }
        let (granted, refused) = self.extras.as_ref().map_or((0, 0), |e| (e.granted, e.refused));
        let holds = self.holds().map_or(0, |h| h.open(now) as i64);
        let common = Info { banned_for, holds, granted, refused, ..Info::default() };
        Some(known.map_or(common, |b| Info {
            capacity: b.limits().capacity(),
            tokens: b.limits().tokens(),
            period: b.limits().period_ms(),
            warmup: b.warmup_ms(),
            pinned: i64::from(self.pinned()),
            remaining: b.remaining(),
            debt: b.debt(),
            next_after: b.next_after(),
            reset_after: b.reset_after(),
            ..common
        }))
    }
}
