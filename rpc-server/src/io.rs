//! Remembers when a connection was last heard.

use outboard_net::Meter;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What is known about the traffic of a connection.
#[derive(Debug)]
pub(crate) struct Traffic {
    start: Instant,
    heard_ms: AtomicU64,
}

impl Traffic {
    pub(crate) fn new() -> Traffic {
        Traffic { start: Instant::now(), heard_ms: AtomicU64::new(0) }
    }

    /// When bytes came last, or the connection began.
    pub(crate) fn heard(&self) -> Instant {
        self.start + Duration::from_millis(self.heard_ms.load(Ordering::Relaxed))
    }

    /// When the connection began.
    pub(crate) fn start(&self) -> Instant {
        self.start
    }
}

impl Meter for Traffic {
    fn sent(&self, _: usize) {}

    fn received(&self, _: usize) {
        let ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard_ms.store(ms, Ordering::Relaxed);
    }
}
