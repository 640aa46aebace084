//! Time, against real servers: what is due happens at its instant with no traffic at all, by the
//! real clock and by the test clock, and goes on happening whatever becomes of the key it happens
//! at.

use crate::common::stage::{
    Event, Events, Stage, on_stage, on_stage_alone, on_stage_with, payloads, receipt, wall, words,
};
use crate::common::{PATIENCE, Reply, Server, eventually, on_every_engine, within};
use std::time::{Duration, Instant};

/// What happens at an instant is noticed so much later at most: generous, for a machine with other
/// things to do. How soon it is: `make bench`.
const LATE_MS: i64 = 5_000;

/// Waits for these events (in any order), none of them before `instant` or much after it, and no
/// others.
#[track_caller]
fn happen_at(events: &mut Events, instant: i64, expected: &[(i64, &str, &str)]) {
    let mut heard: Vec<Event> = Vec::new();
    for _ in expected {
        heard.push(events.next());
        let now = wall();
        assert!(now >= instant, "{heard:?} {} ms too soon", instant - now);
        assert!(now < instant + LATE_MS, "{heard:?} {} ms late", now - instant);
    }
    let mut expected: Vec<Event> =
        expected.iter().map(|(db, name, key)| (*db, (*name).to_owned(), (*key).to_owned())).collect();
    heard.sort();
    expected.sort();
    assert_eq!(heard, expected);
    assert!(events.is_quiet(), "{:?}", events.next());
}

/// A message in flight at `key` whose lease ends after so long; answers the instant.
#[track_caller]
fn lease(s: &mut Stage, key: &str, ms: i64) -> i64 {
    s.run(&format!("RQ.PUSH {key} m"));
    let until = wall() + ms;
    s.run(&format!("RQ.CLAIM {key} LEASE {ms}"));
    until
}

// ---------------------------------------------------------------- with no traffic

#[test]
fn leases_of_messages_end_with_no_traffic_at_all() {
    on_stage(|s| {
        let mut events = Events::listen(s, "rq.timeout");
        let until = lease(s, "q", 60);
        happen_at(&mut events, until, &[(0, "rq.timeout", "q")]);
        assert_eq!(s.ready("q"), "1");
        assert_eq!(s.field("timer_objects"), 0, "nothing is due any more");
    });
}

#[test]
fn delays_fall_due_with_no_traffic_at_all() {
    on_stage(|s| {
        let mut client = s.waiter("RQ.CLAIM q BLOCK 0");
        let due = wall() + 60;
        s.run("RQ.PUSH q m DELAY 60");
        assert_eq!(client.payloads(), ["m"]);
        let now = wall();
        assert!(now >= due && now < due + LATE_MS, "{} ms late", now - due);
    });
}

#[test]
fn messages_expire_with_no_traffic_at_all() {
    on_stage(|s| {
        let mut events = Events::listen(s, "rq.expire");
        let end = wall() + 60;
        s.run("RQ.PUSH own m TTL 60");
        s.run("RQ.SET queue TTL 60");
        s.run("RQ.PUSH queue m");
        happen_at(&mut events, end, &[(0, "rq.expire", "own"), (0, "rq.expire", "queue")]);
    });
}

#[test]
fn a_poison_message_dies_at_the_end_of_its_last_lease_with_no_traffic_at_all() {
    on_stage(|s| {
        let mut events = Events::listen(s, "rq.*");
        s.run("RQ.SET q MAXDELIVERIES 1");
        let until = lease(s, "q", 60);
        for name in ["rq.set", "rq.push", "rq.claim"] {
            assert_eq!(events.next().1, name);
        }
        happen_at(&mut events, until, &[(0, "rq.timeout", "q"), (0, "rq.dead", "q")]);
    });
}

