//! A power cut in the middle of what is being written: whatever one command or one turn of the
//! timer changed is whole or absent after it, and nothing that is acknowledged afterwards is lost.
//!
//! The server puts several commands of one call into MULTI … EXEC. Cut off inside, the file ends in
//! a transaction that swallows what follows. So what the module changes at once is carried by one
//! command, also over keys and databases.

use crate::common::stage::{Stage, words};
use crate::common::{
    Engine, Reply, Server, call, eventually, free_port, info, on_every_engine, wait_until_equal, within,
};
use std::path::PathBuf;
use std::time::Duration;

/// The file that the server appends to.
fn tail_of(server: &Server) -> PathBuf {
    let folder = server.dir().join("appendonlydir");
    let files = std::fs::read_dir(folder).expect("the files of an AOF").flatten().map(|f| f.path());
    files.filter(|f| f.to_string_lossy().ends_with(".incr.aof")).max().expect("a file to append to")
}

fn read(path: &PathBuf) -> Vec<u8> {
    std::fs::read(path).expect("a file of the AOF")
}

/// Where commands begin in a piece of an AOF, and its end; comment lines count as commands.
fn boundaries(bytes: &[u8]) -> Vec<usize> {
    let line = |at: usize| {
        let end = bytes[at..].iter().position(|b| *b == b'\n').expect("a whole line") + at;
        (String::from_utf8_lossy(&bytes[at + 1..end]).trim().to_owned(), end + 1)
    };
    let (mut found, mut at) = (vec![0], 0);
    while at < bytes.len() {
        let (text, mut next) = line(at);
        if bytes[at] == b'*' {
            for _ in 0..text.parse::<usize>().expect("a number of arguments") {
                let (len, begin) = line(next);
                next = begin + len.parse::<usize>().expect("a length") + 2;
            }
        }
        found.push(next);
        at = next;
    }
    found
}

/// How often a command stands in a piece of an AOF.
fn count(bytes: &[u8], command: &str) -> usize {
    let wanted = format!("${}\r\n{command}\r\n", command.len()).into_bytes();
    bytes.windows(wanted.len()).filter(|w| w.eq_ignore_ascii_case(&wanted)).count()
}

fn stage(engine: &Engine) -> Stage {
    let server = Server::builder(engine)
        .option("hz", "100")
        .option("appendonly", "yes")
        .option("appendfsync", "always")
        // No background rewrite comes in between.
        .option("auto-aof-rewrite-percentage", "0");
    Stage::on(server.start())
}

/// What there is before the things are done that change several keys at once.
fn prepare(s: &mut Stage) {
    for i in 0..6 {
        s.run(&format!("RQ.PUSH q p{i}"));
    }
    for (key, db) in [("a", 0), ("b", 0), ("c", 3), ("d", 5)] {
        s.run(&format!("SELECT {db}"));
        s.run(&format!("RQ.PUSH {key} p"));
        s.run(&format!("RQ.PUSH {key} p MAXDELIVERIES 9"));
    }
    s.run("SELECT 0");
    s.run("TB.SET m:tb 10 10 60000000");
    s.run("LB.SET m:lb 10 10 60000000");
    s.run("GATE.SET m:gate STAGE one TB 10 10 60000000 STAGE two SEM 5");
}

/// Each changes several keys at once, or one key in several steps.
fn things(s: &mut Stage) {
    s.run("RQ.MOVE q r READY COUNT 2");
    s.run("GATE.MPASS 3 m:tb m:lb m:gate COST 2");
    // A push that serves a client.
    let mut waiting = s.server.raw();
    waiting.send(&words("RQ.CLAIM w BLOCK 10000")).expect("a command to be sent");
    s.run("PING");
    eventually("a client that waits", || s.field("blocked_clients") == 1);
    s.run("RQ.PUSH w served");
    assert!(matches!(waiting.read().expect("a reply"), Reply::Array(_)));
    // Leases that end at once, on keys of several databases: one turn of the timer.
    for (key, db) in [("a", 0), ("b", 0), ("c", 3), ("d", 5)] {
        s.run(&format!("SELECT {db}"));
        s.run(&format!("RQ.CLAIM {key} COUNT 2 LEASE 30"));
    }
    s.run("SELECT 0");
    s.run("DEBUG SLEEP 0.1");
    eventually("the leases to end", || s.int("RQ.LEN a READY") == 2);
    for (key, db) in [("b", 0), ("c", 3), ("d", 5)] {
        s.run(&format!("SELECT {db}"));
        eventually("the leases to end", || s.int(&format!("RQ.LEN {key} READY")) == 2);
    }
    s.run("SELECT 0");
}

/// A number of `RQ.INFO`.
fn total(s: &mut Stage, key: &str, field: &str) -> i64 {
    match s.run(&format!("RQ.INFO {key}")) {
        Reply::Array(items) => items
            .chunks(2)
            .find(|pair| pair[0] == Reply::Bytes(field.as_bytes().to_vec()))
            .map(|pair| match pair[1] {
                Reply::Int(n) => n,
                ref other => panic!("{field} of {key} is {other}"),
            })
            .expect("a field of RQ.INFO"),
        _ => 0,
    }
}

