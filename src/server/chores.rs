//! What must happen but cannot happen in the middle of the call that made it necessary: done by the timer right after, or, where that is sound, around the next
//! command of ours.
//!
//! - a blocked client went away: what it had booked is given back;
//! - the object a client waited on is gone: its command is decided anew, or it is told what it had booked;
//! - a queue changed inside a transaction, or a key under waiting claims changed hands: the line there is looked at again;
//! - an object came by RESTORE without a TTL, though it goes by itself;
//! - a held reply could not be delivered: what it gave goes back.
//!
//! Each is about one key, and done only when that key may be changed (access.rs); until then it is *held back*. Invariants:
//!
//! - None runs while a key is open for change, whose decisions are not carried yet.
//! - In a cluster none runs inside a command: some servers take the slot of every key that is opened then from the command, and would read and write
//!   another slot's table.
//! - On a replica nothing is given back: what was booked here is part of what its new master decides on. Lines forget who left, that is all.

use super::access::{self, Access};
use super::api::{Ctx, OwnedString};
use super::block::{self, Gives};
use super::error::Error;
use super::guard::{shield, trip};
use super::key::{Opened, any_open};
use super::main_thread::MainThread;
use super::registry::{self, Place};
use super::reply::Tree;
use super::types::for_family;
use super::{clock, config, lines, timer, unit};
use crate::engine::journal::Journal;
use crate::engine::object::{Family, Object};
use crate::engine::queue::{Queue, Receipt, Taken};
use crate::engine::time::Micros;
use crate::engine::waiting::{Answer, Ticket};
use hashbrown::HashMap;
use std::collections::VecDeque;

#[derive(Debug)]
pub enum Chore {
    /// A client that waited on this object is gone.
    Depart { object: u64, ticket: Ticket },
    /// The object this client waited on is gone.
    DecideAnew(Ticket),
    /// The same, but what it had booked is its own: this is its answer, if the key is ours to say so.
    Tell { family: Family, ticket: Ticket, answer: Answer },
    /// Serve the line of claims at this key, or tell it that the key is something else now.
    LookAgain(Place),
    /// Deliveries that reached nobody.
    Return { place: Place, object: u64, receipts: Vec<Receipt>, taken: Vec<Taken> },
    /// An object came by RESTORE: if it goes by itself, its key must have a TTL.
    Bound { family: Family, place: Place },
    /// A limiter's answer that reached nobody.
    Undo { family: Family, place: Place, object: u64, answer: Answer },
}

