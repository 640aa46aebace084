//! Whether effects have to be carried at all.
//!
//! Handing a command to replicas and the AOF costs as much as deciding it, also when nobody
//! listens. So we keep a conservative answer to "does anybody listen?": replicas (attached,
//! attaching, or able to resume from a backlog), an AOF, or a child that was forked and whose
//! parent must now keep what happens after. `Unknown` and `Yes` both carry.
//!
//! - A replica that attaches makes the server fork or resume from a backlog. A backlog counts as
//!   listening; a fork fires an event in the parent before any further command is run. So no effect
//!   after the snapshot is missed.
//! - `CONFIG SET appendonly yes` forks as well.
//! - Another node that slots are exported to listens from the start of the export to its end
//!   (cluster/migration.rs).
//! - `No` is only concluded on the main thread, when nothing forked is running and the server
//!   itself reports no replica, no backlog and no AOF.
//!
//! What is not carried still has to count as a change for the server's save points: it is added up
//! here and handed over by the cron.

use crate::server::cluster::migration;
use crate::server::ffi::context::{Ctx, replicas_paused};
use crate::server::ffi::replicate;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

static LISTENING: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Changes not carried and not yet told to the server's count of changes.
static UNTOLD: AtomicU64 = AtomicU64::new(0);

/// Whether effects made now must be carried.
#[inline]
pub fn wanted(ctx: Ctx<'_>) -> bool {
    match LISTENING.load(Ordering::Relaxed) {
        NO => false,
        YES => true,
        _ => evaluate(ctx),
    }
}

/// Asks the server. Anything it does not tell counts as listening.
#[cold]
fn evaluate(ctx: Ctx<'_>) -> bool {
    let flags = ctx.flags();
    let silent = !migration::exports()
        && !flags.aof()
        && !flags.child_running()
        && flags.master()
        && ctx.info_field(c"replication", c"connected_slaves") == Some(0)
        && ctx.info_field(c"replication", c"repl_backlog_active") == Some(0)
        && ctx.info_field(c"persistence", c"aof_enabled") == Some(0);
    LISTENING.store(if silent { NO } else { YES }, Ordering::Relaxed);
    !silent
}

/// A fork was born or a replica came: from now on somebody listens.
pub fn somebody_listens() {
    LISTENING.store(YES, Ordering::Relaxed);
}

/// Something ended or changed that may have been the reason to listen: asked anew at the next
/// change.
pub fn reconsider() {
    LISTENING.store(UNKNOWN, Ordering::Relaxed);
}

/// Counts a change that is not carried.
#[inline]
pub fn untold() {
    // Changes are made on the main thread only: no locked add is needed.
    UNTOLD.store(UNTOLD.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// Tells the server about changes that were not carried, so that its `save` points fire, if it has
/// any: a propagation to nobody ("AR") only raises the server's count. Bounded a call; the rest
/// follows with the next cron, but for what no save point would ask for.
pub fn tell(ctx: Ctx<'_>) {
    /// Ten thousand changes a second at the usual ten crons a second.
    const MOST_A_CRON: u64 = 1_000;
    const MOST_OWED: u64 = 1_000_000;
    let owed = UNTOLD.load(Ordering::Relaxed).min(MOST_OWED);
    if owed == 0 || replicas_paused() {
        return;
    }
    if !ctx.flags().save_points() {
        UNTOLD.store(0, Ordering::Relaxed);
        return;
    }
    let n = owed.min(MOST_A_CRON);
    UNTOLD.store(owed - n, Ordering::Relaxed);
    (0..n).for_each(|_| replicate::count_change(ctx));
}
