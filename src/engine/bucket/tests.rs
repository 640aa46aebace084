//! The bucket against a naive model that reckons with fractions and finds waits by trying.

use super::*;
use num_bigint::BigInt;
use num_rational::BigRational;
use proptest::prelude::*;

pub(crate) type Fraction = BigRational;

pub(crate) fn whole(n: impl Into<BigInt>) -> Fraction {
    Fraction::from_integer(n.into())
}

pub(crate) fn fraction(n: impl Into<BigInt>, d: impl Into<BigInt>) -> Fraction {
    Fraction::new(n.into(), d.into())
}

/// The deepest debt in tokens.
pub(crate) fn deepest(per: i64) -> Fraction {
    fraction(DEEPEST, per * 1000)
}

/// What is cut to a reply.
pub(crate) fn cut(n: BigInt) -> i64 {
    let end = if n < BigInt::from(0) { i64::MIN } else { i64::MAX };
    i64::try_from(n).unwrap_or(end)
}

/// The smallest k in 0 … hi with `yes(k)`, which stays true once it is.
pub(crate) fn smallest(mut hi: BigInt, yes: impl Fn(&BigInt) -> bool) -> BigInt {
    let mut lo = BigInt::from(0);
    while lo < hi {
        let middle: BigInt = (&lo + &hi) / 2;
        if yes(&middle) {
            hi = middle;
        } else {
            lo = middle + 1;
        }
    }
    lo
}

/// Instants in µs, levels in tokens.
#[derive(Debug, Clone)]
pub(crate) struct Naive {
    pub cap: i64,
    pub tok: i64,
    pub per: i64,
    pub warm: i64,
    pub level: Fraction,
    pub t: i64,
    pub u: Option<i64>,
    pub virgin: bool,
}

impl Naive {
    pub fn new((cap, tok, per): (i64, i64, i64), warm: i64) -> Self {
        Self { cap, tok, per, warm, level: whole(cap), t: 0, u: None, virgin: true }
    }

    pub fn limits(&self) -> (i64, i64, i64) {
        (self.cap, self.tok, self.per)
    }

    /// Tokens a µs.
    pub fn rate(&self) -> Fraction {
        fraction(self.tok, self.per * 1000)
    }

    fn total(&self, x: BigInt) -> Fraction {
        let (r, s, w) = (self.rate(), whole(x), whole(self.warm * 1000));
        if s <= whole(0) {
            r * s
        } else if s <= w {
            r * (&s / whole(3) + &s * &s / (whole(3) * w))
        } else {
            r * (fraction(2, 3) * &w + (s - w))
        }
    }

    pub fn gain(&self, a: &BigInt, b: &BigInt) -> Fraction {
        match self.u.filter(|_| self.warm > 0) {
            None => self.rate() * whole(b - a),
            Some(u) => self.total(b - u) - self.total(a - u),
        }
    }

    pub fn gained(&self, a: i64, b: i64) -> Fraction {
        self.gain(&a.into(), &b.into())
    }

    pub fn raw(&self, now: i64) -> Fraction {
        let full = whole(self.cap);
        if self.virgin || self.level >= full {
            return full;
        }
        if now >= self.t {
            return full.min(&self.level + self.gained(self.t, now));
        }
        (&self.level - self.gained(now, self.t)).max(self.level.clone().min(whole(0)))
    }

    pub fn full(&self, now: i64) -> bool {
        self.raw(now) >= whole(self.cap)
    }

    pub fn cold(&self, now: i64) -> bool {
        let a = now - self.warm * 1000;
        self.warm > 0
            && (self.virgin || a >= self.t && &self.level + self.gained(self.t, a) >= whole(self.cap))
    }

    pub fn ahead(&self, now: i64) -> bool {
        !self.virgin
            && now < self.t
            && self.level < whole(self.cap)
            && &self.level - self.gained(now, self.t) < self.level.clone().min(whole(0))
    }

    pub fn bring(&mut self, now: i64) {
        if self.cold(now) {
            (self.level, self.u) = (whole((self.cap + 2) / 3), Some(now));
        } else {
            self.level = self.raw(now);
            self.u = self.u.filter(|u| now - u < self.warm * 1000);
        }
        (self.t, self.virgin) = (now, false);
    }

