//! Hash slots of a cluster: which slot a key is in, and whether a command may have all its keys.
//!
//! The server is told of the first key of a command whose keys are counted, and sends the client
//! where that one is. To tell it of the others it would have to call us (`getkeys-api`), which
//! several servers do in an I/O thread, beside the main thread and before AUTH. So we look at the
//! others ourselves, and say what the server says.

use crate::server::error::Error;
use crate::server::ffi::call::{How, call};
use crate::server::ffi::context::Ctx;
use crate::server::ffi::strings::Str;
use std::sync::atomic::{AtomicBool, Ordering};

const SLOTS: u16 = 16_384;

/// Words of the server: clients know them.
const CROSS_SLOT: Error = Error::new("CROSSSLOT Keys in request don't hash to the same slot");
const UNSTABLE: Error = Error::new("TRYAGAIN Multiple keys request during rehashing of slot");

/// Whether `RM_Call` can be asked what a call would meet, without the call (`D`, from 7.2).
static DRY_RUN: AtomicBool = AtomicBool::new(false);

/// CRC16 with polynomial 0x1021 and no start value, by the high byte.
const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut high = 0;
    while high < table.len() {
        let mut crc = (high as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        table[high] = crc;
        high += 1;
    }
    table
};

/// The slot of a key: of what stands between the first `{` and the next `}`, if that is anything,
/// else of the whole.
pub fn of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|b| *b == b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        rest.get(..rest.iter().position(|b| *b == b'}')?).filter(|tag| !tag.is_empty())
    });
    let crc = tag.unwrap_or(key).iter().fold(0_u16, |crc, b| {
        let [high, _] = crc.to_be_bytes();
        crc << 8 ^ TABLE[usize::from(high ^ b)]
    });
    crc % SLOTS
}

/// Looks what this server can be asked. Only within `RedisModule_OnLoad`.
pub fn learn(ctx: Ctx<'_>) {
    // A call that is refused for its arity: by an answer where the dry run is known; else for its
    // format, without one.
    let (reply, _) = call(ctx, c"EXISTS", How::Dry, &[]);
    DRY_RUN.store(reply.is_some(), Ordering::Relaxed);
}

/// Refuses the keys of a running command that a cluster would not let it have together. The server
/// has looked at the first.
pub fn together(ctx: Ctx<'_>, keys: &[Str<'_>]) -> Result<(), Error> {
    let Some((first, others)) = keys.split_first().filter(|(_, others)| !others.is_empty()) else {
        return Ok(());
    };
    if !ctx.flags().cluster() {
        return Ok(());
    }
    let slot = of(first.bytes());
    if others.iter().any(|key| of(key.bytes()) != slot) {
        return Err(CROSS_SLOT);
    }
    if served(ctx, keys) { Ok(()) } else { Err(UNSTABLE) }
}

/// Whether the server would let its own commands have these keys now: while a slot moves key by key
/// some may be here and some there. Nothing is looked up that would be counted as a hit or a miss.
fn served(ctx: Ctx<'_>, keys: &[Str<'_>]) -> bool {
    let dry = DRY_RUN.load(Ordering::Relaxed);
    // Redis 7.0 knows no dry run. To watch keys looks up none of them, and ends with the client of
    // the call, which is made for it.
    let (command, how) = if dry { (c"EXISTS", How::Dry) } else { (c"WATCH", How::Plain) };
    let (reply, _) = call(ctx, command, how, keys);
    // Nothing to say after a dry run; another call was not let through. Some servers answer a dry
    // run that went well, too: with a reply of no kind.
    reply.map_or(dry, |reply| !reply.is_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        // The check value of CRC16/XMODEM, and slots that servers answer to CLUSTER KEYSLOT.
        assert_eq!(of(b"123456789"), 0x31c3 % SLOTS);
        for (key, slot) in [
            ("", 0),
            ("foo", 12182),
            ("bar", 5061),
            ("hello", 866),
            ("a", 15495),
            ("{user1000}.following", 3443),
            ("{user1000}.followers", 3443),
            ("user1000", 3443),
        ] {
            assert_eq!(of(key.as_bytes()), slot, "{key}");
        }
    }

    #[test]
    fn only_a_whole_tag_that_is_not_empty_counts() {
        assert_eq!(of(b"x{foo}y{bar}"), of(b"foo"));
        assert_eq!(of(b"foo{{bar}}zap"), of(b"{bar"));
        for whole in ["foo{}{bar}", "foo{", "foo}", "foo{bar", "}foo{"] {
            let reference = whole.bytes().fold(0_u16, |crc, b| {
                (0..8).rev().fold(crc, |crc, bit| {
                    let xor = (crc >> 15) ^ u16::from(b >> bit & 1);
                    if xor == 1 { crc << 1 ^ 0x1021 } else { crc << 1 }
                })
            });
            assert_eq!(of(whole.as_bytes()), reference % SLOTS, "{whole}");
        }
    }
}
