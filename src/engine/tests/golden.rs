//! Golden bytes: every change that is carried, and a snapshot of each family, byte for byte. What
//! stands here is in files and on replicas by now: a change that moves a byte needs a new
//! [`FORMAT`] and must go on reading these. The queue's changes are in `queue/tests/golden.rs`.
//!
//! The lists are exhaustive: a change without bytes here does not compile.

use crate::engine::bucket::Limits;
use crate::engine::codec::{FORMAT, Reader, encode};
use crate::engine::family::Family;
use crate::engine::fencing::FencingCounter;
use crate::engine::gate::{self, Gate};
use crate::engine::hot::{self, Hot};
use crate::engine::journal::{Batch, Blob, Journal};
use crate::engine::leaky_bucket::{self, LeakyBucket};
use crate::engine::object::{Object, apply_batch};
use crate::engine::queue::{ClaimOptions, Id, PushOptions, Queue};
use crate::engine::semaphore::{self, Ask, Semaphore};
use crate::engine::token_bucket::{self, Hold, Mode, TokenBucket};

const NOW: i64 = 1_900_000_000_000_000;
const NUMBER: u64 = 1_900_000_000_000_000;

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// A change as it is carried.
pub fn wire<T: serde::Serialize>(effect: &T) -> String {
    let mut out = Vec::new();
    encode(effect, &mut out);
    hex(&out)
}

/// Each variant with an example and its bytes. There is no wildcard among the patterns.
macro_rules! golden {
    ($type:ty: $($pattern:pat => $example:expr => $bytes:literal),+ $(,)?) => {{
        // What has no line does not compile.
        fn exhaustive(effect: &$type) {
            match effect { $($pattern => {}),+ }
        }
        let mut wrong = Vec::new();
        $(
            let example: $type = $example;
            exhaustive(&example);
            assert!(matches!(example, $pattern), "{} is no example of {}", stringify!($example), stringify!($pattern));
            let found = $crate::engine::tests::golden::wire(&example);
            if found != $bytes {
                wrong.push(format!("{} is {found}, not {}", stringify!($pattern), $bytes));
            }
        )+
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }};
}
pub(crate) use golden;

fn limits() -> Limits {
    Limits::new(10, 1, 1000).unwrap()
}

#[test]
fn the_changes_of_a_token_bucket() {
    use token_bucket::Effect;
    golden!(Effect:
        Effect::Level { .. } => Effect::Level { units: 5_000_000, at: NOW } => "00fc80969800fd0080257214800d00",
        Effect::Begin { .. } => Effect::Begin { limits: limits(), units: -3, at: NOW } => "010a01fbe80305fd0080257214800d00",
        Effect::Warm { .. } => Effect::Warm { units: 7, part: 9, at: NOW, ramp: Some(NOW - 1) } => "020e09fd0080257214800d0001fdfe7f257214800d00",
        Effect::Pinned { .. } => Effect::Pinned { limits: limits(), warmup: 500, units: 1, part: 0, at: NOW, ramp: None } => "030a01fbe803fbe8030200fd0080257214800d0000",
        Effect::Ban { .. } => Effect::Ban { until: NOW } => "04fd0080257214800d00",
        Effect::Hold { .. } => Effect::Hold { id: NUMBER, hold: Hold { cost: 4, until: NOW, refund: true } } => "05fd00c012390ac0060008fd0080257214800d0001",
        Effect::Closed { .. } => Effect::Closed { id: NUMBER } => "06fd00c012390ac00600",
        Effect::Reset => Effect::Reset => "07",
    );
}

#[test]
fn the_changes_of_a_leaky_bucket() {
    use leaky_bucket::Effect;
    golden!(Effect:
        Effect::Level { .. } => Effect::Level { inside: 5_000_000, at: NOW } => "00fc80969800fd0080257214800d00",
        Effect::Begin { .. } => Effect::Begin { limits: limits(), inside: 3, at: NOW } => "010a01fbe80306fd0080257214800d00",
        Effect::Pinned { .. } => Effect::Pinned { limits: limits(), inside: 0, at: NOW } => "020a01fbe80300fd0080257214800d00",
        Effect::Reset => Effect::Reset => "03",
    );
}