    pub fn at(&self, now: i64) -> Self {
        let mut copy = self.clone();
        copy.bring(now);
        copy
    }

    /// After bring: the smallest whole number of `step` µs until the level is `target`.
    pub fn steps_until(&self, target: &Fraction, step: i64) -> BigInt {
        let need = target - &self.level;
        if need <= whole(0) {
            return 0.into();
        }
        let hi = (whole(3) * &need / self.rate() / whole(step)).ceil().to_integer();
        smallest(hi, |k| self.gain(&self.t.into(), &(self.t + k * step)) >= need)
    }

    pub fn until(&self, target: &Fraction) -> i64 {
        cut(self.steps_until(target, 1000))
    }

    pub fn remaining(&self) -> i64 {
        cut(self.level.floor().to_integer()).max(0)
    }

    pub fn six(&self, granted: i64, retry: i64) -> [i64; 6] {
        let full = whole(self.cap);
        let next = if self.level >= full { 0 } else { self.until(&whole(self.remaining() + 1)) };
        [granted, self.cap, self.remaining(), retry, next, self.until(&full)]
    }

    fn full_instant(&self, now: i64) -> i64 {
        if self.level >= whole(self.cap) || now < self.t {
            return self.t;
        }
        let full = |k: &BigInt| &self.level + self.gain(&self.t.into(), &(self.t + k)) >= whole(self.cap);
        self.t + cut(smallest((now - self.t).into(), full))
    }

    pub fn changed(&self, now: i64, limits: (i64, i64, i64), warm: i64, policy: Policy) -> Self {
        let mut n = Self::new(limits, warm);
        if policy == Policy::Full {
            (n.virgin, n.t) = (false, now);
        } else if self.full(now) {
            if !self.virgin {
                (n.virgin, n.t) = (false, self.full_instant(now));
            }
        } else {
            let level = self.carried(self.raw(now), &n, policy).min(whole(n.cap));
            (n.level, n.t, n.virgin) = (level, now, false);
            n.u = self.u.filter(|u| warm > 0 && now - u < warm.min(self.warm) * 1000);
        }
        n
    }

    /// A level as the policy carries it over, on the grain of the new limits, within the bounds of
    /// a debt.
    pub fn carried(&self, level: Fraction, new: &Self, policy: Policy) -> Fraction {
        let scaled = match policy {
            Policy::Scale => level * whole(new.cap) / whole(self.cap),
            Policy::Full => whole(0),
            _ => level,
        };
        let grain = whole(1000) * whole(new.per);
        let cut = ((scaled * &grain).floor() / grain).clamp(-deepest(new.per), deepest(new.per));
        if policy == Policy::Add && new.cap > self.cap { cut + whole(new.cap - self.cap) } else { cut }
    }
}

/// The exact level of a bucket in tokens.
pub(crate) fn tokens(b: &Bucket) -> Fraction {
    let units = whole(b.level().units) + fraction(b.level().part, b.parts());
    units / whole(b.limits().unit())
}

pub(crate) fn any_limits() -> impl Strategy<Value = (i64, i64, i64)> {
    prop_oneof![
        5 => prop::sample::select(vec![(1, 1, 1000), (5, 5, 5000), (10, 1, 1000), (10, 7, 30_000), (3, 2, 7000), (7, 7, 13)]),
        1 => prop::sample::select(vec![
            (MAX_COUNT, MAX_COUNT, MAX_DURATION_MS), (1, 1, MAX_DURATION_MS), (MAX_COUNT, 1, MAX_DURATION_MS),
            (MAX_COUNT, 1, 1), (1, MAX_COUNT, 1), (MAX_COUNT, MAX_COUNT, 1), (1, MAX_COUNT, MAX_DURATION_MS),
        ]),
        3 => (1..50i64, 1..20i64, 1..20_000i64),
        1 => (1..=MAX_COUNT, 1..=MAX_COUNT, 1..=MAX_DURATION_MS),
    ]
}

pub(crate) fn any_warmup() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => Just(0i64),
        3 => prop::sample::select(vec![1, 2, 1000, 3333, 20_000]),
        1 => 1..=MAX_DURATION_MS,
        1 => Just(MAX_DURATION_MS),
    ]
}

