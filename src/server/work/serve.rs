//! Serves the lines of clients that wait for messages (blocking/claim_waiters.rs): before a
//! newcomer claims, when a queue has changed, and when the timer finds that something can be
//! claimed.
//!
//! What is served outside a command is served only while the key may be changed (run_deferred.rs
//! asks).

use crate::engine::family::Family;
use crate::engine::journal::Journal;
use crate::engine::object::Object;
use crate::engine::queue::{Delivery, Queue, Receipt};
use crate::engine::shared::waiting::Ticket;
use crate::engine::time::Micros;
use crate::server::blocking::claim_waiters::{
    self, Ask, Claimant, Next, OutOfLine, Serving, Turns, Wrap, is_line, look_again, nobody, take_first,
};
use crate::server::blocking::clients::{self, Gives};
use crate::server::cluster::migration;
use crate::server::config;
use crate::server::error::Error;
use crate::server::ffi::context::Ctx;
use crate::server::ffi::guard::trip;
use crate::server::ffi::strings::OwnedString;
use crate::server::key::finish::FollowUp;
use crate::server::key::handle::{Holds, holds};
use crate::server::key::open::{Opened, any_open};
use crate::server::reply::message::kept;
use crate::server::reply::owned::OwnedReply;
use crate::server::time::clock;
use crate::server::time::due_index::{self, Identity, Place};

/// Ends the work on a key, and does what follows from it. Returns what the object is known by;
/// None: there is no key.
pub fn finish<O: Object>(opened: Opened<'_, O>) -> Option<Identity> {
    let ctx = opened.context();
    let (identity, follow_up) = opened.finish();
    follow(ctx, follow_up);
    identity
}

/// Decides on the object in an open key, ends the work on it, and does what follows from it.
pub fn decide<O: Object, R>(
    mut opened: Opened<'_, O>,
    decide: impl FnOnce(&mut O, Micros, &mut Journal) -> R,
) -> R {
    let now = opened.now();
    let (object, journal) = opened.parts();
    let decided = decide(object, now, journal);
    finish(opened);
    decided
}

/// A queue changed: who waits there is served, at once or, inside a transaction or script, right
/// after it.
fn follow(ctx: Ctx<'_>, follow_up: FollowUp) {
    let Some(place) = follow_up.take() else { return };
    if ctx.flags().atomic() || any_open() {
        look_again(place.db, &place.key);
    } else {
        serve(ctx, &place.key);
    }
}

/// Puts a client at the end of the lines of `keys`, in the database of the context.
pub fn join(ctx: Ctx<'_>, ticket: Ticket, keys: Vec<Box<[u8]>>, ask: Ask, wrap: Wrap) {
    claim_waiters::enter(ticket, Claimant { db: ctx.db(), keys: keys.clone(), ask, wrap });
    // From here on a change of type is noticed; and if only tokens are awaited, the timer is told.
    for key in keys {
        serve(ctx, &key);
    }
}

/// Serves the line at a key of the selected database as far as messages go, or for a tick of the
/// timer: then it comes back.
pub fn serve(ctx: Ctx<'_>, key: &[u8]) {
    serve_for(ctx, key, config::tick_budget_us());
}

/// A newcomer would claim from the keys: whoever waits there is served before, with all that there
/// is. True if somebody waits.
pub fn serve_first<'k>(ctx: Ctx<'_>, keys: impl Iterator<Item = &'k [u8]>) -> bool {
    if nobody() || ctx.flags().atomic() {
        return false;
    }
    let (db, mut any) = (ctx.db(), false);
    for key in keys {
        if is_line(db, key) {
            serve_for(ctx, key, Micros::MAX);
            any = true;
        }
    }
    any
}

fn serve_for(ctx: Ctx<'_>, key: &[u8], budget: Micros) {
    let at = (ctx.db(), Box::<[u8]>::from(key));
    if claim_waiters::serving() || !is_line(at.0, key) || migration::staged(key) {
        return;
    }
    let name = OwnedString::new(key);
    match holds::<Queue>(ctx, name.as_str()) {
        Holds::Nothing => return claim_waiters::vanished(at.0, key),
        Holds::Other => return refuse(&at),
        Holds::Ours => {}
    }
    let begin = clock::wall();
    let mut turns = None;
    let _serving = Serving::begin();
    while let Some(out) = first(ctx, &name, &at, &mut turns) {
        // One who waits at several keys takes from the first of them that has any; this one has.
        let served = out
            .waiter()
            .is_some_and(|waiter| waiter.keys.iter().any(|key| claim(ctx, out.ticket, waiter, at.0, key)));
        if !served {
            out.back();
            break;
        }
        out.answered();
        if clock::wall().saturating_sub(begin) >= budget {
            look_again(at.0, key);
            break;
        }
    }
}

/// Takes the first in line who can be served out of it; if there is none, sees that the timer comes
/// when tokens will do.
fn first(
    ctx: Ctx<'_>,
    name: &OwnedString,
    at: &(i32, Box<[u8]>),
    turns: &mut Option<Turns>,
) -> Option<OutOfLine> {
    let mut opened = Opened::<Queue>::named(ctx, name).ok()?;
    let (identity, now) = (opened.identity()?, opened.now());
    let (queue, _) = opened.parts();
    let found = match take_first(at, queue, now, turns) {
        Next::Ready(out) => Some(out),
        Next::Nobody(next) => {
            if let Some(next) = next {
                due_index::schedule(Family::Queue, identity, next, || at.clone());
            }
            None
        }
    };
    trip("serving");
    finish(opened);
    found
}

/// Claims from one key for a client that is out of its lines; true if it was told something.
fn claim(ctx: Ctx<'_>, ticket: Ticket, waiter: &Claimant, db: i32, key: &[u8]) -> bool {
    let name = OwnedString::new(key);
    let Ok(mut opened) = Opened::<Queue>::named(ctx, &name) else { return false };
    let Some(object) = opened.identity() else { return false };
    let now = opened.now();
    let (queue, journal) = opened.parts();
    if !queue.claimable(now, waiter.ask.group.as_deref()) {
        finish(opened);
        return false;
    }
    if !clients::may_have(ctx, ticket, key) {
        finish(opened);
        clients::send(ticket, OwnedReply::Error(Error::NO_PERMISSION), Gives::Nothing);
        return true;
    }
    let deliveries = queue.claim(now, &waiter.ask.options(), journal);
    let messages = deliveries.iter().map(|d| kept(queue, d)).collect();
    let receipts =
        deliveries.iter().filter_map(|d| Some(Receipt { id: d.id.clone(), claim: d.claim? })).collect();
    finish(opened);
    trip("claimed");
    if deliveries.is_empty() {
        return false;
    }
    let taken = deliveries.into_iter().filter_map(Delivery::into_taken).collect();
    let reply = waiter.wrap.around(key, OwnedReply::Array(messages));
    let place = Place { db, key: key.into() };
    clients::send(ticket, reply, Gives::Messages { place, object, receipts, taken });
    true
}

/// The key holds something else: those who waited on a queue there are told.
fn refuse(at: &(i32, Box<[u8]>)) {
    for ticket in claim_waiters::take_all(at) {
        clients::send(ticket, OwnedReply::Error(Error::WRONG_TYPE), Gives::Nothing);
    }
}