#[test]
fn the_changes_of_a_semaphore() {
    use semaphore::Effect;
    golden!(Effect:
        Effect::Set { .. } => Effect::Set { limit: 3, lease_ms: 5000 } => "0006fb1027",
        Effect::Granted { .. } => Effect::Granted { receipt: NUMBER, count: 2, until: NOW, limit: 3, owner: Box::from(*b"me") } => "01fd00c012390ac0060004fd0080257214800d0006026d65",
        Effect::Renewed { .. } => Effect::Renewed { receipt: NUMBER, until: NOW } => "02fd00c012390ac00600fd0080257214800d00",
        Effect::Ended { .. } => Effect::Ended { receipt: NUMBER } => "03fd00c012390ac00600",
        Effect::Drawn { .. } => Effect::Drawn { receipt: NUMBER } => "04fd00c012390ac00600",
    );
}

#[test]
fn the_changes_of_a_gate() {
    use gate::Effect;
    // Its stages are made by its commands only.
    let set = || {
        let set = bytes(GATE_SET);
        let mut input = Reader::new(&set);
        Gate::blank().read(&mut input, &mut std::iter::empty(), &mut FencingCounter::new()).unwrap()
    };
    golden!(Effect:
        Effect::Set { .. } => set() => "0003027462000a01fbe803fbe803fc002d310100fdffffffffffffff3f00026c62010a01fbe80300000373656d0206fb1027",
        Effect::Bucket { .. } => Effect::Bucket { stage: 1, units: 7, part: 9, at: NOW, ramp: Some(NOW) } => "01010e09fd0080257214800d0001fd0080257214800d00",
        Effect::Leaky { .. } => Effect::Leaky { stage: 1, inside: 7, at: NOW } => "02010efd0080257214800d00",
        Effect::Granted { .. } => Effect::Granted { receipt: NUMBER, until: NOW } => "03fd00c012390ac00600fd0080257214800d00",
        Effect::Ended { .. } => Effect::Ended { receipt: NUMBER } => "04fd00c012390ac00600",
        Effect::Drawn { .. } => Effect::Drawn { receipt: NUMBER } => "05fd00c012390ac00600",
    );
}

#[test]
fn the_changes_of_a_hot_list() {
    use hot::Effect;
    golden!(Effect<'static>:
        Effect::Set { .. } => Effect::Set { limits: limits(), max: 50, at: NOW } => "000a01fbe80364fd0080257214800d00",
        Effect::Except { .. } => Effect::Except { subject: b"s".into(), limits: Some(limits()) } => "010173010a01fbe803",
        Effect::Taken { .. } => Effect::Taken { subject: b"s".into(), units: 7, at: NOW } => "0201730efd0080257214800d00",
        Effect::Drop { .. } => Effect::Drop { subject: b"s".into(), counted: true } => "03017301",
        Effect::Forget { .. } => Effect::Forget { count: 3 } => "0403",
        Effect::Forgotten { .. } => Effect::Forgotten { total: 3 } => "0503",
        Effect::Rule { .. } => Effect::Rule { limits: limits(), max: 50, at: Some(NOW) } => "060a01fbe8036401fd0080257214800d00",
        Effect::Converted { .. } => Effect::Converted { left: 3 } => "0703",
        Effect::Evict { .. } => Effect::Evict { count: 3 } => "0803",
    );
}

/// The carried form of a gate's stages, without format and family.
const GATE_SET: &str =
    "0003027462000a01fbe803fbe803fc002d310100fdffffffffffffff3f00026c62010a01fbe80300000373656d0206fb1027";

// ---------------------------------------------------------------- whole objects

