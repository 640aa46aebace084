//! A reply that is kept until a blocked client is told it.

use super::limiter;
use super::writer::Reply;
use crate::engine::shared::waiting::Answer;
use crate::server::error::Error;

/// A reply that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnedReply {
    Int(i64),
    Bulk(Box<[u8]>),
    Nil,
    NilArray,
    Error(Error),
    /// A limiter's.
    Answer(Answer),
    Array(Vec<OwnedReply>),
}

impl OwnedReply {
    pub fn ints(values: &[i64]) -> Self {
        Self::Array(values.iter().map(|n| Self::Int(*n)).collect())
    }

    pub fn bulk(bytes: &[u8]) -> Self {
        Self::Bulk(bytes.into())
    }

    pub fn write(&self, reply: Reply<'_>) {
        match self {
            Self::Int(n) => reply.int(*n),
            Self::Bulk(bytes) => reply.bulk(bytes),
            Self::Nil => reply.nil(),
            Self::NilArray => reply.nil_array(),
            Self::Error(error) => reply.error(error),
            Self::Answer(answer) => limiter::answer(reply, answer),
            Self::Array(items) => {
                reply.array(items.len());
                items.iter().for_each(|item| item.write(reply));
            }
        }
    }
}
