//! What decisions cost without a server: one call of the engine, effect and change included, nobody
//! listening unless it says so.
//!
//! `cargo bench --bench engine [-- filter]`. A queue is measured at two depths: what it costs must
//! not depend on them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use sluice::engine::bucket::Limits;
use sluice::engine::family::Family;
use sluice::engine::fencing::FencingCounter;
use sluice::engine::journal::{Batch, Blob, Journal};
use sluice::engine::leaky_bucket::LeakyBucket;
use sluice::engine::object::{Object, apply_batch};
use sluice::engine::queue::{ClaimOptions, PushOptions, Queue, Receipt};
use sluice::engine::time::Micros;
use sluice::engine::token_bucket::{Mode, TokenBucket};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const NOW: Micros = 1_900_000_000_000_000;
const PAYLOAD: [u8; 100] = [b'x'; 100];
const DEPTHS: [(&str, usize); 2] = [("1e3", 1_000), ("1e6", 1_000_000)];

fn limits(capacity: i64, tokens: i64, period_ms: i64) -> Option<Limits> {
    Some(Limits::new(capacity, tokens, period_ms).expect("limits in range"))
}

/// A journal of a server to which nobody listens.
fn silent(family: Family) -> Journal {
    static LAST: AtomicU64 = AtomicU64::new(0);
    Journal::drawing(family, false, |_| LAST.fetch_add(1, Ordering::Relaxed) + 1)
}

fn token_bucket(c: &mut Criterion) {
    let mut group = c.benchmark_group("token bucket");
    let take = |bucket: &mut TokenBucket, limits, now, journal: &mut Journal| {
        bucket.take(black_box(limits), 1, Mode::Whole, now, journal).expect("limits")
    };
    let (wide, other) = (limits(1_000_000_000_000, 1, 60_000), limits(1_000_000_000_000, 7, 30_000));
    let strict = limits(1, 1, 31_622_400_000);

    group.bench_function("take granted", |b| {
        let (mut bucket, mut now) = (TokenBucket::blank(), NOW);
        b.iter(|| {
            now += 1;
            take(&mut bucket, wide, now, &mut silent(Family::TokenBucket))
        });
    });
    group.bench_function("take refused", |b| {
        let (mut bucket, mut now) = (TokenBucket::blank(), NOW);
        take(&mut bucket, strict, now, &mut silent(Family::TokenBucket));
        b.iter(|| {
            now += 1;
            take(&mut bucket, strict, now, &mut silent(Family::TokenBucket))
        });
    });
    group.bench_function("take, limits changed each time", |b| {
        let (mut bucket, mut now) = (TokenBucket::blank(), NOW);
        b.iter(|| {
            now += 1;
            let limits = if now % 2 == 0 { wide } else { other };
            take(&mut bucket, limits, now, &mut silent(Family::TokenBucket))
        });
    });
    group.bench_function("take granted, carried", |b| {
        let (mut bucket, mut now) = (TokenBucket::blank(), NOW);
        b.iter(|| {
            now += 1;
            let mut journal = Journal::new(Family::TokenBucket, true);
            take(&mut bucket, wide, now, &mut journal);
            journal.take()
        });
    });
    group.bench_function("apply a carried take", |b| {
        let mut bucket = TokenBucket::blank();
        let mut journal = Journal::new(Family::TokenBucket, true);
        take(&mut bucket, wide, NOW, &mut journal);
        journal.take();
        take(&mut bucket, wide, NOW + 1, &mut journal);
        let batch = journal.take().pop().expect("an effect");
        let mut fencing = FencingCounter::new();
        b.iter(|| apply_batch(&mut bucket, black_box(&batch.head), &mut std::iter::empty(), &mut fencing));
    });
    group.finish();
}

fn leaky_bucket(c: &mut Criterion) {
    let mut group = c.benchmark_group("leaky bucket");
    for (name, limits) in [
        ("take granted", limits(1_000_000_000_000, 1, 60_000)),
        ("take refused", limits(1, 1, 31_622_400_000)),
    ] {
        group.bench_function(name, |b| {
            let (mut bucket, mut now) = (LeakyBucket::blank(), NOW);
            bucket.take(limits, 1, None, now, &mut silent(Family::LeakyBucket)).expect("limits");
            b.iter(|| {
                now += 1;
                bucket.take(black_box(limits), 1, None, now, &mut silent(Family::LeakyBucket))
            });
        });
    }
    group.finish();
}

fn push(queue: &mut Queue, now: Micros) {
    let journal = &mut silent(Family::Queue);
    queue.push(now, &PAYLOAD, 2, None, &PushOptions::default(), journal).expect("room");
}

