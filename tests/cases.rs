//! Replays the public cases, small histories of commands and instants with their right replies, on
//! every engine, in every form.
//!
//! `cases/limiters.json` and `cases/queues.json` are arrays of cases: `name`, `about`, `from`,
//! `steps`. Each case begins with an empty server and the clock frozen at `T0`. A step has:
//!
//! - `at`: ms since then; the clock is set there first. `client`: on which connection, by name.
//! - `do`: a command; `"$name"` is a saved value, `"@1500"` the unix time in ms of instant 1500.
//!   `times`: so often.
//! - `is`: the right reply: a number, string, null or array, or `any`, `save`, `err`, `min`/`max`,
//!   `re`, `set`, `len`, `map`.
//! - `blocks`: the command is not answered yet; a later step with only `is` reads its answer.
//!   `silent`: still none.
//! - `close`: the client goes away. `sleep`: real ms.
//!
//! A case is followed as far as its first command that the module does not have yet, and then
//! counted as skipped. Which commands have to be there says `common/contract.rs`, so nothing is
//! skipped by accident.

use crate::common::{
    RawConnection, Reply, Server, T0, assert_required, in_every_form, registered_commands, say,
};
use serde_json::Value as Json;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

const FILES: [&str; 2] = [include_str!("cases/limiters.json"), include_str!("cases/queues.json")];

#[test]
fn the_public_cases_hold() {
    in_every_form(|engine| {
        let server = Server::start(engine);
        let mut connection = server.connect();
        let registered = registered_commands(&mut connection);
        assert_required(&registered);

        let mut passed = 0;
        let mut failures: Vec<String> = Vec::new();
        let mut skipped: BTreeMap<String, u32> = BTreeMap::new();
        for file in FILES {
            let cases: Json = serde_json::from_str(file).expect("a file of cases");
            for case in cases.as_array().expect("an array of cases") {
                let name = case["name"].as_str().expect("a case has a name");
                let steps = case["steps"].as_array().expect("a case has steps");
                let mut run = Run::start(&server, &registered, keys_of_one_slot(steps));
                match run.play(steps) {
                    Ok(()) => passed += 1,
                    Err(Stop::Missing(what)) => *skipped.entry(what).or_default() += 1,
                    Err(Stop::Wrong(text)) => failures.push(format!("{name}: {text}")),
                }
            }
        }

        let list: Vec<String> = skipped.iter().map(|(what, count)| format!("{what} {count}")).collect();
        let count: u32 = skipped.values().sum();
        let because =
            if count > 0 { format!(" (not there yet: {})", list.join(", ")) } else { String::new() };
        say(&format!(
            "cases on {engine}: {passed} passed, {} failed, {count} skipped{because}",
            failures.len()
        ));
        assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
    });
}

// ---------------------------------------------------------------- playing a case

/// Why a case was not followed to its end.
enum Stop {
    /// It needs this command, which is not there yet.
    Missing(String),
    /// It did not hold: where, what was wanted, what came.
    Wrong(String),
}

/// The keys that one command or one transaction has beside others: in a cluster they have to be in
/// one slot.
fn keys_of_one_slot(steps: &[Json]) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_transaction = false;
    for words in steps.iter().filter_map(|step| step["do"].as_array()) {
        let word = |i: usize| words.get(i).and_then(Json::as_str).unwrap_or_default();
        let keys = match word(0).to_uppercase().as_str() {
            "MULTI" | "EXEC" => {
                in_transaction = !in_transaction;
                continue;
            }
            "RQ.MCLAIM" | "GATE.MPASS" => {
                // Also a case about a wrong number of keys has it as a number or as a text.
                let count =
                    words.get(1).map_or(0, |n| n.as_u64().or_else(|| n.as_str()?.parse().ok()).unwrap_or(0));
                2..2 + usize::try_from(count).unwrap_or(0).min(words.len().saturating_sub(2))
            }
            "RQ.MOVE" | "RENAME" | "COPY" => 1..words.len().min(3),
            "DEL" | "EXISTS" if words.len() > 2 => 1..words.len(),
            _ if in_transaction => 1..words.len().min(2),
            _ => continue,
        };
        found.extend(keys.map(|i| word(i).to_owned()));
    }
    found
}

