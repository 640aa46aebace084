//! Three masters of a cluster: commands over several slots, and a slot that moves from one node to
//! another while leases run and clients wait.

use crate::common::stage::{Events, Stage, numbers, payloads, receipt};
use crate::common::{Engine, RawConnection, Reply, Server, free_port, on_every_engine, within};
use std::time::{Duration, Instant};

const SLOTS: u16 = 16_384;

/// With so many threads: in the I/O threads some servers do more than reading and writing.
const THREADS: [&str; 2] = ["1", "3"];

/// Runs a test on every engine, with and without I/O threads.
#[track_caller]
fn on_every_engine_and_thread(test: impl Fn(&Engine, &str)) {
    on_every_engine(|engine| {
        for threads in THREADS {
            eprintln!("{engine} with io-threads {threads}");
            test(engine, threads);
        }
    });
}

fn node(engine: &Engine, threads: &str) -> Stage {
    node_with(engine, threads, &[])
}

fn node_with(engine: &Engine, threads: &str, options: &[(&str, &str)]) -> Stage {
    let server = Server::builder(engine)
        .option("io-threads", threads)
        .option("hz", "100")
        .option("cluster-enabled", "yes")
        .option("cluster-node-timeout", "2000")
        // By default 10,000 above the other one, which may be no port at all.
        .option("cluster-port", &free_port().to_string());
    let server = options.iter().fold(server, |builder, (name, value)| builder.option(name, value)).start();
    Stage::on(server)
}

/// A single node with every slot is a cluster.
fn whole(mut s: Stage) -> Stage {
    s.run("CLUSTER ADDSLOTSRANGE 0 16383");
    within(Duration::from_secs(10), "the cluster to be whole", || {
        s.text("CLUSTER INFO").contains("cluster_state:ok").then_some(())
    });
    s
}

/// Three nodes with a third of the slots each.
struct Cluster(Vec<Stage>);

