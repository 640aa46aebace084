//! A server with one connection that does everything but wait, and clients that wait: tests written
//! as the commands they send.
//!
//! Commands are lines whose words are divided by spaces; replies are compared as text (`Reply`'s
//! `Display`) or taken apart.

use super::resp::{RawConnection, Reply};
use super::server::{Builder, Server};
use super::{Engine, Form, eventually, in_forms, in_forms_by_turns};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A client that has heard nothing for so long goes on waiting.
const QUIET: Duration = Duration::from_millis(25);

/// A server, and the connection that does everything but wait.
pub struct Stage {
    pub server: Server,
    pub control: RawConnection,
    /// Keys of one slot, in a cluster.
    tagged: Vec<String>,
}

/// Runs a test on a server of its own on every engine, in every form that is asked for; the module
/// must not have caught a panic of its own.
#[track_caller]
pub fn on_stage(test: impl Fn(&mut Stage)) {
    on_stage_with(|builder| builder, test);
}

/// The same, on a server that is started in another way.
#[track_caller]
pub fn on_stage_with(how: impl Fn(Builder) -> Builder, test: impl Fn(&mut Stage)) {
    in_forms_by_turns(shown_by_waiting, |engine| on_one_stage(engine, &how, &test));
}

/// The same, not in a cluster: for what a node of a cluster does not have (several databases, a
/// master of its own choice).
#[track_caller]
pub fn on_stage_alone(test: impl Fn(&mut Stage)) {
    on_stage_alone_with(|builder| builder, test);
}

/// Both.
#[track_caller]
pub fn on_stage_alone_with(how: impl Fn(Builder) -> Builder, test: impl Fn(&mut Stage)) {
    in_forms(|form| form == Form::Plain, |engine| on_one_stage(engine, &how, &test));
}

/// These tests choose databases themselves, and do as much that is not a command of ours as that
/// is.
fn shown_by_waiting(form: Form) -> bool {
    form == Form::Plain || form.is_cluster()
}

#[track_caller]
fn on_one_stage(engine: &Engine, how: impl Fn(Builder) -> Builder, test: impl Fn(&mut Stage)) {
    let mut stage = Stage::on(how(Server::builder(engine).option("hz", "100")).start());
    test(&mut stage);
    assert_eq!(stage.field("panics_caught"), 0);
}

/// The wall clock, which the server on this machine shares: unix ms.
pub fn wall() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    i64::try_from(since.as_millis()).expect("a clock of our times")
}

pub fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

impl Stage {
    #[track_caller]
    pub fn on(server: Server) -> Self {
        let control = server.raw();
        Self { server, control, tagged: Vec::new() }
    }

    /// From now on these keys are in one slot, if this is a cluster; all others are where their
    /// names put them.
    pub fn together(&mut self, keys: &str) {
        if self.is_cluster() {
            self.tagged = keys.split_whitespace().map(str::to_owned).collect();
            self.control.tag(&self.tagged);
        }
    }

    pub fn is_cluster(&self) -> bool {
        self.server.engine().form.is_cluster()
    }

    /// Runs a command that must not fail.
    #[track_caller]
    pub fn run(&mut self, line: &str) -> Reply {
        let reply = self.control.call(&words(line)).expect("the server answers");
        assert!(!matches!(reply, Reply::Error(_)), "{line}: {reply}");
        reply
    }

    /// The reply of a command as text.
    #[track_caller]
    pub fn shown(&mut self, line: &str) -> String {
        self.run(line).to_string()
    }

    /// The reply, or the error, of a command whose words are any bytes.
    #[track_caller]
    pub fn bytes<A: AsRef<[u8]>>(&mut self, words: &[A]) -> Reply {
        self.control.call(words).expect("the server answers")
    }

    /// A reply that is a number.
    #[track_caller]
    pub fn int(&mut self, line: &str) -> i64 {
        match self.run(line) {
            Reply::Int(n) => n,
            other => panic!("{line}: wanted a number, got {other}"),
        }
    }

