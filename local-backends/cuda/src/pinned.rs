//! Pinned memory, through which bytes pass between host and device.

use crate::gpu::Gpu;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::CUresult;
use outboard_core::Result;
use outboard_core::lock;
use std::sync::Arc;

/// Bytes of a piece: none is more than four times what passes in it, unless that is little, and what is longer is cut.
const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Bytes that pass in one piece, at most.
pub(crate) const LARGEST: usize = SIZES[SIZES.len() - 1];
/// Pieces that a device keeps for another time.
const KEPT: usize = 32;

/// Bytes of the piece in which so many pass.
pub(crate) fn size_for(len: usize) -> usize {
    SIZES.into_iter().find(|&size| size >= len).unwrap_or(len)
}

/// Pinned memory that nobody uses.
#[derive(Debug)]
pub(crate) struct Piece {
    place: *mut u8,
    size: usize,
}

// SAFETY: plain memory that its owner alone uses.
unsafe impl Send for Piece {}
// SAFETY: shared references only read.
unsafe impl Sync for Piece {}

/// Pinned memory. Whoever drops it has waited for what the device does with it.
#[derive(Debug)]
pub(crate) struct Pinned {
    gpu: Arc<Gpu>,
    piece: Option<Piece>,
}

impl Pinned {
    /// Memory for so many bytes, [`LARGEST`] at most.
    pub(crate) fn take(gpu: &Arc<Gpu>, len: usize) -> Result<Pinned> {
        let size = size_for(len);
        let mut free = lock(&gpu.pinned);
        if let Some(place) = free.iter().position(|piece| piece.size == size) {
            return Ok(Pinned { gpu: gpu.clone(), piece: Some(free.swap_remove(place)) });
        }
        drop(free);
        gpu.enter()?;
        // SAFETY: the context of this thread is this device's.
        let place = unsafe { result::malloc_host(size, 0) }.map_err(|error| match error {
            DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => gpu.out_of_memory(size as u64),
            error => gpu.failed("no pinned memory", error),
        })?;
        Ok(Pinned { gpu: gpu.clone(), piece: Some(Piece { place: place.cast(), size }) })
    }

    /// Its bytes.
    pub(crate) fn size(&self) -> usize {
        self.piece.as_ref().map_or(0, |piece| piece.size)
    }

    fn place(&self, len: usize) -> *mut u8 {
        let has = self.size();
        assert!(len <= has, "pinned memory of {has} for {len} bytes");
        self.piece.as_ref().map_or(std::ptr::null_mut(), |piece| piece.place)
    }

    /// Puts bytes at its beginning; they fit, and the device does not use it.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        // SAFETY: the memory is large enough, and borrowed mutably.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.place(bytes.len()), bytes.len()) };
    }

    /// Bytes from its beginning, for the device to read.
    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: the memory is large enough, and was written.
        unsafe { std::slice::from_raw_parts(self.place(len), len) }
    }

    /// Room at its beginning, for the device to write.
    ///
    /// # Safety
    ///
    /// Nobody reads or writes it before the device has written it.
    #[allow(clippy::mut_from_ref, reason = "the device writes it, and whoever shares it waits for that")]
    pub(crate) unsafe fn room(&self, len: usize) -> &mut [u8] {
        // SAFETY: the memory is large enough, and nobody else uses it.
        unsafe { std::slice::from_raw_parts_mut(self.place(len), len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let Some(piece) = self.piece.take() else { return };
        // That of a context that was lost or given up is freed with it.
        if self.gpu.health.is_over() {
            return;
        }
        let mut free = lock(&self.gpu.pinned);
        if free.len() < KEPT {
            return free.push(piece);
        }
        drop(free);
        self.gpu.free_host(piece.place);
    }
}
