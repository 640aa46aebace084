//! What one call of the server changes, on its way to replicas and the AOF: gathered while the call
//! runs, handed over as one command at its end.
//!
//! The server wraps several commands of one call into MULTI … EXEC. A power cut inside leaves an
//! open MULTI at the end of the AOF, which swallows all that is written after it. So there is never
//! more than one: the plain `SLUICE.APPLY` (or PERSIST, PEXPIREAT, UNLINK) of one change, or a unit
//! (engine/unit.rs) of several, in whatever databases. Inside a client's own MULTI or script the
//! server's MULTI is the client's.
//!
//! In a cluster a unit keeps to one slot, as who moves slots picks commands of the stream by the
//! slot of their key. A command's keys are in one; what is not bound to a command (the timer) asks
//! [`fits`] before it goes on.
//!
//! Names and payloads that are arguments of the running command are kept alive, not copied.

use crate::engine::family::Family;
use crate::engine::journal::{Batch, Blob};
use crate::engine::unit::{self as wire, Part};
use crate::server::cluster::slots;
use crate::server::ffi::context::Ctx;
use crate::server::ffi::guard::shield;
use crate::server::ffi::main_thread::MainThread;
use crate::server::ffi::replicate;
use crate::server::ffi::strings::{OwnedString, Str};
use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// One change of one key.
struct Change {
    db: c_int,
    name: OwnedString,
    what: What,
}

enum What {
    /// A batch; its payloads are this range of [`Gathered::blobs`]. The TTL as in `SLUICE.APPLY`.
    Effects {
        expire: i64,
        head: Vec<u8>,
        blobs: Range<usize>,
    },
    /// Nothing but the TTL.
    Expires {
        family: Family,
        at: i64,
    },
    Gone,
}

struct Gathered {
    changes: Vec<Change>,
    blobs: Vec<OwnedString>,
}

const EMPTY: Gathered = Gathered { changes: Vec::new(), blobs: Vec::new() };

static GATHERED: MainThread<Gathered> = MainThread::new(EMPTY);

/// Whether anything is gathered. On the main thread only, as [`DEPTH`].
static PENDING: AtomicBool = AtomicBool::new(false);

/// How many calls of the server are running, each inside the one before.
static DEPTH: AtomicU32 = AtomicU32::new(0);

/// A batch is not made longer by the next one when its head has this many bytes.
const LONG: usize = 64 << 10;

/// Runs the body of one call of the server that may change keys, shielded; what it changed is
/// carried, also if it panics.
#[inline]
pub fn run<R>(ctx: Ctx<'_>, body: impl FnOnce() -> R, otherwise: impl FnOnce() -> R) -> R {
    // Somebody else's code called us from within a call of ours: what that one changed so far comes
    // first.
    flush(ctx);
    let depth = DEPTH.load(Ordering::Relaxed);
    DEPTH.store(depth + 1, Ordering::Relaxed);
    let result = shield(body, otherwise);
    DEPTH.store(depth, Ordering::Relaxed);
    flush(ctx);
    result
}

/// Whether anything is waiting to be carried.
#[inline]
pub fn pending() -> bool {
    PENDING.load(Ordering::Relaxed)
}

/// Hands over what was gathered so far.
#[inline]
pub fn flush(ctx: Ctx<'_>) {
    if pending() {
        shield(|| hand_over(ctx), || ());
    }
}

/// Whether a change of this key can be carried with what is gathered already.
pub fn fits(ctx: Ctx<'_>, key: &[u8]) -> bool {
    if !pending() || !ctx.flags().cluster() {
        return true;
    }
    let first = GATHERED.with(|g| g.changes.first().map(|c| slots::of(c.name.bytes())));
    first.is_none_or(|slot| slot == slots::of(key))
}

