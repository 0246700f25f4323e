//! Buffers in host memory.

use crate::budget::{MemoryBudget, Reservation};
use bytes::Bytes;
use memmap2::MmapMut;
use outboard_core::{Buffer, Error, Result};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

/// Alignment of every buffer in bytes: a cache line, and the widest vector register.
pub const BUFFER_ALIGN: usize = 64;

/// From this size on (bytes) memory comes from the system in pages of its own: zeroed when first touched, given back at once
/// when dropped, and in huge pages where the system has them, which spares address translation in long reads.
const MAP_FROM: usize = 1 << 20;

/// Memory of a host device: zeroed memory of its own, or a read-only view of bytes that are already there.
///
/// Kernels use raw pointers into it, because tensors of one graph share memory (views, in-place results). What is in bounds is
/// settled when a graph is compiled; values that decide about addresses (row indices) are loaded once, checked, then used.
/// Two queues that use the same bytes without an event between them get unspecified values, nothing else.
#[derive(Debug)]
pub struct HostBuffer {
    memory: Memory,
    ptr: *mut u8,
    size: usize,
    device: u64,
    _account: Option<Reservation>,
}

#[derive(Debug)]
enum Memory {
    Heap(NonNull<u8>, Layout),
    Mapped { _map: MmapMut },
    Imported { _data: Bytes },
}

// SAFETY: the memory belongs to the buffer and is freed only with it; see the type's documentation for concurrent access.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// `size` bytes of zeros on account of `budget`, for the device of that uid and id. For memory that a backend needs
    /// for itself (scratch); tensors come from `Device::alloc`. Errors: [`Error::OutOfMemory`].
    pub fn new(size: u64, device: u64, device_id: &str, budget: &Arc<MemoryBudget>) -> Result<HostBuffer> {
        let account = Some(budget.reserve(size, device_id)?);
        let out_of_memory =
            || Error::OutOfMemory { device: device_id.to_owned(), needed: size, free: budget.info().free };
        let bytes = usize::try_from(size).map_err(|_| out_of_memory())?;
        let (memory, ptr) = if bytes >= MAP_FROM {
            let mut map = MmapMut::map_anon(bytes).map_err(|_| out_of_memory())?;
            #[cfg(target_os = "linux")]
            // A hint: a system without huge pages refuses it, and nothing is lost.
            let _ = map.advise(memmap2::Advice::HugePage);
            let ptr = map.as_mut_ptr();
            (Memory::Mapped { _map: map }, ptr)
        } else {
            let layout = Layout::from_size_align(bytes.max(1), BUFFER_ALIGN).map_err(|_| out_of_memory())?;
            // SAFETY: the layout's size is not zero.
            let ptr = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(out_of_memory)?;
            (Memory::Heap(ptr, layout), ptr.as_ptr())
        };
        Ok(HostBuffer { memory, ptr, size: bytes, device, _account: account })
    }

    /// Bytes that are there already, without a copy.
    pub(crate) fn import(data: Bytes, device: u64) -> HostBuffer {
        let (ptr, size) = (data.as_ptr().cast_mut(), data.len());
        HostBuffer { memory: Memory::Imported { _data: data }, ptr, size, device, _account: None }
    }

    /// The first byte. Imported memory must not be written through it.
    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if let Memory::Heap(ptr, layout) = &self.memory {
            // SAFETY: allocated with this layout in `new`, freed once.
            unsafe { dealloc(ptr.as_ptr(), *layout) };
        }
    }
}

impl Buffer for HostBuffer {
    fn size(&self) -> u64 {
        self.size as u64
    }

    fn device(&self) -> u64 {
        self.device
    }

    fn is_read_only(&self) -> bool {
        matches!(self.memory, Memory::Imported { .. })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_aligned_and_given_back() {
        let budget = MemoryBudget::new(Some(64 << 20));
        for size in [0u64, 1, 1000, MAP_FROM as u64, (MAP_FROM + 5) as u64] {
            let buffer = HostBuffer::new(size, 1, "d", &budget).unwrap();
            assert_eq!((buffer.size(), budget.used()), (size, size));
            assert_eq!(buffer.ptr() as usize % BUFFER_ALIGN, 0);
            // SAFETY: the buffer has `size` initialised bytes and nobody else uses it.
            let bytes = unsafe { std::slice::from_raw_parts(buffer.ptr(), size as usize) };
            assert!(bytes.iter().all(|&b| b == 0));
        }
        assert_eq!(budget.used(), 0);
        assert!(matches!(HostBuffer::new(u64::MAX, 1, "d", &budget), Err(Error::OutOfMemory { .. })));
    }
}
