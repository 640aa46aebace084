//! A batch that nobody vouches for is applied whole or not at all, and only what is accepted counts
//! its numbers.

use super::folding::{load, snapshot};
use crate::engine::codec::{Corrupt, FORMAT, encode};
use crate::engine::family::Family;
use crate::engine::fencing::{FencingCounter, MAX_FENCE};
use crate::engine::gate::Gate;
use crate::engine::hot::Hot;
use crate::engine::journal::Journal;
use crate::engine::leaky_bucket::LeakyBucket;
use crate::engine::object::{Lifetime, Object, apply_whole};
use crate::engine::queue::Queue;
use crate::engine::semaphore::{Effect, Semaphore};
use crate::engine::token_bucket::TokenBucket;

fn batch(effects: &[Effect]) -> Vec<u8> {
    let mut head = vec![FORMAT, Family::Semaphore as u8];
    effects.iter().for_each(|e| encode(e, &mut head));
    head
}

fn granted(receipt: u64) -> Effect {
    Effect::Granted { receipt, count: 1, until: 9_000_000, limit: 5, owner: Box::default() }
}

fn whole(s: &mut Semaphore, effects: &[Effect], fencing: &mut FencingCounter) -> Result<(), Corrupt> {
    apply_whole(s, &batch(effects), &Vec::new, fencing)
}

#[test]
fn a_batch_that_is_wrong_at_its_end_changes_nothing() {
    let mut s = Semaphore::blank();
    let mut f = FencingCounter::new();
    whole(&mut s, &[granted(7)], &mut f).unwrap();
    let before = snapshot(&s);
    assert!(whole(&mut s, &[granted(8), Effect::Ended { receipt: 9 }], &mut FencingCounter::new()).is_err());
    assert_eq!(snapshot(&s), before);
    whole(&mut s, &[granted(8), Effect::Ended { receipt: 7 }], &mut f).unwrap();
    assert_eq!(f.last(), 8);
}

#[test]
fn a_number_above_the_bound_is_refused_wherever_it_stands() {
    for receipt in [1_001, MAX_FENCE, MAX_FENCE + 1, u64::MAX] {
        let mut s = Semaphore::blank();
        let effects = [granted(1_000), granted(receipt)];
        assert!(whole(&mut s, &effects, &mut FencingCounter::gather(1_000)).is_err(), "{receipt}");
        assert!(whole(&mut s, &effects[1..], &mut FencingCounter::gather(1_000)).is_err(), "{receipt}");
        assert_eq!(s.lifetime(0), Lifetime::Gone);
        whole(&mut s, &effects[..1], &mut FencingCounter::gather(1_000)).unwrap();
    }
}

#[test]
fn a_blank_object_is_sound() {
    fn of<O: Object>() {
        let mut j = Journal::new(O::FAMILY, true);
        O::blank().snapshot(&mut j, &mut |_| {});
        let mut again = O::blank();
        for batch in j.take() {
            apply_whole(&mut again, &batch.head, &Vec::new, &mut FencingCounter::new()).unwrap();
        }
        assert!(again.check().is_ok(), "{:?}", O::FAMILY);
    }
    of::<TokenBucket>();
    of::<LeakyBucket>();
    of::<Semaphore>();
    of::<Gate>();
    of::<Hot>();
    of::<Queue>();
    // One that became the same as none by a change, as its key had not gone yet.
    let mut bucket = TokenBucket::blank();
    apply_whole(&mut bucket, &[1, 1, 7], &Vec::new, &mut FencingCounter::new()).unwrap();
    assert!(bucket.check().is_ok() && snapshot(&bucket).is_empty());
    assert!(load::<TokenBucket>(&[], &mut FencingCounter::new()).is_err(), "an empty batch is none");
}
