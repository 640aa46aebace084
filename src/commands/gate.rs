//! `GATE.*`: several stages passed all or not at all. What the commands mean:
//! docs/commands/gate.md; how they decide: engine/gate.

use super::limits::limits;
use super::sem::receipts;
use crate::engine::family::Family;
use crate::engine::gate::{Config, Gate, MAX_NAME, MAX_STAGES};
use crate::engine::leaky_bucket::LeakyBucket;
use crate::engine::semaphore::DEFAULT_LEASE_MS;
use crate::engine::shared::pass::{Look, Pass};
use crate::engine::shared::waiting::Answer;
use crate::engine::time::{MS, ceil_ms};
use crate::engine::token_bucket::TokenBucket;
use crate::server::blocking::clients::{Asked, Decided, End, Wait};
use crate::server::command::args::{Args, is, once};
use crate::server::command::call::Call;
use crate::server::command::register::{Command, KeyUse, Keys, Registrar, commands};
use crate::server::error::Error;
use crate::server::key::handle::look;
use crate::server::key::open::Opened;
use crate::server::replication::fencing;
use crate::server::reply::limiter;
use crate::server::stats;
use crate::server::time::clock;
use crate::server::work::{serve, wait};
use std::rc::Rc;

pub fn register(r: &Registrar<'_>) -> Result<(), String> {
    let on = |name: &'static str, flags, keys, syntax, summary| Command {
        name,
        flags,
        syntax,
        keys,
        summary,
        complexity: match name {
            "gate.leave" => "O(log n) with n leases",
            _ => "O(s) with s stages",
        },
    };
    let (update, read) = (Keys::First(KeyUse::Update), Keys::First(KeyUse::Read));
    let write = Keys::First(KeyUse::Write);
    commands!(r;
        set => on(
            "gate.set",
            "write deny-oom",
            write,
            "key (STAGE name (TB capacity tokens period [WARMUP ms] | LB capacity tokens period | SEM limit [LEASE ms]))...",
            "Sets the stages of a gate; those whose name and kind stay keep their level.",
        ),
        pass => on(
            "gate.pass",
            "write deny-oom fast blocking",
            update,
            "key [COST n] [MAXWAIT ms] [BLOCK ms]",
            "Passes all stages of a gate, or costs nothing in any.",
        ),
        mpass => on(
            "gate.mpass",
            "write deny-oom",
            Keys::Counted(KeyUse::Update),
            "numkeys key... [COST n] [MAXWAIT ms]",
            "Passes several token buckets, leaky buckets and gates in one step, or costs nothing in any.",
        ),
        leave => on(
            "gate.leave",
            "write fast",
            write,
            "key receipt...",
            "Gives permits of a gate back before their lease ends.",
        ),
        peek => on(
            "gate.peek",
            "readonly fast",
            read,
            "key [COST n] [MAXWAIT ms]",
            "Says what GATE.PASS would say, without a receipt, and changes nothing.",
        ),
        info => on(
            "gate.info",
            "readonly",
            read,
            "key",
            "Tells a gate's stages, their configuration and what they refused.",
        ),
    );
    Ok(())
}

const NO_GATE: Error = Error::new("ERR no such gate: GATE.SET the key first");

fn set(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let mut stages: Vec<(&[u8], Config)> = Vec::new();
    while let Some(word) = args.option() {
        if !is(word, "STAGE") {
            return Err(Error::unknown_option(word, "STAGE name TB|LB|SEM ..."));
        }
        // At once: each name is compared with those before it.
        if stages.len() == MAX_STAGES {
            return Err(Error::range("stages", 1, MAX_STAGES as i64));
        }
        let name = args.next("stage name")?;
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(Error::length("stage name", 1, MAX_NAME));
        }
        if stages.iter().any(|(n, _)| *n == name) {
            return Err(Error::new("ERR a stage name is given twice"));
        }
        let config = stage(&mut args)?;
        let permits = |c: &Config| matches!(c, Config::Permits { .. });
        if permits(&config) && stages.iter().any(|(_, c)| permits(c)) {
            return Err(Error::new("ERR a gate may have at most one SEM stage"));
        }
        stages.push((name, config));
    }
    call.configure::<Gate>(c"gate.set", |gate, now, journal| gate.set(&stages, now, journal))
}

