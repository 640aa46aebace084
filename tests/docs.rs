//! Holds that the documentation is true: replays every example of README.md and docs/ on every
//! engine, and compares the pages with what the module registers.
//!
//! An example is a fenced block marked `redis`. It is one session of `redis-cli`, on an empty
//! server, with the clock frozen at unix ms 1900000000000 ([`T0`]), so that every reply is exact:
//!
//! ```text
//! > RQ.PUSH jobs "hello" DELAY 2000       a command; words as redis-cli takes them: plain, "a\n" or 'a'
//! "1"                                     and its reply, as redis-cli prints it
//! worker> RQ.CLAIM jobs BLOCK 5000        the same on a connection of its own, named worker
//! (waits)                                 there is no reply yet
//! # 2 s later                             the clock moves (ms, s, min, h); what is due on the way happens
//! worker:                                 now the reply that was waited for
//! 1) 1) "1"
//!    2) "1@1900000002000000"
//!    …                                    any lines, or none; at the end of a line: anything
//! > RQ.ACK jobs 1@1900000002000000
//! 1) (integer) 1
//! # any other text is a comment
//! ```
//!
//! A whole number of 16 digits is one the server has drawn (the claim number of a receipt, the id
//! of a hold). It stands for whatever came when it was first printed, and means the same in later
//! commands and replies. Such numbers have to rise in a block as they do on the page.
//!
//! The blocks marked `python` in docs/recipes.md are run by docs/recipes.py, each with a scene of
//! its own.
//!
//! `SLUICE_DOCS=write cargo test --test all docs` writes the replies of the first engine into the
//! pages, for examples that are new: read what it wrote. Replies with `…` are left as they are.

mod pages;
mod session;

use crate::common::{
    Server, T0, array, call, engines, info, map, on_every_engine, registered_commands, say, text,
};
use pages::{Page, Section, headings, pages, upper_case_words};
use redis::Value;
use session::{Block, Step};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Commands that are only met inside the module.
const FAMILIES: [&str; 8] = ["TB", "LB", "SEM", "GATE", "HOT", "RQ", "SLUICE", "CL"];

#[test]
fn every_example_is_true() {
    let pages = pages();
    if std::env::var("SLUICE_DOCS").is_ok_and(|v| v == "write") {
        write_replies(&pages);
        return;
    }
    on_every_engine(|engine| {
        let server = Server::start(engine);
        let mut failures = Vec::new();
        let (mut blocks, mut commands) = (0, 0);
        for page in &pages {
            for (line, lines) in page.fenced("redis") {
                blocks += 1;
                let outcome = Block::parse(&lines).and_then(|block| {
                    commands += block.steps.iter().filter(|s| matches!(s, Step::Command { .. })).count();
                    session::play(&server, &block).map(|_| ())
                });
                if let Err((at, why)) = outcome {
                    failures.push(format!("{}:{}: {why}", page.name, line + at));
                }
            }
        }
        say(&format!(
            "docs on {engine}: {commands} commands in {blocks} examples, {} failed",
            failures.len()
        ));
        assert!(commands > 0, "there is no example");
        assert!(failures.is_empty(), "{} examples are not true:\n{}", failures.len(), failures.join("\n"));
    });
}

/// Each block on a server of its own, so that the numbers drawn are those of the frozen instants.
fn write_replies(pages: &[Page]) {
    let engine = engines().first().expect("at least one engine");
    for page in pages {
        let mut edits = Vec::new();
        for (line, lines) in page.fenced("redis") {
            let server = Server::start(engine);
            let played = Block::parse(&lines).and_then(|block| session::record(&server, &block));
            match played {
                Ok(new) if new != lines => edits.push((line, lines.len(), new)),
                Ok(_) => {}
                Err((at, why)) => say(&format!("{}:{}: {why}", page.name, line + at)),
            }
        }
        page.edit(edits);
    }
}

