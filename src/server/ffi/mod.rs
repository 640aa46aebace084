//! The module API, made safe: each file wraps one part of it, and this folder is the only one with
//! `unsafe` code. What it hands out cannot outlive what the server lends; what cannot be held by
//! types is a rule at the head of the file.
//!
//! Every function that the server calls runs its body in [`guard::shield`], so that no panic
//! reaches the server's own frames.

pub mod alloc;
pub mod api;
pub mod blocked;
pub mod call;
pub mod clock;
pub mod command;
pub mod config;
pub mod context;
pub mod data_type;
pub mod entry;
pub mod events;
pub mod guard;
pub mod info;
pub mod key;
pub mod main_thread;
pub mod optional;
pub mod rdb;
pub mod replicate;
pub mod reply;
pub mod strings;
