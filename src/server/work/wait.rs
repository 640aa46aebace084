//! Commands whose reply may be held: how a client comes to wait, and what happens when the server
//! asks for its reply or sends it away. The states are in blocking/clients.rs.

use crate::engine::shared::waiting::Ticket;
use crate::server::blocking::clients::{self, Asked, Decide, Decided, Newcomer, Wait, Waits};
use crate::server::blocking::ends;
use crate::server::error::Error;
use crate::server::ffi::blocked::Callbacks;
use crate::server::ffi::context::Ctx;
use crate::server::ffi::strings::{OwnedString, Str};
use crate::server::replication::carry;
use crate::server::reply::limiter;
use crate::server::reply::owned::OwnedReply;
use crate::server::reply::writer::{self, Reply};
use crate::server::time::due_index::Place;
use crate::server::work::run_deferred;

/// Runs a limiter's command on the key `argv[1]`, whose reply may be held where the context allows
/// that.
pub fn run(ctx: Ctx<'_>, argv: &[Str<'_>], decide: Decide) -> Result<(), Error> {
    let [command, key, ..] = argv else { return Err(Error::INTERNAL) };
    let asked = if ctx.flags().may_block() { Asked::Held(clients::ticket()) } else { Asked::AtOnce };
    let name = OwnedString::keep(*key);
    match (decide(ctx, &name, asked)?, asked) {
        (Decided::Waits(Wait { family, object, end, booked }), Asked::Held(ticket)) => {
            let place = Place { db: ctx.db(), key: key.bytes().into() };
            let waits = Waits::Limiter { place, object, decide, family, booked };
            let (command, keys) = (command.bytes(), std::slice::from_ref(key));
            block(ctx, Newcomer { ticket, command, keys, counted: false, end, waits });
        }
        (Decided::Told(answer), _) => limiter::answer(Reply::new(ctx), &answer),
        (Decided::Waits(..), _) => return Err(Error::INTERNAL),
    }
    Ok(())
}

/// Blocks the running command's client. The caller has checked that the context may block.
pub fn block(ctx: Ctx<'_>, newcomer: Newcomer<'_>) {
    clients::block::<ServersCalls>(ctx, newcomer);
}

/// What the server calls for a blocked client.
struct ServersCalls;

impl Callbacks for ServersCalls {
    fn reply(ctx: Ctx<'_>, ticket: Ticket) {
        let before = writer::begin();
        carry::run(ctx, || reply(ctx, ticket), || writer::abandon(ctx, &Error::INTERNAL));
        writer::end(before);
    }

    fn disconnected(ticket: Ticket) {
        if clients::waits(ticket) {
            drop(Leaves(ticket));
        }
    }

    fn freed(ticket: Ticket, gone: bool) {
        clients::freed(ticket, gone);
    }
}

/// Tells a client what it was answered, or, if it waits, that it was unblocked by `CLIENT UNBLOCK …
/// TIMEOUT`.
fn reply(ctx: Ctx<'_>, ticket: Ticket) {
    if !clients::waits(ticket) {
        return clients::write(ctx, ticket);
    }
    // Whatever comes in between, it waits no more: the server lets go of it.
    let leaves = Leaves(ticket);
    let told = clients::over(ticket).unwrap_or_else(|| unblocked(ctx, ticket));
    drop(leaves);
    told.write(Reply::new(ctx));
}

/// A waiter that leaves without an answer of ours: at the end it is out of its line and waits no
/// more, also when a panic passes.
struct Leaves(Ticket);

impl Drop for Leaves {
    fn drop(&mut self) {
        ends::depart(self.0);
        clients::is_gone(self.0);
    }
}

/// What a limiter's waiter is told that somebody unblocks: a refusal, as of after what it had
/// booked went back, if that may be changed now.
fn unblocked(ctx: Ctx<'_>, ticket: Ticket) -> OwnedReply {
    let flags = ctx.flags();
    if flags.cluster() && flags.atomic() {
        // A transaction has a slot of its own, and this key another.
        return OwnedReply::Error(Error::UNBLOCKED);
    }
    if let Some(object) = clients::object_of(ticket)
        && ctx.decides()
    {
        run_deferred::depart(ctx, object, ticket);
    }
    ends::refusal(ctx, ticket)
}
