//! Numbers that fence: none is given twice, none is smaller than one before it, whatever is lost,
//! forged, moved or set back.

use crate::common::stage::wall;
use crate::common::{
    Builder, Engine, RawConnection, Reply, Server, call, error, eventually, info, int, ints, on_every_engine,
    set_clock, try_call, wait_until_equal,
};
use crate::damage::{aof_commands, signed};
use redis::{Connection, Value};
use std::time::{Duration, Instant};

const AOF: [(&str, &str); 2] = [("appendonly", "yes"), ("appendfsync", "always")];
const PLAIN: (&str, &str) = ("aof-use-rdb-preamble", "no");
const HOUR: i64 = 3_600_000;

fn with(engine: &Engine, options: &[(&str, &str)]) -> Builder {
    options.iter().fold(Server::builder(engine), |b, (name, value)| b.option(name, value))
}

/// The next number of a server, from a key that is gone right after.
#[track_caller]
fn draw(c: &mut Connection) -> i64 {
    let number = ints(call!(c, "SEM.ACQUIRE", "drawn", 1))[4];
    call!(c, "DEL", "drawn");
    number
}

/// A number drawn by a clock that stands so much later; then the clock is right again, as one that
/// was set back.
#[track_caller]
fn draw_ahead(c: &mut Connection, ms: i64) -> i64 {
    set_clock(c, wall() + ms);
    let number = draw(c);
    call!(c, "SLUICE.CLOCK", "REAL");
    number
}

fn bytes(value: Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes,
        other => panic!("wanted bytes, got {other:?}"),
    }
}

/// The payload with another number in the place of this one, wherever it stands.
fn forged(payload: &[u8], number: i64, other: u64) -> Vec<u8> {
    let (from, to) = (number.to_le_bytes(), other.to_le_bytes());
    let mut out = payload.to_vec();
    let mut at = 0;
    let mut found = false;
    while at + 8 <= out.len() {
        if out[at..at + 8] == from {
            out[at..at + 8].copy_from_slice(&to);
            found = true;
        }
        at += 1;
    }
    assert!(found, "{number} is in the payload");
    signed(out)
}

/// Keys of each family that draws, with the number each has.
#[track_caller]
fn drawn_keys(c: &mut Connection) -> Vec<(&'static str, i64)> {
    let claim = |value: Value| -> i64 {
        let Value::Array(mut rows) = value else { panic!("deliveries") };
        let Value::Array(row) = rows.remove(0) else { panic!("a delivery") };
        let receipt = String::from_utf8(bytes(row[1].clone())).unwrap();
        receipt.split_once('@').unwrap().1.parse().unwrap()
    };
    call!(c, "RQ.PUSH", "queue", "x");
    call!(c, "GATE.SET", "gate", "STAGE", "s", "SEM", 3, "LEASE", 600_000);
    let gate = crate::common::array(call!(c, "GATE.PASS", "gate"));
    let gate = gate.into_iter().filter_map(|v| if let Value::Int(n) = v { Some(n) } else { None }).max();
    let hold = ints(call!(c, "TB.HOLD", "bucket", 10, 1, 1000, "COST", 1, "TTL", 600_000));
    vec![
        ("queue", claim(call!(c, "RQ.CLAIM", "queue", "LEASE", 600_000))),
        ("sem", ints(call!(c, "SEM.ACQUIRE", "sem", 3, "LEASE", 600_000))[4]),
        ("gate", gate.expect("a receipt")),
        ("bucket", hold.into_iter().max().expect("an id")),
    ]
}

fn micros(ms: i64) -> u64 {
    u64::try_from(ms * 1000).unwrap()
}

#[test]
fn a_forged_number_is_refused_and_moves_nothing() {
    on_every_engine(|engine| {
        let server = Server::start(engine);
        let mut c = server.connect();
        for (key, number) in drawn_keys(&mut c) {
            let payload = bytes(call!(c, "DUMP", key));
            let tomorrow = micros(wall() + 25 * HOUR);
            for other in [tomorrow, 1 << 61, 1 << 62, (1 << 62) - 1, 1 << 63, u64::MAX] {
                let bad = forged(&payload, number, other);
                assert_eq!(error!(c, "RESTORE", "copy", 0, bad), "ERR Bad data format", "{key} {other}");
            }
            // Near the clock, but refused for what stands behind it.
            let near = forged(&payload, number, micros(wall() + HOUR));
            let mut cut = near.clone();
            // One more batch is announced, and does not come.
            let last = cut.len() - 12;
            cut[last] ^= 1;
            assert!(try_call!(c, "RESTORE", "copy", 0, signed(cut)).is_err(), "{key}");
            assert!(draw(&mut c) < (wall() + 60_000) * 1000, "{key}: a refused payload raised the counter");
        }
    });
}

