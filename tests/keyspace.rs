//! A key of ours as a key of the server: TYPE, OBJECT, SCAN, EXPIRE, COPY, DUMP, WATCH, keyspace
//! events, how long it lives, and what happens when memory is short.

use crate::common::Reply;
use crate::common::stage::{Events, Stage, numbers, on_stage_alone, on_stage_alone_with, receipt, wall};

/// A key of every family, by its type name.
const FAMILIES: &[(&str, &str, &str)] = &[
    ("sluice-tb", "tb", "TB.SET tb 10 1 1000"),
    ("sluice-lb", "lb", "LB.SET lb 10 1 1000"),
    ("sluice-sm", "sem", "SEM.SET sem 5"),
    ("sluice-gt", "gate", "GATE.SET gate STAGE a TB 10 1 1000"),
    ("sluice-ht", "hot", "HOT.SET hot 10 1 1000"),
    ("sluice-rq", "q", "RQ.PUSH q m"),
];

fn fill(s: &mut Stage) {
    for (_, _, line) in FAMILIES {
        s.run(line);
    }
}

#[test]
fn every_family_has_its_type_name() {
    on_stage_alone(|s| {
        fill(s);
        for (name, key, _) in FAMILIES {
            assert_eq!(s.text(&format!("TYPE {key}")), *name);
            // SCAN finds them by it, in any letter case.
            for name in [name.to_string(), name.to_uppercase()] {
                assert_eq!(
                    s.shown(&format!("SCAN 0 COUNT 1000 TYPE {name}")),
                    format!("[\"0\", [\"{key}\"]]")
                );
            }
        }
        assert_eq!(s.shown("SCAN 0 COUNT 1000 TYPE string"), "[\"0\", []]");
    });
}

#[test]
fn object_and_memory_usage_answer_as_for_any_key() {
    on_stage_alone(|s| {
        fill(s);
        for (_, key, _) in FAMILIES {
            assert_eq!(s.text(&format!("OBJECT ENCODING {key}")), "raw");
            assert_eq!(s.int(&format!("OBJECT REFCOUNT {key}")), 1);
            assert!((0..10).contains(&s.int(&format!("OBJECT IDLETIME {key}"))));
            let bytes = s.int(&format!("MEMORY USAGE {key}"));
            let most = if *key == "q" { 64_000 } else { 4_000 };
            assert!((60..most).contains(&bytes), "{key}: {bytes}");
            assert_eq!(s.int(&format!("TOUCH {key}")), 1);
        }
        let before = s.int("MEMORY USAGE q");
        s.run(&format!("RQ.PUSH q {}", "x".repeat(10_000)));
        assert!(s.int("MEMORY USAGE q") >= before + 10_000);
        s.run("CONFIG SET maxmemory-policy allkeys-lfu");
        for (_, key, _) in FAMILIES {
            assert!(s.int(&format!("OBJECT FREQ {key}")) >= 0);
        }
    });
}

#[test]
fn keys_can_be_copied_dumped_restored_renamed_and_moved() {
    on_stage_alone(|s| {
        s.run("SLUICE.CLOCK SET 1900000000000");
        fill(s);
        for line in
            ["TB.TAKE tb", "LB.TAKE lb", "SEM.ACQUIRE sem", "GATE.PASS gate", "HOT.TAKE hot s", "RQ.CLAIM q"]
        {
            s.run(line);
        }
        let value = |s: &mut Stage, key: &str| s.shown(&format!("DEBUG DIGEST-VALUE {key}"));
        for (_, key, _) in FAMILIES {
            let state = value(s, key);
            assert_eq!(s.int(&format!("COPY {key} copy")), 1);
            assert_eq!(value(s, "copy"), state, "{key}: copied");
            let Reply::Bytes(dump) = s.run(&format!("DUMP {key}")) else { panic!("a dump is bytes") };
            let restored = s.bytes(&[&b"RESTORE"[..], b"restored", b"0", &dump]);
            assert_eq!(restored.to_string(), "\"OK\"", "{key}");
            assert_eq!(value(s, "restored"), state, "{key}: restored");
            s.run("RENAME restored renamed");
            assert_eq!(value(s, "renamed"), state, "{key}: renamed");
            assert_eq!(s.int("MOVE renamed 5"), 1);
            s.run("SELECT 5");
            assert_eq!(value(s, "renamed"), state, "{key}: moved");
            s.run("DEL renamed");
            s.run("SELECT 0");
            s.run("DEBUG RELOAD");
            assert_eq!(value(s, key), state, "{key}: reloaded");
            // A copy is a state of its own.
            s.run("DEL copy");
            assert_eq!(value(s, key), state, "{key}");
        }
    });
}