    /// A reply that is a string.
    #[track_caller]
    pub fn text(&mut self, line: &str) -> String {
        match self.run(line) {
            Reply::Bytes(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            other => panic!("{line}: wanted a string, got {other}"),
        }
    }

    /// The module's clock, unix ms.
    #[track_caller]
    pub fn now(&mut self) -> i64 {
        self.int("SLUICE.CLOCK")
    }

    #[track_caller]
    pub fn error(&mut self, line: &str) -> String {
        match self.control.call(&words(line)).expect("the server answers") {
            Reply::Error(text) => text,
            other => panic!("{line}: wanted an error, got {other}"),
        }
    }

    /// Sends commands in one piece, then reads all their replies.
    #[track_caller]
    pub fn at_once(&mut self, lines: &[&str]) -> Vec<String> {
        let bytes: Vec<u8> = lines.iter().flat_map(|line| self.control.encoded(&words(line))).collect();
        self.control.send_bytes(&bytes).expect("the server listens");
        lines.iter().map(|_| self.control.read().expect("the server answers").to_string()).collect()
    }

    /// A number of `INFO sluice`.
    #[track_caller]
    pub fn field(&mut self, name: &str) -> i64 {
        let info = self.text("INFO sluice");
        let value = info.lines().find_map(|l| l.strip_prefix(&format!("sluice_{name}:")));
        value
            .and_then(|v| v.trim().parse().ok())
            .unwrap_or_else(|| panic!("INFO has no sluice_{name}: {info}"))
    }

    pub fn waiting(&mut self) -> i64 {
        self.field("blocked_clients")
    }

    #[track_caller]
    pub fn until_waiting(&mut self, n: i64) {
        eventually(&format!("{n} clients waiting"), || self.waiting() == n);
    }

    /// A connected client.
    #[track_caller]
    pub fn client(&mut self) -> Client {
        let mut wire = self.server.raw();
        wire.tag(&self.tagged);
        let Ok(Reply::Int(id)) = wire.call(&["CLIENT", "ID"]) else { panic!("CLIENT ID is a number") };
        Client { wire, id }
    }

    /// A client that has sent a command: by now it may wait or not.
    #[track_caller]
    pub fn asker(&mut self, line: &str) -> Client {
        let mut client = self.client();
        client.send(line);
        client
    }

    /// A client that waits for the reply to this command.
    #[track_caller]
    pub fn waiter(&mut self, line: &str) -> Client {
        let mut client = self.client();
        self.has_wait(&mut client, line);
        client
    }

    #[track_caller]
    pub fn has_wait(&mut self, client: &mut Client, line: &str) {
        let before = self.waiting();
        client.send(line);
        let end = Instant::now() + super::PATIENCE;
        while self.waiting() != before + 1 {
            if !client.wire.is_silent_for(Duration::ZERO) {
                panic!("{line} was answered: {}", client.told());
            }
            assert!(Instant::now() < end, "{line} does not come to wait: {} do", self.waiting());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(client.waits(), "{line} was answered");
    }

    pub fn ready(&mut self, key: &str) -> String {
        self.shown(&format!("RQ.LEN {key} READY"))
    }

    pub fn in_flight(&mut self, key: &str) -> String {
        self.shown(&format!("RQ.LEN {key} INFLIGHT"))
    }
}

pub struct Client {
    pub wire: RawConnection,
    pub id: i64,
}

impl Client {
    pub fn send(&mut self, line: &str) {
        self.wire.send(&words(line)).expect("the server listens");
    }

    /// Whether it has heard nothing.
    pub fn waits(&mut self) -> bool {
        self.wire.is_silent_for(QUIET)
    }

    /// The reply, waited for.
    #[track_caller]
    pub fn told(&mut self) -> Reply {
        self.wire.read().expect("the client is answered")
    }

    /// The payloads of the messages it is told.
    #[track_caller]
    pub fn payloads(&mut self) -> Vec<String> {
        payloads(&self.told())
    }

    #[track_caller]
    pub fn refusal(&mut self) -> String {
        match self.told() {
            Reply::Error(text) => text,
            other => panic!("wanted an error, got {other}"),
        }
    }

    pub fn is_closed(&mut self) -> bool {
        self.wire.read().is_err()
    }
}

#[track_caller]
pub fn payloads(messages: &Reply) -> Vec<String> {
    let Reply::Array(messages) = messages else { panic!("wanted messages, got {messages}") };
    let payload = |message: &Reply| match message {
        Reply::Array(fields) if fields.len() == 4 => match &fields[3] {
            Reply::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("a payload is a string, not {other}"),
        },
        other => panic!("a message is four fields, not {other}"),
    };
    messages.iter().map(payload).collect()
}

/// The receipt of the first of these messages.
#[track_caller]
pub fn receipt(messages: &Reply) -> String {
    let Reply::Array(messages) = messages else { panic!("wanted messages, got {messages}") };
    match messages.first() {
        Some(Reply::Array(fields)) => match &fields[1] {
            Reply::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("a receipt is a string, not {other}"),
        },
        _ => panic!("there is no message"),
    }
}

#[track_caller]
pub fn numbers(reply: &Reply) -> Vec<i64> {
    let Reply::Array(items) = reply else { panic!("wanted an array, got {reply}") };
    let int = |item: &Reply| match item {
        Reply::Int(n) => *n,
        other => panic!("wanted a number, got {other}"),
    };
    items.iter().map(int).collect()
}

/// A client that hears keyspace events.
pub struct Events(RawConnection);

/// A keyspace event: the database, the event's name and the key.
pub type Event = (i64, String, String);

impl Events {
    /// Hears the events of all databases whose names match, from now on.
    #[track_caller]
    pub fn listen(stage: &mut Stage, names: &str) -> Self {
        stage.run("CONFIG SET notify-keyspace-events KEA");
        let mut wire = stage.server.raw();
        wire.tag(&stage.tagged);
        wire.call(&["PSUBSCRIBE", &format!("__keyevent@*__:{names}")]).expect("a subscription");
        Self(wire)
    }

    /// The next event, waited for.
    #[track_caller]
    pub fn next(&mut self) -> Event {
        let Reply::Array(message) = self.0.read().expect("an event") else { panic!("an event is an array") };
        let text = |i: usize| match &message[i] {
            Reply::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("a part of an event is a string, not {other}"),
        };
        let (channel, key) = (text(2), text(3));
        let parts = channel.strip_prefix("__keyevent@").and_then(|c| c.split_once("__:"));
        let (db, name) = parts.expect("the channel of an event");
        (db.parse().expect("a database"), name.to_owned(), key)
    }

    /// Whether nothing happens for a while.
    pub fn is_quiet(&mut self) -> bool {
        self.0.is_silent_for(QUIET)
    }
}
