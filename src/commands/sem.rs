//! `SEM.*`: permits that are leases. What the commands mean: docs/commands/sem.md; how they decide:
//! engine/semaphore.

use crate::engine::family::Family;
use crate::engine::semaphore::{Ask, DEFAULT_LEASE_MS, Holder, MAX_OWNER, Semaphore};
use crate::engine::shared::waiting::{Answer, Permit};
use crate::engine::time::{MS, ceil_ms};
use crate::server::blocking::clients::{Asked, Decided, End, Wait};
use crate::server::command::args::{Args, flag, is, once};
use crate::server::command::call::Call;
use crate::server::command::register::{Command, KeyUse, Keys, Registrar, commands};
use crate::server::error::Error;
use crate::server::key::handle::look;
use crate::server::key::open::Opened;
use crate::server::reply::limiter::{self, NO_LIMIT};
use crate::server::stats;
use crate::server::time::clock;
use crate::server::work::{serve, wait};
use std::rc::Rc;

pub fn register(r: &Registrar<'_>) -> Result<(), String> {
    let on = |name, flags, access, syntax, summary, complexity| Command {
        name,
        flags,
        syntax,
        keys: Keys::First(access),
        summary,
        complexity,
    };
    let log = "O(log n) with n leases";
    let asked = "O(log n) with n leases, O(log n + n / 256) when refused";
    commands!(r;
        acquire => on(
            "sem.acquire",
            "write deny-oom fast blocking",
            KeyUse::Update,
            "key [limit] [COUNT n] [LEASE ms] [OWNER name] [BLOCK ms]",
            "Takes permits under a lease, or says when they will be free.",
            asked,
        ),
        release => on(
            "sem.release",
            "write fast",
            KeyUse::Write,
            "key receipt...",
            "Gives permits back before their lease ends.",
            log,
        ),
        renew => on(
            "sem.renew",
            "write fast",
            KeyUse::Write,
            "key ms receipt...",
            "Moves the ends of leases that still run to now + ms.",
            log,
        ),
        peek => on(
            "sem.peek",
            "readonly fast",
            KeyUse::Read,
            "key [limit] [COUNT n]",
            "Says what SEM.ACQUIRE would say, without a receipt, and changes nothing.",
            asked,
        ),
        set => on(
            "sem.set",
            "write deny-oom fast",
            KeyUse::Write,
            "key limit [LEASE ms]",
            "Pins a semaphore's limit and default lease: a limit that callers give inline is then ignored.",
            "O(1), more when waiting clients can be served",
        ),
        info => on(
            "sem.info",
            "readonly",
            KeyUse::Read,
            "key [HOLDERS]",
            "Tells a semaphore's limit, permits, counts and, if asked, its holders.",
            "O(1), O(n) with HOLDERS",
        ),
        holders => on(
            "sem.holders",
            "readonly",
            KeyUse::Read,
            "key [OWNER name] [CURSOR cursor] [COUNT n]",
            "Lists who holds permits, page by page.",
            "O(log n + m) for a page of m holders, O(n) with OWNER",
        ),
    );
    Ok(())
}

/// `[limit]`: there if the next argument is none of the command's keywords.
fn inline_limit(args: &mut Args<'_>, keywords: &[&str]) -> Result<Option<i64>, Error> {
    match args.peek() {
        Some(word) if !keywords.iter().any(|k| is(word, k)) => args.count("limit").map(Some),
        _ => Ok(None),
    }
}

fn acquire(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let limit = inline_limit(&mut args, &["COUNT", "LEASE", "OWNER", "BLOCK"])?;
    let (mut count, mut lease_ms, mut owner, mut block) = (None, None, None, None);
    while let Some(word) = args.option() {
        if is(word, "COUNT") {
            once(&mut count, "COUNT", args.count("count")?)?;
        } else if is(word, "LEASE") {
            once(&mut lease_ms, "LEASE", args.duration("lease", 1)?)?;
        } else if is(word, "OWNER") {
            let name = args.next("owner")?;
            if name.len() > MAX_OWNER {
                return Err(Error::length("owner", 0, MAX_OWNER));
            }
            once(&mut owner, "OWNER", name)?;
        } else if is(word, "BLOCK") {
            once(&mut block, "BLOCK", args.duration("block", 1)?)?;
        } else {
            return Err(Error::unknown_option(word, "COUNT n, LEASE ms, OWNER name or BLOCK ms"));
        }
    }
    let ask = Ask { limit, count: count.unwrap_or(1), lease_ms, owner: owner.unwrap_or_default() };
    if let Some(ms) = block {
        return acquire_blocking(call, ask, ms);
    }
    let permit =
        call.change::<Semaphore, _>(1, |semaphore, now, journal| semaphore.acquire(ask, now, journal))?;
    let permit = permit.map_err(|_| NO_LIMIT)?;
    count_decision(&permit);
    limiter::permit(call.reply(), &permit);
    Ok(())
}

