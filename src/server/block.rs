//! Clients whose reply is held.
//!
//! A blocked client has a [`Ticket`]; it is *waiting* until exactly one of these happens: it is answered (its reply is handed to the server and
//! written soon after), its time ends, or it goes away. The server tells of the last two by callbacks, by the client's handle.
//!
//! We block clients without keys and keep the lines ourselves: the server would otherwise ask every waiter of a key at each change.

use super::api::{Ctx, OK, OwnedString, rm};
use super::call::Call;
use super::chores::{self, Chore};
use super::error::Error;
use super::guard::shield;
use super::main_thread::MainThread;
use super::registry::Place;
use super::reply::{Reply, Tree};
use super::{answers, lines, stats, timer};
use crate::engine::object::{Family, Object};
use crate::engine::queue::Receipt;
use crate::engine::waiting::{Answer, Ticket};
use hashbrown::HashMap;
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::rc::Rc;

/// What came of a command whose reply may be held.
pub enum Decided {
    Told(Answer),
    /// The client waits on the object at this address.
    Waits(usize),
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

/// Decides a limiter's command.
pub type Decide = Rc<dyn Fn(Ctx<'_>, Asked) -> Result<Decided, Error>>;

/// What a client waits for.
pub enum Waits {
    /// A limiter's answer. The object is known by its address.
    Limiter { place: Place, address: usize, decide: Decide },
    /// A message: its line is in lines.rs. What it is told when its time is over.
    Claim { over: Tree },
}

struct Waiter {
    handle: *mut raw::RedisModuleBlockedClient,
    waits: Waits,
}

#[derive(Default)]
struct Waiters {
    last: Ticket,
    by_ticket: HashMap<Ticket, Waiter>,
    by_handle: HashMap<usize, Ticket>,
}

static WAITERS: std::sync::LazyLock<MainThread<Waiters>> =
    std::sync::LazyLock::new(|| MainThread::new(Waiters::default()));

/// A reply on its way to a client that was blocked.
struct Held {
    reply: Tree,
    delivered: bool,
    /// Where what it gives goes back to if it never reaches the client.
    gives: Gives,
}

/// What a reply gives, besides what it says.
pub enum Gives {
    Nothing,
    /// Deliveries, by the queue at this address.
    Messages {
        place: Place,
        address: usize,
        receipts: Vec<Receipt>,
    },
    /// What a limiter's answer says, by the object at this address.
    Answer {
        family: Family,
        place: Place,
        address: usize,
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
    match (decide(ctx, asked)?, asked) {
        (Decided::Waits(address), Asked::Held(ticket)) => {
            let place = Place { db: ctx.db(), key: call.arg(1).into() };
            block(ctx, ticket, 0, Waits::Limiter { place, address, decide });
        }
        (Decided::Told(answer), _) => answers::answer(call.reply(), &answer),
        (Decided::Waits(_), _) => return Err(Error::INTERNAL),
    }
    Ok(())
}

/// The object a client waited on is gone: its command is decided anew, in its turn.
pub fn decide_anew(ctx: Ctx<'_>, ticket: Ticket) {
    let Some((place, decide)) = WAITERS.with(|w| match &w.by_ticket.get(&ticket)?.waits {
        Waits::Limiter { place, decide, .. } => Some((place.clone(), decide.clone())),
        Waits::Claim { .. } => None,
    }) else {
        return;
    };
    if ctx.flags().cluster() && !ctx.serves(&OwnedString::new(&place.key)) {
        send(ticket, Tree::Error(Error::SLOT_MOVED), Gives::Nothing);
        return;
    }
    match ctx.in_db(place.db, || decide(ctx, Asked::Held(ticket))) {
        Ok(Decided::Waits(to)) => WAITERS.with(|w| {
            if let Some(Waits::Limiter { address, .. }) = w.by_ticket.get_mut(&ticket).map(|w| &mut w.waits) {
                *address = to;
            }
        }),
        Ok(Decided::Told(answer)) => send(ticket, Tree::Answer(answer), Gives::Nothing),
        Err(error) => send(ticket, Tree::Error(error), Gives::Nothing),
    }
}

/// Blocks the running command's client under `ticket`. `timeout_ms` 0: for ever. The caller has checked that the context may block.
pub fn block(ctx: Ctx<'_>, ticket: Ticket, timeout_ms: i64, waits: Waits) {
    // SAFETY: a live command context that may block; static callbacks; the handle is live until it is unblocked.
    let handle = unsafe {
        let handle = rm!(RedisModule_BlockClient(
            ctx.raw(),
            Some(on_reply),
            Some(on_timeout),
            Some(on_free),
            timeout_ms
        ));
        rm!(RedisModule_SetDisconnectCallback(handle, Some(on_disconnect)));
        handle
    };
    WAITERS.with(|w| {
        w.by_ticket.insert(ticket, Waiter { handle, waits });
        w.by_handle.insert(handle as usize, ticket);
    });
}

/// How many clients wait.
pub fn waiting() -> usize {
    WAITERS.with(|w| w.by_ticket.len())
}

/// Whether a client still waits under this ticket.
pub fn waits(ticket: Ticket) -> bool {
    WAITERS.with(|w| w.by_ticket.contains_key(&ticket))
}

fn remove(ticket: Ticket) -> Option<Waiter> {
    WAITERS.with(|w| {
        let waiter = w.by_ticket.remove(&ticket)?;
        w.by_handle.remove(&(waiter.handle as usize));
        Some(waiter)
    })
}

/// Answers a client that waits on a limiter, the object at `address` (0: it is gone).
pub fn answer(family: Family, address: usize, ticket: Ticket, answer: Answer) {
    let granted = answers::granted(&answer);
    stats::decision(family, granted);
    let place = WAITERS.with(|w| match &w.by_ticket.get(&ticket)?.waits {
        Waits::Limiter { place, .. } if granted && address != 0 => Some(place.clone()),
        _ => None,
    });
    let gives = place.map_or(Gives::Nothing, |place| Gives::Answer { family, place, address });
    send(ticket, Tree::Answer(answer), gives);
}

/// Answers a waiting client; what the reply gives goes back if it does not reach it.
pub fn send(ticket: Ticket, reply: Tree, gives: Gives) {
    if let Some(waiter) = remove(ticket) {
        let held = Box::into_raw(Box::new(Held { reply, delivered: false, gives }));
        // SAFETY: the handle is live: this ticket was waiting, and only one path unblocks it. The server gives `held` back to
        // `on_free` exactly once.
        unsafe { rm!(RedisModule_UnblockClient(waiter.handle, held.cast())) };
    }
}

/// The object goes away under those who wait on it.
pub fn orphaned<O: Object>(object: &mut O) {
    for (ticket, told) in object.orphans() {
        match told {
            Some(told) => answer(O::FAMILY, 0, ticket, told),
            None => chores::add(Chore::DecideAnew(ticket)),
        }
    }
}

unsafe extern "C" fn on_reply(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    shield(
        || {
            // SAFETY: the context of a running callback; the private data is the `Held` given to UnblockClient, not freed yet.
            unsafe {
                let held = rm!(RedisModule_GetBlockedClientPrivateData(ctx)).cast::<Held>();
                if let Some(held) = held.as_mut() {
                    Reply::new(Ctx::new(ctx)).tree(&held.reply);
                    held.delivered = true;
                }
            }
            OK
        },
        || OK,
    )
}

unsafe extern "C" fn on_free(_ctx: *mut raw::RedisModuleCtx, data: *mut c_void) {
    shield(
        || {
            if data.is_null() {
                return;
            }
            // SAFETY: made by Box::into_raw in `send`; the server calls this once.
            let held = unsafe { Box::from_raw(data.cast::<Held>()) };
            match (held.gives, held.reply) {
                _ if held.delivered => {}
                (Gives::Messages { place, address, receipts }, _) => {
                    chores::add(Chore::Return { place, address, receipts });
                }
                (Gives::Answer { family, place, address }, Tree::Answer(answer)) => {
                    chores::add(Chore::Undo { family, place, address, answer });
                }
                _ => {}
            }
        },
        || (),
    );
}

/// The client's time is over, or `CLIENT UNBLOCK … TIMEOUT`.
unsafe extern "C" fn on_timeout(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    shield(
        || {
            // SAFETY: the context of a running callback.
            let (ctx, handle) = unsafe { (Ctx::new(ctx), rm!(RedisModule_GetBlockedClientHandle(ctx))) };
            if let Some((ticket, waiter)) = gone(handle) {
                let reply = Reply::new(ctx);
                match &waiter.waits {
                    Waits::Claim { over } => reply.tree(over),
                    Waits::Limiter { place, address, decide } => {
                        // Cut short by CLIENT UNBLOCK: what it had booked goes back first, if anything may be changed now.
                        if timer::ready(ctx) {
                            chores::depart(ctx, *address, ticket);
                        }
                        match ctx.in_db(place.db, || decide(ctx, Asked::Over)) {
                            Ok(Decided::Told(answer)) => answers::answer(reply, &answer),
                            Ok(Decided::Waits(_)) => reply.nil_array(),
                            Err(error) => reply.error(&error),
                        }
                    }
                }
                left(ticket, &waiter);
            }
            OK
        },
        || OK,
    )
}

/// The client disconnected, was killed, or unblocked with an error.
unsafe extern "C" fn on_disconnect(
    _ctx: *mut raw::RedisModuleCtx,
    handle: *mut raw::RedisModuleBlockedClient,
) {
    shield(
        || {
            if let Some((ticket, waiter)) = gone(handle) {
                left(ticket, &waiter);
            }
        },
        || (),
    );
}

/// The waiter of a handle, taken out; None if it was answered already.
fn gone(handle: *mut raw::RedisModuleBlockedClient) -> Option<(Ticket, Waiter)> {
    let ticket = WAITERS.with(|w| w.by_handle.get(&(handle as usize)).copied())?;
    remove(ticket).map(|waiter| (ticket, waiter))
}

/// A waiter left without an answer: out of its line, bookings back, handle released.
fn left(ticket: Ticket, waiter: &Waiter) {
    match &waiter.waits {
        Waits::Claim { .. } => lines::leave(ticket),
        Waits::Limiter { address, .. } => chores::add(Chore::Depart { address: *address, ticket }),
    }
    // SAFETY: the handle is live until it is unblocked, which for this waiter nobody else does.
    unsafe { rm!(RedisModule_UnblockClient(waiter.handle, std::ptr::null_mut())) };
}
