//! One thread that drops what would take long to drop, as the server's own lazy free does: an
//! object that is nobody's any more, and nothing else.
//!
//! It calls no function of the server but the allocator's, which any thread may call, and touches
//! no state of the module. It is started when it is first needed.

use crate::server::ffi::context::Ctx;
use crate::server::ffi::guard::shield;
use std::any::Any;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

type Garbage = Box<dyn Any + Send>;

/// None: there is no thread to be had.
static THREAD: OnceLock<Option<Sender<Garbage>>> = OnceLock::new();

/// What takes more steps than this to drop is dropped by the thread.
const MUCH: usize = 4_096;

/// Drops what takes about so many steps to drop. On the main thread.
pub fn drop_lazily<T: Send + 'static>(garbage: Box<T>, effort: usize) {
    // While the server looks for room it counts what it gets by what it deletes, and would go on
    // deleting.
    if effort > MUCH
        && !Ctx::own().flags().out_of_memory()
        && let Some(thread) = THREAD.get_or_init(start)
    {
        // If the thread is gone the garbage comes back, and is dropped here.
        let _ = thread.send(garbage);
    }
}

fn start() -> Option<Sender<Garbage>> {
    let (sender, receiver): (Sender<Garbage>, Receiver<Garbage>) = channel();
    let run = move || receiver.into_iter().for_each(|garbage| shield(|| drop(garbage), || ()));
    Builder::new().name("sluice-free".into()).spawn(run).ok().map(|_| sender)
}
