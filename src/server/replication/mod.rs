//! What replicas, files and other nodes are told, and what is believed of what they tell.

pub mod carry;
pub mod fencing;
pub mod listeners;
pub mod trust;
