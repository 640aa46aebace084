//! An example of the pages as a session: read, played on a server, and its replies compared. What
//! the lines mean is told in docs.rs.

use crate::common::{Server, Talk, call};
use redis::{Cmd, Connection, Value};
use std::collections::{BTreeMap, HashMap};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

/// At which line of the block (from 0) what is wrong.
pub type Wrong = (usize, String);

pub struct Block {
    pub steps: Vec<Step>,
    lines: Vec<String>,
}

pub enum Step {
    Command {
        line: usize,
        client: String,
        words: Vec<Vec<u8>>,
        reply: Vec<String>,
    },
    /// The reply that a client has been waiting for.
    Late {
        line: usize,
        client: String,
        reply: Vec<String>,
    },
    /// So many ms pass.
    Later {
        line: usize,
        ms: i64,
    },
    Comment {
        line: usize,
    },
}

impl Step {
    fn line(&self) -> usize {
        match self {
            Self::Command { line, .. }
            | Self::Late { line, .. }
            | Self::Later { line, .. }
            | Self::Comment { line } => *line,
        }
    }
}

const WAITS: &str = "(waits)";
/// What stands for anything.
const ANY: &str = "…";

impl Block {
    pub fn parse(lines: &[String]) -> Result<Self, Wrong> {
        let mut steps: Vec<Step> = Vec::new();
        for (line, text) in lines.iter().enumerate() {
            if let Some(comment) = text.strip_prefix('#') {
                let ms = later(comment).map_err(|why| (line, why))?;
                steps.push(ms.map_or(Step::Comment { line }, |ms| Step::Later { line, ms }));
            } else if let Some((client, command)) = prompt(text) {
                let words = words(command).map_err(|why| (line, why))?;
                let (client, reply) = (client.to_owned(), Vec::new());
                steps.push(Step::Command { line, client, words, reply });
            } else if let Some(client) = text.strip_suffix(':').filter(|c| is_name(c)) {
                steps.push(Step::Late { line, client: client.to_owned(), reply: Vec::new() });
            } else {
                match steps.last_mut() {
                    Some(Step::Command { reply, .. } | Step::Late { reply, .. }) => reply.push(text.clone()),
                    _ if text.is_empty() => steps.push(Step::Comment { line }),
                    _ => return Err((line, format!("a reply to nothing: {text:?}"))),
                }
            }
        }
        Ok(Self { steps, lines: lines.to_vec() })
    }
}

fn is_name(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// `name> command`, or `> command`.
fn prompt(line: &str) -> Option<(&str, &str)> {
    line.split_once("> ").filter(|(client, _)| client.is_empty() || is_name(client))
}

/// ` 5 s later` is 5000; any other comment is none, but not one that looks like it.
fn later(comment: &str) -> Result<Option<i64>, String> {
    let words: Vec<&str> = comment.split_whitespace().collect();
    let [rest @ .., "later"] = words.as_slice() else { return Ok(None) };
    let parsed = match rest {
        [n, unit] => n.parse::<i64>().ok().zip(match *unit {
            "ms" => Some(1),
            "s" => Some(1_000),
            "min" => Some(60_000),
            "h" => Some(3_600_000),
            _ => None,
        }),
        _ => None,
    };
    parsed
        .map(|(n, unit)| Some(n * unit))
        .ok_or_else(|| format!("not a time: {comment:?} (5 ms|s|min|h later)"))
}

/// Words as redis-cli takes them.
fn words(command: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut words = Vec::new();
    let mut bytes = command.bytes().peekable();
    loop {
        while bytes.next_if_eq(&b' ').is_some() {}
        let Some(first) = bytes.peek().copied() else { break };
        let mut word = Vec::new();
        if first == b'"' || first == b'\'' {
            bytes.next();
            loop {
                let b = bytes.next().ok_or("a quote is not closed")?;
                if b == first {
                    break;
                }
                if b == b'\\' && first == b'"' {
                    let escaped = bytes.next().ok_or("a quote is not closed")?;
                    word.push(match escaped {
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'x' => {
                            let digits = [bytes.next(), bytes.next()].map(|d| char::from(d.unwrap_or(b'?')));
                            let text: String = digits.iter().collect();
                            u8::from_str_radix(&text, 16).map_err(|e| e.to_string())?
                        }
                        other => other,
                    });
                } else {
                    word.push(b);
                }
            }
        } else {
            while let Some(b) = bytes.next_if(|b| *b != b' ') {
                word.push(b);
            }
        }
        words.push(word);
    }
    if words.is_empty() { Err("no command".to_owned()) } else { Ok(words) }
}

// ---------------------------------------------------------------- playing

/// Plays a block on an emptied server and compares every reply; gives the replies.
pub fn play(server: &Server, block: &Block) -> Result<Vec<Vec<String>>, Wrong> {
    let mut run = Run::start(server);
    let mut replies = Vec::new();
    for step in &block.steps {
        let line = step.line();
        let (wanted, came) = run.step(step).map_err(|why| (line, why))?;
        compare(wanted, &came, &mut run.drawn).map_err(|why| (line, why))?;
        replies.push(came);
    }
    run.nobody_waits(block)?;
    run.drawn.rise().map_err(|why| (0, why))?;
    Ok(replies)
}

/// Plays a block on a new server and gives its lines with the replies that came, but keeps those
/// with `…`.
pub fn record(server: &Server, block: &Block) -> Result<Vec<String>, Wrong> {
    let mut run = Run::start(server);
    let mut out = Vec::new();
    for step in &block.steps {
        let (wanted, came) = run.step(step).map_err(|why| (step.line(), why))?;
        // On a new server the numbers are those of the frozen instants: the page shall have them as
        // they are.
        came.iter().for_each(|line| assert!(run.drawn.same(line, line)));
        out.push(block.lines[step.line()].clone());
        if wanted.iter().any(|l| l.trim_end().ends_with(ANY)) {
            out.extend(wanted.iter().cloned());
        } else {
            out.extend(came);
            let blank = wanted.iter().rev().take_while(|l| l.is_empty()).count();
            out.extend(std::iter::repeat_n(String::new(), blank));
        }
    }
    run.nobody_waits(block)?;
    Ok(out)
}

struct Run<'a> {
    server: &'a Server,
    clients: HashMap<String, Connection>,
    waiting: BTreeMap<String, Waiting>,
    drawn: Drawn,
}

