//! Tests of the queue: examples, random histories beside a naive model (which are also folded
//! through their effects), with what is due put off, damaged bytes.

mod audit;
mod examples;
mod fold;
mod golden;
mod histories;
mod hostile;
mod lagging;
mod model;
mod renumber;
mod torso;
