//! Very much that is due at once: a command does a bounded part of it and decides right all the
//! same, the timer does the rest; and replies that would be very long.

use crate::common::{Reply, Server, eventually, on_every_engine, wait_until_equal};

use crate::common::stage::{Stage, on_stage, on_stage_alone, on_stage_alone_with, payloads, receipt, wall};

/// So many messages, all pushed and claimed an hour ago by the real clock, where the test clock
/// stands.
fn claimed(s: &mut Stage, n: usize) -> Vec<String> {
    s.run(&format!("SLUICE.CLOCK SET {}", wall() - 3_600_000));
    s.run(&format!("RQ.MPUSH q {n}{}", " m".repeat(n)));
    (0..n).map(|_| receipt(&s.run("RQ.CLAIM q LEASE 10"))).collect()
}

#[test]
fn a_command_does_a_part_of_what_is_due_and_refuses_what_is_over() {
    // (In a cluster the clock is not moved inside a transaction.)
    on_stage_alone(|s| {
        s.run("CONFIG SET sluice.due-per-command 10");
        let receipts = claimed(s, 100);
        // Within a transaction the timer cannot come in between.
        for line in [
            "MULTI",
            "SLUICE.CLOCK REAL",
            "RQ.LEN q READY",
            &format!("RQ.ACK q {}", receipts[99]),
            &format!("RQ.EXTEND q 1000 {}", receipts[98]),
            "RQ.LEN q READY",
            "RQ.REQUEUE q ALL",
        ] {
            s.run(line);
        }
        assert_eq!(s.shown("EXEC"), "[\"OK\", 10, [0], [0], 42, 0]");
        eventually("all to be done", || s.field("work_pending") == 0);
        assert_eq!((s.ready("q"), s.in_flight("q")), ("100".into(), "0".into()));
        assert!(s.field("longest_piece_us") > 0);
    });
}

/// A hundred messages, while a command does ten things of what is due; when the clock stands.
fn a_hundred(s: &mut Stage) -> i64 {
    s.run("CONFIG SET sluice.due-per-command 10");
    let now = wall();
    s.run(&format!("SLUICE.CLOCK SET {now}"));
    s.run(&format!("RQ.MPUSH q 100{}", " m".repeat(100)));
    now
}

#[test]
fn what_a_lower_ttl_makes_expire_is_gone_before_it_has_gone() {
    on_stage(|s| {
        let now = a_hundred(s);
        s.run("SLUICE.CLOCK ADVANCE 50");
        s.run("RQ.SET q TTL 10");
        // The test clock stands, so the timer does nothing.
        assert_eq!(s.field("work_pending"), 1);
        assert_eq!((s.shown("RQ.GET q 100"), s.shown("RQ.CLAIM q COUNT 10")), ("nil".into(), "[]".into()));
        assert!(s.int("RQ.LEN q") > 20);
        assert_eq!(s.text("RQ.PUSH q again ID 99"), "99");
        s.run(&format!("SLUICE.CLOCK SET {}", now + 50));
        assert_eq!((s.field("work_pending"), s.int("RQ.LEN q")), (0, 1));
        assert_eq!(payloads(&s.run("RQ.CLAIM q COUNT 10")), ["again"]);
    });
}

#[test]
fn what_is_put_off_goes_on_after_a_reload() {
    for aof in ["no", "yes"] {
        on_stage_alone_with(
            |builder| builder.option("appendonly", aof),
            |s| {
                s.run("CONFIG SET sluice.due-per-command 10");
                claimed(s, 100);
                s.run("RQ.SET q MAXDELIVERIES 1");
                s.run("SLUICE.CLOCK ADVANCE 10");
                assert_eq!(s.shown("RQ.LEN q DEAD"), "100");
                s.run("RQ.SET q MAXDEAD 5");
                assert_eq!((s.shown("RQ.LEN q DEAD"), s.field("work_pending")), ("80".into(), 1));
                assert_eq!(
                    (s.shown("RQ.GET q 95"), s.shown("RQ.REDRIVE q IDS 1 95")),
                    ("nil".into(), "0".into())
                );
                s.run(if aof == "yes" { "DEBUG LOADAOF" } else { "DEBUG RELOAD" });
                s.run("SLUICE.CLOCK REAL");
                eventually("the rest to be dropped", || s.field("work_pending") == 0);
                assert_eq!(s.shown("RQ.LEN q DEAD"), "5");
                assert_ne!(s.shown("RQ.GET q 100"), "nil");
            },
        );
    }
}

