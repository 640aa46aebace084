//! The module's one timer. It is aimed at the earliest instant at which anything is due on any key or a client's time is over, works for at most
//! `tick-budget-us`, then yields and comes back. It also does the chores that no command can do in the middle of another (chores.rs).
//!
//! It sleeps by the monotonic clock, so that a step of the wall clock makes it neither late nor busy, and decides by the wall clock, which it reads anew each
//! time. The server's timers go by the wall clock: after a step (noticed by the server's cron) ours is set anew.
//!
//! What one firing changes is carried as one command (unit.rs), in a cluster for keys of one slot: it stops before the next slot, and sets up more
//! firings, each of which is a call of the server of its own.
//!
//! Objects change on a master only, and not while the server loads or has its replicas paused (a failover, CLIENT PAUSE): it looks again soon then.
//! Clients whose time is over are told in any case. The test clock walks over the same instants, without the timer.

use super::access::{self, Access};
use super::api::{Ctx, OwnedString, replicas_paused};
use super::guard::{shield, trip};
use super::key::Opened;
use super::main_thread::MainThread;
use super::registry::{self, Due};
use super::types::for_family;
use super::{block, chores, clock, config, lines, migration, pieces, stats, unit};
use crate::engine::object::Object;
use crate::engine::time::{MS, Micros};
use redis_module::raw;
use std::ffi::c_void;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

#[derive(Debug, Clone, Copy)]
struct Armed {
    /// The server's timer; 0: ours is at work, and looks what is next at the end.
    id: u64,
    /// What it is aimed at, on the monotonic clock.
    at: Micros,
}

static ARMED: MainThread<Option<Armed>> = MainThread::new(None);

/// The wall clock less the monotonic one, as of the last look; and since when (monotonic) the timer has been able to do its work on time: it is not late
/// for what was due while the server could not act, or when the clock jumped over it.
static OFFSET: MainThread<Option<Micros>> = MainThread::new(None);
static SINCE: MainThread<Micros> = MainThread::new(Micros::MAX);

/// How soon it looks again whether objects may change.
const LOOK_AGAIN: Micros = 10 * MS;

/// How soon what is held back is tried again, and an object that may not change is looked at again.
const TRY_AGAIN: Micros = 100 * MS;

/// The wall clock stepped if it moved by so much against the monotonic one between two crons.
const STEP: Micros = 5 * MS;

/// The server stores a timer's period in µs; a year is far enough.
const FARTHEST_MS: i64 = 31_622_400_000;

/// Steps between two looks at the time.
const STEPS: usize = 128;

/// Aims the timer at `at` of the monotonic clock unless it is aimed as early already.
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
    *armed = Some(Armed { id: ctx.timer(ms, Some(fire)), at: now.saturating_add(ms.saturating_mul(MS)) });
}

/// Has the timer fire as soon as the running command is done.
pub fn soon(ctx: Ctx<'_>) {
    aim(ctx, 0);
}

/// Aims the timer at what comes first of all that is known.
pub fn arm(ctx: Ctx<'_>) {
    if let Some(at) = next() {
        aim(ctx, at);
    }
}

fn next() -> Option<Micros> {
    let due = registry::earliest().filter(|_| !clock::frozen());
    let due = due.map(|at| clock::monotonic().saturating_add(at.saturating_sub(clock::now())));
    [due, block::next_end()].into_iter().flatten().min()
}

unsafe extern "C" fn fire(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // While it works nobody need aim it: it looks what is next at the end.
    shield(|| ARMED.with(|armed| *armed = Some(Armed { id: 0, at: Micros::MIN })), || ());
    // SAFETY: the context of a running timer callback.
    let ctx = unsafe { Ctx::new(ctx) };
    pieces::begin();
    let then = unit::run(ctx, || work(ctx), || Some(clock::monotonic().saturating_add(LOOK_AGAIN)));
    shield(
        || {
            ARMED.with(|armed| *armed = None);
            if let Some(at) = [then, next()].into_iter().flatten().min() {
                aim(ctx, at);
            }
        },
        || (),
    );
}

/// How many more firings are set up at once, and how many of them are still to come.
const MORE: usize = 64;
static TO_COME: AtomicUsize = AtomicUsize::new(0);

/// When the first of them came: together they take no longer than one tick.
static BEGAN: AtomicI64 = AtomicI64::new(0);

/// The rest is for keys of other slots: it comes with the next firings, all of which the server does at its next look at its timers.
fn more(ctx: Ctx<'_>) {
    if TO_COME.load(Ordering::Relaxed) == 0 {
        TO_COME.store(MORE, Ordering::Relaxed);
        for _ in 0..MORE {
            ctx.timer(0, Some(fire_more));
        }
    }
}

unsafe extern "C" fn fire_more(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // SAFETY: the context of a running timer callback.
    let ctx = unsafe { Ctx::new(ctx) };
    unit::run(ctx, || work_more(ctx), || ());
}

fn work_more(ctx: Ctx<'_>) {
    let to_come = TO_COME.load(Ordering::Relaxed);
    TO_COME.store(to_come.saturating_sub(1), Ordering::Relaxed);
    let now = clock::monotonic();
    if to_come == MORE {
        BEGAN.store(now, Ordering::Relaxed);
    }
    // The armed timer comes for what is left, and when nothing may be changed now.
    let over = now.saturating_sub(BEGAN.load(Ordering::Relaxed)) >= config::tick_budget_us();
    if over || !ready(ctx) || clock::frozen() {
        return;
    }
    pieces::begin();
    begin_acting();
    // Neither what is due nor the chores keep the others from being done.
    if to_come % 2 == 1 {
        chores::run(ctx);
    }
    tick(ctx);
}

