//! Does what was put off until no command is running (blocking/deferred.rs says what, and when it
//! may be done).

use super::serve;
use crate::engine::journal::Journal;
use crate::engine::names_hash::Map;
use crate::engine::object::Object;
use crate::engine::queue::{Queue, Receipt, Taken};
use crate::engine::shared::waiting::{Answer, Ticket};
use crate::engine::time::Micros;
use crate::server::blocking::access::{self, Access};
use crate::server::blocking::claim_waiters::is_line;
use crate::server::blocking::clients::{self, Gives};
use crate::server::blocking::deferred::{self, Deferred, Task};
use crate::server::blocking::ends;
use crate::server::config;
use crate::server::error::Error;
use crate::server::ffi::context::Ctx;
use crate::server::ffi::guard::{shield, trip};
use crate::server::ffi::strings::OwnedString;
use crate::server::key::handle::note;
use crate::server::key::open::{Opened, any_open};
use crate::server::key::value::for_family;
use crate::server::replication::carry;
use crate::server::reply::owned::OwnedReply;
use crate::server::time::clock;
use crate::server::time::due_index::{self, Place};

impl Deferred {
    /// The key it is about; None: there is nothing left to do.
    fn place(&self) -> Option<Place> {
        match self {
            Self::Depart { object, .. } => due_index::place(*object).map(|(_, place)| place),
            Self::DecideAnew(ticket) | Self::Tell { ticket, .. } => ends::place_of(*ticket),
            Self::LookAgain(place) => is_line(place.db, &place.key).then(|| place.clone()),
            Self::Bound { place, .. } => Some(place.clone()),
            // Where the object lives by now, if that is known.
            Self::Return { place, object, .. } | Self::Undo { place, object, .. } => {
                Some(due_index::place(*object).map_or_else(|| place.clone(), |(_, now)| now))
            }
        }
    }

    /// The client that is told by it.
    fn waiter(&self) -> Option<Ticket> {
        match self {
            Self::DecideAnew(ticket) | Self::Tell { ticket, .. } => Some(*ticket),
            _ => None,
        }
    }

    /// Whether it is about clients who wait, and so is worth keeping while another node answers for
    /// the key: the slot may come back.
    fn outlives_the_slot(&self) -> bool {
        matches!(self, Self::DecideAnew(_) | Self::Tell { .. } | Self::LookAgain(_))
    }
}

/// The most that are done at once.
const MOST: usize = 256;

/// Does some of what was put off, at least one thing, for about a tick of the timer; true when more
/// is left to do now.
pub fn run(ctx: Ctx<'_>) -> bool {
    access::anew();
    let begin = clock::monotonic();
    let cluster = ctx.flags().cluster();
    let mut seen = Map::default();
    for done in 0..MOST {
        let over = || done > 0 && clock::monotonic().saturating_sub(begin) >= config::tick_budget_us();
        if any_open() || over() {
            break;
        }
        let Some(task) = deferred::next() else { return false };
        let Some(place) = task.what.place() else { continue };
        // In a cluster what is carried at once is of one slot.
        if !carry::fits(ctx, &place.key) {
            deferred::put_back(task);
            break;
        }
        let ask = || ctx.in_db(place.db, || access::to(ctx, &place.key));
        // In a cluster one thing may take away the key that made the next one's answer: of a slot
        // that is going, what is there is ours, and what is not is the other node's.
        let access =
            if cluster { ask() } else { *seen.entry((place.db, place.key.clone())).or_insert_with(ask) };
        let Task { what, was_elsewhere } = task;
        let decided_here = access == Access::Granted || access == Access::Coming && !was_elsewhere;
        if decided_here {
            // It is not the fault of the command around which it is done; and who waits for it is
            // told.
            let waits = what.waiter();
            let forgotten = |t| clients::send(t, OwnedReply::Error(Error::INTERNAL), Gives::Nothing);
            shield(
                || ctx.in_db(place.db, || act(ctx, &place, what)),
                || waits.into_iter().for_each(forgotten),
            );
        } else if access == Access::NotNow || what.outlives_the_slot() {
            let was_elsewhere = was_elsewhere || access == Access::Elsewhere;
            deferred::hold_back(Task { what, was_elsewhere });
        }
    }
    deferred::pending()
}

fn act(ctx: Ctx<'_>, place: &Place, what: Deferred) {
    trip("deferred");
    match what {
        Deferred::Depart { object, ticket } => depart(ctx, object, ticket),
        Deferred::DecideAnew(ticket) => ends::decide_anew(ctx, ticket),
        Deferred::Tell { family, ticket, answer } => {
            if clients::may_have(ctx, ticket, &place.key) {
                clients::answer(family, None, ticket, answer);
            } else {
                clients::send(ticket, OwnedReply::Error(Error::NO_PERMISSION), Gives::Nothing);
            }
        }
        Deferred::LookAgain(_) => serve::serve(ctx, &place.key),
        Deferred::Bound { family, .. } => for_family!(family, bound(ctx, place)),
        Deferred::Return { object, receipts, taken, .. } => give_back(ctx, place, object, &receipts, taken),
        Deferred::Undo { family, object, answer, .. } => {
            for_family!(family, undo(ctx, place, object, &answer));
        }
    }
}

/// On a replica: lines forget who left; all else is its master's to decide.
pub fn drop_all() {
    for Task { what, .. } in deferred::take_all() {
        if let Deferred::Depart { object, ticket } = what
            && let Some((family, place)) = due_index::place(object)
        {
            let ctx = Ctx::own();
            ctx.in_db(place.db, || for_family!(family, forget_in(ctx, object, &place, ticket)));
        }
    }
}

/// Takes a client out of the line of the object; what it had booked goes back. Nothing if it is not
/// there any more.
pub fn depart(ctx: Ctx<'_>, object: u64, ticket: Ticket) {
    if let Some((family, place)) = due_index::place(object) {
        ctx.in_db(place.db, || for_family!(family, depart_from(ctx, object, &place, ticket)));
    }
}

/// Acts on the object, if it is the one in the key at `place`.
fn act_on<O: Object>(
    ctx: Ctx<'_>,
    place: &Place,
    object: u64,
    act: impl FnOnce(&mut O, Micros, &mut Journal),
) {
    let name = OwnedString::new(&place.key);
    if let Ok(key) = Opened::<O>::named(ctx, &name)
        && key.identity().is_some_and(|found| found.id == object)
    {
        serve::decide(key, act);
    }
}

fn depart_from<O: Object>(ctx: Ctx<'_>, object: u64, place: &Place, ticket: Ticket) {
    act_on(ctx, place, object, |object: &mut O, now, journal| object.depart(ticket, now, journal));
}

fn forget_in<O: Object>(ctx: Ctx<'_>, id: u64, place: &Place, ticket: Ticket) {
    note::<O>(ctx, &place.key, id, |object| object.forget(ticket));
}

fn bound<O: Object>(ctx: Ctx<'_>, place: &Place) {
    let name = OwnedString::new(&place.key);
    if let Ok(mut opened) = Opened::<O>::named(ctx, &name) {
        opened.bound();
        serve::finish(opened);
    }
}

fn undo<O: Object>(ctx: Ctx<'_>, place: &Place, object: u64, answer: &Answer) {
    act_on(ctx, place, object, |object: &mut O, now, journal| object.undo(answer, now, journal));
}

fn give_back(ctx: Ctx<'_>, place: &Place, object: u64, receipts: &[Receipt], taken: Vec<Taken>) {
    act_on(ctx, place, object, |queue: &mut Queue, now, journal| {
        queue.give_back(now, receipts, journal);
        queue.untake(now, taken, journal);
    });
}
