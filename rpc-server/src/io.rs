//! Remembers when a connection was last heard, and counts its bytes for its client.

use crate::metrics::ByteMeter;
use outboard_net::Meter;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What is known about the traffic of a connection.
#[derive(Debug)]
pub(crate) struct Traffic {
    start: Instant,
    heard_ms: AtomicU64,
    /// Whose bytes they are, once a session is known.
    client: OnceLock<ByteMeter>,
    /// Those from before.
    early: [AtomicU64; 2],
}

impl Traffic {
    pub(crate) fn new() -> Traffic {
        let (client, early) = (OnceLock::new(), Default::default());
        Traffic { start: Instant::now(), heard_ms: AtomicU64::new(0), client, early }
    }

    /// When bytes came last, or the connection began.
    pub(crate) fn heard(&self) -> Instant {
        self.start + Duration::from_millis(self.heard_ms.load(Ordering::Relaxed))
    }

    /// When the connection began.
    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    /// From now on its bytes are counted as those of a client, with those that there were.
    pub(crate) fn is_of(&self, client: impl FnOnce() -> ByteMeter) {
        if self.client.get().is_some() {
            return;
        }
        let client = self.client.get_or_init(client);
        client.sent.inc_by(self.early[0].swap(0, Ordering::Relaxed));
        client.received.inc_by(self.early[1].swap(0, Ordering::Relaxed));
    }
}

impl Meter for Traffic {
    fn sent(&self, bytes: usize) {
        match self.client.get() {
            Some(client) => client.sent.inc_by(bytes as u64),
            None => self.early[0].fetch_add(bytes as u64, Ordering::Relaxed),
        };
    }

    fn received(&self, bytes: usize) {
        let ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard_ms.store(ms, Ordering::Relaxed);
        match self.client.get() {
            Some(client) => client.received.inc_by(bytes as u64),
            None => self.early[1].fetch_add(bytes as u64, Ordering::Relaxed),
        };
    }
}
