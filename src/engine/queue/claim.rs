//! CLAIM: which message is handed out next, and to hand it out.
//!
//! The lane is chosen by its seat: the first seat whose lane may have one more in flight. Seats are
//! ordered by busy members first, so if the first is at the bound all are, but lane 0, which has
//! none. A lane found without a token is parked until its next; when that instant has come it takes
//! its seat again.

use super::config::NO_PAUSE;
use super::effect::{After, Claim, Claimed};
use super::effect::{Brought, Record};
use super::effect_batch::EffectBatch;
use super::lane::{Lane, PLAIN, Seat};
use super::message::{Id, Stage};
use super::wire::{ClaimedWire, Wire};
use super::{Few, Queue};
use crate::engine::collections::slab::NONE;
use crate::engine::journal::{Blob, Journal};
use crate::engine::time::Micros;

/// Deliveries in one effect.
const MOST: usize = 256;

#[derive(Debug, Clone, Copy)]
pub struct ClaimOptions<'a> {
    pub count: usize,
    pub lease: Option<Micros>,
    pub consumer: Option<&'a [u8]>,
    pub group: Option<&'a [u8]>,
    pub no_ack: bool,
    /// With NOACK: what is handed out may have to come back, as the reply may reach nobody.
    pub returnable: bool,
    /// Payloads together take no more than this, but one is handed out.
    pub max_bytes: usize,
}

impl Default for ClaimOptions<'_> {
    fn default() -> Self {
        Self {
            count: 1,
            lease: None,
            consumer: None,
            group: None,
            no_ack: false,
            returnable: false,
            max_bytes: usize::MAX,
        }
    }
}

/// One message handed out. Its payload is asked of the queue before that changes.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub id: Id,
    /// None: NOACK.
    pub claim: Option<u64>,
    pub deliveries: u64,
    slot: u32,
    taken: Box<[u8]>,
    /// What it was besides, when it is gone and may come back.
    record: Option<Box<Record<'static>>>,
}

/// A message that was handed out with NOACK.
#[derive(Debug)]
pub struct Taken {
    record: Box<Record<'static>>,
    id: Id,
    payload: Box<[u8]>,
}

impl Delivery {
    /// What may come back of it; None: it is not gone, or was not asked to be kept.
    pub fn into_taken(self) -> Option<Taken> {
        Some(Taken { record: self.record?, id: self.id, payload: self.taken })
    }
}

impl Queue {
    /// The payload of a delivery just made.
    pub fn payload<'a>(&'a self, delivery: &'a Delivery) -> &'a [u8] {
        match (delivery.claim, self.messages.get(delivery.slot)) {
            (Some(_), Some(m)) => &m.payload,
            _ => &delivery.taken,
        }
    }

    /// Hands out up to `count` messages, choosing the lane anew for each.
    pub fn claim(&mut self, now: Micros, options: &ClaimOptions<'_>, journal: &mut Journal) -> Few<Delivery> {
        self.begin_command();
        let most = usize::try_from(self.ready).unwrap_or(usize::MAX).min(options.count).min(MOST);
        let mut out = Few::with_capacity(most);
        let mut claim = Claim {
            now,
            first: None,
            turn: self.next_turn,
            consumer: options.consumer.map(Into::into),
            level: None,
        };
        let mut carried: Vec<(Id, Claimed)> = Vec::new();
        let (mut n, mut bytes) = (0, 0_usize);
        let over = self.any_over(now);
        while out.len() < options.count
            && self.has_token(now)
            && let Some(lane) = self.pick_lane(now, options.group)
            && let Some(slot) = self.first_of(lane)
            && let Some(m) = self.messages.get(slot)
        {
            if over && self.is_over(slot, now) {
                if journal.left() == 0 {
                    break;
                }
                record(&claim, &mut carried, journal);
                n = 0;
                let mut batch = EffectBatch::new(journal);
                self.expire(slot, now, &mut batch);
                batch.flush();
                continue;
            }
            bytes = bytes.saturating_add(m.payload.len());
            if bytes > options.max_bytes && !out.is_empty() {
                break;
            }
            let id = m.id.clone();
            let (own, deliveries) = self
                .more_of(slot)
                .map_or((0, 0), |x| (x.own.as_deref().map_or(0, |o| o.lease), x.deliveries));
            let number = (!options.no_ack).then(|| journal.draw(now));
            if n == 0 {
                claim.first = number;
                claim.turn = self.next_turn;
            }
            let lease = match (options.no_ack, options.lease) {
                (true, _) => 0,
                (false, Some(lease)) => lease,
                (false, None) if own > 0 => own,
                (false, None) => self.config.lease,
            };
            let after =
                if options.no_ack { self.what_follows(slot, now, Some(self.next_turn)) } else { After::None };
            let kept = if options.no_ack && options.returnable { self.record(slot) } else { None };
            let kept = kept.map(|(record, ..)| Box::new(record.into_owned()));
            let item = Claimed { slot, lease, level: self.group_level_after(lane, now), after };
            let taken = self.claim_one(&claim, n, item).unwrap_or_default();
            if let (Some(limits), Some(tokens)) = (self.config.rate, self.own_tokens()) {
                claim.level = Some(tokens.less_one(limits, now).level);
                self.set_level(claim.level, now);
            }
            out.push(Delivery {
                id: id.clone(),
                claim: number,
                deliveries: u64::from(deliveries) + 1,
                slot,
                taken,
                record: kept,
            });
            if journal.carries() {
                carried.push((id, item));
                n += 1;
                // What came to its name within an effect cannot be named in it.
                if carried.len() >= MOST || matches!(after, After::Enter(_)) {
                    record(&claim, &mut carried, journal);
                    n = 0;
                }
            } else {
                journal.touch();
                // The turns of an effect follow each other.
                n = if matches!(after, After::Enter(_)) { 0 } else { n + 1 };
            }
        }
        record(&claim, &mut carried, journal);
        out
    }

