//! Random histories of a resource that does one thing of what is put off under each command. What
//! it decides is what it would have decided had all been done before: that is asked of a copy which
//! is settled first. Only who is forgotten may lag.

use super::*;
use crate::engine::bucket::MAX_COUNT;
use crate::engine::journal::Batch;

const NAMES: [&str; 20] = [
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "g",
    "h",
    "i",
    "j",
    "subject 1",
    "subject 2",
    "subject 3",
    "subject 4",
    "subject 5",
    "subject 6",
    "subject 7",
    "a rather long name",
    "\u{0}",
    "u\u{0}\u{0}",
];

fn act() -> impl Strategy<Value = Act> {
    let name = || prop::sample::select(NAMES.map(str::as_bytes).to_vec());
    let max = || prop::sample::select(vec![1i64, 3, 7, 15, 30]);
    let limits = || prop_oneof![3 => any_limits(), 1 => Just((10, 1, 1000)), 1 => Just((10, 1, 100_000))];
    prop_oneof![
        3 => any_step().prop_map(Act::Step),
        3 => (limits(), max()).prop_map(|(l, m)| Act::Set(l, m)),
        2 => (name(), prop::option::of(limits())).prop_map(|(s, l)| Act::Except(s, l)),
        14 => (name(), any_cost(), any::<bool>()).prop_map(|(s, c, a)| Act::Take(s, c, a)),
        3 => (name(), any_cost()).prop_map(|(s, c)| Act::Peek(s, c)),
        1 => Just(Act::Reload),
    ]
}

struct World {
    now: Micros,
    most: usize,
    hot: Hot,
    follower: Hot,
}

fn quiet() -> Journal {
    Journal::new(Family::Hot, false)
}

fn carry(to: &mut Hot, batches: Vec<Batch>) {
    for batch in batches {
        apply_batch(to, &batch.head, &mut std::iter::empty(), &mut FencingCounter::new()).unwrap();
    }
}

impl World {
    fn journal(&self) -> Journal {
        let mut journal = Journal::new(Family::Hot, true);
        journal.allow(self.most);
        journal
    }

    /// The object as it would be if nothing were put off, but for who is still to be forgotten if
    /// there is `room`.
    fn settled(&self, room: bool) -> Hot {
        let mut hot = self.hot.duplicate();
        if room {
            hot.max = MAX_COUNT;
        }
        while !hot.apply_due(self.now, usize::MAX, &mut quiet()) {}
        hot
    }

    fn step(&mut self, act: &Act) {
        if let Act::Step(by) = act {
            self.now = (self.now + by).max(0);
        }
        let (now, mut j) = (self.now, self.journal());
        self.hot.apply_due(now, self.most, &mut j);
        carry(&mut self.follower, j.take());
        let (mut settled, mut roomy) = (self.settled(false), self.settled(true));
        let before = snapshot(&self.hot);
        let mut j = self.journal();
        match *act {
            Act::Step(_) => {}
            Act::Set(rule, max) => self.hot.set(lim(rule), max, now, &mut j),
            Act::Except(s, Some(limits)) => {
                assert_eq!(
                    self.hot.except(s, lim(limits), now, &mut j),
                    settled.except(s, lim(limits), now, &mut quiet())
                );
            }
            Act::Except(s, None) => {
                assert_eq!(
                    self.hot.except_no_more(s, now, &mut j),
                    settled.except_no_more(s, now, &mut quiet())
                );
            }
            Act::Take(s, cost, at_most) => {
                let got = self.hot.take(s, cost, at_most, now, &mut j);
                self.judge(
                    s,
                    got,
                    settled.take(s, cost, at_most, now, &mut quiet()),
                    roomy.take(s, cost, at_most, now, &mut quiet()),
                );
            }
            Act::Peek(s, cost) => {
                let got = self.hot.peek(s, cost, now);
                self.judge(s, got, settled.peek(s, cost, now), roomy.peek(s, cost, now));
            }
            Act::Reload => {
                self.hot = load(&before, &mut FencingCounter::new()).unwrap();
                self.follower = self.hot.duplicate();
            }
        }
        assert!(j.changed() || snapshot(&self.hot) == before, "a change was not recorded");
        carry(&mut self.follower, j.take());
        self.look();
    }

    /// The reply is by what the subject really has; that is what it would be, or the subject is one
    /// that is still to be forgotten.
    fn judge(
        &self,
        s: Name,
        got: Result<[i64; 6], NoRule>,
        settled: Result<[i64; 6], NoRule>,
        roomy: Result<[i64; 6], NoRule>,
    ) {
        assert_eq!(got, roomy, "{s:?}");
        let to_go = self.settled(false).forgotten > self.hot.forgotten
            || self.hot.subjects.len() > most(self.hot.max);
        assert!(got == settled || to_go, "{s:?}: {got:?}, not {settled:?}");
    }

