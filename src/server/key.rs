//! One key, opened for a command or the timer: type check, decide/apply on the object in it, and [`Opened::finish`], which does all that follows
//! a change: create or delete the key, move its TTL, carry the effects, signal, notify, answer and wake who waits.
//!
//! Invariants: a key is created, deleted, signalled or carried only if the journal recorded a change. While the object is borrowed no server function is
//! called that could run foreign code (notifications come last, when the key is closed).

use super::api::{Ctx, OwnedString, RawString, bytes, rm};
use super::block::{self, Gives};
use super::error::Error;
use super::guard::{self, shield, trip};
pub use super::handle::look;
pub(super) use super::handle::{Handle, Holds, Mode, holds, note, read};
use super::registry::{self, Identity};
use super::reply::Tree;
use super::types::Value;
use super::{answers, clock, lines, numbers, pieces, propagate, stats, unit};
use crate::engine::journal::Journal;
use crate::engine::object::{AT_ONCE, Lifetime, Object};
use crate::engine::time::{MAX_INSTANT_MS, MS, Micros};
use crate::engine::waiting::{Answer, Ticket};
use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::panicking;

/// How many keys are open for change: while one is, nothing else may open any (its decisions are not carried yet).
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Whether a key is open for change.
pub fn any_open() -> bool {
    OPEN.load(Ordering::Relaxed) > 0
}

/// One open key, counted until it is dropped. On the main thread only.
struct Counted;

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

/// A key opened for change: the object in it (or a blank one, kept only if it changes), and what was recorded so far.
pub struct Opened<'a, O: Object> {
    ctx: Ctx<'a>,
    name: RawString,
    argv: &'a [RawString],
    handle: Handle,
    counted: Option<Counted>,
    value: *mut Value<O>,
    fresh: Option<Box<Value<O>>>,
    journal: Journal,
    now: Micros,
    before: Counts,
    bytes_before: usize,
    event: Option<&'static CStr>,
    /// Nothing that is due was left undone by [`Opened::settle`].
    settled: bool,
    /// How much of what is put off it may do.
    allowed: usize,
    /// The timer settles; who waits is looked at when it has done all that is due.
    timed: bool,
    /// The key was deleted, as its object says the same as none: by a command, or because its time had come.
    removed: bool,
    reaped: bool,
    ended: bool,
    kept: bool,
}

type Counts = [u64; stats::MOST_EVENTS];

impl<'a, O: Object> Opened<'a, O> {
    /// Opens a key for change. What is due on the object is applied at once, or as much as one command does where the rest can be put off.
    ///
    /// # Safety
    /// `name` is a live string of the server for `'a`. If there are `argv`, they are the arguments of the running command, and the name is one of them.
    pub unsafe fn new(
        ctx: Ctx<'a>,
        name: RawString,
        argv: &'a [RawString],
        now: Micros,
    ) -> Result<Self, Error> {
        // SAFETY: passed on.
        Ok(unsafe { Self::open(ctx, name, argv, now, Mode::Write)? }.up_to_date())
    }

    fn up_to_date(mut self) -> Self {
        let now = self.now;
        if self.existing().is_some_and(|o| o.next_event().is_some_and(|t| t <= now) || o.is_ahead(now)) {
            let most = if O::PUTS_OFF { self.journal.left() } else { usize::MAX };
            self.settle(most);
        }
        self
    }

    unsafe fn open(
        ctx: Ctx<'a>,
        name: RawString,
        argv: &'a [RawString],
        now: Micros,
        mode: Mode,
    ) -> Result<Self, Error> {
        // SAFETY: passed on.
        let handle = unsafe { Handle::open(ctx, name, mode) };
        let value = handle.value::<O>()?.unwrap_or(std::ptr::null_mut());
        let mut opened = Self {
            ctx,
            name,
            argv,
            handle,
            counted: Some(Counted::new()),
            value,
            fresh: None,
            journal: Journal::drawing(O::FAMILY, propagate::wanted(ctx), numbers::draw),
            now,
            before: [0; stats::MOST_EVENTS],
            bytes_before: 0,
            event: None,
            settled: true,
            allowed: pieces::left(),
            timed: false,
            removed: false,
            reaped: false,
            ended: false,
            kept: false,
        };
        if O::PUTS_OFF {
            opened.journal.allow(opened.allowed);
        }
        opened.count_before();
        Ok(opened)
    }

