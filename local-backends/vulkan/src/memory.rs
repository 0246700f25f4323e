//! Memory of a GPU as the contract has it: buffers that begin as zeros and are paid for.

use crate::allocation::Raw;
use crate::commands::run_once;
use crate::gpu::Gpu;
use crate::import::{Imported, import};
use bytes::Bytes;
use gpu_allocator::MemoryLocation;
use outboard_core::local::{Funds, Payment};
use outboard_core::{Buffer, Error, Result, Slice};
use std::any::Any;
use std::sync::Arc;

/// Memory of a GPU.
#[derive(Debug)]
pub(crate) struct GpuBuffer {
    memory: Memory,
    size: u64,
    device: u64,
    /// Counts it among its client's.
    _place: Option<Arc<()>>,
}

/// Where a buffer lies.
#[derive(Debug)]
enum Memory {
    /// It is empty.
    Nowhere,
    /// In memory of its own.
    Own { raw: Raw, _payment: Payment },
    /// In memory that somebody else has, and that can only be read.
    Imported(Imported),
}

impl GpuBuffer {
    /// `size` bytes of zeros, paid for by `funds`. Errors: [`Error::OutOfMemory`].
    pub(crate) fn new(gpu: &Arc<Gpu>, funds: &Funds, size: u64) -> Result<GpuBuffer> {
        let payment = funds.pay(size)?;
        let memory = match size {
            0 => Memory::Nowhere,
            _ => {
                let location = if gpu.is_unified { MemoryLocation::CpuToGpu } else { MemoryLocation::GpuOnly };
                let raw = gpu.allocate(size, location)?;
                // SAFETY: a buffer of this device, which nothing else uses yet.
                let (raw, payment) = run_once(gpu, (raw, payment), |device, commands, (raw, _)| unsafe {
                    device.cmd_fill_buffer(commands, raw.buffer, 0, ash::vk::WHOLE_SIZE, 0);
                })?;
                Memory::Own { raw, _payment: payment }
            }
        };
        Ok(GpuBuffer { memory, size, device: funds.device(), _place: None })
    }

    /// Bytes of the host where they are, for which nobody pays; the error says why there must be a copy of them.
    pub(crate) fn import(gpu: &Arc<Gpu>, funds: &Funds, bytes: &Bytes) -> std::result::Result<GpuBuffer, String> {
        let memory = Memory::Imported(import(gpu, bytes)?);
        Ok(GpuBuffer { memory, size: bytes.len() as u64, device: funds.device(), _place: None })
    }

    /// The same with a place among its client's allocations.
    pub(crate) fn counted_by(self, place: Arc<()>) -> GpuBuffer {
        GpuBuffer { _place: Some(place), ..self }
    }

    /// Vulkan's handle.
    pub(crate) fn handle(&self) -> Option<ash::vk::Buffer> {
        match &self.memory {
            Memory::Nowhere => None,
            Memory::Own { raw, .. } => Some(raw.buffer),
            Memory::Imported(imported) => Some(imported.buffer),
        }
    }

    /// Writes bytes to an offset without the device, where the host sees this memory. Returns whether it does.
    ///
    /// # Safety
    /// The bytes are inside, and the device uses nothing of them.
    pub(crate) unsafe fn write_at_once(&self, offset: u64, bytes: &[u8]) -> bool {
        let Memory::Own { raw, .. } = &self.memory else { return false };
        let Some(mapped) = raw.mapped() else { return false };
        // SAFETY: the memory is mapped as long as it is there, and as the caller promises.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), mapped.add(offset as usize), bytes.len()) };
        true
    }

    /// Where shaders find its first byte; 0 if it is empty.
    pub(crate) fn address(&self) -> u64 {
        match &self.memory {
            Memory::Nowhere => 0,
            Memory::Own { raw, .. } => raw.address,
            Memory::Imported(imported) => imported.address,
        }
    }
}

impl Buffer for GpuBuffer {
    fn size(&self) -> u64 {
        self.size
    }

    fn device(&self) -> u64 {
        self.device
    }

    fn is_read_only(&self) -> bool {
        matches!(self.memory, Memory::Imported(_))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The buffer of a slice.
pub(crate) fn buffer(slice: &Slice) -> Result<&GpuBuffer> {
    let wrong = || Error::Misuse("a buffer of another kind of device".into());
    slice.buffer().as_any().downcast_ref().ok_or_else(wrong)
}

/// Vulkan's handle of a slice's buffer; a slice that is not empty has one.
pub(crate) fn handle(slice: &Slice) -> Result<ash::vk::Buffer> {
    buffer(slice)?.handle().ok_or_else(|| Error::Misuse("a slice of an empty buffer".into()))
}
