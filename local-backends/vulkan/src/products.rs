//! How MUL_MAT and MUL_MAT_ID are launched: row by row, in tiles, by matrix units, or in whole numbers.

use crate::launch::{ELEMENT_LANES, Fast, Launch, Node, Pass, ROW_LANES, is_whole, is_wide, number};
use crate::pipelines::Kernel;
use crate::units::{self, Units};
use outboard_core::{DType, Tensor};

/// Columns up to which a product reads the weights once for all, row by row.
pub(crate) const FEW_COLUMNS: usize = 8;
/// Experts among which many columns are sorted.
pub(crate) const MOST_EXPERTS: usize = 1024;
/// Rows that a workgroup of a product with few columns takes at once.
pub(crate) const MOST_ROWS: usize = 4;
/// Results of a tile of a product with many columns, on either side.
pub(crate) const TILE: usize = 64;

/// Rows that a workgroup of a product with more than four columns of floats takes at once: of these types, four do not fit a card's registers.
pub(crate) fn rows_of_many(dtype: DType) -> usize {
    if matches!(dtype, DType::Q3_K | DType::Q6_K) { 2 } else { MOST_ROWS }
}

/// Invocations of a workgroup of a product of `m` rows of weights with few columns, and the rows that it takes at once: more need the columns
/// less often, fewer keep more workgroups busy. Of more than four columns there are `of_many`. Measured on an H100.
fn lanes_and_rows(a: &Tensor, m: usize, columns: usize, of_many: usize) -> (u32, usize) {
    match columns {
        // Few rows have few workgroups, each of which waits for memory as often as it goes through its rows.
        0 | 1 if m < 8192 => (if a.ne()[0] < 4096 { 64 } else { 128 }, 2),
        _ if m < 512 => (64, 2),
        0..=4 => (64, 4),
        _ => (ROW_LANES, of_many),
    }
}

/// Invocations of a workgroup that makes columns bytes, each of which has a group of 32 elements.
pub(crate) const PACK_LANES: u32 = 64;

/// Columns as signed bytes with their scales, for products of whole numbers (`shaders/packed.glsl`).
fn pack(k: usize, columns: usize, is_wide: bool) -> Pass {
    let groups = (k / 32).div_ceil(PACK_LANES as usize) * columns;
    Pass::new(Kernel::Quantize, PACK_LANES, &[u32::from(is_wide)], groups)
}

/// What kernels that read bytes are told of columns: it is all the same to them.
const NOT_WIDE: u32 = 0;

/// Numbers that they take.
fn packed(k: usize, columns: usize) -> usize {
    (k + k / 4).next_multiple_of(16) / 4 * columns
}

/// Whether weights of a type are whole numbers of a byte times scales.
fn are_bytes(weights: &Tensor) -> bool {
    weights.dtype().is_quantized() && weights.dtype() != DType::Q8_K && weights.ne()[0] > 0
}

/// Whether a card needs more time to make weights of a type floats than to read them (BENCHMARKS.md): then it pays to make even a single column bytes.
fn are_slow_as_floats(dtype: DType) -> bool {
    matches!(dtype, DType::Q2_K | DType::Q3_K)
}

/// A product of `m` rows of `k` weights with `n` columns, so many times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) batches: usize,
    /// Whether columns can be read 16 bytes at a time.
    pub(crate) is_wide: bool,
    /// Whether rows begin at whole words and have whole pairs of octets.
    pub(crate) is_whole: bool,
}

impl Product {
    fn tiles(&self, rows: usize, columns: usize) -> usize {
        self.m.div_ceil(rows) * self.n.div_ceil(columns) * self.batches
    }

    /// In tiles, by the type's number.
    pub(crate) fn plain(&self, dtype: u32) -> Pass {
        Pass::new(Kernel::MulMat, 256, &[dtype, u32::from(self.is_wide)], self.tiles(TILE, TILE))
    }

    /// In tiles by matrix units: first columns become halves.
    pub(crate) fn by_units(&self, units: Units, dtype: u32) -> Vec<Pass> {
        let tile = units.tile(self.n);
        let [rows, columns] = tile.size();
        let constants = [&[dtype, u32::from(self.is_whole)], tile.constants().as_slice()].concat();
        vec![
            Pass::new(Kernel::Halves, ELEMENT_LANES, &[], self.n * self.batches),
            Pass::new(Kernel::MulMatUnits, units::LANES, &constants, self.tiles(rows, columns)),
        ]
    }

    /// Of whole numbers: first columns become bytes. In tiles, if they are many.
    pub(crate) fn by_dot(&self, dtype: u32, (lanes, rows): (u32, usize)) -> Vec<Pass> {
        let is_whole = u32::from(self.is_whole);
        let product = if self.n > FEW_COLUMNS {
            Pass::new(Kernel::MulMatDot, 256, &[dtype, is_whole], self.tiles(TILE, TILE))
        } else {
            let constants = [dtype, rows as u32, self.n.max(1) as u32, NOT_WIDE, is_whole];
            Pass::new(Kernel::MulMatVecDot, lanes, &constants, self.m.div_ceil(rows) * self.batches)
        };
        vec![pack(self.k, self.n * self.batches, self.is_wide), product]
    }

