//! The semaphore against a naive model; every history is also folded through its carried effects.

mod lagging;

use super::*;
use crate::engine::family::Family;
use crate::engine::fencing::FencingCounter;
use crate::engine::object::{Lifetime, Object, apply_batch};
use crate::engine::tests::folding::{any_damage, load, snapshot};
use crate::engine::tests::journal;
use proptest::prelude::*;
use std::collections::BTreeMap;

const T0: Micros = 1_900_000_000_000_000;

#[derive(Clone)]
struct Waiting {
    ticket: Ticket,
    count: i64,
    limit: Option<i64>,
    lease: Option<i64>,
    expected: i64,
    until: Micros,
}

/// By definition: plain lists, every wait found by letting time pass.
struct Model {
    limit: i64,
    lease: i64,
    pinned: bool,
    held: BTreeMap<u64, (i64, Micros)>,
    line: Vec<Waiting>,
    counts: (i64, i64, i64),
    /// The last receipt given.
    last: u64,
    answers: Vec<(Ticket, Option<Permit>)>,
}

impl Model {
    fn new() -> Self {
        let (held, line, answers) = (BTreeMap::new(), Vec::new(), Vec::new());
        let (limit, lease, counts) = (0, DEFAULT_LEASE_MS, (0, 0, 0));
        Self { limit, lease, pinned: false, held, line, counts, last: 0, answers }
    }

    fn used(&self) -> i64 {
        self.held.values().map(|h| h.0).sum()
    }

    fn limit(&self, given: Option<i64>) -> Option<i64> {
        if self.pinned {
            return Some(self.limit);
        }
        given.or(Some(self.limit).filter(|_| !self.held.is_empty()))
    }

    fn retry(&self, line: &[Waiting], count: i64, limit: i64, now: Micros) -> i64 {
        if count > limit {
            return -1;
        }
        let mut ends: Vec<(Micros, i64)> = self.held.values().map(|h| (h.1, h.0)).collect();
        let mut line = line.to_vec();
        let mut t = now;
        loop {
            ends.retain(|e| e.0 > t);
            while let Some(w) = line.first() {
                let most = if self.pinned { self.limit } else { w.limit.unwrap_or(limit) };
                if ends.iter().map(|e| e.1).sum::<i64>() + w.count <= most {
                    ends.push((t + w.expected * MS, w.count));
                } else if w.until > t {
                    break;
                }
                line.remove(0);
            }
            line.retain(|w| w.until > t);
            if line.is_empty() && ends.iter().map(|e| e.1).sum::<i64>() + count <= limit {
                return ceil_ms(t - now);
            }
            t = ends.iter().map(|e| e.0).chain(line.iter().map(|w| w.until)).min().unwrap();
        }
    }

    /// The reply now to one behind the first `ahead` of the line; grants with `receipt`.
    fn ask(
        &mut self,
        ask: (Option<i64>, i64, Option<i64>),
        ahead: usize,
        now: Micros,
        receipt: Option<u64>,
    ) -> Option<Permit> {
        let (given, count, lease) = ask;
        let limit = self.limit(given)?;
        let used = self.used();
        if ahead == 0 && used + count <= limit {
            if let Some(receipt) = receipt {
                self.limit = limit;
                self.held.insert(receipt, (count, now + lease.unwrap_or(self.lease) * MS));
            }
            return Some(Permit { granted: count, limit, free: limit - used - count, retry: 0, receipt });
        }
        let retry = self.retry(&self.line[..ahead], count, limit, now);
        let free = if ahead > 0 { 0 } else { (limit - used).max(0) };
        Some(Permit { granted: 0, limit, free, retry, receipt: None })
    }

    /// Receipts of those served are taken from what the semaphore answered: they are its own to
    /// choose.
    fn apply_due(&mut self, now: Micros, told: &BTreeMap<Ticket, u64>) {
        let held = self.held.len();
        self.held.retain(|_, h| h.1 > now);
        self.counts.2 += (held - self.held.len()) as i64;
        loop {
            while let Some(w) = self.line.first().cloned() {
                let answer = self.ask((w.limit, w.count, w.lease), 0, now, told.get(&w.ticket).copied());
                match answer {
                    Some(p) if p.granted == 0 && p.retry != -1 => break,
                    Some(p) if p.granted > 0 => self.counts.0 += 1,
                    Some(_) => self.counts.1 += 1,
                    None => {}
                }
                self.line.remove(0);
                self.answers.push((w.ticket, answer));
            }
            let Some(i) = self.line.iter().position(|w| w.until <= now) else { return };
            let w = self.line[i].clone();
            let answer = self.ask((w.limit, w.count, w.lease), i, now, None);
            self.line.remove(i);
            self.counts.1 += 1;
            self.answers.push((w.ticket, answer));
        }
    }
}

