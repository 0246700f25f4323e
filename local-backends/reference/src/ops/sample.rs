//! SAMPLE is defined by [`Sampler::draw`], for every device alike.

use super::*;
use outboard_core::op::{Candidate, Sample, Sampler};

pub(in super::super) fn run(logits: &T, params: &T, draws: &T, out: &T) {
    let mut room = vec![Candidate::default(); Sample::room(logits.ne()[0])];
    for row in logits.rows() {
        let r = row[1];
        let params = [0, 1, 2, 3].map(|i| params.get([i, r, 0, 0]) as f32);
        let (sampler, step) = Sampler::read(params, [0, 1, 2].map(|i| draws.int([i, r, 0, 0])));
        let values: Vec<f32> = logits.row(row).into_iter().map(|v| v as f32).collect();
        out.set_int([r, 0, 0, 0], sampler.draw(&values, step, &mut room, || false));
    }
}
