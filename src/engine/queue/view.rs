//! What is only looked at: GET, LIST, INFO.
//!
//! A cursor names the place after which a list goes on, in the order of that list; it means the
//! same whatever came or went in between.

use super::Queue;
use super::config::{Config, NO_PAUSE, Pause, Totals};
use super::lane::PLAIN;
use super::message::{Id, Message, Place, Stage, State};
use crate::engine::journal::Journal;
use crate::engine::time::{MAX_INSTANT, Micros};
use std::cmp::Ordering;
use std::fmt;

/// How many messages of other groups one call of LIST looks at.
const OTHERS: usize = if cfg!(test) { 3 } else { 1_000 };

/// All that GET tells of a message. Instants are µs; None where there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View<'a> {
    pub id: &'a Id,
    pub state: State,
    pub payload: &'a [u8],
    pub priority: u8,
    pub group: Option<&'a [u8]>,
    pub deliveries: u64,
    pub failures: u64,
    pub timeouts: u64,
    pub pushed_at: Micros,
    pub due_at: Option<Micros>,
    pub expires_at: Option<Micros>,
    /// With the id, its receipt.
    pub claim: Option<u64>,
    pub consumer: Option<&'a [u8]>,
    pub claimed_at: Option<Micros>,
    pub deadline: Option<Micros>,
    pub reason: Option<&'a [u8]>,
    pub died_at: Option<Micros>,
}

/// Where a list goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cursor {
    Start,
    Ready(u8, Place),
    /// Delayed: due instant and place order; in flight: deadline and claim.
    At(Micros, u64),
    Dead(u64),
}

impl Cursor {
    /// None when it is no cursor.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(bytes).ok()?.split(':');
        let instant = |text: Option<&str>| -> Option<Micros> {
            text?.parse().ok().filter(|at| (0..=MAX_INSTANT).contains(at))
        };
        let cursor = match parts.next()? {
            "0" => Self::Start,
            "r" => {
                let priority = parts.next()?.parse().ok()?;
                Self::Ready(priority, (instant(parts.next())?, parts.next()?.parse().ok()?))
            }
            "a" => Self::At(instant(parts.next())?, parts.next()?.parse().ok()?),
            "d" => Self::Dead(parts.next()?.parse().ok()?),
            _ => return None,
        };
        parts.next().is_none().then_some(cursor)
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => write!(f, "0"),
            Self::Ready(priority, (ready_at, seq)) => write!(f, "r:{priority}:{ready_at}:{seq}"),
            Self::At(at, number) => write!(f, "a:{at}:{number}"),
            Self::Dead(number) => write!(f, "d:{number}"),
        }
    }
}

/// All that INFO tells, but who waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info<'a> {
    pub config: &'a Config,
    pub paused_push: Option<Pause>,
    pub paused_claim: Option<Pause>,
    pub ready: u64,
    pub delayed: u64,
    pub in_flight: u64,
    pub dead: u64,
    pub followers: u64,
    pub groups: u64,
    pub bytes: u64,
    pub oldest_ready_age: Option<Micros>,
    /// How long until the next lease, delay, TTL or pause ends.
    pub next_event: Option<Micros>,
    pub totals: &'a Totals,
    pub rejected: u64,
}

