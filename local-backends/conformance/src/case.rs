//! A case: a small graph, what its sources hold, and what the result has to be.

use crate::fill::Fill;
use outboard_core::op::{Permute, View};
use outboard_core::{DType, Graph, GraphBuilder, GraphError, LeafKind, Op, TensorId};
use std::sync::Arc;

/// How near the result has to be to the oracle's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Check {
    /// Equal (zeros of either sign are).
    Exact,
    /// Normalised mean squared error at most this. NaN and infinity have to be where the oracle has them.
    Nmse(f64),
}

impl Check {
    /// For most ops on F32.
    pub const DEFAULT: Check = Check::Nmse(1e-7);
    /// For softmax.
    pub const SOFT_MAX: Check = Check::Nmse(1e-6);
    /// For matrix products and attention, which may quantize activations.
    pub const PRODUCT: Check = Check::Nmse(5e-4);

    /// For results that are converted to `dtype`: equal, or for quantized types one element in a hundred off by one step.
    pub fn converted_to(dtype: DType) -> Check {
        let bits = match dtype {
            DType::Q2_K => 2,
            DType::Q3_K => 3,
            DType::Q4_0 | DType::Q4_1 | DType::Q4_K | DType::IQ4_NL | DType::IQ4_XS | DType::MXFP4 => 4,
            DType::Q5_0 | DType::Q5_1 | DType::Q5_K => 5,
            DType::Q6_K => 6,
            DType::Q8_0 | DType::Q8_K => 8,
            DType::F32 | DType::F16 | DType::BF16 | DType::I32 => return Check::Exact,
        };
        let step = 2.0 / ((1u32 << bits) - 1) as f64;
        // The mean square of numbers that are spread evenly over -1..1 is a third.
        Check::Nmse(0.01 * step * step * 3.0)
    }
}

/// What running a case has to lead to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expect {
    /// The oracle's result.
    Result(Check),
    /// An error of the node, nothing written but its result, and a device that still works.
    Fails,
}

/// One case.
#[derive(Clone, Debug)]
pub struct Case {
    pub(crate) op: &'static str,
    pub(crate) name: String,
    pub(crate) quick: bool,
    /// Which one of its op's quick ones it is.
    number: usize,
    pub(crate) expect: Expect,
    /// Or why it could not be made, which is a fault of this crate.
    pub(crate) setup: Result<Setup, String>,
}

/// Graph and data of a case.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) graph: Arc<Graph>,
    pub(crate) fills: Vec<(TensorId, Fill)>,
    /// Nodes that take over the memory of a source.
    pub(crate) in_place: Vec<(TensorId, TensorId)>,
}

impl Case {
    /// The op, by its name on the wire.
    pub fn op(&self) -> &'static str {
        self.op
    }

    /// What is special about it, such as `Q4_0 k=256 m=7 n=1`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it has to lead to.
    pub fn expect(&self) -> Expect {
        self.expect
    }

    /// Its graph, if it could be made.
    pub fn graph(&self) -> Option<&Arc<Graph>> {
        self.setup.as_ref().ok().map(|s| &s.graph)
    }
}

/// Which cases to run.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only some of each op: what `smoke` has time for.
    pub quick: bool,
    /// Of these every Nth of an op; 0 and 1: all.
    pub each: usize,
    /// Only ops of these names; empty: all.
    pub ops: Vec<String>,
    /// Only cases whose name holds this; empty: all.
    pub name: String,
}

impl Filter {
    /// Some cases of every op.
    pub fn quick() -> Filter {
        Filter { quick: true, ..Filter::default() }
    }

    /// All cases of one op.
    pub fn op(name: &str) -> Filter {
        Filter { ops: vec![name.to_owned()], ..Filter::default() }
    }

    /// Whether a case is wanted.
    pub fn matches(&self, case: &Case) -> bool {
        (!self.quick || case.quick && (self.each < 2 || case.number.is_multiple_of(self.each)))
            && (self.ops.is_empty() || self.ops.iter().any(|op| op.eq_ignore_ascii_case(case.op)))
            && case.name.contains(&self.name)
    }
}

/// How many cases of each op are quick ones without asking.
const QUICK_PER_OP: usize = 3;

/// Collects cases.
#[derive(Default)]
pub(crate) struct Suite {
    cases: Vec<Case>,
}

impl Suite {
    /// A case whose result is the oracle's.
    pub(crate) fn add(
        &mut self,
        name: impl Into<String>,
        check: Check,
        build: impl FnOnce(&mut Make) -> Result<TensorId, GraphError>,
    ) -> &mut Case {
        self.push(name.into(), Expect::Result(check), build)
    }

    /// A case that has to fail.
    pub(crate) fn fails(
        &mut self,
        name: impl Into<String>,
        build: impl FnOnce(&mut Make) -> Result<TensorId, GraphError>,
    ) {
        self.push(name.into(), Expect::Fails, build).quick = true;
    }

    fn push(
        &mut self,
        name: String,
        expect: Expect,
        build: impl FnOnce(&mut Make) -> Result<TensorId, GraphError>,
    ) -> &mut Case {
        let mut make = Make::default();
        let (op, setup) = match build(&mut make) {
            Ok(out) => {
                make.g.output(out);
                let op = make.g.tensor(out).and_then(|t| t.op()).map_or("none", Op::name);
                let graph = make.g.finish().map(Arc::new).map_err(|e| e.to_string());
                (op, graph.map(|graph| Setup { graph, fills: make.fills, in_place: make.in_place }))
            }
            Err(e) => ("none", Err(e.to_string())),
        };
        let before = || self.cases.iter().filter(|c| c.op == op);
        let (quick, number) = (before().count() < QUICK_PER_OP, before().filter(|c| c.quick).count());
        let at = self.cases.len();
        self.cases.push(Case { op, name, quick, number, expect, setup });
        &mut self.cases[at]
    }