    /// Messages handed out with NOACK that reached nobody are ready again, as long ready as before.
    /// One whose id was given to another since stays gone.
    pub fn untake(&mut self, now: Micros, taken: Vec<Taken>, journal: &mut Journal) {
        self.begin_command();
        for Taken { record, id, payload } in taken {
            self.bring_up_all([id.as_ref()], now, journal);
            if self.find_live(id.as_ref()).is_some() {
                continue;
            }
            let mut record = *record;
            let [deliveries, ..] = &mut record.counters;
            *deliveries = deliveries.saturating_add(1);
            record.stage = Stage::Ready;
            record.place = (record.place.0, self.next_seq);
            record.turn = self.turn_to_join(record.group.as_deref());
            if journal.carries() {
                let blob = Blob::Bytes(payload.clone());
                journal.record(&Wire::Untake(vec![(record.clone(), id.as_ref())]), [blob]);
            } else {
                journal.touch();
            }
            self.come_again(vec![(record, id, payload)]);
        }
        self.apply_most_due(now, journal.left(), journal);
    }

    /// [`Queue::untake`], made.
    pub(super) fn come_again(&mut self, records: Vec<Brought>) {
        self.totals.acked = self.totals.acked.saturating_sub(records.len() as u64);
        for (record, id, payload) in records {
            self.restore(&record, id, payload, NONE);
        }
    }

    /// The level that the bucket of a group has after one more was taken; None: it has none.
    fn group_level_after(&self, lane: u32, now: Micros) -> Option<i128> {
        let limits = self.config.group_rate.filter(|_| lane != PLAIN)?;
        let tokens = self.lanes.get(lane)?.tokens.as_deref().copied();
        Some(tokens.unwrap_or_else(|| super::tokens::Tokens::full(limits, now)).less_one(limits, now).level)
    }

    fn has_token(&self, now: Micros) -> bool {
        match (self.config.rate, self.own_tokens()) {
            (Some(limits), Some(tokens)) => tokens.has_one(limits, now),
            _ => true,
        }
    }

    /// Until when a group is without a token; None: it has one.
    fn short_of_tokens(&self, lane: &Lane, now: Micros) -> Option<Micros> {
        let (limits, tokens) = (self.config.group_rate?, lane.tokens.as_deref()?);
        (!tokens.has_one(limits, now)).then(|| tokens.one_at(limits))
    }

    /// Whether one more of this lane may be in flight.
    fn has_place(&self, slot: u32, busy: u32) -> bool {
        slot == PLAIN || self.config.group_in_flight == 0 || u64::from(busy) < self.config.group_in_flight
    }

    /// Whether nothing could be claimed, whatever tokens there were.
    pub fn is_held_up(&self, now: Micros) -> bool {
        let full = self.config.max_in_flight > 0 && self.claims.len() as u64 >= self.config.max_in_flight;
        full || self.ready == 0 || self.claim_paused(now, None)
    }