#[test]
fn after_a_lower_bound_one_push_drops_a_part() {
    on_stage(|s| {
        let now = a_hundred(s);
        s.run("RQ.SET q MAXLEN 5 ONFULL DROPOLD");
        assert_eq!(s.text("RQ.PUSH q last"), "101");
        assert_eq!((s.shown("RQ.LEN q"), s.field("work_pending")), ("81".into(), 1));
        s.run(&format!("SLUICE.CLOCK SET {now}"));
        assert_eq!((s.shown("RQ.LEN q"), s.field("work_pending")), ("5".into(), 0));
        assert_eq!(payloads(&s.run("RQ.CLAIM q COUNT 9")), ["m", "m", "m", "m", "last"]);
    });
}

#[test]
fn keys_take_turns() {
    on_stage(|s| {
        s.run("CONFIG SET sluice.tick-budget-us 50");
        s.run(&format!("SLUICE.CLOCK SET {}", wall() - 3_600_000));
        for key in ["a", "b", "c"] {
            s.run(&format!(
                "RQ.MPUSH {key} 5000{} DELAY {}",
                " m".repeat(5000),
                if key == "a" { 1 } else { 2 }
            ));
        }
        s.run("SLUICE.CLOCK REAL");
        // Whichever is first is not done before the others have begun.
        eventually("all to be ready", || s.field("work_pending") == 0);
        for key in ["a", "b", "c"] {
            assert_eq!(s.ready(key), "5000");
        }
    });
}

// ---------------------------------------------------------------- limiters

/// So many permits, taken an hour ago by the real clock, where the test clock stands; all leases
/// end at one instant.
fn held(s: &mut Stage, n: usize) -> Vec<String> {
    s.run(&format!("SLUICE.CLOCK SET {}", wall() - 3_600_000));
    s.run(&format!("SEM.SET s {n} LEASE 1000"));
    (0..n).map(|_| number(&s.run("SEM.ACQUIRE s"), 4)).collect()
}

/// An element of a reply.
fn number(reply: &Reply, place: usize) -> String {
    let Reply::Array(fields) = reply else { panic!("not a list: {reply}") };
    fields[place].to_string()
}

#[test]
fn leases_that_are_over_are_taken_away_in_pieces_and_are_over_all_the_same() {
    on_stage_alone(|s| {
        s.run("CONFIG SET sluice.due-per-command 10");
        let receipts = held(s, 100);
        // Within a transaction the timer cannot come in between.
        for line in [
            "MULTI",
            "SLUICE.CLOCK REAL",
            "SEM.PEEK s COUNT 100",
            &format!("SEM.RENEW s 1000 {}", receipts[99]),
            &format!("SEM.RELEASE s {}", receipts[98]),
            "SEM.ACQUIRE s COUNT 60 LEASE 600000",
            "SEM.ACQUIRE s COUNT 60",
            "SEM.HOLDERS s",
            "SEM.INFO s",
        ] {
            s.run(line);
        }
        let Reply::Array(replies) = s.run("EXEC") else { panic!("not executed") };
        let shown: Vec<String> = replies.iter().map(ToString::to_string).collect();
        assert_eq!(shown[1..4], ["[100, 100, 0, 0, nil]", "[0]", "[0]"]);
        assert_eq!((number(&replies[4], 0), number(&replies[4], 2)), ("60".into(), "40".into()));
        assert_eq!((number(&replies[5], 0), number(&replies[5], 2)), ("0".into(), "40".into()));
        assert!(number(&replies[5], 3).parse::<i64>().unwrap() > 590_000, "{}", shown[5]);
        assert_eq!(shown[6].matches(number(&replies[4], 4).as_str()).count(), 1, "{}", shown[6]);
        assert!(shown[7].contains("\"held\", 60") && shown[7].contains("\"timed_out\", 70"), "{}", shown[7]);
        eventually("all to be done", || s.field("work_pending") == 0);
        let info = s.shown("SEM.INFO s");
        assert!(info.contains("\"held\", 60") && info.contains("\"timed_out\", 100"), "{info}");
        assert_eq!(s.field("panics_caught"), 0);
    });
}

