//! One message, in as few bytes as it needs.
//!
//! A message pushed without options that was never claimed is a `Message` alone (56 bytes): its
//! push is when it became ready. All that others have besides, what a delivery adds, and what goes
//! with a state is in a `More`, in a slab of its own.
//!
//! States: `Ready`, `Delayed`, `InFlight` (these are *live*), `Dead`, and `Follower`: a push that
//! waits behind the one in flight with its id (KEEPLAST); it is counted in bytes, but has no place
//! yet, and neither its id nor its group know of it.
//!
//! Invariant: what the `More` keeps is that of the message's state (`Ready`, and only `Ready`, may
//! be without one).

use crate::engine::collections::index;
use crate::engine::collections::slab::NONE;
use crate::engine::names_hash::{of_name, of_number};
use crate::engine::time::Micros;
use serde::{Deserialize, Serialize};

/// An id: a queue's own number, or any bytes. Bytes that are a number as a queue writes it are that
/// number.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Id {
    Num(u64),
    Name(Box<[u8]>),
}

impl Default for Id {
    fn default() -> Self {
        Self::Num(0)
    }
}

/// A borrowed id, and the form in which effects carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum IdRef<'a> {
    Num(u64),
    Name(#[serde(with = "serde_bytes")] &'a [u8]),
}

impl<'a> IdRef<'a> {
    pub fn parse(bytes: &'a [u8]) -> Self {
        number(bytes).map_or(Self::Name(bytes), Self::Num)
    }

    pub fn to_id(self) -> Id {
        match self {
            Self::Num(n) => Id::Num(n),
            Self::Name(bytes) => Id::Name(bytes.into()),
        }
    }

    /// Its hash. Numbers that lie close together share a table of the index, since they are often
    /// pushed, claimed and acked together.
    pub fn hash(self) -> u64 {
        match self {
            Self::Num(n) => of_number(n >> 3) ^ index::apart(n & 7),
            Self::Name(bytes) => of_name(bytes),
        }
    }

    /// Whether it is what [`IdRef::parse`] can return for 1 … 512 bytes.
    pub fn is_sound(self) -> bool {
        match self {
            Self::Num(_) => true,
            Self::Name(bytes) => (1..=512).contains(&bytes.len()) && Self::parse(bytes) == self,
        }
    }
}

impl Id {
    /// The id of the given bytes; 1 … 512 of them is the caller's to check.
    pub fn parse(bytes: &[u8]) -> Self {
        IdRef::parse(bytes).to_id()
    }

    pub fn as_ref(&self) -> IdRef<'_> {
        match self {
            Self::Num(n) => IdRef::Num(*n),
            Self::Name(bytes) => IdRef::Name(bytes),
        }
    }

    /// The bytes of the id; `buffer` serves for a number.
    pub fn text<'a>(&'a self, buffer: &'a mut itoa::Buffer) -> &'a [u8] {
        match self {
            Self::Name(bytes) => bytes,
            Self::Num(n) => buffer.format(*n).as_bytes(),
        }
    }

    pub(super) fn heap(&self) -> usize {
        match self {
            Self::Num(_) => 0,
            Self::Name(bytes) => heap_of(bytes.len()),
        }
    }
}

/// What an allocation of so many bytes takes, roughly: allocators round up to multiples of 16.
pub(super) fn heap_of(bytes: usize) -> usize {
    bytes.div_ceil(16) * 16
}

/// A number as this module writes it: decimal, without a sign or leading zeros.
fn number(bytes: &[u8]) -> Option<u64> {
    /// So many digits always fit.
    const SAFE: usize = 19;
    match bytes {
        [b'0'] => Some(0),
        [b'1'..=b'9', ..] if bytes.len() <= SAFE + 1 => {
            let (head, tail) = bytes.split_at(bytes.len().min(SAFE));
            let mut n = 0u64;
            for d in head.iter().map(|b| b.wrapping_sub(b'0')) {
                if d > 9 {
                    return None;
                }
                n = n * 10 + u64::from(d);
            }
            tail.iter().try_fold(n, |n, b| {
                let d = b.checked_sub(b'0').filter(|d| *d <= 9)?;
                n.checked_mul(10)?.checked_add(u64::from(d))
            })
        }
        _ => None,
    }
}

