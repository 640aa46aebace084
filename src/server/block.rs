//! Clients whose reply is held: one mechanism for all families.
//!
//! A blocked client has a [`Ticket`] and is *waiting*, *answered* (what it is told is decided, and on its way) or *gone* (somebody else has told it, or nobody
//! can). It is forgotten when the server lets go of its handle, which happens once, whatever has happened before.
//!
//! | the wait ends | noticed by | the client gets |
//! |---|---|---|
//! | served, or its object decides otherwise | the object (limiters), lines.rs (messages) | that reply |
//! | its time is over | the object, or [`time_out`] | a refusal (limiters), nil (messages) |
//! | `CLIENT UNBLOCK … TIMEOUT` | [`on_timeout`] | the same |
//! | `CLIENT UNBLOCK … ERROR`, kill, disconnect | [`on_disconnect`] | what the server says, or nothing |
//! | slot or role lost, cluster down | the server, [`on_disconnect`] | MOVED, UNBLOCKED, REDIRECT, CLUSTERDOWN, as BLPOP |
//! | writes are refused when it could be served | access.rs | it goes on waiting |
//! | its user may not have it any more | [`may_have`] | NOPERM |
//!
//! The client is blocked on the keys it named, so that the server sends it away itself, with its own words, when it must. But the server never
//! serves it: we signal no key, as it would then ask every waiter of the key, and answer `not yet` when it asks. Nor has it the server's timeout:
//! some servers lose the reply of a client whose time is over in the turn in which it is served.
//!
//! What a reply gives is noted beside it until the server has taken it over: if the client goes away before that, it goes back.

use super::access;
use super::api::{Ctx, ERR, OK, OwnedString, RawString, rm};
use super::call::Call;
use super::chores::{self, Chore};
use super::error::Error;
use super::guard::shield;
use super::main_thread::MainThread;
use super::registry::{self, Identity, Place};
use super::reply::{self, Reply, Tree};
use super::{answers, clock, lines, stats, timer, unit};
use crate::engine::object::{Family, Object};
use crate::engine::queue::{Receipt, Taken};
use crate::engine::time::{MS, Micros};
use crate::engine::waiting::{Answer, Ticket};
use hashbrown::{HashMap, HashSet};
use redis_module::raw;
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::rc::Rc;

/// What came of a command whose reply may be held.
pub enum Decided {
    Told(Answer),
    Waits(Wait),
}

/// How a client waits on a limiter.
pub struct Wait {
    pub family: Family,
    pub object: Identity,
    /// Until when at the latest.
    pub end: End,
    /// What it is told if the object goes, when what it had booked is its own then; else its command is decided anew.
    pub booked: Option<Answer>,
}

/// How a limiter's command is asked what it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The client may come to wait, under this ticket. Asked again when the object it waited on is gone.
    Held(Ticket),
    /// It is told at once.
    AtOnce,
    /// Its time was cut short: it is told a refusal, and nothing is changed.
    Over,
}

impl Asked {
    pub fn ticket(self) -> Option<Ticket> {
        match self {
            Self::Held(ticket) => Some(ticket),
            Self::AtOnce | Self::Over => None,
        }
    }
}

/// Decides a limiter's command on the key of this name.
pub type Decide = Rc<dyn Fn(Ctx<'_>, &OwnedString, Asked) -> Result<Decided, Error>>;

/// What a client waits for.
pub enum Waits {
    /// A limiter's answer.
    Limiter { place: Place, object: Identity, decide: Decide, family: Family, booked: Option<Answer> },
    /// A message: its line is in lines.rs. What it is told when its time is over.
    Claim { over: Tree },
}

/// When a wait is over at the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Never,
    /// After so many µs of real time, whatever the test clock says.
    Real(Micros),
    /// At an instant of the module's clock. The object looks after it; here it counts only while the object may not change.
    Clock(Micros),
}

enum State {
    Waiting,
    Answered(Held),
    Gone,
}

struct Waiter {
    handle: *mut raw::RedisModuleBlockedClient,
    client: u64,
    /// The name of its command as it was sent, and whether a number of keys stands before the first.
    command: Box<[u8]>,
    counted: bool,
    waits: Waits,
    end: End,
    state: State,
}

