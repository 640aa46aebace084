//! The naive model of the token bucket.

use super::*;

pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    pub(super) cost: i64,
    pub(super) own: Fraction,
    pub(super) cap: i64,
    pub(super) not_before: Micros,
}

/// Everything by definition: levels are fractions, every waiter has its own, due holds are looked
/// for one by one.
#[derive(Default)]
pub(super) struct Model {
    pub(super) b: Option<Naive>,
    pub(super) pinned: bool,
    pub(super) ban: Micros,
    pub(super) holds: BTreeMap<u64, (i64, Micros, bool)>,
    pub(super) waiters: Vec<Waiter>,
    pub(super) counts: (i64, i64),
    pub(super) answers: Vec<(Ticket, [i64; 6])>,
}

pub(super) type Three = (i64, i64, i64);

impl Model {
    pub(super) fn forgets(&self, now: Micros) -> bool {
        self.b.as_ref().is_none_or(|b| !self.pinned && self.holds.is_empty() && b.full(now))
    }

    pub(super) fn gone(&self, now: Micros) -> bool {
        self.forgets(now) && self.ban <= now && self.waiters.is_empty()
    }

    pub(super) fn bring(&mut self, now: Micros) -> &mut Naive {
        let b = self.b.as_mut().unwrap();
        if now >= b.t {
            for w in &mut self.waiters {
                w.own += b.gained(b.t, now);
            }
        }
        b.bring(now);
        b
    }

    pub(super) fn put(&mut self, n: i64) -> i64 {
        let b = self.b.as_mut().unwrap();
        let back = whole(n).min(whole(b.cap) - &b.level);
        b.level += &back;
        for w in &mut self.waiters {
            w.own += whole(n);
        }
        cut(back.floor().to_integer())
    }

    pub(super) fn due(&mut self, now: Micros) {
        let mut due: Vec<_> = self.holds.iter().filter(|(_, h)| h.1 <= now).map(|(i, h)| (h.1, *i)).collect();
        due.sort_unstable();
        for (end, id) in due {
            let (cost, _, refund) = self.holds.remove(&id).unwrap();
            if refund && !self.b.as_ref().unwrap().full(end) {
                self.bring(end);
                self.put(cost);
            }
        }
    }

    pub(super) fn settle(&mut self, now: Micros) {
        self.due(now);
        if !self.waiters.is_empty() && self.b.as_ref().unwrap().ahead(now) {
            self.bring(now);
        }
        while let Some(w) = self.waiters.first() {
            let b = self.b.as_ref().unwrap();
            let own = if now >= b.t { &w.own + b.gained(b.t, now) } else { w.own.clone() };
            if own < whole(0) || w.not_before > now {
                break;
            }
            self.answers.push((w.ticket, b.at(now).six(w.cost, 0)));
            self.waiters.remove(0);
        }
    }

    pub(super) fn open(&self, limits: Option<Three>, now: Micros) -> Option<Naive> {
        if !self.forgets(now) {
            let b = self.b.clone().unwrap();
            return Some(match limits {
                Some(l) if !self.pinned && l != b.limits() => b.changed(now, l, 0, Policy::Keep),
                _ => b,
            });
        }
        limits.map(|l| Naive::new(l, 0))
    }

    pub(super) fn decide(&self, b: &Naive, cost: i64, mode: Mode, now: Micros) -> (i64, i64) {
        let banned = ceil_ms(self.ban - now);
        let (need, most) = if mode == Mode::Force { (cost - b.cap, 2 * b.cap) } else { (cost, b.cap) };
        if banned > 0 {
            return (0, if cost > most { -1 } else { banned.max(b.until(&whole(need))) });
        }
        if b.level >= whole(need) {
            return (cost, 0);
        }
        let retry = if cost > most { -1 } else { b.until(&whole(need)) };
        (if mode == Mode::AtMost { b.remaining() } else { 0 }, retry)
    }

    pub(super) fn take(
        &mut self,
        l: Option<Three>,
        cost: i64,
        mode: Mode,
        block: Option<(i64, Ticket)>,
        now: Micros,
    ) -> Option<Option<[i64; 6]>> {
        let b = self.open(l, now)?;
        let cold = b.cold(now);
        let mut b = b.at(now);
        let (granted, mut retry) = self.decide(&b, cost, mode, now);
        let books = block.is_some_and(|(ms, _)| granted == 0 && 0 < retry && retry <= ms);
        if self.pinned {
            if granted > 0 || books { self.counts.0 += 1 } else { self.counts.1 += 1 }
        }
        if granted > 0 || books {
            if self.b.is_some() {
                self.bring(now);
            }
            b.level = (b.level - whole(if books { cost } else { granted })).max(-deepest(b.per));
            self.b = Some(b.clone());
            if let Some((_, ticket)) = block.filter(|_| books) {
                let not_before = if self.ban > now { self.ban } else { 0 };
                self.waiters.push(Waiter { ticket, cost, own: b.level, cap: b.cap, not_before });
                return Some(None);
            }
            if granted < cost {
                retry = if cost > b.cap { -1 } else { b.until(&whole(cost)) };
            }
        } else if let Some(own) = &self.b
            && (own.ahead(now) || self.pinned && cold && retry != -1 && self.ban <= now)
        {
            self.bring(now);
        }
        Some(Some(b.six(granted, retry)))
    }

