//! A random mixed load over everything the module has, and what there is to compare afterwards.
//!
//! The same seed gives the same commands, as long as the replies (receipts, holds) are the same.
//! With a frozen clock ([`Time::Frozen`]) the whole history is the same, so two servers that play
//! it must end with the same state; with the running clock ([`Time::Running`]) leases and delays
//! are short, so that the module's timer works all the time.
//!
//! Families that are not registered are left out.

use super::reply::{T0, Talk, call, registered_commands, text};
use super::resp::{RawConnection, Reply};
use super::server::Server;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

/// Small and the same everywhere (splitmix64).
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 … n - 1.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Under `SLUICE_TORTURE` tests take their time.
pub fn torture() -> bool {
    std::env::var_os("SLUICE_TORTURE").is_some_and(|v| !v.is_empty() && v != "0")
}

/// How often a test with a random load is made: each time with another seed.
pub fn rounds() -> u64 {
    if torture() { 12 } else { 1 }
}

/// The time a load runs by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// The test clock, which the load moves on; the instant at which it stands (unix ms).
    Frozen(i64),
    /// The wall clock.
    Running,
}

pub type Words = Vec<Vec<u8>>;

/// What is to be learnt from a reply.
#[derive(Debug, Clone)]
enum Learn {
    Nothing,
    Messages(String),
    /// Messages behind something else: NEXT, MCLAIM.
    Behind(String),
    Hold(String),
    Permit(String),
}

/// One command, or the commands of a transaction.
#[derive(Debug, Clone)]
struct Step {
    commands: Vec<(Words, Learn)>,
    transaction: bool,
}

/// A command that was played, and its reply without what each server counts for itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Played {
    pub command: Words,
    pub reply: Reply,
}

#[derive(Debug, Clone)]
pub struct Workload {
    rng: Rng,
    time: Time,
    families: Vec<&'static str>,
    /// Keys are renamed, copied, deleted, moved between databases too.
    key_commands: bool,
    /// Queues have rates.
    rates: bool,
    receipts: Vec<(String, String)>,
    holds: Vec<(String, String)>,
    permits: Vec<(String, String)>,
    pushed: u64,
}

/// How many receipts are remembered of each kind.
const MEMORY: usize = 64;
/// Steps sent before their replies are read.
const PIPELINE: usize = 8;

fn words(line: &str) -> Words {
    line.split_whitespace().map(|w| w.as_bytes().to_vec()).collect()
}

fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    i64::try_from(since.as_millis()).expect("a clock of our time")
}

impl Workload {
    /// A load for a server, by its own clock; the frozen clock is set.
    pub fn frozen(server: &Server, seed: u64) -> Self {
        let mut c = server.connect();
        call!(c, "SLUICE.CLOCK", "SET", T0);
        Self::new(server, seed, Time::Frozen(T0))
    }

    pub fn running(server: &Server, seed: u64) -> Self {
        Self::new(server, seed, Time::Running)
    }

    fn new(server: &Server, seed: u64, time: Time) -> Self {
        let commands = registered_commands(&mut server.connect());
        let there = |probe: &str| commands.iter().any(|c| c == probe);
        let all = [
            ("TB", 30, "tb.take"),
            ("LB", 12, "lb.take"),
            ("RQ", 60, "rq.push"),
            ("SEM", 12, "sem.acquire"),
            ("GATE", 10, "gate.pass"),
            ("HOT", 10, "hot.take"),
        ];
        let families = all
            .into_iter()
            .filter(|(_, _, probe)| there(probe))
            .flat_map(|(family, weight, _)| std::iter::repeat_n(family, weight))
            .collect();
        Self {
            rng: Rng::new(seed),
            time,
            families,
            key_commands: true,
            rates: true,
            receipts: Vec::new(),
            holds: Vec::new(),
            permits: Vec::new(),
            pushed: 0,
        }
    }

    /// Leaves out what touches keys as a whole.
    pub fn without_key_commands(mut self) -> Self {
        self.key_commands = false;
        self
    }

