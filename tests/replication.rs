//! A replica holds what its master holds, however and whenever it came, and does nothing by itself
//! until it is promoted.

use crate::common::stage::Stage;
use crate::common::workload::{Load, Workload, assert_no_panic, assert_same, held, hold_still, rounds, seen};
use crate::common::{
    Engine, Reply, Server, T0, advance_clock, array, call, digest, error, eventually, info, int, ints, map,
    on_every_engine, registered_commands, set_clock, text, try_call, within,
};
use redis::{Connection, Value};
use std::time::Duration;

/// A short while of the load.
const WHILE: Duration = Duration::from_millis(25);

/// Waits until a replica has applied all its master has written. A master that has nothing to say
/// pings, which counts.
#[track_caller]
fn caught_up(master: &Server, replica: &Server) {
    let (mut m, mut r) = (master.connect(), replica.connect());
    within(Duration::from_secs(30), "the replica to catch up", || {
        let replication = info(&mut r, "replication");
        if replication.get("master_link_status").map(String::as_str) != Some("up") {
            return None;
        }
        let written = info(&mut m, "replication").get("master_repl_offset").cloned()?;
        let applied = info(&mut r, "replication").get("slave_repl_offset").cloned()?;
        (written == applied).then_some(())
    });
}

/// Stops a load on the master, and holds that the replicas have all of it.
#[track_caller]
fn end_equal(what: &str, load: Load, master: &Server, replicas: &[&Server]) {
    assert!(load.stop() > 0, "{what}: the load ran");
    stand_equal(what, master, replicas);
}

#[track_caller]
fn stand_equal(what: &str, master: &Server, replicas: &[&Server]) {
    hold_still(master);
    for replica in replicas {
        caught_up(master, replica);
        assert_same(what, &held(master), &held(replica));
        assert_no_panic(replica);
    }
    assert_no_panic(master);
    call!(master.connect(), "SLUICE.CLOCK", "REAL");
}

#[track_caller]
fn link_up(replica: &Server) {
    let mut c = replica.connect();
    within(Duration::from_secs(30), "the replica's link", || {
        (info(&mut c, "replication").get("master_link_status")? == "up").then_some(())
    });
}

fn replicate(replica: &Server, master: &Server) {
    call!(replica.connect(), "REPLICAOF", "127.0.0.1", master.port());
}

#[test]
fn a_replica_that_attaches_under_load_ends_equal_every_time() {
    on_every_engine(|engine| {
        for (round, diskless) in ["yes", "no", "yes", "no"].into_iter().enumerate() {
            // No backlog outlives its replica for long: what is written while nobody listens is not
            // carried.
            let master = Server::builder(engine)
                .option("repl-diskless-sync", diskless)
                .option("repl-backlog-ttl", "1")
                .start();
            let load = Load::start(&master, 100 + round as u64, 2);
            std::thread::sleep(WHILE);
            let replica = Server::start(engine);
            for _ in 0..3 {
                replica.replica_of(&master);
                std::thread::sleep(WHILE);
                call!(replica.connect(), "REPLICAOF", "NO", "ONE");
                call!(replica.connect(), "FLUSHALL");
            }
            replica.replica_of(&master);
            end_equal(&format!("attached under load, diskless {diskless}"), load, &master, &[&replica]);
        }
    });
}

#[test]
fn a_replica_that_comes_after_the_backlog_is_gone_gets_what_nobody_was_told() {
    on_every_engine(|engine| {
        let master = Server::builder(engine).option("repl-backlog-ttl", "1").start();
        let replica = Server::start(engine);
        replica.replica_of(&master);
        let load = Load::start(&master, 111, 1);
        std::thread::sleep(WHILE);
        call!(replica.connect(), "REPLICAOF", "127.0.0.1", 1);
        let mut c = master.connect();
        within(Duration::from_secs(10), "the backlog to be freed", || {
            (info(&mut c, "replication")["repl_backlog_active"] == "0").then_some(())
        });
        // By now effects are not carried: commands are, none of which the load has.
        std::thread::sleep(WHILE * 4);
        replicate(&replica, &master);
        link_up(&replica);
        end_equal("after the backlog was gone", load, &master, &[&replica]);
    });
}

#[test]
fn a_replica_that_attaches_while_an_rdb_is_saved_ends_equal() {
    on_every_engine(|engine| {
        for (round, diskless) in ["yes", "no"].into_iter().enumerate() {
            let master = Server::builder(engine)
                .option("repl-diskless-sync", diskless)
                .option("rdb-key-save-delay", "5000")
                .start();
            let replica = Server::start(engine);
            let load = Load::start(&master, 120 + round as u64, 2);
            std::thread::sleep(WHILE);
            let mut c = master.connect();
            call!(c, "BGSAVE");
            replicate(&replica, &master);
            std::thread::sleep(WHILE);
            call!(c, "CONFIG", "SET", "rdb-key-save-delay", 0);
            link_up(&replica);
            end_equal(&format!("attached during BGSAVE, diskless {diskless}"), load, &master, &[&replica]);
        }
    });
}

