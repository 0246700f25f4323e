//! SAMPLE is defined by [`Sample::draw`], for every device alike.

use super::*;
use outboard_core::op::{Candidate, Sample};

pub(in super::super) fn run(op: &Sample, logits: &T, steps: &T, out: &T) {
    let mut room = vec![Candidate::default(); op.room(logits.ne()[0])];
    for row in logits.rows() {
        let at = [row[1], 0, 0, 0];
        let values: Vec<f32> = logits.row(row).into_iter().map(|v| v as f32).collect();
        out.set_int(at, op.draw(&values, steps.int(at), row[1], &mut room, || false));
    }
}