pub(crate) fn any_cost() -> impl Strategy<Value = i64> {
    prop_oneof![8 => 1..12i64, 2 => 12..60i64, 1 => 1..=MAX_COUNT, 1 => Just(MAX_COUNT)]
}

/// A step of the clock in µs; rarely back.
pub(crate) fn any_step() -> impl Strategy<Value = i64> {
    prop_oneof![
        6 => prop::sample::select(vec![0i64, 1, 999, 1000, 10_000, 499_000, 1_000_000, 1_000_001, 7_000_000, 60_000_000]),
        3 => 0..3_000_000i64,
        1 => 0..=MAX_DURATION_MS * MS,
        1 => -5_000_000..0i64,
        1 => prop::sample::select(vec![-1i64, -1000, -1_000_000, -100_000_000]),
    ]
}

#[derive(Debug, Clone)]
enum Act {
    Step(i64),
    Bring,
    Charge(i64),
    Bounded(i64),
    Put(i64),
    Empty,
    Change((i64, i64, i64), i64, Policy),
}

pub(crate) fn any_policy() -> impl Strategy<Value = Policy> {
    prop::sample::select(vec![Policy::Keep, Policy::Add, Policy::Scale, Policy::Full])
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => any_step().prop_map(Act::Step),
        2 => Just(Act::Bring),
        4 => any_cost().prop_map(Act::Charge),
        1 => any_cost().prop_map(Act::Bounded),
        2 => any_cost().prop_map(Act::Put),
        1 => Just(Act::Empty),
        2 => (any_limits(), any_warmup(), any_policy()).prop_map(|(l, w, p)| Act::Change(l, w, p)),
    ]
}

fn limits((c, t, p): (i64, i64, i64)) -> Limits {
    Limits::new(c, t, p).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 250, ..Default::default() })]

    #[test]
    fn reckons_like_fractions(first in any_limits(), warm in any_warmup(), acts in prop::collection::vec(any_act(), 1..25)) {
        let mut now = 1_900_000_000_000_000i64;
        let (mut b, mut n) = (Bucket::new(limits(first), warm), Naive::new(first, warm));
        for act in acts {
            match act {
                Act::Step(by) => now = (now + by).max(0),
                Act::Bring => { b.bring(now); n.bring(now) }
                Act::Charge(c) => {
                    b.bring(now); n.bring(now);
                    b.charge(c);
                    n.level = (&n.level - whole(c)).max(-deepest(n.per));
                }
                Act::Bounded(c) => {
                    b.bring(now); n.bring(now);
                    let charge = whole(c).min((&n.level + whole(n.cap)).max(whole(0)));
                    prop_assert_eq!(b.charge_bounded(c), cut(charge.floor().to_integer()));
                    n.level -= charge;
                }
                Act::Put(c) => {
                    b.bring(now); n.bring(now);
                    let back = whole(c).min(whole(n.cap) - &n.level);
                    prop_assert_eq!(b.put(c), cut(back.floor().to_integer()));
                    n.level += back;
                }
                Act::Empty => { b.bring(now); n.bring(now); b.empty(); n.level = n.level.min(whole(0)) }
                Act::Change(l, w, p) => {
                    b = b.changed(now, limits(l), w, p);
                    n = n.changed(now, l, w, p);
                }
            }
            prop_assert_eq!(tokens(&b), n.level.clone());
            prop_assert_eq!(b.ramp(), n.u);
            prop_assert_eq!((b.is_full(now), b.is_cold(now), b.is_ahead(now)), (n.full(now), n.cold(now), n.ahead(now)));
            let (seen, naive) = (b.brought(now), n.at(now));
            prop_assert_eq!(tokens(&seen), naive.level.clone());
            prop_assert_eq!(seen.six(0, 0), naive.six(0, 0));
            prop_assert_eq!(seen.debt(), cut((-&naive.level).ceil().to_integer()).max(0));
            for target in [-n.cap, 0, 1, n.cap] {
                prop_assert_eq!(seen.until(target), naive.until(&whole(target)));
                let units = Level::whole(seen.limits().units(target));
                prop_assert_eq!(BigInt::from(seen.reach(units)), naive.steps_until(&whole(target), 1));
            }
            let again = Bucket::restore(b.limits(), b.warmup_ms(), b.level(), b.at(), b.ramp());
            prop_assert_eq!(again, Ok(b));
        }
    }

    #[test]
    fn narrow_is_the_same(
        l in any_limits(),
        debt in prop_oneof![4 => -3i64..3, 1 => any::<i64>()],
        at in 0..5_000_000i64,
        step in any_step(),
        cost in any_cost(),
    ) {
        let l = limits(l);
        let Ok(full) = i64::try_from(l.full()) else { return Ok(()) };
        // A few tokens around the capacity, or any depth.
        let level = full.saturating_sub(debt.saturating_mul(l.unit() as i64)).min(full);
        let Some(mut narrow) = narrow::Narrow::brought(l, level, at, at + step) else {
            prop_assert!(step < 0 || l.full() > 1 << 61 || level < -(1 << 61));
            return Ok(());
        };
        let mut wide = Bucket::plain(l, i128::from(level), at).brought(at + step);
        prop_assert_eq!(i128::from(narrow.level()), wide.level().units);
        prop_assert_eq!(narrow.is_full(), wide.is_full(at + step));
        prop_assert_eq!(i128::from(narrow.full_in()), wide.reach(Level::whole(l.full())));
        let retry = if cost > l.capacity() { -1 } else { wide.until(cost) };
        prop_assert_eq!(narrow.take(cost), if wide.has(cost) { Ok(()) } else { Err(retry) });
        if wide.has(cost) {
            wide.charge(cost);
        }
        prop_assert_eq!(narrow.six(1, 2), wide.six(1, 2));
    }

    #[test]
    fn packing_loses_nothing((c, t, p) in any_limits()) {
        let l = limits((c, t, p));
        prop_assert_eq!(Limits::unpack(l.pack()), Some(l));
        prop_assert_eq!((l.capacity(), l.tokens(), l.period_ms()), (c, t, p));
    }
}