#[test]
fn what_a_client_brings_near_the_clock_counts_and_can_be_stored() {
    on_every_engine(|engine| {
        let mut server = with(engine, &AOF).start();
        let replica = Server::start(engine);
        replica.replica_of(&server);
        let mut c = server.connect();
        let mut last = 0;
        for (key, number) in drawn_keys(&mut c) {
            let payload = bytes(call!(c, "DUMP", key));
            let near = micros(wall() + 24 * HOUR - 5_000);
            call!(c, "RESTORE", key, 0, forged(&payload, number, near), "REPLACE");
            let drawn = draw(&mut c);
            assert!(drawn > i64::try_from(near).unwrap() && drawn > last, "{key}");
            last = drawn;
            // Draws after it are accepted everywhere.
            let copy = bytes(call!(c, "DUMP", key));
            call!(c, "RESTORE", "copy", 0, copy, "REPLACE");
        }
        drawn_keys(&mut c);
        call!(c, "DEL", "copy");
        wait_until_equal(&server, &replica);
        server.kill_9();
        server.start_again();
        let mut c = server.connect();
        assert!(draw(&mut c) > last);
        call!(c, "BGREWRITEAOF");
        eventually("the rewrite", || info(&mut c, "persistence")["aof_rewrite_in_progress"] == "0");
        server.restart();
        assert!(draw(&mut server.connect()) > last);
    });
}

/// A number as effects have it.
fn encoded(n: u64) -> Vec<u8> {
    match n {
        0..=250 => vec![n as u8],
        251..=0xffff => [&[251], &(n as u16).to_le_bytes()[..]].concat(),
        0x1_0000..=0xffff_ffff => [&[252], &(n as u32).to_le_bytes()[..]].concat(),
        _ => [&[253], &n.to_le_bytes()[..]].concat(),
    }
}

/// Takes a dump apart: what stands before the head of its first batch, the head, and the rest.
fn head_of(dump: &[u8]) -> (&[u8], &[u8], &[u8]) {
    // Type, id, then: number, how many blobs; string, its length.
    let at = 1 + 9 + 2 + 1;
    assert_eq!((dump[0], dump[1], dump[10], dump[12]), (7, 0x81, 2, 5), "a module's value");
    let (length, from) = match usize::from(dump[at]) {
        short @ 0..64 => (short, at + 1),
        long @ 64..128 => ((long - 64) << 8 | usize::from(dump[at + 1]), at + 2),
        other => panic!("a length that begins with {other}"),
    };
    (&dump[..at], &dump[from..from + length], &dump[from + length..])
}

#[test]
fn a_queue_that_is_restored_with_any_counter_can_always_be_stored_again() {
    on_every_engine(|engine| {
        let mut server = with(engine, &AOF).option("rdbcompression", "no").start();
        let mut c = server.connect();
        call!(c, "RQ.PUSH", "q", "a", "GROUP", "g");
        call!(c, "RQ.PUSH", "q", "b");
        let dump = bytes(call!(c, "DUMP", "q"));
        let (before, head, rest) = head_of(&dump);
        let (mut accepted, mut refused) = (0, 0);
        let values =
            [1 << 46, (1 << 47) - 1, 1 << 47, (1 << 47) + 1, 1 << 61, (1 << 62) - 1, 1 << 62, u64::MAX];
        for at in 2..head.len() {
            for value in values {
                if head[at] > 250 {
                    continue;
                }
                let new = [&head[..at], &encoded(value), &head[at + 1..]].concat();
                let length = [0x40 | (new.len() >> 8) as u8, (new.len() & 255) as u8];
                let payload = signed([before, &length, &new, rest].concat());
                if try_call!(c, "RESTORE", "q", 0, payload, "REPLACE").is_err() {
                    refused += 1;
                    continue;
                }
                accepted += 1;
                let what = format!("{value} at {at} on {engine}");
                for _ in 0..3 {
                    let _ = try_call!(c, "RQ.PUSH", "q", "x", "GROUP", "g");
                    call!(c, "RQ.PUSH", "q", "x", "ID", "mine", "ONDUP", "REPLACE");
                    let got = crate::common::array(call!(c, "RQ.CLAIM", "q"));
                    for row in got {
                        let receipt = bytes(crate::common::array(row)[1].clone());
                        call!(c, "RQ.NACK", "q", "DEAD", "RECEIPTS", 1, receipt);
                    }
                    call!(c, "RQ.REDRIVE", "q");
                    let again = bytes(call!(c, "DUMP", "q"));
                    let restored = try_call!(c, "RESTORE", "again", 0, again, "REPLACE");
                    assert!(restored.is_ok(), "{what}: {restored:?}");
                }
            }
        }
        assert!(accepted > 20 && refused > 20, "{accepted} accepted, {refused} refused");
        assert!(draw(&mut c) < (wall() + 60_000) * 1000);
        // All of it is in the AOF.
        server.kill_9();
        server.start_again();
        call!(server.connect(), "SAVE");
    });
}

