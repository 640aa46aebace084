//! The key by which names are hashed differs from process to process: nothing but the order in hash
//! tables may depend on it.

use super::{journal, no_numbers};
use crate::engine::bucket::Limits;
use crate::engine::family::Family;
use crate::engine::hot::Hot;
use crate::engine::journal::{Batch, Journal};
use crate::engine::names_hash::tests::with_another_key;
use crate::engine::object::Object;
use crate::engine::queue::{
    ClaimOptions, Id, Movable, Pause, PushOptions, Queue, Receipt, Scope, Settings, Which,
};

const NOW: i64 = 1_900_000_000_000_000;

/// What is told and carried on the way, and the whole state at the end.
type Told = (Vec<String>, Vec<Vec<Batch>>);

fn whole<O: Object>(object: &O) -> Vec<Batch> {
    let (mut journal, mut all) = (Journal::new(O::FAMILY, true), vec![]);
    object.snapshot(&mut journal, &mut |j| all.extend(j.take()));
    all.extend(journal.take());
    all
}

fn subjects() -> Told {
    let (mut told, mut hot, mut j) = (vec![], Hot::blank(), journal(Family::Hot, true));
    let limits = |capacity| Limits::new(capacity, 1, 60_000).unwrap();
    hot.set(limits(10), 400, NOW, &mut j);
    for i in 0..2_000i64 {
        let name = format!("user:{}", i * 7919 % 700);
        let now = NOW + i * 1_000;
        if i % 50 == 0 {
            hot.except(name.as_bytes(), limits(20 + i), now, &mut j).unwrap();
        }
        told.push(format!("{:?}", hot.take(name.as_bytes(), 1 + i % 3, i % 2 == 0, now, &mut j)));
    }
    hot.set(limits(7), 100, NOW + 3_000_000, &mut j);
    while !hot.apply_due(NOW + 3_000_000, 7, &mut j) {}
    told.push(format!("{:?} {:?}", hot.top(100, NOW), hot.info(NOW)));
    (told, vec![j.take(), whole(&hot)])
}

fn messages() -> Told {
    no_numbers();
    let (mut told, mut queue, mut other) = (vec![], Queue::blank(), Queue::blank());
    let (mut j, mut of_other) = (journal(Family::Queue, true), journal(Family::Queue, true));
    let settings = Settings { max_deliveries: Some(2), dedup: Some(9_000_000), ..Settings::default() };
    queue.set(NOW, &settings, &mut j);
    for i in 0..1_500u64 {
        let (group, id) = (format!("tenant:{}", i % 40), format!("job:{}", i % 900));
        let options =
            PushOptions { group: (i % 3 > 0).then_some(group.as_bytes()), ..PushOptions::default() };
        let id = (i % 4 > 0).then(|| Id::parse(id.as_bytes()));
        told.push(format!("{:?}", queue.push(NOW, b"x", 0, id, &options, &mut j)));
    }
    queue.pause(NOW, true, false, Some(b"tenant:7"), Pause::Forever, &mut j);
    for i in 0..200 {
        let (now, consumer) = (NOW + i * 1_000, format!("worker:{}", i % 30));
        let claim = ClaimOptions { count: 5, consumer: Some(consumer.as_bytes()), ..ClaimOptions::default() };
        let taken: Vec<Receipt> = queue
            .claim(now, &claim, &mut j)
            .into_iter()
            .map(|d| Receipt { id: d.id, claim: d.claim.unwrap() })
            .collect();
        told.push(format!("{taken:?}"));
        told.push(format!("{:?}", queue.ack(now, &taken[..taken.len() / 2], &mut j)));
    }
    told.push(format!("{:?}", queue.requeue(NOW + 9, Which::All, 100, &mut j)));
    while !queue.apply_due(NOW + 60_000_000, 7, &mut j) {}
    let now = NOW + 61_000_000;
    told.push(format!("{:?}", queue.purge(Scope::Ready, Some(20), &mut j)));
    queue.move_to(&mut other, now, Movable::Ready, 50, &mut j, &mut of_other);
    told.push(format!("{:?}", queue.info(now)));
    (told, vec![j.take(), of_other.take(), whole(&queue), whole(&other)])
}

#[test]
fn another_key_changes_nothing_that_anybody_sees() {
    for history in [subjects, messages] {
        let (here, there) = (history(), with_another_key(history));
        assert!(here.0.iter().zip(&there.0).all(|(a, b)| a == b), "replies");
        assert!(here.1 == there.1, "what is carried, and what is kept");
    }
}