/// A snapshot, batch by batch: its head, then its payloads.
fn snapshot<O: Object>(object: &O) -> String {
    let mut journal = Journal::new(O::FAMILY, true);
    object.snapshot(&mut journal, &mut |_| {});
    let shown = |batch: &Batch| {
        let payloads = batch.blobs.iter().map(|blob| match blob {
            Blob::Bytes(bytes) => hex(bytes),
            Blob::Arg(n) => panic!("a snapshot has no arguments, and no {n}-th"),
        });
        std::iter::once(hex(&batch.head)).chain(payloads).collect::<Vec<_>>().join("+")
    };
    journal.take().iter().map(shown).collect::<Vec<_>>().join(" ")
}

/// The object has these bytes, and what is read from them is the same object.
#[track_caller]
fn is_saved_as<O: Object>(object: &O, golden: &str) {
    assert_eq!(snapshot(object), golden, "{:?}", O::FAMILY);
    let mut read = O::blank();
    for batch in golden.split(' ') {
        let mut parts = batch.split('+').map(bytes);
        let head = parts.next().unwrap();
        apply_batch(&mut read, &head, &mut parts.map(Vec::into_boxed_slice), &mut FencingCounter::new())
            .unwrap();
    }
    read.check().unwrap();
    assert_eq!(snapshot(&read), golden, "{:?}, read again", O::FAMILY);
}

#[test]
fn a_snapshot_of_each_family() {
    // What has no arm does not compile.
    for family in Family::ALL {
        let journal = &mut Journal::new(family, false);
        match family {
            Family::TokenBucket => {
                let mut o = TokenBucket::blank();
                o.take(Some(limits()), 4, Mode::Whole, NOW, journal).unwrap();
                o.apply(token_bucket::Effect::Hold {
                    id: NUMBER,
                    hold: Hold { cost: 4, until: NOW + 5, refund: true },
                });
                o.apply(token_bucket::Effect::Ban { until: NOW + 9 });
                is_saved_as(
                    &o,
                    "0101010a01fbe803fc001bb700fd0080257214800d0004fd1280257214800d0005fd00c012390ac0060008fd0a80257214800d0001",
                );
            }
            Family::LeakyBucket => {
                let mut o = LeakyBucket::blank();
                o.set(limits(), NOW, journal);
                o.take(None, 4, None, NOW, journal).unwrap();
                is_saved_as(&o, "0102020a01fbe803fc00127a00fd0080257214800d00");
            }
            Family::Semaphore => {
                let mut o = Semaphore::blank();
                o.set(3, 5000, NOW, journal);
                o.acquire(Ask { limit: None, count: 2, lease_ms: Some(7000), owner: b"me" }, NOW, journal)
                    .unwrap();
                is_saved_as(&o, "01030006fb102701fd00c012390ac0060004fd801ffb7214800d0006026d65");
            }
            Family::Gate => {
                let mut o = Gate::blank();
                let stages: [(&[u8], gate::Config); 3] = [
                    (b"tb", gate::Config::Bucket { limits: limits(), warmup: 500 }),
                    (b"lb", gate::Config::Leaky { limits: limits() }),
                    (b"sem", gate::Config::Permits { limit: 3, lease: 5000 }),
                ];
                o.set(&stages, NOW, journal);
                o.pass(1, None, NOW, journal);
                is_saved_as(
                    &o,
                    "01040003027462000a01fbe803fbe803fc808d5b0000fd0080257214800d0001fd0080257214800d00026c62010a01fbe803fc80841e00fd0080257214800d000373656d0206fb102703fd00c012390ac00600fd8016be7214800d00",
                );
            }
            Family::Hot => {
                let mut o = Hot::blank();
                o.set(limits(), 50, NOW, journal);
                o.except(b"exception", Limits::new(5, 5, 500).unwrap(), NOW, journal).ok();
                for subject in [&b"one"[..], b"two", b"exception"] {
                    assert!(o.take(subject, 2, false, NOW, journal).is_ok());
                }
                is_saved_as(
                    &o,
                    "0105000a01fbe803640005000109657863657074696f6e010505fbf4010209657863657074696f6efcc0c62d00fd0080257214800d0002036f6e65fc0024f400fd0080257214800d00020374776ffc0024f400fd0080257214800d00",
                );
            }
            Family::Queue => {
                let mut o = Queue::blank();
                let dedup = PushOptions { dedup: Some(1_000_000), priority: 2, ..PushOptions::default() };
                o.push(NOW, b"named", 0, Some(Id::Name(Box::from(*b"x"))), &dedup, journal).unwrap();
                let late = PushOptions { due: Some(NOW + 7), group: Some(b"g"), ..PushOptions::default() };
                o.push(NOW, b"late", 0, None, &late, journal).unwrap();
                o.push(NOW, b"ready", 0, None, &PushOptions::default(), journal).unwrap();
                let claim = ClaimOptions { consumer: Some(b"me"), ..ClaimOptions::default() };
                assert_eq!(o.claim(NOW, &claim, journal).len(), 1);
                is_saved_as(
                    &o,
                    "01060afc0087930310000000000000000000000000030100000000000000000000000003040401fd00c012390ac006000000000c01010178fd8004447214800d000d0302fd00c012390ac00600fd0080257214800d00fd0007b97514800d000200fd0080257214800d0001fd0080257214800d000001000001026d650001010301017801fd0e80257214800d000000010167fd0e80257214800d0002fd0080257214800d000000000000000001020001000000fd0080257214800d0003fd0080257214800d0000000000000000000002+6e616d6564+6c617465+7265616479",
                );
            }
        }
    }
}

