//! `SLUICE.*`: the module itself: its version, the test clock, and the command that carries
//! effects.

use crate::engine::fencing::MAX_FENCE;
use crate::engine::time::{MAX_DURATION_MS, MAX_INSTANT, MAX_INSTANT_MS, MS};
use crate::server::command::args::is;
use crate::server::command::call::Call;
use crate::server::command::register::{Command, KeyUse, Keys, Registrar, commands};
use crate::server::error::Error;
use crate::server::info;
use crate::server::replication::{fencing, trust};
use crate::server::time::clock;
use crate::server::work::{test_clock, timer};

pub fn register(r: &Registrar<'_>) -> Result<(), String> {
    commands!(r;
        version => Command {
            name: "sluice.version",
            flags: "readonly fast",
            syntax: "",
            keys: Keys::None,
            summary: "Tells the module's version.",
            complexity: "O(1)",
        },
        apply => Command {
            name: "sluice.apply",
            flags: "write deny-oom admin",
            syntax: "key expire effect [blob...]",
            keys: Keys::First(KeyUse::Update),
            summary: "Internal: makes changes that a master decided: on its replicas, from the AOF, and where a slot moves to.",
            complexity: "O(n) with the size of the changes",
        },
        fence => Command {
            name: "sluice.fence",
            flags: "write admin",
            syntax: "last at",
            keys: Keys::None,
            summary: "Internal: tells replicas and the AOF the last claim number, receipt or hold that a master has given.",
            complexity: "O(1)",
        },
    );
    Ok(())
}

pub fn register_clock(r: &Registrar<'_>) -> Result<(), String> {
    r.add(
        &Command {
            name: "sluice.clock",
            flags: "admin",
            syntax: "[SET ms | ADVANCE ms | REAL]",
            keys: Keys::None,
            summary: "The test clock: tells it, freezes it at an instant, moves it on, or lets it run again.",
            complexity: "O(n log n) with what falls due on the way",
        },
        clock_command,
    )
}

/// For tests: has the module panic when it next comes to a point, or when it has passed it so many
/// times.
#[cfg(debug_assertions)]
pub fn register_panic(r: &Registrar<'_>) -> Result<(), String> {
    fn panic(call: &Call<'_>) -> Result<(), Error> {
        let mut args = call.args();
        let point = String::from_utf8_lossy(args.next("point")?).into_owned();
        let after = if args.left() > 0 { args.int("after", 0, 1_000_000)? } else { 0 };
        crate::server::ffi::guard::on_purpose::arm(&point, after);
        call.reply().ok();
        Ok(())
    }
    r.add(
        &Command {
            name: "sluice.panic",
            flags: "admin",
            syntax: "point [after]",
            keys: Keys::None,
            summary: "For tests of the module itself: panics when it next comes to a point.",
            complexity: "O(1)",
        },
        panic,
    )
}

fn version(call: &Call<'_>) -> Result<(), Error> {
    call.reply().bulk(info::VERSION.to_bytes());
    Ok(())
}

fn clock_command(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    let Some(word) = args.option() else {
        call.reply().int(call.now() / MS);
        return Ok(());
    };
    let flags = call.context().flags();
    if flags.cluster() && flags.atomic() {
        // It goes by the keys of all slots, and a transaction has one.
        return Err(Error::new(
            "ERR SLUICE.CLOCK cannot be moved inside a transaction or script in a cluster",
        ));
    }
    if is(word, "SET") {
        let to = args.int("ms", 0, MAX_INSTANT_MS)? * MS;
        args.end()?;
        // Whether the clock ran or stood: from now on it stands, and walks.
        test_clock::freeze(call.context(), call.now());
        timer::walk(call.context(), to);
    } else if is(word, "ADVANCE") {
        let to = (call.now() + args.int("ms", 1, MAX_DURATION_MS)? * MS).min(MAX_INSTANT_MS * MS);
        args.end()?;
        test_clock::freeze(call.context(), call.now());
        timer::walk(call.context(), to);
    } else if is(word, "REAL") {
        args.end()?;
        let before = clock::now();
        clock::run();
        if clock::now() < before && call.context().decides() {
            timer::stepped_back(call.context());
        }
        timer::arm(call.context());
    } else {
        return Err(Error::unknown_option(word, "SET ms, ADVANCE ms or REAL"));
    }
    call.reply().ok();
    Ok(())
}

/// The argument is hostile until it has been decoded and checked against the object it is for.
fn apply(call: &Call<'_>) -> Result<(), Error> {
    carried(call, || {
        let mut args = call.args();
        args.next("key")?;
        let expire = args.int("expire", -1, MAX_INSTANT_MS)?;
        args.next("effect")?;
        call.apply(expire)
    })
}

/// Where a master's counter stands, and its clock (µs).
fn fence(call: &Call<'_>) -> Result<(), Error> {
    carried(call, || {
        let mut args = call.args();
        let last = args.int("last", 1, MAX_FENCE.cast_signed())?;
        let at = args.int("at", 0, MAX_INSTANT)?;
        args.end()?;
        fencing::apply(call.context(), last.unsigned_abs(), at)
    })
}

/// A command that files hold: whatever is wrong with one of them ends the load.
fn carried(call: &Call<'_>, make: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    let made = make();
    if let Err(error) = &made {
        trust::refuse_damaged_aof(call.context(), error);
    }
    made?;
    call.reply().ok();
    Ok(())
}
