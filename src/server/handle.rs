//! A key as the server opens it: how it is opened, and looks at what is in it.

use super::api::{Ctx, OK, OwnedString, RawString, rm};
use super::error::Error;
use super::types::{self, Value};
use super::{stats, unit};
use crate::engine::object::{Family, Object};
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::sync::LazyLock;

/// An open key handle of the server, closed on drop.
pub(super) struct Handle(pub(super) *mut raw::RedisModuleKey);

/// How a key is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// A client reads it: a hit or a miss.
    Read,
    /// A client's command may change it.
    Write,
    /// The module may change it by itself: nobody has used it.
    Quiet,
    /// The module looks at it by itself: nothing tells of that, no statistics, no event, no idle time.
    Unseen,
}

impl Mode {
    fn flags(self) -> u32 {
        const WRITE: u32 = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;
        match self {
            Self::Read => raw::REDISMODULE_READ,
            Self::Write => WRITE,
            Self::Quiet => WRITE | raw::REDISMODULE_OPEN_KEY_NOTOUCH,
            Self::Unseen => *UNSEEN,
        }
    }
}

/// What opens a key without a trace. Before 7.2 there is no such mode, but who opens to write is not counted.
static UNSEEN: LazyLock<u32> = LazyLock::new(|| {
    const SILENT: u32 = raw::REDISMODULE_OPEN_KEY_NONOTIFY | raw::REDISMODULE_OPEN_KEY_NOSTATS;
    // SAFETY: reading a pointer; a function without arguments.
    let known = unsafe { raw::RedisModule_GetOpenKeyModesAll.map_or(0, |modes| modes()) }.cast_unsigned();
    let how = if known & SILENT == SILENT { SILENT } else { raw::REDISMODULE_WRITE };
    raw::REDISMODULE_READ | raw::REDISMODULE_OPEN_KEY_NOTOUCH | how
});

impl Handle {
    /// # Safety
    /// `name` is a live string of the server.
    pub(super) unsafe fn open(ctx: Ctx<'_>, name: RawString, mode: Mode) -> Self {
        let flags = mode.flags().cast_signed() as c_int;
        // SAFETY: a live context and string.
        let handle = Self(unsafe { rm!(RedisModule_OpenKey(ctx.raw(), name, flags)).cast() });
        if unit::pending() && handle.is_empty() {
            // SAFETY: a live string.
            unsafe { unit::found_missing(ctx, name) };
        }
        handle
    }

    /// For a look that leaves no trace.
    ///
    /// # Safety
    /// `name` is a live string of the server.
    pub(super) unsafe fn unseen(ctx: Ctx<'_>, name: RawString) -> Self {
        // SAFETY: passed on.
        unsafe { Self::open(ctx, name, Mode::Unseen) }
    }