fn whole_or_absent(s: &mut Stage) {
    let (out, moved_in) = (total(s, "q", "total_moved_out"), total(s, "r", "total_moved_in"));
    assert_eq!(out, moved_in, "RQ.MOVE is half done");
    assert_eq!(s.int("RQ.LEN q") + s.int("RQ.LEN r"), 6, "messages of RQ.MOVE");
    let left: Vec<String> = ["TB.PEEK m:tb", "LB.PEEK m:lb", "GATE.PEEK m:gate"]
        .iter()
        .map(|peek| s.run(peek).to_string())
        .collect();
    let passed: Vec<bool> =
        vec![left[0].contains(", 7,"), left[1].contains(", 7,"), left[2].contains(", 7,")];
    assert!(passed.iter().all(|p| *p == passed[0]), "GATE.MPASS is half done: {left:?}");
}

#[test]
fn a_file_that_is_cut_anywhere_loses_nothing_that_is_acknowledged_afterwards() {
    on_every_engine(|engine| {
        let mut s = stage(engine);
        prepare(&mut s);
        let begin = read(&tail_of(&s.server)).len();
        things(&mut s);
        s.server.kill_9();
        let file = tail_of(&s.server);
        let all = read(&file);
        for transaction in ["MULTI", "EXEC"] {
            assert_eq!(count(&all, transaction), 0, "{transaction} in {}", all.escape_ascii());
        }
        assert!(count(&all, "SLUICE.APPLY") > 10, "there is something to cut");
        let cuts: Vec<usize> = boundaries(&all[begin..])
            .windows(2)
            .flat_map(|w| [w[0], w[0] + 1, (w[0] + w[1]) / 2, w[1] - 1])
            .map(|at| begin + at)
            .collect();
        assert!(cuts.len() > 40, "{} cuts", cuts.len());
        let mut told = 0;
        for (i, cut) in cuts.iter().enumerate() {
            std::fs::write(&file, &all[..*cut]).expect("a file to be cut");
            let (said, name) = (s.server.log().len(), format!("acknowledged:{i}"));
            s.server.start_again();
            s.control = s.server.raw();
            whole_or_absent(&mut s);
            told += usize::from(s.server.log()[said..].contains("Run BGREWRITEAOF now"));
            s.run(&format!("RQ.PUSH {name} p"));
            s.run("MULTI");
            s.run(&format!("RQ.PUSH {name} p"));
            s.run("RQ.MOVE q r READY COUNT 1");
            s.run("EXEC");
            let moved = total(&mut s, "r", "total_moved_in");
            s.server.kill_9();
            s.server.start_again();
            s.control = s.server.raw();
            assert_eq!(s.int(&format!("RQ.LEN {name}")), 2, "acknowledged, cut at {cut}");
            assert_eq!(total(&mut s, "r", "total_moved_in"), moved, "acknowledged, cut at {cut}");
            whole_or_absent(&mut s);
            assert_eq!(s.field("panics_caught"), 0);
            s.server.kill_9();
        }
        assert!(told >= cuts.len() / 2, "a file that was cut is told of: {told} of {}", cuts.len());
        assert!(told < cuts.len(), "a file that was whole is not");
    });
}

#[test]
fn a_transaction_that_is_cut_is_told_of_and_cured_by_a_rewrite() {
    on_every_engine(|engine| {
        for cure in [false, true] {
            let mut s = stage(engine);
            s.run("RQ.PUSH q first");
            s.run("MULTI");
            s.run("RQ.PUSH q second");
            s.run("RQ.PUSH q third");
            s.run("EXEC");
            s.server.kill_9();
            let (file, said) = (tail_of(&s.server), s.server.log().len());
            let all = read(&file);
            let bounds = boundaries(&all);
            // Inside the second command of the transaction.
            std::fs::write(&file, &all[..bounds[bounds.len() - 2] - 3]).expect("a file to be cut");
            s.server.start_again();
            s.control = s.server.raw();
            let log = s.server.log()[said..].to_owned();
            assert!(log.contains("Run BGREWRITEAOF now"), "{log}");
            if cure {
                s.run("BGREWRITEAOF");
                within(Duration::from_secs(20), "the rewrite", || {
                    let info = info(&mut s.server.connect(), "persistence");
                    let quiet =
                        ["aof_rewrite_in_progress", "aof_rewrite_scheduled"].iter().all(|f| info[*f] == "0");
                    (quiet && info["aof_last_bgrewrite_status"] == "ok").then_some(())
                });
            }
            s.run("RQ.PUSH q acknowledged");
            let (held, said) = (s.int("RQ.LEN q"), s.server.log().len());
            s.server.kill_9();
            s.server.start_again();
            s.control = s.server.raw();
            let log = s.server.log()[said..].to_owned();
            if cure {
                assert_eq!(s.int("RQ.LEN q"), held);
                assert!(!log.contains("Run BGREWRITEAOF now"), "{log}");
            } else {
                // A server that cut inside the client's transaction now cuts off what was
                // acknowledged as well. It is told of at least.
                assert!(s.int("RQ.LEN q") == held || log.contains("Run BGREWRITEAOF now"), "{log}");
            }
        }
    });
}

