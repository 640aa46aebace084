//! The leaky bucket against a naive model that reckons with fractions; every history is also folded
//! through its carried effects.

use super::*;
use crate::engine::bucket::MAX_COUNT;
use crate::engine::bucket::tests::*;
use crate::engine::family::Family;
use crate::engine::fencing::FencingCounter;
use crate::engine::object::{Lifetime, Object, apply_batch};
use crate::engine::tests::folding::{any_damage, load, snapshot};
use proptest::prelude::*;

const T0: Micros = 1_900_000_000_000_000;

type Three = (i64, i64, i64);

#[derive(Clone)]
pub(crate) struct Naive {
    pub limits: Three,
    pub inside: Fraction,
    pub t: Micros,
}

impl Naive {
    pub(crate) fn new(limits: Three) -> Self {
        Self { limits, inside: whole(0), t: 0 }
    }

    pub(crate) fn rate(&self) -> Fraction {
        fraction(self.limits.1, self.limits.2 * 1000)
    }

    pub(crate) fn raw(&self, now: Micros) -> Fraction {
        let passed = self.rate() * whole(now - self.t);
        if now >= self.t {
            (&self.inside - passed).max(whole(0))
        } else if self.inside == whole(0) {
            whole(0)
        } else {
            (&self.inside - passed).min(self.inside.clone().max(whole(self.limits.0)))
        }
    }

    pub(crate) fn ahead(&self, now: Micros) -> bool {
        let grown = &self.inside + self.rate() * whole(self.t - now);
        now < self.t && self.inside > whole(0) && grown > self.inside.clone().max(whole(self.limits.0))
    }

    pub(crate) fn at(&self, now: Micros) -> Self {
        Self { inside: self.raw(now), t: now, ..self.clone() }
    }

    fn ms(&self, inside: &Fraction) -> Fraction {
        inside / self.rate() / whole(1000)
    }

    pub(crate) fn wait(&self) -> i64 {
        cut(self.ms(&self.inside).ceil().to_integer())
    }

    pub(crate) fn free(&self) -> i64 {
        cut((whole(self.limits.0) - &self.inside).floor().to_integer()).max(0)
    }

    pub(crate) fn retry(&self, cost: i64, maxwait: Option<i64>) -> i64 {
        if cost > self.limits.0 {
            return -1;
        }
        let fit = self.ms(&(&self.inside + whole(cost - self.limits.0))).ceil();
        let late = maxwait.map(|m| (self.ms(&self.inside) - whole(m)).ceil());
        cut(fit.max(late.unwrap_or(whole(0))).max(whole(0)).to_integer())
    }

    pub(crate) fn changed(&self, now: Micros, limits: Three) -> Self {
        let grain = whole(limits.2 * 1000);
        Self { limits, inside: (self.raw(now) * &grain).ceil() / grain, t: now }
    }
}

#[derive(Default)]
struct Model {
    b: Option<Naive>,
    pinned: bool,
    waiters: Vec<(Ticket, Place)>,
    counts: (i64, i64),
    answers: Vec<(Ticket, [i64; 6])>,
}

impl Model {
    fn forgets(&self, now: Micros) -> bool {
        self.b.as_ref().is_none_or(|b| !self.pinned && b.raw(now) == whole(0))
    }

    fn gone(&self, now: Micros) -> bool {
        self.forgets(now) && self.waiters.is_empty()
    }

    fn open(&self, limits: Option<Three>, now: Micros) -> Option<Naive> {
        if self.forgets(now) {
            return limits.map(Naive::new);
        }
        let b = self.b.clone().unwrap();
        Some(match limits {
            Some(l) if !self.pinned && l != b.limits => b.changed(now, l),
            _ => b,
        })
    }

