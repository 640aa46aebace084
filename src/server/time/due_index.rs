//! Where the objects are at which something will be due, and when: what the module's one timer goes
//! by.
//!
//! An object is known by a number of its own, given when it is made; its address is none, as active
//! defrag moves it. The key and database it lives in are noted, and follow it through RENAME, MOVE
//! and SWAPDB by the server's events (events/mod.rs, key/place.rs). Invariants:
//!
//! - An object with a `next_event` has an entry whose wake is not later than that event. It may be
//!   earlier (events are pushed back all the time, a lease acked, a booking served): then the wake
//!   finds nothing due, and the entry moves on. What the timer leaves undone has its wake at the
//!   instant of that look, behind all that was due by then elsewhere: keys take turns.
//! - While a replica loads a new data set beside its old one, which it goes on serving, what is
//!   loaded is noted apart (*arriving*): it is in no database yet, and never is if the load is
//!   broken off.
//! - An entry never keeps an object alive or is followed to it: the key is opened by name, and the
//!   entry counts only if the object there has its number. (Some servers free values without
//!   telling.)

use super::alarm;
use crate::engine::family::Family;
use crate::engine::footprint::{block, tree};
use crate::engine::names_hash::{Map, Set};
use crate::engine::time::Micros;
use crate::server::ffi::context::Ctx;
use crate::server::ffi::main_thread::MainThread;
use lazy_static::lazy_static;
use std::collections::BTreeSet;

/// Where an object lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub db: i32,
    pub key: Box<[u8]>,
}

/// What an object is known by: its own number, never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    pub id: u64,
}

#[derive(Debug)]
struct Entry {
    family: Family,
    place: Place,
    wake: Micros,
}

/// About what is kept of one object, with a short name: an entry in a table that is three quarters
/// full, and one in a tree.
pub const EACH: usize =
    block(32) + (size_of::<(u64, Entry)>() + 1) * 4 / 3 + tree(100, size_of::<(Micros, u64)>()) / 100;

#[derive(Debug, Default)]
struct DueIndex {
    entries: Map<u64, Entry>,
    wakes: BTreeSet<(Micros, u64)>,
    /// The entry last scheduled and its wake: on a hot key it spares the look-up. Forgotten
    /// whenever an entry goes.
    recent: Option<(u64, Micros)>,
    /// What is loaded beside the data set that is served.
    arriving: Option<Map<u64, Entry>>,
}

lazy_static! {
    static ref INDEX: MainThread<DueIndex> = MainThread::new(DueIndex::default());
}

/// Something is due at the object at instant `at`. The place is asked for only if the object was
/// not known yet.
#[inline]
pub fn schedule(family: Family, object: Identity, at: Micros, place: impl FnOnce() -> (i32, Box<[u8]>)) {
    let Identity { id } = object;
    let earlier = INDEX.with(|r| {
        if r.recent.is_some_and(|(recent, wake)| recent == id && wake <= at) {
            return false;
        }
        let wake = r.entries.get(&id).map(|entry| entry.wake);
        r.recent = Some((id, wake.map_or(at, |wake| wake.min(at))));
        match wake {
            Some(wake) if wake <= at => return false,
            Some(wake) => {
                r.wakes.remove(&(wake, id));
                r.entries.entry(id).and_modify(|entry| entry.wake = at);
            }
            None => {
                let (db, key) = place();
                r.entries.insert(id, Entry { family, place: Place { db, key }, wake: at });
            }
        }
        r.wakes.insert((at, id));
        true
    });
    if earlier && let Some(at) = alarm::when(at) {
        alarm::aim(Ctx::own(), at);
    }
}

/// An object was loaded, from a file or a master or by RESTORE, at which something is due at `at`.
pub fn loaded(family: Family, object: Identity, at: Micros, place: impl FnOnce() -> (i32, Box<[u8]>)) {
    let aside = INDEX.with(|r| r.arriving.is_some());
    if !aside {
        return schedule(family, object, at, place);
    }
    let (db, key) = place();
    let entry = Entry { family, place: Place { db, key }, wake: at };
    INDEX.with(|r| r.arriving.as_mut().map(|arriving| arriving.insert(object.id, entry)));
}

/// From now on a new data set is loaded beside the one that is served.
pub fn load_beside() {
    INDEX.with(|r| r.arriving = Some(Map::default()));
}

