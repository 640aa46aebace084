//! DEDUP windows: for how long an id is taken, whatever became of its message.
//!
//! Invariants: one window an id; `owner` is the stored message whose push set it or took it over
//! (NONE: gone), and only that message has the mark `owns_window`. A window that is over is taken
//! away when time passes it.

use super::Queue;
use super::message::{Id, IdRef};
use crate::engine::collections::slab::NONE;
use crate::engine::time::Micros;

#[derive(Debug, Clone, Default)]
pub struct Window {
    pub id: Id,
    pub until: Micros,
    pub owner: u32,
}

impl Queue {
    pub(super) fn find_window(&self, id: IdRef<'_>) -> Option<u32> {
        if self.windows.len() == 0 {
            return None;
        }
        self.window_index.find(id.hash(), |w| self.windows.get(w).is_some_and(|x| x.id.as_ref() == id))
    }

    /// Whether a window holds the id at `now`.
    pub(super) fn in_window(&self, id: IdRef<'_>, now: Micros) -> bool {
        self.find_window(id).and_then(|w| self.windows.get(w)).is_some_and(|w| w.until > now)
    }

    pub(super) fn open_window(&mut self, window: Window) {
        self.note_number(&window.id);
        let (key, until) = (window.id.as_ref().hash(), window.until);
        self.heap += window.id.heap();
        let slot = self.windows.insert(window);
        let windows = &self.windows;
        self.window_index.insert(key, slot, |w| windows.get(w).map_or(0, |x| x.id.as_ref().hash()));
        self.window_ends.insert((until, slot), |e| e.cmp(&(until, slot)));
    }

    pub(super) fn move_window(&mut self, slot: u32, until: Micros) {
        let Some(w) = self.windows.get_mut(slot) else { return };
        let before = std::mem::replace(&mut w.until, until);
        self.window_ends.remove((before, slot), |e| e.cmp(&(before, slot)));
        self.window_ends.insert((until, slot), |e| e.cmp(&(until, slot)));
    }

    pub(super) fn close_window(&mut self, slot: u32) {
        let Some(w) = self.windows.get(slot) else { return };
        let (key, until, owner) = (w.id.as_ref().hash(), w.until, w.owner);
        self.window_ends.remove((until, slot), |e| e.cmp(&(until, slot)));
        let windows = &self.windows;
        self.window_index.remove(key, slot, |w| windows.get(w).map_or(0, |x| x.id.as_ref().hash()));
        if let Some(m) = self.messages.get_mut(owner) {
            m.set_owns_window(false);
        }
        if let Some(w) = self.windows.remove(slot) {
            self.heap -= w.id.heap();
        }
        if self.windows.len() == 0 {
            self.windows.give_back(|_| false);
            self.window_index.give_back(|_| false);
            self.window_ends.give_back(|_| false);
        }
    }

    /// Ends the window that this message owns, if any.
    pub(super) fn close_owned_window(&mut self, owner: u32) {
        let Some(m) = self.messages.get(owner) else { return };
        if m.owns_window()
            && let Some(window) = self.find_window(m.id.as_ref())
        {
            self.close_window(window);
        }
    }

    /// The owner goes, the window stays.
    pub(super) fn disown_window(&mut self, owner: u32) {
        let window = self.messages.get(owner).and_then(|m| self.find_window(m.id.as_ref()));
        if let Some(w) = window.and_then(|w| self.windows.get_mut(w)) {
            w.owner = NONE;
        }
        if let Some(m) = self.messages.get_mut(owner) {
            m.set_owns_window(false);
        }
    }

    /// Ends all windows that are over by `through`.
    pub(super) fn end_windows(&mut self, through: Micros) {
        while let Some((until, slot)) = self.window_ends.front()
            && until <= through
        {
            self.close_window(slot);
        }
    }
}
