//! Random graphs of what devices compute together: norms, products, gated units, rotations, attention and caches, one behind the other.

use crate::fill::Random;
use outboard_core::op::*;
use outboard_core::{DType, Graph, GraphBuilder, GraphError, LeafKind, TensorId};
use std::collections::BTreeMap;

/// Lengths of rows: of whole warps, blocks and heads, and one that is not.
const WIDTHS: [usize; 8] = [32, 32, 64, 64, 96, 128, 256, 20];
/// Columns of all tensors of a graph: those of one step, and those of a prompt.
const COLUMNS: [usize; 8] = [1, 1, 2, 3, 4, 6, 9, 12];
/// Rows of caches and tables.
const CACHE: usize = 128;
/// Elements of a row of logits that takes more than one block of threads.
const LOGITS: usize = 4200;
/// Types of weights.
const WEIGHTS: [DType; 8] =
    [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q8_0, DType::Q4_0, DType::Q5_1, DType::MXFP4];
/// The same where rows are of whole blocks of 256.
const LARGE_WEIGHTS: [DType; 3] = [DType::Q4_K, DType::Q6_K, DType::IQ4_XS];

/// A graph, and what its leaves may hold.
pub(super) struct Made {
    pub(super) graph: Graph,
    /// Of leaves with numbers of rows: what all are below. Along a row they differ.
    pub(super) bounds: BTreeMap<TensorId, usize>,
}

/// The graph of a seed.
pub(super) fn graph(random: &mut Random) -> Result<Made, GraphError> {
    let columns = random.choose(&COLUMNS);
    let nodes = 4 + random.below(9);
    let mut maker = Maker {
        g: GraphBuilder::new(),
        random,
        columns,
        pool: Vec::new(),
        states: Vec::new(),
        bounds: BTreeMap::new(),
    };
    maker.start();
    for _ in 0..nodes {
        // What does not fit together is left out.
        let _ = maker.node();
    }
    for id in (0..maker.g.len()).map(TensorId::from_index) {
        if maker.random.chance(4) {
            maker.g.output(id);
        }
    }
    if let Some(&last) = maker.pool.last() {
        maker.g.output(last);
    }
    Ok(Made { graph: maker.g.finish()?, bounds: maker.bounds })
}

struct Maker<'a> {
    g: GraphBuilder,
    random: &'a mut Random,
    columns: usize,
    /// Numbers `[width, columns]`, of leaves and of nodes.
    pool: Vec<TensorId>,
    /// Tables that nodes write, and what they are then.
    states: Vec<TensorId>,
    bounds: BTreeMap<TensorId, usize>,
}

type Pushed = Option<TensorId>;

