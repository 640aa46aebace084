//! Dead letters and what takes messages away by command: REDRIVE, DEL, PURGE, and the bound on the
//! dead.

use super::Queue;
use super::effect::{Entry, Scope, Step};
use super::effect_batch::EffectBatch;
use super::message::{Id, IdRef, Stage, State};
use super::wire::Wire;
use crate::engine::collections::lazy::Lazy;
use crate::engine::collections::order::Order;
use crate::engine::collections::slab::NONE;
use crate::engine::journal::Journal;
use crate::engine::names_hash::Set;
use crate::engine::time::Micros;

/// Which of the dead are to be dropped, as MAXDEAD was lowered: not state, since after a restart it
/// shows again.
#[derive(Debug, Clone, Copy, Default)]
pub struct Doomed {
    /// Those with smaller numbers; and how many these still are.
    below: u64,
    pub(super) left: u64,
}

impl Doomed {
    pub(super) fn has(&self, number: u64) -> bool {
        self.left > 0 && number < self.below
    }

    /// A dead message is dead no more, or gone.
    pub(super) fn left(&mut self, number: u64) {
        if self.has(number) {
            self.left -= 1;
        }
    }
}

impl Queue {
    /// How many dead ones stay.
    fn kept_dead(&self) -> u64 {
        self.len(Some(State::Dead)).saturating_sub(self.doomed.left)
    }

    /// Whether dead ones are to be dropped, as there are too many.
    pub(super) fn too_many_dead(&self) -> bool {
        self.doomed.left > 0 || self.config.max_dead > 0 && self.deaths.len() as u64 > self.config.max_dead
    }

    /// The oldest dead are to be dropped as far as there are too many. They are meant by nothing
    /// any more.
    pub(super) fn doom(&mut self) {
        let kept = (self.deaths.len() as u64).saturating_sub(self.doomed.left);
        if self.config.max_dead > 0 && kept > self.config.max_dead {
            self.doomed.left += kept - self.config.max_dead;
            let first_kept = self.deaths.nth(usize::try_from(self.doomed.left).unwrap_or(usize::MAX));
            self.doomed.below = first_kept.map_or(self.next_death, |(number, _)| number);
        }
    }

    /// Drops up to `most` of the dead that are to go; returns how many (1 if there are none).
    pub(super) fn drop_dead(&mut self, batch: &mut EffectBatch<'_>, most: usize) -> usize {
        self.doom();
        let mut done = 0;
        while done < most && self.doomed.left > 0 {
            match self.deaths.front() {
                Some((_, slot)) => self.commit(batch, slot, &Step::Drop),
                None => self.doomed = Doomed::default(),
            }
            done += 1;
        }
        done.max(1)
    }

    /// The first of the dead that stay, from this number on.
    pub(super) fn next_dead(&self, from: u64) -> Option<(u64, u32)> {
        let from = if self.doomed.left > 0 { from.max(self.doomed.below) } else { from };
        self.deaths.iter_from(|e| e.0.cmp(&from)).next()
    }

    /// The dead message with this id that died last, if it stays.
    pub(super) fn find_kept_dead(&self, id: IdRef<'_>) -> Option<u32> {
        let slot = self.find_dead(id)?;
        match self.stage(slot) {
            Some(Stage::Dead { number, .. }) if self.doomed.has(number) => None,
            _ => Some(slot),
        }
    }

    /// The message that a command by id means.
    pub(super) fn meant(&self, id: IdRef<'_>) -> Option<u32> {
        self.find_live(id).or_else(|| self.find_kept_dead(id))
    }

    /// Makes dead messages live again: those with these ids, or all, oldest death first; stops at
    /// the first that would pass a bound.
    pub fn redrive(
        &mut self,
        now: Micros,
        ids: Option<&[Id]>,
        count: u64,
        delay: Micros,
        journal: &mut Journal,
    ) -> u64 {
        self.begin_command();
        let behind = self.is_behind(now);
        self.bring_up_all(ids.into_iter().flatten().map(Id::as_ref), now, journal);
        let mut batch = EffectBatch::new(journal);
        let mut redriven = 0;
        let mut seen = Set::default();
        // By id the live one is meant, else the one that died last; all are looked up before any is
        // moved.
        let mut chosen = ids.map(|ids| {
            let dead = ids.iter().filter(|id| self.find_live(id.as_ref()).is_none());
            let slots: Vec<u32> = dead.filter_map(|id| self.find_kept_dead(id.as_ref())).collect();
            slots.into_iter().filter(|slot| seen.insert(*slot)).collect::<Vec<_>>().into_iter()
        });
        let mut from = 0;
        while redriven < count {
            let next = match &mut chosen {
                Some(slots) => slots.next(),
                None => {
                    let next = self.next_dead(from);
                    next.map(|(number, slot)| {
                        from = number.saturating_add(1);
                        slot
                    })
                }
            };
            let Some(slot) = next else { break };
            if behind && let Some(id) = self.messages.get(slot).map(|m| m.id.clone()) {
                self.bring_up(id.as_ref(), now, &mut batch);
                // The live one must be gone where it is read, before the dead one comes.
                batch.flush();
            }
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
            self.commit(&mut batch, slot, &Step::Redrive { now, entry });
            redriven += 1;
        }
        batch.flush();
        redriven
    }

