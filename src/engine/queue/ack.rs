//! What becomes of deliveries: ACK, NACK, EXTEND, REQUEUE, and how a message comes back (which the
//! end of a lease does too).

use super::effect::{Cause, Step};
use super::effect_batch::EffectBatch;
use super::message::{Receipt, Stage};
use super::{Few, Queue};
use crate::engine::journal::Journal;
use crate::engine::time::Micros;
use std::borrow::Cow;

/// What a receipt was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i64)]
pub enum Receipted {
    /// There is no message with that id.
    Gone = -1,
    /// There is one, live or dead, but the receipt does not hold it.
    NotHeld = 0,
    Done = 1,
    /// NACK: it is dead now.
    Dead = 2,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct NackOptions<'a> {
    /// None: BACKOFF.
    pub delay: Option<Micros>,
    /// It gets a new place.
    pub back: bool,
    pub no_count: bool,
    pub dead: bool,
    /// No more than its first 512 bytes are kept.
    pub reason: Option<&'a [u8]>,
}

/// Which messages in flight REQUEUE takes.
#[derive(Debug, Clone, Copy)]
pub enum Which<'a> {
    /// Claimed at least so long ago.
    Stale(Micros),
    Consumer(&'a [u8]),
    All,
}

/// How a message in flight comes back.
pub(super) struct Return<'a> {
    pub cause: Cause,
    pub reason: Option<&'a [u8]>,
    /// None: BACKOFF if it is counted, else none.
    pub delay: Option<Micros>,
    pub back: bool,
}

impl Queue {
    /// The message that the receipt holds.
    fn held(&self, receipt: &Receipt) -> Result<u32, Receipted> {
        match self.find_live(receipt.id.as_ref()) {
            Some(slot) => match self.stage(slot) {
                Some(Stage::InFlight { claim, .. }) if claim == receipt.claim => Ok(slot),
                _ => Err(Receipted::NotHeld),
            },
            None if self.find_kept_dead(receipt.id.as_ref()).is_some() => Err(Receipted::NotHeld),
            None => Err(Receipted::Gone),
        }
    }

    /// What is put off on the messages of these receipts happens first.
    fn bring_up_receipts(&mut self, receipts: &[Receipt], now: Micros, journal: &mut Journal) {
        self.bring_up_all(receipts.iter().map(|r| r.id.as_ref()), now, journal);
    }

    pub fn ack(&mut self, now: Micros, receipts: &[Receipt], journal: &mut Journal) -> Few<Receipted> {
        self.begin_command();
        self.bring_up_receipts(receipts, now, journal);
        let mut batch = EffectBatch::new(journal);
        let mut out = Few::with_capacity(receipts.len());
        for receipt in receipts {
            out.push(match self.held(receipt) {
                Ok(slot) => {
                    let after = self.what_follows(slot, now, None);
                    self.commit(&mut batch, slot, &Step::Ack { after });
                    Receipted::Done
                }
                Err(no) => no,
            });
        }
        batch.flush();
        out
    }

    pub fn nack(
        &mut self,
        now: Micros,
        receipts: &[Receipt],
        options: &NackOptions<'_>,
        journal: &mut Journal,
    ) -> Few<Receipted> {
        self.begin_command();
        self.bring_up_receipts(receipts, now, journal);
        let mut batch = EffectBatch::new(journal);
        let reason = options.reason.unwrap_or(b"nack");
        let reason = reason.get(..512).unwrap_or(reason);
        let cause = Cause::Nack { counted: options.dead || !options.no_count };
        let way = Return { cause, reason: Some(reason), delay: options.delay, back: options.back };
        let mut out = Few::with_capacity(receipts.len());
        for receipt in receipts {
            out.push(match self.held(receipt) {
                Ok(slot) if options.dead => {
                    self.kill(&mut batch, slot, now, &way);
                    Receipted::Dead
                }
                Ok(slot) => {
                    if self.come_back(&mut batch, slot, now, &way) {
                        Receipted::Dead
                    } else {
                        Receipted::Done
                    }
                }
                Err(no) => no,
            });
        }
        batch.flush();
        out
    }