impl Maker<'_> {
    fn start(&mut self) {
        let width = self.random.choose(&WIDTHS);
        let _ = self.input(width);
    }

    fn leaf(&mut self, kind: LeafKind, dtype: DType, ne: &[usize]) -> Pushed {
        let name = format!("leaf {}", self.g.len());
        self.g.leaf(kind, &name, dtype, ne).ok()
    }

    fn input(&mut self, width: usize) -> Pushed {
        let id = self.leaf(LeafKind::Input, DType::F32, &[width, self.columns])?;
        self.pool.push(id);
        Some(id)
    }

    fn rows(&mut self, bound: usize, ne: &[usize]) -> Pushed {
        // Two lists may be one.
        let known = self.bounds.iter().find(|&(&id, &b)| b == bound && self.g.ne(id)[..ne.len()] == *ne);
        if let Some((&id, _)) = known
            && self.random.chance(2)
        {
            return Some(id);
        }
        let id = self.leaf(LeafKind::Input, DType::I32, ne)?;
        self.bounds.insert(id, bound);
        Some(id)
    }

    /// What was made last, more often than not.
    fn any(&mut self) -> Pushed {
        if self.random.chance(3) { self.one_of_pool() } else { self.pool.last().copied() }
    }

    fn one_of_pool(&mut self) -> Pushed {
        let at = self.random.below(self.pool.len());
        self.pool.get(at).copied()
    }

    /// One of this width.
    fn of_width(&mut self, width: usize) -> Pushed {
        let known: Vec<TensorId> = self.pool.iter().copied().filter(|&id| self.g.ne(id)[0] == width).collect();
        match known.len() {
            0 => self.input(width),
            _ if self.random.chance(8) => self.input(width),
            _ if self.random.chance(2) => known.last().copied(),
            n => known.get(self.random.below(n)).copied(),
        }
    }

    fn push(&mut self, op: impl Into<Op>, srcs: &[TensorId]) -> Pushed {
        let id = self.g.push(op, srcs).ok()?;
        if self.g.ne(id)[1..] == [self.columns, 1, 1] && self.g.tensor(id)?.dtype() == DType::F32 {
            self.pool.push(id);
        }
        Some(id)
    }

    /// The same with another shape.
    fn reshaped(&mut self, x: TensorId, ne: &[usize]) -> Pushed {
        let ne = outboard_core::shape::dims(ne)?;
        self.push(Reshape { ne }, &[x])
    }

    fn node(&mut self) -> Pushed {
        match self.random.below(26) {
            0..3 => self.norm(),
            3..8 => self.product(),
            8..11 => self.sum(),
            11 | 12 => self.gated(),
            13 => {
                let x = self.any()?;
                self.push(Scale { scale: 0.75, bias: 0.125 }, &[x])
            }
            14 => {
                let x = self.any()?;
                self.push(Unary { kind: UnaryKind::Tanh }, &[x])
            }
            15 | 16 => self.rotations(),
            17 | 18 => self.attention(),
            19 => self.written(),
            20 => self.looked_up(),
            21 => self.experts(),
            22 => self.token(),
            23 => self.logits(),
            24 => self.half(),
            _ => {
                let x = self.any()?;
                self.push(SoftMax { scale: 0.5 }, &[x])
            }
        }
    }

    /// A norm, with what multiplies its rows.
    fn norm(&mut self) -> Pushed {
        let (x, kind) = (self.any()?, self.random.choose(NormKind::ALL));
        let norm = self.push(Norm { kind, eps: 1e-3 }, &[x])?;
        if self.random.chance(4) {
            return Some(norm);
        }
        self.between();
        let width = self.g.ne(norm)[0];
        let scale = match self.random.below(4) {
            0 => self.of_width(width)?,
            1 if self.columns == 1 => x,
            _ => self.leaf(LeafKind::Weight, DType::F32, &[width])?,
        };
        let srcs = if self.random.chance(4) { [scale, norm] } else { [norm, scale] };
        self.push(Binary { kind: BinaryKind::Mul }, &srcs)
    }

    /// Something that is in the way now and then.
    fn between(&mut self) {
        if self.random.chance(8) {
            let _ = self.sum();
        }
        if self.random.chance(8) {
            let _ = self.written();
        }
    }

    fn weights(&mut self, ne: &[usize]) -> Pushed {
        let dtype = match ne[0] {
            k if k % 256 == 0 && self.random.chance(2) => self.random.choose(&LARGE_WEIGHTS),
            k if k % 32 == 0 => self.random.choose(&WEIGHTS),
            _ => DType::F16,
        };
        self.leaf(LeafKind::Weight, dtype, ne)
    }

    /// Products of the same columns, and maybe what is added to the last.
    fn product(&mut self) -> Pushed {
        let x = self.any()?;
        let mut made = None;
        for _ in 0..1 + self.random.below(3) {
            let weights = [self.g.ne(x)[0], self.random.choose(&WIDTHS)];
            let weights = self.weights(&weights)?;
            made = self.push(MulMat, &[weights, x]);
            if self.random.chance(3) {
                self.between();
                let _ = self.sum_with(made?);
            }
        }
        made
    }

    fn sum(&mut self) -> Pushed {
        let x = self.any()?;
        self.sum_with(x)
    }

    fn sum_with(&mut self, x: TensorId) -> Pushed {
        let width = self.g.ne(x)[0];
        let other = match self.random.below(5) {
            0 => self.leaf(LeafKind::Weight, DType::F32, &[width])?,
            1 => x,
            _ => self.of_width(width)?,
        };
        let kind = self.random.choose(&[BinaryKind::Add, BinaryKind::Add, BinaryKind::Sub, BinaryKind::Mul]);
        let srcs = if self.random.chance(3) { [other, x] } else { [x, other] };
        self.push(Binary { kind }, &srcs)
    }

    fn gated(&mut self) -> Pushed {
        let gate = self.any()?;
        let up = self.of_width(self.g.ne(gate)[0])?;
        let kind = self.random.choose(&[GluKind::Swiglu, GluKind::Geglu]);
        self.push(Glu { kind }, &[gate, up])
    }

    /// ROPE of queries and keys, and both caches; other nodes in between, and tensors that are one where there could be two.
    fn rotations(&mut self) -> Pushed {
        let (d, columns) = (self.random.choose(&[32, 64]), self.columns);
        let heads = 1 + self.random.below(2);
        let positions = self.rows(CACHE, &[columns])?;
        let rows = self.rows(CACHE, &[columns])?;
        let rope = Rope::plain(self.random.choose(&[RopeMode::Normal, RopeMode::Neox]), d, 1e4);
        let queries = self.of_width(d * heads)?;
        let queries = self.reshaped(queries, &[d, heads, columns])?;
        let keys = if heads == 1 && self.random.chance(8) { queries } else { self.of_width(d)? };
        let keys = self.reshaped(keys, &[d, 1, columns])?;
        let rotated = self.g.push(rope, &[queries, positions]).ok()?;
        self.between();
        let keys = self.g.push(rope, &[keys, positions]).ok()?;
        self.between();
        let cache = self.cache(d)?;
        let values = if self.random.chance(6) { keys } else { self.of_width(d)? };
        let values = self.reshaped(values, &[d, 1, columns])?;
        for heads in [keys, values] {
            let src = self.g.push(Permute { axes: [0, 2, 1, 3] }, &[heads]).ok()?;
            let cache = if self.random.chance(6) { cache } else { self.cache(d)? };
            let written = self.g.push(SetRows, &[cache, src, rows]).ok()?;
            self.states.push(written);
            self.between();
        }
        for (x, width) in [(keys, d), (rotated, d * heads)] {
            self.reshaped(x, &[width, columns])?;
        }
        Some(rotated)
    }

    /// `[d, CACHE, 1]` of halves: one that there is, or another.
    fn cache(&mut self, d: usize) -> Pushed {
        let is_cache = |g: &GraphBuilder, id| {
            g.ne(id) == [d, CACHE, 1, 1] && g.tensor(id).is_some_and(|t| t.dtype() == DType::F16)
        };
        let known: Vec<TensorId> = self.states.iter().copied().filter(|&id| is_cache(&self.g, id)).collect();
        if !known.is_empty() && self.random.chance(2) {
            return known.get(self.random.below(known.len())).copied();
        }
        let id = self.leaf(LeafKind::State, DType::F16, &[d, CACHE, 1])?;
        self.states.push(id);
        Some(id)
    }

    fn attention(&mut self) -> Pushed {
        let (d, columns, heads) = (self.random.choose(&[32, 64, 64]), self.columns, 1 + self.random.below(3));
        let queries = self.of_width(d * heads)?;
        let queries = self.reshaped(queries, &[d, heads, columns])?;
        let q = self.g.push(Permute { axes: [0, 2, 1, 3] }, &[queries]).ok()?;
        let (k, v, positions) = (self.cache(d)?, self.cache(d)?, self.rows(CACHE, &[columns])?);
        let op = FlashAttn { scale: 0.2, window: 0, softcap: 0.0, block: 0 };
        let made = self.g.push_opt(op, &[Some(q), Some(k), Some(v), None, Some(positions)]).ok()?;
        self.reshaped(made, &[d * heads, columns])?;
        if self.random.chance(4) { Some(made) } else { self.product() }
    }

    /// Rows of a table are written.
    fn written(&mut self) -> Pushed {
        let x = self.any()?;
        let width = self.g.ne(x)[0];
        let table = self.table(width)?;
        if self.random.chance(3) {
            let columns = self.columns;
            let nb = self.g.tensor(table)?.layout().nb();
            let view = View { ne: [width, columns, 1, 1], nb, offset: 0 };
            let part = self.g.push(view, &[table]).ok()?;
            let written = self.g.push(Cpy, &[x, part]).ok()?;
            self.pool.push(written);
            return Some(written);
        }
        let rows = self.rows(CACHE, &[self.columns])?;
        let written = self.g.push(SetRows, &[table, x, rows]).ok()?;
        self.states.push(written);
        Some(written)
    }

    /// `[width, CACHE]` of numbers.
    fn table(&mut self, width: usize) -> Pushed {
        let is_table = |g: &GraphBuilder, id| {
            g.ne(id) == [width, CACHE, 1, 1] && g.tensor(id).is_some_and(|t| t.dtype() == DType::F32)
        };
        let known: Vec<TensorId> = self.states.iter().copied().filter(|&id| is_table(&self.g, id)).collect();
        match known.last() {
            Some(&id) if !self.random.chance(3) => Some(id),
            _ => {
                let id = self.leaf(LeafKind::State, DType::F32, &[width, CACHE])?;
                self.states.push(id);
                Some(id)
            }
        }
    }

    fn looked_up(&mut self) -> Pushed {
        let width = self.random.choose(&WIDTHS);
        let (table, rows) = (self.table(width)?, self.rows(CACHE, &[self.columns])?);
        self.push(GetRows, &[table, rows])
    }

    fn experts(&mut self) -> Pushed {
        let x = self.any()?;
        let (k, columns, used) = (self.g.ne(x)[0], self.columns, 1 + self.random.below(2));
        let m = self.random.choose(&WIDTHS);
        let weights = self.weights(&[k, m, 3])?;
        let (x, rows) = (self.reshaped(x, &[k, 1, columns])?, self.rows(3, &[used, columns])?);
        let made = self.g.push(MulMatId, &[weights, x, rows]).ok()?;
        let view = View { ne: [m, columns, 1, 1], nb: [4, 4 * m * used, 0, 0], offset: 4 * m * (used - 1) };
        self.push(view, &[made])
    }

    /// The largest element of each column, and the row of a table that it stands for.
    fn token(&mut self) -> Pushed {
        let x = self.any()?;
        let (n, width) = (self.g.ne(x)[0], self.random.choose(&WIDTHS));
        let ids = self.g.push(Argmax, &[x]).ok()?;
        let table = self.weights(&[width, n])?;
        self.push(GetRows, &[table, ids])
    }

    /// The same of rows of many logits, with their log-probability.
    fn logits(&mut self) -> Pushed {
        if self.columns > 2 {
            return None;
        }
        let x = self.leaf(LeafKind::Input, DType::F32, &[LOGITS, self.columns])?;
        let ids = self.g.push(Argmax, &[x]).ok()?;
        let weighed = self.g.push(LogProb, &[x, ids]).ok()?;
        self.g.output(weighed);
        let repeated = self.g.push(Repeat { ne: [32, self.columns, 1, 1] }, &[weighed]);
        repeated.ok().or(Some(ids))
    }

    /// A part of each column.
    fn half(&mut self) -> Pushed {
        let x = self.any()?;
        let (width, nb) = (self.g.ne(x)[0], self.g.tensor(x)?.layout().nb());
        let half = width / 2;
        let offset = if self.random.chance(2) { 4 * (width - half) } else { 0 };
        self.push(View { ne: [half.max(1), self.columns, 1, 1], nb, offset }, &[x])
    }
}
