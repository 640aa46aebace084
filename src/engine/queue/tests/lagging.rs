//! Random histories of a queue that does one thing of what is due under each command and puts the
//! rest off. What it decides is what it would have decided had all been applied before: that is
//! asked of a copy which is settled first. Only counts may lag.

use super::super::*;
use super::fold::{carry, snapshot};
use super::histories::{GROUPS, IDS, Op, PushSpec, cases, op};
use super::model::Told;
use crate::engine::family::Family;
use crate::engine::journal::Journal;
use crate::engine::object::Object;
use crate::engine::tests::{journal as numbered, no_numbers};
use proptest::prelude::*;
use std::collections::HashSet;

const MS: i64 = 1_000;

struct Lagging {
    now: i64,
    queue: Queue,
    follower: Queue,
    other: Queue,
    receipts: Vec<Receipt>,
    most: usize,
}

fn quiet() -> Journal {
    numbered(Family::Queue, false)
}

/// Where messages are about to be dropped it is open whether one is there.
fn modulo_dead(answers: &[Receipted], certain: bool) -> Vec<Receipted> {
    let told = |a: &Receipted| if certain || *a != Receipted::Gone { *a } else { Receipted::NotHeld };
    answers.iter().map(told).collect()
}

impl Lagging {
    fn new(most: usize) -> Self {
        no_numbers();
        Self {
            now: 1_000 * MS,
            queue: Queue::new(),
            follower: Queue::new(),
            other: Queue::new(),
            receipts: vec![],
            most,
        }
    }

    fn journal(&self) -> Journal {
        let mut journal = numbered(Family::Queue, true);
        journal.allow(self.most);
        journal
    }

    /// The queue as it would be if nothing were put off.
    fn settled(&self) -> Queue {
        let mut queue = self.queue.clone();
        while !queue.apply_due(self.now, usize::MAX, &mut quiet()) {}
        queue
    }

    /// Whether a message that is there is there for certain: it may be about to be dropped for a
    /// push, or by MAXDEAD.
    fn certain(&self) -> bool {
        self.queue.config.max_dead == 0 && !self.queue.over.is_any()
    }

    fn receipts_of(&self, picks: &[u8]) -> Vec<Receipt> {
        let n = self.receipts.len();
        let pick =
            |p: &u8| self.receipts.get((n.wrapping_sub(1)).wrapping_sub(usize::from(*p) % n.clamp(1, 8)));
        picks.iter().filter_map(pick).cloned().collect()
    }

    fn push(&mut self, spec: &PushSpec, many: Option<u8>) {
        let (mut settled, drops) = (self.settled(), self.queue.over.is_any());
        let (mut j, now, o) = (self.journal(), self.now, spec.options(self.now));
        let payload = vec![b'x'; spec.size.into()];
        let id = spec.id.filter(|_| many.is_none()).map(|i| Id::parse(IDS[usize::from(i)].as_bytes()));
        let named = id.is_some();
        let payloads: Vec<&[u8]> = (0..many.unwrap_or(1)).map(|_| &payload[..]).collect();
        let (got, want) = match many {
            Some(_) => (
                self.queue.mpush(now, &payloads, 0, &o, &mut j).map(|ids| Some(ids.len())),
                settled.mpush(now, &payloads, 0, &o, &mut quiet()).map(|ids| Some(ids.len())),
            ),
            None => (
                self.queue.push(now, &payload, 0, id.clone(), &o, &mut j).map(|id| id.map(|_| 1)),
                settled.push(now, &payload, 0, id, &o, &mut quiet()).map(|id| id.map(|_| 1)),
            ),
        };
        // More than this command may do may have to be due before there is room.
        if drops && named {
            // One with this id may be about to be dropped: it is a duplicate until then, and may be
            // replaced.
        } else if got != Err(Refusal::Full) {
            assert_eq!(got, want);
        } else {
            assert_ne!(want, Ok(None), "a duplicate is told before");
        }
        carry(&mut self.follower, &mut j, &payloads);
    }

