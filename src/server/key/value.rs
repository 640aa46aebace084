//! What the key of an object holds: the object, and what only this server notes about it.

use crate::engine::object::{Lifetime, Object};
use crate::server::time::clock;
use crate::server::time::due_index::Identity;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a key's value pointer points to: the object, and what only this server notes about it.
pub struct Value<O> {
    /// Its number, never used again on this server: what the due index knows it by.
    pub id: u64,
    pub object: O,
    /// The TTL last given to the key (unix ms); 0: none was given; -1: not known, after a load.
    pub expires_ms: i64,
}

impl<O: Object> Value<O> {
    pub fn new(object: O) -> Self {
        Self { id: next_id(), object, expires_ms: 0 }
    }

    pub fn identity(&self) -> Identity {
        Identity { id: self.id }
    }

    /// An object that came with its key from elsewhere: what TTL the key has is not known, but for
    /// one that never has one of ours.
    pub fn arrived(object: O) -> Self {
        let forever = object.lifetime(clock::now()) == Lifetime::Forever;
        Self { id: next_id(), object, expires_ms: if forever { 0 } else { -1 } }
    }

    /// All its bytes.
    pub fn memory(&self) -> usize {
        size_of::<Self>() - size_of::<O>() + self.object.memory()
    }
}

/// Numbers for values. On the main thread, but for a load that a server runs elsewhere.
fn next_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Calls `$f::<O>(…)` for the object type of a family.
macro_rules! for_family {
    ($family:expr, $f:ident($($arg:expr),*)) => {
        match $family {
            $crate::engine::family::Family::TokenBucket => $f::<$crate::engine::token_bucket::TokenBucket>($($arg),*),
            $crate::engine::family::Family::LeakyBucket => $f::<$crate::engine::leaky_bucket::LeakyBucket>($($arg),*),
            $crate::engine::family::Family::Semaphore => $f::<$crate::engine::semaphore::Semaphore>($($arg),*),
            $crate::engine::family::Family::Gate => $f::<$crate::engine::gate::Gate>($($arg),*),
            $crate::engine::family::Family::Hot => $f::<$crate::engine::hot::Hot>($($arg),*),
            $crate::engine::family::Family::Queue => $f::<$crate::engine::queue::Queue>($($arg),*),
        }
    };
}
pub(crate) use for_family;
