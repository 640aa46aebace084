//! A census of the keys, when the test clock begins to stand: the server's TTLs do not follow that
//! clock, so the end of every object that goes by itself becomes an instant of ours (see
//! key/expiry.rs). Those that came while the clock ran, by a command or a load, have not been noted
//! with it.

use crate::engine::time::Micros;
use crate::server::ffi::context::Ctx;
use crate::server::key::place::note;
use crate::server::time::clock;

/// Has the test clock stand at `at`.
pub fn freeze(ctx: Ctx<'_>, at: Micros) {
    let stood = clock::frozen();
    clock::freeze(at);
    if !stood {
        let before = ctx.db();
        let mut db = 0;
        while ctx.select(db) {
            for name in ctx.names() {
                note(ctx, name.as_str());
            }
            db += 1;
        }
        ctx.select(before);
    }
}
