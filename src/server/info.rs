//! The sections of `INFO sluice`.

use super::api::rm;
use super::guard::{CAUGHT, shield};
use super::types::for_family;
use super::{block, clock, registry, stats};
use crate::engine::object::{Family, Object};
use redis_module::raw;
use std::ffi::{CStr, CString, c_int};
use std::sync::atomic::Ordering;

/// The families whose objects this build knows.
pub const FAMILIES: [(Family, &str); 6] = [
    (Family::TokenBucket, "tb"),
    (Family::LeakyBucket, "lb"),
    (Family::Semaphore, "sem"),
    (Family::Gate, "gate"),
    (Family::Hot, "hot"),
    (Family::Queue, "rq"),
];

/// Writes the sections; called by the server, also while it reports a crash: so it only reads numbers.
pub unsafe extern "C" fn report(info: *mut raw::RedisModuleInfoCtx, crash: c_int) {
    if crash == 0 {
        shield(|| Section { info }.all(), || ());
    }
}

struct Section {
    info: *mut raw::RedisModuleInfoCtx,
}

impl Section {
    fn begin(&self, name: &CStr) {
        // SAFETY: the info handle is live during the callback.
        unsafe { rm!(RedisModule_InfoAddSection(self.info, name.as_ptr())) };
    }

    fn number(&self, field: &str, value: u64) {
        if let Ok(field) = CString::new(field) {
            // SAFETY: as above.
            unsafe { rm!(RedisModule_InfoAddFieldULongLong(self.info, field.as_ptr(), value)) };
        }
    }

    fn all(&self) {
        self.begin(c"module");
        // SAFETY: as above; both strings are static.
        unsafe { rm!(RedisModule_InfoAddFieldCString(self.info, c"version".as_ptr(), VERSION.as_ptr())) };
        self.number("blocked_clients", block::waiting() as u64);
        let (last, most) = stats::lag();
        self.number("timer_lag_last_us", u64::try_from(last).unwrap_or(0));
        self.number("timer_lag_max_us", u64::try_from(most).unwrap_or(0));
        self.number("timer_objects", registry::len() as u64);
        self.number("work_pending", registry::overdue(clock::now()) as u64);
        self.number("longest_piece_us", u64::try_from(stats::longest_piece()).unwrap_or(0));
        self.number("clock_steps_back", clock::STEPS_BACK.load(Ordering::Relaxed));
        self.number("clock_frozen", u64::from(clock::frozen()));
        self.number("panics_caught", CAUGHT.load(Ordering::Relaxed));
        self.begin(c"memory");
        for (family, name) in FAMILIES {
            self.number(&format!("{name}_keys"), stats::objects(family));
            self.number(&format!("{name}_bytes"), stats::bytes(family));
        }
        self.begin(c"decisions");
        for (family, name) in FAMILIES.iter().filter(|(f, _)| !f.queue()) {
            let (granted, refused) = stats::decisions(*family);
            self.number(&format!("{name}_granted"), granted);
            self.number(&format!("{name}_refused"), refused);
        }
        self.begin(c"events");
        for (family, _) in FAMILIES {
            for_family!(family, events(self));
        }
    }
}

fn events<O: Object>(section: &Section) {
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
