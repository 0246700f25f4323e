//! How much of the host's memory its devices may take together.

use outboard_core::device::fresh_uid;
use outboard_core::local::{FixedPool, MemoryPool};
use outboard_core::{Error, MemoryInfo, MemoryShare, Result};
use std::sync::Arc;

/// The memory of the host, which all devices in it share.
#[derive(Debug)]
pub struct MemoryBudget {
    /// Tells it from other budgets of this process.
    uid: u64,
    /// What may be taken, and what is.
    pool: Arc<FixedPool>,
}

impl MemoryBudget {
    /// A budget of `limit` bytes, or of the memory that is available now. What is free is in either case never more than the host
    /// has available at that moment.
    pub fn new(limit: Option<u64>) -> Arc<MemoryBudget> {
        let SystemMemory { total, available } = system_memory();
        let pool = FixedPool::new(limit.unwrap_or(available).min(total));
        Arc::new(MemoryBudget { uid: fresh_uid(), pool })
    }

    /// Names it among the pools of this process.
    pub fn name(&self) -> String {
        format!("host memory {}", self.uid)
    }

    /// The limit, and what is left of it.
    pub fn info(&self) -> MemoryInfo {
        let total = self.pool.info().total;
        MemoryInfo { total, free: self.free(system_memory().available, touched_memory()) }
    }

    /// What is left, given what the system has available and what this process has touched. Memory that was taken and not yet
    /// touched is still available to the system, but it is spoken for.
    fn free(&self, available: u64, touched: u64) -> u64 {
        let MemoryInfo { total, free } = self.pool.info();
        let promised = (total - free).saturating_sub(touched);
        free.min(available.saturating_sub(promised))
    }

    /// Bytes taken.
    pub fn used(&self) -> u64 {
        let MemoryInfo { total, free } = self.pool.info();
        total - free
    }
}

impl MemoryPool for MemoryBudget {
    fn info(&self) -> MemoryInfo {
        MemoryBudget::info(self)
    }

    fn take(&self, bytes: u64, device_id: &str) -> Result<MemoryShare> {
        // Looking at the system costs a file or two; small allocations matter to nobody.
        let free = if bytes < 1 << 20 { u64::MAX } else { self.info().free };
        if bytes > free {
            return Err(Error::OutOfMemory { device: device_id.to_owned(), needed: bytes, free });
        }
        self.pool.take(bytes, device_id)
    }
}

/// Memory that this process may use, in bytes.
#[derive(Clone, Copy, Debug)]
struct SystemMemory {
    total: u64,
    /// Without swapping.
    available: u64,
}

/// What the system has, within the limit of this process's control group (a container). Where the system does not say what is
/// available (not Linux), all counts as that.
fn system_memory() -> SystemMemory {
    let SystemMemory { mut total, mut available } = host_memory();
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    if let Some(max) = number("/sys/fs/cgroup/memory.max") {
        let used = number("/sys/fs/cgroup/memory.current").unwrap_or(0);
        // The group's file cache is counted as used, but it gives way.
        let cache = field("/sys/fs/cgroup/memory.stat", "inactive_file").unwrap_or(0);
        total = total.min(max);
        available = available.min(max.saturating_sub(used.saturating_sub(cache)));
    }
    SystemMemory { total, available }
}

fn host_memory() -> SystemMemory {
    if let (Some(total), Some(available)) = (kib("/proc/meminfo", "MemTotal:"), kib("/proc/meminfo", "MemAvailable:")) {
        return SystemMemory { total, available };
    }
    // SAFETY: sysconf only reads its argument.
    let (pages, size) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let total = u64::try_from(pages).unwrap_or(0).saturating_mul(u64::try_from(size).unwrap_or(0));
    SystemMemory { total, available: total }
}

/// Bytes of this process that are in memory and not part of a file. All of them count as touched buffers: that makes `free` a little
/// too large, by what the program itself needs. Where the system does not say, everything does.
fn touched_memory() -> u64 {
    kib("/proc/self/status", "RssAnon:").unwrap_or(u64::MAX)
}

/// A field in KiB, in bytes.
fn kib(path: &str, name: &str) -> Option<u64> {
    field(path, name).map(|kib| kib.saturating_mul(1024))
}

/// The number behind a name in a file of lines like `name number`.
fn field(path: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let mut words = text.lines().map(str::split_whitespace).find_map(|mut w| (w.next() == Some(name)).then_some(w))?;
    words.next()?.parse().ok()
}

/// Funds of no device in particular.
#[cfg(test)]
pub(crate) fn funds_for_tests(budget: &Arc<MemoryBudget>) -> outboard_core::local::Funds {
    let info = outboard_core::DeviceInfo::new("d", outboard_core::DeviceKind::Cpu, "test", budget.info().total);
    outboard_core::local::Funds::new(1, &Arc::new(info), budget.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_free_again() {
        let budget = MemoryBudget::new(Some(1000));
        let a = budget.take(600, "d").unwrap();
        let e = budget.take(600, "d").unwrap_err();
        assert_eq!(e, Error::OutOfMemory { device: "d".into(), needed: 600, free: 400 });
        drop(a);
        assert_eq!(budget.info().free, 1000);
        assert!(budget.take(u64::MAX, "d").is_err());
    }

    #[test]
    fn more_than_the_host_has_is_refused() {
        let budget = MemoryBudget::new(None);
        let info = budget.info();
        assert!(info.free > 0 && info.free <= info.total, "{info:?}");
        assert!(budget.take(info.total + 1, "d").is_err());
        let SystemMemory { total, available } = system_memory();
        assert!(
            info.total < total && info.total <= available + (1 << 30),
            "{info:?}: {total} in all, {available} available"
        );
    }

    #[test]
    fn memory_that_was_taken_and_not_touched_is_not_free() {
        let budget = MemoryBudget::new(Some(1000));
        let _taken = budget.take(600, "d").unwrap();
        // The system has 500 available, as nothing of the 600 was touched: they are promised.
        assert_eq!(budget.free(500, 0), 0);
        assert_eq!(budget.free(700, 0), 100);
        assert_eq!(budget.free(700, 500), 400);
        assert_eq!(budget.free(300, u64::MAX), 300);
    }
}