impl Queue {
    /// The message that the id means.
    pub fn get(&self, id: &Id) -> Option<View<'_>> {
        self.view(self.meant(id.as_ref())?)
    }

    /// What is put off on the message with this id happens, as it is asked for.
    pub fn bring(&mut self, now: Micros, id: &Id, journal: &mut Journal) {
        self.bring_up_all([id.as_ref()], now, journal);
    }

    fn view(&self, slot: u32) -> Option<View<'_>> {
        let m = self.messages.get(slot)?;
        let more = self.more.get(m.more);
        let stage = m.stage(more);
        let (mut due_at, mut died_at, mut flight) = (None, None, None);
        match stage {
            Stage::Delayed { due, .. } => due_at = Some(due),
            Stage::InFlight { claim, claimed_at, deadline } => flight = Some((claim, claimed_at, deadline)),
            Stage::Dead { died_at: at, .. } => died_at = Some(at),
            Stage::Ready | Stage::Follower { .. } => {}
        }
        Some(View {
            id: &m.id,
            state: m.state(),
            payload: &m.payload,
            priority: m.priority,
            group: self.group_of(m.lane),
            deliveries: more.map_or(0, |x| x.deliveries.into()),
            failures: more.map_or(0, |x| x.failures.into()),
            timeouts: more.map_or(0, |x| x.timeouts.into()),
            pushed_at: more.map_or(m.ready_at, |x| x.pushed_at),
            due_at,
            expires_at: if m.state() == State::Dead { None } else { self.expires(slot) },
            claim: flight.map(|(claim, ..)| claim),
            consumer: more.and_then(|x| self.names.get(x.consumer)),
            claimed_at: flight.map(|(_, at, _)| at),
            deadline: flight.map(|(.., at)| at),
            reason: more.and_then(|x| self.names.get(x.reason)),
            died_at,
        })
    }

    /// A page of the messages in a state (of a group), at most `count`, whose payloads together
    /// take at most `most_bytes`, but at least one: by service, due instant, deadline or death.
    /// None: not a cursor of such a list. Of a group that has few of many messages in that state a
    /// page may have less, or nothing, and the list goes on all the same.
    pub fn list(
        &self,
        state: State,
        group: Option<&[u8]>,
        cursor: Cursor,
        count: usize,
        most_bytes: usize,
    ) -> Option<(Cursor, Vec<View<'_>>)> {
        let lane = match (group, self.find_lane(group)) {
            (None, _) => None,
            (Some(_), Some(lane)) => Some(lane),
            (Some(_), None) => {
                return self.starts_list(state, cursor).then(|| (Cursor::Start, Vec::new()));
            }
        };
        if !self.starts_list(state, cursor) {
            return None;
        }
        // One more than asked for tells whether the list goes on.
        let more = count.saturating_add(1);
        let mut broken_off = None;
        let mut slots: Vec<u32> = if state == State::Ready {
            let after =
                if let Cursor::Ready(priority, place) = cursor { Some((priority, place)) } else { None };
            self.ready_from(after, lane, more)
        } else {
            let wanted = |slot: &u32| lane.is_none() || self.messages.get(*slot).map(|m| m.lane) == lane;
            let (mut found, mut others) = (Vec::new(), 0);
            for slot in self.listed(state, cursor) {
                if wanted(&slot) {
                    found.push(slot);
                    broken_off = None;
                } else {
                    others += 1;
                    broken_off = Some(slot).filter(|_| others == OTHERS);
                }
                if found.len() == more || broken_off.is_some() {
                    break;
                }
            }
            found
        };
        let mut bytes = 0_usize;
        let fits = slots.iter().take(count).take_while(|slot| {
            bytes = bytes.saturating_add(self.messages.get(**slot).map_or(0, |m| m.payload.len()));
            bytes <= most_bytes
        });
        let count = fits.count().max(1);
        let next = if slots.len() > count {
            slots.truncate(count);
            slots.last().map_or(Cursor::Start, |last| self.cursor_at(*last))
        } else {
            broken_off.map_or(Cursor::Start, |last| self.cursor_at(last))
        };
        Some((next, slots.into_iter().filter_map(|slot| self.view(slot)).collect()))
    }

    fn starts_list(&self, state: State, cursor: Cursor) -> bool {
        match cursor {
            Cursor::Start => true,
            Cursor::Ready(..) => state == State::Ready,
            Cursor::At(..) => matches!(state, State::Delayed | State::InFlight),
            Cursor::Dead(_) => state == State::Dead,
        }
    }

    fn listed(&self, state: State, cursor: Cursor) -> Box<dyn Iterator<Item = u32> + '_> {
        let behind = move |key: (Micros, u64)| match cursor {
            Cursor::At(at, number) if key <= (at, number) => Ordering::Less,
            Cursor::Dead(number) if key.1 <= number => Ordering::Less,
            _ => Ordering::Greater,
        };
        let slot = |e: (Micros, u32)| e.1;
        match state {
            State::Delayed => Box::new(
                self.delayed
                    .iter_from(move |e| behind((e.0, self.messages.get(e.1).map_or(0, Message::seq))))
                    .map(slot),
            ),
            State::InFlight => Box::new(
                self.deadlines
                    .iter_from(move |e| match self.stage(e.1) {
                        Some(Stage::InFlight { claim, .. }) => behind((e.0, claim)),
                        _ => Ordering::Greater,
                    })
                    .map(slot),
            ),
            State::Dead => Box::new(self.deaths.iter_from(move |e| behind((0, e.0))).map(|e| e.1)),
            State::Ready | State::Follower => Box::new(std::iter::empty()),
        }
    }

    fn cursor_at(&self, slot: u32) -> Cursor {
        let Some(m) = self.messages.get(slot) else { return Cursor::Start };
        match self.stage(slot) {
            Some(Stage::Delayed { due, .. }) => Cursor::At(due, m.seq()),
            Some(Stage::InFlight { claim, deadline, .. }) => Cursor::At(deadline, claim),
            Some(Stage::Dead { number, .. }) => Cursor::Dead(number),
            _ => Cursor::Ready(m.priority, m.place()),
        }
    }

    pub fn info(&self, now: Micros) -> Info<'_> {
        let (push, claim) =
            self.lanes.get(PLAIN).map_or((NO_PAUSE, NO_PAUSE), |l| (l.paused_push, l.paused_claim));
        Info {
            config: &self.config,
            paused_push: Pause::told(push),
            paused_claim: Pause::told(claim),
            ready: self.ready,
            delayed: self.delayed.len() as u64,
            in_flight: self.claims.len() as u64,
            dead: self.deaths.len() as u64,
            followers: self.followers,
            groups: self.groups,
            bytes: self.bytes,
            oldest_ready_age: self.heads.first().map(|(at, ..)| now.saturating_sub(at).max(0)),
            next_event: self.next_change().map(|at| at.saturating_sub(now).max(0)),
            totals: &self.totals,
            rejected: self.rejected,
        }
    }
}
