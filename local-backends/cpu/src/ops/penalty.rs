//! PENALTY.

use super::*;
use crate::tensor::checked;
use outboard_core::op::Penalty;
use std::collections::HashMap;

pub(crate) fn run(_: &mut Cx<'_>, node: &Node, op: &Penalty) -> Result<(), String> {
    let (x, history, steps, out) = (node.src(0)?, node.src(1)?, node.src(2)?, &node.out);
    let mut counts: HashMap<usize, usize> = HashMap::new();
    for r in 0..x.n_rows() {
        counts.clear();
        for i in op.window(steps.int([r, 0, 0, 0]), history.ne()[0])? {
            *counts.entry(checked(history.int([i, 0, 0, 0]), x.ne()[0], "token")?).or_default() += 1;
        }
        let row = row_of(x, out, [r, 0, 0]);
        for (&token, &count) in &counts {
            row[token] = op.apply(row[token], count);
        }
    }
    Ok(())
}
