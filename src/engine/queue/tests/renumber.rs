//! Numbers that are counted on come near their end: nothing is refused, and nothing else changes.

use super::super::config::Totals;
use super::super::wire::{MAX_NUMBER, MAX_SEQ};
use super::super::*;
use super::fold::{carry, load, snapshot};
use super::hostile::rich;
use crate::engine::family::Family;
use crate::engine::fencing::FencingCounter;
use crate::engine::journal::Journal;
use crate::engine::object::Object;

const NOW: i64 = 5_000_000;

/// As if the queue had been in use for very long since its messages came.
fn wear(q: &mut Queue) {
    (q.next_seq, q.next_turn, q.next_death) = (MAX_SEQ - 100, MAX_NUMBER - 100, MAX_NUMBER - 100);
    let many = MAX_NUMBER / 2;
    q.totals.pushed += many;
    q.totals.acked += many;
    q.totals.delivered = MAX_NUMBER - 100;
    q.look_for_wear();
}

/// One more message, in a group of its own, that has the next numbers.
fn one_more(q: &mut Queue) {
    let o = PushOptions { group: Some(b"new"), ..PushOptions::default() };
    let mut j = Journal::new(Family::Queue, false);
    q.resume(None, &mut j);
    assert!(q.push(NOW, b"x", 0, Some(Id::parse(b"more")), &o, &mut j).unwrap().is_some());
}

/// What clients see of the order of things.
fn order(q: &Queue) -> Vec<Vec<Id>> {
    let states = [State::Ready, State::Delayed, State::InFlight, State::Dead];
    let ids = |state| {
        let (_, listed) = q.list(state, None, Cursor::Start, 100, usize::MAX).unwrap();
        listed.iter().map(|v| v.id.clone()).collect()
    };
    states.into_iter().map(ids).collect()
}

#[test]
fn numbers_near_their_end_begin_anew_and_the_order_stays() {
    let (mut low, mut high) = (rich().0, rich().0);
    wear(&mut high);
    one_more(&mut high);
    one_more(&mut low);
    assert!(high.is_crowded() && !low.is_crowded());
    // As it is, it can be stored and followed.
    let mut follower = load(&snapshot(&high), &mut FencingCounter::new());
    let mut j = Journal::new(Family::Queue, true);
    assert_eq!(high.next_event(), Some(0));
    assert!(
        high.apply_due(NOW, 100, &mut j) && low.apply_due(NOW, 100, &mut Journal::new(Family::Queue, false))
    );
    assert!(!high.is_crowded());
    high.audit();
    assert_eq!(order(&high), order(&low));
    carry(&mut follower, &mut j, &[]);
    assert_eq!(snapshot(&follower), snapshot(&high));
    // From here on it goes as it would have gone.
    let all = ClaimOptions { count: 100, ..ClaimOptions::default() };
    let got = [&mut low, &mut high].into_iter().map(|q| {
        let got = q.claim(NOW + 10, &all, &mut j);
        got.into_iter().map(|d| d.id).collect::<Vec<_>>()
    });
    let got: Vec<_> = got.collect();
    assert!(got[0].len() >= 3, "{got:?}");
    assert_eq!(got[0], got[1]);
    high.audit();
    load(&snapshot(&high), &mut FencingCounter::new());
}

#[test]
fn totals_that_begin_anew_still_add_up() {
    let mut q = rich().0;
    wear(&mut q);
    q.apply_due(NOW, 100, &mut Journal::new(Family::Queue, false));
    assert!(q.check().is_ok());
    assert_eq!(q.totals, Totals { pushed: q.messages.len() as u64, ..Totals::default() });
}

#[test]
fn without_own_numbers_left_a_push_needs_an_id() {
    let mut q = Queue::new();
    let mut j = Journal::new(Family::Queue, false);
    q.next_id = MAX_NUMBER - 3;
    let o = PushOptions::default();
    let mut own = 0;
    while q.push(NOW, b"x", 0, None, &o, &mut j).is_ok() {
        own += 1;
        assert!(own < 10);
    }
    assert_eq!(q.push(NOW, b"x", 0, None, &o, &mut j), Err(Refusal::Numbers));
    assert_eq!(q.mpush(NOW, &[b"x"], 0, &o, &mut j), Err(Refusal::Numbers));
    assert!(q.push(NOW, b"x", 0, Some(Id::parse(b"mine")), &o, &mut j).unwrap().is_some());
    load(&snapshot(&q), &mut FencingCounter::new()).audit();
}
