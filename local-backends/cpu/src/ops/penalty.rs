//! PENALTY.

use super::*;
use crate::paging::Table;
use crate::tensor::checked;
use outboard_core::op::{Penalties, Penalty};
use outboard_core::sort::sort_by;

/// Tokens between two looks whether to go on.
const POLL: usize = 1 << 16;

/// Positions of the longest history.
fn positions(node: &Node, op: &Penalty) -> usize {
    if op.block == 0 {
        node.opt(1).map_or(0, |history| history.ne()[0])
    } else {
        node.opt(4).map_or(0, |table| Table::positions(table, op.block))
    }
}

/// The tokens of a window, and as many to merge with.
pub(crate) fn need(node: &Node, op: &Penalty) -> Need {
    let tokens = bytes_of::<u32>(positions(node, op));
    Need { shared: tokens.saturating_mul(2).saturating_add(64), ..Need::default() }
}

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &Penalty) -> Result<(), String> {
    let (x, history, steps, params, out) = (node.src(0)?, node.src(1)?, node.src(2)?, node.src(3)?, &node.out);
    let (workers, most) = (cx.workers(), positions(node, op));
    let mut shared = cx.shared.borrow();
    let (tokens, buffer) = (shared.take::<u32>(most)?, shared.take::<u32>(most)?);
    for r in (0..x.n_rows()).take_while(|_| !workers.aborted()) {
        let penalties = Penalties::read([0, 1, 2, 3].map(|i| params.f32s([r, 0, 0])[i]));
        let window = penalties.window(steps.int([r, 0, 0, 0]), most)?;
        let table = match node.opt(4).zip(node.opt(5)) {
            Some((table, seqs)) => Some(Table::of(table, seqs, r, op.block, history.ne()[0])?),
            None => None,
        };
        let tokens = &mut tokens[..window.len()];
        for (to, j) in tokens.iter_mut().zip(window) {
            if j % POLL == 0 && workers.aborted() {
                break;
            }
            let i = table.as_ref().map_or(Ok(j), |table| table.checked_row(j))?;
            *to = checked(history.int([i, 0, 0, 0]), x.ne()[0], "token")? as u32;
        }
        sort_by(tokens, buffer, u32::cmp, || workers.aborted());
        let row = row_of(x, out, [r, 0, 0]);
        for same in tokens.chunk_by(|a, b| a == b) {
            let logit = &mut row[same[0] as usize];
            *logit = penalties.apply(*logit, same.len());
        }
    }
    Ok(())
}
