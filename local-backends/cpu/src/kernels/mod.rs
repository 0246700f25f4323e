//! The arithmetic: what a device's threads call on pieces of a tensor. No threads, no graphs, no allocation but scratch.
//!
//! Each algorithm is written once; what differs by instruction set is a small leaf. Which leaves run is told by an [`Isa`],
//! a value that exists only for what this processor has, so tests can take every path and no kernel checks again.
//!
//! The quantized product: activations become 8-bit blocks ([`act`]); a format only says how a group of 32 weights turns
//! into bytes with scales and minimums ([`mod@format`], `x86::unpack`, sixteen rows at once `x86::words`, `neon::unpack`); everything else is
//! shared: dot products row by row for a few
//! columns (bound by memory), and panels of unpacked, interleaved rows against tiles of columns for many ([`mul_mat`]).

// Kernels step through several arrays with one index; zipping four iterators says less.
#![allow(clippy::needless_range_loop)]

pub mod act;
mod ahead;
pub mod attn;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod dot;
pub mod float;
pub mod format;
pub mod isa;
#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod leaf_tests;
pub mod mul_mat;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) mod panel;
pub mod rows;
mod simd;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use isa::Isa;