    /// The lane to be served next, of all or of the group asked for, the queue's own bucket left
    /// aside.
    fn pick_lane(&mut self, now: Micros, group: Option<&[u8]>) -> Option<u32> {
        if self.is_held_up(now) {
            return None;
        }
        if group.is_some() {
            let slot = self.find_lane(group)?;
            let lane = self.lanes.get(slot)?;
            let paused = lane.paused_claim != NO_PAUSE;
            if lane.ready == 0 || paused || !self.has_place(slot, lane.busy) {
                return None;
            }
            let Some(until) = self.short_of_tokens(lane, now) else { return Some(slot) };
            self.park(slot, until);
            return None;
        }
        while let Some((until, lane)) = self.parked.first().copied()
            && until <= now
        {
            self.unpark(lane);
        }
        loop {
            let (busy, _, mut slot) = self.seats.first()?;
            if !self.has_place(slot, busy) {
                let plain = self.lanes.get(PLAIN)?;
                if !matches!(plain.seat, Seat::Seated { .. }) {
                    return None;
                }
                slot = PLAIN;
            }
            match self.short_of_tokens(self.lanes.get(slot)?, now) {
                None => return Some(slot),
                Some(until) => self.park(slot, until),
            }
        }
    }

    /// The message of a lane that is served first.
    fn first_of(&self, lane: u32) -> Option<u32> {
        let mut fronts = self.lanes.get(lane)?.runs.iter().filter_map(|r| r.order.front());
        if self.config.aging == 0 {
            return fronts.next();
        }
        fronts.min_by_key(|slot| self.messages.get(*slot).map(|m| self.rank(m.priority, m.place())))
    }

    /// Whether a claim would get something now. (Changes nothing but where lanes without tokens are
    /// kept.)
    pub fn claimable(&mut self, now: Micros, group: Option<&[u8]>) -> bool {
        self.has_token(now) && self.pick_lane(now, group).is_some()
    }

    /// The groups with ready messages whose claims are not paused nor known to be out of tokens.
    pub fn candidates(&self) -> impl Iterator<Item = &[u8]> {
        let names = self.seats.iter().filter_map(|(.., slot)| self.lanes.get(slot)).map(|lane| &*lane.name);
        names.filter(|name| !name.is_empty())
    }

    /// How many these are at most.
    pub fn candidate_count(&self) -> usize {
        self.seats.len()
    }

    /// The groups known to be out of tokens, by when each has one.
    pub fn parked(&self) -> impl Iterator<Item = (Micros, &[u8])> {
        self.parked.iter().filter_map(|(until, slot)| Some((*until, &*self.lanes.get(*slot)?.name)))
    }

    /// Whether tokens can stand in the way of a claim at all.
    pub fn is_rated(&self) -> bool {
        self.config.rate.is_some() || self.config.group_rate.is_some()
    }

    /// When the queue's own bucket, which has no token now, has one; None: it has.
    pub fn own_token_at(&self, now: Micros) -> Option<Micros> {
        let (limits, tokens) = (self.config.rate?, self.own_tokens()?);
        (!tokens.has_one(limits, now)).then(|| tokens.one_at(limits))
    }

    /// When nothing but the tokens of groups stands in the way of a claim of any message: the
    /// instant at which the first are there (not after `now`: already).
    pub fn claimable_at(&mut self, now: Micros) -> Option<Micros> {
        if self.pick_lane(now, None).is_some() {
            return Some(now);
        }
        // Parked lanes had a place in flight when they were parked, and have not been served since.
        self.parked.first().filter(|_| !self.is_held_up(now)).map(|(until, _)| *until)
    }

    /// What becomes of the follower of a message that is live no more at `now`; `turn`: the one its
    /// lane has just been given.
    pub(super) fn what_follows(&self, slot: u32, now: Micros, turn: Option<u64>) -> After {
        let follower = self.more_of(slot).map_or(NONE, |x| x.follower);
        let Some(f) = self.messages.get(follower) else { return After::None };
        if self.expires(follower).is_some_and(|at| at <= now) {
            return After::Expired;
        }
        let due = match self.stage(follower) {
            Some(super::message::Stage::Follower { due }) => due,
            _ => 0,
        };
        let same = self.messages.get(slot).is_some_and(|m| m.lane == f.lane);
        let turn = match self.lanes.get(f.lane) {
            // The lane is empty for a moment and keeps its turn.
            Some(l) if same && l.live == 1 => Some(turn.unwrap_or(l.turn)),
            _ => self.turn_to_join_lane(f.lane, turn.map(|t| t.saturating_add(1))),
        };
        let at = due.max(now);
        After::Enter(super::effect::Entry { at, delayed: at > now, seq: self.next_seq, turn })
    }
}

/// Records the deliveries gathered so far.
fn record(claim: &Claim<'_>, carried: &mut Vec<(Id, Claimed)>, journal: &mut Journal) {
    if carried.is_empty() {
        return;
    }
    let items = carried
        .iter()
        .map(|(id, c)| ClaimedWire { id: id.as_ref(), lease: c.lease, level: c.level, after: c.after })
        .collect();
    journal.record(&Wire::Claim(claim.clone(), items), []);
    carried.clear();
}
