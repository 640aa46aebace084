//! Effects as they are carried, and how they are read back from bytes that nobody vouches for.
//!
//! A message is named by its id when it is live, by the number of its death when it is dead;
//! payloads come beside, one for each message that an effect brings. `read_effect` checks all that
//! `apply` relies on: names are found and in the state that the change is for, no message is named
//! twice in an effect, instants and numbers are in range, new place orders and deaths rise.

use super::Queue;
use super::config::{Config, FOREVER, MAX_DURATION, NO_PAUSE};
use super::effect::{After, Claim, Claimed, Effect, Entry, Header, Mode, Push, Scope, Step};
use super::effect::{Brought, LaneState, Record};
use super::message::{Id, IdRef, Own, Place, Stage, State};
use super::tokens::Tokens;
use crate::engine::bucket::{Limits, MAX_COUNT};
use crate::engine::codec::{Corrupt, Reader, instant};
use crate::engine::collections::slab::NONE;
use crate::engine::fencing::{FencingCounter, MAX_FENCE};
use crate::engine::names_hash::Set;
use crate::engine::time::{MAX_INSTANT, Micros};
use serde::{Deserialize, Serialize};

/// Place orders that may be brought are below this: their 48 bits leave room for as many again.
pub const MAX_SEQ: u64 = 1 << 47;
/// Turns, own numbers, numbers of deaths and totals that may be brought are below this. None is
/// ever reached by counting on: see [`renumber`](super::renumber), and for own numbers
/// [`Queue::numbers_left`].
pub const MAX_NUMBER: u64 = 1 << 62;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Who<'a> {
    #[serde(borrow)]
    Live(IdRef<'a>),
    Dead(u64),
}

/// One delivery: id, lease, the group's level after it, what follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimedWire<'a> {
    #[serde(borrow)]
    pub id: IdRef<'a>,
    pub lease: Micros,
    pub level: Option<i128>,
    pub after: After,
}

