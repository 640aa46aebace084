//! Slots that move at once (`CLUSTER MIGRATESLOTS`), on servers that can: what is carried, what is
//! left alone meanwhile, and who is told.

use crate::common::stage::{Stage, payloads, receipt};
use crate::common::{Engine, Reply, Server, engines, free_port, say, within};
use std::time::{Duration, Instant};

const SLOTS: u16 = 16_384;

fn atomic() -> Option<&'static Engine> {
    let found = engines().iter().find(|e| e.is_valkey() && e.version() >= (9, 1));
    if found.is_none() {
        say("SKIPPED: no server here moves slots at once");
    }
    found
}

/// Two masters; all slots are the first one's. Every transfer stops before the hand-over until it
/// is let go.
struct Two {
    nodes: [Stage; 2],
    ids: [String; 2],
}

impl Two {
    fn start(engine: &Engine) -> Self {
        let node = || {
            let server = Server::builder(engine)
                .option("cluster-enabled", "yes")
                .option("cluster-node-timeout", "5000")
                .option("enable-debug-command", "yes")
                .option("cluster-port", &free_port().to_string());
            Stage::on(server.start())
        };
        let mut nodes = [node(), node()];
        for (i, node) in (1..).zip(&mut nodes) {
            node.run(&format!("CLUSTER SET-CONFIG-EPOCH {i}"));
        }
        nodes[0].run(&format!("CLUSTER ADDSLOTSRANGE 0 {}", SLOTS - 1));
        let line = nodes[1].text("CLUSTER NODES");
        let bus = line.split(['@', ',', ' ']).nth(2).expect("a bus port").to_owned();
        let port = nodes[1].server.port();
        nodes[0].run(&format!("CLUSTER MEET 127.0.0.1 {port} {bus}"));
        for node in &mut nodes {
            within(Duration::from_secs(30), "the cluster to be whole", || {
                let info = node.text("CLUSTER INFO");
                (info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2")).then_some(())
            });
        }
        let ids = [0, 1].map(|i| nodes[i].text("CLUSTER MYID"));
        Self { nodes, ids }
    }

    /// Begins to move the key's slot to the other node, and waits until nothing but the hand-over
    /// is left.
    fn send(&mut self, key: &str, from: usize) {
        let slot = self.nodes[from].int(&format!("CLUSTER KEYSLOT {key}"));
        self.nodes[from].run("DEBUG SLOTMIGRATION PREVENT-PAUSE 1");
        let to = &self.ids[1 - from];
        self.nodes[from].run(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {to}"));
        self.until(from, "waiting-to-pause");
    }

    fn hand_over(&mut self, from: usize) {
        self.nodes[from].run("DEBUG SLOTMIGRATION PREVENT-PAUSE 0");
        self.until(from, "success");
    }

    /// The latest migration is told first.
    fn until(&mut self, node: usize, state: &str) {
        within(Duration::from_secs(30), state, || {
            let told = self.nodes[node].shown("CLUSTER GETSLOTMIGRATIONS");
            let latest = told.split("\"state\", \"").nth(1)?.split('"').next()?;
            assert!(latest == state || latest != "failed", "{told}");
            (latest == state).then_some(())
        });
    }

    fn equal(&mut self, key: &str) {
        let told = [0, 1].map(|i| self.nodes[i].shown(&format!("DEBUG DIGEST-VALUE {key}")));
        assert_eq!(told[0], told[1], "{key}");
    }
}

#[test]
fn what_happens_during_an_export_reaches_the_other_node() {
    let Some(engine) = atomic() else { return };
    let mut two = Two::start(engine);
    let a = &mut two.nodes[0];
    a.run("RQ.SET {x}q LEASE 60000");
    a.run("RQ.MPUSH {x}q 3 a b c");
    a.run("TB.SET {x}tb 10 1 600000");
    two.send("{x}q", 0);
    let a = &mut two.nodes[0];
    a.run("RQ.PUSH {x}q late");
    let held = receipt(&a.run("RQ.CLAIM {x}q COUNT 2"));
    a.run("TB.TAKE {x}tb COST 7");
    std::thread::sleep(Duration::from_millis(200));
    two.equal("{x}q");
    two.equal("{x}tb");
    two.hand_over(0);
    let b = &mut two.nodes[1];
    assert_eq!((b.ready("{x}q"), b.in_flight("{x}q")), ("2".into(), "2".into()));
    assert_eq!(b.shown(&format!("RQ.ACK {{x}}q {held}")), "[1]");
    assert_eq!(payloads(&b.run("RQ.CLAIM {x}q COUNT 9")), ["c", "late"]);
    for node in &mut two.nodes {
        assert_eq!(node.field("panics_caught"), 0);
    }
}

#[test]
fn nothing_is_decided_on_what_is_on_its_way() {
    let Some(engine) = atomic() else { return };
    let mut two = Two::start(engine);
    let a = &mut two.nodes[0];
    a.run("RQ.MPUSH {y}q 2 a b");
    a.run("RQ.CLAIM {y}q COUNT 2 LEASE 700");
    a.run("SEM.ACQUIRE {y}sem 1 LEASE 700");
    two.send("{y}q", 0);
    // The source sleeps while its leases end: the target does not end them on its own.
    let mut sleeper = two.nodes[0].asker("DEBUG SLEEP 1.5");
    std::thread::sleep(Duration::from_millis(1100));
    let b = &mut two.nodes[1];
    assert_eq!((b.field("rq_timeout"), b.field("sem_timeout")), (0, 0));
    sleeper.told();
    within(Duration::from_secs(5), "the leases to end at the source", || {
        (two.nodes[0].field("rq_timeout") == 2).then_some(())
    });
    std::thread::sleep(Duration::from_millis(200));
    two.equal("{y}q");
    two.hand_over(0);
    let b = &mut two.nodes[1];
    assert_eq!(b.ready("{y}q"), "2");
    assert_eq!(b.field("rq_timeout"), 0, "that had happened before");
    // From here on it is its own.
    b.run("RQ.CLAIM {y}q COUNT 2 LEASE 50");
    within(Duration::from_secs(5), "the leases to end", || (b.field("rq_timeout") == 2).then_some(()));
}

#[test]
fn who_waits_is_sent_along_at_once() {
    let Some(engine) = atomic() else { return };
    let mut two = Two::start(engine);
    let a = &mut two.nodes[0];
    a.run("RQ.SET {z}q LEASE 60000");
    a.run("SEM.ACQUIRE {z}sem 1 LEASE 60000");
    a.run("TB.TAKE {z}tb 1 1 60000");
    let slot = a.int("CLUSTER KEYSLOT {z}q");
    let mut waiters = [
        a.waiter("RQ.CLAIM {z}q BLOCK 0"),
        a.waiter("RQ.MCLAIM 2 {z}none {z}other BLOCK 0"),
        a.waiter("SEM.ACQUIRE {z}sem 1 BLOCK 50000"),
        a.waiter("TB.TAKE {z}tb 1 1 60000 BLOCK 70000"),
    ];
    two.send("{z}q", 0);
    assert!(waiters.iter_mut().all(|w| w.waits()), "until the hand-over they wait here");
    two.hand_over(0);
    let begin = Instant::now();
    let moved = format!("MOVED {slot} 127.0.0.1:{}", two.nodes[1].server.port());
    for waiter in &mut waiters {
        assert_eq!(waiter.refusal(), moved);
    }
    assert!(begin.elapsed() < Duration::from_millis(500), "{:?}", begin.elapsed());
    assert_eq!(two.nodes[0].waiting(), 0);
    let b = &mut two.nodes[1];
    b.run("RQ.PUSH {z}q m");
    assert_eq!(payloads(&b.run("RQ.CLAIM {z}q")), ["m"]);
    assert!(matches!(b.run("SEM.INFO {z}sem"), Reply::Array(_)));
}
