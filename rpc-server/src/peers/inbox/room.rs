//! The room for what came and no queue takes: each session has a limit, and all clients share what there is ([`crate::fair`]).

use crate::fair::Fair;
use crate::limits::{INBOX_BYTES, INBOX_BYTES_PER_SESSION, INBOX_COUNT, INBOX_COUNT_PER_SESSION};
use crate::lock;
use outboard_core::error::Bytes as Size;
use outboard_core::{Error, Result};
use std::sync::{Arc, Mutex};

/// The room of all sessions.
#[derive(Debug)]
pub(crate) struct SharedRoom(Mutex<Taken>);

/// Bytes and transfers that take room.
#[derive(Debug)]
struct Taken {
    bytes: Fair,
    count: Fair,
}

impl SharedRoom {
    pub(crate) fn new() -> Arc<SharedRoom> {
        let taken = Taken { bytes: Fair::new(INBOX_BYTES), count: Fair::new(INBOX_COUNT) };
        Arc::new(SharedRoom(Mutex::new(taken)))
    }

    fn take(&self, account: u64, bytes: u64, count: u64) -> bool {
        let mut taken = lock(&self.0);
        if !taken.bytes.take(account, bytes) {
            return false;
        }
        let fits = taken.count.take(account, count);
        if !fits {
            taken.bytes.give(account, bytes);
        }
        fits
    }

    fn give(&self, account: u64, bytes: u64, count: u64) {
        let mut taken = lock(&self.0);
        taken.bytes.give(account, bytes);
        taken.count.give(account, count);
    }

    /// Bytes and transfers that take room.
    #[cfg(test)]
    pub(super) fn taken(&self) -> (u64, u64) {
        let taken = lock(&self.0);
        (taken.bytes.taken(), taken.count.taken())
    }
}

/// What one session has of it. Given back when dropped.
#[derive(Debug)]
pub(super) struct SessionRoom {
    shared: Arc<SharedRoom>,
    account: u64,
    bytes: u64,
    count: u64,
}

impl SessionRoom {
    /// Of a session of this client, by the uid of its account. Nothing is taken yet.
    pub(super) fn new(shared: &Arc<SharedRoom>, account: u64) -> SessionRoom {
        SessionRoom { shared: shared.clone(), account, bytes: 0, count: 0 }
    }

    pub(super) fn take(&mut self, bytes: u64, count: u64) -> Result<()> {
        let fits = |mine: u64, more: u64, limit: u64| more == 0 || mine.saturating_add(more) <= limit;
        let within =
            fits(self.bytes, bytes, INBOX_BYTES_PER_SESSION) && fits(self.count, count, INBOX_COUNT_PER_SESSION);
        if !within || !self.shared.take(self.account, bytes, count) {
            return Err(Error::Request(format!(
                "no room for {} that no queue takes: {} tensors with {} of this session wait already",
                Size(bytes),
                self.count,
                Size(self.bytes)
            )));
        }
        self.bytes += bytes;
        self.count += count;
        Ok(())
    }

    pub(super) fn give(&mut self, bytes: u64, count: u64) {
        if bytes == 0 && count == 0 {
            return;
        }
        self.shared.give(self.account, bytes, count);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.count = self.count.saturating_sub(count);
    }

    /// Whether nothing is taken.
    #[cfg(test)]
    pub(super) fn is_free(&self) -> bool {
        (self.bytes, self.count) == (0, 0)
    }
}

impl Drop for SessionRoom {
    fn drop(&mut self) {
        self.give(self.bytes, self.count);
    }
}
