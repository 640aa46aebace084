//! The one place that turns effects into bytes and back: serde + bincode (variable-length integers,
//! little endian).
//!
//! A *carried* effect batch is `[FORMAT, family, effect, effect, …]`. It is what `SLUICE.APPLY`
//! takes, what an AOF holds and, chunk by chunk, what an RDB file holds. Decoding trusts nothing:
//! the format byte is checked, every read is limited, bytes left over are an error, and each family
//! checks the sense of what it read.

use super::time::{MAX_INSTANT, Micros};
use serde::{Deserialize, Deserializer, Serialize};

/// The version of everything this module writes. A newer one is refused, older ones stay readable.
pub const FORMAT: u8 = 1;

/// One effect may claim no more than this many bytes; writers start a new effect long before.
const LIMIT: usize = 16 << 20;

type Config = bincode::config::Configuration<
    bincode::config::LittleEndian,
    bincode::config::Varint,
    bincode::config::Limit<LIMIT>,
>;
const CONFIG: Config = bincode::config::standard().with_limit::<LIMIT>();

/// The bytes are not what this module writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt(pub &'static str);

/// Checks an instant that nobody vouches for.
pub fn instant(at: Micros) -> Result<(), Corrupt> {
    if (0..=MAX_INSTANT).contains(&at) { Ok(()) } else { Err(Corrupt("instant out of range")) }
}

/// Reads bytes without trusting their length: only what is there is allocated.
pub fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Box<[u8]>, D::Error> {
    <&serde_bytes::Bytes>::deserialize(from).map(|bytes| (**bytes).into())
}

/// Appends the encoded value.
pub fn encode<T: Serialize>(value: &T, out: &mut Vec<u8>) {
    // Writing to a Vec fails only if `value`'s own Serialize fails; ours are derived. A partial
    // write must still never be carried, so it is taken back: the reader then sees a shorter,
    // well-formed batch.
    let start = out.len();
    if bincode::serde::encode_into_std_write(value, out, CONFIG).is_err() {
        out.truncate(start);
    }
}

/// Reads values one after the other from bytes nobody vouches for.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn byte(&mut self) -> Result<u8, Corrupt> {
        let (first, rest) = self.rest.split_first().ok_or(Corrupt("too short"))?;
        self.rest = rest;
        Ok(*first)
    }

    pub fn read<T: Deserialize<'a>>(&mut self) -> Result<T, Corrupt> {
        let (value, used) = bincode::serde::borrow_decode_from_slice(self.rest, CONFIG)
            .map_err(|_| Corrupt("undecodable effect"))?;
        self.rest = self.rest.get(used..).ok_or(Corrupt("too short"))?;
        Ok(value)
    }
}