#[test]
fn holds_and_permits_end_with_no_traffic_at_all() {
    on_stage(|s| {
        let mut events = Events::listen(s, "sem.timeout");
        let until = wall() + 60;
        // A bucket that is full again, and a semaphore that nobody holds, go; DBSIZE does not look
        // into a key.
        s.run("TB.HOLD tb 5 1 600000 COST 5 TTL 60 ONEXPIRE REFUND");
        s.run("SEM.ACQUIRE sem 1 LEASE 60");
        happen_at(&mut events, until, &[(0, "sem.timeout", "sem")]);
        within(Duration::from_millis(LATE_MS as u64), "both keys to be gone", || {
            (s.int("DBSIZE") == 0).then_some(())
        });
        assert!(wall() >= until);
    });
}

#[test]
fn nothing_is_due_before_its_instant() {
    on_stage(|s| {
        let begin = Instant::now();
        s.run("RQ.PUSH q m DELAY 150");
        s.run("RQ.PUSH r m");
        s.run("RQ.CLAIM r LEASE 150");
        loop {
            let seen = (s.ready("q"), s.in_flight("r"));
            if begin.elapsed() >= Duration::from_millis(150) {
                break;
            }
            assert_eq!(seen, ("0".into(), "1".into()));
        }
        eventually("both to be ready", || s.ready("q") == "1" && s.ready("r") == "1");
    });
}

// ---------------------------------------------------------------- by the test clock

#[test]
fn the_test_clock_stops_at_each_instant_at_which_something_is_due() {
    on_stage(|s| {
        let mut events = Events::listen(s, "*.timeout");
        s.run("SLUICE.CLOCK SET 1900000000000");
        for (key, ms) in [("a", 3000), ("b", 1000), ("c", 2000)] {
            s.run(&format!("RQ.PUSH {key} m"));
            s.run(&format!("RQ.CLAIM {key} LEASE {ms}"));
        }
        s.run("SEM.ACQUIRE s 1 LEASE 1500");
        s.run("SLUICE.CLOCK ADVANCE 999");
        assert!(events.is_quiet());
        s.run("SLUICE.CLOCK ADVANCE 1");
        assert_eq!(events.next(), (0, "rq.timeout".into(), "b".into()));
        assert!(events.is_quiet());
        s.run("SLUICE.CLOCK ADVANCE 10000");
        let order: Vec<String> = (0..3).map(|_| events.next().2).collect();
        assert_eq!(order, ["s", "c", "a"]);
        assert!(events.is_quiet());
        // What real time does meanwhile is nothing to it.
        s.run("RQ.PUSH d m DELAY 20");
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!(s.ready("d"), "0");
        s.run("SLUICE.CLOCK ADVANCE 20");
        assert_eq!(s.ready("d"), "1");
    });
}

#[test]
fn keys_go_at_their_instant_of_the_test_clock() {
    on_stage(|s| {
        s.run("SLUICE.CLOCK SET 1900000000000");
        s.run("TB.TAKE tb 10 1 1000");
        s.run("LB.TAKE lb 10 1 1000");
        s.run("SEM.ACQUIRE sem 1 LEASE 1000");
        s.run("TB.HOLD held 10 1 100000 COST 5 TTL 1000 ONEXPIRE REFUND");
        s.run("SLUICE.CLOCK ADVANCE 999");
        assert_eq!(s.int("DBSIZE"), 4);
        s.run("SLUICE.CLOCK ADVANCE 1");
        assert_eq!(s.int("DBSIZE"), 0);
    });
}

#[test]
fn a_clock_that_is_let_run_again_catches_up_at_once() {
    on_stage(|s| {
        let mut events = Events::listen(s, "rq.timeout");
        s.run(&format!("SLUICE.CLOCK SET {}", wall() - 1_000_000));
        s.run("RQ.PUSH q m");
        s.run("RQ.CLAIM q LEASE 1000");
        assert!(events.is_quiet());
        s.run("SLUICE.CLOCK REAL");
        assert_eq!(events.next(), (0, "rq.timeout".into(), "q".into()));
    });
}

// ---------------------------------------------------------------- whatever becomes of the key

