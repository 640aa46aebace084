//! Golden bytes: the carried form of one change of each family, byte for byte. What stands here is in files and on replicas by now: a change
//! that moves a byte needs a new [`FORMAT`] and must go on reading these.

use crate::engine::bucket::Limits;
use crate::engine::codec::FORMAT;
use crate::engine::fencing::Fencing;
use crate::engine::journal::Journal;
use crate::engine::object::{Family, Object, apply_batch};
use crate::engine::queue::{PushOptions, Queue};
use crate::engine::semaphore::{Ask, Semaphore};
use crate::engine::token_bucket::{Mode, TokenBucket};

const NOW: i64 = 1_900_000_000_000_000;

fn head(journal: &mut Journal) -> String {
    let batch = journal.take().remove(0);
    batch.head.iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn the_bytes_of_carried_changes_never_move() {
    assert_eq!(FORMAT, 1);
    let limits = Limits::new(10, 1, 1000).unwrap();

    let mut journal = Journal::new(Family::TokenBucket, true);
    TokenBucket::blank().take(Some(limits), 4, Mode::Whole, NOW, &mut journal).unwrap();
    let bucket = head(&mut journal);

    let mut journal = Journal::new(Family::Semaphore, true);
    let ask = Ask { limit: Some(2), count: 1, lease_ms: Some(5000), owner: b"me" };
    Semaphore::blank().acquire(ask, NOW, &mut journal).unwrap();
    let semaphore = head(&mut journal);

    let mut journal = Journal::new(Family::Queue, true);
    Queue::blank().push(NOW, b"hello", 2, None, &PushOptions::default(), &mut journal).unwrap();
    assert_eq!([bucket, semaphore, head(&mut journal)], GOLDEN);
}

#[test]
fn what_was_written_is_still_read() {
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
    };
    let mut fencing = Fencing::new();
    let mut bucket = TokenBucket::blank();
    apply_batch(&mut bucket, &bytes(GOLDEN[0]), &mut std::iter::empty(), &mut fencing).unwrap();
    assert_eq!(bucket.peek(None, 1, NOW).unwrap()[2], 5);
    let mut semaphore = Semaphore::blank();
    apply_batch(&mut semaphore, &bytes(GOLDEN[1]), &mut std::iter::empty(), &mut fencing).unwrap();
    assert_eq!(fencing.last(), NOW as u64);
    let mut queue = Queue::blank();
    apply_batch(&mut queue, &bytes(GOLDEN[2]), &mut std::iter::once(Box::from(*b"hello")), &mut fencing)
        .unwrap();
    assert_eq!(queue.len(None), 1);
}

const GOLDEN: [&str; 3] = [
    "0101010a01fbe803fc001bb700fd0080257214800d00",
    "010301fd00c012390ac0060002fd8016be7214800d0004026d65",
    "01060000fd0080257214800d00fd0080257214800d00000101010000000000000000010001",
];
