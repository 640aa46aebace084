//! Clients whose reply is held: who waits for what, who may have it, and what is put off until no
//! command is running.

pub mod access;
pub mod claim_waiters;
pub mod clients;
pub mod deferred;
pub mod ends;
