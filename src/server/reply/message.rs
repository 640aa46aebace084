//! Messages of a queue as `[id, receipt, deliveries, payload]`: written at once, or kept for a
//! client that has waited. Both are made while the queue still has the payloads.

use super::owned::OwnedReply;
use super::writer::Reply;
use crate::engine::queue::{Delivery, Queue};

/// Writes messages.
pub fn messages(reply: Reply<'_>, queue: &Queue, deliveries: &[Delivery]) {
    reply.array(deliveries.len());
    let mut buffer = itoa::Buffer::new();
    for delivery in deliveries {
        let id = delivery.id.text(&mut buffer);
        reply.array(4);
        reply.bulk(id);
        match delivery.claim {
            Some(claim) => reply.receipt(id, claim),
            None => reply.nil(),
        }
        reply.int(i64::try_from(delivery.deliveries).unwrap_or(i64::MAX));
        reply.bulk(queue.payload(delivery));
    }
}

/// One message, kept.
pub fn kept(queue: &Queue, delivery: &Delivery) -> OwnedReply {
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