/// Adds effects on a key, and the TTL it gets with them. `argv`: the arguments of the running
/// command, which payloads may refer to.
pub fn effects(ctx: Ctx<'_>, name: Str<'_>, argv: &[Str<'_>], batches: Vec<Batch>, expire: Option<i64>) {
    let db = ctx.db();
    let last = batches.len().saturating_sub(1);
    GATHERED.with(|g| {
        for (i, batch) in batches.into_iter().enumerate() {
            let expire = if i == last { expire.unwrap_or(0) } else { 0 };
            let begin = g.blobs.len();
            g.blobs.reserve(batch.blobs.len());
            for blob in batch.blobs {
                match blob {
                    Blob::Arg(i) => g.blobs.extend(argv.get(i).map(|arg| OwnedString::keep(*arg))),
                    Blob::Bytes(b) => g.blobs.push(OwnedString::new(&b)),
                }
            }
            let blobs = begin..g.blobs.len();
            g.effects(db, name, batch.head, blobs, expire);
        }
    });
    added(ctx);
}

/// The key of a family gets another TTL (unix ms), or loses it (-1), and nothing else.
pub fn expires(ctx: Ctx<'_>, name: Str<'_>, family: Family, at: i64) {
    GATHERED.with(|g| g.add(ctx.db(), name, What::Expires { family, at }));
    added(ctx);
}

/// The key is gone.
pub fn gone(ctx: Ctx<'_>, name: Str<'_>) {
    GATHERED.with(|g| g.add(ctx.db(), name, What::Gone));
    added(ctx);
}

/// The server found that the time of this key is over, and has told everybody that it is gone:
/// before what we have still to say of it. That is not said any more: it is for what is gone by
/// then, and on a missing key it may make no sense, so that no file with it could be loaded.
#[cold]
pub fn found_missing(ctx: Ctx<'_>, name: Str<'_>) {
    let db = ctx.db();
    GATHERED.with(|g| {
        let of_it = |c: &Change| c.db == db && same(c.name.as_str(), name);
        // If it was us who deleted it, the server has told nobody.
        if g.changes.iter().rev().find(|c| of_it(c)).is_some_and(|c| !matches!(c.what, What::Gone)) {
            g.changes.retain(|c| !of_it(c));
        }
    });
}

#[inline]
fn added(ctx: Ctx<'_>) {
    PENDING.store(true, Ordering::Relaxed);
    if DEPTH.load(Ordering::Relaxed) == 0 {
        flush(ctx);
    }
}

fn same(one: Str<'_>, other: Str<'_>) -> bool {
    one.is(other) || one.bytes() == other.bytes()
}

impl Gathered {
    /// `blobs` are the last of [`Gathered::blobs`].
    fn effects(&mut self, db: c_int, name: Str<'_>, head: Vec<u8>, blobs: Range<usize>, expire: i64) {
        // A push and what is claimed from it: one batch of the same queue.
        if let Some(Change { db: d, name: n, what: What::Effects { expire: e, head: h, blobs: b } }) =
            self.changes.last_mut()
            && *d == db
            && h.len().saturating_add(head.len()) < LONG
            && h.get(..2) == head.get(..2)
            && b.end == blobs.start
            && same(n.as_str(), name)
        {
            h.extend_from_slice(head.get(2..).unwrap_or_default());
            b.end = blobs.end;
            if expire != 0 {
                *e = expire;
            }
            return;
        }
        self.add(db, name, What::Effects { expire, head, blobs });
    }

    fn add(&mut self, db: c_int, name: Str<'_>, what: What) {
        self.changes.push(Change { db, name: OwnedString::keep(name), what });
    }

    /// Ready for the next call; what is usual keeps its room.
    fn clear(&mut self) {
        const USUAL: usize = 1024;
        self.changes.clear();
        self.blobs.clear();
        if self.changes.capacity().max(self.blobs.capacity()) > USUAL {
            *self = EMPTY;
        }
    }
}

fn hand_over(ctx: Ctx<'_>) {
    PENDING.store(false, Ordering::Relaxed);
    // No code of others runs meanwhile.
    GATHERED.with(|g| {
        let emptied = Emptied(g);
        let Gathered { changes, blobs, .. } = &mut *emptied.0;
        if let [change] = &changes[..] {
            ctx.in_db(change.db, || hand_over_one(ctx, change, blobs));
        } else {
            for unit in units(ctx, changes) {
                let db = unit.first().map_or(0, |c| c.db);
                ctx.in_db(db, || hand_over_unit(ctx, &unit, blobs));
            }
        }
    });
}

/// Is empty in the end, so that a panic on the way is not met again and again.
struct Emptied<'g>(&'g mut Gathered);

