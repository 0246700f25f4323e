//! Room for bytes that wait in this process: of one client, inside that of all clients.

use crate::fair::{FairRoom, FairShare};
use outboard_core::{Error, Result};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Room of one client. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    client: Arc<Semaphore>,
    account: u64,
    all: Arc<FairRoom>,
}

/// Room that is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    _client: OwnedSemaphorePermit,
    _all: FairShare,
}

impl Pool {
    /// Room of `kib` kibibytes for one more client, by the uid of its account.
    pub(crate) fn new(kib: usize, account: u64, all: &Arc<FairRoom>) -> Pool {
        Pool { client: Arc::new(Semaphore::new(kib)), account, all: all.clone() }
    }

    /// Takes room if there is some now.
    pub(crate) fn try_take(&self, kib: u32) -> Option<Room> {
        let client = self.client.clone().try_acquire_many_owned(kib).ok()?;
        let all = self.all.try_take(self.account, kib.into())?;
        Some(Room { _client: client, _all: all })
    }

    /// Takes room when there is some.
    pub(crate) async fn take(&self, kib: u32) -> Result<Room> {
        let client = self.client.clone().acquire_many_owned(kib).await.map_err(|_| Error::Cancelled)?;
        let all = self.all.take(self.account, kib.into()).await;
        Ok(Room { _client: client, _all: all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_its_own_room_inside_that_of_all() {
        let all = FairRoom::new(20);
        let (a, b) = (Pool::new(8, 1, &all), Pool::new(8, 2, &all));
        let first = a.try_take(6).unwrap();
        assert!(a.try_take(3).is_none(), "more than the client may have");
        assert!(b.try_take(8).is_none(), "more than it leaves to others");
        // What was refused took nothing.
        let second = b.try_take(7).unwrap();
        drop(first);
        assert!(a.try_take(7).is_none() && a.try_take(6).is_some());
        drop(second);
        assert!(b.try_take(8).is_some());
    }
}