#[test]
fn a_queue_stays_until_del_and_takes_an_expire_of_the_user() {
    on_stage_alone(|s| {
        s.run("RQ.PUSH q m");
        let held = receipt(&s.run("RQ.CLAIM q"));
        s.run(&format!("RQ.ACK q {held}"));
        assert_eq!((s.int("EXISTS q"), s.int("TTL q")), (1, -1), "an empty queue stays");
        s.run("EXPIRE q 1000");
        s.run("RQ.PUSH q m");
        s.run("RQ.CLAIM q");
        assert!((990..=1000).contains(&s.int("TTL q")), "what is done with it leaves its TTL");
        s.run("PERSIST q");
        assert_eq!(s.int("TTL q"), -1);
        s.run("PEXPIRE q 1");
        crate::common::eventually("the queue to be gone", || s.int("EXISTS q") == 0);
        assert_eq!(s.shown("RQ.INFO q"), "nil");
    });
}

// ---------------------------------------------------------------- how long limiters live

/// The TTL of a key, in ms from now.
fn left(s: &mut Stage, key: &str) -> i64 {
    s.int(&format!("PTTL {key}"))
}

#[test]
fn an_unpinned_limiter_lives_until_it_is_full_and_at_most_one_drain_and_a_second_more() {
    on_stage_alone(|s| {
        for (take, drain) in [
            ("TB.TAKE k 10 1 1000", 10_000),
            ("LB.TAKE k 10 1 1000", 10_000),
            ("CL.THROTTLE k 9 1 1", 10_000),
        ] {
            for cost in 1..=10_i64 {
                s.run(take);
                let (full, ttl) = (cost * 1000, left(s, "k"));
                // Taken one after the other within a few ms.
                assert!(ttl >= full - 900, "{take}, {cost}: {ttl}");
                assert!(ttl <= full + drain + 1000, "{take}, {cost}: {ttl}");
            }
            s.run("DEL k");
        }
    });
}

#[test]
fn a_ban_a_hold_or_a_lease_keeps_its_key_as_long_as_it_lasts() {
    on_stage_alone(|s| {
        s.run("TB.BAN ban 50000");
        assert!((49_000..=51_000).contains(&left(s, "ban")));
        s.run("TB.HOLD hold 10 10 10 COST 1 TTL 50000");
        assert!((49_000..=52_000).contains(&left(s, "hold")));
        s.run("SEM.ACQUIRE sem 2 LEASE 50000");
        let ttl = left(s, "sem");
        assert!((49_000..=200_000).contains(&ttl), "{ttl}");
        s.run("TB.BAN ban 0");
        assert_eq!(s.int("EXISTS ban"), 0, "and it says nothing any more when it is lifted");
    });
}

