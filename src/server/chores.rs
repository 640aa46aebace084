//! What must happen but cannot happen in the middle of the call that made it necessary: done by the timer right after, or before the next
//! command on a queue.
//!
//! - a blocked client went away: what it had booked is given back;
//! - the object a client waited on is gone: its command is decided anew;
//! - a queue changed inside a transaction, or a key under waiting claims changed hands: the line there is looked at again;
//! - a held reply with messages in it could not be delivered: they are given back.

use super::api::{Ctx, OwnedString};
use super::key::Opened;
use super::main_thread::MainThread;
use super::registry::{self, Place};
use super::types::for_family;
use super::{block, clock, lines, timer};
use crate::engine::object::Object;
use crate::engine::queue::{NackOptions, Queue, Receipt};
use crate::engine::waiting::Ticket;
use std::collections::VecDeque;

#[derive(Debug)]
pub enum Chore {
    /// A client that waited on the object at this address is gone.
    Depart { address: usize, ticket: Ticket },
    /// The object this client waited on is gone.
    DecideAnew(Ticket),
    /// Serve the line of claims at this key, or tell it that the key is something else now.
    LookAgain(Place),
    /// Deliveries that reached nobody.
    Return { place: Place, receipts: Vec<Receipt> },
}

static PENDING: MainThread<VecDeque<Chore>> = MainThread::new(VecDeque::new());

/// Chores between two looks at the clock by the timer.
const MOST: usize = 256;

/// Adds a chore; the timer comes for it as soon as the running command is done.
pub fn add(chore: Chore) {
    PENDING.with(|p| p.push_back(chore));
    timer::soon(Ctx::own());
}

pub fn pending() -> bool {
    PENDING.with(|p| !p.is_empty())
}

/// Does some chores; true when more are left.
pub fn run(ctx: Ctx<'_>) -> bool {
    for _ in 0..MOST {
        let Some(chore) = PENDING.with(VecDeque::pop_front) else { return false };
        match chore {
            Chore::Depart { address, ticket } => depart(ctx, address, ticket),
            Chore::DecideAnew(ticket) => block::decide_anew(ctx, ticket),
            Chore::LookAgain(place) => ctx.in_db(place.db, || lines::serve(ctx, &place.key)),
            Chore::Return { place, receipts } => ctx.in_db(place.db, || give_back(ctx, &place, &receipts)),
        }
    }
    pending()
}

/// Takes a client out of the line of the object at `address`; what it had booked goes back. Nothing if it is not there any more.
pub fn depart(ctx: Ctx<'_>, address: usize, ticket: Ticket) {
    if let Some((family, place)) = registry::place(address) {
        ctx.in_db(place.db, || for_family!(family, depart_from(ctx, address, &place, ticket)));
    }
}

fn depart_from<O: Object>(ctx: Ctx<'_>, address: usize, place: &Place, ticket: Ticket) {
    let name = OwnedString::new(&place.key);
    let now = clock::now();
    // SAFETY: `name` outlives the handle; there are no arguments.
    let Ok(mut opened) = (unsafe { Opened::<O>::new(ctx, name.raw(), &[], now) }) else { return };
    if opened.address() == address {
        let (object, journal) = opened.parts();
        object.depart(ticket, now, journal);
    }
    opened.finish();
}

fn give_back(ctx: Ctx<'_>, place: &Place, receipts: &[Receipt]) {
    let name = OwnedString::new(&place.key);
    let now = clock::now();
    // SAFETY: `name` outlives the handle; there are no arguments.
    let Ok(mut opened) = (unsafe { Opened::<Queue>::new(ctx, name.raw(), &[], now) }) else { return };
    if opened.existing().is_some() {
        let (queue, journal) = opened.parts();
        let uncounted = NackOptions { no_count: true, ..NackOptions::default() };
        queue.nack(now, receipts, &uncounted, journal);
    }
    opened.finish();
}
