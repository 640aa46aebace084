//! The queue, a message of 100 bytes at a time, beside lists, the list pattern (LPUSH, LMOVE, LREM)
//! and streams with a group.

use crate::Bench;
use crate::contest::{Figures, Row};
use crate::pipe::{Load, bytes_of, head_into, strings, word_into, words_into};

pub const PAYLOAD: [u8; 100] = [b'x'; 100];

/// BullMQ's server CPU per job, as measured for docs/benchmarks.md.
const BULLMQ_US: f64 = 110.0;

pub fn push_of(key: &str) -> Vec<u8> {
    bytes_of(&[b"RQ.PUSH", key.as_bytes(), &PAYLOAD])
}

/// Pushes `n` messages; `more` are the options.
pub fn fill(load: &mut Load, key: &str, n: u64, more: &[&str]) {
    let mut out = Vec::new();
    let size = 500.min(n).max(1);
    head_into(&mut out, 3 + size as usize + more.len());
    [b"RQ.MPUSH", key.as_bytes(), size.to_string().as_bytes()].iter().for_each(|w| word_into(&mut out, w));
    (0..size).for_each(|_| word_into(&mut out, &PAYLOAD));
    more.iter().for_each(|w| word_into(&mut out, w.as_bytes()));
    load.batches(
        n.div_ceil(size),
        |_, _, to| {
            to.extend_from_slice(&out);
            1
        },
        |_, _| {},
    );
}

/// The receipts in a reply of RQ.CLAIM or RQ.NEXT: messages are `[id, receipt, deliveries,
/// payload]`.
pub fn receipts(reply: &[u8]) -> impl Iterator<Item = &[u8]> {
    strings(reply).skip(1).step_by(3)
}

fn claim_into(key: &str, out: &mut Vec<u8>) {
    words_into(out, &["RQ.CLAIM", key]);
}

fn ack_into(key: &str, reply: &[u8], out: &mut Vec<u8>) -> u64 {
    let receipt = receipts(reply).next().expect("a message");
    words_into(out, &[b"RQ.ACK", key.as_bytes(), receipt]);
    1
}

/// Claims and acks `n` messages.
pub fn claim_and_ack(load: &mut Load, key: &str, n: u64) {
    load.relay(n, 1, |_, out| claim_into(key, out), |reply, out| ack_into(key, reply, out));
}

/// Pushes, claims and acks `n` messages; `push` appends the i-th push.
pub fn whole(load: &mut Load, key: &str, n: u64, mut push: impl FnMut(u64, &mut Vec<u8>)) {
    let first = |i: u64, out: &mut Vec<u8>| {
        push(i, out);
        claim_into(key, out);
    };
    let follow = |reply: &[u8], out: &mut Vec<u8>| match reply.starts_with(b"*") {
        true => ack_into(key, reply, out),
        // The id of a push.
        false => 0,
    };
    load.relay(n, 2, first, follow);
}

/// Pushes, claims and acks `n` messages, 100 at a time: MPUSH, then NEXT with the receipts of the
/// last 100.
fn hundreds(load: &mut Load, key: &str, n: u64) {
    let mut push = Vec::new();
    head_into(&mut push, 103);
    [b"RQ.MPUSH", key.as_bytes(), b"100"].iter().for_each(|w| word_into(&mut push, w));
    (0..100).for_each(|_| word_into(&mut push, &PAYLOAD));
    let claim = bytes_of(&["RQ.CLAIM", key, "COUNT", "100"]);
    const LOTS: u64 = 2;
    let mut next = [Vec::new(), Vec::new()];
    let cell = std::cell::RefCell::new(&mut next);
    load.batches(
        n.div_ceil(100 * LOTS),
        |lane, _, out| {
            let next = &mut cell.borrow_mut()[lane];
            (0..LOTS).for_each(|_| out.extend_from_slice(&push));
            if next.is_empty() {
                (0..LOTS).for_each(|_| out.extend_from_slice(&claim));
            } else {
                out.append(next);
            }
            2 * LOTS
        },
        |lane, reply| {
            if reply.starts_with(b"*100\r\n$") {
                // The ids of MPUSH.
                return;
            }
            let next = &mut cell.borrow_mut()[lane];
            head_into(next, 4 + 100 + 2);
            [&b"RQ.NEXT"[..], key.as_bytes(), b"RECEIPTS", b"100"].iter().for_each(|w| word_into(next, w));
            assert_eq!(receipts(reply).map(|r| word_into(next, r)).count(), 100, "a full hundred");
            [b"COUNT", &b"100"[..]].iter().for_each(|w| word_into(next, w));
        },
    );
}