    /// Leaves out the rates of queues, which a clock that steps back cuts as soon as it is noticed.
    pub fn without_rates(mut self) -> Self {
        self.rates = false;
        self
    }

    /// Only this family.
    pub fn only(mut self, family: &'static str) -> Self {
        self.families = vec![family];
        self
    }

    /// Where the frozen clock stands.
    pub fn clock(&self) -> i64 {
        match self.time {
            Time::Frozen(at) => at,
            Time::Running => wall_ms(),
        }
    }

    /// Plays so many steps. An error that no load like this may see fails the test.
    #[track_caller]
    pub fn play(&mut self, connection: &mut RawConnection, steps: usize) -> Vec<Played> {
        let mut played = Vec::new();
        let mut left = steps;
        while left > 0 {
            let batch: Vec<Step> = (0..left.min(PIPELINE)).map(|_| self.step()).collect();
            left -= batch.len();
            for step in &batch {
                step.send(connection).expect("a connection that stands");
            }
            for step in batch {
                let mut got = step.read(connection).expect("replies");
                for ((words, learn), reply) in step.commands.iter().zip(&mut got) {
                    check_reply(words, reply);
                    self.learn(learn, reply);
                    // Alone or in a script.
                    for name in [&words[0], words.get(4).unwrap_or(&words[0])] {
                        forget_local_counts(&String::from_utf8_lossy(name), reply);
                    }
                }
                let commands = step.commands.into_iter().map(|(words, _)| words);
                played.extend(commands.zip(got).map(|(command, reply)| Played { command, reply }));
            }
        }
        played
    }

    // ------------------------------------------------------------ what to do next

    fn step(&mut self) -> Step {
        let one = |command| Step { commands: vec![command], transaction: false };
        if let Time::Frozen(at) = self.time
            && self.rng.percent(12)
        {
            let by = [1, 3, 20, 150, 1000, 4000][self.rng.below(6) as usize];
            self.time = Time::Frozen(at + by);
            return one((words(&format!("SLUICE.CLOCK ADVANCE {by}")), Learn::Nothing));
        }
        if self.key_commands && self.rng.percent(4) {
            return one((self.key_command(), Learn::Nothing));
        }
        if self.rng.percent(5) {
            let count = 2 + self.rng.below(3);
            return Step { commands: (0..count).map(|_| self.command()).collect(), transaction: true };
        }
        let (command, learn) = self.command();
        if self.rng.percent(4) {
            let key = command[1].clone();
            let script = b"return redis.pcall(unpack(ARGV))".to_vec();
            let around = vec![b"EVAL".to_vec(), script, b"1".to_vec(), key];
            return one((around.into_iter().chain(command).collect(), learn));
        }
        one((command, learn))
    }

    fn command(&mut self) -> (Words, Learn) {
        let family = self.families[self.rng.below(self.families.len() as u64) as usize];
        match family {
            "TB" => self.token_bucket(),
            "LB" => self.leaky_bucket(),
            "SEM" => self.semaphore(),
            "GATE" => self.gate(),
            "HOT" => self.hot(),
            _ => self.queue(),
        }
    }

    /// A key of the family; now and then one that every family uses.
    fn key(&mut self, family: &str, count: u64) -> String {
        if self.rng.percent(2) {
            return "any".to_owned();
        }
        format!("{family}:{}", self.rng.below(count))
    }

    /// A duration that ends soon (ms).
    fn ms(&mut self) -> u64 {
        let most = if self.time == Time::Running { 60 } else { 6000 };
        1 + self.rng.below(most)
    }

    fn key_command(&mut self) -> Words {
        let family = self.rng.pick(&["tb", "lb", "rq", "sem"]);
        let (a, b) = (self.rng.below(4), self.rng.below(4));
        words(&match self.rng.below(10) {
            0 | 1 => format!("DEL {family}:{a}"),
            2 => format!("UNLINK {family}:{a}"),
            3 | 4 if a != b => format!("RENAME {family}:{a} {family}:{b}"),
            5 if a != b => format!("COPY {family}:{a} {family}:{b} REPLACE"),
            6 => format!("COPY {family}:{a} {family}:{b} DB 1 REPLACE"),
            7 => format!("MOVE {family}:{a} 1"),
            8 => "SWAPDB 0 1".to_owned(),
            _ => format!("PERSIST {family}:{a}"),
        })
    }