impl Chore {
    /// The key it is about; None: there is nothing left to do.
    fn place(&self) -> Option<Place> {
        match self {
            Self::Depart { object, .. } => registry::place(*object).map(|(_, place)| place),
            Self::DecideAnew(ticket) | Self::Tell { ticket, .. } => block::place_of(*ticket),
            Self::LookAgain(place) => lines::is_line(place).then(|| place.clone()),
            Self::Bound { place, .. } => Some(place.clone()),
            // Where the object lives by now, if that is known.
            Self::Return { place, object, .. } | Self::Undo { place, object, .. } => {
                Some(registry::place(*object).map_or_else(|| place.clone(), |(_, now)| now))
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

    /// Whether it is about clients who wait, and so is worth keeping while another node answers for the key: the slot may come back.
    fn outlives_the_slot(&self) -> bool {
        matches!(self, Self::DecideAnew(_) | Self::Tell { .. } | Self::LookAgain(_))
    }
}

/// A chore that is left, and whether its key was another node's when it was tried last: then who waits for
/// it has not been sent here for a key that is not here.
#[derive(Debug)]
struct Left {
    chore: Chore,
    was_elsewhere: bool,
}

#[derive(Default)]
struct Chores {
    pending: VecDeque<Left>,
    held_back: Vec<Left>,
}

static CHORES: std::sync::LazyLock<MainThread<Chores>> =
    std::sync::LazyLock::new(|| MainThread::new(Chores::default()));

/// The most that are done at once.
const MOST: usize = 256;

/// Adds a chore; the timer comes for it as soon as the running command is done.
pub fn add(chore: Chore) {
    CHORES.with(|c| c.pending.push_back(Left { chore, was_elsewhere: false }));
    timer::soon(Ctx::own());
}

pub fn pending() -> bool {
    CHORES.with(|c| !c.pending.is_empty())
}

/// Whether any are left, to be done now or when their key may be changed.
pub fn any() -> bool {
    pending() || any_held_back()
}

/// Whether some wait until their key may be changed.
pub fn any_held_back() -> bool {
    CHORES.with(|c| !c.held_back.is_empty())
}

/// What was held back is tried again.
pub fn try_again() {
    CHORES.with(|c| c.pending.extend(std::mem::take(&mut c.held_back)));
}

/// Does some chores, at least one, for about a tick of the timer; true when more are left to do now.
pub fn run(ctx: Ctx<'_>) -> bool {
    access::anew();
    let begin = clock::monotonic();
    let cluster = ctx.flags().cluster();
    let mut seen = HashMap::new();
    for done in 0..MOST {
        let over = || done > 0 && clock::monotonic().saturating_sub(begin) >= config::tick_budget_us();
        if any_open() || over() {
            break;
        }
        let Some(left) = CHORES.with(|c| c.pending.pop_front()) else { return false };
        let Some(place) = left.chore.place() else { continue };
        // In a cluster what is carried at once is of one slot.
        if !unit::fits(ctx, &place.key) {
            CHORES.with(|c| c.pending.push_front(left));
            break;
        }
        let ask = || ctx.in_db(place.db, || access::to(ctx, &place.key));
        // In a cluster a chore may take away the key that made the next one's answer: of a slot that
        // is going, what is there is ours, and what is not is the other node's.
        let access =
            if cluster { ask() } else { *seen.entry((place.db, place.key.clone())).or_insert_with(ask) };
        let Left { chore, was_elsewhere } = left;
        let decided_here = access == Access::Granted || access == Access::Coming && !was_elsewhere;
        if decided_here {
            // It is not the fault of the command around which it is done; and who waits for it is told.
            let waits = chore.waiter();
            let forgotten = |t| block::send(t, Tree::Error(Error::INTERNAL), Gives::Nothing);
            shield(
                || ctx.in_db(place.db, || act(ctx, &place, chore)),
                || waits.into_iter().for_each(forgotten),
            );
        } else if access == Access::NotNow || chore.outlives_the_slot() {
            let was_elsewhere = was_elsewhere || access == Access::Elsewhere;
            CHORES.with(|c| c.held_back.push(Left { chore, was_elsewhere }));
        }
    }
    pending()
}

fn act(ctx: Ctx<'_>, place: &Place, chore: Chore) {
    trip("chore");
    match chore {
        Chore::Depart { object, ticket } => depart(ctx, object, ticket),
        Chore::DecideAnew(ticket) => block::decide_anew(ctx, ticket),
        Chore::Tell { family, ticket, answer } => {
            if block::may_have(ctx, ticket, &place.key) {
                block::answer(family, None, ticket, answer);
            } else {
                block::send(ticket, Tree::Error(Error::NO_PERMISSION), Gives::Nothing);
            }
        }
        Chore::LookAgain(_) => lines::serve(ctx, &place.key),
        Chore::Bound { family, .. } => for_family!(family, bound(ctx, place)),
        Chore::Return { object, receipts, taken, .. } => give_back(ctx, place, object, &receipts, taken),
        Chore::Undo { family, object, answer, .. } => {
            for_family!(family, undo(ctx, place, object, &answer));
        }
    }
}

/// On a replica: lines forget who left; all else is its master's to decide.
pub fn drop_all() {
    let chores = CHORES.with(|c| {
        let mut all = std::mem::take(&mut c.pending);
        all.extend(std::mem::take(&mut c.held_back));
        all
    });
    for Left { chore, .. } in chores {
        if let Chore::Depart { object, ticket } = chore
            && let Some((family, place)) = registry::place(object)
        {
            let ctx = Ctx::own();
            ctx.in_db(place.db, || for_family!(family, forget_in(ctx, object, &place, ticket)));
        }
    }
}

/// Takes a client out of the line of the object; what it had booked goes back. Nothing if it is not there any more.
pub fn depart(ctx: Ctx<'_>, object: u64, ticket: Ticket) {
    if let Some((family, place)) = registry::place(object) {
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
        key.decide(act);
    }
}

fn depart_from<O: Object>(ctx: Ctx<'_>, object: u64, place: &Place, ticket: Ticket) {
    act_on(ctx, place, object, |object: &mut O, now, journal| object.depart(ticket, now, journal));
}

fn forget_in<O: Object>(ctx: Ctx<'_>, id: u64, place: &Place, ticket: Ticket) {
    super::key::note::<O>(ctx, &place.key, id, |object| object.forget(ticket));
}

fn bound<O: Object>(ctx: Ctx<'_>, place: &Place) {
    let name = OwnedString::new(&place.key);
    if let Ok(mut opened) = Opened::<O>::named(ctx, &name) {
        opened.bound();
        opened.finish();
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
