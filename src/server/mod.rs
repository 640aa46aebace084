//! Everything that touches the server. It decides nothing: it parses, opens the key, calls the
//! engine, replies, carries effects, and wakes who waits.
//!
//! From the bottom up; each folder uses those before it, and none after it:
//!
//! - `ffi`: the module API, the only place with `unsafe`;
//! - `time`: clock, due index, alarm;
//! - `cluster`: slots;
//! - `replication`: what is carried to replicas and files;
//! - `reply`: replies, written at once or kept;
//! - `blocking`: who waits, and what is put off;
//! - `key`: keys with objects in them;
//! - `work`: what is done outside commands: due, put off, served;
//! - `command`: registration and running of commands;
//! - `events`: what the server tells.

pub mod blocking;
pub mod cluster;
pub mod command;
pub mod config;
pub mod error;
pub mod events;
pub mod ffi;
pub mod info;
pub mod key;
pub mod replication;
pub mod reply;
pub mod stats;
pub mod time;
pub mod words;
pub mod work;
