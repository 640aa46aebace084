//! The token bucket against a naive model over random histories; every history is also folded
//! through its carried effects.

mod examples;
mod lagging;
mod model;

use super::*;
use crate::engine::bucket::tests::*;
use crate::engine::codec::FORMAT;
use crate::engine::family::Family;
use crate::engine::fencing::FencingCounter;
use crate::engine::object::{Lifetime, Object, apply_batch};
use crate::engine::tests::folding::{any_damage, load, snapshot};
use crate::engine::tests::journal;
use crate::engine::time::{MS, ceil_ms};
use model::{Model, Three};
use proptest::prelude::*;
use std::collections::BTreeMap;

const T0: Micros = 1_900_000_000_000_000;

#[derive(Debug, Clone)]
enum Act {
    Step(i64),
    Take(Option<Three>, i64, Mode),
    Book(Option<Three>, i64, i64),
    Peek(Option<Three>, i64),
    Refund(i64),
    Set(Three, i64, Policy),
    Reset,
    Drain(Option<Three>),
    Ban(i64),
    Hold(Option<Three>, i64, i64, bool),
    Settle(usize, i64),
    Leave(usize),
    Reload,
}

fn inline() -> impl Strategy<Value = Option<Three>> {
    prop::option::weighted(0.7, any_limits())
}

fn any_act() -> impl Strategy<Value = Act> {
    let mode = prop::sample::select(vec![Mode::Whole, Mode::Whole, Mode::AtMost, Mode::Force]);
    let block = prop::sample::select(vec![1i64, 500, 3000, 60_000, 31_622_400_000]);
    let ms = prop::sample::select(vec![1i64, 1000, 2500, 9000, 31_622_400_000]);
    prop_oneof![
        8 => any_step().prop_map(Act::Step),
        8 => (inline(), any_cost(), mode).prop_map(|(l, c, m)| Act::Take(l, c, m)),
        6 => (inline(), any_cost(), block).prop_map(|(l, c, b)| Act::Book(l, c, b)),
        2 => (inline(), any_cost()).prop_map(|(l, c)| Act::Peek(l, c)),
        3 => any_cost().prop_map(Act::Refund),
        3 => (any_limits(), any_warmup(), any_policy()).prop_map(|(l, w, p)| Act::Set(l, w, p)),
        1 => Just(Act::Reset),
        1 => inline().prop_map(Act::Drain),
        2 => prop::sample::select(vec![0i64, 0, 1, 700, 5000, 31_622_400_000]).prop_map(Act::Ban),
        3 => (inline(), any_cost(), ms, any::<bool>()).prop_map(|(l, c, t, r)| Act::Hold(l, c, t, r)),
        3 => (0..4usize, 0..30i64).prop_map(|(i, a)| Act::Settle(i, a)),
        1 => (0..4usize).prop_map(Act::Leave),
        1 => Just(Act::Reload),
    ]
}

fn lim(l: Option<Three>) -> Option<Limits> {
    l.map(|(c, t, p)| Limits::new(c, t, p).unwrap())
}

fn six_of(answer: Answer) -> [i64; 6] {
    let Answer::Six(six) = answer else { panic!("another family's answer") };
    six
}

/// Both sides, and a third that is only told of effects.
struct Bench {
    now: Micros,
    o: TokenBucket,
    mirror: TokenBucket,
    model: Model,
    ids: Vec<u64>,
    tickets: Ticket,
}

impl Bench {
    fn new() -> Self {
        Self {
            now: T0,
            o: TokenBucket::blank(),
            mirror: TokenBucket::blank(),
            model: Model::default(),
            ids: Vec::new(),
            tickets: 0,
        }
    }

