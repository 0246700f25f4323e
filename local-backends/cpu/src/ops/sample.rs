//! SAMPLE, which `Sample::draw` defines for every device alike; the greedy case has a kernel.

use super::*;
use crate::kernels::rows;
use outboard_core::op::Sample;

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &Sample) -> Result<(), String> {
    let (logits, steps, out) = (node.src(0)?, node.src(1)?, &node.out);
    for r in 0..logits.n_rows() {
        let row = logits.f32s([r, 0, 0]);
        let id = match op.temperature == 0.0 {
            true => rows::argmax(cx.isa, row) as i32,
            false => op.draw(row, steps.int([r, 0, 0, 0]), r, &mut cx.work.candidates),
        };
        out.set_int([r, 0, 0, 0], id);
    }
    Ok(())
}
