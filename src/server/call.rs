//! One running command: its arguments, its instant, its keys and its reply.

use super::api::{Ctx, ERR, OK, RawString, bytes};
use super::args::{Args, parse_int};
use super::error::Error;
use super::key::{self, Holds, Opened};
use super::reply::{self, Reply};
use super::{access, apply, chores, clock, lines, pieces, slots, timer, unit};
use crate::engine::journal::Journal;
use crate::engine::object::Object;
use crate::engine::time::Micros;
use redis_module::raw;
use std::cell::Cell;
use std::ffi::{CStr, c_int};
use std::ops::Range;

pub struct Call<'a> {
    ctx: Ctx<'a>,
    argv: &'a [RawString],
    now: Cell<Micros>,
}

impl<'a> Call<'a> {
    /// The arguments after the command's name.
    pub fn args(&self) -> Args<'a> {
        // SAFETY: the server keeps the arguments alive and unchanged while the command runs.
        unsafe { Args::new(self.argv, 1) }
    }

    /// The argument at `index` of the whole command; empty if there is none.
    pub fn arg(&self, index: usize) -> &'a [u8] {
        // SAFETY: as in `args`.
        self.argv.get(index).map_or(&[], |s| unsafe { bytes(*s) })
    }

    /// The keys of a command that takes some, of which the argument at `first` is the first: that one, or, if their number stands before it, so many.
    pub fn keys_from(&self, first: usize) -> &'a [RawString] {
        let counted = first.checked_sub(1).filter(|at| *at > 0).and_then(|at| parse_int(self.arg(at)));
        let n = counted.and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
        self.argv.get(first..).and_then(|rest| rest.get(..n.min(rest.len()))).unwrap_or_default()
    }

    pub fn context(&self) -> Ctx<'a> {
        self.ctx
    }

    pub fn reply(&self) -> Reply<'a> {
        Reply::new(self.ctx)
    }

    /// The instant of the command: the same for all it does.
    pub fn now(&self) -> Micros {
        self.now.get()
    }

    /// Whether the client's reply may be held: not inside a transaction or script.
    pub fn may_block(&self) -> bool {
        self.ctx.flags().may_block()
    }

    /// The key whose name is the argument at `index`, for change. What is due on it has been applied.
    pub fn write<O: Object>(&self, index: usize) -> Result<Opened<'a, O>, Error> {
        // SAFETY: the server keeps the arguments alive while the command runs.
        unsafe { Opened::new(self.ctx, self.name(index)?, self.argv, self.now()) }
    }

    /// This command would claim from queues: who waits at the keys whose names are these arguments is served before it, and its own instant comes after
    /// that, so that no clock seems to step back.
    pub fn comes_after_waiters(&self, keys: Range<usize>) {
        if lines::serve_first(self.ctx, keys.map(|i| self.arg(i))) {
            self.now.set(clock::now());
        }
    }

    /// Decides on the object in the key whose name is the argument at `index` (a blank one if there is no key), and does all that follows from it.
    pub fn change<O: Object, R>(
        &self,
        index: usize,
        decide: impl FnOnce(&mut O, Micros, &mut Journal) -> R,
    ) -> Result<R, Error> {
        Ok(self.write::<O>(index)?.decide(decide))
    }

    /// The same if there is a key; None: there is none, and nothing is done.
    pub fn change_existing<O: Object, R>(
        &self,
        index: usize,
        decide: impl FnOnce(&mut O, Micros, &mut Journal) -> R,
    ) -> Result<Option<R>, Error> {
        let key = self.write::<O>(index)?;
        Ok(if key.existing().is_some() { Some(key.decide(decide)) } else { None })
    }

    /// A command that configures the first key: it loses its TTL, `event` is emitted if anything changed, and the reply is OK.
    pub fn configure<O: Object>(
        &self,
        event: &'static CStr,
        decide: impl FnOnce(&mut O, Micros, &mut Journal),
    ) -> Result<(), Error> {
        let mut key = self.write::<O>(1)?;
        key.persist();
        key.notify(event);
        key.decide(decide);
        self.reply().ok();
        Ok(())
    }

    /// Reads the object in the first key, or a blank one, as of now.
    pub fn look<O: Object, R>(&self, f: impl FnOnce(&O, Micros) -> R) -> Result<R, Error> {
        self.read::<O, _>(1, |object| match object {
            Some(object) => f(object, self.now()),
            None => f(&O::blank(), self.now()),
        })
    }

    /// Reads the object in the key whose name is the argument at `index` (None: no key), as of now: on a master what is due is
    /// applied first, as on every command; a replica shows what its master last said.
    pub fn read<O: Object, R>(&self, index: usize, f: impl FnOnce(Option<&O>) -> R) -> Result<R, Error> {
        self.read_after(index, |_: &mut O, _, _| (), f)
    }

    /// The same; where something is due `bring` is called after it was applied, or as much of it as is not put off.
    pub fn read_after<O: Object, R>(
        &self,
        index: usize,
        bring: impl FnOnce(&mut O, Micros, &mut Journal),
        f: impl FnOnce(Option<&O>) -> R,
    ) -> Result<R, Error> {
        let name = self.name(index)?;
        let due = |o: &O| o.next_event().is_some_and(|at| at <= self.now());
        let settle = || {
            if self.may_settle(name) {
                self.change_existing::<O, _>(index, bring)?;
            }
            Ok(())
        };
        // SAFETY: as in `write`.
        unsafe { key::read::<O, R>(self.ctx, name, due, settle, f) }
    }

    /// An error if the key whose name is the argument at `index` holds something else. Nobody has read it by that.
    pub fn expect<O: Object>(&self, index: usize) -> Result<(), Error> {
        // SAFETY: as in `write`.
        match unsafe { key::holds::<O>(self.ctx, self.name(index)?) } {
            Holds::Other => Err(Error::WRONG_TYPE),
            Holds::Nothing | Holds::Ours => Ok(()),
        }
    }

    /// For a command that may also shrink, so that the server does not refuse it as a whole when memory is short: the server's refusal for what would grow.
    pub fn may_grow(&self) -> Result<(), Error> {
        if self.ctx.flags().out_of_memory() { Err(Error::OUT_OF_MEMORY) } else { Ok(()) }
    }

    /// The same if the key whose name is the argument at `index` would be a new one.
    pub fn may_create<O: Object>(&self, index: usize) -> Result<(), Error> {
        // SAFETY: as in `write`.
        match unsafe { key::holds::<O>(self.ctx, self.name(index)?) } {
            Holds::Nothing => self.may_grow(),
            Holds::Ours | Holds::Other => Ok(()),
        }
    }

    /// Whether a command that only reads may apply what is due on a key, as a command that writes would.
    fn may_settle(&self, name: RawString) -> bool {
        access::anew();
        // SAFETY: as in `write`.
        timer::ready(self.ctx) && access::to(self.ctx, unsafe { bytes(name) }) == access::Access::Granted
    }

    /// Reads `numkeys key …` and answers where in the whole command the keys are. In a cluster they must be in one slot, and all here.
    pub fn counted_keys(&self, args: &mut Args<'_>) -> Result<Range<usize>, Error> {
        let n = usize::try_from(args.count("numkeys")?).unwrap_or(usize::MAX);
        let first = args.position();
        args.skip(n, "keys")?;
        let keys = self.argv.get(first..first + n).ok_or(Error::INTERNAL)?;
        // SAFETY: the server keeps the arguments alive while the command runs.
        unsafe { slots::together(self.ctx, keys)? };
        Ok(first..first + n)
    }

    /// `SLUICE.APPLY key expire head …`: see [`apply::apply`].
    pub fn apply(&self, expire: i64) -> Result<(), Error> {
        // SAFETY: the server keeps the arguments alive while the command runs.
        unsafe { apply::apply(self, expire, self.argv) }
    }

    fn name(&self, index: usize) -> Result<RawString, Error> {
        self.argv.get(index).copied().ok_or(Error::INTERNAL)
    }
}