/// Does what is due. When it must come again besides for what is due, on the monotonic clock.
fn work(ctx: Ctx<'_>) -> Option<Micros> {
    let flags = ctx.flags();
    let acts = ready(ctx);
    let mut again = None;
    if acts {
        begin_acting();
        let done = if clock::frozen() { !chores::run(ctx) } else { tick(ctx) };
        if !done {
            // After the server has looked at its clients.
            again = Some(MS);
        } else if chores::any_held_back() {
            chores::try_again();
            again = Some(TRY_AGAIN);
        }
    } else {
        SINCE.with(|since| *since = Micros::MAX);
        if !flags.master() {
            chores::drop_all();
        }
        let watches = !flags.master() && block::tell_role_lost();
        // Whether it may act again is not told by an event, but for a change of role and the end of a load.
        if flags.master() && !flags.loading() || watches || block::any_clock_end() {
            again = Some(LOOK_AGAIN);
        }
    }
    block::time_out(ctx, acts);
    again.map(|us| clock::monotonic().saturating_add(us))
}

fn begin_acting() {
    SINCE.with(|since| {
        if *since == Micros::MAX {
            *since = clock::monotonic();
        }
    });
}

/// Whether anything may be changed outside a command now.
pub fn ready(ctx: Ctx<'_>) -> bool {
    let flags = ctx.flags();
    flags.master() && !flags.loading() && !replicas_paused()
}

/// Applies what is due on all keys until the budget is spent, then does the chores; true when nothing is left.
fn tick(ctx: Ctx<'_>) -> bool {
    access::anew();
    let begin = clock::monotonic();
    let budget = config::tick_budget_us();
    let mut done = true;
    loop {
        if unit::pending() && !registry::next_due(clock::now(), |place| unit::fits(ctx, &place.key)) {
            more(ctx);
            done = false;
            break;
        }
        let Some(finished) = step(ctx, clock::now()) else { break };
        if clock::monotonic().saturating_sub(begin) >= budget {
            done = finished && registry::earliest().is_none_or(|at| at > clock::now());
            break;
        }
    }
    // Who waits is served once all that is due has happened: one who waits at several keys takes from the first that has any.
    let rest = chores::run(ctx);
    if rest && ctx.flags().cluster() {
        more(ctx);
    }
    done && !rest
}

/// Works on the next object that is due: None when there is none, false when it has more to do.
fn step(ctx: Ctx<'_>, now: Micros) -> Option<bool> {
    let due = registry::take_due(now)?;
    if migration::staged(&due.place.key) {
        // Looked at again when the import is complete.
        registry::schedule(due.family, due.object, Micros::MAX, || (due.place.db, due.place.key));
        return Some(true);
    }
    let acted = clock::monotonic().saturating_sub(SINCE.with(|since| *since)).max(0);
    stats::timer_lag(now.saturating_sub(due.wake).min(acted));
    Some(ctx.in_db(due.place.db, || for_family!(due.family, settle(ctx, &due, now))))
}

/// Applies what is due on one object, if it still lives where it was noted.
fn settle<O: Object>(ctx: Ctx<'_>, due: &Due, now: Micros) -> bool {
    let name = OwnedString::new(&due.place.key);
    // SAFETY: `name` outlives the handle; there are no arguments.
    let Ok(mut opened) = (unsafe { Opened::<O>::unsettled(ctx, name.raw(), now) }) else { return true };
    let Some(object) = opened.identity().filter(|found| found.id == due.object.id) else { return true };
    // What is due may serve those who wait: only if what they get may be written. (The test clock does not wait for that.)
    if !clock::frozen() && opened.existing().is_some_and(|o| o.waiting() > 0) {
        let withheld = access::to_key(ctx, &name) != Access::Granted;
        block::withhold(object.id, withheld);
        if withheld {
            let place = || (due.place.db, due.place.key.clone());
            registry::schedule(due.family, object, now.saturating_add(TRY_AGAIN), place);
            opened.leave();
            return true;
        }
    }
    let done = opened.settle(STEPS.min(config::due_per_command()));
    trip("settling");
    opened.reap();
    opened.finish();
    if done && O::FAMILY.queue() {
        lines::look_again(due.place.db, &due.place.key);
    }
    done
}

/// The server's cron, some times a second: a step of the clock is noticed, and whatever may have come between an entry and the timer is found.
pub fn cron(ctx: Ctx<'_>) {
    let offset = clock::wall().saturating_sub(clock::monotonic());
    let stepped = OFFSET.with(|seen| {
        let before = seen.replace(offset);
        before.is_some_and(|before| (offset - before).abs() >= STEP)
    });
    if stepped {
        SINCE.with(|since| {
            if *since != Micros::MAX {
                *since = clock::monotonic();
            }
        });
        ARMED.with(|armed| {
            if let Some(Armed { id, at }) = *armed
                && id != 0
            {
                set(ctx, armed, next().map_or(at, |next| next.min(at)));
            }
        });
    }
    arm(ctx);
}

/// The clock stepped back: what was reckoned ahead by it is reckoned anew, for all who wait.
pub fn stepped_back(ctx: Ctx<'_>) {
    registry::look_at_all(clock::now());
    lines::look_again_all(-1);
    arm(ctx);
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
    begin_acting();
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
