//! The reference of `op::binary`, to the letter of its documentation.

use super::*;
use outboard_core::op::{Binary, BinaryKind};

pub(in super::super) fn run(op: &Binary, a: &T, b: &T, out: &T) {
    for i in out.indices() {
        let (x, y) = (a.get(i), b.get(wrap(i, b.ne())));
        out.set(
            i,
            match op.kind {
                BinaryKind::Add => x + y,
                BinaryKind::Sub => x - y,
                BinaryKind::Mul => x * y,
                BinaryKind::Div => x / y,
            },
        );
    }
}
