//! Every command that waits, and every way in which a wait can end, beside `BLPOP`: who waits
//! always gets an answer, in time, and the same as a command of the server's own would; and nothing
//! is lost that was meant for somebody who got none.

use crate::common::stage::{Client, Stage, on_stage, on_stage_with, words};
use crate::common::{Engine, Reply, Server, eventually, free_port, on_every_engine, say, within};
use std::time::{Duration, Instant};

/// One command that waits at the key `w`.
struct Wait {
    before: &'static [&'static str],
    command: &'static str,
    /// What makes it be served.
    serve: &'static str,
    /// What says that nobody has got anything: a command and its reply after `serve`.
    free: (&'static str, &'static str),
}

const QUEUE: (&str, &str) = ("RQ.LEN w READY", "1");

/// All of them; `BLOCK` is so long that only what a test does ends the wait.
const WAITS: [Wait; 8] = [
    Wait { before: &[], command: "RQ.CLAIM w BLOCK 600000", serve: "RQ.PUSH w v", free: QUEUE },
    Wait { before: &[], command: "RQ.CLAIM w NOACK BLOCK 0", serve: "RQ.PUSH w v", free: QUEUE },
    Wait { before: &[], command: "RQ.MCLAIM 1 w BLOCK 0", serve: "RQ.PUSH w v", free: QUEUE },
    Wait { before: &[], command: "RQ.NEXT w RECEIPTS 1 a@1 BLOCK 0", serve: "RQ.PUSH w v", free: QUEUE },
    Wait {
        before: &["TB.SET w 1 1 500000", "TB.TAKE w"],
        command: "TB.TAKE w BLOCK 600000",
        serve: "TB.RESET w",
        free: ("TB.PEEK w", "[1, 1, 0, 0, 500000, 500000]"),
    },
    Wait {
        before: &["LB.SET w 5 1 500000", "LB.TAKE w"],
        command: "LB.TAKE w BLOCK",
        serve: "LB.RESET w",
        free: ("LB.PEEK w", "[1, 5, 4, 0, 0, 500000]"),
    },
    Wait {
        before: &["SEM.SET w 1", "SEM.ACQUIRE w LEASE 600000"],
        command: "SEM.ACQUIRE w BLOCK 600000",
        serve: "SEM.SET w 2",
        free: ("SEM.PEEK w", "[1, 2, 0, 0, nil]"),
    },
    Wait {
        before: &["GATE.SET w STAGE s SEM 1 LEASE 600000", "GATE.PASS w"],
        command: "GATE.PASS w BLOCK 600000",
        serve: "GATE.SET w STAGE s SEM 2 LEASE 600000",
        free: ("GATE.PEEK w", "[1, 0, 0, [], nil, [[\"s\", 2, 0, 0, 0, "),
    },
];

impl Wait {
    /// A client that waits, at a fresh key.
    #[track_caller]
    fn begin(&self, s: &mut Stage) -> Client {
        s.run("DEL w");
        self.before.iter().for_each(|line| drop(s.run(line)));
        s.waiter(self.command)
    }

    /// Whether this is what it is told when it is served.
    fn is_grant(&self, told: &Reply) -> bool {
        let told = told.to_string();
        if self.free == QUEUE { told.contains("\"v\"") } else { told.starts_with("[1, ") }
    }

    #[track_caller]
    fn is_free(&self, s: &mut Stage) {
        let (look, free) = self.free;
        eventually(&format!("{}: nothing is taken", self.command), || s.shown(look).starts_with(free));
    }
}

#[test]
fn served_and_unblocked_in_one_turn_is_one_answer_and_nothing_lost() {
    on_stage(|s| {
        for wait in &WAITS {
            for how in ["TIMEOUT", "ERROR", "KILL"] {
                let mut client = wait.begin(s);
                let end = match how {
                    "KILL" => format!("CLIENT KILL ID {}", client.id),
                    how => format!("CLIENT UNBLOCK {} {how}", client.id),
                };
                s.at_once(&[wait.serve, &end]);
                match how {
                    "KILL" => assert!(client.is_closed()),
                    "ERROR" => {
                        let told = client.told();
                        // BLPOP is served at once. Ours is told that it was unblocked, and has got
                        // nothing.
                        assert!(told.to_string().contains("UNBLOCKED "), "{}: {told}", wait.command);
                    }
                    _ => {
                        let told = client.told();
                        assert!(wait.is_grant(&told), "{}: {told}", wait.command);
                    }
                }
                if how != "TIMEOUT" {
                    wait.is_free(s);
                } else {
                    // One answer, and the next command gets its own.
                    client.send("PING");
                    assert_eq!(client.told().to_string(), "\"PONG\"");
                }
                assert_eq!(s.waiting(), 0);
            }
        }
    });
}

