//! What of a graph is computed one behind the other, what has to wait for what, and which nodes one kernel computes together.

use crate::gpu::Gpu;
use crate::launch::{Bounds, Launch, Pass, launch};
use ash::vk;
use outboard_core::op::{BinaryKind, Op};
use outboard_core::{DType, Error, Graph, PlacedBytes, Placement, Result, TensorId};
use std::sync::Arc;

/// Most ranges that are remembered between two barriers.
const MOST_RANGES: usize = 256;

/// A node that is computed, maybe with the one before it.
pub(crate) struct Step {
    pub(crate) id: TensorId,
    /// What the kernel reads.
    pub(crate) srcs: Vec<Option<TensorId>>,
    pub(crate) launch: Launch,
    /// Of each pass, with its workgroups.
    pub(crate) pipelines: Vec<(vk::Pipeline, u64)>,
    /// Whether it must wait for steps before it.
    pub(crate) waits: bool,
}

/// The nodes that compute something, with their pipelines, and which of them wait for others.
pub(crate) fn steps(gpu: &Arc<Gpu>, graph: &Graph, placement: &Placement) -> Result<Vec<Step>> {
    let bounds = Bounds::of(gpu.physical.kind);
    let uses = uses(graph);
    let mut steps: Vec<Step> = Vec::new();
    for id in graph.nodes() {
        let tensor = graph.tensor(id);
        if !tensor.is_compute() || tensor.layout().is_empty() {
            continue;
        }
        let unsupported = || Error::Request(format!("{} does not support {}", gpu.id, graph.label(id)));
        let (mut launch, mut srcs) = (launch(graph, id, &bounds).ok_or_else(unsupported)?, tensor.srcs().to_vec());
        if launch.passes.iter().all(|pass| pass.groups == 0) {
            continue;
        }
        if let Some(before) = steps.last()
            && let Some(scale) = scale_of(graph, placement, &uses, before.id, id)
            && let Some(step) = steps.pop()
        {
            srcs = vec![step.srcs.first().copied().flatten(), Some(scale)];
            launch = step.launch.scaled();
        }
        let pipelines = launch.passes.iter().map(|pass| pipeline(gpu, graph, id, pass)).collect::<Result<_>>()?;
        steps.push(Step { id, srcs, launch, pipelines, waits: false });
    }
    find_waits(graph, placement, &mut steps);
    Ok(steps)
}

fn pipeline(gpu: &Gpu, graph: &Graph, id: TensorId, pass: &Pass) -> Result<(vk::Pipeline, u64)> {
    let made = gpu.pipelines.get(&pass.variant).map_err(|e| {
        let detail = format!("the driver cannot compile its kernel: {e}");
        Error::Device { device: gpu.id.to_string(), op: Some(graph.label(id).to_string()), detail }
    })?;
    Ok((made, pass.groups))
}

/// How often each tensor is read.
fn uses(graph: &Graph) -> Vec<usize> {
    let mut uses = vec![0; graph.tensors().len()];
    graph.nodes().flat_map(|id| graph.tensor(id).sources()).for_each(|src| uses[src.index()] += 1);
    uses
}

/// What `product` multiplies each row of a norm with, if it is all that is made of the norm: then one kernel computes both.
fn scale_of(
    graph: &Graph,
    placement: &Placement,
    uses: &[usize],
    norm: TensorId,
    product: TensorId,
) -> Option<TensorId> {
    let (normed, result) = (graph.tensor(norm), graph.tensor(product));
    let Some(Op::Binary(binary)) = result.op() else { return None };
    let is_alone = uses[norm.index()] == 1 && !normed.is_output();
    if binary.kind != BinaryKind::Mul || !matches!(normed.op(), Some(Op::Norm(_))) || !is_alone {
        return None;
    }
    let scale = match *result.srcs() {
        [Some(a), Some(b)] if a == norm && b != norm => b,
        [Some(a), Some(b)] if b == norm && a != norm => a,
        _ => return None,
    };
    let (weight, x) = (graph.tensor(scale), normed.srcs().first().copied().flatten()?);
    let is_row = weight.dtype() == DType::F32 && weight.ne() == [result.ne()[0], 1, 1, 1];
    // A row may be written where it was read; another one would be spoilt before it is read.
    let (from, to) = (placement.bytes(graph, x)?, placement.bytes(graph, product)?);
    let is_in_place = from == to && graph.tensor(x).layout().nb() == result.layout().nb();
    let is_apart = !to.meets(&from) || is_in_place;
    let keeps_scale = !to.meets(&placement.bytes(graph, scale)?);
    (is_row && result.ne() == normed.ne() && is_apart && keeps_scale).then_some(scale)
}

/// Finds the steps that read or write what steps before them have written, or write what these read.
fn find_waits(graph: &Graph, placement: &Placement, steps: &mut [Step]) {
    // What was read and written since the last barrier.
    let (mut read, mut written): (Vec<PlacedBytes>, Vec<PlacedBytes>) = Default::default();
    // All steps have the same scratch memory.
    let mut scratch_is_used = false;
    for step in steps {
        let sources = step.srcs.iter().flatten().filter_map(|&src| placement.bytes(graph, src));
        let (reads, writes) = (sources.collect::<Vec<_>>(), placement.bytes(graph, step.id));
        let meets = |range: &PlacedBytes, others: &[PlacedBytes]| others.iter().any(|other| range.meets(other));
        let uses_scratch = step.launch.scratch > 0;
        step.waits = reads.iter().any(|range| meets(range, &written))
            || writes.iter().any(|range| meets(range, &written) || meets(range, &read))
            || uses_scratch && scratch_is_used
            // So that a graph of many nodes is not compared with itself node by node.
            || read.len() > MOST_RANGES;
        if step.waits {
            read.clear();
            written.clear();
            scratch_is_used = false;
        }
        scratch_is_used |= uses_scratch;
        read.extend(reads);
        written.extend(writes);
    }
}
