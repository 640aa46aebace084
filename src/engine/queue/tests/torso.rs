//! A queue of which only a part has come: it is stored and loaded as it is, time leaves it alone,
//! and the rest may still come, or not.

use super::super::*;
use super::fold::{blobs, carry, load, snapshot};
use crate::engine::family::Family;
use crate::engine::fencing::FencingCounter;
use crate::engine::journal::{Batch, Journal};
use crate::engine::object::{Object, apply_batch};

const NOW: i64 = 5_000_000;
const LATER: i64 = NOW + 900_000_000;

/// More than fits into one piece of a snapshot, of every kind.
fn large() -> Queue {
    let mut q = Queue::new();
    let mut j = Journal::new(Family::Queue, false);
    q.set(NOW, &Settings { dedup: Some(60_000_000), ..Settings::default() }, &mut j);
    for n in 0..900_u32 {
        let group = [None, Some(b"g".as_slice()), Some(b"h")][n as usize % 3];
        let due = (n % 5 == 0).then_some(NOW + i64::from(n) * 1_000);
        let o = PushOptions { group, due, lease: Some(1_000_000), ..PushOptions::default() };
        q.push(NOW, &n.to_be_bytes(), 0, Some(Id::parse(format!("id{n}").as_bytes())), &o, &mut j).unwrap();
    }
    let got = q.claim(NOW, &ClaimOptions { count: 300, ..ClaimOptions::default() }, &mut j);
    let receipts: Vec<Receipt> =
        got.iter().map(|d| Receipt { id: d.id.clone(), claim: d.claim.unwrap() }).collect();
    let dead = NackOptions { dead: true, ..NackOptions::default() };
    q.nack(NOW, &receipts[..100], &dead, &mut j);
    let keep = PushOptions { on_dup: OnDup::KeepLast, ..PushOptions::default() };
    for r in &receipts[100..150] {
        q.push(NOW, b"follower", 0, Some(r.id.clone()), &keep, &mut j).unwrap();
    }
    q.audit();
    q
}

fn go_on(queue: &mut Queue, batches: &[Batch]) {
    for batch in batches {
        let mut payloads = blobs(batch, &[]).into_iter();
        apply_batch(queue, &batch.head, &mut payloads, &mut FencingCounter::new()).unwrap();
    }
}

type Carried = (Vec<u8>, Vec<Box<[u8]>>);

fn bytes(queue: &Queue) -> Vec<Carried> {
    snapshot(queue).iter().map(|b| (b.head.clone(), blobs(b, &[]))).collect()
}

#[test]
fn every_prefix_of_a_snapshot_loads_and_the_rest_may_follow() {
    let whole = large();
    let batches = snapshot(&whole);
    assert!(batches.len() > 4, "{} batches", batches.len());
    for at in 1..batches.len() {
        let part = load(&batches[..at], &mut FencingCounter::new());
        assert!(part.is_torso());
        // Stored in the middle and loaded again, and that once more.
        let again = load(&snapshot(&part), &mut FencingCounter::new());
        assert_eq!(bytes(&again), bytes(&part));
        let mut again = again.duplicate();
        assert_eq!(again.next_event(), None, "time leaves it alone");
        go_on(&mut again, &batches[at..]);
        assert_eq!(bytes(&again), bytes(&whole));
        assert!(!again.is_torso());
        again.audit();
        assert!(again.next_event().is_some());
    }
}

#[test]
fn what_changes_a_part_takes_it_for_the_whole_here_and_on_replicas() {
    let batches = snapshot(&large());
    for at in 1..batches.len() {
        let mut part = load(&batches[..at], &mut FencingCounter::new());
        let mut follower = load(&batches[..at], &mut FencingCounter::new());
        let missing = |q: &Queue| q.totals.held().unwrap() - q.messages.len() as u64;
        let (there, missed) = (part.len(None), missing(&part));
        assert_eq!(part.loading.map(|l| l.missing), Some(missed));
        assert!(missed > 0 && part.is_ahead(LATER), "a command settles it");
        let mut j = Journal::new(Family::Queue, true);
        assert!(part.apply_due(LATER, usize::MAX, &mut j));
        assert_eq!((missing(&part), part.totals.deleted, part.is_torso()), (0, missed, false));
        part.push(LATER, b"more", 0, None, &PushOptions::default(), &mut j).unwrap();
        carry(&mut follower, &mut j, &[b"more"]);
        assert_eq!(bytes(&follower), bytes(&part));
        assert_eq!(part.len(None), there + 1);
        part.audit();
        load(&snapshot(&part), &mut FencingCounter::new()).audit();
        // Nothing more is taken for a part of it.
        let mut rest = blobs(&batches[at], &[]).into_iter();
        assert!(apply_batch(&mut part, &batches[at].head, &mut rest, &mut FencingCounter::new()).is_err());
    }
}

#[test]
fn more_than_the_totals_say_is_refused() {
    let mut q = large();
    q.totals.pushed -= 1;
    assert!(q.check().is_err());
    let (mut loaded, batches) = (Queue::blank(), snapshot(&q));
    let (last, others) = batches.split_last().unwrap();
    go_on(&mut loaded, others);
    let mut payloads = blobs(last, &[]).into_iter();
    assert!(apply_batch(&mut loaded, &last.head, &mut payloads, &mut FencingCounter::new()).is_err());
}