#[test]
fn a_gates_leases_and_a_buckets_holds_are_put_off_likewise() {
    on_stage_alone(|s| {
        s.run("CONFIG SET sluice.due-per-command 10");
        s.run(&format!("SLUICE.CLOCK SET {}", wall() - 3_600_000));
        s.run("GATE.SET g STAGE slots SEM 100 LEASE 1000");
        s.run("TB.SET t 100 1 31622400000");
        let receipts: Vec<String> = (0..100).map(|_| number(&s.run("GATE.PASS g"), 4)).collect();
        let holds: Vec<String> =
            (0..100).map(|_| number(&s.run("TB.HOLD t COST 1 TTL 1000 ONEXPIRE REFUND"), 6)).collect();
        for line in [
            "MULTI",
            "SLUICE.CLOCK REAL",
            &format!("GATE.LEAVE g {}", receipts[99]),
            "GATE.PASS g",
            "TB.TAKE t COST 100",
            "TB.TAKE t COST 1",
        ] {
            s.run(line);
        }
        let Reply::Array(replies) = s.run("EXEC") else { panic!("not executed") };
        assert_eq!(replies[1].to_string(), "[0]");
        assert_eq!((number(&replies[2], 0), number(&replies[3], 0)), ("1".into(), "100".into()));
        assert_eq!(number(&replies[4], 0), "0");
        assert!(s.error(&format!("TB.SETTLE t {} 0", holds[99])).contains("hold"));
        eventually("all to be done", || s.field("work_pending") == 0);
        assert!(s.shown("TB.INFO t").contains("\"remaining\", 0"), "nothing came back twice");
        assert_eq!(number(&s.run("GATE.PEEK g"), 0), "1");
    });
}

#[test]
fn what_is_put_off_on_limiters_goes_on_at_a_replica_and_after_a_reload() {
    on_every_engine(|engine| {
        let builder = || Server::builder(engine).option("sluice.tick-budget-us", "50");
        let (mut s, replica) = (Stage::on(builder().start()), builder().start());
        replica.replica_of(&s.server);
        s.run("CONFIG SET sluice.due-per-command 100");
        held(&mut s, 2_000);
        s.run("TB.SET t 2000 1 31622400000");
        for _ in 0..2_000 {
            s.run("TB.HOLD t COST 1 TTL 1000 ONEXPIRE REFUND");
        }
        // The timer comes after all of these.
        s.at_once(&[
            "MULTI",
            "SLUICE.CLOCK REAL",
            "SEM.ACQUIRE s LEASE 600000",
            "TB.TAKE t COST 2000",
            "EXEC",
            "DEBUG RELOAD",
        ]);
        eventually("all to be done", || s.field("work_pending") == 0);
        let info = s.shown("SEM.INFO s");
        assert!(info.contains("\"held\", 1,") && info.contains("\"free\", 1999"), "{info}");
        assert!(s.shown("TB.INFO t").contains("\"remaining\", 0, \"debt\", 0"), "nothing came back twice");
        wait_until_equal(&s.server, &replica);
        let mut replica = Stage::on(replica);
        replica.run("REPLICAOF NO ONE");
        assert!(replica.shown("SEM.INFO s").contains("\"held\", 1,"));
    });
}

#[test]
fn a_long_line_is_told_in_pieces() {
    on_stage(|s| {
        s.run("CONFIG SET sluice.due-per-command 8");
        s.run("SEM.SET s 1");
        s.run("SEM.ACQUIRE s");
        let mut clients: Vec<_> = (0..40).map(|_| s.waiter("SEM.ACQUIRE s BLOCK 600000")).collect();
        s.run("SEM.SET s 41");
        // Whoever comes now comes after them.
        assert_eq!(number(&s.run("SEM.ACQUIRE s"), 0), "0");
        s.run("SLUICE.CLOCK REAL");
        let told: Vec<i64> = clients.iter_mut().map(|c| number(&c.told(), 4).parse().unwrap()).collect();
        assert!(told.is_sorted(), "{told:?}");
        assert_eq!(s.field("panics_caught"), 0);
    });
}

// ---------------------------------------------------------------- subjects

/// A rule with a hundred subjects: u0 has taken one token, u1 two …
fn hundred_subjects(s: &mut Stage) -> i64 {
    s.run("CONFIG SET sluice.due-per-command 10");
    let now = wall();
    s.run(&format!("SLUICE.CLOCK SET {now}"));
    s.run("HOT.SET h 200 1 60000");
    for i in 0..100 {
        s.run(&format!("HOT.TAKE h u{i} COST {}", i + 1));
    }
    now
}

/// What HOT.INFO tells of a field.
fn told(s: &mut Stage, field: &str) -> String {
    let info = s.shown("HOT.INFO h");
    let words: Vec<&str> = info.split(|c| "[], ".contains(c)).filter(|w| !w.is_empty()).collect();
    let at = words.iter().position(|w| w.trim_matches('"') == field).expect("a field of HOT.INFO");
    words[at + 1].to_owned()
}

