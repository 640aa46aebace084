//! Lines of clients that wait for messages: one line a key, whether or not there is a queue in it.
//! work/serve.rs serves them.
//!
//! First come, first served: a ticket is smaller the earlier its client came. In each line those
//! who take any message and those who want one group are kept apart, so that finding whom a message
//! is for never means asking everybody: with W waiters and G groups waited for, a push looks at the
//! first of each of at most G + 1 rows, and at none at all when nothing can be claimed.
//!
//! A line belongs to a key name in a database, not to a queue: it waits through DEL, and is told
//! WRONGTYPE only when what was a queue becomes something else.

use super::clients::{self, Gives};
use super::deferred::{self, Deferred};
use crate::engine::names_hash::Map;
use crate::engine::queue::{ClaimOptions, Queue};
use crate::engine::shared::waiting::Ticket;
use crate::engine::time::Micros;
use crate::server::config;
use crate::server::error::Error;
use crate::server::ffi::main_thread::MainThread;
use crate::server::reply::owned::OwnedReply;
use crate::server::time::due_index::Place;
use lazy_static::lazy_static;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// What a waiting client asks for.
#[derive(Debug, Clone)]
pub struct Ask {
    pub count: usize,
    pub lease: Option<Micros>,
    pub consumer: Option<Box<[u8]>>,
    pub group: Option<Box<[u8]>>,
    pub no_ack: bool,
    /// None: `sluice.max-reply-bytes`.
    pub max_bytes: Option<usize>,
}

impl Ask {
    /// For a client whose reply is written at once.
    pub fn at_once(&self) -> ClaimOptions<'_> {
        ClaimOptions { returnable: false, ..self.options() }
    }

    /// For a client that has waited.
    pub fn options(&self) -> ClaimOptions<'_> {
        ClaimOptions {
            count: self.count,
            lease: self.lease,
            consumer: self.consumer.as_deref(),
            group: self.group.as_deref(),
            no_ack: self.no_ack,
            returnable: true,
            max_bytes: self.max_bytes.unwrap_or_else(config::max_reply_bytes),
        }
    }
}

/// How the messages are wrapped in the reply.
#[derive(Debug, Clone)]
pub enum Wrap {
    /// CLAIM: the messages.
    Plain,
    /// MCLAIM: the key, then the messages.
    Key,
    /// NEXT: the answers to its acks, then the messages.
    Acks(Vec<i64>),
}

impl Wrap {
    pub fn around(&self, key: &[u8], messages: OwnedReply) -> OwnedReply {
        match self {
            Self::Plain => messages,
            Self::Key => OwnedReply::Array(vec![OwnedReply::bulk(key), messages]),
            Self::Acks(acks) => OwnedReply::Array(vec![OwnedReply::ints(acks), messages]),
        }
    }
}

/// A client in line.
pub struct Claimant {
    pub db: i32,
    pub keys: Vec<Box<[u8]>>,
    pub ask: Ask,
    pub wrap: Wrap,
}

#[derive(Default)]
struct Line {
    any: BTreeSet<Ticket>,
    groups: Map<Box<[u8]>, BTreeSet<Ticket>>,
    /// There was a queue when the line was last looked at.
    was_queue: bool,
}

impl Line {
    fn row(&mut self, group: Option<&[u8]>) -> &mut BTreeSet<Ticket> {
        match group {
            None => &mut self.any,
            Some(g) => self.groups.entry_ref(g).or_default(),
        }
    }

    fn remove(&mut self, ticket: Ticket, group: Option<&[u8]>) {
        self.row(group).remove(&ticket);
        if let Some(g) = group
            && self.groups.get(g).is_some_and(BTreeSet::is_empty)
        {
            self.groups.remove(g);
        }
    }

    fn is_empty(&self) -> bool {
        self.any.is_empty() && self.groups.is_empty()
    }

    fn tickets(&self) -> Vec<Ticket> {
        let mut all: Vec<_> = self.any.iter().chain(self.groups.values().flatten()).copied().collect();
        all.sort_unstable();
        all
    }

    fn oldest(&self) -> Option<Ticket> {
        self.any.iter().chain(self.groups.values().filter_map(BTreeSet::first)).min().copied()
    }

