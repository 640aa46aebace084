//! The token bucket against a naive twin over random histories; every history is also folded through its carried effects.

use super::*;
use crate::engine::bucket::tests::*;
use crate::engine::codec::{Corrupt, FORMAT};
use crate::engine::fencing::Fencing;
use crate::engine::object::{Family, Lifetime, Object, apply_batch};
use crate::engine::time::{MS, ceil_ms};
use proptest::prelude::*;
use std::collections::BTreeMap;

const T0: Micros = 1_900_000_000_000_000;

struct Waiter {
    ticket: Ticket,
    cost: i64,
    own: Fraction,
    cap: i64,
    not_before: Micros,
}

/// Everything by definition: levels are fractions, every waiter has its own, due holds are looked for one by one.
#[derive(Default)]
struct Twin {
    b: Option<Naive>,
    pinned: bool,
    ban: Micros,
    holds: BTreeMap<u64, (i64, Micros, bool)>,
    waiters: Vec<Waiter>,
    counts: (i64, i64),
    answers: Vec<(Ticket, [i64; 6])>,
}

type Three = (i64, i64, i64);

impl Twin {
    fn forgets(&self, now: Micros) -> bool {
        self.b.as_ref().is_none_or(|b| !self.pinned && self.holds.is_empty() && b.full(now))
    }

    fn gone(&self, now: Micros) -> bool {
        self.forgets(now) && self.ban <= now && self.waiters.is_empty()
    }

    fn bring(&mut self, now: Micros) -> &mut Naive {
        let b = self.b.as_mut().unwrap();
        if now >= b.t {
            for w in &mut self.waiters {
                w.own += b.gained(b.t, now);
            }
        }
        b.bring(now);
        b
    }

    fn put(&mut self, n: i64) -> i64 {
        let b = self.b.as_mut().unwrap();
        let back = whole(n).min(whole(b.cap) - &b.level);
        b.level += &back;
        for w in &mut self.waiters {
            w.own += whole(n);
        }
        cut(back.floor().to_integer())
    }

    fn due(&mut self, now: Micros) {
        let mut due: Vec<_> = self.holds.iter().filter(|(_, h)| h.1 <= now).map(|(i, h)| (h.1, *i)).collect();
        due.sort_unstable();
        for (end, id) in due {
            let (cost, _, refund) = self.holds.remove(&id).unwrap();
            if refund && !self.b.as_ref().unwrap().full(end) {
                self.bring(end);
                self.put(cost);
            }
        }
    }

    fn settle(&mut self, now: Micros) {
        self.due(now);
        if !self.waiters.is_empty() && self.b.as_ref().unwrap().ahead(now) {
            self.bring(now);
        }
        while let Some(w) = self.waiters.first() {
            let b = self.b.as_ref().unwrap();
            let own = if now >= b.t { &w.own + b.gained(b.t, now) } else { w.own.clone() };
            if own < whole(0) || w.not_before > now {
                break;
            }
            self.answers.push((w.ticket, b.at(now).six(w.cost, 0)));
            self.waiters.remove(0);
        }
    }

    fn open(&self, limits: Option<Three>, now: Micros) -> Option<Naive> {
        if !self.forgets(now) {
            let b = self.b.clone().unwrap();
            return Some(match limits {
                Some(l) if !self.pinned && l != b.limits() => b.changed(now, l, 0, Policy::Keep),
                _ => b,
            });
        }
        limits.map(|l| Naive::new(l, 0))
    }

    fn decide(&self, b: &Naive, cost: i64, mode: Mode, now: Micros) -> (i64, i64) {
        let banned = ceil_ms(self.ban - now);
        let (need, most) = if mode == Mode::Force { (cost - b.cap, 2 * b.cap) } else { (cost, b.cap) };
        if banned > 0 {
            return (0, if cost > most { -1 } else { banned.max(b.until(&whole(need))) });
        }
        if b.level >= whole(need) {
            return (cost, 0);
        }
        let retry = if cost > most { -1 } else { b.until(&whole(need)) };
        (if mode == Mode::AtMost { b.remaining() } else { 0 }, retry)
    }

