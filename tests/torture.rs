//! The torture programs of `torture/`, each in a short form: kills, lost tails, failovers, a
//! cluster whose slots move, altered payloads, hostile commands, clock steps, memory. In the short
//! form each runs on one engine, another for each, so that every engine is met; with
//! `SLUICE_TORTURE=1` all run on all engines, and for minutes. `SLUICE_SEED` gives another seed;
//! what a program prints says its own.
//!
//! Each program is also run with something broken on purpose (`--break`): one that does not notice
//! shows nothing.

use crate::common::{Engine, TempDir, engines, is_torture, kill_with_parent, module_path, say, within};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

fn seed() -> u64 {
    std::env::var("SLUICE_SEED").map_or(1, |s| s.parse().expect("SLUICE_SEED is a number"))
}

/// How a program ended, and all that it printed.
fn run(engine: &Engine, program: &str, arguments: &str) -> (Option<i32>, String) {
    // One after the other: a node that gets no time is taken for dead, and what its replica has not
    // got yet is lost, as it is with any server.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = TempDir::new();
    let file = folder.path().join("output");
    let output = std::fs::File::create(&file).expect("a file");
    let mut command = Command::new("python3");
    command.arg("-B").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torture").join(program));
    command.arg("--server").arg(&engine.program).arg("--module").arg(module_path());
    command.args(["--seed", &seed().to_string()]).args(arguments.split_whitespace());
    // What it leaves for looking at goes with the test, unless somebody wants to look.
    if std::env::var_os("SLUICE_KEEP").is_none() {
        command.env("TMPDIR", folder.path());
    }
    command.stdin(Stdio::null()).stdout(output.try_clone().expect("a second handle")).stderr(output);
    kill_with_parent(&mut command);
    let mut process = command.spawn().expect("python3 starts (`make servers` installs it)");
    let limit = Duration::from_secs(if is_torture() { 3600 } else { 240 });
    let status = within(limit, &format!("the end of {program} {arguments} on {engine}"), || {
        process.try_wait().ok().flatten()
    });
    let text = std::fs::read_to_string(&file).expect("what the program printed");
    (status.code(), text)
}

/// The engines to run on: one of them in the short form.
fn chosen(which: usize) -> Vec<&'static Engine> {
    let all = engines();
    if is_torture() { all.iter().collect() } else { vec![&all[which % all.len()]] }
}

/// Runs a program where nothing may be violated: its short form on one engine, or the long one on
/// all.
#[track_caller]
fn holds(which: usize, program: &str, short: &str, long: &str) {
    let mut failed = Vec::new();
    for engine in chosen(which) {
        let arguments = if is_torture() { long } else { short };
        let (status, text) = run(engine, program, arguments);
        let last = text.lines().rfind(|l| l.starts_with("torture: ")).unwrap_or("it did not come to its end");
        say(&format!("{engine}: {last}"));
        if status != Some(0) {
            eprintln!("--- {program} {arguments} on {engine}:\n{text}");
            failed.push(engine.to_string());
        }
    }
    assert!(failed.is_empty(), "{program} failed on {}", failed.join(", "));
}

/// Runs a program with something broken: it has to say so, and for the right reason.
#[track_caller]
fn notices(which: usize, program: &str, arguments: &str, kind: &str) {
    let engine = &engines()[which % engines().len()];
    let (status, text) = run(engine, program, arguments);
    assert_eq!(status, Some(1), "{program} {arguments} on {engine}:\n{text}");
    assert!(
        text.contains(&format!("'{kind}':")),
        "{program} {arguments} on {engine} does not see {kind}:\n{text}"
    );
}

#[test]
fn nothing_acknowledged_is_lost_when_servers_are_killed() {
    for (which, mode) in ["aof", "rewrite", "toggle", "rdb"].into_iter().enumerate() {
        let arguments = |rounds| format!("--mode {mode} --rounds {rounds}");
        holds(which, "crashes.py", &arguments(4), &arguments(60));
    }
}

#[test]
fn what_comes_back_without_the_tail_of_the_aof_is_a_prefix() {
    holds(1, "crashes.py", "--mode tail --rounds 6", "--mode tail --rounds 60");
}

#[test]
fn crashes_notice_what_is_lost_or_comes_back() {
    notices(0, "crashes.py", "--mode aof --rounds 2 --break nofsync", "lost");
    notices(1, "crashes.py", "--mode aof --rounds 2 --break cut", "resurrected");
    notices(2, "crashes.py", "--mode aof --rounds 2 --break forget", "lost");
    notices(3, "crashes.py", "--mode aof --rounds 3 --break ghost", "unknown");
}

#[test]
fn failovers_by_hand_and_by_failover_lose_nothing_confirmed() {
    holds(2, "failovers.py", "--mode replica --rounds 2", "--mode replica --rounds 20");
    holds(3, "failovers.py", "--mode failover --rounds 2", "--mode failover --rounds 30");
}

