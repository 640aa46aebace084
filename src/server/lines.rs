//! Lines of clients that wait for messages: one line a key, whether or not there is a queue in it.
//!
//! First come, first served: a ticket is smaller the earlier its client came. In each line those who take any message and those who want one
//! group are kept apart, so that finding whom a message is for never means asking everybody: with W waiters and G groups waited for, a push looks at the
//! first of each of at most G + 1 rows, and at none at all when nothing can be claimed. Nobody overtakes: before a newcomer claims, the line is served.
//!
//! What is served outside a command is served only while the key may be changed (chores.rs asks).
//!
//! A line belongs to a key name in a database, not to a queue: it waits through DEL, and is told WRONGTYPE only when what was a queue becomes
//! something else.

use super::api::{Ctx, OwnedString};
use super::block::{self, Gives};
use super::chores::{self, Chore};
use super::clock;
use super::config;
use super::error::Error;
use super::guard::trip;
use super::key::{Holds, Opened, any_open, holds};
use super::main_thread::MainThread;
use super::migration;
use super::registry::{self, Place};
use super::reply::Tree;
use crate::engine::object::Family;
use crate::engine::queue::{ClaimOptions, Delivery, Queue, Receipt};
use crate::engine::time::Micros;
use crate::engine::waiting::Ticket;
use hashbrown::HashMap;
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
    fn options(&self) -> ClaimOptions<'_> {
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
    pub fn around(&self, key: &[u8], messages: Tree) -> Tree {
        match self {
            Self::Plain => messages,
            Self::Key => Tree::Array(vec![Tree::bulk(key), messages]),
            Self::Acks(acks) => Tree::Array(vec![Tree::ints(acks), messages]),
        }
    }
}

struct Waiter {
    db: i32,
    keys: Vec<Box<[u8]>>,
    ask: Ask,
    wrap: Wrap,
}

#[derive(Default)]
struct Line {
    any: BTreeSet<Ticket>,
    groups: HashMap<Box<[u8]>, BTreeSet<Ticket>>,
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

    /// The first who can be served. A row that cannot be is out of the turns: serving others only leaves less.
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

    /// When somebody could be served if only tokens are awaited.
    fn next(&self, queue: &mut Queue, now: Micros) -> Option<Micros> {
        if !queue.is_rated() {
            return None;
        }
        let any = if self.any.is_empty() { None } else { queue.claimable_at(now, None) };
        let groups: Vec<Box<[u8]>> = if self.groups.len() <= queue.candidate_count() + queue.parked_count() {
            self.groups.keys().cloned().collect()
        } else {
            let there = queue.candidates().chain(queue.parked());
            there.filter(|g| self.groups.contains_key(*g)).map(Into::into).collect()
        };
        groups.iter().filter_map(|g| queue.claimable_at(now, Some(g))).chain(any).min()
    }
}

/// The first ticket of each row of a line, least first, with the row's group.
type Turns = BinaryHeap<Reverse<(Ticket, Option<Box<[u8]>>)>>;

#[derive(Default)]
struct Lines {
    waiters: HashMap<Ticket, Waiter>,
    lines: HashMap<(i32, Box<[u8]>), Line>,
    /// A line is being served: its own claims do not look at it again.
    serving: bool,
}

static LINES: std::sync::LazyLock<MainThread<Lines>> =
    std::sync::LazyLock::new(|| MainThread::new(Lines::default()));

/// Whether anybody waits at a key.
pub fn is_line(place: &Place) -> bool {
    !nobody() && LINES.with(|l| l.lines.contains_key(&(place.db, place.key.clone())))
}

/// A line is being served for as long as this lives, also when a panic ends it.
struct Serving;

impl Serving {
    fn begin() -> Self {
        LINES.with(|l| l.serving = true);
        Self
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        LINES.with(|l| l.serving = false);
    }
}

/// A client that was taken out of its lines: it goes on waiting or is answered, and if a panic forgets it, it is told so.
struct OutOfLine {
    ticket: Ticket,
    waiter: Option<Waiter>,
}

