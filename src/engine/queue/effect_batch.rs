//! Writes the steps of a command down as they are made, many to an effect.
//!
//! A reader of an effect resolves all its names before it applies any, so no effect may name a
//! message twice, or one that came to its name within it: the batch begins a new effect where that
//! would happen.

use super::Queue;
use super::effect::{After, Step};
use super::message::{Id, Stage};
use super::wire::{Who, Wire};
use crate::engine::journal::Journal;
use crate::engine::names_hash::Set;

/// Steps in one effect.
const MOST: usize = 256;

enum Named {
    Live(Id),
    Dead(u64),
}

pub struct EffectBatch<'j> {
    pub journal: &'j mut Journal,
    steps: Vec<(Named, Step<'static>)>,
    /// Whom they are about; made with the first.
    slots: Option<Set<u32>>,
}

impl<'j> EffectBatch<'j> {
    pub fn new(journal: &'j mut Journal) -> Self {
        Self { journal, steps: Vec::new(), slots: None }
    }

    /// False when the effect names the message already.
    fn mark(&mut self, slot: u32) -> bool {
        self.slots.get_or_insert_default().insert(slot)
    }

    /// Records what was written so far. Whoever made a batch flushes it last.
    pub fn flush(&mut self) {
        if self.steps.is_empty() {
            return;
        }
        let (names, steps): (Vec<_>, Vec<_>) = std::mem::take(&mut self.steps).into_iter().unzip();
        let who = names.iter().map(|name| match name {
            Named::Live(id) => Who::Live(id.as_ref()),
            Named::Dead(number) => Who::Dead(*number),
        });
        self.journal.record(&Wire::Steps(who.zip(steps).collect()), []);
        self.slots = None;
    }
}

impl Queue {
    /// Makes a step and writes it down.
    pub(super) fn commit(&mut self, batch: &mut EffectBatch<'_>, slot: u32, step: &Step<'_>) {
        if !batch.journal.carries() {
            batch.journal.touch();
            self.step(slot, step);
            return;
        }
        if batch.steps.len() >= MOST || !batch.mark(slot) {
            batch.flush();
            batch.mark(slot);
        }
        let name = match (self.stage(slot), self.messages.get(slot)) {
            (Some(Stage::Dead { number, .. }), _) => Named::Dead(number),
            (_, Some(m)) => Named::Live(m.id.clone()),
            (_, None) => return,
        };
        batch.steps.push((name, step.clone().into_owned()));
        self.step(slot, step);
        let enters = match step {
            Step::Ack { after }
            | Step::Expire { after, .. }
            | Step::Die { after, .. }
            | Step::Depart { after } => matches!(after, After::Enter(_)),
            _ => false,
        };
        if enters {
            batch.flush();
        }
    }
}
