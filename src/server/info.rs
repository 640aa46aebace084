//! The sections of `INFO sluice`.

use super::blocking::clients;
use super::ffi::guard::CAUGHT;
use super::ffi::info::Sections;
use super::key::value::for_family;
use super::stats;
use super::time::{clock, due_index};
use crate::engine::family::Family;
use crate::engine::object::Object;
use std::ffi::CStr;
use std::sync::atomic::Ordering;

/// Writes the sections.
pub fn report(to: &Sections) {
    to.begin(c"module");
    to.text(c"version", VERSION);
    to.number("blocked_clients", clients::waiting() as u64);
    let (last, most) = stats::lag();
    to.number("timer_lag_last_us", u64::try_from(last).unwrap_or(0));
    to.number("timer_lag_max_us", u64::try_from(most).unwrap_or(0));
    to.number("timer_objects", due_index::len() as u64);
    to.number("work_pending", due_index::overdue(clock::now()) as u64);
    to.number("longest_piece_us", u64::try_from(stats::longest_piece()).unwrap_or(0));
    to.number("clock_steps_back", clock::STEPS_BACK.load(Ordering::Relaxed));
    to.number("clock_frozen", u64::from(clock::frozen()));
    to.number("panics_caught", CAUGHT.load(Ordering::Relaxed));
    to.begin(c"memory");
    for family in Family::ALL {
        let name = family.prefix();
        to.number(&format!("{name}_keys"), stats::objects(family));
        to.number(&format!("{name}_bytes"), stats::bytes(family));
    }
    to.begin(c"decisions");
    for family in Family::ALL.into_iter().filter(|family| !family.queue()) {
        let name = family.prefix();
        let (granted, refused) = stats::decisions(family);
        to.number(&format!("{name}_granted"), granted);
        to.number(&format!("{name}_refused"), refused);
    }
    to.begin(c"events");
    for family in Family::ALL {
        for_family!(family, events(to));
    }
}

fn events<O: Object>(section: &Sections) {
    for (i, event) in O::EVENTS.iter().enumerate() {
        if let Some(name) = event {
            section.number(&name.to_string_lossy().replace('.', "_"), stats::events(O::FAMILY, i));
        }
    }
}

/// The module's version as text.
pub const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"unknown",
    };