fn count_decision(permit: &Permit) {
    stats::decision(Family::Semaphore, permit.granted > 0);
}

/// ACQUIRE with BLOCK: refused, the client waits in line until it is served or its time is over.
fn acquire_blocking(call: &Call<'_>, ask: Ask<'_>, ms: i64) -> Result<(), Error> {
    let owner: Box<[u8]> = ask.owner.into();
    let (limit, count, lease_ms) = (ask.limit, ask.count, ask.lease_ms);
    let until = call.now().saturating_add(ms * MS);
    wait::run(
        call.context(),
        call.argv(),
        Rc::new(move |ctx, name, asked| {
            if asked == Asked::Over {
                let peek = |semaphore: &Semaphore| semaphore.peek(limit, count, clock::now());
                let permit = refused(look(ctx, name, peek)?.map_err(|_| NO_LIMIT)?);
                count_decision(&permit);
                return Ok(Decided::Told(Answer::Permit(permit)));
            }
            let ask = Ask { limit, count, lease_ms, owner: &owner };
            let mut key = Opened::<Semaphore>::asked(ctx, name)?;
            let now = key.now();
            let left = ceil_ms(until - now);
            let (semaphore, journal) = key.parts();
            let permit = match asked.ticket().filter(|_| left > 0) {
                Some(ticket) => semaphore.acquire_or_wait(ask, left, ticket, now, journal),
                None => semaphore.acquire(ask, now, journal).map(Some),
            };
            let object = serve::finish(key);
            Ok(match permit.map_err(|_| NO_LIMIT)? {
                Some(permit) => {
                    count_decision(&permit);
                    Decided::Told(Answer::Permit(permit))
                }
                None => Decided::Waits(Wait {
                    family: Family::Semaphore,
                    object: object.ok_or(Error::INTERNAL)?,
                    end: End::Clock(until),
                    booked: None,
                }),
            })
        }),
    )
}

/// What a client is told whose time was cut short. Permits may be free and only writes be paused,
/// but a refusal never says 0.
fn refused(permit: Permit) -> Permit {
    let Permit { granted, limit, free, retry, .. } = permit;
    let retry = if granted > 0 { 1 } else { retry };
    Permit { granted: 0, limit, free: free + granted, retry, receipt: None }
}

/// Receipts as integers, from here to the end.
pub(super) fn receipts(args: &mut Args<'_>) -> Result<Vec<u64>, Error> {
    let mut all = Vec::with_capacity(args.left());
    while args.more() {
        all.push(args.int("receipt", 1, i64::MAX)?.unsigned_abs());
    }
    Ok(all)
}

fn release(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let receipts = receipts(&mut args)?;
    let results = call.change_existing::<Semaphore, _>(1, |semaphore, now, journal| {
        semaphore.release(&receipts, now, journal)
    })?;
    call.reply().ints(&results.unwrap_or_else(|| vec![0; receipts.len()]));
    Ok(())
}

fn renew(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let ms = args.duration("ms", 1)?;
    let receipts = receipts(&mut args)?;
    let results = call.change_existing::<Semaphore, _>(1, |semaphore, now, journal| {
        semaphore.renew(ms, &receipts, now, journal)
    })?;
    call.reply().ints(&results.unwrap_or_else(|| vec![0; receipts.len()]));
    Ok(())
}

