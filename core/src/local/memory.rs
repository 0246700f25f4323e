//! How the memory of local devices is counted: on a pool that devices may share, and on the account of the client that has it.

use crate::device::{Client, DeviceInfo, MemoryAccount, MemoryInfo, MemoryShare, fresh_uid};
use crate::error::{Error, Result};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that one device has, or several share.
pub trait MemoryPool: fmt::Debug + Send + Sync {
    /// In all, and what is left now.
    fn info(&self) -> MemoryInfo;
    /// Takes bytes for a device, until what is returned is dropped. [`Error::OutOfMemory`] with the sizes.
    fn take(&self, bytes: u64, device_id: &str) -> Result<MemoryShare>;
}

/// Where the memory of a device is counted: on its pool and, if it works for a client of many, on the client's account.
#[derive(Clone, Debug)]
pub struct Funds {
    device: u64,
    room: u64,
    info: Arc<DeviceInfo>,
    pool: Arc<dyn MemoryPool>,
    account: Option<Arc<dyn MemoryAccount>>,
}

/// Bytes taken from all that they count on, given back when dropped. A buffer keeps it.
#[derive(Debug)]
pub struct Payment {
    _pool: MemoryShare,
    _account: Option<MemoryShare>,
}

impl Funds {
    /// The funds of the device with this uid, on a pool.
    pub fn new(device: u64, info: &Arc<DeviceInfo>, pool: Arc<dyn MemoryPool>) -> Funds {
        Funds { device, room: fresh_uid(), info: info.clone(), pool, account: None }
    }

    /// The same of a client, on its account as well.
    pub(crate) fn of_client(&self, client: &Client) -> Funds {
        Funds { room: client.room, account: Some(client.account.clone()), ..self.clone() }
    }

    /// The device's uid.
    pub fn device(&self) -> u64 {
        self.device
    }

    /// Those with the same number share room that no account pays for as one client ([`Client::room`]).
    pub fn room(&self) -> u64 {
        self.room
    }

    /// The device.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The pool.
    pub(crate) fn pool(&self) -> Arc<dyn MemoryPool> {
        self.pool.clone()
    }

    /// What the pool has now.
    pub fn memory(&self) -> MemoryInfo {
        self.pool.info()
    }

    /// Takes bytes. [`Error::OutOfMemory`] says what is missing.
    pub fn pay(&self, bytes: u64) -> Result<Payment> {
        let account = self.account.as_ref().map(|account| account.take(self.device, &self.info, bytes)).transpose()?;
        Ok(Payment { _pool: self.pool.take(bytes, &self.info.id)?, _account: account })
    }
}

/// A pool of a fixed size: the memory of one card.
#[derive(Debug)]
pub struct FixedPool {
    total: u64,
    used: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Taken {
    used: Arc<AtomicU64>,
    bytes: u64,
}

impl FixedPool {
    /// So many bytes.
    pub fn new(total: u64) -> Arc<FixedPool> {
        Arc::new(FixedPool { total, used: Arc::default() })
    }
}

impl MemoryPool for FixedPool {
    fn info(&self) -> MemoryInfo {
        let free = self.total.saturating_sub(self.used.load(Ordering::Relaxed));
        MemoryInfo { total: self.total, free }
    }

    fn take(&self, bytes: u64, device_id: &str) -> Result<MemoryShare> {
        let fits = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.total);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(Box::new(Taken { used: self.used.clone(), bytes })),
            Err(used) => {
                let free = self.total.saturating_sub(used);
                Err(Error::OutOfMemory { device: device_id.to_owned(), needed: bytes, free })
            }
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The memory of a card: what was promised, and what its driver says is free.
pub struct CardPool {
    taken: Arc<FixedPool>,
    seen: Box<dyn Fn() -> u64 + Send + Sync>,
}

impl CardPool {
    /// So many bytes, of which `seen` says how many the driver has free now.
    pub fn new(total: u64, seen: impl Fn() -> u64 + Send + Sync + 'static) -> Arc<CardPool> {
        Arc::new(CardPool { taken: FixedPool::new(total), seen: Box::new(seen) })
    }
}

impl fmt::Debug for CardPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CardPool").field("taken", &self.taken).finish_non_exhaustive()
    }
}

impl MemoryPool for CardPool {
    fn info(&self) -> MemoryInfo {
        let MemoryInfo { total, free } = self.taken.info();
        MemoryInfo { total, free: free.min((self.seen)()) }
    }

    fn take(&self, bytes: u64, device_id: &str) -> Result<MemoryShare> {
        self.taken.take(bytes, device_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_free_again() {
        let pool = FixedPool::new(1000);
        let taken = pool.take(600, "d").unwrap();
        let error = pool.take(600, "d").unwrap_err();
        assert_eq!(error, Error::OutOfMemory { device: "d".into(), needed: 600, free: 400 });
        assert!(pool.take(u64::MAX, "d").is_err());
        drop(taken);
        assert_eq!(pool.info(), MemoryInfo { total: 1000, free: 1000 });
    }
}