#[derive(Debug, Clone)]
enum Act {
    Step(i64),
    Acquire(Option<i64>, i64, Option<i64>, Option<i64>),
    Peek(Option<i64>, i64),
    Release(Vec<usize>),
    Renew(i64, Vec<usize>),
    Set(i64, i64),
    Leave(usize),
    Reload,
}

fn any_act() -> impl Strategy<Value = Act> {
    let limit = || prop::option::weighted(0.7, prop::sample::select(vec![1i64, 2, 3, 5, 1_000_000_000_000]));
    let count = || prop::sample::select(vec![1i64, 1, 2, 3, 1_000_000_000_000]);
    let ms = || prop::sample::select(vec![1i64, 1000, 2500, 7000, 20_000, 31_622_400_000]);
    let step = prop::sample::select(vec![0i64, 1, 999, 1000, 500_000, 1_000_000, 7_000_000, -1_000_000]);
    prop_oneof![
        6 => step.prop_map(Act::Step),
        10 => (limit(), count(), prop::option::of(ms()), prop::option::weighted(0.6, ms())).prop_map(|(l, c, e, b)| Act::Acquire(l, c, e, b)),
        2 => (limit(), count()).prop_map(|(l, c)| Act::Peek(l, c)),
        3 => prop::collection::vec(0..6usize, 1..3).prop_map(Act::Release),
        2 => (ms(), prop::collection::vec(0..6usize, 1..3)).prop_map(|(m, r)| Act::Renew(m, r)),
        1 => (1..5i64, ms()).prop_map(|(l, e)| Act::Set(l, e)),
        1 => (0..4usize).prop_map(Act::Leave),
        1 => Just(Act::Reload),
    ]
}

struct Bench {
    now: Micros,
    o: Semaphore,
    mirror: Semaphore,
    model: Model,
    receipts: Vec<u64>,
    tickets: Ticket,
}

impl Bench {
    fn new() -> Self {
        let (o, mirror) = (Semaphore::blank(), Semaphore::blank());
        Self { now: T0, o, mirror, model: Model::new(), receipts: Vec::new(), tickets: 0 }
    }

    /// Time passes up to `to`, stopping where something is due.
    fn apply_due(&mut self, to: Micros, j: &mut Journal) {
        while let Some(at) = self.o.next_event().filter(|at| *at <= to && *at > self.now) {
            self.now = at;
            assert!(self.o.apply_due(at, usize::MAX, j));
            self.compare_answers();
        }
        self.now = to;
        assert!(self.o.apply_due(to, usize::MAX, j));
        self.compare_answers();
    }

    fn compare_answers(&mut self) {
        let told = self.o.answers(usize::MAX).into_iter().map(|(ticket, a)| match a {
            Answer::Permit(p) => (ticket, Some(p)),
            _ => (ticket, None),
        });
        let told: Vec<(Ticket, Option<Permit>)> = told.collect();
        let given = told.iter().filter_map(|(t, p)| Some((*t, p.as_ref()?.receipt?))).collect();
        self.model.apply_due(self.now, &given);
        assert_eq!(told, std::mem::take(&mut self.model.answers));
        for receipt in told.iter().filter_map(|(_, p)| p.as_ref()?.receipt) {
            self.take(receipt);
        }
    }

    fn take(&mut self, receipt: u64) {
        assert!(self.receipts.iter().all(|r| *r < receipt), "receipts rise");
        self.receipts.push(receipt);
        self.model.last = receipt;
    }

