//! How far a queue is, for a client that has waited for long.

use super::QueueState;
use crate::lock;
use outboard_core::{Device, Doing, Progress};
use outboard_proto::v1::{self, Activity};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

/// What can be seen of an open queue while it works.
pub(crate) struct Meter {
    device: Arc<dyn Device>,
    /// `None` if its device's queues do not say.
    queue: Option<Arc<Progress>>,
    seen: Mutex<Seen>,
}

/// A device's own number counts the work of all clients, which is nobody else's business. What a client gets is how often that number
/// had changed when it asked.
#[derive(Default)]
struct Seen {
    device: Option<u64>,
    changes: u64,
}

impl Meter {
    pub(crate) fn new(device: Arc<dyn Device>, queue: Option<Arc<Progress>>) -> Meter {
        Meter { device, queue, seen: Mutex::default() }
    }

    /// Takes a look at the device. Gives how often it was found to have got further, and whether it says so.
    fn look(&self) -> (u64, bool) {
        let now = self.device.progress();
        let mut seen = lock(&self.seen);
        if seen.device != now {
            *seen = Seen { device: now, changes: seen.changes + 1 };
        }
        (seen.changes, now.is_some())
    }
}

/// What holds a queue up before its commands get to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldUp {
    /// Bytes of another server.
    Server = 1,
    /// This server's disk.
    Disk = 2,
}

/// What holds a queue up, if anything does: 0 or the number of a [`HeldUp`].
#[derive(Default)]
pub(crate) struct HeldBy(AtomicU8);

/// Until this is dropped, the queue is held up.
pub(crate) struct Holding(Arc<QueueState>);

impl Drop for Holding {
    fn drop(&mut self) {
        self.0.held.0.store(0, Ordering::Relaxed);
    }
}

impl QueueState {
    /// The queue is held up until what this gives is dropped.
    pub(crate) fn hold_up(self: &Arc<Self>, by: HeldUp) -> Holding {
        self.held.0.store(by as u8, Ordering::Relaxed);
        Holding(self.clone())
    }

    /// How far it is; `None` if it is not open.
    pub(crate) fn progress(&self, queue: u64) -> Option<v1::QueueProgress> {
        let meter = self.meter.get().filter(|_| self.is_open())?;
        let (commands, doing) = match &meter.queue {
            Some(progress) => (progress.commands(), progress.doing()),
            None => (0, Doing::Graph),
        };
        let (changes, sees) = match doing {
            Doing::Turn | Doing::Graph => meter.look(),
            _ => (lock(&meter.seen).changes, true),
        };
        let held = self.held.0.load(Ordering::Relaxed);
        let activity = match doing {
            Doing::Nothing if held == HeldUp::Server as u8 => Activity::Server,
            Doing::Nothing => Activity::None,
            Doing::Turn => Activity::Turn,
            Doing::Graph => Activity::Graph,
            Doing::Copy => Activity::Copy,
            Doing::Queue => Activity::Queue,
            Doing::Bytes => Activity::Server,
        };
        Some(v1::QueueProgress {
            queue,
            device: meter.device.info().name.clone(),
            steps: self.processed().wrapping_add(commands).wrapping_add(changes),
            activity: activity.into(),
            blind: !sees || held == HeldUp::Disk as u8,
        })
    }
}