    pub(crate) fn finish(self) -> Vec<Case> {
        self.cases
    }
}

/// Makes the graph of one case.
#[derive(Default)]
pub(crate) struct Make {
    pub(crate) g: GraphBuilder,
    fills: Vec<(TensorId, Fill)>,
    in_place: Vec<(TensorId, TensorId)>,
}

/// A source to be made.
pub(crate) type Made = Result<TensorId, GraphError>;

impl Make {
    /// A leaf of any kind.
    pub(crate) fn leaf(&mut self, kind: LeafKind, dtype: DType, shape: &[usize], fill: Fill) -> Made {
        let id = self.g.leaf(kind, &format!("s{}", self.fills.len()), dtype, shape)?;
        self.fills.push((id, fill));
        Ok(id)
    }

    /// An input.
    pub(crate) fn input(&mut self, dtype: DType, shape: &[usize], fill: Fill) -> Made {
        self.leaf(LeafKind::Input, dtype, shape, fill)
    }

    /// An F32 input between -1 and 1.
    pub(crate) fn f32(&mut self, shape: &[usize]) -> Made {
        self.input(DType::F32, shape, Fill::Uniform(-1.0, 1.0))
    }

    /// An I32 input.
    pub(crate) fn i32(&mut self, shape: &[usize], fill: Fill) -> Made {
        self.input(DType::I32, shape, fill)
    }

    /// A weight between -1 and 1.
    pub(crate) fn weight(&mut self, dtype: DType, shape: &[usize]) -> Made {
        self.leaf(LeafKind::Weight, dtype, shape, Fill::Uniform(-1.0, 1.0))
    }

    /// State, for what is written.
    pub(crate) fn state(&mut self, dtype: DType, shape: &[usize], fill: Fill) -> Made {
        self.leaf(LeafKind::State, dtype, shape, fill)
    }

    /// A view into the middle of a larger tensor: rows are dense but not at aligned addresses, and there are gaps between.
    pub(crate) fn padded(&mut self, kind: LeafKind, dtype: DType, shape: [usize; 4], fill: Fill) -> Made {
        let extra = if dtype.is_quantized() { dtype.block_len() } else { 5 };
        let outer = [shape[0] + extra, shape[1] + 1, shape[2] + 1, shape[3]];
        let x = self.leaf(kind, dtype, &outer, fill)?;
        let Some(nb) = self.g.tensor(x).map(|t| t.layout().nb()) else { return Ok(x) };
        // Two elements (or a block) into the second row.
        let offset = nb[1] + if dtype.is_quantized() { nb[0] } else { 2 * nb[0] };
        let offset = if shape.contains(&0) { 0 } else { offset };
        self.g.push(View { ne: shape, nb, offset }, &[x])
    }

    /// The beginning of a larger tensor in each dimension: dense rows, with a gap behind each row or plane that is shorter.
    pub(crate) fn part(&mut self, kind: LeafKind, dtype: DType, shape: [usize; 4], of: [usize; 4]) -> Made {
        let x = self.leaf(kind, dtype, &of, Fill::Uniform(-1.0, 1.0))?;
        let Some(nb) = self.g.tensor(x).map(|t| t.layout().nb()) else { return Ok(x) };
        self.g.push(View { ne: shape, nb, offset: 0 }, &[x])
    }

    /// A padded F32 input between -1 and 1.
    pub(crate) fn padded_f32(&mut self, shape: [usize; 4]) -> Made {
        self.padded(LeafKind::Input, DType::F32, shape, Fill::Uniform(-1.0, 1.0))
    }

    /// A tensor of this shape whose dimensions lie in memory in another order.
    pub(crate) fn permuted(&mut self, kind: LeafKind, dtype: DType, shape: [usize; 4], axes: [usize; 4]) -> Made {
        let stored = axes.map(|axis| shape.get(axis).copied().unwrap_or(1));
        let x = self.leaf(kind, dtype, &stored, Fill::Uniform(-1.0, 1.0))?;
        self.g.push(Permute { axes }, &[x])
    }

    /// I32 with every second element of a larger tensor.
    pub(crate) fn spread_i32(&mut self, shape: [usize; 4], fill: Fill) -> Made {
        let outer = [shape[0] * 2, shape[1], shape[2], shape[3]];
        let x = self.i32(&outer, fill)?;
        let Some([n0, n1, n2, n3]) = self.g.tensor(x).map(|t| t.layout().nb()) else { return Ok(x) };
        self.g.push(View { ne: shape, nb: [2 * n0, n1, n2, n3], offset: 0 }, &[x])
    }

    /// A node.
    pub(crate) fn push(&mut self, op: impl Into<Op>, srcs: &[TensorId]) -> Made {
        self.g.push(op, srcs)
    }

    /// A node that takes over the memory of its source `of`.
    pub(crate) fn push_in_place(&mut self, op: impl Into<Op>, srcs: &[TensorId], of: usize) -> Made {
        let node = self.g.push(op, srcs)?;
        if let Some(&src) = srcs.get(of) {
            self.in_place.push((node, src));
        }
        Ok(node)
    }
}