#[test]
fn a_time_that_is_over_in_the_turn_in_which_something_comes_ends_in_an_answer() {
    const ROUNDS: usize = 60;
    on_stage(|s| {
        let mut helper = s.client();
        for command in [
            "RQ.CLAIM w LEASE 600000 BLOCK 8",
            "RQ.MCLAIM 1 w LEASE 600000 BLOCK 8",
            "RQ.NEXT w RECEIPTS 1 a@1 BLOCK 8",
        ] {
            s.run("DEL w");
            let mut served = 0;
            for round in 0..ROUNDS {
                let mut client = s.client();
                client.send(command);
                std::thread::sleep(Duration::from_micros(6_500 + 50 * round as u64));
                helper.send("RQ.PUSH w v");
                helper.told();
                let told = client.told().to_string();
                served += i64::from(told.contains("\"v\""));
            }
            assert_eq!(s.int("RQ.LEN w INFLIGHT"), served, "{command}");
            assert_eq!(s.int("RQ.LEN w"), ROUNDS as i64, "{command}: nothing is lost");
        }
        // A stall over the end of the wait, and the push in it.
        for command in ["RQ.CLAIM w BLOCK 30", "RQ.CLAIM w NOACK BLOCK 30"] {
            s.run("DEL w");
            let mut client = s.asker(command);
            s.until_waiting(1);
            s.at_once(&["DEBUG SLEEP 0.1", "RQ.PUSH w v"]);
            let told = client.told().to_string();
            let left = s.int("RQ.LEN w READY");
            assert_eq!(left, i64::from(!told.contains("\"v\"")), "{command}: {told}");
        }
        // A delay that is over at the very instant at which the wait is.
        for _ in 0..ROUNDS {
            s.run("DEL w");
            s.run("RQ.PUSH w v DELAY 12");
            let mut client = s.client();
            client.send("RQ.CLAIM w BLOCK 12");
            client.told();
        }
    });
}

