//! What the module does outside its commands, and after them: what is due, what was put off, who
//! waits.

pub mod run_deferred;
pub mod serve;
pub mod test_clock;
pub mod timer;
pub mod wait;