/// A push to one of so many groups.
pub fn push_to_group(key: &str, group: u64, out: &mut Vec<u8>) {
    let group = format!("tenant:{group}");
    words_into(out, &[b"RQ.PUSH", key.as_bytes(), &PAYLOAD, b"GROUP", group.as_bytes()]);
}

/// Ten messages in each of so many groups.
pub fn fill_groups(load: &mut Load, key: &str, groups: u64) {
    load.units(groups * 10, 1, |i, out| push_to_group(key, i % groups, out));
}

fn list_rows<'a>() -> Vec<Row<'a>> {
    let lpush = bytes_of(&[b"LPUSH", &b"list"[..], &PAYLOAD]);
    let (push_more, lmove) = (lpush.clone(), bytes_of(&["LMOVE", "list", "taken", "RIGHT", "LEFT"]));
    vec![
        Row::new("LPUSH", move |load, n| load.repeat(n, &lpush, ":")).after(|load, _| {
            load.call(&["DEL", "list"]);
        }),
        Row::new("LMOVE", move |load, n| load.repeat(n, &lmove, "$100")).after(move |load, n| {
            load.call(&["DEL", "list", "taken"]);
            load.repeat(n, &push_more, ":");
        }),
        Row::new("LPUSH + LMOVE + LREM", |load, n| {
            let first = |i: u64, out: &mut Vec<u8>| {
                let payload = format!("{i:0100}");
                words_into(out, &["LPUSH", "list", &payload]);
                words_into(out, &["LMOVE", "list", "taken", "RIGHT", "LEFT"]);
            };
            let follow = |reply: &[u8], out: &mut Vec<u8>| match strings(reply).next() {
                Some(payload) => {
                    words_into(out, &[b"LREM", &b"taken"[..], b"-1", payload]);
                    1
                }
                None => 0,
            };
            load.relay(n, 2, first, follow);
        })
        .after(|load, _| {
            load.call(&["DEL", "list", "taken"]);
        }),
    ]
}

