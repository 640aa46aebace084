//! Holds the rules of the source tree that the compiler does not: which way dependencies point,
//! where `unsafe` may be, that nothing is unwrapped, that files stay readable, and that what a user
//! can call is documented.

use crate::common::{Server, engines, registered_commands};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

/// A file of at most so many lines, its tests not counted, can be read in one go.
const MOST_LINES: usize = 700;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below the folder with that ending.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|e| e == ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The code of the sources below `src/<part>`, by path from the root: no comments, no texts, no
/// tests.
fn code_of(part: &str) -> Vec<(String, String)> {
    let found: Vec<(String, String)> = files(&root().join("src").join(part), "rs")
        .into_iter()
        .filter(|path| !is_test_file(path))
        .map(|path| {
            let name = path.strip_prefix(root()).expect("a file of ours").display().to_string();
            (name, without_tests(&plain(&std::fs::read_to_string(&path).expect("a source file"))))
        })
        .collect();
    assert!(!found.is_empty(), "no source below src/{part}");
    found
}

/// A file that its parent includes under `#[cfg(test)]`.
fn is_test_file(path: &Path) -> bool {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    stem == "tests" || stem.ends_with("_tests") || path.components().any(|c| c.as_os_str() == "tests")
}

/// The source with comments, strings and character literals blanked, line by line as long as
/// before.
fn plain(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let blank =
        |out: &mut String, text: &str| out.extend(text.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
    while let Some(c) = rest.chars().next() {
        let after_word = out.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some(raw) = raw_string(rest).filter(|_| !after_word) {
            raw
        } else if c == '"' {
            quoted(rest, '"')
        } else if c == '\'' && is_character(rest) {
            quoted(rest, '\'')
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        blank(&mut out, &rest[..length]);
        rest = &rest[length..];
    }
    out
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of a raw string (`r"…"`, `br#"…"#`) that begins here.
fn raw_string(text: &str) -> Option<usize> {
    let start = text.strip_prefix(['b', 'c']).unwrap_or(text).strip_prefix('r')?;
    let hashes = start.len() - start.trim_start_matches('#').len();
    let body = start[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(text.len() - body.len() + body.find(&end)? + end.len())
}

/// The length of a literal in quotes that begins here.
fn quoted(text: &str, quote: char) -> usize {
    let mut characters = text.char_indices().skip(1);
    while let Some((at, c)) = characters.next() {
        if c == '\\' {
            characters.next();
        } else if c == quote {
            return at + quote.len_utf8();
        }
    }
    text.len()
}

/// A character, not the lifetime that also begins with a quote.
fn is_character(text: &str) -> bool {
    let mut characters = text.chars().skip(1);
    match characters.next() {
        Some('\\') => true,
        Some(_) => characters.next() == Some('\''),
        None => false,
    }
}

/// Plain code without the items under `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    let mut out = String::new();
    let mut rest = code;
    while let Some(at) = rest.find("#[cfg(test)]") {
        out.push_str(&rest[..at]);
        let item = &rest[at..];
        let mut depth = 0_i32;
        let mut length = item.len();
        for (i, c) in item.char_indices().skip("#[cfg(test)]".len()) {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 && (c == '}' || c == ';') {
                length = i + 1;
                break;
            }
        }
        rest = &item[length..];
    }
    out + rest
}

/// The places, as `path:line`, at which the word stands as a whole.
fn uses(sources: &[(String, String)], word: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (path, code) in sources {
        for (number, line) in code.lines().enumerate() {
            let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
            let whole = line.match_indices(word).any(|(at, _)| {
                let (before, after) = (&line[..at], &line[at + word.len()..]);
                let begins_inside = word.starts_with(part_of_word) && before.ends_with(part_of_word);
                let ends_inside = word.ends_with(part_of_word) && after.starts_with(part_of_word);
                !begins_inside && !ends_inside
            });
            if whole {
                found.push(format!("{path}:{}", number + 1));
            }
        }
    }
    found
}

#[track_caller]
fn assert_unused(sources: &[(String, String)], words: &[&str], rule: &str) {
    for word in words {
        let found = uses(sources, word);
        assert!(found.is_empty(), "{rule}: `{word}` in {}", found.join(", "));
    }
}

#[test]
fn the_engine_knows_no_server_and_reads_no_clock() {
    let engine = code_of("engine");
    assert_unused(&engine, &["redis_module", "libc", "extern"], "the engine never sees a server type");
    assert_unused(
        &engine,
        &["crate::server", "crate::commands"],
        "the engine depends on nothing of ours outside",
    );
    assert_unused(
        &engine,
        &["SystemTime", "Instant::now"],
        "the engine reads no clock: `now` is an argument",
    );
}

#[test]
fn the_engine_counts_in_integers() {
    assert_unused(&code_of("engine"), &["f32", "f64"], "levels and times are exact integers");
}

#[test]
fn the_server_half_knows_no_command() {
    let words = ["crate::commands", "crate::module"];
    assert_unused(&code_of("server"), &words, "dependencies point from the commands to the server");
}

#[test]
fn unsafe_code_and_the_module_api_are_in_one_folder() {
    let outside: Vec<_> =
        code_of("").into_iter().filter(|(p, _)| !p.starts_with("src/server/ffi/")).collect();
    let words = ["unsafe", "redis_module", "libc", "extern"];
    assert_unused(&outside, &words, "the module API is made safe in src/server/ffi");
}

/// Files that use each other cannot be understood one after the other. Neither can folders.
#[test]
fn no_files_or_folders_use_each_other_in_a_circle() {
    let uses = uses_of_files();
    let names =
        |circle: &[&Path]| circle.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(" → ");
    let found: Vec<String> = circles(&uses).iter().map(|circle| names(circle)).collect();
    assert!(found.is_empty(), "files in a circle: {found:#?}");
    let mut folders: BTreeMap<PathBuf, BTreeSet<PathBuf>> = BTreeMap::new();
    for (file, used) in &uses {
        let own = folder(file);
        let others = used.iter().map(|file| folder(file)).filter(|other| *other != own).collect::<Vec<_>>();
        folders.entry(own).or_default().extend(others);
    }
    let found: Vec<String> = circles(&folders).iter().map(|circle| names(circle)).collect();
    assert!(found.is_empty(), "folders in a circle: {found:#?}");
}

/// A file by its path without the ending; `mod.rs` stands for its folder.
type Uses = BTreeMap<PathBuf, BTreeSet<PathBuf>>;

/// What a file belongs to: a folder of the server or engine half, or a file beside those.
fn folder(file: &Path) -> PathBuf {
    let depth = if file.starts_with("server") || file.starts_with("engine") { 2 } else { 1 };
    file.iter().take(depth).collect()
}

/// Which files each file uses.
fn uses_of_files() -> Uses {
    let codes: BTreeMap<PathBuf, String> = code_of("")
        .into_iter()
        .map(|(path, code)| {
            let path = Path::new(&path).strip_prefix("src").expect("a source").with_extension("");
            let whole = path.ends_with("mod") || path.as_os_str() == "lib";
            (if whole { path.parent().map(PathBuf::from).unwrap_or_default() } else { path }, code)
        })
        .collect();
    let known = |path: &Path| path.ancestors().find(|p| codes.contains_key(*p)).map(PathBuf::from);
    let mut uses = Uses::new();
    for (file, code) in &codes {
        let paths = named_paths(code).into_iter().filter_map(|path| known(&resolve(file, &path)?));
        // What a folder's own `mod.rs` puts together of its files is what the folder is.
        let other = |used: &PathBuf| used != file && used.parent() != Some(file.as_path());
        uses.insert(file.clone(), paths.filter(|u| other(u) && !u.as_os_str().is_empty()).collect());
    }
    uses
}

/// A path in code, as the file it would be in; None: it begins elsewhere.
fn resolve(file: &Path, path: &str) -> Option<PathBuf> {
    let mut words = path.split("::").peekable();
    let mut at = match *words.peek()? {
        "crate" => PathBuf::new(),
        "super" | "self" => file.to_path_buf(),
        first => {
            let inner = file.join(first);
            root().join("src").join(&inner).with_extension("rs").exists().then_some(())?;
            return Some(inner);
        }
    };
    for word in words {
        match word {
            "crate" | "self" => {}
            "super" => drop(at.pop()),
            word => at.push(word),
        }
    }
    Some(at)
}

/// Every path that the code names: those of `use`, taken apart, and those that begin with `crate`
/// or `super`. What a module only hands on (`pub use`) it does not use.
fn named_paths(code: &str) -> Vec<String> {
    let handed_on = |line: &&str| line.starts_with("pub use ") || line.starts_with("pub(crate) use ");
    let code = &code.lines().filter(|line| !handed_on(line)).collect::<Vec<_>>().join("\n");
    let (mut found, mut rest) = (Vec::new(), code.as_str());
    while let Some(at) = rest.find("use ") {
        let starts = rest[..at].chars().next_back().is_none_or(|c| c.is_whitespace());
        let after = &rest[at + 4..];
        let Some(end) = after.find(';').filter(|_| starts) else {
            rest = after;
            continue;
        };
        let tree: String = after[..end].replace(" as ", "@").chars().filter(|c| !c.is_whitespace()).collect();
        found.extend(branches(&tree));
        rest = &after[end..];
    }
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            found.push(code[at..].chars().take_while(|c| path(*c)).collect());
        }
    }
    found
}

/// `a::{b, c::{d, e}}` as its paths.
fn branches(tree: &str) -> Vec<String> {
    let Some(open) = tree.find('{') else {
        return vec![tree.split('@').next().unwrap_or_default().to_owned()];
    };
    let (before, inner) = (&tree[..open], tree[open + 1..].trim_end_matches('}'));
    let inner = if tree[open + 1..].ends_with('}') { &tree[open + 1..tree.len() - 1] } else { inner };
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let branch = &inner[start..at];
                found.extend(
                    branches(branch).into_iter().filter(|b| !b.is_empty()).map(|b| before.to_owned() + &b),
                );
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// The circles: of each, some of those in it, in the order in which one uses the next.
fn circles(uses: &Uses) -> Vec<Vec<&Path>> {
    let mut found = Vec::new();
    for start in uses.keys() {
        let mut queue = VecDeque::from([start]);
        let mut from: BTreeMap<&Path, &Path> = BTreeMap::new();
        while let Some(at) = queue.pop_front() {
            for next in uses.get(at).into_iter().flatten() {
                if next == start {
                    let mut circle: Vec<&Path> = vec![at];
                    while let Some(before) = circle.last().and_then(|last| from.get(last)) {
                        circle.push(before);
                    }
                    circle.reverse();
                    // Each once: by the first of its names.
                    if circle.iter().min() == circle.first() {
                        found.push(circle);
                    }
                    queue.clear();
                    break;
                }
                if !from.contains_key(next.as_path()) {
                    from.insert(next.as_path(), at.as_path());
                    queue.push_back(next);
                }
            }
        }
    }
    found
}

#[test]
fn circles_are_found() {
    let uses = |list: &[(&str, &[&str])]| -> Uses {
        list.iter().map(|(a, b)| (PathBuf::from(a), b.iter().map(PathBuf::from).collect())).collect()
    };
    assert!(circles(&uses(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])])).is_empty());
    let found = uses(&[("a", &["b"]), ("b", &["c"]), ("c", &["a"]), ("d", &["a"])]);
    assert_eq!(circles(&found), [["a", "b", "c"].map(Path::new)]);
    let code =
        "use super::{a::B, c::{self, d}}; use crate::e as f;\npub use h::i;\nfn x() { super::super::g::h() }";
    let found = named_paths(code);
    for path in ["super::a::B", "super::c::self", "super::c::d", "crate::e", "super::super::g::h"] {
        assert!(found.iter().any(|f| f == path), "{path} in {found:?}");
    }
    assert!(!found.iter().any(|f| f == "h::i"), "{found:?}");
    assert_eq!(resolve(Path::new("x/y"), "super::super::g::h"), Some(PathBuf::from("g/h")));
}