#[test]
fn a_limiter_that_a_command_leaves_full_is_gone_at_once() {
    on_stage_alone(|s| {
        for (take, give_back) in [
            ("TB.TAKE k 10 1 600000 COST 5", "TB.REFUND k 5"),
            ("TB.TAKE k 10 1 600000 COST 5", "TB.RESET k"),
            ("LB.TAKE k 10 1 600000 COST 5", "LB.REFUND k 5"),
            ("LB.TAKE k 10 1 600000 COST 5", "LB.RESET k"),
        ] {
            s.run(take);
            assert_eq!(s.int("EXISTS k"), 1);
            s.run(give_back);
            assert_eq!(s.int("EXISTS k"), 0, "{give_back}");
        }
        let held = s.shown("SEM.ACQUIRE k 1");
        let held = held.rsplit(", ").next().unwrap().trim_end_matches(']').to_owned();
        s.run(&format!("SEM.RELEASE k {held}"));
        assert_eq!(s.int("EXISTS k"), 0);
        let hold = s.shown("TB.HOLD k 10 1 600000 COST 5 TTL 60000");
        let hold = hold.rsplit(", ").next().unwrap().trim_end_matches(']').to_owned();
        s.run(&format!("TB.SETTLE k {hold} 0"));
        assert_eq!(s.int("EXISTS k"), 0);
        // Asking about it makes no key.
        for line in [
            "TB.PEEK k 10 1 1000",
            "TB.REFUND k 5",
            "TB.RESET k",
            "TB.INFO k",
            "TB.BAN k 0",
            "LB.PEEK k 1 1 1",
            "SEM.PEEK k 1",
        ] {
            s.run(line);
            assert_eq!(s.int("EXISTS k"), 0, "{line}");
        }
    });
}

#[test]
fn a_pinned_limiter_has_no_ttl_and_stays_when_it_is_full() {
    on_stage_alone(|s| {
        fill(s);
        for (line, key) in [
            ("TB.TAKE tb", "tb"),
            ("LB.TAKE lb", "lb"),
            ("SEM.ACQUIRE sem", "sem"),
            ("HOT.TAKE hot s", "hot"),
        ] {
            s.run(line);
            assert_eq!(s.int(&format!("TTL {key}")), -1, "{line}");
        }
        for (line, key) in [("TB.RESET tb", "tb"), ("LB.RESET lb", "lb")] {
            s.run(line);
            assert_eq!(s.int(&format!("EXISTS {key}")), 1, "{line}");
        }
        // SET takes the TTL away that it had unpinned, or that a user gave it.
        s.run("TB.TAKE later 10 1 1000");
        assert!(left(s, "later") > 0);
        s.run("TB.SET later 10 1 1000");
        assert_eq!(s.int("TTL later"), -1);
        s.run("EXPIRE later 100");
        s.run("TB.SET later 11 1 1000");
        assert_eq!(s.int("TTL later"), -1);
    });
}

#[test]
fn persist_does_not_make_an_unpinned_limiter_immortal() {
    on_stage_alone(|s| {
        for take in [
            "TB.TAKE k 10 1 600000 COST 5",
            "TB.HOLD k 10 1 600000 COST 5 TTL 60000",
            "TB.BAN k 60000",
            "LB.TAKE k 10 1 600000 COST 5",
            "SEM.ACQUIRE k 1 LEASE 60000",
        ] {
            s.run(take);
            let before = left(s, "k");
            assert_eq!(s.int("PERSIST k"), 1, "{take}");
            crate::common::eventually("its TTL to be back", || s.int("PTTL k") > 0);
            let after = left(s, "k");
            assert!((before - 60_000..=before + 60_000).contains(&after), "{take}: {before}, {after}");
            // It is as if nothing had been done, over a restart and in a transaction, too.
            s.at_once(&["MULTI", "PERSIST k", "RENAME k l", "RENAME l k", "EXEC"]);
            crate::common::eventually("its TTL to be back", || s.int("PTTL k") > 0);
            s.run("DEL k");
        }
        // What is pinned, a queue, and a key that is not ours stay without.
        fill(s);
        s.run("SET plain x");
        for key in FAMILIES.iter().map(|(_, key, _)| *key).chain(["plain"]) {
            s.run(&format!("EXPIRE {key} 1000"));
            assert_eq!(s.int(&format!("PERSIST {key}")), 1);
            s.run("PING");
            s.run("TB.PEEK none 1 1 1");
            assert_eq!(s.int(&format!("TTL {key}")), -1, "{key}");
        }
    });
}

#[test]
fn while_the_test_clock_stands_limiters_live_a_minute_at_least() {
    on_stage_alone(|s| {
        for instant in [1_900_000_000_000, 1_000, wall() - 1000] {
            s.run(&format!("SLUICE.CLOCK SET {instant}"));
            for take in ["TB.TAKE k 1000 1000 1", "LB.TAKE k 1000 1000 1", "SEM.ACQUIRE k 1 LEASE 1"] {
                s.run(take);
                assert!(left(s, "k") >= 59_000, "{take}");
                s.run("DEL k");
            }
        }
    });
}

