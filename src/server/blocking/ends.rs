//! Ends of waits that are not the object's own doing: it is gone, time is over while it may not
//! change, the client leaves, the role is lost.

use super::access::{self, Access};
use super::claim_waiters;
use super::clients::{Asked, CLIENTS, Decide, Decided, Gives, State, Waits, may_have, send};
use super::deferred::{self, Deferred};
use crate::engine::names_hash::Set;
use crate::engine::object::Object;
use crate::engine::shared::waiting::Ticket;
use crate::engine::time::{MS, Micros};
use crate::server::error::Error;
use crate::server::ffi::context::Ctx;
use crate::server::ffi::strings::OwnedString;
use crate::server::reply::owned::OwnedReply;
use crate::server::time::clock;
use crate::server::time::due_index::{self, Place};

/// What is noted while a client waits on no object: no object has this number.
const NO_OBJECT: u64 = 0;

/// The object a client waited on is gone: its command is decided anew, in its turn.
pub fn decide_anew(ctx: Ctx<'_>, ticket: Ticket) {
    let Some((place, decide)) = limiter(ticket) else { return };
    let name = OwnedString::new(&place.key);
    ctx.in_db(place.db, || {
        if !may_have(ctx, ticket, &place.key) {
            return send(ticket, OwnedReply::Error(Error::NO_PERMISSION), Gives::Nothing);
        }
        match decide(ctx, &name, Asked::Held(ticket)) {
            Ok(Decided::Waits(wait)) => CLIENTS.with(|w| {
                if let Some(Waits::Limiter { object, booked, .. }) =
                    w.by_ticket.get_mut(&ticket).map(|w| &mut w.waits)
                {
                    (*object, *booked) = (wait.object, wait.booked);
                }
            }),
            Ok(Decided::Told(answer)) => send(ticket, OwnedReply::Answer(answer), Gives::Nothing),
            Err(error) => send(ticket, OwnedReply::Error(error), Gives::Nothing),
        }
    });
}

/// Where a limiter's waiter waits by its own words, and how its command decides.
fn limiter(ticket: Ticket) -> Option<(Place, Decide)> {
    CLIENTS.with(|w| match &w.waits(ticket)?.waits {
        Waits::Limiter { place, decide, .. } => Some((place.clone(), decide.clone())),
        Waits::Claim { .. } => None,
    })
}

/// The place of a limiter's waiter; None: it waits no more.
pub fn place_of(ticket: Ticket) -> Option<Place> {
    limiter(ticket).map(|(place, _)| place)
}

/// The object goes away under those who wait on it. Whether that is for us to say is asked later:
/// in a cluster it may live on elsewhere, and a key whose time has come goes also where nothing may
/// be written.
pub fn orphaned<O: Object>(object: &mut O) {
    for (ticket, told) in object.orphans().into_iter().filter(|(ticket, _)| bereaved(*ticket)) {
        deferred::add(match told {
            Some(answer) => Deferred::Tell { family: O::FAMILY, ticket, answer },
            None => Deferred::DecideAnew(ticket),
        });
    }
}

/// Notes that what a client waits on is gone; false: that was noted before. A flush tells of its
/// objects first and frees them after, and a command that is decided twice stands in line twice.
fn bereaved(ticket: Ticket) -> bool {
    CLIENTS.with(|w| match w.by_ticket.get_mut(&ticket).map(|w| &mut w.waits) {
        Some(Waits::Limiter { object, .. }) => std::mem::replace(&mut object.id, NO_OBJECT) != NO_OBJECT,
        Some(Waits::Claim { .. }) | None => true,
    })
}

/// The objects of these numbers are flushed. They are not followed any more: who waits on one is
/// told from what is noted here.
pub fn flushed(objects: &Set<u64>) {
    let mut gone: Vec<(Ticket, Deferred)> = CLIENTS.with(|w| {
        let waiting = w.by_ticket.iter().filter(|(_, w)| matches!(w.state, State::Waiting));
        let gone = waiting.filter_map(|(ticket, w)| match &w.waits {
            Waits::Limiter { object, family, booked, .. } if objects.contains(&object.id) => {
                let (family, ticket) = (*family, *ticket);
                let tell = booked.clone().map(|answer| Deferred::Tell { family, ticket, answer });
                Some((ticket, tell.unwrap_or(Deferred::DecideAnew(ticket))))
            }
            _ => None,
        });
        gone.collect()
    });
    gone.sort_unstable_by_key(|(ticket, _)| *ticket);
    gone.into_iter().filter(|(ticket, _)| bereaved(*ticket)).for_each(|(_, what)| deferred::add(what));
}

/// Notes whether an object that is due may change now, for those who wait on it.
pub fn withhold(object: u64, withheld: bool) {
    CLIENTS.with(|w| {
        if withheld {
            w.withheld.insert(object);
        } else if !w.withheld.is_empty() {
            w.withheld.remove(&object);
        }
    });
}

/// When the next claim's time is over, on the monotonic clock.
pub fn next_end() -> Option<Micros> {
    CLIENTS.with(|w| w.real_ends.first().map(|(at, _)| *at))
}

/// Whether anybody waits until an instant of the module's clock.
pub fn any_clock_end() -> bool {
    CLIENTS.with(|w| !w.clock_ends.is_empty())
}

