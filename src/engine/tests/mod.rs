//! Tests of what the families have in common.

mod golden;