// ---------------------------------------------------------------- WATCH and events

#[test]
fn only_a_call_that_changed_something_dirties_watch() {
    on_stage_alone(|s| {
        s.run("SLUICE.CLOCK SET 1900000000000");
        let watched = |s: &mut Stage, line: &str| {
            let mut client = s.client();
            let key = if line.starts_with("RQ") { "q" } else { "tb" };
            for word in [format!("WATCH {key}"), "MULTI".into(), "PING".into()] {
                client.send(&word);
                client.told();
            }
            let reply = s.bytes(&crate::common::stage::words(line));
            client.send("EXEC");
            (client.told() != Reply::Nil, reply)
        };
        s.run("TB.SET tb 2 1 1000");
        s.run("RQ.SET q MAXLEN 1 LEASE 1000");
        for line in [
            "TB.PEEK tb",
            "TB.INFO tb",
            "TB.TAKE tb COST 3",
            "TB.REFUND tb 1",
            "TB.SET tb 2 1 1000",
            "TB.TAKE tb 0 0 0",
            "RQ.LEN q",
            "RQ.INFO q",
            "RQ.CLAIM q",
            "RQ.ACK q 1@1",
            "RQ.PURGE q ALL",
            "RQ.DEL q a",
        ] {
            assert!(watched(s, line).0, "{line} changed nothing");
        }
        for line in [
            "TB.TAKE tb",
            "TB.DRAIN tb",
            "TB.RESET tb",
            "TB.SET tb 3 1 1000",
            "RQ.PUSH q m",
            "RQ.CLAIM q",
            "RQ.SET q MAXLEN 5",
        ] {
            let (held, reply) = watched(s, line);
            assert!(!held, "{line} changed something: {reply}");
        }
        s.run("TB.DRAIN tb");
        s.run("RQ.SET q MAXLEN 1");
        for line in ["TB.TAKE tb", "RQ.PUSH q full"] {
            let (held, reply) = watched(s, line);
            assert!(held, "{line} was refused: {reply}");
        }
        // A lease that ends does.
        let mut client = s.client();
        for word in ["WATCH q", "MULTI", "PING"] {
            client.send(word);
            client.told();
        }
        s.run("SLUICE.CLOCK ADVANCE 1000");
        client.send("EXEC");
        assert_eq!(client.told(), Reply::Nil);
    });
}

