//! `SLUICE.APPLY` as a client sends it where that is allowed (`sluice.apply-from-clients`): what is made is made everywhere, what cannot be made is made nowhere, and
//! whatever it says the server can start again.

use crate::common::stage::on_stage_alone_with;
use crate::common::{
    Engine, RawConnection, Reply, Server, T0, call, digest, error, eventually, free_port, info, int,
    on_every_engine, set_clock, text, wait_until_equal,
};
use redis::Connection;

/// What RQ.PAUSE would carry: no group, pushes until an instant, claims as they are. On a missing key it makes one.
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
