//! The semaphore as the object of a key: effects, snapshots, time.

use super::{Counts, DEFAULT_LEASE_MS, MAX_OWNER, Semaphore};
use crate::engine::codec::{Corrupt, Reader, instant};
use crate::engine::family::Family;
use crate::engine::fencing::FencingCounter;
use crate::engine::journal::Journal;
use crate::engine::object::{Lifetime, Object};
use crate::engine::shared::leases::{Lease, Permits, check_lease, check_receipt, check_setting};
use crate::engine::shared::waiting::{Answer, Ticket, first_of};
use crate::engine::time::Micros;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ffi::CStr;

/// One change. The order of the variants is their wire number: new ones go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Limit and lease are pinned.
    Set { limit: i64, lease_ms: i64 },
    /// A lease begins; `limit` is that of an unpinned semaphore from now on.
    Granted {
        receipt: u64,
        count: i64,
        until: Micros,
        limit: i64,
        #[serde(serialize_with = "serde_bytes::serialize", deserialize_with = "crate::engine::codec::bytes")]
        owner: Box<[u8]>,
    },
    /// A lease ends later or sooner.
    Renewed { receipt: u64, until: Micros },
    /// A lease is over.
    Ended { receipt: u64 },
    /// Receipts up to this one were given (snapshots only: other effects say it by themselves).
    Drawn { receipt: u64 },
}

impl Semaphore {
    /// [`Object::apply`] by another name: changes the state and nothing else.
    pub(super) fn make(&mut self, effect: Effect) {
        match effect {
            Effect::Set { limit, lease_ms } => {
                (self.pinned, self.limit, self.lease_ms) = (true, limit, lease_ms);
            }
            Effect::Granted { receipt, count, until, limit, owner } => {
                if !self.pinned {
                    self.limit = limit;
                }
                self.permits.insert(receipt, Lease { count, until, owner });
            }
            Effect::Renewed { receipt, until } => self.permits.renew(receipt, until),
            Effect::Ended { receipt } => self.permits.remove(receipt),
            Effect::Drawn { receipt } => self.permits.drawn(receipt),
        }
    }
}

impl Object for Semaphore {
    const FAMILY: Family = Family::Semaphore;
    const EVENTS: &'static [Option<&'static CStr>] =
        &[Some(c"sem.timeout"), Some(c"sem.release"), Some(c"sem.acquire")];
    type Effect = Effect;

    fn blank() -> Self {
        Self {
            limit: 0,
            lease_ms: DEFAULT_LEASE_MS,
            pinned: false,
            permits: Permits::default(),
            line: super::Line::default(),
            answers: VecDeque::new(),
            counts: Counts::default(),
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
        match &effect {
            Effect::Set { limit, lease_ms } => check_setting(*limit, *lease_ms)?,
            Effect::Granted { receipt, count, until, limit, owner } => {
                check_setting(*limit, 1)?;
                check_lease(&self.permits, *receipt, *count, *until)?;
                if owner.len() > MAX_OWNER {
                    return Err(Corrupt("owner too long"));
                }
                fencing.raise(*receipt);
            }
            Effect::Renewed { receipt, until } => {
                self.permits.get(*receipt).ok_or(Corrupt("renews an unknown lease"))?;
                instant(*until)?;
            }
            Effect::Ended { receipt } => {
                self.permits.get(*receipt).ok_or(Corrupt("ends an unknown lease"))?;
            }
            Effect::Drawn { receipt } => {
                check_receipt(*receipt)?;
                fencing.raise(*receipt);
            }
        }
        Ok(effect)
    }

    fn snapshot(&self, journal: &mut Journal, flush: &mut dyn FnMut(&mut Journal)) {
        if self.pinned {
            journal.record(&Effect::Set { limit: self.limit, lease_ms: self.lease_ms }, []);
        }
        for (written, (receipt, held)) in self.permits.iter().enumerate() {
            let Lease { count, until, owner } = held.clone();
            journal.record(&Effect::Granted { receipt, count, until, limit: self.limit, owner }, []);
            if written % 1_000 == 999 {
                flush(journal);
            }
        }
        // One that is the same as absent has nothing to say.
        let kept = self.pinned || self.permits.len() > 0;
        if let Some(receipt) = self.permits.last_gone().filter(|_| kept) {
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
            self.advance(now, journal.left(), journal);
        }
    }

    fn forget(&mut self, ticket: Ticket) {
        self.line.remove(ticket);
    }

    fn counts(&self, into: &mut [u64]) {
        let now = [self.counts.ended, self.counts.released, self.counts.granted.unsigned_abs()];
        for (to, count) in into.iter_mut().zip(now) {
            *to = count;
        }
    }

    fn undo(&mut self, answer: &Answer, now: Micros, journal: &mut Journal) {
        if let Answer::Permit(permit) = answer
            && let Some(receipt) = permit.receipt
        {
            self.release(&[receipt], now, journal);
        }
    }

    fn waiting(&self) -> usize {
        Semaphore::waiting(self)
    }

    fn orphans(&mut self) -> Vec<(Ticket, Option<Answer>)> {
        let mut told: Vec<_> =
            self.answers.drain(..).map(|(ticket, answer)| (ticket, Some(answer))).collect();
        told.extend(self.line.drain().map(|(ticket, _)| (ticket, None)));
        told
    }

    fn event(&self, effect: &Self::Effect, now: Micros) -> Option<&'static CStr> {
        match effect {
            Effect::Set { .. } => Some(c"sem.set"),
            Effect::Granted { .. } => Some(c"sem.acquire"),
            // Whether it was given back or its time was over is not said, but seen: as near as the
            // two clocks are to each other.
            Effect::Ended { receipt } => match self.permits.get(*receipt) {
                Some(lease) if lease.until > now => Some(c"sem.release"),
                _ => Some(c"sem.timeout"),
            },
            Effect::Renewed { .. } | Effect::Drawn { .. } => None,
        }
    }

    fn lifetime(&self, now: Micros) -> Lifetime {
        match self.permits.last_end() {
            _ if self.pinned => Lifetime::Forever,
            // As long as leases that are over are there they are still to be told of.
            Some(end) => Lifetime::Until { full: end.max(now), slack: 0 },
            None => Lifetime::Gone,
        }
    }

    fn memory(&self) -> usize {
        let answers = self.answers.capacity() * size_of::<(Ticket, Answer)>();
        size_of::<Self>() + self.permits.memory() + self.line.memory() + answers
    }

    fn effort(&self) -> usize {
        1 + self.permits.len() / 2 + self.line.len()
    }

    fn duplicate(&self) -> Self {
        let (limit, lease_ms, pinned) = (self.limit, self.lease_ms, self.pinned);
        Self { limit, lease_ms, pinned, permits: self.permits.clone(), ..Self::blank() }
    }
}