    /// Who is asked first, of each row that may have something to be served with.
    fn turns(&self, queue: &Queue) -> Turns {
        let mut turns: Turns = self.any.first().map(|t| Reverse((*t, None))).into_iter().collect();
        let turn = |group: &[u8], row: &BTreeSet<Ticket>| Some(Reverse((*row.first()?, Some(group.into()))));
        // Whichever are fewer: the groups waited for, or those that have something.
        if self.groups.len() <= queue.candidate_count() {
            turns.extend(self.groups.iter().filter_map(|(g, row)| turn(g, row)));
        } else {
            turns.extend(queue.candidates().filter_map(|g| turn(g, self.groups.get(g)?)));
        }
        turns
    }

    /// The first who can be served. A row that cannot be is out of the turns: serving others only
    /// leaves less.
    fn first(&self, queue: &mut Queue, now: Micros, turns: &mut Turns) -> Option<Ticket> {
        while let Some(Reverse((ticket, group))) = turns.pop() {
            let row = match &group {
                None => Some(&self.any),
                Some(group) => self.groups.get(group),
            };
            let Some(first) = row.and_then(|row| row.first().copied()) else { continue };
            if first != ticket {
                turns.push(Reverse((first, group)));
            } else if queue.claimable(now, group.as_deref()) {
                turns.push(Reverse((ticket, group)));
                return Some(ticket);
            }
        }
        None
    }

    /// When to look again, as only tokens may be awaited: not later than somebody could be served.
    /// Asked when nobody can be now: then all groups that are waited for and have a message, but no
    /// token, are parked.
    fn next(&self, queue: &mut Queue, now: Micros) -> Option<Micros> {
        /// Groups looked at. If nobody waits for so many, that is gone into when the last of them
        /// has a token.
        const LOOKS: usize = 64;
        if !queue.is_rated() || queue.is_held_up(now) {
            return None;
        }
        if let Some(at) = queue.own_token_at(now) {
            return Some(at);
        }
        let any = if self.any.is_empty() { None } else { queue.claimable_at(now) };
        let mut parked = queue.parked().enumerate();
        let waited_for =
            |(n, (_, group)): &(usize, (Micros, &[u8]))| self.groups.contains_key(*group) || n + 1 == LOOKS;
        let group = if self.groups.is_empty() { None } else { parked.find(waited_for) };
        group.map(|(_, (until, _))| until).into_iter().chain(any).min()
    }
}

/// The first ticket of each row of a line, least first, with the row's group.
pub type Turns = BinaryHeap<Reverse<(Ticket, Option<Box<[u8]>>)>>;

#[derive(Default)]
struct Lines {
    waiters: Map<Ticket, Claimant>,
    lines: Map<(i32, Box<[u8]>), Line>,
    /// A line is being served: its own claims do not look at it again.
    serving: bool,
}

lazy_static! {
    static ref LINES: MainThread<Lines> = MainThread::new(Lines::default());
}

/// Whether anybody waits at a key.
pub fn is_line(db: i32, key: &[u8]) -> bool {
    !nobody() && LINES.with(|l| l.lines.contains_key(&(db, Box::from(key))))
}

/// Puts a client at the end of the lines of its keys.
pub fn enter(ticket: Ticket, waiter: Claimant) {
    LINES.with(|l| l.enter(ticket, waiter));
}

/// A key at which a client waits; in a cluster all of them are in one slot.
pub fn place_of(ticket: Ticket) -> Option<Place> {
    LINES.with(|l| {
        let waiter = l.waiters.get(&ticket)?;
        Some(Place { db: waiter.db, key: waiter.keys.first()?.clone() })
    })
}

/// Takes a client out of its lines.
pub fn leave(ticket: Ticket) {
    LINES.with(|l| l.leave(ticket));
}

impl Lines {
    fn enter(&mut self, ticket: Ticket, waiter: Claimant) {
        for key in &waiter.keys {
            let line = self.lines.entry((waiter.db, key.clone())).or_default();
            line.row(waiter.ask.group.as_deref()).insert(ticket);
        }
        self.waiters.insert(ticket, waiter);
    }

    fn leave(&mut self, ticket: Ticket) -> Option<Claimant> {
        let waiter = self.waiters.remove(&ticket)?;
        for key in &waiter.keys {
            let at = (waiter.db, key.clone());
            if let Some(line) = self.lines.get_mut(&at) {
                line.remove(ticket, waiter.ask.group.as_deref());
                if line.is_empty() {
                    self.lines.remove(&at);
                }
            }
        }
        Some(waiter)
    }
}

