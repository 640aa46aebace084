//! What must happen but cannot happen in the middle of the call that made it necessary: noted here,
//! and done by work/run_deferred.rs, by the timer right after the call, or, where that is sound,
//! around the next command of ours.
//!
//! - a blocked client went away: what it had booked is given back;
//! - the object a client waited on is gone: its command is decided anew, or it is told what it had
//!   booked;
//! - a queue changed inside a transaction, or a key under waiting claims changed hands: the line
//!   there is looked at again;
//! - an object came by RESTORE without a TTL, though it goes by itself;
//! - a held reply could not be delivered: what it gave goes back.
//!
//! Each is about one key, and done only when that key may be changed (access.rs); until then it is
//! *held back*. Invariants:
//!
//! - None runs while a key is open for change, whose decisions are not carried yet.
//! - In a cluster none runs inside a command: some servers take the slot of every key that is
//!   opened then from the command, and would read and write another slot's table.
//! - On a replica nothing is given back: what was booked here is part of what its new master
//!   decides on. Lines forget who left, that is all.

use crate::engine::family::Family;
use crate::engine::queue::{Receipt, Taken};
use crate::engine::shared::waiting::{Answer, Ticket};
use crate::server::ffi::context::Ctx;
use crate::server::ffi::main_thread::MainThread;
use crate::server::time::alarm;
use crate::server::time::due_index::Place;
use lazy_static::lazy_static;
use std::collections::VecDeque;

#[derive(Debug)]
pub enum Deferred {
    /// A client that waited on this object is gone.
    Depart { object: u64, ticket: Ticket },
    /// The object this client waited on is gone.
    DecideAnew(Ticket),
    /// The same, but what it had booked is its own: this is its answer, if the key is ours to say
    /// so.
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

/// What is left to do, and whether its key was another node's when it was tried last: then who
/// waits for it has not been sent here for a key that is not here.
#[derive(Debug)]
pub struct Task {
    pub what: Deferred,
    pub was_elsewhere: bool,
}

#[derive(Default)]
struct Tasks {
    pending: VecDeque<Task>,
    held_back: Vec<Task>,
}

lazy_static! {
    static ref TASKS: MainThread<Tasks> = MainThread::new(Tasks::default());
}

/// Adds something; the timer comes for it as soon as the running command is done.
pub fn add(what: Deferred) {
    TASKS.with(|t| t.pending.push_back(Task { what, was_elsewhere: false }));
    alarm::soon(Ctx::own());
}

pub fn pending() -> bool {
    TASKS.with(|t| !t.pending.is_empty())
}

/// Whether any are left, to be done now or when their key may be changed.
pub fn any() -> bool {
    pending() || any_held_back()
}

/// Whether some wait until their key may be changed.
pub fn any_held_back() -> bool {
    TASKS.with(|t| !t.held_back.is_empty())
}

/// What was held back is tried again.
pub fn try_again() {
    TASKS.with(|t| t.pending.extend(std::mem::take(&mut t.held_back)));
}

/// Takes the next task.
pub fn next() -> Option<Task> {
    TASKS.with(|t| t.pending.pop_front())
}

/// The task is the next one again.
pub fn put_back(task: Task) {
    TASKS.with(|t| t.pending.push_front(task));
}

/// The task waits until its key may be changed.
pub fn hold_back(task: Task) {
    TASKS.with(|t| t.held_back.push(task));
}

/// Takes all of them.
pub fn take_all() -> impl Iterator<Item = Task> {
    let (pending, held_back) =
        TASKS.with(|t| (std::mem::take(&mut t.pending), std::mem::take(&mut t.held_back)));
    pending.into_iter().chain(held_back)
}
