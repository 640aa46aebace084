//! Plays random commands and clock moves to the reference models and to the module, on every
//! engine, and fails at the first difference in a reply, with the shortest history the driver
//! finds. Some histories are interrupted at random: the module's server loads its data set again,
//! starts again, or is replaced by its replica, and has to go on as the model does
//! (`drivers/events.py`).
//!
//! Models and drivers are in `oracle/`, run by the scripts in `drivers/`. Seeds are fixed;
//! `SLUICE_SEED` gives others. `SLUICE_TORTURE=1` plays many more rounds.

use crate::common::{
    Builder, Engine, Form, Server, TempDir, assert_required, free_port, in_every_form, is_torture,
    kill_with_parent, on_every_engine, registered_commands, say, within,
};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

#[test]
fn limiters_answer_as_their_model() {
    with_models(in_every_form, |engine| {
        let server = Server::start(engine);
        let commands = registered_commands(&mut server.connect());
        assert_required(&commands);
        let there =
            |family: &&str| commands.iter().any(|c| c.to_uppercase().starts_with(&format!("{family}.")));
        // TB twice: it has the most to it.
        let families: Vec<&str> =
            ["TB", "TB", "LB", "SEM", "GATE", "HOT"].into_iter().filter(there).collect();
        for (first_seed, options) in [(0, "--warm --cl"), (500_000, "--warm --cl --back")] {
            let model = Model::start("limiter_model.py", &[]);
            let (seed, rounds) = (seed() + first_seed, 16 * scale() / share(engine));
            let arguments = format!("-s {seed} -r {rounds} --only {} {options}", families.join(","));
            play("limiters.py", &model, &server, &arguments);
        }
    });
}

#[test]
fn queues_answer_as_their_model() {
    with_models(in_every_form, |engine| {
        let server = Server::start(engine);
        assert_required(&registered_commands(&mut server.connect()));
        for (first_seed, count, options) in
            [(0, 3000, ""), (500_000, 1500, "--mblock"), (600_000, 1500, "--mblock --jump")]
        {
            let model = Model::start("queue_model.py", &["-p"]);
            let (seed, count) = (seed() + first_seed, count * scale() / share(engine));
            let arguments = format!("--seed {seed} --count {count} --tail 60 {options}");
            play("queue.py", &model, &server, &arguments);
        }
    });
}

/// Of HOT also while something is put off.
#[test]
fn limiters_answer_as_their_model_in_the_smallest_pieces() {
    with_models(in_every_form, |engine| {
        let server = in_pieces(Server::builder(engine)).start();
        let kinds = ["--warm --cl", "--warm --cl --back", "--only HOT", "--only HOT --back"];
        for (i, options) in (8..).zip(kinds) {
            let model = Model::start("limiter_model.py", &[]);
            let (seed, rounds) = (seed() + i * 100_000, 4 * scale() / share(engine));
            play("limiters.py", &model, &server, &format!("-s {seed} -r {rounds} --pieces {options}"));
        }
    });
}

/// Compared whenever nothing is put off.
#[test]
fn queues_answer_as_their_model_in_the_smallest_pieces() {
    with_models(on_every_engine, |engine| {
        let server = in_pieces(Server::builder(engine)).start();
        for (first_seed, options) in [(800_000, "--mblock"), (900_000, "--mblock --jump")] {
            let model = Model::start("queue_model.py", &["-p"]);
            let (seed, count) = (seed() + first_seed, 1500 * scale());
            let arguments = format!("--seed {seed} --count {count} --tail 60 --pieces {options}");
            play("queue.py", &model, &server, &arguments);
        }
    });
}

/// The same, interrupted while something is put off.
#[test]
fn queues_answer_as_their_model_in_the_smallest_pieces_over_reloads_restarts_and_failovers() {
    with_models(on_every_engine, |engine| {
        let model = Model::start("queue_model.py", &["-p"]);
        for (n, setup) in Setup::all().enumerate() {
            let (server, replica) = setup.start_as(engine, in_pieces);
            let (seed, count) = (seed() + 1_000_000 + 10_000 * n as u64, 300 * scale());
            let arguments = format!(
                "--seed {seed} --count {count} --tail 60 --mblock --pieces --restarts --events 0.02{}",
                of(&replica)
            );
            play("queue.py", &model, &server, &arguments);
        }
    });
}

fn in_pieces(builder: Builder) -> Builder {
    let least = [("sluice.due-per-command", "1"), ("sluice.tick-budget-us", "50")];
    least.into_iter().fold(builder, |b, (name, value)| b.option(name, value))
}

#[test]
fn limiters_answer_as_their_model_over_reloads_restarts_and_failovers() {
    with_models(on_every_engine, |engine| {
        let model = Model::start("limiter_model.py", &[]);
        for (n, setup) in Setup::all().enumerate() {
            let (server, replica) = setup.start(engine);
            let (seed, rounds, replica) = (seed() + 700_000 + 10_000 * n as u64, scale(), of(&replica));
            let go = |options: &str| {
                let arguments =
                    format!("-s {seed} -r {rounds} -n 200 --warm --cl --events 0.03{replica} {options}");
                play("limiters.py", &model, &server, &arguments);
            };
            go("--restarts");
            if is_torture() || (setup.aof && setup.replica) {
                go("--back");
            }
        }
    });
}

