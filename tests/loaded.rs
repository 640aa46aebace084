//! What loading the module takes from a server that serves other keys: nothing. And keys of ours
//! count as the server's own do.

use crate::common::stage::{Events, Stage, on_stage_alone, on_stage_alone_with};
use crate::common::{Reply, Server, on_every_engine};

/// A key of every family, and the command that makes it.
const FAMILIES: &[(&str, &str)] = &[
    ("tb", "TB.SET tb 10 1 1000"),
    ("lb", "LB.SET lb 10 1 1000"),
    ("sem", "SEM.SET sem 5"),
    ("gate", "GATE.SET gate STAGE a TB 10 1 1000"),
    ("hot", "HOT.SET hot 10 1 1000"),
    ("q", "RQ.PUSH q m"),
];

fn restore(s: &mut Stage, from: &str, to: &str, options: &[&str]) {
    let Reply::Bytes(dump) = s.run(&format!("DUMP {from}")) else { panic!("a dump is bytes") };
    let mut words: Vec<&[u8]> = vec![b"RESTORE", to.as_bytes(), b"0", &dump];
    words.extend(options.iter().map(|o| o.as_bytes()));
    assert_eq!(s.bytes(&words).to_string(), "\"OK\"", "{from}");
}

// ---------------------------------------------------------------- what others' keys do not notice

#[test]
fn a_restored_key_keeps_its_idle_time_and_frequency() {
    on_stage_alone_with(
        |builder| builder.option("maxmemory-policy", "allkeys-lru"),
        |s| {
            s.run("SET plain 1");
            for (_, line) in FAMILIES {
                s.run(line);
            }
            // An unpinned one, too, which gets a TTL after it came.
            s.run("TB.TAKE own 10 1 600000 COST 5");
            let keys: Vec<&str> =
                ["plain", "own"].into_iter().chain(FAMILIES.iter().map(|(k, _)| *k)).collect();
            for key in &keys {
                restore(s, key, "restored", &["IDLETIME", "1000"]);
                // What is put off until after the command is done by the time of the next but one.
                s.run("TB.PEEK none 1 1 1");
                let idle = s.int("OBJECT IDLETIME restored");
                assert!(idle >= 1000, "{key}: {idle}");
                s.run("DEL restored");
            }
            s.run("CONFIG SET maxmemory-policy allkeys-lfu");
            for key in &keys {
                restore(s, key, "restored", &["FREQ", "0"]);
                s.run("TB.PEEK none 1 1 1");
                assert_eq!(s.int("OBJECT FREQ restored"), 0, "{key}");
                s.run("DEL restored");
            }
        },
    );
}

/// `keyspace_hits` and `keyspace_misses`.
fn hits_and_misses(s: &mut Stage) -> (i64, i64) {
    let stats = s.text("INFO stats");
    let of = |name: &str| {
        let value = stats.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
        value.and_then(|v| v.trim().parse().ok()).expect("a number")
    };
    (of("keyspace_hits"), of("keyspace_misses"))
}

