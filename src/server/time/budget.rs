//! How much of what is due and put off one call of the server does: at most
//! `sluice.due-per-command` things under one command, whatever keys it opens. The timer does the
//! rest (work/timer.rs).

use crate::server::config;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What the running call may still do. On the main thread only.
static LEFT: AtomicUsize = AtomicUsize::new(1);

/// A call of the server begins.
#[inline]
pub fn begin() {
    LEFT.store(config::due_per_command(), Ordering::Relaxed);
}

/// How much may be done on the next key; never nothing, so that each makes some way.
pub fn left() -> usize {
    LEFT.load(Ordering::Relaxed).max(1)
}

/// So much was done.
pub fn spend(done: usize) {
    LEFT.store(LEFT.load(Ordering::Relaxed).saturating_sub(done), Ordering::Relaxed);
}
