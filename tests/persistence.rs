//! What is stored is what was there: RDB, AOF, DUMP and COPY, and what a killed server still knows.
//!
//! Two servers that play the same load by the frozen clock hold the same, byte for byte. So a
//! server that stored and loaded in the middle of a load is compared with one that did not, also in
//! all it answers afterwards.

use crate::common::workload::{
    Load, Workload, assert_no_panic, assert_same, held, hold_still, keys, rounds, seen, shown,
    without_numbers,
};
use crate::common::{
    Builder, Engine, RawConnection, Reply, Server, T0, advance_clock, array, call, digest, error, eventually,
    info, int, ints, map, on_every_engine, say, set_clock, text, within,
};
use redis::{Connection, Value};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Steps of a load before and after what a test is about.
const STEPS: usize = 1500;

const AOF: &[(&str, &str)] = &[("appendonly", "yes"), ("appendfsync", "always")];

fn with(builder: Builder, options: &[(&str, &str)]) -> Builder {
    options.iter().fold(builder, |b, (name, value)| b.option(name, value))
}

/// Plays a load on two servers, does `store` to one of them, and holds that it has lost nothing and
/// answers as the other from then on.
#[track_caller]
fn stored_in_the_middle_of_a_load(
    engine: &Engine,
    options: &[(&str, &str)],
    workload: impl Fn(&Server, u64) -> Workload,
    store: impl Fn(&mut Server),
) {
    for round in 0..rounds() {
        stored_once(engine, options, |server| workload(server, 1000 * round), &store);
    }
}

#[track_caller]
fn stored_once(
    engine: &Engine,
    options: &[(&str, &str)],
    workload: impl Fn(&Server) -> Workload,
    store: impl Fn(&mut Server),
) {
    let twin = Server::start(engine);
    let mut server = with(Server::builder(engine), options).start();
    let (mut twin_load, mut load) = (workload(&twin), workload(&server));
    let expected = twin_load.play(&mut twin.raw(), STEPS);
    assert_eq!(load.play(&mut server.raw(), STEPS), expected, "the same load on two servers of {engine}");
    assert_eq!(digest(&mut server.connect()), digest(&mut twin.connect()), "the same load on two servers");

    let (before, saw) = (held(&server), seen(&server));
    assert!(before.len() > 8, "the load leaves something to store: {before:?}");
    store(&mut server);
    // A server that was started anew has a running clock.
    set_clock(&mut server.connect(), load.clock());
    let sees = seen(&server);
    for (key, replies) in &saw {
        let shown = |r: &[Reply]| r.iter().map(Reply::to_string).collect::<Vec<_>>();
        assert_eq!(shown(&sees[key]), shown(replies), "what clients see of {key:?} before and after");
    }
    assert_same("before and after", &before, &held(&server));

    // While the clock stands a full limiter goes at an instant of the module's timer instead of the
    // server's: it is told at load.
    call!(server.connect(), "DEBUG", "RELOAD");
    let expected = twin_load.play(&mut twin.raw(), STEPS);
    let got = load.play(&mut server.raw(), STEPS);
    for (got, expected) in got.iter().zip(&expected) {
        let replies = [got, expected].map(|p| without_numbers(&p.reply).to_string());
        assert_eq!(replies[0], replies[1], "{} after it", shown(&expected.command));
    }
    assert_no_panic(&server);
    assert_no_panic(&twin);
}

#[test]
fn a_debug_reload_keeps_everything() {
    on_every_engine(|engine| {
        stored_in_the_middle_of_a_load(
            engine,
            &[],
            |s, more| Workload::frozen(s, 11 + more),
            |server| {
                call!(server.connect(), "DEBUG", "RELOAD");
            },
        );
    });
}

#[test]
fn a_restart_from_the_rdb_keeps_everything() {
    on_every_engine(|engine| {
        stored_in_the_middle_of_a_load(
            engine,
            &[],
            |s, more| Workload::frozen(s, 12 + more),
            |server| {
                call!(server.connect(), "SAVE");
                server.restart();
            },
        );
    });
}

#[test]
fn a_restart_from_the_aof_keeps_everything() {
    on_every_engine(|engine| {
        // The wall clock of the new server is behind the load's, and it looks at instants that were
        // due once.
        let load = |s: &Server, more| Workload::frozen(s, 13 + more).without_rates();
        stored_in_the_middle_of_a_load(engine, AOF, load, Server::restart);
    });
}

fn rewrite_aof(server: &Server) {
    let mut c = server.connect();
    call!(c, "BGREWRITEAOF");
    rewritten(&mut c);
}

/// Waits until no AOF is being rewritten or about to be, and holds that it went well.
fn rewritten(c: &mut Connection) {
    eventually("the AOF to be rewritten", || {
        let fields = info(c, "persistence");
        fields["aof_rewrite_in_progress"] == "0" && fields["aof_rewrite_scheduled"] == "0"
    });
    assert_eq!(info(c, "persistence")["aof_last_bgrewrite_status"], "ok");
}

#[test]
fn a_rewritten_aof_keeps_everything_with_and_without_the_rdb_preamble() {
    on_every_engine(|engine| {
        for (seed, preamble) in [(14, "yes"), (15, "no")] {
            let options = [AOF, &[("aof-use-rdb-preamble", preamble)]].concat();
            stored_in_the_middle_of_a_load(
                engine,
                &options,
                |s, more| Workload::frozen(s, seed + more),
                |server| {
                    rewrite_aof(server);
                    server.restart();
                    // What was loaded from a rewritten file can be rewritten again.
                    rewrite_aof(server);
                    server.restart();
                },
            );
        }
    });
}