struct Run<'a> {
    server: &'a Server,
    /// Keys that have to be in one slot.
    together: Vec<String>,
    registered: &'a [String],
    main: RawConnection,
    others: HashMap<String, RawConnection>,
    saved: HashMap<String, Reply>,
    now: i64,
}

impl<'a> Run<'a> {
    fn start(server: &'a Server, registered: &'a [String], together: Vec<String>) -> Self {
        let together = if server.engine().form.is_cluster() { together } else { vec![] };
        let mut main = server.raw();
        main.tag(&together);
        for words in [&["FLUSHALL"][..], &["CONFIG", "RESETSTAT"], &["SLUICE.CLOCK", "SET", &T0.to_string()]]
        {
            let reply = main.call(words).expect("the server answers");
            assert_eq!(reply, Reply::Bytes(b"OK".to_vec()), "{words:?}");
        }
        let (others, saved) = (HashMap::new(), HashMap::new());
        Self { server, together, registered, main, others, saved, now: 0 }
    }

    fn play(&mut self, steps: &[Json]) -> Result<(), Stop> {
        for (number, step) in steps.iter().enumerate() {
            if let Some(command) = self.missing_command(step) {
                return Err(Stop::Missing(command));
            }
            self.step(step).map_err(|reason| Stop::Wrong(format!("step {number} {step}: {reason}")))?;
        }
        Ok(())
    }

    fn missing_command(&self, step: &Json) -> Option<String> {
        let name = step["do"][0].as_str()?.to_uppercase();
        let registered = || self.registered.iter().any(|r| r.eq_ignore_ascii_case(&name));
        (name.contains('.') && !registered()).then_some(name)
    }

    fn step(&mut self, step: &Json) -> Result<(), String> {
        if let Some(at) = step["at"].as_i64().filter(|at| *at != self.now) {
            self.now = at;
            let instant = (T0 + at).to_string();
            let reply = self.main.call(&["SLUICE.CLOCK", "SET", &instant]).map_err(gone)?;
            if let Reply::Error(e) = reply {
                return Err(format!("SLUICE.CLOCK SET: {e}"));
            }
        }
        if let Some(ms) = step["sleep"].as_u64() {
            std::thread::sleep(Duration::from_millis(ms));
        }
        let client = step["client"].as_str().unwrap_or("main").to_owned();
        if step["close"] == true {
            self.others.remove(&client);
            // There is no telling when the server has noticed.
            std::thread::sleep(Duration::from_millis(50));
            return Ok(());
        }
        let words = step["do"].as_array().map(|words| self.words(words));
        // With threads that read, what one client sent may come after what another sent later: time
        // tells.
        let quiet = Duration::from_millis(if self.server.engine().form.is_cluster() { 100 } else { 50 });
        let connection = match client.as_str() {
            "main" => &mut self.main,
            _ => {
                let open = || {
                    let mut connection = self.server.raw();
                    connection.tag(&self.together);
                    connection
                };
                self.others.entry(client).or_insert_with(open)
            }
        };
        for _ in 0..step["times"].as_u64().unwrap_or(1) {
            if let Some(words) = &words {
                connection.send(words).map_err(gone)?;
            }
            if step["blocks"] == true || step["silent"] == true {
                if !connection.is_silent_for(quiet) {
                    return Err(format!("wanted no answer yet, got {}", connection.read().map_err(gone)?));
                }
            } else if words.is_some() || step.get("is").is_some() {
                let reply = connection.read().map_err(gone)?;
                if let Some(wanted) = step.get("is") {
                    matches(wanted, &reply, &mut self.saved)?;
                }
            }
        }
        Ok(())
    }

    fn words(&self, words: &[Json]) -> Vec<Vec<u8>> {
        let bytes = |word: &Json| match word {
            Json::String(s) => match s.strip_prefix('@').and_then(|n| n.parse::<i64>().ok()) {
                Some(instant) => (T0 + instant).to_string().into_bytes(),
                None => match saved_under(s, &self.saved) {
                    Some(Reply::Int(n)) => n.to_string().into_bytes(),
                    Some(Reply::Bytes(b)) => b.clone(),
                    Some(other) => panic!("{s} was saved as {other}"),
                    None => s.clone().into_bytes(),
                },
            },
            other => other.to_string().into_bytes(),
        };
        words.iter().map(bytes).collect()
    }
}

