//! The leases of one semaphore, by receipt and by end: what `SEM` and the permit stage of a `GATE`
//! share.

use super::lease_ends::Ends;
use crate::engine::bucket::MAX_COUNT;
use crate::engine::codec::{Corrupt, instant};
use crate::engine::fencing::MAX_FENCE;
use crate::engine::footprint::{block, tree};
use crate::engine::time::{MAX_DURATION_MS, Micros};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Bound;

/// Permits that somebody holds until they are released or `until` comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub count: i64,
    pub until: Micros,
    pub owner: Box<[u8]>,
}

/// A lease is over at its end, whether or not it was taken away by then: that is done in pieces.
///
/// Invariants: both maps hold the same leases; `used` is the sum of their counts, at most 10¹², and
/// `over` that of the leases that end at `over_to` or before; `owner_bytes` is what their owners'
/// names take; no receipt is above `last`. Not state: `over_to` and `over`.
#[derive(Debug, Clone, Default)]
pub struct Permits {
    held: BTreeMap<u64, Lease>,
    by_end: Ends,
    used: i64,
    /// The instant that was reached: what ended by then stays over, also if the clock steps back.
    over_to: Micros,
    over: i64,
    owner_bytes: usize,
    /// The last receipt given: kept when its lease is over, so that those given after a reload are
    /// larger.
    last: u64,
}

/// One who waits, as the reckoning of waits sees it.
#[derive(Debug, Clone, Copy)]
pub struct Ahead {
    pub count: i64,
    /// How long it will hold (µs).
    pub lease: Micros,
    /// When it gives up.
    pub until: Micros,
    pub limit: i64,
}

/// Of those who wait ahead, how many the reckoning of a wait looks at.
const MOST_AHEAD: usize = 64;

impl Permits {
    pub(crate) fn insert(&mut self, receipt: u64, lease: Lease) {
        self.remove(receipt);
        self.drawn(receipt);
        self.used += lease.count;
        self.owner_bytes += block(lease.owner.len());
        self.enter(lease.until, receipt, lease.count);
        self.held.insert(receipt, lease);
    }

    fn enter(&mut self, until: Micros, receipt: u64, count: i64) {
        self.by_end.insert(until, receipt, count);
        self.over += if until <= self.over_to { count } else { 0 };
    }

    fn take_out(&mut self, until: Micros, receipt: u64, count: i64) {
        self.by_end.remove(until, receipt);
        self.over -= if until <= self.over_to { count } else { 0 };
    }

    /// Receipts up to this one were given.
    pub(crate) fn drawn(&mut self, receipt: u64) {
        self.last = self.last.max(receipt);
    }

    /// The last receipt given, if no lease there says it.
    pub(crate) fn last_gone(&self) -> Option<u64> {
        let held = self.held.last_key_value().map_or(0, |(receipt, _)| *receipt);
        (self.last > held).then_some(self.last)
    }

    /// All leases are over.
    pub(crate) fn clear(&mut self) {
        *self = Self { last: self.last, over_to: self.over_to, ..Self::default() };
    }

    pub(crate) fn remove(&mut self, receipt: u64) {
        if let Some(lease) = self.held.remove(&receipt) {
            self.used -= lease.count;
            self.owner_bytes -= block(lease.owner.len());
            self.take_out(lease.until, receipt, lease.count);
        }
    }

    pub(crate) fn renew(&mut self, receipt: u64, until: Micros) {
        if let Some(lease) = self.held.get_mut(&receipt) {
            let (before, count) = (std::mem::replace(&mut lease.until, until), lease.count);
            self.take_out(before, receipt, count);
            self.enter(until, receipt, count);
        }
    }

    /// A lease that is there, over or not.
    pub(crate) fn get(&self, receipt: u64) -> Option<&Lease> {
        self.held.get(&receipt)
    }

    /// A lease that is not over.
    pub(crate) fn running(&self, receipt: u64) -> Option<&Lease> {
        self.held.get(&receipt).filter(|lease| lease.until > self.over_to)
    }