/// Tells those whose time is over. A refusal changes nothing, so it can always be said; those whose
/// object may change are told by it, so here they count only if it may not (`may_change`: whether
/// objects may change at all now).
pub fn time_out(ctx: Ctx<'_>, may_change: bool) {
    let mono = clock::monotonic();
    while let Some((ticket, over)) = CLIENTS.with(|w| {
        let (_, ticket) = *w.real_ends.first().filter(|(at, _)| *at <= mono)?;
        match &w.by_ticket.get(&ticket)?.waits {
            Waits::Claim { over } => Some((ticket, over.clone())),
            Waits::Limiter { .. } => None,
        }
    }) {
        claim_waiters::leave(ticket);
        send(ticket, over, Gives::Nothing);
    }
    let now = clock::now();
    // Those whose object is gone are decided anew by a deferred task; until then nobody else tells
    // them.
    let bereaved = deferred::any();
    let due: Vec<Ticket> = CLIENTS.with(|w| {
        if may_change && w.withheld.is_empty() && !bereaved {
            return Vec::new();
        }
        let stuck = |ticket: &Ticket| match w.by_ticket.get(ticket).map(|w| &w.waits) {
            Some(Waits::Limiter { object, .. }) => {
                !may_change || w.withheld.contains(&object.id) || due_index::place(object.id).is_none()
            }
            _ => false,
        };
        let over = w.clock_ends.iter().take_while(|(at, _)| *at <= now).map(|(_, ticket)| *ticket);
        over.filter(stuck).collect()
    });
    for ticket in due {
        let told = refusal(ctx, ticket);
        depart(ticket);
        send(ticket, told, Gives::Nothing);
    }
}

/// What a limiter's waiter is told whose time was cut short.
pub fn refusal(ctx: Ctx<'_>, ticket: Ticket) -> OwnedReply {
    let Some((place, decide, object)) = CLIENTS.with(|w| match &w.waits(ticket)?.waits {
        Waits::Limiter { place, decide, object, .. } => Some((place.clone(), decide.clone(), object.id)),
        Waits::Claim { .. } => None,
    }) else {
        return OwnedReply::NilArray;
    };
    let place = match due_index::place(object) {
        Some((_, place)) => place,
        // The key is gone. It may be at another node.
        None if ctx.flags().cluster() && !is_ours(ctx, &place) => {
            return OwnedReply::Error(Error::SLOT_MOVED);
        }
        None => place,
    };
    let name = OwnedString::new(&place.key);
    match ctx.in_db(place.db, || decide(ctx, &name, Asked::Over)) {
        Ok(Decided::Told(answer)) => OwnedReply::Answer(answer),
        Ok(Decided::Waits(..)) => OwnedReply::NilArray,
        Err(error) => OwnedReply::Error(error),
    }
}

/// In a cluster: whether it is for this node to say what a key is.
fn is_ours(ctx: Ctx<'_>, place: &Place) -> bool {
    access::anew();
    let access = ctx.in_db(place.db, || access::to(ctx, &place.key));
    matches!(access, Access::Granted | Access::NotNow)
}

/// A waiter is leaving: out of its line, bookings back.
pub fn depart(ticket: Ticket) {
    let object = CLIENTS.with(|w| match &w.by_ticket.get(&ticket)?.waits {
        Waits::Limiter { object, .. } => Some(object.id),
        Waits::Claim { .. } => None,
    });
    match object {
        Some(object) => deferred::add(Deferred::Depart { object, ticket }),
        None => claim_waiters::leave(ticket),
    }
}

/// First come, first: a table has no order that means anything.
fn in_line(tickets: impl Iterator<Item = Ticket>) -> Vec<Ticket> {
    let mut tickets: Vec<Ticket> = tickets.collect();
    tickets.sort_unstable();
    tickets
}

/// Those who wait at a key of which `away` says why are told that, and wait no more. What they had
/// booked is part of what the key's new owner decides on.
pub fn send_away(away: impl Fn(&Place) -> Option<Error>) {
    let waiting: Vec<Ticket> = CLIENTS.with(|w| {
        let waiting = w.by_ticket.iter().filter(|(_, w)| matches!(w.state, State::Waiting));
        in_line(waiting.map(|(ticket, _)| *ticket))
    });
    for ticket in waiting {
        if let Some(error) =
            place_of(ticket).or_else(|| claim_waiters::place_of(ticket)).as_ref().and_then(&away)
        {
            depart(ticket);
            send(ticket, OwnedReply::Error(error), Gives::Nothing);
        }
    }
}

/// This server has become a replica: nobody who waits now is served by it any more. The server
/// tells them; whom it passes over is told by [`tell_role_lost`], a little later.
pub fn role_lost() {
    CLIENTS.with(|w| w.role_lost = (w.last, clock::monotonic()));
}

/// See [`role_lost`]. True when it is still to be seen whom the server tells.
pub fn tell_role_lost() -> bool {
    /// A failover takes its time to end, and only then Valkey tells who is to go where.
    const PATIENCE: Micros = 2_000 * MS;
    let now = clock::monotonic();
    let (left, over) = CLIENTS.with(|w| {
        let (upto, at) = w.role_lost;
        let before = w.by_ticket.iter().filter(|(t, w)| **t <= upto && matches!(w.state, State::Waiting));
        let left = in_line(before.map(|(t, _)| *t));
        let over = left.is_empty() || now.saturating_sub(at) >= PATIENCE;
        if over {
            w.role_lost = (0, 0);
        }
        (left, over)
    });
    if !over {
        return true;
    }
    for ticket in left {
        depart(ticket);
        send(ticket, OwnedReply::Error(Error::ROLE_LOST), Gives::Nothing);
    }
    false
}