/// A command that was sent and is not answered yet: its line, and who reads the reply.
struct Waiting {
    line: usize,
    reader: JoinHandle<(Connection, Vec<String>)>,
}

/// How long a reply must not come where the page says that it does not.
const SILENCE: Duration = Duration::from_millis(60);

impl<'a> Run<'a> {
    fn start(server: &'a Server) -> Self {
        let mut main = server.connect();
        // Who waited in the block before is gone at once.
        call!(main, "CLIENT", "KILL", "TYPE", "normal");
        call!(main, "FLUSHALL");
        call!(main, "SLUICE.CLOCK", "SET", super::T0);
        Self {
            server,
            clients: HashMap::from([(String::new(), main)]),
            waiting: BTreeMap::new(),
            drawn: Drawn::default(),
        }
    }

    /// What the page says that comes, and what came.
    fn step<'b>(&mut self, step: &'b Step) -> Result<(&'b [String], Vec<String>), String> {
        match step {
            Step::Comment { .. } => Ok((&[], Vec::new())),
            Step::Later { ms, .. } => {
                let main = self.clients.get_mut("").expect("the first client");
                call!(main, "SLUICE.CLOCK", "ADVANCE", *ms);
                Ok((&[], Vec::new()))
            }
            Step::Command { line, client, words, reply } => {
                let mut command = Cmd::new();
                for word in words {
                    command.arg(self.drawn.true_words(word)?);
                }
                if reply.first().is_some_and(|l| l == WAITS) {
                    return Ok((reply, self.send_off(*line, client, command)?));
                }
                let came = self.client(client).try_run(&command);
                let raw = words[0].eq_ignore_ascii_case(b"INFO");
                Ok((reply, if raw { raw_lines(came) } else { printed(came) }))
            }
            Step::Late { client, reply, .. } => {
                let waiting = self.waiting.remove(client).ok_or_else(|| format!("{client} does not wait"))?;
                let (connection, came) = waiting.reader.join().map_err(|_| "the reader failed")?;
                self.clients.insert(client.clone(), connection);
                Ok((reply, came))
            }
        }
    }

    /// Sends a command whose reply is read in the background; gives the reply if it comes at once.
    fn send_off(&mut self, line: usize, client: &str, command: Cmd) -> Result<Vec<String>, String> {
        let mut connection = self.clients.remove(client).unwrap_or_else(|| self.server.connect());
        let reader = spawn(move || {
            let came = printed(connection.try_run(&command));
            (connection, came)
        });
        sleep(SILENCE);
        if reader.is_finished() {
            return Ok(reader.join().map_err(|_| "the reader failed")?.1);
        }
        self.waiting.insert(client.to_owned(), Waiting { line, reader });
        Ok(vec![WAITS.to_owned()])
    }

    fn client(&mut self, name: &str) -> &mut Connection {
        let open = || self.server.connect();
        self.clients.entry(name.to_owned()).or_insert_with(open)
    }

    fn nobody_waits(&self, block: &Block) -> Result<(), Wrong> {
        match self.waiting.first_key_value() {
            Some((_, w)) => Err((w.line, format!("never answered on the page: {}", block.lines[w.line]))),
            None => Ok(()),
        }
    }
}

fn raw_lines(reply: Result<Value, String>) -> Vec<String> {
    match reply {
        Ok(value) => super::text(value).lines().map(str::to_owned).collect(),
        Err(error) => vec![format!("(error) {error}")],
    }
}

// ---------------------------------------------------------------- as redis-cli prints

fn printed(reply: Result<Value, String>) -> Vec<String> {
    match reply {
        Ok(value) => shown(&value),
        Err(error) => vec![format!("(error) {error}")],
    }
}

