//! SAMPLE, which `Sampler::draw` defines for every device alike; the greedy case has a kernel.

use super::*;
use crate::kernels::rows;
use outboard_core::op::{Candidate, Sample, Sampler};

pub(crate) fn need(node: &Node) -> Need {
    let row = node.opt(0).map_or(0, |logits| logits.ne()[0]);
    Need { shared: bytes_of::<Candidate>(Sample::room(row)), ..Need::default() }
}

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node) -> Result<(), String> {
    let (logits, params, draws, out) = (node.src(0)?, node.src(1)?, node.src(2)?, &node.out);
    let (isa, workers) = (cx.isa, cx.workers());
    let room = cx.shared.borrow().take::<Candidate>(Sample::room(logits.ne()[0]))?;
    for r in (0..logits.n_rows()).take_while(|_| !workers.aborted()) {
        let row = logits.f32s([r, 0, 0]);
        let params = [0, 1, 2, 3].map(|i| params.f32s([r, 0, 0])[i]);
        let (sampler, step) = Sampler::read(params, [0, 1, 2].map(|i| draws.int([i, r, 0, 0])));
        let id = if sampler.is_greedy() {
            rows::argmax(isa, row) as i32
        } else {
            sampler.draw(row, step, room, || workers.aborted())
        };
        out.set_int([r, 0, 0, 0], id);
    }
    Ok(())
}