fn stream_rows<'a>() -> Vec<Row<'a>> {
    let xadd = bytes_of(&[b"XADD", &b"stream"[..], b"*", b"d", &PAYLOAD]);
    let fresh = |load: &mut Load| {
        load.call(&["DEL", "stream"]);
        load.call(&["XGROUP", "CREATE", "stream", "g", "0", "MKSTREAM"]);
    };
    let read = bytes_of(&["XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "STREAMS", "stream", ">"]);
    let (add_1, add_2, add_3) = (xadd.clone(), xadd.clone(), xadd.clone());
    let (read_1, read_2) = (read.clone(), read);
    // `[[stream, [[id, [d, payload]]]]]`
    let id = |reply: &[u8]| strings(reply).nth(1).map(<[u8]>::to_vec);
    vec![
        Row::new("XADD", move |load, n| load.repeat(n, &add_1, "$")).after(move |load, _| fresh(load)),
        Row::new("XREADGROUP + XACK", move |load, n| {
            load.relay(
                n,
                1,
                |_, out| out.extend_from_slice(&read_1),
                |reply, out| {
                    let id = id(reply).expect("an entry");
                    words_into(out, &[b"XACK", &b"stream"[..], b"g", &id]);
                    1
                },
            );
        })
        .after(move |load, n| {
            fresh(load);
            load.repeat(n, &add_2, "$");
        }),
        Row::new("XADD + XREADGROUP + XACK + XDEL", move |load, n| {
            let first = |_, out: &mut Vec<u8>| {
                out.extend_from_slice(&add_3);
                out.extend_from_slice(&read_2);
            };
            let follow = |reply: &[u8], out: &mut Vec<u8>| match id(reply) {
                Some(id) => {
                    words_into(out, &[b"XACK", &b"stream"[..], b"g", &id]);
                    words_into(out, &[b"XDEL", &b"stream"[..], &id]);
                    2
                }
                None => 0,
            };
            load.relay(n, 2, first, follow);
        })
        .after(move |load, _| fresh(load)),
    ]
}

const WHOLE: &str = "RQ.PUSH + RQ.CLAIM + RQ.ACK";
const HUNDREDS: &str = "the same by MPUSH 100, NEXT COUNT 100, a message";

fn queue_rows<'a>() -> Vec<Row<'a>> {
    let fresh = |load: &mut Load, n: u64| {
        load.call(&["DEL", "q"]);
        fill(load, "q", n, &[]);
    };
    let (push, push_2) = (push_of("q"), push_of("q"));
    let claim = bytes_of(&["RQ.CLAIM", "q"]);
    vec![
        Row::new("RQ.PUSH", move |load, n| load.repeat(n, &push, "$")).after(move |load, _| fresh(load, 1)),
        Row::new("RQ.PUSH, an id of the caller's", |load, n| {
            load.units(n, 1, |i, out| {
                let id = format!("order:{i:010}");
                words_into(out, &[b"RQ.PUSH", &b"q"[..], &PAYLOAD, b"ID", id.as_bytes()]);
            });
        })
        .after(move |load, _| fresh(load, 1)),
        Row::new("RQ.CLAIM", move |load, n| load.repeat(n, &claim, "*1"))
            .after(move |load, n| fresh(load, n)),
        Row::new("RQ.CLAIM + RQ.ACK", |load, n| claim_and_ack(load, "q", n))
            .after(move |load, n| fresh(load, n)),
        Row::new(WHOLE, move |load, n| whole(load, "q", n, |_, out| out.extend_from_slice(&push_2)))
            .after(move |load, _| fresh(load, 1)),
        Row::new(HUNDREDS, |load, n| hundreds(load, "q", n)).after(|load, _| {
            load.call(&["DEL", "q"]);
        }),
    ]
}

pub fn run(bench: &mut Bench<'_>) {
    let server = bench.start();
    let mut rows = list_rows();
    rows.extend(stream_rows());
    rows.extend(queue_rows());
    let mut figures = Figures::default();
    figures.measure(&server, &bench.plan, rows);
    figures.print("messages of 100 bytes", &["LPUSH", "LMOVE"]);
    println!("{:<58} {BULLMQ_US:>8.0}   (measured elsewhere: see docs/benchmarks.md)", "BullMQ, a job");

    let report = &mut bench.report;
    report.goal("RQ.PUSH, in LPUSH", figures.ratio("RQ.PUSH", "LPUSH"), 1.2);
    report.goal("RQ.CLAIM, in LMOVE", figures.ratio("RQ.CLAIM", "LMOVE"), 1.3);
    let ratio = figures.ratio("RQ.CLAIM + RQ.ACK", "XREADGROUP + XACK");
    report.goal("RQ.CLAIM + RQ.ACK, in XREADGROUP + XACK", ratio, 0.5);
    report.goal("a whole message, in INCR", figures.in_incr(WHOLE), 5.0);
    report.goal("a message by hundreds, in INCR", figures.in_incr(HUNDREDS), 1.0);
    report.goal("a whole message, in BullMQ jobs", figures.us(WHOLE) / BULLMQ_US, 0.1);
    let ratio = figures.ratio(WHOLE, "XADD + XREADGROUP + XACK + XDEL");
    report.goal("a whole message, in XADD + XREADGROUP + XACK + XDEL", ratio, 0.34);
    drop(server);
    groups(bench);
}

fn groups(bench: &mut Bench<'_>) {
    let server = bench.start();
    let mut load = Load::open(server.port());
    fill(&mut load, "plain", 10_000, &[]);
    fill_groups(&mut load, "grouped", 1_000);
    load.call(&["RQ.SET", "strict", "GROUPINFLIGHT", "1"]);
    fill_groups(&mut load, "strict", 1_000);
    let push = push_of("plain");
    let rows = vec![
        Row::new("no groups", move |load, n| whole(load, "plain", n, |_, out| out.extend_from_slice(&push))),
        Row::new("1,000 groups", |load, n| {
            whole(load, "grouped", n, |i, out| push_to_group("grouped", i * 7 % 1_000, out));
        }),
        Row::new("1,000 groups, GROUPINFLIGHT 1", |load, n| {
            whole(load, "strict", n, |i, out| push_to_group("strict", i * 7 % 1_000, out));
        }),
        Row::new("groups that come and go", |load, n| {
            whole(load, "brief", n, |i, out| push_to_group("brief", i * 7 % 1_000, out));
        }),
    ];
    let mut figures = Figures::default();
    figures.measure(&server, &bench.plan, rows);
    figures.print("PUSH + CLAIM + ACK, 10,000 messages waiting", &["no groups"]);
    for row in ["1,000 groups", "1,000 groups, GROUPINFLIGHT 1", "groups that come and go"] {
        bench.report.goal(format!("{row}, in none"), figures.ratio(row, "no groups"), 1.5);
    }
}
