//! Whose turn it is, against real servers: a newcomer never overtakes who waits, what was for a
//! client that went away goes back, a clock that steps back locks nobody out, and long lines are
//! served in pieces.

use crate::common::stage::{Stage, on_stage, on_stage_alone, payloads};
use crate::common::{Reply, Server, T0, call, digest, eventually, info, on_every_engine, within};
use std::time::{Duration, Instant};

/// Makes something claimable at `q` while the server is busy, so that who waits and a newcomer find
/// it at once.
const COMES: [&[&str]; 3] = [
    &["RQ.PUSH q m DELAY 150"],
    &["RQ.PUSH q m", "RQ.CLAIM q LEASE 150"],
    &["RQ.SET q RATE 1 150 1", "RQ.MPUSH q 2 first m", "RQ.CLAIM q NOACK"],
];

#[test]
fn a_newcomer_does_not_overtake_who_waits_for_a_message() {
    on_stage(|s| {
        s.together("p q");
        for comes in COMES {
            for newcomer in
                ["RQ.CLAIM q", "RQ.MCLAIM 2 p q", "RQ.NEXT q RECEIPTS 1 a@1", "RQ.CLAIM q NOACK BLOCK 1"]
            {
                s.run("DEL q");
                for line in comes {
                    s.run(line);
                }
                let mut first = s.waiter("RQ.CLAIM q BLOCK 0");
                let replies = s.at_once(&["DEBUG SLEEP 0.25", newcomer]);
                assert!(!replies[1].contains('m'), "{newcomer} after {comes:?}: {replies:?}");
                assert_eq!(first.payloads(), ["m"], "{newcomer} after {comes:?}");
            }
        }
    });
}

#[test]
fn what_was_granted_to_a_client_that_is_gone_by_then_goes_back() {
    on_stage(|s| {
        // (what is set, who holds it, what gives it back, how it looks when nobody has it)
        let cases: [(&[&str], &str, &str, &str, &str); 3] = [
            (&["SEM.SET k 1"], "SEM.ACQUIRE k", "SEM.RELEASE k", "SEM.ACQUIRE k BLOCK 60000", "SEM.PEEK k"),
            (
                &["GATE.SET k STAGE s SEM 1"],
                "GATE.PASS k",
                "GATE.LEAVE k",
                "GATE.PASS k BLOCK 60000",
                "GATE.PEEK k",
            ),
            (
                &["TB.SET k 2 1 600000", "TB.TAKE k COST 2"],
                "TB.PEEK k",
                "TB.REFUND k",
                "TB.TAKE k COST 2 BLOCK 31622400000",
                "TB.PEEK k COST 2",
            ),
        ];
        for (set, hold, back, wait, peek) in cases {
            s.run("DEL k");
            for line in set {
                s.run(line);
            }
            let held = match s.run(hold) {
                Reply::Array(fields) => fields.into_iter().rev().find_map(|f| match f {
                    Reply::Int(n) if n > 1_000_000_000 => Some(n),
                    _ => None,
                }),
                other => panic!("{hold}: {other}"),
            };
            let gone = s.waiter(wait);
            let back = format!("{back} {}", held.filter(|_| !hold.starts_with("TB")).unwrap_or(2));
            s.at_once(&[&back, &format!("CLIENT KILL ID {}", gone.id)]);
            eventually(&format!("{wait} gives back what it got"), || !s.shown(peek).starts_with("[0"));
            assert_eq!(s.waiting(), 0);
        }
    });
}

#[test]
fn a_delivery_that_never_left_is_no_nack() {
    on_stage(|s| {
        s.together("q r");
        for elsewhere in ["PING", "RENAME q r"] {
            s.run("FLUSHALL");
            let gone = s.waiter("RQ.CLAIM q CONSUMER c BLOCK 0");
            s.at_once(&["RQ.PUSH q m", &format!("CLIENT KILL ID {}", gone.id), elsewhere]);
            let key = if elsewhere == "PING" { "q" } else { "r" };
            eventually(&format!("the message is back after {elsewhere}"), || s.ready(key) == "1");
            let info = s.shown(&format!("RQ.INFO {key}"));
            assert!(info.contains("\"total_nacked\", 0") && info.contains("\"total_requeued\", 1"), "{info}");
            assert!(s.shown(&format!("RQ.GET {key} 1")).contains("\"reason\", nil"));
        }
    });
}

#[test]
fn a_clock_that_steps_back_locks_a_rated_queue_out_for_one_drain_at_most() {
    on_stage(|s| {
        for rate in ["RATE", "GROUPRATE"] {
            s.run("DEL q");
            s.run(&format!("SLUICE.CLOCK SET {T0}"));
            s.run(&format!("RQ.SET q {rate} 1 200 1"));
            s.run("RQ.MPUSH q 4 a b c d GROUP g");
            assert_eq!(payloads(&s.run("RQ.CLAIM q")), ["a"]);
            let mut waiter = s.waiter("RQ.CLAIM q BLOCK 0");
            // An hour back.
            s.run(&format!("SLUICE.CLOCK SET {}", T0 - 3_600_000));
            s.run("SLUICE.CLOCK ADVANCE 200");
            assert_eq!(waiter.payloads(), ["b"], "{rate}");
            s.run("SLUICE.CLOCK ADVANCE 200");
            assert_eq!(payloads(&s.run("RQ.CLAIM q")), ["c"], "{rate}");
        }
    });
}

