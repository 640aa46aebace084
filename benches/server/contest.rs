//! Who costs how much: rows of load on one server, measured in turn over several rounds.
//!
//! The cost is CPU time of the server's main thread (`INFO cpu`), never wall time. Machines are
//! noisy, and noise comes in stretches: so a block of INCR is measured before and after each block,
//! a row's *ratio* is that of its cost to the mean of those two, and the median over the rounds is
//! what is told. Two rows are compared by the median of the ratios of one round.

use crate::common::{Server, info};
use crate::pipe::{Load, bytes_of};
use std::collections::BTreeMap;

/// How long to measure.
#[derive(Clone, Copy)]
pub struct Plan {
    pub rounds: usize,
    /// CPU seconds a block.
    pub block: f64,
    /// What stands for "a million".
    pub million: u64,
}

impl Plan {
    pub const FULL: Self = Self { rounds: 5, block: 0.3, million: 1_000_000 };
    pub const QUICK: Self = Self { rounds: 3, block: 0.08, million: 200_000 };
}

type Act<'a> = Box<dyn FnMut(&mut Load, u64) + 'a>;

/// One kind of load, in units of one or more commands.
pub struct Row<'a> {
    name: String,
    prepare: Act<'a>,
    run: Act<'a>,
    most: u64,
}

impl<'a> Row<'a> {
    /// `run` does so many units.
    pub fn new(name: impl Into<String>, run: impl FnMut(&mut Load, u64) + 'a) -> Self {
        Self { name: name.into(), prepare: Box::new(|_, _| {}), run: Box::new(run), most: 1_000_000 }
    }

    /// The same command over and over.
    pub fn same(name: &str, words: &[&str], expected: &'a str) -> Self {
        let command = bytes_of(words);
        Self::new(name, move |load, n| load.repeat(n, &command, expected))
    }

    /// What is done before so many units, and not measured.
    pub fn after(mut self, prepare: impl FnMut(&mut Load, u64) + 'a) -> Self {
        self.prepare = Box::new(prepare);
        self
    }

    /// The most units in a block.
    pub fn at_most(mut self, units: u64) -> Self {
        self.most = units;
        self
    }
}

/// The server's CPU seconds so far.
pub struct Cpu(redis::Connection);

impl Cpu {
    pub fn of(server: &Server) -> Self {
        Self(server.connect())
    }

    pub fn read(&mut self) -> f64 {
        let fields = info(&mut self.0, "cpu");
        let part = |kind: &str| {
            let main = fields.get(&format!("used_cpu_{kind}_main_thread"));
            let all = || fields.get(&format!("used_cpu_{kind}"));
            main.or_else(all).and_then(|v| v.parse::<f64>().ok()).expect("CPU seconds in INFO cpu")
        };
        part("user") + part("sys")
    }
}

/// What the rounds of one or more contests said, by row.
#[derive(Default)]
pub struct Figures {
    order: Vec<String>,
    us: BTreeMap<String, Vec<f64>>,
    ratios: BTreeMap<String, Vec<f64>>,
}

pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

impl Figures {
    /// Runs the rows in turn, round after round.
    pub fn measure(&mut self, server: &Server, plan: &Plan, mut rows: Vec<Row<'_>>) {
        let mut load = Load::open(server.port());
        let mut cpu = Cpu::of(server);
        let incr = bytes_of(&["INCR", "counter"]);
        let mut cost = |load: &mut Load, row: Option<&mut Row<'_>>, n: u64| {
            if let Some(row) = row {
                (row.prepare)(load, n);
                let start = cpu.read();
                (row.run)(load, n);
                (cpu.read() - start) / n as f64
            } else {
                let start = cpu.read();
                load.repeat(n, &incr, ":");
                (cpu.read() - start) / n as f64
            }
        };
        let units = |cost: f64, block: f64, most: u64| {
            ((block / cost) as u64).clamp(2_000, most.max(2_000)).min(most)
        };
        cost(&mut load, None, 20_000);
        let base_units = units(cost(&mut load, None, 50_000), plan.block / 2.0, u64::MAX);
        let sizes: Vec<u64> = rows
            .iter_mut()
            .map(|row| {
                let first = row.most.min(5_000);
                let rough = cost(&mut load, Some(row), first);
                units(rough, plan.block, row.most)
            })
            .collect();
        for row in &rows {
            self.order.push(row.name.clone());
        }
        for _ in 0..plan.rounds {
            let mut before = cost(&mut load, None, base_units);
            self.us.entry("INCR".to_owned()).or_default().push(before * 1e6);
            for (row, n) in rows.iter_mut().zip(&sizes) {
                let own = cost(&mut load, Some(row), *n);
                let after = cost(&mut load, None, base_units);
                let ratio = own / ((before + after) / 2.0);
                before = after;
                self.us.entry(row.name.clone()).or_default().push(own * 1e6);
                self.ratios.entry(row.name.clone()).or_default().push(ratio);
            }
        }
    }

    fn of(&self, name: &str) -> &[f64] {
        self.ratios.get(name).unwrap_or_else(|| panic!("no row {name}"))
    }

    /// The cost of a unit in INCRs.
    pub fn in_incr(&self, name: &str) -> f64 {
        median(self.of(name))
    }

    /// The cost of a unit in µs.
    pub fn us(&self, name: &str) -> f64 {
        self.us.get(name).map_or(f64::NAN, |us| median(us))
    }

    /// The cost of one row in units of another of the same contest.
    pub fn ratio(&self, name: &str, to: &str) -> f64 {
        let pairs: Vec<f64> = self.of(name).iter().zip(self.of(to)).map(|(a, b)| a / b).collect();
        median(&pairs)
    }

    /// Prints the rows, with the cost in units of each of `beside` besides.
    pub fn print(&self, title: &str, beside: &[&str]) {
        let mut head = format!("{title:<58} {:>8} {:>7} {:>13}", "µs", "INCR=1", "(min-max)");
        for name in beside {
            head += &format!(" {:>9}", format!("/{name}"));
        }
        println!("\n{head}");
        println!("{:<58} {:>8.3} {:>7.2}", "INCR", self.us("INCR"), 1.0);
        for name in &self.order {
            let all = self.of(name);
            let least = all.iter().copied().fold(f64::INFINITY, f64::min);
            let most = all.iter().copied().fold(0.0, f64::max);
            let range = format!("({least:.2}-{most:.2})");
            let mut line =
                format!("{name:<58} {:>8.3} {:>7.2} {range:>13}", self.us(name), self.in_incr(name));
            for to in beside {
                line += &format!(" {:>9.2}", self.ratio(name, to));
            }
            println!("{line}");
        }
    }
}