    /// Takes away what these ids mean, in any state, and ends their windows; returns how many
    /// messages went.
    pub fn delete(&mut self, now: Micros, ids: &[Id], journal: &mut Journal) -> u64 {
        self.begin_command();
        self.bring_up_all(ids.iter().map(Id::as_ref), now, journal);
        let mut batch = EffectBatch::new(journal);
        let mut deleted = 0;
        for id in ids {
            if let Some(slot) = self.meant(id.as_ref()) {
                self.commit(&mut batch, slot, &Step::Delete);
                deleted += 1;
            }
            if let Some(window) = self.find_window(id.as_ref()) {
                batch.flush();
                batch.journal.record(&Wire::EndWindow(id.as_ref()), []);
                self.close_window(window);
            }
        }
        batch.flush();
        deleted
    }

    /// Takes away the messages in these states (never those in flight), up to `count` in the order
    /// in which they are listed: dead, delayed, ready; returns how many went.
    pub fn purge(&mut self, scope: Scope, count: Option<u64>, journal: &mut Journal) -> u64 {
        self.begin_command();
        let there = match scope {
            Scope::Ready => self.len(Some(State::Ready)),
            Scope::Delayed => self.len(Some(State::Delayed)),
            Scope::Dead => self.kept_dead(),
            Scope::All => self.len(None) - self.len(Some(State::InFlight)) + self.kept_dead(),
        };
        if let Some(count) = count.filter(|count| *count < there) {
            return self.purge_some(scope, count, journal);
        }
        if there > 0 {
            journal.record(&Wire::Purge(scope), []);
            self.purge_scope(scope);
        }
        there
    }

    /// The first of them go one by one.
    fn purge_some(&mut self, scope: Scope, count: u64, journal: &mut Journal) -> u64 {
        let all = scope == Scope::All;
        let most = usize::try_from(count).unwrap_or(usize::MAX);
        let mut slots: Vec<u32> = Vec::new();
        if all || scope == Scope::Dead {
            let from = if self.doomed.left > 0 { self.doomed.below } else { 0 };
            slots.extend(self.deaths.iter_from(|e| e.0.cmp(&from)).map(|(_, slot)| slot).take(most));
        }
        if all || scope == Scope::Delayed {
            slots.extend(self.delayed.iter().map(|(_, slot)| slot).take(most - slots.len()));
        }
        if (all || scope == Scope::Ready) && slots.len() < most {
            slots.extend(self.ready_from(None, None, most - slots.len()));
        }
        let mut batch = EffectBatch::new(journal);
        for slot in &slots {
            let owns = |slot| self.messages.get(slot).is_some_and(|m| m.owns_window());
            let owned = owns(*slot) || owns(self.more_of(*slot).map_or(NONE, |x| x.follower));
            let Some(id) = self.messages.get(*slot).map(|m| m.id.clone()) else { continue };
            self.commit(&mut batch, *slot, &Step::Delete);
            if let Some(window) = self.find_window(id.as_ref()).filter(|_| owned) {
                batch.flush();
                batch.journal.record(&Wire::EndWindow(id.as_ref()), []);
                self.close_window(window);
            }
        }
        batch.flush();
        slots.len() as u64
    }

    /// Every message in these states goes, and the windows they own; followers go with them.
    pub(super) fn purge_scope(&mut self, scope: Scope) {
        let all = scope == Scope::All;
        let mut slots: Vec<u32> = Vec::new();
        // Their orders are emptied as a whole first, so that the messages can go in the order in
        // which they lie in memory.
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
            slots.extend(std::mem::replace(&mut self.delayed, Lazy::new()).iter().map(|(_, slot)| slot));
        }
        if all || scope == Scope::Dead {
            slots.extend(std::mem::replace(&mut self.deaths, Lazy::new()).iter().map(|(_, slot)| slot));
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
