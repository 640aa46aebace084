//! A census of the keys, when the test clock begins to stand: the server's TTLs do not follow that clock, so the end of every object that goes by
//! itself becomes an instant of ours (see [`wake`]). Those that came while the clock ran, by a command or a load, have not been noted with it.

use super::api::{Ctx, OwnedString, RawString, bytes, rm};
use super::clock;
use super::guard::shield;
use super::key::{Handle, wake};
use super::registry::{self, Identity, Place};
use super::types::for_family;
use crate::engine::object::{Family, Object};
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
                note(ctx, name.raw());
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

/// Notes where the object in the key lives and when it must be looked at. Its family; None: the key holds none of ours.
pub fn note(ctx: Ctx<'_>, key: RawString) -> Option<Family> {
    // SAFETY: the key is live for the call.
    let handle = unsafe { Handle::unseen(ctx, key) };
    let family = handle.family()?;
    let (identity, next) = for_family!(family, noted(&handle))?;
    drop(handle);
    // SAFETY: as above.
    let place = Place { db: ctx.db(), key: unsafe { bytes(key) }.into() };
    registry::relocate(identity.id, place.clone());
    if let Some(at) = next {
        registry::schedule(family, identity, at, || (place.db, place.key));
    }
    Some(family)
}

fn noted<O: Object>(handle: &Handle) -> Option<(Identity, Option<Micros>)> {
    let value = handle.value::<O>().ok()??;
    // SAFETY: the value lives in the open key and nothing else runs meanwhile.
    Some(unsafe { ((*value).identity(), wake(&(*value).object, clock::now())) })
}
