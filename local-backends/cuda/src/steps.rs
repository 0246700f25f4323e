//! What of a graph is computed one behind the other, which nodes one kernel computes together, and which steps depend on which.

mod products;
mod rotations;

use crate::gpu::Gpu;
use crate::kernels::{Function, Kernel};
use crate::launch::{Launch, PARAMS, Pass, launch};
use outboard_core::local::card::{added_to_product, scale_of_norm};
use outboard_core::{Error, Graph, PlacedBytes, Placement, Result, TensorId};
use std::sync::Arc;

/// What one launch, or some one behind the other, compute: a node, or several.
pub(crate) struct Step {
    /// What kernels are given of each node, one at least; those with several have so many records, one behind the other.
    pub(crate) parts: Vec<Part>,
    pub(crate) launch: Launch,
    /// Of each pass, its function, blocks, and threads of each.
    pub(crate) functions: Vec<(Function, u32, u32)>,
    /// What it does with the memory that passes leave numbers in for the next one.
    scratch: Scratch,
}

impl Step {
    /// The node that it is named by.
    pub(crate) fn id(&self) -> TensorId {
        self.parts[0].id
    }

    /// The only node that it computes.
    fn only(&self) -> Option<TensorId> {
        match &self.parts[..] {
            [part] => Some(part.id),
            _ => None,
        }
    }

    /// What its parts' records have as their table.
    pub(crate) fn tables(&self) -> impl Iterator<Item = Table> {
        let in_scratch = self.scratch != Scratch::Unused;
        self.parts.iter().map(move |part| match part.table {
            Table::Of(_) if in_scratch => Table::Scratch(0),
            table => table,
        })
    }
}

/// What a record's table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    /// Numbers that the host prepares for a node. In a step that uses scratch memory, its beginning.
    Of(TensorId),
    /// Scratch memory from that number on.
    Scratch(usize),
    /// So many zeros, which kernels leave as zeros. Steps that have them use scratch memory: so they follow one another.
    Zeros(usize),
}

impl Table {
    pub(crate) fn zeros(self) -> usize {
        match self {
            Table::Zeros(count) => count,
            Table::Of(_) | Table::Scratch(_) => 0,
        }
    }
}

/// A node of a step, or several of which `id` is the last.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Whose result it is.
    pub(crate) id: TensorId,
    pub(crate) table: Table,
    /// What kernels find in its record.
    pub(crate) srcs: Vec<Option<TensorId>>,
    /// Of these, what they write beside the result.
    also: Option<TensorId>,
    pub(crate) params: [u32; PARAMS],
}

impl Part {
    fn written(&self) -> impl Iterator<Item = TensorId> {
        [self.id].into_iter().chain(self.also)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scratch {
    Unused,
    /// It reads what a step before has left.
    Read,
    Written,
}

/// The nodes that compute something, with their functions.
pub(crate) fn steps(gpu: &Arc<Gpu>, graph: &Graph, placement: &Placement) -> Result<Vec<Step>> {
    let uses = graph.uses();
    let mut plan = Plan { graph, placement, uses: &uses, steps: Vec::new(), packed: None };
    for id in graph.nodes() {
        let tensor = graph.tensor(id);
        if !tensor.is_compute() || tensor.layout().is_empty() {
            continue;
        }
        let unsupported = || Error::Request(format!("{} does not support {}", gpu.id, graph.label(id)));
        let launch = launch(graph, id, gpu.card).ok_or_else(unsupported)?;
        if launch.passes.iter().any(|pass| pass.blocks > 0) {
            plan.add(id, launch);
        }
    }
    let mut steps = plan.steps;
    rotations::join(graph, placement, &mut steps);
    products::join(graph, placement, &uses, &mut steps);
    for step in &mut steps {
        let passes = step.launch.passes.iter().filter(|pass| pass.blocks > 0);
        step.functions = passes.map(|pass| function(gpu, graph, step.id(), pass)).collect::<Result<_>>()?;
    }
    Ok(steps)
}

fn function(gpu: &Arc<Gpu>, graph: &Graph, id: TensorId, pass: &Pass) -> Result<(Function, u32, u32)> {
    let function = gpu.function(&pass.variant).map_err(|error| match error {
        Error::Device { device, detail, .. } => Error::Device { device, op: Some(graph.label(id)), detail },
        error => error,
    })?;
    // `launch` has seen that it fits.
    Ok((function, pass.blocks as u32, pass.lanes))
}

/// Steps, as nodes come to them.
struct Plan<'a> {
    graph: &'a Graph,
    placement: &'a Placement,
    uses: &'a [usize],
    steps: Vec<Step>,
    /// The columns that lie in scratch memory as signed bytes.
    packed: Option<TensorId>,
}

impl Plan<'_> {
    fn add(&mut self, id: TensorId, launch: Launch) {
        let joined = self.scaled_norm(id).or_else(|| self.product_and_sum(id));
        let step = joined.unwrap_or_else(|| self.step(id, launch));
        if let Some(packed) = self.packed
            && id != packed
            && self.writes_over(id, packed)
        {
            self.packed = None;
        }
        self.steps.push(step);
    }

