//! Clients whose reply is held, against real servers: claims that wait for a message, takes that
//! wait for tokens or for their turn, and all that can happen to a client or a key meanwhile. The
//! first half follows the checklist of Redis's own tests of module commands that block on keys.

use crate::common::stage::wall;
use crate::common::stage::{
    Client, Stage, numbers, on_stage, on_stage_alone, on_stage_with, payloads, receipt, words,
};
use crate::common::{Reply, Server, eventually, on_every_engine, say};
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// What is to happen at an instant happens this much later at most: generous, for a machine with
/// other things to do.
const LATE_MS: i64 = 5_000;
const LATE: Duration = Duration::from_millis(LATE_MS as u64);

// ---------------------------------------------------------------- claims: waiting and waking

#[test]
fn a_waiting_claim_is_answered_by_a_push() {
    on_stage(|s| {
        let mut client = s.waiter("RQ.CLAIM q BLOCK 0");
        s.run("RQ.PUSH q hello");
        assert_eq!(client.payloads(), ["hello"]);
        assert_eq!((s.in_flight("q"), s.waiting()), ("1".into(), 0));
    });
}

#[test]
fn a_claim_that_waited_in_vain_is_told_nil_when_its_time_is_over() {
    on_stage(|s| {
        s.together("q r");
        for (line, told) in [
            ("RQ.CLAIM q BLOCK 60", "nil"),
            ("RQ.MCLAIM 2 q r BLOCK 60", "nil"),
            ("RQ.NEXT q RECEIPTS 1 a@1 BLOCK 60", "[[-1], nil]"),
        ] {
            let begin = Instant::now();
            let mut client = s.client();
            client.send(line);
            assert_eq!(client.told().to_string(), told, "{line}");
            let waited = begin.elapsed();
            assert!(waited >= Duration::from_millis(59), "{line}: only {waited:?}");
            assert!(waited < LATE, "{line}: {waited:?}");
        }
        s.run("RQ.PUSH q left");
        assert_eq!((s.ready("q"), s.waiting()), ("1".into(), 0));
    });
}

#[test]
fn the_time_a_claim_waits_is_real_time_whatever_the_test_clock_says() {
    on_stage(|s| {
        s.run("SLUICE.CLOCK SET 1900000000000");
        let mut client = s.waiter("RQ.CLAIM q BLOCK 800");
        s.run("SLUICE.CLOCK ADVANCE 1000000");
        assert!(client.waits());
        assert_eq!(client.told(), Reply::Nil);
    });
}

#[test]
fn everything_that_makes_a_message_claimable_wakes_who_waits() {
    on_stage(|s| {
        s.together("from to copy name");
        // A delay that falls due, with nothing else going on.
        let mut client = s.waiter("RQ.CLAIM delay BLOCK 0");
        s.run("RQ.PUSH delay due DELAY 40");
        assert_eq!(client.payloads(), ["due"]);

        // The end of another's lease.
        s.run("RQ.PUSH lease back");
        s.run("RQ.CLAIM lease LEASE 80");
        assert_eq!(s.asker("RQ.CLAIM lease BLOCK 0").payloads(), ["back"]);

        // NACK, REQUEUE.
        for give_back in ["RQ.NACK k RECEIPTS 1 $", "RQ.REQUEUE k ALL"] {
            s.run("DEL k");
            s.run("RQ.PUSH k again");
            let held = s.run("RQ.CLAIM k");
            let mut client = s.waiter("RQ.CLAIM k BLOCK 0");
            s.run(&give_back.replace('$', &receipt(&held)));
            assert_eq!(client.payloads(), ["again"], "{give_back}");
        }

        // REDRIVE.
        s.run("RQ.PUSH dead risen");
        let held = s.run("RQ.CLAIM dead");
        s.run(&format!("RQ.NACK dead DEAD RECEIPTS 1 {}", receipt(&held)));
        let mut client = s.waiter("RQ.CLAIM dead BLOCK 0");
        assert_eq!(s.shown("RQ.REDRIVE dead"), "1");
        assert_eq!(client.payloads(), ["risen"]);

        // A token gained.
        s.run("RQ.SET rate RATE 1 60 1");
        s.run("RQ.MPUSH rate 2 first second");
        s.run("RQ.CLAIM rate");
        assert_eq!(s.asker("RQ.CLAIM rate BLOCK 0").payloads(), ["second"]);

        // A group freed, by an ack.
        s.run("RQ.SET group GROUPINFLIGHT 1");
        s.run("RQ.MPUSH group 2 first second GROUP g");
        let held = s.run("RQ.CLAIM group");
        let mut client = s.waiter("RQ.CLAIM group BLOCK 0");
        s.run(&format!("RQ.ACK group {}", receipt(&held)));
        assert_eq!(client.payloads(), ["second"]);

        // A resume, and a pause that ends.
        s.run("RQ.PUSH pause one");
        s.run("RQ.PAUSE pause CLAIM");
        let mut client = s.waiter("RQ.CLAIM pause BLOCK 0");
        s.run("RQ.RESUME pause");
        assert_eq!(client.payloads(), ["one"]);
        s.run("RQ.PUSH pause two");
        let until = s.now() + 80;
        s.run(&format!("RQ.PAUSE pause CLAIM UNTIL {until}"));
        assert_eq!(s.asker("RQ.CLAIM pause BLOCK 0").payloads(), ["two"]);

        // A change of settings.
        s.run("RQ.SET set MAXINFLIGHT 1");
        s.run("RQ.MPUSH set 2 first second");
        s.run("RQ.CLAIM set");
        let mut client = s.waiter("RQ.CLAIM set BLOCK 0");
        s.run("RQ.SET set MAXINFLIGHT 2");
        assert_eq!(client.payloads(), ["second"]);

        // A message moved here; a queue copied, renamed or restored to here.
        s.run("RQ.PUSH from moved");
        let mut client = s.waiter("RQ.CLAIM to BLOCK 0");
        s.run("RQ.MOVE from to READY");
        assert_eq!(client.payloads(), ["moved"]);
        s.run("RQ.PUSH from here");
        let mut client = s.waiter("RQ.CLAIM copy BLOCK 0");
        s.run("COPY from copy");
        assert_eq!(client.payloads(), ["here"]);
        let mut client = s.waiter("RQ.CLAIM name BLOCK 0");
        s.run("RENAME from name");
        assert_eq!(client.payloads(), ["here"]);
        s.run("RQ.PUSH from dumped");
        let Reply::Bytes(dump) = s.run("DUMP from") else { panic!("a dump") };
        let mut client = s.waiter("RQ.CLAIM restored BLOCK 0");
        s.control.call(&[&b"RESTORE"[..], b"restored", b"0", &dump]).unwrap();
        assert_eq!(client.payloads(), ["dumped"]);
    });
}

