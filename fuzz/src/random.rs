//! Random graphs that are right: every op, small shapes, none at all among them, and results that become sources.

use outboard_core::op::*;
use outboard_core::quant::quantize_row;
use outboard_core::{DType, Graph, GraphBuilder, LeafKind, TensorId};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

/// Nodes that are tried for one graph.
const MAX_NODES: usize = 6;
/// Elements of a row: around vectors and blocks.
const WIDTHS: [usize; 9] = [1, 2, 7, 16, 31, 32, 64, 256, 288];
/// Rows, heads, tokens; nothing now and then.
const COUNTS: [usize; 8] = [0, 1, 1, 2, 3, 4, 9, 17];

/// A graph, and what its leaves may hold.
#[derive(Debug)]
pub struct RandomGraph {
    /// The graph; every result that nothing reads is an output.
    pub graph: Graph,
    /// Leaves of numbers that choose rows, positions or tokens: all have to be below this.
    bounds: BTreeMap<TensorId, usize>,
}

/// What leaves are filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Small numbers.
    Numbers,
    /// Numbers that are none, and bytes that are known again. What chooses rows is as it has to be.
    Poison,
}

/// A byte of poison.
pub const POISON: u8 = 0xc3;

impl RandomGraph {
    /// The graph of a seed.
    pub fn new(seed: u64) -> RandomGraph {
        let mut maker = Maker {
            g: GraphBuilder::new(),
            rng: StdRng::seed_from_u64(seed),
            pool: Vec::new(),
            bounds: BTreeMap::new(),
        };
        for _ in 0..maker.rng.random_range(1..=MAX_NODES) {
            // What does not fit together is left out.
            let _ = maker.node();
        }
        for id in maker.pool.clone() {
            maker.g.output(id);
        }
        RandomGraph { graph: maker.g.finish().expect("nodes that were checked"), bounds: maker.bounds }
    }

    /// The bytes of a leaf.
    pub fn content(&self, leaf: TensorId, content: Content, seed: u64) -> Vec<u8> {
        let layout = self.graph.tensor(leaf).layout();
        let mut rng = StdRng::seed_from_u64(seed ^ ((leaf.index() as u64) << 40));
        let mut bytes = vec![0; layout.span()];
        if layout.dtype() == DType::I32 {
            let bound = self.bounds.get(&leaf).copied();
            for to in bytes.as_chunks_mut::<4>().0 {
                let poison = i32::from_le_bytes([POISON; 4]);
                *to = match bound {
                    Some(bound) => rng.random_range(0..bound.max(1)) as i32,
                    None if content == Content::Poison => poison,
                    None => rng.random_range(-9..9),
                }
                .to_le_bytes();
            }
        } else if content == Content::Poison {
            bytes.fill(POISON);
            if layout.dtype() == DType::F32 {
                bytes.as_chunks_mut::<4>().0.fill(f32::NAN.to_le_bytes());
            }
        } else if !bytes.is_empty() {
            let values: Vec<f32> = (0..layout.elements()).map(|_| rng.random_range(-2.0..2.0)).collect();
            quantize_row(layout.dtype(), &values, &mut bytes).expect("a type that can be written");
        }
        bytes
    }
}

struct Maker {
    g: GraphBuilder,
    rng: StdRng,
    pool: Vec<TensorId>,
    bounds: BTreeMap<TensorId, usize>,
}

type Made = Option<TensorId>;

impl Maker {
    fn width(&mut self) -> usize {
        *WIDTHS.choose(&mut self.rng).expect("some")
    }

    fn count(&mut self) -> usize {
        *COUNTS.choose(&mut self.rng).expect("some")
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.rng.random_ratio(1, one_in)
    }

    fn weight_type(&mut self) -> DType {
        let types: Vec<DType> = DType::ALL.into_iter().filter(|d| !matches!(d, DType::I32 | DType::Q8_K)).collect();
        *types.choose(&mut self.rng).expect("some")
    }

    fn width_of(&mut self, dtype: DType) -> usize {
        self.width().next_multiple_of(dtype.block_len())
    }

