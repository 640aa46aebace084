//! Whether a queue is in order: every count, order and index is compared with what a scan of all
//! messages says.

use super::super::Queue;
use super::super::config::NO_PAUSE;
use super::super::lane::{PLAIN, Seat};
use super::super::message::{IdRef, Message, Stage, State};
use crate::engine::collections::slab::NONE;
use crate::engine::object::AT_ONCE;
use std::collections::{BTreeMap, BTreeSet};

impl Queue {
    pub fn audit(&self) {
        let mut counts = BTreeMap::new();
        let (mut bytes, mut ready_bytes, mut followers) = (0, 0, 0);
        let mut references: BTreeMap<u32, u64> = BTreeMap::new();
        let mut expected: BTreeMap<u32, (u32, u32, u32)> = BTreeMap::new();
        let (mut own_ttls, mut default_ttls) = (BTreeSet::new(), BTreeSet::new());
        let mut more = 0;
        for (slot, m) in self.messages.iter() {
            *counts.entry(m.state() as u8).or_insert(0usize) += 1;
            *references.entry(m.lane).or_default() += 1;
            let stage = self.stage(slot).unwrap();
            assert_eq!(stage.state(), m.state());
            more += usize::from(m.more != NONE);
            let live = matches!(m.state(), State::Ready | State::Delayed | State::InFlight);
            if live {
                assert_eq!(self.find_live(m.id.as_ref()), Some(slot), "live by id");
                assert!(m.seq() < self.next_seq);
                bytes += self.weight(slot);
                let lane = expected.entry(m.lane).or_default();
                lane.0 += 1;
                lane.1 += u32::from(m.state() == State::Ready);
                lane.2 +=
                    u32::from(matches!(stage, Stage::InFlight { .. } | Stage::Delayed { retry: true, .. }));
                let follower = self.more_of(slot).map_or(NONE, |x| x.follower);
                if let Some(f) = self.messages.get(follower) {
                    assert_eq!((f.state(), &f.id), (State::Follower, &m.id));
                    followers += 1;
                }
            } else {
                assert!(self.more_of(slot).is_none_or(|x| x.follower == NONE));
            }
            match m.state() {
                State::Ready => ready_bytes += self.weight(slot),
                State::Dead => {
                    let newest = self.find_dead(m.id.as_ref()).unwrap();
                    let mut chain = newest;
                    while chain != slot {
                        let Some(Stage::Dead { older, .. }) = self.stage(chain) else {
                            panic!("broken chain")
                        };
                        chain = older;
                    }
                }
                _ => {}
            }
            if matches!(m.state(), State::Ready | State::Delayed) {
                let (own, base) = (self.own(slot).ttl, self.ttl_base(slot));
                if own > 0 {
                    own_ttls.insert((base + own, m.seq(), slot));
                } else if self.config.ttl > 0 && self.unindexed.is_none_or(|from| slot < from) {
                    default_ttls.insert((base, m.seq(), slot));
                }
            }
            if m.owns_window() {
                let window = self.find_window(m.id.as_ref()).unwrap();
                assert_eq!(self.windows.get(window).unwrap().owner, slot);
            }
        }
        let count = |state: State| counts.get(&(state as u8)).copied().unwrap_or(0);
        assert_eq!(self.ready, count(State::Ready) as u64);
        assert_eq!(self.delayed.len(), count(State::Delayed));
        assert_eq!(
            (self.claims.len(), self.deadlines.len()),
            (count(State::InFlight), count(State::InFlight))
        );
        assert_eq!(self.deaths.len(), count(State::Dead));
        assert_eq!((self.followers, count(State::Follower) as u64), (followers, followers));
        assert_eq!((self.bytes, self.ready_bytes), (bytes, ready_bytes));
        assert_eq!(self.more.len(), more);
        let live = [State::Ready, State::Delayed, State::InFlight].map(count).iter().sum::<usize>();
        assert_eq!((self.live.len() + self.numbers.len(), self.len(None)), (live, live as u64));
        let taken = |n: u64| self.find(IdRef::Num(n)).or(self.find_window(IdRef::Num(n))).is_some();
        assert!((self.next_id..self.next_id + 9).all(|n| n <= self.highest_given || !taken(n)));
        let at_once = self.unindexed.is_some() || self.too_many_dead() || self.over.is_any();
        let due = self.next_due().map(|(at, _)| at);
        assert_eq!(self.next_settling(), if at_once { Some(AT_ONCE) } else { due });
        let doomed = |e: &(u64, u32)| self.doomed.has(e.0);
        assert_eq!(self.deaths.iter().filter(doomed).count() as u64, self.doomed.left);
        let keyed = |order: &[(i64, u32)]| -> Vec<(i64, u64, u32)> {
            order.iter().map(|(at, s)| (*at, self.messages.get(*s).unwrap().seq(), *s)).collect()
        };
        let delayed: Vec<_> = self.delayed.iter().collect();
        assert!(keyed(&delayed).is_sorted());
        assert_eq!(
            keyed(&self.own_ttls.iter().collect::<Vec<_>>()),
            own_ttls.into_iter().collect::<Vec<_>>()
        );
        assert_eq!(
            keyed(&self.default_ttls.iter().collect::<Vec<_>>()),
            default_ttls.into_iter().collect::<Vec<_>>()
        );
        let deadline = |s: u32| match self.stage(s) {
            Some(Stage::InFlight { claim, deadline, .. }) => (deadline, claim),
            other => panic!("{other:?}"),
        };
        let deadlines: Vec<_> = self.deadlines.iter().map(|(_, s)| deadline(s)).collect();
        assert!(deadlines.is_sorted());
        assert!(
            self.claims.iter().all(|(claim, s)| deadline(s).1 == claim) && self.claims.iter().is_sorted()
        );
        assert!(self.deaths.iter().is_sorted());
        self.audit_lanes(&mut references, &expected);
        let held = self.totals.held().unwrap();
        assert_eq!(held, self.messages.len() as u64, "what came in is there or went out");
        assert_eq!(self.windows.len(), self.window_ends.len());
        assert!(self.memory_is_sane());
    }