#[test]
fn a_waiter_is_woken_by_the_test_clock_as_it_walks() {
    on_stage(|s| {
        s.run("SLUICE.CLOCK SET 1900000000000");
        s.run("RQ.PUSH q due DELAY 60000");
        let mut client = s.waiter("RQ.CLAIM q LEASE 1000 BLOCK 0");
        s.run("SLUICE.CLOCK ADVANCE 59999");
        assert!(client.waits());
        s.run("SLUICE.CLOCK ADVANCE 10000");
        assert_eq!(client.payloads(), ["due"], "served at its instant, on the way");
        assert_eq!(s.ready("q"), "1", "so its lease of a second has ended by now");
    });
}

#[test]
fn waiting_in_another_database_is_waiting_at_another_key() {
    on_stage_alone(|s| {
        let mut client = s.client();
        client.send("SELECT 5");
        client.told();
        s.has_wait(&mut client, "RQ.CLAIM q BLOCK 0");
        s.run("RQ.PUSH q zero");
        assert!(client.waits());
        assert_eq!(s.ready("q"), "1");
        s.run("SELECT 5");
        s.run("RQ.PUSH q five");
        assert_eq!(client.payloads(), ["five"]);
    });
}

// ---------------------------------------------------------------- claims: what becomes of the key

#[test]
fn a_waiter_waits_on_through_del_and_flush() {
    on_stage(|s| {
        for gone in
            ["DEL q", "UNLINK q", "FLUSHALL", "FLUSHALL ASYNC", "FLUSHDB", "PEXPIRE q 1", "DEBUG RELOAD"]
        {
            s.run("RQ.SET q LEASE 1000");
            let mut client = s.waiter("RQ.CLAIM q BLOCK 0");
            s.run(gone);
            assert!(client.waits(), "{gone}");
            eventually("the key to be gone", || gone == "DEBUG RELOAD" || s.shown("EXISTS q") == "0");
            s.run("RQ.PUSH q then");
            assert_eq!(client.payloads(), ["then"], "{gone}");
            s.run("DEL q");
        }
    });
}

#[test]
fn a_queue_that_becomes_something_else_tells_who_waits_wrongtype_at_once() {
    on_stage(|s| {
        s.together("q free other text");
        s.run("SET text x");
        let Reply::Bytes(dump) = s.run("DUMP text") else { panic!("a dump") };
        for change in ["SET q x", "RENAME other q", "COPY text q REPLACE", "RESTORE", "MULTI", "EVAL"] {
            s.run("SET other x");
            s.run("DEL q");
            s.run("RQ.SET q LEASE 1000");
            let mut client = s.waiter("RQ.CLAIM q BLOCK 0");
            let mut several = s.waiter("RQ.MCLAIM 2 free q BLOCK 0");
            match change {
                "RESTORE" => {
                    s.control.call(&[&b"RESTORE"[..], b"q", b"0", &dump, b"REPLACE"]).unwrap();
                }
                "MULTI" => {
                    s.at_once(&["MULTI", "DEL q", "SADD q x", "EXEC"]);
                }
                "EVAL" => {
                    let script = "redis.call('DEL', KEYS[1]) redis.call('LPUSH', KEYS[1], 'x')";
                    s.control.call(&["EVAL", script, "1", "q"]).unwrap();
                }
                _ => drop(s.run(change)),
            }
            let wrong = "WRONGTYPE Operation against a key holding the wrong kind of value";
            assert_eq!(client.refusal(), wrong, "{change}");
            assert_eq!(several.refusal(), wrong, "{change}");
            assert_eq!(s.waiting(), 0);
        }
    });
}

#[test]
fn a_missing_key_that_becomes_something_else_is_waited_on_as_blpop_does() {
    on_stage(|s| {
        s.together("q other");
        let mut client = s.waiter("RQ.CLAIM q BLOCK 0");
        s.run("SET q x");
        assert!(client.waits());
        s.run("SET other x");
        s.run("RENAME other q");
        assert!(client.waits());
        s.run("DEL q");
        s.run("RQ.PUSH q at-last");
        assert_eq!(client.payloads(), ["at-last"]);
    });
}

#[test]
fn a_queue_that_was_deleted_first_may_become_something_else() {
    on_stage(|s| {
        s.together("q other elsewhere");
        for gone in ["DEL q", "FLUSHALL", "FLUSHDB ASYNC", "RENAME q elsewhere"] {
            s.run("RQ.SET q LEASE 1000");
            let mut client = s.waiter("RQ.CLAIM q BLOCK 0");
            s.run(gone);
            s.run("SET other x");
            s.run("RENAME other q");
            assert!(client.waits(), "{gone}");
            s.run("DEL q");
            s.run("RQ.PUSH q then");
            assert_eq!(client.payloads(), ["then"], "{gone}");
            s.run("FLUSHALL");
        }
    });
}

#[test]
fn a_key_of_another_type_is_refused_when_the_command_comes() {
    on_stage(|s| {
        s.together("q text free");
        s.run("SET text x");
        s.run("TB.SET tb 1 1 1");
        s.run("RQ.PUSH q m");
        for line in [
            "RQ.CLAIM text BLOCK 0",
            "RQ.CLAIM tb BLOCK 0",
            "RQ.MCLAIM 2 free text BLOCK 0",
            "RQ.MCLAIM 2 q text BLOCK 0",
            "RQ.NEXT text RECEIPTS 1 a@1 BLOCK 0",
            "TB.TAKE text 1 1 1000 BLOCK 1000",
            "LB.TAKE tb 1 1 1000 BLOCK",
        ] {
            assert!(s.error(line).starts_with("WRONGTYPE "), "{line}");
        }
        assert_eq!((s.waiting(), s.ready("q")), (0, "1".into()));
    });
}

#[test]
fn swapdb_wakes_who_waits_at_what_comes_in() {
    on_stage_alone(|s| {
        // A queue with a message comes in where there was nothing, or an empty queue.
        for before in ["DEL q", "RQ.SET q LEASE 1000"] {
            s.run("FLUSHALL");
            s.run(before);
            s.run("SELECT 9");
            s.run("RQ.PUSH q swapped");
            s.run("SELECT 0");
            let mut client = s.waiter("RQ.CLAIM q BLOCK 0");
            s.run("SWAPDB 0 9");
            assert_eq!(client.payloads(), ["swapped"], "{before}");
            assert_eq!(s.in_flight("q"), "1");
        }
        // The database of the waiter may stand second.
        s.run("FLUSHALL");
        s.run("SELECT 9");
        s.run("RQ.PUSH q swapped");
        s.run("SELECT 0");
        let mut client = s.waiter("RQ.CLAIM q BLOCK 0");
        s.run("SWAPDB 9 0");
        assert_eq!(client.payloads(), ["swapped"]);
    });
}

#[test]
fn swapdb_under_a_waiter_keeps_it_waiting_at_its_name_in_its_database() {
    on_stage_alone(|s| {
        // The queue goes away; nothing, then an empty queue, comes in.
        s.run("RQ.SET q LEASE 1000");
        let mut client = s.waiter("RQ.CLAIM q BLOCK 0");
        s.run("SWAPDB 0 9");
        assert!(client.waits());
        s.run("SWAPDB 0 9");
        assert!(client.waits());
        // What is pushed to the queue where it went is not for it.
        s.run("SWAPDB 0 9");
        s.run("SELECT 9");
        s.run("RQ.PUSH q there");
        s.run("SELECT 0");
        assert!(client.waits());
        s.run("RQ.PUSH q here");
        assert_eq!(client.payloads(), ["here"]);
    });
}

