//! Keys with objects in them: how they are opened, changed, kept, loaded and freed.

pub mod apply;
pub mod expiry;
pub mod finish;
pub mod handle;
pub mod hooks;
pub mod lazy_free;
pub mod open;
pub mod place;
pub mod value;
