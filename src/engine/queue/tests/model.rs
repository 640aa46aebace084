//! A queue as docs/commands/rq.md says it, without any index: every question is a scan of plain
//! lists. It shares nothing with the queue under test but the types of arguments and answers.

use super::super::*;
use crate::engine::bucket::Limits;
use std::collections::BTreeMap;

type Bytes = Vec<u8>;
const NEVER: i64 = i64::MAX;

#[derive(Debug, Clone)]
pub struct TwinBucket {
    limits: Limits,
    level: i128,
    at: i64,
}

impl TwinBucket {
    fn new(limits: Limits, now: i64) -> Self {
        Self { limits, level: i128::from(limits.capacity()) * i128::from(limits.period_ms()) * 1000, at: now }
    }

    fn unit(&self) -> i128 {
        i128::from(self.limits.period_ms()) * 1000
    }

    fn full(&self) -> i128 {
        self.unit() * i128::from(self.limits.capacity())
    }

    fn bring(&mut self, now: i64) {
        if self.level < self.full() {
            let gained = i128::from(now - self.at) * i128::from(self.limits.tokens());
            self.level = (self.level + gained).clamp(0, self.full());
        }
        self.at = now;
    }

    fn has_one(&self, now: i64) -> bool {
        let mut then = self.clone();
        then.bring(now);
        then.level >= then.unit()
    }

    fn change(&mut self, limits: Limits, now: i64) {
        self.bring(now);
        let (full, old) = (self.level == self.full(), self.unit());
        self.limits = limits;
        self.level = if full { self.full() } else { (self.level * self.unit() / old).min(self.full()) };
    }
}

#[derive(Debug, Clone)]
pub struct TwinMessage {
    uid: u64,
    pub id: Bytes,
    payload: Bytes,
    priority: u8,
    group: Option<Bytes>,
    own: (Option<i64>, Option<i64>, Option<u64>),
    pushed_at: i64,
    ttl_base: i64,
    state: State,
    ready_at: i64,
    seq: u64,
    due: Option<i64>,
    retry: bool,
    pub flight: Option<(u64, i64, i64)>,
    consumer: Option<Bytes>,
    reason: Option<Bytes>,
    died_at: Option<i64>,
    counters: (u64, u64, u64),
    follower: Option<Box<TwinMessage>>,
}

/// A view without borrows, to compare.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    texts: (Bytes, Bytes, Option<Bytes>, Option<Bytes>, Option<Bytes>),
    state: State,
    numbers: [i128; 5],
    instants: [Option<i64>; 5],
    claim: Option<u64>,
}

pub fn bytes_of(id: &Id) -> Bytes {
    id.text(&mut itoa::Buffer::new()).to_vec()
}

