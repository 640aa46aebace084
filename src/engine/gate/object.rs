//! The gate as the object of a key: effects, snapshots, time.

use super::stage::{Stage, State};
use super::{Effect, Gate, Kind};
use crate::engine::bucket::Bucket;
use crate::engine::codec::{Corrupt, Reader};
use crate::engine::family::Family;
use crate::engine::fencing::FencingCounter;
use crate::engine::footprint::block;
use crate::engine::journal::Journal;
use crate::engine::leaky::Leaky;
use crate::engine::object::{Lifetime, Object};
use crate::engine::shared::leases::{Lease, Permits};
use crate::engine::shared::line::Line;
use crate::engine::shared::waiting::{Answer, Ticket, first_of};
use crate::engine::time::Micros;
use std::collections::VecDeque;
use std::ffi::CStr;

impl Gate {
    /// [`Object::apply`] by another name: changes the state and nothing else.
    pub(super) fn make(&mut self, effect: Effect) {
        match effect {
            Effect::Set { stages } => {
                let giver = |stages: &[Stage]| {
                    stages.iter().find(|s| s.state.kind() == Kind::Permits).map(|s| s.name.clone())
                };
                if giver(&self.stages) != giver(&stages) {
                    self.permits.clear();
                }
                self.stages = stages;
            }
            Effect::Bucket { stage, units, part, at, ramp } => {
                if let Some(State::Bucket(b)) = self.stages.get_mut(usize::from(stage)).map(|s| &mut s.state)
                {
                    let known = Bucket::plain(b.limits(), units, at);
                    *b = known.warming(b.warmup_ms(), part, ramp);
                }
            }
            Effect::Leaky { stage, inside, at } => {
                if let Some(State::Leaky(b)) = self.stages.get_mut(usize::from(stage)).map(|s| &mut s.state) {
                    *b = Leaky::plain(b.limits(), inside, at);
                }
            }
            Effect::Granted { receipt, until } => {
                self.permits.insert(receipt, Lease { count: 1, until, owner: Box::default() });
            }
            Effect::Ended { receipt } => self.permits.remove(receipt),
            Effect::Drawn { receipt } => self.permits.drawn(receipt),
        }
    }
}

impl Object for Gate {
    const FAMILY: Family = Family::Gate;
    type Effect = Effect;

    fn blank() -> Self {
        Self {
            stages: Vec::new(),
            permits: Permits::default(),
            line: Line::default(),
            retry_at: 0,
            tried_at: 0,
            answers: VecDeque::new(),
            granted: 0,
            refused: 0,
        }
    }

    fn apply(&mut self, effect: Effect) {
        self.make(effect);
    }

    fn read(
        &self,
        input: &mut Reader<'_>,
        _blobs: &mut dyn Iterator<Item = Box<[u8]>>,
        fencing: &mut FencingCounter,
    ) -> Result<Effect, Corrupt> {
        let effect: Effect = input.read()?;
        effect.check(self, fencing)?;
        Ok(effect)
    }

    fn snapshot(&self, journal: &mut Journal, flush: &mut dyn FnMut(&mut Journal)) {
        if !self.stages.is_empty() {
            journal.record(&Effect::Set { stages: self.stages.clone() }, []);
        }
        for (written, (receipt, lease)) in self.permits.iter().enumerate() {
            journal.record(&Effect::Granted { receipt, until: lease.until }, []);
            if written % 1_000 == 999 {
                flush(journal);
            }
        }
        if let Some(receipt) = self.permits.last_gone() {
            journal.record(&Effect::Drawn { receipt }, []);
        }
    }

    fn next_event(&self) -> Option<Micros> {
        self.next_instant()
    }

    fn apply_due(&mut self, now: Micros, most: usize, journal: &mut Journal) -> bool {
        self.end_due(now, most, journal)
    }

    fn catch_up(&mut self, now: Micros, journal: &mut Journal) {
        self.advance(now, usize::MAX, journal);
    }

    fn answers(&mut self, most: usize) -> Vec<(Ticket, Answer)> {
        first_of(&mut self.answers, most)
    }

    fn depart(&mut self, ticket: Ticket, now: Micros, journal: &mut Journal) {
        self.begin(now, journal);
        if self.line.remove(ticket).is_some() {
            self.serve_now(now, journal);
        }
    }

    fn forget(&mut self, ticket: Ticket) {
        self.line.remove(ticket);
    }

    /// The permit; what the other stages took is spent.
    fn undo(&mut self, answer: &Answer, now: Micros, journal: &mut Journal) {
        if let Answer::Pass(pass) = answer
            && let Some(receipt) = pass.receipt
        {
            self.leave(&[receipt], now, journal);
        }
    }

    fn waiting(&self) -> usize {
        Gate::waiting(self)
    }

    fn orphans(&mut self) -> Vec<(Ticket, Option<Answer>)> {
        let mut told: Vec<_> =
            self.answers.drain(..).map(|(ticket, answer)| (ticket, Some(answer))).collect();
        told.extend(self.line.drain().map(|(ticket, _)| (ticket, None)));
        told
    }

    fn event(&self, effect: &Self::Effect, _now: Micros) -> Option<&'static CStr> {
        matches!(effect, Effect::Set { .. }).then_some(c"gate.set")
    }

    fn lifetime(&self, _now: Micros) -> Lifetime {
        if self.stages.is_empty() { Lifetime::Gone } else { Lifetime::Forever }
    }

    fn memory(&self) -> usize {
        let names: usize = self.stages.iter().map(|s| block(s.name.len())).sum();
        let stages = block(self.stages.capacity() * size_of::<Stage>()) + names;
        let answers = self.answers.capacity() * size_of::<(Ticket, Answer)>();
        size_of::<Self>() + stages + self.permits.memory() + self.line.memory() + answers
    }

    fn effort(&self) -> usize {
        1 + self.stages.len() + self.permits.len() / 2 + self.line.len()
    }

    fn duplicate(&self) -> Self {
        let fresh = |s: &Stage| Stage { refused: 0, ..s.clone() };
        Self {
            stages: self.stages.iter().map(fresh).collect(),
            permits: self.permits.clone(),
            ..Self::blank()
        }
    }
}
