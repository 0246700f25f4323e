//! Room for what requests hold in memory: their bodies, and answers that are made at once and taken slowly.

use crate::error::ApiError;
use crate::queue::Client;
use http::StatusCode;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What all requests hold.
#[derive(Debug)]
pub(crate) struct Rooms {
    taken: Mutex<Taken>,
    /// Most bytes of all clients, and of each.
    most: (usize, usize),
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    of: HashMap<Client, usize>,
}

impl Rooms {
    /// So many bytes for all clients, and for each.
    pub(crate) fn new(all: usize, each: usize) -> Arc<Rooms> {
        Arc::new(Rooms { taken: Mutex::default(), most: (all, each) })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a request that holds nothing yet.
    pub(crate) fn enter(self: &Arc<Rooms>, client: Client) -> Room {
        Room { rooms: self.clone(), client, bytes: 0, parsed: 0 }
    }
}

/// What one request holds, until this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    rooms: Arc<Rooms>,
    client: Client,
    bytes: usize,
    /// Of them those of its values.
    parsed: usize,
}

impl Room {
    /// Whose request it is.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Bytes of its body.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes - self.parsed
    }

    /// Takes room for what its body becomes when it is parsed. Fails as [`grow`](Room::grow) does, and with 413 if it would never fit.
    pub(crate) fn hold(&mut self, parsed: usize) -> Result<(), ApiError> {
        if self.bytes.saturating_add(parsed) > self.rooms.most.1 {
            let message = "the body has too many values: they would take more memory than a request has";
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        self.grow(parsed)?;
        self.parsed += parsed;
        Ok(())
    }

    /// Takes room for so many bytes more. Fails with 503 if the others, or other requests of this client, have left none.
    pub(crate) fn grow(&mut self, more: usize) -> Result<(), ApiError> {
        let mut taken = self.rooms.lock();
        let mine = taken.of.get(&self.client).copied().unwrap_or(0);
        if more > self.rooms.most.0.saturating_sub(taken.all) || more > self.rooms.most.1.saturating_sub(mine) {
            return Err(crowded());
        }
        taken.all += more;
        *taken.of.entry(self.client.clone()).or_default() += more;
        self.bytes += more;
        Ok(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut taken = self.rooms.lock();
        taken.all -= self.bytes;
        if let Some(mine) = taken.of.get_mut(&self.client) {
            *mine -= self.bytes;
            if *mine == 0 {
                taken.of.remove(&self.client);
            }
        }
    }
}

fn crowded() -> ApiError {
    ApiError::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "there is no room for the request beside others; ask again in a moment",
    )
    .with_code("crowded")
    .retry_after(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_has_all_of_it() {
        let rooms = Rooms::new(100, 50);
        let [a, b, c] = ["a", "b", "c"].map(|name| Client::Key(name.into()));
        let (mut first, mut second) = (rooms.enter(a.clone()), rooms.enter(a));
        first.grow(30).unwrap();
        assert!(second.grow(21).is_err(), "half is for others");
        second.grow(20).unwrap();
        let mut third = rooms.enter(b);
        third.grow(50).unwrap();
        assert!(rooms.enter(c).grow(1).is_err());
        drop(first);
        second.grow(30).unwrap();
        drop((second, third));
        let taken = rooms.lock();
        assert_eq!((taken.all, taken.of.len()), (0, 0));
    }
}
