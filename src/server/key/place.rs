//! Where objects live: noted anew when a key got its value from elsewhere.

use super::expiry::wake;
use super::handle::{family, open_of};
use crate::engine::family::Family;
use crate::engine::object::Object;
use crate::engine::time::Micros;
use crate::server::ffi::context::Ctx;
use crate::server::ffi::events::listen;
use crate::server::ffi::key::Mode;
use crate::server::ffi::strings::Str;
use crate::server::key::value::for_family;
use crate::server::time::clock;
use crate::server::time::due_index::{self, Identity, Place};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Notes where the object in the key lives and when it must be looked at. Its family; None: the key
/// holds none of ours.
pub fn note(ctx: Ctx<'_>, key: Str<'_>) -> Option<Family> {
    let family = family(ctx, key)?;
    let (identity, next) = for_family!(family, noted(ctx, key))?;
    let place = Place { db: ctx.db(), key: key.bytes().into() };
    due_index::relocate(identity.id, place.clone());
    if let Some(at) = next {
        due_index::schedule(family, identity, at, || (place.db, place.key));
    }
    Some(family)
}

fn noted<O: Object>(ctx: Ctx<'_>, name: Str<'_>) -> Option<(Identity, Option<Micros>)> {
    let key = open_of::<O>(ctx, name, Mode::Unseen).ok()?;
    let value = key.value()?;
    Some((value.identity(), wake(&value.object, clock::now())))
}

/// A value of ours was loaded, copied or taken out of its key since a key last got its value from
/// elsewhere: so that may be it. All other keys are left alone: looking at each would cost who has
/// none of ours.
static ON_ITS_WAY: AtomicBool = AtomicBool::new(false);

/// A value of ours may be about to get another key.
pub fn on_its_way() {
    listen();
    ON_ITS_WAY.store(true, Ordering::Relaxed);
}

/// A key has got its value from elsewhere. The family of that; None: it is none of ours.
pub fn arrived(ctx: Ctx<'_>, key: Str<'_>) -> Option<Family> {
    ON_ITS_WAY.swap(false, Ordering::Relaxed).then(|| note(ctx, key)).flatten()
}

/// The database a key is being moved or copied out of; -1: not known.
static ORIGIN: AtomicI32 = AtomicI32::new(-1);

/// A key of this database is being moved or copied to another place.
pub fn came_from(db: i32) {
    ORIGIN.store(db, Ordering::Relaxed);
}

/// Valkey 8.1 tells of a key's arrival in another database with the client itself, which it leaves
/// there (valkey#4024), so that its next commands, or those of our master, would run in the wrong
/// database: the client is sent back. Elsewhere the context is our own.
pub fn go_back(ctx: Ctx<'_>) {
    let db = ORIGIN.swap(-1, Ordering::Relaxed);
    if db >= 0 {
        ctx.select(db);
    }
}
