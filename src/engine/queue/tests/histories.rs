//! Random histories over all commands on two queues, beside the model: every answer, every listing,
//! INFO; every change folded into a follower, and now and then the queue is replaced by what its
//! snapshot loads as.

use super::super::*;
use super::fold::{carry, load, snapshot};
use super::model::{Model, Told, bytes_of, info_line};
use crate::engine::bucket::Limits;
use crate::engine::family::Family;
use crate::engine::fencing::FencingCounter;
use crate::engine::journal::Journal;
use crate::engine::object::Object;
use crate::engine::tests::{journal as numbered, no_numbers};
use proptest::prelude::*;

const MS: i64 = 1_000;

#[derive(Debug, Clone)]
pub struct PushSpec {
    pub id: Option<u8>,
    pub size: u8,
    due: Option<i64>,
    priority: u8,
    group: Option<u8>,
    ttl: Option<i64>,
    lease: Option<i64>,
    max: Option<u64>,
    dedup: Option<i64>,
    on_dup: OnDup,
}

impl PushSpec {
    pub fn options(&self, now: i64) -> PushOptions<'static> {
        PushOptions {
            due: self.due.map(|d| now + d),
            priority: self.priority,
            group: self.group.map(|g| GROUPS[usize::from(g)]),
            ttl: self.ttl,
            lease: self.lease,
            max_deliveries: self.max,
            dedup: self.dedup,
            on_dup: self.on_dup,
        }
    }
}

#[derive(Debug, Clone)]
pub enum Op {
    Push(PushSpec),
    Mpush(PushSpec, u8),
    Claim { count: usize, lease: Option<i64>, consumer: Option<u8>, group: Option<u8>, no_ack: bool },
    Ack(Vec<u8>),
    Nack { receipts: Vec<u8>, delay: Option<i64>, back: bool, no_count: bool, dead: bool, reason: bool },
    Extend(i64, Vec<u8>),
    Requeue(u8, i64, u64),
    Redrive(Option<Vec<u8>>, u64, i64),
    Delete(Vec<u8>),
    Purge(u8, Option<u64>),
    Set(Settings),
    Pause { push: bool, claim: bool, group: Option<u8>, until: Option<i64> },
    Resume(Option<u8>),
    Move { dead: bool, count: u64 },
    Wait(i64),
    Reload,
}

pub const IDS: [&str; 7] = ["a", "b", "c", "1", "2", "7", "x@y"];
/// As much as ever is due.
const WHOLE: usize = 1000;

pub const GROUPS: [&[u8]; 3] = [b"g", b"h", b"i"];

fn group() -> impl Strategy<Value = Option<u8>> {
    prop_oneof![2 => Just(None), 3 => (0..3u8).prop_map(Some)]
}

fn maybe(range: std::ops::Range<i64>) -> impl Strategy<Value = Option<i64>> {
    prop_oneof![3 => Just(None), 1 => range.prop_map(|ms| Some(ms * MS))]
}

fn push_spec() -> impl Strategy<Value = PushSpec> {
    let id = prop_oneof![1 => Just(None), 1 => (0..7u8).prop_map(Some)];
    let on_dup = prop_oneof![Just(OnDup::Reject), Just(OnDup::Replace), Just(OnDup::KeepLast)];
    let first = (id, 0..12u8, maybe(-3..30), prop_oneof![Just(0u8), Just(1), Just(5), Just(255)], group());
    let max = prop_oneof![4 => Just(None), 1 => (0..3u64).prop_map(Some)];
    (first, maybe(1..40), maybe(1..30), max, maybe(1..60), on_dup).prop_map(
        |(f, ttl, lease, max, dedup, on_dup)| PushSpec {
            id: f.0,
            size: f.1,
            due: f.2,
            priority: f.3,
            group: f.4,
            ttl,
            lease,
            max,
            dedup,
            on_dup,
        },
    )
}

fn limits() -> impl Strategy<Value = Option<Limits>> {
    prop_oneof![1 => Just(None), 2 => (1..4i64, 1..4i64, 1..30i64).prop_map(|(c, t, p)| Limits::new(c, t, p))]
}