#[test]
fn replicas_of_replicas_and_several_at_once_end_equal() {
    on_every_engine(|engine| {
        // The second waits for the first one's snapshot, or shares it.
        let master = Server::builder(engine).option("repl-diskless-sync-delay", "1").start();
        let (one, other, below) = (Server::start(engine), Server::start(engine), Server::start(engine));
        let load = Load::start(&master, 130, 2);
        replicate(&one, &master);
        replicate(&other, &master);
        replicate(&below, &one);
        for replica in [&one, &other, &below] {
            link_up(replica);
        }
        std::thread::sleep(WHILE);
        end_equal("replicas of one master", load, &master, &[&one, &other]);
        caught_up(&one, &below);
        hold_still(&master);
        assert_same("a replica of a replica", &held(&master), &held(&below));
    });
}

#[test]
fn a_replica_that_lost_its_link_for_a_moment_resumes_and_ends_equal() {
    on_every_engine(|engine| {
        let master = Server::builder(engine).option("repl-backlog-size", "64mb").start();
        let replica = Server::start(engine);
        replica.replica_of(&master);
        let load = Load::start(&master, 140, 2);
        let mut c = master.connect();
        for _ in 0..4 {
            std::thread::sleep(WHILE);
            call!(c, "CLIENT", "KILL", "TYPE", "replica");
            within(Duration::from_secs(10), "the replica to be back", || {
                (info(&mut c, "replication")["connected_slaves"] == "1").then_some(())
            });
            link_up(&replica);
        }
        end_equal("after partial resyncs", load, &master, &[&replica]);
        let stats = info(&mut c, "stats");
        assert!(
            stats["sync_partial_ok"].parse::<u64>().expect("a number") >= 3,
            "resyncs were partial: {stats:?}"
        );
        assert_eq!(stats["sync_full"], "1");
    });
}

/// A master that was restarted from its RDB lets its replica resume: what it wrote meanwhile, with
/// nobody attached, must be in the backlog.
#[test]
fn a_replica_resumes_from_a_restarted_master_and_ends_equal() {
    on_every_engine(|engine| {
        let mut master = Server::builder(engine).option("save", "3600 1").start();
        let mut replica = Server::builder(engine).option("save", "3600 1").start();
        replica.replica_of(&master);
        let load = Load::start(&master, 150, 2);
        std::thread::sleep(WHILE);
        end_equal("before", load, &master, &[&replica]);
        master.restart();
        let load = Load::start(&master, 151, 2);
        std::thread::sleep(WHILE);
        link_up(&replica);
        end_equal("a restarted master", load, &master, &[&replica]);
        // And the other way round: the replica is away and comes back with what it has stored.
        replica.set_option("replicaof", &format!("127.0.0.1 {}", master.port()));
        replica.stop();
        let load = Load::start(&master, 152, 2);
        std::thread::sleep(WHILE);
        replica.start_again();
        link_up(&replica);
        end_equal("a restarted replica", load, &master, &[&replica]);
    });
}

#[test]
fn a_replica_that_loads_beside_its_old_data_ends_equal() {
    on_every_engine(|engine| {
        for (round, how) in ["swapdb", "on-empty-db"].into_iter().enumerate() {
            let master = Server::start(engine);
            let replica = Server::builder(engine).option("repl-diskless-load", how).start();
            let load = Load::start(&master, 160 + round as u64, 1);
            for _ in 0..2 {
                replica.replica_of(&master);
                std::thread::sleep(WHILE);
                call!(replica.connect(), "REPLICAOF", "NO", "ONE");
                // Its own leases run now: they are gone with the next copy, and the timer with
                // them.
                call!(replica.connect(), "RQ.PUSH", "own", "p");
                call!(replica.connect(), "RQ.CLAIM", "own", "LEASE", 20);
            }
            replica.replica_of(&master);
            end_equal(how, load, &master, &[&replica]);
            assert!(!replica.log().contains("kipping diskless"), "{how}");
            assert_eq!(replica.log().contains("Swapping active DB"), how == "swapdb", "{how}");
            replica.promote();
            call!(replica.connect(), "FLUSHALL");
            assert_no_panic(&replica);
        }
    });
}