/// `<id>@<claim>`: what names one delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    pub id: Id,
    pub claim: u64,
}

impl Receipt {
    /// None when the bytes are not `<1 … 512 bytes>@<decimal 1 … 2⁶⁴-1>`; the last `@` divides.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let at = bytes.iter().rposition(|b| *b == b'@')?;
        let (id, claim) = (bytes.get(..at)?, bytes.get(at + 1..)?);
        let claim = number(claim).filter(|n| *n > 0)?;
        (1..=512).contains(&id.len()).then(|| Self { id: Id::parse(id), claim })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    Ready = 0,
    Delayed = 1,
    InFlight = 2,
    Dead = 3,
    Follower = 4,
}

/// The place of a message: the instant it first became ready, and the order in which places were
/// given.
pub type Place = (Micros, u64);

#[derive(Debug, Clone, Default)]
pub struct Message {
    pub id: Id,
    pub payload: Box<[u8]>,
    pub ready_at: Micros,
    seq_low: u32,
    seq_high: u16,
    pub priority: u8,
    bits: u8,
    /// Its group; slot 0: none.
    pub lane: u32,
    /// Its `More`, or NONE.
    pub more: u32,
}

/// Set in `bits` when the DEDUP window of the id is this push's.
const OWNS_WINDOW: u8 = 1 << 3;
/// Set in `bits` of a delayed message that came back.
const RETRY: u8 = 1 << 4;

impl Message {
    pub fn new(id: Id, payload: Box<[u8]>, priority: u8, lane: u32) -> Self {
        let bits = State::Follower as u8;
        Self { id, payload, ready_at: 0, seq_low: 0, seq_high: 0, priority, bits, lane, more: NONE }
    }

    pub fn state(&self) -> State {
        match self.bits & 7 {
            0 => State::Ready,
            1 => State::Delayed,
            2 => State::InFlight,
            3 => State::Dead,
            _ => State::Follower,
        }
    }

    /// Its state and what goes with it, given its `More`.
    pub fn stage(&self, more: Option<&More>) -> Stage {
        let [at, number, other] = more.map_or([0; 3], |x| x.words);
        let (at, since) = (at as i64, other as i64);
        match self.state() {
            State::Ready => Stage::Ready,
            State::Delayed => Stage::Delayed { due: at, retry: self.bits & RETRY != 0 },
            State::InFlight => Stage::InFlight { claim: number, claimed_at: since, deadline: at },
            State::Dead => {
                Stage::Dead { number, died_at: at, older: (other >> 32) as u32, newer: other as u32 }
            }
            State::Follower => Stage::Follower { due: at },
        }
    }

    /// Sets the state; what goes with it is the `More`'s to [keep](More::keep).
    pub fn set_state(&mut self, stage: Stage) {
        let retry = if matches!(stage, Stage::Delayed { retry: true, .. }) { RETRY } else { 0 };
        self.bits = self.bits & OWNS_WINDOW | retry | stage.state() as u8;
    }

    pub fn owns_window(&self) -> bool {
        self.bits & OWNS_WINDOW != 0
    }

    pub fn set_owns_window(&mut self, owns: bool) {
        self.bits = self.bits & !OWNS_WINDOW | if owns { OWNS_WINDOW } else { 0 };
    }

    /// The order in which its place was given; below 2⁴⁸.
    pub fn seq(&self) -> u64 {
        u64::from(self.seq_high) << 32 | u64::from(self.seq_low)
    }

    pub fn place(&self) -> Place {
        (self.ready_at, self.seq())
    }

    pub fn set_place(&mut self, (ready_at, seq): Place) {
        self.ready_at = ready_at;
        self.seq_low = seq as u32;
        self.seq_high = (seq >> 32) as u16;
    }
}

/// What goes with a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    Ready,
    /// `retry`: it came back, rather than being pushed so.
    Delayed {
        due: Micros,
        retry: bool,
    },
    InFlight {
        claim: u64,
        claimed_at: Micros,
        deadline: Micros,
    },
    /// `number`: the order of deaths. Dead ones of the same id are chained, by slot.
    Dead {
        number: u64,
        died_at: Micros,
        #[serde(skip)]
        older: u32,
        #[serde(skip)]
        newer: u32,
    },
    /// When it is due, as its push said; 0: at once.
    Follower {
        due: Micros,
    },
}

