//! Memory of devices: buffers, and ranges of them.

use crate::error::{Error, Result};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// What a buffer is for; a device may place it accordingly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Usage {
    /// Anything.
    Any,
    /// Weights: written once, read often.
    Weights,
    /// Intermediate results and state.
    Compute,
}

/// Memory of a device. Freed when the last reference is dropped and no enqueued command uses it.
pub trait Buffer: fmt::Debug + Send + Sync {
    /// Size in bytes.
    fn size(&self) -> u64;
    /// The device it belongs to, by [`Device::uid`](super::Device::uid).
    fn device(&self) -> u64;
    /// Whether it can only be read (a mapped file).
    fn is_read_only(&self) -> bool {
        false
    }
    /// For the device to find its own type.
    fn as_any(&self) -> &dyn Any;
}

/// A range of a buffer, in bounds by construction.
#[derive(Clone, Debug)]
pub struct Slice {
    buffer: Arc<dyn Buffer>,
    offset: u64,
    len: u64,
}

impl Slice {
    /// `len` bytes from `offset`.
    pub fn new(buffer: Arc<dyn Buffer>, offset: u64, len: u64) -> Result<Slice> {
        match offset.checked_add(len) {
            Some(end) if end <= buffer.size() => Ok(Slice { buffer, offset, len }),
            _ => {
                Err(Error::Request(format!("{len} bytes at {offset} are outside a buffer of {} bytes", buffer.size())))
            }
        }
    }

    /// The whole buffer.
    pub fn whole(buffer: Arc<dyn Buffer>) -> Slice {
        let len = buffer.size();
        Slice { buffer, offset: 0, len }
    }

    /// A part of this slice.
    pub fn part(&self, offset: u64, len: u64) -> Result<Slice> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                Ok(Slice { buffer: self.buffer.clone(), offset: self.offset + offset, len })
            }
            _ => Err(Error::Request(format!("{len} bytes at {offset} are outside a slice of {} bytes", self.len))),
        }
    }

    /// The buffer.
    pub fn buffer(&self) -> &Arc<dyn Buffer> {
        &self.buffer
    }

    /// Whether both are of the same buffer.
    pub fn shares_buffer(&self, other: &Slice) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.buffer), Arc::as_ptr(&other.buffer))
    }

    /// Bytes from the start of the buffer.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