#[test]
fn the_python_of_the_recipes_does_what_the_page_says() {
    on_every_engine(|engine| {
        let server = Server::start(engine);
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut python = Command::new("python3");
        python.arg("-B").arg(root.join("tests/docs/recipes.py")).arg(server.port().to_string());
        let output = python.arg(root.join("docs/recipes.md")).output();
        let output = output.expect("the recipes need python3 (`make servers` installs it)");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
}

#[test]
fn every_command_has_its_section() {
    let engine = engines().first().expect("at least one engine");
    let server = Server::start(engine);
    let mut connection = server.connect();
    let registered: BTreeSet<String> =
        registered_commands(&mut connection).iter().map(|c| c.to_uppercase()).collect();
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for page in pages().iter().filter(|p| p.name.starts_with("docs/commands/")) {
        for section in page.sections() {
            if !is_command(&section.title) {
                continue;
            }
            let at = format!("{}: {}", page.name, section.title);
            if !registered.contains(&section.title) {
                wrong.push(format!("{at} is not registered"));
                continue;
            }
            if !seen.insert(section.title.clone()) {
                wrong.push(format!("{at} has a second section"));
            }
            let docs = map(call!(connection, "COMMAND", "DOCS", &section.title));
            let docs = docs.into_values().next().expect("the docs of one command");
            wrong.extend(lacks(&section, docs).into_iter().map(|what| format!("{at}: {what}")));
        }
    }
    wrong.extend(registered.difference(&seen).map(|c| format!("{c} has no section in docs/commands/")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A command's name in capitals, with its family.
fn is_command(title: &str) -> bool {
    title.split_once('.').is_some_and(|(family, name)| {
        FAMILIES.contains(&family) && !name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase())
    })
}

/// What a command's section lacks: its syntax with exactly the keywords the server was told, and an
/// example that calls it.
fn lacks(section: &Section<'_>, docs: Value) -> Vec<String> {
    let mut lacking = Vec::new();
    match section.fenced("text").into_iter().find(|lines| lines[0].starts_with(&section.title)) {
        None => lacking.push("no syntax: a block marked text that begins with the name".to_owned()),
        Some(lines) => {
            let mut tokens = BTreeSet::new();
            if let Some(arguments) = map(docs).remove("arguments") {
                collect_tokens(arguments, &mut tokens);
            }
            let written: BTreeSet<String> = upper_case_words(&lines.join(" ").replace(&section.title, ""));
            if written != tokens {
                lacking.push(format!("the syntax has the keywords {written:?}, COMMAND DOCS {tokens:?}"));
            }
        }
    }
    let calls = |line: &String| {
        line.split_once("> ").is_some_and(|(_, c)| c.split(' ').next() == Some(section.title.as_str()))
    };
    if !section.fenced("redis").iter().flatten().any(calls) {
        lacking.push("no example calls it".to_owned());
    }
    lacking
}

fn collect_tokens(arguments: Value, into: &mut BTreeSet<String>) {
    for argument in array(arguments) {
        let mut fields = map(argument);
        into.extend(fields.remove("token").map(text));
        if let Some(inner) = fields.remove("arguments") {
            collect_tokens(inner, into);
        }
    }
}

#[test]
fn pages_name_only_commands_that_exist_and_links_that_lead_somewhere() {
    let engine = engines().first().expect("at least one engine");
    let registered = registered_commands(&mut Server::start(engine).connect());
    let pages = pages();
    let mut wrong = Vec::new();
    for page in &pages {
        for (number, line) in page.text.lines().enumerate() {
            let at = format!("{}:{}", page.name, number + 1);
            for word in line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.')) {
                let word = word.trim_matches('.');
                if is_command(word) && !registered.contains(&word.to_lowercase()) {
                    wrong.push(format!("{at} names {word}, which is not registered"));
                }
            }
        }
        wrong.extend(page.broken_links(&pages));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn operations_explain_every_setting_and_every_field_of_info() {
    let engine = engines().first().expect("at least one engine");
    let server = Server::start(engine);
    let mut connection = server.connect();
    let all = pages();
    let operations = all.iter().find(|p| p.name == "docs/operations.md").expect("docs/operations.md");
    let settings: Vec<String> = map(call!(connection, "CONFIG", "GET", "sluice.*")).into_keys().collect();
    let fields: Vec<String> = info(&mut connection, "sluice").into_keys().collect();
    assert!(!settings.is_empty() && !fields.is_empty());
    // A field of a family, such as sluice_tb_keys, may stand there as sluice_<family>_keys.
    let common = |field: &str| {
        let (family, rest) = field.strip_prefix("sluice_")?.split_once('_')?;
        FAMILIES.contains(&family.to_uppercase().as_str()).then(|| format!("sluice_<family>_{rest}"))
    };
    let told = |name: &String| {
        [Some(name.clone()), common(name)]
            .iter()
            .flatten()
            .any(|n| operations.text.contains(&format!("`{n}`")))
    };
    let missing: Vec<&String> = settings.iter().chain(&fields).filter(|n| !told(n)).collect();
    assert!(missing.is_empty(), "docs/operations.md does not explain {missing:?}");
}

/// A promise names the tests that hold it; such a name has four parts or more.
#[test]
fn promises_name_only_tests_that_exist() {
    fn sources(folder: &Path, into: &mut String) {
        for path in std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                sources(&path, into);
            } else if path.extension().is_some_and(|e| e == "rs") {
                into.push_str(&std::fs::read_to_string(&path).expect("a test file"));
            }
        }
    }
    let mut tests = String::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"), &mut tests);
    let is_test = |word: &str| {
        word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            && word.matches('_').count() >= 3
            && !word.starts_with("sluice_")
    };
    let (mut named, mut missing) = (0, Vec::new());
    for page in pages().iter().filter(|p| ["docs/guarantees.md", "docs/architecture.md"].contains(&&*p.name))
    {
        for (number, line) in page.text.lines().enumerate() {
            for word in line.split('`').skip(1).step_by(2).filter(|word| is_test(word)) {
                named += 1;
                if !tests.contains(&format!("fn {word}(")) {
                    missing.push(format!("{}:{}: {word}", page.name, number + 1));
                }
            }
        }
    }
    assert!(named > 30, "{named} tests are named");
    assert!(missing.is_empty(), "there are no such tests:\n{}", missing.join("\n"));
}

#[test]
fn an_example_that_is_not_true_is_noticed() {
    let engine = engines().first().expect("at least one engine");
    let server = Server::start(engine);
    let run = |example: &str| {
        let lines: Vec<String> = example.lines().map(str::to_owned).collect();
        Block::parse(&lines).and_then(|block| session::play(&server, &block).map(|_| ()))
    };
    for good in [
        "> TB.TAKE k 10 10 1000 COST 10\n1) (integer) 10\n…\n6) (integer) 1000\n# 400 ms later\n> TB.TAKE k COST 4\n…",
        "> RQ.PUSH q \"a\\n\\x00'\"\n\"1\"\n> RQ.CLAIM q\n1) 1) \"1\"\n   2) \"1@1900000000000000\"\n   3) (integer) 1\n   4) \"a\\n\\x00'\"\n\
         > RQ.ACK q 1@1900000000000000\n1) (integer) 1\n> RQ.ACK q 1@1900000000000000\n1) (integer) -1",
        "w> RQ.CLAIM q BLOCK 9000\n(waits)\n> RQ.PUSH q x\n\"1\"\nw:\n1) 1) \"1\"\n…",
        "> RQ.CLAIM q\n(empty array)\n> RQ.GET q 1\n(nil)\n> TB.SET k 1 1 1\nOK\n> TYPE k\nsluice-tb\n# a comment\n> RQ.LEN k\n(error) WRONGTYPE …",
    ] {
        assert_eq!(run(good), Ok(()), "{good}");
    }
    for (bad, line) in [
        ("> RQ.LEN q\n(integer) 1", 0),
        ("> RQ.LEN q", 0),
        ("> RQ.LEN q\n(integer) 0\n(integer) 0", 0),
        (
            "> TB.TAKE k 10 10 1000 COST 10\n…\n6) (integer) 1000\n# 399 ms later\n> TB.TAKE k COST 4\n1) (integer) 4\n…",
            4,
        ),
        ("> RQ.PUSH q a\n\"1\"\n> RQ.CLAIM q\n1) 1) \"1\"\n   2) \"2@1900000000000000\"\n…", 2),
        ("> RQ.ACK q 1@1900000000000000\n1) (integer) -1", 0),
        ("w> RQ.LEN q\n(waits)", 0),
        ("w> RQ.CLAIM q BLOCK 9000\n(waits)", 0),
        ("w> RQ.CLAIM q BLOCK 300\n(waits)\nw:\n(empty array)", 2),
        ("# 5 parsecs later", 0),
        ("(integer) 0", 0),
        ("> RQ.LEN \"q", 0),
    ] {
        assert_eq!(run(bad).map_err(|(at, _)| at), Err(line), "{bad}");
    }
    // Numbers that the page has rise do not fall in truth.
    let swapped = "> RQ.MPUSH q 2 a b\n…\n> RQ.CLAIM q COUNT 2\n1) 1) \"1\"\n   2) \"1@1900000000000009\"\n…\n\
                   2) 1) \"2\"\n   2) \"2@1900000000000008\"\n…";
    assert!(run(swapped).is_err());
}

#[test]
fn pages_are_read_as_they_are_shown() {
    assert_eq!(headings("# A b\n```sh\n# no\n```\n## `RQ.PUSH` (x)\n"), ["a-b", "rqpush-x"]);
    assert_eq!(T0, 1_900_000_000_000);
    let all = pages();
    for name in ["README.md", "docs/commands/tb.md", "docs/guarantees.md", "docs/recipes.md"] {
        assert!(all.iter().any(|p| p.name == name), "{name} is missing");
    }
}
