//! A census of the keys, when the test clock begins to stand: the server's TTLs do not follow that clock, so the end of every object that goes by
//! itself becomes an instant of ours (see [`wake`]). Those that came while the clock ran, by a command or a load, have not been noted with it.

use super::api::{Ctx, OwnedString, RawString, bytes, rm};
use super::clock;
use super::guard::shield;
use super::info::FAMILIES;
use super::key::{read_value, wake};
use super::registry::{self, Place};
use super::types::for_family;
use crate::engine::object::Object;
use crate::engine::time::Micros;
use redis_module::raw;
use std::ffi::c_void;

/// Has the test clock stand at `at`.
pub fn freeze(ctx: Ctx<'_>, at: Micros) {
    let stood = clock::frozen();
    clock::freeze(at);
    if !stood {
        let before = ctx.db();
        let mut db = 0;
        while ctx.select(db) {
            for name in names(ctx) {
                for (family, _) in FAMILIES {
                    for_family!(family, note(ctx, name.raw()));
                }
            }
            db += 1;
        }
        ctx.select(before);
    }
}

/// The names of all keys of the selected database.
fn names(ctx: Ctx<'_>) -> Vec<OwnedString> {
    let mut names: Vec<OwnedString> = Vec::new();
    // SAFETY: the cursor lives from its creation to its end below; the callback gets the list, which outlives the calls.
    unsafe {
        let cursor = rm!(RedisModule_ScanCursorCreate());
        while rm!(RedisModule_Scan(ctx.raw(), cursor, Some(gather), (&raw mut names).cast())) != 0 {}
        rm!(RedisModule_ScanCursorDestroy(cursor));
    }
    names
}

unsafe extern "C" fn gather(
    _: *mut raw::RedisModuleCtx,
    name: RawString,
    _: *mut raw::RedisModuleKey,
    names: *mut c_void,
) {
    // SAFETY: the list that `names` handed over; the name is live during the callback.
    shield(|| unsafe { (*names.cast::<Vec<OwnedString>>()).push(OwnedString::new(bytes(name))) }, || ());
}

/// Notes where the object in the key lives and when it must be looked at; false if the key holds none of this family.
pub fn note<O: Object>(ctx: Ctx<'_>, key: RawString) -> bool {
    // SAFETY: the key is live for the call.
    let found =
        unsafe { read_value::<O, _>(ctx, key, |v| v.map(|v| (v.identity(), wake(&v.object, clock::now())))) };
    let Ok(Some((identity, next))) = found else { return false };
    // SAFETY: as above.
    let place = Place { db: ctx.db(), key: unsafe { bytes(key) }.into() };
    registry::relocate(identity.id, place.clone());
    if let Some(at) = next {
        registry::schedule(O::FAMILY, identity, at, || (place.db, place.key));
    }
    true
}
