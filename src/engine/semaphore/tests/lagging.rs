//! Random histories of a semaphore that does little of what is due at a time. What it decides is
//! what it would have decided had all been applied before: that is asked of a copy which is settled
//! first. Once the rest is done both are the same.

use super::*;
use crate::engine::object::AT_ONCE;
use std::collections::BTreeSet;

struct Lagging {
    now: Micros,
    o: Semaphore,
    follower: Semaphore,
    /// As they were given; the copies get others.
    receipts: Vec<u64>,
    tickets: Ticket,
    most: usize,
}

fn quiet() -> Journal {
    journal(Family::Semaphore, false)
}

/// A decision without the number that it drew.
fn bare(permit: Permit) -> (Permit, bool) {
    (Permit { receipt: None, ..permit }, permit.receipt.is_some())
}

/// What there is in the end, without the numbers drawn.
fn end(o: &Semaphore, now: Micros) -> impl PartialEq + std::fmt::Debug + use<> {
    let mut o = o.clone();
    while !o.apply_due(now, usize::MAX, &mut quiet()) {}
    let told = o.answers(usize::MAX).into_iter().map(|(ticket, answer)| match answer {
        Answer::Permit(permit) => (ticket, Some(bare(permit))),
        _ => (ticket, None),
    });
    let told: Vec<_> = told.collect();
    let held: Vec<_> = o.holders(now).map(|h| (h.count, h.left_ms)).collect();
    let line: Vec<_> = o.line.ahead_of(None).map(|(until, w)| (until, w.count)).collect();
    (told, held, line, o.info(now), o.lifetime(now) == Lifetime::Gone)
}

impl Lagging {
    fn new(most: usize) -> Self {
        let (o, follower) = (Semaphore::blank(), Semaphore::blank());
        Self { now: T0, o, follower, receipts: Vec::new(), tickets: 0, most }
    }

    fn play(&mut self, act: &Act) {
        let mut j = journal(Family::Semaphore, true);
        j.allow(self.most);
        if let Act::Step(by) = act {
            self.now += by;
        }
        let now = self.now;
        if !self.o.apply_due(now, self.most, &mut j) {
            self.o.catch_up(now, &mut j);
        }
        let mut settled = self.o.clone();
        while !settled.apply_due(now, usize::MAX, &mut quiet()) {}
        let pick = |which: &[usize]| -> Vec<u64> {
            which.iter().map(|i| self.receipts.iter().rev().nth(*i).copied().unwrap_or(7)).collect()
        };
        let q = &mut quiet();
        match act {
            Act::Step(_) | Act::Reload => {}
            Act::Acquire(limit, count, lease_ms, block) => {
                self.tickets += 1;
                let ask = Ask { limit: *limit, count: *count, lease_ms: *lease_ms, owner: b"me" };
                let asked = |o: &mut Semaphore, j: &mut Journal| match block {
                    Some(ms) => o.acquire_or_wait(ask, *ms, self.tickets, now, j),
                    None => o.acquire(ask, now, j).map(Some),
                };
                let (got, want) = (asked(&mut self.o, &mut j), asked(&mut settled, q));
                assert_eq!(got.map(|p| p.map(bare)), want.map(|p| p.map(bare)));
                self.receipts.extend(got.ok().flatten().and_then(|p| p.receipt));
            }
            Act::Peek(limit, count) => {
                assert_eq!(self.o.peek(*limit, *count, now), settled.peek(*limit, *count, now));
            }
            Act::Release(which) => {
                let receipts = pick(which);
                assert_eq!(self.o.release(&receipts, now, &mut j), settled.release(&receipts, now, q));
            }
            Act::Renew(ms, which) => {
                let receipts = pick(which);
                assert_eq!(self.o.renew(*ms, &receipts, now, &mut j), settled.renew(*ms, &receipts, now, q));
            }
            Act::Set(limit, lease) => {
                self.o.set(*limit, *lease, now, &mut j);
                settled.set(*limit, *lease, now, q);
            }
            Act::Leave(i) => {
                let ticket = self.tickets.saturating_sub(*i as u64);
                self.o.depart(ticket, now, &mut j);
                settled.depart(ticket, now, q);
            }
        }
        assert_eq!(end(&self.o, now), end(&settled, now));
        let told = self.o.answers(self.most);
        self.receipts.extend(told.iter().filter_map(|(_, answer)| match answer {
            Answer::Permit(permit) => permit.receipt,
            _ => None,
        }));
        self.audit(&mut j);
    }

    fn audit(&mut self, j: &mut Journal) {
        let o = &self.o;
        let held: Vec<_> = o.holders(self.now).map(|h| (h.receipt, h.count, h.left_ms)).collect();
        let running = o.permits.iter().filter(|(_, l)| l.until > self.now.max(o.permits.over_to()));
        let wanted: Vec<_> = running.map(|(r, l)| (r, l.count, ceil_ms(l.until - self.now))).collect();
        assert_eq!(held, wanted);
        let sum = |over: bool| -> i64 {
            let of = o.permits.iter().filter(|(_, l)| (l.until <= o.permits.over_to()) == over);
            of.map(|(_, l)| l.count).sum()
        };
        assert_eq!((o.permits.held(), o.permits.all()), (sum(false), sum(false) + sum(true)));
        let due = o.permits.iter().any(|(_, l)| l.until <= self.now);
        assert!(!due || o.next_event().is_some_and(|at| at <= self.now), "what is put off is known");
        for batch in j.take() {
            apply_batch(&mut self.follower, &batch.head, &mut std::iter::empty(), &mut FencingCounter::new())
                .unwrap();
        }
        assert_eq!(snapshot(&self.follower), snapshot(o), "the follower is equal");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..Default::default() })]

    #[test]
    fn what_is_put_off_changes_no_decision(
        acts in prop::collection::vec(any_act(), 1..80),
        most in 1..3usize,
    ) {
        let mut lagging = Lagging::new(most);
        for act in &acts {
            lagging.play(act);
        }
    }
}

