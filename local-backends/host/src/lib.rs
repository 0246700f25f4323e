//! What backends in host memory share: buffers, the host's memory, scratch memory, and who touches which bytes. A backend adds
//! [`Kernels`]: which ops it supports and how it runs a graph.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod access;
mod budget;
mod buffer;
mod device;
mod scratch;
mod stream;

pub use budget::MemoryBudget;
pub use buffer::{BUFFER_ALIGN, HostBuffer};
pub use device::{Kernels, NodeError, Program, Run, TensorPtr, host_device};

pub(crate) use outboard_core::lock;