    /// By receipt.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Lease)> {
        self.held.iter().map(|(receipt, lease)| (*receipt, lease))
    }

    /// Those that go on after `now`, of receipts above this one.
    pub(crate) fn running_above(&self, receipt: u64, now: Micros) -> impl Iterator<Item = (u64, &Lease)> {
        let (above, now) = ((Bound::Excluded(receipt), Bound::Unbounded), now.max(self.over_to));
        let running = self.held.range(above).filter(move |(_, lease)| lease.until > now);
        running.map(|(receipt, lease)| (*receipt, lease))
    }

    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// Permits held by leases that go on after `now`.
    pub(crate) fn used(&self, now: Micros) -> i64 {
        self.used - self.back_until(now)
    }

    /// How many permits are back by leases that are there and over at `at`.
    fn back_until(&self, at: Micros) -> i64 {
        match self.by_end.first() {
            Some((first, _)) if first <= at && self.over_to < at => {
                self.over + self.by_end.back_between(self.over_to, at)
            }
            _ => self.over,
        }
    }

    /// Permits held by leases that go on after the instant that was reached.
    pub(crate) fn held(&self) -> i64 {
        self.used - self.over
    }

    /// The instant that was reached.
    pub(crate) fn over_to(&self) -> Micros {
        self.over_to
    }

    /// What ends at `to` or before is over from now on.
    pub(crate) fn reach(&mut self, to: Micros) {
        if to > self.over_to {
            self.over = self.back_until(to);
            self.over_to = to;
        }
    }

    /// The clock stepped back to `to`: leases that end after that run from then on. Those that were
    /// over by then must be gone.
    pub(crate) fn step_back(&mut self, to: Micros) {
        if self.over == 0 {
            self.over_to = self.over_to.min(to);
        }
    }

    /// The first lease that is over and still there.
    pub(crate) fn first_over(&self) -> Option<u64> {
        self.by_end.first().filter(|(end, _)| *end <= self.over_to).map(|(_, receipt)| receipt)
    }

    /// When the leases that end next have given back `count` permits.
    pub(crate) fn back(&self, count: i64) -> Option<Micros> {
        if count > 0 { self.by_end.back(self.over + count) } else { Some(self.over_to) }
    }

    /// Permits held by all leases there, over or not.
    pub(crate) fn all(&self) -> i64 {
        self.used
    }

    /// The lease that ends first.
    pub(crate) fn first_end(&self) -> Option<(Micros, u64)> {
        self.by_end.first()
    }

    /// When the next lease ends after `now`.
    pub(crate) fn next_end(&self, now: Micros) -> Option<Micros> {
        self.by_end.next_after(now.max(self.over_to))
    }

    pub(crate) fn last_end(&self) -> Option<Micros> {
        self.by_end.last()
    }

    /// µs until a newcomer behind `line` would get `count` permits of `limit` if no more came and
    /// leases were only ended by their time; `count <= limit`. With more than [`MOST_AHEAD`] in
    /// line: until so many of them have got theirs or given up, which is less. Goes from one
    /// instant at which somebody can be served or gives up to the next.
    pub(crate) fn wait(
        &self,
        now: Micros,
        line: impl Iterator<Item = Ahead>,
        count: i64,
        limit: i64,
    ) -> Micros {
        let mut line: Vec<Ahead> = line.take(MOST_AHEAD + 1).collect();
        let cut_short = line.len() > MOST_AHEAD;
        line.truncate(MOST_AHEAD);
        let mut timeouts: Vec<(Micros, usize)> = line.iter().enumerate().map(|(i, w)| (w.until, i)).collect();
        timeouts.sort_unstable();
        let mut timeouts = timeouts.into_iter().peekable();
        let mut out = vec![false; line.len()];
        let mut head = 0;
        // What those ahead get, until their leases end.
        let mut given: BinaryHeap<Reverse<(Micros, i64)>> = BinaryHeap::new();
        let (mut of_given, mut t) = (0, now);
        loop {
            let back = self.back_until(t);
            while let Some(Reverse((_, freed))) = given.peek().filter(|Reverse((end, _))| *end <= t).copied()
            {
                given.pop();
                of_given -= freed;
            }
            let mut used = self.used - back + of_given;
            while let Some(first) = line.get(head) {
                let gone = out.get(head).copied().unwrap_or(true);
                if !gone && used + first.count <= first.limit {
                    used += first.count;
                    of_given += first.count;
                    given.push(Reverse((t.saturating_add(first.lease), first.count)));
                } else if !gone && first.until > t {
                    break;
                }
                head += 1;
            }
            while let Some((_, i)) = timeouts.next_if(|(until, _)| *until <= t) {
                if let Some(gone) = out.get_mut(i) {
                    *gone = true;
                }
            }
            let next = line.get(head).map_or((count, limit), |first| (first.count, first.limit));
            if head >= line.len() {
                if cut_short {
                    return (t - now).max(1);
                }
                if used + count <= limit {
                    return t - now;
                }
            }
            let lacking = used + next.0 - next.1;
            let next = [
                self.by_end.back(back + lacking),
                given.peek().map(|Reverse((end, _))| *end),
                timeouts.peek().map(|(until, _)| *until).filter(|_| head < line.len()),
            ];
            match next.into_iter().flatten().min() {
                // A lease that lasts for ever.
                None | Some(Micros::MAX) => return Micros::MAX,
                Some(next) => t = next,
            }
        }
    }

    pub(crate) fn memory(&self) -> usize {
        tree(self.held.len(), size_of::<(u64, Lease)>()) + self.by_end.memory() + self.owner_bytes
    }
}

/// Checks a new lease that nobody vouches for.
pub fn check_lease(to: &Permits, receipt: u64, count: i64, until: Micros) -> Result<(), Corrupt> {
    check_receipt(receipt)?;
    if to.get(receipt).is_some() {
        return Err(Corrupt("receipt"));
    }
    if !(1..=MAX_COUNT).contains(&count) || to.all() + count > MAX_COUNT {
        return Err(Corrupt("count out of range"));
    }
    instant(until)
}

/// Checks a number that was given, which nobody vouches for.
pub fn check_receipt(receipt: u64) -> Result<(), Corrupt> {
    if (1..=MAX_FENCE).contains(&receipt) { Ok(()) } else { Err(Corrupt("receipt")) }
}

/// Checks what a semaphore is set to.
pub fn check_setting(limit: i64, lease_ms: i64) -> Result<(), Corrupt> {
    if (1..=MAX_COUNT).contains(&limit) && (1..=MAX_DURATION_MS).contains(&lease_ms) {
        Ok(())
    } else {
        Err(Corrupt("limit or lease out of range"))
    }
}
