//! `LB.*`: the leaky bucket. What the commands mean: docs/commands/lb.md; how they decide:
//! engine/leaky_bucket.

use super::limits::{decided, inline_limits, limits, told};
use crate::engine::bucket::{Limits, NoLimits};
use crate::engine::family::Family;
use crate::engine::leaky_bucket::LeakyBucket;
use crate::engine::shared::waiting::Answer;
use crate::engine::time::Micros;
use crate::server::blocking::clients::{Asked, Decided, End, Wait};
use crate::server::command::args::{Args, flag, is, once};
use crate::server::command::call::Call;
use crate::server::command::register::{Command, KeyUse, Keys, Registrar, commands};
use crate::server::error::Error;
use crate::server::key::handle::look;
use crate::server::key::open::Opened;
use crate::server::time::clock;
use crate::server::work::{serve, wait};
use std::cell::Cell;
use std::rc::Rc;

/// The error of an absent bucket without limits.
fn no_limits(_: NoLimits) -> Error {
    Error::new("ERR no limits: give capacity tokens period, or LB.SET the key first")
}

pub fn register(r: &Registrar<'_>) -> Result<(), String> {
    let on = |name, flags, access, syntax, summary| Command {
        name,
        flags,
        syntax,
        keys: Keys::First(access),
        summary,
        complexity: "O(1)",
    };
    commands!(r;
        take => on(
            "lb.take",
            "write deny-oom fast blocking",
            KeyUse::Update,
            "key [capacity tokens period] [COST n] [MAXWAIT ms] [BLOCK]",
            "Takes a place in an even flow and says how long to wait for it, or refuses.",
        ),
        peek => on(
            "lb.peek",
            "readonly fast",
            KeyUse::Read,
            "key [capacity tokens period] [COST n] [MAXWAIT ms]",
            "Says what LB.TAKE would say, and changes nothing.",
        ),
        refund => on("lb.refund", "write fast", KeyUse::Update, "key tokens", "Gives up places that were taken."),
        set => on(
            "lb.set",
            "write deny-oom fast",
            KeyUse::Write,
            "key capacity tokens period",
            "Pins a leaky bucket's limits: what callers give inline is then ignored.",
        ),
        reset => on("lb.reset", "write fast", KeyUse::Write, "key", "Empties a leaky bucket; an unpinned one goes."),
        info => on(
            "lb.info",
            "readonly fast",
            KeyUse::Read,
            "key",
            "Tells a leaky bucket's limits, level and counts.",
        ),
    );
    Ok(())
}

/// `[COST n] [MAXWAIT ms] [BLOCK]`: cost, longest wait, and whether to hold the reply.
fn options(args: &mut Args<'_>, may_block: bool) -> Result<(i64, Option<i64>, bool), Error> {
    let (mut cost, mut max_wait, mut block) = (None, None, false);
    while let Some(word) = args.option() {
        if is(word, "COST") {
            once(&mut cost, "COST", args.count("cost")?)?;
        } else if is(word, "MAXWAIT") {
            once(&mut max_wait, "MAXWAIT", args.duration("maxwait", 0)?)?;
        } else if may_block && is(word, "BLOCK") {
            flag(&mut block, "BLOCK")?;
        } else {
            let expected = if may_block { "COST n, MAXWAIT ms or BLOCK" } else { "COST n or MAXWAIT ms" };
            return Err(Error::unknown_option(word, expected));
        }
    }
    Ok((cost.unwrap_or(1), max_wait, block))
}

fn take(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let limits = inline_limits(&mut args, &["COST", "MAXWAIT", "BLOCK"])?;
    let (cost, max_wait, block) = options(&mut args, true)?;
    if block {
        return take_blocking(call, limits, cost, max_wait);
    }
    let six = call
        .change::<LeakyBucket, _>(1, |bucket, now, journal| {
            bucket.take(limits, cost, max_wait, now, journal)
        })?
        .map_err(no_limits)?;
    decided(call, Family::LeakyBucket, &six);
    Ok(())
}