#[test]
fn numbers_rise_over_a_restart_on_a_clock_that_stands_an_hour_earlier() {
    on_every_engine(|engine| {
        for (name, options) in
            [("AOF", &AOF[..]), ("AOF without preamble", &[AOF[0], AOF[1], PLAIN]), ("snapshot", &[])]
        {
            let mut server = with(engine, options).start();
            let mut c = server.connect();
            let mut last = draw_ahead(&mut c, HOUR);
            for rewrite in [false, true, true] {
                // All keys are gone: only the counter itself can tell.
                if options.is_empty() {
                    call!(c, "SAVE");
                } else if rewrite {
                    call!(c, "BGREWRITEAOF");
                    eventually("the rewrite", || {
                        info(&mut c, "persistence")["aof_rewrite_in_progress"] == "0"
                    });
                }
                if !options.is_empty() {
                    std::thread::sleep(Duration::from_millis(250));
                }
                server.kill_9();
                server.start_again();
                c = server.connect();
                let next = draw(&mut c);
                assert!(next > last, "{name} on {engine}: {next} after {last}");
                last = next;
            }
        }
    });
}

#[test]
fn a_lost_tail_never_gives_a_number_again() {
    on_every_engine(|engine| {
        let mut server = with(engine, &AOF).start();
        // Lives within a second of each other; then one that leaves nothing behind, and one from
        // the same file.
        draw(&mut server.connect());
        for _ in 0..2 {
            server.kill_9();
            server.start_again();
            draw(&mut server.connect());
        }
        server.kill_9();
        let files: Vec<_> =
            std::fs::read_dir(server.dir().join("appendonlydir")).unwrap().flatten().collect();
        let tail =
            files.iter().map(|f| f.path()).filter(|p| p.to_string_lossy().ends_with(".incr.aof")).max();
        let tail = tail.expect("a tail");
        let length = std::fs::metadata(&tail).unwrap().len();
        let mut last = 0;
        for life in 0..4 {
            server.start_again();
            let mut c = server.connect();
            let numbers: Vec<i64> = (0..50).map(|_| draw(&mut c)).collect();
            assert!(
                numbers.is_sorted() && numbers[0] > last,
                "life {life} on {engine}: {} after {last}",
                numbers[0]
            );
            last = numbers[49];
            server.kill_9();
            std::fs::OpenOptions::new().write(true).open(&tail).unwrap().set_len(length).unwrap();
        }
    });
}

#[test]
fn quick_restarts_from_a_snapshot_never_give_a_number_again() {
    on_every_engine(|engine| {
        let mut server = Server::start(engine);
        let mut last = 0;
        for life in 0..6 {
            let mut c = server.connect();
            let first = draw(&mut c);
            assert!(first > last, "life {life} on {engine}: {first} after {last}");
            last = (0..200).map(|_| draw(&mut c)).last().unwrap();
            // What is saved holds a key with a number in one life, none in the next; in others
            // nothing is saved at all.
            match life % 3 {
                0 => drop(call!(c, "SEM.ACQUIRE", "kept", 9)),
                1 => drop(call!(c, "DEL", "kept")),
                _ => {}
            }
            if life % 3 < 2 {
                call!(c, "SAVE");
                last = last.max(draw(&mut c));
            }
            server.kill_9();
            server.start_again();
        }
    });
}

#[test]
fn a_promoted_replica_whose_clock_is_behind_goes_on_above() {
    on_every_engine(|engine| {
        for attached_late in [false, true] {
            let (master, replica) = (Server::start(engine), Server::start(engine));
            let mut m = master.connect();
            if !attached_late {
                replica.replica_of(&master);
            }
            // Five seconds ahead of the replica, on a key that goes.
            set_clock(&mut m, wall() + 5_000);
            let mut last = draw(&mut m);
            if attached_late {
                replica.replica_of(&master);
            }
            wait_until_equal(&master, &replica);
            last = last.max(draw(&mut m)).max(draw(&mut m));
            replica.promote();
            let mut r = replica.connect();
            let next = draw(&mut r);
            assert!(next > last, "{engine}, attached late {attached_late}: {next} after {last}");
            // And what it goes on from is told to those that follow it.
            let third = Server::start(engine);
            third.replica_of(&replica);
            wait_until_equal(&replica, &third);
            third.promote();
            let after = draw(&mut third.connect());
            assert!(after > next, "{engine}: {after} after {next}");
        }
    });
}