    fn leaf(&mut self, kind: LeafKind, dtype: DType, ne: &[usize]) -> Made {
        let name = format!("leaf {}", self.g.len());
        self.g.leaf(kind, &name, dtype, ne).ok()
    }

    /// Numbers below `bound`.
    fn ids(&mut self, bound: usize, ne: &[usize]) -> Made {
        let id = self.leaf(LeafKind::Input, DType::I32, ne)?;
        self.bounds.insert(id, bound);
        Some(id)
    }

    /// Floats of a shape: a result that there is, or a leaf.
    fn floats(&mut self, ne: &[usize]) -> Made {
        let shape = outboard_core::shape::dims(ne)?;
        let fits = |id: &&TensorId| {
            let layout = self.g.tensor(**id).map(outboard_core::Tensor::layout);
            layout.is_some_and(|l| l.dtype() == DType::F32 && l.ne() == shape && l.has_dense_rows())
        };
        let known: Vec<TensorId> = self.pool.iter().filter(fits).copied().collect();
        match known.choose(&mut self.rng) {
            Some(&id) if !self.chance(4) => Some(id),
            _ => {
                let id = self.leaf(LeafKind::Input, DType::F32, ne)?;
                self.pool.push(id);
                Some(id)
            }
        }
    }

    /// Any shape of up to four dimensions, that of a result that there is more often than not.
    fn shape(&mut self) -> [usize; 4] {
        if let Some(&id) = self.pool.choose(&mut self.rng)
            && !self.chance(3)
        {
            return self.g.ne(id);
        }
        let mut ne = [self.width(), self.count(), 1, 1];
        if self.chance(3) {
            ne[2] = self.count();
        }
        if self.chance(6) {
            ne[3] = self.count();
        }
        if self.chance(30) {
            ne[0] = 0;
        }
        ne
    }

    fn push(&mut self, op: impl Into<Op>, srcs: &[TensorId]) -> Made {
        let id = self.g.push(op, srcs).ok()?;
        self.pool.push(id);
        Some(id)
    }