#[test]
fn a_load_that_goes_on_while_the_aof_is_rewritten_loses_nothing() {
    on_every_engine(|engine| {
        for (seed, preamble) in [(16, "yes"), (17, "no")] {
            let options = [AOF, &[("aof-use-rdb-preamble", preamble)]].concat();
            let mut server = with(Server::builder(engine), &options).start();
            let load = Load::start(&server, seed, 2);
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(40));
                rewrite_aof(&server);
            }
            restarts_equal(&mut server, load);
        }
    });
}

/// Stops the load, and holds that the server knows after a restart what it knows now.
#[track_caller]
fn restarts_equal(server: &mut Server, load: Load) {
    let steps = load.stop();
    hold_still(server);
    let before = held(server);
    assert!(steps > 0 && before.len() > 4, "the load leaves something: {steps} steps, {before:?}");
    assert_no_panic(server);
    // Nothing may be due before it is looked at: the clock stands from the first moment.
    let now = int(call!(server.connect(), "SLUICE.CLOCK"));
    server.stop();
    replay_clock(server, now);
    assert_same("before and after a restart", &before, &held(server));
}

/// Starts a stopped server again with everything as it was when it stopped. What fell due while it
/// was down has happened at once after the load, so what is looked at is a replica of the file: the
/// server starts as a replica of nobody, which does nothing by itself.
#[track_caller]
fn replay_clock(server: &mut Server, now: i64) {
    server.set_option("replicaof", "127.0.0.1 1");
    server.start_again();
    let _ = now;
}

#[test]
fn an_aof_that_is_switched_on_under_load_misses_nothing() {
    on_every_engine(|engine| {
        for round in 0..3 {
            let mut server = Server::start(engine);
            let load = Load::start(&server, 20 + round, 2);
            std::thread::sleep(Duration::from_millis(30));
            let mut c = server.connect();
            if round == 1 {
                // A child that saves an RDB is running: the first AOF is written only after it.
                call!(c, "CONFIG", "SET", "rdb-key-save-delay", 20_000);
                call!(c, "BGSAVE");
                call!(c, "CONFIG", "SET", "rdb-key-save-delay", 0);
            }
            call!(c, "CONFIG", "SET", "appendonly", "yes");
            call!(c, "CONFIG", "SET", "appendfsync", "always");
            rewritten(&mut c);
            if round == 2 {
                // Off and on again: what happened in between is in the new file.
                call!(c, "CONFIG", "SET", "appendonly", "no");
                std::thread::sleep(Duration::from_millis(30));
                call!(c, "CONFIG", "SET", "appendonly", "yes");
                rewritten(&mut c);
            }
            std::thread::sleep(Duration::from_millis(30));
            server.set_option("appendonly", "yes");
            server.set_option("appendfsync", "always");
            restarts_equal(&mut server, load);
        }
    });
}

// ---------------------------------------------------------------- kill -9

/// What the clients of a killed server know: which commands were answered.
#[derive(Default)]
struct Known {
    pushed: Vec<String>,
    /// Acks that were sent; the message may be gone.
    ack_sent: Vec<String>,
    acked: Vec<String>,
    taken: i64,
    claimed: Vec<String>,
}

/// Pushes, claims, acks and takes in a pipeline until the connection breaks.
fn load_until_it_dies(port: u16, worker: usize) -> Known {
    const BATCH: usize = 10;
    let mut known = Known::default();
    let Ok(mut c) = RawConnection::open(port) else { return known };
    let mut receipts: Vec<String> = Vec::new();
    for round in 0.. {
        let ids: Vec<String> = (0..BATCH).map(|i| format!("{worker}-{round}-{i}")).collect();
        let acks: Vec<String> = receipts.drain(..).step_by(2).collect();
        let mut sent = Ok(());
        for id in &ids {
            sent = sent.and(c.send(&["RQ.PUSH", "q", "payload", "ID", id]));
        }
        for receipt in &acks {
            known.ack_sent.push(id_of(receipt));
            sent = sent.and(c.send(&["RQ.ACK", "q", receipt]));
        }
        sent = sent.and(c.send(&["RQ.CLAIM", "q", "COUNT", "8", "LEASE", "600000"]));
        sent = sent.and(c.send(&["TB.TAKE", "bucket", "COST", "3"]));
        if sent.is_err() {
            return known;
        }
        for id in ids {
            match c.read() {
                Ok(_) => known.pushed.push(id),
                Err(_) => return known,
            }
        }
        for receipt in acks {
            match c.read() {
                Ok(reply) => {
                    assert_eq!(reply, Reply::Array(vec![Reply::Int(1)]), "the ack of {receipt}");
                    known.acked.push(id_of(&receipt));
                }
                Err(_) => return known,
            }
        }
        match c.read() {
            Ok(Reply::Array(messages)) => {
                for message in messages {
                    if let Reply::Array(fields) = message
                        && let Reply::Bytes(receipt) = &fields[1]
                    {
                        receipts.push(String::from_utf8_lossy(receipt).into_owned());
                    }
                }
                known.claimed.extend(receipts.iter().cloned());
            }
            _ => return known,
        }
        match c.read() {
            Ok(Reply::Array(fields)) if matches!(fields[0], Reply::Int(3)) => known.taken += 3,
            Ok(other) => panic!("TB.TAKE answered {other}"),
            Err(_) => return known,
        }
    }
    known
}

fn id_of(receipt: &str) -> String {
    receipt.rsplit_once('@').expect("a receipt").0.to_owned()
}

fn claim_number(receipt: &str) -> u64 {
    receipt.rsplit_once('@').expect("a receipt").1.parse().expect("a number")
}