/// Several servers ask for a command's keys in an I/O thread, before AUTH: such a function of ours
/// would run beside the main thread.
#[test]
fn no_server_asks_us_where_keys_are() {
    let functions = ["RedisModule_IsKeysPositionRequest", "RedisModule_KeyAtPos"];
    assert_unused(&code_of(""), &functions, "keys are declared: see Keys::Counted");
    // The flag is a text, which `code_of` leaves out.
    for path in files(&root().join("src"), "rs").into_iter().filter(|path| !is_test_file(path)) {
        let source = std::fs::read_to_string(&path).expect("a source file");
        let flagged =
            source.lines().any(|line| line.contains("getkeys-api") && !line.trim_start().starts_with("//"));
        assert!(!flagged, "keys are declared, not told by `getkeys-api`: {}", path.display());
    }
}

/// A panic that comes to the server's C frames ends the server.
#[test]
fn what_the_server_calls_is_shielded() {
    // They hand over a number that stands somewhere.
    let numbers = ["on_ready", "get_switch", "set_switch", "get_number", "set_number"];
    let mut shielded = 0;
    for (path, code) in code_of("server") {
        // The ABI is a text, and blanked.
        let functions =
            code.split("extern ").skip(1).filter_map(|rest| rest.trim_start().strip_prefix("fn "));
        for function in functions {
            let name: String = function.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let body = function.find("\n}").map_or(function, |end| &function[..end]);
            let safe = body.contains("shield(") || body.contains("entry::on_load(");
            assert!(safe || numbers.contains(&name.as_str()), "{path}: a panic in {name} ends the server");
            shielded += usize::from(safe);
        }
    }
    assert!(shielded > 20, "{shielded} functions");
}

