//! `HOT.*`: one resource limited per subject. What the commands mean: docs/commands/hot.md; how
//! they decide: engine/hot.

use super::limits::limits;
use crate::engine::family::Family;
use crate::engine::hot::{DEFAULT_MAX, Hot, MAX_NAME, NoRule};
use crate::server::command::args::{Args, flag, is, once};
use crate::server::command::call::Call;
use crate::server::command::register::{Command, KeyUse, Keys, Registrar, commands};
use crate::server::error::Error;
use crate::server::stats;

pub fn register(r: &Registrar<'_>) -> Result<(), String> {
    let on = |name, flags, access, syntax, summary, complexity| Command {
        name,
        flags,
        syntax,
        keys: Keys::First(access),
        summary,
        complexity,
    };
    let log = "O(log n) with n subjects";
    commands!(r;
        set => on(
            "hot.set",
            "write",
            KeyUse::Write,
            "key capacity tokens period [MAXSUBJECTS n]",
            "Sets the rule that limits each subject of a resource; subjects keep their tokens.",
            "O(1) until it is in force; what it makes of n subjects is done in pieces",
        ),
        except => on(
            "hot.except",
            "write fast",
            KeyUse::Write,
            "key subject (capacity tokens period | DEL)",
            "Gives a subject limits of its own, or takes them back.",
            log,
        ),
        take => on(
            "hot.take",
            "write deny-oom fast",
            KeyUse::Update,
            "key subject [COST n] [ATMOST]",
            "Takes tokens from a subject's bucket, or says when they will be there.",
            log,
        ),
        peek => on(
            "hot.peek",
            "readonly fast",
            KeyUse::Read,
            "key subject [COST n]",
            "Says what HOT.TAKE would say, and changes nothing.",
            log,
        ),
        top => on(
            "hot.top",
            "readonly",
            KeyUse::Read,
            "key [COUNT n]",
            "Tells the subjects asked for most of late, with how many calls were granted and refused.",
            "O(k log k) with k tracked subjects",
        ),
        info => on(
            "hot.info",
            "readonly",
            KeyUse::Read,
            "key",
            "Tells a resource's rule, its subjects and counts.",
            "O(1); O(n) with n subjects that have become full of late, at most 10000",
        ),
    );
    Ok(())
}

const NO_RULE: Error = Error::new("ERR no such rule: HOT.SET the key first");

impl From<NoRule> for Error {
    fn from(_: NoRule) -> Self {
        NO_RULE
    }
}

fn subject<'a>(args: &mut Args<'a>) -> Result<&'a [u8], Error> {
    let subject = args.next("subject")?;
    if subject.is_empty() || subject.len() > MAX_NAME {
        return Err(Error::length("subject", 1, MAX_NAME));
    }
    Ok(subject)
}

fn set(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let limits = limits(&mut args)?;
    let mut most = None;
    while let Some(word) = args.option() {
        if is(word, "MAXSUBJECTS") {
            once(&mut most, "MAXSUBJECTS", args.count("maxsubjects")?)?;
        } else {
            return Err(Error::unknown_option(word, "MAXSUBJECTS n"));
        }
    }
    // A rule takes as much room as the one it replaces.
    call.may_create::<Hot>(1)?;
    call.configure::<Hot>(c"hot.set", |hot, now, journal| {
        hot.set(limits, most.unwrap_or(DEFAULT_MAX), now, journal)
    })
}

fn except(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let subject = subject(&mut args)?;
    if args.left() == 1 && args.peek().is_some_and(|word| is(word, "DEL")) {
        let removed =
            call.change::<Hot, _>(1, |hot, now, journal| hot.except_no_more(subject, now, journal))??;
        call.reply().int(removed);
        return Ok(());
    }
    if args.left() != 3 {
        return Err(Error::new("ERR syntax error: expected capacity tokens period, or DEL"));
    }
    let limits = limits(&mut args)?;
    call.may_grow()?;
    call.change::<Hot, _>(1, |hot, now, journal| hot.except(subject, limits, now, journal))??;
    call.reply().ok();
    Ok(())
}

/// `[COST n] [ATMOST]`, the last where the command knows it.
fn options(args: &mut Args<'_>, with_at_most: bool) -> Result<(i64, bool), Error> {
    let (mut cost, mut at_most) = (None, false);
    while let Some(word) = args.option() {
        if is(word, "COST") {
            once(&mut cost, "COST", args.count("cost")?)?;
        } else if with_at_most && is(word, "ATMOST") {
            flag(&mut at_most, "ATMOST")?;
        } else {
            return Err(Error::unknown_option(
                word,
                if with_at_most { "COST n or ATMOST" } else { "COST n" },
            ));
        }
    }
    Ok((cost.unwrap_or(1), at_most))
}

fn take(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let subject = subject(&mut args)?;
    let (cost, at_most) = options(&mut args, true)?;
    let take = |hot: &mut Hot, now, journal: &mut _| hot.take(subject, cost, at_most, now, journal);
    let six = call.change_existing(1, take)?.ok_or(NO_RULE)??;
    stats::decision(Family::Hot, six[0] > 0);
    call.reply().ints(&six);
    Ok(())
}

fn peek(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let subject = subject(&mut args)?;
    let (cost, _) = options(&mut args, false)?;
    let six = call.read::<Hot, _>(1, |hot| hot.ok_or(NoRule)?.peek(subject, cost, call.now()))??;
    call.reply().ints(&six);
    Ok(())
}

fn top(call: &Call<'_>) -> Result<(), Error> {
    const SHOWN: i64 = 10;
    let mut args = call.args();
    args.next("key")?;
    let mut count = None;
    while let Some(word) = args.option() {
        if is(word, "COUNT") {
            once(&mut count, "COUNT", args.count("count")?)?;
        } else {
            return Err(Error::unknown_option(word, "COUNT n"));
        }
    }
    let most = usize::try_from(count.unwrap_or(SHOWN)).unwrap_or(usize::MAX);
    let reply = call.reply();
    call.read::<Hot, _>(1, |hot| {
        let hottest = hot.ok_or(NoRule)?.top(most, call.now())?;
        reply.array(hottest.len());
        for subject in hottest {
            reply.array(3);
            reply.bulk(subject.subject);
            reply.int(subject.granted);
            reply.int(subject.refused);
        }
        Ok(())
    })?
}

fn info(call: &Call<'_>) -> Result<(), Error> {
    let info = call.read::<Hot, _>(1, |hot| hot.and_then(|h| h.info(call.now())))?;
    let reply = call.reply();
    let Some(info) = info else {
        reply.nil();
        return Ok(());
    };
    reply.int_map(&[
        ("capacity", info.capacity),
        ("tokens", info.tokens),
        ("period", info.period),
        ("maxsubjects", info.maxsubjects),
        ("subjects", info.subjects),
        ("exceptions", info.exceptions),
        ("forgotten", info.forgotten),
        ("granted", info.granted),
        ("refused", info.refused),
        ("bytes", info.bytes),
    ]);
    Ok(())
}