/// A replica that gets a whole copy anew, into a data set of its own, while it serves what it has:
/// a moment in which it does.
fn in_the_middle_of_a_swap(engine: &Engine) -> (Server, Server) {
    let master = Server::builder(engine)
        .option("repl-diskless-sync", "yes")
        .option("repl-backlog-size", "16kb")
        .option("rdbcompression", "no")
        .start();
    let replica = Server::builder(engine)
        .option("repl-diskless-load", "swapdb")
        .option("loading-process-events-interval-bytes", "1024")
        .start();
    let mut m = master.connect();
    // More than fits on the way: a master that is gone leaves the copy unfinished.
    for i in 0..1_000 {
        call!(m, "SET", format!("filler{i}"), "x".repeat(30_000));
    }
    call!(m, "SET", "plain", "old");
    call!(m, "TB.SET", "tb", 10, 1, 600_000);
    call!(m, "RQ.MPUSH", "q", 2, "a", "b");
    call!(m, "RQ.PUSH", "leased", "a");
    call!(m, "RQ.CLAIM", "leased", "LEASE", 2_000);
    call!(m, "SEM.ACQUIRE", "gone", 1, "LEASE", 3_600_000);
    replica.replica_of(&master);
    caught_up(&master, &replica);
    call!(replica.connect(), "CONFIG", "SET", "key-load-delay", 5_000);
    // It loses its link, and what it missed is more than its master keeps for it; the history is
    // the same.
    call!(m, "MULTI");
    call!(m, "CLIENT", "KILL", "TYPE", "replica");
    call!(m, "SET", "pad", "x".repeat(100_000));
    call!(m, "SET", "plain", "new");
    call!(m, "TB.TAKE", "tb", "COST", 9);
    call!(m, "RQ.PUSH", "q", "c");
    call!(m, "RQ.PUSH", "new", "a");
    call!(m, "RQ.CLAIM", "new", "LEASE", 2_000);
    call!(m, "DEL", "gone");
    call!(m, "EXEC");
    let mut r = replica.connect();
    within(Duration::from_secs(20), "the replica to load beside its data", || {
        (info(&mut r, "persistence").get("async_loading")? == "1").then_some(())
    });
    serves_the_old(&replica);
    let loads = info(&mut r, "persistence").get("async_loading").map(String::as_str) == Some("1");
    assert!(loads, "it was served while it loaded");
    (master, replica)
}

fn serves_the_old(replica: &Server) {
    let mut r = replica.connect();
    assert_eq!(call!(r, "GET", "plain"), redis::Value::BulkString(b"old".to_vec()));
    assert_eq!(call!(r, "RQ.LEN", "q"), redis::Value::Int(2));
    assert_eq!(array(call!(r, "TB.PEEK", "tb"))[2], redis::Value::Int(9));
    assert_eq!(call!(r, "EXISTS", "new"), redis::Value::Int(0));
    assert_eq!(call!(r, "EXISTS", "gone"), redis::Value::Int(1));
}

#[test]
fn a_replica_that_loads_beside_its_old_data_serves_it_and_then_the_new() {
    on_every_engine(|engine| {
        let (master, replica) = in_the_middle_of_a_swap(engine);
        call!(replica.connect(), "CONFIG", "SET", "key-load-delay", 0);
        link_up(&replica);
        stand_equal("after a swap", &master, &[&replica]);
        replica.promote();
        for key in ["leased", "new"] {
            eventually("the leases to end", || {
                call!(replica.connect(), "RQ.LEN", key, "READY") == redis::Value::Int(1)
            });
        }
        // What is timed is what came, and not what went.
        eventually("nothing to be timed", || info_number(&replica, "sluice_timer_objects") == 0);
        assert_no_panic(&replica);
    });
}

#[test]
fn a_replica_whose_load_beside_its_data_is_broken_off_has_its_data() {
    on_every_engine(|engine| {
        let (mut master, replica) = in_the_middle_of_a_swap(engine);
        let timed = info_number(&replica, "sluice_timer_objects");
        master.kill_9();
        eventually("the load to be broken off", || {
            info(&mut replica.connect(), "persistence").get("async_loading").map(String::as_str) == Some("0")
        });
        serves_the_old(&replica);
        assert_eq!(info_number(&replica, "sluice_timer_objects"), timed);
        replica.promote();
        eventually("the lease to end", || {
            call!(replica.connect(), "RQ.LEN", "leased", "READY") == redis::Value::Int(1)
        });
        serves_the_old(&replica);
        assert_no_panic(&replica);
    });
}

fn info_number(server: &Server, field: &str) -> i64 {
    let found = info(&mut server.connect(), "sluice");
    found.get(field).and_then(|v| v.parse().ok()).unwrap_or_else(|| panic!("{field} is not in {found:?}"))
}

