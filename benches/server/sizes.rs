//! Depth: what a command costs beside 1,000 and beside a million messages in each state, beside
//! 100,000 groups, and what a message weighs.

use crate::Bench;
use crate::common::Server;
use crate::contest::{Figures, Row};
use crate::keys::{scattered, used_memory};
use crate::pipe::{Load, bytes_of, head_into, word_into, words_into};
use crate::queue::{PAYLOAD, fill, fill_groups, push_of, push_to_group, receipts, whole};

/// Longer than any bench: 300 days.
const LONG: &str = "25920000000";
const FEW: u64 = 1_000;

/// Claims all that is ready, 10,000 at a time; `next` is told the receipts of each lot.
fn claim_all(load: &mut Load, key: &str, mut next: impl FnMut(&mut Load, &[Vec<u8>])) {
    loop {
        let reply = load.call(&["RQ.CLAIM", key, "COUNT", "10000", "LEASE", LONG]);
        let lot: Vec<Vec<u8>> = receipts(&reply).map(<[u8]>::to_vec).collect();
        if lot.is_empty() {
            return;
        }
        next(load, &lot);
    }
}

fn kill(load: &mut Load, key: &str, lot: &[Vec<u8>]) {
    let mut out = Vec::new();
    head_into(&mut out, 5 + lot.len());
    let count = lot.len().to_string();
    ["RQ.NACK", key, "DEAD", "RECEIPTS", &count].iter().for_each(|w| word_into(&mut out, w.as_bytes()));
    lot.iter().for_each(|r| word_into(&mut out, r));
    load.batches(
        1,
        |_, _, to| {
            to.extend_from_slice(&out);
            1
        },
        |_, _| {},
    );
}

/// Puts `n` messages in the state into the key; the receipts, if they are in flight.
fn fill_state(load: &mut Load, key: &str, state: &str, n: u64) -> Vec<Vec<u8>> {
    let mut held = Vec::new();
    match state {
        "delayed" => fill(load, key, n, &["DELAY", LONG]),
        "groups" => fill_groups(load, key, n / 10),
        _ => fill(load, key, n, &[]),
    }
    match state {
        "in flight" => claim_all(load, key, |_, lot| held.extend_from_slice(lot)),
        "dead" => claim_all(load, key, |load, lot| kill(load, key, lot)),
        _ => {}
    }
    held
}

pub fn run(bench: &mut Bench<'_>) {
    let million = bench.plan.million;
    let mut weights = Vec::new();
    for state in ["ready", "delayed", "in flight", "dead", "groups"] {
        let server = bench.start();
        let mut load = Load::open(server.port());
        let few = fill_state(&mut load, "few", state, FEW);
        let before = used_memory(&server);
        let many = fill_state(&mut load, "many", state, million);
        weights.push((state, (used_memory(&server) - before) / million as f64));
        if state == "dead" {
            load.call(&["RQ.SET", "few", "MAXDEAD", &FEW.to_string()]);
            load.call(&["RQ.SET", "many", "MAXDEAD", &million.to_string()]);
        }
        let mut rows = Vec::new();
        for (key, n, held) in [("few", FEW, &few), ("many", million, &many)] {
            let (push, groups) = (push_of(key), n / 10);
            let grouped = state == "groups";
            rows.push(Row::new(format!("PUSH + CLAIM + ACK, {key}"), move |load, units| {
                whole(load, key, units, |i, out| {
                    if grouped {
                        push_to_group(key, scattered(i, groups), out);
                    } else {
                        out.extend_from_slice(&push);
                    }
                });
            }));
            rows.extend(own_row(state, key, n, held));
        }
        let mut figures = Figures::default();
        figures.measure(&server, &bench.plan, rows);
        let what = if state == "groups" {
            "messages in groups of ten".to_owned()
        } else {
            format!("messages {state}")
        };
        figures.print(&format!("few = 1,000, many = {million} {what}"), &[]);
        for row in ["PUSH + CLAIM + ACK", own_name(state)].into_iter().filter(|r| !r.is_empty()) {
            let ratio = figures.ratio(&format!("{row}, many"), &format!("{row}, few"));
            bench.report.goal(format!("{row}: {million} {what}, in 1,000"), ratio, 1.2);
        }
    }
    weigh(bench, &weights);
}