/// A lease at `q`, then `change`: its end is told at these places, once, at its instant.
#[track_caller]
fn a_lease_ends_after(change: impl Fn(&mut Stage), places: &[(i64, &str)]) {
    let expected: Vec<_> = places.iter().map(|(db, key)| (*db, "rq.timeout", *key)).collect();
    let test = |s: &mut Stage| {
        s.together("q other copy a b c");
        let mut events = Events::listen(s, "rq.timeout");
        let until = lease(s, "q", 300);
        change(s);
        happen_at(&mut events, until, &expected);
        assert_eq!(s.field("timer_objects"), 0);
    };
    if places.iter().all(|(db, _)| *db == 0) { on_stage(test) } else { on_stage_alone(test) }
}

#[test]
fn a_lease_ends_after_rename() {
    a_lease_ends_after(|s| drop(s.run("RENAME q other")), &[(0, "other")]);
}

#[test]
fn a_lease_ends_after_rename_over_another_queue_whose_own_are_gone() {
    a_lease_ends_after(
        |s| {
            lease(s, "other", 100);
            s.run("RENAME q other");
        },
        &[(0, "other")],
    );
}

#[test]
fn a_lease_ends_after_rename_to_and_fro() {
    a_lease_ends_after(
        |s| {
            for line in ["RENAME q a", "RENAMENX a b", "RENAME b q", "RENAME q c"] {
                s.run(line);
            }
            s.run("SET q x");
        },
        &[(0, "c")],
    );
}

#[test]
fn a_lease_ends_after_move_to_another_database() {
    a_lease_ends_after(|s| drop(s.run("MOVE q 5")), &[(5, "q")]);
}

#[test]
fn a_lease_ends_at_the_copy_too() {
    a_lease_ends_after(
        |s| {
            s.run("COPY q copy");
            s.run("COPY q q DB 5");
        },
        &[(0, "q"), (0, "copy"), (5, "q")],
    );
}

#[test]
fn a_lease_ends_after_swapdb() {
    a_lease_ends_after(
        |s| {
            s.run("SELECT 5");
            s.run("RQ.PUSH q idle");
            s.run("SELECT 0");
            s.run("SWAPDB 0 5");
            s.run("SWAPDB 5 7");
        },
        &[(7, "q")],
    );
}

#[test]
fn a_lease_ends_after_restore_and_restore_over_it() {
    a_lease_ends_after(
        |s| {
            let Reply::Bytes(dump) = s.run("DUMP q") else { panic!("a dump is bytes") };
            s.bytes(&[&b"RESTORE"[..], b"q", b"0", &dump, b"REPLACE"]);
            s.bytes(&[&b"RESTORE"[..], b"other", b"0", &dump]);
            // A payload that is refused leaves nothing behind that would be due.
            let refused = s.bytes(&[&b"RESTORE"[..], b"other", b"0", &dump]);
            assert!(matches!(refused, Reply::Error(_)));
        },
        &[(0, "q"), (0, "other")],
    );
}

#[test]
fn a_lease_ends_on_another_server_that_it_is_restored_to() {
    on_stage(|s| {
        // Nothing at all was due there before.
        let mut other = Stage::on(Server::start(s.server.engine()));
        let mut events = Events::listen(&mut other, "rq.timeout");
        let until = lease(s, "q", 150);
        let Reply::Bytes(dump) = s.run("DUMP q") else { panic!("a dump is bytes") };
        other.bytes(&[&b"RESTORE"[..], b"q", b"0", &dump]);
        happen_at(&mut events, until, &[(0, "rq.timeout", "q")]);
    });
}

#[test]
fn a_lease_ends_after_debug_reload() {
    a_lease_ends_after(|s| drop(s.run("DEBUG RELOAD")), &[(0, "q")]);
}

#[test]
fn a_lease_that_ended_while_the_server_was_down_has_ended_when_it_is_up() {
    on_stage_with(
        |builder| builder.option("appendonly", "yes").option("appendfsync", "always"),
        |s| {
            lease(s, "q", 100);
            s.run("RQ.PUSH q due DELAY 100");
            s.server.kill_9();
            std::thread::sleep(Duration::from_millis(120));
            s.server.start_again();
            s.control = s.server.raw();
            let mut events = Events::listen(s, "rq.timeout");
            if events.is_quiet() {
                assert!(s.shown("RQ.INFO q").contains("\"total_timed_out\", 1"));
            }
            assert_eq!(s.ready("q"), "2");
        },
    );
}