    /// Opens a key by a name of our own, for change, at this instant: for what no command does.
    pub fn named(ctx: Ctx<'a>, name: &'a OwnedString) -> Result<Self, Error> {
        // SAFETY: `name` lives for `'a`; there are no arguments.
        Ok(unsafe { Self::open(ctx, name.raw(), &[], clock::now(), Mode::Quiet)? }.up_to_date())
    }

    /// The same for a command that may wait.
    pub fn asked(ctx: Ctx<'a>, name: &'a OwnedString) -> Result<Self, Error> {
        // SAFETY: `name` lives for `'a`; there are no arguments.
        unsafe { Self::new(ctx, name.raw(), &[], clock::now()) }
    }

    /// The same for the timer, which settles in steps.
    ///
    /// # Safety
    /// `name` is a live string of the server for `'a`.
    pub unsafe fn unsettled(ctx: Ctx<'a>, name: RawString, now: Micros) -> Result<Self, Error> {
        // SAFETY: passed on.
        let mut opened = unsafe { Self::open(ctx, name, &[], now, Mode::Quiet)? };
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
    pub fn existing(&self) -> Option<&O> {
        if self.value.is_null() {
            return self.fresh.as_ref().map(|v| &v.object);
        }
        // SAFETY: the value of the open key; only `self` reaches it while the key is open, and it is borrowed with `self`.
        Some(unsafe { &(*self.value).object })
    }

    /// The object to decide on (a blank one if there is no key) and the journal for what it records.
    pub fn parts(&mut self) -> (&mut O, &mut Journal) {
        if self.value.is_null() {
            let fresh = self.fresh.get_or_insert_with(|| Box::new(Value::new(O::blank())));
            return (&mut fresh.object, &mut self.journal);
        }
        // SAFETY: as in `existing`.
        (unsafe { &mut (*self.value).object }, &mut self.journal)
    }

    /// Decides on the object and ends the work on the key.
    pub fn decide<R>(mut self, decide: impl FnOnce(&mut O, Micros, &mut Journal) -> R) -> R {
        let now = self.now;
        let (object, journal) = self.parts();
        let decided = decide(object, now, journal);
        self.finish();
        decided
    }

    fn memory(&self) -> usize {
        // SAFETY: as in `existing`.
        if self.value.is_null() { 0 } else { unsafe { (*self.value).memory() } }
    }

    pub fn now(&self) -> Micros {
        self.now
    }

    /// Takes away the key's TTL, whoever gave it.
    pub fn persist(&mut self) {
        // SAFETY: an open key handle.
        if !self.value.is_null() && unsafe { rm!(RedisModule_GetExpire(self.handle.0)) } >= 0 {
            // SAFETY: as in `existing`.
            unsafe { (*self.value).expires_ms = -1 };
            self.journal.touch();
        }
    }

    /// Applies what is due, about `most` steps; true when nothing due is left.
    pub fn settle(&mut self, most: usize) -> bool {
        let now = self.now;
        if self.value.is_null() {
            return true;
        }
        let begin = clock::monotonic();
        let (object, journal) = self.parts();
        self.settled = object.settle(now, most, journal);
        stats::piece(clock::monotonic().saturating_sub(begin));
        self.settled
    }

    /// Has a key that came without a TTL, or lost it, get the one its object asks for, or go.
    pub fn bound(&mut self) {
        let now = self.now;
        let ends = self.existing().is_some_and(|o| o.lifetime(now) != Lifetime::Forever);
        // SAFETY: an open key handle; as in `existing`: who ends is there.
        unsafe {
            if ends && rm!(RedisModule_GetExpire(self.handle.0)) < 0 {
                (*self.value).expires_ms = -1;
                self.journal.touch();
            }
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
        // SAFETY: as in `existing`.
        unsafe { self.value.as_ref() }.map(Value::identity)
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

    /// Ends the work on the key, as dropping it does. Returns what the object is known by; None: there is no key.
    pub fn finish(mut self) -> Option<Identity> {
        self.end()
    }

    /// All that follows what was decided. Once; on an error as well, as what was due has been applied by then.
    fn end(&mut self) -> Option<Identity> {
        if std::mem::replace(&mut self.ended, true) {
            return None;
        }
        trip("deciding");
        let (answers, denied) = self.answers();
        let changed = self.journal.changed();
        // Counted before the key may go: what happened last has happened, too.
        let mut after = self.before;
        if let (true, Some(object)) = (changed && !O::EVENTS.is_empty(), self.existing()) {
            object.counts(&mut after);
        }
        self.keep();
        let identity = self.identity();
        // From here on other code may run and change the key.
        self.handle.close();
        self.counted = None;
        trip("telling");
        for (ticket, answer) in answers {
            block::answer(O::FAMILY, identity, ticket, answer);
        }
        for ticket in denied {
            block::send(ticket, Tree::Error(Error::NO_PERMISSION), Gives::Nothing);
        }
        if changed {
            self.tell(&after);
        }
        identity
    }

    /// What was applied stands: it is in the key, carried, reckoned with and looked at when it is due. Once; also when a panic ends all else.
    fn keep(&mut self) {
        /// A key whose settling ends in a panic lets the others be settled before it is tried again.
        const AFTER_A_PANIC: Micros = 1_000 * MS;
        if std::mem::replace(&mut self.kept, true) {
            return;
        }
        if O::PUTS_OFF && !self.timed {
            pieces::spend(self.allowed.saturating_sub(self.journal.left()));
        }
        if self.journal.changed() {
            self.commit();
        }
        if !self.value.is_null() {
            stats::grew(O::FAMILY, self.memory() as i64 - self.bytes_before as i64);
            // SAFETY: the value of the key that is still open; `name` is live.
            let (value, name) = unsafe { (&*self.value, bytes(self.name)) };
            // What is left over comes after what is due by now on other keys.
            let not_before = match (panicking(), self.timed && !self.settled) {
                (true, _) => self.now.saturating_add(AFTER_A_PANIC),
                (false, true) => self.now,
                (false, false) => Micros::MIN,
            };
            schedule_from(value, self.now, not_before, || (self.ctx.db(), name.into()));
        }
    }

    /// Who can be told, and what; and who may not have what it was served. That, and what was for a client that went away meanwhile, is given back, which
    /// may serve others.
    fn answers(&mut self) -> (Vec<(Ticket, Answer)>, Vec<Ticket>) {
        let (mut answers, mut denied) = (Vec::new(), Vec::new());
        if self.existing().is_none() {
            return (answers, denied);
        }
        let (ctx, name, now) = (self.ctx, self.name, self.now);
        let (object, journal) = self.parts();
        loop {
            let told = object.answers();
            if told.is_empty() {
                return (answers, denied);
            }
            for (ticket, answer) in told {
                // SAFETY: `name` is live.
                let may_have = || block::may_have(ctx, ticket, unsafe { bytes(name) });
                if !block::waits(ticket) {
                    object.undo(&answer, now, journal);
                } else if !answers::granted(&answer) || may_have() {
                    answers.push((ticket, answer));
                } else {
                    object.undo(&answer, now, journal);
                    denied.push(ticket);
                }
            }
        }
    }

    /// Keyspace events, counts, and who waits for messages.
    fn tell(&self, after: &Counts) {
        let (ctx, name) = (self.ctx, self.name);
        if let Some(event) = self.event {
            // SAFETY: `name` is live.
            unsafe { ctx.notify(event, name) };
        }
        self.count_events(after);
        if self.removed && !self.reaped {
            // SAFETY: `name` is live.
            unsafe { ctx.notify_deleted(name) };
        }
        // Who waits is served once all that is due has happened; until then the timer comes back.
        if O::FAMILY.queue() && self.settled && !self.timed {
            // SAFETY: `name` is live.
            let key = || unsafe { bytes(name) };
            if panicking() { lines::look_again(ctx.db(), key()) } else { lines::changed(ctx, key) }
        }
    }

    fn count_events(&self, after: &Counts) {
        let (ctx, name) = (self.ctx, self.name);
        for (i, event) in O::EVENTS.iter().enumerate() {
            let n = after[i].saturating_sub(self.before[i]);
            if n > 0 {
                stats::event(O::FAMILY, i, n);
                if let Some(event) = event {
                    // SAFETY: `name` is live.
                    unsafe { ctx.notify(event, name) };
                }
            }
        }
    }

    /// Key, TTL, carrying and signal. After it `value` is the object in the key, or null.
    fn commit(&mut self) {
        let now = self.now;
        let lifetime = self.existing().map_or(Lifetime::Gone, |o| o.lifetime(now));
        if lifetime == Lifetime::Gone {
            self.remove();
            return;
        }
        if self.value.is_null() {
            let Some(fresh) = self.fresh.take() else { return };
            match self.handle.put(fresh) {
                Ok(value) => self.value = value,
                Err(fresh) => {
                    self.fresh = Some(fresh);
                    return;
                }
            }
            self.bytes_before = self.memory();
        }
        let expire = self.expire(lifetime);
        let batches = self.journal.take();
        if let Some(ms) = expire {
            // SAFETY: the key is open for writing and holds `value`.
            unsafe { self.handle.expire(self.value, ms) };
        }
        let (ctx, name, argv) = (self.ctx, self.name, self.argv);
        if !batches.is_empty() {
            // SAFETY: by the contract of `new`.
            unsafe { unit::effects(ctx, name, argv, batches, expire) };
        } else if let Some(ms) = expire.filter(|_| propagate::wanted(ctx)) {
            // SAFETY: by the contract of `new`.
            unsafe { unit::expires(ctx, name, argv, O::FAMILY, ms) };
        } else {
            propagate::untold();
        }
        // SAFETY: a live context and string.
        unsafe { rm!(RedisModule_SignalModifiedKey(self.ctx.raw(), self.name)) };
    }

    /// The object says the same as no object: the key goes, if there is one.
    fn remove(&mut self) {
        if self.value.is_null() {
            return;
        }
        // The free hook reckons with the object as it is by now.
        stats::grew(O::FAMILY, self.memory() as i64 - self.bytes_before as i64);
        // SAFETY: the key is open for writing; its unlink hook (types.rs) takes the object out of the registry. The name is live.
        unsafe {
            rm!(RedisModule_DeleteKey(self.handle.0));
            rm!(RedisModule_SignalModifiedKey(self.ctx.raw(), self.name));
            if propagate::wanted(self.ctx) {
                unit::gone(self.ctx, self.name, self.argv);
            } else {
                propagate::untold();
            }
        }
        self.value = std::ptr::null_mut();
        self.removed = true;
    }

    /// The TTL the key must get now: None leaves it, -1 takes it away, else unix ms. Moved only when it is out of bounds: it must cover the
    /// instant from which the object says the same as none, by at most one full drain and a second.
    fn expire(&self, lifetime: Lifetime) -> Option<i64> {
        // SAFETY: `value` is the object in the open key (commit).
        let noted = unsafe { (*self.value).expires_ms };
        match lifetime {
            Lifetime::Until { full, slack } => {
                const FROZEN_FLOOR: i64 = 60_000;
                let (shift, floor) = if clock::frozen() {
                    let wall = clock::wall();
                    (wall.saturating_sub(self.now), wall / MS + FROZEN_FLOOR)
                } else {
                    (0, 0)
                };
                let least = (full.saturating_add(shift).saturating_add(MS - 1) / MS).max(floor);
                let most = full.saturating_add(shift).saturating_add(slack).saturating_add(1_000 * MS) / MS;
                let most = if floor > 0 { most.max(floor.saturating_add(FROZEN_FLOOR)) } else { most };
                let most = most.min(MAX_INSTANT_MS);
                (noted < least.min(most) || noted > most).then_some(most)
            }
            _ => (noted != 0).then_some(-1),
        }
    }
}

impl<O: Object> Drop for Opened<'_, O> {
    fn drop(&mut self) {
        // What was decided has been applied, whatever ends the work on the key. If that is a panic it may have come out of the end itself: it is kept at least.
        let ended = if self.ended { Ok(None) } else { catch_unwind(AssertUnwindSafe(|| self.end())) };
        if !self.kept {
            shield(|| self.keep(), || ());
        }
        match ended {
            Err(panic) if !panicking() => resume_unwind(panic),
            Err(_) => guard::caught(),
            Ok(_) => {}
        }
    }
}

/// Has the timer come when something is due on the object; where it lives is asked for only if it was not known yet.
pub fn schedule<O: Object>(value: &Value<O>, now: Micros, place: impl FnOnce() -> (i32, Box<[u8]>)) {
    schedule_from(value, now, Micros::MIN, place);
}

#[inline]
fn schedule_from<O: Object>(
    value: &Value<O>,
    now: Micros,
    not_before: Micros,
    place: impl FnOnce() -> (i32, Box<[u8]>),
) {
    if let Some(at) = wake(&value.object, now) {
        registry::schedule(O::FAMILY, value.identity(), at.max(not_before), place);
    }
}

/// When the timer must look at an object. While the test clock stands the server's TTLs do not follow it, so the end of an object that goes by itself
/// is an instant of ours; seen from its own last instant, if the clock stepped back behind that.
pub fn wake<O: Object>(object: &O, now: Micros) -> Option<Micros> {
    let event = object.next_event().map(|at| if at == AT_ONCE { now } else { at });
    if !clock::frozen() {
        return event;
    }
    let seen = now.max(object.last_instant());
    match object.lifetime(seen) {
        Lifetime::Until { full, .. } => Some(event.map_or(full, |at| at.min(full))),
        Lifetime::Gone if seen > now => Some(event.map_or(seen, |at| at.min(seen))),
        _ => event,
    }
}