    /// A node on its own.
    fn step(&mut self, id: TensorId, launch: Launch) -> Step {
        let srcs = self.graph.tensor(id).srcs().to_vec();
        let scratch = if launch.scratch > 0 { Scratch::Written } else { Scratch::Unused };
        let part = Part { id, table: Table::Of(id), srcs, also: None, params: launch.params };
        let mut step = Step { parts: vec![part], launch, functions: Vec::new(), scratch };
        self.share_columns(&mut step);
        step
    }

    /// The norm that is the last step with what multiplies its rows.
    fn scaled_norm(&mut self, product: TensorId) -> Option<Step> {
        let norm = self.steps.last()?.only()?;
        let scale = scale_of_norm(self.graph, self.placement, self.uses, norm, product)?;
        let mut norm = self.steps.pop()?;
        let x = norm.parts[0].srcs.first().copied().flatten();
        norm.launch.scale(&mut norm.parts[0].params);
        norm.parts[0].id = product;
        norm.parts[0].srcs = vec![x, Some(scale)];
        Some(norm)
    }

    /// The product with few columns that is the last step with what is added to it.
    fn product_and_sum(&mut self, sum: TensorId) -> Option<Step> {
        let added = self.added_to(self.steps.last()?, sum)?;
        let mut product = self.steps.pop()?;
        product.parts[0].id = sum;
        product.parts[0].srcs.truncate(2);
        product.parts[0].srcs.push(Some(added));
        Some(product)
    }

    /// What `sum` adds to a product with few columns.
    fn added_to(&self, product: &Step, sum: TensorId) -> Option<TensorId> {
        let is_vec = product.launch.passes.last().is_some_and(|pass| pass.variant.kernel.is_mul_mat_vec());
        added_to_product(self.graph, self.placement, self.uses, product.only()?, sum).filter(|_| is_vec)
    }

    /// Columns become signed bytes once for all products of them, if possible where they are made.
    fn share_columns(&mut self, step: &mut Step) {
        let packs = step.launch.passes.first().is_some_and(|pass| pass.variant.kernel == Kernel::Quantize);
        let Some(columns) = step.parts[0].srcs.get(1).copied().flatten().filter(|_| packs) else {
            if step.scratch == Scratch::Written {
                self.packed = None;
            }
            return;
        };
        if self.packed != Some(columns)
            && self.can_pack(columns)
            && let Some(maker) = self.steps.last_mut()
        {
            maker.launch.pack(&mut maker.parts[0].params, step.launch.scratch);
            maker.scratch = Scratch::Written;
            self.packed = Some(columns);
        }
        if self.packed == Some(columns) {
            step.launch.passes.remove(0);
            step.scratch = Scratch::Read;
        }
        self.packed = Some(columns);
    }

