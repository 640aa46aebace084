//! What one call of the server changes, on its way to replicas and the AOF: gathered while the call runs, handed over as one command at its end.
//!
//! The server wraps several commands of one call into MULTI … EXEC. A power cut inside leaves an open MULTI at the end of the AOF, which swallows all that is
//! written after it. So there is never more than one: the plain `SLUICE.APPLY` (or PERSIST, PEXPIREAT, UNLINK) of one change, or a unit (engine/unit.rs) of several, in
//! whatever databases. Inside a client's own MULTI or script the server's MULTI is the client's.
//!
//! In a cluster a unit keeps to one slot, as who moves slots picks commands of the stream by the slot of their key. A command's keys are in one; what is not
//! bound to a command (the timer) asks [`fits`] before it goes on.
//!
//! Names and payloads that are arguments of the running command are borrowed until its end, which is why each entry hands over what it added itself.

use super::api::{Ctx, OwnedString, RawString, bytes, rm};
use super::guard::shield;
use super::main_thread::MainThread;
use super::slots;
use crate::engine::journal::{Batch, Blob};
use crate::engine::object::Family;
use crate::engine::unit::{self as wire, Part};
use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// One change of one key.
struct Change {
    db: c_int,
    name: RawString,
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
    blobs: Vec<RawString>,
    /// The strings of the above that are ours.
    owned: Vec<OwnedString>,
}

const EMPTY: Gathered = Gathered { changes: Vec::new(), blobs: Vec::new(), owned: Vec::new() };

static GATHERED: MainThread<Gathered> = MainThread::new(EMPTY);

/// Whether anything is gathered. On the main thread only, as [`DEPTH`].
static PENDING: AtomicBool = AtomicBool::new(false);

/// How many calls of the server are running, each inside the one before.
static DEPTH: AtomicU32 = AtomicU32::new(0);

/// A batch is not made longer by the next one when its head has this many bytes.
const LONG: usize = 64 << 10;

/// Runs the body of one call of the server that may change keys, shielded; what it changed is carried, also if it panics.
#[inline]
pub fn run<R>(ctx: Ctx<'_>, body: impl FnOnce() -> R, otherwise: impl FnOnce() -> R) -> R {
    // Somebody else's code called us from within a call of ours: what that one changed so far comes first.
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
    // SAFETY: the names of what is gathered are live.
    let first = GATHERED.with(|g| g.changes.first().map(|c| slots::of(unsafe { bytes(c.name) })));
    first.is_none_or(|slot| slot == slots::of(key))
}

/// Adds effects on a key, and the TTL it gets with them.
///
/// # Safety
/// `name` is a live string; if there are `argv`, they are the arguments of the running command, live until it ends, and the name is one of them.
pub unsafe fn effects(
    ctx: Ctx<'_>,
    name: RawString,
    argv: &[RawString],
    batches: Vec<Batch>,
    expire: Option<i64>,
) {
    let db = ctx.db();
    let last = batches.len().saturating_sub(1);
    GATHERED.with(|g| {
        for (i, batch) in batches.into_iter().enumerate() {
            let expire = if i == last { expire.unwrap_or(0) } else { 0 };
            let begin = g.blobs.len();
            g.blobs.reserve(batch.blobs.len());
            for blob in batch.blobs {
                match blob {
                    Blob::Arg(i) => g.blobs.extend(argv.get(i)),
                    Blob::Bytes(b) => {
                        let own = OwnedString::new(&b);
                        g.blobs.push(own.raw());
                        g.owned.push(own);
                    }
                }
            }
            let blobs = begin..g.blobs.len();
            // SAFETY: passed on.
            unsafe { g.effects(db, name, argv, batch.head, blobs, expire) };
        }
    });
    added(ctx);
}

/// The key of a family gets another TTL (unix ms), or loses it (-1), and nothing else.
///
/// # Safety
/// As [`effects`].
pub unsafe fn expires(ctx: Ctx<'_>, name: RawString, argv: &[RawString], family: Family, at: i64) {
    // SAFETY: passed on.
    GATHERED.with(|g| unsafe { g.add(ctx.db(), name, argv, What::Expires { family, at }) });
    added(ctx);
}

/// The key is gone.
///
/// # Safety
/// As [`effects`].
pub unsafe fn gone(ctx: Ctx<'_>, name: RawString, argv: &[RawString]) {
    // SAFETY: passed on.
    GATHERED.with(|g| unsafe { g.add(ctx.db(), name, argv, What::Gone) });
    added(ctx);
}

