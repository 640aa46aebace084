//! A queue whose every change is also carried to a follower: both must end byte for byte equal.

use super::super::Queue;
use crate::engine::family::Family;
use crate::engine::fencing::FencingCounter;
use crate::engine::journal::{Batch, Blob, Journal};
use crate::engine::object::{Object, apply_batch};

pub fn blobs(batch: &Batch, args: &[&[u8]]) -> Vec<Box<[u8]>> {
    batch
        .blobs
        .iter()
        .map(|b| match b {
            Blob::Arg(n) => args[*n].into(),
            Blob::Bytes(bytes) => bytes.clone(),
        })
        .collect()
}

pub fn snapshot(queue: &Queue) -> Vec<Batch> {
    let mut journal = Journal::new(Family::Queue, true);
    let mut out = vec![];
    queue.snapshot(&mut journal, &mut |j| out.extend(j.take()));
    out.extend(journal.take());
    out
}

pub fn load(batches: &[Batch], fencing: &mut FencingCounter) -> Queue {
    let mut queue = Queue::blank();
    for batch in batches {
        let mut payloads = blobs(batch, &[]).into_iter();
        apply_batch(&mut queue, &batch.head, &mut payloads, fencing).unwrap();
        assert_eq!(payloads.next(), None);
    }
    if !queue.is_partial() {
        queue.check().unwrap();
    }
    queue
}

/// Applies what a command recorded.
pub fn carry(follower: &mut Queue, journal: &mut Journal, args: &[&[u8]]) {
    for batch in journal.take() {
        let mut fencing = FencingCounter::new();
        let mut payloads = blobs(&batch, args).into_iter();
        apply_batch(follower, &batch.head, &mut payloads, &mut fencing).unwrap();
        assert_eq!(payloads.next(), None, "every payload is consumed");
    }
}