#[test]
fn a_long_random_history_by_the_frozen_clock_replicates_byte_for_byte() {
    on_every_engine(|engine| {
        for round in 0..rounds() {
            a_long_random_history(engine, 170 + round);
        }
    });
}

fn a_long_random_history(engine: &Engine, seed: u64) {
    let (master, replica) = (Server::start(engine), Server::start(engine));
    let mut load = Workload::frozen(&master, seed);
    // So that the replica's answers are of the same instant, its clock has to stand before it may
    // not be written to.
    set_clock(&mut replica.connect(), T0);
    replica.replica_of(&master);
    load.play(&mut master.raw(), 4_000);
    caught_up(&master, &replica);
    assert_same("a long history", &held(&master), &held(&replica));
    let both = (digest(&mut master.connect()), digest(&mut replica.connect()));
    assert_eq!(both.0, both.1, "DEBUG DIGEST");
    // What a replica stored can be told again: a second copy, of the copy.
    let again = Server::start(engine);
    again.replica_of(&replica);
    assert_same("a copy of a copy", &held(&master), &held(&again));
    assert_no_panic(&replica);
}

// ---------------------------------------------------------------- a replica does nothing by itself

fn pair(engine: &Engine) -> (Server, Server) {
    let (master, replica) = (Server::start(engine), Server::start(engine));
    replica.replica_of(&master);
    // Some masters send what follows the snapshot only a second later: from here on it is sent at
    // once.
    call!(master.connect(), "SET", "synchronized", "yes");
    caught_up(&master, &replica);
    call!(master.connect(), "DEL", "synchronized");
    (master, replica)
}

#[test]
fn a_replica_answers_readers_and_refuses_writers() {
    on_every_engine(|engine| {
        let (master, replica) = pair(engine);
        let mut m = master.connect();
        call!(m, "TB.TAKE", "tb", 10, 1, 1_000_000, "COST", 4);
        call!(m, "LB.TAKE", "lb", 10, 1, 1_000_000, "COST", 4);
        for id in ["a", "b", "c"] {
            call!(m, "RQ.PUSH", "q", "payload", "ID", id);
        }
        call!(m, "RQ.CLAIM", "q", "LEASE", 600_000);
        caught_up(&master, &replica);
        let mut r = replica.connect();
        // What a take would answer.
        assert_eq!(ints(call!(r, "TB.PEEK", "tb"))[..3], [1, 10, 5]);
        assert_eq!(ints(call!(r, "LB.PEEK", "lb"))[..3], [1, 10, 5]);
        assert_eq!(int(map(call!(r, "TB.INFO", "tb"))["remaining"].clone()), 6);
        assert_eq!(int(map(call!(r, "LB.INFO", "lb"))["free"].clone()), 6);
        assert_eq!(int(call!(r, "RQ.LEN", "q")), 3);
        assert_eq!(int(map(call!(r, "RQ.INFO", "q"))["inflight"].clone()), 1);
        assert_eq!(text(map(call!(r, "RQ.GET", "q", "a"))["state"].clone()), "inflight");
        assert_eq!(array(array(call!(r, "RQ.LIST", "q", "READY")).remove(1)).len(), 2);
        assert_eq!(text(call!(r, "TYPE", "q")), "sluice-rq");
        let both = seen(&master);
        assert_eq!(seen(&replica).keys().collect::<Vec<_>>(), both.keys().collect::<Vec<_>>());

        // Every command says of itself whether it writes; those that do are refused.
        let before = held(&replica);
        let mut refused = 0;
        // The test clock is neither: each server has its own.
        for name in registered_commands(&mut r).into_iter().filter(|n| n != "sluice.clock") {
            let entry = array(array(call!(r, "COMMAND", "INFO", &name)).remove(0));
            let flags: Vec<String> = array(entry[2].clone()).into_iter().map(text).collect();
            let reader = flags.iter().any(|f| f == "readonly");
            assert!(reader != flags.iter().any(|f| f == "write"), "{name} reads or writes: {flags:?}");
            if !reader {
                let arity = usize::try_from(int(entry[1].clone()).abs()).expect("an arity");
                let mut command = redis::cmd(&name);
                // A number that is a key count and a key at once: the command is refused before it
                // looks.
                for _ in 1..arity.max(4) {
                    command.arg("1");
                }
                use crate::common::Talk as _;
                let error = r.try_run(&command).expect_err(&name);
                assert!(error.starts_with("READONLY") || error.contains("number of"), "{name}: {error}");
                refused += usize::from(error.starts_with("READONLY"));
            }
        }
        assert!(refused > 20, "{refused} commands were refused");
        assert_same("a replica after refused writes", &before, &held(&replica));
    });
}

