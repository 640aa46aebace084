//! Examples that say what a queue is for.