#[test]
fn another_rule_is_in_force_for_all_before_they_are_converted() {
    on_stage(|s| {
        let now = hundred_subjects(s);
        // Half of them have as many tokens as there is room for now, or more.
        s.run("HOT.SET h 150 2 60000");
        // (HOT.INFO does a part itself.)
        assert_eq!((s.field("work_pending"), told(s, "subjects")), (1, "100".into()));
        assert_eq!(s.shown("HOT.PEEK h u10"), "[1, 150, 149, 0, 30000, 30000]");
        assert_eq!(s.shown("HOT.TAKE h u60"), "[1, 150, 138, 0, 30000, 360000]");
        assert_eq!(s.shown("HOT.TAKE h u99 COST 101"), "[0, 150, 100, 30000, 30000, 1500000]");
        assert_eq!(s.shown("HOT.TAKE h new COST 5"), "[5, 150, 145, 0, 30000, 150000]");
        // And again, before the first was done.
        s.run("HOT.SET h 150 1 60000");
        assert_eq!(s.shown("HOT.PEEK h u61"), "[1, 150, 137, 0, 60000, 780000]");
        s.run("HOT.EXCEPT h u62 1000 1 60000");
        assert_eq!(s.shown("HOT.PEEK h u62")[..14], *"[1, 1000, 136,");
        assert_eq!(s.field("work_pending"), 1);
        s.run(&format!("SLUICE.CLOCK SET {now}"));
        assert_eq!((s.field("work_pending"), told(s, "subjects")), (0, "51".into()));
    });
}

#[test]
fn a_smaller_number_of_subjects_is_reached_in_pieces() {
    on_stage(|s| {
        let now = hundred_subjects(s);
        s.run("HOT.SET h 200 1 60000 MAXSUBJECTS 20");
        assert_eq!(
            (s.field("work_pending"), told(s, "subjects"), told(s, "forgotten")),
            (1, "80".into(), "30".into())
        );
        // Whose turn has not come is limited by what it has; a new one makes the number no larger.
        assert_eq!(s.shown("HOT.PEEK h u40"), "[1, 200, 158, 0, 60000, 2520000]");
        assert_eq!(s.shown("HOT.TAKE h new COST 200")[..10], *"[200, 200,");
        assert_eq!(told(s, "subjects"), "40");
        s.run(&format!("SLUICE.CLOCK SET {now}"));
        assert_eq!(
            (s.field("work_pending"), told(s, "subjects"), told(s, "forgotten")),
            (0, "20".into(), "81".into())
        );
        assert_eq!(
            (s.shown("HOT.PEEK h u80")[..13].to_owned(), s.shown("HOT.PEEK h u81")[..13].to_owned()),
            ("[1, 200, 199,".into(), "[1, 200, 117,".into())
        );
    });
}

#[test]
fn idle_subjects_that_come_due_together_go_in_pieces() {
    on_stage_alone(|s| {
        s.run("CONFIG SET sluice.due-per-command 10");
        s.run(&format!("SLUICE.CLOCK SET {}", wall() - 3_600_000));
        s.run("HOT.SET h 1 1 1000");
        for i in 0..100 {
            s.run(&format!("HOT.TAKE h u{i}"));
        }
        let full = told(s, "bytes");
        for line in ["MULTI", "SLUICE.CLOCK REAL", "HOT.PEEK h u99"] {
            s.run(line);
        }
        assert_eq!(s.shown("EXEC"), "[\"OK\", [1, 1, 0, 0, 1000, 1000]]");
        eventually("all to be dropped", || s.field("work_pending") == 0);
        assert!(told(s, "bytes").parse::<i64>().expect("a number") < full.parse().expect("a number"));
    });
}

#[test]
fn what_is_put_off_on_subjects_goes_on_after_a_reload_and_a_failover() {
    for aof in ["no", "yes"] {
        on_stage_alone_with(
            |builder| builder.option("appendonly", aof),
            |s| {
                let replica = Server::builder(s.server.engine()).option("hz", "100").start();
                replica.replica_of(&s.server);
                let mut other = Stage::on(replica);
                other.run("CONFIG SET sluice.due-per-command 10");
                let now = hundred_subjects(s);
                other.run(&format!("SLUICE.CLOCK SET {now}"));
                s.run("HOT.SET h 150 2 60000 MAXSUBJECTS 20");
                s.run("HOT.TAKE h new COST 5");
                let digest = "DEBUG DIGEST-VALUE h";
                let middle = s.shown(digest);
                eventually("the replica to be equal", || other.shown(digest) == middle);
                assert_eq!(s.field("work_pending"), 1);
                s.run("COPY h copy");
                assert_eq!(s.shown("DEBUG DIGEST-VALUE copy"), middle);
                s.run(if aof == "yes" { "DEBUG LOADAOF" } else { "DEBUG RELOAD" });
                assert_eq!((s.shown(digest), s.field("work_pending") > 0), (middle.clone(), true));
                other.server.promote();
                other.run(&format!("SLUICE.CLOCK SET {now}"));
                s.run(&format!("SLUICE.CLOCK SET {now}"));
                assert_eq!((s.field("work_pending"), other.field("work_pending")), (0, 0));
                assert_eq!((told(s, "subjects"), told(s, "forgotten")), ("20".into(), "31".into()));
                assert_eq!(s.shown(digest), other.shown(digest));
                assert_eq!(s.shown(digest), s.shown("DEBUG DIGEST-VALUE copy"));
            },
        );
    }
}