    fn take(
        &mut self,
        l: Option<Three>,
        cost: i64,
        mode: Mode,
        block: Option<(i64, Ticket)>,
        now: Micros,
    ) -> Option<Option<[i64; 6]>> {
        let b = self.open(l, now)?;
        let cold = b.cold(now);
        let mut b = b.at(now);
        let (granted, mut retry) = self.decide(&b, cost, mode, now);
        let books = block.is_some_and(|(ms, _)| granted == 0 && 0 < retry && retry <= ms);
        if self.pinned {
            if granted > 0 || books { self.counts.0 += 1 } else { self.counts.1 += 1 }
        }
        if granted > 0 || books {
            if self.b.is_some() {
                self.bring(now);
            }
            b.level = (b.level - whole(if books { cost } else { granted })).max(-deepest(b.per));
            self.b = Some(b.clone());
            if let Some((_, ticket)) = block.filter(|_| books) {
                let not_before = if self.ban > now { self.ban } else { 0 };
                self.waiters.push(Waiter { ticket, cost, own: b.level, cap: b.cap, not_before });
                return Some(None);
            }
            if granted < cost {
                retry = if cost > b.cap { -1 } else { b.until(&whole(cost)) };
            }
        } else if let Some(own) = &self.b {
            if own.ahead(now) || self.pinned && cold && retry != -1 && self.ban <= now {
                self.bring(now);
            }
        }
        Some(Some(b.six(granted, retry)))
    }

    fn refund(&mut self, n: i64, now: Micros) -> [i64; 6] {
        if self.forgets(now) {
            return [0; 6];
        }
        if self.b.as_ref().unwrap().full(now) {
            return self.b.as_ref().unwrap().at(now).six(0, 0);
        }
        self.bring(now);
        let back = self.put(n);
        self.b.as_ref().unwrap().six(back, 0)
    }

    fn set(&mut self, l: Three, warm: i64, policy: Policy, now: Micros) {
        if self.forgets(now) {
            let mut b = Naive::new(l, warm);
            if policy == Policy::Full {
                (b.virgin, b.t) = (false, now);
            }
            self.b = Some(b);
        } else {
            let b = self.b.clone().unwrap();
            if !(policy == Policy::Keep && b.limits() == l && b.warm == warm) {
                if !b.full(now) {
                    self.bring(now);
                } else if now >= b.t {
                    // What is booked under a ban gains, too.
                    self.waiters.iter_mut().for_each(|w| w.own += b.gained(b.t, now));
                }
                let old = self.b.clone().unwrap();
                let new = old.changed(now, l, warm, policy);
                for w in &mut self.waiters {
                    w.own = old.carried(w.own.clone(), &new, policy);
                }
                self.b = Some(new);
            }
        }
        self.pinned = true;
    }

    fn reset(&mut self, now: Micros) {
        let waiters = std::mem::take(&mut self.waiters);
        if self.pinned {
            let b = self.b.as_mut().unwrap();
            *b = Naive::new(b.limits(), b.warm);
            (b.virgin, b.t) = (false, now);
            (self.ban, self.holds) = (0, BTreeMap::new());
            let seen = self.b.as_ref().unwrap().at(now);
            self.answers.extend(waiters.iter().map(|w| (w.ticket, seen.six(w.cost, 0))));
        } else {
            let answers = std::mem::take(&mut self.answers);
            *self = Self { answers, ..Self::default() };
            self.answers.extend(waiters.iter().map(|w| (w.ticket, [w.cost, w.cap, w.cap, 0, 0, 0])));
        }
    }

    fn drain(&mut self, l: Option<Three>, now: Micros) -> Option<[i64; 6]> {
        let mut b = self.open(l, now)?.at(now);
        let out = b.remaining();
        if self.b.is_some() {
            self.bring(now);
        }
        b.level = b.level.min(whole(0));
        self.b = Some(b.clone());
        Some(b.six(out, 0))
    }

    fn ban(&mut self, ms: i64, now: Micros) {
        self.ban = if ms > 0 { now + ms * MS } else { 0 };
        for w in &mut self.waiters {
            w.not_before = w.not_before.min(self.ban.max(now));
        }
    }

    fn settle_hold(&mut self, id: u64, actual: i64, now: Micros) -> Option<[i64; 6]> {
        let (cost, ..) = self.holds.remove(&id)?;
        let b = self.b.clone().unwrap();
        if actual < cost {
            if b.full(now) {
                return Some(b.at(now).six(0, 0));
            }
            self.bring(now);
            let back = self.put(cost - actual);
            return Some(self.b.as_ref().unwrap().six(back, 0));
        }
        if actual == cost {
            return Some(b.at(now).six(0, 0));
        }
        let b = self.bring(now);
        let charge = whole(actual - cost).min((&b.level + whole(b.cap)).max(whole(0)));
        b.level -= &charge;
        Some(b.six(cut(charge.floor().to_integer()), 0))
    }

