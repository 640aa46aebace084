//! The server's counter of fencing numbers, kept over what is lost: as data of its own in RDB
//! files, before all keys, and as `SLUICE.FENCE last at` in the AOF and for replicas. Keys carry
//! the numbers they have seen; this one also knows of those whose keys are gone.
//!
//! What is kept is a [`Mark`]: the counter, and the clock then. So it need not be kept with each
//! number: it is told when the counter gets further ahead of the clock than was told (a load, a
//! promotion, a clock that stepped back, a key from elsewhere), when it is not any more, and after
//! each fork, as a file that is written anew may begin without it. By the cron, alone: so it is
//! never part of a transaction.

use super::listeners;
use super::trust::{self, Word};
use crate::engine::fencing::{FencingCounter, MAX_FENCE, Mark};
use crate::engine::time::{MAX_INSTANT, Micros};
use crate::server::cluster::migration;
use crate::server::config;
use crate::server::error::Error;
use crate::server::ffi::context::Ctx;
use crate::server::ffi::data_type::Aux;
use crate::server::ffi::main_thread::MainThread;
use crate::server::ffi::rdb::{Reader, Writer};
use crate::server::ffi::replicate;
use crate::server::time::clock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The counter itself.
static FENCING: MainThread<FencingCounter> = MainThread::new(FencingCounter::new());

/// What was last heard of the counter that is gone on with: from a file, or from the master.
static HEARD: MainThread<Option<Mark>> = MainThread::new(None);

/// How far ahead of the clock the counter is at most, as was told.
static TOLD: AtomicU64 = AtomicU64::new(0);
static DUE: AtomicBool = AtomicBool::new(false);

/// Less is not worth telling: it is within the margin by far.
const SLACK: u64 = 10_000;

/// Lends the counter of claim numbers, receipts and holds.
#[inline]
pub fn with_fencing<R>(f: impl FnOnce(&mut FencingCounter) -> R) -> R {
    FENCING.with(f)
}

/// Draws one number.
pub fn draw(now: Micros) -> u64 {
    with_fencing(|f| f.draw(now))
}

/// Numbers up to this one are taken: somebody has brought them.
pub fn raise(to: u64) {
    with_fencing(|f| f.raise(to));
}

/// For the numbers that are brought: none may be larger than this word allows.
pub fn gather(word: Word) -> FencingCounter {
    FencingCounter::gather(match word {
        Word::Master => MAX_FENCE,
        Word::Client => with_fencing(|f| f.most_of_client(clock::now())),
    })
}

fn mark() -> Mark {
    let now = clock::now();
    with_fencing(|f| f.mark(now))
}

/// A mark was loaded, or came from the master.
fn hear(mark: Mark) {
    raise(mark.last);
    HEARD.with(|heard| *heard = Some(mark));
    TOLD.store(mark.lead(), Ordering::Relaxed);
}

/// This server is the one that draws from now on: after a load, and at promotion.
pub fn resume() {
    let heard = HEARD.with(Option::take);
    with_fencing(|f| f.resume(heard, clock::now()));
    tell_again();
}

/// The mark is told with the next cron, whatever was told.
pub fn tell_again() {
    DUE.store(true, Ordering::Relaxed);
}

/// Tells replicas and the AOF where the counter stands, if need be; true if it did. Called by the
/// cron.
pub fn tell(ctx: Ctx<'_>) -> bool {
    let mark = mark();
    let (lead, told) = (mark.lead(), TOLD.load(Ordering::Relaxed));
    let moved = lead > told.saturating_add(SLACK) || told > SLACK && lead <= told / 2;
    if mark.last == 0 {
        // There is nothing to tell, and what is drawn from here on is not ahead.
        DUE.store(false, Ordering::Relaxed);
        return false;
    }
    // Valkey 9.1 may take a command without keys, told while slots are exported, for one of several
    // slots, and then ends the export: it waits. The numbers that were drawn go with their keys in
    // any case.
    if !(moved || DUE.load(Ordering::Relaxed)) || !ctx.decides() || migration::exports() {
        return false;
    }
    TOLD.store(lead, Ordering::Relaxed);
    DUE.store(false, Ordering::Relaxed);
    if !config::keep_numbers() || !listeners::wanted(ctx) {
        // Whoever comes to listen is told by the fork that it takes.
        return false;
    }
    let Ok(last) = i64::try_from(mark.last) else { return false };
    replicate::fence(ctx, last, mark.at);
    true
}

/// `SLUICE.FENCE last at`.
pub fn apply(ctx: Ctx<'_>, last: u64, at: Micros) -> Result<(), Error> {
    let word = trust::may_apply(ctx)?;
    if last > gather(word).most() {
        return Err(Error::new("ERR SLUICE.FENCE: a number far ahead of the clock"));
    }
    match word {
        Word::Master => hear(Mark { last, at }),
        // Its numbers are taken, but how far ahead it was says nothing of the counter here.
        Word::Client => raise(last),
    }
    replicate::verbatim(ctx);
    Ok(())
}

// ---------------------------------------------------------------- RDB

/// Kinds of what is saved: nothing, or a mark.
const NOTHING: u64 = 0;
const MARK: u64 = 1;

/// What there is to save.
fn to_save() -> Option<Mark> {
    Some(mark()).filter(|m| m.last > 0 && config::keep_numbers())
}

fn write(out: &Writer, mark: Mark) {
    out.unsigned(MARK);
    out.unsigned(mark.last);
    out.unsigned(u64::try_from(mark.at).unwrap_or(0));
}

/// The counter in files.
pub struct InFiles;

impl Aux for InFiles {
    /// A file without numbers needs no module.
    fn save(out: &Writer) {
        to_save().into_iter().for_each(|mark| write(out, mark));
    }

    /// Redis 7.0.
    fn save_always(out: &Writer) {
        match to_save() {
            Some(mark) => write(out, mark),
            None => out.unsigned(NOTHING),
        }
    }

    /// Anything wrong refuses the file.
    fn load(input: &Reader) -> bool {
        match input.unsigned() {
            Some(NOTHING) => true,
            Some(MARK) => {
                let last = input.unsigned().filter(|n| (1..=MAX_FENCE).contains(n));
                let at = input.unsigned().and_then(|n| Micros::try_from(n).ok());
                let (Some(last), Some(at)) = (last, at.filter(|at| *at <= MAX_INSTANT)) else { return false };
                hear(Mark { last, at });
                true
            }
            _ => false,
        }
    }
}
