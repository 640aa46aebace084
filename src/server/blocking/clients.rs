//! Clients whose reply is held: one mechanism for all families.
//!
//! A blocked client has a [`Ticket`] and is *waiting*, *answered* (what it is told is decided, and
//! on its way) or *gone* (somebody else has told it, or nobody can). It is forgotten when the
//! server lets go of its handle, which happens once, whatever has happened before.
//!
//! | the wait ends | noticed by | the client gets |
//! |---|---|---|
//! | served, or its object decides otherwise | the object (limiters), work/serve.rs (messages) | that reply |
//! | its time is over | the object, or `ends::time_out` | a refusal (limiters), nil (messages) |
//! | `CLIENT UNBLOCK … TIMEOUT` | work/wait.rs | the same |
//! | `CLIENT UNBLOCK … ERROR`, kill, disconnect | work/wait.rs | what the server says, or nothing |
//! | slot or role lost, cluster down | the server, work/wait.rs | MOVED, UNBLOCKED, REDIRECT, CLUSTERDOWN, as BLPOP |
//! | slots went all at once | events/migration.rs, `ends::send_away` | MOVED, before the server would say it |
//! | role lost, and the server passed it over | `ends::tell_role_lost` | UNBLOCKED |
//! | the limiter is gone | `ends::orphaned`, `ends::flushed` | what it had booked, or as decided anew |
//! | the limiter's key is gone while its slot is going | `ends::time_out`, work/wait.rs | TRYAGAIN, when its time is over or it is unblocked |
//! | what was a queue is something else | work/serve.rs | WRONGTYPE |
//! | writes are refused when it could be served | access.rs | it goes on waiting |
//! | its user may not have it any more | [`may_have`] | NOPERM |
//!
//! The client is blocked on the keys it named, so that the server sends it away itself, with its
//! own words, when it must. But the server never serves it: we signal no key, as it would then ask
//! every waiter of the key, and answer `not yet` when it asks. Nor has it the server's timeout:
//! some servers lose the reply of a client whose time is over in the turn in which it is served.
//!
//! What a reply gives is noted beside it until the server has taken it over: if the client goes
//! away before that, it goes back.

use super::access;
use super::deferred::{self, Deferred};
use crate::engine::family::Family;
use crate::engine::names_hash::{Map, Set};
use crate::engine::queue::{Receipt, Taken};
use crate::engine::shared::waiting::{Answer, Ticket};
use crate::engine::time::Micros;
use crate::server::error::Error;
use crate::server::ffi::blocked::{Blocked, Callbacks};
use crate::server::ffi::context::Ctx;
use crate::server::ffi::events::listen;
use crate::server::ffi::main_thread::MainThread;
use crate::server::ffi::optional::keeps_replies;
use crate::server::ffi::strings::{OwnedString, Str};
use crate::server::reply::limiter;
use crate::server::reply::owned::OwnedReply;
use crate::server::reply::writer::Reply;
use crate::server::stats;
use crate::server::time::due_index::{Identity, Place};
use crate::server::time::{alarm, clock};
use lazy_static::lazy_static;
use std::collections::{BTreeSet, VecDeque};
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
    /// What it is told if the object goes, when what it had booked is its own then; else its
    /// command is decided anew.
    pub booked: Option<Answer>,
}

/// How a limiter's command is asked what it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The client may come to wait, under this ticket. Asked again when the object it waited on is
    /// gone.
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
    /// A message: its line is in claim_waiters.rs. What it is told when its time is over.
    Claim { over: OwnedReply },
}

/// When a wait is over at the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Never,
    /// After so many µs of real time, whatever the test clock says.
    Real(Micros),
    /// At an instant of the module's clock. The object looks after it; here it counts only while
    /// the object may not change.
    Clock(Micros),
}

pub(super) enum State {
    Waiting,
    Answered(Held),
    Gone,
}

pub(super) struct Client {
    handle: Blocked,
    client: u64,
    /// The name of its command as it was sent, and whether a number of keys stands before the
    /// first.
    command: Box<[u8]>,
    counted: bool,
    pub(super) waits: Waits,
    end: End,
    pub(super) state: State,
}

