//! Snapshots that nobody vouches for: what loads and is whole is saved again, and that loads as the
//! same object.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::engine::fencing::FencingCounter;
use sluice::engine::gate::Gate;
use sluice::engine::hot::Hot;
use sluice::engine::journal::{Blob, Journal};
use sluice::engine::leaky_bucket::LeakyBucket;
use sluice::engine::object::{Object, apply_batch};
use sluice::engine::queue::Queue;
use sluice::engine::semaphore::Semaphore;
use sluice::engine::token_bucket::TokenBucket;

fuzz_target!(|data: &[u8]| {
    // The second byte is the family's number.
    match data.get(1) {
        Some(1) => load::<TokenBucket>(data),
        Some(2) => load::<LeakyBucket>(data),
        Some(3) => load::<Semaphore>(data),
        Some(4) => load::<Gate>(data),
        Some(5) => load::<Hot>(data),
        Some(6) => load::<Queue>(data),
        _ => {}
    }
});

type Saved = Vec<(Vec<u8>, Vec<Box<[u8]>>)>;

fn saved<O: Object>(object: &O) -> Saved {
    let mut journal = Journal::new(O::FAMILY, true);
    object.snapshot(&mut journal, &mut |_| {});
    let payloads = |blobs: Vec<Blob>| {
        blobs.into_iter().map(|b| if let Blob::Bytes(bytes) = b { bytes } else { Box::default() }).collect()
    };
    journal.take().into_iter().map(|batch| (batch.head, payloads(batch.blobs))).collect()
}

fn load<O: Object>(data: &[u8]) {
    let mut object = O::blank();
    let mut blobs = std::iter::repeat_with(|| Box::from(*b"payload"));
    if apply_batch(&mut object, data, &mut blobs, &mut FencingCounter::new()).is_err() || object.check().is_err() {
        return;
    }
    let first = saved(&object);
    let mut again = O::blank();
    for (head, blobs) in &first {
        let read = apply_batch(&mut again, head, &mut blobs.iter().cloned(), &mut FencingCounter::new());
        assert!(read.is_ok(), "{:?}: its own snapshot is refused: {read:?}", O::FAMILY);
    }
    assert!(again.check().is_ok(), "{:?}: its own snapshot is not whole", O::FAMILY);
    assert_eq!(first, saved(&again), "{:?}: its own snapshot is another object", O::FAMILY);
}