    fn limits(&mut self, always: bool) -> &'static str {
        if always || self.rng.percent(70) {
            self.rng.pick(&["10 7 3000", "100 1 10", "5 1 60000", "7 7 7", "1000000000000 3 1000"])
        } else {
            ""
        }
    }

    fn token_bucket(&mut self) -> (Words, Learn) {
        let key = self.key("tb", 4);
        let n = 1 + self.rng.below(6);
        let ms = self.ms();
        let limits = self.limits(false);
        let line = match self.rng.below(20) {
            0 => {
                let warm = [0, 0, 500, 5000][self.rng.below(4) as usize];
                let level = self.rng.pick(&["", "LEVEL ADD", "LEVEL SCALE", "LEVEL FULL"]);
                format!("TB.SET {key} {} WARMUP {warm} {level}", self.limits(true))
            }
            1 => format!("TB.RESET {key}"),
            2 => format!("TB.DRAIN {key} {}", self.limits(true)),
            3 => format!("TB.BAN {key} {}", if n > 3 { 0 } else { ms }),
            4 | 5 => format!("TB.REFUND {key} {n}"),
            6 | 7 => format!("TB.PEEK {key} {limits} COST {n}"),
            8 => format!("TB.INFO {key}"),
            9..=11 => {
                let end = self.rng.pick(&["KEEP", "REFUND"]);
                let line = format!("TB.HOLD {key} {limits} COST {n} TTL {ms} ONEXPIRE {end}");
                return (words(&line), Learn::Hold(key));
            }
            12 | 13 if !self.holds.is_empty() => {
                let (key, id) = self.holds[self.rng.below(self.holds.len() as u64) as usize].clone();
                format!("TB.SETTLE {key} {id} {}", self.rng.below(9))
            }
            _ => {
                let how = self.rng.pick(&["", "", "ATMOST", "FORCE"]);
                format!("TB.TAKE {key} {limits} COST {n} {how}")
            }
        };
        (words(&line), Learn::Nothing)
    }

    fn leaky_bucket(&mut self) -> (Words, Learn) {
        let key = self.key("lb", 4);
        let n = 1 + self.rng.below(6);
        let (ms, limits) = (self.ms(), self.limits(false));
        let line = match self.rng.below(10) {
            0 => format!("LB.SET {key} {}", self.limits(true)),
            1 => format!("LB.RESET {key}"),
            2 => format!("LB.REFUND {key} {n}"),
            3 => format!("LB.PEEK {key} {limits} COST {n} MAXWAIT {ms}"),
            4 => format!("LB.INFO {key}"),
            5 => format!("LB.TAKE {key} {limits} COST {n} MAXWAIT {ms}"),
            _ => format!("LB.TAKE {key} {limits} COST {n}"),
        };
        (words(&line), Learn::Nothing)
    }

    fn semaphore(&mut self) -> (Words, Learn) {
        let key = self.key("sem", 4);
        let (n, ms) = (1 + self.rng.below(3), self.ms());
        let held = if self.permits.is_empty() {
            None
        } else {
            Some(self.permits[self.rng.below(self.permits.len() as u64) as usize].clone())
        };
        let line = match (self.rng.below(10), held) {
            (0, _) => format!("SEM.SET {key} {} LEASE {ms}", 2 + n),
            (1 | 2, Some((key, receipt))) => format!("SEM.RELEASE {key} {receipt}"),
            (3, Some((key, receipt))) => format!("SEM.RENEW {key} {ms} {receipt}"),
            (4, _) => format!("SEM.PEEK {key} {} COUNT {n}", 2 + n),
            (5, _) => format!("SEM.INFO {key} HOLDERS"),
            _ => {
                let line = format!("SEM.ACQUIRE {key} {} COUNT {n} LEASE {ms} OWNER o{n}", 3 + n);
                return (words(&line), Learn::Permit(key));
            }
        };
        (words(&line), Learn::Nothing)
    }

    fn gate(&mut self) -> (Words, Learn) {
        let key = format!("gate:{}", self.rng.below(2));
        let (n, ms) = (1 + self.rng.below(4), self.ms());
        let line = match self.rng.below(8) {
            0 => format!(
                "GATE.SET {key} STAGE a TB 20 {n} 100 STAGE b LB 30 7 500 STAGE c SEM {} LEASE {ms}",
                2 + n
            ),
            1 => format!("GATE.INFO {key}"),
            2 => format!("GATE.PEEK {key} COST {n}"),
            _ => format!("GATE.PASS {key} COST {n} MAXWAIT {ms}"),
        };
        (words(&line), Learn::Nothing)
    }

    fn hot(&mut self) -> (Words, Learn) {
        let key = format!("hot:{}", self.rng.below(2));
        let (n, subject) = (1 + self.rng.below(4), self.rng.below(40));
        let line = match self.rng.below(12) {
            0 => format!("HOT.SET {key} {} MAXSUBJECTS {}", self.limits(true), 5 + self.rng.below(30)),
            1 => format!("HOT.EXCEPT {key} s{subject} {}", self.limits(true)),
            2 => format!("HOT.EXCEPT {key} s{subject} DEL"),
            3 => format!("HOT.PEEK {key} s{subject} COST {n}"),
            4 => format!("HOT.INFO {key}"),
            _ => format!("HOT.TAKE {key} s{subject} COST {n}"),
        };
        (words(&line), Learn::Nothing)
    }

    fn queue(&mut self) -> (Words, Learn) {
        let key = self.key("rq", 3);
        let (n, ms) = (1 + self.rng.below(4), self.ms());
        let group = format!("g{}", self.rng.below(4));
        let receipts = self.some_receipts();
        match self.rng.below(40) {
            0..=11 => (self.push(&key), Learn::Nothing),
            12 => {
                let options = self.push_options(false);
                let payloads: String = (0..n).map(|i| format!(" payload-{}-{i}", self.pushed)).collect();
                (words(&format!("RQ.MPUSH {key} {n}{payloads} {options}")), Learn::Nothing)
            }
            13..=19 => {
                let options = self.claim_options();
                (words(&format!("RQ.CLAIM {key} COUNT {n} {options}")), Learn::Messages(key))
            }
            20 => {
                let line = format!("RQ.MCLAIM 2 rq:{} rq:{} COUNT {n} LEASE {ms}", n % 3, (n + 1) % 3);
                let key = format!("rq:{}", n % 3);
                (words(&line), Learn::Behind(key))
            }
            21..=24 if receipts.is_some() => {
                let (key, list, _) = receipts.expect("some");
                (words(&format!("RQ.ACK {key} {list}")), Learn::Nothing)
            }
            25..=27 if receipts.is_some() => {
                let (key, list, count) = receipts.expect("some");
                let how =
                    self.rng.pick(&["", "BACK", "NOCOUNT", "DEAD", "REASON boom", "DELAY 0", "DELAY 40"]);
                (words(&format!("RQ.NACK {key} {how} RECEIPTS {count} {list}")), Learn::Nothing)
            }
            28 if receipts.is_some() => {
                let (key, list, _) = receipts.expect("some");
                (words(&format!("RQ.EXTEND {key} {ms} {list}")), Learn::Nothing)
            }
            29 if receipts.is_some() => {
                let (key, list, count) = receipts.expect("some");
                let line = format!("RQ.NEXT {key} RECEIPTS {count} {list} COUNT {n} LEASE {ms}");
                (words(&line), Learn::Behind(key))
            }
            30 => {
                let which = self.rng.pick(&["ALL", "CONSUMER c1", "STALE 20"]);
                (words(&format!("RQ.REQUEUE {key} {which} COUNT {n}")), Learn::Nothing)
            }
            31 => {
                let delay = self.rng.pick(&["", "DELAY 30"]);
                (words(&format!("RQ.REDRIVE {key} COUNT {n} {delay}")), Learn::Nothing)
            }
            32 => (words(&format!("RQ.DEL {key} j{} j{}", self.rng.below(12), n)), Learn::Nothing),
            33 => {
                let state = self.rng.pick(&["READY", "DELAYED", "DEAD", "ALL"]);
                let line = if n == 1 { format!("RQ.PURGE {key} {state}") } else { format!("RQ.LEN {key}") };
                (words(&line), Learn::Nothing)
            }
            34 | 35 => (words(&format!("RQ.SET {key} {}", self.setting())), Learn::Nothing),
            36 => {
                let until = self.clock() + i64::try_from(ms).expect("a short time");
                let line = match n {
                    1 => format!("RQ.PAUSE {key} CLAIM UNTIL {until}"),
                    2 => format!("RQ.PAUSE {key} PUSH UNTIL {until}"),
                    3 => format!("RQ.PAUSE {key} CLAIM GROUP {group}"),
                    _ => format!("RQ.RESUME {key} GROUP {group}"),
                };
                (words(&line), Learn::Nothing)
            }
            37 => {
                let other = self.rng.below(3);
                let what = self.rng.pick(&["READY", "DEAD"]);
                let line = if key == format!("rq:{other}") {
                    format!("RQ.RESUME {key}")
                } else {
                    format!("RQ.MOVE {key} rq:{other} {what} COUNT {n}")
                };
                (words(&line), Learn::Nothing)
            }
            38 => (words(&format!("RQ.INFO {key}")), Learn::Nothing),
            _ => (words(&format!("RQ.GET {key} j{}", self.rng.below(12))), Learn::Nothing),
        }
    }

    fn push(&mut self, key: &str) -> Words {
        let options = self.push_options(true);
        self.pushed += 1;
        // Payloads are bytes: empty ones and such with line ends among them.
        let payload = match self.rng.below(8) {
            0 => Vec::new(),
            1 => b"\0\r\n\xff".repeat(1 + self.rng.below(60) as usize),
            _ => format!("payload-{}", self.pushed).into_bytes(),
        };
        let mut command = words(&format!("RQ.PUSH {key}"));
        command.push(payload);
        command.extend(words(&options));
        command
    }

    fn push_options(&mut self, with_id: bool) -> String {
        let mut options = String::new();
        let mut add = |option: String| {
            options.push(' ');
            options.push_str(&option);
        };
        if with_id && self.rng.percent(50) {
            add(format!("ID j{}", self.rng.below(12)));
            if self.rng.percent(70) {
                add(format!("ONDUP {}", self.rng.pick(&["REJECT", "REPLACE", "KEEPLAST", "KEEPLAST"])));
            }
            if self.rng.percent(20) {
                add(format!("DEDUP {}", self.ms()));
            }
        }
        if self.rng.percent(15) {
            add(format!("DELAY {}", self.ms()));
        } else if self.rng.percent(5) {
            let at = self.clock() + i64::try_from(self.ms()).expect("a short time");
            add(format!("AT {at}"));
        }
        if self.rng.percent(25) {
            add(format!("PRIORITY {}", self.rng.below(4)));
        }
        if self.rng.percent(40) {
            add(format!("GROUP g{}", self.rng.below(4)));
        }
        if self.rng.percent(8) {
            add(format!("TTL {}", self.ms()));
        }
        if self.rng.percent(10) {
            add(format!("LEASE {}", self.ms()));
        }
        if self.rng.percent(10) {
            add(format!("MAXDELIVERIES {}", 1 + self.rng.below(3)));
        }
        options
    }

    fn claim_options(&mut self) -> String {
        let mut options = String::new();
        if self.rng.percent(60) {
            options += &format!(" LEASE {}", self.ms());
        }
        if self.rng.percent(40) {
            options += &format!(" CONSUMER c{}", self.rng.below(3));
        }
        if self.rng.percent(20) {
            options += &format!(" GROUP g{}", self.rng.below(4));
        }
        if self.rng.percent(8) {
            options += " NOACK";
        }
        options
    }

    fn setting(&mut self) -> String {
        let (ms, n) = (self.ms(), self.rng.below(4));
        match self.rng.below(14) {
            0 => format!("LEASE {ms}"),
            1 => format!("MAXDELIVERIES {n}"),
            2 => self.rng.pick(&["BACKOFF NONE", "BACKOFF FIXED 30", "BACKOFF EXP 10 100"]).to_owned(),
            3 => format!("MAXLEN {}", n * 40),
            4 => format!("MAXBYTES {}", n * 2000),
            5 => self.rng.pick(&["ONFULL REJECT", "ONFULL DROPOLD"]).to_owned(),
            6 => format!("MAXINFLIGHT {}", n * 10),
            7 => format!("GROUPINFLIGHT {n}"),
            8 | 9 if !self.rates => format!("MAXDELIVERIES {n}"),
            8 => self.rng.pick(&["RATE NONE", "RATE 50 1000 20", "RATE 7 3 5"]).to_owned(),
            9 => self.rng.pick(&["GROUPRATE NONE", "GROUPRATE 20 1000 5"]).to_owned(),
            10 => format!("DEDUP {}", if n == 0 { 0 } else { ms }),
            11 => format!("MAXDEAD {}", n * 5),
            12 => format!("TTL {}", if n > 0 { 0 } else { ms }),
            _ => format!("AGING {}", n * 50),
        }
    }

    /// A queue and some of its receipts, with their number.
    fn some_receipts(&mut self) -> Option<(String, String, usize)> {
        let chosen = self.rng.below(self.receipts.len().max(1) as u64) as usize;
        let (key, _) = self.receipts.get(chosen)?.clone();
        let count = 1 + self.rng.below(3) as usize;
        let of_key = self.receipts[chosen..].iter().filter(|(k, _)| *k == key);
        let list: Vec<_> = of_key.take(count).map(|(_, receipt)| receipt.clone()).collect();
        Some((key, list.join(" "), list.len()))
    }

    // ------------------------------------------------------------ what came back

    fn learn(&mut self, learn: &Learn, reply: &Reply) {
        match (learn, reply) {
            (Learn::Messages(key), Reply::Array(messages)) => self.learn_messages(key, messages),
            (Learn::Behind(key), Reply::Array(parts)) => {
                if let Some(Reply::Array(messages)) = parts.get(1) {
                    self.learn_messages(key, messages);
                }
            }
            (Learn::Hold(key), Reply::Array(fields)) => {
                remember(&mut self.holds, key, fields.get(6));
            }
            (Learn::Permit(key), Reply::Array(fields)) => {
                remember(&mut self.permits, key, fields.get(4));
            }
            _ => {}
        }
    }

    fn learn_messages(&mut self, key: &str, messages: &[Reply]) {
        for message in messages {
            if let Reply::Array(fields) = message {
                remember(&mut self.receipts, key, fields.get(1));
            }
        }
    }
}