    /// The leases of these deliveries end `lease` from now.
    pub fn extend(
        &mut self,
        now: Micros,
        lease: Micros,
        receipts: &[Receipt],
        journal: &mut Journal,
    ) -> Few<Receipted> {
        self.begin_command();
        self.bring_up_receipts(receipts, now, journal);
        let mut batch = EffectBatch::new(journal);
        let deadline = now.saturating_add(lease);
        let mut out = Few::with_capacity(receipts.len());
        for receipt in receipts {
            out.push(match self.held(receipt) {
                Ok(slot) => {
                    let as_it_is = matches!(self.stage(slot), Some(Stage::InFlight { deadline: d, .. }) if d == deadline);
                    if !as_it_is {
                        self.commit(&mut batch, slot, &Step::Extend { deadline });
                    }
                    Receipted::Done
                }
                Err(no) => no,
            });
        }
        batch.flush();
        out
    }

    /// Gives back, uncounted, up to `count` messages in flight, longest held first; returns how
    /// many.
    pub fn requeue(&mut self, now: Micros, which: Which<'_>, count: u64, journal: &mut Journal) -> u64 {
        self.begin_command();
        let most = usize::try_from(count).unwrap_or(usize::MAX);
        // One whose lease is over has come back, whether or not that was applied.
        let flies = |slot: &u32| matches!(self.stage(*slot), Some(Stage::InFlight { deadline, .. }) if deadline > now);
        let wanted = |slot: &u32| match which {
            Which::All => true,
            Which::Stale(age) => matches!(
                self.stage(*slot),
                Some(Stage::InFlight { claimed_at, .. }) if now.saturating_sub(claimed_at) >= age
            ),
            Which::Consumer(name) => {
                self.more_of(*slot).and_then(|x| self.names.get(x.consumer)).is_some_and(|n| n == name)
            }
        };
        let slots: Vec<u32> =
            self.claims.iter().map(|(_, slot)| slot).filter(flies).filter(wanted).take(most).collect();
        let mut batch = EffectBatch::new(journal);
        let way = Return { cause: Cause::Requeue, reason: None, delay: Some(0), back: false };
        for slot in &slots {
            self.come_back(&mut batch, *slot, now, &way);
        }
        batch.flush();
        slots.len() as u64
    }

    /// Deliveries that never left the server come back, as by REQUEUE.
    pub fn give_back(&mut self, now: Micros, receipts: &[Receipt], journal: &mut Journal) {
        self.begin_command();
        self.bring_up_receipts(receipts, now, journal);
        let mut batch = EffectBatch::new(journal);
        let way = Return { cause: Cause::Requeue, reason: None, delay: Some(0), back: false };
        for receipt in receipts {
            if let Ok(slot) = self.held(receipt) {
                self.come_back(&mut batch, slot, now, &way);
            }
        }
        batch.flush();
    }

    /// A message in flight comes back at `now`: ready, delayed, expired or dead (then true).
    pub(super) fn come_back(
        &mut self,
        batch: &mut EffectBatch<'_>,
        slot: u32,
        now: Micros,
        way: &Return<'_>,
    ) -> bool {
        let counted = matches!(way.cause, Cause::Timeout | Cause::Nack { counted: true });
        let n = self.more_of(slot).map_or(0, |x| x.counted()) + u64::from(counted);
        let limit = self.own(slot).max_deliveries.unwrap_or(self.config.max_deliveries);
        if counted && limit > 0 && n >= limit {
            self.kill(batch, slot, now, way);
            return true;
        }
        if self.expires(slot).is_some_and(|at| at <= now) {
            let after = self.what_follows(slot, now, None);
            self.commit(batch, slot, &Step::Expire { cause: Some(way.cause), after });
            return false;
        }
        let delay = match way.delay {
            Some(delay) => delay,
            None if counted => self.config.backoff.wait(n),
            None => 0,
        };
        let due = (delay > 0).then(|| now.saturating_add(delay));
        let place = way.back.then(|| (due.unwrap_or(now), self.next_seq));
        let reason = way.reason.map(Cow::Borrowed);
        self.commit(batch, slot, &Step::Back { cause: way.cause, reason, due, place });
        false
    }

    /// A message in flight dies.
    fn kill(&mut self, batch: &mut EffectBatch<'_>, slot: u32, now: Micros, way: &Return<'_>) {
        let after = self.what_follows(slot, now, None);
        let reason = Cow::Borrowed(way.reason.unwrap_or_default());
        let step = Step::Die { cause: way.cause, reason, at: now, number: self.next_death, after };
        self.commit(batch, slot, &step);
        // It takes the place of the oldest, if there is none left for it.
        if self.too_many_dead() {
            self.drop_dead(batch, 1);
        }
    }
}
