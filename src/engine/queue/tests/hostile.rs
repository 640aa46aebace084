//! Bytes that nobody vouches for: every truncation and many flips of snapshots and batches never
//! panic, and what is accepted leaves a queue in order.

use super::super::wire::Wire;
use super::super::*;
use super::fold::{blobs, load, snapshot};
use crate::engine::bucket::Limits;
use crate::engine::collections::slab::NONE;
use crate::engine::family::Family;
use crate::engine::fencing::{FencingCounter, MAX_FENCE};
use crate::engine::journal::{Batch, Journal};
use crate::engine::object::{Object, apply_batch};
use crate::engine::tests::journal;

const NOW: i64 = 5_000_000;

/// A queue with something of everything, and the batches of a few commands that may come next.
pub fn rich() -> (Queue, Vec<Batch>) {
    let mut q = Queue::new();
    let mut j = journal(Family::Queue, true);
    let limits = Limits::new(90, 1, 1_000);
    let settings = Settings {
        rate: Some(limits),
        group_rate: Some(limits),
        ttl: Some(60_000_000),
        dedup: Some(9_000_000),
        aging: Some(1_000),
        ..Settings::default()
    };
    q.set(NOW, &settings, &mut j);
    for n in 0..6u8 {
        let group = [None, Some(b"g".as_slice()), Some(b"hh")][usize::from(n) % 3];
        let o = PushOptions { group, priority: n, lease: Some(1_000_000), ..PushOptions::default() };
        q.push(NOW, &[n; 5], 0, Some(Id::parse(&[b'a' + n])), &o, &mut j).unwrap();
        let due = Some(NOW + i64::from(n));
        q.mpush(NOW, &[b"own", b"er"], 0, &PushOptions { due, ..o }, &mut j).unwrap();
    }
    let o = ClaimOptions { count: 6, consumer: Some(b"worker"), ..ClaimOptions::default() };
    let got = q.claim(NOW, &o, &mut j);
    let receipts: Vec<Receipt> =
        got.iter().map(|d| Receipt { id: d.id.clone(), claim: d.claim.unwrap() }).collect();
    let dead = NackOptions { dead: true, ..NackOptions::default() };
    q.nack(NOW, &receipts[..2], &dead, &mut j);
    let later = NackOptions { delay: Some(7_000), ..NackOptions::default() };
    q.nack(NOW, &receipts[2..3], &later, &mut j);
    let keep = PushOptions { on_dup: OnDup::KeepLast, ..PushOptions::default() };
    for r in &receipts[3..] {
        q.push(NOW, b"follower", 0, Some(r.id.clone()), &keep, &mut j).unwrap();
    }
    q.pause(NOW, true, false, Some(b"hh"), Pause::Forever, &mut j);
    q.pause(NOW, true, false, None, Pause::Until(NOW + 5), &mut j);
    let mut next = journal(Family::Queue, true);
    let mut after = q.clone();
    after.audit();
    let t = NOW + 3;
    after.apply_due(t, 100, &mut next);
    let got = after.claim(t, &ClaimOptions { count: 3, no_ack: true, ..o }, &mut next);
    assert!(!got.is_empty());
    after.ack(t, &receipts[3..5], &mut next);
    after.redrive(t, None, 9, 0, &mut next);
    after.resume(None, &mut next);
    let replace = PushOptions { on_dup: OnDup::Replace, ..PushOptions::default() };
    for n in 0..6u8 {
        let _ = after.push(t, b"new", 0, Some(Id::parse(&[b'a' + n])), &replace, &mut next);
    }
    let mut other = Queue::new();
    other.move_to(&mut after, t, Movable::Ready, 5, &mut Journal::new(Family::Queue, true), &mut next);
    after.extend(t, 50_000, &receipts[5..], &mut next);
    after.delete(t, &[Id::parse(b"a")], &mut next);
    after.apply_due(t + 90_000_000, 1_000, &mut next);
    after.purge(Scope::All, None, &mut next);
    after.audit();
    (q, next.take())
}

/// Applies the bytes to a copy; whatever comes of it, the copy is in order and settles.
fn apply(base: &Queue, head: &[u8], payloads: &[Box<[u8]>]) -> bool {
    let mut q = base.clone();
    let mut f = FencingCounter::new();
    let done = apply_batch(&mut q, head, &mut payloads.iter().cloned(), &mut f).is_ok();
    assert!(f.last() <= MAX_FENCE);
    if done {
        let totals = q.totals.held() == Some(q.messages.len() as u64);
        if totals {
            q.audit();
        }
        let mut j = Journal::new(Family::Queue, false);
        assert!(q.apply_due(NOW + 400 * 86_400 * 1_000_000, 100_000, &mut j));
        q.claim(NOW * 2, &ClaimOptions { count: 100, ..ClaimOptions::default() }, &mut j);
        let _ = q.push(NOW, b"x", 0, None, &PushOptions::default(), &mut j);
        let _ = (q.memory(), q.info(NOW), q.list(State::Ready, None, Cursor::Start, 100, usize::MAX));
        if totals {
            q.audit();
            // What was accepted never leads to what is not.
            load(&snapshot(&q), &mut FencingCounter::new());
        }
    }
    done
}

