//! What `RQ.GET`, `RQ.LIST` and `RQ.INFO` tell.

use crate::engine::bucket::Limits;
use crate::engine::queue::{Backoff, Info, OnFull, Pause, State, View};
use crate::engine::time::{MS, Micros, ceil_ms, future_ms, past_ms};
use crate::server::reply::writer::Reply;

pub fn state_name(state: State) -> &'static str {
    match state {
        State::Ready => "ready",
        State::Delayed => "delayed",
        State::InFlight => "inflight",
        State::Dead => "dead",
        State::Follower => "follower",
    }
}

/// Writes one field after the other.
#[derive(Clone, Copy)]
struct Fields<'a>(Reply<'a>);

impl Fields<'_> {
    fn name(self, name: &str) -> Self {
        self.0.bulk(name.as_bytes());
        self
    }

    fn int(self, name: &str, value: u64) {
        self.name(name).0.int(i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn text(self, name: &str, value: &str) {
        self.name(name).0.bulk(value.as_bytes());
    }

    fn bytes(self, name: &str, value: Option<&[u8]>) {
        match value {
            Some(value) => self.name(name).0.bulk(value),
            None => self.name(name).0.nil(),
        }
    }

    fn ms(self, name: &str, value: Option<i64>) {
        match value {
            Some(ms) => self.name(name).0.int(ms),
            None => self.name(name).0.nil(),
        }
    }
}

/// Everything known of a message, with or without its payload, as a map. Instants are unix ms:
/// those behind rounded down, those ahead rounded up.
pub fn message(reply: Reply<'_>, view: &View<'_>, payload: bool) {
    const FIELDS: usize = 17;
    let mut buffer = itoa::Buffer::new();
    let id = view.id.text(&mut buffer);
    let receipt = view.claim.map(|claim| [id, b"@", claim.to_string().as_bytes()].concat());
    reply.map(FIELDS);
    let f = Fields(reply);
    f.bytes("id", Some(id));
    f.text("state", state_name(view.state));
    f.bytes("payload", payload.then_some(view.payload));
    f.int("priority", u64::from(view.priority));
    f.bytes("group", view.group);
    f.int("deliveries", view.deliveries);
    f.int("failures", view.failures);
    f.int("timeouts", view.timeouts);
    f.ms("pushed_at", Some(past_ms(view.pushed_at)));
    f.ms("due_at", view.due_at.map(future_ms));
    f.ms("expires_at", view.expires_at.map(future_ms));
    f.bytes("receipt", receipt.as_deref());
    f.bytes("consumer", view.consumer);
    f.ms("claimed_at", view.claimed_at.map(past_ms));
    f.ms("deadline", view.deadline.map(future_ms));
    f.bytes("reason", view.reason);
    f.ms("died_at", view.died_at.map(past_ms));
}

/// The queue's settings, counts and totals, in the order of the contract.
pub fn info(reply: Reply<'_>, info: &Info<'_>, waiting: usize) {
    const FIELDS: usize = 14 + 2 + 10 + 15;
    reply.map(FIELDS);
    let f = Fields(reply);
    let (c, t) = (info.config, info.totals);
    let ms = |us: Micros| u64::try_from(us / MS).unwrap_or(0);
    f.int("lease", ms(c.lease));
    f.int("maxdeliveries", c.max_deliveries);
    f.text("backoff", &backoff(c.backoff));
    f.int("maxlen", c.max_len);
    f.int("maxbytes", c.max_bytes);
    f.text("onfull", if c.on_full == OnFull::DropOld { "DROPOLD" } else { "REJECT" });
    f.int("maxinflight", c.max_in_flight);
    f.int("groupinflight", c.group_in_flight);
    f.text("rate", &rate(c.rate));
    f.text("grouprate", &rate(c.group_rate));
    f.int("dedup", ms(c.dedup));
    f.int("maxdead", c.max_dead);
    f.int("ttl", ms(c.ttl));
    f.int("aging", ms(c.aging));
    f.ms("paused_push", Some(pause(info.paused_push)));
    f.ms("paused_claim", Some(pause(info.paused_claim)));
    f.int("ready", info.ready);
    f.int("delayed", info.delayed);
    f.int("inflight", info.in_flight);
    f.int("dead", info.dead);
    f.int("followers", info.followers);
    f.int("groups", info.groups);
    f.int("waiting", waiting as u64);
    f.int("bytes", info.bytes);
    f.ms("oldest_ready_age", Some(info.oldest_ready_age.map_or(-1, |age| age.max(0) / MS)));
    f.ms("next_event", Some(info.next_event.map_or(-1, ceil_ms)));
    for (name, value) in [
        ("total_pushed", t.pushed),
        ("total_delivered", t.delivered),
        ("total_acked", t.acked),
        ("total_nacked", t.nacked),
        ("total_timed_out", t.timed_out),
        ("total_requeued", t.requeued),
        ("total_dead", t.dead),
        ("total_redriven", t.redriven),
        ("total_rejected", info.rejected),
        ("total_dropped", t.dropped),
        ("total_expired", t.expired),
        ("total_deleted", t.deleted),
        ("total_replaced", t.replaced),
        ("total_moved_in", t.moved_in),
        ("total_moved_out", t.moved_out),
    ] {
        f.int(name, value);
    }
}

fn backoff(backoff: Backoff) -> String {
    match backoff {
        Backoff::None => "NONE".into(),
        Backoff::Fixed(wait) => format!("FIXED {}", wait / MS),
        Backoff::Exp { base, max } => format!("EXP {} {}", base / MS, max / MS),
    }
}

fn rate(rate: Option<Limits>) -> String {
    rate.map_or("NONE".into(), |r| format!("{} {} {}", r.tokens(), r.period_ms(), r.capacity()))
}

/// 0: not paused, -1: without end, else the instant at which it ends (unix ms).
fn pause(pause: Option<Pause>) -> i64 {
    match pause {
        None => 0,
        Some(Pause::Forever) => -1,
        Some(Pause::Until(at)) => future_ms(at),
    }
}
