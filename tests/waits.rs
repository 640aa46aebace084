//! Every command that waits, and every way in which a wait can end, beside `BLPOP`: who waits always gets an answer, in time, and the same as a command of the
//! server's own would; and nothing is lost that was meant for somebody who got none.

use crate::common::stage::{Client, Stage, on_stage, on_stage_with, words};
use crate::common::{Reply, Server, eventually, free_port, on_every_engine, within};
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
                        // BLPOP is served at once. Ours is told that it was unblocked, and has got nothing.
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
            "SEM.ACQUIRE sem 1 LEASE 400",
            "GATE.SET gate STAGE s SEM 1 LEASE 400",
            "GATE.PASS gate",
            "TB.TAKE tb 1 1 400",
            "RQ.PUSH q v DELAY 400",
        ] {
            s.run(line);
        }
        let waiting = [
            "SEM.ACQUIRE sem 1 BLOCK 60000",
            "GATE.PASS gate BLOCK 60000",
            "TB.TAKE tb 1 1 400 BLOCK 60000",
            "RQ.CLAIM q BLOCK 60000",
        ];
        let mut waiting: Vec<Client> = waiting.iter().map(|line| s.waiter(line)).collect();
        let short = ["SEM.ACQUIRE sem 1 BLOCK 600", "GATE.PASS gate BLOCK 600", "RQ.CLAIM empty BLOCK 600"];
        let begin = Instant::now();
        let short: Vec<Client> = short.iter().map(|line| s.waiter(line)).collect();
        s.run("CONFIG SET min-replicas-to-write 1");
        assert!(s.error("SEM.ACQUIRE sem 1").starts_with("NOREPLICAS "));
        // All is due by then; a newcomer would be refused, and so is who waits.
        std::thread::sleep(Duration::from_millis(500));
        for client in &mut waiting {
            assert!(client.waits());
        }
        for mut client in short {
            let told = client.told().to_string();
            assert!(told.starts_with("[0, ") || told == "nil", "{told}");
        }
        let took = begin.elapsed();
        assert!(took >= Duration::from_millis(590) && took < Duration::from_millis(1_500), "{took:?}");
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
        other.wire.call(&["CLIENT", "PAUSE", "3000", "WRITE"]).expect("a pause");
        for mut client in clients {
            let told = client.told().to_string();
            assert!(told.starts_with("[0, ") || told == "nil", "{told}");
        }
        assert!(begin.elapsed() < Duration::from_millis(1_500), "{:?}", begin.elapsed());
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
            // A place in a leaky bucket was given at admission; everything else is there for others.
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
fn a_key_that_leaves_by_migrate_grants_nothing_to_who_waits_there() {
    on_every_engine(|engine| {
        let node = |engine| {
            let server = Server::builder(engine)
                .option("hz", "50")
                .option("cluster-enabled", "yes")
                .option("cluster-node-timeout", "2000")
                .option("cluster-port", &free_port().to_string())
                .start();
            Stage::on(server)
        };
        let (mut a, mut b) = (node(engine), node(engine));
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
        let slot = a.int("CLUSTER KEYSLOT {w}");
        let (a, b) = if slot < 8192 { (&mut a, &mut b) } else { (&mut b, &mut a) };
        a.run("TB.TAKE {w}tb 1 1 600000");
        a.run("LB.TAKE {w}lb 5 1 600000");
        a.run("SEM.ACQUIRE {w}sem 1 LEASE 600000");
        let lines = [
            "TB.TAKE {w}tb 1 1 600000 BLOCK 900000",
            "LB.TAKE {w}lb 5 1 600000 BLOCK",
            "SEM.ACQUIRE {w}sem 1 BLOCK 600000",
        ];
        let mut clients: Vec<Client> = lines.iter().map(|line| a.waiter(line)).collect();
        let (from, to) = (a.text("CLUSTER MYID"), b.text("CLUSTER MYID"));
        b.run(&format!("CLUSTER SETSLOT {slot} IMPORTING {from}"));
        a.run(&format!("CLUSTER SETSLOT {slot} MIGRATING {to}"));
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
