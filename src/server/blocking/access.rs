//! Whether a key may be changed now by other means than a client's command, and whether a client
//! that waited may still have what it waited for.
//!
//! A command has passed the server's own checks: the slot, the cluster's state,
//! `min-replicas-to-write`, a failed save, a replica that is read only, the ACL. What the timer
//! does, and what is put off, has not. So the server is asked: an internal command that does
//! nothing is called for the key, in the mode in which a script's write would be refused. Asked so,
//! nothing is looked up, and no statistics of keys change.

use crate::server::cluster::slots;
use crate::server::ffi::call::{ELSEWHERE, How, call, call_words};
use crate::server::ffi::context::Ctx;
use crate::server::ffi::key::{Key, Mode};
use crate::server::ffi::main_thread::MainThread;
use crate::server::ffi::strings::{OwnedString, Str};
use crate::server::replication::carry;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

pub use crate::server::ffi::call::permits;

/// What may be done to a key now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Granted,
    /// In a cluster: the key's slot is coming, key by key, and the key is not here. It may be made
    /// here for a client whom the old owner has sent, for nobody else.
    Coming,
    /// Writes are refused at the moment: too few replicas, a failed save, the cluster is down.
    NotNow,
    /// In a cluster: another node answers for the key.
    Elsewhere,
}

/// The call that only asks is running.
static ASKING: AtomicBool = AtomicBool::new(false);

/// Whether the running command only asks whether it would be let through: then it does nothing.
#[inline]
pub fn asking() -> bool {
    ASKING.load(Ordering::Relaxed)
}

/// Asks the server about a key of the selected database.
pub fn to_key(ctx: Ctx<'_>, name: &OwnedString) -> Access {
    match ask(ctx, name) {
        Ok(()) => Access::Granted,
        // A slot that is being imported key by key is another node's still, but the keys that have
        // come are ours to look after.
        Err(ELSEWHERE) if is_imported(ctx, slots::of(name.bytes())) => {
            if is_there(ctx, name) {
                Access::Granted
            } else {
                Access::Coming
            }
        }
        Err(ELSEWHERE) => Access::Elsewhere,
        Err(_) => Access::NotNow,
    }
}

/// The same for a key by its bytes.
pub fn to(ctx: Ctx<'_>, key: &[u8]) -> Access {
    to_key(ctx, &OwnedString::new(key))
}

fn ask(ctx: Ctx<'_>, key: &OwnedString) -> Result<(), c_int> {
    let (expire, head) = (OwnedString::new(b"0"), OwnedString::new(b""));
    ASKING.store(true, Ordering::Relaxed);
    let arguments = [key.as_str(), expire.as_str(), head.as_str()];
    let (reply, why) = call(ctx, c"SLUICE.APPLY", How::Checked, &arguments);
    ASKING.store(false, Ordering::Relaxed);
    if reply.is_none_or(|reply| reply.is_error()) { Err(why) } else { Ok(()) }
}

/// Whether there is a key of this name, of whichever type.
fn is_there(ctx: Ctx<'_>, name: &OwnedString) -> bool {
    !open(ctx, name.as_str(), Mode::Unseen).is_empty()
}

/// Opens a key. If the server found that its time was over, what was still to be said of it is not.
#[inline]
pub fn open(ctx: Ctx<'_>, name: Str<'_>, mode: Mode) -> Key {
    let key = Key::open(ctx, name, mode);
    if carry::pending() && key.is_empty() {
        carry::found_missing(ctx, name);
    }
    key
}

/// The slots that are imported key by key, once the server has been asked in this turn.
static IMPORTED: MainThread<Option<Vec<u16>>> = MainThread::new(None);

/// A new turn: what the server said of slots may be otherwise by now. What is asked later in the
/// same turn is asked once.
pub fn anew() {
    IMPORTED.with(|known| *known = None);
}

fn is_imported(ctx: Ctx<'_>, slot: u16) -> bool {
    // The server is not asked while we hold what it said before.
    if IMPORTED.with(|known| known.is_none()) {
        let slots = imported_slots(ctx);
        IMPORTED.with(|known| *known = Some(slots));
    }
    IMPORTED.with(|known| known.as_ref().is_some_and(|slots| slots.contains(&slot)))
}

/// What `CLUSTER NODES` says of slots that come to this node: `[slot-<-node]` in its own line.
fn imported_slots(ctx: Ctx<'_>) -> Vec<u16> {
    let reply = call_words(ctx, c"CLUSTER", How::Told, &[b"NODES"]);
    let Some(text) = reply.as_ref().and_then(|reply| reply.whole().bytes()) else { return Vec::new() };
    let text = String::from_utf8_lossy(text);
    let own = text.lines().find(|line| line.contains("myself")).unwrap_or_default();
    let coming = own.split(' ').filter_map(|word| word.strip_prefix('[')?.split_once("-<-"));
    coming.filter_map(|(slot, _)| slot.parse().ok()).collect()
}
