//! Says so when the server cut off the end of its append only file at a start
//! (`aof-load-truncated`), after a power cut.
//!
//! The server cuts behind the last whole command. If that one stands in a transaction, the file now
//! ends inside it, and all that is written from then on is part of it: the next start runs it late,
//! or cuts all of it off. No server tells a module where it cut, or that it did; but the files are
//! smaller afterwards. Only their sizes are looked at.

use crate::server::ffi::call::{How, call_words};
use crate::server::ffi::context::Ctx;
use crate::server::ffi::main_thread::MainThread;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The files and their sizes when a load began.
static BEFORE: MainThread<BTreeMap<PathBuf, u64>> = MainThread::new(BTreeMap::new());

/// A load of an append only file begins.
pub fn begins(ctx: Ctx<'_>) {
    let sizes = folder(ctx).map(|folder| sizes(&folder)).unwrap_or_default();
    BEFORE.with(|before| *before = sizes);
}

/// The load has ended well.
pub fn ended(ctx: Ctx<'_>) {
    for (path, size) in BEFORE.with(std::mem::take) {
        let now = std::fs::metadata(&path).map_or(size, |now| now.len());
        if now < size {
            ctx.warn(&format!(
                "sluice: the server cut {} bytes off the end of {}, which was not whole. If they belonged to a transaction, what is written to it from now on \
                 may be lost at the next start. Run BGREWRITEAOF now: it makes the file whole (docs/operations.md, \"After a power cut\").",
                size - now,
                path.display()
            ));
        }
    }
}

fn sizes(folder: &Path) -> BTreeMap<PathBuf, u64> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files
        .filter_map(|file| {
            Some((file.path(), file.metadata().ok().filter(std::fs::Metadata::is_file)?.len()))
        })
        .collect()
}

/// Where the server keeps its append only files: below its working directory. None if it does not
/// tell.
fn folder(ctx: Ctx<'_>) -> Option<PathBuf> {
    let reply = call_words(ctx, c"CONFIG", How::Plain, &[b"GET", b"appenddirname"]);
    let name = reply.as_ref()?.whole().element(1)?.bytes()?;
    Some(PathBuf::from(String::from_utf8_lossy(name).into_owned()))
}
