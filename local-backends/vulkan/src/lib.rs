//! GPUs of any vendor as devices of this process, by Vulkan 1.2.
//!
//! The loader is opened at run time: without one, without a driver, or without what is needed there is no device (`instance`). A `gpu` is a
//! logical device, of which every client has its own `memory`. A graph becomes a `program`: for each node a `launch` says which kernel computes
//! it, and what that kernel is given lies in a record in the device's memory, so that the command buffers are recorded once. Kernels find
//! tensors by 64-bit addresses; nothing is bound. A `stream` submits what a queue gives it, with `commands` on a timeline, and bytes pass through
//! `staging`.
//!
//! `steps` orders a graph's nodes and finds its barriers; `joined` says which nodes one kernel computes. `units` and `dot` say what a driver has for products,
//! and `trust` whether that computes what it should. `allocation` is memory as the driver has it, `import` that of mapped files; `cache` keeps compiled
//! `pipelines`, `timer` has times of runs, and an `interposer` stands before a driver in tests. Kernels are GLSL (`shaders/`), committed as SPIR-V (`spirv/`), which `tools/shaders` builds.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod allocation;
mod attention;
mod cache;
mod commands;
mod cost;
mod device;
mod dot;
mod gpu;
mod import;
mod instance;
mod interposer;
mod joined;
mod launch;
mod memory;
mod pipelines;
mod products;
mod program;
mod reported;
mod staging;
mod statistics;
mod steps;
mod stream;
mod timer;
mod trust;
mod units;

pub use device::{OpenOptions, UNSUPPORTED, vulkan_device};
pub use dot::DOT;
pub use gpu::COPIES;
pub use instance::{Class, Found, find};
pub use interposer::{Function, Interposer};
pub use statistics::{Statistics, statistics};
pub use units::{UNITS, Units};