impl Cluster {
    fn start(engine: &Engine, threads: &str) -> Self {
        let mut nodes: Vec<Stage> = (0..3).map(|_| node(engine, threads)).collect();
        for (i, node) in (0_u16..).zip(&mut nodes) {
            let (first, last) = (i * SLOTS / 3, (i + 1) * SLOTS / 3 - 1);
            node.run(&format!("CLUSTER ADDSLOTSRANGE {first} {}", if i == 2 { SLOTS - 1 } else { last }));
            node.run(&format!("CLUSTER SET-CONFIG-EPOCH {}", i + 1));
        }
        let addresses: Vec<(u16, String)> = nodes
            .iter_mut()
            .map(|node| {
                let line = node.text("CLUSTER NODES");
                let bus = line.split(['@', ',', ' ']).nth(2).expect("a bus port").to_owned();
                (node.server.port(), bus)
            })
            .collect();
        for (port, bus) in &addresses[1..] {
            nodes[0].run(&format!("CLUSTER MEET 127.0.0.1 {port} {bus}"));
        }
        for node in &mut nodes {
            within(Duration::from_secs(30), "the cluster to be whole", || {
                let info = node.text("CLUSTER INFO");
                (info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")).then_some(())
            });
        }
        Self(nodes)
    }

    /// The node that serves a key, and another one.
    fn owner_and_other(&mut self, key: &str) -> (usize, usize) {
        let slot = self.0[0].int(&format!("CLUSTER KEYSLOT {key}"));
        let owner = usize::try_from((slot * 3 + 2) / i64::from(SLOTS)).unwrap().min(2);
        let owner = if self.0[owner].bytes(&["EXISTS", key]) == Reply::Int(0) {
            owner
        } else {
            owner.saturating_sub(1)
        };
        assert_eq!(self.0[owner].bytes(&["EXISTS", key]), Reply::Int(0), "node {owner} serves {key}");
        (owner, (owner + 1) % 3)
    }

    /// Moves a slot with all its keys.
    fn move_slot(&mut self, slot: i64, from: usize, to: usize) {
        let (from_id, to_id) = (self.0[from].text("CLUSTER MYID"), self.0[to].text("CLUSTER MYID"));
        let port = self.0[to].server.port();
        self.0[to].run(&format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}"));
        self.0[from].run(&format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}"));
        let Reply::Array(keys) = self.0[from].run(&format!("CLUSTER GETKEYSINSLOT {slot} 1000")) else {
            panic!("keys are an array")
        };
        let keys: Vec<String> = keys
            .into_iter()
            .map(|key| match key {
                Reply::Bytes(bytes) => String::from_utf8(bytes).unwrap(),
                other => panic!("a key is a string, not {other}"),
            })
            .collect();
        let port = port.to_string();
        let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        words.extend(keys.iter().map(String::as_str));
        assert_eq!(self.0[from].bytes(&words).to_string(), "\"OK\"");
        for node in [to, from] {
            self.0[node].run(&format!("CLUSTER SETSLOT {slot} NODE {to_id}"));
        }
    }
}

#[test]
fn one_command_has_all_its_keys_in_one_slot() {
    on_every_engine_and_thread(|engine, threads| {
        let mut s = whole(node(engine, threads));
        for line in ["RQ.MCLAIM 2 a b", "RQ.MCLAIM 2 a b BLOCK 0", "RQ.MOVE a b READY", "GATE.MPASS 2 a b"] {
            assert!(s.error(line).starts_with("CROSSSLOT "), "{line}");
        }
        s.run("RQ.MPUSH {t}a 2 m n");
        assert_eq!(s.int("RQ.MOVE {t}a {t}b READY COUNT 1"), 1);
        assert!(s.shown("RQ.MCLAIM 3 {t}c {t}b {t}a").starts_with("[\"{t}b\", [["));
        s.run("TB.SET {t}tb 5 1 1000");
        s.run("LB.SET {t}lb 5 1 1000");
        assert!(s.shown("GATE.MPASS 2 {t}tb {t}lb").starts_with("[1, 0, 0, "));
        // All state of an object is in its key: any key will do.
        for i in 0..50 {
            s.run(&format!("RQ.PUSH any{i} m GROUP g"));
            s.run(&format!("TB.TAKE tb{i} 5 1 1000"));
        }
        assert_eq!(s.field("panics_caught"), 0);
    });
}

#[test]
fn several_keys_of_a_slot_that_moves_are_all_here_or_try_again() {
    on_every_engine_and_thread(|engine, threads| {
        let mut cluster = Cluster::start(engine, threads);
        let (from, to) = cluster.owner_and_other("{m}a");
        let slot = cluster.0[from].int("CLUSTER KEYSLOT {m}a");
        let (from_id, to_id) = (cluster.0[from].text("CLUSTER MYID"), cluster.0[to].text("CLUSTER MYID"));
        for key in ["{m}a", "{m}b"] {
            cluster.0[from].run(&format!("TB.SET {key} 10 1 1000"));
        }
        cluster.0[to].run(&format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}"));
        cluster.0[from].run(&format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}"));
        let port = cluster.0[to].server.port().to_string();
        // The first word of what a command is told, here or (asking) on the other node. A native
        // command with the same keys is told the same.
        let told = |s: &mut Stage, asking: bool, line: &str| {
            if asking {
                s.run("ASKING");
            }
            let reply = s.bytes(&line.split(' ').collect::<Vec<_>>());
            match reply {
                Reply::Error(text) => text.split(' ').next().unwrap().to_owned(),
                _ => "served".to_owned(),
            }
        };
        let check = |s: &mut Stage, asking: bool, keys: &str, wanted: &str| {
            let n = keys.split(' ').count();
            for line in [format!("GATE.MPASS {n} {keys}"), format!("EXISTS {keys}")] {
                assert_eq!(told(s, asking, &line), wanted, "{line} (asking: {asking})");
            }
        };
        check(&mut cluster.0[from], false, "{m}a {m}b", "served");
        check(&mut cluster.0[from], false, "{m}a {m}none", "TRYAGAIN");
        check(&mut cluster.0[from], false, "{m}a {m}b {m}none", "TRYAGAIN");
        check(&mut cluster.0[from], false, "{m}none1 {m}none2", "ASK");
        check(&mut cluster.0[to], true, "{m}a {m}b", "TRYAGAIN");
        check(&mut cluster.0[to], false, "{m}a {m}b", "MOVED");
        // The first has gone, the second has not: neither node has both.
        let migrated = cluster.0[from].bytes(&["MIGRATE", "127.0.0.1", &port, "{m}a", "0", "5000"]);
        assert_eq!(migrated.to_string(), "\"OK\"");
        check(&mut cluster.0[from], false, "{m}b {m}a", "TRYAGAIN");
        check(&mut cluster.0[to], true, "{m}a {m}b", "TRYAGAIN");
        check(&mut cluster.0[to], true, "{m}b {m}a", "TRYAGAIN");
        assert_eq!(told(&mut cluster.0[from], false, "GATE.MPASS 2 {m}a {m}b"), "ASK", "by the first key");
        assert_eq!(told(&mut cluster.0[to], true, "RQ.MCLAIM 2 {m}q {m}a BLOCK 0"), "TRYAGAIN");
        let migrated = cluster.0[from].bytes(&["MIGRATE", "127.0.0.1", &port, "{m}b", "0", "5000"]);
        assert_eq!(migrated.to_string(), "\"OK\"");
        check(&mut cluster.0[to], true, "{m}a {m}b", "served");
        check(&mut cluster.0[from], false, "{m}a {m}b", "ASK");
        // Not one of the refused has been charged.
        cluster.0[to].run("ASKING");
        let info = cluster.0[to].shown("TB.INFO {m}b");
        assert!(info.contains("\"remaining\", 8,"), "{info}");
        for node in &mut cluster.0 {
            assert_eq!(node.field("panics_caught"), 0);
        }
    });
}

#[test]
fn to_look_at_the_other_keys_is_no_hit_and_no_miss() {
    on_every_engine(|engine| {
        let stats = |mut s: Stage| {
            s.run("RQ.PUSH {t}a m");
            s.run("TB.SET {t}b 10 1 1000");
            s.run("CONFIG RESETSTAT");
            for line in ["RQ.MCLAIM 2 {t}none {t}a", "RQ.MCLAIM 2 {t}none {t}a", "RQ.CLAIM {t}a"] {
                s.run(line);
            }
            assert!(s.error("GATE.MPASS 2 {t}b {t}none").starts_with("ERR no limits"));
            let info = s.text("INFO stats");
            let counted =
                info.lines().filter(|l| l.starts_with("keyspace_")).map(str::trim).collect::<Vec<_>>();
            let errors = s.text("INFO errorstats").trim().to_owned();
            format!("{counted:?} {errors}")
        };
        let alone = stats(Stage::on(Server::builder(engine).start()));
        assert!(alone.contains("keyspace_misses"), "{alone}");
        assert_eq!(stats(whole(node(engine, "1"))), alone);
    });
}

/// Servers that work out a command's slot in an I/O thread do so before AUTH: a client without a
/// password must not end the node.
#[test]
fn hostile_clients_do_not_end_a_node_with_io_threads() {
    const TIME: Duration = Duration::from_secs(2);
    on_every_engine(|engine| {
        for (password, under_test) in [(false, "RQ.MCLAIM"), (true, "RQ.MCLAIM"), (true, "GATE.MPASS")] {
            // What is carried to an AOF keeps contexts of modules coming and going on the main
            // thread.
            let mut s = whole(node_with(engine, "3", &[("appendonly", "yes"), ("appendfsync", "no")]));
            if password {
                s.run("CONFIG SET requirepass secret");
            }
            let port = s.server.port();
            let end = Instant::now() + TIME;
            let hammers: Vec<_> = (0..12)
                .map(|i| {
                    std::thread::spawn(move || {
                        let mut wire = RawConnection::open(port).expect("a connection");
                        let writes = i % 2 == 0;
                        if password && writes {
                            wire.call(&["AUTH", "secret"]).expect("the server answers");
                        }
                        let (key, other) = (format!("{{m{i}}}a"), format!("{{m{i}}}b"));
                        let words = if writes {
                            ["RQ.PUSH", &key, "x", "TTL", "50"]
                        } else {
                            [under_test, "2", &key, &other, ""]
                        };
                        let words = if writes { &words[..] } else { &words[..4] };
                        let mut done = 0;
                        while Instant::now() < end {
                            let reply = wire.call(words).expect("the node lives").to_string();
                            assert!(writes || !password || reply.contains("NOAUTH"), "{reply}");
                            done += 1;
                        }
                        done
                    })
                })
                .collect();
            for hammer in hammers {
                assert!(hammer.join().expect("the node lives") > 10);
            }
            assert!(s.server.is_alive(), "{under_test}");
            assert_eq!(s.field("panics_caught"), 0);
        }
    });
}

#[test]
fn a_slot_moves_with_its_keys_while_leases_run() {
    on_every_engine_and_thread(|engine, threads| {
        let mut cluster = Cluster::start(engine, threads);
        let (from, to) = cluster.owner_and_other("{m}q");
        let slot = cluster.0[from].int("CLUSTER KEYSLOT {m}q");
        let a = &mut cluster.0[from];
        a.run("RQ.MPUSH {m}q 3 short long ready");
        let begin = Instant::now();
        let short = receipt(&a.run("RQ.CLAIM {m}q LEASE 1500"));
        let long = receipt(&a.run("RQ.CLAIM {m}q LEASE 60000"));
        a.run("TB.SET {m}pinned 10 1 600000");
        a.run("TB.TAKE {m}pinned COST 7");
        a.run("TB.TAKE {m}tb 10 1 600000 COST 7");
        a.run("LB.TAKE {m}lb 10 1 600000 COST 7");
        let number = |reply: String| reply.rsplit(", ").next().unwrap().trim_end_matches(']').to_owned();
        let hold = number(a.shown("TB.HOLD {m}held 10 1 600000 COST 4 TTL 60000"));
        let permit = number(a.shown("SEM.ACQUIRE {m}sem 1 LEASE 60000"));
        a.run("GATE.SET {m}gate STAGE a TB 2 1 600000 STAGE b SEM 1 LEASE 60000");
        a.run("GATE.PASS {m}gate");
        a.run("HOT.SET {m}hot 10 1 600000");
        a.run("HOT.TAKE {m}hot s COST 7");
        let ttl = a.int("PTTL {m}tb");
        let objects = a.field("timer_objects");
        assert!(objects > 0);

        let mut events = Events::listen(&mut cluster.0[to], "rq.timeout");
        cluster.move_slot(slot, from, to);
        let a = &mut cluster.0[from];
        assert_eq!((a.int("DBSIZE"), a.field("timer_objects")), (0, 0), "nothing is left behind");
        assert!(a.error("RQ.LEN {m}q").starts_with("MOVED "));
        assert!(a.error("TB.TAKE {m}tb 10 1 600000").starts_with("MOVED "));

        let b = &mut cluster.0[to];
        assert_eq!((b.int("DBSIZE"), b.field("timer_objects")), (8, objects));
        // The lease that was running ends here, at its instant.
        if begin.elapsed() < Duration::from_millis(1450) {
            assert_eq!(b.in_flight("{m}q"), "2");
        }
        assert_eq!(events.next(), (0, "rq.timeout".into(), "{m}q".into()));
        assert!(begin.elapsed() >= Duration::from_millis(1499));
        assert_eq!(numbers(&b.run(&format!("RQ.ACK {{m}}q {short} {long}"))), [0, 1]);
        // What is claimed here has a higher number than any before.
        let claim = |receipt: &str| receipt.rsplit('@').next().unwrap().parse::<u64>().unwrap();
        let again = b.run("RQ.CLAIM {m}q COUNT 5");
        assert_eq!(payloads(&again), ["short", "ready"]);
        assert!(claim(&receipt(&again)) > claim(&long));
        // Levels, holds, permits and TTLs are what they were.
        for line in [
            "TB.TAKE {m}pinned COST 4",
            "TB.TAKE {m}tb COST 4",
            "LB.TAKE {m}lb COST 4",
            "HOT.TAKE {m}hot s COST 4",
        ] {
            assert_eq!(numbers(&b.run(line))[0], 0, "{line}");
        }
        assert!((ttl - 60_000..=ttl).contains(&b.int("PTTL {m}tb")));
        assert_eq!(b.int("PTTL {m}pinned"), -1);
        assert!(b.shown("SEM.ACQUIRE {m}sem 1").starts_with("[0, "));
        assert_eq!(numbers(&b.run(&format!("SEM.RELEASE {{m}}sem {permit}"))), [1]);
        assert_eq!(numbers(&b.run(&format!("TB.SETTLE {{m}}held {hold} 1")))[0], 3);
        assert!(b.shown("GATE.PASS {m}gate").starts_with("[0, "));
        for node in &mut cluster.0 {
            assert_eq!(node.field("panics_caught"), 0);
        }
    });
}

#[test]
fn who_waits_at_a_slot_that_moves_is_sent_there_and_no_message_is_lost() {
    on_every_engine_and_thread(|engine, threads| {
        let mut cluster = Cluster::start(engine, threads);
        let (from, to) = cluster.owner_and_other("{w}q");
        let slot = cluster.0[from].int("CLUSTER KEYSLOT {w}q");
        let a = &mut cluster.0[from];
        a.run("RQ.SET {w}q LEASE 1000");
        a.run("TB.TAKE {w}tb 10 1 600000 COST 10");
        let mut claimer = a.waiter("RQ.CLAIM {w}q BLOCK 0");
        let mut early = a.waiter("RQ.CLAIM {w}none BLOCK 0");
        let mut taker = a.waiter("TB.TAKE {w}tb 10 1 600000 COST 1 BLOCK 6000000");
        cluster.move_slot(slot, from, to);
        cluster.0[to].run("RQ.PUSH {w}q m");
        cluster.0[to].run("RQ.PUSH {w}none n");
        for client in [&mut claimer, &mut early, &mut taker] {
            let told = client.refusal();
            assert!(told.starts_with(&format!("MOVED {slot} 127.0.0.1:")), "{told}");
        }
        assert_eq!(cluster.0[from].waiting(), 0);
        assert_eq!((cluster.0[to].ready("{w}q"), cluster.0[to].ready("{w}none")), ("1".into(), "1".into()));
    });
}
