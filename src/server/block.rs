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
//! | slots went all at once | migration.rs, [`send_away`] | MOVED, before the server would say it |
//! | role lost, and the server passed it over | [`tell_role_lost`] | UNBLOCKED |
//! | the limiter is gone | [`orphaned`], [`flushed`] | what it had booked, or as decided anew |
//! | the limiter's key is gone while its slot is going | [`time_out`], [`on_timeout`] | TRYAGAIN, when its time is over or it is unblocked |
//! | what was a queue is something else | lines.rs | WRONGTYPE |
//! | writes are refused when it could be served | access.rs | it goes on waiting |
//! | its user may not have it any more | [`may_have`] | NOPERM |
//!
//! The client is blocked on the keys it named, so that the server sends it away itself, with its own words, when it must. But the server never
//! serves it: we signal no key, as it would then ask every waiter of the key, and answer `not yet` when it asks. Nor has it the server's timeout:
//! some servers lose the reply of a client whose time is over in the turn in which it is served.
//!
//! What a reply gives is noted beside it until the server has taken it over: if the client goes away before that, it goes back.

mod ends;

pub use ends::{
    any_clock_end, decide_anew, flushed, next_end, orphaned, place_of, role_lost, send_away, tell_role_lost,
    time_out, withhold,
};
use ends::{depart, refusal};

use super::access;
use super::api::{Ctx, ERR, OK, OwnedString, RawString, rm};
use super::call::Call;
use super::chores::{self, Chore};
use super::error::Error;
use super::guard::shield;
use super::main_thread::MainThread;
use super::registry::{Identity, Place};
use super::reply::{self, Reply, Tree};
use super::{answers, clock, stats, timer, unit};
use crate::engine::object::Family;
use crate::engine::queue::{Receipt, Taken};
use crate::engine::time::Micros;
use crate::engine::waiting::{Answer, Ticket};
use hashbrown::{HashMap, HashSet};
use redis_module::raw;
use std::collections::{BTreeSet, VecDeque};
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
    outbox: VecDeque<Ticket>,
    /// How many were handed to the server in this turn.
    handed: usize,
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
    /// The server has been given the handle, and not the client itself asked to be let go.
    handed: bool,
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

    /// The handle of a client that was answered, to be given to the server.
    fn handle_of(&mut self, ticket: Ticket) -> Option<*mut raw::RedisModuleBlockedClient> {
        match self.by_ticket.get_mut(&ticket) {
            Some(Waiter { handle, state: State::Answered(held), .. }) => {
                held.handed = true;
                Some(*handle)
            }
            _ => None,
        }
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
    let held = State::Answered(Held { reply, written: false, handed: false, gives });
    let handle = WAITERS.with(|w| {
        if !w.ends(ticket, held) {
            return None;
        }
        if hands_over_late() || w.handed >= AT_ONCE || !w.outbox.is_empty() {
            w.outbox.push_back(ticket);
            return None;
        }
        w.handed += 1;
        w.handle_of(ticket)
    });
    if let Some(handle) = handle {
        hand_over(handle);
    }
}

/// How many replies the server is given to write in one turn. Each is a write to a socket; what is
/// granted to thousands at once is told to them turn by turn, with others served in between.
const AT_ONCE: usize = 128;

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

/// The server is about to sleep: another turn is over.
pub fn before_sleep(ctx: Ctx<'_>) {
    WAITERS.with(|w| w.handed = 0);
    for _ in 0..AT_ONCE {
        let Some(ticket) = WAITERS.with(|w| w.outbox.pop_front()) else { return };
        if let Some(handle) = WAITERS.with(|w| w.handle_of(ticket)) {
            hand_over(handle);
        }
    }
    // It must not sleep long on the rest.
    if WAITERS.with(|w| !w.outbox.is_empty()) {
        timer::soon(ctx);
    }
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
            // Written straight to the client it has arrived. Where the server was given the handle,
            // newer servers keep the reply beside it until now.
            if let Some(Waiter { state: State::Answered(held), .. }) = waiter
                && (!held.written || gone && held.handed && !hands_over_late())
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