/// The first word of an error.
fn code(told: &Reply) -> String {
    let Reply::Error(text) = told else { panic!("wanted an error, got {told}") };
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// Has one client wait with each command, at keys of their own, besides one with `BLPOP`.
fn all_wait(s: &mut Stage, prepare: &[&str]) -> (Client, Vec<(&'static str, Client)>) {
    let mut clients = Vec::new();
    for (i, wait) in WAITS.iter().enumerate() {
        let at = |line: &str| line.replace(" w", &format!(" w{i}"));
        wait.before.iter().for_each(|line| drop(s.run(&at(line))));
        let mut client = s.client();
        prepare.iter().for_each(|line| drop(client.wire.call(&words(line)).expect("an answer")));
        s.has_wait(&mut client, &at(wait.command));
        clients.push((wait.command, client));
    }
    let mut other = s.client();
    prepare.iter().for_each(|line| drop(other.wire.call(&words(line)).expect("an answer")));
    other.send("BLPOP list 0");
    assert!(other.waits());
    (other, clients)
}

#[test]
fn a_master_that_becomes_a_replica_sends_all_away_as_it_does_its_own() {
    on_every_engine(|engine| {
        let s = &mut Stage::on(Server::builder(engine).option("hz", "100").start());
        let redirects = engine.is_valkey();
        for prepare in [&[][..], &["CLIENT CAPA redirect"][..]] {
            if !prepare.is_empty() && !redirects {
                continue;
            }
            let (mut other, clients) = all_wait(s, prepare);
            s.run(&format!("REPLICAOF 127.0.0.1 {}", free_port()));
            let expected = code(&other.told());
            for (command, mut client) in clients {
                assert_eq!(code(&client.told()), expected, "{command}");
            }
            s.run("REPLICAOF NO ONE");
            eventually("nobody waits", || s.waiting() == 0);
            for i in [4, 5, 6, 7] {
                let info =
                    s.shown(&format!("{} w{i}", ["TB.INFO", "LB.INFO", "SEM.INFO", "GATE.INFO"][i - 4]));
                assert!(!info.contains("\"waiting\", 1"), "{info}");
            }
            s.run("FLUSHALL");
        }
    });
}

#[test]
fn a_cluster_that_goes_down_sends_all_away_as_it_does_its_own() {
    on_every_engine(|engine| {
        let server = Server::builder(engine)
            .option("hz", "50")
            .option("cluster-enabled", "yes")
            .option("cluster-port", &free_port().to_string())
            .start();
        let mut s = Stage::on(server);
        s.run("CLUSTER ADDSLOTSRANGE 0 16383");
        let up = |s: &mut Stage| s.text("CLUSTER INFO").contains("cluster_state:ok");
        within(Duration::from_secs(20), "the cluster to be whole", || up(&mut s).then_some(()));
        let (mut other, clients) = all_wait(&mut s, &[]);
        s.run("CLUSTER DELSLOTS 7");
        let expected = code(&other.told());
        assert_eq!(expected, "CLUSTERDOWN");
        for (command, mut client) in clients {
            assert_eq!(code(&client.told()), expected, "{command}");
        }
        assert_eq!((s.waiting(), s.field("panics_caught")), (0, 0));
        // A slot of one's own that is taken away: nobody is served there when a lease ends.
        s.run("CLUSTER ADDSLOTS 7");
        s.run("CONFIG SET cluster-require-full-coverage no");
        within(Duration::from_secs(20), "the cluster to be whole", || up(&mut s).then_some(()));
        s.run("SEM.ACQUIRE own 1 LEASE 300");
        let mut waiter = s.waiter("SEM.ACQUIRE own 1 BLOCK 60000");
        let slot = s.int("CLUSTER KEYSLOT own");
        s.run(&format!("CLUSTER DELSLOTS {slot}"));
        assert_eq!(code(&waiter.told()), "CLUSTERDOWN");
    });
}

#[test]
fn while_writes_are_refused_nobody_is_served_and_a_time_that_is_over_is_told() {
    on_stage(|s| {
        for line in [
            "SEM.ACQUIRE sem 1 LEASE 900",
            "GATE.SET gate STAGE s SEM 1 LEASE 900",
            "GATE.PASS gate",
            "TB.TAKE tb 1 1 900",
            "RQ.PUSH q v DELAY 900",
            "SEM.ACQUIRE gone 1 LEASE 60000",
        ] {
            s.run(line);
        }
        let waiting = [
            "SEM.ACQUIRE sem 1 BLOCK 60000",
            "GATE.PASS gate BLOCK 60000",
            "TB.TAKE tb 1 1 900 BLOCK 60000",
            "RQ.CLAIM q BLOCK 60000",
        ];
        let mut waiting: Vec<Client> = waiting.iter().map(|line| s.waiter(line)).collect();
        let short = [
            "SEM.ACQUIRE sem 1 BLOCK 1300",
            "GATE.PASS gate BLOCK 1300",
            "RQ.CLAIM empty BLOCK 1300",
            "SEM.ACQUIRE gone 1 BLOCK 1300",
        ];
        let begin = Instant::now();
        let short: Vec<Client> = short.iter().map(|line| s.waiter(line)).collect();
        s.at_once(&["PEXPIRE gone 100", "CONFIG SET min-replicas-to-write 1"]);
        assert!(s.error("SEM.ACQUIRE sem 1").starts_with("NOREPLICAS "));
        // All is due by then; a newcomer would be refused, and so is who waits.
        std::thread::sleep(Duration::from_millis(1_000));
        for client in &mut waiting {
            assert!(client.waits());
        }
        for mut client in short {
            let told = client.told().to_string();
            assert!(told.starts_with("[0, ") || told == "nil", "{told}");
        }
        let took = begin.elapsed();
        assert!(took >= Duration::from_millis(1_290) && took < Duration::from_millis(10_000), "{took:?}");
        s.run("CONFIG SET min-replicas-to-write 0");
        for mut client in waiting {
            let told = client.told().to_string();
            assert!(told.starts_with("[1, ") || told.contains("\"v\""), "{told}");
        }
    });
}

#[test]
fn a_time_that_is_over_while_writes_are_paused_is_told() {
    on_stage(|s| {
        s.run("SEM.ACQUIRE sem 1 LEASE 60000");
        s.run("GATE.SET gate STAGE s SEM 1 LEASE 60000");
        s.run("GATE.PASS gate");
        let lines = ["RQ.CLAIM q BLOCK 300", "SEM.ACQUIRE sem 1 BLOCK 300", "GATE.PASS gate BLOCK 300"];
        let begin = Instant::now();
        let clients: Vec<Client> = lines.iter().map(|line| s.waiter(line)).collect();
        let mut other = s.client();
        other.wire.call(&["CLIENT", "PAUSE", "60000", "WRITE"]).expect("a pause");
        for mut client in clients {
            let told = client.told().to_string();
            assert!(told.starts_with("[0, ") || told == "nil", "{told}");
        }
        assert!(begin.elapsed() < Duration::from_millis(10_000), "{:?}", begin.elapsed());
        other.wire.call(&["CLIENT", "UNPAUSE"]).expect("the end of a pause");
    });
}

#[test]
fn rights_taken_away_meanwhile_are_taken_away_from_who_waits() {
    on_stage(|s| {
        for wait in &WAITS {
            s.run("ACL SETUSER u reset on >p ~* +@all");
            s.run("DEL w");
            wait.before.iter().for_each(|line| drop(s.run(line)));
            let mut client = s.client();
            client.wire.call(&["AUTH", "u", "p"]).expect("a login");
            s.has_wait(&mut client, wait.command);
            let name = wait.command.split(' ').next().unwrap_or_default();
            s.run(&format!("ACL SETUSER u -{}", name.to_lowercase()));
            s.run(wait.serve);
            assert_eq!(code(&client.told()), "NOPERM", "{}", wait.command);
            // A place in a leaky bucket was given at admission; everything else is there for
            // others.
            if name != "LB.TAKE" {
                wait.is_free(s);
            }
        }
    });
}

#[test]
fn a_key_renamed_to_where_its_waiter_has_no_rights_gives_it_nothing() {
    on_stage(|s| {
        s.run("ACL SETUSER u reset on >p ~pub:* +@all");
        s.run("SEM.SET pub:{m} 1");
        s.run("SEM.ACQUIRE pub:{m} LEASE 200");
        let mut client = s.client();
        client.wire.call(&["AUTH", "u", "p"]).expect("a login");
        s.has_wait(&mut client, "SEM.ACQUIRE pub:{m} BLOCK 60000");
        s.run("RENAME pub:{m} secret:{m}");
        assert_eq!(code(&client.told()), "NOPERM");
        assert!(s.shown("SEM.PEEK secret:{m}").starts_with("[1, "));
    });
}

#[test]
fn a_receipt_is_drawn_when_it_is_granted() {
    on_stage_with(
        |b| b,
        |s| {
            let last = |reply: String| -> u64 {
                reply.rsplit(", ").next().unwrap().trim_end_matches(']').parse().unwrap()
            };
            let first = last(s.shown("SEM.ACQUIRE sem 1 LEASE 60000"));
            let mut client = s.waiter("SEM.ACQUIRE sem 1 BLOCK 60000");
            // Numbers that others are given meanwhile are smaller.
            s.run("RQ.PUSH q v");
            let claim = s.shown("RQ.CLAIM q");
            let between: u64 = claim.split('@').nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
            s.run(&format!("SEM.RELEASE sem {first}"));
            let told = last(client.told().to_string());
            assert!(first < between && between < told, "{first} {between} {told}");
        },
    );
}

#[test]
fn who_waits_on_what_is_flushed_is_decided_once() {
    on_stage_with(
        |b| b,
        |s| {
            s.run("SEM.ACQUIRE k 1 LEASE 60000");
            let mut waiting: Vec<Client> =
                (0..3).map(|_| s.waiter("SEM.ACQUIRE k 1 LEASE 60000 BLOCK 1000")).collect();
            s.run("FLUSHALL SYNC");
            assert!(waiting.remove(0).told().to_string().starts_with("[1,"));
            assert_eq!(s.waiting(), 2);
            for client in &mut waiting {
                assert!(client.told().to_string().starts_with("[0,"));
            }
            // One that stood in line twice would never be done with.
            assert!(s.shown("SEM.ACQUIRE k 1").starts_with("[0,"));
            assert_eq!(s.field("panics_caught"), 0);
        },
    );
}

/// Replies to hundreds are written turn by turn: nobody is passed over, and one who leaves before
/// gets nothing.
#[test]
fn hundreds_who_are_served_at_once_are_all_told_and_who_leaves_before_gives_back() {
    const MANY: i64 = 500;
    on_stage(|s| {
        s.run("SEM.SET w 1");
        s.run("SEM.ACQUIRE w LEASE 600000");
        let mut clients: Vec<Client> =
            (0..MANY).map(|_| s.asker("SEM.ACQUIRE w LEASE 600000 BLOCK 600000")).collect();
        s.until_waiting(MANY);
        let last = clients.pop().expect("many");
        let unblocked = clients.pop().expect("many");
        s.at_once(&[
            &format!("SEM.SET w {}", MANY + 1),
            &format!("CLIENT KILL ID {}", last.id),
            &format!("CLIENT UNBLOCK {} TIMEOUT", unblocked.id),
        ]);
        clients.push(unblocked);
        let mut receipts = std::collections::HashSet::new();
        for client in &mut clients {
            let told = client.told().to_string();
            assert!(told.starts_with(&format!("[1, {}, ", MANY + 1)), "{told}");
            assert!(receipts.insert(told.rsplit(' ').next().map(str::to_owned)), "{told}: twice");
        }
        eventually("the permit of the killed one goes back", || {
            s.shown("SEM.PEEK w").starts_with(&format!("[1, {}, 0, 0", MANY + 1))
        });
        assert_eq!((s.waiting(), s.field("panics_caught")), (0, 0));
    });
}

fn cluster_node(engine: &Engine) -> Stage {
    let server = Server::builder(engine)
        .option("hz", "50")
        .option("cluster-enabled", "yes")
        .option("cluster-node-timeout", "2000")
        .option("cluster-port", &free_port().to_string())
        .start();
    Stage::on(server)
}

/// Two nodes of a cluster with half of the slots each.
fn two_nodes(engine: &Engine) -> (Stage, Stage) {
    let (mut a, mut b) = (cluster_node(engine), cluster_node(engine));
    a.run("CLUSTER ADDSLOTSRANGE 0 8191");
    b.run("CLUSTER ADDSLOTSRANGE 8192 16383");
    a.run("CLUSTER SET-CONFIG-EPOCH 1");
    b.run("CLUSTER SET-CONFIG-EPOCH 2");
    let line = b.text("CLUSTER NODES");
    let bus = line.split(['@', ',', ' ']).nth(2).expect("a bus port").to_owned();
    a.run(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", b.server.port()));
    for s in [&mut a, &mut b] {
        within(Duration::from_secs(30), "the cluster to be whole", || {
            let info = s.text("CLUSTER INFO");
            (info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2")).then_some(())
        });
    }
    (a, b)
}

/// The slot of a key, the node that has it, and the other one.
fn owner_first<'s>(a: &'s mut Stage, b: &'s mut Stage, key: &str) -> (i64, &'s mut Stage, &'s mut Stage) {
    let slot = a.int(&format!("CLUSTER KEYSLOT {key}"));
    if slot < 8192 { (slot, a, b) } else { (slot, b, a) }
}

/// A slot begins to move, key by key.
fn begin_move(slot: i64, from: &mut Stage, to: &mut Stage) {
    let (source, target) = (from.text("CLUSTER MYID"), to.text("CLUSTER MYID"));
    to.run(&format!("CLUSTER SETSLOT {slot} IMPORTING {source}"));
    from.run(&format!("CLUSTER SETSLOT {slot} MIGRATING {target}"));
}

#[test]
fn who_waits_at_a_slot_that_is_coming_stays_and_is_served_there() {
    on_every_engine(|engine| {
        let (mut a, mut b) = two_nodes(engine);
        let (slot, a, b) = owner_first(&mut a, &mut b, "q");
        begin_move(slot, a, b);
        let asking = |b: &mut Stage| {
            let mut client = b.client();
            client.wire.call(&["ASKING"]).expect("an answer");
            client
        };
        let mut waiting: Vec<Client> = (0..2)
            .map(|_| {
                let mut client = asking(b);
                b.has_wait(&mut client, "RQ.CLAIM q BLOCK 0");
                client
            })
            .collect();
        std::thread::sleep(Duration::from_millis(1_300));
        assert!(waiting.iter_mut().all(Client::waits), "nobody is sent away");
        // By a push, and by the timer.
        let mut producer = asking(b);
        producer.send("RQ.PUSH q v");
        producer.told();
        assert_eq!(waiting.remove(0).payloads(), ["v"]);
        producer.wire.call(&["ASKING"]).expect("an answer");
        producer.send("RQ.PUSH q w DELAY 200");
        producer.told();
        assert_eq!(waiting.remove(0).payloads(), ["w"]);
        assert_eq!((b.waiting(), b.field("panics_caught")), (0, 0));
    });
}

#[test]
fn what_is_put_off_is_done_for_the_right_slot() {
    on_every_engine(|engine| {
        let mut s = cluster_node(engine);
        s.run("CLUSTER ADDSLOTSRANGE 0 16383");
        within(Duration::from_secs(20), "the cluster to be whole", || {
            s.text("CLUSTER INFO").contains("cluster_state:ok").then_some(())
        });
        // Each in one piece with commands for another slot, which must not lend theirs.
        let other = ["TB.TAKE other 9 1 100000", "TB.TAKE other 9 1 100000"];
        let with_others = |s: &mut Stage, lines: &[&str]| drop(s.at_once(&[lines, &other[..]].concat()));
        let where_they_are = |s: &mut Stage, keys: &[&str]| {
            for key in keys {
                let slot = s.int(&format!("CLUSTER KEYSLOT {key}"));
                let found = s.shown(&format!("CLUSTER GETKEYSINSLOT {slot} 10"));
                let there = s.int(&format!("EXISTS {key}")) == 1;
                assert_eq!(found.contains(&format!("\"{key}\"")), there, "{key}: {found}");
            }
            let names = s.shown("KEYS *");
            let listed = keys.iter().map(|key| names.matches(&format!("\"{key}\"")).count());
            assert!(listed.into_iter().all(|n| n <= 1), "a key twice: {names}");
        };
        // The object is gone: decided anew (a semaphore), told what was booked (a bucket).
        s.run("SEM.ACQUIRE sem 1 LEASE 600000");
        let mut waiter = s.waiter("SEM.ACQUIRE sem 1 LEASE 600000 BLOCK 600000");
        with_others(&mut s, &["DEL sem"]);
        assert!(waiter.told().to_string().starts_with("[1, 1, 0, "));
        assert!(s.shown("SEM.PEEK sem 1").starts_with("[0, 1, 0, "), "one permit, one holder");
        s.run("TB.TAKE tb 1 1 600000");
        let mut waiter = s.waiter("TB.TAKE tb 1 1 600000 BLOCK 700000");
        with_others(&mut s, &["DEL tb"]);
        assert!(waiter.told().to_string().starts_with("[1, "));
        // A client goes away: its booking goes back. An answer reaches nobody: so does what it
        // gave.
        s.run("TB.SET book 9 1 600000");
        s.run("TB.TAKE book COST 9");
        let waiter = s.waiter("TB.TAKE book COST 2 BLOCK 6000000");
        with_others(&mut s, &[&format!("CLIENT KILL ID {}", waiter.id)]);
        eventually("the booking to go back", || s.shown("TB.INFO book").contains("\"debt\", 0"));
        s.run("SEM.SET undo 1");
        s.run("SEM.ACQUIRE undo LEASE 600000");
        let waiter = s.waiter("SEM.ACQUIRE undo LEASE 600000 BLOCK 600000");
        with_others(&mut s, &["SEM.SET undo 2", &format!("CLIENT UNBLOCK {} ERROR", waiter.id)]);
        eventually("the permit to go back", || s.shown("SEM.PEEK undo").starts_with("[1, 2, "));
        // A push in a transaction serves after it; a message that reaches nobody comes back.
        let mut waiter = s.waiter("RQ.CLAIM q BLOCK 0");
        with_others(&mut s, &["MULTI", "RQ.PUSH q v", "EXEC"]);
        assert_eq!(waiter.payloads(), ["v"]);
        let waiter = s.waiter("RQ.CLAIM back BLOCK 0");
        with_others(&mut s, &["RQ.PUSH back v", &format!("CLIENT UNBLOCK {} ERROR", waiter.id)]);
        eventually("the message to come back", || s.ready("back") == "1");
        where_they_are(&mut s, &["sem", "tb", "book", "undo", "q", "back", "other"]);
        // The test clock goes by all keys, of all slots: not inside a transaction, which has one.
        let told = s.at_once(&["MULTI", "TB.TAKE other 9 1 100000", "SLUICE.CLOCK ADVANCE 10", "EXEC"]);
        assert!(told[3].contains("SLUICE.CLOCK"), "{}", told[3]);
        assert_eq!((s.waiting(), s.field("panics_caught")), (0, 0));
    });
}

#[test]
fn a_key_that_leaves_by_migrate_grants_nothing_to_who_waits_there() {
    on_every_engine(|engine| {
        let (mut a, mut b) = two_nodes(engine);
        let (slot, a, b) = owner_first(&mut a, &mut b, "{w}");
        a.run("TB.TAKE {w}tb 1 1 600000");
        a.run("LB.TAKE {w}lb 5 1 600000");
        a.run("SEM.ACQUIRE {w}sem 1 LEASE 600000");
        let lines = [
            "TB.TAKE {w}tb 1 1 600000 BLOCK 900000",
            "LB.TAKE {w}lb 5 1 600000 BLOCK",
            "SEM.ACQUIRE {w}sem 1 BLOCK 600000",
        ];
        let mut clients: Vec<Client> = lines.iter().map(|line| a.waiter(line)).collect();
        let to = b.text("CLUSTER MYID");
        begin_move(slot, a, b);
        for key in ["{w}tb", "{w}lb", "{w}sem"] {
            a.run(&format!("MIGRATE 127.0.0.1 {} {key} 0 5000", b.server.port()));
        }
        std::thread::sleep(Duration::from_millis(300));
        for client in &mut clients {
            assert!(client.waits(), "nobody was served");
        }
        b.run(&format!("CLUSTER SETSLOT {slot} NODE {to}"));
        a.run(&format!("CLUSTER SETSLOT {slot} NODE {to}"));
        for mut client in clients {
            let told = client.refusal();
            assert_eq!(told, format!("MOVED {slot} 127.0.0.1:{}", b.server.port()));
        }
        assert_eq!((a.waiting(), a.field("panics_caught")), (0, 0));
    });
}

#[test]
fn a_slot_that_came_and_goes_at_once_leaves_no_key_behind() {
    on_every_engine(|engine| {
        let (mut a, mut b) = two_nodes(engine);
        let (slot, a, b) = owner_first(&mut a, &mut b, "{w}");
        let (from, to) = (a.text("CLUSTER MYID"), b.text("CLUSTER MYID"));
        begin_move(slot, a, b);
        let asking = |b: &mut Stage| {
            let mut client = b.client();
            client.wire.call(&["ASKING"]).expect("an answer");
            client
        };
        let mut holder = asking(b);
        holder.send("SEM.ACQUIRE {w}sem 1 LEASE 600000");
        holder.told();
        let mut waiting: Vec<Client> = (0..2)
            .map(|_| {
                let mut client = asking(b);
                b.has_wait(&mut client, "SEM.ACQUIRE {w}sem 1 LEASE 600000 BLOCK 600000");
                client
            })
            .collect();
        // The node has to find out that it may decide on a key of a slot that is coming.
        holder.wire.call(&["ASKING"]).expect("an answer");
        holder.send("DEL {w}sem");
        holder.told();
        assert!(waiting.remove(0).told().to_string().starts_with("[1, 1, 0, "));
        // Right after, the slot is its own, and goes again.
        for s in [&mut *b, &mut *a] {
            s.run(&format!("CLUSTER SETSLOT {slot} NODE {to}"));
        }
        a.run(&format!("CLUSTER SETSLOT {slot} IMPORTING {to}"));
        b.run(&format!("CLUSTER SETSLOT {slot} MIGRATING {from}"));
        b.run(&format!("MIGRATE 127.0.0.1 {} {{w}}sem 0 5000", a.server.port()));
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(b.int(&format!("CLUSTER COUNTKEYSINSLOT {slot}")), 0, "the key is at both");
        assert!(waiting[0].waits(), "nobody was served");
        assert_eq!(b.field("panics_caught"), 0);
    });
}

#[test]
fn a_slot_that_goes_and_comes_again_is_decided_on_when_its_keys_have_come() {
    on_every_engine(|engine| {
        let (mut a, mut b) = two_nodes(engine);
        let (slot, a, b) = owner_first(&mut a, &mut b, "{w}");
        let (here, there) = (a.text("CLUSTER MYID"), b.text("CLUSTER MYID"));
        a.run("SEM.ACQUIRE {w}sem 1 LEASE 600000");
        let mut client = a.client();
        a.has_wait(&mut client, "SEM.ACQUIRE {w}sem 1 LEASE 600000 BLOCK 600000");
        begin_move(slot, a, b);
        assert_eq!(a.text(&format!("MIGRATE 127.0.0.1 {} {{w}}sem 0 5000", b.server.port())), "OK");
        b.run(&format!("CLUSTER SETSLOT {slot} NODE {there}"));
        // At once: the server sends nobody away who waits at a slot that is coming.
        a.at_once(&[
            &format!("CLUSTER SETSLOT {slot} NODE {there}"),
            &format!("CLUSTER SETSLOT {slot} IMPORTING {there}"),
        ]);
        b.run(&format!("CLUSTER SETSLOT {slot} MIGRATING {here}"));
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(a.int(&format!("CLUSTER COUNTKEYSINSLOT {slot}")), 0, "the key is at both");
        assert_eq!(b.text(&format!("MIGRATE 127.0.0.1 {} {{w}}sem 0 5000", a.server.port())), "OK");
        for s in [&mut *a, &mut *b] {
            s.run(&format!("CLUSTER SETSLOT {slot} NODE {here}"));
        }
        assert!(client.waits(), "somebody holds the permit");
        a.run("SEM.SET {w}sem 2");
        let told = client.told().to_string();
        assert!(told.starts_with("[1, 2, 0, "), "{told}");
        assert_eq!((a.waiting(), a.field("panics_caught")), (0, 0));
    });
}

#[test]
fn who_waits_at_a_key_that_is_gone_while_its_slot_goes_is_told_when_its_time_is_over() {
    const WAITS: [(&str, &str); 4] = [
        ("TB.SET {w}tb 1 1 1900,TB.TAKE {w}tb", "TB.TAKE {w}tb BLOCK 2000"),
        ("LB.SET {w}lb 5 1 1900,LB.TAKE {w}lb", "LB.TAKE {w}lb BLOCK"),
        ("SEM.SET {w}sm 1,SEM.ACQUIRE {w}sm LEASE 600000", "SEM.ACQUIRE {w}sm BLOCK 2000"),
        ("GATE.SET {w}gt STAGE s SEM 1 LEASE 600000,GATE.PASS {w}gt", "GATE.PASS {w}gt BLOCK 2000"),
    ];
    on_every_engine(|engine| {
        let (mut a, mut b) = two_nodes(engine);
        let (slot, a, b) = owner_first(&mut a, &mut b, "{w}");
        let mut waiting: Vec<(&str, Client)> = Vec::new();
        for (before, wait) in WAITS {
            before.split(',').for_each(|line| drop(a.run(line)));
            let mut client = a.client();
            a.has_wait(&mut client, wait);
            waiting.push((wait, client));
        }
        begin_move(slot, a, b);
        a.run("DEL {w}tb {w}lb {w}sm {w}gt");
        for (wait, client) in &mut waiting {
            // What is there now is for the other node to say: asked again, the server sends the
            // client there.
            let told = client.told().to_string();
            assert!(told.contains("TRYAGAIN"), "{wait}: {told}");
        }
        assert_eq!(a.int(&format!("CLUSTER COUNTKEYSINSLOT {slot}")), 0);
        assert_eq!((a.waiting(), a.field("panics_caught")), (0, 0));
    });
}

#[test]
fn active_defrag_forgets_nobody_who_waits_and_nothing_that_is_due() {
    const MANY: usize = 6_000;
    const KEPT: usize = 8;
    on_every_engine(|engine| {
        let mut s = Stage::on(Server::builder(engine).option("hz", "100").start());
        if matches!(s.bytes(&["CONFIG", "SET", "activedefrag", "yes"]), Reply::Error(_)) {
            return say(&format!("{engine} has no active defrag here"));
        }
        s.run("CONFIG SET activedefrag no");
        for (name, value) in
            [("ignore-bytes", 1), ("threshold-lower", 0), ("cycle-min", 80), ("cycle-max", 90)]
        {
            s.run(&format!("CONFIG SET active-defrag-{name} {value}"));
        }
        // Objects of one size side by side, then holes between those that stay.
        let lines =
            |line: &str, n: usize| (0..n).map(|i| line.replace('#', &i.to_string())).collect::<Vec<_>>();
        for line in
            ["SEM.SET s# 1", "TB.SET t# 1 1 600000", "LB.SET l# 9 1 600000", "GATE.SET g# STAGE s SEM 1"]
        {
            let lines = lines(line, MANY / 4);
            s.at_once(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        }
        let mut waiting = Vec::new();
        for i in 0..KEPT {
            let n = i * (MANY / 4 / KEPT) + 7;
            for line in ["SEM.ACQUIRE s# LEASE 600000", "TB.TAKE t#", "LB.TAKE l#", "GATE.PASS g#"] {
                s.run(&line.replace('#', &n.to_string()));
            }
            for (line, serve) in [
                ("SEM.ACQUIRE s# BLOCK 600000", "SEM.SET s# 2"),
                ("TB.TAKE t# BLOCK 700000", "TB.RESET t#"),
                ("LB.TAKE l# BLOCK", "LB.RESET l#"),
                ("GATE.PASS g# BLOCK 600000", "GATE.SET g# STAGE s SEM 2"),
            ] {
                let at = |line: &str| line.replace('#', &n.to_string());
                waiting.push((s.waiter(&at(line)), at(serve)));
            }
            s.run(&format!("RQ.PUSH q{n} v DELAY 1500"));
            waiting.push((s.waiter(&format!("RQ.CLAIM q{n} BLOCK 0")), "PING".into()));
        }
        let kept = |i: usize| i % (MANY / 4 / KEPT) == 7;
        for i in (0..MANY / 4).filter(|i| i % 8 != 0 && !kept(*i)) {
            s.run(&format!("DEL s{i} t{i} l{i} g{i}"));
        }
        s.run("CONFIG SET activedefrag yes");
        let moved = |s: &mut Stage| {
            let stats = s.text("INFO stats");
            let hits = stats.lines().find_map(|l| l.strip_prefix("active_defrag_hits:"));
            hits.and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        let end = Instant::now() + Duration::from_secs(4);
        while moved(&mut s) < 200 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        say(&format!("{engine}: active defrag moved {} blocks", moved(&mut s)));
        for (mut client, serve) in waiting {
            s.run(&serve);
            let told = client.told().to_string();
            assert!(told.starts_with("[1, ") || told.contains("\"v\""), "{serve}: {told}");
        }
        assert_eq!((s.waiting(), s.field("panics_caught")), (0, 0));
    });
}