fn settings() -> impl Strategy<Value = Settings> {
    let backoff = prop_oneof![
        Just(Backoff::None),
        (1..9i64).prop_map(|d| Backoff::Fixed(d * MS)),
        (1..5i64, 5..30i64).prop_map(|(base, max)| Backoff::Exp { base: base * MS, max: max * MS }),
    ];
    prop_oneof![
        (1..40i64).prop_map(|d| Settings { lease: Some(d * MS), ..Settings::default() }),
        (0..4u64).prop_map(|n| Settings { max_deliveries: Some(n), ..Settings::default() }),
        backoff.prop_map(|b| Settings { backoff: Some(b), ..Settings::default() }),
        (0..12u64, 0..60u64, any::<bool>()).prop_map(|(len, bytes, drop)| Settings {
            max_len: Some(len),
            max_bytes: Some(bytes),
            on_full: Some(if drop { OnFull::DropOld } else { OnFull::Reject }),
            ..Settings::default()
        }),
        (0..5u64).prop_map(|n| Settings { max_in_flight: Some(n), ..Settings::default() }),
        (0..3u64).prop_map(|n| Settings { group_in_flight: Some(n), ..Settings::default() }),
        limits().prop_map(|l| Settings { rate: Some(l), ..Settings::default() }),
        limits().prop_map(|l| Settings { group_rate: Some(l), ..Settings::default() }),
        (0..30i64).prop_map(|d| Settings { dedup: Some(d * MS), ..Settings::default() }),
        (0..4u64).prop_map(|n| Settings { max_dead: Some(n), ..Settings::default() }),
        (0..40i64).prop_map(|d| Settings { ttl: Some(d * MS), ..Settings::default() }),
        (0..20i64).prop_map(|d| Settings { aging: Some(d * MS), ..Settings::default() }),
    ]
}

pub fn op() -> impl Strategy<Value = Op> {
    let which = || prop::collection::vec(0..255u8, 0..4);
    let ids = || prop::collection::vec(0..8u8, 0..4);
    prop_oneof![
        10 => push_spec().prop_map(Op::Push),
        3 => (push_spec(), 1..5u8).prop_map(|(s, n)| Op::Mpush(s, n)),
        10 => (1..5usize, maybe(1..30), prop_oneof![Just(None), (0..2u8).prop_map(Some)], prop_oneof![3 => Just(None), 1 => (0..3u8).prop_map(Some)], prop::bool::weighted(0.2))
            .prop_map(|(count, lease, consumer, group, no_ack)| Op::Claim { count, lease, consumer, group, no_ack }),
        5 => which().prop_map(Op::Ack),
        5 => (which(), maybe(0..20), any::<bool>(), prop::bool::weighted(0.2), prop::bool::weighted(0.2), any::<bool>())
            .prop_map(|(receipts, delay, back, no_count, dead, reason)| Op::Nack { receipts, delay, back, no_count, dead, reason }),
        2 => (1..40i64, which()).prop_map(|(d, r)| Op::Extend(d * MS, r)),
        2 => (0..3u8, 1..20i64, 1..5u64).prop_map(|(w, d, n)| Op::Requeue(w, d * MS, n)),
        3 => (prop::option::of(ids()), 1..5u64, prop_oneof![Just(0), 1..20i64]).prop_map(|(i, n, d)| Op::Redrive(i, n, d * MS)),
        2 => ids().prop_map(Op::Delete),
        1 => (0..12u8, prop::option::of(1..4u64)).prop_map(|(n, count)| Op::Purge(n, count)),
        4 => settings().prop_map(Op::Set),
        1 => (any::<bool>(), any::<bool>(), group(), prop_oneof![Just(None), (-5..30i64).prop_map(|d| Some(d * MS))])
            .prop_map(|(push, claim, group, until)| Op::Pause { push, claim, group, until }),
        2 => group().prop_map(Op::Resume),
        2 => (any::<bool>(), 1..6u64).prop_map(|(dead, count)| Op::Move { dead, count }),
        12 => prop_oneof![4 => (0..12i64).prop_map(|d| Op::Wait(d * MS)), 1 => (0..60_000i64).prop_map(Op::Wait), 1 => (-9..0i64).prop_map(|d| Op::Wait(d * MS))],
        1 => Just(Op::Reload),
    ]
}