#[test]
fn swapdb_that_brings_in_another_type_is_wrongtype_only_where_a_queue_was() {
    on_stage_alone(|s| {
        s.run("RQ.SET q LEASE 1000");
        s.run("SELECT 9");
        s.run("SET q x");
        s.run("SET missing x");
        s.run("SELECT 0");
        let mut waits = s.waiter("RQ.CLAIM missing BLOCK 0");
        let mut client = s.waiter("RQ.CLAIM q BLOCK 0");
        s.run("SWAPDB 0 9");
        assert!(client.refusal().starts_with("WRONGTYPE "));
        assert!(waits.waits());
    });
}

// ---------------------------------------------------------------- claims: what becomes of the
// client

#[test]
fn client_unblock_ends_a_waiting_claim_as_a_timeout_or_as_an_error() {
    on_stage(|s| {
        s.together("q r");
        for (line, over) in [
            ("RQ.CLAIM q BLOCK 0", "nil"),
            ("RQ.MCLAIM 2 q r BLOCK 0", "nil"),
            ("RQ.NEXT q RECEIPTS 1 a@1 BLOCK 0", "[[-1], nil]"),
        ] {
            for (how, told) in [
                ("", over),
                ("TIMEOUT", over),
                ("ERROR", "(error) UNBLOCKED client unblocked via CLIENT UNBLOCK"),
            ] {
                let mut client = s.waiter(line);
                assert_eq!(s.shown(&format!("CLIENT UNBLOCK {} {how}", client.id)), "1");
                assert_eq!(client.told().to_string(), told, "{line} {how}");
                assert_eq!(s.waiting(), 0);
                // It is an ordinary client again, and no message goes to its old place.
                s.run("RQ.PUSH q m");
                client.send("RQ.CLAIM q NOACK");
                assert_eq!(client.payloads(), ["m"]);
            }
        }
    });
}

#[test]
fn a_waiter_that_goes_away_swallows_nothing() {
    on_stage(|s| {
        // Its connection ends.
        drop(s.waiter("RQ.CLAIM q BLOCK 0"));
        s.until_waiting(0);
        s.run("RQ.PUSH q a");
        assert_eq!(s.ready("q"), "1");
        s.run("DEL q");

        // It is killed; the next in line is served.
        let mut first = s.waiter("RQ.CLAIM q BLOCK 0");
        let mut second = s.waiter("RQ.CLAIM q BLOCK 0");
        s.run(&format!("CLIENT KILL ID {}", first.id));
        assert!(first.is_closed());
        s.run("RQ.PUSH q b");
        assert_eq!(second.payloads(), ["b"]);
        assert_eq!((s.waiting(), s.ready("q")), (0, "0".into()));
    });
}

#[test]
fn a_waiter_that_goes_away_between_its_message_and_its_reply_swallows_nothing() {
    on_stage(|s| {
        const BEFORE: &[&[&str]] = &[
            &["CLIENT KILL ID $", "RQ.PUSH q m"],
            &["MULTI", "CLIENT KILL ID $", "RQ.PUSH q m", "EXEC"],
            &["MULTI", "RQ.PUSH q m", "CLIENT KILL ID $", "EXEC"],
            &["CLIENT UNBLOCK $ ERROR", "RQ.PUSH q m"],
            &["CLIENT UNBLOCK $", "RQ.PUSH q m"],
        ];
        const AFTER: &[&[&str]] = &[&["RQ.PUSH q m", "CLIENT KILL ID $"]];
        // With NOACK a message is gone once it is handed out, whatever becomes of the reply.
        for (options, cases) in [("LEASE 600000", [BEFORE, AFTER].concat()), ("NOACK", BEFORE.to_vec())] {
            let claim = format!("RQ.CLAIM q {options} BLOCK 0");
            for case in cases {
                s.run("DEL q");
                let client = s.waiter(&claim);
                let lines: Vec<String> =
                    case.iter().map(|l| l.replace('$', &client.id.to_string())).collect();
                s.at_once(&lines.iter().map(String::as_str).collect::<Vec<_>>());
                eventually(&format!("the message is ready after {claim}, {case:?}"), || s.ready("q") == "1");
                assert_eq!((s.in_flight("q"), s.waiting()), ("0".into(), 0), "{claim}, {case:?}");
                // It was never delivered: nothing is counted against it.
                assert_eq!(payloads(&s.run("RQ.CLAIM q")), ["m"]);
                let info = s.shown("RQ.GET q 1");
                assert!(info.contains("\"failures\", 0, \"timeouts\", 0"), "{claim}, {case:?}: {info}");
            }
        }
    });
}

#[test]
fn a_message_that_comes_in_the_moment_in_which_its_waiter_is_unblocked_is_told_or_ready_again() {
    on_stage(|s| {
        for how in ["TIMEOUT", "ERROR"] {
            s.run("DEL q");
            let mut client = s.waiter("RQ.CLAIM q BLOCK 0");
            let unblock = format!("CLIENT UNBLOCK {} {how}", client.id);
            s.at_once(&["RQ.PUSH q m", &unblock]);
            eventually("the message is somewhere", || s.in_flight("q") == "1" || s.ready("q") == "1");
            match client.told() {
                Reply::Array(messages) => {
                    assert_eq!(payloads(&Reply::Array(messages)), ["m"]);
                    assert_eq!(s.in_flight("q"), "1");
                }
                Reply::Nil | Reply::Error(_) => eventually("the message is ready", || s.ready("q") == "1"),
                other => panic!("{other}"),
            }
            assert_eq!(s.waiting(), 0);
        }
    });
}

#[test]
fn when_a_master_becomes_a_replica_who_waits_is_told_by_the_server() {
    on_stage_alone(|s| {
        let other = Server::start(s.server.engine());
        s.run("TB.TAKE tb 1 1 60000");
        let mut waiters = [
            s.waiter("RQ.CLAIM q BLOCK 0"),
            s.waiter("RQ.MCLAIM 2 q r BLOCK 0"),
            s.waiter("TB.TAKE tb 1 1 60000 BLOCK 60000"),
        ];
        s.run(&format!("REPLICAOF 127.0.0.1 {}", other.port()));
        for client in &mut waiters {
            let error = client.refusal();
            assert!(error.starts_with("UNBLOCKED "), "{error}");
        }
        s.until_waiting(0);
        s.run("REPLICAOF NO ONE");
        assert_eq!(s.waiting(), 0);
    });
}

#[test]
fn commands_sent_behind_a_waiting_one_are_run_after_it() {
    on_stage(|s| {
        let mut client = s.waiter("RQ.CLAIM q BLOCK 0");
        client.send("PING");
        client.send("RESET");
        assert!(client.waits());
        s.run("RQ.PUSH q m");
        assert_eq!(client.payloads(), ["m"]);
        assert_eq!(client.told().to_string(), "\"PONG\"");
        assert_eq!(client.told().to_string(), "\"RESET\"");
    });
}

