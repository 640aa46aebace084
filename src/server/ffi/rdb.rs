//! What values are written to and read from: RDB files and payloads, the append only file, digests.
//!
//! Each handle is live as long as the hook that was given it runs; buffers are copied by the
//! server.

use super::api::rm;
use super::strings::{OwnedString, Str, adopt};
use redis_module::raw;

pub struct Writer(*mut raw::RedisModuleIO);

impl Writer {
    /// # Safety
    /// `io` is the handle of a save hook, live as long as this.
    pub(super) unsafe fn new(io: *mut raw::RedisModuleIO) -> Self {
        Self(io)
    }

    pub fn unsigned(&self, n: u64) {
        // SAFETY: a live handle.
        unsafe { rm!(RedisModule_SaveUnsigned(self.0, n)) };
    }

    pub fn bytes(&self, bytes: &[u8]) {
        // SAFETY: a live handle.
        unsafe { rm!(RedisModule_SaveStringBuffer(self.0, bytes.as_ptr().cast(), bytes.len())) };
    }
}

pub struct Reader(*mut raw::RedisModuleIO);

impl Reader {
    /// # Safety
    /// `io` is the handle of a load hook, live as long as this.
    pub(super) unsafe fn new(io: *mut raw::RedisModuleIO) -> Self {
        Self(io)
    }

    /// A failed read is noticed by this before anything of it is used.
    fn failed(&self) -> bool {
        // SAFETY: a live handle.
        unsafe { rm!(RedisModule_IsIOError(self.0)) != 0 }
    }

    pub fn unsigned(&self) -> Option<u64> {
        // SAFETY: a live handle.
        let n = unsafe { rm!(RedisModule_LoadUnsigned(self.0)) };
        (!self.failed()).then_some(n)
    }

    pub fn bytes(&self) -> Option<Box<[u8]>> {
        let mut len = 0usize;
        // SAFETY: a live handle; the buffer is allocated for us by the server's allocator.
        let bytes = unsafe { adopt(rm!(RedisModule_LoadStringBuffer(self.0, &mut len)), len) };
        (!self.failed()).then_some(bytes)
    }
}

/// Where the commands that make a key's value are written to.
pub struct Aof<'k> {
    io: *mut raw::RedisModuleIO,
    key: Str<'k>,
}

impl<'k> Aof<'k> {
    /// # Safety
    /// `io` is the handle of a rewrite hook, live as long as this.
    pub(super) unsafe fn new(io: *mut raw::RedisModuleIO, key: Str<'k>) -> Self {
        Self { io, key }
    }

    /// `SLUICE.APPLY key 0 head blobs…`
    pub fn apply<'b>(&self, head: &[u8], blobs: impl Iterator<Item = &'b [u8]>) {
        let owned: Vec<OwnedString> = blobs.map(OwnedString::new).collect();
        let mut raws: Vec<_> = owned.iter().map(|blob| blob.as_str().raw()).collect();
        // SAFETY: a live handle; the format names in order a string, an integer as C string, a
        // buffer with its length and a vector of live strings with its length.
        unsafe {
            rm!(RedisModule_EmitAOF(
                self.io,
                c"SLUICE.APPLY".as_ptr(),
                c"scbv".as_ptr(),
                self.key.raw(),
                c"0".as_ptr(),
                head.as_ptr(),
                head.len(),
                raws.as_mut_ptr(),
                raws.len()
            ));
        }
    }
}

pub struct Digest(*mut raw::RedisModuleDigest);

impl Digest {
    /// # Safety
    /// `md` is the handle of a digest hook, live as long as this.
    pub(super) unsafe fn new(md: *mut raw::RedisModuleDigest) -> Self {
        Self(md)
    }

    pub fn bytes(&self, bytes: &[u8]) {
        // SAFETY: a live handle.
        unsafe { rm!(RedisModule_DigestAddStringBuffer(self.0, bytes.as_ptr().cast(), bytes.len())) };
    }

    pub fn end(&self) {
        // SAFETY: a live handle.
        unsafe { rm!(RedisModule_DigestEndSequence(self.0)) };
    }
}
