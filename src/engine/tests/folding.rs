//! An object told in bytes, read back from them, and read from damaged ones: for the families whose
//! effects bring no payloads.

use crate::engine::codec::Corrupt;
use crate::engine::fencing::FencingCounter;
use crate::engine::journal::Journal;
use crate::engine::object::{Object, apply_batch};
use proptest::prelude::*;
use proptest::sample::Index;

/// The whole state. It stays below one full batch in these tests, so it is also a batch of its own.
pub fn snapshot<O: Object>(o: &O) -> Vec<u8> {
    let mut j = Journal::new(O::FAMILY, true);
    o.snapshot(&mut j, &mut |_| {});
    j.take().into_iter().flat_map(|b| b.head).collect()
}

/// What a server does with a snapshot.
pub fn load<O: Object>(bytes: &[u8], fencing: &mut FencingCounter) -> Result<O, Corrupt> {
    let mut o = O::blank();
    apply_batch(&mut o, bytes, &mut std::iter::empty(), fencing)?;
    o.check()?;
    Ok(o)
}

/// A few bytes overwritten, and where the rest is cut off.
#[derive(Debug, Clone)]
pub struct Damage {
    flips: Vec<(Index, u8)>,
    cut: Index,
}

pub fn any_damage() -> impl Strategy<Value = Damage> {
    let flips = prop::collection::vec((any::<Index>(), any::<u8>()), 1..4);
    (flips, any::<Index>()).prop_map(|(flips, cut)| Damage { flips, cut })
}

impl Damage {
    /// Loads the damaged bytes (not none), once in full length and once cut short, and answers what
    /// was accepted: the test then uses it, as it must be sound.
    pub fn accepted<O: Object>(&self, mut bytes: Vec<u8>) -> impl Iterator<Item = O> + use<O> {
        for (at, value) in &self.flips {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        let shorter = bytes[..self.cut.index(bytes.len() + 1)].to_vec();
        [bytes, shorter].into_iter().filter_map(|bytes| load(&bytes, &mut FencingCounter::new()).ok())
    }
}
