//! Random histories of a bucket that does little of what is due at a time, as the semaphore's: what
//! it decides is what a copy decides that is settled first.

use super::*;

struct Lagging {
    now: Micros,
    o: TokenBucket,
    follower: TokenBucket,
    ids: Vec<u64>,
    tickets: Ticket,
    most: usize,
}

fn quiet() -> Journal {
    journal(Family::TokenBucket, false)
}

/// What there is in the end, without the numbers drawn. The level is one as of now, as more may
/// have been put back on the way.
fn end(o: &TokenBucket, now: Micros) -> impl PartialEq + std::fmt::Debug + use<> {
    let mut o = o.clone();
    while !o.apply_due(now, usize::MAX, &mut quiet()) {}
    let told: Vec<_> = o.answers(usize::MAX).into_iter().map(|(t, a)| (t, six_of(a))).collect();
    let holds: Vec<Hold> = o.holds().into_iter().flat_map(|h| h.iter()).map(|(_, hold)| hold).collect();
    let level = o.bucket().map(|b| b.brought(now));
    (told, holds, level, o.waiting(), o.info(now), o.lifetime(now))
}

impl Lagging {
    fn new(most: usize) -> Self {
        let (o, follower) = (TokenBucket::blank(), TokenBucket::blank());
        Self { now: T0, o, follower, ids: Vec::new(), tickets: 0, most }
    }

