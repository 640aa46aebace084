//! `SLUICE.APPLY` as a client sends it where that is allowed (`sluice.apply-from-clients`): what is
//! made is made everywhere, what cannot be made is made nowhere, and whatever it says the server
//! can start again.

use crate::common::stage::on_stage_alone_with;
use crate::common::{
    Engine, RawConnection, Reply, Server, call, digest, eventually, free_port, int, on_every_engine, text,
    wait_until_equal,
};
use redis::Connection;

/// What RQ.PAUSE would carry: no group, pushes until an instant, claims as they are. On a missing
/// key it makes one.
const PAUSE: &[u8] = &[1, 6, 4, 0, 1, 253, 0, 128, 37, 114, 20, 128, 13, 0, 0];
/// No effect at all.
const NONSENSE: &[u8] = &[1, 6, 99];

/// A list of changes: what it begins with, and its parts.
fn unit(parts: &[&[u8]]) -> Vec<u8> {
    [&[1, 0][..], &parts.concat()].concat()
}
/// The next argument is an effect without payloads.
const EFFECT: &[u8] = &[2, 0, 0];
/// The same, and the key's time is over at once.
const EFFECT_AND_OVER: &[u8] = &[2, 2, 0];
const KEY: &[u8] = &[1];
const GONE: &[u8] = &[4];
/// The key of a queue loses its TTL.
const PERSISTS: &[u8] = &[3, 6, 1];
fn database(db: u16) -> Vec<u8> {
    if db < 251 { vec![0, db as u8] } else { [&[0, 251][..], &db.to_le_bytes()].concat() }
}

const AOF: [(&str, &str); 3] =
    [("appendonly", "yes"), ("appendfsync", "always"), ("auto-aof-rewrite-percentage", "0")];

fn server(engine: &Engine) -> Server {
    let server = Server::builder(engine).module_arg("apply-from-clients", "yes");
    AOF.iter().fold(server, |server, (name, value)| server.option(name, value)).start()
}

/// Sends it; the error, if it is one.
fn apply(c: &mut RawConnection, words: &[&[u8]]) -> Result<(), String> {
    let all = [&[b"SLUICE.APPLY".as_slice()], words].concat();
    match c.call(&all).expect("a reply") {
        Reply::Error(error) => Err(error),
        _ => Ok(()),
    }
}

/// Replica and file hold what the server holds.
#[track_caller]
fn assert_carried(server: &mut Server, replica: &Server) {
    wait_until_equal(server, replica);
    let held = digest(&mut server.connect());
    assert_eq!(call!(replica.connect(), "DBSIZE"), call!(server.connect(), "DBSIZE"));
    server.kill_9();
    server.start_again();
    assert_eq!(digest(&mut server.connect()), held, "from the file");
}

fn exist(c: &mut Connection, key: &str) -> bool {
    int(call!(c, "EXISTS", key)) == 1
}

#[test]
fn what_is_made_of_a_list_is_carried_and_what_is_not_is_not() {
    on_every_engine(|engine| {
        let mut server = server(engine);
        let replica = Server::start(engine);
        replica.replica_of(&server);
        let mut c = server.connect();
        for key in ["goes", "lasts"] {
            call!(c, "RQ.PUSH", key, "p");
        }
        call!(c, "PEXPIRE", "lasts", 3_600_000);
        let list =
            unit(&[EFFECT, KEY, GONE, KEY, PERSISTS, KEY, EFFECT, &database(3), KEY, EFFECT, KEY, EFFECT]);
        let refused = apply(
            &mut server.raw(),
            &[
                b"one",
                b"0",
                &list,
                PAUSE,
                b"goes",
                b"lasts",
                b"never",
                NONSENSE,
                b"elsewhere",
                PAUSE,
                b"nor",
                NONSENSE,
            ],
        );
        assert!(refused.is_err_and(|e| e.starts_with("ERR SLUICE.APPLY: ")));
        let there = ["one", "goes", "lasts", "never"].map(|key| exist(&mut c, key));
        assert_eq!(there, [true, false, true, false], "{engine}");
        assert_eq!(int(call!(c, "PTTL", "lasts")), -1);
        let mut other = server.connect_db(3);
        assert_eq!((exist(&mut other, "elsewhere"), exist(&mut other, "nor")), (true, false));
        assert_carried(&mut server, &replica);
    });
}

