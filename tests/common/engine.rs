//! The server programs the tests run on, and the module they load.
//!
//! Engines: the `redis-server` on the PATH and whatever `make servers` put into `.servers/`.
//! `SLUICE_ENGINES`, a list of names such as `redis-7.0,valkey-8.1`, restricts them.
//!
//! Module: `SLUICE_SO`, else `release/libsluice.so` in `CARGO_TARGET_DIR` or `target`: what `make
//! build` makes. Never the debug build, so that a test says something about what is shipped.

use super::form::{Form, forms, is_torture};
use std::fmt;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// One server program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    /// Product and version up to the minor one: `redis-7.0`, `valkey-8.1`.
    pub name: String,
    pub program: PathBuf,
    /// How its servers are run.
    pub form: Form,
}

impl Engine {
    pub fn is_valkey(&self) -> bool {
        self.name.starts_with("valkey")
    }

    /// Major and minor version.
    pub fn version(&self) -> (u32, u32) {
        let numbers = self.name.split('-').nth(1).and_then(|v| v.split_once('.'));
        numbers
            .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)))
            .expect("an engine is named product-a.b")
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, self.form)
    }
}

/// Prints a line that the test runner does not hold back.
pub fn say(line: &str) {
    // If standard error is gone there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Every engine there is, at least one. Says which, once per test binary.
pub fn engines() -> &'static [Engine] {
    static ENGINES: OnceLock<Vec<Engine>> = OnceLock::new();
    ENGINES.get_or_init(|| {
        let mut found = all_engines();
        assert!(!found.is_empty(), "no server program found: `make servers`");
        if let Ok(wanted) = std::env::var("SLUICE_ENGINES") {
            let wanted: Vec<&str> = wanted.split(',').map(str::trim).filter(|w| !w.is_empty()).collect();
            let names: Vec<String> = found.iter().map(Engine::to_string).collect();
            for name in &wanted {
                assert!(names.iter().any(|n| n == name), "SLUICE_ENGINES names {name}; there are {names:?}");
            }
            found.retain(|e| wanted.is_empty() || wanted.contains(&e.name.as_str()));
        }
        let names: Vec<&str> = found.iter().map(|e| e.name.as_str()).collect();
        say(&format!("engines: {}", names.join(", ")));
        found
    })
}

fn all_engines() -> Vec<Engine> {
    let mut programs: Vec<PathBuf> = Vec::new();
    let path = std::env::var_os("PATH").unwrap_or_default();
    programs.extend(std::env::split_paths(&path).map(|dir| dir.join("redis-server")).find(|p| p.is_file()));
    if let Ok(folders) = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".servers")) {
        let mut fetched: Vec<PathBuf> = folders
            .flatten()
            .flat_map(|folder| ["redis-server", "valkey-server"].map(|program| folder.path().join(program)))
            .filter(|p| p.is_file())
            .collect();
        fetched.sort();
        programs.extend(fetched);
    }
    let mut engines: Vec<Engine> = Vec::new();
    for program in programs {
        match name_of(&program) {
            // The one on the PATH may be of a version that was fetched too.
            Some(name) if engines.iter().all(|e| e.name != name) => {
                engines.push(Engine { name, program, form: Form::Plain });
            }
            Some(_) => {}
            None => say(&format!("engines: {} does not run here", program.display())),
        }
    }
    engines
}

/// `Redis server v=7.0.15 sha=…` is redis-7.0.
fn name_of(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut words = text.split_whitespace();
    let product = words.next()?.to_lowercase();
    let version = words.find_map(|w| w.strip_prefix("v="))?;
    let mut numbers = version.split('.');
    Some(format!("{product}-{}.{}", numbers.next()?, numbers.next()?))
}

/// Runs the test on every engine, each in its turn, and names those on which it failed.
#[track_caller]
pub fn on_every_engine(test: impl Fn(&Engine)) {
    on_each(engines().to_vec(), test);
}

/// The same, in every form that is asked for (`form`).
#[track_caller]
pub fn in_every_form(test: impl Fn(&Engine)) {
    in_forms(|_| true, test);
}

/// The same, in those forms that can show what the test shows.
#[track_caller]
pub fn in_forms(fits: impl Fn(Form) -> bool, test: impl Fn(&Engine)) {
    on_each(engines_in_forms().into_iter().filter(|e| fits(e.form)).collect(), test);
}

/// The same, but the forms other than the plain one on one engine only, another for each test: for
/// the many tests whose subject is not the form. `SLUICE_SEED` turns them on; with
/// `SLUICE_TORTURE=1` or `SLUICE_FORMS` it is all engines.
#[track_caller]
pub fn in_forms_by_turns(fits: impl Fn(Form) -> bool, test: impl Fn(&Engine)) {
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let seed = std::env::var("SLUICE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0_usize);
    let turn = name.bytes().fold(seed, |sum, b| sum.wrapping_mul(31).wrapping_add(usize::from(b)));
    let here = &engines()[turn % engines().len()].name;
    let all = is_torture() || std::env::var_os("SLUICE_FORMS").is_some();
    let fits = |e: &Engine| fits(e.form) && (all || e.form == Form::Plain || e.name == *here);
    on_each(engines_in_forms().into_iter().filter(fits).collect(), test);
}

fn engines_in_forms() -> Vec<Engine> {
    let in_form = |e: &Engine, form: &Form| Engine { form: *form, ..e.clone() };
    engines().iter().flat_map(|e| forms().iter().map(move |form| in_form(e, form))).collect()
}

#[track_caller]
fn on_each(engines: Vec<Engine>, test: impl Fn(&Engine)) {
    let mut failed: Vec<String> = Vec::new();
    for engine in &engines {
        if catch_unwind(AssertUnwindSafe(|| test(engine))).is_err() {
            eprintln!("^^^ that was on {engine}");
            failed.push(engine.to_string());
        }
    }
    assert!(failed.is_empty(), "failed on {}", failed.join(", "));
}

/// The module under test, made absolute.
pub fn module_path() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = std::env::var_os("SLUICE_SO").map(PathBuf::from).unwrap_or_else(|| {
            let target =
                std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
            root.join(target).join("release/libsluice.so")
        });
        let path = std::path::absolute(&path).expect("a path can be made absolute");
        assert!(path.is_file(), "the module is not built: {} is missing (`make build`)", path.display());
        if let (Some(built), Some(written)) = (modified(&path), newest_source(&root.join("src")))
            && built < written
        {
            say(&format!("WARNING: {} is older than the sources (`make build`)", path.display()));
        }
        path
    })
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.modified().ok()
}

fn newest_source(folder: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(folder).ok()?.flatten().map(|e| e.path());
    entries.filter_map(|p| if p.is_dir() { newest_source(&p) } else { modified(&p) }).max()
}