#[test]
fn a_killed_server_loses_nothing_it_has_acknowledged_and_brings_back_nothing_acked() {
    on_every_engine(|engine| {
        const CAPACITY: i64 = 1_000_000_000;
        let mut server = with(Server::builder(engine), AOF).start();
        let mut c = server.connect();
        call!(c, "RQ.SET", "q", "LEASE", 600_000);
        // Slow enough to gain nothing while the test runs.
        call!(c, "TB.SET", "bucket", CAPACITY, 1, 31_622_400_000_i64);
        let (mut taken, mut highest) = (0, 0);
        for life in 0..3 {
            let port = server.port();
            let workers: Vec<_> =
                (0..2).map(|i| std::thread::spawn(move || load_until_it_dies(port, life * 2 + i))).collect();
            let mut c = server.connect();
            eventually("the load to run", || int(call!(c, "RQ.LEN", "q", "INFLIGHT")) > 100);
            if life == 1 {
                call!(c, "BGREWRITEAOF");
            }
            std::thread::sleep(Duration::from_millis(20));
            server.kill_9();
            let known: Vec<Known> = workers.into_iter().map(|w| w.join().expect("a worker")).collect();
            server.start_again();
            let mut c = server.connect();
            let ack_sent: HashSet<&String> = known.iter().flat_map(|k| &k.ack_sent).collect();
            let acked: HashSet<&String> = known.iter().flat_map(|k| &k.acked).collect();
            for k in &known {
                taken += k.taken;
                for id in &k.pushed {
                    let there = call!(c, "RQ.GET", "q", id) != Value::Nil;
                    assert!(there || ack_sent.contains(id), "{id} was pushed and is lost");
                    assert!(!there || !acked.contains(id), "{id} was acked and has come back");
                }
                for receipt in k.claimed.iter().filter(|r| !ack_sent.contains(&id_of(r))) {
                    let held = ints(call!(c, "RQ.EXTEND", "q", 600_000, receipt));
                    assert_eq!(held, [1], "the lease of {receipt} outlives the server");
                }
                let last = k.claimed.iter().map(|r| claim_number(r)).max().expect("claims");
                assert!(last > highest, "claims {last} of a new life are above {highest}");
            }
            highest = known.iter().flat_map(|k| &k.claimed).map(|r| claim_number(r)).max().expect("claims");
            let remaining = int(map(call!(c, "TB.INFO", "bucket"))["remaining"].clone());
            // The last take of each worker may have been made and not answered.
            assert!(remaining <= CAPACITY - taken, "{taken} tokens were taken, {remaining} are left");
            taken = CAPACITY - remaining;
            assert_no_panic(&server);
            call!(c, "RQ.PURGE", "q", "READY");
            call!(c, "RQ.REQUEUE", "q", "ALL");
            call!(c, "RQ.PURGE", "q", "READY");
        }
    });
}

// ---------------------------------------------------------------- one key

#[test]
fn dump_and_restore_and_copy_give_equal_keys() {
    on_every_engine(|engine| {
        let server = Server::start(engine);
        let mut load = Workload::frozen(&server, 31);
        load.play(&mut server.raw(), 2 * STEPS);
        let (mut c, mut other) = (server.connect(), server.connect_db(3));
        let names = keys(&mut c);
        assert!(names.len() > 5, "the load leaves keys: {names:?}");
        for key in &names {
            if !text(call!(c, "TYPE", key)).starts_with("sluice-") {
                continue;
            }
            let payload = call!(c, "DUMP", key);
            let Value::BulkString(bytes) = &payload else { panic!("DUMP {key} answered {payload:?}") };
            // A limiter that goes by itself but has lost its TTL (PERSIST) would get one by
            // RESTORE: it has one first.
            if ["tb:", "lb:", "sem:"].iter().any(|family| key.starts_with(family)) {
                call!(c, "PEXPIRE", key, 31_622_400_000_i64, "NX");
            }
            let ttl = int(call!(c, "PEXPIRETIME", key)).max(0);
            call!(other, "RESTORE", key, ttl, bytes.as_slice(), "ABSTTL");
            call!(c, "COPY", key, "copy");
            call!(c, "COPY", key, "copy", "DB", 4);
            let mut fourth = server.connect_db(4);
            let expected = digest_of(&mut c, key);
            assert_eq!(digest_of(&mut other, key), expected, "RESTORE of {key}");
            assert_eq!(digest_of(&mut c, "copy"), expected, "COPY of {key}");
            assert_eq!(digest_of(&mut fourth, "copy"), expected, "COPY of {key} to another database");
            assert_eq!(call!(other, "DUMP", key), payload, "DUMP of the restored {key}");
            assert_eq!(call!(c, "DUMP", "copy"), payload, "DUMP of the copy of {key}");
            assert_eq!(int(call!(c, "PEXPIRETIME", "copy")), int(call!(c, "PEXPIRETIME", key)), "{key}");
            call!(c, "DEL", "copy");
            call!(fourth, "DEL", "copy");
            // The two are independent of each other.
            call!(other, "DEL", key);
            assert_eq!(digest_of(&mut c, key), expected, "{key} after its copies are gone");
        }
        assert_no_panic(&server);
    });
}

fn digest_of(c: &mut Connection, key: &str) -> String {
    text(array(call!(c, "DEBUG", "DIGEST-VALUE", key)).remove(0))
}

fn claim_one(c: &mut Connection, key: &str) -> String {
    let message = array(array(call!(c, "RQ.CLAIM", key, "LEASE", 60_000)).remove(0));
    text(message[1].clone())
}