    pub(super) fn refund(&mut self, n: i64, now: Micros) -> [i64; 6] {
        if self.forgets(now) {
            return [0; 6];
        }
        if self.b.as_ref().unwrap().full(now) {
            return self.b.as_ref().unwrap().at(now).six(0, 0);
        }
        self.bring(now);
        let back = self.put(n);
        self.b.as_ref().unwrap().six(back, 0)
    }

    pub(super) fn set(&mut self, l: Three, warm: i64, policy: Policy, now: Micros) {
        if self.forgets(now) {
            let mut b = Naive::new(l, warm);
            if policy == Policy::Full {
                (b.virgin, b.t) = (false, now);
            }
            self.b = Some(b);
        } else {
            let b = self.b.clone().unwrap();
            if !(policy == Policy::Keep && b.limits() == l && b.warm == warm) {
                if !b.full(now) {
                    self.bring(now);
                } else if now >= b.t {
                    // What is booked under a ban gains, too.
                    self.waiters.iter_mut().for_each(|w| w.own += b.gained(b.t, now));
                }
                let old = self.b.clone().unwrap();
                let new = old.changed(now, l, warm, policy);
                for w in &mut self.waiters {
                    w.own = old.carried(w.own.clone(), &new, policy);
                }
                self.b = Some(new);
            }
        }
        self.pinned = true;
    }

    pub(super) fn reset(&mut self, now: Micros) {
        let waiters = std::mem::take(&mut self.waiters);
        if self.pinned {
            let b = self.b.as_mut().unwrap();
            *b = Naive::new(b.limits(), b.warm);
            (b.virgin, b.t) = (false, now);
            (self.ban, self.holds) = (0, BTreeMap::new());
            let seen = self.b.as_ref().unwrap().at(now);
            self.answers.extend(waiters.iter().map(|w| (w.ticket, seen.six(w.cost, 0))));
        } else {
            let answers = std::mem::take(&mut self.answers);
            *self = Self { answers, ..Self::default() };
            self.answers.extend(waiters.iter().map(|w| (w.ticket, [w.cost, w.cap, w.cap, 0, 0, 0])));
        }
    }

    pub(super) fn drain(&mut self, l: Option<Three>, now: Micros) -> Option<[i64; 6]> {
        let mut b = self.open(l, now)?.at(now);
        let out = b.remaining();
        if self.b.is_some() {
            self.bring(now);
        }
        b.level = b.level.min(whole(0));
        self.b = Some(b.clone());
        Some(b.six(out, 0))
    }

    pub(super) fn ban(&mut self, ms: i64, now: Micros) {
        self.ban = if ms > 0 { now + ms * MS } else { 0 };
        for w in &mut self.waiters {
            w.not_before = w.not_before.min(self.ban.max(now));
        }
    }

    pub(super) fn settle_hold(&mut self, id: u64, actual: i64, now: Micros) -> Option<[i64; 6]> {
        let (cost, ..) = self.holds.remove(&id)?;
        let b = self.b.clone().unwrap();
        if actual < cost {
            if b.full(now) {
                return Some(b.at(now).six(0, 0));
            }
            self.bring(now);
            let back = self.put(cost - actual);
            return Some(self.b.as_ref().unwrap().six(back, 0));
        }
        if actual == cost {
            return Some(b.at(now).six(0, 0));
        }
        let b = self.bring(now);
        let charge = whole(actual - cost).min((&b.level + whole(b.cap)).max(whole(0)));
        b.level -= &charge;
        Some(b.six(cut(charge.floor().to_integer()), 0))
    }

    pub(super) fn leave(&mut self, ticket: Ticket, now: Micros) {
        let Some(i) = self.waiters.iter().position(|w| w.ticket == ticket) else { return };
        let w = self.waiters.remove(i);
        for later in &mut self.waiters[i..] {
            later.own += whole(w.cost);
        }
        if !self.b.as_ref().unwrap().full(now) {
            self.bring(now);
            let b = self.b.as_mut().unwrap();
            b.level = (&b.level + whole(w.cost)).min(whole(b.cap));
        }
    }

    pub(super) fn info(&self, now: Micros) -> Option<Info> {
        if self.gone(now) {
            return None;
        }
        let common = Info {
            banned_for: ceil_ms(self.ban - now),
            holds: self.holds.len() as i64,
            granted: self.counts.0,
            refused: self.counts.1,
            ..Info::default()
        };
        if self.forgets(now) {
            return Some(common);
        }
        let b = self.b.as_ref().unwrap().at(now);
        let [_, _, remaining, _, next_after, reset_after] = b.six(0, 0);
        let debt = cut((-&b.level).ceil().to_integer()).max(0);
        Some(Info {
            capacity: b.cap,
            tokens: b.tok,
            period: b.per,
            warmup: b.warm,
            pinned: i64::from(self.pinned),
            remaining,
            debt,
            next_after,
            reset_after,
            ..common
        })
    }
}