/// `TB capacity tokens period [WARMUP ms]`, `LB capacity tokens period` or `SEM limit [LEASE ms]`.
fn stage(args: &mut Args<'_>) -> Result<Config, Error> {
    let kind = args.next("stage kind")?;
    let config = if is(kind, "TB") {
        Config::Bucket { limits: limits(args)?, warmup: trailing(args, "WARMUP", 0)?.unwrap_or(0) }
    } else if is(kind, "LB") {
        Config::Leaky { limits: limits(args)? }
    } else if is(kind, "SEM") {
        let limit = args.count("limit")?;
        Config::Permits { limit, lease: trailing(args, "LEASE", 1)?.unwrap_or(DEFAULT_LEASE_MS) }
    } else {
        return Err(Error::new("ERR a stage must be TB, LB or SEM"));
    };
    Ok(config)
}

/// The one option a stage may end with.
fn trailing(args: &mut Args<'_>, name: &str, low: i64) -> Result<Option<i64>, Error> {
    let mut value = None;
    while args.peek().is_some_and(|word| is(word, name)) {
        args.next(name)?;
        once(&mut value, name, args.duration(&name.to_ascii_lowercase(), low)?)?;
    }
    Ok(value)
}

/// `[COST n] [MAXWAIT ms] [BLOCK ms]`, the last where the command knows it.
fn options(args: &mut Args<'_>, with_block: bool) -> Result<(i64, Option<i64>, Option<i64>), Error> {
    let (mut cost, mut max_wait, mut block) = (None, None, None);
    while let Some(word) = args.option() {
        if is(word, "COST") {
            once(&mut cost, "COST", args.count("cost")?)?;
        } else if is(word, "MAXWAIT") {
            once(&mut max_wait, "MAXWAIT", args.duration("maxwait", 0)?)?;
        } else if with_block && is(word, "BLOCK") {
            once(&mut block, "BLOCK", args.duration("block", 1)?)?;
        } else {
            let expected = if with_block { "COST n, MAXWAIT ms or BLOCK ms" } else { "COST n or MAXWAIT ms" };
            return Err(Error::unknown_option(word, expected));
        }
    }
    Ok((cost.unwrap_or(1), max_wait, block))
}

fn is_set(gate: Option<&Gate>) -> Result<&Gate, Error> {
    gate.filter(|g| g.is_set()).ok_or(NO_GATE)
}

fn pass(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let (cost, max_wait, block) = options(&mut args, true)?;
    if let Some(ms) = block {
        return pass_blocking(call, cost, max_wait, ms);
    }
    let pass = call.change_existing::<Gate, _>(1, |gate, now, journal| {
        is_set(Some(gate))?;
        Ok::<_, Error>(gate.pass(cost, max_wait, now, journal))
    })?;
    let pass = pass.ok_or(NO_GATE)??;
    stats::decision(Family::Gate, pass.granted > 0);
    limiter::pass(call.reply(), &pass);
    Ok(())
}