/// How many wait at a key.
pub fn waiting(db: i32, key: &[u8]) -> usize {
    LINES.with(|l| {
        l.lines
            .get(&(db, Box::from(key)))
            .map_or(0, |line| line.any.len() + line.groups.values().map(BTreeSet::len).sum::<usize>())
    })
}

/// Whether there is no line at all.
pub fn nobody() -> bool {
    LINES.with(|l| l.lines.is_empty())
}

/// What is at a key may have changed hands: its line is looked at as soon as the running command is
/// done.
pub fn look_again(db: i32, key: &[u8]) {
    if is_line(db, key) {
        deferred::add(Deferred::LookAgain(Place { db, key: key.into() }));
    }
}

/// The same for all lines of a database (-1: of all): first that in which somebody has waited
/// longest.
pub fn look_again_all(db: i32) {
    let mut lines: Vec<_> = LINES.with(|l| {
        let here = l.lines.iter().filter(|((d, _), _)| db < 0 || *d == db);
        here.map(|(at, line)| (line.oldest(), at.clone())).collect()
    });
    lines.sort_unstable();
    for (_, (db, key)) in lines {
        deferred::add(Deferred::LookAgain(Place { db, key }));
    }
}

/// The key is gone: who waits there waits at a missing key.
pub fn vanished(db: i32, key: &[u8]) {
    if nobody() {
        return;
    }
    LINES
        .with(|l| l.lines.get_mut(&(db, Box::from(key))).into_iter().for_each(|line| line.was_queue = false));
}

/// A database (-1: all of them) is emptied: who waits there waits at missing keys.
pub fn emptied(db: i32) {
    LINES.with(|l| {
        let lines = l.lines.iter_mut().filter(|((d, _), _)| db < 0 || *d == db);
        lines.for_each(|(_, line)| line.was_queue = false);
    });
}

/// A line is being served for as long as this lives, also when a panic ends it.
pub struct Serving(());

impl Serving {
    pub fn begin() -> Self {
        LINES.with(|l| l.serving = true);
        Self(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        LINES.with(|l| l.serving = false);
    }
}

/// Whether a line is being served: what is claimed for it serves nobody else.
pub fn serving() -> bool {
    LINES.with(|l| l.serving)
}

/// A client that was taken out of its lines: it goes on waiting or is answered, and if a panic
/// forgets it, it is told so.
pub struct OutOfLine {
    pub ticket: Ticket,
    waiter: Option<Claimant>,
}

impl OutOfLine {
    pub fn waiter(&self) -> Option<&Claimant> {
        self.waiter.as_ref()
    }

    pub fn back(mut self) {
        if let Some(waiter) = self.waiter.take() {
            enter(self.ticket, waiter);
        }
    }

    pub fn answered(mut self) {
        self.waiter = None;
    }
}

impl Drop for OutOfLine {
    fn drop(&mut self) {
        if self.waiter.is_some() {
            clients::send(self.ticket, OwnedReply::Error(Error::INTERNAL), Gives::Nothing);
        }
    }
}

/// Who is next in a line.
pub enum Next {
    Ready(OutOfLine),
    /// Nobody can be served, and nobody before this instant if it is only tokens that are awaited.
    Nobody(Option<Micros>),
}

/// Takes the first who can be served with something of the queue at this key out of the line.
/// `turns` are made at the first call.
pub fn take_first(at: &(i32, Box<[u8]>), queue: &mut Queue, now: Micros, turns: &mut Option<Turns>) -> Next {
    LINES.with(|l| {
        let Some(line) = l.lines.get_mut(at) else { return Next::Nobody(None) };
        line.was_queue = true;
        let turns = turns
            .get_or_insert_with(|| if queue.claimable(now, None) { line.turns(queue) } else { Turns::new() });
        let Some(ticket) = line.first(queue, now, turns) else { return Next::Nobody(line.next(queue, now)) };
        match l.leave(ticket) {
            Some(waiter) => Next::Ready(OutOfLine { ticket, waiter: Some(waiter) }),
            None => Next::Nobody(None),
        }
    })
}

/// The key holds something else: takes those who waited on a queue there out of their lines.
pub fn take_all(at: &(i32, Box<[u8]>)) -> Vec<Ticket> {
    LINES.with(|l| match l.lines.get(at) {
        Some(line) if line.was_queue => {
            let tickets = line.tickets();
            tickets.iter().for_each(|t| drop(l.leave(*t)));
            tickets
        }
        _ => Vec::new(),
    })
}
