//! What a client has of a helper's device: buffers and compiled graphs. Each keeps its process.

use crate::message::Request;
use crate::process::Process;
use outboard_core::local::Payment;
use outboard_core::{Buffer, Error, Executable, Placement, Result, Slice};
use std::any::Any;
use std::sync::Arc;

/// Memory of the device.
#[derive(Debug)]
pub(crate) struct HelperBuffer {
    pub(crate) process: Arc<Process>,
    pub(crate) id: u64,
    pub(crate) size: u64,
    pub(crate) device: u64,
    /// For its bytes.
    pub(crate) payments: Vec<Payment>,
}

impl Buffer for HelperBuffer {
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

impl Drop for HelperBuffer {
    fn drop(&mut self) {
        self.process.give_back(Request::Free(self.id), std::mem::take(&mut self.payments));
    }
}

/// A compiled graph, with the memory that it needs beside its tensors, and theirs.
#[derive(Debug)]
pub(crate) struct HelperExecutable {
    pub(crate) process: Arc<Process>,
    pub(crate) id: u64,
    pub(crate) device: u64,
    /// For what it needs beside its tensors.
    pub(crate) payments: Vec<Payment>,
    pub(crate) _placement: Placement,
}

impl Executable for HelperExecutable {
    fn device(&self) -> u64 {
        self.device
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for HelperExecutable {
    fn drop(&mut self) {
        self.process.give_back(Request::Forget(self.id), std::mem::take(&mut self.payments));
    }
}

/// The buffer of a slice, which lies in this process's helper. What lies in an earlier one is lost.
pub(crate) fn buffer<'s>(process: &Arc<Process>, slice: &'s Slice) -> Result<&'s HelperBuffer> {
    let wrong = || Error::Misuse("memory of another kind of device".into());
    let buffer: &HelperBuffer = slice.buffer().as_any().downcast_ref().ok_or_else(wrong)?;
    if !Arc::ptr_eq(&buffer.process, process) {
        buffer.process.check()?;
        process.check()?;
        return Err(Error::Misuse("memory of another process".into()));
    }
    Ok(buffer)
}
