//! Where the objects are at which something will be due, and when: what the module's one timer goes by.
//!
//! An object is known by its address, which is its identity from creation to unlink; the key and database it lives in are noted, and follow it through RENAME,
//! MOVE and SWAPDB by the server's events (events.rs). Invariants:
//!
//! - An object with a `next_event` has an entry whose wake is not later than that event. It may be earlier (events are pushed back all the time, a lease
//!   acked, a booking served): then the wake finds nothing due, and the entry moves on.
//! - An entry never keeps an object alive or is followed to it: the key is opened by name, and the entry counts only if the object there has its address.

use super::api::Ctx;
use super::main_thread::MainThread;
use super::{clock, timer};
use crate::engine::object::Family;
use crate::engine::time::Micros;
use hashbrown::HashMap;
use std::collections::BTreeSet;

/// Where an object lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub db: i32,
    pub key: Box<[u8]>,
}

#[derive(Debug)]
struct Entry {
    family: Family,
    place: Place,
    wake: Micros,
}

#[derive(Debug, Default)]
struct Registry {
    entries: HashMap<usize, Entry>,
    wakes: BTreeSet<(Micros, usize)>,
    /// The entry last scheduled and its wake: on a hot key it spares the look-up. Forgotten whenever an entry goes.
    recent: Option<(usize, Micros)>,
}

static REGISTRY: std::sync::LazyLock<MainThread<Registry>> =
    std::sync::LazyLock::new(|| MainThread::new(Registry::default()));

/// Something is due at `address` at instant `at`. The place is asked for only if the object was not known yet.
#[inline]
pub fn schedule(family: Family, address: usize, at: Micros, place: impl FnOnce() -> (i32, Box<[u8]>)) {
    let earlier = REGISTRY.with(|r| {
        if r.recent.is_some_and(|(recent, wake)| recent == address && wake <= at) {
            return false;
        }
        let wake = r.entries.get(&address).map(|entry| entry.wake);
        r.recent = Some((address, wake.map_or(at, |wake| wake.min(at))));
        match wake {
            Some(wake) if wake <= at => return false,
            Some(wake) => {
                r.wakes.remove(&(wake, address));
                r.entries.entry(address).and_modify(|entry| entry.wake = at);
            }
            None => {
                let (db, key) = place();
                r.entries.insert(address, Entry { family, place: Place { db, key }, wake: at });
            }
        }
        r.wakes.insert((at, address));
        true
    });
    if earlier {
        arm(Ctx::own());
    }
}

/// The object at `address` is gone, or goes.
pub fn forget(address: usize) {
    REGISTRY.with(|r| {
        r.recent = None;
        if let Some(entry) = r.entries.remove(&address) {
            r.wakes.remove(&(entry.wake, address));
        }
    });
}

/// Active defrag moved the object.
pub fn moved(from: usize, to: usize) {
    REGISTRY.with(|r| {
        r.recent = None;
        if let Some(entry) = r.entries.remove(&from) {
            r.wakes.remove(&(entry.wake, from));
            r.wakes.insert((entry.wake, to));
            r.entries.insert(to, entry);
        }
    });
}

/// The object at `address` lives under another name now.
pub fn relocate(address: usize, place: Place) {
    REGISTRY.with(|r| {
        if let Some(entry) = r.entries.get_mut(&address) {
            entry.place = place;
        }
    });
}

/// Two databases changed places.
pub fn swap(one: i32, other: i32) {
    REGISTRY.with(|r| {
        for entry in r.entries.values_mut() {
            let db = &mut entry.place.db;
            *db = if *db == one {
                other
            } else if *db == other {
                one
            } else {
                *db
            };
        }
    });
}

/// A database (-1: all of them) is about to be emptied: its objects, in no order. They are forgotten.
pub fn flush(db: i32) -> Vec<(Family, usize)> {
    REGISTRY.with(|r| {
        r.recent = None;
        let gone: Vec<_> = r
            .entries
            .iter()
            .filter(|(_, e)| db < 0 || e.place.db == db)
            .map(|(address, e)| (*address, e.family, e.wake))
            .collect();
        for (address, _, wake) in &gone {
            r.entries.remove(address);
            r.wakes.remove(&(*wake, *address));
        }
        gone.into_iter().map(|(address, family, _)| (family, address)).collect()
    })
}

/// Has every object looked at from `at` on that would be only later.
pub fn look_at_all(at: Micros) {
    REGISTRY.with(|r| {
        r.recent = None;
        for entry in r.entries.values_mut() {
            entry.wake = entry.wake.min(at);
        }
        r.wakes = r.entries.iter().map(|(address, entry)| (entry.wake, *address)).collect();
    });
}

pub fn place(address: usize) -> Option<(Family, Place)> {
    REGISTRY.with(|r| r.entries.get(&address).map(|e| (e.family, e.place.clone())))
}

/// The earliest wake.
pub fn earliest() -> Option<Micros> {
    REGISTRY.with(|r| r.wakes.first().map(|(at, _)| *at))
}

/// Takes the first object whose wake has come; it is forgotten until it is scheduled again.
pub fn take_due(now: Micros) -> Option<(Family, usize, Place, Micros)> {
    REGISTRY.with(|r| {
        let (at, address) = *r.wakes.first()?;
        if at > now {
            return None;
        }
        r.wakes.pop_first();
        r.recent = None;
        let entry = r.entries.remove(&address)?;
        Some((entry.family, address, entry.place, at))
    })
}

pub fn len() -> usize {
    REGISTRY.with(|r| r.entries.len())
}

/// Aims the timer at the earliest wake, if it is not aimed earlier already.
#[inline]
pub fn arm(ctx: Ctx<'_>) {
    if let (Some(at), false) = (earliest(), clock::frozen()) {
        timer::aim(ctx, at);
    }
}
