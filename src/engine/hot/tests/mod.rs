//! The rule and its subjects against a naive model; every history is also folded through its
//! carried effects.

mod lagging;

use super::subjects::ms;
use super::*;
use crate::engine::bucket::tests::{Naive as Bucket, any_cost, any_limits, any_step, whole};
use crate::engine::family::Family;
use crate::engine::fencing::FencingCounter;
use crate::engine::object::{Lifetime, Object, apply_batch};
use crate::engine::tests::folding::{any_damage, load, snapshot};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const T0: Micros = 1_900_000_000_000_000;

type Three = (i64, i64, i64);
type Name = &'static [u8];

/// A bucket per subject, kept in plain maps.
#[derive(Default)]
struct Model {
    rule: Option<Three>,
    max: i64,
    subjects: BTreeMap<Name, Bucket>,
    except: BTreeMap<Name, Three>,
    forgotten: i64,
}

impl Model {
    fn limits(&self, s: Name) -> Option<Three> {
        self.rule.map(|rule| self.except.get(s).copied().unwrap_or(rule))
    }

    fn room(&mut self, most: i64, now: Micros) {
        self.subjects.retain(|_, b| !b.full(now));
        while self.subjects.len() as i64 > most {
            // Nearest to full: by the ms of the clock at which it is full, then by name.
            let full_ms = |b: &Bucket| {
                let b = b.at(now);
                (b.steps_until(&whole(b.cap), 1) + now + 999i64) / 1000i64
            };
            let first = self.subjects.iter().min_by_key(|(s, b)| (full_ms(b), **s)).map(|(s, _)| *s).unwrap();
            self.subjects.remove(first);
            self.forgotten += 1;
        }
    }

    fn set(&mut self, rule: Three, max: i64, now: Micros) {
        (self.rule, self.max) = (Some(rule), max);
        self.subjects.retain(|_, b| !b.full(now));
        for (s, b) in &mut self.subjects {
            if !self.except.contains_key(s) && b.limits() != rule {
                *b = b.changed(now, rule, 0, Policy::Keep);
            }
        }
        self.room(max, now);
    }

    fn except(&mut self, s: Name, limits: Option<Three>, now: Micros) {
        match limits {
            Some(limits) => self.except.insert(s, limits),
            None => self.except.remove(s),
        };
        let limits = self.limits(s).unwrap();
        if let Some(b) = self.subjects.get_mut(s).filter(|b| b.limits() != limits) {
            *b = b.changed(now, limits, 0, Policy::Keep);
        }
    }

    fn take(&mut self, s: Name, cost: i64, at_most: bool, peek: bool, now: Micros) -> Option<[i64; 6]> {
        let limits = self.limits(s)?;
        let stored = self.subjects.get(s).filter(|b| !b.full(now)).cloned();
        let mut b = stored.clone().unwrap_or(Bucket::new(limits, 0)).at(now);
        let enough = b.level >= whole(cost);
        let mut retry = if enough {
            0
        } else if cost > b.cap {
            -1
        } else {
            b.until(&whole(cost))
        };
        let granted = if enough {
            cost
        } else if at_most {
            b.remaining()
        } else {
            0
        };
        b.level -= whole(granted);
        if granted > 0 && granted < cost && cost <= b.cap {
            retry = b.until(&whole(cost));
        }
        if !peek && granted > 0 {
            if stored.is_none() {
                self.subjects.remove(s);
                self.room(self.max - 1, now);
            }
            self.subjects.insert(s, b.clone());
        } else if !peek && stored.is_some_and(|b| b.ahead(now)) {
            self.subjects.insert(s, b.clone());
        }
        Some(b.six(granted, retry))
    }
}

#[derive(Debug, Clone)]
enum Act {
    Step(i64),
    Set(Three, i64),
    Except(Name, Option<Three>),
    Take(Name, i64, bool),
    Peek(Name, i64),
    Reload,
}

fn any_name() -> impl Strategy<Value = Name> {
    prop::sample::select(vec![
        &b"u1"[..],
        b"u2",
        b"u3",
        b"u4",
        b"u5",
        b"a rather long name",
        b"\xff\x00",
        b"u\x00\x00",
    ])
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => any_step().prop_map(Act::Step),
        1 => (any_limits(), prop::sample::select(vec![1i64, 3, 4, 10])).prop_map(|(l, m)| Act::Set(l, m)),
        2 => (any_name(), prop::option::of(any_limits())).prop_map(|(s, l)| Act::Except(s, l)),
        10 => (any_name(), any_cost(), any::<bool>()).prop_map(|(s, c, a)| Act::Take(s, c, a)),
        2 => (any_name(), any_cost()).prop_map(|(s, c)| Act::Peek(s, c)),
        1 => Just(Act::Reload),
    ]
}

fn lim((c, t, p): Three) -> Limits {
    Limits::new(c, t, p).unwrap()
}

struct Bench {
    now: Micros,
    o: Hot,
    mirror: Hot,
    model: Model,
}

