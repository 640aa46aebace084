//! The module's one timer. It is aimed at the earliest instant at which anything is due on any key, works for at most `tick-budget-us`, then yields
//! and comes back. It also does the chores that no command can do in the middle of another (chores.rs).
//!
//! It acts on a master only, and not while the server loads or has its replicas paused (a failover, CLIENT PAUSE): it looks again
//! soon then. The test clock walks over the same instants, without the timer.

use super::api::{Ctx, OwnedString, replicas_paused};
use super::guard::shield;
use super::key::Opened;
use super::main_thread::MainThread;
use super::registry::{self, Place};
use super::types::for_family;
use super::{chores, clock, config, lines, stats};
use crate::engine::object::Object;
use crate::engine::time::{MS, Micros};
use redis_module::raw;
use std::ffi::c_void;

/// The armed timer: its id, and the wall instant it is aimed at.
static ARMED: MainThread<Option<(u64, Micros)>> = MainThread::new(None);

/// How soon it looks again whether replicas may get traffic.
const LOOK_AGAIN_MS: i64 = 10;

/// The server stores a timer's period in µs; a year is far enough.
const FARTHEST_MS: i64 = 31_622_400_000;

/// Steps between two looks at the time.
const STEPS: usize = 128;

/// Aims the timer at `at` (by the running clock) unless it is aimed as early already.
#[inline]
pub fn aim(ctx: Ctx<'_>, at: Micros) {
    ARMED.with(|armed| {
        if armed.is_some_and(|(_, aimed)| aimed <= at.saturating_add(MS)) {
            return;
        }
        if let Some((id, _)) = armed.take() {
            ctx.stop_timer(id);
        }
        let now = clock::wall();
        let ms = (at.saturating_sub(now).max(0).saturating_add(MS - 1) / MS).min(FARTHEST_MS);
        *armed = Some((ctx.timer(ms, Some(fire)), now.saturating_add(ms.saturating_mul(MS))));
    });
}

/// Has the timer fire as soon as the running command is done.
pub fn soon(ctx: Ctx<'_>) {
    aim(ctx, 0);
}

unsafe extern "C" fn fire(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // While it works nobody need aim it: it looks what is next at the end.
    ARMED.with(|armed| *armed = Some((0, Micros::MIN)));
    // SAFETY: the context of a running timer callback.
    let ctx = unsafe { Ctx::new(ctx) };
    let next = shield(|| work(ctx), || Next::At(clock::wall().saturating_add(LOOK_AGAIN_MS * MS)));
    shield(
        || {
            ARMED.with(|armed| *armed = None);
            match next {
                Next::At(at) => aim(ctx, at),
                Next::Wake => registry::arm(ctx),
                Next::Event => {}
            }
        },
        || (),
    );
}

/// When the timer comes again.
enum Next {
    /// At this instant of the wall clock.
    At(Micros),
    /// At the earliest wake of the registry.
    Wake,
    /// When an event of the server (events.rs) says so.
    Event,
}

/// Does what is due.
fn work(ctx: Ctx<'_>) -> Next {
    let flags = ctx.flags();
    if !flags.master() || flags.loading() {
        return Next::Event;
    }
    if replicas_paused() {
        return Next::At(clock::wall().saturating_add(LOOK_AGAIN_MS * MS));
    }
    let done = if clock::frozen() { !chores::run(ctx) } else { tick(ctx) };
    // Not done: back after the server has looked at its clients.
    if done { Next::Wake } else { Next::At(clock::wall().saturating_add(MS)) }
}

/// Whether anything may be changed outside a command now.
pub fn ready(ctx: Ctx<'_>) -> bool {
    let flags = ctx.flags();
    flags.master() && !flags.loading() && !replicas_paused()
}

/// Applies what is due on all keys until the budget is spent, then does the chores; true when nothing is left.
fn tick(ctx: Ctx<'_>) -> bool {
    let begin = clock::wall();
    let budget = config::tick_budget_us();
    let mut done = true;
    while let Some(finished) = step(ctx, clock::now()) {
        if clock::wall().saturating_sub(begin) >= budget {
            done = finished && registry::earliest().is_none_or(|at| at > clock::now());
            break;
        }
    }
    // Who waits is served once all that is due has happened: one who waits at several keys takes from the first that has any.
    let rest = chores::run(ctx);
    done && !rest
}

/// Works on the next object that is due: None when there is none, false when it has more to do.
fn step(ctx: Ctx<'_>, now: Micros) -> Option<bool> {
    let (family, address, place, at) = registry::take_due(now)?;
    stats::timer_lag(now.saturating_sub(at));
    Some(ctx.in_db(place.db, || for_family!(family, settle(ctx, address, &place, now))))
}

/// Applies what is due on one object, if it still lives where it was noted.
fn settle<O: Object>(ctx: Ctx<'_>, address: usize, place: &Place, now: Micros) -> bool {
    let name = OwnedString::new(&place.key);
    // SAFETY: `name` outlives the handle; there are no arguments.
    let Ok(mut opened) = (unsafe { Opened::<O>::unsettled(ctx, name.raw(), now) }) else { return true };
    if opened.address() != address {
        return true;
    }
    let done = opened.settle(STEPS);
    opened.reap();
    opened.finish();
    if done && O::FAMILY.queue() {
        lines::look_again(place.db, &place.key);
    }
    done
}

/// The clock stepped back: what was reckoned ahead by it is reckoned anew, for all who wait.
pub fn stepped_back(ctx: Ctx<'_>) {
    registry::look_at_all(clock::now());
    lines::look_again_all(-1);
    registry::arm(ctx);
}

/// The test clock stands at whole milliseconds: an instant between two of them is reached at the second.
fn whole_ms(at: Micros) -> Micros {
    at.saturating_add(MS - 1) / MS * MS
}

/// Walks the test clock to `to`, stopping at each instant at which something is due on any key, as if the timer had fired there.
pub fn walk(ctx: Ctx<'_>, to: Micros) {
    if !ready(ctx) {
        // A replica decides nothing: its clock only says what time it is.
        clock::freeze(to);
        return;
    }
    if to < clock::now() {
        clock::freeze(to);
        stepped_back(ctx);
    }
    while chores::run(ctx) {}
    while let Some(at) = registry::earliest().map(whole_ms).filter(|at| *at <= to) {
        clock::freeze(clock::now().max(at).min(to));
        while step(ctx, clock::now()).is_some() {}
        while chores::run(ctx) {}
    }
    clock::freeze(to);
}
