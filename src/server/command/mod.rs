//! Commands: how one is registered and documented, how its arguments are read, and how it runs.

pub mod args;
pub mod call;
pub mod register;
pub mod syntax;