/// The load was broken off: what came with it is nowhere.
pub fn stay() {
    INDEX.with(|r| r.arriving = None);
}

/// The new data set takes the place of the old one. The numbers of the old one's objects.
pub fn replace() -> Set<u64> {
    INDEX.with(|r| {
        r.recent = None;
        let old = std::mem::replace(&mut r.entries, r.arriving.take().unwrap_or_default());
        r.wakes = r.entries.iter().map(|(id, entry)| (entry.wake, *id)).collect();
        old.into_keys().collect()
    })
}

impl DueIndex {
    /// Room that once was needed and is not any more is given back.
    fn shrink(&mut self) {
        const FEW: usize = 1 << 10;
        let room = self.entries.capacity();
        if room > FEW && self.entries.len() < room / 8 {
            self.entries.shrink_to(room / 4);
        }
    }
}

/// The object is gone, or goes.
pub fn forget(id: u64) {
    INDEX.with(|r| {
        r.recent = None;
        if let Some(arriving) = &mut r.arriving {
            arriving.remove(&id);
        }
        if let Some(entry) = r.entries.remove(&id) {
            r.wakes.remove(&(entry.wake, id));
            r.shrink();
        }
    });
}

/// The object lives under another name now.
pub fn relocate(id: u64, place: Place) {
    INDEX.with(|r| {
        if let Some(entry) = r.entries.get_mut(&id) {
            entry.place = place;
        }
    });
}

/// Two databases changed places.
pub fn swap(one: i32, other: i32) {
    INDEX.with(|r| {
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

/// A database (-1: all of them) is about to be emptied: the numbers of its objects. They are
/// forgotten.
pub fn flush(db: i32) -> Set<u64> {
    INDEX.with(|r| {
        r.recent = None;
        let gone: Vec<_> = r
            .entries
            .iter()
            .filter(|(_, e)| db < 0 || e.place.db == db)
            .map(|(id, e)| (*id, e.wake))
            .collect();
        for (id, wake) in &gone {
            r.entries.remove(id);
            r.wakes.remove(&(*wake, *id));
        }
        r.entries.shrink_to_fit();
        gone.into_iter().map(|(id, _)| id).collect()
    })
}

/// Has every object looked at from `at` on that would be only later.
pub fn look_at_all(at: Micros) {
    INDEX.with(|r| {
        r.recent = None;
        for entry in r.entries.values_mut() {
            entry.wake = entry.wake.min(at);
        }
        r.wakes = r.entries.iter().map(|(id, entry)| (entry.wake, *id)).collect();
    });
}

pub fn place(id: u64) -> Option<(Family, Place)> {
    INDEX.with(|r| r.entries.get(&id).map(|e| (e.family, e.place.clone())))
}

/// The earliest wake.
pub fn earliest() -> Option<Micros> {
    INDEX.with(|r| r.wakes.first().map(|(at, _)| *at))
}

/// Whether what is asked holds for the first object whose wake has come; so it does if there is
/// none.
pub fn next_due(now: Micros, ask: impl FnOnce(&Place) -> bool) -> bool {
    INDEX.with(|r| {
        let first = r.wakes.first().filter(|(at, _)| *at <= now);
        first.and_then(|(_, id)| r.entries.get(id)).is_none_or(|entry| ask(&entry.place))
    })
}

/// An object whose wake has come.
#[derive(Debug)]
pub struct Due {
    pub family: Family,
    pub object: Identity,
    pub place: Place,
    pub wake: Micros,
}

/// Takes the first object whose wake has come; it is forgotten until it is scheduled again.
pub fn take_due(now: Micros) -> Option<Due> {
    INDEX.with(|r| {
        let (wake, id) = *r.wakes.first()?;
        if wake > now {
            return None;
        }
        r.wakes.pop_first();
        r.recent = None;
        let Entry { family, place, .. } = r.entries.remove(&id)?;
        r.shrink();
        Some(Due { family, object: Identity { id }, place, wake })
    })
}

/// At how many objects something is due that has not been done yet. (Their wakes have come.)
pub fn overdue(now: Micros) -> usize {
    INDEX.with(|r| r.wakes.range(..=(now, u64::MAX)).count())
}

pub fn len() -> usize {
    INDEX.with(|r| r.entries.len())
}
