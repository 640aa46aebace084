//! `SLUICE.APPLY`: what a master decided, done again on a replica or from a file.

use super::api::{Ctx, RawString, bytes, rm};
use super::call::Call;
use super::error::Error;
use super::info::FAMILIES;
use super::types::for_family;
use super::{key, trust, unit as carried};
use crate::engine::codec::FORMAT;
use crate::engine::object::{Family, Object};
use crate::engine::unit::{self, Step};

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
        unsafe { key::apply::<O>(ctx, name, expire, head, blobs) }
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
        unsafe { key::apply_expire::<O>(ctx, name, at) }
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
                key::apply_gone(ctx, name);
                Ok(())
            }
            Step::Database(_) | Step::Key(_) => Ok(()),
        }
    }
}
