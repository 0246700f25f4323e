//! What attention does before it looks at keys, as one step: ROPE of queries, ROPE of keys and SET_ROWS of them, SET_ROWS of values.

use super::{Scratch, Step, Used};
use crate::kernels::{Kernel, Variant};
use crate::launch::{Launch, MOST_BLOCKS, Pass};
use outboard_core::op::Op;
use outboard_core::{DType, Graph, Placement, TensorId};

/// Nodes of such a step.
const NODES: usize = 4;

/// Joins what belongs together.
pub(super) fn join(graph: &Graph, placement: &Placement, steps: &mut Vec<Step>) {
    let mut at = 0;
    while at + NODES <= steps.len() {
        if let Some(joined) = joined(graph, placement, &steps[at..at + NODES]) {
            steps.splice(at..at + NODES, [joined]);
        }
        at += 1;
    }
}

/// The four as one step, if they are what this is for and nothing is done too early.
fn joined(graph: &Graph, placement: &Placement, steps: &[Step]) -> Option<Step> {
    let [queries, keys, set_keys, set_values] = steps else { return None };
    let ids = [queries.only()?, keys.only()?, set_keys.only()?, set_values.only()?];
    let ops = ids.map(|id| graph.tensor(id).op());
    if !matches!(ops, [Some(Op::Rope(_)), Some(Op::Rope(_)), Some(Op::SetRows(_)), Some(Op::SetRows(_))])
        || !is_of_heads(graph, ids[1], ids[2])
        || graph.tensor(ids[2]).dtype().is_quantized()
    {
        return None;
    }
    let used = steps.iter().map(|step| Used::of(graph, placement, step)).collect::<Vec<_>>();
    let pairs = (0..NODES).flat_map(|b| (0..b).map(move |a| (a, b)));
    // Keys that are written are what is rotated, and nothing else.
    let [_, rotates, writes, _] = &used[..] else { return None };
    if pairs.filter(|&pair| pair != (1, 2)).any(|(a, b)| used[a].is_before(&used[b])) || writes.spoils(rotates) {
        return None;
    }
    let (mut rotated, indices) = (keys.parts[0].clone(), set_keys.parts[0].srcs.get(2).copied().flatten()?);
    let bytes = |id| placement.bytes(graph, id);
    if bytes(indices).zip(bytes(ids[1])).is_none_or(|(indices, rotated)| indices.meets(&rotated)) {
        return None;
    }
    rotated.srcs.resize(3, None);
    rotated.srcs.extend([Some(indices), Some(ids[1])]);
    rotated.params[3] = set_keys.parts[0].params[0];
    rotated.also = Some(ids[1]);
    rotated.id = ids[2];
    let pass = |step: &Step| step.launch.passes.first().map(|pass| (pass.lanes, pass.blocks));
    let [a, b, c] = [pass(queries)?, pass(keys)?, pass(set_values)?];
    let lanes = a.0.max(b.0).max(c.0);
    let blocks = a.1 + b.1 + c.1;
    if blocks > MOST_BLOCKS {
        return None;
    }
    let pass = Pass { variant: Variant::of(Kernel::RopeCache, &[]), lanes, blocks };
    let work = steps.iter().map(|step| step.launch.work).fold(0, u64::saturating_add);
    Some(Step {
        parts: vec![queries.parts[0].clone(), rotated, set_values.parts[0].clone()],
        launch: Launch { work, ..Launch::new(pass) },
        functions: Vec::new(),
        scratch: Scratch::Unused,
    })
}

/// Whether a SET_ROWS writes what a ROPE has made of `[d, heads, tokens]`, head by head, as numbers.
fn is_of_heads(graph: &Graph, rope: TensorId, set: TensorId) -> bool {
    let Some(src) = graph.tensor(set).srcs().get(1).copied().flatten() else { return false };
    let (rotated, src) = (graph.tensor(rope), graph.tensor(src));
    let [d, heads, tokens, above] = rotated.ne();
    let [of_element, of_head, of_token, _] = rotated.layout().nb();
    let nb = src.layout().nb();
    src.root() == rotated.root()
        && src.offset() == rotated.offset()
        && src.dtype() == DType::F32
        && above == 1
        && src.ne() == [d, tokens, heads, 1]
        && nb[..3] == [of_element, of_token, of_head]
}