impl Stage {
    pub fn state(self) -> State {
        match self {
            Self::Ready => State::Ready,
            Self::Delayed { .. } => State::Delayed,
            Self::InFlight { .. } => State::InFlight,
            Self::Dead { .. } => State::Dead,
            Self::Follower { .. } => State::Follower,
        }
    }
}

/// Options of the message's own, where it has any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Own {
    /// 0: the queue's.
    pub ttl: Micros,
    /// 0: the queue's.
    pub lease: Micros,
    pub max_deliveries: Option<u64>,
    /// From when the TTL counts; 0: from the push (else it was redriven then).
    pub ttl_base: Micros,
}

impl Own {
    pub const NONE: Self = Self { ttl: 0, lease: 0, max_deliveries: None, ttl_base: 0 };
}

#[derive(Debug, Clone, Default)]
pub struct More {
    /// What goes with the state of the message: an instant, a number, another instant or two links.
    /// Read by [`Message::stage`].
    words: [u64; 3],
    pub pushed_at: Micros,
    pub own: Option<Box<Own>>,
    /// Who claimed it last and why it came back last, as names; or NONE.
    pub consumer: u32,
    pub reason: u32,
    pub deliveries: u32,
    pub failures: u32,
    pub timeouts: u32,
    /// What waits behind it (KEEPLAST), or NONE.
    pub follower: u32,
}

impl More {
    pub fn new(pushed_at: Micros) -> Self {
        Self {
            words: [0; 3],
            pushed_at,
            own: None,
            consumer: NONE,
            reason: NONE,
            deliveries: 0,
            failures: 0,
            timeouts: 0,
            follower: NONE,
        }
    }

    pub fn keep(&mut self, stage: Stage) {
        self.words = match stage {
            Stage::Ready => [0; 3],
            Stage::Delayed { due, .. } | Stage::Follower { due } => [due as u64, 0, 0],
            Stage::InFlight { claim, claimed_at, deadline } => [deadline as u64, claim, claimed_at as u64],
            Stage::Dead { number, died_at, older, newer } => {
                [died_at as u64, number, u64::from(older) << 32 | u64::from(newer)]
            }
        };
    }

    pub fn own(&self) -> Own {
        self.own.as_deref().copied().unwrap_or(Own::NONE)
    }

    /// How often it came back counted.
    pub fn counted(&self) -> u64 {
        u64::from(self.failures) + u64::from(self.timeouts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_are_numbers_are_numbers() {
        for (text, num) in
            [("0", true), ("7", true), ("18446744073709551615", true), ("18446744073709551616", false)]
        {
            assert_eq!(matches!(Id::parse(text.as_bytes()), Id::Num(_)), num, "{text}");
        }
        for text in ["00", "07", "-1", "+1", "a", "1 ", "99999999999999999999"] {
            assert!(matches!(Id::parse(text.as_bytes()), Id::Name(_)), "{text}");
        }
        for text in ["0", "10", "18446744073709551615", "x@y"] {
            assert_eq!(Id::parse(text.as_bytes()).text(&mut itoa::Buffer::new()), text.as_bytes());
        }
        assert!(
            !IdRef::Name(b"12").is_sound() && !IdRef::Name(b"").is_sound() && IdRef::Name(b"012").is_sound()
        );
    }

    #[test]
    fn receipts_divide_at_the_last_at() {
        let r = Receipt::parse(b"a@b@12").unwrap();
        assert_eq!((r.id, r.claim), (Id::parse(b"a@b"), 12));
        for bad in ["1", "1@", "@5", "1@x", "1@-5", "1@5 ", "", "1@0", "1@05", "1@18446744073709551616"] {
            assert_eq!(Receipt::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn messages_are_small() {
        assert_eq!((size_of::<Message>(), size_of::<More>()), (56, 64));
        let mut m = Message::new(Id::Num(1), Box::default(), 3, 0);
        m.set_place((5, (1 << 48) - 1));
        m.set_owns_window(true);
        m.set_state(Stage::Dead { number: 1, died_at: 2, older: 3, newer: 4 });
        assert_eq!((m.place(), m.state(), m.owns_window()), ((5, (1 << 48) - 1), State::Dead, true));
        m.set_owns_window(false);
        assert_eq!((m.state(), m.owns_window()), (State::Dead, false));
    }
}
