//! When an object must be looked at again, and when its key's time is over.

use super::value::Value;
use crate::engine::object::{AT_ONCE, Lifetime, Object};
use crate::engine::time::{MAX_INSTANT_MS, MS, Micros};
use crate::server::time::{clock, due_index};

/// Has the timer come when something is due on the object; where it lives is asked for only if it
/// was not known yet.
pub fn schedule<O: Object>(value: &Value<O>, now: Micros, place: impl FnOnce() -> (i32, Box<[u8]>)) {
    schedule_from(value, now, Micros::MIN, place);
}

#[inline]
pub fn schedule_from<O: Object>(
    value: &Value<O>,
    now: Micros,
    not_before: Micros,
    place: impl FnOnce() -> (i32, Box<[u8]>),
) {
    if let Some(at) = wake(&value.object, now) {
        due_index::schedule(O::FAMILY, value.identity(), at.max(not_before), place);
    }
}

/// When the timer must look at an object. While the test clock stands the server's TTLs do not
/// follow it, so the end of an object that goes by itself is an instant of ours; seen from its own
/// last instant, if the clock stepped back behind that.
pub fn wake<O: Object>(object: &O, now: Micros) -> Option<Micros> {
    let event = object.next_event().map(|at| if at == AT_ONCE { now } else { at });
    if !clock::frozen() {
        return event;
    }
    let seen = now.max(object.last_instant());
    match object.lifetime(seen) {
        Lifetime::Until { full, .. } => Some(event.map_or(full, |at| at.min(full))),
        Lifetime::Gone if seen > now => Some(event.map_or(seen, |at| at.min(seen))),
        _ => event,
    }
}

/// The TTL that a key must get at `now`, which was given `noted` last (see [`Value::expires_ms`]):
/// None leaves it, -1 takes it away, else unix ms. Moved only when it is out of bounds: it must
/// cover the instant from which the object says the same as none, by at most one full drain and a
/// second.
pub fn ttl(noted: i64, lifetime: Lifetime, now: Micros) -> Option<i64> {
    /// While the test clock stands the server's clock must not end a key that ours does not.
    const FROZEN_FLOOR: i64 = 60_000;
    let Lifetime::Until { full, slack } = lifetime else { return (noted != 0).then_some(-1) };
    let (shift, floor) = if clock::frozen() {
        let wall = clock::wall();
        (wall.saturating_sub(now), wall / MS + FROZEN_FLOOR)
    } else {
        (0, 0)
    };
    let least = (full.saturating_add(shift).saturating_add(MS - 1) / MS).max(floor);
    let most = full.saturating_add(shift).saturating_add(slack).saturating_add(1_000 * MS) / MS;
    let most = if floor > 0 { most.max(floor.saturating_add(FROZEN_FLOOR)) } else { most };
    let most = most.min(MAX_INSTANT_MS);
    (noted < least.min(most) || noted > most).then_some(most)
}