/// By how much a command raises them.
fn counted(s: &mut Stage, line: &str) -> (i64, i64) {
    let before = hits_and_misses(s);
    s.run(line);
    let after = hits_and_misses(s);
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn the_servers_own_commands_count_hits_and_misses_as_without_the_module() {
    const LINES: &[&str] = &[
        "SET a 1",
        "RENAME a b",
        "COPY b c",
        "MOVE c 3",
        "RENAMENX b d",
        "DEL d",
        "UNLINK d",
        "EXPIRE d 10",
        "GET d",
        "SET e 1 PX 1000",
        "PERSIST e",
        "GETEX e EX 100",
        "SORT l STORE m",
        "SWAPDB 0 3",
        "SWAPDB 3 0",
    ];
    on_every_engine(|engine| {
        let with = Server::builder(engine).start();
        let without = Server::builder(engine).without_module().start();
        let mut stages = [with, without].map(Stage::on);
        // Keys of ours that came, left and were flushed before change nothing of it.
        for line in ["TB.SET t 1 1 1000", "RENAME t t2", "COPY t2 t3", "DEL t2", "FLUSHALL"] {
            stages[0].run(line);
        }
        for line in LINES {
            let [with, without] = &mut stages;
            assert_eq!(counted(with, line), counted(without, line), "{line}");
        }
        for s in &mut stages {
            s.run("SET plain 1");
        }
        let counted = stages.map(|mut s| {
            let before = hits_and_misses(&mut s);
            restore(&mut s, "plain", "restored", &[]);
            let after = hits_and_misses(&mut s);
            (after.0 - before.0, after.1 - before.1)
        });
        assert_eq!(counted[0], counted[1], "RESTORE");
    });
}

// ---------------------------------------------------------------- keys of ours count as keys do

/// Commands that read, on a key that is there.
const READS: &[&str] = &[
    "TB.PEEK tb",
    "TB.INFO tb",
    "LB.PEEK lb",
    "LB.INFO lb",
    "SEM.PEEK sem",
    "SEM.INFO sem",
    "GATE.PEEK gate",
    "GATE.INFO gate",
    "HOT.PEEK hot s",
    "HOT.INFO hot",
    "HOT.TOP hot",
    "RQ.LEN q",
    "RQ.LEN q READY",
    "RQ.INFO q",
    "RQ.GET q 1",
    "RQ.LIST q READY",
];

#[test]
fn a_read_of_ours_is_one_hit_or_one_miss_and_one_keymiss() {
    on_stage_alone(|s| {
        s.run("SLUICE.CLOCK SET 1900000000000");
        for (_, line) in FAMILIES {
            s.run(line);
        }
        for line in READS {
            assert_eq!(counted(s, line), (1, 0), "{line}");
        }
        let missing = [
            "TB.PEEK none 1 1 1",
            "TB.INFO none",
            "LB.PEEK none 1 1 1",
            "SEM.PEEK none 1",
            "GATE.INFO none",
            "HOT.INFO none",
            "RQ.LEN none",
            "RQ.INFO none",
            "RQ.GET none 1",
            "RQ.LIST none READY",
        ];
        let mut events = Events::listen(s, "*");
        s.run("CONFIG SET notify-keyspace-events KEAm");
        for line in missing {
            assert_eq!(counted(s, line), (0, 1), "{line}");
            assert_eq!(events.next().1, "keymiss", "{line}");
            assert!(events.is_quiet(), "{line}: one is enough");
        }
        // A read that applies what is due counts no more: here the timer has not come in between.
        s.run("SLUICE.CLOCK REAL");
        for [claim, read] in [["SEM.ACQUIRE sem LEASE 1", "SEM.PEEK sem"], ["RQ.CLAIM q LEASE 1", "RQ.LEN q"]]
        {
            let before = hits_and_misses(s);
            s.at_once(&["MULTI", claim, "DEBUG SLEEP 0.01", read, "EXEC"]);
            assert_eq!(hits_and_misses(s), (before.0 + 1, before.1), "{read}");
        }
    });
}

#[test]
fn writes_of_ours_count_no_hits_and_tell_no_keymiss_as_native_writes_do() {
    on_stage_alone(|s| {
        s.run("SLUICE.CLOCK SET 1900000000000");
        let mut events = Events::listen(s, "keymiss");
        s.run("CONFIG SET notify-keyspace-events KEAm");
        for line in [
            "TB.TAKE t 10 1 1000",
            "TB.TAKE t",
            "TB.REFUND none 1",
            "TB.RESET none",
            "LB.TAKE l 10 1 1000",
            "SEM.ACQUIRE s 1",
            "SEM.RELEASE none 1",
            "HOT.SET h 1 1 1000",
            "HOT.TAKE h a",
            "RQ.CLAIM none",
            "RQ.MCLAIM 2 none q",
            "RQ.PUSH q m",
            "RQ.CLAIM q",
            "RQ.ACK q 1@1",
            "RQ.DEL none a",
        ] {
            assert_eq!(counted(s, line), (0, 0), "{line}");
        }
        assert!(events.is_quiet());
        // Nor does what the timer does, or a line that is served.
        let mut waiter = s.waiter("RQ.CLAIM later BLOCK 0");
        let before = hits_and_misses(s);
        s.run("RQ.PUSH later m");
        waiter.told();
        s.run("SLUICE.CLOCK ADVANCE 100000");
        assert_eq!(hits_and_misses(s), before);
        assert!(events.is_quiet());
    });
}