impl Drop for Emptied<'_> {
    fn drop(&mut self) {
        self.0.clear();
    }
}

/// What goes together: all, but in a cluster what is of one slot.
fn units<'g>(ctx: Ctx<'_>, changes: &'g [Change]) -> Vec<Vec<&'g Change>> {
    let cluster = ctx.flags().cluster();
    let mut units: Vec<(u16, Vec<&Change>)> = Vec::new();
    for change in changes {
        let slot = if cluster { slots::of(change.name.bytes()) } else { 0 };
        match units.iter_mut().find(|(s, _)| *s == slot) {
            Some((_, unit)) => unit.push(change),
            None => units.push((slot, vec![change])),
        }
    }
    units.into_iter().map(|(_, unit)| unit).collect()
}

/// One change, in the database of the context.
fn hand_over_one(ctx: Ctx<'_>, change: &Change, blobs: &[OwnedString]) {
    let name = change.name.as_str();
    match &change.what {
        What::Effects { expire, head, blobs: range } => {
            replicate::apply(ctx, name, *expire, head, part(blobs, range));
        }
        What::Expires { at, .. } => replicate::expire(ctx, name, *at),
        What::Gone => replicate::unlink(ctx, name),
    }
}

fn part<'b>(blobs: &'b [OwnedString], range: &Range<usize>) -> &'b [Str<'b>] {
    OwnedString::as_strs(blobs.get(range.clone()).unwrap_or_default())
}

/// Several changes as one command; the context has the database of the first.
fn hand_over_unit(ctx: Ctx<'_>, changes: &[&Change], blobs: &[OwnedString]) {
    let Some(first) = changes.first() else { return };
    let heads: Vec<Option<OwnedString>> = changes.iter().map(|change| change.what.head()).collect();
    let (mut db, mut name) = (first.db, first.name.as_str());
    let (mut head, mut arguments) = (wire::head(), Vec::<Str<'_>>::new());
    for (change, own) in changes.iter().zip(&heads) {
        let elsewhere = change.db != db;
        if elsewhere {
            db = change.db;
            wire::add(&Part::Database(db.unsigned_abs()), &mut head);
        }
        if elsewhere || !same(name, change.name.as_str()) {
            name = change.name.as_str();
            wire::add(&Part::Key, &mut head);
            arguments.push(name);
        }
        let part = match &change.what {
            What::Effects { expire, blobs: range, .. } => {
                let blobs = part(blobs, range);
                arguments.extend(own.as_ref().map(OwnedString::as_str));
                arguments.extend_from_slice(blobs);
                Part::Effects { expire: *expire, blobs: blobs.len() as u64 }
            }
            What::Expires { family, at } => Part::Expires { family: *family as u8, at: *at },
            What::Gone => Part::Gone,
        };
        wire::add(&part, &mut head);
    }
    replicate::apply(ctx, first.name.as_str(), 0, &head, &arguments);
}

impl What {
    /// The head of a batch as a string of the server.
    fn head(&self) -> Option<OwnedString> {
        match self {
            Self::Effects { head, .. } => Some(OwnedString::new(head)),
            Self::Expires { .. } | Self::Gone => None,
        }
    }
}
