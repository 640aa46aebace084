//! The table of `RQ.*`: flags, keys, syntax and docs. The handlers are in the other files of this
//! folder.

use super::{claim, look, many, push, receipts, settings};
use crate::server::command::register::{Command, KeyUse, Keys, Registrar, commands};

/// Registers the family.
pub fn register(r: &Registrar<'_>) -> Result<(), String> {
    const PUSH: &str = "[DELAY ms | AT unix-ms] [PRIORITY n] [GROUP group] [TTL ms] [LEASE ms] [MAXDELIVERIES n] [DEDUP ms] \
                        [ONDUP (REJECT | REPLACE | KEEPLAST)]";
    const CLAIM: &str = "[COUNT n] [LEASE ms] [CONSUMER name] [GROUP group] [MAXBYTES n] [NOACK] [BLOCK ms]";
    const STATE: &str = "(READY | DELAYED | INFLIGHT | DEAD)";
    const RATE: &str = "(NONE | tokens per-ms capacity)";
    let row = |name, flags, keys, syntax: &str, summary, complexity| Command {
        name,
        flags,
        keys,
        syntax: syntax.to_owned().leak(),
        summary,
        complexity,
    };
    let (update, read, insert) =
        (Keys::First(KeyUse::Update), Keys::First(KeyUse::Read), Keys::First(KeyUse::Insert));
    let write = Keys::First(KeyUse::Write);
    let log = "O(log n) with n messages";
    let batch = "O(m log n) for m messages of n";
    commands!(r;
        push::push => row(
            "rq.push",
            "write deny-oom fast",
            insert,
            &format!("key payload [ID id] {PUSH}"),
            "Adds a message to a queue.",
            log,
        ),
        push::mpush => row(
            "rq.mpush",
            "write deny-oom",
            insert,
            &format!("key n payload... {PUSH}"),
            "Adds several messages to a queue, all or none.",
            batch,
        ),
        claim::claim => row(
            "rq.claim",
            "write fast blocking",
            update,
            &format!("key {CLAIM}"),
            "Hands out the next messages under a lease, with a receipt each.",
            batch,
        ),
        claim::mclaim => row(
            "rq.mclaim",
            "write blocking",
            Keys::Counted(KeyUse::Update),
            &format!("numkeys key... {CLAIM}"),
            "Claims from the first of several queues that has messages.",
            "O(k + m log n) for m messages of k keys",
        ),
        receipts::ack => row("rq.ack", "write fast", write, "key receipt...", "Completes messages: they are gone.", batch),
        receipts::nack => row(
            "rq.nack",
            "write fast",
            write,
            "key [DELAY ms] [BACK] [NOCOUNT] [DEAD] [REASON text] RECEIPTS n receipt...",
            "Gives messages back: ready again, delayed, or dead.",
            batch,
        ),
        receipts::extend => row(
            "rq.extend",
            "write fast",
            write,
            "key ms receipt...",
            "Moves the ends of leases to now + ms.",
            batch,
        ),
        claim::next => row(
            "rq.next",
            "write fast blocking",
            update,
            &format!("key RECEIPTS n receipt... {CLAIM}"),
            "Completes messages and claims the next in one step.",
            batch,
        ),
        many::requeue => row(
            "rq.requeue",
            "write",
            write,
            "key [STALE ms | CONSUMER name | ALL] [COUNT n]",
            "Makes messages in flight ready at once; their receipts die.",
            batch,
        ),
        many::redrive => row(
            "rq.redrive",
            "write",
            write,
            "key [IDS n id...] [COUNT n] [DELAY ms]",
            "Makes dead messages ready again, with fresh counters.",
            batch,
        ),
        many::del => row("rq.del", "write", write, "key id...", "Deletes messages by id, whatever their state.", batch),
        many::purge => row(
            "rq.purge",
            "write",
            write,
            "key (READY | DELAYED | DEAD | ALL) [COUNT n]",
            "Deletes the messages of a state; those in flight stay.",
            batch,
        ),
        look::get => row("rq.get", "readonly fast", read, "key id", "Tells everything about a message.", log),
        look::list => row(
            "rq.list",
            "readonly",
            read,
            &format!("key {STATE} [GROUP group] [NOPAYLOAD] [CURSOR cursor] [COUNT n]"),
            "Lists the messages of a state, page by page.",
            "O(log n + m) for a page of m messages; with GROUP up to 1,000 others are looked at",
        ),
        look::len => row(
            "rq.len",
            "readonly fast",
            read,
            "key [READY | DELAYED | INFLIGHT | DEAD]",
            "Counts the messages of a state, or all live ones.",
            "O(1)",
        ),
        look::info => row(
            "rq.info",
            "readonly",
            read,
            "key",
            "Tells a queue's settings, counts and totals.",
            "O(g) with g groups",
        ),
    );
    let set = format!(
        "key [LEASE ms] [MAXDELIVERIES n] [BACKOFF (NONE | FIXED ms | EXP base max)] [MAXLEN n] [MAXBYTES n] \
         [ONFULL (REJECT | DROPOLD)] [MAXINFLIGHT n] [GROUPINFLIGHT n] [RATE {RATE}] [GROUPRATE {RATE}] [DEDUP ms] [MAXDEAD n] \
         [TTL ms] [AGING ms]"
    );
    r.add_with_arity(
        &row(
            "rq.set",
            "write",
            write,
            &set,
            "Changes a queue's settings, all or none.",
            "O(1), more when bounds are lowered",
        ),
        -4,
        settings::set,
    )?;
    commands!(r;
        settings::pause => row(
            "rq.pause",
            "write fast",
            write,
            "key [PUSH | CLAIM] [GROUP group] [UNTIL unix-ms]",
            "Pauses pushes, claims or both, of a queue or of one group.",
            "O(1)",
        ),
        settings::resume => row("rq.resume", "write fast", write, "key [GROUP group]", "Lifts a pause.", "O(1)"),
        many::r#move => row(
            "rq.move",
            "write",
            Keys::FirstAndSecond,
            "src dst (READY | DEAD) [COUNT n]",
            "Moves messages to another queue, in order.",
            batch,
        ),
    );
    Ok(())
}
