//! How much memory the devices of a host may take together.

use outboard_core::{Error, MemoryInfo, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An account that several devices share, because their memory is the same.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: u64,
    used: AtomicU64,
}

/// Bytes taken from a budget, given back when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<MemoryBudget>,
    bytes: u64,
}

impl MemoryBudget {
    /// A budget of `limit` bytes, or of all memory that this process may use. What is free is in either case never more than the
    /// host has available at that moment.
    pub fn new(limit: Option<u64>) -> Arc<MemoryBudget> {
        let (total, _) = system_memory();
        Arc::new(MemoryBudget { limit: limit.unwrap_or(total).min(total), used: AtomicU64::new(0) })
    }

    /// The limit, and what is left of it.
    pub fn info(&self) -> MemoryInfo {
        let left = self.limit.saturating_sub(self.used());
        MemoryInfo { total: self.limit, free: left.min(system_memory().1) }
    }

    /// Bytes taken.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64, device_id: &str) -> Result<Reservation> {
        // Looking at the system costs a file or two; small allocations matter to nobody.
        let free = if bytes < 1 << 20 { self.limit.saturating_sub(self.used()) } else { self.info().free };
        let fits = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.limit && bytes <= free);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(Reservation { budget: self.clone(), bytes }),
            Err(_) => Err(Error::OutOfMemory { device: device_id.to_owned(), needed: bytes, free }),
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Bytes of memory in all, and available without swapping, for this process: what the system has, within the limit of its
/// control group (a container). Where the system does not say (not Linux), all counts as available.
fn system_memory() -> (u64, u64) {
    let (mut total, mut available) = host_memory();
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    if let Some(max) = number("/sys/fs/cgroup/memory.max") {
        let used = number("/sys/fs/cgroup/memory.current").unwrap_or(0);
        // The group's file cache is counted as used, but it gives way.
        let cache = field("/sys/fs/cgroup/memory.stat", "inactive_file").unwrap_or(0);
        total = total.min(max);
        available = available.min(max.saturating_sub(used.saturating_sub(cache)));
    }
    (total, available)
}

fn host_memory() -> (u64, u64) {
    let kib = |name: &str| field("/proc/meminfo", name).map(|kib| kib.saturating_mul(1024));
    if let (Some(total), Some(available)) = (kib("MemTotal:"), kib("MemAvailable:")) {
        return (total, available);
    }
    // SAFETY: sysconf only reads its argument.
    let (pages, size) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let total = u64::try_from(pages).unwrap_or(0).saturating_mul(u64::try_from(size).unwrap_or(0));
    (total, total)
}

/// The number behind a name in a file of lines like `name number`.
fn field(path: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let mut words = text.lines().map(str::split_whitespace).find_map(|mut w| (w.next() == Some(name)).then_some(w))?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_free_again() {
        let budget = MemoryBudget::new(Some(1000));
        let a = budget.reserve(600, "d").unwrap();
        let e = budget.reserve(600, "d").unwrap_err();
        assert_eq!(e, Error::OutOfMemory { device: "d".into(), needed: 600, free: 400 });
        drop(a);
        assert_eq!(budget.info().free, 1000);
        assert!(budget.reserve(u64::MAX, "d").is_err());
    }

    #[test]
    fn more_than_the_host_has_is_refused() {
        let budget = MemoryBudget::new(None);
        let info = budget.info();
        assert!(info.free > 0 && info.free <= info.total, "{info:?}");
        assert!(budget.reserve(info.total + 1, "d").is_err());
    }
}
