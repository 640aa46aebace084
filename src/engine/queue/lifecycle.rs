//! How a message comes to be, becomes live, stops being live, dies and goes. These are the moves
//! that effects are made of; each keeps all orders, counts and indexes true. Nothing here decides.

use super::Queue;
use super::effect::{After, Entry};
use super::lane::PLAIN;
use super::message::{Id, IdRef, Message, Stage, State, heap_of};
use super::windows::Window;
use crate::engine::collections::slab::NONE;
use crate::engine::time::Micros;

impl Queue {
    fn hash_of(&self, slot: u32) -> u64 {
        self.messages.get(slot).map_or(0, |m| m.id.as_ref().hash())
    }

    /// The live message with this id.
    pub(super) fn find_live(&self, id: IdRef<'_>) -> Option<u32> {
        if let IdRef::Num(n) = id
            && let Some(slot) = self.numbers.get(n)
        {
            return Some(slot);
        }
        if self.live.len() == 0 {
            return None;
        }
        self.live.find(id.hash(), |s| self.messages.get(s).is_some_and(|m| m.id.as_ref() == id))
    }

    /// The dead message with this id that died last.
    pub(super) fn find_dead(&self, id: IdRef<'_>) -> Option<u32> {
        if self.deaths.is_empty() {
            return None;
        }
        self.dead.find(id.hash(), |s| self.messages.get(s).is_some_and(|m| m.id.as_ref() == id))
    }

    /// The message that a command by id means.
    pub(super) fn find(&self, id: IdRef<'_>) -> Option<u32> {
        self.find_live(id).or_else(|| self.find_dead(id))
    }

    /// Stores a message, not live yet. Its lane is referred to already.
    pub(super) fn store(&mut self, message: Message) -> u32 {
        self.heap += message.id.heap() + heap_of(message.payload.len());
        self.note_number(&message.id);
        self.messages.insert(message)
    }

    /// A number is taken: if it is yet to be drawn, that must be looked up then.
    pub(super) fn note_number(&mut self, id: &Id) {
        if let Id::Num(n) = id
            && *n >= self.next_id
        {
            self.highest_given = self.highest_given.max(*n);
        }
    }

    /// Enters a message by its id, which another may still have that is about to go. Numbers below
    /// the next to be drawn are the queue's own, nearly always.
    fn enlist(&mut self, slot: u32) {
        let Some(m) = self.messages.get(slot) else { return };
        if let Id::Num(n) = m.id
            && n < self.next_id
            && self.numbers.insert(n, slot)
        {
            return;
        }
        let (key, messages) = (m.id.as_ref().hash(), &self.messages);
        self.live.insert(key, slot, |s| messages.get(s).map_or(0, |m| m.id.as_ref().hash()));
    }

    fn delist(&mut self, slot: u32) {
        let Some(m) = self.messages.get(slot) else { return };
        if let Id::Num(n) = m.id
            && self.numbers.remove(n, slot)
        {
            return;
        }
        let (key, messages) = (m.id.as_ref().hash(), &self.messages);
        self.live.remove(key, slot, |s| messages.get(s).map_or(0, |m| m.id.as_ref().hash()));
    }

    /// Makes a stored message live: ready, or delayed. Its place and stage are set already.
    pub(super) fn join(&mut self, slot: u32, turn: Option<u64>) {
        let Some(m) = self.messages.get(slot) else { return };
        let lane = m.lane;
        self.bytes += self.weight_of(m);
        let next_turn = self.next_turn;
        if let Some(l) = self.lanes.get_mut(lane) {
            if l.live == 0 {
                l.turn = turn.unwrap_or(next_turn);
                self.groups += u64::from(lane != PLAIN);
                self.next_turn = next_turn.max(l.turn.saturating_add(1));
            }
            l.live = l.live.saturating_add(1);
        }
        self.enlist(slot);
        self.shelve(slot);
        self.reseat(lane);
    }

    /// Makes a live message live no more and returns its follower, which it loses, or NONE. The
    /// message stays stored; its lane waits for `reseat`.
    pub(super) fn quit(&mut self, slot: u32) -> u32 {
        self.unshelve(slot);
        self.delist(slot);
        let Some(m) = self.messages.get(slot) else { return NONE };
        let lane = m.lane;
        self.bytes -= self.weight_of(m);
        if let Some(l) = self.lanes.get_mut(lane) {
            l.live = l.live.saturating_sub(1);
            if l.live == 0 {
                l.left_in = self.epoch;
                self.groups -= u64::from(lane != PLAIN);
            }
        }
        self.detach(slot)
    }

    /// Makes a live message live no more; what follows it is dealt with as `after` says. The
    /// message stays stored.
    pub(super) fn leave(&mut self, slot: u32, after: After) {
        let follower = self.quit(slot);
        if follower != NONE {
            match after {
                After::Enter(entry) => {
                    self.enter(follower, entry);
                    self.join(follower, entry.turn);
                }
                After::Expired | After::None => {
                    self.totals.expired = self.totals.expired.saturating_add(1);
                    self.free(follower);
                }
            }
        }
        if let Some(lane) = self.messages.get(slot).map(|m| m.lane) {
            self.reseat(lane);
        }
    }

    /// A live or dead message goes without a trace, with its follower; returns how many went.
    pub(super) fn take_away(&mut self, slot: u32) -> u64 {
        if matches!(self.stage(slot), Some(Stage::Dead { .. })) {
            self.exhume(slot);
            self.free(slot);
            return 1;
        }
        let follower = self.quit(slot);
        if let Some(lane) = self.messages.get(slot).map(|m| m.lane) {
            self.reseat(lane);
        }
        self.free(slot);
        1 + u64::from(self.free(follower).is_some())
    }