fn peek(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let limit = inline_limit(&mut args, &["COUNT"])?;
    let mut count = None;
    while let Some(word) = args.option() {
        if is(word, "COUNT") {
            once(&mut count, "COUNT", args.count("count")?)?;
        } else {
            return Err(Error::unknown_option(word, "COUNT n"));
        }
    }
    let count = count.unwrap_or(1);
    let permit = call.look::<Semaphore, _>(|semaphore, now| semaphore.peek(limit, count, now))?;
    limiter::permit(call.reply(), &permit.map_err(|_| NO_LIMIT)?);
    Ok(())
}

fn set(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let limit = args.count("limit")?;
    let mut lease = None;
    while let Some(word) = args.option() {
        if is(word, "LEASE") {
            once(&mut lease, "LEASE", args.duration("lease", 1)?)?;
        } else {
            return Err(Error::unknown_option(word, "LEASE ms"));
        }
    }
    call.configure::<Semaphore>(c"sem.set", |semaphore, now, journal| {
        semaphore.set(limit, lease.unwrap_or(DEFAULT_LEASE_MS), now, journal)
    })
}

fn info(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let mut holders = false;
    while let Some(word) = args.option() {
        if is(word, "HOLDERS") {
            flag(&mut holders, "HOLDERS")?;
        } else {
            return Err(Error::unknown_option(word, "HOLDERS"));
        }
    }
    let reply = call.reply();
    call.read::<Semaphore, _>(1, |semaphore| {
        let Some((semaphore, info)) = semaphore.and_then(|s| Some((s, s.info(call.now())?))) else {
            reply.nil();
            return;
        };
        let fields = [
            ("limit", info.limit),
            ("lease", info.lease),
            ("pinned", info.pinned),
            ("held", info.held),
            ("free", info.free),
            ("waiting", info.waiting),
            ("next_end", info.next_end),
            ("granted", info.granted),
            ("refused", info.refused),
            ("timed_out", info.timed_out),
        ];
        if !holders {
            reply.int_map(&fields);
            return;
        }
        reply.map(fields.len() + 1);
        reply.int_fields(&fields);
        reply.bulk(b"holders");
        let list: Vec<_> = semaphore.holders(call.now()).collect();
        reply.array(list.len());
        for holder in list {
            reply.array(4);
            reply.int(i64::try_from(holder.receipt).unwrap_or(i64::MAX));
            reply.int(holder.count);
            reply.bulk(holder.owner);
            reply.int(holder.left_ms);
        }
    })
}

/// Holders on a page, if nobody says how many.
const PAGE: i64 = 10;
/// The most on a page.
const MOST_ON_PAGE: i64 = 10_000;

/// The cursor is the last receipt that was told: it survives all changes in between.
fn holders(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let (mut owner, mut cursor, mut count) = (None, None, None);
    while let Some(word) = args.option() {
        if is(word, "OWNER") {
            once(&mut owner, "OWNER", args.label("owner")?)?;
        } else if is(word, "CURSOR") {
            once(&mut cursor, "CURSOR", args.int("cursor", 0, i64::MAX)?)?;
        } else if is(word, "COUNT") {
            once(&mut count, "COUNT", args.int("count", 1, MOST_ON_PAGE)?)?;
        } else {
            return Err(Error::unknown_option(word, "OWNER name, CURSOR cursor or COUNT n"));
        }
    }
    let above = cursor.unwrap_or(0).unsigned_abs();
    let count = usize::try_from(count.unwrap_or(PAGE)).unwrap_or(1);
    let reply = call.reply();
    call.read::<Semaphore, _>(1, |semaphore| {
        let asked = |holder: &Holder<'_>| owner.is_none_or(|owner| holder.owner == owner);
        let held = semaphore.into_iter().flat_map(|s| s.holders_above(above, call.now())).filter(asked);
        let mut page: Vec<Holder<'_>> = held.take(count + 1).collect();
        let more = page.len() > count;
        page.truncate(count);
        let last = page.last().filter(|_| more).map_or(0, |holder| holder.receipt);
        reply.array(2);
        reply.bulk(itoa::Buffer::new().format(last).as_bytes());
        reply.array(page.len());
        for Holder { receipt, count, owner, left_ms } in page {
            reply.array(4);
            reply.int(i64::try_from(receipt).unwrap_or(i64::MAX));
            reply.int(count);
            if owner.is_empty() {
                reply.nil()
            } else {
                reply.bulk(owner)
            }
            reply.int(left_ms);
        }
    })
}