#[test]
fn the_counter_is_told_at_load_and_at_promotion_and_never_in_a_transaction() {
    on_every_engine(|engine| {
        let mut server = with(engine, &AOF).start();
        drawn_keys(&mut server.connect());
        let fences = |server: &Server| {
            let commands = aof_commands(server);
            let mut open = false;
            let mut found = 0;
            for command in commands {
                match command[0].to_ascii_uppercase().as_slice() {
                    b"MULTI" => open = true,
                    b"EXEC" => open = false,
                    b"SLUICE.FENCE" => {
                        assert!(!open, "in a transaction");
                        found += 1;
                    }
                    _ => {}
                }
            }
            found
        };
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(fences(&server), 0, "a counter that is not ahead of the clock is not told");
        server.restart();
        eventually("the counter to be told after the load", || fences(&server) > 0);
        let replica = with(engine, &AOF).start();
        replica.replica_of(&server);
        wait_until_equal(&server, &replica);
        let before = fences(&replica);
        replica.promote();
        eventually("the counter to be told after the promotion", || fences(&replica) > before);
    });
}

#[test]
fn a_key_that_is_moved_carries_its_number() {
    on_every_engine(|engine| {
        let (from, to) = (Server::start(engine), Server::start(engine));
        let mut f = from.connect();
        set_clock(&mut f, wall() + 5_000);
        for (key, number) in drawn_keys(&mut f) {
            let reply = call!(f, "MIGRATE", "127.0.0.1", to.port(), key, 0, 5000);
            assert!(matches!(reply, Value::Okay), "{reply:?}");
            let next = draw(&mut to.connect());
            assert!(next > number, "{key} on {engine}: {next} after {number}");
        }
    });
}

#[test]
fn a_file_of_a_server_that_gave_no_number_needs_no_module() {
    on_every_engine(|engine| {
        let bare = |dump: &std::path::Path| {
            let other = Server::builder(engine).without_module();
            let folder = dump.parent().unwrap().display().to_string();
            other.option("dir", &folder).option("appendonly", "no").try_start().map(|s| {
                let mut c = s.connect();
                call!(c, "CONFIG", "SET", "save", "");
                int(call!(c, "EXISTS", "text"))
            })
        };
        // Redis 7.0 has no way to leave out what a module did not write.
        let leaves_out = engine.to_string() != "redis-7.0";
        let server = Server::start(engine);
        let mut c = server.connect();
        call!(c, "SET", "text", "x");
        call!(c, "SAVE");
        let dump = server.dir().join("dump.rdb");
        assert_eq!(bare(&dump).is_ok_and(|there| there == 1), leaves_out, "before any number");
        draw(&mut c);
        call!(c, "SAVE");
        assert!(bare(&dump).is_err(), "with a number");
        call!(c, "CONFIG", "SET", "sluice.keep-numbers", "no");
        call!(c, "SAVE");
        assert_eq!(bare(&dump).is_ok(), leaves_out, "that is not to be kept");
    });
}

// ---------------------------------------------------------------- who may apply

const UNSOUND: &[u8] = b"\x01\x01\x07";

#[test]
fn only_a_master_and_a_file_tell_what_was_decided() {
    on_every_engine(|engine| {
        let server = with(engine, &AOF).start();
        let replica = Server::start(engine);
        replica.replica_of(&server);
        let mut c = server.connect();
        for refusal in [
            error!(c, "SLUICE.APPLY", "k", 0, UNSOUND),
            error!(c, "SLUICE.FENCE", 5, 5),
            error!(c, "EVAL", "return redis.call('SLUICE.FENCE', 5, 5)", 0),
            error!(c, "EVAL", "return redis.call('SLUICE.APPLY', KEYS[1], 0, ARGV[1])", 1, "k", UNSOUND),
        ] {
            assert!(refusal.contains("sluice.apply-from-clients"), "{refusal}");
        }
        call!(c, "MULTI");
        call!(c, "SLUICE.APPLY", "k", 0, UNSOUND);
        let done: Result<Value, _> = redis::cmd("EXEC").query(&mut c);
        assert!(done.is_err() || format!("{done:?}").contains("apply-from-clients"), "{done:?}");
        assert_eq!(int(call!(c, "EXISTS", "k")), 0);
        // Its own replica and its own file are told.
        drawn_keys(&mut c);
        wait_until_equal(&server, &replica);
    });
}

