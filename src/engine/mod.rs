//! The pure half of sluice: what a limit or a queue decides, without a server, a clock or a key.
//!
//! Every change is made in three steps, the same for all families:
//!
//! 1. **decide**: a method looks at the object and `now` (an argument, never read here) and forms
//!    an *effect*;
//! 2. **carry**: the effect is recorded in a [`journal::Journal`], encoded, if anybody listens
//!    (replicas, AOF);
//! 3. **apply**: [`object::Object::apply`] makes the change. It decides nothing and cannot fail:
//!    all values in an effect are absolute.
//!
//! So whoever applies the same effects in the same order holds the same object. Nothing in here
//! knows the server: a test holds that `redis_module` is not named below this folder.

pub mod bucket;
pub mod codec;
pub(crate) mod collections;
pub mod family;
pub mod fencing;
pub mod footprint;
pub mod gate;
pub mod hot;
pub mod journal;
pub mod leaky;
pub mod leaky_bucket;
pub mod names_hash;
pub mod object;
pub mod queue;
pub mod semaphore;
pub mod shared;
pub mod time;
pub mod token_bucket;
pub mod unit;

#[cfg(test)]
mod tests;