    fn play(&mut self, act: Act) {
        let j = &mut journal(Family::Semaphore, true);
        let before = snapshot(&self.o);
        let by = if let Act::Step(by) = act { by } else { 0 };
        let gone = self.model.held.is_empty() && !self.model.pinned;
        self.apply_due(self.now + by, j);
        let now = self.now;
        let settled = j.changed();
        let mut refused = false;
        let pick = |receipts: &[u64], which: &[usize]| -> Vec<u64> {
            which.iter().map(|i| receipts.iter().rev().nth(*i).copied().unwrap_or(7)).collect()
        };
        match act {
            Act::Step(_) => {}
            Act::Acquire(limit, count, lease_ms, block) => {
                self.tickets += 1;
                let ask = Ask { limit, count, lease_ms, owner: b"me" };
                let reply = match block {
                    Some(ms) => self.o.acquire_or_wait(ask, ms, self.tickets, now, j).ok(),
                    None => self.o.acquire(ask, now, j).ok().map(Some),
                };
                let receipt = reply.flatten().and_then(|p| p.receipt);
                let ahead = self.model.line.len();
                let naive = self.model.ask((limit, count, lease_ms), ahead, now, receipt);
                match (naive, block) {
                    (Some(p), Some(ms)) if p.granted == 0 && p.retry != -1 => {
                        let expected = lease_ms.unwrap_or(self.model.lease);
                        let until = now + ms * MS;
                        let w =
                            Waiting { ticket: self.tickets, count, limit, lease: lease_ms, expected, until };
                        self.model.line.push(w);
                        assert_eq!(reply, Some(None));
                    }
                    _ => assert_eq!(reply, naive.map(Some)),
                }
                if let Some(p) = reply.flatten() {
                    if p.granted > 0 { self.model.counts.0 += 1 } else { self.model.counts.1 += 1 }
                }
                refused = reply.is_none_or(|p| p.is_some_and(|p| p.granted == 0));
                if let Some(receipt) = receipt {
                    self.take(receipt);
                }
            }
            Act::Peek(limit, count) => {
                let ahead = self.model.line.len();
                assert_eq!(
                    self.o.peek(limit, count, now).ok(),
                    self.model.ask((limit, count, None), ahead, now, None)
                );
            }
            Act::Release(which) => {
                let receipts = pick(&self.receipts, &which);
                let naive: Vec<i64> =
                    receipts.iter().map(|r| i64::from(self.model.held.remove(r).is_some())).collect();
                assert_eq!(self.o.release(&receipts, now, j), naive);
            }
            Act::Renew(ms, which) => {
                let receipts = pick(&self.receipts, &which);
                let naive = receipts.iter().map(|r| match self.model.held.get_mut(r) {
                    None => 0,
                    Some(h) => {
                        h.1 = now + ms * MS;
                        ms
                    }
                });
                let naive: Vec<i64> = naive.collect();
                assert_eq!(self.o.renew(ms, &receipts, now, j), naive);
            }
            Act::Set(limit, lease) => {
                self.o.set(limit, lease, now, j);
                (self.model.limit, self.model.lease, self.model.pinned) = (limit, lease, true);
            }
            Act::Leave(i) => {
                if i < self.model.line.len() {
                    let ticket = self.model.line.remove(i).ticket;
                    self.o.depart(ticket, now, j);
                }
            }
            Act::Reload => {
                if self.o.waiting() == 0 && !before.is_empty() && !gone && !settled {
                    self.o = load(&before, &mut FencingCounter::new()).unwrap();
                    self.model.counts = (0, 0, 0);
                }
            }
        }
        self.compare_answers();
        let (o, model) = (&mut self.o, &self.model);
        assert!(!(refused && !settled && j.changed()), "a refusal changed something");
        assert!(j.changed() || snapshot(o) == before, "a change was not recorded");
        let held: Vec<_> = o.holders(now).map(|h| (h.receipt, h.count, h.left_ms)).collect();
        let naive: Vec<_> = model.held.iter().map(|(r, h)| (*r, h.0, ceil_ms(h.1 - now))).collect();
        assert_eq!(held, naive);
        for batch in j.take() {
            apply_batch(&mut self.mirror, &batch.head, &mut std::iter::empty(), &mut FencingCounter::new())
                .unwrap();
        }
        assert_eq!(snapshot(o), snapshot(&self.mirror));
        assert_eq!(snapshot(o), snapshot(&o.duplicate()));
        let gone = model.held.is_empty() && !model.pinned;
        assert_eq!(o.lifetime(now) == Lifetime::Gone, gone);
        assert_eq!(o.info(now).is_none(), gone);
        if let Some(info) = o.info(now) {
            assert_eq!((info.held, info.waiting), (model.used(), model.line.len() as i64));
            assert_eq!((info.granted, info.refused, info.timed_out), model.counts);
            let mut fencing = FencingCounter::new();
            assert_eq!(snapshot(&load::<Semaphore>(&snapshot(o), &mut fencing).unwrap()), snapshot(o));
            assert_eq!(fencing.last(), model.last, "also when its lease is over");
        } else {
            assert_eq!(o.waiting(), 0, "nobody waits on what is gone");
            (self.o, self.mirror, self.model) = (Semaphore::blank(), Semaphore::blank(), Model::new());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 250, ..Default::default() })]

    #[test]
    fn says_what_the_naive_model_says(acts in prop::collection::vec(any_act(), 1..50)) {
        let mut bench = Bench::new();
        for act in acts {
            bench.play(act);
        }
    }

    /// Refused until the told instant, granted at it, if nobody else comes.
    #[test]
    fn a_told_wait_is_exact(held in prop::collection::vec((1..3i64, 1..9000i64), 1..8), count in 1..4i64) {
        let (mut o, mut j) = (Semaphore::blank(), journal(Family::Semaphore, false));
        o.set(4, 1000, T0, &mut j);
        for (count, ms) in held {
            o.acquire(Ask { limit: None, count, lease_ms: Some(ms), owner: b"" }, T0, &mut j).unwrap();
        }
        let ask = Ask { limit: None, count, lease_ms: None, owner: b"" };
        let told = o.acquire(ask, T0, &mut j).unwrap();
        if told.granted == 0 {
            prop_assert!(told.retry > 0);
            prop_assert_eq!(o.peek(None, count, T0 + (told.retry - 1) * MS).unwrap().granted, 0);
            prop_assert_eq!(o.peek(None, count, T0 + told.retry * MS).unwrap().granted, count);
            prop_assert_eq!(o.acquire(ask, T0 + told.retry * MS, &mut j).unwrap().granted, count);
        }
    }

    /// Bytes that nobody vouches for: an error or a sound object, never a panic.
    #[test]
    fn damaged_bytes_do_no_harm(acts in prop::collection::vec(any_act(), 1..12), damage in any_damage()) {
        let mut bench = Bench::new();
        bench.play(Act::Set(3, 5000));
        for act in acts {
            bench.play(act);
        }
        for mut o in damage.accepted::<Semaphore>(snapshot(&bench.o)) {
            let (now, mut j) = (bench.now, journal(Family::Semaphore, false));
            let _ = (o.info(now), o.lifetime(now), o.next_event(), o.peek(None, 1, now), snapshot(&o));
            let ask = Ask { limit: Some(2), count: 1, lease_ms: None, owner: b"" };
            let _ = o.acquire_or_wait(ask, 10, 1, now, &mut j);
            o.apply_due(MAX_INSTANT, usize::MAX, &mut j);
            o.set(1, 1, now, &mut j);
        }
    }
}

