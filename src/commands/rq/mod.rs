//! `RQ.*`: the reliable queue. What the commands mean: docs/commands/rq.md; how they decide:
//! engine/queue.

mod claim;
mod look;
mod many;
mod options;
mod push;
mod receipts;
mod replies;
mod settings;
mod table;

pub use table::register;