fn remember(into: &mut Vec<(String, String)>, key: &str, what: Option<&Reply>) {
    let receipt = match what {
        Some(Reply::Int(n)) => n.to_string(),
        Some(Reply::Bytes(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => return,
    };
    if into.len() == MEMORY {
        into.remove(0);
    }
    into.push((key.to_owned(), receipt));
}

impl Step {
    fn send(&self, connection: &mut RawConnection) -> std::io::Result<()> {
        if self.transaction {
            connection.send(&["MULTI"])?;
        }
        for (command, _) in &self.commands {
            connection.send(command)?;
        }
        if self.transaction { connection.send(&["EXEC"]) } else { Ok(()) }
    }

    fn read(&self, connection: &mut RawConnection) -> std::io::Result<Vec<Reply>> {
        if !self.transaction {
            return Ok(vec![connection.read()?]);
        }
        for _ in 0..=self.commands.len() {
            connection.read()?;
        }
        match connection.read()? {
            Reply::Array(replies) => Ok(replies),
            other => panic!("EXEC answered {other}"),
        }
    }
}

/// Fails the test for an error that no sound server gives to this load.
#[track_caller]
fn check_reply(words: &Words, reply: &Reply) {
    const EXPECTED: &[&str] = &[
        "QFULL ",
        "PAUSED ",
        "WRONGTYPE ",
        "ERR no limits",
        "ERR no such hold",
        "ERR no such key",
        "ERR no such rule",
        "ERR no such gate",
    ];
    if let Reply::Error(error) = reply
        && !EXPECTED.iter().any(|e| error.starts_with(e))
    {
        panic!("{}: {error}", shown(words));
    }
}

pub fn shown(words: &[Vec<u8>]) -> String {
    words.iter().map(|w| w.escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
}

/// A load from several connections that goes on until it is stopped.
pub struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<usize>>,
}

impl Load {
    /// Starts it, by the running clock, in one thread a connection.
    pub fn start(server: &Server, seed: u64, connections: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..connections)
            .map(|i| {
                let mut workload = Workload::running(server, seed * 1000 + i);
                let (mut connection, stop) = (server.raw(), Arc::clone(&stop));
                std::thread::spawn(move || {
                    let mut steps = 0;
                    while !stop.load(Ordering::Relaxed) {
                        workload.play(&mut connection, PIPELINE);
                        steps += PIPELINE;
                    }
                    steps
                })
            })
            .collect();
        Self { stop, threads }
    }

    /// Stops it, and gives how many steps it has made; fails if it failed.
    #[track_caller]
    pub fn stop(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|t| t.join().unwrap_or_else(|_| panic!("the load failed"))).sum()
    }
}