#[test]
fn limits_have_bounds() {
    assert_eq!(Limits::new(0, 1, 1), None);
    assert_eq!(Limits::new(1, MAX_COUNT + 1, 1), None);
    assert_eq!(Limits::new(1, 1, MAX_DURATION_MS + 1), None);
    assert!(Limits::new(MAX_COUNT, MAX_COUNT, MAX_DURATION_MS).is_some());
    assert_eq!(Limits::unpack([0, 0]), None);
}

#[test]
fn a_debt_ends_somewhere() {
    // LEVEL SCALE up, KEEP down, again and again, multiplies a debt without bound; it must stop at
    // the deepest.
    let (small, large) = (limits((1, 1, 1)), limits((MAX_COUNT, MAX_COUNT, MAX_DURATION_MS)));
    let mut b = Bucket::new(small, 0).brought(5);
    b.charge(2);
    for _ in 0..10 {
        b = b.changed(5, large, 0, Policy::Scale).changed(5, small, MAX_DURATION_MS, Policy::Keep);
        b.charge(MAX_COUNT);
        assert!(b.debt() >= MAX_COUNT && b.level().units >= -DEEPEST);
    }
    assert_eq!((b.debt(), b.reset_after()), (i64::MAX, i64::MAX));
    b = b.changed(5, large, 0, Policy::Scale);
    assert_eq!((b.level().units, b.debt(), b.reset_after()), (-DEEPEST, i64::MAX, i64::MAX));
}

#[test]
fn what_is_restored_is_checked() {
    let l = limits((10, 1, 1000));
    let level = |units| Level::whole(l.units(units));
    assert!(Bucket::restore(l, 0, level(10), EVER, None).is_ok());
    assert!(Bucket::restore(l, 0, level(9), EVER, None).is_err());
    assert!(Bucket::restore(l, 0, level(11), 0, None).is_err());
    assert!(Bucket::restore(l, 0, level(1), -1, None).is_err());
    assert!(Bucket::restore(l, 0, level(1), MAX_INSTANT + 1, None).is_err());
    assert!(Bucket::restore(l, 0, level(1), 0, Some(0)).is_err());
    assert!(Bucket::restore(l, 5, level(1), 0, Some(0)).is_ok());
    assert!(Bucket::restore(l, 0, Level { units: 1, part: 1 }, 0, None).is_err());
    assert!(Bucket::restore(l, 5, Level { units: l.full(), part: 1 }, 0, None).is_err());
    assert!(Bucket::restore(l, MAX_DURATION_MS + 1, level(1), 0, None).is_err());
}
