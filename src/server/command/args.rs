//! Reads a command's arguments: required ones by position, options by name, in any order, each at
//! most once, any letter case.
//!
//! Arguments are bytes: nothing assumes text. Integers are decimal as Redis reads them: no sign
//! `+`, no spaces, no leading zeros, no `-0`.

use crate::engine::time::{MAX_DURATION_MS, MAX_INSTANT_MS};
use crate::server::error::Error;
use crate::server::ffi::strings::Str;
use crate::server::words::parse_int;

pub use crate::engine::bucket::MAX_COUNT;
pub use crate::server::words::is;

/// A cursor over the arguments of a running command.
#[derive(Clone)]
pub struct Args<'a> {
    argv: &'a [Str<'a>],
    at: usize,
}

impl<'a> Args<'a> {
    pub fn new(argv: &'a [Str<'a>], at: usize) -> Self {
        Self { argv, at }
    }

    /// The index (in the whole command) of the argument that `next` would return.
    pub fn position(&self) -> usize {
        self.at
    }

    pub fn left(&self) -> usize {
        self.argv.len().saturating_sub(self.at)
    }

    pub fn more(&self) -> bool {
        self.at < self.argv.len()
    }

    pub fn peek(&self) -> Option<&'a [u8]> {
        self.argv.get(self.at).map(|word| word.bytes())
    }

    pub fn next(&mut self, what: &str) -> Result<&'a [u8], Error> {
        let value = self.peek().ok_or_else(|| Error::missing(what))?;
        self.at += 1;
        Ok(value)
    }

    /// The next option's name, None at the end.
    pub fn option(&mut self) -> Option<&'a [u8]> {
        let word = self.peek()?;
        self.at += 1;
        Some(word)
    }

    /// Skips `n` arguments that are read by their position.
    pub fn skip(&mut self, n: usize, what: &str) -> Result<(), Error> {
        if n > self.left() {
            return Err(Error::of(format!("ERR syntax error: {n} {what} announced, {} given", self.left())));
        }
        self.at += n;
        Ok(())
    }

    /// Nothing may be left.
    pub fn end(&self) -> Result<(), Error> {
        self.peek().map_or(Ok(()), |word| Err(Error::unknown_option(word, "no more arguments")))
    }

    pub fn int(&mut self, name: &str, low: i64, high: i64) -> Result<i64, Error> {
        let value = self.next(name)?;
        parse_int(value).filter(|n| (low..=high).contains(n)).ok_or_else(|| Error::range(name, low, high))
    }

    /// A capacity, cost or count: 1 … 10¹².
    pub fn count(&mut self, name: &str) -> Result<i64, Error> {
        self.int(name, 1, MAX_COUNT)
    }

    /// A duration in ms, from `low`.
    pub fn duration(&mut self, name: &str, low: i64) -> Result<i64, Error> {
        self.int(name, low, MAX_DURATION_MS)
    }

    /// An instant in unix ms.
    pub fn instant(&mut self, name: &str) -> Result<i64, Error> {
        self.int(name, 0, MAX_INSTANT_MS)
    }

    /// A name of 1 … 512 bytes.
    pub fn label(&mut self, name: &str) -> Result<&'a [u8], Error> {
        const LONGEST: usize = 512;
        let value = self.next(name)?;
        if value.is_empty() || value.len() > LONGEST {
            Err(Error::length(name, 1, LONGEST))
        } else {
            Ok(value)
        }
    }
}

/// Keeps an option's value; an option may stand only once.
pub fn once<T>(slot: &mut Option<T>, name: &str, value: T) -> Result<(), Error> {
    if slot.replace(value).is_some() { Err(Error::repeated(name)) } else { Ok(()) }
}

/// Notes an option without a value; an option may stand only once.
pub fn flag(slot: &mut bool, name: &str) -> Result<(), Error> {
    if std::mem::replace(slot, true) { Err(Error::repeated(name)) } else { Ok(()) }
}