#[test]
fn failovers_by_sentinels_lose_nothing_confirmed() {
    holds(0, "failovers.py", "--mode sentinel --rounds 1", "--mode sentinel --rounds 8");
}

#[test]
fn failovers_notice_what_is_lost_or_differs() {
    notices(0, "failovers.py", "--mode failover --rounds 1 --break forget", "lost");
    notices(1, "failovers.py", "--mode failover --rounds 1 --break apart", "digest");
}

#[test]
fn accidents_are_survived() {
    holds(1, "accidents.py", "", "");
}

#[test]
fn accidents_notice_what_is_wrong() {
    notices(2, "accidents.py", "--only swapdb --break wrong", "accident");
}

#[test]
fn each_server_loads_what_another_stored() {
    let others: Vec<String> = engines().iter().skip(1).map(|e| e.program.display().to_string()).collect();
    if others.is_empty() {
        return;
    }
    let arguments = format!("--others {}", others.join(" "));
    // With all of them given, one run has every way between them.
    let engine = &engines()[0];
    let (status, text) = run(
        engine,
        "upgrades.py",
        &if is_torture() { arguments.clone() } else { format!("{arguments} --pairs 6") },
    );
    say(text.lines().rfind(|l| l.starts_with("torture: ")).unwrap_or("upgrades.py did not come to its end"));
    assert_eq!(status, Some(0), "{text}");
    notices(0, "upgrades.py", &format!("{arguments} --pairs 2 --break forget"), "lost");
}

/// A server that moves whole ranges of slots at once.
fn atomic() -> Option<&'static Engine> {
    let found = engines().iter().find(|e| e.is_valkey() && e.version() >= (9, 1));
    if found.is_none() {
        say("SKIPPED: no server here moves slots at once");
    }
    found
}

#[test]
fn slots_that_move_at_once_lose_nothing_and_are_equal_at_the_hand_over() {
    let Some(engine) = atomic() else { return };
    let long = [("move", 120), ("replicas", 120), ("big", 90), ("ranges", 60), ("kill", 120)];
    let modes = if is_torture() { &long[..] } else { &[("move", 8)] };
    for (mode, seconds) in modes {
        let (status, text) = run(engine, "slots_atomic.py", &format!("--mode {mode} --seconds {seconds}"));
        say(text.lines().rfind(|l| l.starts_with("torture: ")).unwrap_or("it did not come to its end"));
        assert_eq!(status, Some(0), "--mode {mode}:\n{text}");
    }
}

#[test]
fn a_hand_over_that_is_not_equal_is_noticed() {
    let Some(engine) = atomic() else { return };
    let (status, text) = run(engine, "slots_atomic.py", "--mode move --seconds 12 --break differ");
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("'digest':"), "{text}");
}

#[test]
fn hostile_commands_kill_no_server_and_a_replica_stays_equal() {
    holds(2, "commands.py", "--seconds 8", "--seconds 120");
    holds(3, "commands.py", "--seconds 6 --clock", "--seconds 60 --clock");
    holds(3, "commands.py", "--seconds 4 --reload", "--seconds 60 --reload");
}

#[test]
fn hostile_commands_notice_a_replica_that_differs() {
    notices(0, "commands.py", "--seconds 1 --break apart", "digest");
}

#[test]
fn altered_payloads_are_refused_or_can_be_used_and_loaded() {
    holds(0, "payloads.py", "--seconds 8", "--seconds 180 --load");
    notices(2, "payloads.py", "--seconds 1 --break lie", "digest-differs");
}

#[test]
fn a_cluster_keeps_its_promises_while_slots_move_and_masters_change() {
    holds(1, "cluster.py", "--seconds 12 --mode kill", "--seconds 120 --mode kill");
    holds(2, "cluster.py", "--seconds 8 --mode soft", "--seconds 120 --mode soft");
    holds(3, "cluster.py", "--seconds 8 --mode reshard", "--seconds 120 --mode reshard");
}

#[test]
fn a_cluster_gives_no_number_twice_while_its_clocks_differ() {
    holds(0, "cluster.py", "--seconds 8 --mode reshard --apart 2", "--seconds 90 --mode kill --apart 5");
}

#[test]
fn the_cluster_program_notices_what_is_lost_or_told_twice() {
    notices(0, "cluster.py", "--seconds 3 --mode reshard --break forget", "lost");
    notices(1, "cluster.py", "--seconds 3 --mode reshard --break ghost", "number-twice");
}

#[test]
fn steps_of_the_wall_clock_delay_nothing_and_repeat_no_number() {
    holds(0, "clocks.py", "--rounds 1", "--rounds 5");
    notices(1, "clocks.py", "--rounds 1 --break late", "late");
}

#[test]
fn memory_comes_back_to_where_it_was() {
    holds(1, "memory.py", "--rounds 4 --batches 20", "--rounds 10 --batches 100");
    notices(2, "memory.py", "--rounds 2 --batches 2 --break keep", "drift");
}
