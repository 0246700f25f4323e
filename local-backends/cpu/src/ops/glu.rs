//! REGLU, GEGLU, SWIGLU, SWIGLU_OAI.

use super::*;
use crate::kernels::rows;
use outboard_core::op::Glu;

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &Glu) -> Result<(), String> {
    let (gate, up, out, isa) = (node.src(0)?, node.src(1)?, &node.out, cx.isa);
    for_rows(cx, out, &|at| {
        if up.row(at) == out.row(at) {
            rows::glu_up(isa, op.kind, gate.f32s(at), out.f32s_mut(at));
        } else {
            rows::glu_gate(isa, op.kind, row_of(gate, out, at), up.f32s(at));
        }
    });
    Ok(())
}
