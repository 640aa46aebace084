//! The one choke point between the server's C frames and our code: a panic becomes an error, never
//! the server's end.
//!
//! Every `extern "C"` function of the module runs its body in [`shield`], but for those that only
//! hand over a number (a test knows which). State is committed only by `Object::apply`, which has
//! no panicking path, so a caught panic leaves no half-made change behind; what was applied before
//! it is carried, and what was lent is given back, by guards that work while the panic passes: the
//! key (`Opened`), the selected database, a line that is served, a client taken out of its line.
//!
//! In a debug build tests make us panic at chosen points ([`trip`]). A release build has no such
//! thing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// Panics caught since the module was loaded; shown by `INFO sluice`. Anything but 0 is a bug worth
/// a report.
pub static CAUGHT: AtomicU64 = AtomicU64::new(0);

/// Counts a panic that was caught.
#[cold]
pub fn caught() {
    CAUGHT.fetch_add(1, Ordering::Relaxed);
}

/// Runs `body`; if it panics, returns `otherwise()`. The panic hook has already written the place
/// to standard error.
#[inline]
pub fn shield<R>(body: impl FnOnce() -> R, otherwise: impl FnOnce() -> R) -> R {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(_) => {
            caught();
            otherwise()
        }
    }
}

/// A point at which a test may have us panic.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn trip(_point: &str) {}

#[cfg(debug_assertions)]
pub use on_purpose::trip;

/// Panics on purpose.
#[cfg(debug_assertions)]
pub mod on_purpose {
    use super::super::main_thread::MainThread;

    /// The points at which we are to panic, with how often each is passed before.
    static ARMED: MainThread<Vec<(Box<str>, i64)>> = MainThread::new(Vec::new());

    /// From now on `point` panics once, when it has been passed `after` times.
    pub fn arm(point: &str, after: i64) {
        ARMED.with(|armed| armed.push((point.into(), after)));
    }

    pub fn trip(point: &str) {
        let now = ARMED.with(|armed| {
            let found = armed.iter().position(|(p, _)| **p == *point);
            found.is_some_and(|i| match armed.get_mut(i) {
                Some((_, after)) if *after > 0 => {
                    *after -= 1;
                    false
                }
                _ => {
                    armed.remove(i);
                    true
                }
            })
        });
        assert!(!now, "panic on purpose: {point}");
    }
}