    fn node(&mut self) -> Made {
        let ne = self.shape();
        let [n, rows, ..] = ne;
        match self.rng.random_range(0..28) {
            0 => {
                let kind = *BinaryKind::ALL.choose(&mut self.rng)?;
                let small = if self.chance(2) { ne } else { [n, 1, 1, 1] };
                let srcs = [self.floats(&ne)?, self.floats(&small)?];
                self.push(Binary { kind }, &srcs)
            }
            1 => {
                let (kind, x) = (*UnaryKind::ALL.choose(&mut self.rng)?, self.floats(&ne)?);
                self.push(Unary { kind }, &[x])
            }
            2 => {
                let x = self.floats(&ne)?;
                self.push(Scale { scale: 0.75, bias: 0.5 }, &[x])
            }
            3 => {
                let x = self.floats(&ne)?;
                self.push(Clamp { min: -0.5, max: 1.0 }, &[x])
            }
            4 => {
                let (kind, x) = (*NormKind::ALL.choose(&mut self.rng)?, self.floats(&ne)?);
                self.push(Norm { kind, eps: 1e-5 }, &[x])
            }
            5 => self.soft_max(ne),
            6..10 => self.product(),
            10 | 11 => self.experts(),
            12 | 13 => self.attention(),
            14 => {
                let (dtype, count) = (self.weight_type(), self.count());
                let table = [self.width_of(dtype), rows.max(1)];
                let dtype = if self.chance(6) { DType::I32 } else { dtype };
                let table_id = self.leaf(LeafKind::Weight, dtype, &table)?;
                let ids = self.ids(table[1], &[count])?;
                self.push(GetRows, &[table_id, ids])
            }
            15 => {
                let (dtype, count) = (self.weight_type(), self.count());
                let table = [self.width_of(dtype), count + 2];
                let dst = self.leaf(LeafKind::State, dtype, &table)?;
                let (src, ids) = (self.floats(&[table[0], count])?, self.ids(table[1], &[count])?);
                self.push(SetRows, &[dst, src, ids])
            }
            16 => {
                let dtype = self.weight_type();
                let x = self.floats(&[n.next_multiple_of(dtype.block_len()), rows])?;
                self.push(Cast { dtype }, &[x])
            }
            17 => {
                let x = self.floats(&ne)?;
                let axes = *[[1, 0, 2, 3], [0, 2, 1, 3], [2, 0, 1, 3]].choose(&mut self.rng)?;
                let turned = self.push(Permute { axes }, &[x])?;
                self.push(Cont, &[turned])
            }
            18 => {
                let dtype = *[DType::F32, DType::F16].choose(&mut self.rng)?;
                let dst = self.leaf(LeafKind::State, dtype, &ne)?;
                let x = self.floats(&ne)?;
                self.push(Cpy, &[x, dst])
            }
            19 => {
                let dim = self.rng.random_range(0..4);
                let mut other = ne;
                other[dim] = self.count();
                let srcs = [self.floats(&ne)?, self.floats(&other)?];
                self.push(Concat { dim }, &srcs)
            }
            20 => {
                let (kind, srcs) = (*GluKind::ALL.choose(&mut self.rng)?, [self.floats(&ne)?, self.floats(&ne)?]);
                self.push(Glu { kind }, &srcs)
            }
            21 => {
                let x = self.floats(&ne)?;
                let times = self.rng.random_range(1..3);
                self.push(Repeat { ne: ne.map(|n| n * times) }, &[x])
            }
            22 => self.rope(),
            23 => {
                let x = self.floats(&ne)?;
                let kind = *ReduceKind::ALL.choose(&mut self.rng)?;
                self.push(Reduce { kind }, &[x])
            }
            24 => {
                let x = self.floats(&ne)?;
                let order = *[Order::Ascending, Order::Descending].choose(&mut self.rng)?;
                if self.chance(2) { self.push(TopK { k: n / 2 }, &[x]) } else { self.push(Argsort { order }, &[x]) }
            }
            25 => {
                let x = self.floats(&[n.max(1), rows])?;
                self.push(Argmax, &[x])
            }
            26 => self.draw(n.max(1), rows),
            _ => {
                let x = self.floats(&ne)?;
                let flat = self.push(Reshape { ne: [ne.iter().product(), 1, 1, 1] }, &[x])?;
                let view = View { ne: [self.g.ne(flat)[0] / 2, 1, 1, 1], nb: [4, 4, 4, 4], offset: 0 };
                self.push(view, &[flat])
            }
        }
    }

    fn soft_max(&mut self, ne: [usize; 4]) -> Made {
        let x = self.floats(&ne)?;
        let mask = match self.rng.random_range(0..3) {
            0 => None,
            1 => Some(self.leaf(LeafKind::Input, DType::F16, &[ne[0], ne[1]])?),
            _ => Some(self.floats(&[ne[0], ne[1]])?),
        };
        let srcs: Vec<TensorId> = [x].into_iter().chain(mask).collect();
        self.push(SoftMax { scale: 0.5 }, &srcs)
    }

    /// Products of one right side: with and without rows, of types that are and are not quantized.
    fn product(&mut self) -> Made {
        let (k, n) = (256, self.count());
        let x = self.floats(&[k, n])?;
        let mut last = None;
        for _ in 0..self.rng.random_range(1..4) {
            let (dtype, m) = (self.weight_type(), self.count());
            let w = self.leaf(LeafKind::Weight, dtype, &[k, m])?;
            last = self.push(MulMat, &[w, x]);
        }
        last
    }

    /// A product of chosen matrices, with their biases.
    fn experts(&mut self) -> Made {
        let (dtype, k, m) = (self.weight_type(), 256, self.count());
        let (experts, used, tokens) = (self.count().max(1), self.count(), self.count());
        let w = self.leaf(LeafKind::Weight, dtype, &[k, m, experts])?;
        let (x, ids) = (self.floats(&[k, used, tokens])?, self.ids(experts, &[used, tokens])?);
        let y = self.push(MulMatId, &[w, x, ids])?;
        let bias = self.leaf(LeafKind::Weight, DType::F32, &[m, experts])?;
        self.push(AddId, &[y, bias, ids])
    }