impl From<View<'_>> for Told {
    fn from(v: View<'_>) -> Self {
        let own = |b: Option<&[u8]>| b.map(<[u8]>::to_vec);
        Told {
            texts: (bytes_of(v.id), v.payload.to_vec(), own(v.group), own(v.consumer), own(v.reason)),
            state: v.state,
            numbers: [
                v.priority.into(),
                v.deliveries.into(),
                v.failures.into(),
                v.timeouts.into(),
                v.pushed_at.into(),
            ],
            instants: [v.due_at, v.expires_at, v.claimed_at, v.deadline, v.died_at],
            claim: v.claim,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Model {
    pub now: i64,
    pub cfg: Config,
    pub live: Vec<TwinMessage>,
    pub dead: Vec<TwinMessage>,
    next_id: u64,
    counter: u64,
    turns: BTreeMap<Option<Bytes>, u64>,
    windows: BTreeMap<Bytes, (i64, u64)>,
    bucket: Option<TwinBucket>,
    group_buckets: BTreeMap<Bytes, TwinBucket>,
    pauses: BTreeMap<(Option<Bytes>, bool), i64>,
    pub totals: Totals,
    pub rejected: u64,
}

impl Model {
    pub fn new() -> Self {
        Self {
            now: 0,
            cfg: Config::default(),
            live: vec![],
            dead: vec![],
            next_id: 1,
            counter: 0,
            turns: BTreeMap::new(),
            windows: BTreeMap::new(),
            bucket: None,
            group_buckets: BTreeMap::new(),
            pauses: BTreeMap::new(),
            totals: Totals::default(),
            rejected: 0,
        }
    }

    fn tick(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    fn live_at(&self, id: &[u8]) -> Option<usize> {
        self.live.iter().position(|m| m.id == id)
    }

    fn dead_at(&self, id: &[u8]) -> Option<usize> {
        self.dead.iter().rposition(|m| m.id == id)
    }

    pub fn bytes(&self) -> u64 {
        self.live.iter().map(weight).sum()
    }

    fn expires(&self, m: &TwinMessage) -> i64 {
        match m.own.0.unwrap_or(self.cfg.ttl) {
            0 => NEVER,
            ttl => m.ttl_base + ttl,
        }
    }

    fn paused(&self, group: Option<&[u8]>, push: bool) -> bool {
        let until = |g: Option<Bytes>| self.pauses.get(&(g, push)).copied().unwrap_or(0);
        until(None) > self.now || group.is_some() && until(group.map(<[u8]>::to_vec)) > self.now
    }

    fn busy(&self, group: &Option<Bytes>) -> u64 {
        let counts = |m: &&TwinMessage| {
            m.group == *group && (m.state == State::InFlight || m.state == State::Delayed && m.retry)
        };
        self.live.iter().filter(counts).count() as u64
    }

    fn rank(&self, m: &TwinMessage) -> (i128, i128, u64) {
        let (p, at) = (i128::from(m.priority), i128::from(m.ready_at));
        if self.cfg.aging > 0 { (at - p * i128::from(self.cfg.aging), -p, m.seq) } else { (-p, at, m.seq) }
    }

    fn enter(&mut self, m: &mut TwinMessage, due: Option<i64>, new_place: bool, retry: bool) {
        if !self.turns.contains_key(&m.group) {
            let turn = self.tick();
            self.turns.insert(m.group.clone(), turn);
        }
        let when = due.unwrap_or(self.now).max(self.now);
        if new_place {
            (m.ready_at, m.seq) = (when, self.tick());
        }
        m.flight = None;
        let delayed = when > self.now;
        m.state = if delayed { State::Delayed } else { State::Ready };
        m.due = delayed.then_some(when);
        m.retry = delayed && retry;
    }

    /// The message leaves the live ones; what follows it takes its turn, or goes with it.
    fn leave(&mut self, at: usize, release: bool) -> (TwinMessage, u64) {
        let mut m = self.live.remove(at);
        (m.flight, m.due, m.retry) = (None, None, false);
        let Some(follower) = m.follower.take() else { return (m, 0) };
        if !release {
            return (m, 1);
        }
        let mut f = *follower;
        if self.expires(&f) <= self.now {
            self.totals.expired += 1;
        } else {
            let due = f.due;
            self.enter(&mut f, due, true, false);
            self.live.push(f);
        }
        (m, 0)
    }

    fn forget_groups(&mut self) {
        let live = &self.live;
        self.turns.retain(|g, _| live.iter().any(|m| m.group == *g));
    }

    fn die(&mut self, at: usize, reason: &[u8]) {
        let (mut m, _) = self.leave(at, true);
        (m.state, m.reason, m.died_at) = (State::Dead, Some(reason.to_vec()), Some(self.now));
        self.dead.push(m);
        self.totals.dead += 1;
        self.trim_dead();
    }

    fn trim_dead(&mut self) {
        while self.cfg.max_dead > 0 && self.dead.len() as u64 > self.cfg.max_dead {
            self.dead.remove(0);
            self.totals.dropped += 1;
        }
    }

    fn come_back(
        &mut self,
        at: usize,
        counted: bool,
        delay: Option<i64>,
        back: bool,
        reason: Option<&[u8]>,
    ) -> bool {
        if let Some(reason) = reason {
            self.live[at].reason = Some(reason.to_vec());
        }
        let m = &self.live[at];
        let n = m.counters.1 + m.counters.2;
        let limit = m.own.2.unwrap_or(self.cfg.max_deliveries);
        if counted && limit > 0 && n >= limit {
            let reason = m.reason.clone().unwrap();
            self.die(at, &reason);
            return true;
        }
        if self.expires(m) <= self.now {
            self.leave(at, true);
            self.totals.expired += 1;
            return false;
        }
        let delay = delay.unwrap_or(match self.cfg.backoff {
            _ if !counted => 0,
            Backoff::None => 0,
            Backoff::Fixed(d) => d,
            Backoff::Exp { base, max } => (0..n - 1).fold(base, |d, _| (d * 2).min(max)).min(max),
        });
        let mut m = self.live.remove(at);
        let due = (delay > 0).then(|| self.now + delay);
        self.enter(&mut m, due, back, true);
        self.live.insert(at, m);
        false
    }

    pub fn events(&self) -> Vec<i64> {
        let mut out = vec![];
        for m in &self.live {
            if let Some((.., deadline)) = m.flight {
                out.push(deadline);
            } else {
                out.extend(m.due);
                out.push(self.expires(m));
            }
        }
        out.extend(self.pauses.values());
        out.retain(|t| *t != NEVER);
        out
    }

    pub fn advance(&mut self, floor: i64, to: i64) {
        for b in self.bucket.iter_mut().chain(self.group_buckets.values_mut()).filter(|b| b.at > to) {
            b.bring(to);
        }
        while let Some(t) = self.events().into_iter().min().filter(|t| *t <= to) {
            self.now = t.max(floor);
            let mut ended: Vec<(u64, Bytes)> = self
                .live
                .iter()
                .filter_map(|m| m.flight.filter(|f| f.2 <= t).map(|f| (f.0, m.id.clone())))
                .collect();
            ended.sort();
            for (_, id) in ended {
                let at = self.live_at(&id).unwrap();
                self.live[at].counters.2 += 1;
                self.totals.timed_out += 1;
                self.come_back(at, true, None, false, Some(b"timeout"));
            }
            for m in self.live.iter_mut().filter(|m| m.state == State::Delayed && m.due.unwrap() <= t) {
                (m.state, m.due, m.retry) = (State::Ready, None, false);
            }
            let mut over: Vec<(i64, u64)> = self
                .live
                .iter()
                .filter(|m| m.state != State::InFlight && self.expires(m) <= t)
                .map(|m| (self.expires(m), m.seq))
                .collect();
            over.sort();
            for (_, seq) in over {
                let at = self.live.iter().position(|m| m.seq == seq && m.state != State::InFlight).unwrap();
                self.leave(at, true);
                self.totals.expired += 1;
            }
            self.pauses.retain(|_, until| *until > t);
            self.forget_groups();
        }
        self.windows.retain(|_, w| w.0 > to);
        self.group_buckets.retain(|_, b| {
            let mut then = b.clone();
            then.bring(to);
            then.level < then.full()
        });
        self.now = to;
    }

    pub fn push(
        &mut self,
        payloads: &[&[u8]],
        id: Option<&[u8]>,
        o: &PushOptions<'_>,
    ) -> Result<Option<Vec<Bytes>>, Refusal> {
        let asked = payloads.len() as u64;
        if self.paused(o.group, true) {
            self.rejected += asked;
            return Err(Refusal::Paused);
        }
        let old = id.and_then(|i| self.live_at(i));
        let mut follow = false;
        if let Some(id) = id {
            let taken = match old.map(|at| self.live[at].state) {
                None => self.windows.get(id).is_some_and(|w| w.0 > self.now),
                Some(State::InFlight) => {
                    follow = o.on_dup == OnDup::KeepLast;
                    !follow
                }
                Some(_) => o.on_dup == OnDup::Reject,
            };
            if taken {
                self.rejected += asked;
                return Ok(None);
            }
        }
        let mut size: i128 = payloads.iter().map(|p| p.len() as i128).sum();
        if let Some(at) = old {
            let m = &self.live[at];
            size -= i128::from(weight(m)) - if follow { m.payload.len() as i128 } else { 0 };
        }
        let more = if old.is_some() { 0 } else { asked };
        self.make_room(more, size, old.map(|at| self.live[at].uid), asked)?;
        let mut ids = vec![];
        for payload in payloads {
            let name = match id {
                Some(id) => id.to_vec(),
                None => loop {
                    let name = self.next_id.to_string().into_bytes();
                    self.next_id += 1;
                    let window = self.windows.get(&name).is_some_and(|w| w.0 > self.now);
                    if self.live_at(&name).is_none() && self.dead_at(&name).is_none() && !window {
                        break name;
                    }
                },
            };
            let mut m = TwinMessage {
                uid: self.tick(),
                id: name.clone(),
                payload: payload.to_vec(),
                priority: o.priority,
                group: o.group.map(<[u8]>::to_vec),
                own: (o.ttl, o.lease, o.max_deliveries),
                pushed_at: self.now,
                ttl_base: self.now,
                state: State::Follower,
                ready_at: 0,
                seq: 0,
                due: None,
                retry: false,
                flight: None,
                consumer: None,
                reason: None,
                died_at: None,
                counters: (0, 0, 0),
                follower: None,
            };
            let uid = m.uid;
            let old = old.and_then(|_| self.live_at(&name));
            match old {
                Some(at) if follow => {
                    m.due = o.due;
                    self.totals.replaced += u64::from(self.live[at].follower.is_some());
                    self.live[at].follower = Some(Box::new(m));
                }
                Some(at) => {
                    let old = self.live.remove(at);
                    self.totals.replaced += 1 + u64::from(old.follower.is_some());
                    if old.state == State::Ready && o.due.is_none_or(|d| d <= self.now) {
                        (m.ready_at, m.seq) = (old.ready_at, old.seq);
                        self.enter(&mut m, None, false, false);
                    } else {
                        self.enter(&mut m, o.due, true, false);
                    }
                    self.live.insert(at, m);
                }
                None => {
                    self.enter(&mut m, o.due, true, false);
                    self.live.push(m);
                }
            }
            if id.is_some() {
                match o.dedup.unwrap_or(self.cfg.dedup) {
                    0 => {
                        if let Some(w) = self.windows.get_mut(&name) {
                            w.1 = uid;
                        }
                    }
                    window => {
                        self.windows.insert(name.clone(), (self.now + window, uid));
                    }
                }
            }
            self.totals.pushed += 1;
            ids.push(name);
        }
        self.forget_groups();
        Ok(Some(ids))
    }

    fn make_room(&mut self, more: u64, size: i128, keep: Option<u64>, asked: u64) -> Result<(), Refusal> {
        let (len, bytes) = (self.cfg.max_len, i128::from(self.cfg.max_bytes));
        let fits = |n: u64, b: i128| {
            (more == 0 || len == 0 || n + more <= len) && (size <= 0 || bytes == 0 || b + size <= bytes)
        };
        let (mut n, mut b, mut victims) = (self.live.len() as u64, i128::from(self.bytes()), vec![]);
        if self.cfg.on_full == OnFull::DropOld {
            let mut olds: Vec<&TwinMessage> =
                self.live.iter().filter(|m| m.state == State::Ready && Some(m.uid) != keep).collect();
            olds.sort_by_key(|m| (m.ready_at, m.seq));
            for m in olds {
                if fits(n, b) {
                    break;
                }
                victims.push(m.uid);
                n -= 1;
                b -= i128::from(weight(m));
            }
        }
        if !fits(n, b) {
            self.rejected += asked;
            return Err(Refusal::Full);
        }
        for uid in victims {
            let at = self.live.iter().position(|m| m.uid == uid).unwrap();
            self.totals.dropped += 1 + self.leave(at, false).1;
        }
        self.forget_groups();
        Ok(())
    }

    fn room_for(&self, payload: usize) -> bool {
        let (len, bytes) = (self.cfg.max_len, self.cfg.max_bytes);
        (len == 0 || (self.live.len() as u64) < len)
            && (bytes == 0 || payload == 0 || self.bytes() + payload as u64 <= bytes)
    }

    pub fn pick(&self, group: Option<&[u8]>) -> Option<usize> {
        let in_flight = self.live.iter().filter(|m| m.state == State::InFlight).count() as u64;
        if self.paused(None, false) || self.cfg.max_in_flight > 0 && in_flight >= self.cfg.max_in_flight {
            return None;
        }
        let now = self.now;
        if self.bucket.as_ref().is_some_and(|b| !b.has_one(now)) {
            return None;
        }
        let mut lanes = vec![];
        for (g, turn) in self.turns.clone() {
            if group.is_some() && g.as_deref() != group {
                continue;
            }
            if !self.live.iter().any(|m| m.group == g && m.state == State::Ready) {
                continue;
            }
            let busy = self.busy(&g);
            if let Some(name) = &g {
                let full = self.cfg.group_in_flight > 0 && busy >= self.cfg.group_in_flight;
                if full || self.paused(Some(name), false) {
                    continue;
                }
                if self.group_buckets.get(name).is_some_and(|b| !b.has_one(now)) {
                    continue;
                }
            }
            lanes.push((busy, turn, g));
        }
        let lane = lanes.into_iter().min()?.2;
        (0..self.live.len())
            .filter(|at| self.live[*at].group == lane && self.live[*at].state == State::Ready)
            .min_by_key(|at| self.rank(&self.live[*at]))
    }

    pub fn claim(&mut self, o: &ClaimOptions<'_>, draw: &mut u64) -> Vec<(Bytes, Option<u64>, u64, Bytes)> {
        let mut out = vec![];
        while out.len() < o.count
            && let Some(at) = self.pick(o.group)
        {
            let turn = self.tick();
            let group = self.live[at].group.clone();
            self.turns.insert(group.clone(), turn);
            if let Some(b) = &mut self.bucket {
                b.bring(self.now);
                b.level -= b.unit();
            }
            if let (Some(g), Some(limits)) = (group, self.cfg.group_rate) {
                let now = self.now;
                let b = self.group_buckets.entry(g).or_insert_with(|| TwinBucket::new(limits, now));
                b.bring(now);
                b.level -= b.unit();
            }
            self.totals.delivered += 1;
            let (now, lease) = (self.now, self.cfg.lease);
            let m = &mut self.live[at];
            m.counters.0 += 1;
            m.consumer = o.consumer.map(<[u8]>::to_vec);
            let told = (m.id.clone(), m.counters.0, m.payload.clone());
            let mut claim = None;
            if o.no_ack {
                self.leave(at, true);
                self.totals.acked += 1;
            } else {
                *draw = (*draw + 1).max(now as u64);
                claim = Some(*draw);
                m.state = State::InFlight;
                m.flight = Some((*draw, now, now + o.lease.or(m.own.1).unwrap_or(lease)));
            }
            out.push((told.0, claim, told.1, told.2));
        }
        self.forget_groups();
        out
    }

    fn held(&self, r: &Receipt) -> Result<usize, Receipted> {
        let id = bytes_of(&r.id);
        match self.live_at(&id) {
            Some(at) if self.live[at].flight.is_some_and(|f| f.0 == r.claim) => Ok(at),
            None if self.dead_at(&id).is_none() => Err(Receipted::Gone),
            _ => Err(Receipted::NotHeld),
        }
    }

    pub fn ack(&mut self, receipts: &[Receipt]) -> Vec<Receipted> {
        let mut out = vec![];
        for r in receipts {
            out.push(match self.held(r) {
                Err(no) => no,
                Ok(at) => {
                    self.leave(at, true);
                    self.totals.acked += 1;
                    Receipted::Done
                }
            });
        }
        self.forget_groups();
        out
    }

    pub fn nack(&mut self, receipts: &[Receipt], o: &NackOptions<'_>) -> Vec<Receipted> {
        let mut out = vec![];
        for r in receipts {
            out.push(match self.held(r) {
                Err(no) => no,
                Ok(at) => {
                    self.totals.nacked += 1;
                    let reason: Bytes = o.reason.unwrap_or(b"nack").iter().copied().take(512).collect();
                    self.live[at].counters.1 += u64::from(o.dead || !o.no_count);
                    let died = if o.dead {
                        self.die(at, &reason);
                        true
                    } else {
                        self.come_back(at, !o.no_count, o.delay, o.back, Some(&reason))
                    };
                    if died { Receipted::Dead } else { Receipted::Done }
                }
            });
        }
        self.forget_groups();
        out
    }

    pub fn extend(&mut self, lease: i64, receipts: &[Receipt]) -> Vec<Receipted> {
        let mut out = vec![];
        for r in receipts {
            out.push(match self.held(r) {
                Err(no) => no,
                Ok(at) => {
                    self.live[at].flight.as_mut().unwrap().2 = self.now + lease;
                    Receipted::Done
                }
            });
        }
        out
    }

    pub fn requeue(&mut self, which: Which<'_>, count: u64) -> u64 {
        let mut flying: Vec<(u64, u64, bool)> = self
            .live
            .iter()
            .filter_map(|m| {
                let (claim, at, _) = m.flight?;
                let wanted = match which {
                    Which::All => true,
                    Which::Stale(age) => self.now - at >= age,
                    Which::Consumer(c) => m.consumer.as_deref() == Some(c),
                };
                Some((claim, m.uid, wanted))
            })
            .filter(|f| f.2)
            .collect();
        flying.sort();
        flying.truncate(count as usize);
        for (_, uid, _) in &flying {
            let at = self.live.iter().position(|m| m.uid == *uid).unwrap();
            self.come_back(at, false, Some(0), false, None);
            self.totals.requeued += 1;
        }
        self.forget_groups();
        flying.len() as u64
    }

    pub fn redrive(&mut self, ids: Option<&[Bytes]>, count: u64, delay: i64) -> u64 {
        let mut wanted: Vec<u64> = vec![];
        match ids {
            None => wanted.extend(self.dead.iter().map(|m| m.uid)),
            Some(ids) => {
                for id in ids.iter().filter(|i| self.live_at(i).is_none()) {
                    if let Some(at) = self.dead_at(id)
                        && !wanted.contains(&self.dead[at].uid)
                    {
                        wanted.push(self.dead[at].uid);
                    }
                }
            }
        }
        let mut n = 0;
        for uid in wanted {
            if n >= count {
                break;
            }
            let at = self.dead.iter().position(|m| m.uid == uid).unwrap();
            if self.live_at(&self.dead[at].id).is_some() {
                continue;
            }
            if !self.room_for(self.dead[at].payload.len()) {
                break;
            }
            let mut m = self.dead.remove(at);
            m.counters = (0, 0, 0);
            (m.reason, m.consumer, m.died_at, m.ttl_base) = (None, None, None, self.now);
            let due = (delay > 0).then(|| self.now + delay);
            self.enter(&mut m, due, true, false);
            self.live.push(m);
            self.totals.redriven += 1;
            n += 1;
        }
        n
    }

    pub fn delete(&mut self, ids: &[Bytes]) -> u64 {
        let mut n = 0;
        for id in ids {
            if let Some(at) = self.live_at(id) {
                self.totals.deleted += 1 + self.leave(at, false).1;
                n += 1;
            } else if let Some(at) = self.dead_at(id) {
                self.dead.remove(at);
                self.totals.deleted += 1;
                n += 1;
            }
            self.windows.remove(id);
        }
        self.forget_groups();
        n
    }

    pub fn purge(&mut self, scope: Scope, count: Option<u64>) -> u64 {
        let states: &[State] = match scope {
            Scope::Ready => &[State::Ready],
            Scope::Delayed => &[State::Delayed],
            Scope::Dead => &[State::Dead],
            Scope::All => &[State::Dead, State::Delayed, State::Ready],
        };
        let mut hit: Vec<(State, u64)> = vec![];
        for state in states {
            let mut all: Vec<&TwinMessage> =
                self.live.iter().chain(&self.dead).filter(|m| m.state == *state).collect();
            match state {
                State::Ready => all.sort_by_key(|m| self.rank(m)),
                State::Delayed => all.sort_by_key(|m| (m.due, m.seq)),
                _ => {}
            }
            hit.extend(all.iter().map(|m| (*state, m.uid)));
        }
        hit.truncate(count.map_or(usize::MAX, |n| n as usize));
        for (state, uid) in &hit {
            if *state == State::Dead {
                let m = self.dead.remove(self.dead.iter().position(|m| m.uid == *uid).unwrap());
                self.totals.deleted += 1;
                self.end_window(&m.id, m.uid, None);
                continue;
            }
            let at = self.live.iter().position(|m| m.uid == *uid).unwrap();
            let follower = self.live[at].follower.as_ref().map(|f| f.uid);
            let (m, more) = self.leave(at, false);
            self.totals.deleted += 1 + more;
            self.end_window(&m.id, *uid, follower);
        }
        self.forget_groups();
        hit.len() as u64
    }

    fn end_window(&mut self, id: &[u8], uid: u64, follower: Option<u64>) {
        if self.windows.get(id).is_some_and(|w| w.1 == uid || Some(w.1) == follower) {
            self.windows.remove(id);
        }
    }

    pub fn set(&mut self, settings: &Settings) {
        self.cfg = settings.over(&self.cfg);
        let now = self.now;
        if let Some(rate) = settings.rate {
            self.bucket = match (self.bucket.take(), rate) {
                (_, None) => None,
                (None, Some(limits)) => Some(TwinBucket::new(limits, now)),
                (Some(mut b), Some(limits)) => {
                    b.change(limits, now);
                    Some(b)
                }
            };
        }
        if let Some(rate) = settings.group_rate {
            match rate {
                None => self.group_buckets.clear(),
                Some(limits) => self.group_buckets.values_mut().for_each(|b| b.change(limits, now)),
            }
        }
        self.trim_dead();
        self.advance(now, now);
    }

    pub fn pause(&mut self, push: bool, claim: bool, group: Option<&[u8]>, until: i64) {
        for (what, hit) in [(true, push), (false, claim)] {
            if hit {
                let key = (group.map(<[u8]>::to_vec), what);
                self.pauses.remove(&key);
                if until > self.now {
                    self.pauses.insert(key, until);
                }
            }
        }
    }

    pub fn resume(&mut self, group: Option<&[u8]>) {
        self.pause(true, true, group, 0);
    }

    pub fn move_to(&mut self, dst: &mut Model, what: Movable, count: u64) -> u64 {
        let mut n = 0;
        let items: Vec<u64> = match what {
            Movable::Dead => self.dead.iter().map(|m| m.uid).collect(),
            Movable::Ready => {
                let mut ready: Vec<&TwinMessage> =
                    self.live.iter().filter(|m| m.state == State::Ready).collect();
                ready.sort_by_key(|m| self.rank(m));
                ready.iter().map(|m| m.uid).collect()
            }
        };
        for uid in items {
            if n >= count {
                break;
            }
            let mut m = if what == Movable::Dead {
                self.dead.remove(self.dead.iter().position(|m| m.uid == uid).unwrap())
            } else {
                let at = self.live.iter().position(|m| m.uid == uid).unwrap();
                if dst.live_at(&self.live[at].id).is_some() {
                    continue;
                }
                if !dst.room_for(self.live[at].payload.len()) {
                    break;
                }
                self.leave(at, true).0
            };
            self.totals.moved_out += 1;
            dst.totals.moved_in += 1;
            m.uid = dst.tick();
            if what == Movable::Dead {
                dst.dead.push(m);
                dst.trim_dead();
            } else {
                dst.enter(&mut m, None, true, false);
                dst.live.push(m);
            }
            n += 1;
        }
        self.forget_groups();
        dst.advance(dst.now, dst.now);
        n
    }

    fn told(&self, m: &TwinMessage) -> Told {
        let live = m.state != State::Dead;
        let expires = self.expires(m);
        Told {
            texts: (m.id.clone(), m.payload.clone(), m.group.clone(), m.consumer.clone(), m.reason.clone()),
            state: m.state,
            numbers: [
                m.priority.into(),
                m.counters.0.into(),
                m.counters.1.into(),
                m.counters.2.into(),
                m.pushed_at.into(),
            ],
            instants: [
                if live { m.due } else { None },
                (live && expires != NEVER).then_some(expires),
                m.flight.map(|f| f.1),
                m.flight.map(|f| f.2),
                m.died_at,
            ],
            claim: m.flight.map(|f| f.0),
        }
    }

    pub fn get(&self, id: &[u8]) -> Option<Told> {
        let live = self.live_at(id).map(|at| self.told(&self.live[at]));
        live.or_else(|| self.dead_at(id).map(|at| self.told(&self.dead[at])))
    }

    pub fn list(&self, state: State, group: Option<&[u8]>) -> Vec<Told> {
        let mut all: Vec<&TwinMessage> = if state == State::Dead {
            self.dead.iter().collect()
        } else {
            self.live.iter().filter(|m| m.state == state).collect()
        };
        match state {
            State::Ready => all.sort_by_key(|m| self.rank(m)),
            State::Delayed => all.sort_by_key(|m| (m.due, m.seq)),
            State::InFlight => all.sort_by_key(|m| m.flight.map(|f| (f.2, f.0))),
            _ => {}
        }
        all.into_iter()
            .filter(|m| group.is_none() || m.group.as_deref() == group)
            .map(|m| self.told(m))
            .collect()
    }

    /// What INFO tells, as one line.
    pub fn info(&self) -> String {
        let count = |s: State| self.live.iter().filter(|m| m.state == s).count();
        let pause = |push: bool| self.pauses.get(&(None, push)).copied();
        let oldest = self.live.iter().filter(|m| m.state == State::Ready).map(|m| m.ready_at).min();
        let counts = (
            count(State::Ready),
            count(State::Delayed),
            count(State::InFlight),
            self.dead.len(),
            self.live.iter().filter(|m| m.follower.is_some()).count(),
            self.turns.keys().flatten().count(),
        );
        let next = self.events().into_iter().min();
        let ages = (oldest.map(|at| (self.now - at).max(0)), next.map(|at| at - self.now));
        let (push, claim) = (pause(true), pause(false));
        format!(
            "{:?} {push:?} {claim:?} {counts:?} {} {ages:?} {:?} {}",
            self.cfg,
            self.bytes(),
            self.totals,
            self.rejected
        )
    }
}

pub fn info_line(info: &Info<'_>) -> String {
    let kept = |p: Option<Pause>| {
        p.map(|p| match p {
            Pause::Forever => NEVER,
            Pause::Until(at) => at,
        })
    };
    let counts = (info.ready, info.delayed, info.in_flight, info.dead, info.followers, info.groups);
    let ages = (info.oldest_ready_age, info.next_event);
    let (push, claim) = (kept(info.paused_push), kept(info.paused_claim));
    format!(
        "{:?} {push:?} {claim:?} {counts:?} {} {ages:?} {:?} {}",
        info.config, info.bytes, info.totals, info.rejected
    )
}

fn weight(m: &TwinMessage) -> u64 {
    (m.payload.len() + m.follower.as_ref().map_or(0, |f| f.payload.len())) as u64
}