    /// Numbers that the first of these leaves for the second.
    pub(crate) fn packed(&self) -> usize {
        packed(self.k, self.n * self.batches)
    }

    /// Numbers that the first pass leaves for matrix units: of each column one, and halves up to a multiple of 64.
    pub(crate) fn scratch(&self) -> usize {
        let columns = self.n * self.batches;
        columns.next_multiple_of(4) + columns * self.k.next_multiple_of(64) / 2
    }
}

/// Whether weights of a type are halves, or whole numbers times them: in halves, few of their digits are lost.
fn are_halves(dtype: DType) -> bool {
    dtype == DType::F16 || dtype.is_quantized() && !matches!(dtype, DType::MXFP4 | DType::Q8_K)
}

pub(crate) fn mul_mat(node: &Node, fast: Fast) -> Option<Launch> {
    let (a, b) = (node.src(0)?, node.src(1)?);
    let [m, n, b2, b3] = node.tensor.ne();
    let (dtype, batches) = (number(a.dtype()), b2 * b3);
    let product = Product { m, n, k: a.ne()[0], batches, is_wide: is_wide(b), is_whole: is_whole(a) };
    let many = n > FEW_COLUMNS;
    let by_dot = fast.dot && are_bytes(a) && (n > 1 || are_slow_as_floats(a.dtype()));
    let units = fast.units.filter(|_| many && are_halves(a.dtype()) && a.ne()[0] > 0);
    if let Some(units) = units {
        return Some(Launch { scratch: product.scratch(), ..Launch::of(product.by_units(units, dtype)) });
    }
    let (lanes, rows) = lanes_and_rows(a, m, n, if by_dot { MOST_ROWS } else { rows_of_many(a.dtype()) });
    if by_dot {
        let launch = Launch::of(product.by_dot(dtype, (lanes, rows)));
        return Some(Launch { scratch: product.packed(), packs: true, adds: !many, ..launch });
    }
    if many {
        return Some(Launch::of(vec![product.plain(dtype)]));
    }
    let constants = [dtype, rows as u32, n.max(1) as u32, u32::from(product.is_wide), u32::from(product.is_whole)];
    let launch = Launch::new(Kernel::MulMatVec, lanes, &constants, m.div_ceil(rows) * batches);
    Some(Launch { adds: true, ..launch })
}

pub(crate) fn mul_mat_id(node: &Node, fast: Fast) -> Option<Launch> {
    let (a, b) = (node.src(0)?, node.src(1)?);
    let [m, used, tokens, _] = node.tensor.ne();
    let has_bytes = fast.dot && are_bytes(a);
    if tokens > FEW_COLUMNS && a.ne()[2] <= MOST_EXPERTS {
        return mul_mat_id_sorted(a, b, [m, used, tokens], has_bytes);
    }
    let (lanes, rows) = lanes_and_rows(a, m, 1, MOST_ROWS);
    let by_dot = has_bytes && are_slow_as_floats(a.dtype());
    let wide = if by_dot { NOT_WIDE } else { u32::from(is_wide(b)) };
    let constants = [number(a.dtype()), rows as u32, 1, wide, u32::from(is_whole(a))];
    let groups = m.div_ceil(rows) * used * tokens;
    if !by_dot {
        return Some(Launch::new(Kernel::MulMatId, lanes, &constants, groups));
    }
    let (k, columns) = (a.ne()[0], b.layout().rows());
    let mut launch = Launch::new(Kernel::MulMatIdDot, lanes, &constants, groups);
    launch.passes.insert(0, pack(k, columns, is_wide(b)));
    Some(Launch { scratch: packed(k, columns), packs: true, ..launch })
}

/// MUL_MAT_ID with many tokens: columns are sorted by expert, so that a tile's weights are read once for all of its columns.
fn mul_mat_id_sorted(a: &Tensor, b: &Tensor, [m, used, tokens]: [usize; 3], has_bytes: bool) -> Option<Launch> {
    let pairs = used * tokens;
    let tiles = a.ne()[2].min(pairs) + pairs / TILE;
    let (dtype, groups) = (number(a.dtype()), m.div_ceil(TILE) * tiles);
    let mut launch = Launch::new(Kernel::MulMatIdSort, ELEMENT_LANES, &[], 1);
    launch.scratch = 4 + 4 * tiles + pairs;
    let begin = launch.scratch.next_multiple_of(4);
    if has_bytes {
        launch.passes.push(pack(a.ne()[0], b.layout().rows(), is_wide(b)));
        launch.passes.push(Pass::new(Kernel::MulMatIdTilesDot, 256, &[dtype, u32::from(is_whole(a))], groups));
        launch.scratch = begin + packed(a.ne()[0], b.layout().rows());
    } else {
        launch.passes.push(Pass::new(Kernel::MulMatIdTiles, 256, &[dtype, u32::from(is_wide(b))], groups));
    }
    Some(launch.with(&[u32::try_from(tiles).ok()?, u32::try_from(begin).ok()?]))
}