fn gone(error: std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => "no reply".to_owned(),
        _ => format!("the server is gone: {error}"),
    }
}

// ---------------------------------------------------------------- comparing a reply

fn saved_under<'a>(word: &str, saved: &'a HashMap<String, Reply>) -> Option<&'a Reply> {
    saved.get(word.strip_prefix('$')?)
}

/// Whether the reply is what is wanted; if not, both in words. Keeps what the pattern says to save.
fn matches(wanted: &Json, got: &Reply, saved: &mut HashMap<String, Reply>) -> Result<(), String> {
    let wrong = || Err(format!("wanted {wanted}, got {got}"));
    let check = |holds: bool| if holds { Ok(()) } else { wrong() };
    match wanted {
        Json::Object(pattern) => {
            if let Some(start) = pattern.get("err") {
                let start = start.as_str().expect("an error begins with a text");
                return check(matches!(got, Reply::Error(e) if e.starts_with(start)));
            }
            if let Reply::Error(e) = got {
                return Err(format!("unexpected error: {e}"));
            }
            if let Some(name) = pattern.get("save") {
                saved.insert(name.as_str().expect("a value is saved under a name").to_owned(), got.clone());
                return check(*got != Reply::Nil || pattern.contains_key("any"));
            }
            if pattern.contains_key("any") {
                return Ok(());
            }
            if let Some(expression) = pattern.get("re") {
                let expression = expression.as_str().expect("an expression is a text");
                return check(
                    matches!(got, Reply::Bytes(b) if fits(expression, &String::from_utf8_lossy(b))),
                );
            }
            if pattern.contains_key("min") || pattern.contains_key("max") {
                let bound =
                    |name, default| pattern.get(name).map_or(default, |b| b.as_i64().expect("a bound"));
                return check(
                    matches!(got, Reply::Int(n) if (bound("min", i64::MIN)..=bound("max", i64::MAX)).contains(n)),
                );
            }
            let Reply::Array(items) = got else { return wrong() };
            if let Some(set) = pattern.get("set") {
                let mut rest: Vec<&Reply> = items.iter().collect();
                for wanted in set.as_array().expect("a set is an array") {
                    match rest.iter().position(|item| matches(wanted, item, saved).is_ok()) {
                        Some(i) => drop(rest.swap_remove(i)),
                        None => return wrong(),
                    }
                }
                return check(rest.is_empty());
            }
            if let Some(length) = pattern.get("len") {
                return check(length.as_u64() == Some(items.len() as u64));
            }
            let fields = pattern.get("map").and_then(Json::as_object).expect("a known pattern");
            for (name, wanted) in fields {
                let field = items.chunks(2).find(|pair| pair[0] == Reply::Bytes(name.clone().into_bytes()));
                match field {
                    Some([_, value]) => matches(wanted, value, saved).map_err(|e| format!("{name}: {e}"))?,
                    _ => return Err(format!("no field {name} in {got}")),
                }
            }
            Ok(())
        }
        Json::Array(wanted_items) => match got {
            Reply::Array(items) if items.len() == wanted_items.len() => {
                for (i, (wanted, item)) in wanted_items.iter().zip(items).enumerate() {
                    matches(wanted, item, saved).map_err(|e| format!("[{i}]: {e}, in {got}"))?;
                }
                Ok(())
            }
            _ => wrong(),
        },
        Json::Null => check(*got == Reply::Nil),
        Json::Number(n) => check(matches!(got, Reply::Int(i) if n.as_i64() == Some(*i))),
        Json::String(s) => match saved_under(s, saved) {
            Some(value) => {
                if value == got {
                    Ok(())
                } else {
                    Err(format!("wanted {s} = {value}, got {got}"))
                }
            }
            None => check(matches!(got, Reply::Bytes(b) if b == s.as_bytes())),
        },
        Json::Bool(_) => panic!("no reply is a boolean"),
    }
}

