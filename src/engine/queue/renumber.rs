//! Numbers that only order are counted on for ever: places, turns of groups, deaths. Before one
//! leaves what an effect may bring, all are numbered anew from 1, in the order they have, as one
//! effect; so nothing that is accepted leads to what is refused. Totals that large begin anew, too.
//!
//! By counting that takes years at a million messages a second. A restored payload may be there at
//! once.

use super::Queue;
use super::config::Totals;
use super::effect::Brought;
use super::message::Stage;
use super::windows::Window;
use super::wire::{MAX_NUMBER, MAX_SEQ};
use crate::engine::collections::slab::NONE;
use std::collections::BTreeMap;

/// More than one command, or all that is due at once, can use up.
const ROOM: u64 = 1 << 40;

/// Totals of this many bits are large.
const LARGE: u64 = MAX_NUMBER / 2;

impl Queue {
    /// Whether a number that is counted on comes near its end.
    pub(super) fn is_crowded(&self) -> bool {
        let most = self.next_turn.max(self.next_death);
        self.next_seq > MAX_SEQ - ROOM || most > MAX_NUMBER - ROOM || self.worn
    }

    /// Totals came from elsewhere, or grew by such a number: looked at only then. From less than
    /// that no counting on comes to what may not be brought.
    pub(super) fn look_for_wear(&mut self) {
        self.worn = self.totals.bits() >= LARGE;
    }

    /// The same queue with small numbers.
    pub(super) fn renumber(&mut self) {
        let mut header = self.header();
        let (records, turns) = self.numbered_anew();
        let dead = |r: &&Brought| matches!(r.0.stage, Stage::Dead { .. });
        let live = |r: &&Brought| !matches!(r.0.stage, Stage::Dead { .. } | Stage::Follower { .. });
        header.next_seq = 1 + records.iter().filter(live).count() as u64;
        header.next_death = 1 + records.iter().filter(dead).count() as u64;
        header.next_turn = 1 + turns;
        if header.totals.bits() >= LARGE {
            header.totals = Totals { pushed: self.messages.len() as u64, ..Totals::default() };
        }
        let mut anew = Self::new();
        anew.begin(header);
        self.lane_states().iter().for_each(|lane| anew.restore_lane(lane));
        for window in self.windows_in_order() {
            anew.open_window(window);
        }
        anew.load(records);
        anew.loading = None;
        (anew.rejected, anew.epoch, anew.settled_to) = (self.rejected, self.epoch, self.settled_to);
        (anew.latest_level, anew.ttl_since) = (self.latest_level, self.ttl_since);
        *self = anew;
    }

    /// All messages as a snapshot has them, with new numbers, and how many turns were given.
    fn numbered_anew(&self) -> (Vec<Brought>, u64) {
        let live = self.live_in_order();
        let lanes = live.iter().filter_map(|slot| self.messages.get(*slot)).map(|m| m.lane);
        let lanes: BTreeMap<(u64, u32), ()> =
            lanes.filter_map(|lane| Some(((self.lanes.get(lane)?.turn, lane), ()))).collect();
        let mut turns: BTreeMap<u32, u64> =
            lanes.keys().zip(1..).map(|((_, lane), turn)| (*lane, turn)).collect();
        let given = turns.len() as u64;
        let mut records = Vec::with_capacity(self.messages.len());
        for (slot, seq) in live.into_iter().zip(1..) {
            if let Some(mut record) = self.owned(slot) {
                record.0.place.1 = seq;
                // The first of its lane brings the lane's turn.
                record.0.turn = self.messages.get(slot).and_then(|m| turns.remove(&m.lane));
                records.push(record);
            }
            if let Some(follower) = self.more_of(slot).map(|x| x.follower) {
                records.extend(self.owned(follower));
            }
        }
        for ((_, slot), death) in self.deaths.iter().zip(1..) {
            if let Some(mut record) = self.owned(slot) {
                if let Stage::Dead { number, .. } = &mut record.0.stage {
                    *number = death;
                }
                records.push(record);
            }
        }
        (records, given)
    }

    fn owned(&self, slot: u32) -> Option<Brought> {
        let (record, id, payload) = self.record(slot)?;
        Some((record.into_owned(), id.to_id(), payload.into()))
    }

    fn windows_in_order(&self) -> Vec<Window> {
        let windows = self.windows.iter();
        let mut windows: Vec<Window> =
            windows.map(|(_, w)| Window { id: w.id.clone(), until: w.until, owner: NONE }).collect();
        windows.sort_unstable_by(|a, b| (a.until, a.id.as_ref()).cmp(&(b.until, b.id.as_ref())));
        windows
    }
}