    fn play(&mut self, act: Act) {
        let mut j = journal(Family::TokenBucket, true);
        let before = snapshot(&self.o);
        let (o, model, j) = (&mut self.o, &mut self.model, &mut j);
        if let Act::Step(by) = act {
            self.now = (self.now + by).max(0);
        }
        let now = self.now;
        model.due(now);
        let seen = (o.peek(lim(Some((5, 5, 5000))), 2, now), model.open(Some((5, 5, 5000)), now));
        let naive = seen.1.map(|b| b.at(now)).map(|mut b| {
            let (granted, retry) = model.decide(&b, 2, Mode::Whole, now);
            b.level -= whole(granted);
            b.six(granted, retry)
        });
        assert_eq!(seen.0.ok(), naive, "a reader sees due holds as closed");
        assert_eq!(o.info(now), model.info(now));
        assert!(o.apply_due(now, usize::MAX, j));
        model.settle(now);
        let settled = j.changed();
        let mut refused = false;
        match act {
            Act::Step(_) => {}
            Act::Take(l, c, m) => {
                let reply = o.take(lim(l), c, m, now, j).ok();
                refused = reply.is_none_or(|r| r[0] == 0);
                assert_eq!(reply, model.take(l, c, m, None, now).flatten());
            }
            Act::Book(l, c, ms) => {
                self.tickets += 1;
                let reply = o.take_or_book(lim(l), c, ms, self.tickets, now, j).ok();
                refused = reply.is_none_or(|r| r.is_some_and(|r| r[0] == 0));
                assert_eq!(reply, model.take(l, c, Mode::Whole, Some((ms, self.tickets)), now));
            }
            Act::Peek(l, c) => {
                // A peek is the take of a copy; the ban is part of it.
                let reply = o.peek(lim(l), c, now).ok();
                assert_eq!(
                    reply,
                    o.duplicate()
                        .take(lim(l), c, Mode::Whole, now, &mut Journal::new(Family::TokenBucket, false))
                        .ok()
                );
            }
            Act::Refund(n) => assert_eq!(o.refund(n, now, j), model.refund(n, now)),
            Act::Set(l, w, p) => {
                o.set(lim(Some(l)).unwrap(), w, p, now, j);
                model.set(l, w, p, now);
            }
            Act::Reset => {
                o.reset(now, j);
                model.reset(now);
            }
            Act::Drain(l) => assert_eq!(o.drain(lim(l), now, j).ok(), model.drain(l, now)),
            Act::Ban(ms) => {
                o.ban_for(ms, now, j);
                model.ban(ms, now);
            }
            Act::Hold(l, c, ttl, refund) => {
                let reply = o.hold(lim(l), c, ttl, refund, now, j).ok();
                assert_eq!(reply.map(|r| r.0), model.take(l, c, Mode::Whole, None, now).flatten());
                if let Some((reply, Some(id))) = reply {
                    assert!(reply[0] > 0);
                    model.holds.insert(id, (c, now + ttl * MS, refund));
                    self.ids.push(id);
                }
            }
            Act::Settle(back, actual) => {
                let id = self.ids.iter().rev().nth(back).copied().unwrap_or(0);
                assert_eq!(o.settle_hold(id, actual, now, j).ok(), model.settle_hold(id, actual, now));
            }
            Act::Leave(i) => {
                if let Some(ticket) = model.waiters.get(i).map(|w| w.ticket) {
                    o.depart(ticket, now, j);
                    model.leave(ticket, now);
                }
            }
            Act::Reload => {
                if o.waiting() == 0 && !before.is_empty() {
                    *o = load(&before, &mut FencingCounter::new()).unwrap();
                    model.counts = (0, 0);
                }
            }
        }
        model.settle(now);
        if refused && !settled && !o.pinned() {
            let ahead = model.b.as_ref().is_some_and(|b| b.t == now);
            assert!(!j.changed() || ahead, "a refusal changed something");
        }
        let told: Vec<_> = o.answers(usize::MAX).into_iter().map(|(t, a)| (t, six_of(a))).collect();
        assert_eq!(told, std::mem::take(&mut model.answers));
        assert_eq!(o.waiting(), model.waiters.len());
        assert_eq!(o.bucket().map(|b| tokens(&b)), model.b.as_ref().map(|b| b.level.clone()));
        assert_eq!(o.lifetime(now) == Lifetime::Gone, model.gone(now));
        if let (Lifetime::Until { full, .. }, Some(bucket)) = (o.lifetime(now), o.bucket()) {
            assert!(full >= bucket.full_at(now));
            assert!(full == bucket.full_at(now) || o.extras.is_some());
        }
        assert_eq!(o.info(now), model.info(now));
        for batch in j.take() {
            apply_batch(&mut self.mirror, &batch.head, &mut std::iter::empty(), &mut FencingCounter::new())
                .unwrap();
        }
        assert_eq!(snapshot(o), snapshot(&self.mirror));
        assert_eq!(snapshot(o), snapshot(&o.duplicate()));
        assert_eq!(j.changed(), j.changed() || snapshot(o) != before, "a change was not recorded");
        if model.gone(now) {
            (self.o, self.mirror, self.model) =
                (TokenBucket::blank(), TokenBucket::blank(), Model::default());
            return;
        }
        if !snapshot(o).is_empty() {
            let mut fencing = FencingCounter::new();
            let again = load::<TokenBucket>(&snapshot(o), &mut fencing).unwrap();
            assert_eq!(snapshot(&again), snapshot(o));
            assert_eq!(fencing.last(), model.holds.keys().max().copied().unwrap_or(0));
        }
        // The told next event is the truth: nothing happens just before, something does at it.
        if let Some(at) = o.next_event() {
            assert!(at > now, "something due is left");
            assert!(!model.holds.is_empty() || !model.waiters.is_empty());
            let quiet = (o.waiting(), o.holds().map_or(0, |h| h.len()));
            let mut copy = Journal::new(Family::TokenBucket, false);
            let stored = o.bucket().is_none_or(|b| b.at() <= now);
            if stored && at < i64::MAX && quiet.0 == 0 {
                let mut later = o.duplicate();
                assert!(later.apply_due(at - 1, usize::MAX, &mut copy) && !copy.changed());
                assert!(later.apply_due(at, usize::MAX, &mut copy) && copy.changed());
            }
        } else {
            assert!(model.holds.is_empty() && model.waiters.is_empty());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 250, ..Default::default() })]

    #[test]
    fn says_what_the_naive_model_says(acts in prop::collection::vec(any_act(), 1..40)) {
        let mut bench = Bench::new();
        for act in acts {
            bench.play(act);
        }
    }

    /// Small limits and few kinds of acts: long lines, that are served and left.
    #[test]
    fn long_lines_are_served_like_the_models(
        warm in prop_oneof![Just(0i64), Just(5000i64)],
        acts in prop::collection::vec(prop_oneof![
            4 => (1..6i64).prop_map(|c| Act::Book(None, c, 1_000_000)),
            3 => any_step().prop_map(Act::Step),
            1 => (0..6usize).prop_map(Act::Leave),
            1 => (1..4i64).prop_map(Act::Refund),
            1 => (1..4i64).prop_map(|c| Act::Take(None, c, Mode::Force)),
            1 => (any_limits(), any_policy()).prop_map(|(l, p)| Act::Set(l, 0, p)),
        ], 1..60),
    ) {
        let mut bench = Bench::new();
        bench.play(Act::Set((7, 3, 1000), warm, Policy::Keep));
        for act in acts {
            bench.play(act);
        }
    }

    /// Refused until the told instant, granted at it.
    #[test]
    fn a_told_wait_is_exact(l in any_limits(), warm in any_warmup(), takes in prop::collection::vec((any_cost(), any_step()), 1..6), cost in any_cost()) {
        let mut o = TokenBucket::blank();
        let mut j = Journal::new(Family::TokenBucket, false);
        let mut now = T0;
        o.set(lim(Some(l)).unwrap(), warm, Policy::Keep, now, &mut j);
        for (c, step) in takes {
            o.take(None, c, Mode::AtMost, now, &mut j).unwrap();
            now += step.max(0);
        }
        let [granted, _, _, retry, ..] = o.take(None, cost, Mode::Whole, now, &mut j).unwrap();
        if granted == 0 && retry > 0 && retry < 200_000_000_000 {
            prop_assert_eq!(o.duplicate().take(None, cost, Mode::Whole, now + (retry - 1) * MS, &mut j).unwrap()[0], 0);
            prop_assert_eq!(o.take(None, cost, Mode::Whole, now + retry * MS, &mut j).unwrap()[0], cost);
        }
    }

    /// Bytes that nobody vouches for: an error or a sound object, never a panic.
    #[test]
    fn damaged_bytes_do_no_harm(acts in prop::collection::vec(any_act(), 1..12), damage in any_damage()) {
        let mut bench = Bench::new();
        for act in acts {
            bench.play(act);
        }
        let mut bytes = snapshot(&bench.o);
        if bytes.is_empty() {
            bytes = vec![FORMAT, Family::TokenBucket as u8, 7];
        }
        for mut o in damage.accepted::<TokenBucket>(bytes) {
            let mut j = Journal::new(Family::TokenBucket, false);
            let now = bench.now;
            let _ = (o.info(now), o.lifetime(now), o.next_event(), o.peek(None, 1, now), snapshot(&o));
            let _ = o.take(lim(Some((5, 5, 5000))), 2, Mode::Force, now, &mut j);
            o.apply_due(crate::engine::time::MAX_INSTANT, usize::MAX, &mut j);
            o.set(lim(Some((crate::engine::bucket::MAX_COUNT, 1, 1))).unwrap(), 77, Policy::Scale, now, &mut j);
            let _ = o.refund(5, now, &mut j);
        }
    }
}