#[test]
fn claim_numbers_rise_over_deletion_restores_of_old_dumps_and_restarts() {
    on_every_engine(|engine| {
        let mut server = with(Server::builder(engine), AOF).start();
        let mut c = server.connect();
        set_clock(&mut c, T0);
        let mut seen: Vec<u64> = Vec::new();
        let mut claims_rise = |c: &mut Connection, after: &str| {
            for key in ["q", "other"] {
                call!(c, "RQ.PUSH", key, "p");
                let number = claim_number(&claim_one(c, key));
                let last = seen.last().copied().unwrap_or(0);
                assert!(number > last, "{number} after {after} is not above {last}");
                seen.push(number);
            }
        };
        claims_rise(&mut c, "nothing");
        let Value::BulkString(old) = call!(c, "DUMP", "q") else { panic!("no dump") };
        claims_rise(&mut c, "a dump");
        call!(c, "DEL", "q");
        claims_rise(&mut c, "DEL");
        call!(c, "RESTORE", "q", 0, old.as_slice(), "REPLACE");
        claims_rise(&mut c, "RESTORE of an old dump");
        call!(c, "DEBUG", "RELOAD");
        claims_rise(&mut c, "DEBUG RELOAD");
        // The clock going back is no way to an old number.
        set_clock(&mut c, T0 - 1_000_000);
        claims_rise(&mut c, "a step back of the clock");
        drop(c);
        server.restart();
        let mut c = server.connect();
        set_clock(&mut c, T0 - 2_000_000);
        claims_rise(&mut c, "a restart");
        call!(c, "DEL", "q", "other");
        drop(c);
        server.restart();
        let mut c = server.connect();
        set_clock(&mut c, T0);
        call!(c, "FLUSHALL");
        claims_rise(&mut c, "FLUSHALL");
    });
}

#[test]
fn a_dump_that_is_newer_than_the_server_raises_its_claim_numbers() {
    on_every_engine(|engine| {
        let (server, ahead) = (Server::start(engine), Server::start(engine));
        let (mut c, mut a) = (server.connect(), ahead.connect());
        // By less than a day: what is further ahead is forged (see fencing.rs).
        set_clock(&mut a, crate::common::stage::wall() + 12 * 3_600_000);
        call!(a, "RQ.PUSH", "q", "p", "ID", "first");
        let receipt = claim_one(&mut a, "q");
        let Value::BulkString(payload) = call!(a, "DUMP", "q") else { panic!("no dump") };
        call!(c, "RESTORE", "q", 0, payload.as_slice());
        // The receipt came along with its lease, and nobody gets its number again.
        call!(c, "RQ.PUSH", "fresh", "p");
        assert!(claim_number(&claim_one(&mut c, "fresh")) > claim_number(&receipt));
        assert_eq!(ints(call!(c, "RQ.ACK", "q", &receipt)), [1]);
    });
}

#[test]
fn receipts_leases_holds_and_bans_outlive_a_restart_with_their_absolute_ends() {
    on_every_engine(|engine| {
        for options in [&[("save", "3600 1")][..], AOF] {
            let mut server = with(Server::builder(engine), options).start();
            let mut c = server.connect();
            set_clock(&mut c, T0);
            call!(c, "RQ.SET", "q", "BACKOFF", "NONE");
            call!(c, "RQ.PUSH", "q", "p", "ID", "leased");
            call!(c, "RQ.PUSH", "q", "p", "ID", "late", "DELAY", 7000);
            let message = array(array(call!(c, "RQ.CLAIM", "q", "LEASE", 5000)).remove(0));
            let receipt = text(message[1].clone());
            let hold = text_of(
                array(call!(c, "TB.HOLD", "tb", 10, 1, 1000, "COST", 4, "TTL", 5000, "ONEXPIRE", "REFUND"))
                    [6]
                .clone(),
            );
            call!(c, "TB.BAN", "banned", 5000);
            call!(c, "LB.TAKE", "lb", 10, 1, 1000, "COST", 6);
            drop(c);
            server.restart();
            let mut c = server.connect();
            set_clock(&mut c, T0 + 4999);
            assert_eq!(int(map(call!(c, "RQ.GET", "q", "leased"))["deadline"].clone()), T0 + 5000);
            assert_eq!(int(call!(c, "RQ.LEN", "q", "INFLIGHT")), 1);
            assert_eq!(int(map(call!(c, "TB.INFO", "tb"))["holds"].clone()), 1, "hold {hold}");
            assert_eq!(int(map(call!(c, "TB.INFO", "banned"))["banned_for"].clone()), 1);
            assert_eq!(ints(call!(c, "LB.PEEK", "lb", 10, 1, 1000))[4], 1001);
            // And they end at that very instant.
            call!(c, "COPY", "q", "still");
            assert_eq!(ints(call!(c, "RQ.ACK", "still", &receipt)), [1]);
            advance_clock(&mut c, 1);
            assert_eq!(ints(call!(c, "RQ.ACK", "q", &receipt)), [0]);
            assert_eq!(int(call!(c, "RQ.LEN", "q", "READY")), 1);
            assert_eq!(error!(c, "TB.SETTLE", "tb", &hold, 1), "ERR no such hold");
            assert_eq!(ints(call!(c, "TB.TAKE", "banned", 1, 1, 1))[0], 1);
            advance_clock(&mut c, 2000);
            assert_eq!(int(call!(c, "RQ.LEN", "q", "READY")), 2);
        }
    });
}

fn text_of(value: Value) -> String {
    match value {
        Value::Int(n) => n.to_string(),
        other => text(other),
    }
}

#[test]
fn a_lease_that_ended_while_the_server_was_down_is_over_when_it_is_back() {
    on_every_engine(|engine| {
        let mut server = with(Server::builder(engine), AOF).start();
        let mut c = server.connect();
        call!(c, "RQ.PUSH", "q", "p");
        call!(c, "RQ.CLAIM", "q", "LEASE", 300);
        drop(c);
        server.stop();
        std::thread::sleep(Duration::from_millis(310));
        server.start_again();
        let mut c = server.connect();
        // No command touches the queue: the timer alone has to see it, and counts it in what is
        // stored.
        eventually("the timer to end the lease", || {
            let fields = info(&mut c, "sluice");
            fields.iter().any(|(name, n)| name.ends_with("rq_timeout") && n == "1")
        });
        assert_eq!(int(call!(c, "RQ.LEN", "q", "READY")), 1);
    });
}

