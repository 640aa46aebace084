//! What keys of ours take, what `MEMORY USAGE` says of it, and that nothing stays of what is gone.

use crate::common::stage::{Stage, on_stage_alone, words};
use crate::common::{Reply, eventually};

fn used(s: &mut Stage) -> i64 {
    let info = s.text("INFO memory");
    let used = info.lines().find_map(|l| l.strip_prefix("used_memory:"));
    used.and_then(|v| v.trim().parse().ok()).expect("INFO memory tells what is used")
}

/// Sends commands in pieces; none may fail.
fn run_all(s: &mut Stage, lines: &[String]) {
    for piece in lines.chunks(500) {
        let bytes: Vec<u8> = piece.iter().flat_map(|line| s.control.encoded(&words(line))).collect();
        s.control.send_bytes(&bytes).expect("the server listens");
        for line in piece {
            let reply = s.control.read().expect("the server answers");
            assert!(!matches!(reply, Reply::Error(_)), "{line}: {reply}");
        }
    }
}

/// What makes a key K, and how many such keys are made.
fn cases() -> Vec<(&'static str, usize, Vec<String>)> {
    let each = |first: &str, n: usize, line: &dyn Fn(usize) -> String| -> Vec<String> {
        std::iter::once(first.to_owned()).chain((0..n).map(line)).collect()
    };
    vec![
        ("a bucket", 5_000, vec!["TB.TAKE K 10 1 3600000".to_owned()]),
        ("a pinned bucket", 5_000, vec!["TB.SET K 10 1 3600000".to_owned()]),
        ("holds", 40, each("TB.SET K 100000 1 3600000", 300, &|_| "TB.HOLD K COST 1 TTL 3600000".to_owned())),
        ("a leaky bucket", 5_000, vec!["LB.TAKE K 10 1 3600000".to_owned()]),
        ("one permit", 5_000, vec!["SEM.ACQUIRE K 1 LEASE 3600000".to_owned()]),
        (
            "permits",
            40,
            each("SEM.SET K 100000", 300, &|i| format!("SEM.ACQUIRE K LEASE 3600000 OWNER owner-{i}")),
        ),
        ("a gate", 2_000, vec!["GATE.SET K STAGE a TB 10 1 1000 STAGE b SEM 10".to_owned()]),
        ("passes", 40, each("GATE.SET K STAGE b SEM 10000", 300, &|_| "GATE.PASS K".to_owned())),
        ("subjects", 20, each("HOT.SET K 10 1 3600000", 1_000, &|i| format!("HOT.TAKE K subject:{i}"))),
        (
            "exceptions",
            20,
            each("HOT.SET K 10 1 3600000", 1_000, &|i| format!("HOT.EXCEPT K subject:{i} 5 1 1000")),
        ),
        ("a queue", 1_000, vec!["RQ.SET K LEASE 1000".to_owned()]),
        ("a queue with a message", 1_000, vec!["RQ.PUSH K x".to_owned()]),
        (
            "a queue that is empty again",
            1_000,
            each("RQ.MPUSH K 3 x y z", 3, &|_| "RQ.CLAIM K NOACK".to_owned()),
        ),
        ("messages", 20, each("RQ.SET K LEASE 1000", 500, &|i| format!("RQ.PUSH K {:0>100}", i))),
        ("groups", 20, each("RQ.SET K LEASE 1000", 500, &|i| format!("RQ.PUSH K x GROUP group-{i}"))),
        ("paused groups", 20, each("RQ.SET K LEASE 1000", 500, &|i| format!("RQ.PAUSE K GROUP group-{i}"))),
    ]
}

#[test]
fn memory_usage_is_within_a_fifth_of_what_a_key_takes() {
    on_stage_alone(|s| {
        // The allocator of other servers has other sizes; the sums are the same.
        if s.server.engine().name != "redis-7.0" {
            return;
        }
        for (what, n, lines) in cases() {
            s.run("FLUSHALL");
            let keys: Vec<String> = (0..n).map(|i| format!("key:{i:05}")).collect();
            // What a key takes besides its value is seen by strings, of which the server says what
            // it counts itself.
            run_all(s, &keys.iter().map(|k| format!("SET {k} 1 PX 36000000")).collect::<Vec<_>>());
            let of_a_string = s.int("MEMORY USAGE key:00000");
            let before = used(s);
            run_all(s, &keys.iter().map(|k| format!("DEL {k}")).collect::<Vec<_>>());
            for key in &keys {
                let lines: Vec<String> = lines.iter().map(|l| l.replace("K ", &format!("{key} "))).collect();
                let lines: Vec<String> = lines
                    .into_iter()
                    .map(|l| if l.ends_with(" K") { l.replace(" K", &format!(" {key}")) } else { l })
                    .collect();
                run_all(s, &lines);
            }
            let grew = (used(s) - before) / n as i64 + of_a_string;
            let told = s.int(&format!("MEMORY USAGE {}", keys[n / 2]));
            let (least, most) = (grew * 4 / 5, grew * 6 / 5);
            assert!((least..=most).contains(&told), "{what}: {told}, and it takes {grew}");
        }
    });
}

#[test]
fn nothing_stays_of_timed_keys_that_are_gone() {
    const KEYS: usize = 50_000;
    /// What the server keeps by itself for a while, and what was not warm before.
    const LITTLE: i64 = 2_000_000;
    on_stage_alone(|s| {
        let keys: Vec<String> = (0..KEYS).map(|i| format!("key:{i}")).collect();
        let acquire: Vec<String> = keys.iter().map(|k| format!("SEM.ACQUIRE {k} 1 LEASE 3600000")).collect();
        for how in ["FLUSHALL", "DEL"] {
            let before = used(s);
            run_all(s, &acquire);
            assert_eq!(s.field("timer_objects"), KEYS as i64);
            assert!(used(s) > before + 20_000_000);
            if how == "DEL" {
                run_all(s, &keys.iter().map(|k| format!("DEL {k}")).collect::<Vec<_>>());
            } else {
                s.run("FLUSHALL");
            }
            eventually(&format!("nothing to stay after {how}"), || used(s) < before + LITTLE);
        }
    });
}

#[test]
fn a_large_value_that_goes_is_freed_in_the_background_whatever_ends_it() {
    on_stage_alone(|s| {
        let push: Vec<String> = (0..20_000).map(|i| format!("RQ.PUSH q {:0>100}", i)).collect();
        let before = used(s);
        for end in
            ["DEL q", "UNLINK q", "SET q x", "FLUSHALL", "FLUSHALL ASYNC", "RENAME other q", "PEXPIRE q 1"]
        {
            s.run("DEL q");
            s.run("SET other x");
            run_all(s, &push);
            let with = used(s);
            assert!(with > before + 2_000_000);
            s.run(end);
            eventually(&format!("the memory to be free after {end}"), || used(s) < before + 1_000_000);
            assert_eq!(s.field("rq_keys"), 0, "{end}");
            assert_eq!(s.field("rq_bytes"), 0, "{end}");
        }
    });
}
