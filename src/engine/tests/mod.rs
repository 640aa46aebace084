//! Tests of what the families have in common, and what their tests share.

pub mod folding;
mod golden;
