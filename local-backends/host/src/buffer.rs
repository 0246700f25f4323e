//! Buffers in host memory.

use bytes::Bytes;
use memmap2::MmapMut;
use outboard_core::local::{Funds, Payment};
use outboard_core::{Buffer, Error, Result};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::ptr::NonNull;

/// Alignment of every buffer in bytes: a cache line, and the widest vector register.
pub const BUFFER_ALIGN: usize = 64;

/// From this size on (bytes) memory comes from the system in pages of its own: zeroed when first touched, given back at once
/// when dropped, and in huge pages where the system has them, which spares address translation in long reads.
const MAP_FROM: usize = 1 << 20;

/// Memory of a host device: zeroed memory of its own, or a read-only view of bytes that are already there.
///
/// Kernels use raw pointers into it, because tensors of one graph share memory (views, in-place results). What is in bounds is
/// settled when a graph is compiled; values that decide about addresses (row indices) are loaded once, checked, then used. Within a
/// node, a result overlaps with what is read only where it takes all of it over, element on element (`Placement` sees to it); commands that run at the same time do not touch the same bytes
/// if one of them writes (`access`).
#[derive(Debug)]
pub struct HostBuffer {
    memory: Memory,
    ptr: *mut u8,
    size: usize,
    device: u64,
    _payment: Option<Payment>,
}

#[derive(Debug)]
enum Memory {
    Heap(NonNull<u8>, Layout),
    Mapped { _map: MmapMut },
    Imported { _data: Bytes },
}

// SAFETY: the memory belongs to the buffer and is freed only with it; who touches which bytes when is settled as the type's
// documentation says.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// `size` bytes of zeros, paid for by `funds`. Errors: [`Error::OutOfMemory`].
    pub(crate) fn new(size: u64, funds: &Funds) -> Result<HostBuffer> {
        let payment = Some(funds.pay(size)?);
        let free = || funds.memory().free;
        let out_of_memory = || Error::OutOfMemory { device: funds.info().id.clone(), needed: size, free: free() };
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
        Ok(HostBuffer { memory, ptr, size: bytes, device: funds.device(), _payment: payment })
    }

    /// Bytes that are there already, without a copy.
    pub(crate) fn import(data: Bytes, device: u64) -> HostBuffer {
        let (ptr, size) = (data.as_ptr().cast_mut(), data.len());
        HostBuffer { memory: Memory::Imported { _data: data }, ptr, size, device, _payment: None }
    }

    /// The first byte. Imported memory must not be written through it.
    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// All of it, where nobody else has the buffer. None of memory that can only be read.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self.memory {
            Memory::Imported { .. } => &mut [],
            // SAFETY: memory of its own, initialised from the start; nobody else can use it while it is borrowed mutably.
            Memory::Heap(..) | Memory::Mapped { .. } => unsafe { std::slice::from_raw_parts_mut(self.ptr, self.size) },
        }
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
    use crate::MemoryBudget;
    use crate::budget::funds_for_tests;

    #[test]
    fn memory_is_zeroed_aligned_and_given_back() {
        let budget = MemoryBudget::new(Some(64 << 20));
        let funds = funds_for_tests(&budget);
        for size in [0u64, 1, 1000, MAP_FROM as u64, (MAP_FROM + 5) as u64] {
            let buffer = HostBuffer::new(size, &funds).unwrap();
            assert_eq!((buffer.size(), budget.used()), (size, size));
            assert_eq!(buffer.ptr() as usize % BUFFER_ALIGN, 0);
            // SAFETY: the buffer has `size` initialised bytes and nobody else uses it.
            let bytes = unsafe { std::slice::from_raw_parts(buffer.ptr(), size as usize) };
            assert!(bytes.iter().all(|&b| b == 0));
        }
        assert_eq!(budget.used(), 0);
        assert!(matches!(HostBuffer::new(u64::MAX, &funds), Err(Error::OutOfMemory { .. })));
    }
}