    fn take(
        &mut self,
        l: Option<Three>,
        cost: i64,
        maxwait: Option<i64>,
        now: Micros,
        ticket: Option<Ticket>,
        peek: bool,
    ) -> Option<Option<[i64; 6]>> {
        let mut b = self.open(l, now)?.at(now);
        let (retry, wait, cap) = (b.retry(cost, maxwait), b.wait(), b.limits.0);
        if self.pinned && !peek {
            if retry == 0 { self.counts.0 += 1 } else { self.counts.1 += 1 }
        }
        if retry == 0 {
            b.inside += whole(cost);
            if !peek {
                self.b = Some(b.clone());
                if let Some(ticket) = ticket.filter(|_| wait > 0) {
                    let until = wait.saturating_mul(MS).saturating_add(now).min(MAX_INSTANT);
                    self.waiters.push((ticket, Place { cost, capacity: cap, until }));
                    return Some(None);
                }
            }
        } else if !peek && self.b.as_ref().is_some_and(|b| b.ahead(now)) {
            self.b = self.b.as_ref().map(|b| b.at(now));
        }
        Some(Some([if retry == 0 { cost } else { 0 }, cap, b.free(), retry, wait, b.wait()]))
    }

    fn apply_due(&mut self, now: Micros) {
        let mut due: Vec<_> = self.waiters.iter().filter(|(_, p)| p.until <= now).copied().collect();
        due.sort_by_key(|(ticket, p)| (p.until, *ticket));
        self.waiters.retain(|(_, p)| p.until > now);
        for (ticket, p) in due {
            let b = self.b.as_ref().unwrap().at(now);
            self.answers.push((ticket, [p.cost, b.limits.0, b.free(), 0, 0, b.wait()]));
        }
    }

    fn info(&self, now: Micros) -> Option<Info> {
        let b = self.b.as_ref().filter(|_| !self.gone(now))?.at(now);
        Some(Info {
            capacity: b.limits.0,
            tokens: b.limits.1,
            period: b.limits.2,
            pinned: i64::from(self.pinned),
            inside: cut(b.inside.ceil().to_integer()),
            free: b.free(),
            wait: b.wait(),
            drained_after: b.wait(),
            waiting: self.waiters.len() as i64,
            granted: self.counts.0,
            refused: self.counts.1,
        })
    }
}

#[derive(Debug, Clone)]
enum Act {
    Step(i64),
    Take(Option<Three>, i64, Option<i64>, bool),
    Peek(Option<Three>, i64, Option<i64>),
    Refund(i64),
    Set(Three),
    Reset,
    Leave(usize),
}

fn any_act() -> impl Strategy<Value = Act> {
    let inline = || prop::option::weighted(0.7, any_limits());
    let maxwait =
        || prop::option::of(prop::sample::select(vec![0i64, 1, 500, 1000, 4000, 30_000, 31_622_400_000]));
    prop_oneof![
        8 => any_step().prop_map(Act::Step),
        12 => (inline(), any_cost(), maxwait(), any::<bool>()).prop_map(|(l, c, m, b)| Act::Take(l, c, m, b)),
        2 => (inline(), any_cost(), maxwait()).prop_map(|(l, c, m)| Act::Peek(l, c, m)),
        3 => any_cost().prop_map(Act::Refund),
        2 => any_limits().prop_map(Act::Set),
        1 => Just(Act::Reset),
        1 => (0..4usize).prop_map(Act::Leave),
    ]
}

fn lim(l: Option<Three>) -> Option<Limits> {
    l.map(|(c, t, p)| Limits::new(c, t, p).unwrap())
}

fn six_of(answer: Answer) -> [i64; 6] {
    let Answer::Six(six) = answer else { panic!("another family's answer") };
    six
}

struct Bench {
    now: Micros,
    o: LeakyBucket,
    mirror: LeakyBucket,
    model: Model,
    tickets: Ticket,
}

impl Bench {
    fn new() -> Self {
        let (o, mirror) = (LeakyBucket::blank(), LeakyBucket::blank());
        Self { now: T0, o, mirror, model: Model::default(), tickets: 0 }
    }

