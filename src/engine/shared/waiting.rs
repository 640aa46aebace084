//! Clients whose reply is held: what the engine knows of them.
//!
//! A *ticket* names one blocked client of this server. Lines of limiters live beside the object
//! they wait on (so they follow it through RENAME, MOVE and SWAPDB) but are not state: no effect,
//! snapshot, digest or copy holds them. Tokens and places that a waiting client has booked *are*
//! state, as part of the level.

use super::pass::Pass;
use std::collections::VecDeque;

/// Names a blocked client, rising in order of arrival over the whole server.
pub type Ticket = u64;

/// What a waiting client is told at last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The six integers of TB and LB.
    Six([i64; 6]),
    /// The reply of SEM.
    Permit(Permit),
    /// The reply of GATE.
    Pass(Box<Pass>),
    /// Its limit was left out, and nobody knows one any more: the error.
    NoLimits,
}

/// Takes at most `most` of those who can be told, the first first.
#[inline]
pub fn first_of(answers: &mut VecDeque<(Ticket, Answer)>, most: usize) -> Vec<(Ticket, Answer)> {
    if answers.is_empty() {
        return Vec::new();
    }
    if most >= answers.len() {
        // Nor does the room stay that thousands took.
        return std::mem::take(answers).into();
    }
    answers.drain(..most).collect()
}

/// The reply of ACQUIRE and PEEK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permit {
    /// The count, or 0.
    pub granted: i64,
    pub limit: i64,
    pub free: i64,
    /// ms until enough leases would end by themselves; 0 if granted, -1: never.
    pub retry: i64,
    pub receipt: Option<u64>,
}
