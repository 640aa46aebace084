//! What the server asks of the object in a key, whatever its family.

use super::codec::{Corrupt, FORMAT, Reader};
use super::family::Family;
use super::fencing::FencingCounter;
use super::journal::Journal;
use super::shared::waiting::{Answer, Ticket};
use super::time::Micros;
use std::ffi::CStr;

/// The instant of what is due without having one.
pub const AT_ONCE: Micros = 0;

/// How long the key of an object has to live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// Until somebody deletes it.
    Forever,
    /// The object says the same as no object from instant `full` on; it must live until then and
    /// may live `slack` longer.
    Until { full: Micros, slack: Micros },
    /// It already says the same as no object: the key goes at once.
    Gone,
}

/// The state in a key. It is changed by [`Object::apply`] and by nothing else; what is not state
/// (who waits, counts since the module was loaded) stays out of effects, snapshots and digests.
pub trait Object: Sized + Send + 'static {
    const FAMILY: Family;

    /// What is counted of the family's objects (see [`Object::counts`]): the keyspace event that
    /// each emits, if any; first what makes room for what follows. At most 8.
    const EVENTS: &'static [Option<&'static CStr>] = &[];

    /// One absolute change, decoded and checked against the object it is for.
    type Effect;

    /// The object that `SLUICE.APPLY` and a load begin with on a missing key.
    fn blank() -> Self;

    /// Makes the change. Cannot fail.
    fn apply(&mut self, effect: Self::Effect);

    /// Reads the next effect for `self` from bytes nobody vouches for, with the payloads it
    /// consumes, and checks that applying it is sound: what it is applied to can be stored and
    /// loaded as before. Raises `fencing`, which only gathers, by every number it brings.
    fn read(
        &self,
        input: &mut Reader<'_>,
        blobs: &mut dyn Iterator<Item = Box<[u8]>>,
        fencing: &mut FencingCounter,
    ) -> Result<Self::Effect, Corrupt>;

    /// Whether the object makes sense as a whole: asked once after the last effect of a load. A
    /// blank one does, and so does one of which each effect was sound by itself, if nothing of it
    /// is said twice.
    fn check(&self) -> Result<(), Corrupt> {
        Ok(())
    }

    /// Whether it is a snapshot of which more is to come; until then it need not make sense as a
    /// whole, and nothing else is read.
    fn is_partial(&self) -> bool {
        false
    }

    /// The whole state as effects on a blank object: recorded into `journal` piece by piece;
    /// `flush` is called now and then so that the journal stays small. The same state gives the
    /// same effects, byte for byte.
    fn snapshot(&self, journal: &mut Journal, flush: &mut dyn FnMut(&mut Journal));

    /// The earliest instant at which [`Object::apply_due`] has something to do; [`AT_ONCE`]: now,
    /// whenever that is; None: never. Cheap.
    fn next_event(&self) -> Option<Micros>;

    /// Whether the clock stepped back behind a level of the object's, which [`Object::apply_due`]
    /// then cuts.
    fn is_ahead(&self, now: Micros) -> bool {
        let _ = now;
        false
    }

    /// The instant as of which the object was last changed, if time changes it by itself; else the
    /// earliest there is.
    fn last_instant(&self) -> Micros {
        Micros::MIN
    }

    /// Applies what is due at `now`, in time order, at most about `most` steps; true when nothing
    /// due is left.
    fn apply_due(&mut self, now: Micros, most: usize, journal: &mut Journal) -> bool;

    /// Does so much of what [`Object::apply_due`] has left as decisions at `now` rest on, whatever
    /// it is: no more than grows with the clients that wait.
    fn catch_up(&mut self, now: Micros, journal: &mut Journal) {
        let _ = (now, journal);
    }

    /// Those who waited on the object and can be answered now, in order, at most `most`; each is
    /// forgotten by being told. While some are left [`Object::next_event`] is [`AT_ONCE`].
    fn answers(&mut self, most: usize) -> Vec<(Ticket, Answer)> {
        let _ = most;
        Vec::new()
    }

    /// A waiting client went away: what it had booked is given back.
    fn depart(&mut self, ticket: Ticket, now: Micros, journal: &mut Journal) {
        let _ = (ticket, now, journal);
    }

    /// A waiting client went away where nothing may be decided: it is taken out of the line, and
    /// what it had booked stays booked.
    fn forget(&mut self, ticket: Ticket) {
        let _ = ticket;
    }

    /// An answer that reached nobody, as its client had gone before: what it gave goes back.
    fn undo(&mut self, answer: &Answer, now: Micros, journal: &mut Journal) {
        let _ = (answer, now, journal);
    }

    /// How often each of [`Object::EVENTS`] has happened so far, in that order; numbers only rise.
    fn counts(&self, into: &mut [u64]) {
        let _ = into;
    }

    /// The keyspace event that a change is told by where it is not decided but applied, unless
    /// [`Object::counts`] tells it; asked before it is made.
    fn event(&self, effect: &Self::Effect, now: Micros) -> Option<&'static CStr> {
        let _ = (effect, now);
        None
    }

    /// How many clients wait on it.
    fn waiting(&self) -> usize {
        0
    }

    /// Takes all who wait, in order, with what each is to be told if the object is gone (None: its
    /// command is decided anew).
    fn orphans(&mut self) -> Vec<(Ticket, Option<Answer>)> {
        Vec::new()
    }

    /// How long the key has to live, seen at `now`.
    fn lifetime(&self, now: Micros) -> Lifetime;

    /// Bytes on the heap and in the object itself. Cheap.
    fn memory(&self) -> usize;

    /// How many allocations freeing it takes, roughly: large ones are freed in the background.
    fn effort(&self) -> usize;

    /// Hands large blocks to `relocate`, which may move them to denser memory, from `cursor` on
    /// until `stop` says so. The cursor to go on with, or None when all was seen.
    fn defrag(
        &mut self,
        cursor: u64,
        relocate: &mut dyn FnMut(Box<[u8]>) -> Box<[u8]>,
        stop: &mut dyn FnMut() -> bool,
    ) -> Option<u64> {
        let _ = (cursor, relocate, stop);
        None
    }

    /// An equal object for `COPY`: the state, without what is not state.
    fn duplicate(&self) -> Self;
}

