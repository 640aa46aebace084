//! Everything that touches the server: the module API, keys, replies, types, the timer, blocked clients. It decides nothing: it parses, opens the key, calls the
//! engine, replies, carries effects, and wakes who waits.
//!
//! `unsafe` lives here and nowhere else; each block says why it is sound. A panic never reaches the server (guard.rs).

pub mod access;
pub mod alloc;
pub mod answers;
pub mod api;
pub mod apply;
pub mod args;
pub mod background;
pub mod block;
pub mod call;
pub mod call_reply;
pub mod census;
pub mod chores;
pub mod clock;
pub mod command;
pub mod config;
pub mod error;
pub mod events;
pub mod guard;
pub mod handle;
pub mod info;
pub mod key;
pub mod lines;
pub mod load;
pub mod main_thread;
pub mod migration;
pub mod numbers;
pub mod pieces;
pub mod propagate;
pub mod registry;
pub mod reply;
pub mod slots;
pub mod stats;
pub mod syntax;
pub mod timer;
pub mod truncated;
pub mod trust;
pub mod types;
pub mod unit;
