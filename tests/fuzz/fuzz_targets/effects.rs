//! Carried changes that nobody vouches for, on objects of every family: what is accepted leaves a
//! sound object.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::engine::codec::FORMAT;
use sluice::engine::fencing::FencingCounter;
use sluice::engine::gate::Gate;
use sluice::engine::hot::Hot;
use sluice::engine::journal::Journal;
use sluice::engine::leaky_bucket::LeakyBucket;
use sluice::engine::family::Family;
use sluice::engine::object::{Object, apply_batch};
use sluice::engine::queue::Queue;
use sluice::engine::semaphore::Semaphore;
use sluice::engine::token_bucket::TokenBucket;

fuzz_target!(|data: &[u8]| {
    let Some((&family, rest)) = data.split_first() else { return };
    match Family::ALL[family as usize % Family::ALL.len()] {
        Family::TokenBucket => apply::<TokenBucket>(rest),
        Family::LeakyBucket => apply::<LeakyBucket>(rest),
        Family::Semaphore => apply::<Semaphore>(rest),
        Family::Gate => apply::<Gate>(rest),
        Family::Hot => apply::<Hot>(rest),
        Family::Queue => apply::<Queue>(rest),
    }
});

/// Batches, each with its length in two bytes.
fn apply<O: Object>(mut data: &[u8]) {
    let (mut object, mut fencing) = (O::blank(), FencingCounter::new());
    while let Some((length, rest)) = data.split_first_chunk::<2>() {
        let (batch, after) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
        data = after;
        let head: Vec<u8> = [FORMAT, O::FAMILY as u8].iter().chain(batch).copied().collect();
        // Payloads are not what is looked at here: as many as are wanted.
        let mut blobs = std::iter::repeat_with(|| Box::from(*b"payload"));
        // A refusal may leave the changes before it.
        let _ = apply_batch(&mut object, &head, &mut blobs, &mut fencing);
        let now = 1_900_000_000_000_000;
        let journal = &mut Journal::new(O::FAMILY, true);
        object.settle(now, 100, journal);
        object.next_event();
        object.lifetime(now);
        object.memory();
    }
    if object.check().is_ok() {
        let mut journal = Journal::new(O::FAMILY, true);
        object.snapshot(&mut journal, &mut |_| {});
        object.duplicate();
    }
}