fn many(n: i64, count: i64, o: &mut Semaphore) -> Vec<u64> {
    let ask = Ask { limit: None, count, lease_ms: Some(1000), owner: b"" };
    let mut j = quiet();
    (0..n).map(|_| o.acquire(ask, T0, &mut j).unwrap().receipt.unwrap()).collect()
}

/// A journal of a command that may do so much of what is put off.
fn allowed(most: usize) -> Journal {
    let mut j = quiet();
    j.allow(most);
    j
}

#[test]
fn a_command_takes_away_a_bounded_part_of_what_is_over() {
    let mut o = Semaphore::blank();
    o.set(1_000, 1000, T0, &mut quiet());
    let receipts = many(1_000, 1, &mut o);
    let now = T0 + 1000 * MS;
    let ask = Ask { limit: None, count: 1_000, lease_ms: Some(5000), owner: b"" };
    let got = o.acquire(ask, now, &mut allowed(10)).unwrap();
    assert_eq!((got.granted, got.free, o.permits.len()), (1_000, 0, 991));
    assert_eq!(o.acquire(ask, now, &mut allowed(10)).unwrap().retry, 5000);
    assert_eq!(o.release(&receipts[900..902], now, &mut allowed(10)), [0, 0]);
    assert_eq!(o.renew(9, &receipts[900..902], now, &mut allowed(10)), [0, 0]);
    assert_eq!((o.info(now).unwrap().held, o.holders(now).count()), (1_000, 1));
    assert_eq!((o.permits.len(), o.next_event()), (961, Some(now)));
    while !o.apply_due(now, 100, &mut quiet()) {}
    assert_eq!((o.permits.len(), o.info(now).unwrap().timed_out), (1, 1_000));
}

/// The clock steps back between the pieces: what was over is not revived, and what is granted from
/// then on runs.
#[test]
fn a_step_back_revives_nothing() {
    let mut o = Semaphore::blank();
    o.set(100, 1000, T0, &mut quiet());
    let old = many(100, 1, &mut o);
    let now = T0 + 1000 * MS;
    o.apply_due(now, 10, &mut quiet());
    let before = now - 500 * MS;
    assert_eq!(o.renew(1000, &old[50..51], before, &mut allowed(1)), [0]);
    let new = many(100, 1, &mut o);
    assert_eq!(o.renew(1000, &new[..1], before, &mut allowed(1)), [1000]);
    assert_eq!(o.permits.len(), 100);
}

/// Counts of which a follower would not take more: as many leases that are over go as have to.
#[test]
fn more_than_may_be_there_is_never_there() {
    const MOST: i64 = 1_000_000_000_000;
    let (mut o, mut follower) = (Semaphore::blank(), Semaphore::blank());
    let mut j = journal(Family::Semaphore, true);
    o.set(MOST, 1000, T0, &mut j);
    let ask = |count| Ask { limit: None, count, lease_ms: Some(1000), owner: b"" };
    (0..10).for_each(|_| assert_eq!(o.acquire(ask(MOST / 10), T0, &mut j).unwrap().granted, MOST / 10));
    j.allow(0);
    let now = T0 + 1000 * MS;
    assert_eq!(o.acquire(ask(MOST / 4), now, &mut j).unwrap().granted, MOST / 4);
    assert_eq!(o.permits.len(), 8);
    for batch in j.take() {
        apply_batch(&mut follower, &batch.head, &mut std::iter::empty(), &mut FencingCounter::new()).unwrap();
    }
    assert_eq!(snapshot(&follower), snapshot(&o));
}

/// Who is served after SET or RELEASE is told in order, piece by piece, and nobody overtakes.
#[test]
fn a_line_is_served_in_pieces_and_nobody_overtakes() {
    let mut o = Semaphore::blank();
    o.set(1, 60_000, T0, &mut quiet());
    let ask = Ask { limit: None, count: 1, lease_ms: None, owner: b"" };
    o.acquire(ask, T0, &mut quiet()).unwrap();
    for ticket in 1..=20 {
        assert_eq!(o.acquire_or_wait(ask, 1000, ticket, T0, &mut quiet()), Ok(None));
    }
    o.set(16, 60_000, T0, &mut allowed(5));
    assert_eq!((o.waiting(), o.next_event()), (15, Some(AT_ONCE)));
    let told = |o: &mut Semaphore, most| o.answers(most).into_iter().map(|(t, _)| t).collect::<Vec<_>>();
    assert_eq!(told(&mut o, 3), [1, 2, 3]);
    // Whoever comes now decides on a line that has been served.
    let got = o.acquire(ask, T0, &mut allowed(1)).unwrap();
    assert_eq!((got.granted, o.waiting()), (0, 5));
    assert_eq!(told(&mut o, 9), (4..=12).collect::<Vec<_>>());
    assert_eq!(o.next_event(), Some(AT_ONCE));
    assert_eq!(told(&mut o, 9), (13..=15).collect::<Vec<_>>());
    assert_eq!(o.next_event(), Some(T0 + 1000 * MS));
    let receipts: BTreeSet<u64> = o.holders(T0).map(|h| h.receipt).collect();
    assert_eq!(receipts.len(), 16);
}