#[derive(Default)]
pub(super) struct Clients {
    pub(super) last: Ticket,
    pub(super) by_ticket: Map<Ticket, Client>,
    waiting: usize,
    /// Of those who wait: when their time is over, by the monotonic and by the module's clock.
    pub(super) real_ends: BTreeSet<(Micros, Ticket)>,
    pub(super) clock_ends: BTreeSet<(Micros, Ticket)>,
    /// Answered, and to be handed to the server before it sleeps.
    outbox: VecDeque<Ticket>,
    /// How many were handed to the server in this turn.
    handed: usize,
    /// Objects that are due but may not change now.
    pub(super) withheld: Set<u64>,
    /// Tickets up to this one were given before this server became a replica, at this instant
    /// (monotonic).
    pub(super) role_lost: (Ticket, Micros),
}

lazy_static! {
    pub(super) static ref CLIENTS: MainThread<Clients> = MainThread::new(Clients::default());
}

/// A reply on its way to a client that was blocked.
pub(super) struct Held {
    reply: OwnedReply,
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
    CLIENTS.with(|w| {
        w.last += 1;
        w.last
    })
}

/// A client that is about to wait.
pub struct Newcomer<'a> {
    pub ticket: Ticket,
    /// The name of its command as it was sent.
    pub command: &'a [u8],
    pub keys: &'a [Str<'a>],
    /// Whether a number of keys stands before the first.
    pub counted: bool,
    pub end: End,
    pub waits: Waits,
}

/// Blocks the running command's client on its keys. The caller has checked that the context may
/// block.
pub fn block<C: Callbacks>(ctx: Ctx<'_>, newcomer: Newcomer<'_>) {
    let Newcomer { ticket, command, keys, counted, end, waits } = newcomer;
    listen();
    let handle = Blocked::on_keys::<C>(ctx, keys, ticket);
    let end = match end {
        End::Real(us) => End::Real(clock::monotonic().saturating_add(us)),
        other => other,
    };
    let client = ctx.client();
    let waiter =
        Client { handle, client, command: command.into(), counted, waits, end, state: State::Waiting };
    CLIENTS.with(|w| {
        w.waiting += 1;
        match end {
            End::Never => {}
            End::Real(at) => drop(w.real_ends.insert((at, ticket))),
            End::Clock(at) => drop(w.clock_ends.insert((at, ticket))),
        }
        w.by_ticket.insert(ticket, waiter);
    });
    if let End::Real(at) = end {
        alarm::aim(Ctx::own(), at);
    }
}

