//! What a cluster asks for: the slot of a key, several keys together, and slots that move.

pub mod migration;
pub mod slots;