    fn play(&mut self, act: &Act) {
        let mut j = journal(Family::TokenBucket, true);
        j.allow(self.most);
        if let Act::Step(by) = act {
            self.now = (self.now + by).max(0);
        }
        let now = self.now;
        let j = &mut j;
        if !self.o.apply_due(now, self.most, j) {
            self.o.catch_up(now, j);
        }
        let mut settled = self.o.clone();
        while !settled.apply_due(now, usize::MAX, &mut quiet()) {}
        let (o, s, q) = (&mut self.o, &mut settled, &mut quiet());
        match act.clone() {
            Act::Step(_) | Act::Reload => {}
            Act::Take(l, c, m) => {
                assert_eq!(o.take(lim(l), c, m, now, j), s.take(lim(l), c, m, now, q));
            }
            Act::Book(l, c, ms) => {
                self.tickets += 1;
                let got = o.take_or_book(lim(l), c, ms, self.tickets, now, j);
                assert_eq!(got, s.take_or_book(lim(l), c, ms, self.tickets, now, q));
            }
            Act::Peek(l, c) => assert_eq!(o.peek(lim(l), c, now), s.peek(lim(l), c, now)),
            Act::Refund(n) => assert_eq!(o.refund(n, now, j), s.refund(n, now, q)),
            Act::Set(l, w, p) => {
                o.set(lim(Some(l)).unwrap(), w, p, now, j);
                s.set(lim(Some(l)).unwrap(), w, p, now, q);
            }
            Act::Reset => {
                o.reset(now, j);
                s.reset(now, q);
            }
            Act::Drain(l) => assert_eq!(o.drain(lim(l), now, j), s.drain(lim(l), now, q)),
            Act::Ban(ms) => {
                o.ban_for(ms, now, j);
                s.ban_for(ms, now, q);
            }
            Act::Hold(l, c, ttl, refund) => {
                let got = o.hold(lim(l), c, ttl, refund, now, j);
                let want = s.hold(lim(l), c, ttl, refund, now, q);
                self.ids.extend(got.ok().and_then(|(_, id)| id));
                assert_eq!(
                    got.map(|(six, id)| (six, id.is_some())),
                    want.map(|(six, id)| (six, id.is_some()))
                );
            }
            Act::Settle(back, actual) => {
                let id = self.ids.iter().rev().nth(back).copied().unwrap_or(0);
                assert_eq!(o.settle_hold(id, actual, now, j), s.settle_hold(id, actual, now, q));
            }
            Act::Leave(i) => {
                let ticket = self.tickets.saturating_sub(i as u64);
                o.depart(ticket, now, j);
                s.depart(ticket, now, q);
            }
        }
        assert_eq!(end(&self.o, now), end(&settled, now));
        self.o.answers(self.most);
        let over = self.o.holds().is_some_and(|h| h.first_over(now).is_some());
        assert!(!over || self.o.next_event().is_some_and(|at| at <= now), "what is put off is known");
        for batch in j.take() {
            apply_batch(&mut self.follower, &batch.head, &mut std::iter::empty(), &mut FencingCounter::new())
                .unwrap();
        }
        assert_eq!(snapshot(&self.follower), snapshot(&self.o), "the follower is equal");
        // A restart, or another master, in the middle: it goes on with what is stored.
        if self.o.waiting() == 0 && !snapshot(&self.o).is_empty() {
            let mut again = load::<TokenBucket>(&snapshot(&self.o), &mut FencingCounter::new()).unwrap();
            while !again.apply_due(now, usize::MAX, &mut quiet()) {}
            let mut there = self.o.clone();
            while !there.apply_due(now, usize::MAX, &mut quiet()) {}
            let level = |o: &TokenBucket| o.bucket().map(|b| b.brought(now));
            assert_eq!((level(&again), again.lifetime(now)), (level(&there), there.lifetime(now)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..Default::default() })]

    #[test]
    fn what_is_put_off_changes_no_decision(acts in prop::collection::vec(any_act(), 1..80), most in 1..3usize) {
        let mut lagging = Lagging::new(most);
        for act in &acts {
            lagging.play(act);
        }
    }

    /// Small limits and many holds.
    #[test]
    fn holds_that_are_put_off_come_back_once(
        warm in prop_oneof![Just(0i64), Just(5000i64)],
        acts in prop::collection::vec(prop_oneof![
            6 => (1..4i64, 1..6i64, any::<bool>()).prop_map(|(c, t, r)| Act::Hold(None, c, 500 * t, r)),
            4 => (0..2_000i64).prop_map(|ms| Act::Step(ms * 1000)),
            1 => Just(Act::Step(-700_000)),
            2 => (1..6i64).prop_map(|c| Act::Take(None, c, Mode::Force)),
            1 => (1..6i64).prop_map(|c| Act::Book(None, c, 1_000_000)),
            1 => (0..6usize).prop_map(Act::Leave),
            2 => (0..6usize, 0..6i64).prop_map(|(i, a)| Act::Settle(i, a)),
            1 => (any_limits(), any_policy()).prop_map(|(l, p)| Act::Set(l, 0, p)),
        ], 1..80),
        most in 1..3usize,
    ) {
        let mut lagging = Lagging::new(most);
        lagging.play(&Act::Set((20, 1, 1000), warm, Policy::Keep));
        for act in &acts {
            lagging.play(act);
        }
    }
}

#[test]
fn a_command_closes_a_bounded_part_of_what_is_over() {
    let (mut o, mut j) = (TokenBucket::blank(), quiet());
    o.set(lim(Some((1_000, 1, 31_622_400_000))).unwrap(), 0, Policy::Keep, T0, &mut j);
    for _ in 0..1_000 {
        o.hold(None, 1, 1000, true, T0, &mut j).unwrap();
    }
    let now = T0 + 1000 * MS;
    let mut few = quiet();
    few.allow(10);
    // All that comes back is there at once.
    assert_eq!(o.take(None, 1_000, Mode::Whole, now, &mut few).unwrap()[..3], [1_000, 1_000, 0]);
    assert_eq!(o.holds().unwrap().len(), 990);
    assert_eq!((o.info(now).unwrap().holds, o.next_event()), (0, Some(now)));
    // None of it comes back again.
    while !o.apply_due(now, 100, &mut quiet()) {}
    assert_eq!((o.peek(None, 1, now).unwrap()[2], o.info(now).unwrap().remaining), (0, 0));
}
