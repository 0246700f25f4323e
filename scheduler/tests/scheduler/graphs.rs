//! Random graphs: a list of steps, each of which adds a node if it can. Any list makes a graph, and a shorter one a smaller
//! graph, which is what proptest needs to find a small example.

use bytes::Bytes;
use outboard_core::op::*;
use outboard_core::quant::quantize_row;
use outboard_core::{DType, Graph, GraphBuilder, Layout, LeafKind, Tensor, TensorId};
use proptest::prelude::*;
use std::sync::Arc;

/// What to add, and which tensors to take.
pub(crate) type Step = (u8, u16, u16);

/// Largest tensor of a random graph, in elements.
const MAX_ELEMENTS: usize = 400;
/// Rows of tables; ids are below.
const ROWS: usize = 6;

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(any::<Step>(), 1..60)
}

struct Builder {
    g: GraphBuilder,
    pool: Vec<TensorId>,
}

impl Builder {
    /// A tensor that passes; one of the newest three of four times.
    fn pick(&self, seed: u16, ok: impl Fn(&Layout) -> bool) -> Option<TensorId> {
        let fits = |&&id: &&TensorId| self.g.tensor(id).is_some_and(|t| ok(t.layout()));
        let all: Vec<TensorId> = self.pool.iter().filter(fits).copied().collect();
        let newest = if seed % 4 == 0 { all.len() } else { all.len().min(3) };
        (newest > 0).then(|| all[all.len() - 1 - usize::from(seed / 4) % newest])
    }

    fn add(&mut self, op: impl Into<Op>, srcs: &[TensorId]) -> Option<TensorId> {
        let id = self.g.push(op, srcs).ok()?;
        self.pool.push(id);
        Some(id)
    }

    /// Something if two tensors have no byte in common: no device writes where it reads.
    fn apart(&self, a: TensorId, b: TensorId) -> Option<()> {
        let (a, b) = (self.g.tensor(a)?, self.g.tensor(b)?);
        let end = |t: &Tensor| t.offset() + t.layout().span();
        (a.root() != b.root() || end(a) <= b.offset() || end(b) <= a.offset()).then_some(())
    }

    fn step(&mut self, (what, a, b): Step) -> Option<TensorId> {
        let rows = |l: &Layout| l.dtype() == DType::F32 && l.has_dense_rows();
        let x = self.pick(a, rows)?;
        let lx = *self.g.tensor(x)?.layout();
        let small = |n: usize| (n <= MAX_ELEMENTS).then_some(());
        match what % 26 {
            0..4 => {
                let y = self.pick(b, |l| rows(l) && l.repeats_to(&lx))?;
                self.add(Binary { kind: BinaryKind::ALL[usize::from(what % 3)] }, &[x, y])
            }
            4 => self.add(Unary { kind: UnaryKind::ALL[usize::from(b) % UnaryKind::ALL.len()] }, &[x]),
            5 => self.add(Scale { scale: 0.75, bias: f32::from(b % 3) }, &[x]),
            6 => self.add(Norm { kind: NormKind::ALL[usize::from(b) % NormKind::ALL.len()], eps: 1e-5 }, &[x]),
            7 => {
                let mask = self.pick(b, |l| rows(l) && l.ne() == lx.ne());
                let srcs: Vec<_> = [x].into_iter().chain(mask.filter(|_| b % 2 == 0)).collect();
                self.add(SoftMax { scale: 0.5 }, &srcs)
            }
            8 | 9 => {
                let w = self.pick(b, |l| {
                    l.dtype() != DType::I32 && l.has_dense_rows() && l.ne()[0] == lx.ne()[0] && l.ne()[2..] == [1, 1]
                })?;
                small(self.g.ne(w)[1] * lx.rows())?;
                self.add(MulMat, &[w, x])
            }
            10 => {
                let table = self.pick(b, |l| l.has_dense_rows() && l.ne()[1] >= ROWS && l.ne()[2..] == [1, 1])?;
                let ids = self.g.find(if b % 2 == 0 { "ids" } else { "other ids" })?;
                self.add(GetRows, &[table, ids])
            }
            11..14 => {
                let dst = self.pick(b, |l| l.ne()[..] == [8, ROWS, 1, 1])?;
                let src = self.pick(a, |l| rows(l) && l.ne() == [8, 4, 1, 1])?;
                let ids = self.g.find(if a % 2 == 0 { "ids" } else { "other ids" })?;
                self.apart(src, dst)?;
                self.add(SetRows, &[dst, src, ids])
            }
            14 => {
                let dst = self.pick(b, |l| l.elements() == lx.elements() && l.dtype() != DType::I32)?;
                self.apart(x, dst)?;
                self.add(Cpy, &[x, dst])
            }
            15 | 16 => {
                // Some rows of a matrix, of any type.
                let m = self.pick(b, |l| l.ne()[1] > 1)?;
                let l = *self.g.tensor(m)?.layout();
                let (ne, nb) = (l.ne(), l.nb());
                let first = usize::from(a) % ne[1];
                let count = 1 + usize::from(b / 7) % (ne[1] - first);
                self.add(View { ne: [ne[0], count, ne[2], ne[3]], nb, offset: first * nb[1] }, &[m])
            }
            17 => {
                // One row many times.
                let (ne, nb) = (lx.ne(), lx.nb());
                self.add(View { ne: [ne[0], 4, 1, 1], nb: [nb[0], 0, 0, 0], offset: 0 }, &[x])
            }
            18 => {
                let y = self.pick(b, |l| l.is_contiguous() && !l.dtype().is_quantized())?;
                let n = self.g.tensor(y)?.layout().elements();
                let columns = [8, 4, 2, 1][usize::from(a) % 4];
                self.add(Reshape { ne: [columns, n / columns, 1, 1] }, &[y])
            }
            19 => {
                let y = self.pick(b, |l| !l.dtype().is_quantized())?;
                self.add(Permute { axes: [[1, 0, 2, 3], [0, 2, 1, 3], [2, 0, 1, 3]][usize::from(a) % 3] }, &[y])
            }
            20 => {
                let y = self.pick(b, |l| !l.dtype().is_quantized())?;
                self.add(Cont, &[y])
            }
            21 => {
                let y = self.pick(b, |l| rows(l) && l.ne()[0] == lx.ne()[0] && l.ne()[2..] == lx.ne()[2..])?;
                small(lx.elements() + self.g.tensor(y)?.layout().elements())?;
                self.add(Concat { dim: 1 }, &[x, y])
            }
            22 => {
                let y = self.pick(b, |l| rows(l) && l.ne() == lx.ne())?;
                self.add(Glu { kind: GluKind::ALL[usize::from(a) % GluKind::ALL.len()] }, &[x, y])
            }
            23 => match b % 3 {
                0 => self.add(Cast { dtype: DType::F16 }, &[x]),
                1 => self.add(Argmax, &[x]),
                _ => {
                    let flat = self.add(Reshape { ne: [32, 1, 1, 1] }, &[x])?;
                    let w = self.g.find("quantized")?;
                    self.add(MulMat, &[w, flat])
                }
            },
            24 => {
                // Memory that is written again and again, as it is now.
                let cache = self.g.find(["cache", "half cache", "wide"][usize::from(b) % 3])?;
                self.add(Cont, &[cache])
            }
            _ => {
                let any = self.pick(b, |_| true)?;
                Some(self.g.output(any))
            }
        }
    }
}