/// An unpinned limiter has a TTL of the server's own, and a pinned one has none, wherever they came
/// from.
#[test]
fn pinning_removes_the_ttl_also_of_a_key_that_was_loaded() {
    on_every_engine(|engine| {
        let options = [AOF, &[("aof-use-rdb-preamble", "no")]].concat();
        let mut server = with(Server::builder(engine), &options).start();
        let mut c = server.connect();
        for key in ["reload", "rewrite", "aof", "restore", "expire", "copied"] {
            call!(c, "TB.TAKE", key, 10, 1, 60_000, "COST", 5);
            call!(c, "LB.TAKE", format!("lb-{key}"), 10, 1, 60_000, "COST", 5);
            assert!(int(call!(c, "PTTL", key)) > 0);
        }
        let pin = |c: &mut Connection, key: &str| {
            assert!(int(call!(c, "PTTL", key)) > 0, "{key} has a TTL");
            call!(c, "TB.SET", key, 10, 1, 60_000);
            assert_eq!(int(call!(c, "PTTL", key)), -1, "{key} is pinned");
            let key = format!("lb-{key}");
            assert!(int(call!(c, "PTTL", &key)) > 0, "{key} has a TTL");
            call!(c, "LB.SET", &key, 10, 1, 60_000);
            assert_eq!(int(call!(c, "PTTL", &key)), -1, "{key} is pinned");
        };
        call!(c, "DEBUG", "RELOAD");
        pin(&mut c, "reload");
        for key in ["restore", "lb-restore"] {
            let Value::BulkString(payload) = call!(c, "DUMP", key) else { panic!("no dump") };
            call!(c, "RESTORE", key, 60_000, payload.as_slice(), "REPLACE");
            call!(c, "COPY", key.replace("restore", "copied"), key.replace("restore", "copy"));
        }
        pin(&mut c, "restore");
        pin(&mut c, "copy");
        drop(c);
        server.restart();
        pin(&mut server.connect(), "aof");
        rewrite_aof(&server);
        server.restart();
        let mut c = server.connect();
        pin(&mut c, "rewrite");
        // A TTL that a client gave goes too.
        call!(c, "PEXPIRE", "expire", 50_000);
        call!(c, "PEXPIRE", "lb-expire", 50_000);
        pin(&mut c, "expire");
        call!(c, "PEXPIRE", "expire", 50_000);
        call!(c, "PEXPIRE", "lb-expire", 50_000);
        pin(&mut c, "expire");
        drop(c);
        server.restart();
        let mut c = server.connect();
        for key in ["reload", "restore", "copy", "aof", "rewrite", "expire"] {
            assert_eq!(int(call!(c, "PTTL", key)), -1, "{key} after a restart");
        }
    });
}

/// An unpinned limiter lives until it is full again, whatever a client did to its TTL before.
#[test]
fn a_take_gives_a_loaded_limiter_the_ttl_it_needs() {
    on_every_engine(|engine| {
        let options = [AOF, &[("aof-use-rdb-preamble", "no")]].concat();
        let mut server = with(Server::builder(engine), &options).start();
        let mut c = server.connect();
        call!(c, "TB.TAKE", "k", 100, 1, 1_000, "COST", 2);
        call!(c, "LB.TAKE", "l", 100, 1, 1_000, "COST", 2);
        drop(c);
        rewrite_aof(&server);
        server.restart();
        let mut c = server.connect();
        call!(c, "TB.TAKE", "k", 100, 1, 1_000, "COST", 90);
        call!(c, "LB.TAKE", "l", 100, 1, 1_000, "COST", 90);
        for key in ["k", "l"] {
            let ttl = int(call!(c, "PTTL", key));
            assert!(ttl > 85_000, "{key}: full again in 90 s, lives {ttl} ms");
        }
    });
}

// ---------------------------------------------------------------- save points

#[test]
fn changes_that_nobody_listens_to_count_for_save_points() {
    on_every_engine(|engine| {
        let mut server = with(Server::builder(engine), &[("save", "1 50")]).start();
        let mut c = server.connect();
        let saves = |c: &mut Connection| int(call!(c, "LASTSAVE"));
        let file = server.dir().join("dump.rdb");
        for i in 0..40 {
            call!(c, "RQ.PUSH", "q", "p", "ID", format!("m{i}"));
        }
        eventually("the changes to be counted", || {
            info(&mut c, "persistence")["rdb_changes_since_last_save"] == "40"
        });
        let refused = ints(call!(c, "TB.TAKE", "t", 1, 1, 1000, "COST", 2));
        assert_eq!(refused[0], 0);
        // Refused ones do not count; 9 more do not suffice, the next does.
        for _ in 0..9 {
            call!(c, "TB.TAKE", "t", 100, 1, 1_000_000);
        }
        std::thread::sleep(Duration::from_millis(250));
        assert_eq!(info(&mut c, "persistence")["rdb_changes_since_last_save"], "49");
        assert!(!file.exists(), "not enough changes to save for");
        let before = saves(&mut c);
        call!(c, "LB.TAKE", "l", 100, 1, 1_000_000);
        within(Duration::from_secs(10), "the save point", || {
            (file.exists() && saves(&mut c) >= before).then_some(())
        });
        eventually("the count to begin anew", || {
            let fields = info(&mut c, "persistence");
            fields["rdb_changes_since_last_save"] == "0" && fields["rdb_bgsave_in_progress"] == "0"
        });
        server.kill_9();
        server.start_again();
        let mut c = server.connect();
        assert_eq!(int(call!(c, "RQ.LEN", "q")), 40);
        assert_eq!(int(call!(c, "EXISTS", "t", "l")), 2);
    });
}

// ---------------------------------------------------------------- what changes nothing

