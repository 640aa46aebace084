//! Nodes of a cluster, started before they are needed: such a node refuses writes for the first two
//! seconds of its life.
//!
//! Whoever takes one has others started for those who come. A thread of their own keeps them: a
//! server ends with the thread that started it.

use super::server::{Builder, Server};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

/// How many of a kind stand ready, once one was asked for.
const READY: usize = 3;

static STARTED: Mutex<Vec<(String, Server)>> = Mutex::new(Vec::new());
/// The kinds that were asked for, each with how many were ordered and not taken yet.
static ORDERED: Mutex<Vec<(String, usize)>> = Mutex::new(Vec::new());

/// A node of this kind that was started before, if there is one.
pub fn take(builder: &Builder) -> Option<Server> {
    let kind = builder.kind();
    let found = {
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        let at = started.iter().position(|(k, _)| *k == kind);
        at.map(|at| started.remove(at).1)
    };
    let mut ordered = ORDERED.lock().unwrap_or_else(PoisonError::into_inner);
    let at = ordered.iter().position(|(k, _)| *k == kind).unwrap_or_else(|| {
        // A kind that is asked for the first time may never be again.
        ordered.push((kind, usize::MAX));
        ordered.len() - 1
    });
    let count = &mut ordered[at].1;
    match *count {
        usize::MAX => *count = 0,
        _ => {
            *count -= usize::from(found.is_some());
            while *count < READY {
                *count += 1;
                // A starter that is gone starts nothing: then everybody starts their own.
                let _ = starter().send(builder.clone());
            }
        }
    }
    found
}

fn starter() -> &'static Sender<Builder> {
    static STARTER: OnceLock<Sender<Builder>> = OnceLock::new();
    STARTER.get_or_init(|| {
        let (sender, orders) = channel::<Builder>();
        std::thread::spawn(move || {
            for builder in orders {
                let kind = builder.kind();
                if let Ok(server) = builder.anew().launched() {
                    STARTED.lock().unwrap_or_else(PoisonError::into_inner).push((kind, server));
                }
            }
        });
        sender
    })
}
