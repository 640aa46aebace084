//! Random histories of a gate that does little of what is due at a time, as the semaphore's: what
//! it decides is what a copy decides that is settled first.

use super::*;

struct Lagging {
    now: Micros,
    o: Gate,
    follower: Gate,
    receipts: Vec<u64>,
    tickets: Ticket,
    most: usize,
}

fn quiet() -> Journal {
    journal(Family::Gate, false)
}

/// A decision without the number that it drew.
fn bare(pass: Pass) -> (Pass, bool) {
    let drawn = pass.receipt.is_some();
    (Pass { receipt: None, ..pass }, drawn)
}

/// What there is in the end, without the numbers drawn.
fn end(o: &Gate, now: Micros) -> impl PartialEq + std::fmt::Debug + use<> {
    let mut o = o.clone();
    while !o.apply_due(now, usize::MAX, &mut quiet()) {}
    let told = o.answers(usize::MAX).into_iter().map(|(ticket, answer)| match answer {
        Answer::Pass(pass) => (ticket, bare(*pass)),
        _ => panic!("another family's answer"),
    });
    let told: Vec<_> = told.collect();
    let held: Vec<_> = o.permits.iter().map(|(_, l)| l.until).collect();
    let line: Vec<_> = o.line.ahead_of(None).map(|(until, w)| (until, w.cost)).collect();
    (told, held, line, o.info(now))
}

impl Lagging {
    fn new(most: usize) -> Self {
        let (o, follower) = (Gate::blank(), Gate::blank());
        Self { now: T0, o, follower, receipts: Vec::new(), tickets: 0, most }
    }

    fn play(&mut self, act: &Act) {
        let mut j = journal(Family::Gate, true);
        j.allow(self.most);
        if let Act::Step(by) = act {
            // Two stages that cool in turn are tried again and again for as long as somebody waits.
            let by = if self.o.waiting() > 0 { (*by).min(20_000_000) } else { *by };
            self.now = (self.now + by).max(0);
        }
        let now = self.now;
        if !self.o.apply_due(now, self.most, &mut j) {
            self.o.catch_up(now, &mut j);
        }
        let mut settled = self.o.clone();
        while !settled.apply_due(now, usize::MAX, &mut quiet()) {}
        let q = &mut quiet();
        match act {
            Act::Step(_) | Act::Reload => {}
            Act::Set(stages) => {
                let stages: Vec<_> = stages.iter().map(|(n, s)| (n.as_bytes(), s.config())).collect();
                self.o.set(&stages, now, &mut j);
                settled.set(&stages, now, q);
            }
            Act::Pass(cost, maxwait, block) => {
                self.tickets += 1;
                let asked = |o: &mut Gate, j: &mut Journal| match block.filter(|_| o.is_set()) {
                    Some(ms) => o.pass_or_wait(*cost, *maxwait, ms, self.tickets, now, j),
                    None => Some(o.pass(*cost, *maxwait, now, j)),
                };
                let (got, want) = (asked(&mut self.o, &mut j), asked(&mut settled, q));
                self.receipts.extend(got.as_ref().and_then(|p| p.receipt));
                assert_eq!(got.map(bare), want.map(bare));
            }
            Act::Peek(cost, maxwait) => {
                assert_eq!(self.o.peek(*cost, *maxwait, now), settled.peek(*cost, *maxwait, now));
            }
            Act::Leave(which) => {
                let pick = |i: &usize| self.receipts.iter().rev().nth(*i).copied().unwrap_or(7);
                let receipts: Vec<u64> = which.iter().map(pick).collect();
                assert_eq!(self.o.leave(&receipts, now, &mut j), settled.leave(&receipts, now, q));
            }
            Act::Depart(i) => {
                let ticket = self.tickets.saturating_sub(*i as u64);
                self.o.depart(ticket, now, &mut j);
                settled.depart(ticket, now, q);
            }
        }
        assert_eq!(end(&self.o, now), end(&settled, now));
        for (_, answer) in self.o.answers(self.most) {
            if let Answer::Pass(pass) = answer {
                self.receipts.extend(pass.receipt);
            }
        }
        let due = self.o.permits.iter().any(|(_, l)| l.until <= now);
        assert!(!due || self.o.next_event().is_some_and(|at| at <= now), "what is put off is known");
        for batch in j.take() {
            apply_batch(&mut self.follower, &batch.head, &mut std::iter::empty(), &mut FencingCounter::new())
                .unwrap();
        }
        assert_eq!(snapshot(&self.follower), snapshot(&self.o), "the follower is equal");
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

#[test]
fn a_command_takes_away_a_bounded_part_of_what_is_over() {
    let mut o = Gate::blank();
    o.set(&[(b"slots", Config::Permits { limit: 1_000, lease: 1000 })], T0, &mut quiet());
    let receipts: Vec<u64> = (0..1_000).map(|_| o.pass(1, None, T0, &mut quiet()).receipt.unwrap()).collect();
    let now = T0 + 1_000_000;
    let few = || {
        let mut j = quiet();
        j.allow(10);
        j
    };
    let pass = o.pass(1, None, now, &mut few());
    assert_eq!((pass.granted, pass.stages[0].1[1], o.permits.len()), (1, 999, 991));
    assert_eq!(o.leave(&receipts[900..902], now, &mut few()), [0, 0]);
    assert_eq!((o.permits.len(), o.next_event()), (981, Some(now)));
    while !o.apply_due(now, 100, &mut quiet()) {}
    assert_eq!(o.permits.len(), 1);
}