/// TAKE with BLOCK: admitted, the reply is held until the wait is over.
fn take_blocking(
    call: &Call<'_>,
    limits: Option<Limits>,
    cost: i64,
    max_wait: Option<i64>,
) -> Result<(), Error> {
    // When it may go on, once it has been admitted: then it may be told so also where nothing may
    // be written, as nothing is.
    let turn = Cell::new(Micros::MAX);
    wait::run(
        call.context(),
        call.argv(),
        Rc::new(move |ctx, name, asked| {
            if asked == Asked::Over {
                let now = clock::now();
                if turn.get() <= now {
                    let six = look(ctx, name, |bucket: &LeakyBucket| bucket.at_its_turn(cost, now))?;
                    return Ok(told(Family::LeakyBucket, &six));
                }
                let peek = |bucket: &LeakyBucket| bucket.peek(limits, cost, max_wait, clock::now());
                return Ok(told(Family::LeakyBucket, &refused(look(ctx, name, peek)?.map_err(no_limits)?)));
            }
            let mut key = Opened::<LeakyBucket>::asked(ctx, name)?;
            let now = key.now();
            let (bucket, journal) = key.parts();
            let answer = match asked.ticket() {
                Some(ticket) => bucket.take_or_wait(limits, cost, max_wait, ticket, now, journal),
                None => bucket.take(limits, cost, max_wait, now, journal).map(Some),
            }
            .map_err(no_limits)?;
            turn.set(asked.ticket().and_then(|ticket| bucket.turn_of(ticket)).unwrap_or(Micros::MAX));
            // If the key goes, what it has booked is its own, and the bucket as new.
            let all = bucket.capacity();
            let object = serve::finish(key);
            Ok(match answer {
                Some(six) => told(Family::LeakyBucket, &six),
                None => Decided::Waits(Wait {
                    family: Family::LeakyBucket,
                    object: object.ok_or(Error::INTERNAL)?,
                    end: End::Clock(turn.get()),
                    booked: Some(Answer::Six([cost, all, all, 0, 0, 0])),
                }),
            })
        }),
    )
}

/// What a client is told that gave its place back before its turn came. There may be room, but a
/// refusal never says 0.
fn refused([granted, capacity, free, retry, wait, drained]: [i64; 6]) -> [i64; 6] {
    if granted > 0 {
        [0, capacity, free + granted, 1, wait, wait]
    } else {
        [0, capacity, free, retry, wait, drained]
    }
}

fn peek(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let limits = inline_limits(&mut args, &["COST", "MAXWAIT"])?;
    let (cost, max_wait, _) = options(&mut args, false)?;
    let six = call.look::<LeakyBucket, _>(|bucket, now| bucket.peek(limits, cost, max_wait, now))?;
    call.reply().ints(&six.map_err(no_limits)?);
    Ok(())
}

fn refund(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let tokens = args.count("tokens")?;
    let six = call.change::<LeakyBucket, _>(1, |bucket, now, journal| bucket.refund(tokens, now, journal))?;
    call.reply().ints(&six);
    Ok(())
}

fn set(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let limits = limits(&mut args)?;
    args.end()?;
    call.configure::<LeakyBucket>(c"lb.set", |bucket, now, journal| bucket.set(limits, now, journal))
}

fn reset(call: &Call<'_>) -> Result<(), Error> {
    call.change_existing::<LeakyBucket, _>(1, |bucket, now, journal| bucket.reset(now, journal))?;
    call.reply().ok();
    Ok(())
}

fn info(call: &Call<'_>) -> Result<(), Error> {
    let info = call.read::<LeakyBucket, _>(1, |bucket| bucket.and_then(|b| b.info(call.now())))?;
    let reply = call.reply();
    let Some(info) = info else {
        reply.nil();
        return Ok(());
    };
    let fields = [
        ("capacity", info.capacity),
        ("tokens", info.tokens),
        ("period", info.period),
        ("pinned", info.pinned),
        ("inside", info.inside),
        ("free", info.free),
        ("wait", info.wait),
        ("drained_after", info.drained_after),
        ("waiting", info.waiting),
        ("granted", info.granted),
        ("refused", info.refused),
    ];
    reply.int_map(&fields);
    Ok(())
}
