//! `TB.*`: the token bucket. What the commands mean: docs/commands/tb.md; how they decide:
//! engine/token_bucket.

use super::limits::{decided, inline_limits, limits, told};
use crate::engine::bucket::{Limits, NoLimits, Policy};
use crate::engine::family::Family;
use crate::engine::shared::waiting::Answer;
use crate::engine::time::MS;
use crate::engine::token_bucket::{Mode, NoSuchHold, TokenBucket};
use crate::server::blocking::clients::{Asked, Decided, End, Wait};
use crate::server::command::args::{MAX_COUNT, flag, is, once};
use crate::server::command::call::Call;
use crate::server::command::register::{Command, KeyUse, Keys, Registrar, commands};
use crate::server::error::Error;
use crate::server::key::handle::look;
use crate::server::key::open::Opened;
use crate::server::stats;
use crate::server::time::clock;
use crate::server::words::parse_int;
use crate::server::work::{serve, wait};
use std::rc::Rc;

pub fn register(r: &Registrar<'_>) -> Result<(), String> {
    let on = |name: &'static str, flags, access, syntax, summary| Command {
        name,
        flags,
        syntax,
        keys: Keys::First(access),
        summary,
        complexity: match name {
            "tb.hold" | "tb.settle" => "O(log n) with n open holds",
            _ => "O(1)",
        },
    };
    commands!(r;
        take => on(
            "tb.take",
            "write deny-oom fast blocking",
            KeyUse::Update,
            "key [capacity tokens period] [COST n] [ATMOST | FORCE | BLOCK ms]",
            "Takes tokens from a bucket, or says when they will be there.",
        ),
        peek => on(
            "tb.peek",
            "readonly fast",
            KeyUse::Read,
            "key [capacity tokens period] [COST n]",
            "Says what TB.TAKE would say, and changes nothing.",
        ),
        refund => on(
            "tb.refund",
            "write fast",
            KeyUse::Update,
            "key tokens",
            "Puts tokens back, never above the capacity.",
        ),
        set => on(
            "tb.set",
            "write deny-oom fast",
            KeyUse::Write,
            "key capacity tokens period [WARMUP ms] [LEVEL (KEEP | ADD | SCALE | FULL)]",
            "Pins a bucket's limits: what callers give inline is then ignored.",
        ),
        reset => on(
            "tb.reset",
            "write fast",
            KeyUse::Write,
            "key",
            "Makes a bucket full again, and drops its ban and holds; an unpinned one goes.",
        ),
        drain => on(
            "tb.drain",
            "write deny-oom fast",
            KeyUse::Update,
            "key [capacity tokens period]",
            "Empties a bucket: the other side said it has had enough.",
        ),
        ban => on(
            "tb.ban",
            "write fast",
            KeyUse::Write,
            "key ms",
            "Refuses every take and hold for so long; 0 lifts the ban.",
        ),
        hold => on(
            "tb.hold",
            "write deny-oom fast",
            KeyUse::Update,
            "key [capacity tokens period] COST n TTL ms [ONEXPIRE (KEEP | REFUND)]",
            "Takes an estimate that is settled later.",
        ),
        settle => on(
            "tb.settle",
            "write fast",
            KeyUse::Update,
            "key id actual",
            "Closes a hold: puts back or charges the difference to what was really used.",
        ),
        info => on(
            "tb.info",
            "readonly fast",
            KeyUse::Read,
            "key",
            "Tells a bucket's limits, level, ban, holds and counts.",
        ),
    );
    Ok(())
}

