//! Replies: written at once, or kept until a blocked client is told.

pub mod limiter;
pub mod message;
pub mod owned;
pub mod writer;
