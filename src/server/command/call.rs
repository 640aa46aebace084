//! One running command: its arguments, its instant, its keys and its reply.

use super::args::Args;
use crate::engine::journal::Journal;
use crate::engine::object::Object;
use crate::engine::time::Micros;
use crate::server::blocking::{access, deferred};
use crate::server::cluster::slots;
use crate::server::error::Error;
use crate::server::ffi::context::Ctx;
use crate::server::ffi::strings::Str;
use crate::server::key::apply;
use crate::server::key::handle::{self, Holds};
use crate::server::key::open::Opened;
use crate::server::replication::carry;
use crate::server::reply::writer::{self, Reply};
use crate::server::time::{budget, clock};
use crate::server::words::parse_int;
use crate::server::work::{run_deferred, serve};
use std::cell::Cell;
use std::ffi::CStr;
use std::ops::Range;

pub struct Call<'a> {
    ctx: Ctx<'a>,
    argv: &'a [Str<'a>],
    now: Cell<Micros>,
}

impl<'a> Call<'a> {
    /// The arguments after the command's name.
    pub fn args(&self) -> Args<'a> {
        Args::new(self.argv, 1)
    }

    /// The argument at `index` of the whole command; empty if there is none.
    pub fn arg(&self, index: usize) -> &'a [u8] {
        self.argv.get(index).map_or(&[], |word| word.bytes())
    }

    /// The keys of a command that takes some, of which the argument at `first` is the first: that
    /// one, or, if their number stands before it, so many.
    pub fn keys_from(&self, first: usize) -> &'a [Str<'a>] {
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

    /// The key whose name is the argument at `index`, for change. What is due on it has been
    /// applied.
    pub fn write<O: Object>(&self, index: usize) -> Result<Opened<'a, O>, Error> {
        Opened::new(self.ctx, self.name(index)?, self.argv, self.now())
    }

    /// This command would claim from queues: who waits at the keys whose names are these arguments
    /// is served before it, and its own instant comes after that, so that no clock seems to step
    /// back.
    pub fn comes_after_waiters(&self, keys: Range<usize>) {
        if serve::serve_first(self.ctx, keys.map(|i| self.arg(i))) {
            self.now.set(clock::now());
        }
    }

    /// Decides on the object in the key whose name is the argument at `index` (a blank one if there
    /// is no key), and does all that follows from it.
    pub fn change<O: Object, R>(
        &self,
        index: usize,
        decide: impl FnOnce(&mut O, Micros, &mut Journal) -> R,
    ) -> Result<R, Error> {
        Ok(serve::decide(self.write::<O>(index)?, decide))
    }

    /// The same if there is a key; None: there is none, and nothing is done.
    pub fn change_existing<O: Object, R>(
        &self,
        index: usize,
        decide: impl FnOnce(&mut O, Micros, &mut Journal) -> R,
    ) -> Result<Option<R>, Error> {
        let key = self.write::<O>(index)?;
        Ok(if key.existing().is_some() { Some(serve::decide(key, decide)) } else { None })
    }

    /// A command that configures the first key: it loses its TTL, `event` is emitted if anything
    /// changed, and the reply is OK.
    pub fn configure<O: Object>(
        &self,
        event: &'static CStr,
        decide: impl FnOnce(&mut O, Micros, &mut Journal),
    ) -> Result<(), Error> {
        let mut key = self.write::<O>(1)?;
        key.persist();
        key.notify(event);
        serve::decide(key, decide);
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

    /// Reads the object in the key whose name is the argument at `index` (None: no key), as of now:
    /// on a master what is due is applied first, as on every command; a replica shows what its
    /// master last said.
    pub fn read<O: Object, R>(&self, index: usize, f: impl FnOnce(Option<&O>) -> R) -> Result<R, Error> {
        self.read_after(index, |_: &mut O, _, _| (), f)
    }

    /// The same; where something is due `bring` is called after it was applied, or as much of it as
    /// is not put off.
    pub fn read_after<O: Object, R>(
        &self,
        index: usize,
        bring: impl FnOnce(&mut O, Micros, &mut Journal),
        f: impl FnOnce(Option<&O>) -> R,
    ) -> Result<R, Error> {
        let name = self.name(index)?;
        let due = |o: &O| o.next_event().is_some_and(|at| at <= self.now());
        let apply_due = || {
            if self.may_apply_due(name) {
                self.change_existing::<O, _>(index, bring)?;
            }
            Ok(())
        };
        handle::read::<O, R>(self.ctx, name, due, apply_due, f)
    }

    /// An error if the key whose name is the argument at `index` holds something else. Nobody has
    /// read it by that.
    pub fn expect<O: Object>(&self, index: usize) -> Result<(), Error> {
        match handle::holds::<O>(self.ctx, self.name(index)?) {
            Holds::Other => Err(Error::WRONG_TYPE),
            Holds::Nothing | Holds::Ours => Ok(()),
        }
    }

    /// For a command that may also shrink, so that the server does not refuse it as a whole when
    /// memory is short: the server's refusal for what would grow.
    pub fn may_grow(&self) -> Result<(), Error> {
        if self.ctx.flags().out_of_memory() { Err(Error::OUT_OF_MEMORY) } else { Ok(()) }
    }

    /// The same if the key whose name is the argument at `index` would be a new one.
    pub fn may_create<O: Object>(&self, index: usize) -> Result<(), Error> {
        match handle::holds::<O>(self.ctx, self.name(index)?) {
            Holds::Nothing => self.may_grow(),
            Holds::Ours | Holds::Other => Ok(()),
        }
    }

    /// Whether a command that only reads may apply what is due on a key, as a command that writes
    /// would.
    fn may_apply_due(&self, name: Str<'_>) -> bool {
        access::anew();
        self.ctx.decides() && access::to(self.ctx, name.bytes()) == access::Access::Granted
    }

    /// Reads `numkeys key …` and returns where in the whole command the keys are. In a cluster they
    /// must be in one slot, and all here.
    pub fn counted_keys(&self, args: &mut Args<'_>) -> Result<Range<usize>, Error> {
        let n = usize::try_from(args.count("numkeys")?).unwrap_or(usize::MAX);
        let first = args.position();
        args.skip(n, "keys")?;
        let keys = self.argv.get(first..first + n).ok_or(Error::INTERNAL)?;
        slots::together(self.ctx, keys)?;
        Ok(first..first + n)
    }

    /// `SLUICE.APPLY key expire head …`: see [`apply::apply`].
    pub fn apply(&self, expire: i64) -> Result<(), Error> {
        apply::apply(self.ctx, expire, self.argv)
    }

    /// All of the command's words.
    pub fn argv(&self) -> &'a [Str<'a>] {
        self.argv
    }

    fn name(&self, index: usize) -> Result<Str<'a>, Error> {
        self.argv.get(index).copied().ok_or(Error::INTERNAL)
    }
}

/// What earlier commands left to be done comes before this one, and what this one leaves right
/// after it: while no key is open, and not in a cluster (see blocking/deferred.rs).
#[inline]
fn do_deferred(ctx: Ctx<'_>) {
    if deferred::pending() {
        let flags = ctx.flags();
        if !flags.atomic() && !flags.cluster() && ctx.decides() {
            run_deferred::run(ctx);
        }
    }
}

/// Runs a command; false: it was ended by a panic.
pub fn run<F>(ctx: Ctx<'_>, argv: &[Str<'_>], handler: F) -> bool
where
    F: Fn(&Call<'_>) -> Result<(), Error>,
{
    let before = writer::begin();
    let done = if access::asking() {
        Reply::new(ctx).ok();
        true
    } else {
        carry::run(
            ctx,
            || {
                budget::begin();
                do_deferred(ctx);
                let call = Call { ctx, argv, now: Cell::new(clock::now()) };
                if let Err(error) = handler(&call) {
                    writer::abandon(ctx, &error);
                }
                do_deferred(ctx);
                true
            },
            || {
                writer::abandon(ctx, &Error::INTERNAL);
                false
            },
        )
    };
    writer::end(before);
    done
}