    /// Of which family the value is; None: of none, or there is no key.
    pub(super) fn family(&self) -> Option<Family> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: an open key handle.
        let found = unsafe { rm!(RedisModule_ModuleTypeGetType(self.0)) };
        Family::ALL.into_iter().find(|family| !found.is_null() && types::handle(*family) == found)
    }

    pub(super) fn is_empty(&self) -> bool {
        // SAFETY: an open key handle; that of a missing key may be null.
        unsafe { rm!(RedisModule_KeyType(self.0)) == raw::REDISMODULE_KEYTYPE_EMPTY as c_int }
    }

    /// The value, if the key holds one of family `O`.
    pub(super) fn value<O: Object>(&self) -> Result<Option<*mut Value<O>>, Error> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: an open key handle.
        unsafe {
            // Of no type of a module: it may be empty.
            if rm!(RedisModule_ModuleTypeGetType(self.0)) == types::handle(O::FAMILY) {
                return Ok(Some(rm!(RedisModule_ModuleTypeGetValue(self.0)).cast()));
            }
        }
        if self.is_empty() { Ok(None) } else { Err(Error::WRONG_TYPE) }
    }

    /// Makes a value the key's, which is open for writing and empty; the value comes back if the server does not take it.
    pub(super) fn put<O: Object>(&self, value: Box<Value<O>>) -> Result<*mut Value<O>, Box<Value<O>>> {
        let value = Box::into_raw(value);
        // SAFETY: an open key, our type; the server owns the value from here on (freed by the type's free hook).
        let taken = unsafe {
            rm!(RedisModule_ModuleTypeSetValue(self.0, types::handle(O::FAMILY), value.cast::<c_void>()))
        };
        if taken == OK {
            // SAFETY: the value in the open key.
            stats::born(O::FAMILY, unsafe { (*value).memory() });
            Ok(value)
        } else {
            // SAFETY: the server did not take the value; it is still ours.
            Err(unsafe { Box::from_raw(value) })
        }
    }

    /// Gives the key a TTL (unix ms), or takes it away (-1).
    ///
    /// # Safety
    /// The key is open for writing and holds `value`.
    pub(super) unsafe fn expire<O>(&self, value: *mut Value<O>, ms: i64) {
        // SAFETY: by the contract.
        unsafe {
            rm!(RedisModule_SetAbsExpire(self.0, ms));
            (*value).expires_ms = ms.max(0);
        }
    }

    pub(super) fn close(&mut self) {
        let handle = std::mem::replace(&mut self.0, std::ptr::null_mut());
        if !handle.is_null() {
            // SAFETY: opened by `open`, and closed once.
            unsafe { rm!(RedisModule_CloseKey(handle)) }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

/// What of the key's family is asked: does it hold one, something else, or nothing?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    Nothing,
    Ours,
    Other,
}

/// Looks at a key without touching its LRU, TTL or statistics.
///
/// # Safety
/// `name` is a live string of the server.
pub unsafe fn holds<O: Object>(ctx: Ctx<'_>, name: RawString) -> Holds {
    // SAFETY: passed on.
    let handle = unsafe { Handle::unseen(ctx, name) };
    match handle.value::<O>() {
        Ok(None) => Holds::Nothing,
        Ok(Some(_)) => Holds::Ours,
        Err(_) => Holds::Other,
    }
}

/// Whether there is a key of this name, of whichever type.
pub fn is_there(ctx: Ctx<'_>, name: &OwnedString) -> bool {
    // SAFETY: `name` is live.
    !unsafe { Handle::unseen(ctx, name.raw()) }.is_empty()
}

/// A client reads the object in a key (None: no key), as it is; if something is due on it, as it is after `settle`.
///
/// # Safety
/// `name` is a live string of the server.
pub unsafe fn read<O: Object, R>(
    ctx: Ctx<'_>,
    name: RawString,
    due: impl FnOnce(&O) -> bool,
    settle: impl FnOnce() -> Result<(), Error>,
    f: impl FnOnce(Option<&O>) -> R,
) -> Result<R, Error> {
    // SAFETY: passed on.
    let mut handle = unsafe { Handle::open(ctx, name, Mode::Read) };
    // SAFETY: the value lives in the open key and nothing else runs while it is looked at.
    let object = handle.value::<O>()?.map(|v| unsafe { &(*v).object });
    if !object.is_some_and(due) {
        return Ok(f(object));
    }
    handle.close();
    settle()?;
    // SAFETY: passed on. It has been counted.
    unsafe { read_value::<O, R>(ctx, name, |value| f(value.map(|v| &v.object))) }
}

/// Reads what is in a key, with what this server notes about it (None: no key), as it is. Nobody but the module has looked at it.
///
/// # Safety
/// `name` is a live string of the server.
pub unsafe fn read_value<O: Object, R>(
    ctx: Ctx<'_>,
    name: RawString,
    f: impl FnOnce(Option<&Value<O>>) -> R,
) -> Result<R, Error> {
    // SAFETY: passed on.
    let handle = unsafe { Handle::unseen(ctx, name) };
    // SAFETY: the value lives in the open key and nothing else runs while `f` looks at it.
    Ok(f(handle.value::<O>()?.map(|v| unsafe { &*v })))
}

/// Looks at the object in a key by a name of our own, as it is; a blank one if there is no key.
pub fn look<O: Object, R>(ctx: Ctx<'_>, name: &OwnedString, f: impl FnOnce(&O) -> R) -> Result<R, Error> {
    // SAFETY: `name` is live.
    unsafe {
        read_value::<O, _>(ctx, name.raw(), |value| match value {
            Some(value) => f(&value.object),
            None => f(&O::blank()),
        })
    }
}

/// Changes what is not state of the object of this number, if it is the one in the key: who waits on it. Nothing is settled, carried or signalled.
pub fn note<O: Object>(ctx: Ctx<'_>, key: &[u8], id: u64, f: impl FnOnce(&mut O)) {
    let name = OwnedString::new(key);
    // SAFETY: `name` is live. The value lives in the open key and nothing else runs while `f` changes it.
    unsafe {
        let handle = Handle::open(ctx, name.raw(), Mode::Quiet);
        if let Ok(Some(value)) = handle.value::<O>()
            && (*value).id == id
        {
            let before = (*value).memory();
            f(&mut (*value).object);
            stats::grew(O::FAMILY, (*value).memory() as i64 - before as i64);
        }
    }
}