#[test]
fn resp3_and_tracking_clients_wait_as_others_do() {
    on_stage(|s| {
        let mut client = s.client();
        for line in ["HELLO 3", "CLIENT TRACKING ON", "GET seen"] {
            client.send(line);
            client.told();
        }
        client.send("RQ.CLAIM q BLOCK 30");
        assert_eq!(client.told(), Reply::Nil);
        s.has_wait(&mut client, "RQ.CLAIM q BLOCK 0");
        s.run("SET seen x");
        assert_eq!(client.told().to_string(), r#"["invalidate", ["seen"]]"#, "while it waits");
        s.run("RQ.PUSH q m");
        assert_eq!(client.payloads(), ["m"]);
        s.run("TB.TAKE tb 1 1 50");
        client.send("TB.TAKE tb 1 1 50 BLOCK 1000");
        assert_eq!(numbers(&client.told())[0], 1);
    });
}

// ---------------------------------------------------------------- claims: who is served

#[test]
fn one_push_serves_one_waiter_and_the_first_who_came() {
    const WAITERS: usize = 100;
    on_stage(|s| {
        let mut clients: Vec<Client> = (0..WAITERS).map(|_| s.client()).collect();
        for (i, client) in clients.iter_mut().enumerate() {
            client.send("RQ.CLAIM q BLOCK 0");
            s.until_waiting(i as i64 + 1);
        }
        s.run("RQ.PUSH q 0");
        assert_eq!(clients[0].payloads(), ["0"]);
        assert_eq!(s.waiting(), WAITERS as i64 - 1);
        for i in 1..WAITERS {
            s.run(&format!("RQ.PUSH q {i}"));
        }
        for (i, client) in clients.iter_mut().enumerate().skip(1) {
            assert_eq!(client.payloads(), [i.to_string()]);
        }
        assert_eq!((s.waiting(), s.ready("q")), (0, "0".into()));
    });
}

#[test]
fn a_batch_serves_as_many_as_it_has_messages_each_up_to_its_count() {
    on_stage(|s| {
        let mut two = s.waiter("RQ.CLAIM q COUNT 2 BLOCK 0");
        let mut ten = s.waiter("RQ.CLAIM q COUNT 10 BLOCK 0");
        let mut none = s.waiter("RQ.CLAIM q BLOCK 0");
        s.run("RQ.MPUSH q 4 a b c d");
        assert_eq!(two.payloads(), ["a", "b"]);
        assert_eq!(ten.payloads(), ["c", "d"], "it never waits to fill");
        assert!(none.waits());
    });
}

#[test]
fn a_newcomer_takes_nothing_from_those_who_wait() {
    on_stage(|s| {
        let mut first = s.waiter("RQ.CLAIM q BLOCK 0");
        // In a transaction the line is served after it; a claim in the transaction is part of it.
        let replies = s.at_once(&["MULTI", "RQ.PUSH q a", "RQ.PUSH q b", "EXEC"]);
        assert_eq!(replies[3], "[\"1\", \"2\"]");
        assert_eq!(first.payloads(), ["a"]);
        // Pushes and claims sent in one piece: the waiter comes first.
        let mut second = s.waiter("RQ.CLAIM none BLOCK 0");
        let replies = s.at_once(&["RQ.PUSH none x", "RQ.CLAIM none"]);
        assert_eq!(replies[1], "[]");
        assert_eq!(second.payloads(), ["x"]);
        // Also behind a transaction.
        let mut third = s.waiter("RQ.CLAIM none BLOCK 0");
        let replies = s.at_once(&["MULTI", "RQ.PUSH none y", "EXEC", "RQ.CLAIM none"]);
        assert_eq!(replies[3], "[]");
        assert_eq!(third.payloads(), ["y"]);
        // NEXT is answered before waiters, for what its own acks freed.
        s.run("RQ.SET g GROUPINFLIGHT 1");
        s.run("RQ.MPUSH g 2 one two GROUP g");
        let held = s.run("RQ.CLAIM g");
        let mut fourth = s.waiter("RQ.CLAIM g BLOCK 0");
        let next = s.run(&format!("RQ.NEXT g RECEIPTS 1 {}", receipt(&held)));
        assert!(next.to_string().contains("\"two\""), "{next}");
        assert!(fourth.waits());
    });
}

#[test]
fn a_waiter_that_cannot_use_what_came_holds_up_nobody() {
    on_stage(|s| {
        let mut only_a = s.waiter("RQ.CLAIM q GROUP a BLOCK 0");
        let mut only_b = s.waiter("RQ.CLAIM q GROUP b BLOCK 0");
        let mut any = s.waiter("RQ.CLAIM q BLOCK 0");
        let mut later_b = s.waiter("RQ.CLAIM q GROUP b BLOCK 0");
        s.run("RQ.PUSH q plain");
        assert_eq!(any.payloads(), ["plain"]);
        s.run("RQ.PUSH q for-b GROUP b");
        assert_eq!(only_b.payloads(), ["for-b"]);
        assert!(only_a.waits() && later_b.waits());
        s.run("RQ.MPUSH q 2 b2 b3 GROUP b");
        assert_eq!(later_b.payloads(), ["b2"]);
        s.run("RQ.PUSH q for-a GROUP a");
        assert_eq!(only_a.payloads(), ["for-a"]);
        assert_eq!((s.waiting(), s.ready("q")), (0, "1".into()));
    });
}

#[test]
fn mclaim_waits_at_several_keys_and_is_answered_once() {
    on_stage(|s| {
        s.together("a b");
        let mut client = s.waiter("RQ.MCLAIM 3 a b a BLOCK 0");
        s.run("RQ.PUSH b m");
        let Reply::Array(told) = client.told() else { panic!("an array") };
        assert_eq!(told[0].to_string(), "\"b\"");
        assert_eq!(payloads(&told[1]), ["m"]);
        s.run("RQ.PUSH a n");
        assert_eq!((s.waiting(), s.ready("a")), (0, "1".into()));

        // When several have messages it is the first of its keys.
        s.run("FLUSHALL");
        let mut client = s.waiter("RQ.MCLAIM 2 a b BLOCK 0");
        s.at_once(&["MULTI", "RQ.PUSH b late", "RQ.PUSH a early", "EXEC"]);
        assert!(client.told().to_string().starts_with("[\"a\", [["));
        assert_eq!((s.ready("a"), s.ready("b")), ("0".into(), "1".into()));

        // It stands in each line in its order.
        s.run("FLUSHALL");
        let mut first = s.waiter("RQ.CLAIM b BLOCK 0");
        let mut several = s.waiter("RQ.MCLAIM 2 a b BLOCK 0");
        s.run("RQ.PUSH b one");
        assert_eq!(first.payloads(), ["one"]);
        assert!(several.waits());
        s.run("RQ.PUSH b two");
        assert!(several.told().to_string().starts_with("[\"b\", [["));
        // Killed while it waits it leaves all its lines.
        let gone = s.waiter("RQ.MCLAIM 2 a b BLOCK 0");
        s.run(&format!("CLIENT KILL ID {}", gone.id));
        s.until_waiting(0);
        s.run("RQ.PUSH a x");
        s.run("RQ.PUSH b x");
        assert_eq!((s.ready("a"), s.ready("b")), ("1".into(), "1".into()));
    });
}

#[test]
fn next_acks_at_once_and_then_waits() {
    on_stage(|s| {
        s.run("RQ.PUSH q one");
        let held = s.run("RQ.CLAIM q");
        let mut client = s.waiter(&format!("RQ.NEXT q RECEIPTS 1 {} BLOCK 0", receipt(&held)));
        assert_eq!(s.shown("RQ.LEN q"), "0", "acked while it waits");
        s.run("RQ.PUSH q two");
        let Reply::Array(told) = client.told() else { panic!("an array") };
        assert_eq!(told[0].to_string(), "[1]");
        assert_eq!(payloads(&told[1]), ["two"]);
        client.send(&format!("RQ.NEXT q RECEIPTS 2 {} {} BLOCK 40", receipt(&told[1]), receipt(&held)));
        assert_eq!(client.told().to_string(), "[[1, -1], nil]");
    });
}

#[test]
fn nothing_blocks_inside_a_transaction_or_a_script() {
    on_stage(|s| {
        s.together("q r");
        s.run("SLUICE.CLOCK SET 1900000000000");
        s.run("TB.TAKE tb 1 1 60000");
        s.run("LB.TAKE lb 9 1 60000");
        for (line, told) in [
            ("RQ.CLAIM q BLOCK 0", "nil"),
            ("RQ.CLAIM q BLOCK 5", "nil"),
            ("RQ.MCLAIM 2 q r BLOCK 0", "nil"),
            ("RQ.NEXT q RECEIPTS 1 a@1 BLOCK 0", "[[-1], nil]"),
        ] {
            assert_eq!(s.at_once(&["MULTI", line, "EXEC"])[2], format!("[{told}]"), "{line}");
            let script = "local r = redis.call(unpack(ARGV)); return r and 1 or 0";
            let one = s.control.call(&[vec!["EVAL", script, "1", "q"], words(line)].concat()).unwrap();
            assert_eq!(one, Reply::Int(i64::from(told != "nil")), "{line}");
        }
        // A refusal there is what the same take answers without BLOCK, and nothing is booked.
        let refused = s.at_once(&["MULTI", "TB.TAKE tb 1 1 60000 BLOCK 600000", "EXEC"]);
        assert!(refused[2].starts_with("[[0, 1, 0, "), "{refused:?}");
        let script = "return redis.call('TB.TAKE','tb',1,1,60000,'BLOCK',600000)";
        let refused = s.control.call(&["EVAL", script, "1", "tb"]).unwrap().to_string();
        assert!(refused.starts_with("[0, 1, 0, "), "{refused}");
        assert!(s.shown("TB.INFO tb").contains("\"debt\", 0"));
        // An admission there says how long the caller has to wait.
        let admitted = s.at_once(&["MULTI", "LB.TAKE lb 9 1 60000 BLOCK", "EXEC"]);
        assert!(admitted[2].starts_with("[[1, 9, 7, 0, 60000, "), "{admitted:?}");
        assert_eq!(s.waiting(), 0);
        assert_eq!(s.ready("q"), "0");
    });
}

#[test]
fn a_push_from_a_script_or_transaction_serves_who_waits() {
    on_stage(|s| {
        let mut client = s.waiter("RQ.CLAIM q BLOCK 0");
        s.control.call(&["EVAL", "return redis.call('RQ.PUSH','q','m')", "1", "q"]).unwrap();
        assert_eq!(client.payloads(), ["m"]);
        let mut client = s.waiter("RQ.CLAIM q BLOCK 0");
        s.at_once(&["MULTI", "RQ.PUSH q n", "EXEC"]);
        assert_eq!(client.payloads(), ["n"]);
        // What a transaction has taken back again serves nobody.
        let mut client = s.waiter("RQ.CLAIM q BLOCK 0");
        s.at_once(&["MULTI", "RQ.PUSH q gone ID x", "RQ.DEL q x", "EXEC"]);
        assert!(client.waits());
        s.at_once(&["MULTI", "RQ.PUSH q gone", "DEL q", "EXEC"]);
        assert!(client.waits());
        s.run("RQ.PUSH q m");
        assert_eq!(client.payloads(), ["m"]);
    });
}

#[test]
fn ten_thousand_idle_waiters_leave_a_push_working() {
    const FILES_TO_SPARE: u64 = 300;
    let most = raise_open_files();
    let waiters = most.saturating_sub(FILES_TO_SPARE).min(10_000);
    if waiters < 10_000 {
        say(&format!("only {waiters} idle waiters: the limit of open files is {most}"));
    }
    on_every_engine(|engine| {
        let server =
            Server::builder(engine).option("maxclients", "12000").option("tcp-backlog", "1024").start();
        let address = ("127.0.0.1", server.port());
        let mut stage = Stage::on(server);
        let mut first = stage.waiter("RQ.CLAIM q BLOCK 0");
        let claim = b"*4\r\n$8\r\nRQ.CLAIM\r\n$1\r\nq\r\n$5\r\nBLOCK\r\n$1\r\n0\r\n";
        let idle: Vec<TcpStream> = (1..waiters)
            .map(|_| {
                let mut wire = TcpStream::connect(address).expect("a connection");
                wire.write_all(claim).expect("the server listens");
                wire
            })
            .collect();
        stage.until_waiting(waiters as i64);
        stage.run("RQ.PUSH q m");
        assert_eq!(first.payloads(), ["m"]);
        assert_eq!(stage.waiting(), waiters as i64 - 1);
        drop(idle);
        stage.until_waiting(0);
        assert_eq!(stage.shown("RQ.PUSH q n"), "\"2\"");
        assert_eq!(stage.ready("q"), "1");
        assert_eq!(stage.field("panics_caught"), 0);
    });
}

/// Raises the limit of open files as far as it goes, for this process and the servers it starts;
/// answers it.
fn raise_open_files() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain system calls on a struct on the stack.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
    }
    limit.rlim_cur
}