#[test]
fn nothing_is_unwrapped_or_left_to_do() {
    let banned = [".unwrap()", ".expect(", "todo!", "unimplemented!", "dbg!"];
    assert_unused(&code_of(""), &banned, "a panic must not be a way out");
}

#[test]
fn in_a_cluster_nothing_is_done_for_other_keys_inside_a_command() {
    // Some servers take the slot of each key that a module opens from the running command.
    for (name, code) in code_of("") {
        let runs = code.matches("run_deferred::run(").count();
        match name.as_str() {
            "src/server/work/timer.rs" => {}
            "src/server/command/call.rs" => {
                assert_eq!(runs, 1, "{name}: one place, which asks for the cluster");
                let at = code.find("fn do_deferred").expect("the place");
                let body = &code[at..at + code[at..].find("run_deferred::run(").expect("a call")];
                assert!(body.contains("!flags.cluster()"), "{name}: not in a cluster");
            }
            _ => assert_eq!(runs, 0, "{name}: what is put off is done by the timer"),
        }
    }
}

#[test]
fn files_can_be_read_in_one_go() {
    let long: Vec<String> = code_of("")
        .iter()
        .map(|(path, code)| (path, code.lines().count()))
        .filter(|(_, lines)| *lines > MOST_LINES)
        .map(|(path, lines)| format!("{path} ({lines} lines)"))
        .collect();
    assert!(long.is_empty(), "more than {MOST_LINES} lines: {}", long.join(", "));
}