/// The carried form of [`Effect`]. Numbers of variants are never reused.
#[derive(Debug, Serialize, Deserialize)]
pub enum Wire<'a> {
    Push(#[serde(borrow)] Push<'a>, Vec<IdRef<'a>>),
    Claim(Claim<'a>, Vec<ClaimedWire<'a>>),
    Steps(Vec<(Who<'a>, Step<'a>)>),
    Config(Box<Config>, Micros, Option<Tokens>),
    Pause {
        #[serde(with = "serde_bytes")]
        group: Option<&'a [u8]>,
        push: Option<Micros>,
        claim: Option<Micros>,
    },
    Purge(Scope),
    EndWindow(IdRef<'a>),
    EndWindows(Micros),
    Refill(Micros),
    Arrive(Vec<(Record<'a>, IdRef<'a>)>),
    Header(Box<Header>),
    Lanes(Vec<LaneState<'a>>),
    Windows(Vec<(IdRef<'a>, Micros)>),
    Load(Vec<(Record<'a>, IdRef<'a>)>),
    StepBack(Micros),
    Untake(Vec<(Record<'a>, IdRef<'a>)>),
    Renumber,
    CutOff,
}

type Blobs<'b> = dyn Iterator<Item = Box<[u8]>> + 'b;

fn ensure(ok: bool, what: &'static str) -> Result<(), Corrupt> {
    if ok { Ok(()) } else { Err(Corrupt(what)) }
}

fn label(text: Option<&[u8]>) -> Result<(), Corrupt> {
    ensure(text.is_none_or(|t| (1..=512).contains(&t.len())), "name out of range")
}

fn id(id: IdRef<'_>) -> Result<(), Corrupt> {
    let number = !matches!(id, IdRef::Name(_));
    ensure(number || id.is_sound(), "id out of range")
}

fn number(n: Option<u64>) -> Result<(), Corrupt> {
    ensure(n.is_none_or(|n| n < MAX_NUMBER), "number out of range")
}

fn own(own: Own) -> Result<(), Corrupt> {
    let durations = [own.ttl, own.lease].iter().all(|d| (0..=MAX_DURATION).contains(d));
    let count = own.max_deliveries.is_none_or(|n| n <= MAX_COUNT.unsigned_abs());
    ensure(durations && count && (0..=MAX_INSTANT).contains(&own.ttl_base), "option out of range")
}

fn pause(until: Option<Micros>) -> Result<(), Corrupt> {
    ensure(
        until.is_none_or(|u| u == NO_PAUSE || u == FOREVER || (1..=MAX_INSTANT).contains(&u)),
        "pause out of range",
    )
}

fn tokens(tokens: Option<Tokens>, limits: Option<Limits>) -> Result<(), Corrupt> {
    match (tokens, limits) {
        (None, _) => Ok(()),
        (Some(t), Some(limits)) => t.check(limits).map(drop),
        (Some(_), None) => Err(Corrupt("a level without a rate")),
    }
}

/// Numbers that effects bring must rise from what is there.
struct Rising {
    seq: u64,
    death: u64,
}

impl Rising {
    fn place(&mut self, (at, seq): Place) -> Result<(), Corrupt> {
        instant(at)?;
        ensure((self.seq..MAX_SEQ).contains(&seq), "place out of order")?;
        self.seq = seq + 1;
        Ok(())
    }

    fn entry(&mut self, entry: Entry) -> Result<(), Corrupt> {
        number(entry.turn)?;
        self.place((entry.at, entry.seq))
    }

    fn after(&mut self, after: After, follower: bool) -> Result<(), Corrupt> {
        ensure(follower == (after != After::None), "what follows does not fit")?;
        match after {
            After::Enter(entry) => self.entry(entry),
            After::None | After::Expired => Ok(()),
        }
    }

    fn death(&mut self, number: u64) -> Result<(), Corrupt> {
        ensure((self.death..MAX_NUMBER).contains(&number), "death out of order")?;
        self.death = number + 1;
        Ok(())
    }
}

impl Queue {
    fn rising(&self) -> Rising {
        Rising { seq: self.next_seq, death: self.next_death }
    }

    fn resolve(&self, who: Who<'_>) -> Result<u32, Corrupt> {
        let found = match who {
            Who::Live(id) => self.find_live(id),
            Who::Dead(number) => self
                .deaths
                .iter_from(|e| e.0.cmp(&number))
                .next()
                .filter(|(n, _)| *n == number)
                .map(|(_, slot)| slot),
        };
        found.ok_or(Corrupt("no such message"))
    }

    pub(super) fn read_effect(
        &self,
        input: &mut Reader<'_>,
        blobs: &mut Blobs<'_>,
        fencing: &mut FencingCounter,
    ) -> Result<Effect, Corrupt> {
        let wire = input.read::<Wire<'_>>()?;
        let loads = matches!(wire, Wire::Lanes(_) | Wire::Windows(_) | Wire::Load(_) | Wire::CutOff);
        ensure(loads || !self.is_torso(), "a change in the middle of a snapshot")?;
        Ok(match wire {
            Wire::Push(push, ids) => self.read_push(push, &ids, blobs)?,
            Wire::Claim(claim, items) => self.read_claim(claim, &items, fencing)?,
            Wire::Steps(steps) => self.read_steps(steps)?,
            Wire::Config(config, now, level) => {
                config.check()?;
                instant(now)?;
                tokens(level, config.rate)?;
                ensure(level.is_some() == config.rate.is_some(), "a rate without a level")?;
                Effect::Config { config, now, tokens: level }
            }
            Wire::Pause { group, push, claim } => {
                label(group)?;
                pause(push)?;
                pause(claim)?;
                Effect::Pause { group: group.map(Into::into), push, claim }
            }
            Wire::Purge(scope) => Effect::Purge(scope),
            Wire::EndWindow(id) => Effect::EndWindow(self.find_window(id).ok_or(Corrupt("no such window"))?),
            Wire::EndWindows(through) => Effect::EndWindows { through },
            Wire::Refill(through) => Effect::Refill { through },
            Wire::StepBack(now) => {
                instant(now)?;
                Effect::StepBack { now }
            }
            Wire::Renumber => Effect::Renumber,
            Wire::CutOff => Effect::CutOff,
            Wire::Arrive(records) => {
                let mut rising = self.rising();
                Effect::Arrive(self.read_records(records, blobs, fencing, &mut rising, false)?)
            }
            Wire::Untake(records) => {
                let mut rising = self.rising();
                // They count as acknowledged, and never were dead.
                ensure(records.len() as u64 <= self.totals.acked, "more than were handed out")?;
                ensure(records.iter().all(|(r, _)| r.stage == Stage::Ready), "a message that does not fit")?;
                Effect::Untake(self.read_records(records, blobs, fencing, &mut rising, false)?)
            }
            Wire::Header(header) => self.read_header(header, fencing)?,
            Wire::Lanes(lanes) => self.read_lanes(lanes)?,
            Wire::Windows(windows) => self.read_windows(&windows)?,
            Wire::Load(records) => {
                let loading = self.loading.ok_or(Corrupt("a snapshot without its head"))?;
                ensure(records.len() as u64 <= loading.missing, "more than the totals say")?;
                let mut rising = Rising { seq: loading.seq, death: loading.death };
                let records = self.read_records(records, blobs, fencing, &mut rising, true)?;
                ensure(
                    rising.seq <= self.next_seq && rising.death <= self.next_death,
                    "beyond the head's next",
                )?;
                Effect::Load(records)
            }
        })
    }

    fn read_push(&self, push: Push<'_>, ids: &[IdRef<'_>], blobs: &mut Blobs<'_>) -> Result<Effect, Corrupt> {
        instant(push.now)?;
        instant(push.entry.at)?;
        number(push.entry.turn)?;
        label(push.group.as_deref())?;
        own(push.own)?;
        ensure(
            push.window.is_none_or(|w| push.named && (0..=MAX_INSTANT).contains(&w)),
            "window out of range",
        )?;
        ensure(push.mode == Mode::New || (ids.len() == 1 && push.named), "one message at a time")?;
        if push.mode != Mode::Follow {
            let last = push.entry.seq.checked_add(ids.len() as u64);
            ensure(push.entry.seq >= self.next_seq || self.keeps_place(&push, ids), "place out of order")?;
            ensure(last.is_some_and(|l| l <= MAX_SEQ), "place out of range")?;
        }
        let mut seen = Set::default();
        let mut messages = Vec::new();
        for name in ids {
            id(*name)?;
            ensure(push.named || matches!(name, IdRef::Num(n) if *n < MAX_NUMBER), "not an own number")?;
            ensure(ids.len() == 1 || seen.insert(*name), "an id twice")?;
            let state = self.find_live(*name).and_then(|s| self.messages.get(s)).map(|m| m.state());
            let fits = match push.mode {
                Mode::New => state.is_none(),
                Mode::Replace => matches!(state, Some(State::Ready | State::Delayed)),
                Mode::Follow => state == Some(State::InFlight),
            };
            ensure(fits, "a push that does not fit")?;
            messages.push((name.to_id(), blobs.next().ok_or(Corrupt("a payload is missing"))?));
        }
        let push = Push { group: push.group.map(|g| g.into_owned().into()), ..push };
        Ok(Effect::Push { push, messages })
    }

    /// Whether the push replaces a ready message and keeps its place.
    fn keeps_place(&self, push: &Push<'_>, ids: &[IdRef<'_>]) -> bool {
        let old = ids.first().and_then(|id| self.find_live(*id)).and_then(|s| self.messages.get(s));
        push.mode == Mode::Replace
            && !push.entry.delayed
            && old.is_some_and(|m| m.state() == State::Ready && m.place() == (push.entry.at, push.entry.seq))
    }

    fn read_claim(
        &self,
        claim: Claim<'_>,
        items: &[ClaimedWire<'_>],
        fencing: &mut FencingCounter,
    ) -> Result<Effect, Corrupt> {
        instant(claim.now)?;
        label(claim.consumer.as_deref())?;
        number(claim.turn.checked_add(items.len() as u64))?;
        tokens(claim.level.map(|level| Tokens { level, at: claim.now }), self.config.rate)?;
        if let Some(first) = claim.first {
            let last = first.saturating_add(items.len() as u64).saturating_sub(1);
            ensure(first > 0 && last <= MAX_FENCE, "claim number out of range")?;
            fencing.raise(last);
        }
        let mut rising = self.rising();
        let mut seen = Set::default();
        let mut claimed = Vec::new();
        for item in items {
            let slot = self.resolve(Who::Live(item.id))?;
            ensure(items.len() == 1 || seen.insert(slot), "a message twice")?;
            let m = self.messages.get(slot).ok_or(Corrupt("no such message"))?;
            ensure(m.state() == State::Ready, "a claim of what is not ready")?;
            let follower = claim.first.is_none() && self.more_of(slot).is_some_and(|x| x.follower != NONE);
            rising.after(item.after, follower)?;
            let lease = if claim.first.is_some() { 1..=MAX_DURATION } else { 0..=MAX_DURATION };
            ensure(lease.contains(&item.lease), "lease out of range")?;
            tokens(item.level.map(|level| Tokens { level, at: claim.now }), self.config.group_rate)?;
            ensure(item.level.is_none() || m.lane != super::lane::PLAIN, "a level without a group")?;
            claimed.push(Claimed { slot, lease: item.lease, level: item.level, after: item.after });
        }
        let claim = Claim { consumer: claim.consumer.map(|c| c.into_owned().into()), ..claim };
        Ok(Effect::Claim { claim, items: claimed })
    }

    fn read_steps(&self, steps: Vec<(Who<'_>, Step<'_>)>) -> Result<Effect, Corrupt> {
        let mut rising = self.rising();
        let mut seen = Set::default();
        let mut checked = Vec::new();
        let many = steps.len() > 1;
        for (who, step) in steps {
            let slot = self.resolve(who)?;
            ensure(!many || seen.insert(slot), "a message twice")?;
            self.check_step(slot, &step, &mut rising)?;
            checked.push((slot, step.into_owned()));
        }
        Ok(Effect::Steps(checked))
    }

    fn check_step(&self, slot: u32, step: &Step<'_>, rising: &mut Rising) -> Result<(), Corrupt> {
        let state = self.messages.get(slot).map(|m| m.state()).ok_or(Corrupt("no such message"))?;
        let follower = self.more_of(slot).is_some_and(|x| x.follower != NONE);
        let fits = match step {
            Step::Ack { after } => {
                rising.after(*after, follower)?;
                state == State::InFlight
            }
            Step::Expire { cause, after } => {
                rising.after(*after, follower)?;
                match cause {
                    Some(_) => state == State::InFlight,
                    None => matches!(state, State::Ready | State::Delayed),
                }
            }
            Step::Die { reason, at, number, after, .. } => {
                rising.after(*after, follower)?;
                rising.death(*number)?;
                instant(*at)?;
                ensure(reason.len() <= 512, "reason too long")?;
                state == State::InFlight
            }
            Step::Back { reason, due, place, .. } => {
                if let Some(place) = place {
                    rising.place(*place)?;
                }
                if let Some(due) = due {
                    instant(*due)?;
                }
                ensure(reason.as_ref().is_none_or(|r| r.len() <= 512), "reason too long")?;
                state == State::InFlight
            }
            Step::Due => state == State::Delayed,
            Step::Extend { deadline } => {
                instant(*deadline)?;
                state == State::InFlight
            }
            Step::Drop => matches!(state, State::Ready | State::Dead),
            Step::Delete => true,
            Step::Depart { after } => {
                rising.after(*after, follower)?;
                matches!(state, State::Ready | State::Dead)
            }
            Step::Redrive { now, entry } => {
                instant(*now)?;
                rising.entry(*entry)?;
                let id = self.messages.get(slot).map(|m| m.id.as_ref());
                state == State::Dead && id.is_some_and(|id| self.find_live(id).is_none())
            }
        };
        ensure(fits, "a step that does not fit")
    }

    fn read_header(&self, header: Box<Header>, fencing: &mut FencingCounter) -> Result<Effect, Corrupt> {
        ensure(self.is_blank(), "a snapshot on what is there")?;
        header.config.check()?;
        pause(Some(header.paused_push))?;
        pause(Some(header.paused_claim))?;
        tokens(header.tokens, header.config.rate)?;
        ensure(header.tokens.is_some() == header.config.rate.is_some(), "a rate without a level")?;
        let numbers = [header.next_id, header.next_turn, header.next_death];
        ensure(
            header.next_seq <= MAX_SEQ && numbers.iter().all(|n| *n <= MAX_NUMBER),
            "number out of range",
        )?;
        ensure(header.totals.bits() < MAX_NUMBER, "total out of range")?;
        ensure(header.last_claim <= MAX_FENCE, "claim number out of range")?;
        fencing.raise(header.last_claim);
        Ok(Effect::Header(header))
    }

    fn read_lanes(&self, lanes: Vec<LaneState<'_>>) -> Result<Effect, Corrupt> {
        ensure(self.loading.is_some(), "a snapshot without its head")?;
        let mut seen = Set::default();
        let mut checked = Vec::new();
        for lane in lanes {
            label(Some(&lane.name))?;
            pause(Some(lane.paused_push))?;
            pause(Some(lane.paused_claim))?;
            tokens(lane.tokens, self.config.group_rate)?;
            let name = lane.name.into_owned();
            ensure(self.find_lane(Some(&name)).is_none() && seen.insert(name.clone()), "a group twice")?;
            checked.push(LaneState { name: name.into(), ..lane });
        }
        Ok(Effect::Lanes(checked))
    }

    fn read_windows(&self, windows: &[(IdRef<'_>, Micros)]) -> Result<Effect, Corrupt> {
        ensure(self.loading.is_some(), "a snapshot without its head")?;
        let mut seen = Set::default();
        let mut checked: Vec<(Id, Micros)> = Vec::new();
        for (name, until) in windows {
            id(*name)?;
            instant(*until)?;
            ensure(self.find_window(*name).is_none() && seen.insert(*name), "a window twice")?;
            checked.push((name.to_id(), *until));
        }
        Ok(Effect::Windows(checked))
    }

    fn read_records(
        &self,
        records: Vec<(Record<'_>, IdRef<'_>)>,
        blobs: &mut Blobs<'_>,
        fencing: &mut FencingCounter,
        rising: &mut Rising,
        load: bool,
    ) -> Result<Vec<Brought>, Corrupt> {
        let mut live = Set::default();
        let mut leader: Option<IdRef<'_>> = None;
        let mut checked = Vec::new();
        for (record, name) in records {
            id(name)?;
            label(record.group.as_deref())?;
            label(record.consumer.as_deref())?;
            ensure(record.reason.as_ref().is_none_or(|r| r.len() <= 512), "reason too long")?;
            instant(record.pushed_at)?;
            number(record.turn)?;
            own(record.own.unwrap_or(Own::NONE))?;
            let fits = match record.stage {
                Stage::Dead { number, died_at, .. } => {
                    rising.death(number)?;
                    instant(died_at)?;
                    leader = None;
                    true
                }
                Stage::Follower { due } => {
                    instant(due)?;
                    leader.take() == Some(name)
                }
                stage => {
                    rising.place(record.place)?;
                    leader = load.then_some(name);
                    let known = self.find_live(name).is_some() || !live.insert(name);
                    !known && self.check_live(stage, fencing)? && (load || stage == Stage::Ready)
                }
            };
            ensure(fits, "a message that does not fit")?;
            let payload = blobs.next().ok_or(Corrupt("a payload is missing"))?;
            checked.push((record.into_owned(), name.to_id(), payload));
        }
        Ok(checked)
    }

    fn check_live(&self, stage: Stage, fencing: &mut FencingCounter) -> Result<bool, Corrupt> {
        match stage {
            Stage::Delayed { due, .. } => instant(due)?,
            Stage::InFlight { claim, claimed_at, deadline } => {
                instant(claimed_at)?;
                instant(deadline)?;
                ensure((1..=MAX_FENCE).contains(&claim), "claim number out of range")?;
                fencing.raise(claim);
            }
            _ => {}
        }
        Ok(true)
    }
}
