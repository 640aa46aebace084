//! The data types: what is saved, loaded, copied, digested and freed of an object, alike for every
//! family.
//!
//! RDB body: per batch of the snapshot an unsigned `1 + number of blobs`, the head, the blobs; at
//! the end a 0. The head carries its own format version and family, so a payload is checked as
//! hostile input, as a carried effect is.
//!
//! All hooks run on the main thread but `free`, which may run in the background: it only drops the
//! object, and tells the due index when it happens to be on the main thread; there a large object
//! is dropped by a thread of ours. A value that goes has been `unlink`ed before on the main thread,
//! or flushed, which fires an event.

use super::expiry::{schedule, wake};
use super::lazy_free;
use super::place::{came_from, on_its_way};
use super::value::{Value, for_family};
use crate::engine::family::Family;
use crate::engine::footprint::block;
use crate::engine::journal::{Blob, Journal};
use crate::engine::object::{Object, apply_batch};
use crate::server::blocking::{claim_waiters, ends};
use crate::server::ffi::context::Ctx;
use crate::server::ffi::data_type::{Address, DataType, register as create, register_with};
use crate::server::ffi::rdb::{Aof, Digest, Reader, Writer};
use crate::server::replication::{fencing, trust};
use crate::server::stats;
use crate::server::time::{clock, due_index};
use std::ffi::CStr;

/// Registers all types. Only within `RedisModule_OnLoad`.
pub fn register(ctx: Ctx<'_>) -> Result<(), &'static str> {
    for family in Family::ALL {
        if !for_family!(family, register_one(ctx)) {
            return Err("a data type cannot be registered; is another module using its name?");
        }
    }
    Ok(())
}

fn register_one<O: Object>(ctx: Ctx<'_>) -> bool {
    // One type saves what is the whole module's.
    if O::FAMILY == Family::Queue {
        register_with::<Value<O>, fencing::InFiles>(ctx)
    } else {
        create::<Value<O>>(ctx)
    }
}

const fn name(family: Family) -> &'static CStr {
    match family {
        Family::TokenBucket => c"sluice-tb",
        Family::LeakyBucket => c"sluice-lb",
        Family::Semaphore => c"sluice-sm",
        Family::Gate => c"sluice-gt",
        Family::Hot => c"sluice-ht",
        Family::Queue => c"sluice-rq",
    }
}

/// Takes a snapshot apart: calls `each` for every batch.
fn each_batch<O: Object>(object: &O, each: &mut dyn FnMut(&[u8], &[Blob])) {
    let mut journal = Journal::new(O::FAMILY, true);
    let mut flush = |journal: &mut Journal| journal.take().iter().for_each(|b| each(&b.head, &b.blobs));
    object.snapshot(&mut journal, &mut flush);
    flush(&mut journal);
}

fn blob(blob: &Blob) -> &[u8] {
    match blob {
        Blob::Bytes(bytes) => bytes,
        Blob::Arg(_) => &[],
    }
}

/// Reads a whole object; None if anything is wrong with the payload.
fn load<O: Object>(input: &Reader) -> Option<O> {
    /// More blobs than a batch of 64 KiB of head can name.
    const MOST_BLOBS: u64 = 1 << 17;
    let mut object = O::blank();
    let mut brought = fencing::gather(trust::of_payload());
    while let Some(count) = input.unsigned()?.checked_sub(1) {
        if count > MOST_BLOBS {
            return None;
        }
        let head = input.bytes()?;
        let mut broken = false;
        let mut left = count;
        let mut blobs = std::iter::from_fn(|| {
            left = left.checked_sub(1)?;
            let next = input.bytes();
            broken |= next.is_none();
            next
        });
        apply_batch(&mut object, &head, &mut blobs, &mut brought).ok()?;
        if broken || left != 0 {
            return None;
        }
    }
    // Of a queue the rest may still be on its way: slots move by pieces, and are stored and sent to
    // replicas meanwhile.
    if !object.is_partial() {
        object.check().ok()?;
    }
    // Only now: what is refused must not have moved the server's counter.
    fencing::raise(brought.last());
    Some(object)
}

impl<O: Object> DataType for Value<O> {
    const INDEX: usize = O::FAMILY as usize;
    const NAME: &'static CStr = name(O::FAMILY);

    fn save(&self, out: &Writer) {
        each_batch(&self.object, &mut |head, blobs| {
            out.unsigned(1 + blobs.len() as u64);
            out.bytes(head);
            blobs.iter().map(blob).for_each(|b| out.bytes(b));
        });
        out.unsigned(0);
    }

    fn load(input: &Reader) -> Option<Self> {
        let value = Self::arrived(load(input)?);
        stats::born(O::FAMILY, value.memory());
        on_its_way();
        Some(value)
    }

    fn loaded(&self, (db, key): Address<'_>) {
        if let Some(at) = wake(&self.object, clock::now()) {
            due_index::loaded(O::FAMILY, self.identity(), at, || (db, key.into()));
        }
    }

    fn rewrite(&self, out: &Aof<'_>) {
        each_batch(&self.object, &mut |head, blobs| out.apply(head, blobs.iter().map(blob)));
    }

    fn bytes(&self) -> usize {
        /// What the server makes of a value of ours: its own object, and the pointer to the type.
        const SERVERS: usize = 32;
        let timed = if self.object.next_event().is_some() { due_index::EACH } else { 0 };
        let own = size_of::<Self>();
        SERVERS + self.memory() + block(own) - own + timed
    }

    fn digest(&self, into: &Digest) {
        each_batch(&self.object, &mut |head, blobs| {
            into.bytes(head);
            blobs.iter().map(blob).for_each(|b| into.bytes(b));
        });
        into.end();
    }

    fn free(mut self: Box<Self>, main: bool) {
        stats::died(O::FAMILY, self.memory());
        if main {
            due_index::forget(self.id);
            ends::orphaned(&mut self.object);
            let effort = self.object.effort();
            lazy_free::drop_lazily(self, effort);
        }
    }

    fn effort(&self) -> usize {
        // Who waits on it is told by `free`, so that must not happen in the background.
        if self.object.waiting() > 0 { 1 } else { self.object.effort() }
    }

    fn unlink(&self, address: Option<Address<'_>>) {
        // Who waits on the object stays with it: it may have another key already (RENAME, MOVE),
        // else `free` follows.
        on_its_way();
        due_index::forget(self.id);
        if let (true, Some((db, key))) = (O::FAMILY.queue(), address) {
            claim_waiters::look_again(db, key);
        }
    }

    fn copy(&self, from: i32) -> Self {
        let copy = Self::arrived(self.object.duplicate());
        stats::born(O::FAMILY, copy.memory());
        on_its_way();
        came_from(from);
        copy
    }

    fn copied(&self, (db, key): Address<'_>) {
        schedule(self, clock::now(), || (db, key.into()));
    }

    fn defrag(
        &mut self,
        cursor: u64,
        relocate: &mut dyn FnMut(Box<[u8]>) -> Box<[u8]>,
        stop: &mut dyn FnMut() -> bool,
    ) -> Option<u64> {
        self.object.defrag(cursor, relocate, stop)
    }
}