#[test]
fn changes_are_told_as_keyspace_events_but_takes_are_not() {
    on_stage_alone(|s| {
        s.run("SLUICE.CLOCK SET 1900000000000");
        let mut events = Events::listen(s, "*");
        let mut told = |s: &mut Stage, line: &str| {
            let reply = s.bytes(&crate::common::stage::words(line));
            assert!(!matches!(&reply, Reply::Error(e) if !e.starts_with("QFULL")), "{line}: {reply}");
            let mut heard = Vec::new();
            // The event of a command of ours comes before its end: a mark behind it is heard after.
            s.run("SET mark x");
            loop {
                let (_, name, key) = events.next();
                if key == "mark" {
                    break;
                }
                heard.push(format!("{name} {key}"));
            }
            // New keys are told by some engines and not by others.
            heard.retain(|event| !event.starts_with("new ") && !event.starts_with("expire"));
            heard
        };
        let nothing: [&str; 0] = [];
        for line in [
            "TB.TAKE tb 10 1 1000",
            "TB.TAKE tb 10 1 1000 COST 20",
            "TB.PEEK tb",
            "LB.TAKE lb 10 1 1000",
            "CL.THROTTLE cl 5 1 1",
        ] {
            assert_eq!(told(s, line), nothing, "{line}");
        }
        // A key that a command leaves the same as absent goes, and that is told as of any other
        // key.
        assert_eq!(told(s, "TB.REFUND tb 1"), ["del tb"]);
        let held = s.shown("SEM.ACQUIRE once 1");
        let held = held.rsplit(", ").next().unwrap().trim_end_matches(']').to_owned();
        told(s, "PING");
        assert_eq!(told(s, &format!("SEM.RELEASE once {held}")), ["sem.release once", "del once"]);
        for (line, heard) in [
            ("TB.SET tb 10 1 1000", "tb.set tb"),
            ("LB.SET lb 10 1 1000", "lb.set lb"),
            ("SEM.SET sem 1", "sem.set sem"),
            ("GATE.SET gate STAGE a TB 1 1 1", "gate.set gate"),
            ("HOT.SET hot 10 1 1000", "hot.set hot"),
            ("RQ.SET q MAXLEN 2 MAXDEAD 1", "rq.set q"),
            ("SEM.ACQUIRE sem LEASE 1000", "sem.acquire sem"),
            ("RQ.PUSH q a TTL 5000", "rq.push q"),
            ("RQ.CLAIM q LEASE 1000", "rq.claim q"),
        ] {
            assert_eq!(told(s, line), [heard], "{line}");
        }
        // At one instant the order of the keys is any.
        let mut heard = told(s, "SLUICE.CLOCK ADVANCE 1000");
        heard.sort();
        assert_eq!(heard, ["rq.timeout q", "sem.timeout sem"]);
        let held = receipt(&s.run("RQ.CLAIM q"));
        assert_eq!(events_after_claim(told(s, &format!("RQ.NACK q RECEIPTS 1 {held}"))), ["rq.nack q"]);
        let held = receipt(&s.run("RQ.CLAIM q"));
        assert_eq!(
            events_after_claim(told(s, &format!("RQ.NACK q DEAD RECEIPTS 1 {held}"))),
            ["rq.nack q", "rq.dead q"]
        );
        s.run("RQ.PUSH q b");
        let held = receipt(&s.run("RQ.CLAIM q"));
        let heard = told(s, &format!("RQ.ACK q {held}"));
        assert_eq!(heard.last().map(String::as_str), Some("rq.ack q"));
        assert_eq!(told(s, "RQ.PUSH q c TTL 1000"), ["rq.push q"]);
        assert_eq!(told(s, "SLUICE.CLOCK ADVANCE 1000"), ["rq.expire q"]);
        // Refused: nothing. Dropped for a newer one: told.
        assert_eq!(told(s, "RQ.MPUSH q 2 d e"), ["rq.push q"]);
        assert_eq!(told(s, "RQ.PUSH q f"), nothing);
        assert_eq!(told(s, "RQ.SET q ONFULL DROPOLD"), ["rq.set q"]);
        assert_eq!(told(s, "RQ.PUSH q f"), ["rq.drop q", "rq.push q"]);
        let held = s.shown("SEM.ACQUIRE sem");
        let held = held.rsplit(", ").next().unwrap().trim_end_matches(']').to_owned();
        let heard = told(s, &format!("SEM.RELEASE sem {held}"));
        assert_eq!(heard.last().map(String::as_str), Some("sem.release sem"));
    });
}

/// The claim that came before in the same breath is told, too.
fn events_after_claim(heard: Vec<String>) -> Vec<String> {
    heard.into_iter().filter(|event| event != "rq.claim q").collect()
}

#[test]
fn events_are_of_the_module_class() {
    on_stage_alone(|s| {
        let mut events = Events::listen(s, "*");
        // Class d alone is enough, and without it there are none.
        s.run("CONFIG SET notify-keyspace-events Ed");
        s.run("RQ.PUSH q m");
        assert_eq!(events.next().1, "rq.push");
        s.run("CONFIG SET notify-keyspace-events Eg$lshzxe");
        s.run("RQ.PUSH q m");
        assert!(events.is_quiet());
    });
}

// ---------------------------------------------------------------- when memory is short

