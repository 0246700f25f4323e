//! The reference of `op::glu`, to the letter of its documentation.

use super::*;
use outboard_core::op::{Glu, GluKind, UnaryKind};

pub(in super::super) fn run(op: &Glu, gate: &T, up: &T, out: &T) {
    for i in out.indices() {
        let (gate, up) = (gate.get(i), up.get(i));
        let act = |kind| unary::function(kind, gate);
        out.set(
            i,
            match op.kind {
                GluKind::Reglu => act(UnaryKind::Relu) * up,
                GluKind::Geglu => act(UnaryKind::Gelu) * up,
                GluKind::Swiglu => act(UnaryKind::Silu) * up,
                GluKind::SwigluOai { alpha, limit } => swiglu_oai(alpha.into(), limit.into(), gate, up),
            },
        );
    }
}

fn swiglu_oai(alpha: f64, limit: f64, gate: f64, up: f64) -> f64 {
    // Not f64::min, which would drop NaN.
    let gate = if gate > limit { limit } else { gate };
    gate * unary::function(UnaryKind::Sigmoid, alpha * gate) * (1.0 + up.clamp(-limit, limit))
}
