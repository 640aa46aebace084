//! What several families of limiters are made of. They use this, and never each other.

pub mod lease_ends;
pub mod leases;
pub mod line;
pub mod pass;
pub mod waiting;
