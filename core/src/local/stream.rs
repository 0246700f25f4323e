//! What a backend does for one queue.

use crate::device::{Executable, Slice};
use crate::error::Result;
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// From when to when a graph ran, in this process's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// When the device began with it.
    pub start: Instant,
    /// When it was done.
    pub end: Instant,
}

/// Waits for a result, and stops waiting, with [`Error::Cancelled`](crate::Error::Cancelled), when the flag is set.
pub type Later<T> = Box<dyn FnOnce(&AtomicBool) -> Result<T> + Send>;

/// The result of a command: there when the call returns, or when the device has come to it.
pub enum Outcome<T> {
    /// It is done, and so is all that was given before.
    Now(T),
    /// It is enqueued on the device.
    Later(Later<T>),
}

impl<T> fmt::Debug for Outcome<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::Now(_) => "Outcome::Now(..)",
            Outcome::Later(_) => "Outcome::Later(..)",
        })
    }
}

/// How long a queue that is dropped waits for a copy into memory that another queue waits for, at most, all its copies together: nobody else may use
/// that memory before. A device that takes longer is taken to hang.
pub const COPY_ENDS: Duration = Duration::from_secs(30);

/// What a backend does for one queue, on that queue's own thread.
///
/// The device does commands in the order in which they are given. A method may return as soon as the device has its command
/// ([`Outcome::Later`]), so that the device always has the next one: waits happen on another thread of the queue, in order. A wait that
/// returns says that its command and all before it are done, and tells what a graph found wrong with its values. An error, at
/// once or later, poisons the queue; outcomes behind it are waited for all the same, and their results dropped.
///
/// The queue keeps nothing for the device: a stream keeps every slice (with its buffer), every executable and every staged byte until the
/// device is done with it, also if the wait was cancelled. Bytes that [`Stream::read`] has given may live for minutes.
///
/// Slices are of this device, or of one that a copy [reaches](Stream::reaches). They are not empty, of the right length and writable where they are
/// written, and a copy does not overlap: that was checked when the command was enqueued. They begin at any byte. Executables are of this device;
/// that they are of this context is the caller's duty ([`Device::for_client`](crate::Device::for_client)).
///
/// Dropping a stream stops what the device still does for it and waits for that.
pub trait Stream: Send {
    /// Copies bytes to the device.
    fn write(&mut self, dst: &Slice, data: Bytes) -> Result<Outcome<()>>;
    /// Copies bytes from the device.
    fn read(&mut self, src: &Slice) -> Result<Outcome<Bytes>>;
    /// Copies within the device, or to memory that another queue waits for and this stream [reaches](Stream::reaches). That queue has nothing in
    /// flight, and nobody uses its memory until the outcome is there. So an outcome that is cancelled comes when the device is done with the copy, or
    /// after [`COPY_ENDS`]. An error that names another device is that one's, and this queue goes on.
    fn copy(&mut self, src: &Slice, dst: &Slice) -> Result<Outcome<()>>;
    /// Sets every byte.
    fn fill(&mut self, dst: &Slice, value: u8) -> Result<Outcome<()>>;
    /// Runs a graph. It has one of the device's turns until the outcome is there, or the queue is poisoned.
    fn execute(&mut self, executable: &Arc<dyn Executable>) -> Result<Outcome<Span>>;
    /// Whether [`Stream::copy`] can write to this slice, of whatever device of the host. Asked while transfers of the host are locked, so that it
    /// must not wait.
    fn reaches(&self, dst: &Slice) -> bool;
    /// Whether there may be such memory on another device. An offer of this stream then waits for whoever accepts it, as long as the device is at what
    /// was given before.
    fn has_peers(&self) -> bool {
        false
    }
}