// ---------------------------------------------------------------- limiters

#[test]
fn a_blocked_take_is_answered_when_its_tokens_are_there() {
    on_stage(|s| {
        let begin = Instant::now();
        s.run("TB.TAKE k 10 10 1000 COST 10");
        let mut client = s.asker("TB.TAKE k 10 10 1000 COST 2 BLOCK 1000");
        let told = numbers(&client.told());
        let waited = begin.elapsed();
        assert_eq!((told[0], told[1], told[3]), (2, 10, 0));
        assert!(
            waited >= Duration::from_millis(200) && waited < Duration::from_millis(200) + LATE,
            "{waited:?}"
        );
        // Longer than it may wait, or never: refused at once, and nothing is booked.
        client.send("TB.TAKE k 10 10 1000 COST 10 BLOCK 5");
        assert_eq!(numbers(&client.told())[0], 0);
        client.send("TB.TAKE k 10 10 1000 COST 11 BLOCK 5");
        assert_eq!(numbers(&client.told())[3], -1);
        assert_eq!(s.waiting(), 0);
    });
}

#[test]
fn those_who_wait_for_tokens_are_served_in_the_order_they_came() {
    on_stage(|s| {
        s.run("SLUICE.CLOCK SET 1900000000000");
        s.run("TB.TAKE k 10 1 100 COST 10");
        let mut dear = s.waiter("TB.TAKE k 10 1 100 COST 5 BLOCK 60000");
        let mut cheap = s.waiter("TB.TAKE k 10 1 100 BLOCK 60000");
        assert_eq!(s.shown("TB.TAKE k 10 1 100"), "[0, 10, 0, 700, 700, 1600]", "what is free reads 0");
        s.run("SLUICE.CLOCK ADVANCE 499");
        assert!(dear.waits() && cheap.waits());
        s.run("SLUICE.CLOCK ADVANCE 1");
        assert_eq!(dear.told().to_string(), "[5, 10, 0, 0, 200, 1100]");
        assert!(cheap.waits());
        s.run("SLUICE.CLOCK ADVANCE 100");
        assert_eq!(cheap.told().to_string(), "[1, 10, 0, 0, 100, 1000]");
    });
}

