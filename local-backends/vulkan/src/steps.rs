//! What of a graph is computed one behind the other, what has to wait for what, and which nodes one kernel computes together.

use crate::cost::Bounds;
use crate::gpu::Gpu;
use crate::joined::Joining;
use crate::launch::{Launch, Pass, launch};
use ash::vk;
use outboard_core::local::order::{Access, SinceBarrier, in_levels};
use outboard_core::{Error, Graph, Placement, Result, TensorId};
use std::sync::Arc;

/// A node that is computed, maybe with some before it.
pub(crate) struct Step {
    pub(crate) id: TensorId,
    /// What the kernel reads.
    pub(crate) srcs: Vec<Option<TensorId>>,
    pub(crate) launch: Launch,
    /// The node whose table the host prepares.
    pub(crate) table_of: TensorId,
    /// Of each pass, with its workgroups.
    pub(crate) pipelines: Vec<(vk::Pipeline, u64)>,
    /// Whether a step before it has made its columns bytes.
    pub(crate) finds_columns: bool,
    /// Whether it must wait for steps before it.
    pub(crate) waits: bool,
}

impl Step {
    pub(crate) fn new(id: TensorId, srcs: Vec<Option<TensorId>>, launch: Launch) -> Step {
        Step { id, srcs, launch, table_of: id, pipelines: Vec::new(), finds_columns: false, waits: false }
    }

    pub(crate) fn src(&self, i: usize) -> Option<TensorId> {
        self.srcs.get(i).copied().flatten()
    }
}

/// The nodes that compute something, with their pipelines, and which of them wait for others.
pub(crate) fn steps(gpu: &Arc<Gpu>, graph: &Graph, placement: &Placement) -> Result<Vec<Step>> {
    let bounds = Bounds::of(gpu.physical.kind).with(gpu.fast());
    let uses = graph.uses();
    let joining = Joining { graph, placement, uses: &uses, most_work: bounds.work };
    let mut steps: Vec<Step> = Vec::new();
    for id in graph.nodes() {
        let tensor = graph.tensor(id);
        if !tensor.is_compute() || tensor.layout().is_empty() {
            continue;
        }
        let unsupported = || Error::Request(format!("{} does not support {}", gpu.id, graph.label(id)));
        let launch = launch(graph, id, &bounds).ok_or_else(unsupported)?;
        if launch.passes.iter().all(|pass| pass.groups == 0) {
            continue;
        }
        let joined = joining.joined(&mut steps, id, launch.work);
        steps.push(joined.unwrap_or_else(|| Step::new(id, tensor.srcs().to_vec(), launch)));
    }
    let touches = |step: Step| (Access::of(graph, placement, &step.srcs, step.id), step);
    let ordered = in_levels(steps.into_iter().map(touches).collect(), |(access, step), (of_earlier, earlier)| {
        access.follows(of_earlier) || Scratch::of(step).meets(Scratch::of(earlier))
    });
    let (accesses, mut steps): (Vec<_>, Vec<_>) = ordered.into_iter().unzip();
    for step in &mut steps {
        let passes = step.launch.passes.iter();
        step.pipelines = passes.map(|pass| pipeline(gpu, graph, step.id, pass)).collect::<Result<_>>()?;
    }
    pack_once(graph, placement, &mut steps);
    find_waits(&mut steps, accesses);
    Ok(steps)
}

/// What a step does with the scratch memory, which all steps have together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scratch {
    Unused,
    /// It leaves something there for itself.
    Own,
    /// It needs the columns of this source as bytes there.
    Packed(TensorId),
}

impl Scratch {
    fn of(step: &Step) -> Scratch {
        match step.src(1) {
            _ if step.launch.scratch == 0 => Scratch::Unused,
            Some(columns) if step.launch.packs => Scratch::Packed(columns),
            _ => Scratch::Own,
        }
    }

    /// Whether both cannot have it at once.
    fn meets(self, other: Scratch) -> bool {
        let is_shared = matches!((self, other), (Scratch::Packed(a), Scratch::Packed(b)) if a == b);
        self != Scratch::Unused && other != Scratch::Unused && !is_shared
    }
}

fn pipeline(gpu: &Gpu, graph: &Graph, id: TensorId, pass: &Pass) -> Result<(vk::Pipeline, u64)> {
    let made = gpu.pipelines.get(&pass.variant).map_err(|e| {
        let detail = format!("the driver cannot compile its kernel: {e}");
        Error::Device { device: gpu.id.to_string(), op: Some(graph.label(id).to_string()), detail }
    })?;
    Ok((made, pass.groups))
}

/// Leaves out the pass that makes columns bytes where a step before has left the same ones, and nothing has written over either since.
fn pack_once(graph: &Graph, placement: &Placement, steps: &mut [Step]) {
    let mut there = None;
    for step in steps {
        match Scratch::of(step) {
            Scratch::Packed(columns) if there == Some(columns) => {
                step.pipelines.remove(0);
                step.finds_columns = true;
            }
            Scratch::Packed(columns) => there = Some(columns),
            Scratch::Own => there = None,
            Scratch::Unused => {}
        }
        let bytes = there.and_then(|columns| placement.bytes(graph, columns));
        if let (Some(columns), Some(written)) = (bytes, placement.bytes(graph, step.id))
            && columns.meets(&written)
        {
            there = None;
        }
    }
}

/// Finds the steps that need a barrier before them, by what each touches.
fn find_waits(steps: &mut [Step], accesses: Vec<Access>) {
    let mut since = SinceBarrier::default();
    // Whether a step since the last barrier uses scratch memory.
    let mut scratch_is_used = false;
    for (step, access) in steps.iter_mut().zip(accesses) {
        let scratch = Scratch::of(step);
        // What finds its columns there has them behind a barrier, that of the step that made them.
        let writes_scratch = scratch != Scratch::Unused && !step.finds_columns;
        step.waits = since.needs_another(&access) || writes_scratch && scratch_is_used;
        if step.waits {
            since = SinceBarrier::default();
            scratch_is_used = false;
        }
        scratch_is_used |= scratch != Scratch::Unused;
        since.add(access);
    }
}
