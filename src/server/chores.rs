//! What must happen but cannot happen in the middle of the call that made it necessary: done by the timer right after, or before the next
//! command on a queue.
//!
//! - a blocked client went away: what it had booked is given back;
//! - the object a client waited on is gone: its command is decided anew;
//! - a queue changed inside a transaction, or a key under waiting claims changed hands: the line there is looked at again;
//! - an object came by RESTORE without a TTL, though it goes by itself;
//! - a held reply could not be delivered: the messages in it, or what a limiter gave, go back.

use super::api::{Ctx, OwnedString};
use super::key::{Opened, any_open};
use super::main_thread::MainThread;
use super::registry::{self, Place};
use super::types::for_family;
use super::{block, clock, config, lines, timer};
use crate::engine::journal::Journal;
use crate::engine::object::{Family, Object};
use crate::engine::queue::{Queue, Receipt};
use crate::engine::time::Micros;
use crate::engine::waiting::{Answer, Ticket};
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
    Return { place: Place, address: usize, receipts: Vec<Receipt> },
    /// An object came by RESTORE: if it goes by itself, its key must have a TTL.
    Bound { family: Family, place: Place },
    /// A limiter's answer that reached nobody.
    Undo { family: Family, place: Place, address: usize, answer: Answer },
}

static PENDING: MainThread<VecDeque<Chore>> = MainThread::new(VecDeque::new());

/// The most that are done at once.
const MOST: usize = 256;

/// Adds a chore; the timer comes for it as soon as the running command is done.
pub fn add(chore: Chore) {
    PENDING.with(|p| p.push_back(chore));
    timer::soon(Ctx::own());
}

pub fn pending() -> bool {
    PENDING.with(|p| !p.is_empty())
}

/// Does some chores, at least one, for about a tick of the timer; true when more are left.
pub fn run(ctx: Ctx<'_>) -> bool {
    let begin = clock::wall();
    for done in 0..MOST {
        let over = || done > 0 && clock::wall().saturating_sub(begin) >= config::tick_budget_us();
        if any_open() || over() {
            break;
        }
        let Some(chore) = PENDING.with(VecDeque::pop_front) else { return false };
        match chore {
            Chore::Depart { address, ticket } => depart(ctx, address, ticket),
            Chore::DecideAnew(ticket) => block::decide_anew(ctx, ticket),
            Chore::LookAgain(place) => ctx.in_db(place.db, || lines::serve(ctx, &place.key)),
            Chore::Bound { family, place } => {
                ctx.in_db(place.db, || for_family!(family, bound(ctx, &place)));
            }
            Chore::Return { place, address, receipts } => {
                let place = by_now(address, place);
                ctx.in_db(place.db, || give_back(ctx, &place, address, &receipts));
            }
            Chore::Undo { family, place, address, answer } => {
                let place = by_now(address, place);
                ctx.in_db(place.db, || for_family!(family, undo(ctx, &place, address, &answer)));
            }
        }
    }
    pending()
}

/// Where the object at `address`, that lived at `place`, lives by now, if that is known.
fn by_now(address: usize, place: Place) -> Place {
    registry::place(address).map_or(place, |(_, place)| place)
}

/// Takes a client out of the line of the object at `address`; what it had booked goes back. Nothing if it is not there any more.
pub fn depart(ctx: Ctx<'_>, address: usize, ticket: Ticket) {
    if let Some((family, place)) = registry::place(address) {
        ctx.in_db(place.db, || for_family!(family, depart_from(ctx, address, &place, ticket)));
    }
}

/// Acts on the object at `address`, if it is the one in the key at `place`.
fn act_on<O: Object>(
    ctx: Ctx<'_>,
    place: &Place,
    address: usize,
    act: impl FnOnce(&mut O, Micros, &mut Journal),
) {
    let name = OwnedString::new(&place.key);
    if let Ok(key) = Opened::<O>::named(ctx, &name)
        && key.address() == address
    {
        key.decide(act);
    }
}

fn depart_from<O: Object>(ctx: Ctx<'_>, address: usize, place: &Place, ticket: Ticket) {
    act_on(ctx, place, address, |object: &mut O, now, journal| object.depart(ticket, now, journal));
}

fn bound<O: Object>(ctx: Ctx<'_>, place: &Place) {
    let name = OwnedString::new(&place.key);
    if let Ok(mut opened) = Opened::<O>::named(ctx, &name) {
        opened.bound();
        opened.finish();
    }
}

fn undo<O: Object>(ctx: Ctx<'_>, place: &Place, address: usize, answer: &Answer) {
    act_on(ctx, place, address, |object: &mut O, now, journal| object.undo(answer, now, journal));
}

fn give_back(ctx: Ctx<'_>, place: &Place, address: usize, receipts: &[Receipt]) {
    act_on(ctx, place, address, |queue: &mut Queue, now, journal| queue.give_back(now, receipts, journal));
}
