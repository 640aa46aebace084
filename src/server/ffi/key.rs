//! Open keys: a safe handle for each way in which the module opens one.
//!
//! While a handle is open, nothing is called that could run code of others or delete the key (no
//! notification, no command): that is what the borrowed values rest on. `key/open.rs` keeps to it.

use super::api::{OK, rm};
use super::context::Ctx;
use super::data_type::{DataType, handle_of, index_of};
use super::optional::open_key_modes;
use super::strings::Str;
use lazy_static::lazy_static;
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// How a key is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A client reads it: a hit or a miss.
    Read,
    /// A client's command may change it.
    Write,
    /// The module may change it by itself: nobody has used it.
    Quiet,
    /// The module looks at it by itself: nothing tells of that, no statistics, no event, no idle
    /// time.
    Unseen,
}

impl Mode {
    fn flags(self) -> c_int {
        const WRITE: u32 = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;
        let flags = match self {
            Self::Read => raw::REDISMODULE_READ,
            Self::Write => WRITE,
            Self::Quiet => WRITE | raw::REDISMODULE_OPEN_KEY_NOTOUCH,
            Self::Unseen => *UNSEEN,
        };
        flags.cast_signed()
    }
}

lazy_static! {
    /// What opens a key without a trace. Before 7.2 there is no such mode, but who opens to write
    /// is not counted.
    static ref UNSEEN: u32 = {
        const SILENT: u32 = raw::REDISMODULE_OPEN_KEY_NONOTIFY | raw::REDISMODULE_OPEN_KEY_NOSTATS;
        let how = if open_key_modes() & SILENT == SILENT { SILENT } else { raw::REDISMODULE_WRITE };
        raw::REDISMODULE_READ | raw::REDISMODULE_OPEN_KEY_NOTOUCH | how
    };
}

/// An open key, closed on drop. Null: there is no such key, or it is closed.
pub struct Key(*mut raw::RedisModuleKey);

impl Key {
    #[inline]
    pub fn open(ctx: Ctx<'_>, name: Str<'_>, mode: Mode) -> Self {
        // SAFETY: a live context and string.
        Self(unsafe { rm!(RedisModule_OpenKey(ctx.raw(), name.raw(), mode.flags())).cast() })
    }

    pub fn is_empty(&self) -> bool {
        // SAFETY: an open key; that of a missing key may be null.
        unsafe { rm!(RedisModule_KeyType(self.0)) == raw::REDISMODULE_KEYTYPE_EMPTY as c_int }
    }

    /// The index of the data type of ours that the key holds; None: of none, or there is no key.
    pub fn type_index(&self) -> Option<usize> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: an open key.
        index_of(unsafe { rm!(RedisModule_ModuleTypeGetType(self.0)) })
    }

    /// The key with the value in it. An error if the key holds something else.
    #[inline]
    pub fn of<T: DataType>(self) -> Result<KeyOf<T>, OtherType> {
        if self.0.is_null() {
            return Ok(KeyOf { key: self, value: null_mut() });
        }
        // SAFETY: an open key; what it holds of a type of ours is a value of that type.
        unsafe {
            // Of no type of a module: it may be empty.
            if rm!(RedisModule_ModuleTypeGetType(self.0)) == handle_of::<T>() {
                let value = rm!(RedisModule_ModuleTypeGetValue(self.0)).cast();
                return Ok(KeyOf { key: self, value });
            }
        }
        if self.is_empty() { Ok(KeyOf { key: self, value: null_mut() }) } else { Err(OtherType) }
    }

    fn close(&mut self) {
        let key = std::mem::replace(&mut self.0, null_mut());
        if !key.is_null() {
            // SAFETY: opened by `open`, and closed once.
            unsafe { rm!(RedisModule_CloseKey(key)) }
        }
    }

    /// Deletes what is in the key, which is open for writing.
    pub fn delete(&mut self) {
        // SAFETY: an open key.
        unsafe { rm!(RedisModule_DeleteKey(self.0)) };
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.close();
    }
}

/// The key holds a value of another type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherType;

/// An open key that holds a value of this type, or nothing.
pub struct KeyOf<T> {
    key: Key,
    /// The value in the key, as long as it is open; null: there is none.
    value: *mut T,
}

// In this impl, SAFETY of each access to `value`: it is the value of the key that is still open,
// only `self` reaches it (see the head of the file), and it is borrowed with `self`.
impl<T: DataType> KeyOf<T> {
    #[inline]
    pub fn value(&self) -> Option<&T> {
        // SAFETY: see above.
        unsafe { self.value.as_ref() }
    }

    #[inline]
    pub fn value_mut(&mut self) -> Option<&mut T> {
        // SAFETY: see above.
        unsafe { self.value.as_mut() }
    }

    /// Makes a value the key's, which is open for writing and empty; the value comes back if the
    /// server does not take it.
    pub fn put(&mut self, value: Box<T>) -> Result<&mut T, Box<T>> {
        let value = Box::into_raw(value);
        // SAFETY: an open key, our type; the server owns the value from here on (the type's free
        // hook).
        let taken = unsafe {
            rm!(RedisModule_ModuleTypeSetValue(self.key.0, handle_of::<T>(), value.cast::<c_void>()))
        };
        if taken == OK {
            self.value = value;
            // SAFETY: see above.
            Ok(unsafe { &mut *value })
        } else {
            // SAFETY: the server did not take the value; it is still ours.
            Err(unsafe { Box::from_raw(value) })
        }
    }

    /// Deletes the key, which is open for writing.
    pub fn delete(&mut self) {
        self.value = null_mut();
        self.key.delete();
    }

    /// Gives the key, which is open for writing, a TTL (unix ms), or takes it away (-1).
    pub fn expire(&mut self, at: i64) {
        // SAFETY: an open key.
        unsafe { rm!(RedisModule_SetAbsExpire(self.key.0, at)) };
    }

    /// Whether the key has a TTL.
    pub fn has_ttl(&self) -> bool {
        // SAFETY: an open key.
        unsafe { rm!(RedisModule_GetExpire(self.key.0)) >= 0 }
    }

    /// Closes the key before it is dropped: from here on code of others may run.
    pub fn close(&mut self) {
        self.value = null_mut();
        self.key.close();
    }
}
