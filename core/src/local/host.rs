//! What the devices of this process have in common: timelines that wait for one another, transfers, a trace.

use super::exchange::Exchange;
use super::timeline::Timeline;
use crate::device::{TraceEvent, TraceHook};
use crate::lock;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// The context that devices are made with. Devices of one `Host` can wait for one another's events and hand each other tensors, whatever
/// their backends.
#[derive(Default)]
pub struct Host {
    timelines: Mutex<HashMap<u64, Weak<Timeline>>>,
    pub(crate) exchange: Exchange,
    trace: OnceLock<TraceHook>,
}

impl Host {
    /// A host without devices.
    pub fn new() -> Arc<Host> {
        Arc::new(Host::default())
    }

    /// Calls `hook` after every command that a queue has run, or failed at, from a thread of the queue, so it must not wait. Can be set once.
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