// ---------------------------------------------------------------- what to compare

/// Databases the load uses.
const DATABASES: u32 = 2;

/// Stops time for the module, and the server's own search for expired keys: what is there now
/// stays.
#[track_caller]
pub fn hold_still(server: &Server) {
    let mut c = server.connect();
    let now = super::reply::int(call!(c, "SLUICE.CLOCK"));
    call!(c, "SLUICE.CLOCK", "SET", now);
    call!(c, "DEBUG", "SET-ACTIVE-EXPIRE", 0);
}

/// What a key holds: type, digest, and the instant at which it expires (-1: never).
pub type Held = (String, String, i64);

/// Everything a server holds, by database and key.
#[track_caller]
pub fn held(server: &Server) -> BTreeMap<(u32, String), Held> {
    let mut all = BTreeMap::new();
    for db in 0..DATABASES {
        let mut c = server.connect_db(db);
        for key in keys(&mut c) {
            let kind = text(call!(c, "TYPE", &key));
            let digest = text(super::reply::array(call!(c, "DEBUG", "DIGEST-VALUE", &key)).remove(0));
            let expires = super::reply::int(call!(c, "PEXPIRETIME", &key));
            if expires != -2 {
                all.insert((db, key), (kind, digest, expires));
            }
        }
    }
    all
}

