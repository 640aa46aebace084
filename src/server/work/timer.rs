//! What is done when the alarm rings (time/alarm.rs), which is aimed at the earliest instant at
//! which anything is due on any key or a client's time is over: what is due, for at most
//! `tick-budget-us`, then what was put off until no command is running; then it yields and comes
//! back. It decides by the wall clock, which it reads anew each time.
//!
//! What one ring changes is carried as one command (replication/carry.rs), in a cluster for keys of
//! one slot: it stops before the next slot, and sets up more timers, each of which is a call of the
//! server of its own.
//!
//! Objects change on a master only, and not while the server loads or has its replicas paused (a
//! failover, CLIENT PAUSE): it looks again soon then. Clients whose time is over are told in any
//! case. The test clock walks over the same instants, without the timer.

use super::{run_deferred, serve};
use crate::engine::object::Object;
use crate::engine::time::{MS, Micros};
use crate::server::blocking::access::{self, Access};
use crate::server::blocking::{claim_waiters, deferred, ends};
use crate::server::cluster::migration;
use crate::server::config;
use crate::server::ffi::context::Ctx;
use crate::server::ffi::guard::trip;
use crate::server::ffi::main_thread::MainThread;
use crate::server::ffi::strings::OwnedString;
use crate::server::key::open::Opened;
use crate::server::key::value::for_family;
use crate::server::replication::carry;
use crate::server::stats;
use crate::server::time::due_index::{self, Due};
use crate::server::time::{alarm, budget, clock};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

/// The wall clock less the monotonic one, as of the last look; and since when (monotonic) the timer
/// has been able to do its work on time: it is not late for what was due while the server could not
/// act, or when the clock jumped over it.
static OFFSET: MainThread<Option<Micros>> = MainThread::new(None);
static SINCE: MainThread<Micros> = MainThread::new(Micros::MAX);

/// How soon it looks again whether objects may change.
const LOOK_AGAIN: Micros = 10 * MS;

/// How soon what is held back is tried again, and an object that may not change is looked at again.
const TRY_AGAIN: Micros = 100 * MS;

/// The wall clock stepped if it moved by so much against the monotonic one between two crons.
const STEP: Micros = 5 * MS;

/// Steps between two looks at the time.
const STEPS: usize = 128;

/// Has the alarm ring for what comes first of all that is known.
pub fn arm(ctx: Ctx<'_>) {
    if let Some(at) = next() {
        alarm::aim(ctx, at);
    }
}

fn next() -> Option<Micros> {
    let due = due_index::earliest().and_then(alarm::when);
    [due, ends::next_end()].into_iter().flatten().min()
}

/// The alarm rings: when it must ring again.
pub fn ring(ctx: Ctx<'_>) -> Option<Micros> {
    budget::begin();
    let again = carry::run(ctx, || work(ctx), || Some(clock::monotonic().saturating_add(LOOK_AGAIN)));
    [again, next()].into_iter().flatten().min()
}

/// How many more timers are set up at once, and how many of them are still to come.
const MORE: usize = 64;
static TO_COME: AtomicUsize = AtomicUsize::new(0);

/// When the first of them came: together they take no longer than one tick.
static BEGAN: AtomicI64 = AtomicI64::new(0);

/// The rest is for keys of other slots: it comes with the next timers, all of which the server does
/// at its next look at its timers.
fn more(ctx: Ctx<'_>) {
    if TO_COME.load(Ordering::Relaxed) == 0 {
        TO_COME.store(MORE, Ordering::Relaxed);
        for _ in 0..MORE {
            ctx.timer(0, |ctx| carry::run(ctx, || work_more(ctx), || ()));
        }
    }
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
    if over || !ctx.decides() || clock::frozen() {
        return;
    }
    budget::begin();
    begin_acting();
    // Neither what is due nor what was put off keeps the others from being done.
    if to_come % 2 == 1 {
        run_deferred::run(ctx);
    }
    tick(ctx);
}

/// Does what is due. When it must come again besides for what is due, on the monotonic clock.
fn work(ctx: Ctx<'_>) -> Option<Micros> {
    let flags = ctx.flags();
    let acts = ctx.decides();
    let mut again = None;
    if acts {
        begin_acting();
        let done = if clock::frozen() { !run_deferred::run(ctx) } else { tick(ctx) };
        if !done {
            // After the server has looked at its clients.
            again = Some(MS);
        } else if deferred::any_held_back() {
            deferred::try_again();
            again = Some(TRY_AGAIN);
        }
    } else {
        SINCE.with(|since| *since = Micros::MAX);
        if !flags.master() {
            run_deferred::drop_all();
        }
        let watches = !flags.master() && ends::tell_role_lost();
        // Whether it may act again is not told by an event, but for a change of role and the end of
        // a load.
        if flags.master() && !flags.loading() || watches || ends::any_clock_end() {
            again = Some(LOOK_AGAIN);
        }
    }
    ends::time_out(ctx, acts);
    again.map(|us| clock::monotonic().saturating_add(us))
}

