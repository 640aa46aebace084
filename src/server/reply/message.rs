//! One message of a queue, as a reply that is kept.

use super::owned::OwnedReply;
use crate::engine::queue::{Delivery, Queue};

/// One message as a reply.
pub fn message(queue: &Queue, delivery: &Delivery) -> OwnedReply {
    let mut buffer = itoa::Buffer::new();
    let id = delivery.id.text(&mut buffer);
    let receipt = delivery.claim.map_or(OwnedReply::Nil, |claim| {
        let mut text = id.to_vec();
        text.extend_from_slice(format!("@{claim}").as_bytes());
        OwnedReply::Bulk(text.into())
    });
    OwnedReply::Array(vec![
        OwnedReply::bulk(id),
        receipt,
        OwnedReply::Int(i64::try_from(delivery.deliveries).unwrap_or(i64::MAX)),
        OwnedReply::bulk(queue.payload(delivery)),
    ])
}
