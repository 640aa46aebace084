//! A panic inside the module: whatever it interrupts, what was decided before it stands, is
//! carried, and is answered for; nothing stays blocked.
//!
//! There is no input that makes the module panic, so these tests load the debug build: its
//! `SLUICE.PANIC point` has the module panic when it next comes to a point. What is shipped has no
//! such command.

use crate::common::stage::{Stage, payloads, receipt, words};
use crate::common::{
    Engine, RawConnection, Reply, Server, digest, eventually, on_every_engine, wait_until_equal,
};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The debug build: the library that cargo has made for this very binary, in the same folder.
fn module() -> PathBuf {
    let binary = std::env::current_exe().expect("a path");
    let path = binary.with_file_name("libsluice.so");
    assert!(path.is_file(), "{} is missing", path.display());
    path
}

fn server(engine: &Engine, module: &Path) -> Server {
    Server::builder(engine)
        .without_module()
        .option("loadmodule", &format!("\"{}\"", module.display()))
        .option("hz", "100")
        .option("appendonly", "yes")
        .option("appendfsync", "always")
        .start()
}

const INTERNAL: &str = "ERR internal error in sluice";

/// Runs a test on a master with an AOF and a replica. At the end all three hold the same, and every
/// panic was one of ours.
#[track_caller]
fn on_panicking_servers(test: impl Fn(&mut Stage) -> i64) {
    let module = module();
    on_every_engine(|engine| {
        let mut s = Stage::on(server(engine, &module));
        let replica = server(engine, &module);
        s.run("RQ.PUSH before p");
        replica.replica_of(&s.server);
        let panics = test(&mut s);
        assert_eq!(s.field("panics_caught"), panics);
        // Nothing is left open, and the timer goes on: everything still works.
        s.run("RQ.PUSH after p");
        s.run("RQ.CLAIM after LEASE 30");
        eventually("a lease to end", || s.int("RQ.LEN after READY") == 1);
        wait_until_equal(&s.server, &replica);
        let held = digest(&mut s.server.connect());
        s.server.kill_9();
        s.server.start_again();
        assert_eq!(digest(&mut s.server.connect()), held, "from the file");
    });
}

fn fails(s: &mut Stage, line: &str) {
    let reply = s.control.call(&words(line)).expect("the server answers");
    assert!(matches!(&reply, Reply::Error(e) if e.starts_with(INTERNAL)), "{line}: {reply}");
}

/// Reads what comes next; true if the server has closed the connection instead.
fn is_closed(client: &mut RawConnection) -> bool {
    use std::io::ErrorKind::{ConnectionReset, UnexpectedEof};
    client.read().is_err_and(|e| matches!(e.kind(), UnexpectedEof | ConnectionReset))
}

#[test]
fn what_was_decided_before_a_panic_stands_and_is_carried() {
    on_panicking_servers(|s| {
        for (i, point) in ["deciding", "telling"].iter().enumerate() {
            s.run(&format!("SLUICE.PANIC {point}"));
            fails(s, "RQ.PUSH q p");
            assert_eq!(s.int("RQ.LEN q"), i as i64 + 1, "{point}");
            s.run(&format!("SLUICE.PANIC {point}"));
            fails(s, &format!("TB.TAKE tb{i} 10 10 60000 COST 4"));
            assert!(s.shown(&format!("TB.PEEK tb{i} 10 10 60000")).contains(", 5,"), "{point}");
            assert!(s.int(&format!("PTTL tb{i}")) > 0, "{point}: a key without a TTL");
        }
        4
    });
}

#[test]
fn both_keys_of_a_move_are_kept() {
    on_panicking_servers(|s| {
        for after in 0..2 {
            for _ in 0..4 {
                s.run("RQ.PUSH q p");
            }
            let before = s.int("RQ.LEN q") + s.int("RQ.LEN r");
            s.run(&format!("SLUICE.PANIC deciding {after}"));
            fails(s, "RQ.MOVE q r READY COUNT 2");
            assert_eq!(s.int("RQ.LEN q") + s.int("RQ.LEN r"), before);
            assert_eq!(s.int("RQ.LEN r"), 2 * (after + 1));
        }
        2
    });
}