fn take(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let limits = inline_limits(&mut args, &["COST", "ATMOST", "FORCE", "BLOCK"])?;
    let (mut cost, mut at_most, mut force, mut block) = (None, false, false, None);
    while let Some(word) = args.option() {
        if is(word, "COST") {
            once(&mut cost, "COST", args.count("cost")?)?;
        } else if is(word, "ATMOST") {
            flag(&mut at_most, "ATMOST")?;
        } else if is(word, "FORCE") {
            flag(&mut force, "FORCE")?;
        } else if is(word, "BLOCK") {
            once(&mut block, "BLOCK", args.duration("block", 1)?)?;
        } else {
            return Err(Error::unknown_option(word, "COST n, ATMOST, FORCE or BLOCK ms"));
        }
    }
    let cost = cost.unwrap_or(1);
    let mode = match (at_most, force, block) {
        (false, false, _) => Mode::Whole,
        (true, false, None) => Mode::AtMost,
        (false, true, None) => Mode::Force,
        _ => return Err(Error::new("ERR syntax error: ATMOST, FORCE and BLOCK exclude each other")),
    };
    if let Some(ms) = block {
        return take_blocking(call, limits, cost, ms);
    }
    let six = call.change::<TokenBucket, _>(1, |bucket, now, journal| {
        bucket.take(limits, cost, mode, now, journal)
    })??;
    decided(call, Family::TokenBucket, &six);
    Ok(())
}

/// TAKE with BLOCK: refused, the tokens are booked if they will be there within `ms`.
fn take_blocking(call: &Call<'_>, limits: Option<Limits>, cost: i64, ms: i64) -> Result<(), Error> {
    let until = call.now().saturating_add(ms.saturating_mul(MS));
    wait::run(
        call.context(),
        call.argv(),
        Rc::new(move |ctx, name, asked| {
            if asked == Asked::Over {
                let six = look(ctx, name, |bucket| refused(bucket, limits, cost))??;
                return Ok(told(Family::TokenBucket, &six));
            }
            let mut key = Opened::<TokenBucket>::asked(ctx, name)?;
            let now = key.now();
            let (bucket, journal) = key.parts();
            let answer = match asked.ticket() {
                Some(ticket) => bucket.take_or_book(limits, cost, ms, ticket, now, journal)?,
                None => Some(bucket.take(limits, cost, Mode::Whole, now, journal)?),
            };
            // If the key goes, what it has booked is its own, and the bucket as new.
            let all = bucket.capacity();
            let object = serve::finish(key);
            Ok(match answer {
                Some(six) => told(Family::TokenBucket, &six),
                None => Decided::Waits(Wait {
                    family: Family::TokenBucket,
                    object: object.ok_or(Error::INTERNAL)?,
                    end: End::Clock(until),
                    booked: Some(Answer::Six([cost, all, all, 0, 0, 0])),
                }),
            })
        }),
    )
}

/// What a client is told whose time was cut short. Its tokens may be there and only writes be
/// paused, but a refusal never says 0.
fn refused(bucket: &TokenBucket, limits: Option<Limits>, cost: i64) -> Result<[i64; 6], NoLimits> {
    let now = clock::now();
    let six = bucket.peek(limits, cost, now)?;
    if six[0] == 0 {
        return Ok(six);
    }
    let [_, limit, remaining, _, next, reset] = bucket.look(limits, now)?;
    Ok([0, limit, remaining, 1, next, reset])
}

fn peek(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let limits = inline_limits(&mut args, &["COST"])?;
    let mut cost = None;
    while let Some(word) = args.option() {
        if is(word, "COST") {
            once(&mut cost, "COST", args.count("cost")?)?;
        } else {
            return Err(Error::unknown_option(word, "COST n"));
        }
    }
    let six = call.look::<TokenBucket, _>(|bucket, now| bucket.peek(limits, cost.unwrap_or(1), now))??;
    call.reply().ints(&six);
    Ok(())
}

fn refund(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let tokens = args.count("tokens")?;
    let six = call.change::<TokenBucket, _>(1, |bucket, now, journal| bucket.refund(tokens, now, journal))?;
    call.reply().ints(&six);
    Ok(())
}

fn set(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let limits = limits(&mut args)?;
    let (mut warmup, mut level) = (None, None);
    while let Some(word) = args.option() {
        if is(word, "WARMUP") {
            once(&mut warmup, "WARMUP", args.duration("warmup", 0)?)?;
        } else if is(word, "LEVEL") {
            once(&mut level, "LEVEL", policy(args.next("LEVEL")?)?)?;
        } else {
            return Err(Error::unknown_option(word, "WARMUP ms or LEVEL KEEP|ADD|SCALE|FULL"));
        }
    }
    call.configure::<TokenBucket>(c"tb.set", |bucket, now, journal| {
        bucket.set(limits, warmup.unwrap_or(0), level.unwrap_or(Policy::Keep), now, journal)
    })
}