#[test]
fn replicas_and_their_files_hold_the_same_and_see_no_transaction_of_ours() {
    on_every_engine(|engine| {
        let mut s = stage(engine);
        let mut replica = stage(engine).server;
        s.run("RQ.PUSH before p");
        replica.replica_of(&s.server);
        prepare(&mut s);
        things(&mut s);
        // A journal of several batches on both keys.
        let payload = "x".repeat(40);
        for _ in 0..40 {
            let mut push = vec!["RQ.MPUSH", "many", "100"];
            push.extend(std::iter::repeat_n(payload.as_str(), 100));
            assert!(matches!(s.bytes(&push), Reply::Array(_)));
        }
        s.run("RQ.MOVE many elsewhere READY");
        assert_eq!(s.int("RQ.LEN elsewhere"), 4000);
        // Keys that go: a limiter that is put back to full, and others that come.
        s.run("TB.TAKE full 10 10 60000 COST 3");
        s.run("TB.REFUND full 3");
        s.run("GATE.MPASS 2 m:tb m:lb");
        wait_until_equal(&s.server, &replica);
        let stats = info(&mut replica.connect(), "commandstats");
        assert!(stats.contains_key("cmdstat_sluice.apply"), "{stats:?}");
        for transaction in ["cmdstat_multi", "cmdstat_exec"] {
            assert!(!stats.contains_key(transaction), "{transaction} on the replica: {stats:?}");
        }
        assert!(stats["cmdstat_sluice.apply"].contains("failed_calls=0"), "{stats:?}");
        let held = crate::common::digest(&mut s.server.connect());
        replica.set_option("replicaof", "no one");
        replica.kill_9();
        replica.start_again();
        assert_eq!(crate::common::digest(&mut replica.connect()), held, "from the replica's file");
        assert_eq!(call!(replica.connect(), "DBSIZE"), call!(s.server.connect(), "DBSIZE"));
    });
}

#[test]
fn in_a_cluster_what_is_carried_at_once_is_of_one_slot() {
    on_every_engine(|engine| {
        let server = Server::builder(engine)
            .option("hz", "100")
            .option("appendonly", "yes")
            .option("appendfsync", "always")
            .option("cluster-enabled", "yes")
            .option("cluster-port", &free_port().to_string())
            .start();
        let mut s = Stage::on(server);
        s.run("CLUSTER ADDSLOTSRANGE 0 16383");
        eventually("the cluster", || s.text("CLUSTER INFO").contains("cluster_state:ok"));
        // Two keys a slot.
        let keys: Vec<String> = (0..300).map(|i| format!("{{{}}}{}", i / 2, i % 2)).collect();
        for key in &keys {
            s.run(&format!("RQ.PUSH {key} p"));
        }
        // While it is paused nothing ends: then all is due at once.
        let mut paused = s.server.raw();
        for key in &keys {
            s.run(&format!("RQ.CLAIM {key} LEASE 1500"));
        }
        paused.call(&words("CLIENT PAUSE 2500 WRITE")).expect("a pause");
        for key in &keys {
            eventually("the leases to end", || s.int(&format!("RQ.LEN {key} READY")) == 1);
        }
        let lag = s.field("timer_lag_max_us");
        assert!(lag < 5_000_000, "the last of the keys was served {lag} us late");
        s.server.kill_9();
        let all = read(&tail_of(&s.server));
        for transaction in ["MULTI", "EXEC"] {
            assert_eq!(count(&all, transaction), 0, "{transaction}");
        }
        let mut units = 0;
        for command in boundaries(&all).windows(2).map(|w| &all[w[0]..w[1]]) {
            let named = |key: &String| {
                let bytes = format!("\r\n{key}\r\n").into_bytes();
                command.windows(bytes.len()).any(|w| w == bytes)
            };
            let named: Vec<&String> = keys.iter().filter(|k| named(k)).collect();
            let tag = |key: &str| key.split('}').next().unwrap_or_default().to_owned();
            assert!(
                named.windows(2).all(|w| tag(w[0]) == tag(w[1])),
                "keys of several slots at once: {named:?}"
            );
            units += usize::from(named.len() > 1);
        }
        assert!(units > 0, "keys of one slot go together");
        s.server.start_again();
        s.control = s.server.raw();
        eventually("the cluster", || s.text("CLUSTER INFO").contains("cluster_state:ok"));
        for key in &keys {
            assert_eq!(s.int(&format!("RQ.LEN {key} READY")), 1);
        }
    });
}