/// The keys of the selected database, sorted.
#[track_caller]
pub fn keys(c: &mut redis::Connection) -> Vec<String> {
    let mut keys: Vec<String> = super::reply::array(call!(c, "KEYS", "*")).into_iter().map(text).collect();
    keys.sort();
    keys
}

/// Fails unless both hold the same: the same keys with the same digests and ends. A key whose time
/// is over meanwhile does not count.
#[track_caller]
pub fn assert_same(what: &str, one: &BTreeMap<(u32, String), Held>, other: &BTreeMap<(u32, String), Held>) {
    let now = wall_ms();
    let lasting = |all: &BTreeMap<(u32, String), Held>| {
        let mut all = all.clone();
        all.retain(|_, (_, _, expires)| *expires == -1 || *expires > now);
        all
    };
    let (one, other) = (lasting(one), lasting(other));
    let mut differing: Vec<String> = Vec::new();
    for key in one.keys().chain(other.keys().filter(|k| !one.contains_key(*k))) {
        if one.get(key) != other.get(key) {
            differing.push(format!("{key:?}: {:?} and {:?}", one.get(key), other.get(key)));
        }
    }
    assert!(
        differing.is_empty(),
        "{what}: {} of {} keys differ\n{}",
        differing.len(),
        one.len(),
        differing.join("\n")
    );
}

