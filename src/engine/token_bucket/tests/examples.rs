//! Single histories with their right answers.

use super::*;

#[test]
fn a_plain_bucket_is_small() {
    let mut o = TokenBucket::blank();
    let mut j = Journal::new(Family::TokenBucket, true);
    o.take(lim(Some((1000, 1000, 60_000))), 1, Mode::Whole, T0, &mut j).unwrap();
    assert_eq!(o.memory(), 40);
    o.ban_for(5, T0, &mut j);
    assert!(o.memory() > 40);
    o.ban_for(0, T0, &mut j);
    assert_eq!(o.memory(), 40);
    let ([granted, ..], hold) = o.hold(None, 1, 5, true, T0, &mut j).unwrap();
    assert_eq!(granted, 1);
    o.settle_hold(hold.unwrap(), 1, T0, &mut j).unwrap();
    assert_eq!(o.memory(), 40);
}

#[test]
fn ten_thousand_bookings_are_served_in_order() {
    let mut o = TokenBucket::blank();
    let mut j = Journal::new(Family::TokenBucket, false);
    o.set(lim(Some((1, 1000, 1000))).unwrap(), 0, Policy::Keep, T0, &mut j);
    o.take(None, 1, Mode::Whole, T0, &mut j).unwrap();
    for ticket in 1..=10_000 {
        assert_eq!(o.take_or_book(None, 1, 31_622_400_000, ticket, T0, &mut j), Ok(None));
    }
    assert_eq!(o.next_event(), Some(T0 + 1000));
    // Half of them go away; the others move up.
    for ticket in (1..=10_000).step_by(2) {
        o.depart(ticket, T0, &mut j);
    }
    let mut now = T0;
    for ticket in (2..=10_000).step_by(2) {
        now += 1000;
        assert_eq!(o.next_event(), Some(now));
        assert!(o.apply_due(now, 10, &mut j));
        let [(told, answer)] = o.answers(usize::MAX).try_into().unwrap();
        let six = six_of(answer);
        assert_eq!((told, six[0]), (ticket, 1));
    }
    assert_eq!(o.waiting(), 0);
}

#[test]
fn a_small_budget_is_kept() {
    let mut o = TokenBucket::blank();
    let mut j = Journal::new(Family::TokenBucket, false);
    o.set(lim(Some((100, 1, 1000))).unwrap(), 0, Policy::Keep, T0, &mut j);
    for _ in 0..10 {
        o.hold(None, 5, 1000, true, T0, &mut j).unwrap();
    }
    assert!(!o.apply_due(T0 + 1_000_000, 4, &mut j));
    assert_eq!(o.info(T0 + 1_000_000).unwrap().holds, 0);
    assert_eq!(o.next_event(), Some(T0 + 1_000_000));
    assert!(!o.apply_due(T0 + 1_000_000, 4, &mut j));
    assert!(o.apply_due(T0 + 1_000_000, 4, &mut j));
    assert_eq!(o.next_event(), None);
}

#[test]
fn orphans_keep_what_they_booked() {
    let mut o = TokenBucket::blank();
    let mut j = Journal::new(Family::TokenBucket, false);
    let l = lim(Some((5, 1, 1000)));
    o.take(l, 5, Mode::Whole, T0, &mut j).unwrap();
    assert_eq!(o.take_or_book(l, 2, 60_000, 1, T0, &mut j), Ok(None));
    assert_eq!(o.take_or_book(l, 3, 60_000, 2, T0, &mut j), Ok(None));
    let told = o.orphans();
    assert_eq!(
        told,
        [(1, Some(Answer::Six([2, 5, 5, 0, 0, 0]))), (2, Some(Answer::Six([3, 5, 5, 0, 0, 0])))]
    );
    assert_eq!(o.waiting(), 0);
}