    fn leave(&mut self, ticket: Ticket, now: Micros) {
        let Some(i) = self.waiters.iter().position(|w| w.ticket == ticket) else { return };
        let w = self.waiters.remove(i);
        for later in &mut self.waiters[i..] {
            later.own += whole(w.cost);
        }
        if !self.b.as_ref().unwrap().full(now) {
            self.bring(now);
            let b = self.b.as_mut().unwrap();
            b.level = (&b.level + whole(w.cost)).min(whole(b.cap));
        }
    }

    fn info(&self, now: Micros) -> Option<Info> {
        if self.gone(now) {
            return None;
        }
        let common = Info {
            banned_for: ceil_ms(self.ban - now),
            holds: self.holds.len() as i64,
            granted: self.counts.0,
            refused: self.counts.1,
            ..Info::default()
        };
        if self.forgets(now) {
            return Some(common);
        }
        let b = self.b.as_ref().unwrap().at(now);
        let [_, _, remaining, _, next_after, reset_after] = b.six(0, 0);
        let debt = cut((-&b.level).ceil().to_integer()).max(0);
        Some(Info {
            capacity: b.cap,
            tokens: b.tok,
            period: b.per,
            warmup: b.warm,
            pinned: i64::from(self.pinned),
            remaining,
            debt,
            next_after,
            reset_after,
            ..common
        })
    }
}

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

fn snapshot(o: &TokenBucket) -> Vec<u8> {
    let mut j = Journal::new(Family::TokenBucket, true);
    o.snapshot(&mut j, &mut |_| {});
    j.take().into_iter().flat_map(|b| b.head).collect()
}

fn load(bytes: &[u8], fencing: &mut Fencing) -> Result<TokenBucket, Corrupt> {
    let mut o = TokenBucket::blank();
    apply_batch(&mut o, bytes, &mut std::iter::empty(), fencing)?;
    o.check()?;
    Ok(o)
}

/// Both sides, and a third that is only told of effects.
struct Bench {
    now: Micros,
    o: TokenBucket,
    mirror: TokenBucket,
    twin: Twin,
    fencing: Fencing,
    ids: Vec<u64>,
    tickets: Ticket,
}

impl Bench {
    fn new() -> Self {
        Self {
            now: T0,
            o: TokenBucket::blank(),
            mirror: TokenBucket::blank(),
            twin: Twin::default(),
            fencing: Fencing::new(),
            ids: Vec::new(),
            tickets: 0,
        }
    }

