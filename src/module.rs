//! The module: what the server does when it loads it, in which order it makes itself known, and
//! what stops it.

use crate::commands;
use crate::server::command::register::Registrar;
use crate::server::ffi::api::missing;
use crate::server::ffi::context::Ctx;
use crate::server::ffi::entry::{define_on_load, set_options};
use crate::server::ffi::events::{HANDLES_SLOT_MIGRATION, SlotEvents};
use crate::server::ffi::strings::Str;
use crate::server::key::hooks;
use crate::server::replication::trust;
use crate::server::time::alarm;
use crate::server::work::timer;
use crate::server::{cluster::slots, config, events, ffi, info};
use std::ffi::c_int;

/// As a number: major * 10000 + minor * 100 + patch.
const VERSION: c_int = 100;

define_on_load!(c"sluice", VERSION, load);

fn load(ctx: Ctx<'_>, options: &[Str<'_>]) -> Result<(), String> {
    let lacking = missing();
    if !lacking.is_empty() {
        return Err(format!("this server lacks {}; Redis 7.0 or Valkey 8 is needed", lacking.join(", ")));
    }
    ctx.keep();
    alarm::calls(timer::ring);
    slots::learn(ctx);
    trust::learn();
    hooks::register(ctx)?;
    config::register(ctx, options)?;
    commands::register(&Registrar::new(ctx))?;
    let slots = events::subscribe(ctx)?;
    set_options(ctx, if slots == SlotEvents::Valkey { HANDLES_SLOT_MIGRATION } else { 0 });
    if ffi::info::register(ctx, info::report) { Ok(()) } else { Err("the INFO section was refused".into()) }
}