#[derive(Default)]
struct Waiters {
    last: Ticket,
    by_ticket: HashMap<Ticket, Waiter>,
    waiting: usize,
    /// Of those who wait: when their time is over, by the monotonic and by the module's clock.
    real_ends: BTreeSet<(Micros, Ticket)>,
    clock_ends: BTreeSet<(Micros, Ticket)>,
    /// Answered, and to be handed to the server before it sleeps.
    outbox: Vec<Ticket>,
    /// Objects that are due but may not change now.
    withheld: HashSet<u64>,
    /// Tickets up to this one were given before this server became a replica, at this instant (monotonic).
    role_lost: (Ticket, Micros),
}

static WAITERS: std::sync::LazyLock<MainThread<Waiters>> =
    std::sync::LazyLock::new(|| MainThread::new(Waiters::default()));

/// A reply on its way to a client that was blocked.
struct Held {
    reply: Tree,
    written: bool,
    /// Where what it gives goes back to if it never reaches the client.
    gives: Gives,
}

/// What a reply gives, besides what it says.
pub enum Gives {
    Nothing,
    /// Deliveries of this queue; those without a receipt are gone from it already.
    Messages {
        place: Place,
        object: Identity,
        receipts: Vec<Receipt>,
        taken: Vec<Taken>,
    },
    /// What a limiter's answer says, by this object.
    Answer {
        family: Family,
        place: Place,
        object: Identity,
    },
}

/// The next ticket: for an engine that books before the client is blocked.
pub fn ticket() -> Ticket {
    WAITERS.with(|w| {
        w.last += 1;
        w.last
    })
}

/// Runs a limiter's command whose reply may be held, where the context allows that.
pub fn run(call: &Call<'_>, decide: Decide) -> Result<(), Error> {
    let ctx = call.context();
    let asked = if call.may_block() { Asked::Held(ticket()) } else { Asked::AtOnce };
    let name = OwnedString::new(call.arg(1));
    match (decide(ctx, &name, asked)?, asked) {
        (Decided::Waits(Wait { family, object, end, booked }), Asked::Held(ticket)) => {
            let place = Place { db: ctx.db(), key: call.arg(1).into() };
            block(call, ticket, end, 1, Waits::Limiter { place, object, decide, family, booked });
        }
        (Decided::Told(answer), _) => answers::answer(call.reply(), &answer),
        (Decided::Waits(..), _) => return Err(Error::INTERNAL),
    }
    Ok(())
}

/// Blocks the running command's client under `ticket`, on its keys, the first of which is the argument at `first`. The caller has checked that the
/// context may block.
pub fn block(call: &Call<'_>, ticket: Ticket, end: End, first: usize, waits: Waits) {
    let ctx = call.context();
    let keys = call.keys_from(first);
    let mut names: Vec<RawString> = keys.to_vec();
    let private = usize::try_from(ticket).unwrap_or(usize::MAX) as *mut c_void;
    // SAFETY: a live command context that may block; static callbacks; live names, which the server retains; the private data is a number, which
    // nobody follows. The handle is live until the server has called `on_free`.
    let handle = unsafe {
        let handle = rm!(RedisModule_BlockClientOnKeys(
            ctx.raw(),
            Some(on_ready),
            Some(on_timeout),
            Some(on_free),
            0,
            names.as_mut_ptr(),
            names.len() as c_int,
            private
        ));
        rm!(RedisModule_SetDisconnectCallback(handle, Some(on_disconnect)));
        handle
    };
    let end = match end {
        End::Real(us) => End::Real(clock::monotonic().saturating_add(us)),
        other => other,
    };
    let waiter = Waiter {
        handle,
        client: ctx.client(),
        command: call.arg(0).into(),
        counted: first > 1,
        waits,
        end,
        state: State::Waiting,
    };
    WAITERS.with(|w| {
        w.waiting += 1;
        match end {
            End::Never => {}
            End::Real(at) => drop(w.real_ends.insert((at, ticket))),
            End::Clock(at) => drop(w.clock_ends.insert((at, ticket))),
        }
        w.by_ticket.insert(ticket, waiter);
    });
    if let End::Real(at) = end {
        timer::aim(Ctx::own(), at);
    }
}

