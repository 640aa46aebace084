//! How long a server with a million messages takes to be there again, from an RDB file and from an
//! AOF.

use crate::Bench;
use crate::common::{Server, info, within};
use crate::pipe::{Load, bytes_of};
use crate::queue::{PAYLOAD, fill};
use std::time::{Duration, Instant};

/// Ends the server and starts it again: seconds until it answers.
fn again(server: &mut Server) -> f64 {
    server.kill_9();
    let start = Instant::now();
    server.start_again();
    start.elapsed().as_secs_f64()
}

fn rewrite(server: &Server) {
    let mut connection = server.connect();
    crate::common::call!(connection, "BGREWRITEAOF");
    within(Duration::from_secs(120), "the AOF to be rewritten", || {
        let fields = info(&mut connection, "persistence");
        let idle = |name: &str| fields.get(name).is_some_and(|v| v == "0");
        (idle("aof_rewrite_in_progress") && idle("aof_rewrite_scheduled")).then_some(())
    });
}

fn message_count(load: &mut Load) -> String {
    String::from_utf8_lossy(&load.call(&["RQ.LEN", "q"])).trim().to_owned()
}

pub fn run(bench: &mut Bench<'_>) {
    let million = bench.plan.million;
    println!("\n{:<58} {:>8} {:>8}", "restart with a million messages", "s", "save s");
    let mut goals = Vec::new();
    let mut line = |what: &str, seconds: f64, save: Option<f64>| {
        let save = save.map_or(String::new(), |s| format!("{s:>8.2}"));
        println!("{what:<58} {seconds:>8.2} {save}");
        goals.push((format!("restart from {what}, s"), seconds));
    };
    let checked = |server: &mut Server| {
        let seconds = again(server);
        assert_eq!(message_count(&mut Load::open(server.port())), format!(":{million}"), "all are back");
        seconds
    };

    let mut server = bench.start();
    let mut load = Load::open(server.port());
    let lpush = bytes_of(&[b"LPUSH", &b"list"[..], &PAYLOAD]);
    load.repeat(million, &lpush, ":");
    load.call(&["SAVE"]);
    let seconds = again(&mut server);
    let mut load = Load::open(server.port());
    println!("{:<58} {seconds:>8.2}", "a list, RDB (to compare)");

    load.call(&["FLUSHALL", "SYNC"]);
    fill(&mut load, "q", million, &[]);
    let start = Instant::now();
    load.call(&["SAVE"]);
    let save = start.elapsed().as_secs_f64();
    line("RDB, ready", checked(&mut server), Some(save));
    let mut load = Load::open(server.port());
    for _ in 0..million.div_ceil(10_000) {
        load.call(&["RQ.CLAIM", "q", "COUNT", "10000", "LEASE", "25920000000"]);
    }
    let start = Instant::now();
    load.call(&["SAVE"]);
    let save = start.elapsed().as_secs_f64();
    line("RDB, in flight", checked(&mut server), Some(save));
    drop(server);

    for preamble in ["yes", "no"] {
        let mut server = bench
            .builder()
            .option("appendonly", "yes")
            .option("auto-aof-rewrite-percentage", "0")
            .option("aof-use-rdb-preamble", preamble)
            .start();
        let mut load = Load::open(server.port());
        let push = crate::queue::push_of("q");
        load.repeat(million, &push, "$");
        if preamble == "no" {
            // Nothing is lost by the kill: the last second may not have been written yet.
            std::thread::sleep(Duration::from_millis(1_500));
            line("AOF, a million single pushes", checked(&mut server), None);
        }
        let start = Instant::now();
        rewrite(&server);
        let save = start.elapsed().as_secs_f64();
        let with = if preamble == "yes" { "with" } else { "without" };
        line(&format!("AOF rewritten {with} an RDB preamble"), checked(&mut server), Some(save));
    }
    goals.into_iter().for_each(|(what, got)| bench.report.goal(what, got, 10.0));
}
