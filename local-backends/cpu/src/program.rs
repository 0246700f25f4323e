//! A graph as a list of nodes with addresses, ready to run.

use crate::Shared;
use crate::kernels::mul_mat;
use crate::ops::{self, Cx, Watch};
use crate::scratch::{Memory, Need};
use crate::tensor::T;
use outboard_core::{DType, Graph, Op, TensorId};
use outboard_host::{NodeError, Program, Run, TensorPtr};
use std::sync::Arc;

/// Whether the device computes this node.
pub(crate) fn supports(graph: &Graph, id: TensorId) -> bool {
    let t = graph.tensor(id);
    match t.op() {
        Some(Op::MulMat(_) | Op::MulMatId(_)) => {
            let weights = t.srcs().first().copied().flatten().map(|w| graph.tensor(w).dtype());
            weights.is_some_and(|d| d.is_float() || mul_mat::is_supported(d))
        }
        _ => true,
    }
}

/// One node that computes.
pub(crate) struct Node {
    pub(crate) op: Op,
    pub(crate) srcs: Vec<Option<T>>,
    pub(crate) out: T,
    /// The right side of this product is what the product before it has quantized already.
    pub(crate) same_columns: bool,
    label: String,
}

impl Node {
    /// A source that the op's shape rule has required.
    pub(crate) fn src(&self, i: usize) -> Result<&T, String> {
        self.opt(i).ok_or_else(|| format!("source {i} is missing"))
    }

    pub(crate) fn opt(&self, i: usize) -> Option<&T> {
        self.srcs.get(i).and_then(Option::as_ref)
    }
}

pub(crate) struct CpuProgram {
    shared: Arc<Shared>,
    nodes: Vec<Node>,
    need: Need,
}

impl CpuProgram {
    pub(crate) fn new(shared: Arc<Shared>, graph: &Graph, tensors: &[TensorPtr]) -> CpuProgram {
        let mut nodes = Vec::new();
        let mut quantized: Option<TensorId> = None;
        let at = |id: TensorId| T::new(tensors[id.index()]);
        for id in graph.nodes().filter(|&id| graph.tensor(id).is_compute()) {
            let t = graph.tensor(id);
            let Some(op) = t.op() else { continue };
            // A node without elements has nothing to compute, and rules such as division by extents would not hold.
            if t.ne().contains(&0) && op.writes().is_none() {
                continue;
            }
            let mut same_columns = false;
            if let (Op::MulMat(_) | Op::MulMatId(_), [Some(w), Some(x), ..]) = (op, t.srcs())
                && graph.tensor(*w).dtype().is_quantized()
            {
                // Experts gather their columns, plain products do not: the first may not reuse the other's.
                same_columns = matches!(op, Op::MulMat(_)) && quantized == Some(*x);
                quantized = matches!(op, Op::MulMat(_)).then_some(*x);
            } else if op.writes().is_some() {
                quantized = None;
            }
            nodes.push(Node {
                op: op.clone(),
                srcs: t.srcs().iter().map(|s| s.map(at)).collect(),
                out: at(id),
                same_columns,
                label: graph.label(id),
            });
        }
        let need = nodes.iter().map(|node| ops::need(shared.isa, node)).fold(Need::default(), Need::max);
        CpuProgram { shared, nodes, need }
    }
}

impl Program for CpuProgram {
    fn scratch(&self) -> u64 {
        self.need.total(self.shared.pool.threads())
    }

    fn run(&self, run: Run<'_>) -> Result<(), NodeError> {
        let Shared { isa, pool, steps } = &*self.shared;
        let failed = |node: &Node, detail: Option<String>| NodeError { node: node.label.clone(), detail };
        let Some(first) = self.nodes.first() else { return Ok(()) };
        let memory = Memory::divide(run.scratch, self.need, pool.threads()).map_err(|e| failed(first, Some(e)))?;
        let mut cx = Cx::new(*isa, pool, Watch { abort: run.abort, steps }, memory);
        for node in &self.nodes {
            if !cx.aborted() {
                run_node(&mut cx, node).map_err(|e| failed(node, Some(e)))?;
            }
            // What an aborted op has left is no result.
            if cx.aborted() {
                return Err(failed(node, None));
            }
        }
        Ok(())
    }
}

fn run_node(cx: &mut Cx<'_>, node: &Node) -> Result<(), String> {
    match &node.op {
        Op::AddId(_) => ops::add_id::run(cx, node),
        Op::Argmax(_) => ops::argmax::run(cx, node),
        Op::Argsort(op) => ops::argsort::run(cx, node, op),
        Op::Binary(op) => ops::binary::run(cx, node, op),
        Op::Cast(_) | Op::Cont(_) | Op::Cpy(_) => ops::copy::run(cx, node),
        Op::Clamp(op) => ops::map(cx, node, |isa, x| crate::kernels::rows::clamp(isa, x, op.min, op.max)),
        Op::Concat(op) => ops::concat::run(cx, node, op),
        Op::FlashAttn(op) => ops::flash_attn::run(cx, node, op),
        Op::GetRows(_) => ops::get_rows::run(cx, node),
        Op::Glu(op) => ops::glu::run(cx, node, op),
        Op::LogProb(_) => ops::log_prob::run(cx, node),
        Op::MulMat(_) => ops::mul_mat::run(cx, node),
        Op::MulMatId(_) => ops::mul_mat_id::run(cx, node),
        Op::Norm(op) => ops::map(cx, node, |isa, x| crate::kernels::rows::norm(isa, op.kind, op.eps, x)),
        Op::Penalty(op) => ops::penalty::run(cx, node, op),
        Op::Reduce(op) => ops::sum_rows::run(cx, node, op),
        Op::Repeat(_) => ops::repeat::run(cx, node),
        Op::Rope(op) => ops::rope::run(cx, node, op),
        Op::Sample(_) => ops::sample::run(cx, node),
        Op::Scale(op) => ops::map(cx, node, |isa, x| crate::kernels::rows::scale(isa, x, op.scale, op.bias)),
        Op::SetRows(_) => ops::set_rows::run(cx, node),
        Op::SoftMax(op) => ops::soft_max::run(cx, node, op),
        Op::TopK(op) => ops::top_k::run(cx, node, op),
        Op::Unary(op) => ops::map(cx, node, |isa, x| crate::kernels::rows::unary(isa, op.kind, x)),
        Op::View(_) | Op::Reshape(_) | Op::Permute(_) => Ok(()),
    }
}

/// Whether elements of this type are 4 bytes that may be moved without a look at them.
pub(crate) fn is_word(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::I32)
}
