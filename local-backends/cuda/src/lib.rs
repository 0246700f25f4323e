//! NVIDIA's GPUs as devices of this process, by CUDA 12.2.
//!
//! The driver's library is opened at run time: without one there is no device (`card`). A `gpu` is a context of a card, in which every client
//! has its own `memory`. A graph becomes a `program`: for each node a `launch` says which kernel computes it, and with which `record` as its
//! parameter. A `stream` gives what a queue gives it to a stream of CUDA's, with `events` behind every command; bytes pass through `pinned`
//! memory, or go straight to another context (`peers`). Kernels are CUDA C (`kernels/`), committed as PTX (`kernels/ptx/`), which
//! `tools/ptx/build.py` builds and the driver finalises.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod attention;
mod card;
mod cost;
mod device;
mod events;
mod gpu;
mod kernels;
mod launch;
mod memory;
mod peers;
mod pinned;
mod program;
mod reaper;
mod record;
mod recording;
mod rotation;
mod steps;
mod stream;
mod tiles;

pub use card::{Found, VIRTUAL, find};
pub use device::{OpenOptions, UNSUPPORTED, cuda_device};
pub use peers::PEERS;