/// Whether the whole text fits an expression of characters, `.` and `[a-z]` classes, each maybe
/// followed by `+`.
fn fits(expression: &str, text: &str) -> bool {
    let Some(first) = expression.chars().next() else { return text.is_empty() };
    let (class, rest) = match first {
        '[' => expression.split_at(expression.find(']').expect("a class ends") + 1),
        _ => expression.split_at(first.len_utf8()),
    };
    let accepts = |c: char| match class.strip_prefix('[').and_then(|c| c.strip_suffix(']')) {
        Some(range) => match range.split_once('-') {
            Some((low, high)) => low.starts_with(|l| l <= c) && high.starts_with(|h| c <= h),
            None => range.contains(c),
        },
        None => class == "." || class.starts_with(c),
    };
    let (rest, most) = match rest.strip_prefix('+') {
        Some(rest) => (rest, usize::MAX),
        None => (rest, 1),
    };
    let mut characters = text.char_indices();
    for _ in 0..most {
        match characters.next() {
            Some((_, c)) if accepts(c) => {
                if fits(rest, characters.as_str()) {
                    return true;
                }
            }
            _ => return false,
        }
    }
    false
}

#[test]
fn expressions_fit_whole_texts() {
    for (expression, text, holds) in [
        ("1@[0-9]+", "1@1900000000000000", true),
        ("1@[0-9]+", "1@", false),
        ("1@[0-9]+", "1@12x", false),
        ("1@[0-9]+", "11@12", false),
        (".+", "anything", true),
        (".+", "", false),
        ("", "", true),
    ] {
        assert_eq!(fits(expression, text), holds, "{expression} {text}");
    }
}

#[test]
fn patterns_tell_right_replies_from_wrong_ones() {
    let bytes = |s: &str| Reply::Bytes(s.as_bytes().to_vec());
    let list = || Reply::Array(vec![Reply::Int(1), bytes("a"), Reply::Nil]);
    let pairs = || Reply::Array(vec![bytes("ready"), Reply::Int(3), bytes("dead"), Reply::Int(0)]);
    let error = || Reply::Error("ERR no limits: give".to_owned());
    let rows: Vec<(&str, Reply, bool)> = vec![
        (r#"1"#, Reply::Int(1), true),
        (r#"1"#, Reply::Int(2), false),
        (r#"1"#, bytes("1"), false),
        (r#""a""#, bytes("a"), true),
        (r#""a""#, bytes("b"), false),
        (r#"null"#, Reply::Nil, true),
        (r#"null"#, Reply::Array(vec![]), false),
        (r#"[1, "a", null]"#, list(), true),
        (r#"[1, "a"]"#, list(), false),
        (r#"[1, "b", null]"#, list(), false),
        (r#"{"err": "ERR no limits"}"#, error(), true),
        (r#"{"err": "WRONGTYPE"}"#, error(), false),
        (r#"{"err": "ERR"}"#, Reply::Int(1), false),
        (r#"{"any": 1}"#, Reply::Nil, true),
        (r#"{"any": 1}"#, error(), false),
        (r#"{"save": "x"}"#, bytes("v"), true),
        (r#"{"save": "x"}"#, Reply::Nil, false),
        (r#"{"min": 1, "max": 3}"#, Reply::Int(3), true),
        (r#"{"min": 1, "max": 3}"#, Reply::Int(4), false),
        (r#"{"max": 3}"#, Reply::Int(-9), true),
        (r#"{"set": [null, 1, "a"]}"#, list(), true),
        (r#"{"set": [1, 1, "a"]}"#, list(), false),
        (r#"{"set": [1, "a"]}"#, list(), false),
        (r#"{"len": 3}"#, list(), true),
        (r#"{"len": 2}"#, list(), false),
        (r#"{"map": {"dead": 0}}"#, pairs(), true),
        (r#"{"map": {"dead": 1}}"#, pairs(), false),
        (r#"{"map": {"delayed": 0}}"#, pairs(), false),
    ];
    for (wanted, got, holds) in rows {
        let pattern: Json = serde_json::from_str(wanted).unwrap();
        let result = matches(&pattern, &got, &mut HashMap::new());
        assert_eq!(result.is_ok(), holds, "{wanted} {got}: {result:?}");
    }
}