#[test]
fn queues_of_one_name_in_two_databases_are_two_queues() {
    on_stage_alone(|s| {
        let mut events = Events::listen(s, "rq.timeout");
        let zero = lease(s, "q", 100);
        s.run("SELECT 5");
        let five = lease(s, "q", 700);
        happen_at(&mut events, zero, &[(0, "rq.timeout", "q")]);
        happen_at(&mut events, five, &[(5, "rq.timeout", "q")]);
        assert_eq!((s.ready("q"), s.field("timer_objects")), ("1".into(), 0));
    });
}

#[test]
fn nothing_ends_at_a_key_that_is_gone() {
    on_stage(|s| {
        s.together("q other");
        let mut events = Events::listen(s, "rq.timeout");
        for gone in [
            "DEL q",
            "UNLINK q",
            "FLUSHDB",
            "FLUSHALL",
            "FLUSHALL ASYNC",
            "FLUSHALL SYNC",
            "SET q x",
            "RENAME other q",
            "COPY other q REPLACE",
            "PEXPIRE q 0",
            "PEXPIRE q 5",
        ] {
            s.run("SLUICE.CLOCK SET 1900000000000");
            s.run("SET other x");
            lease(s, "q", 1000);
            s.run("RQ.PUSH q m DELAY 1000");
            s.run(gone);
            eventually("nothing to be due any more", || s.field("timer_objects") == 0);
            s.run("SLUICE.CLOCK ADVANCE 2000");
            assert!(events.is_quiet(), "{gone}");
            // Nor is anything left that would disturb the next of its name.
            s.run("DEL q");
            s.run("RQ.PUSH q next");
            s.run("RQ.CLAIM q LEASE 600000");
            assert_eq!(s.in_flight("q"), "1");
            s.run("DEL q");
        }
        if s.is_cluster() {
            return;
        }
        // Flushing one database is nothing to another.
        s.run("SLUICE.CLOCK REAL");
        let until = lease(s, "q", 100);
        s.run("SELECT 5");
        lease(s, "q", 50);
        s.run("FLUSHDB");
        happen_at(&mut events, until, &[(0, "rq.timeout", "q")]);
    });
}

#[test]
fn nothing_ends_at_a_key_that_was_evicted() {
    const KEYS: i64 = 40;
    on_stage(|s| {
        let mut events = Events::listen(s, "evicted");
        let payload = "x".repeat(20_000);
        for i in 0..KEYS {
            s.run(&format!("RQ.PUSH q{i} {payload}"));
            s.run(&format!("RQ.CLAIM q{i} LEASE 600000"));
            s.run(&format!("TB.HOLD t{i} 10 1 600000 COST 1 TTL 600000"));
        }
        assert_eq!(s.field("timer_objects"), 2 * KEYS);
        s.run("CONFIG SET maxmemory-policy allkeys-random");
        s.run("CONFIG SET maxmemory 1");
        // The server evicts before it runs a command that may need memory.
        eventually("all to be evicted", || {
            s.bytes(&["SET", "a", "x"]);
            s.int("DBSIZE") == 0
        });
        events.next();
        assert_eq!(s.field("timer_objects"), 0);
        s.run("CONFIG SET maxmemory 0");
        lease(s, "q1", 10);
        eventually("a lease to end", || s.ready("q1") == "1");
    });
}

