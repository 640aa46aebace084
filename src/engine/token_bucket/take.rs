//! Taking tokens and giving them back: TAKE, PEEK, REFUND, DRAIN, HOLD, SETTLE.

use super::{Effect, Hold, TokenBucket};
use crate::engine::bucket::narrow::Narrow;
use crate::engine::bucket::{Bucket, Limits, NoLimits};
use crate::engine::journal::Journal;
use crate::engine::shared::pass::Look;
use crate::engine::shared::waiting::Ticket;
use crate::engine::time::{MAX_INSTANT, MS, Micros, ceil_ms};

/// How much a take must get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The whole cost or nothing.
    Whole,
    /// As many whole tokens as there are, up to the cost.
    AtMost,
    /// The cost, down to one capacity of debt.
    Force,
}

/// The hold is unknown, settled or over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoSuchHold;

impl TokenBucket {
    /// `TB.TAKE`: the six fields.
    pub fn take(
        &mut self,
        limits: Option<Limits>,
        cost: i64,
        mode: Mode,
        now: Micros,
        journal: &mut Journal,
    ) -> Result<[i64; 6], NoLimits> {
        if mode == Mode::Whole
            && let Some(reply) = self.take_plain(limits, cost, now, journal)
        {
            return Ok(reply);
        }
        self.begin(now, journal);
        let (reply, _) = self.ask(limits, cost, mode, None, now, journal)?;
        Ok(reply)
    }

    /// The usual take, quickly: a plain bucket, or none yet, whose limits have not changed. None:
    /// it is another case.
    #[inline]
    fn take_plain(
        &mut self,
        limits: Option<Limits>,
        cost: i64,
        now: Micros,
        journal: &mut Journal,
    ) -> Option<[i64; 6]> {
        let known = Limits::unpack(self.limits);
        let pinned = match &self.extras {
            None => false,
            Some(extras) if extras.plain() => extras.pinned,
            Some(_) => return None,
        };
        let (limits, mut bucket) = match (known, limits) {
            (Some(known), asked) if pinned || asked.is_none_or(|asked| asked == known) => {
                let bucket = Narrow::brought(known, self.level, self.at, now)?;
                if asked.is_none() && !pinned && bucket.is_full() {
                    return None;
                }
                (known, bucket)
            }
            (None, Some(asked)) => (asked, Narrow::full(asked)?),
            _ => return None,
        };
        let taken = bucket.take(cost);
        if let Some(extras) = self.extras.as_mut().filter(|e| e.pinned) {
            extras.granted += i64::from(taken.is_ok());
            extras.refused += i64::from(taken.is_err());
        }
        Some(match taken {
            Err(retry) => bucket.six(0, retry),
            Ok(()) => {
                let units = i128::from(bucket.level());
                let effect = match known {
                    Some(_) => Effect::Level { units, at: now },
                    None => Effect::Begin { limits, units, at: now },
                };
                self.commit(effect, journal);
                bucket.six(cost, 0)
            }
        })
    }

    /// `TB.TAKE … BLOCK ms`: None if the tokens are booked; the client is answered when they are
    /// there.
    pub fn take_or_book(
        &mut self,
        limits: Option<Limits>,
        cost: i64,
        block_ms: i64,
        ticket: Ticket,
        now: Micros,
        journal: &mut Journal,
    ) -> Result<Option<[i64; 6]>, NoLimits> {
        self.begin(now, journal);
        let (reply, booked) = self.ask(limits, cost, Mode::Whole, Some((block_ms, ticket)), now, journal)?;
        Ok(if booked { None } else { Some(reply) })
    }

    /// `TB.PEEK`: what a take would answer.
    pub fn peek(&self, limits: Option<Limits>, cost: i64, now: Micros) -> Result<[i64; 6], NoLimits> {
        let mut bucket = self.open(limits, now)?.brought(now);
        let (granted, retry) = self.verdict(&bucket, cost, Mode::Whole, now);
        bucket.charge(granted);
        Ok(bucket.six(granted, retry))
    }

    /// The state in the same six fields, with nothing granted and nothing to wait for.
    pub fn look(&self, limits: Option<Limits>, now: Micros) -> Result<[i64; 6], NoLimits> {
        Ok(self.open(limits, now)?.brought(now).six(0, 0))
    }

    /// What a brought bucket would grant, and ms until it would grant the whole cost (-1: never).
    fn verdict(&self, bucket: &Bucket, cost: i64, mode: Mode, now: Micros) -> (i64, i64) {
        // A forced take may leave a debt of one capacity.
        let (needed, most) = match mode {
            Mode::Force => (cost - bucket.limits().capacity(), 2 * bucket.limits().capacity()),
            Mode::Whole | Mode::AtMost => (cost, bucket.limits().capacity()),
        };
        let banned = ceil_ms(self.ban() - now);
        if banned == 0 && bucket.has(needed) {
            return (cost, 0);
        }
        let granted = if mode == Mode::AtMost && banned == 0 { bucket.remaining() } else { 0 };
        (granted, if cost > most { -1 } else { banned.max(bucket.until(needed)) })
    }

