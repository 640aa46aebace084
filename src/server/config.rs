//! Settings: load options (`loadmodule … cl-throttle yes`) and `sluice.*` in the configuration file
//! and `CONFIG SET`.
//!
//! A load option is the default of the setting of the same name; the configuration file and `CONFIG
//! SET` go over it.

use super::ffi::config as settings;
use super::ffi::context::Ctx;
use super::ffi::strings::Str;
use super::words::{is, parse_int};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

enum Setting {
    /// Fixed once the module is loaded.
    Bool(&'static AtomicBool),
    /// Can be changed at any time.
    Switch(&'static AtomicBool),
    Number {
        value: &'static AtomicI64,
        low: i64,
        high: i64,
    },
}

struct Row {
    name: &'static CStr,
    setting: Setting,
}

static CL_THROTTLE: AtomicBool = AtomicBool::new(false);
static APPLY_FROM_CLIENTS: AtomicBool = AtomicBool::new(false);
static KEEP_NUMBERS: AtomicBool = AtomicBool::new(true);
static DEBUG_CLOCK: AtomicBool = AtomicBool::new(false);
static MAX_PAYLOAD: AtomicI64 = AtomicI64::new(512 << 20);
static TICK_BUDGET_US: AtomicI64 = AtomicI64::new(1_000);
static DUE_PER_COMMAND: AtomicI64 = AtomicI64::new(5_000);
static MAX_REPLY_BYTES: AtomicI64 = AtomicI64::new(32 << 20);

/// 1 TiB.
const MOST_REPLY_BYTES: i64 = 1 << 40;

/// The largest string the server takes.
const LARGEST_PAYLOAD: i64 = 512 << 20;

static ROWS: [Row; 8] = [
    Row { name: c"cl-throttle", setting: Setting::Bool(&CL_THROTTLE) },
    Row { name: c"debug-clock", setting: Setting::Bool(&DEBUG_CLOCK) },
    Row { name: c"apply-from-clients", setting: Setting::Switch(&APPLY_FROM_CLIENTS) },
    Row { name: c"keep-numbers", setting: Setting::Switch(&KEEP_NUMBERS) },
    Row {
        name: c"max-payload",
        setting: Setting::Number { value: &MAX_PAYLOAD, low: 1, high: LARGEST_PAYLOAD },
    },
    Row {
        name: c"tick-budget-us",
        setting: Setting::Number { value: &TICK_BUDGET_US, low: 50, high: 1_000_000 },
    },
    Row {
        name: c"due-per-command",
        setting: Setting::Number { value: &DUE_PER_COMMAND, low: 1, high: 1_000_000_000 },
    },
    Row {
        name: c"max-reply-bytes",
        setting: Setting::Number { value: &MAX_REPLY_BYTES, low: 1, high: MOST_REPLY_BYTES },
    },
];

/// Whether `CL.THROTTLE` is registered.
pub fn cl_throttle() -> bool {
    CL_THROTTLE.load(Ordering::Relaxed)
}

/// Whether `SLUICE.CLOCK` is registered.
pub fn debug_clock() -> bool {
    DEBUG_CLOCK.load(Ordering::Relaxed)
}

/// Whether clients may `SLUICE.APPLY`: to pipe an AOF into a server.
pub fn apply_from_clients() -> bool {
    APPLY_FROM_CLIENTS.load(Ordering::Relaxed)
}

/// Whether the counter of fencing numbers is saved: not by a server that is to be left without the
/// module.
pub fn keep_numbers() -> bool {
    KEEP_NUMBERS.load(Ordering::Relaxed)
}

/// The largest payload of a message, in bytes.
pub fn max_payload() -> usize {
    usize::try_from(MAX_PAYLOAD.load(Ordering::Relaxed)).unwrap_or(0)
}

/// The most the timer works before it yields, in µs.
pub fn tick_budget_us() -> i64 {
    TICK_BUDGET_US.load(Ordering::Relaxed)
}

/// How many things that are due one command does at most.
pub fn due_per_command() -> usize {
    usize::try_from(DUE_PER_COMMAND.load(Ordering::Relaxed)).unwrap_or(1)
}

/// The most bytes of payloads in one reply, unless one alone has more.
pub fn max_reply_bytes() -> usize {
    usize::try_from(MAX_REPLY_BYTES.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
}

/// Reads the load options, registers the settings and applies the configuration file. Only within
/// `RedisModule_OnLoad`.
pub fn register(ctx: Ctx<'_>, options: &[Str<'_>]) -> Result<(), String> {
    for pair in options.chunks(2) {
        let words: Vec<&[u8]> = pair.iter().map(|word| word.bytes()).collect();
        read_option(&words)?;
    }
    for Row { name, setting } in &ROWS {
        let registered = match setting {
            Setting::Bool(value) => settings::register_switch(ctx, name, value, true),
            Setting::Switch(value) => settings::register_switch(ctx, name, value, false),
            Setting::Number { value, low, high } => settings::register_number(ctx, name, value, *low, *high),
        };
        if !registered {
            return Err(format!("the setting sluice.{} cannot be registered", name.to_string_lossy()));
        }
    }
    if settings::load(ctx) { Ok(()) } else { Err("a sluice.* setting is wrong".into()) }
}

fn read_option(words: &[&[u8]]) -> Result<(), String> {
    let show = |w: &[u8]| String::from_utf8_lossy(w).into_owned();
    let (Some(name), Some(value)) = (words.first(), words.get(1)) else {
        return Err(format!(
            "load option {} has no value",
            words.first().map(|w| show(w)).unwrap_or_default()
        ));
    };
    let Some(row) = ROWS.iter().find(|row| name.eq_ignore_ascii_case(row.name.to_bytes())) else {
        let mut names: Vec<_> = ROWS.iter().map(|row| row.name.to_string_lossy()).collect();
        let last = names.pop().unwrap_or_default();
        return Err(format!("unknown load option {}: expected {} or {last}", show(name), names.join(", ")));
    };
    match &row.setting {
        Setting::Bool(flag) | Setting::Switch(flag) if is(value, "YES") => {
            flag.store(true, Ordering::Relaxed)
        }
        Setting::Bool(flag) | Setting::Switch(flag) if is(value, "NO") => {
            flag.store(false, Ordering::Relaxed)
        }
        Setting::Bool(_) | Setting::Switch(_) => {
            return Err(format!("load option {} must be yes or no", show(name)));
        }
        Setting::Number { value: number, low, high } => {
            match parse_int(value).filter(|n| (*low..=*high).contains(n)) {
                Some(n) => number.store(n, Ordering::Relaxed),
                None => return Err(format!("load option {} must be between {low} and {high}", show(name))),
            }
        }
    }
    Ok(())
}
