//! RQ.PUSH and RQ.MPUSH.

use super::options::{self};
use crate::engine::queue::{Id, Queue, Refusal};
use crate::server::command::call::Call;
use crate::server::config;
use crate::server::error::Error;
use crate::server::reply::writer::Reply;

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Paused => Self::new("PAUSED pushing is paused"),
            Refusal::Full => Self::new("QFULL the queue is full"),
            Refusal::Numbers => Self::new("ERR the queue has no own numbers left: give an ID"),
        }
    }
}

fn reply_id(reply: Reply<'_>, id: &Id) {
    reply.bulk(id.text(&mut itoa::Buffer::new()));
}

fn check_payload(payload: &[u8]) -> Result<(), Error> {
    let most = config::max_payload();
    if payload.len() > most {
        return Err(Error::of(format!("ERR payload must be at most {most} bytes (sluice.max-payload)")));
    }
    Ok(())
}

pub fn push(call: &Call<'_>) -> Result<(), Error> {
    const PAYLOAD: usize = 2;
    let mut args = call.args();
    args.next("key")?;
    let payload = args.next("payload")?;
    let (options, id) = options::push(&mut args, call.now(), true)?;
    check_payload(payload)?;
    let pushed = call.change::<Queue, _>(1, |queue, now, journal| {
        queue.push(now, payload, PAYLOAD, id.map(Id::parse), &options, journal)
    })?;
    match pushed? {
        Some(id) => reply_id(call.reply(), &id),
        None => call.reply().nil(),
    }
    Ok(())
}

pub fn mpush(call: &Call<'_>) -> Result<(), Error> {
    let mut args = call.args();
    args.next("key")?;
    let n = usize::try_from(args.count("n")?).unwrap_or(usize::MAX);
    let first = args.position();
    args.skip(n, "payloads")?;
    let (options, _) = options::push(&mut args, call.now(), false)?;
    let payloads: Vec<&[u8]> = (first..first + n).map(|i| call.arg(i)).collect();
    payloads.iter().try_for_each(|p| check_payload(p))?;
    let pushed = call
        .change::<Queue, _>(1, |queue, now, journal| queue.mpush(now, &payloads, first, &options, journal))?;
    let (ids, reply) = (pushed?, call.reply());
    reply.array(ids.len());
    ids.iter().for_each(|id| reply_id(reply, id));
    Ok(())
}
