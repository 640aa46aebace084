//! One key, opened for a command or the timer: type check, what is due, and the object to decide
//! on. What follows is in finish.rs.
//!
//! Invariant: while the object is borrowed no server function is called that could run foreign
//! code.

use super::handle::open_of;
use super::value::Value;
use crate::engine::journal::Journal;
use crate::engine::object::{Lifetime, Object};
use crate::engine::time::Micros;
use crate::server::error::Error;
use crate::server::ffi::context::Ctx;
use crate::server::ffi::key::{KeyOf, Mode};
use crate::server::ffi::strings::{OwnedString, Str};
use crate::server::replication::{fencing, listeners};
use crate::server::stats;
use crate::server::time::due_index::Identity;
use crate::server::time::{budget, clock};
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many keys are open for change: while one is, nothing else may open any (its decisions are
/// not carried yet).
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Whether a key is open for change.
pub fn any_open() -> bool {
    OPEN.load(Ordering::Relaxed) > 0
}

/// One open key, counted until it is dropped. On the main thread only.
pub(super) struct Counted;

impl Counted {
    fn new() -> Self {
        OPEN.store(OPEN.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        OPEN.store(OPEN.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }
}

/// A key opened for change: the object in it (or a blank one, kept only if it changes), and what
/// was recorded so far.
pub struct Opened<'a, O: Object> {
    pub(super) ctx: Ctx<'a>,
    pub(super) name: Str<'a>,
    pub(super) argv: &'a [Str<'a>],
    pub(super) key: KeyOf<Value<O>>,
    pub(super) counted: Option<Counted>,
    pub(super) fresh: Option<Box<Value<O>>>,
    pub(super) journal: Journal,
    pub(super) now: Micros,
    pub(super) before: Counts,
    pub(super) bytes_before: usize,
    pub(super) event: Option<&'static CStr>,
    /// Nothing that is due was left undone by [`Opened::apply_due`].
    pub(super) settled: bool,
    /// How much of what is put off it may do.
    pub(super) allowed: usize,
    /// The timer settles; who waits is looked at when it has done all that is due.
    pub(super) timed: bool,
    /// How many clients are told, if that does not go by what the command may do.
    pub(super) tells: Option<usize>,
    /// The key was deleted, as its object says the same as none: by a command, or because its time
    /// had come.
    pub(super) removed: bool,
    pub(super) reaped: bool,
    pub(super) ended: bool,
    pub(super) kept: bool,
}

pub(super) type Counts = [u64; stats::MOST_EVENTS];

impl<'a, O: Object> Opened<'a, O> {
    /// Opens a key for change: `name` is one of the arguments of the running command. Of what is
    /// due on the object as much is applied as one command does; the timer does the rest.
    pub fn new(ctx: Ctx<'a>, name: Str<'a>, argv: &'a [Str<'a>], now: Micros) -> Result<Self, Error> {
        Ok(Self::open(ctx, name, argv, now, Mode::Write)?.up_to_date())
    }

    fn up_to_date(mut self) -> Self {
        let now = self.now;
        if self.existing().is_some_and(|o| o.next_event().is_some_and(|t| t <= now) || o.is_ahead(now)) {
            let most = self.journal.left();
            if !self.apply_due(most) {
                let (object, journal) = self.parts();
                object.catch_up(now, journal);
            }
        }
        self
    }

    fn open(
        ctx: Ctx<'a>,
        name: Str<'a>,
        argv: &'a [Str<'a>],
        now: Micros,
        mode: Mode,
    ) -> Result<Self, Error> {
        let mut opened = Self {
            ctx,
            name,
            argv,
            key: open_of(ctx, name, mode)?,
            counted: Some(Counted::new()),
            fresh: None,
            journal: Journal::drawing(O::FAMILY, listeners::wanted(ctx), fencing::draw),
            now,
            before: [0; stats::MOST_EVENTS],
            bytes_before: 0,
            event: None,
            settled: true,
            allowed: budget::left(),
            timed: false,
            tells: None,
            removed: false,
            reaped: false,
            ended: false,
            kept: false,
        };
        opened.journal.allow(opened.allowed);
        opened.count_before();
        Ok(opened)
    }

    /// Opens a key by a name of our own, for change, at this instant: for what no command does.
    pub fn named(ctx: Ctx<'a>, name: &'a OwnedString) -> Result<Self, Error> {
        Ok(Self::open(ctx, name.as_str(), &[], clock::now(), Mode::Quiet)?.up_to_date())
    }

    /// The same for a command that may wait.
    pub fn asked(ctx: Ctx<'a>, name: &'a OwnedString) -> Result<Self, Error> {
        Self::new(ctx, name.as_str(), &[], clock::now())
    }

    /// The same for the timer, which settles in steps.
    pub fn unsettled(ctx: Ctx<'a>, name: &'a OwnedString, now: Micros) -> Result<Self, Error> {
        let mut opened = Self::open(ctx, name.as_str(), &[], now, Mode::Quiet)?;
        opened.timed = true;
        opened.journal.allow(usize::MAX);
        Ok(opened)
    }

    fn count_before(&mut self) {
        self.bytes_before = self.memory();
        if !O::EVENTS.is_empty() {
            let mut counts = [0; stats::MOST_EVENTS];
            if let Some(object) = self.existing() {
                object.counts(&mut counts);
            }
            self.before = counts;
        }
    }

    /// The object in the key, if there is a key.
    #[inline]
    pub fn existing(&self) -> Option<&O> {
        match self.key.value() {
            Some(value) => Some(&value.object),
            None => self.fresh.as_ref().map(|v| &v.object),
        }
    }

    /// The object to decide on (a blank one if there is no key) and the journal for what it
    /// records.
    pub fn parts(&mut self) -> (&mut O, &mut Journal) {
        match self.key.value_mut() {
            Some(value) => (&mut value.object, &mut self.journal),
            None => {
                let fresh = self.fresh.get_or_insert_with(|| Box::new(Value::new(O::blank())));
                (&mut fresh.object, &mut self.journal)
            }
        }
    }

    pub(super) fn memory(&self) -> usize {
        self.key.value().map_or(0, Value::memory)
    }

    pub fn context(&self) -> Ctx<'a> {
        self.ctx
    }

    pub fn now(&self) -> Micros {
        self.now
    }

    /// Takes away the key's TTL, whoever gave it.
    pub fn persist(&mut self) {
        if self.key.value().is_some() && self.key.has_ttl() {
            self.forget_ttl();
        }
    }

    /// The TTL that the object asks for is given to the key again, whatever it has.
    fn forget_ttl(&mut self) {
        if let Some(value) = self.key.value_mut() {
            value.expires_ms = -1;
            self.journal.touch();
        }
    }

    /// Applies what is due, about `most` steps; true when nothing due is left.
    pub fn apply_due(&mut self, most: usize) -> bool {
        let now = self.now;
        if self.key.value().is_none() {
            return true;
        }
        if self.timed {
            self.tells = Some(most);
        }
        let begin = clock::monotonic();
        let (object, journal) = self.parts();
        self.settled = object.apply_due(now, most, journal);
        stats::piece(clock::monotonic().saturating_sub(begin));
        self.settled
    }

    /// Has a key that came without a TTL, or lost it, get the one its object asks for, or go.
    pub fn bound(&mut self) {
        let now = self.now;
        let ends = self.existing().is_some_and(|o| o.lifetime(now) != Lifetime::Forever);
        if ends && !self.key.has_ttl() {
            self.forget_ttl();
        }
    }

    /// Has the key go if its object says the same as no object.
    pub fn reap(&mut self) {
        let now = self.now;
        if self.existing().is_some_and(|o| o.lifetime(now) == Lifetime::Gone) {
            self.journal.touch();
            self.reaped = true;
        }
    }

    /// What the object in the key is known by; None: there is no key.
    pub fn identity(&self) -> Option<Identity> {
        self.key.value().map(Value::identity)
    }

    /// Ends the work on the key without looking at what is due, as nothing was decided.
    pub fn leave(mut self) {
        self.ended = true;
        self.kept = true;
    }

    /// The keyspace event to emit at the end, if anything changed.
    pub fn notify(&mut self, event: &'static CStr) {
        self.event = Some(event);
    }
}
