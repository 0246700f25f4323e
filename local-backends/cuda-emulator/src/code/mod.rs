//! The form that is run: registers are rows of 32 lanes, arithmetic is a function over rows, targets are indices, and every branch
//! knows where its lanes come together again.
mod alu;
mod alu_float;
mod alu_half;
mod alu_int;
mod alu_more;
mod convert;
mod flow;
mod lanes;
pub(crate) mod lower;
mod lower_alu;
mod lower_memory;
mod lower_warp;
mod mnemonic;
pub(crate) mod num;
pub(crate) mod op;
#[cfg(test)]
mod tests;

pub(crate) use lanes::{AluFn, Row};
pub(crate) use lower::{Kernel, Layout, lower};
