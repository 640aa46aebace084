//! The families of objects: what marks their effects, and what their commands begin with.

/// The families, with the number that marks their effects. Numbers are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Family {
    TokenBucket = 1,
    LeakyBucket = 2,
    Semaphore = 3,
    Gate = 4,
    Hot = 5,
    Queue = 6,
}

impl Family {
    pub const ALL: [Self; 6] =
        [Self::TokenBucket, Self::LeakyBucket, Self::Semaphore, Self::Gate, Self::Hot, Self::Queue];

    /// What its commands begin with, in small letters.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::TokenBucket => "tb",
            Self::LeakyBucket => "lb",
            Self::Semaphore => "sem",
            Self::Gate => "gate",
            Self::Hot => "hot",
            Self::Queue => "rq",
        }
    }

    /// Whether clients wait for messages of this family by key, whether or not there is a key.
    pub fn queue(self) -> bool {
        self == Self::Queue
    }
}