/// What a client can see of every key, apart from what is counted on each server for itself.
#[track_caller]
pub fn seen(server: &Server) -> BTreeMap<(u32, String), Vec<Reply>> {
    (0..DATABASES).flat_map(|db| seen_in(server, db)).collect()
}

fn seen_in(server: &Server, db: u32) -> BTreeMap<(u32, String), Vec<Reply>> {
    let mut c = server.connect_db(db);
    let mut raw = server.raw();
    raw.call(&["SELECT", &db.to_string()]).expect("a reply");
    let mut all = BTreeMap::new();
    for key in keys(&mut c) {
        let look: &[&str] = match text(call!(c, "TYPE", &key)).as_str() {
            "sluice-tb" => &["TB.INFO", "TB.PEEK"],
            "sluice-lb" => &["LB.INFO", "LB.PEEK"],
            "sluice-sm" => &["SEM.PEEK", "SEM.INFO"],
            "sluice-gt" => &["GATE.PEEK"],
            "sluice-ht" => &["HOT.INFO"],
            "sluice-rq" => &["RQ.INFO", "RQ.LEN", "READY", "DELAYED", "INFLIGHT", "DEAD"],
            _ => &["TYPE"],
        };
        let mut replies = Vec::new();
        for name in look {
            let reply = if name.contains('.') || *name == "TYPE" {
                raw.call(&[name, key.as_str()])
            } else {
                raw.call(&["RQ.LIST", key.as_str(), name, "COUNT", "10000"])
            };
            let mut reply = reply.expect("a reply");
            forget_local_counts(name, &mut reply);
            replies.push(reply);
        }
        all.insert((db, key), replies);
    }
    all
}

