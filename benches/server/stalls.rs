//! How long others wait while very much is concerned: the largest gap between two answers to PING
//! on a connection of its own, while a command about a million messages or subjects runs and until
//! all that it put off is done. `SLUICE_STALLS=n` takes another number than a million. Wall time,
//! least of three.

use crate::Bench;
use crate::common::Server;
use crate::pipe::Pipe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Messages pushed or claimed at once.
const BATCH: usize = 10_000;

/// Asks for PING all the time and keeps the longest answer, in µs.
struct Pinger {
    longest: Arc<AtomicU64>,
    answers: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Pinger {
    fn start(port: u16) -> Self {
        let (longest, answers) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let ends = Arc::new(AtomicBool::new(false));
        let (told, count, end) = (longest.clone(), answers.clone(), ends.clone());
        let thread = std::thread::spawn(move || {
            let mut pipe = Pipe::open(port);
            while !end.load(Ordering::Relaxed) {
                let sent = Instant::now();
                pipe.call(&["PING"]);
                told.fetch_max(sent.elapsed().as_micros() as u64, Ordering::Relaxed);
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        Self { longest, answers, ends, thread: Some(thread) }
    }

    /// The longest since it was last asked for, with the one that is on its way.
    fn take(&self) -> f64 {
        let seen = self.answers.load(Ordering::Relaxed);
        while self.answers.load(Ordering::Relaxed) < seen + 2 {
            std::thread::sleep(Duration::from_micros(200));
        }
        self.longest.swap(0, Ordering::Relaxed) as f64 / 1e3
    }
}

impl Drop for Pinger {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the pinger ends");
        }
    }
}

/// A queue of so many messages, on a connection of its own.
struct Queue {
    pipe: Pipe,
    n: usize,
}

impl Queue {
    fn line(&mut self, line: &str) -> Vec<u8> {
        let words: Vec<&str> = line.split_whitespace().collect();
        self.pipe.call(&words)
    }

    /// The test clock stands an hour ago: once it does no more, all that was due soon is due.
    fn an_hour_ago(&mut self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
        self.line(&format!("SLUICE.CLOCK SET {}", now.as_millis() - 3_600_000));
    }

    fn push(&mut self, options: &str) {
        for _ in 0..self.n / BATCH {
            self.line(&format!("RQ.MPUSH q {BATCH}{} {options}", " payload1".repeat(BATCH)));
        }
    }

    fn claim(&mut self, lease_ms: u64) {
        for _ in 0..self.n / BATCH {
            self.line(&format!("RQ.CLAIM q COUNT {BATCH} LEASE {lease_ms}"));
        }
    }

    /// As many subjects of one rule as there would be messages.
    fn take(&mut self) {
        self.line("HOT.SET h 1000 1 60000 MAXSUBJECTS 1000000");
        for batch in 0..self.n / BATCH {
            let line = |i: usize| format!("HOT.TAKE h subject:{} COST {}", batch * BATCH + i, 1 + i % 900);
            let lines = (0..BATCH).map(|i| crate::pipe::bytes_of(&line(i).split(' ').collect::<Vec<_>>()));
            self.pipe.send(&lines.collect::<Vec<_>>().concat());
            for _ in 0..BATCH {
                self.pipe.reply();
            }
        }
    }

    /// All of them die of the one time that they may be delivered.
    fn die(&mut self) {
        self.an_hour_ago();
        self.line("RQ.SET q MAXDELIVERIES 1");
        self.push("");
        self.claim(1);
        self.line("SLUICE.CLOCK ADVANCE 10");
        self.line("SLUICE.CLOCK REAL");
    }
}

/// What is there before, the command, and how long others may wait for it (None: as long as it
/// says).
type Row = (&'static str, fn(&mut Queue), &'static str, Option<f64>);

const ROWS: [Row; 17] = [
    (
        "RQ.LEN right when the leases ended",
        |q| (q.an_hour_ago(), q.push(""), q.claim(10)).2,
        "RQ.LEN q",
        Some(10.0),
    ),
    (
        "RQ.LEN right when delays came due",
        |q| (q.an_hour_ago(), q.push("DELAY 10")).1,
        "RQ.LEN q",
        Some(10.0),
    ),
    ("RQ.LEN right when TTLs ended", |q| (q.an_hour_ago(), q.push("TTL 10")).1, "RQ.LEN q", Some(10.0)),
    (
        "RQ.CLAIM right when TTLs ended",
        |q| (q.an_hour_ago(), q.push("TTL 10")).1,
        "RQ.CLAIM q COUNT 10",
        Some(10.0),
    ),
    ("RQ.SET TTL that all are past", |q| (q.an_hour_ago(), q.push("")).1, "RQ.SET q TTL 1000", Some(10.0)),
    ("RQ.SET MAXDEAD 1 over as many dead", Queue::die, "RQ.SET q MAXDEAD 1", Some(10.0)),
    (
        "RQ.PUSH after MAXLEN 10 ONFULL DROPOLD",
        |q| {
            q.push("");
            q.line("RQ.SET q MAXLEN 10 ONFULL DROPOLD");
        },
        "RQ.PUSH q x",
        Some(10.0),
    ),
    ("RQ.PURGE READY", |q| q.push(""), "RQ.PURGE q READY", None),
    ("RQ.MOVE READY", |q| q.push(""), "RQ.MOVE q other READY", None),
    ("RQ.MOVE READY COUNT 10000", |q| q.push(""), "RQ.MOVE q other READY COUNT 10000", Some(20.0)),
    ("RQ.REDRIVE", Queue::die, "RQ.REDRIVE q", None),
    ("RQ.REDRIVE COUNT 10000", Queue::die, "RQ.REDRIVE q COUNT 10000", Some(20.0)),
    ("RQ.REQUEUE ALL", |q| (q.push(""), q.claim(9_000_000)).1, "RQ.REQUEUE q ALL", None),
    (
        "RQ.REQUEUE ALL COUNT 10000",
        |q| (q.push(""), q.claim(9_000_000)).1,
        "RQ.REQUEUE q ALL COUNT 10000",
        Some(20.0),
    ),
    ("HOT.SET of other limits", Queue::take, "HOT.SET h 500 1 30000 MAXSUBJECTS 1000000", Some(10.0)),
    ("HOT.SET of MAXSUBJECTS 1000", Queue::take, "HOT.SET h 1000 1 60000 MAXSUBJECTS 1000", Some(10.0)),
    ("RQ.PURGE READY COUNT 10000", |q| q.push(""), "RQ.PURGE q READY COUNT 10000", Some(20.0)),
];

pub fn run(bench: &mut Bench<'_>) {
    let asked = std::env::var("SLUICE_STALLS").ok().and_then(|n| n.parse().ok());
    let n: usize = asked.unwrap_or(bench.plan.million as usize).next_multiple_of(BATCH);
    println!(
        "\n{:<54} {:>12} {:>12} {:>12}",
        format!("{n} messages, ms"),
        "PING at most",
        "the command",
        "all done"
    );
    let server = Server::builder(bench.engine).option("maxclients", "1000").start();
    let pinger = Pinger::start(server.port());
    let mut queue = Queue { pipe: Pipe::open(server.port()), n };
    for (what, before, command, most) in ROWS {
        let runs = (0..3).map(|_| one(&mut queue, &pinger, before, command));
        let best = runs.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default();
        println!("{what:<54} {:>12.1} {:>12.1} {:>12.0}", best.0, best.1, best.2);
        if let Some(most) = most {
            bench.report.goal(format!("others wait, ms: {what}, {n}"), best.0, most);
        }
    }
}

/// The longest PING, the command, and all that it put off, in ms.
fn one(queue: &mut Queue, pinger: &Pinger, before: fn(&mut Queue), command: &str) -> (f64, f64, f64) {
    queue.line("FLUSHALL");
    before(queue);
    std::thread::sleep(Duration::from_millis(50));
    pinger.take();
    let begin = Instant::now();
    // All that is due by the true clock is due now. Both in one go, so that the timer does not come
    // in between.
    let words: Vec<&str> = command.split_whitespace().collect();
    queue
        .pipe
        .send(&[crate::pipe::bytes_of(&["SLUICE.CLOCK", "REAL"]), crate::pipe::bytes_of(&words)].concat());
    queue.pipe.reply();
    queue.pipe.reply();
    let took = begin.elapsed();
    loop {
        let info = String::from_utf8_lossy(&queue.pipe.call(&["INFO", "sluice"])).into_owned();
        // (A module of before has no such number.)
        if info.contains("work_pending:0") || !info.contains("work_pending") {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let done = begin.elapsed();
    (pinger.take(), took.as_secs_f64() * 1e3, done.as_secs_f64() * 1e3)
}
