//! Counts the bytes of an endpoint.

use outboard_net::Meter;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that went over the sockets of an endpoint, protocol and encryption included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetStats {
    /// To the server.
    pub sent_bytes: u64,
    /// From the server.
    pub recv_bytes: u64,
    /// From the server straight to other servers, for this session.
    pub peer_bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Counters {
    pub(crate) fn stats(&self) -> NetStats {
        NetStats {
            sent_bytes: self.sent.load(Ordering::Relaxed),
            recv_bytes: self.received.load(Ordering::Relaxed),
            peer_bytes: 0,
        }
    }
}

impl Meter for Counters {
    fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