impl Waiters {
    /// The client waits no more: what it is told, if anything, is `state`. False, and nothing is done, if it did not wait.
    fn ends(&mut self, ticket: Ticket, state: State) -> bool {
        let Some(waiter) = self.by_ticket.get_mut(&ticket) else { return false };
        if !matches!(waiter.state, State::Waiting) {
            return false;
        }
        waiter.state = state;
        self.waiting -= 1;
        match waiter.end {
            End::Never => {}
            End::Real(at) => drop(self.real_ends.remove(&(at, ticket))),
            End::Clock(at) => drop(self.clock_ends.remove(&(at, ticket))),
        }
        true
    }

    fn waits(&self, ticket: Ticket) -> Option<&Waiter> {
        self.by_ticket.get(&ticket).filter(|w| matches!(w.state, State::Waiting))
    }
}

/// How many clients wait.
pub fn waiting() -> usize {
    WAITERS.with(|w| w.waiting)
}

/// Whether a client still waits under this ticket.
pub fn waits(ticket: Ticket) -> bool {
    WAITERS.with(|w| w.waits(ticket).is_some())
}

/// Whether the client that waits under this ticket may still have something of this key: its rights may have been taken away meanwhile, or the
/// key may have got another name.
pub fn may_have(ctx: Ctx<'_>, ticket: Ticket, key: &[u8]) -> bool {
    let asked = WAITERS.with(|w| {
        let waiter = w.waits(ticket)?;
        let mut argv = vec![OwnedString::new(&waiter.command)];
        if waiter.counted {
            argv.push(OwnedString::new(b"1"));
        }
        argv.push(OwnedString::new(key));
        Some((waiter.client, argv))
    });
    asked.is_none_or(|(client, argv)| access::permits(ctx, client, &argv))
}

/// Answers a client that waits on a limiter (`object` None: it is gone).
pub fn answer(family: Family, object: Option<Identity>, ticket: Ticket, answer: Answer) {
    let granted = answers::granted(&answer);
    stats::decision(family, granted);
    let place = WAITERS.with(|w| match &w.waits(ticket)?.waits {
        Waits::Limiter { place, .. } if granted => Some(place.clone()),
        _ => None,
    });
    let gives = match (place, object) {
        (Some(place), Some(object)) => Gives::Answer { family, place, object },
        _ => Gives::Nothing,
    };
    send(ticket, Tree::Answer(answer), gives);
}

/// Answers a waiting client; what the reply gives goes back if it does not reach it.
pub fn send(ticket: Ticket, reply: Tree, gives: Gives) {
    let held = State::Answered(Held { reply, written: false, gives });
    let handle = WAITERS.with(|w| {
        if !w.ends(ticket, held) {
            return None;
        }
        if hands_over_late() {
            w.outbox.push(ticket);
            return None;
        }
        w.by_ticket.get(&ticket).map(|w| w.handle)
    });
    if let Some(handle) = handle {
        hand_over(handle);
    }
}

/// Redis 7.0 writes the reply at once when it gets the handle, but lets other clients run before it lets go of the client; if one of them unblocks
/// it then, it gets two replies, or none. There the handle is handed over right before the server lets go: when it is about to sleep.
fn hands_over_late() -> bool {
    // SAFETY: reading a pointer that is only written while the module is loaded, on this thread. It came with the servers that see to this.
    unsafe { raw::RedisModule_BlockClientOnKeysWithFlags }.is_none()
}

fn hand_over(handle: *mut raw::RedisModuleBlockedClient) {
    // SAFETY: the handle is live: `on_free` has not been called for it, and only an answer, which comes once, leads here.
    unsafe { rm!(RedisModule_UnblockClient(handle, std::ptr::null_mut())) };
}

/// The server is about to sleep.
pub fn before_sleep() {
    let tickets = WAITERS.with(|w| std::mem::take(&mut w.outbox));
    for ticket in tickets {
        let handle = WAITERS.with(|w| match w.by_ticket.get(&ticket) {
            Some(Waiter { handle, state: State::Answered(_), .. }) => Some(*handle),
            _ => None,
        });
        if let Some(handle) = handle {
            hand_over(handle);
        }
    }
}

// ---------------------------------------------------------------- ends that are not the object's own