fn claim(queue: &mut Queue, now: Micros, no_ack: bool) -> Option<Receipt> {
    let options = ClaimOptions { no_ack, ..ClaimOptions::default() };
    let delivery = queue.claim(now, &options, &mut silent(Family::Queue)).pop().expect("a message");
    Some(Receipt { claim: delivery.claim?, id: delivery.id })
}

fn ack(queue: &mut Queue, now: Micros, receipt: Receipt) {
    queue.ack(now, &[receipt], &mut silent(Family::Queue));
}

fn ready(depth: usize) -> Queue {
    let mut queue = Queue::blank();
    (0..depth).for_each(|_| push(&mut queue, NOW));
    queue
}

/// Times `act` over and over on a queue that `before` has prepared and `after` brings back to its
/// depth.
fn timed(iters: u64, mut before: impl FnMut(), act: impl FnOnce(), mut after: impl FnMut()) -> Duration {
    (0..iters).for_each(|_| before());
    let start = Instant::now();
    act();
    let took = start.elapsed();
    (0..iters).for_each(|_| after());
    took
}

fn queue(c: &mut Criterion) {
    let mut group = c.benchmark_group("queue");
    for (name, depth) in DEPTHS {
        let shared = std::cell::RefCell::new(ready(depth));
        let pushed = || push(&mut shared.borrow_mut(), NOW);
        let taken = |no_ack| claim(&mut shared.borrow_mut(), NOW, no_ack);
        let acked =
            |receipt: Option<Receipt>| ack(&mut shared.borrow_mut(), NOW, receipt.expect("a receipt"));
        group.bench_function(format!("push/{name}"), |b| {
            b.iter_custom(|n| timed(n, || {}, || (0..n).for_each(|_| pushed()), || drop(taken(true))));
        });
        group.bench_function(format!("claim/{name}"), |b| {
            b.iter_custom(|n| {
                let mut held = Vec::with_capacity(n as usize);
                let took = timed(n, pushed, || (0..n).for_each(|_| held.push(taken(false))), || {});
                held.into_iter().for_each(acked);
                took
            });
        });
        group.bench_function(format!("ack/{name}"), |b| {
            b.iter_custom(|n| {
                (0..n).for_each(|_| pushed());
                let held: Vec<_> = (0..n).map(|_| taken(false)).collect();
                timed(n, || {}, || held.into_iter().for_each(acked), || {})
            });
        });
        group.bench_function(format!("push, claim, ack/{name}"), |b| {
            b.iter(|| {
                pushed();
                acked(taken(false));
            });
        });
    }
    group.finish();
}

fn snapshot(queue: &Queue) -> Vec<Batch> {
    let mut journal = Journal::new(Family::Queue, true);
    let mut batches = Vec::new();
    queue.snapshot(&mut journal, &mut |j| batches.extend(j.take()));
    batches.extend(journal.take());
    batches
}

fn load(batches: Vec<Batch>) -> Queue {
    let (mut queue, mut fencing) = (Queue::blank(), FencingCounter::new());
    for batch in batches {
        // A snapshot refers to no arguments of a command.
        let mut blobs = batch.blobs.into_iter().filter_map(|blob| match blob {
            Blob::Bytes(bytes) => Some(bytes),
            Blob::Arg(_) => None,
        });
        apply_batch(&mut queue, &batch.head, &mut blobs, &mut fencing).expect("a sound snapshot");
    }
    queue.check().expect("a sound queue");
    queue
}

fn codec(c: &mut Criterion) {
    const DEPTH: usize = 100_000;
    let mut group = c.benchmark_group("codec");
    let effects = |depth: usize| {
        let mut queue = ready(depth);
        let mut journal = Journal::new(Family::Queue, true);
        queue.push(NOW, &PAYLOAD, 2, None, &PushOptions::default(), &mut journal).expect("room");
        (queue, journal)
    };
    group.bench_function("push carried", |b| {
        let (mut queue, mut journal) = effects(1_000);
        b.iter(|| {
            queue.push(NOW, &PAYLOAD, 2, None, &PushOptions::default(), &mut journal).expect("room");
            journal.take()
        });
    });
    group.throughput(Throughput::Elements(DEPTH as u64));
    group.sample_size(10);
    group.bench_function("snapshot of 100,000", |b| {
        let queue = ready(DEPTH);
        b.iter(|| snapshot(&queue));
    });
    group.bench_function("load of 100,000", |b| {
        let batches = snapshot(&ready(DEPTH));
        b.iter_batched(|| batches.clone(), load, BatchSize::LargeInput);
    });
    group.finish();
}

fn short() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(20)
}

criterion_group! {
    name = engine;
    config = short();
    targets = token_bucket, leaky_bucket, queue, codec
}
criterion_main!(engine);