/// What the server handed over as arguments.
///
/// # Safety
/// Called by the server with `argc` live arguments, which live for `'a`.
unsafe fn arguments<'a>(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> &'a [RawString] {
    let len = usize::try_from(argc).unwrap_or(0);
    // SAFETY: by the contract.
    if argv.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(argv, len) } }
}

/// What earlier commands left to be done comes before this one, and what this one leaves right after it: while no key is open, and not in a cluster
/// (see chores.rs).
#[inline]
fn do_chores(ctx: Ctx<'_>) {
    if chores::pending() {
        let flags = ctx.flags();
        if !flags.atomic() && !flags.cluster() && timer::ready(ctx) {
            chores::run(ctx);
        }
    }
}

/// The function the server calls for a command: `F` is the handler's own type, a function item, which has no data; so there is one such function a handler.
pub(super) unsafe extern "C" fn entry<F>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int
where
    F: Fn(&Call<'_>) -> Result<(), Error> + Copy + 'static,
{
    const { assert!(size_of::<F>() == 0, "a handler is a plain function") };
    // SAFETY: a value of a type without data is nothing; F is a function item that was named at registration, so it exists.
    let handler: F = unsafe { std::mem::zeroed() };
    // SAFETY: the context of a running command; the server gives argc live arguments.
    let (ctx, argv) = unsafe { (Ctx::new(ctx), arguments(argv, argc)) };
    let before = reply::begin();
    let result = if access::asking() {
        Reply::new(ctx).ok();
        OK
    } else {
        unit::run(
            ctx,
            || {
                pieces::begin();
                do_chores(ctx);
                let call = Call { ctx, argv, now: Cell::new(clock::now()) };
                if let Err(error) = handler(&call) {
                    reply::abandon(ctx, &error);
                }
                do_chores(ctx);
                OK
            },
            || {
                reply::abandon(ctx, &Error::INTERNAL);
                ERR
            },
        )
    };
    reply::end(before);
    result
}