impl Bench {
    fn new() -> Self {
        Self { now: T0, o: Hot::blank(), mirror: Hot::blank(), model: Model::default() }
    }

    fn play(&mut self, act: Act) {
        let (o, model, j) = (&mut self.o, &mut self.model, &mut Journal::new(Family::Hot, true));
        let before = snapshot(o);
        if let Act::Step(by) = act {
            self.now = (self.now + by).max(0);
        }
        let now = self.now;
        // The timer drops what has long been full: then nobody but a clock that steps far back
        // could tell.
        assert!(o.apply_due(now, usize::MAX, j));
        model.subjects.retain(|_, b| !b.full(now - LINGER));
        match act {
            Act::Step(_) => {}
            Act::Set(rule, max) => {
                o.set(lim(rule), max, now, j);
                model.set(rule, max, now);
            }
            Act::Except(s, limits) => {
                let had = model.except.contains_key(s);
                let reply = match limits {
                    Some(limits) => o.except(s, lim(limits), now, j).map(|()| 0),
                    None => o.except_no_more(s, now, j),
                };
                let naive = model.rule.map(|_| i64::from(had && limits.is_none())).ok_or(NoRule);
                assert_eq!(reply, naive);
                if model.rule.is_some() && (had || limits.is_some()) {
                    model.except(s, limits, now);
                }
            }
            Act::Take(s, cost, at_most) => {
                let reply = o.take(s, cost, at_most, now, j);
                assert_eq!(reply.ok(), model.take(s, cost, at_most, false, now));
            }
            Act::Peek(s, cost) => {
                assert_eq!(o.peek(s, cost, now).ok(), model.take(s, cost, false, true, now))
            }
            Act::Reload => {
                if o.is_set() && !j.changed() {
                    *o = load(&before, &mut FencingCounter::new()).unwrap();
                }
            }
        }
        assert!(j.changed() || snapshot(o) == before, "a change was not recorded");
        for batch in j.take() {
            apply_batch(&mut self.mirror, &batch.head, &mut std::iter::empty(), &mut FencingCounter::new())
                .unwrap();
        }
        assert_eq!(snapshot(o), snapshot(&self.mirror));
        assert_eq!(snapshot(o), snapshot(&o.duplicate()));
        assert_eq!(o.lifetime(now) == Lifetime::Gone, model.rule.is_none());
        if let Some(info) = o.info(now) {
            assert_eq!(
                snapshot(o),
                snapshot(&load::<Hot>(&snapshot(o), &mut FencingCounter::new()).unwrap())
            );
            let live = model.subjects.values().filter(|b| !b.full(now)).count();
            assert_eq!(
                (info.subjects, info.exceptions, info.forgotten),
                (live as i64, model.except.len() as i64, model.forgotten)
            );
            assert!(info.subjects <= info.maxsubjects);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 250, ..Default::default() })]

    #[test]
    fn says_what_the_naive_model_says(acts in prop::collection::vec(any_act(), 1..50)) {
        let mut bench = Bench::new();
        bench.play(Act::Take(b"u1", 1, false));
        bench.play(Act::Set((10, 1, 1000), 4));
        for act in acts {
            bench.play(act);
        }
    }

    /// Bytes that nobody vouches for: an error or a sound object, never a panic.
    #[test]
    fn damaged_bytes_do_no_harm(acts in prop::collection::vec(any_act(), 1..12), damage in any_damage()) {
        let mut bench = Bench::new();
        bench.play(Act::Set((10, 1, 1000), 4));
        for act in acts {
            bench.play(act);
        }
        for mut o in damage.accepted::<Hot>(snapshot(&bench.o)) {
            let (now, j) = (bench.now, &mut Journal::new(Family::Hot, false));
            let _ = (o.info(now), o.lifetime(now), o.next_event(), o.peek(b"u1", 1, now), snapshot(&o));
            let _ = (o.take(b"new", 1, true, now, j), o.except(b"u1", lim((1, 1, 1)), now, j));
            o.apply_due(crate::engine::time::MAX_INSTANT, usize::MAX, j);
            o.set(lim((1_000_000_000_000, 1, 31_622_400_000)), 1, now, j);
            let _ = o.except_no_more(b"u1", now, j);
        }
    }

    /// The table, the heap and the names against a sorted map.
    #[test]
    fn subjects_are_found_and_ordered(acts in prop::collection::vec((0..400u32, any::<bool>(), 0..1_000_000_000i64, 0..4usize), 1..600)) {
        let rate = 7;
        let (mut subjects, mut naive) = (Subjects::default(), BTreeMap::new());
        for (id, put, missing, pad) in acts {
            let name = format!("{id}{}", "x".repeat(pad)).into_bytes();
            // Some are full only after many days: those lie apart.
            let missing = i128::from(missing) * if id % 5 == 0 { 1 << 45 } else { 1 } + 1;
            match subjects.find(&name) {
                Some(slot) if !put => {
                    subjects.remove(slot);
                    naive.remove(&name);
                }
                _ => {
                    let slot = subjects.find_or_add(&name);
                    subjects.put(slot, Deficit { missing, at: T0 }, rate);
                    naive.insert(name, missing);
                }
            }
        }
        prop_assert_eq!(subjects.len(), naive.len());
        for (name, missing) in &naive {
            let slot = subjects.find(name).unwrap();
            prop_assert_eq!(subjects.name(slot), &name[..]);
            prop_assert_eq!(subjects.deficit(slot, rate), Some(Deficit { missing: *missing, at: T0 }));
        }
        let mut order = BTreeSet::new();
        for (name, missing) in naive {
            let full_at = i128::from(T0) + (missing - 1) / i128::from(rate) + 1;
            order.insert((ms(full_at), name));
        }
        while let Some((_, name)) = order.pop_first() {
            let slot = subjects.first().unwrap();
            prop_assert_eq!(subjects.name(slot), &name[..]);
            subjects.remove(slot);
        }
        prop_assert_eq!(subjects.first(), None);
    }
}

