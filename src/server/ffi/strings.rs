//! Strings of the server: borrowed ones, such as a command's arguments, and our own.

use super::api::rm;
use redis_module::raw;
use std::ffi::{c_char, c_void};
use std::marker::PhantomData;

/// A string of the server that is live and unchanged for `'a`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Str<'a> {
    raw: *mut raw::RedisModuleString,
    life: PhantomData<&'a [u8]>,
}

impl<'a> Str<'a> {
    /// # Safety
    /// `raw` is a live string of the server, which is neither freed nor changed for `'a`.
    pub(super) unsafe fn new(raw: *mut raw::RedisModuleString) -> Self {
        Self { raw, life: PhantomData }
    }

    /// The arguments that the server hands to a callback.
    ///
    /// # Safety
    /// `argv` has `argc` strings as [`Str::new`] wants them.
    pub(super) unsafe fn slice(argv: *mut *mut raw::RedisModuleString, argc: i32) -> &'a [Self] {
        let len = usize::try_from(argc).unwrap_or(0);
        if argv.is_null() {
            return &[];
        }
        // SAFETY: by the contract; a Str is laid out as the pointer in it.
        unsafe { std::slice::from_raw_parts(argv.cast::<Self>(), len) }
    }

    pub(super) fn raw(self) -> *mut raw::RedisModuleString {
        self.raw
    }

    #[inline]
    pub fn bytes(self) -> &'a [u8] {
        let mut len = 0usize;
        // SAFETY: a live string; the server answers its buffer and length, which stay for `'a`.
        unsafe {
            let ptr = rm!(RedisModule_StringPtrLen(self.raw, &mut len));
            if ptr.is_null() { &[] } else { std::slice::from_raw_parts(ptr.cast(), len) }
        }
    }

    /// Whether two are the same object of the server; then they have the same bytes.
    pub fn is(self, other: Str<'_>) -> bool {
        std::ptr::eq(self.raw, other.raw)
    }
}

/// A string of the server that is ours, or one that we keep alive; let go on drop.
#[repr(transparent)]
pub struct OwnedString(*mut raw::RedisModuleString);

impl OwnedString {
    pub fn new(bytes: &[u8]) -> Self {
        // SAFETY: a null context is allowed: the string is then ours alone to free. The bytes are
        // copied.
        Self(unsafe {
            rm!(RedisModule_CreateString(std::ptr::null_mut(), bytes.as_ptr().cast(), bytes.len()))
        })
    }

    /// Keeps a string of the server alive, without a copy.
    pub fn keep(string: Str<'_>) -> Self {
        // SAFETY: a live string; a null context is allowed: it is then ours to let go once.
        unsafe { rm!(RedisModule_RetainString(std::ptr::null_mut(), string.raw)) };
        Self(string.raw)
    }

    pub fn as_str(&self) -> Str<'_> {
        Str { raw: self.0, life: PhantomData }
    }

    /// Borrows several.
    pub fn as_strs(strings: &[Self]) -> &[Str<'_>] {
        // SAFETY: both types are laid out as the one pointer in them, and a Str lives no longer
        // than what it is borrowed from.
        unsafe { std::slice::from_raw_parts(strings.as_ptr().cast::<Str<'_>>(), strings.len()) }
    }

    pub fn bytes(&self) -> &[u8] {
        self.as_str().bytes()
    }
}

impl Drop for OwnedString {
    fn drop(&mut self) {
        // SAFETY: made by `new` or `keep` with a null context, and let go nowhere else.
        unsafe { rm!(RedisModule_FreeString(std::ptr::null_mut(), self.0)) }
    }
}

/// The strings as the server takes a vector of them, which it only reads.
pub(super) fn vector(strings: &[Str<'_>]) -> *mut *mut raw::RedisModuleString {
    // A Str is laid out as the pointer in it.
    strings.as_ptr().cast::<*mut raw::RedisModuleString>().cast_mut()
}

/// Builds an owned slice from a buffer the server allocated for us, without copying.
///
/// # Safety
/// `ptr` is null or was allocated by the server's `RedisModule_Alloc` with room for `len` bytes,
/// and is owned by the caller.
pub unsafe fn adopt(ptr: *mut c_char, len: usize) -> Box<[u8]> {
    if ptr.is_null() || len == 0 {
        if !ptr.is_null() {
            // SAFETY: ours to free; a boxed slice of length 0 would never free it.
            unsafe { rm!(RedisModule_Free(ptr.cast::<c_void>())) };
        }
        return Box::default();
    }
    // SAFETY: our global allocator is the server's (alloc.rs), so a block of `len` bytes with
    // alignment 1 may be freed by Box; the buffer is initialised by the server and nobody else
    // holds it.
    unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(ptr.cast::<u8>(), len)) }
}
