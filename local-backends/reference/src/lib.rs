//! The reference device: every op, naive and clear, with f64 accumulation. It is the oracle that other devices are tested
//! against, not something to run models on.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod ops;
mod tensor;
#[cfg(test)]
mod tests;

use outboard_core::Host;
use outboard_core::{Costs, Device, DeviceInfo, DeviceKind, Graph, Op, Result, TensorId};
use outboard_host::{Kernels, MemoryBudget, NodeError, Program, Run, TensorPtr, host_device};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tensor::{Aborted, T};

/// A reference device of `host` with its own name.
pub fn reference_device(host: &Arc<Host>, name: &str, budget: &Arc<MemoryBudget>) -> Arc<dyn Device> {
    let info = DeviceInfo {
        description: "reference implementation (slow, exact)".to_owned(),
        costs: Costs { uniform_rows: 1, attention: 1.0, ..Costs::default() },
        ..DeviceInfo::new(name, DeviceKind::Cpu, "reference", budget.info().total)
    };
    host_device(host, info, budget, Arc::new(Counting::default()))
}

/// The kernels of the reference device.
#[derive(Clone, Copy, Debug)]
pub struct Reference;

impl Kernels for Reference {
    fn supports(&self, _: &Graph, _: TensorId) -> bool {
        true
    }

    fn compile(&self, graph: Arc<Graph>, tensors: Vec<TensorPtr>) -> Result<Box<dyn Program>> {
        Ok(Box::new(Compiled { graph, tensors, steps: Arc::default() }))
    }
}

/// The kernels of one device, which counts the nodes that it has computed.
#[derive(Default)]
struct Counting {
    steps: Arc<AtomicU64>,
}

impl Kernels for Counting {
    fn supports(&self, graph: &Graph, id: TensorId) -> bool {
        Reference.supports(graph, id)
    }

    fn compile(&self, graph: Arc<Graph>, tensors: Vec<TensorPtr>) -> Result<Box<dyn Program>> {
        Ok(Box::new(Compiled { graph, tensors, steps: self.steps.clone() }))
    }

    fn progress(&self) -> Option<u64> {
        Some(self.steps.load(Ordering::Relaxed))
    }
}

struct Compiled {
    graph: Arc<Graph>,
    tensors: Vec<TensorPtr>,
    steps: Arc<AtomicU64>,
}

impl Program for Compiled {
    fn scratch(&self) -> u64 {
        self.graph.nodes().map(|id| scratch(&self.graph, id)).max().unwrap_or(0)
    }

    fn run(&self, run: Run<'_>) -> std::result::Result<(), NodeError> {
        for id in self.graph.nodes() {
            let fail = |detail| NodeError { node: self.graph.label(id), detail };
            let t = self.graph.tensor(id);
            let Some(op) = t.op() else { continue };
            let view = |id: TensorId| T::new(self.tensors[id.index()], run.abort);
            let srcs: Vec<Option<T<'_>>> = t.srcs().iter().map(|s| s.map(view)).collect();
            let node = || run_node(op, &Srcs(srcs), &view(id));
            match catch_unwind(AssertUnwindSafe(node)) {
                Ok(done) => done.map_err(|e| fail(Some(e)))?,
                Err(why) if why.is::<Aborted>() => return Err(fail(None)),
                Err(bug) => resume_unwind(bug),
            }
            if run.abort.load(Ordering::Relaxed) {
                return Err(fail(None));
            }
            self.steps.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// As many bytes as a node takes from the allocator, or more.
fn scratch(graph: &Graph, id: TensorId) -> u64 {
    let t = graph.tensor(id);
    let layouts = || t.sources().chain([id]).map(|id| graph.tensor(id).layout());
    // A row as f64, with a copy, its order, and the bytes that it is made of.
    let rows = || layouts().map(|layout| 48 * layout.ne()[0] as u64).sum::<u64>();
    match t.op() {
        None
        | Some(
            Op::AddId(_)
            | Op::Binary(_)
            | Op::Clamp(_)
            | Op::Concat(_)
            | Op::Glu(_)
            | Op::Permute(_)
            | Op::Repeat(_)
            | Op::Reshape(_)
            | Op::Scale(_)
            | Op::Unary(_)
            | Op::View(_),
        ) => 0,
        Some(Op::Cast(_) | Op::Cont(_) | Op::Cpy(_)) if !layouts().any(|layout| layout.dtype().is_quantized()) => 0,
        // All elements as f64, in a vector that grows.
        Some(Op::Cast(_) | Op::Cont(_) | Op::Cpy(_)) => {
            rows() + layouts().map(|l| 16 * l.elements() as u64).sum::<u64>()
        }
        // Scores, positions and targets: one for each row.
        Some(Op::FlashAttn(_) | Op::SetRows(_)) => rows() + layouts().map(|l| 64 * l.rows() as u64).sum::<u64>(),
        Some(_) => rows(),
    }
}

/// The sources of a node. The op's shape rule has checked that required ones are there.
struct Srcs<'a>(Vec<Option<T<'a>>>);

impl<'a> Srcs<'a> {
    fn opt(&self, i: usize) -> Option<&T<'a>> {
        self.0.get(i).and_then(Option::as_ref)
    }

    fn get(&self, i: usize) -> std::result::Result<&T<'a>, String> {
        self.opt(i).ok_or_else(|| format!("source {i} is missing"))
    }
}