/// The object a client waited on is gone: its command is decided anew, in its turn.
pub fn decide_anew(ctx: Ctx<'_>, ticket: Ticket) {
    let Some((place, decide)) = limiter(ticket) else { return };
    let name = OwnedString::new(&place.key);
    ctx.in_db(place.db, || {
        if !may_have(ctx, ticket, &place.key) {
            return send(ticket, Tree::Error(Error::NO_PERMISSION), Gives::Nothing);
        }
        match decide(ctx, &name, Asked::Held(ticket)) {
            Ok(Decided::Waits(wait)) => WAITERS.with(|w| {
                if let Some(Waits::Limiter { object, booked, .. }) =
                    w.by_ticket.get_mut(&ticket).map(|w| &mut w.waits)
                {
                    (*object, *booked) = (wait.object, wait.booked);
                }
            }),
            Ok(Decided::Told(answer)) => send(ticket, Tree::Answer(answer), Gives::Nothing),
            Err(error) => send(ticket, Tree::Error(error), Gives::Nothing),
        }
    });
}

/// Where a limiter's waiter waits by its own words, and how its command decides.
fn limiter(ticket: Ticket) -> Option<(Place, Decide)> {
    WAITERS.with(|w| match &w.waits(ticket)?.waits {
        Waits::Limiter { place, decide, .. } => Some((place.clone(), decide.clone())),
        Waits::Claim { .. } => None,
    })
}

/// The place of a limiter's waiter; None: it waits no more.
pub fn place_of(ticket: Ticket) -> Option<Place> {
    limiter(ticket).map(|(place, _)| place)
}

/// The object goes away under those who wait on it. Whether that is for us to say is asked later: in a cluster it may live on elsewhere, and a key whose
/// time has come goes also where nothing may be written.
pub fn orphaned<O: Object>(object: &mut O) {
    for (ticket, told) in object.orphans() {
        chores::add(match told {
            Some(answer) => Chore::Tell { family: O::FAMILY, ticket, answer },
            None => Chore::DecideAnew(ticket),
        });
    }
}

/// The objects of these numbers are flushed. They are not followed any more: who waits on one is told from what is noted here.
pub fn flushed(objects: &HashSet<u64>) {
    let mut gone: Vec<(Ticket, Chore)> = WAITERS.with(|w| {
        let waiting = w.by_ticket.iter().filter(|(_, w)| matches!(w.state, State::Waiting));
        let gone = waiting.filter_map(|(ticket, w)| match &w.waits {
            Waits::Limiter { object, family, booked, .. } if objects.contains(&object.id) => {
                let (family, ticket) = (*family, *ticket);
                let tell = booked.clone().map(|answer| Chore::Tell { family, ticket, answer });
                Some((ticket, tell.unwrap_or(Chore::DecideAnew(ticket))))
            }
            _ => None,
        });
        gone.collect()
    });
    gone.sort_unstable_by_key(|(ticket, _)| *ticket);
    gone.into_iter().for_each(|(_, chore)| chores::add(chore));
}

/// Notes whether an object that is due may change now, for those who wait on it.
pub fn withhold(object: u64, withheld: bool) {
    WAITERS.with(|w| {
        if withheld {
            w.withheld.insert(object);
        } else if !w.withheld.is_empty() {
            w.withheld.remove(&object);
        }
    });
}

/// When the next claim's time is over, on the monotonic clock.
pub fn next_end() -> Option<Micros> {
    WAITERS.with(|w| w.real_ends.first().map(|(at, _)| *at))
}

/// Whether anybody waits until an instant of the module's clock.
pub fn any_clock_end() -> bool {
    WAITERS.with(|w| !w.clock_ends.is_empty())
}