#[test]
fn a_waiter_of_a_limiter_that_goes_away_gives_back_what_it_had_booked() {
    on_stage(|s| {
        for how in ["close", "CLIENT KILL ID $", "CLIENT UNBLOCK $ ERROR", "CLIENT UNBLOCK $ TIMEOUT"] {
            s.run("FLUSHALL");
            s.run("SLUICE.CLOCK SET 1900000000000");
            s.run("TB.TAKE tb 10 1 1000 COST 10");
            s.run("LB.TAKE lb 10 1 1000 COST 2");
            let (bucket, leaky) = (s.shown("TB.PEEK tb 10 1 1000"), s.shown("LB.PEEK lb 10 1 1000"));
            let taker = s.waiter("TB.TAKE tb 10 1 1000 COST 5 BLOCK 60000");
            let mut next = s.waiter("TB.TAKE tb 10 1 1000 COST 1 BLOCK 60000");
            let pourer = s.waiter("LB.TAKE lb 10 1 1000 COST 3 BLOCK");
            assert_ne!(s.shown("LB.PEEK lb 10 1 1000"), leaky);
            for client in [taker, pourer] {
                if how == "close" {
                    drop(client);
                } else {
                    s.run(&how.replace('$', &client.id.to_string()));
                }
            }
            s.until_waiting(1);
            eventually("the place to be given back", || s.shown("LB.PEEK lb 10 1 1000") == leaky);
            // Who stood behind moves up: its token is there after a second, not after six.
            s.run("SLUICE.CLOCK ADVANCE 1000");
            assert_eq!(numbers(&next.told())[0], 1, "{how}");
            s.run("TB.REFUND tb 1");
            s.run("SLUICE.CLOCK SET 1900000000000");
            assert_eq!(s.shown("TB.PEEK tb 10 1 1000"), bucket, "{how}");
        }
    });
}

/// A transaction has a slot of its own, and the key of who waits another: nothing is said of that key.
#[test]
fn in_a_cluster_who_is_unblocked_inside_a_transaction_is_told_only_that() {
    on_stage(|s| {
        s.run("SEM.ACQUIRE sem 1 LEASE 60000");
        let mut client = s.waiter("SEM.ACQUIRE sem 1 BLOCK 60000");
        let unblock = format!("CLIENT UNBLOCK {} TIMEOUT", client.id);
        s.at_once(&["MULTI", "SET elsewhere v", &unblock, "EXEC"]);
        let told = client.told().to_string();
        let expected = if s.is_cluster() { "UNBLOCKED " } else { "[0, 1, 0," };
        assert!(told.contains(expected), "{told}");
        assert_eq!(s.waiting(), 0);
        client.send("PING");
        assert_eq!(client.told().to_string(), "\"PONG\"");
    });
}

#[test]
fn a_waiter_of_a_limiter_whose_time_is_over_is_told_a_refusal() {
    on_stage(|s| {
        s.run("SLUICE.CLOCK SET 1900000000000");
        // As if it had not waited: the tokens are booked no more.
        s.run("TB.TAKE tb 10 1 1000 COST 10");
        let mut ahead = s.waiter("TB.TAKE tb 10 1 1000 COST 2 BLOCK 60000");
        let mut client = s.waiter("TB.TAKE tb 10 1 1000 COST 5 BLOCK 60000");
        let id = client.id;
        assert_eq!(s.shown(&format!("CLIENT UNBLOCK {id} TIMEOUT")), "1");
        let told = client.told().to_string();
        assert_eq!(told, "[0, 10, 0, 7000, 3000, 12000]", "granted none, and two are booked ahead");
        assert_eq!(s.shown("TB.PEEK tb 10 1 1000 COST 5"), told);
        assert!(ahead.waits());

        // Also when a pinned bucket took other limits meanwhile, and when limits came with the
        // call.
        s.run("TB.SET pinned 10 1 1000");
        s.run("TB.TAKE pinned COST 10");
        let mut client = s.waiter("TB.TAKE pinned COST 5 BLOCK 60000");
        s.run("TB.SET pinned 20 1 1000");
        let id = client.id;
        s.run(&format!("CLIENT UNBLOCK {id}"));
        assert_eq!(client.told().to_string(), s.shown("TB.PEEK pinned COST 5"));

        // A ban: its rest.
        s.run("TB.BAN banned 5000");
        let mut client = s.waiter("TB.TAKE banned 10 1 1000 BLOCK 60000");
        let id = client.id;
        s.run(&format!("CLIENT UNBLOCK {id}"));
        assert_eq!(client.told().to_string(), s.shown("TB.PEEK banned 10 1 1000"));

        // A leaky bucket had admitted it, so there is room: it may ask again at once, but a refusal
        // never says 0.
        s.run("LB.TAKE lb 10 1 1000 COST 2");
        let mut client = s.waiter("LB.TAKE lb 10 1 1000 COST 3 BLOCK");
        let id = client.id;
        s.run(&format!("CLIENT UNBLOCK {id} TIMEOUT"));
        assert_eq!(client.told().to_string(), "[0, 10, 8, 1, 2000, 2000]");
        assert_eq!(s.shown("LB.PEEK lb 10 1 1000 COST 3"), "[3, 10, 5, 0, 2000, 5000]");
        assert_eq!(s.waiting(), 1);
    });
}

