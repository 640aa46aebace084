//! Commands and replies through the `redis` client.
//!
//! ```ignore
//! let mut c = server.connect();
//! assert_eq!(ints(call!(c, "TB.TAKE", "k", 10, 10, 1000)), [1, 10, 9, 0, 100, 100]);
//! assert_eq!(error!(c, "TB.TAKE", "k", 0, 1, 1), "ERR capacity must be between 1 and 1000000000000");
//! ```

use redis::{Cmd, Connection, Value};
use std::collections::BTreeMap;

/// The instant at which tests freeze the clock: unix ms.
pub const T0: i64 = 1_900_000_000_000;

/// A connection that runs a command: what the macros below call.
pub trait Talk {
    /// The reply, or the error as the server wrote it, with its code.
    fn try_run(&mut self, command: &Cmd) -> Result<Value, String>;

    #[track_caller]
    fn run(&mut self, command: &Cmd) -> Value {
        self.try_run(command).unwrap_or_else(|e| panic!("{}: {e}", shown(command)))
    }

    #[track_caller]
    fn run_to_error(&mut self, command: &Cmd) -> String {
        match self.try_run(command) {
            Err(error) => error,
            Ok(value) => panic!("{}: wanted an error, got {value:?}", shown(command)),
        }
    }
}

impl Talk for Connection {
    fn try_run(&mut self, command: &Cmd) -> Result<Value, String> {
        command.query(self).map_err(|e| match (e.code(), e.detail()) {
            (Some(code), Some(detail)) => format!("{code} {detail}"),
            (Some(code), None) => code.to_owned(),
            _ => format!("(no reply) {e}"),
        })
    }
}

fn shown(command: &Cmd) -> String {
    let words = command.args_iter().map(|arg| match arg {
        redis::Arg::Simple(bytes) if bytes.len() > 200 => format!("({} bytes)", bytes.len()),
        redis::Arg::Simple(bytes) => bytes.escape_ascii().to_string(),
        _ => "?".to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// `command!("TB.TAKE", key, 10)` as a `redis::Cmd`.
macro_rules! command {
    ($name:expr $(, $arg:expr)* $(,)?) => {{
        #[allow(unused_mut)]
        let mut command = redis::cmd($name);
        $(command.arg($arg);)*
        command
    }};
}

/// Runs a command and gives its reply; an error fails the test.
macro_rules! call {
    ($connection:expr, $($word:expr),+ $(,)?) => {{
        #[allow(unused_imports)]
        use $crate::common::Talk as _;
        $connection.run(&$crate::common::command!($($word),+))
    }};
}

/// Runs a command that has to be refused and gives the error's whole text.
macro_rules! error {
    ($connection:expr, $($word:expr),+ $(,)?) => {{
        #[allow(unused_imports)]
        use $crate::common::Talk as _;
        $connection.run_to_error(&$crate::common::command!($($word),+))
    }};
}

/// Runs a command: its reply, or the error's whole text.
macro_rules! try_call {
    ($connection:expr, $($word:expr),+ $(,)?) => {{
        #[allow(unused_imports)]
        use $crate::common::Talk as _;
        $connection.try_run(&$crate::common::command!($($word),+))
    }};
}

pub(crate) use {call, command, error, try_call};

#[track_caller]
pub fn int(value: Value) -> i64 {
    match value {
        Value::Int(n) => n,
        other => panic!("wanted an integer, got {other:?}"),
    }
}

/// An array (a set, too).
#[track_caller]
pub fn array(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) | Value::Set(items) => items,
        other => panic!("wanted an array, got {other:?}"),
    }
}

#[track_caller]
pub fn ints(value: Value) -> Vec<i64> {
    array(value).into_iter().map(int).collect()
}

/// A status or a string; bytes that are not UTF-8 are replaced.
#[track_caller]
pub fn text(value: Value) -> String {
    match value {
        Value::Okay => "OK".to_owned(),
        Value::SimpleString(s) => s,
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Value::VerbatimString { text, .. } => text,
        other => panic!("wanted a string, got {other:?}"),
    }
}

/// A map, or a flat array of names and values.
#[track_caller]
pub fn map(value: Value) -> BTreeMap<String, Value> {
    match value {
        Value::Map(pairs) => pairs.into_iter().map(|(name, value)| (text(name), value)).collect(),
        Value::Array(items) => {
            assert!(items.len() % 2 == 0, "wanted names and values, got {items:?}");
            items.chunks_exact(2).map(|pair| (text(pair[0].clone()), pair[1].clone())).collect()
        }
        other => panic!("wanted a map, got {other:?}"),
    }
}

/// The fields of a section of INFO.
#[track_caller]
pub fn info(connection: &mut Connection, section: &str) -> BTreeMap<String, String> {
    let lines = text(call!(connection, "INFO", section));
    lines.lines().filter_map(|l| l.split_once(':')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

/// The digest of everything the server holds.
#[track_caller]
pub fn digest(connection: &mut Connection) -> String {
    text(call!(connection, "DEBUG", "DIGEST"))
}

/// Freezes the module's clock at an instant (unix ms).
#[track_caller]
pub fn set_clock(connection: &mut Connection, ms: i64) {
    call!(connection, "SLUICE.CLOCK", "SET", ms);
}

/// Moves the frozen clock on; what is due on the way happens.
#[track_caller]
pub fn advance_clock(connection: &mut Connection, ms: i64) {
    call!(connection, "SLUICE.CLOCK", "ADVANCE", ms);
}

/// The names of the commands the module has registered, in lower case, sorted.
#[track_caller]
pub fn registered_commands(connection: &mut Connection) -> Vec<String> {
    let mut names: Vec<String> = array(call!(connection, "COMMAND", "LIST", "FILTERBY", "MODULE", "sluice"))
        .into_iter()
        .map(text)
        .collect();
    names.iter_mut().for_each(|n| n.make_ascii_lowercase());
    names.sort();
    names
}
