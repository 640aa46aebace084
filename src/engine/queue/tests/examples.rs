//! Examples that say what a queue is for.

use super::super::*;
use super::fold::{carry, snapshot};
use crate::engine::family::Family;
use crate::engine::fencing::FencingCounter;
use crate::engine::journal::{Blob, Journal};
use crate::engine::object::{Object, apply_batch};

const S: i64 = 1_000_000;

fn quiet() -> Journal {
    Journal::new(Family::Queue, false)
}

fn push(q: &mut Queue, now: i64, payload: &[u8], o: &PushOptions<'_>) -> Id {
    q.push(now, payload, 0, None, o, &mut quiet()).unwrap().unwrap()
}

fn claim(q: &mut Queue, now: i64, count: usize) -> Vec<Delivery> {
    q.claim(now, &ClaimOptions { count, ..ClaimOptions::default() }, &mut quiet()).to_vec()
}

fn receipt(d: &Delivery) -> Receipt {
    Receipt { id: d.id.clone(), claim: d.claim.unwrap() }
}

#[test]
fn a_lease_that_ends_gives_the_message_back_to_its_place() {
    let mut q = Queue::new();
    let o = PushOptions::default();
    for text in [b"a", b"b", b"c"] {
        push(&mut q, S, text, &o);
    }
    let first = claim(&mut q, S, 1).remove(0);
    assert_eq!((q.payload(&first), first.deliveries), (b"a".as_slice(), 1));
    assert_eq!(q.next_event(), Some(31 * S));
    assert!(q.apply_due(31 * S, 10, &mut quiet()));
    assert_eq!(q.ack(31 * S, &[receipt(&first)], &mut quiet())[..], [Receipted::NotHeld]);
    let again = claim(&mut q, 31 * S, 3);
    let order: Vec<&[u8]> = again.iter().map(|d| q.payload(d)).collect();
    assert_eq!(order, [b"a", b"b", b"c"]);
    assert!(again[0].claim > first.claim);
}

#[test]
fn settling_is_bounded_and_goes_on_where_it_stopped() {
    let mut q = Queue::new();
    for n in 0..50 {
        push(&mut q, S, b"x", &PushOptions { due: Some(2 * S + n), ..PushOptions::default() });
    }
    let mut calls = 1;
    while !q.apply_due(3 * S, 7, &mut quiet()) {
        calls += 1;
    }
    assert_eq!((calls, q.len(Some(State::Ready))), (8, 50));
}

#[test]
fn one_tenant_does_not_starve_another() {
    let mut q = Queue::new();
    let of = |group| PushOptions { group: Some(group), ..PushOptions::default() };
    for _ in 0..2_000 {
        push(&mut q, S, b"many", &of(b"A"));
    }
    push(&mut q, S, b"one", &of(b"B"));
    let got = claim(&mut q, S, 2);
    assert_eq!((q.payload(&got[0]), q.payload(&got[1])), (b"many".as_slice(), b"one".as_slice()));
    assert_eq!(q.info(S).groups, 2);
}

