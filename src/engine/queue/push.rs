//! PUSH and MPUSH: who is refused, what is replaced, what is new. What makes room is in
//! [`room`](super::room).

use super::Queue;
use super::effect::{Entry, Mode, Push};
use super::message::{Id, IdRef, Own, State};
use super::wire::{MAX_NUMBER, Wire};
use crate::engine::collections::slab::NONE;
use crate::engine::journal::{Blob, Journal};
use crate::engine::time::Micros;

/// Messages in one effect.
const MOST: usize = 256;

/// What becomes of a push whose id is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDup {
    #[default]
    Reject,
    Replace,
    KeepLast,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct PushOptions<'a> {
    /// The instant from which it is ready; None, or one that is past: at once.
    pub due: Option<Micros>,
    pub priority: u8,
    pub group: Option<&'a [u8]>,
    pub ttl: Option<Micros>,
    pub lease: Option<Micros>,
    pub max_deliveries: Option<u64>,
    pub dedup: Option<Micros>,
    pub on_dup: OnDup,
}

/// Nothing was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    Paused,
    Full,
    /// There are no own numbers left.
    Numbers,
}

impl Queue {
    /// Pushes one message; `arg` is where the running command has its payload. None: a duplicate,
    /// which changes nothing.
    pub fn push(
        &mut self,
        now: Micros,
        payload: &[u8],
        arg: usize,
        id: Option<Id>,
        options: &PushOptions<'_>,
        journal: &mut Journal,
    ) -> Result<Option<Id>, Refusal> {
        self.begin_command();
        if self.push_paused(now, options.group) {
            self.rejected = self.rejected.saturating_add(1);
            return Err(Refusal::Paused);
        }
        // A number of the queue's own is nobody's yet.
        if let Some(id) = &id {
            self.bring_up_all([id.as_ref()], now, journal);
        }
        let old = id.as_ref().and_then(|id| self.find_live(id.as_ref())).unwrap_or(NONE);
        let state = self.messages.get(old).map(|m| m.state());
        let mode = match (&id, state, options.on_dup) {
            (Some(id), None, _) if self.in_window(id.as_ref(), now) => None,
            (_, None, _) => Some(Mode::New),
            (_, Some(State::InFlight), OnDup::KeepLast) => Some(Mode::Follow),
            (_, Some(State::InFlight), _) | (_, _, OnDup::Reject) => None,
            (_, _, OnDup::Replace | OnDup::KeepLast) => Some(Mode::Replace),
        };
        let Some(mode) = mode else {
            self.rejected = self.rejected.saturating_add(1);
            return Ok(None);
        };
        let replaced = match mode {
            Mode::New => 0,
            Mode::Replace => self.weight(old),
            Mode::Follow => self.weight(old) - self.messages.get(old).map_or(0, |m| m.payload.len() as u64),
        };
        let size = payload.len() as i128 - i128::from(replaced);
        self.numbers_left(u64::from(id.is_none()))?;
        self.make_room(now, u64::from(mode == Mode::New), size, old, 1, journal)?;
        let named = id.is_some();
        let mut push = self.describe_push(now, options, mode, old);
        push.named = named;
        let window = options.dedup.unwrap_or(self.config.dedup);
        push.window = (named && window > 0).then(|| now.saturating_add(window));
        let id = id.unwrap_or_else(|| self.own_id(now));
        if journal.carries() {
            journal.record(&Wire::Push(push.clone(), vec![id.as_ref()]), [Blob::Arg(arg)]);
        } else {
            journal.touch();
        }
        // What is replaced was reckoned with: it is none of those that were to be dropped.
        let over = (old != NONE).then_some(self.over);
        self.push_one(&push, 0, id.clone(), payload.into());
        self.over = over.unwrap_or(self.over);
        Ok(Some(id))
    }

    /// Pushes all of the payloads under own numbers, or none; they are the arguments from
    /// `first_arg` on.
    pub fn mpush(
        &mut self,
        now: Micros,
        payloads: &[&[u8]],
        first_arg: usize,
        options: &PushOptions<'_>,
        journal: &mut Journal,
    ) -> Result<Vec<Id>, Refusal> {
        self.begin_command();
        let asked = payloads.len() as u64;
        if self.push_paused(now, options.group) {
            self.rejected = self.rejected.saturating_add(asked);
            return Err(Refusal::Paused);
        }
        let size = payloads.iter().map(|p| p.len() as i128).sum();
        self.numbers_left(asked)?;
        self.make_room(now, asked, size, NONE, asked, journal)?;
        let mut ids = Vec::with_capacity(payloads.len());
        for (piece, payloads) in payloads.chunks(MOST).enumerate() {
            let push = self.describe_push(now, options, Mode::New, NONE);
            let from = ids.len();
            for (n, payload) in payloads.iter().enumerate() {
                let id = self.own_id(now);
                self.push_one(&push, n as u64, id.clone(), (*payload).into());
                ids.push(id);
            }
            if journal.carries() {
                let names: Vec<IdRef<'_>> = ids.iter().skip(from).map(Id::as_ref).collect();
                let first = first_arg + piece * MOST;
                let blobs = (first..first + payloads.len()).map(Blob::Arg);
                journal.record(&Wire::Push(push, names), blobs);
            } else {
                journal.touch();
            }
        }
        Ok(ids)
    }

    fn describe_push<'a>(&self, now: Micros, options: &PushOptions<'a>, mode: Mode, old: u32) -> Push<'a> {
        let at = options.due.unwrap_or(now).max(now);
        let turn = self.turn_to_join(options.group);
        let mut entry = Entry { at, delayed: at > now, seq: self.next_seq, turn };
        match (mode, self.messages.get(old)) {
            (Mode::Follow, _) => {
                entry = Entry { at: options.due.unwrap_or(0), delayed: false, seq: 0, turn: None };
            }
            // Ready and staying ready, it keeps its place.
            (Mode::Replace, Some(m)) if m.state() == State::Ready && at == now => {
                let (at, seq) = m.place();
                entry = Entry { at, delayed: false, seq, turn };
            }
            _ => {}
        }
        Push {
            mode,
            now,
            entry,
            priority: options.priority,
            group: options.group.map(Into::into),
            own: Own {
                ttl: options.ttl.unwrap_or(0),
                lease: options.lease.unwrap_or(0),
                max_deliveries: options.max_deliveries,
                ttl_base: 0,
            },
            named: false,
            window: None,
        }
    }

    /// Makes sure that so many own numbers can be drawn, whatever is taken of them. No queue gets
    /// there by counting on: only one that was restored with such a number.
    fn numbers_left(&mut self, asked: u64) -> Result<(), Refusal> {
        let taken = self.messages.len() as u64 + self.windows.len() as u64;
        if asked == 0 || self.next_id.saturating_add(asked).saturating_add(taken) < MAX_NUMBER {
            return Ok(());
        }
        self.rejected = self.rejected.saturating_add(asked);
        Err(Refusal::Numbers)
    }

    /// The queue's next number that is not taken.
    fn own_id(&self, now: Micros) -> Id {
        let mut number = self.next_id;
        let taken = |n: u64| self.find(IdRef::Num(n)).is_some() || self.in_window(IdRef::Num(n), now);
        while number <= self.highest_given && taken(number) {
            number = number.wrapping_add(1);
        }
        Id::Num(number)
    }
}
