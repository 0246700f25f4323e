//! Memory of a card as the contract has it: buffers that begin as zeros and are paid for.

use crate::gpu::{Gpu, Memory};
use cudarc::driver::sys::CUdeviceptr;
use outboard_core::local::{Funds, Payment};
use outboard_core::{Buffer, Error, Result, Slice};
use std::any::Any;
use std::sync::Arc;

/// Memory of a card.
#[derive(Debug)]
pub(crate) struct GpuBuffer {
    /// `None` if it is empty.
    memory: Option<Memory>,
    size: u64,
    device: u64,
    _payment: Payment,
}

impl GpuBuffer {
    /// `size` bytes of zeros, paid for by `funds`. Errors: [`Error::OutOfMemory`].
    pub(crate) fn new(gpu: &Arc<Gpu>, funds: &Funds, size: u64) -> Result<GpuBuffer> {
        let payment = funds.pay(size)?;
        let memory = if size > 0 { Some(gpu.allocate(size)?) } else { None };
        Ok(GpuBuffer { memory, size, device: funds.device(), _payment: payment })
    }

    /// Where kernels find its first byte; 0 if it is empty.
    pub(crate) fn address(&self) -> CUdeviceptr {
        self.memory.as_ref().map_or(0, |memory| memory.address)
    }
}

impl Buffer for GpuBuffer {
    fn size(&self) -> u64 {
        self.size
    }

    fn device(&self) -> u64 {
        self.device
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The context that a slice lies in; `None` for one of another kind of device, or without bytes.
pub(crate) fn context_of(slice: &Slice) -> Option<&Arc<Gpu>> {
    let buffer: &GpuBuffer = slice.buffer().as_any().downcast_ref()?;
    buffer.memory.as_ref().map(|memory| &memory.gpu)
}

/// Where a slice begins.
pub(crate) fn address(slice: &Slice) -> Result<CUdeviceptr> {
    let wrong = || Error::Misuse("a buffer of another kind of device".into());
    let buffer: &GpuBuffer = slice.buffer().as_any().downcast_ref().ok_or_else(wrong)?;
    Ok(buffer.address() + slice.offset())
}
