//! The reference of `op::glu`, to the letter of its documentation.

use super::*;
use outboard_core::op::{Glu, GluKind, UnaryKind};

pub(in super::super) fn run(op: &Glu, gate: &T, up: &T, out: &T) {
    let kind = match op.kind {
        GluKind::Reglu => UnaryKind::Relu,
        GluKind::Geglu => UnaryKind::Gelu,
        GluKind::Swiglu => UnaryKind::Silu,
    };
    for i in out.indices() {
        out.set(i, unary::function(kind, gate.get(i)) * up.get(i));
    }
}
