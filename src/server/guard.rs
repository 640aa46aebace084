//! The one choke point between the server's C frames and our code: a panic becomes an error, never the server's end.
//!
//! Every `extern "C"` function of the module runs its body in [`shield`]. State is committed only by `Object::apply`, which has no panicking
//! path, so a caught panic leaves no half-made change behind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// Panics caught since the module was loaded; shown by `INFO sluice`. Anything but 0 is a bug worth a report.
pub static CAUGHT: AtomicU64 = AtomicU64::new(0);

/// Runs `body`; if it panics, answers `otherwise()`. The panic hook has already written the place to standard error.
#[inline]
pub fn shield<R>(body: impl FnOnce() -> R, otherwise: impl FnOnce() -> R) -> R {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(_) => {
            CAUGHT.fetch_add(1, Ordering::Relaxed);
            otherwise()
        }
    }
}