#[test]
fn a_replica_of_a_silent_master_expires_nothing() {
    /// Longer than it takes to stop the master (ms).
    const LONG: u64 = 900;
    on_every_engine(|engine| {
        let (master, replica) = pair(engine);
        let mut m = master.connect();
        call!(m, "RQ.SET", "q", "BACKOFF", "NONE");
        call!(m, "RQ.PUSH", "q", "p", "ID", "leased");
        call!(m, "RQ.CLAIM", "q", "LEASE", LONG);
        call!(m, "RQ.PUSH", "q", "p", "ID", "late", "DELAY", LONG);
        call!(m, "RQ.PUSH", "q", "p", "ID", "short", "DELAY", 600_000, "TTL", LONG);
        call!(m, "TB.SET", "tb", 10, 1, 1_000_000);
        call!(m, "TB.HOLD", "tb", "COST", 4, "TTL", LONG, "ONEXPIRE", "REFUND");
        caught_up(&master, &replica);
        // SAFETY: a plain system call on a child of this test that is still running.
        let signal = |s| assert_eq!(unsafe { libc::kill(i32::try_from(master.pid()).expect("a pid"), s) }, 0);
        let before = held(&replica);
        signal(libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(LONG + 100));
        let mut r = replica.connect();
        for _ in 0..2 {
            // Readers look at it, long after all is due.
            assert_eq!(int(call!(r, "RQ.LEN", "q", "INFLIGHT")), 1);
            assert_eq!(int(call!(r, "RQ.LEN", "q", "DELAYED")), 2);
            call!(r, "RQ.INFO", "q");
            call!(r, "RQ.GET", "q", "leased");
            call!(r, "TB.PEEK", "tb");
            call!(r, "TB.INFO", "tb");
            assert_same("a replica whose master is silent", &before, &held(&replica));
        }
        signal(libc::SIGCONT);
        eventually("the master's timer to reach the replica", || {
            int(call!(r, "RQ.LEN", "q", "READY")) == 2 && int(call!(r, "RQ.LEN", "q")) == 2
        });
        caught_up(&master, &replica);
        stand_equal("after the silence", &master, &[&replica]);
    });
}

fn claim(c: &mut Connection, key: &str, lease: i64) -> String {
    let message = array(array(call!(c, "RQ.CLAIM", key, "LEASE", lease)).remove(0));
    text(message[1].clone())
}

fn number(receipt: &str) -> u64 {
    receipt.rsplit_once('@').expect("a receipt").1.parse().expect("a number")
}

#[test]
fn a_promoted_replica_ends_leases_by_itself_and_draws_higher_claim_numbers() {
    on_every_engine(|engine| {
        let (master, replica) = pair(engine);
        let mut m = master.connect();
        call!(m, "RQ.SET", "q", "BACKOFF", "NONE");
        let mut last = 0;
        for i in 0..50 {
            call!(m, "RQ.PUSH", "q", "p", "ID", format!("m{i}"));
            last = number(&claim(&mut m, "q", 400));
        }
        call!(m, "RQ.PUSH", "q", "p", "ID", "late", "DELAY", 400);
        caught_up(&master, &replica);
        // A tail that the replica never got.
        call!(m, "CLIENT", "PAUSE", 1, "WRITE");
        replica.promote();
        call!(m, "RQ.PUSH", "q", "p", "ID", "lost");
        let lost = number(&claim(&mut m, "q", 60_000));
        let mut r = replica.connect();
        call!(r, "RQ.PUSH", "q", "p", "ID", "first", "PRIORITY", 9);
        let first = number(&claim(&mut r, "q", 60_000));
        assert!(first > last && first > lost, "{first} is not above {last} and {lost}");
        eventually("the leases to end on the promoted server", || {
            int(call!(r, "RQ.LEN", "q", "READY")) == 51
        });
        assert_eq!(int(map(call!(r, "RQ.INFO", "q"))["total_timed_out"].clone()), 50);
        // The receipts of before are void, those of after are not.
        assert_eq!(ints(call!(r, "RQ.ACK", "q", format!("m49@{last}"), format!("first@{first}"))), [0, 1]);
        assert_no_panic(&replica);
    });
}

