//! How products with many columns are launched: in tiles, on tensor cores where there are some.

use crate::kernels::{Kernel, Variant};
use crate::launch::{Launch, Node, Pass, number, wide};
use outboard_core::{DType, Tensor};

/// Compute capability of the cards whose tensor cores are used.
pub(crate) const TENSOR_CORES: u32 = 75;
/// That from which they multiply bf16, and a block has room for a large tile.
const LARGER_CORES: u32 = 80;
/// Elements of a step: columns are padded to a multiple of it.
pub(crate) const DEPTH: usize = 32;
/// Length from which the sums of a small product are divided into two parts.
const LONG: usize = 512;
/// Experts that columns can be sorted by.
pub(crate) const MOST_EXPERTS: usize = 1024;
/// Columns of an expert, on an average, from which tiles are worth it.
const COLUMNS_OF_EXPERT: usize = 2;
/// Threads of the block that sorts.
const SORTERS: u32 = 1024;
/// Numbers in front of the tiles of experts, and of a tile.
const HEAD: usize = 4;
const TILE_NUMBERS: usize = 4;
/// What a column takes to be sorted, by one block of threads, one of which divides them.
const SORT: u64 = 1 << 11;
/// Threads of a block that makes a column of halves.
const LANES: u32 = 256;

/// A size of tiles.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// Rows and columns.
    pub(crate) side: usize,
    /// Threads of a block.
    lanes: u32,
    /// Bytes of shared memory of a block.
    pub(crate) shared: u32,
    /// Blocks that a multiprocessor needs at least, for one to work while another one waits.
    wanted: usize,
    name: &'static str,
}

pub(crate) const LARGE: Tile = Tile { side: 128, lanes: 256, shared: 101_376, wanted: 1, name: "128" };
pub(crate) const SMALL: Tile = Tile { side: 64, lanes: 128, shared: 50_688, wanted: 2, name: "64" };

impl Tile {
    /// Tiles of a result.
    fn count(&self, [m, n, n2, n3]: [usize; 4]) -> usize {
        m.div_ceil(self.side) * n.div_ceil(self.side) * n2 * n3
    }

    /// Operations of so many, of sums of so many products: also of rows and columns that are not there.
    fn work(&self, tiles: usize, length: usize) -> u64 {
        let of_one = (2 * self.side * self.side) as u64;
        of_one.saturating_mul(tiles as u64).saturating_mul(length.next_multiple_of(DEPTH).max(DEPTH) as u64)
    }
}

/// MUL_MAT with many columns.
pub(crate) fn mul_mat(node: &Node, a: &Tensor, b: &Tensor) -> Launch {
    let (name, ne) = (a.dtype().name(), node.tensor.ne());
    if !has_tensor_cores(node, a) {
        let variant = Variant::of(Kernel::MulMat, &[name, SMALL.name]);
        let pass = Pass { variant, lanes: 256, blocks: SMALL.count(ne) as u64 };
        let work = SMALL.work(SMALL.count(ne), b.ne()[0]);
        return Launch { work, ..Launch::new(pass).with(&wide(a, b)) };
    }
    let processors = node.card.processors;
    // Two parts of a large tile are worth it where they keep three multiprocessors of four busy.
    let has_room = node.card.capability >= LARGER_CORES;
    let is_large = has_room && ne[1] > SMALL.side && 8 * LARGE.count(ne) >= 3 * processors;
    let tile = if is_large { LARGE } else { SMALL };
    let is_few = tile.count(ne) <= tile.wanted * processors;
    let parts = if is_few && b.ne()[0] >= LONG { 2 } else { 1 };
    let variant = Variant::of(Kernel::MulMat, &[name, tile.name]).with_shared(tile.shared);
    let mut launch = halves(b);
    launch.work = tile.work(tile.count(ne), b.ne()[0]);
    launch.passes.push(Pass { variant, lanes: tile.lanes, blocks: (parts * tile.count(ne)) as u64 });
    launch.with(&[&wide(a, b)[..], &[number(of_halves(a)), parts as u32]].concat())
}

/// Whether a product with experts and many tokens is computed in tiles.
pub(crate) fn suits_experts(node: &Node, a: &Tensor) -> bool {
    let [_, used, tokens, _] = node.tensor.ne();
    let experts = a.ne()[2];
    has_tensor_cores(node, a) && experts <= MOST_EXPERTS && used * tokens >= COLUMNS_OF_EXPERT * experts
}

fn has_tensor_cores(node: &Node, a: &Tensor) -> bool {
    let needed = if a.dtype() == DType::BF16 { LARGER_CORES } else { TENSOR_CORES };
    a.dtype() != DType::F32 && node.card.capability >= needed
}

/// MUL_MAT_ID with many tokens: columns are sorted by expert, so that a tile's weights are read once for all of its columns.
pub(crate) fn mul_mat_id(node: &Node, a: &Tensor, b: &Tensor) -> Option<Launch> {
    let [m, used, tokens, _] = node.tensor.ne();
    let pairs = used * tokens;
    let tiles = a.ne()[2].min(pairs) + pairs / SMALL.side;
    let mut launch = halves(b);
    launch.passes.push(Pass { variant: Variant::of(Kernel::MulMatIdSort, &[]), lanes: SORTERS, blocks: 1 });
    let variant = Variant::of(Kernel::MulMatIdTiles, &[a.dtype().name()]).with_shared(SMALL.shared);
    let blocks = (m.div_ceil(SMALL.side) * tiles) as u64;
    let multiplied = SMALL.work(m.div_ceil(SMALL.side) * tiles, b.ne()[0]);
    launch.work = multiplied.saturating_add(SORT.saturating_mul(pairs as u64));
    launch.passes.push(Pass { variant, lanes: SMALL.lanes, blocks });
    let begin = u32::try_from(launch.scratch).ok()?;
    launch.scratch += HEAD + tiles * TILE_NUMBERS + pairs;
    let params = [number(of_halves(a)), 1, begin, u32::try_from(tiles).ok()?];
    Some(launch.with(&[&wide(a, b)[..], &params].concat()))
}

/// The type that columns are converted to.
fn of_halves(a: &Tensor) -> DType {
    if a.dtype() == DType::BF16 { DType::BF16 } else { DType::F16 }
}

/// Columns become halves, with a scale for each.
fn halves(b: &Tensor) -> Launch {
    let rows = b.layout().rows();
    let pass = Pass { variant: Variant::of(Kernel::Halves, &[]), lanes: LANES, blocks: rows as u64 };
    Launch { scratch: rows * (b.ne()[0].next_multiple_of(DEPTH) / 2 + 1), ..Launch::new(pass) }
}