struct World {
    now: i64,
    queues: [Queue; 2],
    followers: [Queue; 2],
    models: [Model; 2],
    draw: u64,
    receipts: Vec<Receipt>,
    loaded: bool,
    /// How much one look at what is due does, and one command of what can be put off.
    most: usize,
}

fn journal() -> Journal {
    numbered(Family::Queue, true)
}

impl World {
    fn new(most: usize) -> Self {
        no_numbers();
        Self {
            now: 1_000 * MS,
            queues: [Queue::new(), Queue::new()],
            followers: [Queue::new(), Queue::new()],
            models: [Model::new(), Model::new()],
            draw: 0,
            receipts: vec![],
            loaded: false,
            most,
        }
    }

    fn journal(&self) -> Journal {
        let mut journal = numbered(Family::Queue, true);
        journal.allow(self.most);
        journal
    }

    /// What is put off is done, in pieces.
    fn finish(&mut self) {
        for at in 0..2 {
            let mut j = self.journal();
            while !self.queues[at].apply_due(self.now, self.most, &mut j) {}
            carry(&mut self.followers[at], &mut j, &[]);
        }
    }

    fn apply_due(&mut self) {
        for at in 0..2 {
            let mut j = self.journal();
            while !self.queues[at].apply_due(self.now, self.most, &mut j) {}
            assert!(self.queues[at].next_event().is_none_or(|t| t > self.now));
            carry(&mut self.followers[at], &mut j, &[]);
            self.models[at].advance(i64::MIN, self.now);
        }
    }

    fn receipts_of(&self, picks: &[u8]) -> Vec<Receipt> {
        let pick = |p: &u8| match self.receipts.len() {
            0 => Receipt { id: Id::parse(b"a"), claim: 7 },
            n => {
                let mut r = self.receipts[n - 1 - usize::from(*p) % n.min(8)].clone();
                r.claim += u64::from(*p == 3);
                r
            }
        };
        picks.iter().map(pick).collect()
    }

    /// An id. Where what is dropped goes in pieces, none is a number: the own number that is drawn
    /// next passes over what is still there.
    fn id(&self, n: u8) -> String {
        let id = IDS.get(usize::from(n)).copied().unwrap_or("3");
        if self.most < WHOLE { format!("n{id}") } else { id.to_owned() }
    }

    fn push(&mut self, at: usize, spec: &PushSpec, many: Option<u8>) {
        let payload = vec![b'x'; spec.size.into()];
        let (o, id) = (spec.options(self.now), spec.id.map(|i| self.id(i)));
        let mut j = self.journal();
        let (q, model, now) = (&mut self.queues[at], &mut self.models[at], self.now);
        match many {
            None => {
                let got = q.push(now, &payload, 0, id.as_ref().map(|i| Id::parse(i.as_bytes())), &o, &mut j);
                let want = model.push(&[&payload], id.as_ref().map(String::as_bytes), &o);
                assert_eq!(got.map(|i| i.map(|i| vec![bytes_of(&i)])), want);
                carry(&mut self.followers[at], &mut j, &[&payload]);
            }
            Some(n) => {
                let payloads: Vec<&[u8]> = (0..n).map(|i| &payload[..payload.len().min(i.into())]).collect();
                let got = q.mpush(now, &payloads, 0, &o, &mut j);
                let want = model.push(&payloads, None, &o);
                assert_eq!(got.map(|ids| Some(ids.iter().map(bytes_of).collect())), want);
                carry(&mut self.followers[at], &mut j, &payloads);
            }
        }
    }

