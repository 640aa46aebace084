//! Dead letters and what takes messages away by command: REDRIVE, DEL, PURGE, and the bound on the dead.

use super::Queue;
use super::effect::{Entry, Scope, Step};
use super::message::{Id, State};
use super::order::Order;
use super::pen::Pen;
use super::slab::NONE;
use super::wire::Wire;
use crate::engine::journal::Journal;
use crate::engine::time::Micros;
use hashbrown::HashSet;

impl Queue {
    /// Drops the oldest dead as far as there are too many.
    pub(super) fn trim_dead(&mut self, pen: &mut Pen<'_>) {
        while self.config.max_dead > 0
            && self.deaths.len() as u64 > self.config.max_dead
            && let Some((_, slot)) = self.deaths.front()
        {
            self.commit(pen, slot, &Step::Drop);
        }
    }

    /// Makes dead messages live again: those with these ids, or all, oldest death first; stops at the first that would pass a bound.
    pub fn redrive(
        &mut self,
        now: Micros,
        ids: Option<&[Id]>,
        count: u64,
        delay: Micros,
        journal: &mut Journal,
    ) -> u64 {
        self.begin_command();
        let mut pen = Pen::new(journal);
        let mut redriven = 0;
        let mut seen = HashSet::new();
        // By id the live one is meant, else the one that died last; all are looked up before any is moved.
        let mut chosen = ids.map(|ids| {
            let dead = ids.iter().filter(|id| self.find_live(id.as_ref()).is_none());
            let slots: Vec<u32> = dead.filter_map(|id| self.find_dead(id.as_ref())).collect();
            slots.into_iter().filter(|slot| seen.insert(*slot)).collect::<Vec<_>>().into_iter()
        });
        let mut from = 0;
        while redriven < count {
            let next = match &mut chosen {
                Some(slots) => slots.next(),
                None => {
                    let next = self.deaths.iter_from(|e| e.0.cmp(&from)).next();
                    next.map(|(number, slot)| {
                        from = number.saturating_add(1);
                        slot
                    })
                }
            };
            let Some(slot) = next else { break };
            let Some(m) = self.messages.get(slot) else { break };
            if self.find_live(m.id.as_ref()).is_some() {
                continue;
            }
            if !self.has_room(m.payload.len() as u64) {
                break;
            }
            let at = now.saturating_add(delay);
            let turn = self.turn_to_join_lane(m.lane, None);
            let entry = Entry { at, delayed: delay > 0, seq: self.next_seq, turn };
            self.commit(&mut pen, slot, &Step::Redrive { now, entry });
            redriven += 1;
        }
        pen.flush();
        redriven
    }

    /// Whether one more live message of this size passes no bound.
    pub(super) fn has_room(&self, size: u64) -> bool {
        let (len, bytes) = (self.config.max_len, self.config.max_bytes);
        (len == 0 || self.len(None) < len)
            && (bytes == 0 || size == 0 || self.bytes.saturating_add(size) <= bytes)
    }

    /// Takes away what these ids mean, in any state, and ends their windows; answers how many messages went.
    pub fn delete(&mut self, ids: &[Id], journal: &mut Journal) -> u64 {
        self.begin_command();
        let mut pen = Pen::new(journal);
        let mut deleted = 0;
        for id in ids {
            if let Some(slot) = self.find(id.as_ref()) {
                self.commit(&mut pen, slot, &Step::Delete);
                deleted += 1;
            }
            if let Some(window) = self.find_window(id.as_ref()) {
                pen.flush();
                pen.journal.record(&Wire::EndWindow(id.as_ref()), []);
                self.close_window(window);
            }
        }
        pen.flush();
        deleted
    }

    /// Takes away all messages in these states (never those in flight); answers how many went.
    pub fn purge(&mut self, scope: Scope, journal: &mut Journal) -> u64 {
        self.begin_command();
        let there = match scope {
            Scope::Ready => self.len(Some(State::Ready)),
            Scope::Delayed => self.len(Some(State::Delayed)),
            Scope::Dead => self.len(Some(State::Dead)),
            Scope::All => self.len(None) - self.len(Some(State::InFlight)) + self.len(Some(State::Dead)),
        };
        if there > 0 {
            journal.record(&Wire::Purge(scope), []);
            self.purge_scope(scope);
        }
        there
    }

    /// Every message in these states goes, and the windows they own; followers go with them.
    pub(super) fn purge_scope(&mut self, scope: Scope) {
        let all = scope == Scope::All;
        let mut slots: Vec<u32> = Vec::new();
        // Their orders are emptied as a whole first, so that the messages can go in the order in which they lie in memory.
        if all || scope == Scope::Ready {
            let lanes: Vec<u32> = self.heads.iter().map(|(_, _, lane, _)| lane).collect();
            for lane in lanes {
                for run in self.lanes.get_mut(lane).into_iter().flat_map(|l| &mut l.runs) {
                    slots.extend(std::mem::replace(&mut run.order, Order::new()).iter());
                }
            }
            self.heads.clear();
        }
        if all || scope == Scope::Delayed {
            slots.extend(std::mem::replace(&mut self.delayed, Order::new()).iter().map(|(_, slot)| slot));
        }
        if all || scope == Scope::Dead {
            slots.extend(std::mem::replace(&mut self.deaths, Order::new()).iter().map(|(_, slot)| slot));
        }
        slots.sort_unstable();
        for slot in slots {
            let follower = self.more_of(slot).map_or(NONE, |x| x.follower);
            self.close_owned_window(slot);
            self.close_owned_window(follower);
            let gone = self.take_away(slot);
            self.totals.deleted = self.totals.deleted.saturating_add(gone);
        }
    }
}
