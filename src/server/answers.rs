//! What a client that waited on a limiter is told, as a reply: the same as its command answers at once.

use super::error::Error;
use super::reply::Tree;
use crate::engine::gate::pass::Pass;
use crate::engine::semaphore::Permit;
use crate::engine::waiting::Answer;

pub fn tree(answer: Answer) -> Tree {
    match answer {
        Answer::Six(six) => Tree::ints(&six),
        Answer::Permit(permit) => self::permit(&permit),
        Answer::Pass(pass) => self::pass(&pass),
        Answer::NoLimits => Tree::Error(NO_LIMIT),
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

/// A semaphore's limit was left out, and nobody knows one.
pub const NO_LIMIT: Error = Error::new("ERR no limits: give a limit, or SEM.SET the key first");

/// `[granted, limit, free, retry_after, receipt]`.
pub fn permit(permit: &Permit) -> Tree {
    Tree::Array(vec![
        Tree::Int(permit.granted),
        Tree::Int(permit.limit),
        Tree::Int(permit.free),
        Tree::Int(permit.retry),
        receipt(permit.receipt),
    ])
}

/// `[granted, wait, retry_after, refused_by, receipt, stages]`.
pub fn pass(pass: &Pass) -> Tree {
    let stages = pass.stages.iter().map(|(name, row)| {
        Tree::Array(std::iter::once(Tree::bulk(name)).chain(row.iter().map(|n| Tree::Int(*n))).collect())
    });
    Tree::Array(vec![
        Tree::Int(pass.granted),
        Tree::Int(pass.wait),
        Tree::Int(pass.retry),
        Tree::Array(pass.refused_by.iter().map(|name| Tree::bulk(name)).collect()),
        receipt(pass.receipt),
        Tree::Array(stages.collect()),
    ])
}

fn receipt(receipt: Option<u64>) -> Tree {
    receipt.map_or(Tree::Nil, |r| Tree::Int(i64::try_from(r).unwrap_or(i64::MAX)))
}
