//! Handles of what lies on a server: memory and compiled graphs.

use crate::session::Session;
use outboard_core::{Buffer, Error, Executable, Result, Slice};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Memory of a remote device. Dropped, the server frees it after the commands that were enqueued before.
pub(crate) struct RemoteBuffer {
    handle: u64,
    size: u64,
    device: u64,
    session: Arc<Session>,
}

impl RemoteBuffer {
    pub(crate) fn new(handle: u64, size: u64, device: u64, session: &Arc<Session>) -> RemoteBuffer {
        session.hold_buffer(handle);
        RemoteBuffer { handle, size, device, session: session.clone() }
    }

    /// The handle behind a slice, which must be of this device.
    pub(crate) fn handle_of(slice: &Slice, device: u64) -> Result<u64> {
        match slice.buffer().as_any().downcast_ref::<RemoteBuffer>() {
            Some(b) if b.device == device => Ok(b.handle),
            _ => Err(Error::Misuse("a buffer of another device".into())),
        }
    }
}

impl Buffer for RemoteBuffer {
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

impl Drop for RemoteBuffer {
    fn drop(&mut self) {
        self.session.free_buffer(self.handle);
    }
}

impl fmt::Debug for RemoteBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteBuffer({} of {}, {} bytes)", self.handle, self.session.endpoint, self.size)
    }
}

/// A graph that a remote device has compiled.
pub(crate) struct RemoteExecutable {
    handle: u64,
    device: u64,
    session: Arc<Session>,
}

impl RemoteExecutable {
    pub(crate) fn new(handle: u64, device: u64, session: &Arc<Session>) -> RemoteExecutable {
        session.hold_executable(handle);
        RemoteExecutable { handle, device, session: session.clone() }
    }

    /// The handle, if it is of this device.
    pub(crate) fn handle_of(executable: &Arc<dyn Executable>, device: u64) -> Result<u64> {
        match executable.as_any().downcast_ref::<RemoteExecutable>() {
            Some(e) if e.device == device => Ok(e.handle),
            _ => Err(Error::Misuse("a graph that was compiled for another device".into())),
        }
    }
}

impl Executable for RemoteExecutable {
    fn device(&self) -> u64 {
        self.device
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for RemoteExecutable {
    fn drop(&mut self) {
        self.session.free_executable(self.handle);
    }
}

impl fmt::Debug for RemoteExecutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteExecutable({} of {})", self.handle, self.session.endpoint)
    }
}
