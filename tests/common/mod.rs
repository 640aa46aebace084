//! What the tests against real servers share.
//!
//! - `contract`: which commands have to be there by now.
//! - `engine`: which server programs are there, and where the module is. `on_every_engine` runs a
//!   test on each of them.
//! - `form`: whether they are servers of their own, nodes of a cluster …: `in_every_form`,
//!   `on_stage`. `warm`: nodes that stand ready.
//! - `server`: one running server of a test, with a folder and a port of its own, gone when the
//!   test ends.
//! - `reply`: commands and replies through the `redis` client: `call!`, `error!`, `ints`, `map` …
//! - `resp`: a connection by hand, for blocked clients and for bytes that no client would send.
//! - `stage`: a server, a connection that does everything but wait, and clients that wait.
//! - `workload`: a random mixed load, and what two servers that saw it are compared by.
//!
//! Every test binary includes this module and uses a part of it.
#![allow(dead_code, unused_imports, unused_macros, clippy::unwrap_used, clippy::expect_used)]

mod contract;
mod engine;
pub mod form;
mod reply;
mod resp;
mod server;
pub mod stage;
mod warm;
pub mod workload;

pub use contract::{REQUIRED, assert_required};
pub use engine::{
    Engine, engines, in_every_form, in_forms, in_forms_by_turns, module_path, on_every_engine, say,
};
pub use form::{Form, is_torture};
pub use reply::{
    T0, Talk, advance_clock, array, digest, info, int, ints, map, registered_commands, set_clock, text,
};
pub(crate) use reply::{call, command, error, try_call};
pub use resp::{RawConnection, Reply};
pub use server::{Builder, Server, TempDir, free_port, kill_with_parent, wait_until_equal};

use std::time::{Duration, Instant};

/// How long what has to come may take before a test fails: only a test that fails waits so long,
/// however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `holds` is true, looking often, and fails after a minute, naming `what` was waited
/// for.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    eventually_some(what, || holds().then_some(()));
}

/// Waits until `look` finds something, and gives it.
#[track_caller]
pub fn eventually_some<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, what, look)
}

/// As `eventually_some`, with another limit.
#[track_caller]
pub fn within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited {limit:?} in vain for: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
