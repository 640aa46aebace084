//! How hash tables hash: by SipHash-1-3, the standard library's, under a key that is drawn from the
//! system once, when the first is needed.
//!
//! Names come from outside: subjects, ids, groups, consumers, keys. Without the key nobody can
//! choose names that fall into one bucket and so make each look-up as slow as the table is long. A
//! faster hash with a weaker promise was weighed: what this one costs is little beside what a
//! command costs (docs/benchmarks.md), and it needs no crate.
//!
//! All tables use it: the map of `hashbrown` has no hash of its own here (Cargo.toml). The hashes
//! differ from process to process, so nothing that is stored, carried, answered or digested may
//! depend on them, or on the order of a table.

use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};
use std::sync::LazyLock;

pub type Map<K, V> = hashbrown::HashMap<K, V, Keyed>;
pub type Set<K> = hashbrown::HashSet<K, Keyed>;

static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Makes hashers with the key of the process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Keyed;

impl BuildHasher for Keyed {
    type Hasher = DefaultHasher;

    #[inline]
    fn build_hasher(&self) -> DefaultHasher {
        #[cfg(test)]
        if let Some(hasher) = tests::other_hasher() {
            return hasher;
        }
        KEY.build_hasher()
    }
}

#[inline]
pub fn of_name(name: &[u8]) -> u64 {
    let mut hasher = Keyed.build_hasher();
    hasher.write(name);
    hasher.finish()
}

#[inline]
pub fn of_number(number: u64) -> u64 {
    let mut hasher = Keyed.build_hasher();
    hasher.write_u64(number);
    hasher.finish()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::cell::RefCell;

    thread_local!(static OTHER: RefCell<Option<RandomState>> = const { RefCell::new(None) });

    pub(super) fn other_hasher() -> Option<DefaultHasher> {
        OTHER.with_borrow(|key| key.as_ref().map(BuildHasher::build_hasher))
    }

    /// What `f` makes is as a process with another key would make it.
    pub fn with_another_key<R>(f: impl FnOnce() -> R) -> R {
        OTHER.set(Some(RandomState::new()));
        let made = f();
        OTHER.set(None);
        made
    }

    #[test]
    fn each_process_hashes_by_a_key_of_its_own() {
        let hashes = || (of_name(b"name"), of_number(7), Keyed.hash_one(7u32));
        let (here, there) = (hashes(), with_another_key(hashes));
        assert_eq!(hashes(), here);
        assert!(here.0 != there.0 && here.1 != there.1 && here.2 != there.2);
        let order = || {
            let set: Set<u32> = (0..100).collect();
            set.into_iter().collect::<Vec<_>>()
        };
        assert_ne!(order(), with_another_key(order));
    }
}