#[test]
fn holds_and_permits_end_wherever_their_key_went() {
    on_stage(|s| {
        s.together("tb tb2 sem sem2 gate gate2");
        for there in ["RENAME", "MOVE", "SWAPDB", "COPY", "RESTORE", "DEBUG RELOAD"] {
            if s.is_cluster() && matches!(there, "MOVE" | "SWAPDB") {
                continue;
            }
            s.run("FLUSHALL");
            s.run("SLUICE.CLOCK SET 1900000000000");
            s.run("TB.HOLD tb 5 1 600000 COST 5 TTL 1000 ONEXPIRE REFUND");
            s.run("SEM.ACQUIRE sem 1 LEASE 1000");
            s.run("GATE.SET gate STAGE s SEM 1 LEASE 1000");
            s.run("GATE.PASS gate");
            for key in ["tb", "sem", "gate"] {
                match there {
                    "RENAME" => drop(s.run(&format!("RENAME {key} {key}2"))),
                    "MOVE" => drop(s.run(&format!("MOVE {key} 5"))),
                    "COPY" => drop(s.run(&format!("COPY {key} {key}2"))),
                    "RESTORE" => {
                        let Reply::Bytes(dump) = s.run(&format!("DUMP {key}")) else {
                            panic!("a dump is bytes")
                        };
                        let restored = s.bytes(&[&b"RESTORE"[..], key.as_bytes(), b"0", &dump, b"REPLACE"]);
                        assert_eq!(restored.to_string(), "\"OK\"");
                    }
                    _ => {}
                }
            }
            match there {
                "SWAPDB" => drop(s.run("SWAPDB 0 5")),
                "DEBUG RELOAD" => drop(s.run("DEBUG RELOAD")),
                _ => {}
            }
            let objects = if there == "COPY" { 6 } else { 3 };
            assert_eq!(s.field("timer_objects"), objects, "{there}");
            s.run("SLUICE.CLOCK ADVANCE 999");
            assert_eq!(s.field("timer_objects"), objects, "{there}");
            s.run("SLUICE.CLOCK ADVANCE 1");
            assert_eq!(s.field("timer_objects"), 0, "{there}");
            // The gate was set: it stays, and has its permit again.
            assert_eq!(s.field("tb_keys") + s.field("sem_keys"), 0, "{there}");
        }
    });
}

#[test]
fn a_queue_freed_in_the_background_leaves_nothing_behind() {
    on_stage(|s| {
        let payloads = " m".repeat(5000);
        for round in 0..3 {
            s.run(&format!("RQ.MPUSH q 5000{payloads}"));
            s.run("RQ.CLAIM q COUNT 5000 LEASE 50");
            s.run(if round == 1 { "FLUSHALL ASYNC" } else { "UNLINK q" });
            lease(s, "q", 30);
            eventually("the new one's lease to end", || s.ready("q") == "1");
            s.run("DEL q");
        }
        eventually("all to be freed", || s.field("rq_keys") == 0);
        assert_eq!((s.field("rq_bytes"), s.field("timer_objects")), (0, 0));
    });
}

// ---------------------------------------------------------------- no more than its share

/// How many answers another client gets until `done`, which asks for one itself. (How long each
/// takes says `make bench`: here the machine may be busy.)
#[track_caller]
fn answers_until(s: &mut Stage, mut done: impl FnMut(&mut Stage) -> bool) -> usize {
    let mut other = s.server.raw();
    let (mut answers, begin) = (0, Instant::now());
    while !done(s) {
        other.call(&["PING"]).expect("an answer");
        answers += 1;
        assert!(begin.elapsed() < PATIENCE, "it does not end");
    }
    answers
}

/// So many messages that fell due at one instant, an hour ago by the real clock; the test clock
/// still stands before it.
fn delayed(s: &mut Stage, batches: usize) {
    const BATCH: usize = 10_000;
    s.run(&format!("SLUICE.CLOCK SET {}", wall() - 3_600_000));
    let push = format!("RQ.MPUSH q {BATCH}{} DELAY 10", " m".repeat(BATCH));
    let mut pusher = s.server.raw();
    pusher.send(&["CLIENT", "REPLY", "OFF"]).unwrap();
    for _ in 0..batches {
        pusher.send(&words(&push)).unwrap();
    }
    let all = (batches * BATCH).to_string();
    eventually("all to be pushed", || s.shown("RQ.LEN q DELAYED") == all);
}

#[test]
fn a_million_messages_due_at_once_are_caught_up_with_in_slices() {
    on_stage_alone(|s| {
        delayed(s, 100);
        s.run("SLUICE.CLOCK REAL");
        // INFO does not look into the queue.
        let answers = answers_until(s, |s| s.field("timer_objects") == 0);
        assert!(answers >= 20, "only {answers} answers while a million fell due");
        assert_eq!(s.ready("q"), "1000000");
    });
}