#[test]
fn changes_of_the_key_serve_or_decide_anew_those_who_wait_for_tokens() {
    on_stage(|s| {
        s.run("SLUICE.CLOCK SET 1900000000000");
        // What is booked is theirs, and a missing key is full.
        for gone in [
            "DEL k",
            "UNLINK k",
            "TB.RESET k",
            "FLUSHALL",
            "FLUSHDB",
            "FLUSHALL ASYNC",
            "SET k x",
            "DEBUG RELOAD",
        ] {
            s.run("DEL k");
            s.run("TB.TAKE k 10 1 1000 COST 10");
            let mut client = s.waiter("TB.TAKE k 10 1 1000 COST 5 BLOCK 60000");
            let mut other = s.waiter("TB.TAKE k 10 1 1000 COST 1 BLOCK 60000");
            s.run(gone);
            assert_eq!(client.told().to_string(), "[5, 10, 10, 0, 0, 0]", "{gone}");
            assert_eq!(other.told().to_string(), "[1, 10, 10, 0, 0, 0]", "{gone}");
            assert_eq!(s.waiting(), 0);
        }
        // More, or sooner, by new limits.
        s.run("DEL k");
        s.run("TB.TAKE k 10 1 1000 COST 10");
        let mut client = s.waiter("TB.TAKE k 10 1 1000 COST 5 BLOCK 60000");
        s.run("TB.SET k 10 1 10");
        assert!(client.waits());
        s.run("SLUICE.CLOCK ADVANCE 50");
        assert_eq!(numbers(&client.told())[0], 5);
        let mut client = s.waiter("TB.TAKE k COST 5 BLOCK 60000");
        s.run("TB.SET k 10 1 10 LEVEL FULL");
        assert_eq!(numbers(&client.told())[0], 5);
        // A refund.
        s.run("TB.DRAIN k");
        let mut client = s.waiter("TB.TAKE k COST 8 BLOCK 60000");
        s.run("TB.REFUND k 8");
        assert_eq!(numbers(&client.told())[0], 8);
    });
}

#[test]
fn changes_of_the_key_let_go_those_who_wait_at_a_leaky_bucket() {
    on_stage(|s| {
        s.run("SLUICE.CLOCK SET 1900000000000");
        for gone in ["DEL k", "LB.RESET k", "FLUSHALL", "SET k x", "DEBUG RELOAD"] {
            s.run("DEL k");
            s.run("LB.TAKE k 10 1 1000 COST 5");
            let mut client = s.waiter("LB.TAKE k 10 1 1000 COST 2 BLOCK");
            s.run(gone);
            assert_eq!(client.told().to_string(), "[2, 10, 10, 0, 0, 0]", "{gone}");
        }
        // Its instant was fixed when it was admitted.
        s.run("DEL k");
        s.run("LB.SET k 10 1 1000");
        s.run("LB.TAKE k COST 5");
        let mut client = s.waiter("LB.TAKE k COST 2 BLOCK");
        s.run("LB.SET k 10 1 1");
        s.run("SLUICE.CLOCK ADVANCE 4999");
        assert!(client.waits());
        s.run("SLUICE.CLOCK ADVANCE 1");
        assert_eq!(client.told().to_string(), "[2, 10, 10, 0, 0, 0]");
    });
}

#[test]
fn who_waits_at_a_limiter_stays_with_it_when_it_moves() {
    on_stage(|s| {
        s.together("k other copy");
        for there in ["RENAME k other", "MOVE k 5", "SWAPDB 0 5", "RENAMENX k other"] {
            if s.is_cluster() && !there.starts_with("RENAME") {
                continue;
            }
            s.run("FLUSHALL");
            s.run("SLUICE.CLOCK SET 1900000000000");
            s.run("TB.TAKE k 10 1 1000 COST 10");
            let mut taker = s.waiter("TB.TAKE k 10 1 1000 COST 5 BLOCK 60000");
            let gone = s.waiter("TB.TAKE k 10 1 1000 COST 1 BLOCK 60000");
            s.run(there);
            assert!(taker.waits(), "{there}");
            // A departure is found there, too.
            s.run(&format!("CLIENT KILL ID {}", gone.id));
            s.until_waiting(1);
            s.run("SLUICE.CLOCK ADVANCE 4999");
            assert!(taker.waits(), "{there}");
            s.run("SLUICE.CLOCK ADVANCE 1");
            assert_eq!(taker.told().to_string(), "[5, 10, 0, 0, 1000, 10000]", "{there}");

            s.run("FLUSHALL");
            s.run("LB.TAKE k 10 1 1000 COST 5");
            let mut pourer = s.waiter("LB.TAKE k 10 1 1000 COST 2 BLOCK");
            s.run(there);
            s.run("SLUICE.CLOCK ADVANCE 4999");
            assert!(pourer.waits(), "{there}");
            s.run("SLUICE.CLOCK ADVANCE 1");
            assert_eq!(pourer.told().to_string(), "[2, 10, 8, 0, 0, 2000]", "{there}");
        }
        // A copy has the level, not the line.
        s.run("FLUSHALL");
        s.run("TB.TAKE k 10 1 1000 COST 10");
        let mut taker = s.waiter("TB.TAKE k 10 1 1000 COST 5 BLOCK 60000");
        s.run("COPY k copy");
        assert_eq!(s.shown("TB.PEEK copy 10 1 1000"), s.shown("TB.PEEK k 10 1 1000"));
        s.run("TB.RESET copy");
        assert!(taker.waits());
    });
}

#[test]
fn who_waits_for_a_permit_or_at_a_gate_stays_with_it_when_it_moves() {
    on_stage(|s| {
        s.together("k other copy");
        for there in ["RENAME k other", "MOVE k 5", "SWAPDB 0 5"] {
            if s.is_cluster() && !there.starts_with("RENAME") {
                continue;
            }
            s.run("FLUSHALL");
            s.run("SLUICE.CLOCK SET 1900000000000");
            s.run("SEM.ACQUIRE k 1 LEASE 5000");
            let mut client = s.waiter("SEM.ACQUIRE k 1 LEASE 5000 BLOCK 60000");
            let mut late = s.waiter("SEM.ACQUIRE k 1 BLOCK 7000");
            s.run(there);
            assert!(client.waits() && late.waits(), "{there}");
            s.run("SLUICE.CLOCK ADVANCE 4999");
            assert!(client.waits(), "{there}");
            s.run("SLUICE.CLOCK ADVANCE 1");
            assert!(client.told().to_string().starts_with("[1, 1, 0, 0, "), "{there}");
            s.run("SLUICE.CLOCK ADVANCE 2000");
            assert_eq!(late.told().to_string(), "[0, 1, 0, 3000, nil]", "{there}");

            s.run("FLUSHALL");
            s.run("GATE.SET k STAGE a TB 1 1 5000");
            s.run("GATE.PASS k");
            let mut client = s.waiter("GATE.PASS k BLOCK 60000");
            s.run(there);
            s.run("SLUICE.CLOCK ADVANCE 4999");
            assert!(client.waits(), "{there}");
            s.run("SLUICE.CLOCK ADVANCE 1");
            assert!(client.told().to_string().starts_with("[1, 0, 0, "), "{there}");
        }
    });
}