    fn claim(&mut self, o: &ClaimOptions<'_>) {
        let (settled, drops) = (self.settled(), self.queue.over.is_any());
        let (mut j, mut seen) = (self.journal(), HashSet::new());
        for d in self.queue.claim(self.now, o, &mut j) {
            let there = settled.get(&d.id).map(Told::from).zip(settled.get(&d.id));
            let ready = there.is_some_and(|(_, view)| {
                view.state == State::Ready
                    && view.payload == self.queue.payload(&d)
                    && view.deliveries + 1 == d.deliveries
            });
            // (What followed one that was taken with NOACK may come with it.)
            assert!(ready || drops || !seen.insert(d.id.clone()) && o.no_ack, "{:?} is not ready", d.id);
            seen.insert(d.id.clone());
            if let Some(claim) = d.claim {
                self.receipts.push(Receipt { id: d.id, claim });
            }
        }
        carry(&mut self.follower, &mut j, &[]);
    }

    fn step(&mut self, op: &Op) {
        if let Op::Wait(us) = op {
            self.now = (self.now + us.abs()).max(1);
        }
        let now = self.now;
        let mut j = self.journal();
        self.queue.apply_due(now, self.most, &mut j);
        carry(&mut self.follower, &mut j, &[]);
        let mut settled = self.settled();
        let certain = self.certain();
        let ids_of = |picks: &[u8]| -> Vec<Id> {
            picks.iter().map(|p| Id::parse(IDS.get(usize::from(*p)).unwrap_or(&"3").as_bytes())).collect()
        };
        let group_of = |g: &Option<u8>| g.map(|g| GROUPS[usize::from(g)]);
        let mut j = self.journal();
        match op {
            Op::Push(spec) => return self.push(spec, None),
            Op::Mpush(spec, n) => return self.push(spec, Some(*n)),
            Op::Claim { count, lease, consumer, group, no_ack } => {
                let consumer = consumer.map(|c| GROUPS[usize::from(c)]);
                let (count, lease, no_ack) = (*count, *lease, *no_ack);
                let o = ClaimOptions {
                    count,
                    lease,
                    consumer,
                    group: group_of(group),
                    no_ack,
                    ..Default::default()
                };
                return self.claim(&o);
            }
            Op::Ack(picks) => {
                let r = self.receipts_of(picks);
                let want = settled.ack(now, &r, &mut quiet());
                let got = self.queue.ack(now, &r, &mut j);
                assert_eq!(modulo_dead(&got, certain), modulo_dead(&want, certain));
            }
            Op::Nack { receipts, delay, back, no_count, dead, .. } => {
                let r = self.receipts_of(receipts);
                let o = NackOptions {
                    delay: *delay,
                    back: *back,
                    no_count: *no_count,
                    dead: *dead,
                    reason: None,
                };
                let want = settled.nack(now, &r, &o, &mut quiet());
                let got = self.queue.nack(now, &r, &o, &mut j);
                assert_eq!(modulo_dead(&got, certain), modulo_dead(&want, certain));
            }
            Op::Extend(lease, picks) => {
                let r = self.receipts_of(picks);
                let want = settled.extend(now, *lease, &r, &mut quiet());
                let got = self.queue.extend(now, *lease, &r, &mut j);
                assert_eq!(modulo_dead(&got, certain), modulo_dead(&want, certain));
            }
            Op::Requeue(which, age, count) => {
                let which = [Which::All, Which::Stale(*age), Which::Consumer(GROUPS[0])][usize::from(*which)];
                let want = settled.requeue(now, which, *count, &mut quiet());
                assert_eq!(self.queue.requeue(now, which, *count, &mut j), want);
            }
            Op::Redrive(picks, count, delay) => {
                let ids = picks.as_deref().map(ids_of);
                self.queue.redrive(now, ids.as_deref(), *count, *delay, &mut j);
            }
            Op::Delete(picks) => {
                let ids = ids_of(picks);
                let want = settled.delete(now, &ids, &mut quiet());
                let got = self.queue.delete(now, &ids, &mut j);
                assert!(got == want || !certain, "{got} {want}");
            }
            Op::Purge(n, count) => {
                let scopes = [Scope::Ready, Scope::Delayed, Scope::Dead, Scope::All];
                if let Some(scope) = scopes.get(usize::from(*n)) {
                    self.queue.purge(*scope, *count, &mut j);
                }
            }
            Op::Set(settings) => self.queue.set(now, settings, &mut j),
            Op::Pause { push, claim, group, until } => {
                let until = until.map_or(Pause::Forever, |d| Pause::Until(now + d));
                self.queue.pause(now, *push, *claim, group_of(group), until, &mut j);
            }
            Op::Resume(group) => self.queue.resume(group_of(group), &mut j),
            Op::Move { dead, count } => {
                let what = if *dead { Movable::Dead } else { Movable::Ready };
                let mut other = std::mem::take(&mut self.other);
                self.queue.move_to(&mut other, now, what, *count, &mut j, &mut quiet());
                self.other = other;
            }
            Op::Wait(_) => {}
            Op::Reload => {
                self.queue.apply_due(now, usize::MAX, &mut j);
            }
        }
        carry(&mut self.follower, &mut j, &[]);
    }

