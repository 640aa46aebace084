//! `SLUICE.APPLY`: what a master decided, done again on a replica or from a file.

use super::api::{Ctx, RawString, bytes, rm};
use super::call::Call;
use super::error::Error;
use super::info::FAMILIES;
use super::key::{Handle, wake};
use super::trust::{self, Word};
use super::types::{self, Value, for_family};
use super::{clock, registry, stats, unit as carried};
use crate::engine::codec::{Corrupt, FORMAT};
use crate::engine::fencing::Fencing;
use crate::engine::journal::Journal;
use crate::engine::object::{self, Family, Object, apply_whole};
use crate::engine::unit::{self, Step};
use redis_module::raw;
use std::ffi::c_void;

const NOT_OURS: Error = Error::new("ERR SLUICE.APPLY: not an effect of this version");

/// The effects of the head on the command's key, or all that a unit says on several; `arguments` are what follows the head. Then it is carried on as it came.
///
/// # Safety
/// The strings are live.
pub unsafe fn apply(
    call: &Call<'_>,
    name: RawString,
    expire: i64,
    head: &[u8],
    arguments: &[RawString],
) -> Result<(), Error> {
    let ctx = call.context();
    trust::may_apply(ctx)?;
    // SAFETY: passed on.
    unsafe {
        if unit::is_unit(head) {
            apply_unit(ctx, name, head, arguments)?;
        } else {
            apply_batch(ctx, name, expire, head, arguments)?;
        }
        // What a chore changed before this command comes before it.
        carried::flush(ctx);
        rm!(RedisModule_ReplicateVerbatim(ctx.raw()));
    }
    Ok(())
}

unsafe fn apply_batch(
    ctx: Ctx<'_>,
    name: RawString,
    expire: i64,
    head: &[u8],
    blobs: &[RawString],
) -> Result<(), Error> {
    unsafe fn of<O: Object>(
        ctx: Ctx<'_>,
        name: RawString,
        expire: i64,
        head: &[u8],
        blobs: &[RawString],
    ) -> Result<(), Error> {
        // SAFETY: passed on.
        unsafe { apply_effects::<O>(ctx, name, expire, head, blobs) }
    }
    let [FORMAT, number, ..] = head else { return Err(NOT_OURS) };
    let family = family(*number)?;
    // SAFETY: passed on.
    unsafe { for_family!(family, of(ctx, name, expire, head, blobs)) }
}

fn family(number: u8) -> Result<Family, Error> {
    FAMILIES.iter().map(|(f, _)| *f).find(|f| *f as u8 == number).ok_or(NOT_OURS)
}

/// All parts, in order. One that cannot be done does not keep the others from being done, as it would not if they had come one by one; the first error is told.
unsafe fn apply_unit(
    ctx: Ctx<'_>,
    mut name: RawString,
    head: &[u8],
    arguments: &[RawString],
) -> Result<(), Error> {
    let steps = unit::read(head, arguments.len())
        .map_err(|corrupt| Error::of(format!("ERR SLUICE.APPLY: {}", corrupt.0)))?;
    let (mut db, mut result) = (ctx.db(), Ok(()));
    for step in steps {
        match step {
            Step::Database(other) => db = other,
            Step::Key(at) => name = arguments[at],
            step => {
                // SAFETY: passed on.
                let done = ctx.in_db(db, || unsafe { apply_step(ctx, name, step, arguments) });
                result = result.and(done);
            }
        }
    }
    result
}

unsafe fn apply_step(
    ctx: Ctx<'_>,
    name: RawString,
    step: Step,
    arguments: &[RawString],
) -> Result<(), Error> {
    unsafe fn expire_of<O: Object>(ctx: Ctx<'_>, name: RawString, at: i64) -> Result<(), Error> {
        // SAFETY: passed on.
        unsafe { apply_expire::<O>(ctx, name, at) }
    }
    // SAFETY: passed on; the positions were checked when they were read.
    unsafe {
        match step {
            Step::Effects { expire, head, blobs } => {
                apply_batch(ctx, name, expire, bytes(arguments[head]), &arguments[blobs])
            }
            Step::Expires { family: number, at } => {
                let family = family(number)?;
                for_family!(family, expire_of(ctx, name, at))
            }
            Step::Gone => {
                apply_gone(ctx, name);
                Ok(())
            }
            Step::Database(_) | Step::Key(_) => Ok(()),
        }
    }
}

