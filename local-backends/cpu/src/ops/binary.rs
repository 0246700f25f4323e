//! ADD, SUB, MUL, DIV.

use super::*;
use crate::kernels::rows;
use outboard_core::op::Binary;

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &Binary) -> Result<(), String> {
    let (a, b, out, isa) = (node.src(0)?, node.src(1)?, &node.out, cx.isa);
    let width = b.ne()[0];
    for_rows(cx, out, &|at| {
        let y = b.f32s(b.wrap(at));
        let x = row_of(a, out, at);
        match width {
            1 => rows::binary_one(isa, op.kind, x, y[0]),
            // SAFETY of aliasing: the result may be a's memory, never b's (see `Binary::in_place`).
            _ => x.chunks_exact_mut(width).for_each(|x| rows::binary(isa, op.kind, x, y)),
        }
    });
    Ok(())
}