/// PASS with BLOCK: refused, the client waits in line until it passes or its time is over.
fn pass_blocking(call: &Call<'_>, cost: i64, max_wait: Option<i64>, ms: i64) -> Result<(), Error> {
    let until = call.now().saturating_add(ms * MS);
    wait::run(
        call.context(),
        call.argv(),
        Rc::new(move |ctx, name, asked| {
            if asked == Asked::Over {
                let peek = |gate: &Gate| is_set(Some(gate)).map(|g| g.peek(cost, max_wait, clock::now()));
                let mut pass = look(ctx, name, peek)??;
                if pass.granted > 0 {
                    // It could pass, and only writes are paused; but a refusal never says 0.
                    (pass.granted, pass.retry) = (0, 1);
                }
                stats::decision(Family::Gate, pass.granted > 0);
                return Ok(Decided::Told(Answer::Pass(Box::new(pass))));
            }
            let mut key = Opened::<Gate>::asked(ctx, name)?;
            is_set(key.existing())?;
            let now = key.now();
            let left = ceil_ms(until - now);
            let (gate, journal) = key.parts();
            let pass = match asked.ticket().filter(|_| left > 0) {
                Some(ticket) => gate.pass_or_wait(cost, max_wait, left, ticket, now, journal),
                None => Some(gate.pass(cost, max_wait, now, journal)),
            };
            let object = serve::finish(key);
            Ok(match pass {
                Some(pass) => {
                    stats::decision(Family::Gate, pass.granted > 0);
                    Decided::Told(Answer::Pass(Box::new(pass)))
                }
                None => Decided::Waits(Wait {
                    family: Family::Gate,
                    object: object.ok_or(Error::INTERNAL)?,
                    end: End::Clock(until),
                    booked: None,
                }),
            })
        }),
    )
}