#[test]
fn payloads_are_carried_as_arguments_and_many_claims_in_few_bytes() {
    let (mut q, mut follower) = (Queue::new(), Queue::new());
    let mut j = Journal::new(Family::Queue, true);
    let payloads: Vec<&[u8]> = vec![b"payload"; 600];
    let ids = q.mpush(S, &payloads, 3, &PushOptions::default(), &mut j).unwrap();
    assert_eq!((ids.len(), &ids[599]), (600, &Id::Num(600)));
    let batches = j.take();
    let args: Vec<&Blob> = batches.iter().flat_map(|b| &b.blobs).collect();
    assert_eq!((args.len(), args[0], args[599]), (600, &Blob::Arg(3), &Blob::Arg(602)));
    for batch in &batches {
        let mut blobs = batch.blobs.iter().map(|_| b"payload".as_slice().into());
        apply_batch(&mut follower, &batch.head, &mut blobs, &mut FencingCounter::new()).unwrap();
    }
    let o = ClaimOptions { count: 600, ..ClaimOptions::default() };
    let got = q.claim(S, &o, &mut j);
    let receipts: Vec<Receipt> = got.iter().map(receipt).collect();
    let batches = j.take();
    assert!(batches.iter().map(|b| b.head.len()).sum::<usize>() < 600 * 14);
    for batch in &batches {
        apply_batch(&mut follower, &batch.head, &mut std::iter::empty(), &mut FencingCounter::new()).unwrap();
    }
    assert_eq!(snapshot(&q), snapshot(&follower));
    q.ack(S, &receipts, &mut j);
    carry(&mut follower, &mut j, &[]);
    assert_eq!((q.len(None), snapshot(&q)), (0, snapshot(&follower)));
}

#[test]
fn a_refusal_changes_nothing() {
    let mut q = Queue::new();
    q.set(S, &Settings { max_len: Some(1), ..Settings::default() }, &mut quiet());
    push(&mut q, S, b"a", &PushOptions::default());
    let before = snapshot(&q);
    let mut j = Journal::new(Family::Queue, true);
    let o = PushOptions::default();
    assert_eq!(q.push(S, b"b", 0, None, &o, &mut j), Err(Refusal::Full));
    assert_eq!(q.push(S, b"b", 0, Some(Id::Num(1)), &o, &mut j), Ok(None));
    assert!(!q.claimable(S, Some(b"nobody")));
    assert_eq!(q.ack(S, &[Receipt { id: Id::Num(1), claim: 9 }], &mut j)[..], [Receipted::NotHeld]);
    assert_eq!(q.extend(S, S, &[Receipt { id: Id::Num(2), claim: 9 }], &mut j)[..], [Receipted::Gone]);
    assert_eq!((q.redrive(S, None, 9, 0, &mut j), q.purge(Scope::Dead, None, &mut j)), (0, 0));
    assert!(!j.changed() && snapshot(&q) == before);
    assert_eq!(q.info(S).rejected, 2);
    assert_eq!(q.duplicate().info(S).rejected, 2);
}

#[test]
fn the_dead_of_one_id_are_known_by_the_last() {
    let mut q = Queue::new();
    for text in [b"1st", b"2nd", b"3rd"] {
        q.push(S, text, 0, Some(Id::parse(b"x")), &PushOptions::default(), &mut quiet()).unwrap();
        let d = claim(&mut q, S, 1).remove(0);
        let dead = NackOptions { dead: true, reason: Some(b"bad"), ..NackOptions::default() };
        assert_eq!(q.nack(S, &[receipt(&d)], &dead, &mut quiet())[..], [Receipted::Dead]);
    }
    assert_eq!(q.get(&Id::parse(b"x")).unwrap().payload, b"3rd");
    assert_eq!(q.redrive(S, Some(&[Id::parse(b"x")]), 9, 0, &mut quiet()), 1);
    assert_eq!(q.delete(S, &[Id::parse(b"x")], &mut quiet()), 1);
    assert_eq!(q.get(&Id::parse(b"x")).unwrap().payload, b"2nd");
    assert_eq!(q.redrive(S, None, 9, 0, &mut quiet()), 1);
    assert_eq!(q.get(&Id::parse(b"x")).unwrap().payload, b"1st");
    q.audit();
}

#[test]
fn memory_is_given_back() {
    let mut q = Queue::new();
    for _ in 0..20_000 {
        push(&mut q, S, &[0; 100], &PushOptions::default());
    }
    let full = q.memory();
    assert!((20_000 * 165..20_000 * 200).contains(&full), "{full}");
    let receipts: Vec<Receipt> = claim(&mut q, S, 20_000).iter().map(receipt).collect();
    assert!(q.memory() < 20_000 * 285, "{}", q.memory());
    q.ack(S, &receipts, &mut quiet());
    assert!(q.memory() < 100_000, "{}", q.memory());
    q.audit();
}

