//! A crowd: 10,000 clients blocked, and what others pay for it; and when each of the crowd is
//! answered.

use crate::Bench;
use crate::common::{Server, info, within};
use crate::contest::{Cpu, Figures, Row};
use crate::latency::Spread;
use crate::pipe::{Load, Pipe, bytes_of};
use crate::queue::push_of;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

const MANY: usize = 9_000;

/// Clients that wait, each on a connection of its own.
struct Crowd(Vec<TcpStream>);

impl Crowd {
    /// Has `n` clients send a command; returns when the server counts them as blocked.
    fn gather(server: &Server, n: usize, command: impl Fn(usize) -> Vec<u8>) -> Self {
        let streams: Vec<TcpStream> = (0..n)
            .map(|i| {
                let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
                stream.set_nodelay(true).expect("no delay");
                stream.write_all(&command(i)).expect("the server reads");
                stream
            })
            .collect();
        let mut connection = server.connect();
        within(Duration::from_secs(60), "the crowd to be blocked", || {
            let blocked = info(&mut connection, "clients").get("blocked_clients")?.parse::<usize>().ok()?;
            (blocked >= n).then_some(())
        });
        Self(streams)
    }

    /// All go away.
    fn go(self, server: &Server) {
        drop(self);
        let mut connection = server.connect();
        within(Duration::from_secs(60), "the crowd to be gone", || {
            (info(&mut connection, "clients").get("blocked_clients")? == "0").then_some(())
        });
    }

    /// When each is answered, in order of connection.
    fn answers(&mut self) -> Vec<Instant> {
        // SAFETY: a plain system call.
        let epoll = unsafe { libc::epoll_create1(0) };
        assert!(epoll >= 0, "an epoll instance");
        for (i, stream) in self.0.iter().enumerate() {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: i as u64 };
            // SAFETY: both descriptors are open, the event lives during the call.
            let added =
                unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, stream.as_raw_fd(), &raw mut event) };
            assert_eq!(added, 0, "a descriptor is watched");
        }
        let mut at = vec![None; self.0.len()];
        let mut left = self.0.len();
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; 512];
        let mut buffer = [0; 4096];
        while left > 0 {
            // SAFETY: `events` is valid for as many entries as the call is told.
            let n = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), events.len() as i32, 60_000) };
            let now = Instant::now();
            assert!(n > 0, "{left} of the crowd were not answered within a minute");
            for event in &events[..n as usize] {
                let i = event.u64 as usize;
                let read = self.0[i].read(&mut buffer).expect("an answer");
                assert!(read > 0 && buffer[0] == b'*', "an array");
                if at[i].replace(now).is_none() {
                    left -= 1;
                }
            }
        }
        // SAFETY: opened above, closed once.
        unsafe { libc::close(epoll) };
        at.into_iter().flatten().collect()
    }
}