    fn attention(&mut self) -> Made {
        let dtype = *[DType::F32, DType::F16, DType::BF16, DType::Q8_0].choose(&mut self.rng)?;
        let (d, dv) = (self.width_of(dtype), self.width_of(dtype));
        let block = if self.chance(3) { BLOCK_ROWS } else { 0 };
        let kv = if block > 0 { 2 * block } else { self.count() };
        let (tokens, heads, group) = (self.count(), self.rng.random_range(1..3), self.rng.random_range(1..4));
        let q = self.floats(&[d, tokens, heads * group])?;
        let k = self.leaf(LeafKind::State, dtype, &[d, kv, heads])?;
        let v = self.leaf(LeafKind::State, dtype, &[dv, kv, heads])?;
        let mask = if block == 0 && self.chance(2) {
            Some(self.leaf(LeafKind::Input, DType::F16, &[kv, tokens])?)
        } else {
            None
        };
        let pos = if block > 0 || kv > 0 && self.chance(2) { Some(self.ids(kv, &[tokens])?) } else { None };
        let sinks = if self.chance(3) { Some(self.floats(&[heads * group])?) } else { None };
        let window = if pos.is_some() && self.chance(3) { 2 } else { 0 };
        let paging = if block > 0 { [Some(self.ids(2, &[2, 3])?), Some(self.ids(3, &[tokens])?)] } else { [None; 2] };
        let op = FlashAttn { scale: 0.3, window, softcap: if self.chance(4) { 20.0 } else { 0.0 }, block };
        let id = self.g.push_opt(op, &[Some(q), Some(k), Some(v), mask, pos, sinks, paging[0], paging[1]]).ok()?;
        self.pool.push(id);
        Some(id)
    }

    fn rope(&mut self) -> Made {
        let (heads, tokens) = (self.count(), self.count());
        let width = 2 * self.width();
        let n_dims = if self.chance(3) { 2 } else { width };
        let x = self.floats(&[width, heads, tokens])?;
        let pos = self.ids(100, &[tokens])?;
        let factors = if self.chance(3) { Some(self.floats(&[n_dims / 2])?) } else { None };
        let mode = *[RopeMode::Normal, RopeMode::Neox].choose(&mut self.rng)?;
        let srcs: Vec<TensorId> = [x, pos].into_iter().chain(factors).collect();
        self.push(Rope::plain(mode, n_dims, 10_000.0), &srcs)
    }

    /// From logits to a token: penalties, a draw, its log-probability.
    fn draw(&mut self, n: usize, rows: usize) -> Made {
        let logits = self.floats(&[n, rows])?;
        let history = self.leaf(LeafKind::State, DType::I32, &[12])?;
        self.bounds.insert(history, n);
        let (steps, params) = (self.ids(8, &[rows])?, self.floats(&[4, rows])?);
        // Blocks of 4, of which each of two sequences has two.
        let logits = if self.chance(2) {
            let (table, seqs) = (self.ids(3, &[2, 2])?, self.ids(2, &[rows])?);
            self.push(Penalty { block: 4 }, &[logits, history, steps, params, table, seqs])?
        } else {
            self.push(Penalty { block: 0 }, &[logits, history, steps, params])?
        };
        let (params, draws) = (self.floats(&[4, rows])?, self.leaf(LeafKind::Input, DType::I32, &[3, rows])?);
        let drawn = self.push(Sample, &[logits, params, draws])?;
        self.push(LogProb, &[logits, drawn])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_op_comes_and_a_seed_is_one_graph() {
        let mut ops = HashSet::new();
        for seed in 0..2000 {
            let graph = RandomGraph::new(seed).graph;
            ops.extend(graph.nodes().filter_map(|id| graph.tensor(id).op().map(Op::name)));
        }
        let missing: Vec<_> = Op::names().filter(|name| !ops.contains(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert_eq!(format!("{:?}", RandomGraph::new(3)), format!("{:?}", RandomGraph::new(3)));
    }
}
