//! State of the module that only the server's main thread touches.
//!
//! Commands, type hooks (but `free`), timers and events all run on the main thread, one at a time;
//! so a cell that is never lent for longer than one closure needs no lock. A closure that comes
//! back to the same cell (by a hook the server calls in between) finds it lent: that is a bug of
//! ours, and panics into an error reply rather than aliasing.

use std::cell::RefCell;

pub struct MainThread<T>(RefCell<T>);

// SAFETY: a MainThread is only used from callbacks that the server runs on its main thread (module
// docs); the hook that may run elsewhere, `free`, uses atomics only. The RefCell keeps two borrows
// apart.
unsafe impl<T> Sync for MainThread<T> {}
// SAFETY: as above: the value is made and used on the main thread.
unsafe impl<T> Send for MainThread<T> {}

impl<T> MainThread<T> {
    pub const fn new(value: T) -> Self {
        Self(RefCell::new(value))
    }

    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.0.borrow_mut())
    }
}