/// A key of MPASS, whatever its family.
enum Target<'a> {
    Bucket(Opened<'a, TokenBucket>),
    Leaky(Opened<'a, LeakyBucket>),
    Gate(Opened<'a, Gate>),
}

impl<'a> Target<'a> {
    /// Opens the key at `index`; of another type than the three: WRONGTYPE.
    fn open(call: &Call<'a>, index: usize) -> Result<Self, Error> {
        match call.write::<TokenBucket>(index) {
            Ok(key) => return Ok(Self::Bucket(key)),
            Err(error) if error != Error::WRONG_TYPE => return Err(error),
            Err(_) => {}
        }
        match call.write::<LeakyBucket>(index) {
            Ok(key) => Ok(Self::Leaky(key)),
            Err(error) if error != Error::WRONG_TYPE => Err(error),
            Err(_) => call.write::<Gate>(index).map(Self::Gate),
        }
    }

    /// What its stages say of a pass.
    fn looks(&self, name: &[u8], cost: i64, max_wait: Option<i64>, now: i64) -> Option<Vec<Look>> {
        match self {
            Self::Bucket(key) => Some(vec![key.existing()?.look_for_pass(name, cost, now)?]),
            Self::Leaky(key) => Some(vec![key.existing()?.look_for_pass(name, cost, max_wait, now)?]),
            Self::Gate(key) => {
                let gate = key.existing().filter(|g| g.is_set())?;
                Some(gate.looks(Some(name), cost, max_wait, now))
            }
        }
    }

    fn charge(&mut self, cost: i64, pass: &Pass, now: i64) {
        match self {
            Self::Bucket(key) => {
                let (bucket, journal) = key.parts();
                bucket.charge_pass(cost, now, journal);
            }
            Self::Leaky(key) => {
                let (bucket, journal) = key.parts();
                bucket.charge_pass(cost, now, journal);
            }
            Self::Gate(key) => {
                let (gate, journal) = key.parts();
                gate.charge(cost, pass, now, now, journal);
            }
        }
    }

    fn refuse(&mut self, looks: &[Look], now: i64) {
        match self {
            Self::Bucket(key) => {
                let (bucket, journal) = key.parts();
                looks.iter().for_each(|look| bucket.refuse_pass(look, now, journal));
            }
            Self::Leaky(key) => {
                let (bucket, journal) = key.parts();
                bucket.refuse_pass(now, journal);
            }
            Self::Gate(key) => {
                let (gate, journal) = key.parts();
                gate.refuse(looks, now, journal);
            }
        }
    }

    fn finish(self) {
        match self {
            Self::Bucket(key) => drop(serve::finish(key)),
            Self::Leaky(key) => drop(serve::finish(key)),
            Self::Gate(key) => drop(serve::finish(key)),
        }
    }
}

/// The `n`-th key of MPASS cannot be judged by.
fn no_limits(n: usize) -> Error {
    Error::of(format!("ERR no limits: key {n} of GATE.MPASS must have been SET (TB.SET, LB.SET or GATE.SET)"))
}

fn mpass(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    let keys = call.counted_keys(&mut args)?;
    let (cost, max_wait, _) = options(&mut args, false)?;
    let mut names: Vec<&[u8]> = keys.clone().map(|i| call.arg(i)).collect();
    names.sort_unstable();
    if names.windows(2).any(|w| w[0] == w[1]) {
        return Err(Error::new("ERR a key is given twice"));
    }
    let now = call.now();
    let (mut targets, mut looks, mut failed) =
        (Vec::with_capacity(names.len()), Vec::<Vec<Look>>::with_capacity(names.len()), None);
    for index in keys.clone() {
        let looked = Target::open(call, index).and_then(|target| {
            let own = target.looks(call.arg(index), cost, max_wait, now);
            targets.push(target);
            own.ok_or_else(|| no_limits(index - keys.start + 1))
        });
        match looked {
            Ok(own) => looks.push(own),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    let all: Vec<Look> = looks.iter().flatten().cloned().collect();
    let mut pass = Pass::judge(&all, cost);
    if failed.is_none() {
        if pass.granted > 0 {
            if all.iter().any(Look::gives_permit) {
                pass.receipt = Some(fencing::draw(now));
            }
            targets.iter_mut().for_each(|target| target.charge(cost, &pass, now));
        } else {
            targets.iter_mut().zip(&looks).for_each(|(target, own)| target.refuse(own, now));
        }
    }
    targets.into_iter().for_each(Target::finish);
    if let Some(error) = failed {
        return Err(error);
    }
    stats::decision(Family::Gate, pass.granted > 0);
    limiter::pass(call.reply(), &pass);
    Ok(())
}

fn leave(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let receipts = receipts(&mut args)?;
    let results =
        call.change_existing::<Gate, _>(1, |gate, now, journal| gate.leave(&receipts, now, journal))?;
    call.reply().ints(&results.unwrap_or_else(|| vec![0; receipts.len()]));
    Ok(())
}

fn peek(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let (cost, max_wait, _) = options(&mut args, false)?;
    let pass =
        call.read::<Gate, _>(1, |gate| Ok::<_, Error>(is_set(gate)?.peek(cost, max_wait, call.now())))??;
    limiter::pass(call.reply(), &pass);
    Ok(())
}

fn info(call: &Call<'_>) -> Result<(), Error> {
    let info = call.read::<Gate, _>(1, |gate| gate.and_then(|g| g.info(call.now())))?;
    let reply = call.reply();
    let Some(info) = info else {
        reply.nil();
        return Ok(());
    };
    reply.map(5);
    reply.bulk(b"stages");
    reply.array(info.stages.len());
    for stage in &info.stages {
        let (kind, config): (&str, Vec<i64>) = match stage.config {
            Config::Bucket { limits, warmup } => {
                ("TB", vec![limits.capacity(), limits.tokens(), limits.period_ms(), warmup])
            }
            Config::Leaky { limits } => ("LB", vec![limits.capacity(), limits.tokens(), limits.period_ms()]),
            Config::Permits { limit, lease } => ("SEM", vec![limit, lease]),
        };
        reply.array(2 + stage.row.len() + config.len());
        reply.bulk(&stage.name);
        stage.row.iter().for_each(|n| reply.int(*n));
        reply.bulk(kind.as_bytes());
        config.iter().for_each(|n| reply.int(*n));
    }
    reply.int_fields(&[("waiting", info.waiting), ("granted", info.granted), ("refused", info.refused)]);
    reply.bulk(b"refused_by");
    reply.map(info.stages.len());
    for stage in &info.stages {
        reply.bulk(&stage.name);
        reply.int(stage.refused);
    }
    Ok(())
}