#[test]
fn a_database_that_is_not_there_is_not_another_one() {
    on_every_engine(|engine| {
        let server = server(engine);
        let mut c = server.connect();
        let list = unit(&[EFFECT, &database(9999), KEY, EFFECT]);
        let refused = apply(&mut server.raw(), &[b"one", b"0", &list, PAUSE, b"far", PAUSE]);
        assert_eq!(refused.unwrap_err(), "ERR SLUICE.APPLY: no such database");
        assert_eq!((exist(&mut c, "one"), exist(&mut c, "far")), (true, false));
    });
}

#[test]
fn in_a_cluster_a_client_names_keys_of_one_slot() {
    on_every_engine(|engine| {
        let server = Server::builder(engine)
            .module_arg("apply-from-clients", "yes")
            .option("cluster-enabled", "yes")
            .option("cluster-port", &free_port().to_string())
            .start();
        let mut c = server.connect();
        call!(c, "CLUSTER", "ADDSLOTSRANGE", 0, 16383);
        eventually("the cluster", || text(call!(c, "CLUSTER", "INFO")).contains("cluster_state:ok"));
        let mut raw = server.raw();
        let list = unit(&[EFFECT, KEY, EFFECT]);
        let refused = apply(&mut raw, &[b"a", b"0", &list, PAUSE, b"b", PAUSE]).unwrap_err();
        assert!(refused.starts_with("CROSSSLOT "), "{refused}");
        assert!(!exist(&mut c, "a") && !exist(&mut c, "b"));
        apply(&mut raw, &[b"{t}a", b"0", &list, PAUSE, b"{t}b", PAUSE]).expect("keys of one slot");
        // Redis has other databases in a cluster, too, but no slots in them.
        let list = unit(&[&database(3), EFFECT]);
        let refused = apply(&mut raw, &[b"a", b"0", &list, PAUSE]).unwrap_err();
        assert_eq!(refused, "ERR SLUICE.APPLY: no such database");
        assert_eq!(int(call!(c, "DBSIZE")), 2);
    });
}

/// The server finds that the time of a key is over after its first change, and deletes it, before
/// that change was carried: what is carried for it then must not come after that.
#[test]
fn a_key_whose_time_is_over_between_two_changes_leaves_a_file_that_loads() {
    // A level, which only a bucket that is there can have, and a bucket.
    const LEVEL: &[u8] = &[1, 1, 0, 252, 128, 150, 152, 0, 253, 0, 128, 37, 114, 20, 128, 13, 0];
    const BEGIN: &[u8] = &[1, 1, 1, 10, 1, 251, 232, 3, 5, 253, 0, 128, 37, 114, 20, 128, 13, 0];
    on_every_engine(|engine| {
        let mut server = server(engine);
        let replica = Server::start(engine);
        replica.replica_of(&server);
        let mut c = server.connect();
        call!(c, "TB.TAKE", "k", 10, 1, 1000);
        call!(c, "RQ.PUSH", "q", "p");
        let list = unit(&[EFFECT_AND_OVER, EFFECT, KEY, EFFECT]);
        apply(&mut server.raw(), &[b"k", b"0", &list, LEVEL, BEGIN, b"q", PAUSE]).expect("all is made");
        assert!(exist(&mut c, "k"));
        assert_carried(&mut server, &replica);
    });
}

/// A message, ready, without payload: number 200 at place 100.
const RECORD: [u8; 17] = [1, 0, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 200];

