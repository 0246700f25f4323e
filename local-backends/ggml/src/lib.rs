//! ggml's own backends, as llama.cpp installs them, as devices: each in a helper, a process of its own (`apart`).
//!
//! `libggml-base` and the backends beside it are opened at run time, and only exported functions of `ggml.h` and `ggml-backend.h` are called:
//! `functions` names them, `library` opens them, `devices` lists what they offer. A graph of ours becomes one of ggml's when it is compiled
//! (`translate`, `ops`), in our memory (`memory`), with the values checked that ggml does not check (`checks`), and runs on a `stream`; long
//! writes and reads of cards have one of their own (`transfer`). Nothing
//! outside this crate knows in which process the library is.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod apart;
mod checks;
mod device;
mod devices;
mod differences;
mod functions;
mod library;
mod log;
mod memory;
mod nodes;
mod ops;
mod places;
mod program;
mod stream;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod tail_tests;
mod tensors;
mod transfer;
mod translate;

pub use apart::{Found, find, open, run_if_helper, use_folder, why_none};
pub use device::ggml_device;
pub use devices::{Class, GgmlDevice, devices};
pub use differences::{Difference, Known, known};
pub use functions::Missing;
pub use library::{Library, OpenError, TRIED};
pub use outboard_helper::this_program;
pub use places::VARIABLE;

pub(crate) use outboard_core::lock;