#[test]
fn a_cold_bucket_starts_with_a_third() {
    let (mut o, mut j) = (TokenBucket::blank(), Journal::new(Family::TokenBucket, false));
    o.set(lim(Some((9, 1, 1000))).unwrap(), 9000, Policy::Keep, T0, &mut j);
    let at = |ms: i64| T0 + ms * MS;
    assert_eq!(o.peek(None, 3, at(0)), Ok([3, 9, 0, 0, 2374, 12_000]));
    assert_eq!(o.take(None, 3, Mode::Whole, at(0), &mut j), Ok([3, 9, 0, 0, 2374, 12_000]));
    assert_eq!(o.take(None, 1, Mode::Whole, at(2373), &mut j), Ok([0, 9, 0, 1, 1, 9627]));
    assert_eq!(o.take(None, 1, Mode::Whole, at(2374), &mut j).unwrap()[0], 1);
    assert_eq!(o.take(None, 5, Mode::Whole, at(9000), &mut j), Ok([5, 9, 0, 0, 1000, 9000]));
    assert_eq!(o.peek(None, 8, at(17_999)), Ok([8, 9, 0, 0, 1, 8001]));
}

#[test]
fn a_clock_that_steps_back_grants_nothing_and_locks_nobody_out() {
    let (mut o, mut j) = (TokenBucket::blank(), Journal::new(Family::TokenBucket, false));
    let at = |ms: i64| T0 + ms * MS;
    o.set(lim(Some((4, 2, 1000))).unwrap(), 0, Policy::Keep, at(20_000), &mut j);
    assert_eq!(o.take(None, 4, Mode::Whole, at(20_000), &mut j), Ok([4, 4, 0, 0, 500, 2000]));
    assert_eq!(o.take(None, 1, Mode::Whole, at(10_000), &mut j), Ok([0, 4, 0, 500, 500, 2000]));
    assert_eq!(o.take(None, 4, Mode::Whole, at(12_000), &mut j), Ok([4, 4, 0, 0, 500, 2000]));
}

#[test]
fn a_hold_is_closed_at_its_own_instant_however_late_that_is_noticed() {
    let (mut o, mut j) = (TokenBucket::blank(), Journal::new(Family::TokenBucket, false));
    let at = |ms: i64| T0 + ms * MS;
    let l = lim(Some((10, 1, 1000)));
    let (_, kept) = o.hold(l, 3, 1000, false, at(0), &mut j).unwrap();
    let (six, put_back) = o.hold(l, 6, 2000, true, at(0), &mut j).unwrap();
    assert_eq!(six, [6, 10, 1, 0, 1000, 9000]);
    assert!(kept < put_back);
    assert_eq!(o.next_event(), Some(at(1000)));
    // At 2 s there were 3, and 6 came back: full a second later, not before.
    assert_eq!(o.peek(l, 10, at(2500)), Ok([0, 10, 9, 500, 500, 500]));
    assert_eq!(o.settle_hold(put_back.unwrap(), 1, at(2500), &mut j), Err(NoSuchHold));
    assert_eq!(o.take(l, 9, Mode::Whole, at(2500), &mut j), Ok([9, 10, 0, 0, 500, 9500]));
}

#[test]
fn what_a_change_does_to_the_tokens_there() {
    for (policy, capacity, left) in [
        (Policy::Scale, 200, 80),
        (Policy::Keep, 200, 40),
        (Policy::Add, 200, 140),
        (Policy::Full, 200, 200),
        (Policy::Scale, 20, 8),
        (Policy::Keep, 20, 20),
        (Policy::Add, 20, 20),
    ] {
        let (mut o, mut j) = (TokenBucket::blank(), Journal::new(Family::TokenBucket, false));
        o.set(lim(Some((100, 100, 3_600_000))).unwrap(), 0, Policy::Keep, T0, &mut j);
        o.take(None, 60, Mode::Whole, T0, &mut j).unwrap();
        o.set(lim(Some((capacity, 100, 3_600_000))).unwrap(), 0, policy, T0, &mut j);
        assert_eq!(o.info(T0).unwrap().remaining, left, "{policy:?} to {capacity}");
    }
}