/// The server found that the time of this key is over, and has told everybody that it is gone: before what we have still to say of it. That is not said any more: it is
/// for what is gone by then, and on a missing key it may make no sense, so that no file with it could be loaded.
///
/// # Safety
/// `name` is a live string.
#[cold]
pub unsafe fn found_missing(ctx: Ctx<'_>, name: RawString) {
    let db = ctx.db();
    GATHERED.with(|g| {
        // SAFETY: live strings.
        let of_it = |c: &Change| c.db == db && unsafe { same(c.name, name) };
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

/// Whether two names are the same.
///
/// # Safety
/// Both are live strings.
unsafe fn same(one: RawString, other: RawString) -> bool {
    // SAFETY: by the contract.
    std::ptr::eq(one, other) || unsafe { bytes(one) == bytes(other) }
}

impl Gathered {
    /// # Safety
    /// As [`effects`]; `blobs` are the last of [`Gathered::blobs`].
    unsafe fn effects(
        &mut self,
        db: c_int,
        name: RawString,
        argv: &[RawString],
        head: Vec<u8>,
        blobs: Range<usize>,
        expire: i64,
    ) {
        // A push and what is claimed from it: one batch of the same queue.
        if let Some(Change { db: d, name: n, what: What::Effects { expire: e, head: h, blobs: b } }) =
            self.changes.last_mut()
            && *d == db
            && h.len().saturating_add(head.len()) < LONG
            && h.get(..2) == head.get(..2)
            && b.end == blobs.start
            // SAFETY: live strings.
            && unsafe { same(*n, name) }
        {
            h.extend_from_slice(head.get(2..).unwrap_or_default());
            b.end = blobs.end;
            if expire != 0 {
                *e = expire;
            }
            return;
        }
        // SAFETY: passed on.
        unsafe { self.add(db, name, argv, What::Effects { expire, head, blobs }) };
    }

    /// # Safety
    /// As [`effects`].
    unsafe fn add(&mut self, db: c_int, name: RawString, argv: &[RawString], what: What) {
        let name = if argv.is_empty() {
            // SAFETY: a live string.
            let own = OwnedString::new(unsafe { bytes(name) });
            let raw = own.raw();
            self.owned.push(own);
            raw
        } else {
            name
        };
        self.changes.push(Change { db, name, what });
    }

    /// Ready for the next call; what is usual keeps its room.
    fn clear(&mut self) {
        const USUAL: usize = 1024;
        self.changes.clear();
        self.blobs.clear();
        self.owned.clear();
        if self.changes.capacity().max(self.blobs.capacity()).max(self.owned.capacity()) > USUAL {
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
        // SAFETY: the names of what is gathered are live.
        let slot = if cluster { slots::of(unsafe { bytes(change.name) }) } else { 0 };
        match units.iter_mut().find(|(s, _)| *s == slot) {
            Some((_, unit)) => unit.push(change),
            None => units.push((slot, vec![change])),
        }
    }
    units.into_iter().map(|(_, unit)| unit).collect()
}

/// One change, in the database of the context.
fn hand_over_one(ctx: Ctx<'_>, change: &Change, blobs: &mut [RawString]) {
    let name = change.name;
    // SAFETY: a live context; the formats name in order live strings, integers, a buffer with its length and a vector of live
    // strings with its length; the server copies or retains what it keeps.
    unsafe {
        match &change.what {
            What::Effects { expire, head, blobs: range } => {
                let blobs = blobs.get_mut(range.clone()).unwrap_or_default();
                rm!(RedisModule_Replicate(
                    ctx.raw(),
                    c"SLUICE.APPLY".as_ptr(),
                    c"slbv".as_ptr(),
                    name,
                    *expire,
                    head.as_ptr(),
                    head.len(),
                    blobs.as_mut_ptr(),
                    blobs.len()
                ));
            }
            What::Expires { at, .. } if *at < 0 => {
                rm!(RedisModule_Replicate(ctx.raw(), c"PERSIST".as_ptr(), c"s".as_ptr(), name));
            }
            What::Expires { at, .. } => {
                rm!(RedisModule_Replicate(ctx.raw(), c"PEXPIREAT".as_ptr(), c"sl".as_ptr(), name, *at));
            }
            What::Gone => {
                rm!(RedisModule_Replicate(ctx.raw(), c"UNLINK".as_ptr(), c"s".as_ptr(), name));
            }
        }
    }
}

/// Several changes as one command; the context has the database of the first.
fn hand_over_unit(ctx: Ctx<'_>, changes: &[&Change], blobs: &[RawString]) {
    let Some(first) = changes.first() else { return };
    let (mut db, mut name) = (first.db, first.name);
    let mut head = wire::head();
    let (mut arguments, mut heads): (Vec<RawString>, Vec<OwnedString>) = (Vec::new(), Vec::new());
    for change in changes {
        let elsewhere = change.db != db;
        if elsewhere {
            db = change.db;
            wire::add(&Part::Database(db.unsigned_abs()), &mut head);
        }
        // SAFETY: live strings.
        if elsewhere || !unsafe { same(name, change.name) } {
            name = change.name;
            wire::add(&Part::Key, &mut head);
            arguments.push(name);
        }
        let part = match &change.what {
            What::Effects { expire, head, blobs: range } => {
                let own = OwnedString::new(head);
                arguments.push(own.raw());
                heads.push(own);
                let blobs = blobs.get(range.clone()).unwrap_or_default();
                arguments.extend_from_slice(blobs);
                Part::Effects { expire: *expire, blobs: blobs.len() as u64 }
            }
            What::Expires { family, at } => Part::Expires { family: *family as u8, at: *at },
            What::Gone => Part::Gone,
        };
        wire::add(&part, &mut head);
    }
    // SAFETY: as in `hand_over_one`.
    unsafe {
        rm!(RedisModule_Replicate(
            ctx.raw(),
            c"SLUICE.APPLY".as_ptr(),
            c"slbv".as_ptr(),
            first.name,
            0_i64,
            head.as_ptr(),
            head.len(),
            arguments.as_mut_ptr(),
            arguments.len()
        ));
    }
}