    fn look(&self) {
        let (hot, follower) = (&self.hot, &self.follower);
        hot.subjects.audit();
        follower.subjects.audit();
        assert_eq!(snapshot(hot), snapshot(follower), "the follower is equal");
        assert_eq!(snapshot(hot), snapshot(&hot.duplicate()), "a copy is equal");
        let loaded: Hot = load(&snapshot(hot), &mut FencingCounter::new()).unwrap_or_default();
        assert_eq!(snapshot(hot), snapshot(&loaded), "what is loaded is equal");
        // In whatever pieces the rest is done, here, there or after a load, the end is the same.
        let end = snapshot(&self.settled(false));
        for mut other in [hot.duplicate(), follower.duplicate(), loaded] {
            while !other.apply_due(self.now, self.most, &mut quiet()) {}
            assert_eq!(snapshot(&other), end);
            assert!(other.subjects.len() <= most(other.max) && other.past.is_empty());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..Default::default() })]

    #[test]
    fn what_is_put_off_changes_no_decision(acts in prop::collection::vec(act(), 1..80), most in 1..4usize) {
        let mut world = World { now: T0, most, hot: Hot::blank(), follower: Hot::blank() };
        world.step(&Act::Set((10, 1, 1000), 30));
        for act in &acts {
            world.step(act);
        }
    }
}

/// A resource of so many subjects, each of which has taken more than the one before.
fn full(n: usize) -> Hot {
    let (mut hot, j) = (Hot::blank(), &mut quiet());
    hot.set(lim((1_000_000, 1, 1000)), DEFAULT_MAX, T0, j);
    for i in 0..n {
        hot.take(format!("{i:06}").as_bytes(), 1 + i as i64, false, T0, j).unwrap();
    }
    hot
}

fn allowing(most: usize) -> Journal {
    let mut journal = quiet();
    journal.allow(most);
    journal
}

#[test]
fn another_rule_is_in_force_at_once_and_its_work_is_done_in_pieces() {
    let mut hot = full(2_000);
    hot.set(lim((500_000, 1, 2000)), DEFAULT_MAX, T0, &mut allowing(10));
    assert_eq!(hot.unconverted, 1_990);
    // The first and the last are limited by the new rule; who has not been seen is full.
    assert_eq!(hot.peek(b"000000", 1, T0).unwrap()[1..3], [500_000, 499_999]);
    assert_eq!(hot.take(b"001999", 1, false, T0, &mut quiet()).unwrap()[1..3], [500_000, 499_999]);
    assert_eq!(hot.take(b"new", 1, false, T0, &mut quiet()).unwrap()[2], 499_999);
    assert_eq!(hot.next_event(), Some(crate::engine::object::AT_ONCE));
    let mut pieces = 0;
    while !hot.apply_due(T0, 100, &mut quiet()) {
        pieces += 1;
    }
    assert!((19..=20).contains(&pieces), "{pieces}");
    // All that had more than the new capacity are full, and gone.
    assert_eq!(hot.info(T0).unwrap().subjects, 2);
}

#[test]
fn rules_that_follow_each_other_are_all_reckoned_with() {
    let (mut hot, mut settled) = (full(500), full(500));
    for i in 0..20 {
        let (now, rule) = (T0 + i * 1_000_000, lim((1_000_000, 1 + i % 5, 1000 + i)));
        hot.set(rule, DEFAULT_MAX, now, &mut allowing(1));
        settled.set(rule, DEFAULT_MAX, now, &mut quiet());
        let name = format!("{:06}", i * 13);
        assert_eq!(hot.peek(name.as_bytes(), 1, now), settled.peek(name.as_bytes(), 1, now));
    }
    assert!(hot.past.len() < 8 && !hot.past.is_empty());
    assert_eq!(snapshot(&hot), snapshot(&settled));
}

#[test]
fn a_smaller_number_of_subjects_is_reached_in_pieces_nearest_to_full_first() {
    let mut hot = full(1_000);
    hot.set(lim((1_000_000, 1, 1000)), 100, T0, &mut allowing(10));
    assert_eq!((hot.subjects.len(), hot.info(T0).unwrap().forgotten), (990, 10));
    // Nobody is granted more meanwhile, and a new one does not let it grow.
    assert_eq!(hot.peek(b"000500", 1, T0).unwrap()[2], 1_000_000 - 501 - 1);
    assert_eq!(hot.take(b"new", 2_000, false, T0, &mut allowing(0)).unwrap()[0], 2_000);
    assert_eq!((hot.subjects.len(), hot.info(T0).unwrap().forgotten), (990, 11));
    while !hot.apply_due(T0, 7, &mut quiet()) {}
    assert_eq!((hot.subjects.len(), hot.info(T0).unwrap().forgotten), (100, 901));
    assert_eq!(hot.peek(b"000900", 1, T0).unwrap()[2], 999_999);
    assert_eq!(hot.peek(b"000901", 1, T0).unwrap()[2], 1_000_000 - 902 - 1);
}

/// Idle ones that come due together go in pieces, and nobody can tell.
#[test]
fn full_ones_go_in_pieces() {
    let mut hot = full(1_000);
    let later = T0 + 2_000_000 * MS + LINGER;
    assert!(!hot.apply_due(later, 10, &mut quiet()));
    assert_eq!((hot.subjects.len(), hot.info(later).unwrap().subjects), (990, 0));
    assert_eq!(hot.take(b"000999", 1_000_000, false, later, &mut allowing(0)).unwrap()[0], 1_000_000);
    while !hot.apply_due(later, 100, &mut quiet()) {}
    assert_eq!(hot.subjects.len(), 1);
}