fn begin_acting() {
    SINCE.with(|since| {
        if *since == Micros::MAX {
            *since = clock::monotonic();
        }
    });
}

/// Applies what is due on all keys until the budget is spent, then does what was put off; true when
/// nothing is left.
fn tick(ctx: Ctx<'_>) -> bool {
    access::anew();
    let begin = clock::monotonic();
    let budget = config::tick_budget_us();
    let mut done = true;
    loop {
        if carry::pending() && !due_index::next_due(clock::now(), |place| carry::fits(ctx, &place.key)) {
            more(ctx);
            done = false;
            break;
        }
        let Some(finished) = step(ctx, clock::now()) else { break };
        if clock::monotonic().saturating_sub(begin) >= budget {
            done = finished && due_index::earliest().is_none_or(|at| at > clock::now());
            break;
        }
    }
    // Who waits is served once all that is due has happened: one who waits at several keys takes
    // from the first that has any.
    let rest = run_deferred::run(ctx);
    if rest && ctx.flags().cluster() {
        more(ctx);
    }
    done && !rest
}

/// Works on the next object that is due: None when there is none, false when it has more to do.
fn step(ctx: Ctx<'_>, now: Micros) -> Option<bool> {
    let due = due_index::take_due(now)?;
    if migration::staged(&due.place.key) {
        // Looked at again when the import is complete.
        due_index::schedule(due.family, due.object, Micros::MAX, || (due.place.db, due.place.key));
        return Some(true);
    }
    let acted = clock::monotonic().saturating_sub(SINCE.with(|since| *since)).max(0);
    stats::timer_lag(now.saturating_sub(due.wake).min(acted));
    Some(ctx.in_db(due.place.db, || for_family!(due.family, apply_due(ctx, &due, now))))
}

/// Applies what is due on one object, if it still lives where it was noted.
fn apply_due<O: Object>(ctx: Ctx<'_>, due: &Due, now: Micros) -> bool {
    let name = OwnedString::new(&due.place.key);
    let Ok(mut opened) = Opened::<O>::unsettled(ctx, &name, now) else { return true };
    let Some(object) = opened.identity().filter(|found| found.id == due.object.id) else { return true };
    // What is due may serve those who wait: only if what they get may be written. (The test clock
    // does not wait for that.)
    if !clock::frozen() && opened.existing().is_some_and(|o| o.waiting() > 0) {
        let withheld = access::to_key(ctx, &name) != Access::Granted;
        ends::withhold(object.id, withheld);
        if withheld {
            let place = || (due.place.db, due.place.key.clone());
            due_index::schedule(due.family, object, now.saturating_add(TRY_AGAIN), place);
            opened.leave();
            return true;
        }
    }
    let done = opened.apply_due(STEPS.min(config::due_per_command()));
    trip("settling");
    opened.reap();
    serve::finish(opened);
    if done && O::FAMILY.queue() {
        claim_waiters::look_again(due.place.db, &due.place.key);
    }
    done
}

/// The server's cron, some times a second: a step of the clock is noticed, and whatever may have
/// come between an entry and the timer is found.
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
        alarm::set_anew(ctx, next());
    }
    arm(ctx);
}

/// The clock stepped back: what was reckoned ahead by it is reckoned anew, for all who wait.
pub fn stepped_back(ctx: Ctx<'_>) {
    due_index::look_at_all(clock::now());
    claim_waiters::look_again_all(-1);
    arm(ctx);
}

/// The test clock stands at whole milliseconds: an instant between two of them is reached at the
/// second.
fn whole_ms(at: Micros) -> Micros {
    at.saturating_add(MS - 1) / MS * MS
}

/// Walks the test clock to `to`, stopping at each instant at which something is due on any key, as
/// if the timer had fired there.
pub fn walk(ctx: Ctx<'_>, to: Micros) {
    if !ctx.decides() {
        // A replica decides nothing: its clock only says what time it is.
        clock::freeze(to);
        return;
    }
    begin_acting();
    if to < clock::now() {
        clock::freeze(to);
        stepped_back(ctx);
    }
    while run_deferred::run(ctx) {}
    while let Some(at) = due_index::earliest().map(whole_ms).filter(|at| *at <= to) {
        clock::freeze(clock::now().max(at).min(to));
        while step(ctx, clock::now()).is_some() {}
        while run_deferred::run(ctx) {}
    }
    clock::freeze(to);
}
