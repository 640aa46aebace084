//! The replies of limiters: the same whether their command answers at once or a client that waited
//! is told.

use super::writer::Reply;
use crate::engine::shared::pass::Pass;
use crate::engine::shared::waiting::{Answer, Permit};
use crate::server::error::Error;

/// A semaphore's limit was left out, and nobody knows one.
pub const NO_LIMIT: Error = Error::new("ERR no limits: give a limit, or SEM.SET the key first");

pub fn answer(reply: Reply<'_>, answer: &Answer) {
    match answer {
        Answer::Six(six) => reply.ints(six),
        Answer::Permit(permit) => self::permit(reply, permit),
        Answer::Pass(pass) => self::pass(reply, pass),
        Answer::NoLimits => reply.error(&NO_LIMIT),
    }
}

pub fn granted(answer: &Answer) -> bool {
    match answer {
        Answer::Six(six) => six[0] > 0,
        Answer::Permit(permit) => permit.granted > 0,
        Answer::Pass(pass) => pass.granted > 0,
        Answer::NoLimits => false,
    }
}

/// `[granted, limit, free, retry_after, receipt]`.
pub fn permit(reply: Reply<'_>, permit: &Permit) {
    reply.array(5);
    [permit.granted, permit.limit, permit.free, permit.retry].into_iter().for_each(|n| reply.int(n));
    receipt(reply, permit.receipt);
}

/// `[granted, wait, retry_after, refused_by, receipt, stages]`.
pub fn pass(reply: Reply<'_>, pass: &Pass) {
    reply.array(6);
    [pass.granted, pass.wait, pass.retry].into_iter().for_each(|n| reply.int(n));
    reply.array(pass.refused_by.len());
    pass.refused_by.iter().for_each(|name| reply.bulk(name));
    receipt(reply, pass.receipt);
    reply.array(pass.stages.len());
    for (name, row) in &pass.stages {
        reply.array(1 + row.len());
        reply.bulk(name);
        row.iter().for_each(|n| reply.int(*n));
    }
}

fn receipt(reply: Reply<'_>, receipt: Option<u64>) {
    match receipt {
        Some(receipt) => reply.int(i64::try_from(receipt).unwrap_or(i64::MAX)),
        None => reply.nil(),
    }
}
