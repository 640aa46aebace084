//! The gate against a naive model put together from those of its stages; every history is also
//! folded through its carried effects.

mod lagging;

use super::*;
use crate::engine::bucket::Policy;
use crate::engine::bucket::tests::{Naive as Bucket, any_cost, any_limits, any_step, whole};
use crate::engine::bucket::{Limits, MAX_COUNT};
use crate::engine::family::Family;
use crate::engine::fencing::FencingCounter;
use crate::engine::leaky_bucket::tests::Naive as Leaky;
use crate::engine::object::{Object, apply_batch};
use crate::engine::tests::folding::{any_damage, load, snapshot};
use crate::engine::tests::journal;
use crate::engine::time::ceil_ms;
use proptest::prelude::*;
use std::collections::BTreeMap;

const T0: Micros = 1_900_000_000_000_000;

type Three = (i64, i64, i64);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Setting {
    Bucket(Three, i64),
    Leaky(Three),
    Permits(i64, i64),
}

impl Setting {
    fn config(&self) -> Config {
        let limits = |(c, t, p): Three| Limits::new(c, t, p).unwrap();
        match *self {
            Setting::Bucket(l, warmup) => Config::Bucket { limits: limits(l), warmup },
            Setting::Leaky(l) => Config::Leaky { limits: limits(l) },
            Setting::Permits(limit, lease) => Config::Permits { limit, lease },
        }
    }
}

#[derive(Clone)]
enum Model {
    Bucket(Bucket),
    Leaky(Leaky),
    Permits(i64, i64),
}

/// (retry, wait, row if refused, row if granted) of a stage.
type Said = (i64, i64, Row, Row);

struct Waiting {
    ticket: Ticket,
    cost: i64,
    maxwait: Option<i64>,
    until: Micros,
}

#[derive(Default)]
struct Naive {
    stages: Vec<(&'static str, Model)>,
    held: BTreeMap<u64, Micros>,
    line: Vec<Waiting>,
    answers: Vec<(Ticket, Pass)>,
}

impl Naive {
    fn say(&self, stage: &Model, cost: i64, maxwait: Option<i64>, now: Micros) -> Said {
        match stage {
            Model::Bucket(b) => {
                let b = b.at(now);
                let retry = if cost > b.cap { -1 } else { b.until(&whole(cost)) };
                let row = |b: &Bucket, retry| {
                    let [_, limit, remaining, retry, _, reset] = b.six(0, retry);
                    [limit, remaining, retry, 0, reset]
                };
                let after = Bucket { level: &b.level - whole(cost), ..b.clone() };
                (retry, 0, row(&b, retry), row(&after, 0))
            }
            Model::Leaky(b) => {
                let b = b.at(now);
                let (retry, wait, limit) = (b.retry(cost, maxwait), b.wait(), b.limits.0);
                let after = Leaky { inside: &b.inside + whole(cost), ..b.clone() };
                (
                    retry,
                    wait,
                    [limit, b.free(), retry, wait, wait],
                    [limit, after.free(), 0, wait, after.wait()],
                )
            }
            Model::Permits(limit, _) => {
                let mut ends: Vec<Micros> = self.held.values().copied().collect();
                ends.sort_unstable();
                let used = ends.len() as i64;
                // So many must end before one is free.
                let must = used + 1 - limit;
                let retry = if must <= 0 { 0 } else { ceil_ms(ends[must as usize - 1] - now) };
                let last = ends.last().map_or(0, |end| ceil_ms(end - now));
                (
                    retry,
                    0,
                    [*limit, (limit - used).max(0), retry, 0, last],
                    [*limit, (limit - used - 1).max(0), 0, 0, last],
                )
            }
        }
    }