fn run_node(op: &Op, srcs: &Srcs, out: &T) -> std::result::Result<(), String> {
    use ops::*;
    match op {
        Op::AddId(_) => add_id::run(srcs.get(0)?, srcs.get(1)?, srcs.get(2)?, out)?,
        Op::Argmax(_) => argmax::run(srcs.get(0)?, out),
        Op::Argsort(op) => argsort::run(op, srcs.get(0)?, out),
        Op::Binary(op) => binary::run(op, srcs.get(0)?, srcs.get(1)?, out),
        Op::Cast(_) | Op::Cont(_) => copy::run(srcs.get(0)?, out),
        Op::Clamp(op) => map(srcs.get(0)?, out, |x| x.clamp(op.min.into(), op.max.into())),
        Op::Concat(op) => concat::run(op, srcs.get(0)?, srcs.get(1)?, out),
        Op::Cpy(_) => copy::run(srcs.get(0)?, out),
        Op::FlashAttn(op) => flash_attn::run(op, srcs, out)?,
        Op::GetRows(_) => get_rows::run(srcs.get(0)?, srcs.get(1)?, out)?,
        Op::Glu(op) => glu::run(op, srcs.get(0)?, srcs.get(1)?, out),
        Op::Penalty(op) => penalty::run(op, srcs, out)?,
        Op::LogProb(_) => log_prob::run(srcs.get(0)?, srcs.get(1)?, out)?,
        Op::MulMat(_) => mul_mat::run(srcs.get(0)?, srcs.get(1)?, out),
        Op::MulMatId(_) => mul_mat_id::run(srcs.get(0)?, srcs.get(1)?, srcs.get(2)?, out)?,
        Op::Norm(op) => norm::run(op, srcs.get(0)?, out),
        Op::Reduce(op) => sum_rows::run(op, srcs.get(0)?, out),
        Op::Repeat(_) => repeat::run(srcs.get(0)?, out),
        Op::Rope(op) => rope::run(op, srcs.get(0)?, srcs.get(1)?, srcs.opt(2), out),
        Op::Sample(_) => sample::run(srcs.get(0)?, srcs.get(1)?, srcs.get(2)?, out),
        Op::Scale(op) => map(srcs.get(0)?, out, |x| x * f64::from(op.scale) + f64::from(op.bias)),
        Op::SetRows(_) => set_rows::run(srcs.get(0)?, srcs.get(1)?, srcs.get(2)?)?,
        Op::SoftMax(op) => soft_max::run(op, srcs.get(0)?, srcs.opt(1), out),
        Op::TopK(op) => top_k::run(op, srcs.get(0)?, out),
        Op::Unary(op) => map(srcs.get(0)?, out, |x| unary::function(op.kind, x)),
        Op::View(_) | Op::Reshape(_) | Op::Permute(_) => {}
    }
    Ok(())
}
