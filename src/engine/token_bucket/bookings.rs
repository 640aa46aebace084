//! The line of clients that have booked tokens (`BLOCK`) and wait until they are there.
//!
//! What is booked is charged to the level at once. Each booking has a *level of its own*: the
//! bucket's right after its charge, that gains as the bucket gains and by every refund, but is not
//! lowered by later charges. It is served once that level is >= 0 and the ban is over that was in
//! force when it was booked.
//!
//! The own levels fall strictly along the line: each booking's is the one before it less at least
//! its cost, also after one in the middle left and those behind it got its cost. So only the first
//! needs to be looked at, and everything is O(log n): gains go into one sum, only the first and the
//! last own level are kept (less that sum), and for the others the *step* down from the one before.
//! A change of limits alone walks the line.
//!
//! Not state: see [`super`].

use crate::engine::bucket::{Bucket, Level};
use crate::engine::footprint::tree;
use crate::engine::shared::waiting::Ticket;
use crate::engine::time::Micros;
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy)]
struct Booking {
    cost: i64,
    /// The capacity when it was booked: what its client is told if the key goes away.
    capacity: i64,
    /// Its own level less that of the one before it.
    step: Level,
    not_before: Micros,
}

#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Line {
    /// By arrival.
    bookings: BTreeMap<Ticket, Booking>,
    /// All gains and refunds since the line began.
    sum: Level,
    /// The own levels of the first and the last, less `sum`.
    first: Level,
    last: Level,
}

impl Line {
    pub(super) fn len(&self) -> usize {
        self.bookings.len()
    }

    /// Bytes on the heap, roughly.
    pub(super) fn memory(&self) -> usize {
        tree(self.bookings.len(), size_of::<(Ticket, Booking)>())
    }

    /// Time has passed or tokens came back, for all in the line alike.
    pub(super) fn gain(&mut self, gained: Level, parts: u64) {
        self.sum = self.sum.add(gained, parts);
    }

    /// One more at the end; `level` is the bucket's, after the charge.
    pub(super) fn push(&mut self, ticket: Ticket, cost: i64, not_before: Micros, bucket: &Bucket) {
        let parts = bucket.parts();
        if self.bookings.is_empty() {
            // An earlier line may have reckoned in other parts.
            self.sum = Level::default();
        }
        let key = bucket.level().sub(self.sum, parts);
        let step = if self.bookings.is_empty() {
            self.first = key;
            Level::default()
        } else {
            key.sub(self.last, parts)
        };
        self.last = key;
        let capacity = bucket.limits().capacity();
        self.bookings.insert(ticket, Booking { cost, capacity, step, not_before });
    }

    /// From when on the first can be served, if nothing else comes; the bucket is the stored one.
    /// None: nobody waits.
    pub(super) fn ready_at(&self, bucket: &Bucket) -> Option<Micros> {
        let (_, first) = self.bookings.first_key_value()?;
        let own = bucket.with_level(self.first.add(self.sum, bucket.parts()));
        let there = i128::from(own.at()) + own.reach(Level::default());
        let there = if own.level() >= Level::default() {
            Micros::MIN
        } else {
            i64::try_from(there).unwrap_or(i64::MAX)
        };
        Some(there.max(first.not_before))
    }

    /// Takes the first out.
    pub(super) fn pop(&mut self, parts: u64) -> Option<(Ticket, i64)> {
        let (ticket, booking) = self.bookings.pop_first()?;
        if let Some((_, next)) = self.bookings.first_key_value() {
            self.first = self.first.add(next.step, parts);
        }
        Some((ticket, booking.cost))
    }

    /// One goes away; those behind it move up by its cost, which is answered.
    pub(super) fn remove(&mut self, ticket: Ticket, bucket: &Bucket) -> Option<i64> {
        let parts = bucket.parts();
        let booking = self.bookings.remove(&ticket)?;
        let is_first = self.bookings.first_key_value().is_none_or(|(first, _)| *first > ticket);
        let cost = Level::whole(bucket.limits().units(booking.cost));
        if let Some((_, next)) = self.bookings.range_mut(ticket..).next() {
            next.step = next.step.add(cost, parts);
            if is_first {
                self.first = self.first.add(next.step, parts);
            } else {
                next.step = next.step.add(booking.step, parts);
            }
            self.last = self.last.add(cost, parts);
        } else {
            self.last = self.last.sub(booking.step, parts);
        }
        Some(booking.cost)
    }

    /// A ban that was in force may now be over sooner.
    pub(super) fn not_later(&mut self, instant: Micros) {
        for booking in self.bookings.values_mut() {
            booking.not_before = booking.not_before.min(instant);
        }
    }

    /// Replaces every own level by what `change` makes of it: limits have changed. `parts` before
    /// and after.
    pub(super) fn change(&mut self, parts: u64, new_parts: u64, mut change: impl FnMut(Level) -> Level) {
        let (mut old, mut before) = (self.first.add(self.sum, parts), Level::default());
        for (place, booking) in self.bookings.values_mut().enumerate() {
            if place > 0 {
                old = old.add(booking.step, parts);
            }
            let new = change(old);
            if place == 0 {
                self.first = new;
            } else {
                booking.step = new.sub(before, new_parts);
            }
            before = new;
        }
        self.last = before;
        self.sum = Level::default();
    }

    /// All who wait, in order: the ticket, what was booked, of which capacity.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (Ticket, i64, i64)> {
        std::mem::take(&mut self.bookings).into_iter().map(|(ticket, b)| (ticket, b.cost, b.capacity))
    }
}