impl OutOfLine {
    fn back(mut self) {
        if let Some(waiter) = self.waiter.take() {
            LINES.with(|l| l.enter(self.ticket, waiter));
        }
    }

    fn answered(mut self) {
        self.waiter = None;
    }
}

impl Drop for OutOfLine {
    fn drop(&mut self) {
        if self.waiter.is_some() {
            block::send(self.ticket, Tree::Error(Error::INTERNAL), Gives::Nothing);
        }
    }
}

/// Puts a client at the end of the lines of `keys`, in the database of the context.
pub fn join(ctx: Ctx<'_>, ticket: Ticket, keys: Vec<Box<[u8]>>, ask: Ask, wrap: Wrap) {
    LINES.with(|l| l.enter(ticket, Waiter { db: ctx.db(), keys: keys.clone(), ask, wrap }));
    // From here on a change of type is noticed; and if only tokens are awaited, the timer is told.
    for key in keys {
        serve(ctx, &key);
    }
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
    fn enter(&mut self, ticket: Ticket, waiter: Waiter) {
        for key in &waiter.keys {
            let line = self.lines.entry((waiter.db, key.clone())).or_default();
            line.row(waiter.ask.group.as_deref()).insert(ticket);
        }
        self.waiters.insert(ticket, waiter);
    }

    fn leave(&mut self, ticket: Ticket) -> Option<Waiter> {
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

/// A queue changed: who waits there is served, at once or, inside a transaction or script, right after it.
#[inline]
pub fn changed<'k>(ctx: Ctx<'_>, key: impl FnOnce() -> &'k [u8]) {
    if nobody() || LINES.with(|l| l.serving) {
        return;
    }
    let (db, key) = (ctx.db(), key());
    if !LINES.with(|l| l.lines.contains_key(&(db, Box::from(key)))) {
        return;
    }
    if ctx.flags().atomic() || any_open() {
        look_again(db, key);
    } else {
        serve(ctx, key);
    }
}

/// What is at a key may have changed hands: its line is looked at as soon as the running command is done.
pub fn look_again(db: i32, key: &[u8]) {
    if !nobody() && LINES.with(|l| l.lines.contains_key(&(db, Box::from(key)))) {
        chores::add(Chore::LookAgain(Place { db, key: key.into() }));
    }
}

/// The same for all lines of a database (-1: of all).
pub fn look_again_all(db: i32) {
    let places: Vec<_> =
        LINES.with(|l| l.lines.keys().filter(|(d, _)| db < 0 || *d == db).cloned().collect());
    for (db, key) in places {
        chores::add(Chore::LookAgain(Place { db, key }));
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

/// Serves the line at a key of the selected database as far as messages go, or for a tick of the timer: then it comes back.
pub fn serve(ctx: Ctx<'_>, key: &[u8]) {
    serve_for(ctx, key, config::tick_budget_us());
}

/// A newcomer would claim from the keys: whoever waits there is served before, with all that there is. True if somebody waits.
pub fn serve_first<'k>(ctx: Ctx<'_>, keys: impl Iterator<Item = &'k [u8]>) -> bool {
    if nobody() || ctx.flags().atomic() {
        return false;
    }
    let (db, mut any) = (ctx.db(), false);
    for key in keys {
        if LINES.with(|l| l.lines.contains_key(&(db, Box::from(key)))) {
            serve_for(ctx, key, Micros::MAX);
            any = true;
        }
    }
    any
}

fn serve_for(ctx: Ctx<'_>, key: &[u8], budget: Micros) {
    let at = (ctx.db(), Box::<[u8]>::from(key));
    if LINES.with(|l| l.serving || !l.lines.contains_key(&at)) || migration::staged(key) {
        return;
    }
    let name = OwnedString::new(key);
    // SAFETY: `name` is live.
    match unsafe { holds::<Queue>(ctx, name.raw()) } {
        Holds::Nothing => return vanished(at.0, key),
        Holds::Other => return refuse(&at),
        Holds::Ours => {}
    }
    let begin = clock::wall();
    let mut turns = None;
    let _serving = Serving::begin();
    while let Some(out) = first(ctx, &name, &at, &mut turns) {
        // One who waits at several keys takes from the first of them that has any; this one has.
        let served = out
            .waiter
            .as_ref()
            .is_some_and(|waiter| waiter.keys.iter().any(|key| claim(ctx, out.ticket, waiter, at.0, key)));
        if !served {
            out.back();
            break;
        }
        out.answered();
        if clock::wall().saturating_sub(begin) >= budget {
            look_again(at.0, key);
            break;
        }
    }
}

/// Takes the first in line who can be served out of it; if there is none, sees that the timer comes when tokens will do.
fn first(
    ctx: Ctx<'_>,
    name: &OwnedString,
    at: &(i32, Box<[u8]>),
    turns: &mut Option<Turns>,
) -> Option<OutOfLine> {
    let mut opened = Opened::<Queue>::named(ctx, name).ok()?;
    let (identity, now) = (opened.identity()?, opened.now());
    let (queue, _) = opened.parts();
    let found = LINES.with(|l| {
        let line = l.lines.get_mut(at)?;
        line.was_queue = true;
        let turns = turns
            .get_or_insert_with(|| if queue.claimable(now, None) { line.turns(queue) } else { Turns::new() });
        let Some(ticket) = line.first(queue, now, turns) else {
            if let Some(next) = line.next(queue, now) {
                registry::schedule(Family::Queue, identity, next, || at.clone());
            }
            return None;
        };
        l.leave(ticket).map(|waiter| OutOfLine { ticket, waiter: Some(waiter) })
    });
    trip("serving");
    opened.finish();
    found
}

/// Claims from one key for a client that is out of its lines; true if it was told something.
fn claim(ctx: Ctx<'_>, ticket: Ticket, waiter: &Waiter, db: i32, key: &[u8]) -> bool {
    let name = OwnedString::new(key);
    let Ok(mut opened) = Opened::<Queue>::named(ctx, &name) else { return false };
    let Some(object) = opened.identity() else { return false };
    let now = opened.now();
    let (queue, journal) = opened.parts();
    if !queue.claimable(now, waiter.ask.group.as_deref()) {
        opened.finish();
        return false;
    }
    if !block::may_have(ctx, ticket, key) {
        opened.finish();
        block::send(ticket, Tree::Error(Error::NO_PERMISSION), Gives::Nothing);
        return true;
    }
    let deliveries = queue.claim(now, &waiter.ask.options(), journal);
    let messages = deliveries.iter().map(|d| message(queue, d)).collect();
    let receipts =
        deliveries.iter().filter_map(|d| Some(Receipt { id: d.id.clone(), claim: d.claim? })).collect();
    opened.finish();
    trip("claimed");
    if deliveries.is_empty() {
        return false;
    }
    let taken = deliveries.into_iter().filter_map(Delivery::into_taken).collect();
    let reply = waiter.wrap.around(key, Tree::Array(messages));
    let place = Place { db, key: key.into() };
    block::send(ticket, reply, Gives::Messages { place, object, receipts, taken });
    true
}

/// One message as a reply.
pub fn message(queue: &Queue, delivery: &Delivery) -> Tree {
    let mut buffer = itoa::Buffer::new();
    let id = delivery.id.text(&mut buffer);
    let receipt = delivery.claim.map_or(Tree::Nil, |claim| {
        let mut text = id.to_vec();
        text.extend_from_slice(format!("@{claim}").as_bytes());
        Tree::Bulk(text.into())
    });
    Tree::Array(vec![
        Tree::bulk(id),
        receipt,
        Tree::Int(i64::try_from(delivery.deliveries).unwrap_or(i64::MAX)),
        Tree::bulk(queue.payload(delivery)),
    ])
}

/// The key holds something else: those who waited on a queue there are told.
fn refuse(at: &(i32, Box<[u8]>)) {
    let tickets = LINES.with(|l| match l.lines.get(at) {
        Some(line) if line.was_queue => {
            let tickets = line.tickets();
            tickets.iter().for_each(|t| drop(l.leave(*t)));
            tickets
        }
        _ => Vec::new(),
    });
    for ticket in tickets {
        block::send(ticket, Tree::Error(Error::WRONG_TYPE), Gives::Nothing);
    }
}
