//! Containers of our own. Each says at its head what it does that those of the standard library and
//! of well-kept crates do not: their memory is known to the byte without a walk, they give room
//! back when they are empty, and none ever moves all it holds at once.

pub mod chunked;
pub mod index;
pub mod lazy;
pub mod names;
pub mod numbers;
pub mod order;
pub mod ranked;
pub mod slab;