fn policy(word: &[u8]) -> Result<Policy, Error> {
    [("KEEP", Policy::Keep), ("ADD", Policy::Add), ("SCALE", Policy::Scale), ("FULL", Policy::Full)]
        .into_iter()
        .find_map(|(name, policy)| is(word, name).then_some(policy))
        .ok_or(Error::new("ERR LEVEL must be KEEP, ADD, SCALE or FULL"))
}

fn reset(call: &Call<'_>) -> Result<(), Error> {
    call.change_existing::<TokenBucket, _>(1, |bucket, now, journal| bucket.reset(now, journal))?;
    call.reply().ok();
    Ok(())
}

fn drain(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let limits = inline_limits(&mut args, &[])?;
    args.end()?;
    let six =
        call.change::<TokenBucket, _>(1, |bucket, now, journal| bucket.drain(limits, now, journal))??;
    call.reply().ints(&six);
    Ok(())
}

fn ban(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let ms = args.duration("ban", 0)?;
    let ban = |bucket: &mut TokenBucket, now, journal: &mut _| bucket.ban_for(ms, now, journal);
    if ms > 0 {
        call.may_grow()?;
        call.change(1, ban)?;
    } else {
        call.change_existing(1, ban)?;
    }
    call.reply().ok();
    Ok(())
}

fn hold(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let limits = inline_limits(&mut args, &["COST", "TTL", "ONEXPIRE"])?;
    let (mut cost, mut ttl, mut refund) = (None, None, None);
    while let Some(word) = args.option() {
        if is(word, "COST") {
            once(&mut cost, "COST", args.count("cost")?)?;
        } else if is(word, "TTL") {
            once(&mut ttl, "TTL", args.duration("ttl", 1)?)?;
        } else if is(word, "ONEXPIRE") {
            let value = args.next("ONEXPIRE")?;
            let refunds = is(value, "REFUND");
            if !refunds && !is(value, "KEEP") {
                return Err(Error::new("ERR ONEXPIRE must be KEEP or REFUND"));
            }
            once(&mut refund, "ONEXPIRE", refunds)?;
        } else {
            return Err(Error::unknown_option(word, "COST n, TTL ms or ONEXPIRE KEEP|REFUND"));
        }
    }
    let (Some(cost), Some(ttl)) = (cost, ttl) else {
        return Err(Error::new("ERR TB.HOLD needs COST n and TTL ms"));
    };
    let (six, id) = call.change::<TokenBucket, _>(1, |bucket, now, journal| {
        bucket.hold(limits, cost, ttl, refund.unwrap_or(false), now, journal)
    })??;
    stats::decision(Family::TokenBucket, id.is_some());
    let reply = call.reply();
    reply.array(7);
    six.iter().for_each(|n| reply.int(*n));
    match id {
        Some(id) => reply.int(i64::try_from(id).unwrap_or(i64::MAX)),
        None => reply.nil(),
    }
    Ok(())
}

fn settle(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let id = parse_int(args.next("hold")?).and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
    let actual = args.int("actual", 0, MAX_COUNT)?;
    let settled = call
        .change::<TokenBucket, _>(1, |bucket, now, journal| bucket.settle_hold(id, actual, now, journal))?;
    call.reply().ints(&settled?);
    Ok(())
}

impl From<NoSuchHold> for Error {
    fn from(_: NoSuchHold) -> Self {
        Self::new("ERR no such hold")
    }
}

fn info(call: &Call<'_>) -> Result<(), Error> {
    let info = call.read::<TokenBucket, _>(1, |bucket| bucket.and_then(|b| b.info(call.now())))?;
    let reply = call.reply();
    let Some(info) = info else {
        reply.nil();
        return Ok(());
    };
    let fields = [
        ("capacity", info.capacity),
        ("tokens", info.tokens),
        ("period", info.period),
        ("warmup", info.warmup),
        ("pinned", info.pinned),
        ("remaining", info.remaining),
        ("debt", info.debt),
        ("next_after", info.next_after),
        ("reset_after", info.reset_after),
        ("banned_for", info.banned_for),
        ("holds", info.holds),
        ("granted", info.granted),
        ("refused", info.refused),
    ];
    reply.int_map(&fields);
    Ok(())
}
