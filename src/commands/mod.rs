//! The commands, one file or folder a family: its table (flags, keys, syntax, docs) and each
//! command's parse → decide → reply.
//!
//! To change what a command does, open its file here and the engine file it calls. Nothing in here
//! keeps state or touches the server directly.

mod cl;
mod gate;
mod hot;
mod lb;
mod limits;
mod module;
mod rq;
mod sem;
mod tb;

use crate::server::command::register::Registrar;
use crate::server::config;

/// Registers all commands that the settings ask for.
pub fn register(registrar: &Registrar<'_>) -> Result<(), String> {
    tb::register(registrar)?;
    lb::register(registrar)?;
    sem::register(registrar)?;
    gate::register(registrar)?;
    hot::register(registrar)?;
    rq::register(registrar)?;
    module::register(registrar)?;
    if config::cl_throttle() {
        cl::register(registrar)?;
    }
    if config::debug_clock() {
        module::register_clock(registrar)?;
    }
    #[cfg(debug_assertions)]
    module::register_panic(registrar)?;
    Ok(())
}