    /// Whether the last step makes these columns, and can leave them as bytes, too.
    fn can_pack(&self, columns: TensorId) -> bool {
        let Some(last) = self.steps.last() else { return false };
        let Some(made) = last.only() else { return false };
        let kernels: Vec<_> = last.launch.passes.iter().map(|pass| pass.variant.kernel).collect();
        match kernels[..] {
            [Kernel::Norm | Kernel::Glu] => made == columns && last.scratch == Scratch::Unused,
            [_, Kernel::FlashAttnParts] => self.is_of_whole_heads(made, columns),
            _ => false,
        }
    }

    /// Whether columns are what attention has made, the heads of a query one behind the other, each of whole warps.
    fn is_of_whole_heads(&self, made: TensorId, columns: TensorId) -> bool {
        let (made, columns) = (self.graph.tensor(made), self.graph.tensor(columns));
        let [dv, heads, queries, above] = made.ne();
        made.layout().is_contiguous()
            && columns.layout().is_contiguous()
            && (columns.root(), columns.offset()) == (made.root(), made.offset())
            && columns.ne() == [dv * heads, queries, 1, 1]
            && above == 1
            && dv % 32 == 0
    }

    fn writes_over(&self, written: TensorId, packed: TensorId) -> bool {
        let bytes = |id| self.placement.bytes(self.graph, id);
        bytes(written).zip(bytes(packed)).is_none_or(|(written, packed)| written.meets(&packed))
    }
}

/// Of each step, those before it that must be done first: which wrote what it reads or writes, or read what it writes. What follows from others is
/// left out. It takes the square of their number, in time and in bytes.
pub(crate) fn dependencies(steps: &[&Used]) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = Vec::with_capacity(steps.len());
    // Of each step, all that are done when it begins.
    let mut done: Vec<Vec<bool>> = Vec::with_capacity(steps.len());
    for step in 0..steps.len() {
        let (mut before, mut mine) = (Vec::new(), vec![false; step]);
        for other in (0..step).rev() {
            if !mine[other] && steps[other].is_before(steps[step]) {
                before.push(other);
                mine[other] = true;
                mine.iter_mut().zip(&done[other]).for_each(|(mine, theirs)| *mine |= theirs);
            }
        }
        all.push(before);
        done.push(mine);
    }
    all
}

/// Memory that a step uses.
#[derive(Debug)]
pub(crate) struct Used {
    read: Vec<PlacedBytes>,
    written: Vec<PlacedBytes>,
    scratch: Scratch,
}

impl Used {
    /// What a step uses.
    pub(crate) fn of(graph: &Graph, placement: &Placement, step: &Step) -> Used {
        let bytes = |id| placement.bytes(graph, id);
        let read = step.parts.iter().flat_map(|part| part.srcs.iter().flatten().filter_map(|&src| bytes(src)));
        let written = step.parts.iter().flat_map(|part| part.written().filter_map(bytes));
        Used { read: read.collect(), written: written.collect(), scratch: step.scratch }
    }

    /// Whether it writes what that reads or writes.
    fn spoils(&self, that: &Used) -> bool {
        self.written.iter().any(|a| that.read.iter().chain(&that.written).any(|b| a.meets(b)))
    }

    /// Whether this must be done before that.
    fn is_before(&self, that: &Used) -> bool {
        let scratch = [self.scratch, that.scratch];
        let share_scratch = scratch.contains(&Scratch::Written) && !scratch.contains(&Scratch::Unused);
        self.meets(that) || share_scratch
    }

    /// Whether one writes a tensor that the other one reads or writes.
    fn meets(&self, that: &Used) -> bool {
        let meet = |a: &[PlacedBytes], b: &[PlacedBytes]| a.iter().any(|a| b.iter().any(|b| a.meets(b)));
        meet(&self.written, &that.read) || meet(&self.written, &that.written) || meet(&self.read, &that.written)
    }
}