    /// The pass of one at this place in the line (`None`: behind it).
    fn pass(&self, cost: i64, maxwait: Option<i64>, place: Option<Ticket>, now: Micros) -> (Pass, Vec<Said>) {
        let mut said: Vec<Said> = self.stages.iter().map(|(_, s)| self.say(s, cost, maxwait, now)).collect();
        if let Some(first) = self.line.first().filter(|w| Some(w.ticket) != place) {
            for (said, (_, stage)) in said.iter_mut().zip(&self.stages) {
                let (retry, ..) = self.say(stage, first.cost, first.maxwait, now);
                said.0 = if said.0 == -1 || retry == -1 { -1 } else { said.0.max(retry) };
                (said.2[1], said.2[2]) = (0, said.0);
            }
        }
        let wait = said.iter().map(|s| s.1).max().unwrap();
        let by: Vec<usize> = (0..said.len()).filter(|i| said[*i].0 != 0).collect();
        let retries: Vec<i64> = by.iter().map(|i| said[*i].0).collect();
        let name = |i: usize| Name::from(self.stages[i].0.as_bytes());
        let rows = said.iter().zip(&self.stages).enumerate().map(|(i, (s, (_, stage)))| {
            let mut row = if by.is_empty() { s.3 } else { s.2 };
            if let (Model::Permits(_, lease), true) = (stage, by.is_empty()) {
                row[4] = row[4].max(wait.saturating_add(*lease));
            }
            (name(i), row)
        });
        let pass = Pass {
            granted: if by.is_empty() { cost } else { 0 },
            wait,
            retry: if retries.contains(&-1) { -1 } else { retries.iter().copied().max().unwrap_or(0) },
            refused_by: by.iter().map(|i| name(*i)).collect(),
            receipt: None,
            stages: rows.collect(),
        };
        (pass, said)
    }

    fn charge(&mut self, cost: i64, wait: i64, receipt: Option<u64>, now: Micros) {
        for (_, stage) in &mut self.stages {
            match stage {
                Model::Bucket(b) => {
                    b.bring(now);
                    b.level -= whole(cost);
                }
                Model::Leaky(b) => {
                    *b = b.at(now);
                    b.inside += whole(cost);
                }
                Model::Permits(_, lease) => {
                    let until =
                        wait.saturating_add(*lease).saturating_mul(MS).saturating_add(now).min(MAX_INSTANT);
                    self.held.insert(receipt.unwrap(), until);
                }
            }
        }
    }

    fn repair(&mut self, said: &[Said], now: Micros) {
        for ((_, stage), said) in self.stages.iter_mut().zip(said) {
            match stage {
                Model::Bucket(b) if b.ahead(now) || said.0 > 0 && b.cold(now) => b.bring(now),
                Model::Leaky(b) if b.ahead(now) => *b = b.at(now),
                _ => {}
            }
        }
    }

    /// Receipts are taken from what the gate answered: they are its own to choose.
    fn apply_due(&mut self, now: Micros, told: &BTreeMap<Ticket, Option<u64>>) {
        self.held.retain(|_, until| *until > now);
        loop {
            while let Some(first) = self.line.first() {
                let (cost, ticket) = (first.cost, first.ticket);
                let (mut pass, _) = self.pass(cost, first.maxwait, Some(ticket), now);
                if pass.granted > 0 {
                    pass.receipt = told.get(&ticket).copied().flatten();
                    self.charge(cost, pass.wait, pass.receipt, now);
                } else if pass.retry != -1 {
                    break;
                }
                self.line.remove(0);
                self.answers.push((ticket, pass));
            }
            let Some(i) = self.line.iter().position(|w| w.until <= now) else { return };
            let (pass, _) =
                self.pass(self.line[i].cost, self.line[i].maxwait, Some(self.line[i].ticket), now);
            self.answers.push((self.line.remove(i).ticket, pass));
        }
    }