#[test]
fn a_subject_costs_tens_of_bytes() {
    let (mut o, j) = (Hot::blank(), &mut Journal::new(Family::Hot, false));
    o.set(lim((100, 1, 1000)), DEFAULT_MAX, T0, j);
    let (n, mut names) = (200_000usize, 0);
    for i in 0..n {
        let subject = format!("user:{i}");
        names += subject.len();
        o.take(subject.as_bytes(), 1 + (i % 90) as i64, false, T0, j).unwrap();
    }
    let top = o.top.memory();
    let each = (o.memory() - top - names) as f64 / n as f64;
    assert!(each < 48.0, "{each}");
    // Full again, and long enough so: nothing is left.
    assert!(!o.apply_due(T0 + 100_000 * MS + LINGER, 1_000, j));
    while !o.apply_due(T0 + 100_000 * MS + LINGER, 1_000, j) {}
    assert_eq!(o.subjects.len(), 0);
    assert!(o.memory() - top < 10_000, "{}", o.memory());
}

#[test]
fn the_one_nearest_to_full_makes_room() {
    let (mut o, j) = (Hot::blank(), &mut Journal::new(Family::Hot, false));
    o.set(lim((10, 1, 1000)), 2, T0, j);
    o.take(b"a", 9, false, T0, j).unwrap();
    o.take(b"b", 2, false, T0, j).unwrap();
    o.take(b"c", 11, false, T0, j).unwrap();
    assert_eq!(o.info(T0).unwrap().forgotten, 0);
    o.take(b"c", 5, false, T0, j).unwrap();
    assert_eq!(o.info(T0).unwrap().forgotten, 1);
    assert_eq!(o.peek(b"a", 1, T0), Ok([1, 10, 0, 0, 1000, 10_000]));
    assert_eq!(o.peek(b"b", 1, T0), Ok([1, 10, 9, 0, 1000, 1000]));
    // c is full again: d needs nobody's place.
    o.take(b"d", 1, false, T0 + 5000 * MS, j).unwrap();
    assert_eq!(o.info(T0 + 5000 * MS).unwrap().forgotten, 1);
}

#[test]
fn the_hottest_are_told_recent_first() {
    let (mut o, j) = (Hot::blank(), &mut Journal::new(Family::Hot, false));
    o.set(lim((1, 1, 1)), DEFAULT_MAX, T0, j);
    // A thousand others, each once, around three that ask often.
    for i in 0..1000 {
        o.take(format!("{i}").as_bytes(), 1, false, T0, j).unwrap();
        for (hot, every) in [(&b"x"[..], 1), (b"y", 2), (b"z", 4)] {
            if i % every == 0 {
                o.take(hot, 2, false, T0, j).unwrap();
            }
        }
    }
    let error = (1000 + 1000 + 500 + 250) / TRACKED as i64 + 1;
    let told: Vec<_> =
        o.top(3, T0).unwrap().into_iter().map(|h| (h.subject.to_vec(), h.granted, h.refused)).collect();
    for ((name, granted, refused), (expected, calls)) in
        told.iter().zip([(b"x", 1000), (b"y", 500), (b"z", 250)])
    {
        assert_eq!((&name[..], *granted), (&expected[..], 0));
        assert!((calls - error..=calls).contains(refused), "{refused}");
    }
    // Two half-lives later a few new calls count more.
    let later = T0 + 2 * HALF_LIFE;
    for _ in 0..300 {
        o.take(b"new", 1, false, later, j).unwrap();
    }
    let told: Vec<_> =
        o.top(2, later).unwrap().into_iter().map(|h| (h.subject, h.granted + h.refused)).collect();
    assert_eq!(told, [(&b"new"[..], 300), (b"x", 250)]);
    assert_eq!(o.top(10, later + 64 * HALF_LIFE).unwrap(), []);
    assert_eq!(Hot::blank().top(1, T0), Err(NoRule));
}