#[test]
fn comments_are_not_wider_than_a_hundred_columns() {
    let mut wide = Vec::new();
    for path in ["src", "benches"].iter().flat_map(|folder| files(&root().join(folder), "rs")) {
        for (number, line) in std::fs::read_to_string(&path).expect("a source file").lines().enumerate() {
            let text = line.trim_start().trim_start_matches(['/', '!']);
            // A row of a table is one line.
            let comment = line.trim_start().starts_with("//") && !text.starts_with(" |");
            if comment && line.chars().count() > 100 {
                wide.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "{wide:#?}");
}

#[test]
fn every_file_says_what_it_is_for() {
    let silent: Vec<String> = files(&root().join("src"), "rs")
        .into_iter()
        .filter(|path| !std::fs::read_to_string(path).expect("a source file").starts_with("//!"))
        .map(|path| path.display().to_string())
        .collect();
    assert!(silent.is_empty(), "these do not open with a `//!` header: {}", silent.join(", "));
}

#[test]
fn every_command_is_documented() {
    let engine = engines().first().expect("at least one engine");
    let commands = registered_commands(&mut Server::start(engine).connect());
    assert!(!commands.is_empty(), "the module registers no command");
    let docs: String = files(&root().join("docs"), "md")
        .iter()
        .map(|path| std::fs::read_to_string(path).expect("a page"))
        .collect::<Vec<_>>()
        .join("\n")
        .to_lowercase();
    let missing: Vec<&String> = commands.iter().filter(|c| !docs.contains(c.as_str())).collect();
    assert!(missing.is_empty(), "no page below docs/ mentions {missing:?}");
}

/// The table of docs/architecture.md that says where to find what.
#[test]
fn every_file_of_the_server_and_engine_halves_is_in_the_table_of_files() {
    let page = std::fs::read_to_string(root().join("docs/architecture.md")).expect("the page");
    let table: String = page.lines().filter(|line| line.starts_with('|')).collect();
    let source = |part: &str, depth: usize| -> Vec<String> {
        let folder = root().join("src").join(part);
        let names = files(&folder, "rs").into_iter().filter(|path| !is_test_file(path)).map(move |path| {
            let names: Vec<_> = path.strip_prefix(&folder).expect("a file of ours").iter().collect();
            let name = names[..names.len().min(depth)].iter().collect::<PathBuf>().display().to_string();
            // A folder of the engine stands for its files.
            if names.len() > depth { format!("{name}/") } else { name }
        });
        names.filter(|name| !name.ends_with("mod.rs")).collect()
    };
    let missing: BTreeSet<String> = source("server", 2)
        .into_iter()
        .chain(source("engine", 1))
        .filter(|name| !table.contains(&format!("`{name}`")) && !table.contains(&format!("/{name}`")))
        .collect();
    assert!(missing.is_empty(), "the table of docs/architecture.md has no row for {missing:?}");
    let there: Vec<PathBuf> =
        ["src", "tests"].iter().flat_map(|folder| files(&root().join(folder), "rs")).collect();
    let gone: BTreeSet<&str> = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| word.ends_with(".rs") && !word.contains('<'))
        .filter(|word| !there.iter().any(|path| path.ends_with(word)))
        .collect();
    assert!(gone.is_empty(), "docs/architecture.md names files that are not there: {gone:?}");
}

#[test]
fn code_is_told_from_comments_texts_and_tests() {
    let source = r##"
// unsafe in a comment
/* unsafe /* nested */ unsafe */
const A: &str = "unsafe \" unsafe";
const B: &str = r#"unsafe " unsafe"#;
const C: char = '"';
fn real<'a>(x: &'a str) { unsafe_name(x); x.unwrap_or(1); }
fn bad() { unsafe { x.unwrap() } }
#[cfg(test)]
mod tests { fn t() { unsafe { if true { y.unwrap() } } } }
#[cfg(test)]
mod other_tests;
fn after() {}
"##;
    let code = without_tests(&plain(source));
    let sources = [("s".to_owned(), code.clone())];
    assert_eq!(uses(&sources, "unsafe"), ["s:8"]);
    assert_eq!(uses(&sources, ".unwrap()"), ["s:8"]);
    assert!(code.contains("fn after") && !code.contains("other_tests"), "{code}");
}