#[test]
fn payloads_move_to_denser_memory_step_by_step_and_nothing_else_changes() {
    let mut q = Queue::new();
    for n in 0..100u8 {
        push(&mut q, S, &[n; 40], &PushOptions::default());
    }
    let before = snapshot(&q);
    let (mut moved, mut cursor, mut visits) = (0, Some(0), 0);
    while let Some(from) = cursor {
        let mut relocate = |block: Box<[u8]>| {
            moved += 1;
            Box::from(&*block)
        };
        cursor = q.defrag(from, &mut relocate, &mut || true);
        visits += 1;
    }
    assert_eq!(moved, 100);
    assert!(visits > 5, "it stops when told to");
    assert_eq!(snapshot(&q), before);
}

#[test]
fn the_last_claim_number_is_kept_though_its_message_is_gone() {
    let mut q = Queue::new();
    push(&mut q, S, b"x", &PushOptions::default());
    let mut far = Journal::drawing(Family::Queue, false, |_| 7_000 * S as u64);
    let d = q.claim(S, &ClaimOptions { count: 1, ..ClaimOptions::default() }, &mut far).remove(0);
    assert_eq!(d.claim, Some(7_000 * S as u64));
    q.ack(S, &[receipt(&d)], &mut quiet());
    let mut other = FencingCounter::new();
    super::fold::load(&snapshot(&q), &mut other);
    assert_eq!(Some(other.last()), d.claim);
}

#[test]
fn what_was_taken_with_noack_and_reached_nobody_is_ready_again() {
    let (mut q, mut follower) = (Queue::new(), Queue::new());
    let mut j = Journal::new(Family::Queue, true);
    let o = PushOptions { group: Some(b"g"), priority: 3, ..PushOptions::default() };
    q.push(S, b"lost", 0, Some(Id::parse(b"x")), &o, &mut j).unwrap();
    carry(&mut follower, &mut j, &[b"lost"]);
    q.push(2 * S, b"later", 0, None, &o, &mut j).unwrap();
    carry(&mut follower, &mut j, &[b"later"]);
    let claim = ClaimOptions { no_ack: true, returnable: true, ..ClaimOptions::default() };
    let taken = q.claim(3 * S, &claim, &mut j);
    assert_eq!(q.payload(&taken[0]), b"lost");
    assert_eq!((q.len(None), q.info(3 * S).totals.acked), (1, 1));
    let taken: Vec<Taken> = taken.into_iter().filter_map(Delivery::into_taken).collect();
    q.untake(4 * S, taken, &mut j);
    carry(&mut follower, &mut j, &[]);
    assert_eq!(snapshot(&q), snapshot(&follower));
    assert_eq!((q.len(None), q.info(4 * S).totals.acked), (2, 0));
    // Before what came after it, and known to have been handed out once.
    let again = claim_one(&mut q, 5 * S);
    assert_eq!((q.payload(&again), again.deliveries), (b"lost".as_slice(), 2));
    assert_eq!(again.id, Id::parse(b"x"));
    // One whose id is another's by now stays gone.
    let taken = q.claim(6 * S, &claim, &mut j);
    assert_eq!(q.payload(&taken[0]), b"later");
    let id = taken[0].id.clone();
    let taken: Vec<Taken> = taken.into_iter().filter_map(Delivery::into_taken).collect();
    q.push(6 * S, b"newer", 0, Some(id), &PushOptions::default(), &mut j).unwrap();
    q.untake(7 * S, taken, &mut j);
    let only = claim_one(&mut q, 8 * S);
    assert_eq!(q.payload(&only), b"newer");
}

fn claim_one(q: &mut Queue, now: i64) -> Delivery {
    claim(q, now, 1).remove(0)
}