    fn play(&mut self, act: Act) {
        let (o, model, mut j) = (&mut self.o, &mut self.model, Journal::new(Family::LeakyBucket, true));
        let before = snapshot(o);
        if let Act::Step(by) = act {
            self.now = (self.now + by).max(0);
        }
        let (now, j) = (self.now, &mut j);
        assert!(o.apply_due(now, usize::MAX, j));
        model.apply_due(now);
        match act {
            Act::Step(_) => {}
            Act::Take(l, c, m, block) => {
                self.tickets += 1;
                let reply = if block {
                    o.take_or_wait(lim(l), c, m, self.tickets, now, j).ok()
                } else {
                    o.take(lim(l), c, m, now, j).ok().map(Some)
                };
                let cut = model.b.as_ref().is_some_and(|b| b.ahead(now));
                assert_eq!(reply, model.take(l, c, m, now, Some(self.tickets).filter(|_| block), false));
                let refused = reply.is_none_or(|r| r.is_some_and(|r| r[0] == 0));
                assert!(!(refused && !cut && j.changed()), "a refusal changed something");
            }
            Act::Peek(l, c, m) => {
                assert_eq!(o.peek(lim(l), c, m, now).ok().map(Some), model.take(l, c, m, now, None, true));
            }
            Act::Refund(n) => {
                let naive = if model.forgets(now) {
                    [0; 6]
                } else {
                    let mut b = model.b.as_ref().unwrap().at(now);
                    let back = whole(n).min(b.inside.clone());
                    b.inside -= &back;
                    if model.b.as_ref().unwrap().raw(now) != whole(0) {
                        model.b = Some(b.clone());
                    }
                    [cut(back.floor().to_integer()), b.limits.0, b.free(), 0, b.wait(), b.wait()]
                };
                assert_eq!(o.refund(n, now, j), naive);
            }
            Act::Set(l) => {
                o.set(lim(Some(l)).unwrap(), now, j);
                model.b = Some(match &model.b {
                    None => Naive::new(l),
                    Some(b) if b.limits == l => b.clone(),
                    Some(b) => b.changed(now, l),
                });
                model.pinned = true;
            }
            Act::Reset => {
                o.reset(now, j);
                let waiters = std::mem::take(&mut model.waiters);
                if let Some(b) = model.b.as_mut().filter(|_| model.pinned) {
                    *b = Naive { t: now, ..Naive::new(b.limits) };
                    let c = b.limits.0;
                    model.answers.extend(waiters.iter().map(|(t, p)| (*t, [p.cost, c, c, 0, 0, 0])));
                } else {
                    let mut answers = std::mem::take(&mut model.answers);
                    answers
                        .extend(waiters.iter().map(|(t, p)| (*t, [p.cost, p.capacity, p.capacity, 0, 0, 0])));
                    *model = Model { answers, ..Model::default() };
                }
            }
            Act::Leave(i) => {
                if let Some((ticket, place)) = model.waiters.get(i).copied() {
                    o.depart(ticket, now, j);
                    model.waiters.remove(i);
                    let b = model.b.as_ref().unwrap().at(now);
                    model.b = Some(Naive { inside: (&b.inside - whole(place.cost)).max(whole(0)), ..b });
                }
            }
        }
        let told: Vec<_> = o.answers(usize::MAX).into_iter().map(|(t, a)| (t, six_of(a))).collect();
        assert_eq!(told, std::mem::take(&mut model.answers));
        assert_eq!(o.info(now), model.info(now));
        assert_eq!(o.next_event(), model.waiters.iter().map(|(_, p)| p.until).min());
        assert_eq!(o.lifetime(now) == Lifetime::Gone, model.gone(now));
        for batch in j.take() {
            apply_batch(&mut self.mirror, &batch.head, &mut std::iter::empty(), &mut FencingCounter::new())
                .unwrap();
        }
        assert_eq!(snapshot(o), snapshot(&self.mirror));
        assert_eq!(snapshot(o), snapshot(&o.duplicate()));
        assert!(j.changed() || snapshot(o) == before, "a change was not recorded");
        if model.gone(now) {
            (self.o, self.mirror, self.model) =
                (LeakyBucket::blank(), LeakyBucket::blank(), Model::default());
            return;
        }
        let bucket = o.bucket().unwrap();
        let inside = whole(bucket.inside()) / whole(bucket.limits().unit());
        assert_eq!(inside, model.b.as_ref().unwrap().inside.clone());
        assert_eq!(
            snapshot(&load::<LeakyBucket>(&snapshot(o), &mut FencingCounter::new()).unwrap()),
            snapshot(o)
        );
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

    /// Refused until the told instant, admitted at it.
    #[test]
    fn a_told_wait_is_exact(l in any_limits(), takes in prop::collection::vec((any_cost(), any_step()), 1..6), cost in any_cost(), maxwait in prop::option::of(0..5000i64)) {
        let mut o = LeakyBucket::blank();
        let mut j = Journal::new(Family::LeakyBucket, false);
        let mut now = T0;
        o.set(lim(Some(l)).unwrap(), now, &mut j);
        for (c, step) in takes {
            o.take(None, c, None, now, &mut j).unwrap();
            now += step.max(0);
        }
        let [granted, _, _, retry, ..] = o.take(None, cost, maxwait, now, &mut j).unwrap();
        if granted == 0 && retry > 0 && retry < 200_000_000_000 {
            prop_assert_eq!(o.duplicate().take(None, cost, maxwait, now + (retry - 1) * MS, &mut j).unwrap()[0], 0);
            prop_assert_eq!(o.take(None, cost, maxwait, now + retry * MS, &mut j).unwrap()[0], cost);
        }
    }

    /// Bytes that nobody vouches for: an error or a sound object, never a panic.
    #[test]
    fn damaged_bytes_do_no_harm(acts in prop::collection::vec(any_act(), 1..8), damage in any_damage()) {
        let mut bench = Bench::new();
        bench.play(Act::Set((10, 7, 30_000)));
        for act in acts {
            bench.play(act);
        }
        for mut o in damage.accepted::<LeakyBucket>(snapshot(&bench.o)) {
            let (now, mut j) = (bench.now, Journal::new(Family::LeakyBucket, false));
            let _ = (o.info(now), o.lifetime(now), o.next_event(), o.peek(None, 1, None, now), snapshot(&o));
            let _ = o.take(lim(Some((5, 5, 5000))), 2, Some(0), now, &mut j);
            o.set(lim(Some((MAX_COUNT, 1, 31_622_400_000))).unwrap(), now, &mut j);
            let _ = (o.take(None, MAX_COUNT, None, now, &mut j), o.refund(5, now, &mut j));
        }
    }
}

#[test]
fn callers_at_once_wait_evenly_spaced() {
    let mut o = LeakyBucket::blank();
    let mut j = Journal::new(Family::LeakyBucket, false);
    o.set(lim(Some((200, 500, 1000))).unwrap(), T0, &mut j);
    for n in 0..200 {
        assert_eq!(o.take(None, 1, None, T0, &mut j), Ok([1, 200, 199 - n, 0, 2 * n, 2 * n + 2]));
    }
    assert_eq!(o.take(None, 1, None, T0, &mut j), Ok([0, 200, 0, 2, 400, 400]));
    assert_eq!(o.take(None, 1, None, T0 + 2 * MS, &mut j), Ok([1, 200, 0, 0, 398, 400]));
}

#[test]
fn a_plain_bucket_is_small() {
    let mut o = LeakyBucket::blank();
    let mut j = Journal::new(Family::LeakyBucket, false);
    o.take(lim(Some((1000, 1000, 60_000))), 1, None, T0, &mut j).unwrap();
    assert_eq!(o.memory(), 40);
}