fn damage(base: &Queue, batch: &Batch) -> (usize, usize) {
    let args: Vec<&[u8]> = vec![b"payload"; 64];
    let payloads = blobs(batch, &args);
    assert!(apply(base, &batch.head, &payloads), "the sound one is accepted");
    assert!(payloads.is_empty() || !apply(base, &batch.head, &payloads[1..]), "a payload less is not");
    let (mut tried, mut accepted) = (0, 0);
    let mut attempt = |head: &[u8]| {
        tried += 1;
        accepted += usize::from(apply(base, head, &payloads));
    };
    for cut in 0..batch.head.len() {
        attempt(&batch.head[..cut]);
    }
    for at in 0..batch.head.len() {
        for flip in [1u8, 2, 4, 8, 16, 32, 64, 128, 255] {
            let mut head = batch.head.clone();
            head[at] ^= flip;
            attempt(&head);
        }
        for value in [0, 250, 251, 252, 253, 254, 255] {
            let mut head = batch.head.clone();
            head[at] = value;
            attempt(&head);
        }
    }
    (tried, accepted)
}

#[test]
fn damaged_snapshots_are_refused_or_sound() {
    let (q, _) = rich();
    let batches = snapshot(&q);
    let again = load(&batches, &mut FencingCounter::new());
    again.audit();
    assert_eq!(snapshot(&again), batches);
    let mut base = Queue::blank();
    let (mut tried, mut accepted) = (0, 0);
    for batch in &batches {
        let (t, a) = damage(&base, batch);
        tried += t;
        accepted += a;
        let mut payloads = blobs(batch, &[]).into_iter();
        apply_batch(&mut base, &batch.head, &mut payloads, &mut FencingCounter::new()).unwrap();
    }
    // Many flips only change a number or a letter.
    assert!(tried > 5_000 && accepted > 1_000 && accepted < tried * 3 / 4, "{accepted} of {tried}");
}

#[test]
fn damaged_batches_are_refused_or_sound() {
    let (q, batches) = rich();
    assert!(batches.iter().map(|b| b.head.len()).sum::<usize>() > 300);
    for batch in &batches {
        let (tried, accepted) = damage(&q, batch);
        assert!(accepted < tried / 2, "{accepted} of {tried}");
    }
}

#[test]
fn a_snapshot_is_for_a_blank_queue_and_needs_its_head() {
    let (q, _) = rich();
    let batches = snapshot(&q);
    let mut f = FencingCounter::new();
    for batch in &batches {
        let mut payloads = blobs(batch, &[]).into_iter();
        assert!(apply_batch(&mut q.clone(), &batch.head, &mut payloads, &mut f).is_err());
    }
    let mut payloads = blobs(&batches[1], &[]).into_iter();
    assert!(apply_batch(&mut Queue::blank(), &batches[1].head, &mut payloads, &mut f).is_err());
    assert!(Queue::blank().check().is_ok());
}

#[test]
fn totals_that_do_not_add_up_are_refused() {
    let (mut q, _) = rich();
    q.totals.acked += 1;
    assert!(q.check().is_err());
    q.totals.acked = u64::MAX;
    assert!(q.check().is_err());
}

/// Effects that only a damaged or forged batch can say: they must not make a queue whose totals do
/// not add up, which could be stored, and not loaded.
#[test]
fn what_was_not_missing_or_never_acknowledged_does_not_come() {
    let mut q = Queue::new();
    let mut j = journal(Family::Queue, true);
    for payload in [b"one", b"two"] {
        q.push(NOW, payload, 0, None, &PushOptions::default(), &mut j).unwrap();
    }
    let ready = |number: u64| {
        let place = (NOW, 90 + number);
        let record = effect::Record {
            stage: message::Stage::Ready,
            priority: 0,
            group: None,
            place,
            pushed_at: NOW,
            own: None,
            counters: [0; 3],
            consumer: None,
            reason: None,
            owns_window: false,
            turn: None,
        };
        (record, IdRef::Num(70 + number))
    };
    let dead = |number: u64| {
        let mut dead = ready(number);
        dead.0.stage = message::Stage::Dead { number: 9 + number, died_at: NOW, older: NONE, newer: NONE };
        dead.0.place = (0, 0);
        dead
    };
    let accepted = |q: &Queue, wire: &Wire<'_>, n: usize| {
        let mut j = Journal::new(Family::Queue, true);
        j.record(wire, []);
        let head = j.take().remove(0).head;
        let mut q = q.clone();
        let payloads = vec![Box::<[u8]>::from(*b"x"); n];
        let done = apply_batch(&mut q, &head, &mut payloads.into_iter(), &mut FencingCounter::new()).is_ok();
        assert!(q.check().is_ok(), "{wire:?}");
        q.audit();
        done
    };
    // Nothing was acknowledged yet; then one is.
    assert!(!accepted(&q, &Wire::Untake(vec![ready(1)]), 1));
    q.claim(NOW, &ClaimOptions { no_ack: true, ..ClaimOptions::default() }, &mut j);
    assert!(accepted(&q, &Wire::Untake(vec![ready(1)]), 1));
    assert!(!accepted(&q, &Wire::Untake(vec![ready(1), ready(2)]), 2));
    assert!(!accepted(&q, &Wire::Untake(vec![dead(1)]), 1), "a dead one was never handed out");
    assert!(accepted(&q, &Wire::Arrive(vec![dead(1)]), 1), "but it may come from elsewhere");
    // All that the totals speak of has come.
    let whole = load(&super::fold::snapshot(&q), &mut FencingCounter::new());
    assert!(whole.loading.is_some());
    assert!(!accepted(&whole, &Wire::Load(vec![ready(1)]), 1));
    assert!(!accepted(&whole, &Wire::Load(vec![dead(1)]), 1));
}
