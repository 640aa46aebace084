//! A million keys: what a take costs when no two meet on one key, and what a key weighs, beside SET
//! … PX.

use crate::Bench;
use crate::common::{Server, info};
use crate::contest::{Figures, Row};
use crate::pipe::{Load, words_into};

/// The i-th of `n` numbers in an order without neighbours; each comes once in n.
pub fn scattered(i: u64, n: u64) -> u64 {
    // A prime that does not divide n.
    i.wrapping_mul(7_368_787) % n
}

/// The server's memory in use.
pub fn used_memory(server: &Server) -> f64 {
    let fields = info(&mut server.connect(), "memory");
    fields.get("used_memory").and_then(|v| v.parse().ok()).expect("used_memory in INFO memory")
}

type Write = fn(&str, &mut Vec<u8>);

fn set_px(key: &str, out: &mut Vec<u8>) {
    words_into(out, &["SET", key, "value", "PX", "60000000"]);
}

fn tb_take(key: &str, out: &mut Vec<u8>) {
    words_into(out, &["TB.TAKE", key, "10", "1", "60000000"]);
}

fn lb_take(key: &str, out: &mut Vec<u8>) {
    words_into(out, &["LB.TAKE", key, "10", "1", "60000000"]);
}

pub fn run(bench: &mut Bench<'_>) {
    let server = bench.start();
    let million = bench.plan.million;
    let mut load = Load::open(server.port());
    let kinds: [(&str, &str, Write); 3] =
        [("SET PX", "s", set_px), ("TB.TAKE", "t", tb_take), ("LB.TAKE", "l", lb_take)];
    let take = |prefix: &'static str, write: Write| {
        move |load: &mut Load, n: u64| {
            load.units(n, 1, |i, out| write(&format!("{prefix}:user:{:07}", scattered(i, million)), out));
        }
    };
    let mut figures = Figures::default();
    let rows = kinds.map(|(name, prefix, write)| {
        Row::new(format!("{name}, a million new keys"), take(prefix, write)).at_most(million).after(
            |load, _| {
                load.call(&["FLUSHALL", "SYNC"]);
            },
        )
    });
    figures.measure(&server, &bench.plan, Vec::from(rows));

    println!("\nbytes per key (used_memory, the server's tables included; names of 14 bytes)");
    let mut weights = Vec::new();
    for (name, prefix, write) in kinds {
        load.call(&["FLUSHALL", "SYNC"]);
        let before = used_memory(&server);
        take(prefix, write)(&mut load, million);
        let weight = (used_memory(&server) - before) / million as f64;
        println!("{name:<58} {weight:>8.1}");
        weights.push(weight);
    }
    if bench.has("HOT.TAKE") {
        load.call(&["FLUSHALL", "SYNC"]);
        load.call(&["HOT.SET", "hot", "10", "1", "60000000", "MAXSUBJECTS", "2000000"]);
        let before = used_memory(&server);
        load.units(million, 1, crate::limiters::hot_take);
        let weight = (used_memory(&server) - before) / million as f64;
        println!("{:<58} {weight:>8.1}", "HOT.TAKE, a subject of 12 bytes");
        bench.report.goal("bytes per HOT subject over its own 12", weight - 12.0, 48.0);
        bench.report.goal("bytes per HOT subject, as part of a TB key", weight / weights[1], 0.1);
    }
    // Both kinds side by side, as both are there in the next contest.
    load.call(&["FLUSHALL", "SYNC"]);
    for (_, prefix, write) in kinds {
        take(prefix, write)(&mut load, million);
    }
    let rows = kinds.map(|(name, prefix, write)| {
        Row::new(format!("{name}, any of a million keys"), take(prefix, write)).at_most(million)
    });
    figures.measure(&server, &bench.plan, Vec::from(rows));
    figures.print("a million keys", &[]);
    for kind in ["any of a million keys", "a million new keys"] {
        for name in ["TB.TAKE", "LB.TAKE"] {
            let ratio = figures.ratio(&format!("{name}, {kind}"), &format!("SET PX, {kind}"));
            bench.report.goal(format!("{name}, {kind}, in SET PX"), ratio, 1.2);
        }
    }
    bench.report.goal("bytes per bucket key (TB)", weights[1], 140.0);
    bench.report.goal("bytes per bucket key (LB)", weights[2], 140.0);
}
