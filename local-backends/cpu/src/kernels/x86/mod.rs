//! Leaves for x86-64: AVX2 with FMA and F16C, and AVX-512 with VNNI.

pub(super) mod act;
pub(super) mod dot;
pub(super) mod panel;
pub(super) mod unpack;
mod words;