// ---------------------------------------------------------------- what commands carry

fn head(journal: &mut Journal) -> String {
    hex(&journal.take().remove(0).head)
}

#[test]
fn the_bytes_of_carried_changes_never_move() {
    assert_eq!(FORMAT, 1);
    let mut journal = Journal::new(Family::TokenBucket, true);
    TokenBucket::blank().take(Some(limits()), 4, Mode::Whole, NOW, &mut journal).unwrap();
    let bucket = head(&mut journal);

    let mut journal = Journal::new(Family::Semaphore, true);
    let ask = Ask { limit: Some(2), count: 1, lease_ms: Some(5000), owner: b"me" };
    Semaphore::blank().acquire(ask, NOW, &mut journal).unwrap();
    let semaphore = head(&mut journal);

    let mut journal = Journal::new(Family::Queue, true);
    Queue::blank().push(NOW, b"hello", 2, None, &PushOptions::default(), &mut journal).unwrap();
    assert_eq!([bucket, semaphore, head(&mut journal)], CARRIED);
}

#[test]
fn what_was_written_is_still_read() {
    let mut fencing = FencingCounter::new();
    let mut bucket = TokenBucket::blank();
    apply_batch(&mut bucket, &bytes(CARRIED[0]), &mut std::iter::empty(), &mut fencing).unwrap();
    assert_eq!(bucket.peek(None, 1, NOW).unwrap()[2], 5);
    let mut semaphore = Semaphore::blank();
    apply_batch(&mut semaphore, &bytes(CARRIED[1]), &mut std::iter::empty(), &mut fencing).unwrap();
    assert_eq!(fencing.last(), NOW as u64);
    let mut queue = Queue::blank();
    apply_batch(&mut queue, &bytes(CARRIED[2]), &mut std::iter::once(Box::from(*b"hello")), &mut fencing)
        .unwrap();
    assert_eq!(queue.len(None), 1);
    apply_batch(&mut queue, &bytes(RENUMBER), &mut std::iter::empty(), &mut fencing).unwrap();
    assert_eq!(queue.len(None), 1);
}

/// A queue's places, turns and deaths are numbered anew.
const RENUMBER: &str = "010610";

const CARRIED: [&str; 3] = [
    "0101010a01fbe803fc001bb700fd0080257214800d00",
    "010301fd00c012390ac0060002fd8016be7214800d0004026d65",
    "01060000fd0080257214800d00fd0080257214800d00000101010000000000000000010001",
];