/// Tells those whose time is over. A refusal changes nothing, so it can always be said; those whose object may change are told by it, so here they
/// count only if it may not (`may_change`: whether objects may change at all now).
pub fn time_out(ctx: Ctx<'_>, may_change: bool) {
    let mono = clock::monotonic();
    while let Some((ticket, over)) = WAITERS.with(|w| {
        let (_, ticket) = *w.real_ends.first().filter(|(at, _)| *at <= mono)?;
        match &w.by_ticket.get(&ticket)?.waits {
            Waits::Claim { over } => Some((ticket, over.clone())),
            Waits::Limiter { .. } => None,
        }
    }) {
        lines::leave(ticket);
        send(ticket, over, Gives::Nothing);
    }
    let now = clock::now();
    let due: Vec<Ticket> = WAITERS.with(|w| {
        if may_change && w.withheld.is_empty() {
            return Vec::new();
        }
        let stuck = |ticket: &Ticket| match w.by_ticket.get(ticket).map(|w| &w.waits) {
            Some(Waits::Limiter { object, .. }) => {
                !may_change || w.withheld.contains(&object.id) || registry::place(object.id).is_none()
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
fn refusal(ctx: Ctx<'_>, ticket: Ticket) -> Tree {
    let Some((place, decide, object)) = WAITERS.with(|w| match &w.waits(ticket)?.waits {
        Waits::Limiter { place, decide, object, .. } => Some((place.clone(), decide.clone(), object.id)),
        Waits::Claim { .. } => None,
    }) else {
        return Tree::NilArray;
    };
    let place = match registry::place(object) {
        Some((_, place)) => place,
        None if ctx.flags().cluster() => return Tree::Error(Error::SLOT_MOVED),
        None => place,
    };
    let name = OwnedString::new(&place.key);
    match ctx.in_db(place.db, || decide(ctx, &name, Asked::Over)) {
        Ok(Decided::Told(answer)) => Tree::Answer(answer),
        Ok(Decided::Waits(..)) => Tree::NilArray,
        Err(error) => Tree::Error(error),
    }
}

/// A waiter is leaving: out of its line, bookings back.
fn depart(ticket: Ticket) {
    let object = WAITERS.with(|w| match &w.by_ticket.get(&ticket)?.waits {
        Waits::Limiter { object, .. } => Some(object.id),
        Waits::Claim { .. } => None,
    });
    match object {
        Some(object) => chores::add(Chore::Depart { object, ticket }),
        None => lines::leave(ticket),
    }
}

/// Those who wait at a key of which `away` says why are told that, and wait no more. What they had booked is part of what the key's new owner decides on.
pub fn send_away(away: impl Fn(&Place) -> Option<Error>) {
    let waiting: Vec<Ticket> = WAITERS.with(|w| {
        let waiting = w.by_ticket.iter().filter(|(_, w)| matches!(w.state, State::Waiting));
        waiting.map(|(ticket, _)| *ticket).collect()
    });
    for ticket in waiting {
        if let Some(error) = place_of(ticket).or_else(|| lines::place_of(ticket)).as_ref().and_then(&away) {
            depart(ticket);
            send(ticket, Tree::Error(error), Gives::Nothing);
        }
    }
}

/// This server has become a replica: nobody who waits now is served by it any more. The server tells them; whom it passes over is told by
/// [`tell_role_lost`], a little later.
pub fn role_lost() {
    WAITERS.with(|w| w.role_lost = (w.last, clock::monotonic()));
}

/// See [`role_lost`]. True when it is still to be seen whom the server tells.
pub fn tell_role_lost() -> bool {
    /// A failover takes its time to end, and only then Valkey tells who is to go where.
    const PATIENCE: Micros = 2_000 * MS;
    let now = clock::monotonic();
    let (left, over) = WAITERS.with(|w| {
        let (upto, at) = w.role_lost;
        let before = w.by_ticket.iter().filter(|(t, w)| **t <= upto && matches!(w.state, State::Waiting));
        let left: Vec<Ticket> = before.map(|(t, _)| *t).collect();
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
        send(ticket, Tree::Error(Error::ROLE_LOST), Gives::Nothing);
    }
    false
}

// ---------------------------------------------------------------- the server's callbacks

/// The ticket that the context of a callback is about.
///
/// # Safety
/// `ctx` is the context of a running callback of a blocked client.
unsafe fn ticket_of(ctx: *mut raw::RedisModuleCtx) -> Ticket {
    // SAFETY: by the contract; the private data is a ticket, see `block`.
    unsafe { rm!(RedisModule_GetBlockedClientPrivateData(ctx)) as usize as Ticket }
}

/// The server has seen that a key came to be, and asks whether the client can be served: that is not the server's to ask.
unsafe extern "C" fn on_ready(
    _ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    ERR
}

/// The server wants the reply: of a client that was answered, or of one unblocked by `CLIENT UNBLOCK … TIMEOUT`.
unsafe extern "C" fn on_timeout(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the context of a running callback.
    let (ctx, ticket) = unsafe { (Ctx::new(ctx), ticket_of(ctx)) };
    let before = reply::begin();
    let result = unit::run(
        ctx,
        || {
            if !waits(ticket) {
                write(ctx, ticket);
                return OK;
            }
            // Whatever comes in between, it waits no more: the server lets go of it.
            let leaves = Leaves(ticket);
            let over = WAITERS.with(|w| match &w.waits(ticket)?.waits {
                Waits::Claim { over } => Some(over.clone()),
                Waits::Limiter { .. } => None,
            });
            let told = over.unwrap_or_else(|| unblocked(ctx, ticket));
            drop(leaves);
            Reply::new(ctx).tree(&told);
            OK
        },
        || {
            reply::abandon(ctx, &Error::INTERNAL);
            OK
        },
    );
    reply::end(before);
    result
}

/// A waiter that leaves without an answer of ours: at the end it is out of its line and waits no more, also when a panic passes.
struct Leaves(Ticket);

impl Drop for Leaves {
    fn drop(&mut self) {
        depart(self.0);
        WAITERS.with(|w| w.ends(self.0, State::Gone));
    }
}

/// What a limiter's waiter is told that somebody unblocks: a refusal, as of after what it had booked went back, if that may be changed now.
fn unblocked(ctx: Ctx<'_>, ticket: Ticket) -> Tree {
    let flags = ctx.flags();
    if flags.cluster() && flags.atomic() {
        // A transaction has a slot of its own, and this key another.
        return Tree::Error(Error::UNBLOCKED);
    }
    let object = WAITERS.with(|w| match &w.waits(ticket)?.waits {
        Waits::Limiter { object, .. } => Some(object.id),
        Waits::Claim { .. } => None,
    });
    if let Some(object) = object
        && timer::ready(ctx)
    {
        chores::depart(ctx, object, ticket);
    }
    refusal(ctx, ticket)
}

/// Writes the reply of an answered client.
fn write(ctx: Ctx<'_>, ticket: Ticket) {
    let reply = WAITERS.with(|w| match w.by_ticket.get_mut(&ticket).map(|w| &mut w.state) {
        Some(State::Answered(held)) if !held.written => {
            held.written = true;
            Some(std::mem::replace(&mut held.reply, Tree::Nil))
        }
        _ => None,
    });
    let Some(reply) = reply else { return };
    let unwritten = Unwritten(ticket, reply);
    Reply::new(ctx).tree(&unwritten.1);
}

/// A reply that is being written. If it does not arrive, what it gave is told by it; so it goes back to where it was, and as not written if a panic
/// comes in between.
struct Unwritten(Ticket, Tree);

impl Drop for Unwritten {
    fn drop(&mut self) {
        WAITERS.with(|w| {
            if let Some(State::Answered(held)) = w.by_ticket.get_mut(&self.0).map(|w| &mut w.state) {
                held.reply = std::mem::replace(&mut self.1, Tree::Nil);
                held.written = !std::thread::panicking();
            }
        });
    }
}

/// The client disconnected, was killed, sent away, or unblocked with an error.
unsafe extern "C" fn on_disconnect(
    ctx: *mut raw::RedisModuleCtx,
    _handle: *mut raw::RedisModuleBlockedClient,
) {
    shield(
        || {
            // SAFETY: the context of a running callback.
            let ticket = unsafe { ticket_of(ctx) };
            if waits(ticket) {
                drop(Leaves(ticket));
            }
        },
        || (),
    );
}

/// The server lets go of the handle: the end, in each case.
unsafe extern "C" fn on_free(ctx: *mut raw::RedisModuleCtx, private: *mut c_void) {
    shield(
        || {
            let ticket = private as usize as Ticket;
            // SAFETY: the context of a running callback.
            let gone = unsafe { rm!(RedisModule_BlockedClientDisconnected(ctx)) != 0 };
            let waiter = WAITERS.with(|w| {
                w.ends(ticket, State::Gone);
                w.by_ticket.remove(&ticket)
            });
            // Where the reply is written straight to the client it has arrived; elsewhere it waits beside the handle until now.
            if let Some(Waiter { state: State::Answered(held), .. }) = waiter
                && (!held.written || gone && !hands_over_late())
            {
                give_back(held);
            }
        },
        || (),
    );
}

/// A reply reached nobody.
fn give_back(held: Held) {
    match (held.gives, held.reply) {
        (Gives::Messages { place, object, receipts, taken }, _) => {
            chores::add(Chore::Return { place, object: object.id, receipts, taken });
        }
        (Gives::Answer { family, place, object }, Tree::Answer(answer)) => {
            chores::add(Chore::Undo { family, place, object: object.id, answer });
        }
        _ => {}
    }
}