// ---------------------------------------------------------------- replies

#[test]
fn a_claim_takes_no_more_bytes_than_it_may() {
    on_stage(|s| {
        s.run("RQ.MPUSH q 5 aaaa bbbb cccc dddddddddddd e");
        assert_eq!(payloads(&s.run("RQ.CLAIM q COUNT 9 MAXBYTES 8")), ["aaaa", "bbbb"]);
        assert_eq!(payloads(&s.run("RQ.CLAIM q COUNT 9 MAXBYTES 15")), ["cccc"]);
        // One comes in any case.
        assert_eq!(payloads(&s.run("RQ.CLAIM q COUNT 9 MAXBYTES 3")), ["dddddddddddd"]);
        s.run("CONFIG SET sluice.max-reply-bytes 5");
        s.run("RQ.MPUSH q 3 ffff gg hhhhhhhhh");
        assert_eq!(payloads(&s.run("RQ.CLAIM q COUNT 9")), ["e", "ffff"]);
        assert_eq!(payloads(&s.run("RQ.CLAIM q COUNT 9 MAXBYTES 100")), ["gg", "hhhhhhhhh"]);
        for (line, wanted) in
            [("RQ.CLAIM w COUNT 9 BLOCK 0", 2), ("RQ.CLAIM w COUNT 9 MAXBYTES 3 BLOCK 0", 1)]
        {
            let mut client = s.waiter(line);
            s.run("RQ.MPUSH w 3 xx yy zz");
            assert_eq!(client.payloads().len(), wanted, "{line}");
            s.run("DEL w");
        }
        assert!(s.error("RQ.CLAIM q MAXBYTES 0").contains("maxbytes"));
    });
}

#[test]
fn a_page_ends_before_its_payloads_are_too_long() {
    on_stage(|s| {
        s.run("RQ.MPUSH q 4 aaaa bbbb cccccccccccc d");
        s.run("CONFIG SET sluice.max-reply-bytes 8");
        let (mut cursor, mut pages) = ("0".to_owned(), vec![]);
        loop {
            let page = s.run(&format!("RQ.LIST q READY COUNT 9 CURSOR {cursor}"));
            let Reply::Array(page) = page else { panic!("not a page: {page}") };
            let (Reply::Bytes(next), Reply::Array(messages)) = (&page[0], &page[1]) else {
                panic!("not a page")
            };
            cursor = String::from_utf8_lossy(next).into_owned();
            pages.push(messages.len());
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(pages, [2, 1, 1]);
        let bare = s.shown("RQ.LIST q READY NOPAYLOAD COUNT 9");
        assert!(bare.matches("\"payload\", nil").count() == 4 && !bare.contains("aaaa"), "{bare}");
    });
}

#[test]
fn a_purge_takes_as_many_as_it_is_told() {
    on_stage(|s| {
        let now = wall();
        s.run(&format!("SLUICE.CLOCK SET {now}"));
        s.run("RQ.MPUSH q 4 a b c d");
        s.run("RQ.MPUSH q 2 e f DELAY 1000");
        s.run("RQ.PUSH q x ID x DEDUP 1000 PRIORITY 9");
        assert_eq!(s.shown("RQ.PURGE q ALL COUNT 3"), "3");
        // The delayed ones first, then the ready ones as they would be handed out; the window goes
        // with its message.
        assert_eq!((s.shown("RQ.LEN q DELAYED"), s.shown("RQ.LEN q READY")), ("0".into(), "4".into()));
        assert_eq!(s.text("RQ.PUSH q x ID x"), "x");
        assert_eq!(
            (s.shown("RQ.PURGE q READY COUNT 2"), s.shown("RQ.PURGE q READY COUNT 9")),
            ("2".into(), "3".into())
        );
        assert_eq!(s.error("RQ.PURGE q READY 5"), "ERR syntax error: unknown option '5', expected COUNT n");
    });
}
