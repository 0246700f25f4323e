//! Nodes that one kernel computes together: a dependent kernel more costs a card some microseconds.

use crate::launch::{CACHE_ROW, Launch, number};
use crate::steps::Step;
use outboard_core::local::card::{added_to_product, scale_of_norm};
use outboard_core::op::{GluKind, Op};
use outboard_core::{DType, Graph, Placement, TensorId};

/// The nodes of a graph, as they become steps.
pub(crate) struct Joining<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) placement: &'a Placement,
    /// [`Graph::uses`].
    pub(crate) uses: &'a [usize],
    /// What a step may take.
    pub(crate) most_work: u64,
}

impl Joining<'_> {
    /// A node with the last steps, if one kernel computes both. The steps are gone then. What the node takes, computed alone, is added to their work: a submission
    /// has only so much.
    pub(crate) fn joined(&self, steps: &mut Vec<Step>, id: TensorId, work: u64) -> Option<Step> {
        let last = steps.last()?;
        let work = last.launch.work.saturating_add(work);
        if let Some(scale) = scale_of_norm(self.graph, self.placement, self.uses, last.id, id) {
            let norm = steps.pop()?;
            let srcs = vec![norm.src(0), Some(scale)];
            return Some(Step { id, srcs, launch: Launch { work, ..norm.launch.scaled() }, ..norm });
        }
        if last.launch.adds
            && let Some(added) = added_to_product(self.graph, self.placement, self.uses, last.id, id)
        {
            let product = steps.pop()?;
            let srcs = vec![product.src(0), product.src(1), Some(added)];
            return Some(Step { id, srcs, launch: Launch { work, adds: false, ..product.launch }, ..product });
        }
        match self.graph.tensor(id).op()? {
            Op::Glu(glu) => self.gated(steps, id, glu.kind, work),
            Op::SetRows(_) => self.rotated_into_cache(steps, id, work),
            _ => None,
        }
    }

    /// Whether nothing but one other node reads it.
    fn is_read_once(&self, id: TensorId) -> bool {
        self.uses[id.index()] == 1 && !self.graph.tensor(id).is_output()
    }

    /// Whether a step may write the memory of a node while it reads other sources.
    fn is_apart(&self, written: TensorId, read: &[Option<TensorId>]) -> bool {
        let bytes = |id| self.placement.bytes(self.graph, id);
        let Some(to) = bytes(written) else { return false };
        read.iter().flatten().all(|&src| bytes(src).is_none_or(|from| !to.meets(&from)))
    }

    /// A gated unit with the two products with few columns that it is made of: a workgroup takes rows of both.
    fn gated(&self, steps: &mut Vec<Step>, id: TensorId, kind: GluKind, work: u64) -> Option<Step> {
        let [.., first, second] = &steps[..] else { return None };
        let unit = self.graph.tensor(id);
        let (gate, up) = match *unit.srcs() {
            [Some(gate), Some(up)] if [gate, up] == [first.id, second.id] => (first, second),
            [Some(gate), Some(up)] if [gate, up] == [second.id, first.id] => (second, first),
            _ => return None,
        };
        let kernel = |step: &Step| step.launch.passes.last().map(|pass| pass.variant.clone());
        let shape = |step: &Step| step.src(0).map(|weights| self.graph.tensor(weights).ne());
        let srcs = vec![gate.src(0), gate.src(1), None, up.src(0)];
        let is_one = gate.launch.adds
            && up.launch.adds
            && kernel(gate) == kernel(up)
            && shape(gate) == shape(up)
            && gate.src(1) == up.src(1)
            && [gate, up].iter().all(|step| self.is_read_once(step.id))
            && unit.ne() == self.graph.tensor(gate.id).ne()
            && self.is_apart(id, &srcs);
        let work = work.saturating_add(first.launch.work);
        if !is_one || work > self.most_work {
            return None;
        }
        let launch = gate.launch.clone().gated(kind, unit.ne())?;
        steps.truncate(steps.len() - 2);
        Some(Step::new(id, srcs, Launch { work, ..launch }))
    }

    /// The SET_ROWS of what the last step, a ROPE, has rotated, if nobody else needs that.
    fn rotated_into_cache(&self, steps: &mut Vec<Step>, id: TensorId, work: u64) -> Option<Step> {
        let (rope, cache) = (steps.last()?, self.graph.tensor(id));
        let [.., Some(rows), indices] = cache.srcs() else { return None };
        // One that goes to a cache already is a SET_ROWS.
        let is_rope = matches!(self.graph.tensor(rope.id).op(), Some(Op::Rope(_)));
        let mut srcs = rope.srcs.clone();
        srcs.resize(3, None);
        srcs.push(*indices);
        if !is_rope
            || cache.dtype().is_quantized()
            || cache.dtype() == DType::I32
            || !self.is_only_view(*rows, rope.id)
            || !self.is_of_heads(rope.id, *rows)
            || !self.is_apart(id, &srcs)
            || work > self.most_work
        {
            return None;
        }
        let rope = steps.pop()?;
        Some(Step { id, srcs, launch: Launch { work, ..rope.launch.into_cache(number(cache.dtype())) }, ..rope })
    }

    /// Whether a tensor is what a step made, or a view of it, and all that is made of that.
    fn is_only_view(&self, view: TensorId, made: TensorId) -> bool {
        let mut id = view;
        while id != made {
            let tensor = self.graph.tensor(id);
            match *tensor.srcs() {
                [Some(src)] if !tensor.is_compute() && self.is_read_once(id) => id = src,
                _ => return false,
            }
        }
        self.is_read_once(made)
    }

    /// Whether rows are what a ROPE has made of `[d, heads, tokens]`, head by head, none of them long.
    fn is_of_heads(&self, rope: TensorId, rows: TensorId) -> bool {
        let (rotated, rows) = (self.graph.tensor(rope), self.graph.tensor(rows));
        let [d, heads, tokens, above] = rotated.ne();
        let [of_element, of_head, of_token, _] = rotated.layout().nb();
        rows.offset() == rotated.offset()
            && rows.dtype() == DType::F32
            && above == 1
            && d <= CACHE_ROW
            && rows.ne() == [d, tokens, heads, 1]
            && rows.layout().nb()[..3] == [of_element, of_token, of_head]
    }
}
