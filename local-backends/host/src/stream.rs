//! The commands of a queue in host memory: each is done when the call returns.

use crate::access::{ACCESSES, Access, Footprint, Touched};
use crate::buffer::HostBuffer;
use crate::device::{HostExecutable, NodeError, Run, host_buffer};
use bytes::Bytes;
use outboard_core::local::{Outcome, Span, Stream};
use outboard_core::{Error, Executable, Result, Slice};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

pub(crate) struct HostStream {
    /// The device's id.
    pub(crate) id: Arc<str>,
    pub(crate) cancel: Arc<AtomicBool>,
}

impl HostStream {
    fn begin(&self, touched: Vec<Touched>) -> Result<Access<'static>> {
        ACCESSES.begin(&Footprint::new(touched), &self.cancel)
    }

    fn run(&self, executable: &HostExecutable) -> Result<Span> {
        let start = Instant::now();
        let _access = ACCESSES.begin(&executable.footprint, &self.cancel)?;
        let run = executable.scratch.with(|scratch| executable.program.run(Run { abort: &self.cancel, scratch }))?;
        match run {
            Ok(()) => Ok(Span { start, end: Instant::now() }),
            Err(NodeError { detail: None, .. }) => Err(Error::Cancelled),
            Err(NodeError { node, detail: Some(detail) }) => {
                Err(Error::Device { device: self.id.to_string(), op: Some(node), detail })
            }
        }
    }
}

impl Stream for HostStream {
    fn write(&mut self, dst: &Slice, data: Bytes) -> Result<Outcome<()>> {
        let to = address(dst)?;
        let _access = self.begin(vec![Touched::written(to, data.len())])?;
        // SAFETY: `dst` has `data`'s length, is inside its buffer and writable; nobody else touches it now; `copy` allows overlap,
        // should somebody write a buffer to itself.
        unsafe { std::ptr::copy(data.as_ptr(), to, data.len()) };
        Ok(Outcome::Now(()))
    }

    fn read(&mut self, src: &Slice) -> Result<Outcome<Bytes>> {
        let (from, len) = (address(src)?, src.len() as usize);
        let mut out = Vec::new();
        let needed = src.len();
        out.try_reserve_exact(len).map_err(|_| Error::OutOfMemory { device: "host".into(), needed, free: 0 })?;
        let _access = self.begin(vec![Touched::read(from, len)])?;
        // SAFETY: `from` is valid for `len` bytes, `out` has room for them, buffers are initialised from the start, and nobody writes
        // here now.
        unsafe {
            std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), len);
            out.set_len(len);
        }
        Ok(Outcome::Now(out.into()))
    }

    fn copy(&mut self, src: &Slice, dst: &Slice) -> Result<Outcome<()>> {
        let (from, to, len) = (address(src)?, address(dst)?, src.len() as usize);
        let _access = self.begin(vec![Touched::read(from, len), Touched::written(to, len)])?;
        // SAFETY: both are inside their buffers and of equal length, the destination was found writable when it was enqueued, and nobody
        // else touches them now; `copy` allows overlap.
        unsafe { std::ptr::copy(from, to, len) };
        Ok(Outcome::Now(()))
    }

    fn fill(&mut self, dst: &Slice, value: u8) -> Result<Outcome<()>> {
        let (to, len) = (address(dst)?, dst.len() as usize);
        let _access = self.begin(vec![Touched::written(to, len)])?;
        // SAFETY: `dst` is inside its buffer and writable, and nobody else touches it now.
        unsafe { std::ptr::write_bytes(to, value, len) };
        Ok(Outcome::Now(()))
    }

    fn execute(&mut self, executable: &Arc<dyn Executable>) -> Result<Outcome<Span>> {
        let wrong = || Error::Misuse("a graph that was compiled for another kind of device".into());
        let executable = executable.as_any().downcast_ref::<HostExecutable>().ok_or_else(wrong)?;
        Ok(Outcome::Now(self.run(executable)?))
    }

    fn reaches(&self, dst: &Slice) -> bool {
        dst.buffer().as_any().is::<HostBuffer>()
    }
}

/// The first byte of a slice of a host buffer.
pub(crate) fn address(slice: &Slice) -> Result<*mut u8> {
    // SAFETY: a slice is inside its buffer by construction.
    Ok(unsafe { host_buffer(slice)?.ptr().add(slice.offset() as usize) })
}