#[test]
fn queues_answer_as_their_model_over_reloads_restarts_and_failovers() {
    with_models(on_every_engine, |engine| {
        let model = Model::start("queue_model.py", &["-p"]);
        for (n, setup) in Setup::all().enumerate() {
            let (server, replica) = setup.start(engine);
            let (seed, count) = (seed() + 700_000 + 10_000 * n as u64, 200 * scale());
            let arguments = format!(
                "--seed {seed} --count {count} --tail 60 --mblock --restarts --events 0.25{}",
                of(&replica)
            );
            play("queue.py", &model, &server, &arguments);
        }
    });
}

/// What of the servers' means to carry their data set over is there: each alone shows what the
/// other would hide.
#[derive(Clone, Copy)]
struct Setup {
    aof: bool,
    replica: bool,
}

impl Setup {
    fn all() -> impl Iterator<Item = Self> {
        [false, true].into_iter().flat_map(|aof| [false, true].map(|replica| Self { aof, replica }))
    }

    /// A server and its replica-to-be.
    fn start(self, engine: &Engine) -> (Server, Option<Server>) {
        self.start_as(engine, |builder| builder)
    }

    fn start_as(self, engine: &Engine, how: fn(Builder) -> Builder) -> (Server, Option<Server>) {
        let one = || {
            // The server notices at its cron that a child has ended.
            let builder = how(Server::builder(engine)).option("hz", "100");
            let aof = [("appendonly", "yes"), ("appendfsync", "always")];
            let options = aof.into_iter().filter(|_| self.aof);
            options.fold(builder, |b, (name, value)| b.option(name, value)).start()
        };
        (one(), self.replica.then(one))
    }
}

fn of(replica: &Option<Server>) -> String {
    replica.as_ref().map_or_else(String::new, |r| format!(" --replica {}", r.port()))
}

/// How many times the rounds of an ordinary run are played.
fn scale() -> u64 {
    if is_torture() { 40 } else { 1 }
}

/// By how much less is played in forms that are not the plain one, where there is no time for all.
fn share(engine: &Engine) -> u64 {
    if is_torture() || engine.form == Form::Plain { 1 } else { 3 }
}

fn seed() -> u64 {
    std::env::var("SLUICE_SEED").map_or(1, |s| s.parse().expect("SLUICE_SEED is a number"))
}

/// Where the models are.
fn oracle() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle")
}

/// Runs a test on engines. (A driver, a model and a server wait for each other: together they keep
/// one core busy.)
fn with_models(engines: impl FnOnce(Box<dyn Fn(&Engine)>), test: impl Fn(&Engine) + 'static) {
    let python =
        Command::new("python3").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(python.is_ok_and(|s| s.success()), "the models need python3 (`make servers` installs it)");
    engines(Box::new(test));
}

/// A reference model that listens on a port of its own.
struct Model {
    process: Child,
    port: u16,
}

impl Model {
    /// `port_option`: what comes before the port among the arguments.
    fn start(script: &str, port_option: &[&str]) -> Self {
        for _ in 0..10 {
            let port = free_port();
            let mut command = Command::new("python3");
            command.arg("-B").arg(oracle().join(script)).args(port_option).arg(port.to_string());
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            kill_with_parent(&mut command);
            let mut model = Self { process: command.spawn().expect("python3 starts"), port };
            // An end means that somebody else took the port first.
            let listens = within(Duration::from_secs(20), "the model", || match model.process.try_wait() {
                Ok(Some(_)) => Some(false),
                _ => TcpStream::connect(("127.0.0.1", port)).ok().map(|_| true),
            });
            if listens {
                return model;
            }
        }
        panic!("{script} does not start");
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // Both fail only when the process is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Plays a driver to its end. What it finds fails the test.
fn play(driver: &str, model: &Model, server: &Server, arguments: &str) {
    let folder = TempDir::new();
    let file = folder.path().join("output");
    let output = std::fs::File::create(&file).expect("a file");
    let mut command = Command::new("python3");
    command.arg("-B").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drivers").join(driver));
    command.arg(model.port.to_string()).arg(server.port().to_string()).args(arguments.split_whitespace());
    let form = server.engine().form.of_drivers();
    command.args(form.split_whitespace());
    command.stdin(Stdio::null()).stdout(output.try_clone().expect("a second handle")).stderr(output);
    kill_with_parent(&mut command);
    let mut process = command.spawn().expect("python3 starts");
    let limit = Duration::from_secs(if is_torture() { 3600 } else { 300 });
    let status = within(limit, "the driver's end", || process.try_wait().ok().flatten());
    let text = std::fs::read_to_string(&file).expect("what the driver printed");
    let what = format!("{driver}{form} {arguments} on {}", server.engine());
    assert!(status.success(), "{what}:\n{text}");
    say(&format!("{what}: {}", text.trim_end()));
}