#[test]
fn who_waits_while_a_great_many_fall_due_is_served_when_all_have() {
    on_stage_alone(|s| {
        delayed(s, 20);
        s.run("RQ.PUSH q urgent DELAY 10 PRIORITY 9");
        let mut client = s.waiter("RQ.CLAIM q BLOCK 0");
        s.run("SLUICE.CLOCK REAL");
        let answers = answers_until(s, |s| s.waiting() == 0);
        assert!(answers >= 4, "only {answers} answers while 200,000 fell due");
        assert_eq!(client.payloads(), ["urgent"]);
    });
}

#[test]
fn the_smallest_budget_is_enough_to_get_on() {
    on_stage(|s| {
        s.run("CONFIG SET sluice.tick-budget-us 50");
        let payloads = " m".repeat(3000);
        for key in ["a", "b", "c"] {
            s.run(&format!("RQ.MPUSH {key} 3000{payloads} DELAY 30"));
        }
        eventually("all to be ready", || s.field("timer_objects") == 0);
        for key in ["a", "b", "c"] {
            assert_eq!(s.ready(key), "3000");
        }
    });
}

// ---------------------------------------------------------------- when nothing may be written

#[test]
fn what_falls_due_while_writes_are_paused_happens_right_after() {
    on_stage_with(
        |builder| builder.option("appendonly", "yes").option("appendfsync", "no"),
        |s| {
            let mut events = Events::listen(s, "rq.timeout");
            lease(s, "q", 300);
            s.run("CLIENT PAUSE 60000 WRITE");
            std::thread::sleep(Duration::from_millis(350));
            assert!(events.is_quiet());
            // Readers see the queue as it was last written, and write nothing.
            assert_eq!(s.in_flight("q"), "1");
            let until = wall();
            s.run("CLIENT UNPAUSE");
            happen_at(&mut events, until, &[(0, "rq.timeout", "q")]);
        },
    );
}

#[test]
fn a_replica_ends_nothing_by_itself_and_everything_once_it_is_promoted() {
    on_every_engine(|engine| {
        let mut master = Stage::on(Server::start(engine));
        let mut replica = Stage::on(Server::start(engine));
        replica.server.replica_of(&master.server);
        let mut events = Events::listen(&mut replica, "rq.timeout");
        master.run("RQ.PUSH q m");
        eventually("the replica to hear of it", || replica.ready("q") == "1");
        let held = master.run("RQ.CLAIM q LEASE 400");
        eventually("the replica to have the lease", || replica.in_flight("q") == "1");
        master.server.kill_9();
        std::thread::sleep(Duration::from_millis(450));
        assert!(events.is_quiet());
        assert_eq!(replica.in_flight("q"), "1", "it shows what its master last said");
        let promoted = wall();
        replica.run("REPLICAOF NO ONE");
        happen_at(&mut events, promoted, &[(0, "rq.timeout", "q")]);
        assert_eq!(replica.shown(&format!("RQ.ACK q {}", receipt(&held))), "[0]");
        assert_eq!(payloads(&replica.run("RQ.CLAIM q")), ["m"]);
        assert_eq!(replica.field("panics_caught"), 0);
    });
}

#[test]
fn the_test_clock_finds_the_end_of_what_came_before_it_stood() {
    on_stage_alone(|s| {
        s.run("SLUICE.CLOCK REAL");
        let now = wall();
        s.run("SELECT 3");
        s.run("TB.TAKE tb 10 1 600000");
        s.run("SEM.ACQUIRE sem 1 LEASE 600000");
        s.run("TB.SET pinned 10 1 1000");
        s.run("SELECT 0");
        s.run(&format!("SLUICE.CLOCK SET {}", now + 500_000));
        s.run("SELECT 3");
        assert_eq!(s.int("EXISTS tb sem pinned"), 3);
        s.run(&format!("SLUICE.CLOCK SET {}", now + 700_000));
        assert_eq!((s.int("EXISTS tb sem"), s.int("EXISTS pinned")), (0, 1));
    });
}