#[test]
fn claim_numbers_rise_over_promotion_also_by_a_clock_that_is_behind() {
    on_every_engine(|engine| {
        let (master, replica) = (Server::start(engine), Server::start(engine));
        set_clock(&mut master.connect(), 2 * T0);
        set_clock(&mut replica.connect(), T0);
        replica.replica_of(&master);
        let mut m = master.connect();
        call!(m, "RQ.PUSH", "q", "p");
        let before = number(&claim(&mut m, "q", 60_000));
        // The number outlives the queue: it was seen, so it is never drawn again.
        call!(m, "DEL", "q");
        caught_up(&master, &replica);
        replica.promote();
        let mut r = replica.connect();
        call!(r, "RQ.PUSH", "q", "p");
        let after = number(&claim(&mut r, "q", 60_000));
        assert!(after > before, "{after} is not above {before}");
        // Back and forth: the old master follows, and takes over again.
        master.replica_of(&replica);
        caught_up(&replica, &master);
        master.promote();
        call!(m, "RQ.PUSH", "q", "p", "PRIORITY", 5);
        let again = number(&claim(&mut m, "q", 60_000));
        assert!(again > after, "{again} is not above {after}");
    });
}

// ---------------------------------------------------------------- when nothing may be written

#[test]
fn leases_that_end_while_writes_are_paused_end_afterwards() {
    on_every_engine(|engine| {
        let (master, replica) = pair(engine);
        let mut m = master.connect();
        call!(m, "RQ.SET", "q", "BACKOFF", "NONE");
        for i in 0..20 {
            call!(m, "RQ.PUSH", "q", "p", "ID", format!("m{i}"));
        }
        call!(m, "TB.SET", "tb", 10, 1, 1_000_000);
        // Waiters whose time ends, and one who goes away, in the pause.
        let mut waiter = master.raw();
        waiter.send(&["RQ.CLAIM", "empty", "BLOCK", "400"]).expect("a connection");
        let mut gone = master.raw();
        gone.send(&["TB.TAKE", "slow", "1", "1", "600000", "BLOCK", "600000"]).expect("a connection");
        gone.read().expect("granted at once");
        gone.send(&["TB.TAKE", "slow", "1", "1", "600000", "BLOCK", "600000"]).expect("a connection");
        eventually("the waiters to wait", || info(&mut m, "clients")["blocked_clients"] == "2");
        // In one piece: however busy this machine is, nothing ends before the pause begins.
        let mut s = Stage::on(master);
        let begun = s.at_once(&[
            "RQ.CLAIM q COUNT 20 LEASE 300",
            "TB.HOLD tb COST 4 TTL 300 ONEXPIRE REFUND",
            "CLIENT PAUSE 60000 WRITE",
        ]);
        assert_eq!(begun[2], "\"OK\"");
        let master = &s.server;
        let offset = info(&mut m, "replication")["master_repl_offset"].clone();
        drop(gone);
        std::thread::sleep(Duration::from_millis(450));
        // Readers are served, and see what was: nothing may be written.
        assert_eq!(int(call!(m, "RQ.LEN", "q", "INFLIGHT")), 20);
        call!(m, "RQ.INFO", "q");
        call!(m, "TB.INFO", "tb");
        assert_eq!(
            info(&mut m, "replication")["master_repl_offset"],
            offset,
            "nothing was written in the pause"
        );
        assert_eq!(waiter.read().expect("a reply"), Reply::Nil);
        call!(m, "CLIENT", "UNPAUSE");
        eventually("the leases to end after the pause", || int(call!(m, "RQ.LEN", "q", "READY")) == 20);
        eventually("the hold to end", || int(map(call!(m, "TB.INFO", "tb"))["remaining"].clone()) == 10);
        caught_up(master, &replica);
        stand_equal("after the pause", master, &[&replica]);
    });
}

/// What a command does in other databases than its client's is carried to those, also within a
/// transaction.
#[test]
fn what_happens_elsewhere_in_a_transaction_is_carried_to_where_it_happened() {
    on_every_engine(|engine| {
        let master =
            Server::builder(engine).option("appendonly", "yes").option("appendfsync", "always").start();
        let replica = Server::start(engine);
        let mut s = Stage::on(master);
        for line in [
            "SLUICE.CLOCK SET 1900000000000",
            "RQ.PUSH q zero DELAY 10",
            "SELECT 2",
            "RQ.PUSH q two DELAY 10",
            "RQ.PUSH q later DELAY 30",
            "SELECT 1",
            "RQ.PUSH q one",
        ] {
            s.run(line);
        }
        set_clock(&mut replica.connect(), 1_900_000_000_000);
        replica.replica_of(&s.server);
        // Two databases in one call, then one.
        for on in [20, 20] {
            s.at_once(&["MULTI", "RQ.CLAIM q LEASE 43", &format!("SLUICE.CLOCK ADVANCE {on}"), "EXEC"]);
            s.at_once(&["MULTI", "RQ.PUSH q m", "SELECT 2", "RQ.PUSH q m", "SELECT 1", "EXEC"]);
        }
        caught_up(&s.server, &replica);
        let held = digest(&mut s.server.connect());
        assert_eq!(digest(&mut replica.connect()), held, "the replica");
        s.run("DEBUG LOADAOF");
        assert_eq!(digest(&mut s.server.connect()), held, "from the file");
        assert_no_panic(&replica);
    });
}

