//! Every integration test, in one binary: it links once, and its tests share the machine's cores.
//!
//! One module a subject. `cargo test --test all blocking::` runs one of them,
//! `SLUICE_ENGINES=redis-7.0` on one engine.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod applied;
mod architecture;
mod bad_input;
mod blocking;
mod cases;
mod cluster;
mod common;
mod damage;
mod docs;
mod drivers;
mod fencing;
mod hashing;
mod introspection;
mod keyspace;
mod loaded;
mod memory;
mod panics;
mod persistence;
mod pieces;
mod replication;
mod sale;
mod slots;
mod timer;
mod torn;
mod torture;
mod turns;
mod waits;
