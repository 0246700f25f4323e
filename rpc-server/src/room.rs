//! Room for bytes that wait in this process: of one client, inside that of all clients.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Room of one client. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    client: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

/// Room that is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    _client: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Pool {
    /// Room of `kib` kibibytes for one more client.
    pub(crate) fn new(kib: usize, all: &Arc<Semaphore>) -> Pool {
        Pool { client: Arc::new(Semaphore::new(kib)), all: all.clone() }
    }

    /// Takes room if there is some now.
    pub(crate) fn try_take(&self, kib: u32) -> Option<Room> {
        let client = self.client.clone().try_acquire_many_owned(kib).ok()?;
        let all = self.all.clone().try_acquire_many_owned(kib).ok()?;
        Some(Room { _client: client, _all: all })
    }

    /// Takes room when there is some. `None` never comes: nobody closes what is shared.
    pub(crate) async fn take(&self, kib: u32) -> Option<Room> {
        let client = self.client.clone().acquire_many_owned(kib).await.ok()?;
        let all = self.all.clone().acquire_many_owned(kib).await.ok()?;
        Some(Room { _client: client, _all: all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_its_own_room_inside_that_of_all() {
        let all = Arc::new(Semaphore::new(10));
        let (a, b) = (Pool::new(8, &all), Pool::new(8, &all));
        let first = a.try_take(6).unwrap();
        assert!(a.try_take(3).is_none(), "more than the client may have");
        assert!(b.try_take(5).is_none(), "more than there is");
        // What was refused took nothing.
        let second = b.try_take(4).unwrap();
        drop(first);
        assert!(b.try_take(4).is_some() && a.try_take(6).is_some());
        drop(second);
        assert_eq!(all.available_permits(), 10);
    }
}