    /// Takes the follower off the message; NONE when there is none.
    pub(super) fn detach(&mut self, slot: u32) -> u32 {
        let Some(m) = self.messages.get(slot) else { return NONE };
        let Some(more) = self.more.get_mut(m.more) else { return NONE };
        let follower = std::mem::replace(&mut more.follower, NONE);
        self.followers -= u64::from(follower != NONE);
        follower
    }

    /// Puts a stored message behind a live one, in place of what followed that; returns how many
    /// that were.
    pub(super) fn follow(&mut self, leader: u32, follower: u32) -> u64 {
        let before = self.weight(leader);
        let former = self.detach(leader);
        let replaced = u64::from(self.free(former).is_some());
        if let Some(more) = self.grow(leader) {
            more.follower = follower;
            self.followers += 1;
        }
        let after = self.weight(leader);
        self.bytes = self.bytes - before + after;
        if self.messages.get(leader).is_some_and(|m| m.state() == State::Ready) {
            self.ready_bytes = self.ready_bytes - before + after;
        }
        replaced
    }

    /// Sets place and stage of a message that gets a new place.
    pub(super) fn enter(&mut self, slot: u32, entry: Entry) {
        let stage = if entry.delayed { Stage::Delayed { due: entry.at, retry: false } } else { Stage::Ready };
        self.set_stage(slot, stage);
        self.set_place(slot, (entry.at, entry.seq));
    }

    pub(super) fn set_place(&mut self, slot: u32, place: (Micros, u64)) {
        if let Some(m) = self.messages.get_mut(slot) {
            m.set_place(place);
        }
        self.next_seq = self.next_seq.max(place.1.saturating_add(1));
    }

    /// Makes a stored message that is live no more dead.
    pub(super) fn bury(&mut self, slot: u32, number: u64, died_at: Micros) {
        let Some(id) = self.messages.get(slot).map(|m| m.id.as_ref()) else { return };
        let key = id.hash();
        let older = self.dead.find(key, |s| self.messages.get(s).is_some_and(|m| m.id.as_ref() == id));
        self.set_stage(slot, Stage::Dead { number, died_at, older: older.unwrap_or(NONE), newer: NONE });
        match older {
            Some(old) => {
                self.relink(old, |_, newer| *newer = slot);
                self.dead.replace(key, |s| s == old, slot);
            }
            None => {
                let messages = &self.messages;
                self.dead.insert(key, slot, |s| messages.get(s).map_or(0, |m| m.id.as_ref().hash()));
            }
        }
        self.next_death = self.next_death.max(number.saturating_add(1));
        self.shelve(slot);
    }

    /// Takes a dead message out of all that knows the dead. It stays stored.
    pub(super) fn exhume(&mut self, slot: u32) {
        let Some(Stage::Dead { older, newer, number, .. }) = self.stage(slot) else { return };
        self.unshelve(slot);
        self.doomed.left(number);
        let key = self.hash_of(slot);
        if newer != NONE {
            self.relink(newer, |o, _| *o = older);
        } else if older != NONE {
            self.dead.replace(key, |s| s == slot, older);
        } else {
            let messages = &self.messages;
            self.dead.remove(key, slot, |s| messages.get(s).map_or(0, |m| m.id.as_ref().hash()));
        }
        if older != NONE {
            self.relink(older, |_, n| *n = newer);
        }
    }

    fn relink(&mut self, slot: u32, change: impl FnOnce(&mut u32, &mut u32)) {
        if let Some(Stage::Dead { number, died_at, mut older, mut newer }) = self.stage(slot) {
            change(&mut older, &mut newer);
            self.set_stage(slot, Stage::Dead { number, died_at, older, newer });
        }
    }

    /// Takes a stored message, which nothing knows any more, away; returns it for its payload.
    pub(super) fn free(&mut self, slot: u32) -> Option<Message> {
        if self.messages.get(slot)?.owns_window() {
            self.disown_window(slot);
        }
        let m = self.messages.remove(slot)?;
        self.heap -= m.id.heap() + heap_of(m.payload.len());
        if let Some(more) = self.more.remove(m.more) {
            self.names.release(more.consumer);
            self.names.release(more.reason);
            if more.own.is_some() {
                self.heap -= size_of::<super::message::Own>();
            }
        }
        self.release_lane(m.lane);
        if self.messages.len() == 0 {
            self.slim();
        }
        Some(m)
    }

    /// Sets or renews the DEDUP window of an id, or hands over the one that is there, to the newest
    /// push of that id.
    pub(super) fn take_window(&mut self, slot: u32, until: Option<Micros>) {
        let Some(id) = self.messages.get(slot).map(|m| m.id.clone()) else { return };
        match (self.find_window(id.as_ref()), until) {
            (None, None) => return,
            (Some(window), until) => {
                let owner = self.windows.get(window).map_or(NONE, |w| w.owner);
                if let Some(m) = self.messages.get_mut(owner) {
                    m.set_owns_window(false);
                }
                if let Some(until) = until {
                    self.move_window(window, until);
                }
                if let Some(w) = self.windows.get_mut(window) {
                    w.owner = slot;
                }
            }
            (None, Some(until)) => self.open_window(Window { id, until, owner: slot }),
        }
        if let Some(m) = self.messages.get_mut(slot) {
            m.set_owns_window(true);
        }
    }
}