#[test]
fn a_reply_that_was_begun_closes_the_connection() {
    on_panicking_servers(|s| {
        for i in 0..4 {
            s.run(&format!("RQ.PUSH q p{i}"));
        }
        s.run("SLUICE.PANIC replying");
        let mut client = s.server.raw();
        // What follows in the same packet is not taken for the rest of the reply.
        let both = b"*4\r\n$8\r\nRQ.CLAIM\r\n$1\r\nq\r\n$5\r\nCOUNT\r\n$1\r\n2\r\n*1\r\n$4\r\nPING\r\n";
        client.send_bytes(both).expect("commands to be sent");
        match client.read() {
            Ok(Reply::Array(items)) => {
                assert_eq!(items.len(), 2);
                assert!(
                    items.iter().all(|i| matches!(i, Reply::Error(e) if e.starts_with(INTERNAL))),
                    "{items:?}"
                );
            }
            Ok(other) => panic!("{other}"),
            Err(_) => {}
        }
        assert!(is_closed(&mut client), "the connection is closed");
        assert_eq!(s.int("RQ.LEN q INFLIGHT"), 2, "they were handed out");
        // In a script the reply is read inside the server.
        s.run("SLUICE.PANIC replying");
        let script = ["EVAL", "return #redis.pcall('RQ.CLAIM', KEYS[1])", "1", "q"];
        let reply = s.control.call(&script).expect("the script ends");
        assert!(matches!(reply, Reply::Int(_) | Reply::Error(_)), "{reply}");
        // In a transaction what comes after it is not answered any more, but done.
        s.run("SLUICE.PANIC replying");
        let mut client = s.server.raw();
        for line in ["MULTI", "RQ.CLAIM q", "RQ.PUSH other p", "EXEC"] {
            client.send(&words(line)).expect("a command to be sent");
        }
        let mut read = 0;
        while !is_closed(&mut client) {
            read += 1;
            assert!(read < 10, "the connection is not closed");
        }
        assert_eq!(s.int("RQ.LEN other"), 1);
        3
    });
}

#[test]
fn who_waits_is_served_or_told_whatever_happens_in_between() {
    on_panicking_servers(|s| {
        let mut panics = 0;
        for point in ["serving", "claimed"] {
            let mut waiting = s.waiter("RQ.CLAIM q BLOCK 60000 LEASE 100");
            s.run(&format!("SLUICE.PANIC {point}"));
            s.control.send(&words("RQ.PUSH q p")).expect("a command to be sent");
            s.control.read().expect("an answer, whatever it is");
            let told = waiting.told();
            assert!(matches!(&told, Reply::Error(e) if e.starts_with(INTERNAL)), "{point}: {told}");
            // The message is there, now or when the lease that nobody knows of ends.
            let mut next = s.asker("RQ.CLAIM q BLOCK 60000");
            let messages = next.told();
            assert_eq!(payloads(&messages), ["p"], "{point}");
            s.run(&format!("RQ.ACK q {}", receipt(&messages)));
            panics += 1;
        }
        panics
    });
}

#[test]
fn a_reply_that_was_held_and_cannot_be_written_gives_back_what_it_gave() {
    on_panicking_servers(|s| {
        let mut waiting = s.waiter("RQ.CLAIM q BLOCK 60000 LEASE 600000");
        s.run("SLUICE.PANIC replying");
        s.run("RQ.PUSH q p");
        // It may get what there is of the reply; then its connection is closed.
        assert!(is_closed(&mut waiting.wire) || is_closed(&mut waiting.wire), "the connection is closed");
        eventually("the message to come back", || s.int("RQ.LEN q READY") == 1);
        1
    });
}

#[test]
fn a_turn_of_the_timer_that_fails_is_done_later_and_keeps_nobody_else() {
    on_panicking_servers(|s| {
        s.run("RQ.PUSH q p");
        s.run("RQ.PUSH r p");
        s.run("SLUICE.PANIC settling");
        s.run("RQ.CLAIM q LEASE 30");
        s.run("RQ.CLAIM r LEASE 60");
        eventually("the other lease to end", || s.int("RQ.LEN r READY") == 1);
        eventually("the lease to end", || s.int("RQ.LEN q READY") == 1);
        1
    });
}

#[test]
fn a_deferred_task_that_fails_is_not_the_next_commands_fault() {
    on_panicking_servers(|s| {
        s.run("SEM.ACQUIRE sem 1");
        let mut waiting = s.waiter("SEM.ACQUIRE sem 1 BLOCK 60000");
        s.run("SLUICE.PANIC deferred");
        s.run("DEL sem");
        s.run("RQ.PUSH q p");
        let told = waiting.told();
        assert!(matches!(&told, Reply::Error(e) if e.starts_with(INTERNAL)), "{told}");
        std::thread::sleep(Duration::from_millis(20));
        1
    });
}
