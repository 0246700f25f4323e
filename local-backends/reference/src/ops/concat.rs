//! The reference of `op::concat`, to the letter of its documentation.

use super::*;
use outboard_core::DType;
use outboard_core::op::Concat;

pub(in super::super) fn run(op: &Concat, a: &T, b: &T, out: &T) {
    let split = a.ne()[op.dim];
    for i in out.indices() {
        let mut from = i;
        let src = if i[op.dim] < split {
            a
        } else {
            from[op.dim] -= split;
            b
        };
        match out.dtype() {
            DType::I32 => out.set_int(i, src.int(from)),
            _ => out.set(i, src.get(from)),
        }
    }
}