#[test]
fn out_of_memory_what_gives_back_works_and_what_adds_is_refused() {
    on_stage_alone_with(
        |builder| builder.option("maxmemory-policy", "noeviction"),
        |s| {
            s.run("RQ.MPUSH q 6 a b c d e f");
            s.run("RQ.PUSH from a ID x");
            s.run("RQ.PUSH from b ID y");
            let held: Vec<String> = (0..4).map(|_| receipt(&s.run("RQ.CLAIM q"))).collect();
            s.run("TB.TAKE tb 10 1 600000 COST 9");
            s.run("LB.TAKE lb 10 1 600000 COST 9");
            let number = |reply: String| reply.rsplit(", ").next().unwrap().trim_end_matches(']').to_owned();
            let hold = number(s.shown("TB.HOLD tb COST 1 TTL 600000"));
            let permit = number(s.shown("SEM.ACQUIRE sem 1 LEASE 600000"));
            s.run("GATE.SET gate STAGE a SEM 1 LEASE 600000");
            let pass = s.shown("GATE.PASS gate");
            let pass = pass.split(", ").nth(4).unwrap().to_owned();
            s.run("HOT.SET hot 10 1 1000");
            s.run("HOT.EXCEPT hot a 1 1 1");
            s.run("TB.BAN banned 600000");
            s.run("CONFIG SET maxmemory 1");
            for line in [
                "SET x y",
                "RQ.PUSH q g",
                "RQ.MPUSH q 1 g",
                "RQ.SET none MAXLEN 5",
                "RQ.PAUSE none",
                "RQ.PAUSE q GROUP none",
                "RQ.MOVE from none READY",
                "HOT.SET none 1 1 1",
                "HOT.EXCEPT hot b 1 1 1",
                "TB.BAN tb 1000",
                "TB.TAKE tb",
                "TB.HOLD tb COST 1 TTL 5",
                "TB.SET tb 1 1 1",
                "LB.TAKE lb",
                "SEM.ACQUIRE sem",
                "GATE.PASS gate",
                "CL.THROTTLE cl 1 1 1",
            ] {
                assert!(s.error(line).starts_with("OOM "), "{line}");
            }
            // What only shrinks, or gives way.
            s.run("HOT.SET hot 5 1 1000 MAXSUBJECTS 1");
            assert_eq!(s.int("HOT.EXCEPT hot a DEL"), 1);
            s.run("TB.BAN banned 0");
            s.run("RQ.PAUSE q");
            s.run("RQ.RESUME q");
            s.run("RQ.SET q MAXLEN 8");
            assert_eq!(s.int("RQ.MOVE from q READY"), 2);
            assert_eq!(s.int("RQ.DEL q x y"), 2);
            assert_eq!(numbers(&s.run(&format!("RQ.ACK q {}", held[0]))), [1]);
            assert_eq!(numbers(&s.run(&format!("RQ.NACK q RECEIPTS 1 {}", held[1]))), [1]);
            assert_eq!(numbers(&s.run(&format!("RQ.EXTEND q 60000 {}", held[2]))), [1]);
            assert!(s.shown("RQ.CLAIM q").contains("\"b\""));
            assert!(s.shown(&format!("RQ.NEXT q RECEIPTS 1 {}", held[3])).contains("\"e\""));
            assert!(s.shown("RQ.MCLAIM 2 none q").contains("\"f\""));
            assert_eq!(s.int("RQ.REQUEUE q ALL"), 4);
            assert_eq!(s.int("RQ.DEL q 3"), 1);
            assert_eq!(s.int("RQ.PURGE q READY"), 3);
            assert_eq!(s.int("RQ.REDRIVE q"), 0);
            s.run("RQ.RESUME q");
            assert_eq!(numbers(&s.run("TB.REFUND tb 3"))[0], 3);
            assert_eq!(numbers(&s.run("LB.REFUND lb 3"))[0], 3);
            assert_eq!(numbers(&s.run(&format!("TB.SETTLE tb {hold} 0")))[0], 1);
            assert_eq!(numbers(&s.run(&format!("SEM.RENEW sem 5000 {permit}"))), [5000]);
            assert_eq!(numbers(&s.run(&format!("SEM.RELEASE sem {permit}"))), [1]);
            assert_eq!(numbers(&s.run(&format!("GATE.LEAVE gate {pass}"))), [1]);
            s.run("TB.RESET tb");
            s.run("LB.RESET lb");
            s.run("TB.PEEK tb 1 1 1");
        },
    );
}
