//! What a node takes, so that none keeps a card busy for long.

use crate::launch::{MAX_SORTED, Node, PENALTY_PART, Pass};
use outboard_core::op::{Op, ReduceKind, Srcs};

/// Operations of one node at most: some seconds of a small card.
pub(crate) const MOST_WORK: u64 = 1 << 42;

/// Times that it takes to go through a row to find places in it: three of seven digits each, and three for the first of all, the list and the
/// result.
const SELECTION: u64 = 24;

/// What a thread takes to begin.
const THREAD: u64 = 4;

/// What an element of a row takes that threads go through each on its own, from one to the next.
const ONE_BY_ONE: u64 = 1 << 12;

/// Operations that it takes to begin with all threads of some passes, whatever they compute.
pub(crate) fn beginning(passes: &[Pass]) -> u64 {
    let threads = passes.iter().map(|pass| pass.blocks.saturating_mul(pass.lanes.into()));
    threads.fold(0, u64::saturating_add).saturating_mul(THREAD)
}

/// Operations of a node.
pub(crate) fn work(node: &Node) -> Option<u64> {
    let layouts: Vec<_> = (0..node.tensor.srcs().len()).map(|i| node.src(i).map(|src| *src.layout())).collect();
    let op = node.tensor.op()?;
    let flops = op.flops(&Srcs(&layouts), node.tensor.layout());
    let count = |i: usize| node.src(i).map_or(0, |src| src.layout().elements() as u64);
    let length = |i: usize| node.src(i).map_or(0, |src| src.ne()[0] as u64);
    Some(match op {
        Op::Sample(_) => count(0).saturating_mul(SELECTION),
        Op::TopK(_) if length(0) > MAX_SORTED as u64 => count(0).saturating_mul(SELECTION),
        Op::Reduce(op) if op.kind == ReduceKind::Cumsum => count(0).saturating_mul(ONE_BY_ONE),
        Op::Argsort(_) | Op::TopK(_) => count(0).saturating_mul(length(0)),
        Op::Penalty(op) => {
            let positions = match op.block {
                0 => length(1),
                block => length(4).saturating_mul(block as u64),
            };
            let part = PENALTY_PART as u64;
            let of_row = length(0).div_ceil(part).saturating_mul(positions.saturating_add(2 * part));
            of_row.saturating_mul(node.src(0)?.ne()[1] as u64)
        }
        // Every block looks at all indices.
        Op::SetRows(_) => {
            let rows = node.src(1)?.layout().rows() as u64;
            flops.saturating_add(rows.saturating_mul(count(2)))
        }
        Op::FlashAttn(op) => {
            let q = node.src(0)?;
            let keys = crate::attention::keys(node, op)? as u64;
            let pair = 2 * (q.ne()[0] + node.tensor.ne()[0]) as u64;
            keys.saturating_mul(pair).saturating_mul((q.ne()[1] * q.ne()[2]) as u64)
        }
        _ => flops,
    })
}
