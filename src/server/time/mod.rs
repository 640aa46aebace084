//! Time: the clock by which everything is decided, what comes due when, and the alarm that rings
//! then.

pub mod alarm;
pub mod budget;
pub mod clock;
pub mod due_index;
