//! What a queue's device still does: commands that it has and that are not done, waited for in order on a thread of their own.

use super::worker::Common;
use crate::error::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Commands that a device has and that are not done, at most: then the queue waits before it gives it more.
const MOST_IN_FLIGHT: usize = 256;

/// The rest of a command: waits for it and answers whoever asked.
pub(super) type Rest = Box<dyn FnOnce(&Common) + Send>;

/// The commands of one queue that are in flight.
pub(super) struct Completions {
    common: Arc<Common>,
    in_flight: Arc<AtomicUsize>,
    thread: Option<(SyncSender<Rest>, JoinHandle<()>)>,
}

impl Completions {
    pub(super) fn new(common: Arc<Common>) -> Completions {
        Completions { common, in_flight: Arc::default(), thread: None }
    }

    /// Whether everything is done that was given to the device.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) == 0
    }

    /// Waits for a command behind those that are in flight. Waits itself if there are very many.
    pub(super) fn push(&mut self, rest: Rest) -> Result<()> {
        if self.thread.is_none() {
            self.thread = Some(self.start()?);
        }
        let sent = self.thread.as_ref().map(|(sender, _)| {
            self.in_flight.fetch_add(1, Ordering::AcqRel);
            sender.send(rest)
        });
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(self.common.fault("the thread that waits for it has ended")),
        }
    }

    fn start(&self) -> Result<(SyncSender<Rest>, JoinHandle<()>)> {
        let (sender, receiver) = sync_channel(MOST_IN_FLIGHT);
        let (common, in_flight) = (self.common.clone(), self.in_flight.clone());
        let work = move || run(&common, &in_flight, receiver);
        let thread = std::thread::Builder::new().name(format!("{} done", self.common.id)).spawn(work);
        let thread = thread.map_err(|e| self.common.fault(&format!("no thread: {e}")))?;
        let _ = self.common.completions.set(thread.thread().id());
        Ok((sender, thread))
    }
}

fn run(common: &Common, in_flight: &AtomicUsize, commands: Receiver<Rest>) {
    for rest in commands {
        rest(common);
        if in_flight.fetch_sub(1, Ordering::AcqRel) == 1 {
            common.progress.idle();
        }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}
