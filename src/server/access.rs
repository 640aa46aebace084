//! Whether a key may be changed now by other means than a client's command, and whether a client that waited may still have what it waited for.
//!
//! A command has passed the server's own checks: the slot, the cluster's state, `min-replicas-to-write`, a failed save, a replica that is read only,
//! the ACL. What the timer does, and what is put off, has not. So the server is asked: an internal command that does nothing is called for the
//! key, in the mode in which a script's write would be refused. Asked so, nothing is looked up, and no statistics of keys change.

use super::api::{Ctx, OK, OwnedString, RawString, rm};
use super::call_reply::CallReply;
use super::main_thread::MainThread;
use super::{handle, slots};
use redis_module::raw;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

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
        Err(libc::EPERM) if is_imported(ctx, slots::of(name.bytes())) => {
            if handle::is_there(ctx, name) {
                Access::Granted
            } else {
                Access::Coming
            }
        }
        Err(libc::EPERM) => Access::Elsewhere,
        Err(_) => Access::NotNow,
    }
}

/// The same for a key by its bytes.
pub fn to(ctx: Ctx<'_>, key: &[u8]) -> Access {
    to_key(ctx, &OwnedString::new(key))
}

fn ask(ctx: Ctx<'_>, key: &OwnedString) -> Result<(), c_int> {
    ASKING.store(true, Ordering::Relaxed);
    // SAFETY: errno is this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above. A live context; "S" asks for the checks of a script, "E" for a reply also to a
    // call that is not let through (Valkey 9.1 follows a wild pointer without it while the cluster is
    // down); the format names in order a live string, a C string and a buffer with its length.
    let (reply, why) = unsafe {
        *errno = 0;
        let reply = rm!(RedisModule_Call(
            ctx.raw(),
            c"SLUICE.APPLY".as_ptr(),
            c"SEscb".as_ptr(),
            key.raw(),
            c"0".as_ptr(),
            c"".as_ptr(),
            0usize
        ));
        (CallReply::new(reply), *errno)
    };
    ASKING.store(false, Ordering::Relaxed);
    if reply.is_none_or(|reply| reply.is_error()) { Err(why) } else { Ok(()) }
}

/// The slots that are imported key by key, once the server has been asked in this turn.
static IMPORTED: MainThread<Option<Vec<u16>>> = MainThread::new(None);

/// A new turn: what the server said of slots may be otherwise by now. What is asked later in the same turn is asked once.
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
    let reply = CallReply::of_cluster(ctx, c"NODES");
    let Some(text) = reply.as_ref().and_then(|reply| reply.whole().bytes()) else { return Vec::new() };
    let text = String::from_utf8_lossy(text);
    let own = text.lines().find(|line| line.contains("myself")).unwrap_or_default();
    let coming = own.split(' ').filter_map(|word| word.strip_prefix('[')?.split_once("-<-"));
    coming.filter_map(|(slot, _)| slot.parse().ok()).collect()
}

/// Whether the client's user may (still) run a command on a key. `argv` is the command as it would be sent. A client that is gone may.
pub fn permits(ctx: Ctx<'_>, client: u64, argv: &[OwnedString]) -> bool {
    let mut raws: Vec<RawString> = argv.iter().map(OwnedString::raw).collect();
    // SAFETY: a live context; the name, if there is one, is ours to free, and so is the user; the arguments are live strings.
    unsafe {
        let name = rm!(RedisModule_GetClientUserNameById(ctx.raw(), client));
        if name.is_null() {
            return true;
        }
        let user: *mut raw::RedisModuleUser = rm!(RedisModule_GetModuleUserFromUserName(name));
        rm!(RedisModule_FreeString(ctx.raw(), name));
        if user.is_null() {
            // Made by another module: there is nothing to check it by. A user that was deleted has no clients any more.
            return true;
        }
        let permitted =
            rm!(RedisModule_ACLCheckCommandPermissions(user, raws.as_mut_ptr(), raws.len() as c_int)) == OK;
        rm!(RedisModule_FreeModuleUser(user));
        permitted
    }
}