    /// Decides and does a take: the reply, and whether it booked instead (then the reply is
    /// nobody's).
    fn ask(
        &mut self,
        limits: Option<Limits>,
        cost: i64,
        mode: Mode,
        block: Option<(i64, Ticket)>,
        now: Micros,
        journal: &mut Journal,
    ) -> Result<([i64; 6], bool), NoLimits> {
        let opened = self.open(limits, now)?;
        let mut bucket = opened.brought(now);
        let (granted, mut retry) = self.verdict(&bucket, cost, mode, now);
        let booking = block.filter(|(most, _)| granted == 0 && retry > 0 && retry <= *most);
        if let Some(extras) = self.extras.as_mut().filter(|e| e.pinned) {
            let yes = granted > 0 || booking.is_some();
            extras.granted += i64::from(yes);
            extras.refused += i64::from(!yes);
        }
        if let Some((_, ticket)) = booking {
            bucket.charge(cost);
            self.store(&bucket, journal);
            let banned_until = self.ban();
            let not_before = if banned_until > now { banned_until } else { 0 };
            self.extras().line.push(ticket, cost, not_before, &bucket);
        } else if granted > 0 {
            bucket.charge(granted);
            self.store(&bucket, journal);
            if granted < cost && retry > 0 {
                retry = bucket.until(cost);
            }
        } else {
            self.repair(&opened, retry > 0, now, journal);
        }
        Ok((bucket.six(granted, retry), booking.is_some()))
    }

    /// What a refusal may change: see the head of [`super`]. `asked`: it was one that could be
    /// granted later.
    fn repair(&mut self, opened: &Bucket, asked: bool, now: Micros, journal: &mut Journal) {
        let ahead = self.bucket().is_some_and(|b| b.is_ahead(now));
        let warms = asked && self.pinned() && self.ban() <= now && opened.is_cold(now);
        if ahead || warms {
            self.store_brought(now, journal);
        }
    }

    /// What this bucket, pinned, says of an `MPASS`, for which it must have been settled; None: it
    /// is not pinned.
    pub fn look_for_pass(&self, key: &[u8], cost: i64, now: Micros) -> Option<Look> {
        let bucket = self.bucket().filter(|_| self.pinned())?.brought(now);
        let (_, retry) = self.verdict(&bucket, cost, Mode::Whole, now);
        Some(Look::bucket(key.into(), &bucket, cost, retry))
    }

    /// Charges a pass that all have granted.
    pub fn charge_pass(&mut self, cost: i64, now: Micros, journal: &mut Journal) {
        if let Some(mut bucket) = self.bucket().map(|b| b.brought(now)) {
            bucket.charge(cost);
            self.store(&bucket, journal);
        }
    }

    /// Makes the repairs that a refused pass may make; `look` is this bucket's.
    pub fn refuse_pass(&mut self, look: &Look, now: Micros, journal: &mut Journal) {
        if let Some(bucket) = self.bucket() {
            self.repair(&bucket, look.retry() > 0, now, journal);
        }
    }

    /// `TB.REFUND`: the six fields, `granted` = whole tokens put back; zeros when there is no
    /// bucket.
    pub fn refund(&mut self, tokens: i64, now: Micros, journal: &mut Journal) -> [i64; 6] {
        self.begin(now, journal);
        let (bucket, holds_open) = self.seen(now);
        let Some(bucket) = bucket.filter(|b| !self.forgets(b, holds_open, now)) else {
            return [0; 6];
        };
        if bucket.is_full(now) {
            return bucket.brought(now).six(0, 0);
        }
        let (back, bucket) = self.put_back(bucket, tokens, now, journal);
        self.serve(now, usize::MAX);
        bucket.six(back, 0)
    }

    /// `TB.DRAIN`: the six fields, `granted` = whole tokens removed.
    pub fn drain(
        &mut self,
        limits: Option<Limits>,
        now: Micros,
        journal: &mut Journal,
    ) -> Result<[i64; 6], NoLimits> {
        self.begin(now, journal);
        let mut bucket = self.open(limits, now)?.brought(now);
        let removed = bucket.remaining();
        bucket.empty();
        self.store(&bucket, journal);
        Ok(bucket.six(removed, 0))
    }

    /// `TB.HOLD`: the six fields, and the hold's id if it was granted.
    pub fn hold(
        &mut self,
        limits: Option<Limits>,
        cost: i64,
        ttl_ms: i64,
        refund: bool,
        now: Micros,
        journal: &mut Journal,
    ) -> Result<([i64; 6], Option<u64>), NoLimits> {
        let reply = self.take(limits, cost, Mode::Whole, now, journal)?;
        let [granted, ..] = reply;
        if granted == 0 {
            return Ok((reply, None));
        }
        let id = journal.draw(now);
        let hold = Hold { cost, until: (now + ttl_ms * MS).min(MAX_INSTANT), refund };
        self.commit(Effect::Hold { id, hold }, journal);
        Ok((reply, Some(id)))
    }

    /// `TB.SETTLE`: closes the hold; the six fields, `granted` = the whole tokens put back or
    /// charged.
    pub fn settle_hold(
        &mut self,
        id: u64,
        actual: i64,
        now: Micros,
        journal: &mut Journal,
    ) -> Result<[i64; 6], NoSuchHold> {
        self.begin(now, journal);
        let hold = self.holds().and_then(|h| h.get(id)).filter(|h| h.until > now).ok_or(NoSuchHold)?;
        let mut bucket = self.bucket().ok_or(NoSuchHold)?;
        self.commit(Effect::Closed { id }, journal);
        let difference = match hold.cost - actual {
            back if back > 0 && !bucket.is_full(now) => {
                let (back, brought) = self.put_back(bucket, back, now, journal);
                bucket = brought;
                self.serve(now, usize::MAX);
                back
            }
            more if more < 0 => {
                bucket.bring(now);
                let charged = bucket.charge_bounded(-more);
                self.store(&bucket, journal);
                charged
            }
            _ => {
                bucket.bring(now);
                0
            }
        };
        Ok(bucket.six(difference, 0))
    }
}
