//! Several changes in one carried command: what one call of the server changed in several keys, or
//! in one key by several batches, reaches a replica and an AOF whole or not at all, whatever is cut
//! off.
//!
//! It is a `SLUICE.APPLY key expire head argument …` whose head has [`UNIT`] in the place of the
//! family and then a list of [`Part`]s. They are done in order, and take the arguments they need in
//! order. The first parts are for the command's own key, in its database.

use super::codec::{Corrupt, FORMAT, Reader, encode};
use super::time::MAX_INSTANT_MS;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Where a batch has its family. No family has this number.
pub const UNIT: u8 = 0;

/// One entry of the head.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// What follows is for keys of this database.
    Database(u32),
    /// What follows is for the key that the next argument names.
    Key,
    /// The next argument is the head of a batch for the key, and so many payloads follow it.
    /// `expire` as in `SLUICE.APPLY`.
    Effects { expire: i64, blobs: u64 },
    /// The key of a family gets this TTL (unix ms), or loses it (-1).
    Expires { family: u8, at: i64 },
    /// The key goes.
    Gone,
}

/// The head of a unit, without any part yet.
pub fn head() -> Vec<u8> {
    vec![FORMAT, UNIT]
}

/// Adds a part to a head.
pub fn add(part: &Part, head: &mut Vec<u8>) {
    encode(part, head);
}

pub fn is_unit(head: &[u8]) -> bool {
    matches!(head, [FORMAT, UNIT, ..])
}

/// A part that was read, with the positions of its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Database(i32),
    Key(usize),
    Effects { expire: i64, head: usize, blobs: Range<usize> },
    Expires { family: u8, at: i64 },
    Gone,
}

/// Reads a head, whose arguments have these positions and which nobody vouches for: all of it is
/// checked before anything is done.
pub fn read(head: &[u8], arguments: Range<usize>) -> Result<Vec<Step>, Corrupt> {
    let mut input = Reader::new(head);
    if input.byte()? != FORMAT || input.byte()? != UNIT {
        return Err(Corrupt("not a unit"));
    }
    let mut next = arguments.start;
    let mut take = |n: u64| {
        let begin = next;
        let n = usize::try_from(n).map_err(|_| Corrupt("too few arguments"))?;
        next =
            begin.checked_add(n).filter(|end| *end <= arguments.end).ok_or(Corrupt("too few arguments"))?;
        Ok(begin..next)
    };
    let instant =
        |ms: i64| (-1..=MAX_INSTANT_MS).contains(&ms).then_some(ms).ok_or(Corrupt("not an instant"));
    let mut steps = Vec::new();
    while !input.is_empty() {
        steps.push(match input.read()? {
            Part::Database(db) => Step::Database(i32::try_from(db).map_err(|_| Corrupt("no such database"))?),
            Part::Key => Step::Key(take(1)?.start),
            Part::Effects { expire, blobs } => {
                Step::Effects { expire: instant(expire)?, head: take(1)?.start, blobs: take(blobs)? }
            }
            Part::Expires { family, at } => Step::Expires { family, at: instant(at)? },
            Part::Gone => Step::Gone,
        });
    }
    if steps.is_empty() || next != arguments.end {
        return Err(Corrupt("arguments left over"));
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(parts: &[Part]) -> Vec<u8> {
        let mut bytes = head();
        parts.iter().for_each(|part| add(part, &mut bytes));
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = written(&[
            Part::Effects { expire: 0, blobs: 2 },
            Part::Key,
            Part::Effects { expire: -1, blobs: 0 },
            Part::Expires { family: 1, at: 1_900_000_000_000 },
            Part::Database(3),
            Part::Key,
            Part::Gone,
        ]);
        assert!(is_unit(&bytes));
        let steps = [
            Step::Effects { expire: 0, head: 0, blobs: 1..3 },
            Step::Key(3),
            Step::Effects { expire: -1, head: 4, blobs: 5..5 },
            Step::Expires { family: 1, at: 1_900_000_000_000 },
            Step::Database(3),
            Step::Key(5),
            Step::Gone,
        ];
        assert_eq!(read(&bytes, 0..6).as_deref(), Ok(&steps[..]));
        assert_eq!(read(&bytes, 4..10).map(|steps| steps[1].clone()), Ok(Step::Key(7)));
        // Bytes that are stored: they stay what they are.
        assert_eq!(&bytes[..6], [1, 0, 2, 0, 2, 1]);
    }

    #[test]
    fn too_few_and_too_many_arguments_are_refused() {
        let bytes = written(&[Part::Effects { expire: 0, blobs: 2 }]);
        for arguments in [0, 1, 2, 4] {
            assert!(read(&bytes, 0..arguments).is_err(), "{arguments}");
        }
        let huge = written(&[Part::Key, Part::Effects { expire: 0, blobs: u64::MAX }]);
        assert!(read(&huge, 0..3).is_err());
        assert!(read(&head(), 0..0).is_err(), "a unit without a part");
        assert!(read(&written(&[Part::Database(u32::MAX), Part::Gone]), 0..0).is_err());
        assert!(read(&written(&[Part::Expires { family: 1, at: -2 }]), 0..0).is_err());
        assert!(read(&[2, 0, 4], 0..0).is_err(), "another format");
    }

    proptest! {
        #[test]
        fn nothing_that_is_read_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..64), arguments in 0..9usize) {
            let _ = read(&bytes, 0..arguments);
            bytes.splice(0..0, head());
            if let Ok(steps) = read(&bytes, 0..arguments) {
                for step in steps {
                    match step {
                        Step::Key(at) => prop_assert!(at < arguments),
                        Step::Effects { head, blobs, .. } => prop_assert!(head < arguments && blobs.end <= arguments),
                        _ => {}
                    }
                }
            }
        }
    }
}
