//! Memory through which bytes pass between host and device.

use crate::allocation::Raw;
use crate::gpu::Gpu;
use ash::vk;
use gpu_allocator::MemoryLocation;
use outboard_core::Result;
use std::sync::Arc;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    ToDevice,
    FromDevice,
}

/// Memory that host and device see.
#[derive(Debug)]
pub(crate) struct Staging {
    raw: Raw,
    mapped: *mut u8,
    size: u64,
    way: Way,
}

// SAFETY: plain memory, which its owner reads or writes while the device does not.
unsafe impl Send for Staging {}
// SAFETY: shared references only read.
unsafe impl Sync for Staging {}

/// Bytes of the smallest one, so that small ones fit one another's place.
const SMALLEST: u64 = 4 << 10;

impl Staging {
    fn new(gpu: &Arc<Gpu>, size: u64, way: Way) -> Result<Staging> {
        // The host's memory, both ways: the card's own is for tensors, also where the host can address it.
        let raw = gpu.allocate(size, MemoryLocation::GpuToCpu)?;
        let none = || gpu.failed("memory that the host cannot address", vk::Result::ERROR_MEMORY_MAP_FAILED);
        let mapped = raw.mapped().ok_or_else(none)?;
        Ok(Staging { raw, mapped, size, way })
    }

    pub(crate) fn handle(&self) -> vk::Buffer {
        self.raw.buffer
    }

    /// Puts bytes at its beginning; they fit.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        assert!(bytes.len() as u64 <= self.size, "staging of {} for {} bytes", self.size, bytes.len());
        // SAFETY: the memory is mapped and large enough, and the device does not use it: it is borrowed mutably.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.mapped, bytes.len()) };
    }

    /// Copies bytes from its beginning, when the device has written them.
    pub(crate) fn read(&self, len: usize) -> Vec<u8> {
        assert!(len as u64 <= self.size, "staging of {} for {len} bytes", self.size);
        // SAFETY: the memory is mapped and large enough; the device has written these bytes, for which the caller has waited.
        unsafe { std::slice::from_raw_parts(self.mapped, len) }.to_vec()
    }
}

/// Those of a stream that are not in use.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    free: Vec<Staging>,
}

/// Bytes of the largest one that is kept, and how many are.
const KEPT: u64 = 1 << 20;
const KEPT_COUNT: usize = 4;

impl Pool {
    /// One with room for so many bytes.
    pub(crate) fn take(&mut self, gpu: &Arc<Gpu>, len: u64, way: Way) -> Result<Staging> {
        let fits = |s: &Staging| s.way == way && s.size >= len && s.size <= SMALLEST.max(4 * len);
        if let Some(place) = self.free.iter().position(fits) {
            return Ok(self.free.swap_remove(place));
        }
        Staging::new(gpu, len.max(SMALLEST).next_power_of_two(), way)
    }

    /// Takes one back, which the device is done with.
    pub(crate) fn give_back(&mut self, staging: Staging) {
        if staging.size > KEPT {
            return;
        }
        if self.free.len() == KEPT_COUNT {
            self.free.remove(0);
        }
        self.free.push(staging);
    }
}