    /// Every id is what it would be, once it was asked for.
    fn look(&mut self) {
        let (settled, mut j) = (self.settled(), self.journal());
        let certain = self.certain();
        for id in IDS.map(|id| Id::parse(id.as_bytes())) {
            self.queue.bring(self.now, &id, &mut j);
            let (got, want) = (self.queue.get(&id).map(Told::from), settled.get(&id).map(Told::from));
            assert!(got == want || !certain, "{id:?}: {got:?}, not {want:?}");
        }
        carry(&mut self.follower, &mut j, &[]);
        self.queue.audit();
        self.other.audit();
        self.follower.audit();
        assert_eq!(snapshot(&self.follower), snapshot(&self.queue), "the follower is equal");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 4000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn what_is_put_off_changes_no_decision(
        ops in prop::collection::vec((prop::bool::weighted(0.2), op()), 1..120),
        most in 1..3usize,
    ) {
        let mut world = Lagging::new(most);
        for (look, op) in &ops {
            world.step(op);
            if *look {
                world.look();
            }
        }
        world.look();
    }
}

/// A queue of so many messages.
fn full(n: usize) -> Queue {
    no_numbers();
    let mut queue = Queue::new();
    queue.mpush(MS, &vec![&b"x"[..]; n], 0, &PushOptions::default(), &mut quiet()).unwrap();
    queue
}

/// With very much due, a command does as much as it may, and none is there twice.
#[test]
fn a_command_does_a_bounded_part_of_what_is_due() {
    let mut queue = full(1_000);
    let claim = ClaimOptions { count: 1_000, lease: Some(MS), ..ClaimOptions::default() };
    let held = queue.claim(MS, &claim, &mut quiet());
    let receipts: Vec<Receipt> =
        held.iter().map(|d| Receipt { id: d.id.clone(), claim: d.claim.unwrap() }).collect();
    assert!(!queue.apply_due(3 * MS, 10, &mut quiet()));
    assert_eq!((queue.len(Some(State::Ready)), queue.len(Some(State::InFlight))), (10, 990));
    assert_eq!(queue.ack(3 * MS, &receipts[500..502], &mut quiet())[..], [Receipted::NotHeld; 2]);
    assert_eq!(queue.len(Some(State::Ready)), 12);
    assert_eq!(queue.requeue(3 * MS, Which::All, 10, &mut quiet()), 0);
    let again = queue.claim(3 * MS, &claim, &mut quiet());
    assert_eq!(again.len(), 12);
    // A TTL that all are past, which is to be found out first, piece by piece.
    let mut journal = quiet();
    journal.allow(10);
    queue.set(9 * MS, &Settings { ttl: Some(MS), ..Settings::default() }, &mut journal);
    assert!(queue.len(None) > 900 && queue.is_behind(9 * MS));
    let mut journal = quiet();
    journal.allow(10);
    assert_eq!(queue.claim(9 * MS, &claim, &mut journal).len(), 0);
    while !queue.apply_due(9 * MS, 7, &mut quiet()) {
        queue.audit();
    }
    assert_eq!((queue.len(None), queue.info(9 * MS).totals.expired), (0, 1_000));
}

/// MAXLEN lowered far below what is there: one push drops some, later ones are decided as if all
/// had gone, and no more go than had to.
#[test]
fn what_a_push_asks_to_be_dropped_goes_in_pieces() {
    let mut queue = full(100);
    let on_full = Some(OnFull::DropOld);
    queue.set(MS, &Settings { max_len: Some(10), on_full, ..Settings::default() }, &mut quiet());
    assert_eq!(queue.len(None), 100);
    let push = |queue: &mut Queue| {
        let mut journal = quiet();
        journal.allow(5);
        queue.push(2 * MS, b"y", 0, None, &PushOptions::default(), &mut journal).unwrap().unwrap()
    };
    push(&mut queue);
    assert_eq!((queue.len(None), queue.info(MS).totals.dropped), (96, 5));
    push(&mut queue);
    // Those that are claimed meanwhile need not be dropped.
    let claim = ClaimOptions { count: 20, ..ClaimOptions::default() };
    assert_eq!(queue.claim(2 * MS, &claim, &mut quiet()).len(), 20);
    while !queue.apply_due(2 * MS, 3, &mut quiet()) {
        queue.audit();
    }
    assert_eq!((queue.len(Some(State::Ready)), queue.len(None)), (10, 30));
    assert_eq!(queue.info(MS).totals.dropped, 72);
}

/// MAXDEAD lowered: those that are to go are nowhere meant any more, before they are gone.
#[test]
fn the_dead_that_are_to_go_are_not_redriven() {
    let mut queue = full(100);
    let claim = ClaimOptions { count: 100, ..ClaimOptions::default() };
    let held = queue.claim(MS, &claim, &mut quiet());
    let receipts: Vec<Receipt> =
        held.iter().map(|d| Receipt { id: d.id.clone(), claim: d.claim.unwrap() }).collect();
    let dead = NackOptions { dead: true, ..NackOptions::default() };
    queue.nack(MS, &receipts, &dead, &mut quiet());
    let mut journal = quiet();
    journal.allow(5);
    queue.set(MS, &Settings { max_dead: Some(10), ..Settings::default() }, &mut journal);
    assert_eq!(queue.len(Some(State::Dead)), 95);
    assert_eq!((queue.get(&Id::Num(50)).is_some(), queue.get(&Id::Num(95)).is_some()), (false, true));
    assert_eq!(queue.redrive(MS, Some(&[Id::Num(50), Id::Num(95)]), 9, 0, &mut quiet()), 1);
    assert_eq!(queue.redrive(MS, None, 4, 0, &mut quiet()), 4);
    assert_eq!(queue.purge(Scope::Dead, None, &mut quiet()), 5);
    queue.audit();
    assert!(queue.apply_due(MS, 1, &mut quiet()) && queue.len(Some(State::Dead)) == 0);
}

/// What was pushed after the clock stepped back lies before what it pushed out, and stays.
#[test]
fn after_a_step_back_the_push_is_not_dropped_for_itself() {
    let mut queue = Queue::new();
    queue.mpush(9 * MS, &[&b"x"[..]; 20], 0, &PushOptions::default(), &mut quiet()).unwrap();
    let on_full = Some(OnFull::DropOld);
    queue.set(MS, &Settings { max_len: Some(3), on_full, ..Settings::default() }, &mut quiet());
    let mut journal = quiet();
    journal.allow(1);
    let id = queue.push(MS, b"y", 0, None, &PushOptions::default(), &mut journal).unwrap().unwrap();
    while !queue.apply_due(MS, 3, &mut quiet()) {}
    assert_eq!(queue.len(None), 3);
    assert!(queue.get(&id).is_some());
}