fn forget_local_counts(command: &str, reply: &mut Reply) {
    const LOCAL: &[&str] = &["granted", "refused", "refused_by", "timed_out", "waiting", "total_rejected"];
    if let (Reply::Array(fields), true) = (reply, command.ends_with(".INFO")) {
        for i in (0..fields.len().saturating_sub(1)).step_by(2) {
            if let Reply::Bytes(name) = &fields[i]
                && (LOCAL.iter().any(|l| l.as_bytes() == name) || (command == "HOT.INFO" && name == b"bytes"))
            {
                fields[i + 1] = Reply::Nil;
            }
        }
    }
}

/// A reply with claim numbers, hold ids and the like made alike: they differ between servers that
/// saw different loads.
pub fn without_numbers(reply: &Reply) -> Reply {
    const LEAST: i64 = 1_000_000_000_000_000;
    match reply {
        Reply::Int(n) if *n >= LEAST => Reply::Int(LEAST),
        Reply::Bytes(bytes) => {
            let text = String::from_utf8_lossy(bytes);
            match text.rsplit_once('@') {
                Some((id, claim)) if claim.parse::<i64>().is_ok_and(|n| n >= LEAST) => {
                    Reply::Bytes(format!("{id}@").into_bytes())
                }
                _ => reply.clone(),
            }
        }
        Reply::Array(items) => Reply::Array(items.iter().map(without_numbers).collect()),
        other => other.clone(),
    }
}

/// Panics the module has caught: there must be none.
#[track_caller]
pub fn assert_no_panic(server: &Server) {
    let fields = super::reply::info(&mut server.connect(), "sluice");
    let panics = fields.iter().find(|(name, _)| name.ends_with("panics_caught")).map(|(_, n)| n.clone());
    assert_eq!(panics.as_deref(), Some("0"), "panics caught by the module; INFO sluice: {fields:?}");
}
