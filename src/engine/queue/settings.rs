//! SET, PAUSE and RESUME.

use super::Queue;
use super::config::{Config, NO_PAUSE, Pause, Settings};
use super::room::Over;
use super::tokens::Tokens;
use super::wire::Wire;
use crate::engine::journal::Journal;
use crate::engine::time::Micros;

impl Queue {
    /// Changes the configuration. What it makes expire or drop goes, as much as may not be put off.
    pub fn set(&mut self, now: Micros, settings: &Settings, journal: &mut Journal) {
        self.begin_command();
        // Recorded also when nothing changes: on a missing key it makes the queue.
        let config = settings.over(&self.config);
        let tokens = match (self.config.rate, config.rate, self.own_tokens()) {
            (_, None, _) => None,
            (Some(old), Some(new), Some(tokens)) if old == new => Some(tokens),
            (Some(old), Some(new), Some(tokens)) => Some(tokens.change(old, new, now)),
            (_, Some(new), _) => Some(Tokens::full(new, now)),
        };
        if config.ttl != self.config.ttl {
            self.ttl_since = now;
        }
        let bounds = |c: &Config| (c.max_len, c.max_bytes, c.on_full);
        if bounds(&config) != bounds(&self.config) {
            self.over = Over::default();
        }
        journal.record(&Wire::Config(Box::new(config.clone()), now, tokens), []);
        self.configure(config, now, tokens);
        self.apply_most_due(now, journal.left(), journal);
    }

    /// Pauses pushes, claims or both, of a group or the whole queue; an instant that is past lifts
    /// the pause.
    pub fn pause(
        &mut self,
        now: Micros,
        push: bool,
        claim: bool,
        group: Option<&[u8]>,
        pause: Pause,
        journal: &mut Journal,
    ) {
        let kept = match pause {
            Pause::Until(at) if at <= now => NO_PAUSE,
            other => other.kept(),
        };
        self.set_pauses(group, push.then_some(kept), claim.then_some(kept), journal);
    }

    /// Lifts the pauses of a group, or those of the queue as a whole.
    pub fn resume(&mut self, group: Option<&[u8]>, journal: &mut Journal) {
        self.set_pauses(group, Some(NO_PAUSE), Some(NO_PAUSE), journal);
    }

    pub(super) fn set_pauses(
        &mut self,
        group: Option<&[u8]>,
        push: Option<Micros>,
        claim: Option<Micros>,
        journal: &mut Journal,
    ) {
        let lane = self.find_lane(group).and_then(|l| self.lanes.get(l));
        let (is_push, is_claim) = lane.map_or((NO_PAUSE, NO_PAUSE), |l| (l.paused_push, l.paused_claim));
        let push = push.filter(|p| *p != is_push);
        let claim = claim.filter(|c| *c != is_claim);
        if push.is_some() || claim.is_some() {
            journal.record(&Wire::Pause { group, push, claim }, []);
            self.change_pauses(group, push, claim);
        }
    }

    /// Whether something is kept of the group already; of the queue as a whole it always is.
    pub fn knows(&self, group: Option<&[u8]>) -> bool {
        group.is_none() || self.find_lane(group).is_some()
    }

    /// Whether a push (to this group) is refused.
    pub fn push_paused(&self, now: Micros, group: Option<&[u8]>) -> bool {
        self.is_paused(now, group, true)
    }

    /// Whether claims (of this group) get nothing.
    pub fn claim_paused(&self, now: Micros, group: Option<&[u8]>) -> bool {
        self.is_paused(now, group, false)
    }

    fn is_paused(&self, now: Micros, group: Option<&[u8]>, push: bool) -> bool {
        let paused = |group| {
            let lane = self.find_lane(group).and_then(|l| self.lanes.get(l));
            lane.is_some_and(|l| if push { l.paused_push } else { l.paused_claim } > now)
        };
        !self.pause_ends.is_empty() && (paused(None) || group.is_some() && paused(group))
    }
}