#[test]
fn what_was_not_missing_does_not_come_and_the_key_can_be_stored() {
    on_every_engine(|engine| {
        let server = server(engine);
        let mut c = server.connect();
        let mut raw = server.raw();
        let effect = |number: u8| [&[1, 6, number][..], &RECORD].concat();
        let (loads, untakes) = (effect(13), effect(15));
        call!(c, "RQ.MPUSH", "q", 2, "one", "two");
        call!(c, "DEBUG", "RELOAD");
        for forged in [&loads, &untakes] {
            let refused = apply(&mut raw, &[b"q", b"0", forged, b"x"]);
            assert!(refused.is_err_and(|e| e.starts_with("ERR SLUICE.APPLY: more than")), "{engine}");
        }
        call!(c, "RQ.CLAIM", "q", "NOACK");
        apply(&mut raw, &[b"q", b"0", &untakes, b"x"]).expect("one was handed out");
        assert!(apply(&mut raw, &[b"q", b"0", &untakes, b"x"]).is_err());
        let held = digest(&mut c);
        call!(c, "DEBUG", "RELOAD");
        assert_eq!((digest(&mut c), int(call!(c, "RQ.LEN", "q"))), (held, 2));
    });
}

#[test]
fn who_waits_where_a_client_s_word_makes_room_is_served() {
    let allowed = |b: crate::common::Builder| b.module_arg("apply-from-clients", "yes");
    on_stage_alone_with(allowed, |s| {
        s.run("SEM.SET sem 1");
        s.run("SEM.ACQUIRE sem");
        let mut permit = s.waiter("SEM.ACQUIRE sem BLOCK 60000");
        // Three permits from now on.
        s.bytes(&[b"SLUICE.APPLY".as_slice(), b"sem", b"0", &[1, 3, 0, 6, 251, 16, 39]]);
        let granted = permit.told();
        assert!(matches!(&granted, Reply::Array(row) if row[0] == Reply::Int(1)), "{granted}");
        s.run("RQ.PUSH q p");
        s.run("RQ.PAUSE q CLAIM");
        let mut message = s.waiter("RQ.CLAIM q BLOCK 60000");
        // Claims go on.
        s.bytes(&[b"SLUICE.APPLY".as_slice(), b"q", b"0", &[1, 6, 4, 0, 0, 1, 0]]);
        assert_eq!(message.payloads(), ["p"]);
    });
}

#[test]
fn a_damaged_command_of_ours_in_the_file_stops_the_load() {
    on_every_engine(|engine| {
        for damaged in [
            &["SLUICE.FENCE", "x", "5"][..],
            &["SLUICE.FENCE", "0", "5"],
            &["SLUICE.FENCE", "5"],
            &["SLUICE.APPLY", "k", "x", "e"],
            &["SLUICE.APPLY", "k"],
        ] {
            let mut source = server(engine);
            call!(source.connect(), "RQ.PUSH", "q", "p");
            source.kill_9();
            let folder = source.dir().join("appendonlydir");
            let files = std::fs::read_dir(folder).unwrap().flatten().map(|f| f.path());
            let file = files.filter(|f| f.to_string_lossy().ends_with(".incr.aof")).max().unwrap();
            let mut bytes = std::fs::read(&file).unwrap();
            bytes.extend_from_slice(format!("*{}\r\n", damaged.len()).as_bytes());
            for word in damaged {
                bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
            }
            std::fs::write(&file, bytes).unwrap();
            let again = Server::builder(engine).option("dir", &source.dir().to_string_lossy());
            let log = again.option("appendonly", "yes").try_start().err();
            let log = log.unwrap_or_else(|| panic!("{engine} started in spite of {damaged:?}"));
            // Valkey counts the arguments itself.
            let told =
                ["sluice: the append only file cannot be loaded", "wrong number of arguments for 'sluice."];
            assert!(told.iter().any(|t| log.contains(t)), "{log}");
        }
    });
}
