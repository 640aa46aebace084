//! The line of clients blocked on a semaphore or gate: first come, first served, each until its own
//! time is over. Not state.

use super::waiting::Ticket;
use crate::engine::footprint::tree;
use crate::engine::time::Micros;
use std::collections::{BTreeMap, BTreeSet};

/// Invariant: both maps hold the same clients. Tickets rise with arrival.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Line<W> {
    waiters: BTreeMap<Ticket, (Micros, W)>,
    by_end: BTreeSet<(Micros, Ticket)>,
}

impl<W> Default for Line<W> {
    fn default() -> Self {
        Self { waiters: BTreeMap::new(), by_end: BTreeSet::new() }
    }
}

impl<W> Line<W> {
    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(crate) fn push(&mut self, ticket: Ticket, until: Micros, waiter: W) {
        self.remove(ticket);
        self.waiters.insert(ticket, (until, waiter));
        self.by_end.insert((until, ticket));
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<W> {
        let (until, waiter) = self.waiters.remove(&ticket)?;
        self.by_end.remove(&(until, ticket));
        Some(waiter)
    }

    pub(crate) fn first(&self) -> Option<(Ticket, &W)> {
        self.waiters.first_key_value().map(|(ticket, (_, waiter))| (*ticket, waiter))
    }

    pub(crate) fn get(&self, ticket: Ticket) -> Option<&W> {
        self.waiters.get(&ticket).map(|(_, waiter)| waiter)
    }

    /// All in order, or those ahead of one, with the instant at which each gives up.
    pub(crate) fn ahead_of(&self, ticket: Option<Ticket>) -> impl Iterator<Item = (Micros, &W)> {
        self.waiters.range(..ticket.unwrap_or(Ticket::MAX)).map(|(_, (until, waiter))| (*until, waiter))
    }

    /// Whose time is over first, and when.
    pub(crate) fn first_end(&self) -> Option<(Micros, Ticket)> {
        self.by_end.first().copied()
    }

    /// Takes all who wait, in order.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (Ticket, W)> {
        self.by_end.clear();
        std::mem::take(&mut self.waiters).into_iter().map(|(ticket, (_, waiter))| (ticket, waiter))
    }

    pub(crate) fn memory(&self) -> usize {
        let len = self.waiters.len();
        tree(len, size_of::<(Ticket, Micros, W)>()) + tree(len, size_of::<(Micros, Ticket)>())
    }
}