/// What is done to messages of the state itself.
fn own_name(state: &str) -> &'static str {
    match state {
        "delayed" => "PUSH DELAY + DEL",
        "in flight" => "EXTEND",
        "dead" => "PUSH + CLAIM + NACK DEAD, the oldest dropped",
        _ => "",
    }
}

fn own_row<'a>(state: &str, key: &'a str, n: u64, held: &'a [Vec<u8>]) -> Option<Row<'a>> {
    let name = format!("{}, {key}", own_name(state));
    Some(match state {
        "delayed" => Row::new(name, move |load, units| {
            load.units(units, 2, |i, out| {
                let (id, delay) =
                    (format!("late:{i}"), (20_000_000_000 + scattered(i, 1_000_003) * 10_000).to_string());
                let id = id.as_bytes();
                words_into(
                    out,
                    &[b"RQ.PUSH", key.as_bytes(), &PAYLOAD, b"ID", id, b"DELAY", delay.as_bytes()],
                );
                words_into(out, &[b"RQ.DEL", key.as_bytes(), id]);
            });
        }),
        "in flight" => Row::new(name, move |load, units| {
            load.units(units, 1, |i, out| {
                let receipt = &held[scattered(i, n) as usize];
                words_into(out, &[b"RQ.EXTEND", key.as_bytes(), LONG.as_bytes(), receipt]);
            });
        }),
        "dead" => {
            let push = push_of(key);
            let claim = bytes_of(&["RQ.CLAIM", key]);
            Row::new(name, move |load, units| {
                let first = |_, out: &mut Vec<u8>| {
                    out.extend_from_slice(&push);
                    out.extend_from_slice(&claim);
                };
                let follow = |reply: &[u8], out: &mut Vec<u8>| match receipts(reply).next() {
                    Some(receipt) => {
                        words_into(out, &[b"RQ.NACK", key.as_bytes(), b"DEAD", b"RECEIPTS", b"1", receipt]);
                        1
                    }
                    None => 0,
                };
                load.relay(units, 2, first, follow);
            })
        }
        _ => return None,
    })
}

/// Bytes per message, beside a list element and a stream entry.
fn weigh(bench: &mut Bench<'_>, weights: &[(&str, f64)]) {
    let million = bench.plan.million;
    let server: Server = bench.start();
    let mut load = Load::open(server.port());
    let weigh = |load: &mut Load, act: &mut dyn FnMut(&mut Load)| {
        load.call(&["FLUSHALL", "SYNC"]);
        let before = used_memory(&server);
        act(load);
        (used_memory(&server) - before) / million as f64
    };
    let lpush = bytes_of(&[b"LPUSH", &b"list"[..], &PAYLOAD]);
    let list = weigh(&mut load, &mut |load| load.repeat(million, &lpush, ":"));
    let xadd = bytes_of(&[b"XADD", &b"stream"[..], b"*", b"d", &PAYLOAD]);
    let add = |load: &mut Load| {
        load.call(&["XGROUP", "CREATE", "stream", "g", "0", "MKSTREAM"]);
        load.repeat(million, &xadd, "$");
    };
    let entry = weigh(&mut load, &mut |load| add(load));
    let read = bytes_of(&["XREADGROUP", "GROUP", "g", "c", "COUNT", "100", "STREAMS", "stream", ">"]);
    let pending = weigh(&mut load, &mut |load| {
        add(load);
        load.repeat(million / 100, &read, "*1");
    });
    let named = weigh(&mut load, &mut |load| {
        load.units(million, 1, |i, out| {
            let id = format!("7f9c24e8-3b12-4fef-91b0-{:012}", scattered(i, million));
            words_into(out, &[b"RQ.PUSH", &b"q"[..], &PAYLOAD, b"ID", id.as_bytes()]);
        });
    });
    println!("\nbytes per message of 100 bytes (used_memory)");
    let others = [
        ("ready, with an id of 36 bytes by the caller", named),
        ("a list element", list),
        ("a stream entry", entry),
        ("a stream entry, pending", pending),
    ];
    for (what, weight) in weights.iter().copied().chain(others) {
        println!("{what:<58} {weight:>8.1}");
    }
    for (state, most) in [("ready", 180.0), ("in flight", 280.0)] {
        let weight = weights.iter().find(|(s, _)| *s == state).map_or(f64::NAN, |(_, w)| *w);
        bench.report.goal(format!("bytes per message {state}"), weight, most);
    }
}