/// Everything by which the world would notice a change.
#[derive(Debug, PartialEq)]
struct Traces {
    aof: String,
    offset: String,
    dirty: String,
    keys: Vec<(String, String, i64)>,
}

fn traces(server: &Server, c: &mut Connection) -> Traces {
    let persistence = info(c, "persistence");
    let names = keys(c);
    let keys = names.into_iter().map(|key| {
        let (digest, expires) = (digest_of(c, &key), int(call!(c, "PEXPIRETIME", &key)));
        (key, digest, expires)
    });
    let keys = keys.collect();
    // Replicas acknowledge to their master, which does not count; a ping to them would
    // (repl-ping-replica-period).
    let offset = info(c, "replication")["master_repl_offset"].clone();
    let _ = server;
    Traces {
        aof: persistence["aof_current_size"].clone(),
        offset,
        dirty: persistence["rdb_changes_since_last_save"].clone(),
        keys,
    }
}

#[test]
fn refused_peeked_and_failed_calls_leave_no_trace() {
    on_every_engine(|engine| {
        let options =
            [AOF, &[("notify-keyspace-events", "KEAd"), ("repl-ping-replica-period", "3600")]].concat();
        // How far the numbers have got is told by the cron, whatever clients do.
        let options = [&options[..], &[("sluice.keep-numbers", "no")]].concat();
        let server = with(Server::builder(engine), &options).start();
        let replica = Server::start(engine);
        replica.replica_of(&server);
        let mut c = server.connect();
        set_clock(&mut c, T0);
        prepare_refusals(&mut c);
        let mut listener = server.raw();
        listener.call(&["PSUBSCRIBE", "__key*"]).expect("a subscription");

        let nothing = calls_that_do_nothing(&mut c);
        let before = traces(&server, &mut c);
        let mut raw = server.raw();
        for line in &nothing {
            let words: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
            let shown = String::from_utf8_lossy(line).into_owned();
            call!(c, "WATCH", "tb", "lb", "q", "full", "paused", "missing", "cold", "text", "any");
            let reply = raw.call(&words).expect("a reply");
            call!(c, "MULTI");
            call!(c, "PING");
            let executed = call!(c, "EXEC");
            assert!(matches!(executed, Value::Array(_)), "{shown} ({reply}) dirtied a WATCH");
            assert_eq!(traces(&server, &mut c), before, "{shown} ({reply}) left a trace");
            // In a transaction it is the same, and the transaction itself is not carried.
            raw.call(&["MULTI"]).expect("a reply");
            raw.send(&words).expect("a connection");
            raw.read().expect("a reply");
            raw.send(&["EXEC"]).expect("a connection");
            raw.read().expect("a reply");
            assert_eq!(traces(&server, &mut c), before, "{shown} in a transaction left a trace");
            assert!(
                listener.is_silent_for(Duration::ZERO),
                "{shown} ({reply}) emitted {:?}",
                listener.read()
            );
        }
        // The positive control: what does something is seen by all of these.
        call!(c, "WATCH", "q");
        raw.call(&["RQ.PUSH", "q", "p"]).expect("a reply");
        call!(c, "MULTI");
        assert_eq!(call!(c, "EXEC"), Value::Nil);
        let after = traces(&server, &mut c);
        assert!(after.aof != before.aof && after.offset != before.offset && after.dirty != before.dirty);
        assert_ne!(after.keys, before.keys);
        assert!(!listener.is_silent_for(Duration::from_secs(2)), "a push emits an event");
    });
}

/// Keys in states in which there is something to refuse.
fn prepare_refusals(c: &mut Connection) {
    call!(c, "SET", "text", "a string");
    call!(c, "TB.TAKE", "tb", 10, 1, 1_000_000, "COST", 8);
    call!(c, "TB.SET", "pinned", 10, 1, 1_000_000);
    call!(c, "TB.BAN", "banned", 1_000_000);
    call!(c, "LB.TAKE", "lb", 10, 1, 1_000_000, "COST", 8);
    call!(c, "RQ.PUSH", "q", "p", "ID", "claimed");
    call!(c, "RQ.CLAIM", "q");
    call!(c, "RQ.PUSH", "q", "p", "ID", "delayed", "DELAY", 1_000_000);
    call!(c, "RQ.PUSH", "full", "p", "ID", "there");
    call!(c, "RQ.SET", "full", "MAXLEN", 1, "RATE", 1, 1_000_000, 1);
    call!(c, "RQ.PUSH", "paused", "p");
    call!(c, "RQ.PAUSE", "paused");
    call!(c, "RQ.PUSH", "follow", "p", "ID", "a", "DEDUP", 1_000_000);
    call!(c, "RQ.DEL", "follow", "b");
    if crate::common::registered_commands(c).iter().any(|n| n == "sem.acquire") {
        call!(c, "SEM.ACQUIRE", "sem", 2, "COUNT", 2, "LEASE", 1_000_000);
    }
}

