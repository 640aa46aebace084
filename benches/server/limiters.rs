//! Limiters on one hot key, beside INCR, SET, GET and a token bucket written in Lua.

use crate::Bench;
use crate::contest::{Figures, Row};
use crate::pipe::Load;

/// A token bucket as one writes it in Lua: the usual script, with the server's clock.
const SCRIPT: &str = "\
local capacity, tokens, period, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local state = redis.call('HMGET', KEYS[1], 'level', 'at')
local level, at = tonumber(state[1]), tonumber(state[2])
if level == nil then level, at = capacity, now end
level = math.min(capacity, level + math.max(0, now - at) * tokens / period)
local granted, retry = 0, 0
if level >= cost then
  level = level - cost
  granted = cost
else
  retry = math.ceil((cost - level) * period / tokens)
end
redis.call('HSET', KEYS[1], 'level', level, 'at', now)
redis.call('PEXPIRE', KEYS[1], math.ceil((capacity - level) * period / tokens) + 1000)
return {granted, capacity, math.floor(level), retry}";

pub fn run(bench: &mut Bench<'_>) {
    let server = bench.start();
    let mut load = Load::open(server.port());
    let sha = load.call(&["SCRIPT", "LOAD", SCRIPT]);
    let sha = crate::pipe::strings(&sha)
        .next()
        .map(|s| String::from_utf8_lossy(s).into_owned())
        .unwrap_or_default();
    load.call(&["TB.SET", "pinned", "1000000000", "1", "60000"]);
    load.call(&["TB.TAKE", "empty", "1", "1", "31622400000"]);
    load.call(&["LB.TAKE", "packed", "1", "1", "31622400000"]);

    let mut rows = vec![
        Row::same("SET", &["SET", "s", "value"], "+OK"),
        Row::same("SET PX", &["SET", "p", "value", "PX", "60000"], "+OK"),
        Row::same("GET", &["GET", "s"], "$5"),
        Row::same("TB.TAKE granted", &["TB.TAKE", "tb", "1000000000", "1", "60000"], "*6\r\n:1"),
        Row::same("TB.TAKE granted, pinned, no limits given", &["TB.TAKE", "pinned"], "*6\r\n:1"),
        Row::same("TB.TAKE refused", &["TB.TAKE", "empty", "1", "1", "31622400000"], "*6\r\n:0"),
        Row::same(
            "TB.TAKE 100 a second, offered far more",
            &["TB.TAKE", "real", "100", "100", "1000"],
            "*6\r\n:",
        ),
        Row::same("TB.PEEK", &["TB.PEEK", "tb", "1000000000", "1", "60000"], "*6\r\n:1"),
        Row::same("LB.TAKE granted", &["LB.TAKE", "lb", "1000000000", "1", "60000"], "*6\r\n:1"),
        Row::same("LB.TAKE refused", &["LB.TAKE", "packed", "1", "1", "31622400000"], "*6\r\n:0"),
        Row::same("CL.THROTTLE granted", &["CL.THROTTLE", "cl", "999999999", "1", "60"], "*5\r\n:0"),
        Row::same(
            "a token bucket in Lua",
            &["EVALSHA", &sha, "1", "lua", "1000000000", "1", "60000", "1"],
            "*4\r\n:1",
        ),
    ];
    if bench.has("SEM.ACQUIRE") {
        rows.push(Row::new("SEM.ACQUIRE + SEM.RELEASE", |load, n| {
            let acquire = crate::pipe::bytes_of(&["SEM.ACQUIRE", "sem", "1000"]);
            load.relay(
                n,
                1,
                |_, out| out.extend_from_slice(&acquire),
                |reply, out| {
                    let receipt = last_int(reply);
                    crate::pipe::words_into(out, &["SEM.RELEASE".as_bytes(), b"sem", receipt]);
                    1
                },
            );
        }));
    }
    if bench.has("GATE.PASS") {
        let set: Vec<&str> =
            "GATE.SET gate STAGE a TB 1000000000 1 60000 STAGE b LB 1000000000 1 60000".split(' ').collect();
        load.call(&set);
        rows.push(Row::same("GATE.PASS over TB + LB", &["GATE.PASS", "gate"], "*6\r\n:1"));
    }
    if bench.has("HOT.TAKE") {
        let subjects = bench.plan.million;
        load.call(&["HOT.SET", "hot", "10", "1", "60000", "MAXSUBJECTS", "2000000"]);
        load.call(&["HOT.SET", "hot1", "1000000000", "1", "60000"]);
        load.units(subjects, 1, hot_take);
        rows.push(Row::same("HOT.TAKE, one subject", &["HOT.TAKE", "hot1", "subject:1"], "*6\r\n:1"));
        rows.push(Row::new("HOT.TAKE, any of a million subjects", move |load, n| {
            load.units(n, 1, |i, out| hot_take(crate::keys::scattered(i, subjects), out));
        }));
    }
    let mut figures = Figures::default();
    figures.measure(&server, &bench.plan, rows);
    figures.print("limiters, one hot key", &["SET"]);

    let report = &mut bench.report;
    for row in ["TB.TAKE granted", "TB.TAKE refused", "LB.TAKE granted", "LB.TAKE refused"] {
        report.goal(format!("{row}, in INCR"), figures.in_incr(row), 1.8);
    }
    for (command, row, most) in [
        ("GATE.PASS", "GATE.PASS over TB + LB", 2.5),
        ("SEM.ACQUIRE", "SEM.ACQUIRE + SEM.RELEASE", 4.5),
        ("HOT.TAKE", "HOT.TAKE, any of a million subjects", 2.0),
    ] {
        if bench.commands.iter().any(|c| c.eq_ignore_ascii_case(command)) {
            report.goal(format!("{row}, in INCR"), figures.in_incr(row), most);
        }
    }
}

/// A take by one subject of many.
pub fn hot_take(i: u64, out: &mut Vec<u8>) {
    let subject = format!("user:{i:07}");
    crate::pipe::words_into(out, &["HOT.TAKE", "hot", &subject]);
}

/// The last integer of a reply.
fn last_int(reply: &[u8]) -> &[u8] {
    let text = reply.strip_suffix(b"\r\n").unwrap_or(reply);
    let at = text.iter().rposition(|b| *b == b':').expect("an integer");
    &text[at + 1..]
}
