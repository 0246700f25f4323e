//! A CUDA driver for tests: a `libcuda.so` that interprets PTX, so that unmodified cudarc, host code and kernels run without a card. It
//! checks what hardware does not (see [`Fault`]) and counts what a kernel costs (see [`Counts`]). It is never shipped.
//!
//! A test calls [`Emulator::load`] before cudarc opens its driver; README.md says how and why that works.
//!
//! * `ptx`: text as a tree. * `code`: the tree in the form that is run. * `exec`: runs it, with all checks.
//! * `driver`: the calls of CUDA. * `control`, `client`: what goes beyond them, from inside and from outside.
#![cfg(target_os = "linux")]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod client;
mod code;
mod control;
mod count;
mod driver;
mod exec;
mod finding;
mod ptx;

pub use client::{Emulator, Found, LIBRARY_VARIABLE, Launched};
pub use count::{Counts, KINDS, Kind};
pub use driver::{Config, Live, VARIABLE};
pub use finding::Fault;