#[test]
fn a_restored_limiter_goes_when_it_is_full() {
    on_stage(|s| {
        s.run("SLUICE.CLOCK REAL");
        s.run("TB.TAKE tb 10 1 1000 COST 3");
        let Reply::Bytes(dump) = s.run("DUMP tb") else { panic!("a dump") };
        s.bytes(&[&b"RESTORE"[..], b"copy", b"0", &dump]);
        eventually("the restored key to have a TTL", || s.int("PTTL copy") > 0);
        assert!(s.int("PTTL copy") <= 3_000 + 10_000 + 1_000);
        s.run("TB.SET pinned 10 1 1000");
        let Reply::Bytes(dump) = s.run("DUMP pinned") else { panic!("a dump") };
        s.bytes(&[&b"RESTORE"[..], b"forever", b"0", &dump]);
        s.run("PING");
        assert_eq!(s.int("PTTL forever"), -1);
    });
}

/// Thousands of groups, each waited for, become servable at once: others are not kept waiting by
/// it.
#[test]
fn thousands_of_groups_are_served_in_pieces() {
    const GROUPS: usize = 2_000;
    on_stage_alone(|s| {
        s.run("SLUICE.CLOCK REAL");
        s.run("RQ.PAUSE q CLAIM");
        let mut waiters: Vec<_> =
            (0..GROUPS).map(|i| s.asker(&format!("RQ.CLAIM q GROUP g{i} BLOCK 0"))).collect();
        s.until_waiting(GROUPS as i64);
        for i in 0..GROUPS {
            s.run(&format!("RQ.PUSH q m{i} GROUP g{i}"));
        }
        s.run("RQ.RESUME q");
        for (i, waiter) in waiters.iter_mut().enumerate() {
            assert_eq!(waiter.payloads(), [format!("m{i}")]);
        }
    });
}

/// What earlier commands left to be done is never done in the middle of a command that has keys
/// open: the replica and the AOF would get it in another order.
#[test]
fn a_move_while_much_is_left_to_be_done_is_carried_in_order() {
    on_every_engine(|engine| {
        const WAITERS: usize = 400;
        let master = Server::builder(engine).option("appendonly", "yes").start();
        let replica = Server::start(engine);
        replica.replica_of(&master);
        let mut stage = Stage::on(master);
        let mut waiters: Vec<_> =
            (0..WAITERS).map(|i| stage.asker(&format!("RQ.CLAIM k{i} BLOCK 0"))).collect();
        stage.until_waiting(WAITERS as i64);
        stage.run("SLUICE.CLOCK REAL");
        stage.run("RQ.PUSH src x DELAY 50");
        let mut last = stage.waiter("RQ.CLAIM src BLOCK 0");
        let pushes: Vec<String> = (0..WAITERS).map(|i| format!("RQ.PUSH k{i} x")).collect();
        let mut lines = vec!["MULTI"];
        lines.extend(pushes.iter().map(String::as_str));
        lines.extend(["RQ.PUSH src later DELAY 100000", "EXEC", "DEBUG SLEEP 0.2", "RQ.MOVE src dst READY"]);
        stage.at_once(&lines);
        for waiter in &mut waiters {
            assert_eq!(waiter.payloads(), ["x"]);
        }
        // The message was there when RQ.MOVE came: it went, and who waited waits for the next.
        assert_eq!((stage.shown("RQ.LEN dst"), last.waits()), ("1".into(), true));
        let (mut m, mut r) = (stage.server.connect(), replica.connect());
        within(Duration::from_secs(20), "the replica to be equal", || {
            (info(&mut r, "replication").get("master_link_status")? == "up"
                && digest(&mut m) == digest(&mut r))
            .then_some(())
        });
        call!(m, "DEBUG", "LOADAOF");
        assert_eq!(stage.shown("RQ.LEN dst"), "1");
    });
}

/// A line of many keys is joined without comparing each with each.
#[test]
fn a_claim_from_ten_thousand_keys_comes_to_wait_soon() {
    on_stage_alone(|s| {
        let keys: Vec<String> = (0..10_000).map(|i| format!("k{i}")).collect();
        let began = Instant::now();
        let mut waiter = s.asker(&format!("RQ.MCLAIM 10000 {} BLOCK 0", keys.join(" ")));
        s.until_waiting(1);
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        s.run("RQ.PUSH k9999 m");
        assert!(waiter.told().to_string().contains("k9999"));
    });
}