#[test]
fn thousands_wait_in_order() {
    let (mut o, mut j) = (Semaphore::blank(), journal(Family::Semaphore, false));
    o.set(10, 1000, T0, &mut j);
    let ask = Ask { limit: None, count: 1, lease_ms: None, owner: b"" };
    for ticket in 0..10_010 {
        let told = o.acquire_or_wait(ask, 31_622_400_000, ticket, T0, &mut j).unwrap();
        assert_eq!(told.is_some(), ticket < 10);
    }
    // 10 of them every second. A newcomer is told when 64 of those ahead have theirs: after 7 s.
    assert_eq!(o.peek(None, 1, T0).unwrap().retry, 7_000);
    for round in 1..=1_000 {
        let now = T0 + round * 1_000_000;
        assert_eq!(o.next_event(), Some(now));
        assert!(o.apply_due(now, usize::MAX, &mut j));
        let told: Vec<Ticket> = o.answers(usize::MAX).into_iter().map(|(ticket, _)| ticket).collect();
        let first = round.unsigned_abs() * 10;
        assert_eq!(told, (first..first + 10).collect::<Vec<_>>());
        // With fewer ahead it is exact.
        if o.waiting() == 50 {
            assert_eq!(o.peek(None, 1, now).unwrap().retry, 6_000);
        }
    }
    assert_eq!(o.waiting(), 0);
}

#[test]
fn a_small_budget_is_kept_and_a_late_sweep_goes_in_order() {
    let (mut o, mut j) = (Semaphore::blank(), journal(Family::Semaphore, false));
    o.set(2, 1000, T0, &mut j);
    let ask = |ms| Ask { limit: None, count: 1, lease_ms: Some(ms), owner: b"" };
    o.acquire(ask(1000), T0, &mut j).unwrap();
    o.acquire(ask(3000), T0, &mut j).unwrap();
    assert_eq!(o.acquire_or_wait(ask(9000), 500, 1, T0, &mut j), Ok(None));
    assert_eq!(o.acquire_or_wait(ask(9000), 5000, 2, T0, &mut j), Ok(None));
    assert_eq!(o.acquire_or_wait(ask(9000), 5000, 3, T0, &mut j), Ok(None));
    // The first gave up before a permit came back, however late that is noticed.
    let late = T0 + 4_000_000;
    assert!(!o.apply_due(late, 1, &mut j));
    while !o.apply_due(late, 1, &mut j) {}
    let told = o.answers(usize::MAX).into_iter().map(|(t, a)| match a {
        Answer::Permit(p) => (t, p.granted),
        _ => (t, -1),
    });
    assert_eq!(told.collect::<Vec<_>>(), [(1, 0), (2, 1), (3, 1)]);
}

#[test]
fn orphans_are_decided_anew() {
    let (mut o, mut j) = (Semaphore::blank(), journal(Family::Semaphore, false));
    let ask = Ask { limit: Some(1), count: 1, lease_ms: None, owner: b"" };
    o.acquire(ask, T0, &mut j).unwrap();
    assert_eq!(o.acquire_or_wait(ask, 1000, 5, T0, &mut j), Ok(None));
    assert_eq!(o.orphans(), [(5, None)]);
}