fn shown(value: &Value) -> Vec<String> {
    match value {
        Value::Nil => vec!["(nil)".to_owned()],
        Value::Int(n) => vec![format!("(integer) {n}")],
        Value::Okay => vec!["OK".to_owned()],
        Value::SimpleString(s) => vec![s.clone()],
        Value::BulkString(bytes) => vec![quoted(bytes)],
        Value::Array(items) if items.is_empty() => vec!["(empty array)".to_owned()],
        Value::Array(items) => {
            let width = items.len().to_string().len();
            let mut lines = Vec::new();
            for (i, item) in items.iter().enumerate() {
                for (j, inner) in shown(item).into_iter().enumerate() {
                    lines.push(match j {
                        0 => format!("{:>width$}) {inner}", i + 1),
                        _ => format!("{:width$}  {inner}", ""),
                    });
                }
            }
            lines
        }
        Value::ServerError(e) => {
            vec![format!("(error) {} {}", e.code(), e.details().unwrap_or_default()).trim_end().to_owned()]
        }
        other => vec![format!("{other:?}")],
    }
}

fn quoted(bytes: &[u8]) -> String {
    let mut out = String::from("\"");
    for b in bytes {
        match b {
            b'\\' | b'"' => out.extend(['\\', char::from(*b)]),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            0x07 => out.push_str("\\a"),
            0x08 => out.push_str("\\b"),
            b' '..=b'~' => out.push(char::from(*b)),
            _ => out.push_str(&format!("\\x{b:02x}")),
        }
    }
    out + "\""
}

// ---------------------------------------------------------------- comparing

/// Numbers of 16 digits that the server has drawn: as they stand on the page, and as they are in
/// truth.
#[derive(Default)]
struct Drawn(BTreeMap<String, String>);

/// A text in parts: runs of digits, and what is between them.
fn parts(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.bytes().next() {
        let digits = first.is_ascii_digit();
        let end = rest.bytes().position(|b| b.is_ascii_digit() != digits).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        parts.push(part);
        rest = after;
    }
    parts
}

fn is_drawn(part: &str) -> bool {
    part.len() == 16 && part.bytes().all(|b| b.is_ascii_digit())
}

impl Drawn {
    /// A word of a command, with the true numbers.
    fn true_words(&self, word: &[u8]) -> Result<Vec<u8>, String> {
        let Ok(text) = std::str::from_utf8(word) else { return Ok(word.to_vec()) };
        let mut out = String::new();
        for part in parts(text) {
            match self.0.get(part) {
                Some(number) => out.push_str(number),
                None if is_drawn(part) => return Err(format!("{part} has not been printed before")),
                None => out.push_str(part),
            }
        }
        Ok(out.into_bytes())
    }

    /// Whether a line is as on the page; notes what numbers stand for.
    fn same(&mut self, wanted: &str, came: &str) -> bool {
        let (mut w, mut c) = (parts(wanted).into_iter(), parts(came).into_iter());
        loop {
            match (w.next(), c.next()) {
                (None, None) => return true,
                (Some(wanted), Some(came)) if is_drawn(wanted) && is_drawn(came) => {
                    if self.0.entry(wanted.to_owned()).or_insert_with(|| came.to_owned()) != came {
                        return false;
                    }
                }
                (Some(wanted), Some(came)) => {
                    let same = match wanted.strip_suffix(ANY) {
                        Some(begin) if w.as_slice().is_empty() => return came.starts_with(begin),
                        _ => wanted == came,
                    };
                    if !same {
                        return false;
                    }
                }
                (Some(ANY), None) => return w.next().is_none(),
                _ => return false,
            }
        }
    }

    fn rise(&self) -> Result<(), String> {
        let numbers: Vec<&String> = self.0.values().collect();
        if numbers.is_sorted_by(|a, b| a < b) {
            Ok(())
        } else {
            Err(format!("the numbers drawn do not rise as on the page: {:?}", self.0))
        }
    }
}

/// Compares a reply with the page; `…` alone in a line is any lines.
fn compare(wanted: &[String], came: &[String], drawn: &mut Drawn) -> Result<(), String> {
    let end = wanted.iter().rposition(|l| !l.is_empty()).map_or(0, |i| i + 1);
    let mut rest = came;
    let mut skip = false;
    for line in &wanted[..end] {
        if line.trim() == ANY {
            skip = true;
            continue;
        }
        let at = if skip {
            // Looked for without noting numbers, so that a line passed over binds nothing.
            rest.iter().position(|l| Drawn(drawn.0.clone()).same(line, l))
        } else {
            (!rest.is_empty()).then_some(0)
        };
        let found = at.and_then(|at| rest.get(at).map(|l| (at, l)));
        match found {
            Some((at, l)) if drawn.same(line, l) => rest = &rest[at + 1..],
            _ => return Err(format!("{line:?} is not what came:\n{}", came.join("\n"))),
        }
        skip = false;
    }
    if rest.is_empty() || skip {
        Ok(())
    } else {
        Err(format!("the page leaves out a part of what came:\n{}", came.join("\n")))
    }
}
