//! SAMPLE, which `Sample::draw` defines for every device alike; the greedy case has a kernel.

use super::*;
use crate::kernels::rows;
use outboard_core::op::{Candidate, Sample};

pub(crate) fn need(node: &Node, op: &Sample) -> Need {
    let row = node.opt(0).map_or(0, |logits| logits.ne()[0]);
    Need { shared: bytes_of::<Candidate>(op.room(row)), ..Need::default() }
}

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &Sample) -> Result<(), String> {
    let (logits, steps, out) = (node.src(0)?, node.src(1)?, &node.out);
    let (isa, workers) = (cx.isa, cx.workers());
    let room = cx.shared.borrow().take::<Candidate>(op.room(logits.ne()[0]))?;
    for r in (0..logits.n_rows()).take_while(|_| !workers.aborted()) {
        let row = logits.f32s([r, 0, 0]);
        let id = if op.temperature == 0.0 {
            rows::argmax(isa, row) as i32
        } else {
            op.draw(row, steps.int([r, 0, 0, 0]), r, room, || workers.aborted())
        };
        out.set_int([r, 0, 0, 0], id);
    }
    Ok(())
}
