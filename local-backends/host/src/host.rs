//! What the devices of one host have in common: timelines that wait for one another, transfers, a trace.

use crate::access::Accesses;
use crate::exchange::Exchange;
use crate::lock;
use crate::timeline::Timeline;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

/// One command that a queue has run.
#[derive(Clone, Copy, Debug)]
pub struct TraceEvent<'a> {
    /// The device's id.
    pub device: &'a str,
    /// The queue's uid.
    pub queue: u64,
    /// Which command.
    pub what: &'static str,
    /// When it began to run; for a graph, when it had its turn on the device.
    pub start: Instant,
    /// When it was done.
    pub end: Instant,
}

pub(crate) type TraceHook = Box<dyn Fn(TraceEvent<'_>) + Send + Sync>;

/// The context that devices of one host are made with. Devices of one `Host` can wait for one another's events and hand each
/// other tensors.
#[derive(Default)]
pub struct Host {
    timelines: Mutex<HashMap<u64, Weak<Timeline>>>,
    pub(crate) exchange: Exchange,
    pub(crate) accesses: Accesses,
    trace: OnceLock<TraceHook>,
}

impl Host {
    /// A host without devices.
    pub fn new() -> Arc<Host> {
        Arc::new(Host::default())
    }

    /// Calls `hook` after every command that a queue has run, or failed at, from the queue's thread, so it must not wait. Can be set once.
    pub fn set_trace(&self, hook: impl Fn(TraceEvent<'_>) + Send + Sync + 'static) {
        let _ = self.trace.set(Box::new(hook));
    }

    pub(crate) fn trace(&self, event: TraceEvent<'_>) {
        if let Some(hook) = self.trace.get() {
            hook(event);
        }
    }

    pub(crate) fn register(&self, queue: u64, timeline: &Arc<Timeline>) {
        lock(&self.timelines).insert(queue, Arc::downgrade(timeline));
    }

    pub(crate) fn unregister(&self, queue: u64) {
        lock(&self.timelines).remove(&queue);
    }

    pub(crate) fn timeline(&self, queue: u64) -> Option<Arc<Timeline>> {
        lock(&self.timelines).get(&queue)?.upgrade()
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}