#[test]
fn an_aof_can_be_piped_into_a_server_that_was_told_to_take_it() {
    on_every_engine(|engine| {
        let mut source = with(engine, &[AOF[0], AOF[1], PLAIN]).start();
        let mut c = source.connect();
        let payloads: Vec<String> = (0..700).map(|n| format!("m{n}")).collect();
        let mut push = redis::cmd("RQ.MPUSH");
        push.arg("big").arg(payloads.len()).arg(&payloads);
        let _: Value = push.query(&mut c).unwrap();
        drawn_keys(&mut c);
        call!(c, "BGREWRITEAOF");
        eventually("the rewrite", || info(&mut c, "persistence")["aof_rewrite_in_progress"] == "0");
        drawn_keys(&mut c);
        let folder = source.dir().join("appendonlydir");
        let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().flatten().map(|e| e.path()).collect();
        files.retain(|p| p.extension().is_some_and(|e| e == "aof"));
        // The base before the increments.
        files.sort_by_key(|p| !p.to_string_lossy().contains(".base."));
        let target = with(engine, &AOF).start();
        let mut t = target.connect();
        call!(t, "CONFIG", "SET", "sluice.apply-from-clients", "yes");
        let mut raw = target.raw();
        for file in files {
            raw.send_bytes(&std::fs::read(file).unwrap()).unwrap();
        }
        raw.send(&["ECHO", "the end"]).unwrap();
        loop {
            match raw.read().unwrap() {
                Reply::Bytes(end) if end == b"the end" => break,
                Reply::Error(e) => panic!("{engine}: {e}"),
                _ => {}
            }
        }
        for key in ["big", "queue", "sem", "gate", "bucket"] {
            let digest = |c: &mut Connection| format!("{:?}", call!(c, "DEBUG", "DIGEST-VALUE", key));
            assert_eq!(digest(&mut t), digest(&mut c), "{key} on {engine}");
        }
        source.stop();
        assert!(draw(&mut t) > 0);
    });
}

#[test]
fn an_effect_that_leaves_no_sound_key_is_refused() {
    on_every_engine(|engine| {
        let mut server =
            with(engine, &AOF).module_arg("apply-from-clients", "yes").option("save", "3600 1").start();
        let mut c = server.connect();
        let mut refused = 0;
        for family in 1..=6u8 {
            for first in 0..=255u8 {
                for rest in [&[][..], &[0], &[0, 0], &[1], &[7], &[0; 40]] {
                    let effect = [&[1, family, first], rest].concat();
                    refused += usize::from(try_call!(c, "SLUICE.APPLY", "k", 0, effect).is_err());
                    call!(c, "DEL", "k");
                }
            }
        }
        assert!(refused > 5_000, "{refused} refused");
        assert!(error!(c, "SLUICE.APPLY", "k", 0, UNSOUND).starts_with("ERR SLUICE.APPLY: "));
        // On a key that is there it may end as good as none: that can be stored, and goes.
        call!(c, "TB.TAKE", "k", 10, 1, 100_000);
        call!(c, "SLUICE.APPLY", "k", 0, UNSOUND);
        call!(c, "SAVE");
        server.restart();
        assert_eq!(int(call!(server.connect(), "EXISTS", "k")), 1);
        assert_eq!(ints(call!(server.connect(), "TB.TAKE", "k", 10, 1, 100_000))[..3], [1, 10, 9]);
    });
}

#[test]
fn one_effect_on_a_long_queue_does_not_copy_it() {
    on_every_engine(|engine| {
        let server = Server::builder(engine).module_arg("apply-from-clients", "yes").start();
        let mut c = server.connect();
        let payloads = vec!["x"; 10_000];
        for _ in 0..10 {
            let mut push = redis::cmd("RQ.MPUSH");
            push.arg("q").arg(payloads.len()).arg(&payloads);
            let _: Value = push.query(&mut c).unwrap();
        }
        // What RQ.PAUSE would carry: no group, pushes until an instant, claims as they are.
        let pause = [&[1, 6, 4, 0, 1][..], &[253], &(3_800_000_000_000_000_u64).to_le_bytes(), &[0]].concat();
        let begin = Instant::now();
        let mut raw: RawConnection = server.raw();
        for _ in 0..400 {
            raw.send(&[b"SLUICE.APPLY".as_slice(), b"q", b"0", &pause]).unwrap();
        }
        for _ in 0..400 {
            assert_eq!(raw.read().unwrap(), Reply::Bytes(b"OK".to_vec()));
        }
        // A copy takes tens of milliseconds.
        assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
        call!(c, "SLUICE.CLOCK");
    });
}
