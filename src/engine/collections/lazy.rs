//! A part of a queue that most queues never need: nothing is allocated for it before it is changed,
//! and a small queue is small.

use crate::engine::footprint::block;
use std::ops::{Deref, DerefMut};

/// What there is a shared empty one of.
pub trait Blank: Sized + 'static {
    const BLANK: &'static Self;

    fn blank() -> Self;
}

#[derive(Debug, Clone)]
pub struct Lazy<T: Blank>(Option<Box<T>>);

impl<T: Blank> Lazy<T> {
    pub const fn new() -> Self {
        Self(None)
    }

    /// It, if it is not the empty one.
    pub fn of(part: T) -> Self
    where
        T: PartialEq,
    {
        Self((part != *T::BLANK).then(|| Box::new(part)))
    }

    /// Bytes on the heap, without what the part itself owns there.
    pub fn memory(&self) -> usize {
        if self.0.is_some() { block(size_of::<T>()) } else { 0 }
    }

    /// Gives it back, if it is there and not needed any more.
    pub fn give_back(&mut self, is_needed: impl FnOnce(&T) -> bool) {
        if self.0.as_deref().is_some_and(|part| !is_needed(part)) {
            self.0 = None;
        }
    }
}

impl<T: Blank> Deref for Lazy<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::BLANK)
    }
}

impl<T: Blank> DerefMut for Lazy<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_with(|| Box::new(T::blank()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Blank for u64 {
        const BLANK: &'static Self = &0;

        fn blank() -> Self {
            0
        }
    }

    #[test]
    fn nothing_is_allocated_before_it_is_changed() {
        let mut part = Lazy::<u64>::new();
        assert_eq!((*part, part.memory()), (0, 0));
        *part += 1;
        part.give_back(|n| *n > 0);
        assert_eq!((*part, part.memory()), (1, 16));
        part.give_back(|n| *n > 1);
        assert_eq!((*part, part.memory()), (0, 0));
    }
}
