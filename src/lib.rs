//! sluice: native, atomic rate limits and reliable queues for Redis and Valkey.
//!
//! [`engine`] decides, [`commands`] speaks to clients, [`server`] touches the server. Dependencies
//! point one way: module → commands → server → engine. docs/architecture.md tells how the three
//! work together.

mod commands;
pub mod engine;
mod module;
mod server;

#[global_allocator]
static ALLOCATOR: server::ffi::alloc::ServerAlloc = server::ffi::alloc::ServerAlloc;