/// The test clock is moved on by hand also then: what falls due has to wait.
#[test]
fn the_test_clock_writes_nothing_while_writes_are_paused_or_on_a_replica() {
    on_every_engine(|engine| {
        let (master, replica) = pair(engine);
        let mut m = master.connect();
        set_clock(&mut m, T0);
        call!(m, "RQ.SET", "q", "BACKOFF", "NONE");
        call!(m, "RQ.PUSH", "q", "p");
        call!(m, "RQ.CLAIM", "q", "LEASE", 1000);
        caught_up(&master, &replica);
        let before = held(&replica);
        let mut r = replica.connect();
        set_clock(&mut r, T0);
        advance_clock(&mut r, 5000);
        assert_same("a replica whose clock was moved", &before, &held(&replica));
        call!(m, "CLIENT", "PAUSE", 200, "WRITE");
        let mut raw = master.raw();
        raw.send(&["SLUICE.CLOCK", "ADVANCE", "1000"]).expect("a connection");
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(int(call!(m, "RQ.LEN", "q", "INFLIGHT")), 1);
        raw.read().expect("a reply");
        eventually("the lease to end after the pause", || {
            advance_clock(&mut m, 1);
            int(call!(m, "RQ.LEN", "q", "READY")) == 1
        });
        stand_equal("after the pause", &master, &[&replica]);
    });
}

#[test]
fn a_failover_under_load_ends_well_and_leases_end_on_the_new_master() {
    on_every_engine(|engine| {
        let (master, replica) = pair(engine);
        let load = Load::start(&master, 180, 1);
        std::thread::sleep(WHILE);
        assert!(load.stop() > 0);
        let mut m = master.connect();
        call!(m, "FLUSHALL");
        call!(m, "RQ.SET", "q", "BACKOFF", "NONE", "MAXDELIVERIES", 0);
        let mut receipts = Vec::new();
        for i in 0..200 {
            call!(m, "RQ.PUSH", "q", "p", "ID", format!("m{i}"));
            receipts.push(claim(&mut m, "q", 1 + i % 120));
        }
        // It waits for the replica, with writes paused, while leases end all the time.
        within(Duration::from_secs(10), "the failover to be accepted", || {
            try_call!(m, "FAILOVER", "TIMEOUT", 10_000).ok().map(drop)
        });
        let mut r = replica.connect();
        eventually("the replica to take over", || info(&mut r, "replication")["role"] == "master");
        eventually("the old master to follow", || info(&mut m, "replication")["role"] == "slave");
        eventually("all leases to end on the new master", || int(call!(r, "RQ.LEN", "q", "READY")) == 200);
        assert!(error!(m, "RQ.PUSH", "q", "p").starts_with("READONLY"));
        let next = number(&claim(&mut r, "q", 60_000));
        assert!(receipts.iter().all(|old| number(old) < next), "{next} is above all of before");
        stand_equal("after the failover", &replica, &[&master]);
    });
}

/// Whatever a master's timer does reaches its replica, by whichever key it came to where it is.
#[test]
fn what_the_timer_does_is_replicated_wherever_the_key_has_gone() {
    on_every_engine(|engine| {
        let (master, replica) = (Server::start(engine), Server::start(engine));
        let mut m = master.connect();
        set_clock(&mut m, T0);
        set_clock(&mut replica.connect(), T0);
        replica.replica_of(&master);
        for key in ["stays", "renamed", "moved", "copied", "restored"] {
            call!(m, "RQ.PUSH", key, "p", "ID", "m");
            call!(m, "RQ.CLAIM", key, "LEASE", 1000);
        }
        call!(m, "RENAME", "renamed", "elsewhere");
        call!(m, "MOVE", "moved", 1);
        call!(m, "COPY", "copied", "copy", "DB", 1);
        // A client that has moved a key to another database is still where it was.
        assert!(text(call!(m, "CLIENT", "INFO")).contains(" db=0 "));
        let Value::BulkString(payload) = call!(m, "DUMP", "restored") else { panic!("no dump") };
        call!(m, "RESTORE", "from-dump", 0, payload.as_slice());
        caught_up(&master, &replica);
        let before = held(&master);
        assert_eq!(before.len(), 7);
        assert_same("before", &before, &held(&replica));
        advance_clock(&mut m, 1000);
        caught_up(&master, &replica);
        let after = held(&master);
        assert!(after.iter().all(|(key, held)| before[key] != *held), "every lease has ended: {after:?}");
        assert_same("after", &after, &held(&replica));
    });
}