/// What a master decided on one key, done again here. Decides nothing. The caller carries it on.
///
/// # Safety
/// `name` and `blobs` are live strings.
unsafe fn apply_effects<O: Object>(
    ctx: Ctx<'_>,
    name: RawString,
    expire: i64,
    head: &[u8],
    blobs: &[RawString],
) -> Result<(), Error> {
    const CORRUPT: &str = "ERR SLUICE.APPLY: ";
    let word = trust::may_apply(ctx)?;
    // SAFETY: passed on.
    let handle = unsafe { Handle::open(ctx, name, raw::REDISMODULE_READ | raw::REDISMODULE_WRITE) };
    let existing = handle.value::<O>()?;
    let mut fresh = None;
    // SAFETY: the value of the open key; nothing else runs until the batch is applied.
    let bytes_before = existing.map_or(0, |value| unsafe { (*value).memory() });
    let mut before = [0; stats::MOST_EVENTS];
    // SAFETY: as above.
    existing.into_iter().for_each(|value| unsafe { (*value).object.counts(&mut before) });
    let (now, mut told) = (clock::now(), Vec::new());
    let mut tell = |object: &O, effect: &O::Effect| told.extend(object.event(effect, now));
    let object = match existing {
        // SAFETY: as above.
        Some(value) => unsafe { &mut (*value).object },
        None => fresh.insert(O::blank()),
    };
    // SAFETY: live strings.
    let blobs = || blobs.iter().map(|s| Box::from(unsafe { bytes(*s) }));
    let corrupt = |e: Corrupt| Error::of(format!("{CORRUPT}{}", e.0));
    let mut brought = Fencing::gather(trust::most(word));
    match word {
        // Whole batches, of a sound object.
        Word::Master => {
            object::apply_each(object, head, &mut blobs(), &mut brought, &mut tell).map_err(corrupt)?
        }
        Word::Client => {
            apply_whole(object, head, &|| blobs().collect(), &mut brought).map_err(corrupt)?;
            // A change that was read leaves a key sound; a new one has to be it.
            if existing.is_none() && !object.is_partial() {
                object.check().map_err(corrupt)?;
                // (It may be over by now: so it is in an AOF that is piped.)
                let mut told = Journal::new(O::FAMILY, false);
                object.snapshot(&mut told, &mut |_| {});
                if !told.changed() {
                    return Err(corrupt(Corrupt("it says the same as no key")));
                }
            }
        }
    }
    clock::with_fencing(|f| f.raise(brought.last()));
    let value = match (existing, fresh) {
        (Some(value), _) => {
            // SAFETY: as above.
            stats::grew(O::FAMILY, unsafe { (*value).memory() } as i64 - bytes_before as i64);
            value
        }
        (None, Some(fresh)) => {
            // The TTL may come right after, by a command of its own: so it is in a rewritten AOF.
            let fresh = Value::arrived(fresh);
            stats::born(O::FAMILY, fresh.memory());
            let value = Box::into_raw(Box::new(fresh));
            // SAFETY: as in Opened::commit.
            unsafe {
                rm!(RedisModule_ModuleTypeSetValue(
                    handle.0,
                    types::handle(O::FAMILY),
                    value.cast::<c_void>()
                ))
            };
            value
        }
        (None, None) => return Err(Error::INTERNAL),
    };
    if expire != 0 {
        // SAFETY: the key is open for writing and holds `value`.
        unsafe {
            rm!(RedisModule_SetAbsExpire(handle.0, expire));
            (*value).expires_ms = expire.max(0);
        }
    }
    let mut after = before;
    // SAFETY: the value of the open key.
    let (next, identity) = unsafe {
        (*value).object.counts(&mut after);
        (wake(&(*value).object, now), (*value).identity())
    };
    if let Some(at) = next {
        // SAFETY: a live string.
        registry::schedule(O::FAMILY, identity, at, || (ctx.db(), unsafe { bytes(name) }.into()));
    }
    // SAFETY: a live context and string.
    unsafe { rm!(RedisModule_SignalModifiedKey(ctx.raw(), name)) };
    drop(handle);
    // The events come here, too, each once and in the order in which a command tells them.
    let counted = |event| O::EVENTS.iter().position(|e| *e == Some(event));
    if let Some(set) = told.iter().find(|event| counted(**event).is_none()) {
        // SAFETY: as above.
        unsafe { ctx.notify(set, name) };
    }
    for (i, event) in O::EVENTS.iter().enumerate() {
        if let Some(event) = event
            && (after[i] > before[i] || told.contains(event))
        {
            // SAFETY: as above.
            unsafe { ctx.notify(event, name) };
        }
    }
    Ok(())
}

/// The key gets the TTL that a master gave it (unix ms), or loses it (-1). Nothing if there is no such key.
///
/// # Safety
/// `name` is a live string.
unsafe fn apply_expire<O: Object>(ctx: Ctx<'_>, name: RawString, expire: i64) -> Result<(), Error> {
    // SAFETY: passed on.
    let handle = unsafe { Handle::open(ctx, name, raw::REDISMODULE_READ | raw::REDISMODULE_WRITE) };
    if let Some(value) = handle.value::<O>()? {
        // SAFETY: the key is open for writing and holds `value`; a live context and string.
        unsafe {
            rm!(RedisModule_SetAbsExpire(handle.0, expire));
            (*value).expires_ms = expire.max(0);
            rm!(RedisModule_SignalModifiedKey(ctx.raw(), name));
        }
    }
    Ok(())
}

/// The key goes, as on the master.
///
/// # Safety
/// `name` is a live string.
unsafe fn apply_gone(ctx: Ctx<'_>, name: RawString) {
    // SAFETY: passed on.
    let handle = unsafe { Handle::open(ctx, name, raw::REDISMODULE_READ | raw::REDISMODULE_WRITE) };
    if !handle.is_empty() {
        // SAFETY: the key is open for writing; a live context and string. The event as from UNLINK.
        unsafe {
            rm!(RedisModule_DeleteKey(handle.0));
            rm!(RedisModule_SignalModifiedKey(ctx.raw(), name));
            drop(handle);
            ctx.notify_deleted(name);
        }
    }
}