#[test]
fn who_waits_for_a_permit_or_at_a_gate_that_goes_is_decided_anew() {
    on_stage(|s| {
        s.run("SLUICE.CLOCK SET 1900000000000");
        for gone in ["DEL k", "FLUSHALL", "FLUSHALL ASYNC"] {
            s.run("SEM.ACQUIRE k 1 LEASE 60000");
            let mut first = s.waiter("SEM.ACQUIRE k 1 LEASE 5000 BLOCK 60000");
            let mut second = s.waiter("SEM.ACQUIRE k 1 LEASE 5000 BLOCK 60000");
            s.run(gone);
            assert!(
                first.told().to_string().starts_with("[1, 1, 0, 0, "),
                "{gone}: a missing key has all permits"
            );
            assert!(second.waits(), "{gone}: and the line begins anew");
            s.run("SLUICE.CLOCK ADVANCE 5000");
            assert!(second.told().to_string().starts_with("[1, 1, 0, 0, "), "{gone}");
            s.run("DEL k");
        }
        s.run("GATE.SET g STAGE a TB 1 1 5000");
        s.run("GATE.PASS g");
        let mut client = s.waiter("GATE.PASS g BLOCK 60000");
        s.run("DEL g");
        assert_eq!(client.refusal(), "ERR no such gate: GATE.SET the key first");
        assert_eq!(s.waiting(), 0);
    });
}

#[test]
fn who_waits_for_a_permit_or_at_a_gate_may_be_unblocked_or_go_away() {
    on_stage(|s| {
        s.run("SLUICE.CLOCK SET 1900000000000");
        s.run("SEM.ACQUIRE sem 1 LEASE 5000");
        s.run("GATE.SET gate STAGE a TB 1 1 5000");
        s.run("GATE.PASS gate");
        for (line, refusal) in [
            ("SEM.ACQUIRE sem 1 LEASE 9000 BLOCK 60000", "[0, 1, 0, 5000, nil]"),
            ("GATE.PASS gate BLOCK 60000", "[0, 0, 5000, [\"a\"], nil, [[\"a\", 1, 0, 5000, 0, 5000]]]"),
        ] {
            let mut client = s.waiter(line);
            s.run(&format!("CLIENT UNBLOCK {} TIMEOUT", client.id));
            assert_eq!(client.told().to_string(), refusal);
            s.has_wait(&mut client, line);
            s.run(&format!("CLIENT UNBLOCK {} ERROR", client.id));
            assert!(client.refusal().starts_with("UNBLOCKED "));
            s.has_wait(&mut client, line);
            s.run(&format!("CLIENT KILL ID {}", client.id));
            drop(s.waiter(line));
            s.until_waiting(0);
        }
        // Nothing is held for them: who comes when there is room again gets it.
        s.run("SLUICE.CLOCK ADVANCE 5000");
        assert!(s.shown("SEM.ACQUIRE sem 1").starts_with("[1, 1, 0, 0, "));
        assert!(s.shown("GATE.PASS gate").starts_with("[1, 0, 0, "));
    });
}

#[test]
fn a_waiter_unblocked_while_writes_are_paused_is_refused_and_nothing_is_written() {
    on_stage_with(
        |builder| builder.option("appendonly", "yes").option("appendfsync", "no"),
        |s| {
            // Something is due at each key by the time the waiter is unblocked, and must wait until
            // the pause is over.
            s.run("TB.HOLD tb 2 1 600000 COST 2 TTL 500 ONEXPIRE REFUND");
            s.run("SEM.ACQUIRE sem 2 LEASE 500");
            s.run("SEM.ACQUIRE sem 2 LEASE 60000");
            s.run("LB.TAKE lb 9 1 600000");
            let mut waiters = [
                s.waiter("TB.TAKE tb 2 1 600000 BLOCK 6000000"),
                s.waiter("SEM.ACQUIRE sem 2 COUNT 2 BLOCK 600000"),
                s.waiter("LB.TAKE lb 9 1 600000 BLOCK"),
            ];
            s.run("CLIENT PAUSE 60000 WRITE");
            std::thread::sleep(Duration::from_millis(550));
            for client in &mut waiters {
                s.run(&format!("CLIENT UNBLOCK {} TIMEOUT", client.id));
                let told = client.told().to_string();
                let fields: Vec<&str> = told.split(", ").collect();
                assert!(fields[0] == "[0" && fields[3].parse::<i64>().unwrap() > 0, "{told}");
            }
            s.run("CLIENT UNPAUSE");
            // What they had booked is given back now, and what was due has happened.
            eventually("the bucket to be full", || s.shown("TB.INFO tb") == "nil");
            eventually("a place to be given back", || {
                s.shown("LB.PEEK lb 9 1 600000").split(", ").nth(2) == Some("7")
            });
            eventually("a permit to be free", || s.shown("SEM.PEEK sem 2") == "[1, 2, 0, 0, nil]");
        },
    );
}

#[test]
fn a_limiter_overwritten_by_a_renamed_one_serves_who_waits() {
    on_stage(|s| {
        s.together("k other");
        s.run("SLUICE.CLOCK SET 1900000000000");
        s.run("TB.TAKE k 10 1 1000 COST 10");
        s.run("TB.TAKE other 10 1 1000 COST 9");
        let mut over = s.waiter("TB.TAKE k 10 1 1000 COST 5 BLOCK 60000");
        let mut moved = s.waiter("TB.TAKE other 10 1 1000 COST 3 BLOCK 60000");
        s.run("RENAME other k");
        assert_eq!(over.told().to_string(), "[5, 10, 10, 0, 0, 0]");
        assert!(moved.waits());
        s.run("SLUICE.CLOCK ADVANCE 2000");
        assert_eq!(numbers(&moved.told())[0], 3);
    });
}

#[test]
fn three_hundred_at_once_leave_a_leaky_bucket_evenly_spaced() {
    const ADMITTED: i64 = 200;
    on_stage(|s| {
        let mut clients: Vec<Client> = (0..300).map(|_| s.client()).collect();
        // At one instant all of them: the clock stands until the last has been decided on.
        let begin = wall();
        s.run(&format!("SLUICE.CLOCK SET {begin}"));
        for client in &mut clients {
            client.send("LB.TAKE k 200 500 1000 BLOCK");
        }
        s.until_waiting(ADMITTED - 1);
        let (mut refused, mut admitted) = (Vec::new(), clients);
        eventually("the others to be answered", || {
            admitted.retain_mut(|client| {
                let waits = client.wire.is_silent_for(Duration::ZERO);
                if !waits {
                    refused.push(numbers(&client.told()));
                }
                waits
            });
            refused.len() == 101
        });
        let first = refused.iter().position(|told| told[0] == 1).expect("the first need not wait");
        assert_eq!(refused.remove(first), [1, 200, 199, 0, 0, 2]);
        assert!(refused.iter().all(|told| *told == [0, 200, 0, 2, 400, 400]), "{refused:?}");
        s.run("SLUICE.CLOCK REAL");
        let real = wall();
        // The order in which the server read them is not the one in which they were sent.
        let mut instants: Vec<i64> = Vec::new();
        while !admitted.is_empty() {
            admitted.retain_mut(|client| {
                if client.wire.is_silent_for(Duration::ZERO) {
                    return true;
                }
                let told = numbers(&client.told());
                assert_eq!((told[0], told[1], told[3], told[4]), (1, 200, 0, 0));
                instants.push(wall());
                false
            });
        }
        assert_eq!(instants.len() as i64, ADMITTED - 1);
        for (i, at) in (1..).zip(instants) {
            let due = begin + 2 * i;
            let late = at - due.max(real);
            assert!(at >= due && late < LATE_MS, "the {i}-th {late} ms after its instant");
        }
        s.until_waiting(0);
    });
}
