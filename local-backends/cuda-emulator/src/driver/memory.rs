//! Allocations of all devices and of the host, in one space of addresses. An address is given once and never again, with room between
//! two allocations, so that what reaches beyond its own or comes too late is found.
use super::{Answer, Code, lock};
use crate::exec::region::{Owner, Region};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Addresses of a device begin at this times its number plus one.
const DEVICE_SPAN: u64 = 1 << 40;
/// Between two allocations, and the alignment of each.
const ROOM: u64 = 512;

#[derive(Debug, Default)]
struct Inner {
    /// In the order of addresses.
    regions: Arc<Vec<Arc<Region>>>,
    /// The context that an allocation belongs to.
    owners: HashMap<u64, usize>,
    used: HashMap<usize, u64>,
    next: HashMap<usize, u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Allocations {
    inner: Mutex<Inner>,
}

impl Inner {
    fn insert(&mut self, region: Region, context: usize) -> u64 {
        let base = region.base;
        let regions = Arc::make_mut(&mut self.regions);
        let at = regions.partition_point(|r| r.base < base);
        regions.insert(at, Arc::new(region));
        self.owners.insert(base, context);
        base
    }

    fn remove(&mut self, base: u64) -> Option<Arc<Region>> {
        let at = self.regions.binary_search_by_key(&base, |r| r.base).ok()?;
        let region = Arc::make_mut(&mut self.regions).remove(at);
        self.owners.remove(&base);
        if let Owner::Device(device) = region.owner {
            *self.used.entry(device).or_default() -= region.size;
        }
        Some(region)
    }
}

impl Allocations {
    /// Memory of a device, which has so many bytes.
    pub(super) fn allocate(&self, device: usize, memory: u64, size: u64, context: usize) -> Answer<u64> {
        self.allocate_with(device, memory, size, context, |_| {})
    }

    /// Like `allocate`, for memory that is made ready before anybody sees it.
    pub(super) fn allocate_with(
        &self,
        device: usize,
        memory: u64,
        size: u64,
        context: usize,
        prepare: impl FnOnce(&mut Region),
    ) -> Answer<u64> {
        if size == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let mut inner = lock(&self.inner);
        let used = inner.used.get(&device).copied().unwrap_or(0);
        if used.checked_add(size).is_none_or(|all| all > memory) {
            return Err(Code::OUT_OF_MEMORY);
        }
        let base = *inner.next.entry(device).or_insert(DEVICE_SPAN * (device as u64 + 1));
        let mut region = Region::device(device, base, size).ok_or(Code::OUT_OF_MEMORY)?;
        prepare(&mut region);
        inner.next.insert(device, base + size.next_multiple_of(ROOM) + ROOM);
        *inner.used.entry(device).or_default() += size;
        Ok(inner.insert(region, context))
    }

    /// Memory of the host that kernels can address.
    pub(super) fn allocate_host(&self, size: u64, context: usize) -> Answer<u64> {
        if size == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let region = Region::host(size).ok_or(Code::OUT_OF_MEMORY)?;
        Ok(lock(&self.inner).insert(region, context))
    }

    /// Makes memory of the program known.
    pub(super) fn register(&self, data: *mut u8, size: u64, context: usize) -> Answer {
        let mut inner = lock(&self.inner);
        let base = data as u64;
        if inner.regions.iter().any(|r| r.base < base + size && base < r.base + r.size) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        inner.insert(Region::registered(data, size), context);
        Ok(())
    }

    /// Frees what begins at an address and is of the device or of the host.
    pub(super) fn free(&self, base: u64, host: bool) -> Answer {
        let mut inner = lock(&self.inner);
        let at = inner.regions.binary_search_by_key(&base, |r| r.base).map_err(|_| Code::INVALID_VALUE)?;
        if (inner.regions[at].owner == Owner::Host) != host {
            return Err(Code::INVALID_VALUE);
        }
        inner.remove(base).map(drop).ok_or(Code::INVALID_VALUE)
    }

    /// Frees what a context has left.
    pub(super) fn free_all(&self, context: usize) {
        let mut inner = lock(&self.inner);
        let bases: Vec<u64> = inner.owners.iter().filter(|(_, c)| **c == context).map(|(b, _)| *b).collect();
        for base in bases {
            inner.remove(base);
        }
    }

    /// The allocation that has all of these bytes.
    pub(crate) fn find(&self, address: u64, bytes: u64) -> Option<Arc<Region>> {
        let regions = self.regions();
        let at = regions.partition_point(|r| r.base <= address).checked_sub(1)?;
        regions[at].holds(address, bytes).then(|| regions[at].clone())
    }

    /// Whether an allocation of a context has all of these bytes.
    pub(super) fn is_of(&self, address: u64, bytes: u64, context: usize) -> bool {
        let region = self.find(address, bytes);
        region.is_some_and(|region| lock(&self.inner).owners.get(&region.base) == Some(&context))
    }

    /// The list as it is now.
    pub(super) fn regions(&self) -> Arc<Vec<Arc<Region>>> {
        lock(&self.inner).regions.clone()
    }

    pub(super) fn used(&self, device: usize) -> u64 {
        lock(&self.inner).used.get(&device).copied().unwrap_or(0)
    }

    pub(super) fn used_by_all(&self) -> u64 {
        lock(&self.inner).used.values().sum()
    }

    pub(super) fn host_count(&self) -> u64 {
        self.regions().iter().filter(|r| r.owner == Owner::Host).count() as u64
    }
}