    fn set(&mut self, new: &[(&'static str, Setting)], now: Micros) {
        let giver = |stages: &[(&'static str, Model)]| {
            stages.iter().find(|s| matches!(s.1, Model::Permits(..))).map(|s| s.0)
        };
        let old = std::mem::take(&mut self.stages);
        for (name, setting) in new {
            let before = old.iter().filter(|s| s.0 == *name).map(|s| &s.1).next();
            let stage = match (*setting, before) {
                (Setting::Bucket(l, w), Some(Model::Bucket(b))) if b.limits() == l && b.warm == w => {
                    Model::Bucket(b.clone())
                }
                (Setting::Bucket(l, w), Some(Model::Bucket(b))) => {
                    Model::Bucket(b.changed(now, l, w, Policy::Keep))
                }
                (Setting::Bucket(l, w), _) => Model::Bucket(Bucket::new(l, w)),
                (Setting::Leaky(l), Some(Model::Leaky(b))) if b.limits == l => Model::Leaky(b.clone()),
                (Setting::Leaky(l), Some(Model::Leaky(b))) => Model::Leaky(b.changed(now, l)),
                (Setting::Leaky(l), _) => Model::Leaky(Leaky::new(l)),
                (Setting::Permits(n, e), _) => Model::Permits(n, e),
            };
            self.stages.push((*name, stage));
        }
        if giver(&old) != giver(&self.stages) {
            self.held.clear();
        }
    }
}

#[derive(Debug, Clone)]
enum Act {
    Step(i64),
    Set(Vec<(&'static str, Setting)>),
    Pass(i64, Option<i64>, Option<i64>),
    Peek(i64, Option<i64>),
    Leave(Vec<usize>),
    Depart(usize),
    Reload,
}

fn any_stages() -> impl Strategy<Value = Vec<(&'static str, Setting)>> {
    let one = prop_oneof![
        4 => (any_limits(), prop::sample::select(vec![0i64, 0, 3000, 20_000])).prop_map(|(l, w)| Setting::Bucket(l, w)),
        3 => any_limits().prop_map(Setting::Leaky),
        2 => (1..4i64, prop::sample::select(vec![1000i64, 5000])).prop_map(|(n, e)| Setting::Permits(n, e)),
    ];
    let names = prop::sample::subsequence(vec!["a", "b", "c", "d"], 1..=4).prop_shuffle();
    (names, prop::collection::vec(one, 4)).prop_map(|(names, settings)| {
        let mut permits = false;
        let keep = |(_, s): &(&str, Setting)| {
            !matches!(s, Setting::Permits(..)) || !std::mem::replace(&mut permits, true)
        };
        names.into_iter().zip(settings).filter(keep).collect()
    })
}

fn any_act() -> impl Strategy<Value = Act> {
    let maxwait = || prop::option::weighted(0.3, prop::sample::select(vec![0i64, 1, 1000, 4000]));
    let block = prop::option::weighted(0.5, prop::sample::select(vec![1i64, 1000, 5000, 31_622_400_000]));
    prop_oneof![
        6 => any_step().prop_map(Act::Step),
        1 => any_stages().prop_map(Act::Set),
        9 => (any_cost(), maxwait(), block).prop_map(|(c, m, b)| Act::Pass(c, m, b)),
        2 => (any_cost(), maxwait()).prop_map(|(c, m)| Act::Peek(c, m)),
        2 => prop::collection::vec(0..5usize, 1..3).prop_map(Act::Leave),
        1 => (0..4usize).prop_map(Act::Depart),
        1 => Just(Act::Reload),
    ]
}

struct Bench {
    now: Micros,
    o: Gate,
    mirror: Gate,
    model: Naive,
    receipts: Vec<u64>,
    tickets: Ticket,
}

impl Bench {
    fn new() -> Self {
        let (o, mirror, model) = (Gate::blank(), Gate::blank(), Naive::default());
        Self { now: T0, o, mirror, model, receipts: Vec::new(), tickets: 0 }
    }

    /// Time passes up to `to`, stopping where something is due. (But not for ever: two stages that
    /// cool in turn keep a costly pass waiting until its time is over.)
    fn apply_due(&mut self, mut to: Micros, j: &mut Journal) {
        let mut stops = 0;
        while let Some(at) = self.o.next_event().filter(|at| *at <= to && *at > self.now) {
            self.now = at;
            stops += 1;
            if stops == 3_000 {
                to = at;
            }
            assert!(self.o.apply_due(at, usize::MAX, j));
            self.compare_answers();
        }
        self.now = to;
        assert!(self.o.apply_due(to, usize::MAX, j));
        self.compare_answers();
        assert!(self.o.next_event().is_none_or(|at| at > to), "something due is left");
    }

    fn compare_answers(&mut self) {
        let told: Vec<(Ticket, Pass)> = self
            .o
            .answers(usize::MAX)
            .into_iter()
            .map(|(ticket, a)| match a {
                Answer::Pass(p) => (ticket, *p),
                _ => panic!("another family's answer"),
            })
            .collect();
        self.receipts.extend(told.iter().filter_map(|(_, p)| p.receipt));
        assert!(self.receipts.is_sorted());
        self.model.apply_due(self.now, &told.iter().map(|(t, p)| (*t, p.receipt)).collect());
        assert_eq!(told, std::mem::take(&mut self.model.answers));
    }

    fn play(&mut self, act: Act) {
        let j = &mut journal(Family::Gate, true);
        let before = snapshot(&self.o);
        // A step back while somebody waits, or on a gate that is cooling, is looked at elsewhere.
        let by = if let Act::Step(by) = act { by } else { 0 };
        let by = if self.model.line.is_empty() { by } else { by.max(0) };
        self.apply_due((self.now + by).max(0), j);
        let now = self.now;
        match act {
            Act::Step(_) => {}
            Act::Set(stages) => {
                let configs = stages.iter().map(|(name, s)| (name.as_bytes(), s.config()));
                self.o.set(&configs.collect::<Vec<_>>(), now, j);
                self.model.set(&stages, now);
            }
            Act::Pass(cost, maxwait, block) => {
                self.tickets += 1;
                let (mut naive, said) = self.model.pass(cost, maxwait, None, now);
                let fixed =
                    said.iter().zip(&self.model.stages).filter(|(_, s)| !matches!(s.1, Model::Permits(..)));
                let longest = fixed.map(|(s, _)| s.0).max().unwrap_or(0);
                let waits = block.is_some_and(|ms| naive.granted == 0 && naive.retry != -1 && longest <= ms);
                let reply = match block {
                    None => Some(self.o.pass(cost, maxwait, now, j)),
                    Some(ms) => self.o.pass_or_wait(cost, maxwait, ms, self.tickets, now, j),
                };
                let receipt = reply.as_ref().and_then(|p| p.receipt);
                naive.receipt = receipt;
                if naive.granted > 0 {
                    let permits = self.model.stages.iter().any(|s| matches!(s.1, Model::Permits(..)));
                    assert_eq!(receipt.is_some(), permits);
                    self.model.charge(cost, naive.wait, receipt, now);
                } else if self.model.line.is_empty() {
                    self.model.repair(&said, now);
                }
                assert_eq!(reply, Some(naive).filter(|_| !waits));
                if waits {
                    let until = now + block.unwrap() * MS;
                    self.model.line.push(Waiting { ticket: self.tickets, cost, maxwait, until });
                }
                self.receipts.extend(receipt);
            }
            Act::Peek(cost, maxwait) => {
                let line = std::mem::take(&mut self.model.line);
                assert_eq!(self.o.peek(cost, maxwait, now), self.model.pass(cost, maxwait, None, now).0);
                self.model.line = line;
            }
            Act::Leave(which) => {
                let pick = |i: &usize| self.receipts.iter().rev().nth(*i).copied().unwrap_or(7);
                let receipts: Vec<u64> = which.iter().map(pick).collect();
                let naive: Vec<i64> =
                    receipts.iter().map(|r| i64::from(self.model.held.remove(r).is_some())).collect();
                assert_eq!(self.o.leave(&receipts, now, j), naive);
            }
            Act::Depart(i) => {
                if i < self.model.line.len() {
                    let ticket = self.model.line.remove(i).ticket;
                    self.o.depart(ticket, now, j);
                }
            }
            Act::Reload => {
                if self.model.line.is_empty() && !j.changed() {
                    self.o = load(&before, &mut FencingCounter::new()).unwrap();
                }
            }
        }
        self.compare_answers();
        assert!(j.changed() || snapshot(&self.o) == before, "a change was not recorded");
        for batch in j.take() {
            apply_batch(&mut self.mirror, &batch.head, &mut std::iter::empty(), &mut FencingCounter::new())
                .unwrap();
        }
        let o = &self.o;
        assert_eq!(snapshot(o), snapshot(&self.mirror));
        assert_eq!(snapshot(o), snapshot(&o.duplicate()));
        assert_eq!(snapshot(o), snapshot(&load::<Gate>(&snapshot(o), &mut FencingCounter::new()).unwrap()));
        assert_eq!(o.waiting(), self.model.line.len());
        assert_eq!(o.info(now).unwrap().stages.len(), self.model.stages.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 250, ..Default::default() })]

    #[test]
    fn says_what_the_naive_model_says(stages in any_stages(), acts in prop::collection::vec(any_act(), 1..40)) {
        let mut bench = Bench::new();
        bench.o.set(&[(b"z", Config::Permits { limit: 1, lease: 1 })], T0, &mut journal(Family::Gate, false));
        bench.mirror = bench.o.duplicate();
        bench.model.set(&[("z", Setting::Permits(1, 1))], T0);
        bench.play(Act::Set(stages));
        for act in acts {
            bench.play(act);
        }
    }

    /// A gate that refuses says when it would not, and keeps its word if nobody else comes.
    #[test]
    fn a_told_wait_is_exact(stages in any_stages(), costs in prop::collection::vec(1..6i64, 1..8), cost in 1..6i64) {
        let mut bench = Bench::new();
        let cool = |s: &(&str, Setting)| !matches!(s.1, Setting::Bucket(_, w) if w > 0);
        let mut stages: Vec<_> = stages.into_iter().filter(cool).collect();
        if stages.is_empty() {
            stages.push(("z", Setting::Permits(3, 2000)));
        }
        bench.play(Act::Set(stages));
        let j = &mut journal(Family::Gate, false);
        for c in costs {
            bench.o.pass(c, None, T0, j);
        }
        let told = bench.o.pass(cost, None, T0, j);
        if told.granted == 0 && told.retry > 0 && told.retry < 200_000_000_000 {
            prop_assert_eq!(bench.o.peek(cost, None, T0 + (told.retry - 1) * MS).granted, 0);
            prop_assert_eq!(bench.o.peek(cost, None, T0 + told.retry * MS).granted, cost);
        }
    }

    /// Bytes that nobody vouches for: an error or a sound object, never a panic.
    #[test]
    fn damaged_bytes_do_no_harm(stages in any_stages(), acts in prop::collection::vec(any_act(), 1..8), damage in any_damage()) {
        let mut bench = Bench::new();
        bench.play(Act::Set(stages));
        for act in acts {
            bench.play(act);
        }
        for mut o in damage.accepted::<Gate>(snapshot(&bench.o)) {
            let (now, j) = (bench.now, &mut journal(Family::Gate, false));
            let _ = (o.info(now), o.lifetime(now), o.next_event(), o.peek(1, None, now), snapshot(&o));
            let _ = (o.pass(1, None, now, j), o.pass_or_wait(2, Some(5), 10_000, 1, now, j));
            o.apply_due(MAX_INSTANT, usize::MAX, j);
            o.set(&[(b"a", Config::Leaky { limits: Limits::new(MAX_COUNT, 1, 1).unwrap() })], now, j);
        }
    }
}

#[test]
fn a_refusal_by_the_second_stage_costs_nothing_in_the_first() {
    let (mut o, j) = (Gate::blank(), &mut journal(Family::Gate, false));
    let limits = |c, t, p| Limits::new(c, t, p).unwrap();
    let user = Config::Bucket { limits: limits(10, 1, 1000), warmup: 0 };
    let pace = Config::Leaky { limits: limits(2, 1, 1000) };
    let jobs = Config::Permits { limit: 5, lease: 60_000 };
    o.set(&[(b"user", user), (b"pace", pace), (b"jobs", jobs)], T0, j);
    let first = o.pass(1, None, T0, j);
    assert_eq!(first.stages.iter().map(|s| s.1[1]).collect::<Vec<_>>(), [9, 1, 4]);
    assert_eq!(o.pass(1, None, T0, j).wait, 1000);
    let refused = o.pass(1, None, T0, j);
    assert_eq!(
        (refused.granted, refused.retry, &*refused.refused_by),
        (0, 1000, &[Name::from(&b"pace"[..])][..])
    );
    assert_eq!(refused.stages.iter().map(|s| s.1[1]).collect::<Vec<_>>(), [8, 0, 3]);
    assert_eq!(o.leave(&[first.receipt.unwrap(), 7], T0, j), [1, 0]);
    assert_eq!(o.info(T0).unwrap().stages[1].refused, 1);
}

#[test]
fn nobody_overtakes_those_who_wait() {
    let (mut o, j) = (Gate::blank(), &mut journal(Family::Gate, false));
    let bucket = Config::Bucket { limits: Limits::new(10, 1, 1000).unwrap(), warmup: 0 };
    o.set(&[(b"t", bucket)], T0, j);
    o.pass(8, None, T0, j);
    assert_eq!(o.pass_or_wait(5, None, 60_000, 1, T0, j), None);
    // Two tokens are there, but the one who waits for five comes first.
    let newcomer = o.pass(1, None, T0, j);
    assert_eq!((newcomer.granted, newcomer.retry, newcomer.stages[0].1[1]), (0, 3000, 0));
    assert_eq!(o.looks(Some(b"k"), 1, None, T0)[0].retry(), 3000);
    assert_eq!(o.pass_or_wait(1, None, 60_000, 2, T0, j), None);
    assert_eq!(o.next_event(), Some(T0 + 3_000_000));
    assert!(o.apply_due(T0 + 3_000_000, usize::MAX, j));
    assert_eq!(o.answers(usize::MAX).into_iter().map(|a| a.0).collect::<Vec<_>>(), [1]);
    assert_eq!(o.next_event(), Some(T0 + 4_000_000));
    assert!(o.apply_due(T0 + 4_000_000, usize::MAX, j));
    assert_eq!(o.answers(usize::MAX).into_iter().map(|a| a.0).collect::<Vec<_>>(), [2]);
    assert_eq!(o.orphans(), []);
}