    fn claim(&mut self, at: usize, o: &ClaimOptions<'_>) {
        let (q, model) = (&mut self.queues[at], &mut self.models[at]);
        let can = q.claimable(self.now, o.group);
        assert_eq!(can, model.pick(o.group).is_some(), "claimable");
        if !can && !q.is_held_up(self.now) {
            // Not claimable, it is told when it may be: by the queue's own bucket first.
            let own = q.own_token_at(self.now);
            let theirs = match o.group {
                None => q.claimable_at(self.now).filter(|at| *at > self.now),
                Some(group) => q.parked().find(|(_, g)| *g == group).map(|(until, _)| until),
            };
            if let Some(t) = own.or(theirs) {
                assert!(t > self.now && !q.clone().claimable(t - 1, o.group), "not before");
                assert!(own.is_some() || q.clone().claimable(t, o.group), "claimable when told");
            }
            let later = self.now + 3_600_000_000;
            assert!(own.or(theirs).is_some() || !q.clone().claimable(later, o.group), "it is told");
        }
        let mut j = journal();
        let got = q.claim(self.now, o, &mut j);
        assert_eq!(j.changed(), !got.is_empty());
        let told: Vec<_> =
            got.iter().map(|d| (bytes_of(&d.id), d.claim, d.deliveries, q.payload(d).to_vec())).collect();
        assert_eq!(told, model.claim(o, &mut self.draw));
        for d in got {
            if let Some(claim) = d.claim {
                self.receipts.push(Receipt { id: d.id, claim });
            }
        }
        carry(&mut self.followers[at], &mut j, &[]);
    }

    fn step(&mut self, at: usize, op: &Op) {
        if let Op::Wait(us) = op {
            self.now = (self.now + us).max(1);
        }
        self.apply_due();
        let now = self.now;
        let names: Vec<String> = (0..8).map(|n| self.id(n)).collect();
        let ids_of = |picks: &[u8]| -> Vec<Vec<u8>> {
            picks.iter().filter_map(|p| names.get(usize::from(*p))).map(|i| i.as_bytes().to_vec()).collect()
        };
        let group_of = |g: &Option<u8>| g.map(|g| GROUPS[usize::from(g)]);
        let mut j = self.journal();
        match op {
            Op::Push(spec) => return self.push(at, spec, None),
            Op::Mpush(spec, n) => return self.push(at, spec, Some(*n)),
            Op::Claim { count, lease, consumer, group, no_ack } => {
                let consumer = consumer.map(|c| GROUPS[usize::from(c)]);
                let o = ClaimOptions {
                    count: *count,
                    lease: *lease,
                    consumer,
                    group: group_of(group),
                    no_ack: *no_ack,
                    ..ClaimOptions::default()
                };
                return self.claim(at, &o);
            }
            Op::Ack(picks) => {
                let r = self.receipts_of(picks);
                assert_eq!(self.queues[at].ack(now, &r, &mut j)[..], self.models[at].ack(&r));
            }
            Op::Nack { receipts, delay, back, no_count, dead, reason } => {
                let r = self.receipts_of(receipts);
                let reason = reason.then_some(b"why".as_slice());
                let o = NackOptions { delay: *delay, back: *back, no_count: *no_count, dead: *dead, reason };
                assert_eq!(self.queues[at].nack(now, &r, &o, &mut j)[..], self.models[at].nack(&r, &o));
            }
            Op::Extend(lease, picks) => {
                let r = self.receipts_of(picks);
                assert_eq!(
                    self.queues[at].extend(now, *lease, &r, &mut j)[..],
                    self.models[at].extend(*lease, &r)
                );
            }
            Op::Requeue(which, age, count) => {
                let which = [Which::All, Which::Stale(*age), Which::Consumer(GROUPS[0])][usize::from(*which)];
                let got = self.queues[at].requeue(now, which, *count, &mut j);
                assert_eq!(got, self.models[at].requeue(which, *count));
            }
            Op::Redrive(picks, count, delay) => {
                let names = picks.as_deref().map(ids_of);
                let ids: Option<Vec<Id>> = names.as_ref().map(|n| n.iter().map(|i| Id::parse(i)).collect());
                let got = self.queues[at].redrive(now, ids.as_deref(), *count, *delay, &mut j);
                assert_eq!(got, self.models[at].redrive(names.as_deref(), *count, *delay));
            }
            Op::Delete(picks) => {
                let names = ids_of(picks);
                let ids: Vec<Id> = names.iter().map(|i| Id::parse(i)).collect();
                assert_eq!(self.queues[at].delete(now, &ids, &mut j), self.models[at].delete(&names));
            }
            Op::Purge(n, count) => {
                let scopes = [Scope::Ready, Scope::Delayed, Scope::Dead, Scope::All];
                if let Some(scope) = scopes.get(usize::from(*n)) {
                    let got = self.queues[at].purge(*scope, *count, &mut j);
                    assert_eq!(got, self.models[at].purge(*scope, *count));
                }
            }
            Op::Set(settings) => {
                // A group of which all is to be dropped keeps its turn until it is: lagging.rs is
                // for that.
                let drops = self.most < WHOLE && settings.on_full == Some(OnFull::DropOld);
                let on_full = if drops { Some(OnFull::Reject) } else { settings.on_full };
                let settings = &Settings { on_full, ..settings.clone() };
                self.queues[at].set(now, settings, &mut j);
                self.models[at].set(settings);
            }
            Op::Pause { push, claim, group, until } => {
                let until = until.map_or(Pause::Forever, |d| Pause::Until(now + d));
                self.queues[at].pause(now, *push, *claim, group_of(group), until, &mut j);
                let kept = if let Pause::Until(t) = until { t } else { i64::MAX };
                self.models[at].pause(*push, *claim, group_of(group), kept);
            }
            Op::Resume(group) => {
                self.queues[at].resume(group_of(group), &mut j);
                self.models[at].resume(group_of(group));
            }
            Op::Move { dead, count } => {
                let what = if *dead { Movable::Dead } else { Movable::Ready };
                let mut to = self.journal();
                let [a, b] = &mut self.queues;
                let (src, dst) = if at == 0 { (a, b) } else { (b, a) };
                let got = src.move_to(dst, now, what, *count, &mut j, &mut to);
                let [a, b] = &mut self.models;
                let (src, dst) = if at == 0 { (a, b) } else { (b, a) };
                assert_eq!(got, src.move_to(dst, what, *count));
                carry(&mut self.followers[1 - at], &mut to, &[]);
            }
            Op::Wait(_) => {}
            Op::Reload => self.loaded = true,
        }
        carry(&mut self.followers[at], &mut j, &[]);
        if std::mem::take(&mut self.loaded) {
            let mut fencing = FencingCounter::new();
            let rejected = self.queues[at].info(now).rejected;
            let batches = snapshot(&self.queues[at]);
            self.queues[at] = load(&batches, &mut fencing);
            self.queues[at].rejected = rejected;
            assert_eq!(snapshot(&self.queues[at]), batches, "what was loaded says the same");
            assert!(fencing.last() <= self.draw);
        }
    }

