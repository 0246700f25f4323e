//! How ROPE is launched, and the numbers that the host prepares for it.

use crate::kernels::Kernel;
use crate::launch::{Launch, Node};
use outboard_core::op::{Op, Rope, RopeMode};
use outboard_core::{Graph, TensorId};

/// Most elements of a row that are rotated: a table of half as many numbers is made for each node.
const MAX_ROTATED: usize = 4096;

pub(crate) fn rope(node: &Node, op: &Rope) -> Option<Launch> {
    if op.n_dims > MAX_ROTATED || node.tensor.ne()[3] != 1 {
        return None;
    }
    let neox = u32::from(op.mode == RopeMode::Neox);
    let launch = Launch::of_rows(Kernel::Rope, node.tensor.ne()[0], node.rows());
    Some(launch.with(&[op.n_dims as u32, op.amplitude().to_bits(), neox]))
}

/// The numbers that the host prepares for a node.
pub(crate) fn rates(graph: &Graph, id: TensorId) -> Vec<f32> {
    match graph.tensor(id).op() {
        Some(Op::Rope(op)) => op.rates(),
        _ => Vec::new(),
    }
}
