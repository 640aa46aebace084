//! How long one waits: a blocked claim after a push, after a due delay and after the end of a
//! lease; a PING while a million delayed messages fall due. Wall time, so other programs on the
//! machine show.

use crate::Bench;
use crate::pipe::{Load, Pipe, bytes_of};
use crate::queue::{PAYLOAD, fill, push_of};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds, from the least to the most.
pub struct Spread {
    pub p50: f64,
    pub p99: f64,
    pub most: f64,
    n: usize,
}

impl Spread {
    pub fn of(mut ms: Vec<f64>) -> Self {
        ms.sort_by(f64::total_cmp);
        let at = |part: f64| ms.get(((ms.len() as f64 * part) as usize).min(ms.len().saturating_sub(1)));
        let value = |part: f64| at(part).copied().unwrap_or(f64::NAN);
        Self { p50: value(0.5), p99: value(0.99), most: value(1.0), n: ms.len() }
    }

    pub fn print(&self, what: &str) {
        println!("{what:<68} {:>8.3} {:>8.3} {:>8.3} {:>8}", self.p50, self.p99, self.most, self.n);
    }
}

fn unix_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_secs_f64() * 1e3
}

/// A client that claims, waiting, and tells when it got each message: unix ms.
fn waiter(port: u16, messages: usize) -> mpsc::Receiver<f64> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut pipe = Pipe::open(port);
        let claim = bytes_of(&["RQ.CLAIM", "q", "NOACK", "BLOCK", "0"]);
        for _ in 0..messages {
            pipe.send(&claim);
            assert!(pipe.reply().starts_with(b"*1"), "a message");
            if tell.send(unix_ms()).is_err() {
                return;
            }
        }
    });
    told
}

pub fn run(bench: &mut Bench<'_>) {
    println!("\n{:<68} {:>8} {:>8} {:>8} {:>8}", "ms", "p50", "p99", "most", "n");
    let quick = bench.plan.million < 1_000_000;
    let (pushes, dues) = if quick { (300, 50) } else { (3_000, 300) };
    let server = bench.start();
    let mut pipe = Pipe::open(server.port());
    let breathe = || std::thread::sleep(Duration::from_micros(700));

    let told = waiter(server.port(), pushes);
    let push = push_of("q");
    let after_push = Spread::of(
        (0..pushes)
            .map(|_| {
                breathe();
                let sent = unix_ms();
                pipe.send(&push);
                pipe.reply();
                told.recv().expect("a message") - sent
            })
            .collect(),
    );
    after_push.print("a blocked claim after the push was sent");

    let told = waiter(server.port(), dues);
    let due = Spread::of(
        (0..dues)
            .map(|i| {
                let at = unix_ms().ceil() + 10.0 + (i % 7) as f64;
                pipe.send(&bytes_of(&[
                    b"RQ.PUSH",
                    &b"q"[..],
                    &PAYLOAD,
                    b"AT",
                    (at as u64).to_string().as_bytes(),
                ]));
                pipe.reply();
                told.recv().expect("a message") - at
            })
            .collect(),
    );
    due.print("a blocked claim after the instant of a delay");

    let mut other = Pipe::open(server.port());
    let wait = bytes_of(&["RQ.CLAIM", "held", "NOACK", "BLOCK", "0"]);
    let lease = Spread::of(
        (0..dues)
            .map(|i| {
                let ms = 10 + i % 7;
                pipe.call(&["RQ.PUSH", "held", "x"]);
                let sent = unix_ms();
                pipe.call(&["RQ.CLAIM", "held", "LEASE", &ms.to_string()]);
                other.send(&wait);
                other.reply();
                unix_ms() - (sent + ms as f64)
            })
            .collect(),
    );
    lease.print("a blocked claim after the end of a lease (at the latest)");

    bench.report.goal("a blocked claim after a push, p99, ms", after_push.p99, 1.0);
    bench.report.goal("a blocked claim after a due delay, p99, ms", due.p99, 5.0);
    bench.report.goal("a blocked claim after a lease end, p99, ms", lease.p99, 5.0);
    drop(server);
    for busy in [false, true] {
        fall_due(bench, busy);
    }
}

/// A million delayed messages fall due within a second, while one client PINGs and, if `busy`,
/// another pushes to that very queue.
fn fall_due(bench: &mut Bench<'_>, busy: bool) {
    let server = bench.start();
    let million = bench.plan.million;
    let mut load = Load::open(server.port());
    let lots = 1_000;
    // Filled well before: the instant is pushed on as the machine needs.
    let start = unix_ms() as u64 + if million < 1_000_000 { 4_000 } else { 12_000 };
    for lot in 0..lots {
        fill(&mut load, "q", million / lots, &["AT", &(start + lot).to_string()]);
    }
    assert!((unix_ms() as u64) < start - 100, "the messages were not pushed in time: a slow machine");
    std::thread::sleep(Duration::from_millis(start - unix_ms() as u64 - 100));
    let over = AtomicBool::new(false);
    let mut pings = Vec::new();
    let mut pushes = Vec::new();
    std::thread::scope(|scope| {
        let pusher = busy.then(|| {
            scope.spawn(|| {
                let mut pipe = Pipe::open(server.port());
                let push = push_of("q");
                let mut took = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(10));
                    let sent = Instant::now();
                    pipe.send(&push);
                    pipe.reply();
                    took.push(sent.elapsed().as_secs_f64() * 1e3);
                }
                took
            })
        });
        let mut pipe = Pipe::open(server.port());
        let ping = bytes_of(&["PING"]);
        while unix_ms() < (start + 1_500) as f64 {
            let sent = Instant::now();
            pipe.send(&ping);
            pipe.reply();
            pings.push(sent.elapsed().as_secs_f64() * 1e3);
            std::thread::sleep(Duration::from_micros(100));
        }
        over.store(true, Ordering::Relaxed);
        if let Some(pusher) = pusher {
            pushes = pusher.join().expect("the pusher's times");
        }
    });
    let lag = unix_ms();
    let due = load.call(&["RQ.LEN", "q", "DELAYED"]);
    assert_eq!(due, b":0\r\n", "all have fallen due");
    let lag = unix_ms() - lag;
    let what = if busy { ", pushes to it besides" } else { "" };
    let spread = Spread::of(pings);
    spread.print(&format!("PING while {million} messages fall due in a second{what}"));
    if busy {
        Spread::of(pushes).print("  those pushes");
    }
    println!("{:<68} {lag:>8.3}", "  RQ.LEN half a second after the last was due");
    bench.report.goal(format!("PING while {million} fall due{what}, p99, ms"), spread.p99, 5.0);
}