    fn compare(&mut self, at: usize) {
        let (q, model) = (&self.queues[at], &self.models[at]);
        q.audit();
        assert_eq!(info_line(&q.info(self.now)), model.info());
        for state in [State::Ready, State::Delayed, State::InFlight, State::Dead] {
            for group in [None, Some(GROUPS[0])] {
                let mut all: Vec<Told> = vec![];
                let mut cursor = Cursor::Start;
                loop {
                    let (next, page) = q.list(state, group, cursor, 3, usize::MAX).unwrap();
                    assert!(
                        page.len() == 3 || next == Cursor::Start || group.is_some() && state != State::Ready
                    );
                    all.extend(page.into_iter().map(Told::from));
                    assert_eq!(Cursor::parse(next.to_string().as_bytes()), Some(next));
                    cursor = next;
                    if cursor == Cursor::Start {
                        break;
                    }
                }
                assert_eq!(all, model.list(state, group), "{state:?} {group:?}");
            }
            assert_eq!(q.len(Some(state)), model.list(state, None).len() as u64);
        }
        for id in (0..7).map(|n| self.id(n)) {
            assert_eq!(q.get(&Id::parse(id.as_bytes())).map(Told::from), model.get(id.as_bytes()));
        }
        self.followers[at].audit();
        assert_eq!(snapshot(&self.followers[at]), snapshot(q), "the follower is equal");
    }
}

pub fn cases() -> u32 {
    std::env::var("QUEUE_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(150)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 4000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_history_is_the_models(
        ops in prop::collection::vec((prop::bool::weighted(0.25), op()), 1..120),
        most in prop_oneof![1..4usize, Just(WHOLE)],
    ) {
        let mut world = World::new(most);
        for (second, op) in &ops {
            let at = usize::from(*second);
            world.step(at, op);
            world.finish();
            world.compare(at);
        }
        world.compare(0);
        world.compare(1);
    }
}
