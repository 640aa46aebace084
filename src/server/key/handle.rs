//! Keys that are only looked at, or of which nothing is changed but what is not state.

use super::value::Value;
use crate::engine::family::Family;
use crate::engine::object::Object;
use crate::server::blocking::access::open;
use crate::server::error::Error;
use crate::server::ffi::context::Ctx;
use crate::server::ffi::key::{KeyOf, Mode};
use crate::server::ffi::strings::{OwnedString, Str};
use crate::server::stats;

/// Opens a key that holds an object of this family, or nothing.
#[inline]
pub fn open_of<O: Object>(ctx: Ctx<'_>, name: Str<'_>, mode: Mode) -> Result<KeyOf<Value<O>>, Error> {
    open(ctx, name, mode).of().map_err(|_| Error::WRONG_TYPE)
}

/// The family whose object is in a key; None: it holds none of ours. It is not seen.
pub fn family(ctx: Ctx<'_>, name: Str<'_>) -> Option<Family> {
    let index = open(ctx, name, Mode::Unseen).type_index()?;
    Family::ALL.into_iter().find(|family| *family as usize == index)
}

/// What of the key's family is asked: does it hold one, something else, or nothing?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    Nothing,
    Ours,
    Other,
}

/// Looks at a key without touching its LRU, TTL or statistics.
pub fn holds<O: Object>(ctx: Ctx<'_>, name: Str<'_>) -> Holds {
    match open_of::<O>(ctx, name, Mode::Unseen) {
        Ok(key) if key.value().is_some() => Holds::Ours,
        Ok(_) => Holds::Nothing,
        Err(_) => Holds::Other,
    }
}

/// A client reads the object in a key (None: no key), as it is; if something is due on it, as it is
/// after `apply_due`.
pub fn read<O: Object, R>(
    ctx: Ctx<'_>,
    name: Str<'_>,
    due: impl FnOnce(&O) -> bool,
    apply_due: impl FnOnce() -> Result<(), Error>,
    f: impl FnOnce(Option<&O>) -> R,
) -> Result<R, Error> {
    let mut key = open_of::<O>(ctx, name, Mode::Read)?;
    let object = key.value().map(|v| &v.object);
    if !object.is_some_and(due) {
        return Ok(f(object));
    }
    key.close();
    apply_due()?;
    // It has been counted.
    read_value::<O, R>(ctx, name, |value| f(value.map(|v| &v.object)))
}

/// Reads what is in a key, with what this server notes about it (None: no key), as it is. Nobody
/// but the module has looked at it.
pub fn read_value<O: Object, R>(
    ctx: Ctx<'_>,
    name: Str<'_>,
    f: impl FnOnce(Option<&Value<O>>) -> R,
) -> Result<R, Error> {
    Ok(f(open_of::<O>(ctx, name, Mode::Unseen)?.value()))
}

/// Looks at the object in a key by a name of our own, as it is; a blank one if there is no key.
pub fn look<O: Object, R>(ctx: Ctx<'_>, name: &OwnedString, f: impl FnOnce(&O) -> R) -> Result<R, Error> {
    read_value::<O, _>(ctx, name.as_str(), |value| match value {
        Some(value) => f(&value.object),
        None => f(&O::blank()),
    })
}

/// Changes what is not state of the object of this number, if it is the one in the key: who waits
/// on it. Nothing is settled, carried or signalled.
pub fn note<O: Object>(ctx: Ctx<'_>, key: &[u8], id: u64, f: impl FnOnce(&mut O)) {
    let name = OwnedString::new(key);
    let Ok(mut key) = open_of::<O>(ctx, name.as_str(), Mode::Quiet) else { return };
    if let Some(value) = key.value_mut().filter(|value| value.id == id) {
        let before = value.memory();
        f(&mut value.object);
        stats::grew(O::FAMILY, value.memory() as i64 - before as i64);
    }
}