    fn play(&mut self, act: Act) {
        let mut j = Journal::new(Family::TokenBucket, true);
        let before = snapshot(&self.o);
        let (o, twin, j) = (&mut self.o, &mut self.twin, &mut j);
        if let Act::Step(by) = act {
            self.now = (self.now + by).max(0);
        }
        let now = self.now;
        twin.due(now);
        let seen = (o.peek(lim(Some((5, 5, 5000))), 2, now), twin.open(Some((5, 5, 5000)), now));
        let naive = seen.1.map(|b| b.at(now)).map(|mut b| {
            let (granted, retry) = twin.decide(&b, 2, Mode::Whole, now);
            b.level -= whole(granted);
            b.six(granted, retry)
        });
        assert_eq!(seen.0.ok(), naive, "a reader sees due holds as closed");
        assert_eq!(o.info(now), twin.info(now));
        assert!(o.settle(now, usize::MAX, j));
        twin.settle(now);
        let settled = j.changed();
        let mut refused = false;
        match act {
            Act::Step(_) => {}
            Act::Take(l, c, m) => {
                let reply = o.take(lim(l), c, m, now, j).ok();
                refused = reply.is_none_or(|r| r[0] == 0);
                assert_eq!(reply, twin.take(l, c, m, None, now).flatten());
            }
            Act::Book(l, c, ms) => {
                self.tickets += 1;
                let reply = o.take_or_book(lim(l), c, ms, self.tickets, now, j).ok();
                refused = reply.is_none_or(|r| r.is_some_and(|r| r[0] == 0));
                assert_eq!(reply, twin.take(l, c, Mode::Whole, Some((ms, self.tickets)), now));
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
            Act::Refund(n) => assert_eq!(o.refund(n, now, j), twin.refund(n, now)),
            Act::Set(l, w, p) => {
                o.set(lim(Some(l)).unwrap(), w, p, now, j);
                twin.set(l, w, p, now);
            }
            Act::Reset => {
                o.reset(now, j);
                twin.reset(now);
            }
            Act::Drain(l) => assert_eq!(o.drain(lim(l), now, j).ok(), twin.drain(l, now)),
            Act::Ban(ms) => {
                o.ban_for(ms, now, j);
                twin.ban(ms, now);
            }
            Act::Hold(l, c, ttl, refund) => {
                let reply = o.hold(lim(l), c, ttl, refund, now, &mut self.fencing, j).ok();
                assert_eq!(reply.map(|r| r.0), twin.take(l, c, Mode::Whole, None, now).flatten());
                if let Some((reply, Some(id))) = reply {
                    assert!(reply[0] > 0);
                    twin.holds.insert(id, (c, now + ttl * MS, refund));
                    self.ids.push(id);
                }
            }
            Act::Settle(back, actual) => {
                let id = self.ids.iter().rev().nth(back).copied().unwrap_or(0);
                assert_eq!(o.settle_hold(id, actual, now, j).ok(), twin.settle_hold(id, actual, now));
            }
            Act::Leave(i) => {
                if let Some(ticket) = twin.waiters.get(i).map(|w| w.ticket) {
                    o.depart(ticket, now, j);
                    twin.leave(ticket, now);
                }
            }
            Act::Reload => {
                if o.waiting() == 0 && !before.is_empty() {
                    *o = load(&before, &mut Fencing::new()).unwrap();
                    twin.counts = (0, 0);
                }
            }
        }
        twin.settle(now);
        if refused && !settled && !o.pinned() {
            let ahead = twin.b.as_ref().is_some_and(|b| b.t == now);
            assert!(!j.changed() || ahead, "a refusal changed something");
        }
        let told: Vec<_> = o.answers().into_iter().map(|(t, a)| (t, six_of(a))).collect();
        assert_eq!(told, std::mem::take(&mut twin.answers));
        assert_eq!(o.waiting(), twin.waiters.len());
        assert_eq!(o.bucket().map(|b| tokens(&b)), twin.b.as_ref().map(|b| b.level.clone()));
        assert_eq!(o.lifetime(now) == Lifetime::Gone, twin.gone(now));
        assert_eq!(o.info(now), twin.info(now));
        for batch in j.take() {
            apply_batch(&mut self.mirror, &batch.head, &mut std::iter::empty(), &mut Fencing::new()).unwrap();
        }
        assert_eq!(snapshot(o), snapshot(&self.mirror));
        assert_eq!(snapshot(o), snapshot(&o.duplicate()));
        assert_eq!(j.changed(), j.changed() || snapshot(o) != before, "a change was not recorded");
        if twin.gone(now) {
            (self.o, self.mirror, self.twin) = (TokenBucket::blank(), TokenBucket::blank(), Twin::default());
            return;
        }
        if !snapshot(o).is_empty() {
            let mut fencing = Fencing::new();
            let again = load(&snapshot(o), &mut fencing).unwrap();
            assert_eq!(snapshot(&again), snapshot(o));
            assert_eq!(fencing.last(), twin.holds.keys().max().copied().unwrap_or(0));
        }
        // The told next event is the truth: nothing happens just before, something does at it.
        if let Some(at) = o.next_event() {
            assert!(at > now, "something due is left");
            assert!(!twin.holds.is_empty() || !twin.waiters.is_empty());
            let quiet = (o.waiting(), o.holds().map_or(0, |h| h.len()));
            let mut copy = Journal::new(Family::TokenBucket, false);
            let stored = o.bucket().is_none_or(|b| b.at() <= now);
            if stored && at < i64::MAX && quiet.0 == 0 {
                let mut later = o.duplicate();
                assert!(later.settle(at - 1, usize::MAX, &mut copy) && !copy.changed());
                assert!(later.settle(at, usize::MAX, &mut copy) && copy.changed());
            }
        } else {
            assert!(twin.holds.is_empty() && twin.waiters.is_empty());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 250, ..Default::default() })]

    #[test]
    fn says_what_the_naive_twin_says(acts in prop::collection::vec(any_act(), 1..40)) {
        let mut bench = Bench::new();
        for act in acts {
            bench.play(act);
        }
    }

