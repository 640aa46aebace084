//! The one timer of the server that the module has armed at any time, and when it rings.
//!
//! It sleeps by the monotonic clock, so that a step of the wall clock makes it neither late nor
//! busy. The server's timers go by the wall clock: after a step (noticed by the server's cron) it
//! is [`set_anew`]. What is done when it rings is in work/timer.rs.

use super::clock;
use crate::engine::time::{MS, Micros};
use crate::server::ffi::context::Ctx;
use crate::server::ffi::guard::shield;
use crate::server::ffi::main_thread::MainThread;
use std::sync::OnceLock;

#[derive(Debug, Clone, Copy)]
struct Armed {
    /// The server's timer; 0: it rings right now, and is aimed at the end.
    id: u64,
    /// What it is aimed at, on the monotonic clock.
    at: Micros,
}

static ARMED: MainThread<Option<Armed>> = MainThread::new(None);

/// What is done when it rings: when it must ring again, on the monotonic clock.
type Work = fn(Ctx<'_>) -> Option<Micros>;
static WORK: OnceLock<Work> = OnceLock::new();

/// The server stores a timer's period in µs; a year is far enough.
const FARTHEST_MS: i64 = 31_622_400_000;

/// Says what is done when it rings. Once, while the module is loaded.
pub fn calls(work: Work) {
    let _ = WORK.set(work);
}

/// Has it ring at `at` of the monotonic clock, unless it rings as early already.
#[inline]
pub fn aim(ctx: Ctx<'_>, at: Micros) {
    ARMED.with(|armed| {
        if armed.is_some_and(|a| a.id == 0 || a.at <= at.saturating_add(MS)) {
            return;
        }
        set(ctx, armed, at);
    });
}

fn set(ctx: Ctx<'_>, armed: &mut Option<Armed>, at: Micros) {
    if let Some(old) = armed.take() {
        ctx.stop_timer(old.id);
    }
    let now = clock::monotonic();
    let ms = (at.saturating_sub(now).max(0).saturating_add(MS - 1) / MS).min(FARTHEST_MS);
    *armed = Some(Armed { id: ctx.timer(ms, ring), at: now.saturating_add(ms.saturating_mul(MS)) });
}

/// Has it ring as soon as the running command is done.
pub fn soon(ctx: Ctx<'_>) {
    aim(ctx, 0);
}

/// When the module's clock will say `at`, on the monotonic clock; None: it stands.
pub fn when(at: Micros) -> Option<Micros> {
    let left = || at.saturating_sub(clock::now());
    (!clock::frozen()).then(|| clock::monotonic().saturating_add(left()))
}

/// The wall clock stepped: it is aimed anew, and no later than at `at`.
pub fn set_anew(ctx: Ctx<'_>, at: Option<Micros>) {
    ARMED.with(|armed| {
        if let Some(Armed { id, at: aimed }) = *armed
            && id != 0
        {
            set(ctx, armed, at.map_or(aimed, |at| at.min(aimed)));
        }
    });
}

fn ring(ctx: Ctx<'_>) {
    // While it rings nobody need aim it.
    ARMED.with(|armed| *armed = Some(Armed { id: 0, at: Micros::MIN }));
    let again = shield(|| WORK.get().and_then(|work| work(ctx)), || Some(0));
    ARMED.with(|armed| *armed = None);
    if let Some(at) = again {
        aim(ctx, at);
    }
}