/// Applies a carried batch (`[FORMAT, family, effect …]`) to an object and gathers its numbers in
/// `fencing`. An error may leave the earlier effects of the batch applied; the object is sound all
/// the same.
pub fn apply_batch<O: Object>(
    object: &mut O,
    head: &[u8],
    blobs: &mut dyn Iterator<Item = Box<[u8]>>,
    fencing: &mut FencingCounter,
) -> Result<(), Corrupt> {
    apply_each(object, head, blobs, fencing, &mut |_, _| ())
}

/// The same; `look` sees each effect and what it will be applied to.
pub fn apply_each<O: Object>(
    object: &mut O,
    head: &[u8],
    blobs: &mut dyn Iterator<Item = Box<[u8]>>,
    fencing: &mut FencingCounter,
    look: &mut dyn FnMut(&O, &O::Effect),
) -> Result<(), Corrupt> {
    let mut input = begin::<O>(head)?;
    while !input.is_empty() {
        let effect = read_next(object, &mut input, blobs, fencing)?;
        look(object, &effect);
        object.apply(effect);
    }
    Ok(())
}

/// The same all or nothing. An object is copied only if the batch has more than one effect: one
/// that was read can be applied.
pub fn apply_whole<O: Object>(
    object: &mut O,
    head: &[u8],
    blobs: &dyn Fn() -> Vec<Box<[u8]>>,
    fencing: &mut FencingCounter,
) -> Result<(), Corrupt> {
    let mut input = begin::<O>(head)?;
    let effect = read_next(object, &mut input, &mut blobs().into_iter(), fencing)?;
    if input.is_empty() {
        object.apply(effect);
        return Ok(());
    }
    let most = fencing.most();
    apply_batch(&mut object.duplicate(), head, &mut blobs().into_iter(), &mut FencingCounter::gather(most))?;
    apply_batch(object, head, &mut blobs().into_iter(), fencing)
}

fn read_next<O: Object>(
    object: &O,
    input: &mut Reader<'_>,
    blobs: &mut dyn Iterator<Item = Box<[u8]>>,
    fencing: &mut FencingCounter,
) -> Result<O::Effect, Corrupt> {
    // By itself: of a batch that breaks off the numbers of what was applied count, and no others.
    let mut brought = FencingCounter::gather(fencing.most());
    let effect = object.read(input, blobs, &mut brought)?;
    if !brought.is_near() {
        return Err(Corrupt("a number far ahead of the clock"));
    }
    fencing.raise(brought.last());
    Ok(effect)
}

/// The effects of a batch for this family.
fn begin<O: Object>(head: &[u8]) -> Result<Reader<'_>, Corrupt> {
    let mut input = Reader::new(head);
    if input.byte()? != FORMAT {
        return Err(Corrupt("unknown format version"));
    }
    if input.byte()? != O::FAMILY as u8 {
        return Err(Corrupt("another family's effect"));
    }
    if input.is_empty() {
        return Err(Corrupt("empty batch"));
    }
    Ok(input)
}