/// What a master has decided is not refused for want of memory, though SLUICE.APPLY is a command
/// that could be: it is meant for slots that are imported.
#[test]
fn a_full_replica_applies_and_a_full_server_loads_its_aof() {
    on_every_engine(|engine| {
        let master =
            Server::builder(engine).option("appendonly", "yes").option("appendfsync", "always").start();
        let mut replica = Server::builder(engine).option("maxmemory", "1").start();
        replicate(&replica, &master);
        link_up(&replica);
        let mut c = master.connect();
        for i in 0..50 {
            call!(c, "RQ.PUSH", "q", format!("message {i}"));
            call!(c, "TB.TAKE", format!("tb{i}"), 10, 1, 60_000);
        }
        call!(c, "RQ.CLAIM", "q", "COUNT", 20);
        caught_up(&master, &replica);
        let mut r = replica.connect();
        assert_eq!(digest(&mut r), digest(&mut c));
        assert_eq!(call!(r, "DBSIZE"), Value::Int(51));
        // As soon as it may be written to, it is full.
        call!(r, "REPLICAOF", "NO", "ONE");
        assert!(error!(r, "RQ.PUSH", "q", "more").starts_with("OOM"));
        replica.stop();
        let before = digest(&mut c);
        let mut master = master;
        master.set_option("maxmemory", "1");
        master.kill_9();
        master.start_again();
        let mut c = master.connect();
        assert_eq!(digest(&mut c), before);
        assert_eq!(call!(c, "DBSIZE"), Value::Int(51));
    });
}

// ---------------------------------------------------------------- what a replica tells

/// The keyspace events that a server tells until a mark comes, but for those of new keys, which
/// some engines have.
fn heard(events: &mut crate::common::RawConnection, mark: &str) -> Vec<String> {
    let mut heard = Vec::new();
    loop {
        let Reply::Array(message) = events.read().expect("an event") else { panic!("an event is an array") };
        let text = |reply: &Reply| match reply {
            Reply::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("a part of an event is a string, not {other}"),
        };
        let (channel, key) = (text(&message[2]), text(&message[3]));
        if key == mark {
            return heard;
        }
        let name = channel.split("__:").nth(1).expect("the channel of an event").to_owned();
        if name != "new" && name != "expire" {
            heard.push(format!("{name} {key}"));
        }
    }
}

#[test]
fn a_replica_tells_the_events_that_its_master_tells() {
    const LINES: &[&str] = &[
        "TB.SET tb 10 1 1000",
        "TB.TAKE tb",
        "LB.SET lb 10 1 1000",
        "SEM.SET sem 1",
        "SEM.ACQUIRE sem LEASE 60000",
        "GATE.SET gate STAGE a TB 1 1 1",
        "HOT.SET hot 10 1 1000",
        "RQ.SET q MAXLEN 2 ONFULL DROPOLD",
        "RQ.PUSH q a",
        "RQ.MPUSH q 2 b c",
        "RQ.CLAIM q",
        "RQ.REQUEUE q ALL",
        "RQ.MOVE q other READY COUNT 1",
        "RQ.PURGE q ALL",
        "SEM.SET short 1",
        "SEM.ACQUIRE short LEASE 50",
        "TB.TAKE own 10 1 60000",
        "TB.RESET own",
        "DEL q",
    ];
    on_every_engine(|engine| {
        let (master, replica) = pair(engine);
        let mut both = [&master, &replica].map(|server| {
            call!(server.connect(), "CONFIG", "SET", "notify-keyspace-events", "KEA");
            let mut events = server.raw();
            events.call(&["PSUBSCRIBE", "__keyevent@*__:*"]).expect("a subscription");
            events
        });
        let mut m = master.raw();
        let mut run = |line: &str| {
            let reply = m.call(&line.split(' ').collect::<Vec<_>>()).expect("the server answers");
            assert!(!matches!(reply, Reply::Error(_)), "{line}: {reply}");
            reply
        };
        for line in LINES {
            run(line);
            let mark = format!("mark:{line}");
            if line.contains("LEASE 50") {
                // A lease that ends by itself is told, too.
                eventually("the lease to end", || {
                    info(&mut master.connect(), "sluice")["sluice_sem_timeout"] == "1"
                });
            }
            call!(master.connect(), "SET", &mark, "x");
            let [here, there] = both.each_mut().map(|events| heard(events, &mark));
            assert_eq!(there, here, "{line}");
        }
        assert_no_panic(&replica);
    });
}