fn calls_that_do_nothing(c: &mut Connection) -> Vec<Vec<u8>> {
    let mut lines: Vec<String> = "
        TB.TAKE tb COST 3|TB.TAKE tb 10 1 1000000 COST 11|TB.TAKE tb COST 3 BLOCK 1|TB.TAKE banned 5 1 1000|TB.TAKE banned 5 1 1000 FORCE
        TB.TAKE missing|TB.TAKE missing 1 1 1 COST 2|TB.TAKE missing 0 1 1|TB.TAKE missing 1 1 1 NOPE|TB.TAKE text 1 1 1|TB.TAKE q 1 1 1
        TB.TAKE tb COST 3 ATMOST FORCE|TB.TAKE tb 20 1 1000000 COST 21|TB.TAKE pinned COST 11|TB.TAKE tb COST 19 FORCE
        TB.PEEK tb|TB.PEEK missing 5 1 1000 COST 2|TB.PEEK pinned|TB.PEEK text|TB.REFUND missing 3|TB.REFUND pinned 5|TB.REFUND tb 0
        TB.RESET missing|TB.BAN missing 0|TB.BAN tb 0|TB.DRAIN missing|TB.HOLD tb COST 3 TTL 1000|TB.HOLD missing 5 1 1000 COST 6 TTL 1000
        TB.SETTLE tb 7 1|TB.SETTLE missing 7 1|TB.SETTLE pinned 7 0|TB.INFO tb|TB.INFO missing|TB.SET tb 5 1|TB.SET text 5 1 1
        TB.SET missing 5 1 1 WARMUP x|CL.THROTTLE missing 5 1 10 0|CL.THROTTLE missing 5 1 10 7
        LB.TAKE lb COST 3|LB.TAKE missing|LB.TAKE missing 5 1 1000 COST 6|LB.TAKE lb COST 1 MAXWAIT 0|LB.TAKE lb 10 1 1000000 COST 3 BLOCK
        LB.PEEK lb|LB.PEEK missing 5 1 1000|LB.REFUND missing 2|LB.RESET missing|LB.INFO lb|LB.SET lb 1|LB.TAKE text 1 1 1
        RQ.PUSH full p|RQ.PUSH full p ID there|RQ.PUSH q p ID claimed|RQ.PUSH q p ID claimed ONDUP REPLACE|RQ.PUSH paused p|RQ.PUSH text p
        RQ.PUSH follow p ID a|RQ.PUSH missing|RQ.PUSH missing p ID|RQ.PUSH missing p TTL 0|RQ.PUSH missing p DELAY 1 AT 5
        RQ.MPUSH full 2 a b|RQ.MPUSH paused 1 a|RQ.MPUSH missing 3 a b|RQ.CLAIM missing|RQ.CLAIM q|RQ.CLAIM paused|RQ.CLAIM q GROUP none
        RQ.CLAIM q COUNT 0|RQ.CLAIM text|RQ.MCLAIM 2 q missing|RQ.MCLAIM 2 missing text|RQ.ACK q claimed@7|RQ.ACK missing a@7|RQ.ACK q nonsense
        RQ.ACK q claimed@7 nonsense|RQ.NACK q RECEIPTS 1 claimed@7|RQ.NACK q DEAD RECEIPTS 1 gone@8|RQ.EXTEND q 5000 claimed@7|RQ.NEXT q RECEIPTS 1 claimed@7
        RQ.REQUEUE q|RQ.REQUEUE q CONSUMER nobody|RQ.REQUEUE q STALE 1000000|RQ.REQUEUE missing ALL|RQ.REDRIVE q|RQ.REDRIVE missing|RQ.REDRIVE q IDS 1 claimed
        RQ.DEL q none|RQ.DEL missing a|RQ.PURGE q DEAD|RQ.PURGE q READY|RQ.PURGE missing ALL|RQ.GET q claimed|RQ.GET q none|RQ.LIST q INFLIGHT
        RQ.LEN q|RQ.LEN missing|RQ.INFO q|RQ.INFO missing|RQ.SET q LEASE 0|RQ.SET missing LEASE 5 MAXLEN x|RQ.SET q LEASE 5 LEASE 6|RQ.SET q RATE 0 1 1
        RQ.PAUSE missing UNTIL 5|RQ.RESUME missing|RQ.RESUME q|RQ.RESUME q GROUP none|RQ.PAUSE q PUSH CLAIM NOPE|RQ.MOVE q missing READY|RQ.MOVE q missing DEAD
        RQ.MOVE missing q READY|RQ.MOVE q text READY|RQ.MOVE q q READY|SLUICE.APPLY missing 0 x|SLUICE.APPLY q 0 x|SLUICE.APPLY missing 7 \u{1}\u{1}|SLUICE.VERSION
    "
    .split(['|', '\n'])
    .map(|l| l.trim().to_owned())
    .filter(|l| !l.is_empty())
    .collect();
    if crate::common::registered_commands(c).iter().any(|n| n == "sem.acquire") {
        lines.extend(
            "SEM.ACQUIRE sem|SEM.ACQUIRE sem 5 COUNT 6|SEM.ACQUIRE missing 1 COUNT 2|SEM.RELEASE sem 7|SEM.RELEASE missing 7|SEM.RENEW sem 500 7|SEM.PEEK sem|SEM.INFO sem"
                .split('|')
                .map(str::to_owned),
        );
    }
    lines.into_iter().map(String::into_bytes).collect()
}

// ---------------------------------------------------------------- memory

#[test]
fn memory_usage_grows_with_the_content_and_goes_with_it() {
    on_every_engine(|engine| {
        let server = Server::start(engine);
        let mut c = server.connect();
        let usage = |c: &mut Connection, key: &str| int(call!(c, "MEMORY", "USAGE", key, "SAMPLES", 0));
        let mut last = 0;
        for n in [1_usize, 100, 1000] {
            let mut raw = server.raw();
            for i in 0..n {
                raw.send(&["RQ.PUSH", "q", &"x".repeat(200), "GROUP", &format!("g{}", i % 50)])
                    .expect("a connection");
            }
            for _ in 0..n {
                assert!(matches!(raw.read().expect("a reply"), Reply::Bytes(_)));
            }
            let now = usage(&mut c, "q");
            let least = i64::try_from(n * 200).expect("a small number");
            assert!(now - last >= least, "{n} more messages of 200 bytes take {} bytes", now - last);
            last = now;
        }
        // In flight and dead they still count; acked they do not.
        let claimed = array(call!(c, "RQ.CLAIM", "q", "COUNT", 1000, "LEASE", 60_000));
        assert!(usage(&mut c, "q") >= last);
        let mut nack = crate::common::command!("RQ.ACK", "q");
        for message in claimed {
            nack.arg(text(array(message)[1].clone()));
        }
        use crate::common::Talk as _;
        c.run(&nack);
        assert!(usage(&mut c, "q") < last / 2, "{} of {last} bytes after 1000 acks", usage(&mut c, "q"));
        call!(c, "TB.TAKE", "t", 10, 1, 60_000);
        let small = usage(&mut c, "t");
        assert!(small < 400, "a token bucket takes {small} bytes");
        for _ in 0..50 {
            call!(c, "TB.HOLD", "t", 1000, 1, 60_000, "COST", 1, "TTL", 60_000);
        }
        assert!(usage(&mut c, "t") > small + 50 * 16, "holds count");
    });
}

