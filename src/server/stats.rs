//! Numbers for `INFO sluice`, counted on this server since the module was loaded. Atomics, because
//! `free` may run in the background.

use crate::engine::family::Family;
use crate::engine::time::Micros;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// The most events one family counts (`Object::EVENTS`).
pub const MOST_EVENTS: usize = 8;

const FAMILIES: usize = 7;
type PerFamily = [AtomicU64; FAMILIES];
const fn zeros() -> PerFamily {
    [const { AtomicU64::new(0) }; FAMILIES]
}

static BORN: PerFamily = zeros();
static DIED: PerFamily = zeros();
static BYTES: [AtomicI64; FAMILIES] = [const { AtomicI64::new(0) }; FAMILIES];
static GRANTED: PerFamily = zeros();
static REFUSED: PerFamily = zeros();
static EVENTS: [[AtomicU64; MOST_EVENTS]; FAMILIES] =
    [const { [const { AtomicU64::new(0) }; MOST_EVENTS] }; FAMILIES];
static LAG_LAST: AtomicI64 = AtomicI64::new(0);
static LAG_MOST: AtomicI64 = AtomicI64::new(0);
static LONGEST_PIECE: AtomicI64 = AtomicI64::new(0);

/// An object came to be, with so many bytes.
pub fn born(family: Family, bytes: usize) {
    BORN[family as usize].fetch_add(1, Ordering::Relaxed);
    grew(family, i64::try_from(bytes).unwrap_or(0));
}

/// An object is freed, with so many bytes.
pub fn died(family: Family, bytes: usize) {
    DIED[family as usize].fetch_add(1, Ordering::Relaxed);
    grew(family, -i64::try_from(bytes).unwrap_or(0));
}

/// Objects in memory, those that the background has yet to free included.
pub fn objects(family: Family) -> u64 {
    let died = DIED[family as usize].load(Ordering::Relaxed);
    BORN[family as usize].load(Ordering::Relaxed).saturating_sub(died)
}

/// Objects of a family take so many bytes more (or less).
#[inline]
pub fn grew(family: Family, bytes: i64) {
    if bytes != 0 {
        BYTES[family as usize].fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Bytes of a family's objects, keys and the server's own bookkeeping not counted.
pub fn bytes(family: Family) -> u64 {
    u64::try_from(BYTES[family as usize].load(Ordering::Relaxed)).unwrap_or(0)
}

/// A limiter decided. Only the main thread decides, so no locked add is needed on this hot path.
#[inline]
pub fn decision(family: Family, granted: bool) {
    let counter = if granted { &GRANTED[family as usize] } else { &REFUSED[family as usize] };
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

pub fn decisions(family: Family) -> (u64, u64) {
    let i = family as usize;
    (GRANTED[i].load(Ordering::Relaxed), REFUSED[i].load(Ordering::Relaxed))
}

/// Event `i` of `Object::EVENTS` happened `n` times.
pub fn event(family: Family, i: usize, n: u64) {
    EVENTS[family as usize][i].fetch_add(n, Ordering::Relaxed);
}

pub fn events(family: Family, i: usize) -> u64 {
    EVENTS[family as usize][i].load(Ordering::Relaxed)
}

/// The timer came this much after the instant it was aimed at.
pub fn timer_lag(us: Micros) {
    LAG_LAST.store(us, Ordering::Relaxed);
    LAG_MOST.fetch_max(us, Ordering::Relaxed);
}

/// Something that was due took so long, in µs: between two looks at the time, or under one command.
pub fn piece(us: Micros) {
    LONGEST_PIECE.fetch_max(us, Ordering::Relaxed);
}

/// The longest of these.
pub fn longest_piece() -> Micros {
    LONGEST_PIECE.load(Ordering::Relaxed)
}

/// Last and longest lag of the timer, in µs.
pub fn lag() -> (Micros, Micros) {
    (LAG_LAST.load(Ordering::Relaxed), LAG_MOST.load(Ordering::Relaxed))
}
