//! The module in a real server, beside the server's own commands: what a command costs, what a key
//! and a message weigh, how long one waits. Prints tables and, last, the goals with what was
//! reached. docs/benchmarks.md tells how to read and repeat it.
//!
//! `cargo bench --bench server -- [--quick] [section …]`; `SLUICE_ENGINES=redis-7.0` restricts the
//! engines.
//!
//! - `contest`: the method: server CPU, interleaved with INCR. `pipe`: the load. `report`: goals.
//! - Sections: `limiters`, `keys` (a million keys), `queue`, `sizes` (1,000 and a million messages
//!   in each state), `crowd` (10,000 clients blocked), `latency`, `stalls` (how long others wait
//!   while very much is concerned), `restart`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "server/contest.rs"]
mod contest;
#[path = "server/crowd.rs"]
mod crowd;
#[path = "server/keys.rs"]
mod keys;
#[path = "server/latency.rs"]
mod latency;
#[path = "server/limiters.rs"]
mod limiters;
#[path = "server/pipe.rs"]
mod pipe;
#[path = "server/queue.rs"]
mod queue;
#[path = "server/report.rs"]
mod report;
#[path = "server/restart.rs"]
mod restart;
#[path = "server/sizes.rs"]
mod sizes;
#[path = "server/stalls.rs"]
mod stalls;

use common::{Builder, Engine, Server, engines, module_path, registered_commands};
use contest::Plan;
use report::Report;

/// What a section works with.
pub struct Bench<'a> {
    engine: &'a Engine,
    plan: Plan,
    commands: Vec<String>,
    report: Report,
}

impl Bench<'_> {
    /// How the servers of the bench are started: nothing stored, no replica, no test clock.
    fn builder(&self) -> Builder {
        Server::builder(self.engine).module_arg("debug-clock", "no").option("maxclients", "15000")
    }

    fn start(&self) -> Server {
        self.builder().start()
    }

    /// Whether the module has the command.
    fn has(&self, command: &str) -> bool {
        self.commands.iter().any(|c| c.eq_ignore_ascii_case(command))
    }
}

type Section = (&'static str, fn(&mut Bench<'_>));

const SECTIONS: [Section; 8] = [
    ("limiters", limiters::run),
    ("keys", keys::run),
    ("queue", queue::run),
    ("sizes", sizes::run),
    ("crowd", crowd::run),
    ("latency", latency::run),
    ("stalls", stalls::run),
    ("restart", restart::run),
];

fn main() {
    let mut plan = Plan::FULL;
    let mut wanted: Vec<String> = Vec::new();
    // Cargo adds `--bench`.
    for arg in std::env::args().skip(1).filter(|a| a != "--bench") {
        match arg.as_str() {
            "--quick" => plan = Plan::QUICK,
            name if SECTIONS.iter().any(|(n, _)| *n == name) => wanted.push(arg),
            _ => {
                let names: Vec<&str> = SECTIONS.iter().map(|(name, _)| *name).collect();
                eprintln!("unknown argument {arg}: give --quick or sections: {}", names.join(" "));
                std::process::exit(2);
            }
        }
    }
    println!("module: {}", module_path().display());
    for engine in engines() {
        let commands = registered_commands(&mut Server::start(engine).connect());
        let mut bench = Bench { engine, plan, commands, report: Report::default() };
        println!("\n================ {engine}");
        for (name, run) in SECTIONS {
            if wanted.is_empty() || wanted.iter().any(|w| w == name) {
                run(&mut bench);
            }
        }
        bench.report.print();
    }
}