    /// Small limits and few kinds of acts: long lines, that are served and left.
    #[test]
    fn long_lines_are_served_like_the_twins(
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
    fn damaged_bytes_do_no_harm(acts in prop::collection::vec(any_act(), 1..12), flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), cut in any::<prop::sample::Index>()) {
        let mut bench = Bench::new();
        for act in acts {
            bench.play(act);
        }
        let mut bytes = snapshot(&bench.o);
        if bytes.is_empty() {
            bytes = vec![FORMAT, Family::TokenBucket as u8, 7];
        }
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let shorter = bytes[..cut.index(bytes.len() + 1)].to_vec();
        for bytes in [bytes, shorter] {
            if let Ok(mut o) = load(&bytes, &mut Fencing::new()) {
                let mut j = Journal::new(Family::TokenBucket, false);
                let now = bench.now;
                let _ = (o.info(now), o.lifetime(now), o.next_event(), o.peek(None, 1, now), snapshot(&o));
                let _ = o.take(lim(Some((5, 5, 5000))), 2, Mode::Force, now, &mut j);
                o.settle(crate::engine::time::MAX_INSTANT, usize::MAX, &mut j);
                o.set(lim(Some((crate::engine::bucket::MAX_COUNT, 1, 1))).unwrap(), 77, Policy::Scale, now, &mut j);
                let _ = o.refund(5, now, &mut j);
            }
        }
    }
}

#[test]
fn a_plain_bucket_is_small() {
    let mut o = TokenBucket::blank();
    let mut j = Journal::new(Family::TokenBucket, true);
    o.take(lim(Some((1000, 1000, 60_000))), 1, Mode::Whole, T0, &mut j).unwrap();
    assert_eq!(o.memory(), 40);
    o.ban_for(5, T0, &mut j);
    assert!(o.memory() > 40);
    o.ban_for(0, T0, &mut j);
    assert_eq!(o.memory(), 40);
    let ([granted, ..], hold) = o.hold(None, 1, 5, true, T0, &mut Fencing::new(), &mut j).unwrap();
    assert_eq!(granted, 1);
    o.settle_hold(hold.unwrap(), 1, T0, &mut j).unwrap();
    assert_eq!(o.memory(), 40);
}

#[test]
fn ten_thousand_bookings_are_served_in_order() {
    let mut o = TokenBucket::blank();
    let mut j = Journal::new(Family::TokenBucket, false);
    o.set(lim(Some((1, 1000, 1000))).unwrap(), 0, Policy::Keep, T0, &mut j);
    o.take(None, 1, Mode::Whole, T0, &mut j).unwrap();
    for ticket in 1..=10_000 {
        assert_eq!(o.take_or_book(None, 1, 31_622_400_000, ticket, T0, &mut j), Ok(None));
    }
    assert_eq!(o.next_event(), Some(T0 + 1000));
    // Half of them go away; the others move up.
    for ticket in (1..=10_000).step_by(2) {
        o.depart(ticket, T0, &mut j);
    }
    let mut now = T0;
    for ticket in (2..=10_000).step_by(2) {
        now += 1000;
        assert_eq!(o.next_event(), Some(now));
        assert!(o.settle(now, 10, &mut j));
        let [(told, answer)] = o.answers().try_into().unwrap();
        let six = six_of(answer);
        assert_eq!((told, six[0]), (ticket, 1));
    }
    assert_eq!(o.waiting(), 0);
}

#[test]
fn a_small_budget_is_kept() {
    let mut o = TokenBucket::blank();
    let mut j = Journal::new(Family::TokenBucket, false);
    let mut fencing = Fencing::new();
    o.set(lim(Some((100, 1, 1000))).unwrap(), 0, Policy::Keep, T0, &mut j);
    for _ in 0..10 {
        o.hold(None, 5, 1000, true, T0, &mut fencing, &mut j).unwrap();
    }
    assert!(!o.settle(T0 + 1_000_000, 4, &mut j));
    assert_eq!(o.info(T0 + 1_000_000).unwrap().holds, 0);
    assert_eq!(o.next_event(), Some(T0 + 1_000_000));
    assert!(!o.settle(T0 + 1_000_000, 4, &mut j));
    assert!(o.settle(T0 + 1_000_000, 4, &mut j));
    assert_eq!(o.next_event(), None);
}

#[test]
fn orphans_keep_what_they_booked() {
    let mut o = TokenBucket::blank();
    let mut j = Journal::new(Family::TokenBucket, false);
    let l = lim(Some((5, 1, 1000)));
    o.take(l, 5, Mode::Whole, T0, &mut j).unwrap();
    assert_eq!(o.take_or_book(l, 2, 60_000, 1, T0, &mut j), Ok(None));
    assert_eq!(o.take_or_book(l, 3, 60_000, 2, T0, &mut j), Ok(None));
    let told = o.orphans();
    assert_eq!(
        told,
        [(1, Some(Answer::Six([2, 5, 5, 0, 0, 0]))), (2, Some(Answer::Six([3, 5, 5, 0, 0, 0])))]
    );
    assert_eq!(o.waiting(), 0);
}