    fn audit_lanes(&self, references: &mut BTreeMap<u32, u64>, expected: &BTreeMap<u32, (u32, u32, u32)>) {
        let mut heads = BTreeSet::new();
        let (mut seats, mut parked, mut groups, mut pauses, mut refills) = (0, 0, 0, 0, 0);
        for (slot, lane) in self.lanes.iter() {
            let of_pauses =
                u64::from(lane.paused_push != NO_PAUSE) + u64::from(lane.paused_claim != NO_PAUSE);
            pauses += of_pauses as usize;
            refills += usize::from(lane.tokens.is_some());
            let refs = references.remove(&slot).unwrap_or(0)
                + of_pauses
                + u64::from(lane.tokens.is_some())
                + u64::from(slot == PLAIN);
            assert_eq!(lane.references, refs);
            assert!(refs > 0);
            let found = expected.get(&slot).copied().unwrap_or_default();
            assert_eq!((lane.live, lane.ready, lane.busy), found);
            groups += u64::from(slot != PLAIN && lane.live > 0);
            assert_eq!(lane.runs.iter().map(|r| r.order.len() as u32).sum::<u32>(), lane.ready);
            assert!(lane.runs.is_sorted_by(|a, b| a.priority > b.priority));
            for run in &lane.runs {
                let all: Vec<&Message> = run.order.iter().map(|s| self.messages.get(s).unwrap()).collect();
                assert!(all.is_sorted_by_key(|m| m.place()));
                assert!(all.iter().all(|m| m.priority == run.priority && m.lane == slot));
                if let Some(first) = all.first() {
                    heads.insert((first.ready_at, first.seq(), slot, run.priority));
                }
            }
            let paused = slot != PLAIN && lane.paused_claim != NO_PAUSE;
            match lane.seat {
                Seat::None => assert!(lane.ready == 0 || paused),
                Seat::Seated { busy, turn } => {
                    assert!(lane.ready > 0 && !paused && self.seats.iter().any(|s| s == (busy, turn, slot)));
                    assert_eq!((busy, turn), (lane.busy, lane.turn));
                    seats += 1;
                }
                Seat::Parked { until } => {
                    assert!(lane.ready > 0 && !paused && self.parked.contains(&(until, slot)));
                    parked += 1;
                }
            }
        }
        assert!(references.is_empty());
        assert_eq!((seats, parked, groups), (self.seats.len(), self.parked.len(), self.groups));
        assert_eq!((pauses, refills), (self.pause_ends.len(), self.refills.len()));
        assert!(self.heads.iter().eq(heads));
    }

    fn memory_is_sane(&self) -> bool {
        use crate::engine::object::Object;
        self.heap < 1 << 40 && self.memory() >= self.heap
    }
}
