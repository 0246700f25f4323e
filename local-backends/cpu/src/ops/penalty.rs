//! PENALTY.

use super::*;
use crate::tensor::checked;
use outboard_core::op::Penalty;
use outboard_core::sort::sort_by;

/// Tokens of the longest window of a history.
fn longest_window(node: &Node, op: &Penalty) -> usize {
    node.opt(1).map_or(0, |history| history.ne()[0]).min(op.last_n)
}

/// The tokens of a window, and as many to merge with.
pub(crate) fn need(node: &Node, op: &Penalty) -> Need {
    let tokens = bytes_of::<u32>(longest_window(node, op));
    Need { shared: tokens.saturating_mul(2).saturating_add(64), ..Need::default() }
}

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &Penalty) -> Result<(), String> {
    let (x, history, steps, out) = (node.src(0)?, node.src(1)?, node.src(2)?, &node.out);
    let workers = cx.workers();
    let most = longest_window(node, op);
    let mut shared = cx.shared.borrow();
    let (tokens, buffer) = (shared.take::<u32>(most)?, shared.take::<u32>(most)?);
    for r in (0..x.n_rows()).take_while(|_| !workers.aborted()) {
        let window = op.window(steps.int([r, 0, 0, 0]), history.ne()[0])?;
        let tokens = &mut tokens[..window.len()];
        for (to, i) in tokens.iter_mut().zip(window) {
            *to = checked(history.int([i, 0, 0, 0]), x.ne()[0], "token")? as u32;
        }
        sort_by(tokens, buffer, u32::cmp, || workers.aborted());
        let row = row_of(x, out, [r, 0, 0]);
        for same in tokens.chunk_by(|a, b| a == b) {
            let logit = &mut row[same[0] as usize];
            *logit = op.apply(*logit, same.len());
        }
    }
    Ok(())
}