impl Clients {
    /// The client waits no more: what it is told, if anything, is `state`. False, and nothing is
    /// done, if it did not wait.
    pub(super) fn ends(&mut self, ticket: Ticket, state: State) -> bool {
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
    fn handle_of(&mut self, ticket: Ticket) -> Option<Blocked> {
        match self.by_ticket.get_mut(&ticket) {
            Some(Client { handle, state: State::Answered(held), .. }) => {
                held.handed = true;
                Some(*handle)
            }
            _ => None,
        }
    }

    pub(super) fn waits(&self, ticket: Ticket) -> Option<&Client> {
        self.by_ticket.get(&ticket).filter(|w| matches!(w.state, State::Waiting))
    }
}

/// What a claim that waits is told when its time is over; None: it waits on a limiter, or no more.
pub fn over(ticket: Ticket) -> Option<OwnedReply> {
    CLIENTS.with(|w| match &w.waits(ticket)?.waits {
        Waits::Claim { over } => Some(over.clone()),
        Waits::Limiter { .. } => None,
    })
}

/// The number of the object on which a client waits.
pub fn object_of(ticket: Ticket) -> Option<u64> {
    CLIENTS.with(|w| match &w.waits(ticket)?.waits {
        Waits::Limiter { object, .. } => Some(object.id),
        Waits::Claim { .. } => None,
    })
}

/// Somebody else tells the client, or nobody can.
pub fn is_gone(ticket: Ticket) {
    CLIENTS.with(|w| w.ends(ticket, State::Gone));
}

/// How many clients wait.
pub fn waiting() -> usize {
    CLIENTS.with(|w| w.waiting)
}

/// Whether a client still waits under this ticket.
pub fn waits(ticket: Ticket) -> bool {
    CLIENTS.with(|w| w.waits(ticket).is_some())
}

/// Whether the client that waits under this ticket may still have something of this key: its rights
/// may have been taken away meanwhile, or the key may have got another name.
pub fn may_have(ctx: Ctx<'_>, ticket: Ticket, key: &[u8]) -> bool {
    let asked = CLIENTS.with(|w| {
        let waiter = w.waits(ticket)?;
        let mut argv = vec![OwnedString::new(&waiter.command)];
        if waiter.counted {
            argv.push(OwnedString::new(b"1"));
        }
        argv.push(OwnedString::new(key));
        Some((waiter.client, argv))
    });
    asked.is_none_or(|(client, argv)| access::permits(ctx, client, OwnedString::as_strs(&argv)))
}

/// Answers a client that waits on a limiter (`object` None: it is gone).
pub fn answer(family: Family, object: Option<Identity>, ticket: Ticket, answer: Answer) {
    let granted = limiter::granted(&answer);
    stats::decision(family, granted);
    let place = CLIENTS.with(|w| match &w.waits(ticket)?.waits {
        Waits::Limiter { place, .. } if granted => Some(place.clone()),
        _ => None,
    });
    let gives = match (place, object) {
        (Some(place), Some(object)) => Gives::Answer { family, place, object },
        _ => Gives::Nothing,
    };
    send(ticket, OwnedReply::Answer(answer), gives);
}

/// Answers a waiting client; what the reply gives goes back if it does not reach it.
pub fn send(ticket: Ticket, reply: OwnedReply, gives: Gives) {
    let held = State::Answered(Held { reply, written: false, handed: false, gives });
    let handle = CLIENTS.with(|w| {
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
        handle.hand_over();
    }
}

/// How many replies the server is given to write in one turn. Each is a write to a socket; what is
/// granted to thousands at once is told to them turn by turn, with others served in between.
const AT_ONCE: usize = 128;

/// Redis 7.0 writes the reply at once when it gets the handle, but lets other clients run before it
/// lets go of the client; if one of them unblocks it then, it gets two replies, or none. There the
/// handle is handed over right before the server lets go: when it is about to sleep.
fn hands_over_late() -> bool {
    !keeps_replies()
}

/// The server is about to sleep: another turn is over.
pub fn before_sleep(ctx: Ctx<'_>) {
    CLIENTS.with(|w| w.handed = 0);
    for _ in 0..AT_ONCE {
        let Some(ticket) = CLIENTS.with(|w| w.outbox.pop_front()) else { return };
        if let Some(handle) = CLIENTS.with(|w| w.handle_of(ticket)) {
            handle.hand_over();
        }
    }
    // It must not sleep long on the rest.
    if CLIENTS.with(|w| !w.outbox.is_empty()) {
        alarm::soon(ctx);
    }
}

/// Writes the reply of an answered client.
pub fn write(ctx: Ctx<'_>, ticket: Ticket) {
    let reply = CLIENTS.with(|w| match w.by_ticket.get_mut(&ticket).map(|w| &mut w.state) {
        Some(State::Answered(held)) if !held.written => {
            held.written = true;
            Some(std::mem::replace(&mut held.reply, OwnedReply::Nil))
        }
        _ => None,
    });
    let Some(reply) = reply else { return };
    let unwritten = Unwritten(ticket, reply);
    unwritten.1.write(Reply::new(ctx));
}

/// A reply that is being written. If it does not arrive, what it gave is told by it; so it goes
/// back to where it was, and as not written if a panic comes in between.
struct Unwritten(Ticket, OwnedReply);

impl Drop for Unwritten {
    fn drop(&mut self) {
        CLIENTS.with(|w| {
            if let Some(State::Answered(held)) = w.by_ticket.get_mut(&self.0).map(|w| &mut w.state) {
                held.reply = std::mem::replace(&mut self.1, OwnedReply::Nil);
                held.written = !std::thread::panicking();
            }
        });
    }
}

/// The server lets go of the client's handle: the end, in each case. `gone`: the client had gone
/// before.
pub fn freed(ticket: Ticket, gone: bool) {
    let waiter = CLIENTS.with(|w| {
        w.ends(ticket, State::Gone);
        w.by_ticket.remove(&ticket)
    });
    // Written straight to the client it has arrived. Where the server was given the handle, newer
    // servers keep the reply beside it until now.
    if let Some(Client { state: State::Answered(held), .. }) = waiter
        && (!held.written || gone && held.handed && !hands_over_late())
    {
        give_back(held);
    }
}

/// A reply reached nobody.
fn give_back(held: Held) {
    match (held.gives, held.reply) {
        (Gives::Messages { place, object, receipts, taken }, _) => {
            deferred::add(Deferred::Return { place, object: object.id, receipts, taken });
        }
        (Gives::Answer { family, place, object }, OwnedReply::Answer(answer)) => {
            deferred::add(Deferred::Undo { family, place, object: object.id, answer });
        }
        _ => {}
    }
}