pub fn run(bench: &mut Bench<'_>) {
    let mut server = bench.start();
    let push = push_of("q");
    let mut load = Load::open(server.port());
    let rows = |push: &[u8]| {
        let push = push.to_vec();
        let fresh = |load: &mut Load, _: u64| {
            load.call(&["RQ.PURGE", "q", "ALL"]);
        };
        vec![Row::new("RQ.PUSH", move |load, n| load.repeat(n, &push, "$")).after(fresh)]
    };
    load.call(&["RQ.PUSH", "q", "first"]);
    let measured = || {
        let mut figures = Figures::default();
        figures.measure(&server, &bench.plan, rows(&push));
        figures
    };
    let wait = |group: &str| bytes_of(&["RQ.CLAIM", "q", "GROUP", group, "BLOCK", "0"]);
    let alone = measured();
    let crowd = Crowd::gather(&server, MANY, |_| wait("nobody"));
    let one = measured();
    crowd.go(&server);
    let crowd = Crowd::gather(&server, MANY, |i| wait(&format!("nobody:{i}")));
    let each = measured();
    crowd.go(&server);
    println!("\n{:<58} {:>8} {:>8} {:>7}", format!("{MANY} clients blocked"), "alone µs", "with µs", "ratio");
    let mut goals = Vec::new();
    let mut line = |what: &str, a: f64, b: f64, most: f64| {
        println!("{what:<58} {a:>8.3} {b:>8.3} {:>7.2}", b / a);
        goals.push((format!("{what}, {MANY} of them"), b / a, most));
    };
    line("RQ.PUSH, others wait for one group of the queue", alone.us("RQ.PUSH"), one.us("RQ.PUSH"), 5.0);
    line("RQ.PUSH, others wait for a group each", alone.us("RQ.PUSH"), each.us("RQ.PUSH"), 5.0);
    line("INCR, others wait on a queue", alone.us("INCR"), one.us("INCR"), 1.1);

    // One push, one waiter: what it costs to serve the first of many.
    drop(server);
    server = bench.start();
    let serve = |n: usize, in_line: usize| {
        let mut crowd = Crowd::gather(&server, in_line, |_| bytes_of(&["RQ.CLAIM", "w", "BLOCK", "0"]));
        let mut cpu = Cpu::of(&server);
        let mut load = Load::open(server.port());
        let start = cpu.read();
        load.repeat(n as u64, &push_of("w"), "$");
        let used = (cpu.read() - start) / n as f64 * 1e6;
        load.repeat((in_line - n) as u64, &push_of("w"), "$");
        crowd.answers();
        used
    };
    let few: Vec<f64> = (0..20).map(|_| serve(50, 50)).collect();
    let many = serve(1_000, MANY);
    line("RQ.PUSH that serves the first in line, 50 or many there", crate::contest::median(&few), many, 5.0);

    // INCR beside clients that wait for tokens.
    drop(server);
    server = bench.start();
    let mut alone = Figures::default();
    alone.measure(&server, &bench.plan, Vec::new());
    let mut pipe = Pipe::open(server.port());
    let take = ["TB.TAKE", "slow", "1", "1", "60000", "BLOCK", "31000000000"];
    pipe.call(&take);
    let crowd = Crowd::gather(&server, MANY, |_| bytes_of(&take));
    let mut crowded = Figures::default();
    crowded.measure(&server, &bench.plan, Vec::new());
    drop(crowd);
    line("INCR, others wait for tokens", alone.us("INCR"), crowded.us("INCR"), 1.1);
    goals.into_iter().for_each(|(what, got, most)| bench.report.goal(what, got, most));

    drop(server);
    punctual(bench);
}

/// Clients that wait for tokens: is each answered at its instant?
fn punctual(bench: &mut Bench<'_>) {
    let server = bench.start();
    let mut pipe = Pipe::open(server.port());
    // One token every ms; the first long after the crowd has gathered.
    const LEAD: u64 = 15_000;
    let all = MANY as u64 + LEAD;
    let limits = [&all.to_string(), "1", "1"];
    let take = |cost: &str| {
        bytes_of(&["TB.TAKE", "k", limits[0], limits[1], limits[2], "COST", cost, "BLOCK", "60000"])
    };
    let sent = Instant::now();
    pipe.send(&take(&all.to_string()));
    pipe.reply();
    let drained = Instant::now();
    // The first waits LEAD ms, each other one ms more.
    let first = take(&LEAD.to_string());
    let mut crowd = Crowd(Vec::new());
    crowd.0.extend(Crowd::gather(&server, 1, |_| first.clone()).0);
    crowd.0.extend(Crowd::gather(&server, MANY - 1, |_| take("1")).0);
    let gathered = sent.elapsed();
    assert!(gathered < Duration::from_millis(LEAD), "the crowd took {gathered:?} to gather");
    let late: Vec<f64> = crowd
        .answers()
        .iter()
        .enumerate()
        .map(|(i, at)| {
            let due = sent + Duration::from_millis(LEAD + i as u64);
            (at.saturating_duration_since(due)).as_secs_f64() * 1e3
        })
        .collect();
    let spread = Spread::of(late);
    spread.print(&format!("{MANY} wait for tokens, one a ms: answered after its instant"));
    let slack = (drained - sent).as_secs_f64() * 1e3;
    println!("{:<58} (the instant is known to within {slack:.2} ms)", "");
    bench.report.goal("answered after its instant, p99, ms", spread.p99, 5.0);
}