/// The graph that the steps make. Its last tensor is an output.
pub(crate) fn build(steps: &[Step]) -> Arc<Graph> {
    let mut g = GraphBuilder::new();
    let mut pool = Vec::new();
    for (kind, name, dtype, shape) in [
        (LeafKind::Weight, "w", DType::F32, [8, 8]),
        (LeafKind::Weight, "table", DType::F16, [8, ROWS]),
        (LeafKind::Weight, "quantized", DType::Q8_0, [32, 4]),
        (LeafKind::Weight, "bias", DType::F32, [8, 1]),
        (LeafKind::Input, "none", DType::F32, [8, 0]),
        (LeafKind::Input, "x", DType::F32, [8, 4]),
        (LeafKind::Input, "wide", DType::F32, [8, ROWS]),
        (LeafKind::State, "cache", DType::F32, [8, ROWS]),
        (LeafKind::State, "half cache", DType::F16, [8, ROWS]),
        (LeafKind::Input, "y", DType::F32, [8, 4]),
    ] {
        pool.push(g.leaf(kind, name, dtype, &shape).unwrap());
    }
    for name in ["ids", "other ids"] {
        g.input(name, DType::I32, &[4]).unwrap();
    }
    let mut builder = Builder { g, pool };
    for &step in steps {
        builder.step(step);
    }
    let last = *builder.pool.last().unwrap();
    builder.g.output(last);
    Arc::new(builder.g.finish().unwrap())
}

/// Content for a leaf: small numbers, or different rows of a table.
pub(crate) fn content(graph: &Graph, id: TensorId, seed: u64) -> Bytes {
    let layout = graph.tensor(id).layout();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ((id.index() as u64) << 32);
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u32
    };
    if layout.dtype() == DType::I32 {
        let mut rows: Vec<i32> = (0..ROWS as i32).collect();
        let pick = (0..layout.elements()).map(|_| rows.swap_remove(next() as usize % rows.len()));
        return pick.collect::<Vec<_>>().into_iter().flat_map(i32::to_le_bytes).collect::<Vec<u8>>().into();
    }
    let values: Vec<f32> = (0..layout.elements()).map(|_| next() as f32 / (1u32 << 23) as f32 - 1.0).collect();
    let mut bytes = vec![0; layout.span()];
    if !values.is_empty() {
        quantize_row(layout.dtype(), &values, &mut bytes).unwrap();
    }
    bytes.into()
}
