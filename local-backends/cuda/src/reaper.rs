//! A thread that frees memory and, at last, the context: both wait for what the card does, and nobody else should.

use cudarc::driver::{result, sys};
use outboard_core::Slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A context of the driver's, for other threads.
#[derive(Clone, Copy)]
pub(crate) struct Context(pub(crate) sys::CUcontext);

// SAFETY: a handle that any thread may use.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Memory that is given back.
enum Freed {
    OfDevice(sys::CUdeviceptr),
    OfHost(usize),
    /// Memory of another context, which this one may write to until it ends.
    Kept(Slice),
}

/// What gives memory to the thread. When it is dropped, the context ends behind what was given.
pub(crate) struct Reaper {
    sender: Mutex<Sender<Freed>>,
    waiting: Arc<AtomicUsize>,
}

impl Reaper {
    /// Takes over a context.
    pub(crate) fn start(context: Context, id: &str) -> std::io::Result<Reaper> {
        let (sender, receiver) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = waiting.clone();
        let work = move || run(context, &receiver, &left);
        std::thread::Builder::new().name(format!("{id} memory")).spawn(work)?;
        Ok(Reaper { sender: Mutex::new(sender), waiting })
    }

    /// Frees memory of the device, which nothing uses any more.
    pub(crate) fn free(&self, address: sys::CUdeviceptr) {
        self.give(Freed::OfDevice(address));
    }

    /// Frees pinned memory of the host.
    pub(crate) fn free_host(&self, place: *mut u8) {
        self.give(Freed::OfHost(place as usize));
    }

    /// Keeps memory of another context until this one has ended.
    pub(crate) fn keep(&self, of_other: Slice) {
        self.give(Freed::Kept(of_other));
    }

    fn give(&self, freed: Freed) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        // The thread lives as long as this.
        let _ = outboard_core::lock(&self.sender).send(freed);
    }

    /// Waits until what was given is free, so long at most. Returns whether it is.
    pub(crate) fn finish(&self, limit: Duration) -> bool {
        let begun = Instant::now();
        while self.waiting.load(Ordering::Acquire) > 0 {
            if begun.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        true
    }
}

fn run(context: Context, freed: &Receiver<Freed>, left: &AtomicUsize) {
    // SAFETY: the context lives until the end of this function.
    let _ = unsafe { result::ctx::set_current(context.0) };
    let mut kept = Vec::new();
    for memory in freed {
        // SAFETY: memory of this context, given once, which nothing uses any more. What a context with an error cannot free ends with it.
        let _ = unsafe {
            match memory {
                Freed::OfDevice(address) => result::free_sync(address),
                Freed::OfHost(place) => result::free_host(place as *mut _),
                Freed::Kept(slice) => {
                    kept.push(slice);
                    Ok(())
                }
            }
        };
        left.fetch_sub(1, Ordering::AcqRel);
    }
    // SAFETY: everything that uses the context had a part in what gave memory to this thread, and is gone.
    if let Err(why) = unsafe { sys::cuCtxDestroy_v2(context.0) }.result() {
        tracing::debug!("a context could not be freed: {}", crate::card::words(why));
    }
    drop(kept);
}
