//! What everything else is built on: dtypes, shapes, ops, graphs, the contract of a device, and what devices of this process have in
//! common. No I/O, no unsafe.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod at_once;
pub mod attr;
pub mod content;
pub mod device;
pub mod dtype;
pub mod error;
pub mod graph;
pub mod local;
pub mod op;
pub mod progress;
pub mod quant;
pub mod shape;
pub mod sort;

pub use at_once::{at_once, try_at_once};
pub use content::{Content, ContentUpload, DeviceContents, Digest};
pub use device::{
    Buffer, Client, Costs, Device, DeviceInfo, DeviceKind, Event, Executable, MemoryAccount, MemoryInfo, MemoryShare,
    NodeSet, PeerTransfer, Pending, PlacedBytes, Placement, Queue, Slice, Speed, Ticket, TraceEvent, Usage, WeightTail,
};
pub use dtype::DType;
pub use error::{Error, Result};
pub use graph::{Graph, GraphBuilder, GraphError, Kind, LeafKind, Tensor, TensorId};
pub use local::Host;
pub use op::Op;
pub use progress::{Doing, Patience, Progress};
pub use shape::{DIMS, Layout};

/// A lock that a panic elsewhere does not take away: what it guards is valid after every statement.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