#[test]
fn a_large_queue_is_freed_in_the_background_or_at_once_and_nothing_stays() {
    on_every_engine(|engine| {
        let server = Server::start(engine);
        let mut c = server.connect();
        let bytes = |c: &mut Connection| -> u64 {
            let fields = info(c, "sluice");
            let of = |end: &str| {
                fields
                    .iter()
                    .find(|(n, _)| n.ends_with(end))
                    .expect("a field")
                    .1
                    .parse::<u64>()
                    .expect("a number")
            };
            of("rq_bytes") + of("rq_keys")
        };
        for how in ["UNLINK", "DEL", "FLUSHALL ASYNC", "FLUSHDB SYNC", "SET", "RENAME", "EXPIRE"] {
            fill(&server, "q", 20_000);
            call!(c, "RQ.CLAIM", "q", "COUNT", 5_000, "LEASE", 600_000);
            assert!(bytes(&mut c) > 1_000_000, "a large queue");
            match how {
                "UNLINK" => drop(call!(c, "UNLINK", "q")),
                "DEL" => drop(call!(c, "DEL", "q")),
                "FLUSHALL ASYNC" => drop(call!(c, "FLUSHALL", "ASYNC")),
                "FLUSHDB SYNC" => drop(call!(c, "FLUSHDB", "SYNC")),
                "SET" => drop(call!(c, "SET", "q", "v")),
                "RENAME" => {
                    call!(c, "SET", "other", "v");
                    call!(c, "RENAME", "other", "q");
                }
                _ => drop(call!(c, "PEXPIRE", "q", 1)),
            }
            eventually(&format!("the memory of the queue to be free after {how}"), || bytes(&mut c) == 0);
            let timed = info(&mut c, "sluice")
                .into_iter()
                .find(|(n, _)| n.ends_with("timer_objects"))
                .expect("a field")
                .1;
            assert_eq!(timed, "0", "the timer has forgotten the queue after {how}");
            call!(c, "DEL", "q");
        }
    });
}

fn fill(server: &Server, key: &str, n: usize) {
    const BATCH: usize = 1000;
    let mut raw = server.raw();
    let payload = "x".repeat(100);
    for _ in 0..n / BATCH {
        let mut words = vec!["RQ.MPUSH".to_owned(), key.to_owned(), BATCH.to_string()];
        words.extend(std::iter::repeat_n(payload.clone(), BATCH));
        assert!(matches!(raw.call(&words).expect("a reply"), Reply::Array(ids) if ids.len() == BATCH));
    }
}

#[test]
fn active_defrag_moves_queues_and_breaks_nothing() {
    on_every_engine(|engine| {
        let server = Server::start(engine);
        let mut c = server.connect();
        if let Err(why) = crate::common::try_call!(c, "CONFIG", "SET", "activedefrag", "yes") {
            say(&format!("active defrag not tested on {engine}: {why}"));
            return;
        }
        for (name, value) in [
            ("active-defrag-ignore-bytes", "1"),
            ("active-defrag-threshold-lower", "0"),
            ("active-defrag-threshold-upper", "1"),
            ("active-defrag-cycle-min", "60"),
            ("active-defrag-cycle-max", "90"),
        ] {
            call!(c, "CONFIG", "SET", name, value);
        }
        call!(c, "CONFIG", "SET", "activedefrag", "no");
        // Holes: every other queue is deleted again, and most of the messages of the rest.
        for i in 0..8 {
            fill(&server, &format!("q{i}"), 2_000);
        }
        for i in 0..400 {
            call!(c, "TB.TAKE", format!("t{i}"), 100, 1, 60_000);
        }
        for i in (0..8).step_by(2) {
            call!(c, "DEL", format!("q{i}"));
        }
        for i in (0..400).step_by(2) {
            call!(c, "DEL", format!("t{i}"));
        }
        for i in (1..8).step_by(2) {
            let key = format!("q{i}");
            call!(c, "RQ.CLAIM", &key, "COUNT", 1500, "NOACK");
            call!(c, "RQ.CLAIM", &key, "COUNT", 100, "LEASE", 3_000);
        }
        let before = held(&server);
        call!(c, "CONFIG", "SET", "activedefrag", "yes");
        let hits =
            |c: &mut Connection| -> u64 { info(c, "stats")["active_defrag_hits"].parse().expect("a number") };
        let end = Instant::now() + Duration::from_secs(2);
        while hits(&mut c) < 500 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        if hits(&mut c) == 0 {
            say(&format!("active defrag found nothing to move on {engine}"));
        }
        std::thread::sleep(Duration::from_millis(200));
        assert_same("before and after defragmentation", &before, &held(&server));
        // The timer still finds the moved objects.
        let moved_still_timed = || {
            (1..8)
                .step_by(2)
                .all(|i| int(call!(server.connect(), "RQ.LEN", format!("q{i}"), "INFLIGHT")) == 0)
        };
        eventually("leases of moved queues to end", moved_still_timed);
        for i in (1..8).step_by(2) {
            assert_eq!(array(call!(c, "RQ.CLAIM", format!("q{i}"), "COUNT", 1000)).len(), 500);
        }
        assert_no_panic(&server);
    });
}
