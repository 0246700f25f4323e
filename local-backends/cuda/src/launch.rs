//! What a node becomes: kernels, how many blocks they need, and their parameters. A node that has no launch is not supported.

use crate::card::Card;
use crate::cost::{MOST_WORK, beginning, work};
use crate::kernels::{Kernel, USUAL_SHARED, Variant};
use crate::{attention, rotation, tiles};
use outboard_core::op::{self, Op, Order, UnaryKind};
use outboard_core::{DType, Graph, Tensor, TensorId};

/// Numbers that an op may give its kernel.
pub(crate) const PARAMS: usize = 18;

/// Parameters of a norm and of a gated unit: whether it is scaled, and whether its result is packed.
const SCALED: usize = 4;
pub(crate) const PACKED: usize = 5;
/// A parameter of attention: where the parts of its results begin in scratch memory.
const BEHIND_PACKED: usize = 11;

/// Columns up to which a product reads the weights row by row, once for all of them.
const FEW_COLUMNS: usize = 8;
/// Rows of each of its products that a block of a gated unit takes.
pub(crate) const GATED_ROWS: usize = 2;
/// Most warps of a block of such a product.
const MOST_WARPS: usize = 8;
/// Weights of rows that all of them take at a time, so that shared memory suffices.
const MOST_STAGED: usize = 8192;
/// Weights of a row that a warp takes at a time in a product with one column, and of blocks of 17 bytes.
const WINDOW: usize = 2048;
const LONG_WINDOW: usize = 4096;
/// Warps that keep a multiprocessor busy.
const BUSY_WARPS: usize = 16;
/// Rows from which on a product has enough blocks for a large card.
const MANY_ROWS: usize = 4096;
/// Warps of a block of a product of experts, some rows for each, and how many these are of blocks.
const WARPS: usize = 4;
const EXPERT_ROWS: usize = 4;
/// Longest row that is sorted, every element being compared with all others: far more than models have experts.
pub(crate) const MAX_SORTED: usize = 4096;
/// Longest row in which places are found digit by digit: they have 24 bits.
const MAX_SELECTED: usize = 1 << 24;
/// Most elements that are sorted of a longer row.
const MAX_LISTED: usize = 256;
/// Tokens whose places in a window are counted at once.
pub(crate) const PENALTY_PART: usize = 2048;
/// Threads of a block that works on one row, at most, or on one element each.
const LANES: u32 = 256;
/// Elements of a row of logits that a block takes, if it shares the row with others.
const ROW_PART: usize = 4096;
/// Threads of a block that alone keeps many elements of a row on their way, at most.
const MANY_LANES: u32 = 1024;
/// Most blocks of a launch.
pub(crate) const MOST_BLOCKS: u64 = (1 << 31) - 1;

/// A kernel over so many blocks.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    pub(crate) variant: Variant,
    /// Threads of a block.
    pub(crate) lanes: u32,
    pub(crate) blocks: u64,
}

/// How a node is computed.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// One behind the other.
    pub(crate) passes: Vec<Pass>,
    pub(crate) params: [u32; PARAMS],
    /// Numbers that a pass leaves for the next one, where a table ([`rotation::rates`]) would be.
    pub(crate) scratch: usize,
    /// Operations, for the division into pieces; those beyond what the op says, while it is made.
    pub(crate) work: u64,
}

impl Launch {
    pub(crate) fn new(pass: Pass) -> Launch {
        Launch { passes: vec![pass], params: [0; PARAMS], scratch: 0, work: 0 }
    }

    /// One thread for each of so many elements.
    fn of_elements(kernel: Kernel, elements: usize) -> Launch {
        let blocks = elements.div_ceil(LANES as usize) as u64;
        Launch::new(Pass { variant: Variant::of(kernel, &[]), lanes: LANES, blocks })
    }

    /// One block for each of so many rows of `n` elements.
    pub(crate) fn of_rows(kernel: Kernel, n: usize, rows: usize) -> Launch {
        Launch::of_rows_by(kernel, n, rows, LANES)
    }

    /// The same with up to so many threads of a block.
    fn of_rows_by(kernel: Kernel, n: usize, rows: usize, most: u32) -> Launch {
        let lanes = n.div_ceil(4).next_power_of_two().clamp(32, most as usize) as u32;
        Launch::new(Pass { variant: Variant::of(kernel, &[]), lanes, blocks: rows as u64 })
    }

    pub(crate) fn with(mut self, params: &[u32]) -> Launch {
        self.params[..params.len()].copy_from_slice(params);
        self
    }

    /// Has a norm multiply its rows with its second source.
    pub(crate) fn scale(&self, params: &mut [u32; PARAMS]) {
        params[SCALED] = 1;
    }

    /// Has a norm, a gated unit or attention leave its result as signed bytes, too, in so many numbers at the beginning of scratch memory.
    pub(crate) fn pack(&mut self, params: &mut [u32; PARAMS], numbers: usize) {
        let is_attention = self.passes.iter().any(|pass| pass.variant.kernel == Kernel::FlashAttnParts);
        if is_attention {
            // Behind them are the parts of its results.
            params[BEHIND_PACKED] = numbers as u32;
        } else {
            params[PACKED] = 1;
        }
        self.scratch += numbers;
    }
}

/// A node and its sources.
pub(crate) struct Node<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) tensor: &'a Tensor,
    pub(crate) card: Card,
}

impl<'a> Node<'a> {
    pub(crate) fn src(&self, i: usize) -> Option<&'a Tensor> {
        self.tensor.srcs().get(i).copied().flatten().map(|id| self.graph.tensor(id))
    }

    fn elements(&self) -> usize {
        self.tensor.layout().elements()
    }

    pub(crate) fn rows(&self) -> usize {
        self.tensor.layout().rows()
    }
}

/// The type as kernels number it.
pub(crate) fn number(dtype: DType) -> u32 {
    DType::ALL.iter().position(|&d| d == dtype).unwrap_or(0) as u32
}

/// Whether kernels can address a tensor: they count its elements in 32 bits.
fn fits(tensor: &Tensor) -> bool {
    let layout = tensor.layout();
    layout.elements() < 1 << 31 && layout.ne().iter().all(|&n| n < 1 << 31)
}

/// Whether every element or block begins where kernels can read its words. Roots lie on multiples of more.
fn is_aligned(tensor: &Tensor) -> bool {
    let unit = match tensor.dtype().block_bytes() {
        bytes if bytes % 4 == 0 => 4,
        bytes if bytes % 2 == 0 => 2,
        _ => 1,
    };
    tensor.offset() % unit == 0 && tensor.layout().nb()[1..].iter().all(|stride| stride % unit == 0)
}

/// Whether rows can be read 16 bytes at a time, so many elements each. Roots lie on multiples of more.
pub(crate) fn is_wide(tensor: &Tensor, elements: usize) -> bool {
    tensor.ne()[0] % elements == 0
        && tensor.offset() % 16 == 0
        && tensor.layout().nb()[1..].iter().all(|stride| stride % 16 == 0)
}

/// How a node that computes something is computed on such a card; `None` if it is not supported.
pub(crate) fn launch(graph: &Graph, id: TensorId, card: Card) -> Option<Launch> {
    let node = Node { graph, tensor: graph.tensor(id), card };
    let launch = launch_of(&node)?;
    let work = work(&node)?.max(launch.work).max(beginning(&launch.passes));
    let can = work <= MOST_WORK && launch.passes.iter().all(|pass| pass.blocks <= MOST_BLOCKS);
    can.then_some(Launch { work, ..launch })
}

fn launch_of(node: &Node) -> Option<Launch> {
    let op = node.tensor.op()?;
    // What is written byte by byte may lie anywhere.
    let is_read = |i: usize| op.writes() != Some(i);
    let sources = || (0..node.tensor.srcs().len()).filter_map(|i| Some((i, node.src(i)?)));
    let right = fits(node.tensor) && sources().all(|(i, src)| fits(src) && (!is_read(i) || is_aligned(src)));
    if !right || !(node.tensor.dtype().is_quantized() || is_aligned(node.tensor)) {
        return None;
    }
    let elements = |kernel| Launch::of_elements(kernel, node.elements());
    match op {
        Op::AddId(_) => Some(elements(Kernel::AddId)),
        Op::Argmax(_) => in_parts(node, Kernel::Argmax, 2),
        Op::Argsort(op) => argsort(node, op.order),
        Op::Binary(op) => Some(elements(Kernel::Binary).with(&[op.kind as u32])),
        Op::Cast(_) | Op::Cont(_) | Op::Cpy(_) => copy(node, node.src(0)?),
        Op::Clamp(op) => Some(unary(node, UnaryKind::ALL.len(), [op.min, op.max], 1)),
        Op::Concat(op) => Some(elements(Kernel::Concat).with(&[op.dim as u32])),
        Op::FlashAttn(op) => attention::flash_attn(node, op),
        Op::GetRows(_) => {
            let table = node.src(0)?;
            Some(Launch::of_rows(Kernel::GetRows, table.ne()[0], node.rows()).with(&[number(table.dtype())]))
        }
        Op::Glu(op) => Some(glu(node, op)),
        Op::MulMat(_) => mul_mat(node),
        Op::MulMatId(_) => mul_mat_id(node),
        Op::Norm(op) => Some(norm(node, op)),
        Op::Reduce(op) => {
            let x = node.src(0)?;
            Some(Launch::of_rows(Kernel::SumRows, x.ne()[0], x.layout().rows()).with(&[op.kind as u32]))
        }
        Op::Repeat(_) => Some(elements(Kernel::Repeat)),
        Op::Rope(op) => rotation::rope(node, op),
        Op::Scale(op) => Some(unary(node, UnaryKind::ALL.len(), [op.scale, op.bias], 0)),
        Op::SetRows(_) => set_rows(node),
        Op::SoftMax(op) => {
            let mask = node.src(1).map_or(DType::F32, Tensor::dtype);
            let launch = Launch::of_rows(Kernel::SoftMax, node.tensor.ne()[0], node.rows());
            Some(launch.with(&[op.scale.to_bits(), number(mask)]))
        }
        Op::Unary(op) => Some(unary(node, UnaryKind::ALL.iter().position(|&kind| kind == op.kind)?, [0.0; 2], 0)),
        Op::TopK(op) => top_k(node, op),
        Op::LogProb(_) => in_parts(node, Kernel::LogProb, 1),
        Op::Penalty(op) => Some(of_logits(node, Kernel::Penalty)?.with(&[u32::try_from(op.block).ok()?])),
        Op::Sample(_) => of_logits(node, Kernel::Sample).filter(|_| is_selected(node)),
        Op::Permute(_) | Op::Reshape(_) | Op::View(_) => None,
    }
}

/// A block for each row of logits.
fn of_logits(node: &Node, kernel: Kernel) -> Option<Launch> {
    let [n, rows, ..] = node.src(0)?.ne();
    Some(Launch::of_rows_by(kernel, n, rows, MANY_LANES))
}

/// Whether places in its rows can be found digit by digit.
fn is_selected(node: &Node) -> bool {
    node.src(0).is_some_and(|x| x.ne()[0] <= MAX_SELECTED)
}

/// A block for each part of a row of logits, which leaves two numbers, and then one for each row, if there are so many parts.
fn in_parts(node: &Node, kernel: Kernel, from: usize) -> Option<Launch> {
    let [n, rows, ..] = node.src(0)?.ne();
    let parts = n.div_ceil(ROW_PART).max(1);
    let pass = Pass { variant: Variant::of(kernel, &[]), lanes: LANES, blocks: (rows * parts) as u64 };
    let mut launch = Launch::new(pass).with(&[parts as u32]);
    if parts >= from {
        let lanes = parts.next_multiple_of(32).min(LANES as usize) as u32;
        launch.passes.push(Pass { variant: Variant::of(kernel, &["parts"]), lanes, blocks: rows as u64 });
        launch.scratch = 2 * rows * parts;
    }
    Some(launch)
}

/// The beginning of an ARGSORT, or of long rows what is found digit by digit.
fn top_k(node: &Node, op: &op::TopK) -> Option<Launch> {
    let x = node.src(0)?;
    if x.ne()[0] <= MAX_SORTED {
        return argsort(node, Order::Descending);
    }
    (op.k <= MAX_LISTED && is_selected(node))
        .then(|| Launch::of_rows_by(Kernel::TopK, x.ne()[0], x.layout().rows(), MANY_LANES))
}

fn argsort(node: &Node, order: Order) -> Option<Launch> {
    let [n, rows] = [node.src(0)?.ne()[0], node.src(0)?.layout().rows()];
    let launch = || Launch::of_rows(Kernel::Argsort, 4 * n, rows).with(&[u32::from(order == Order::Descending)]);
    (n <= MAX_SORTED).then(launch)
}

/// The functions of one element; those with numbers of their own come behind the others.
fn unary(node: &Node, kind: usize, [a, b]: [f32; 2], behind: usize) -> Launch {
    Launch::of_elements(Kernel::Unary, node.elements()).with(&[a.to_bits(), b.to_bits(), (kind + behind) as u32])
}

/// CPY, CONT and CAST.
fn copy(node: &Node, from: &Tensor) -> Option<Launch> {
    let (src, dst) = (from.dtype(), node.tensor.dtype());
    match (src.is_quantized(), dst.is_quantized()) {
        (false, false) => Some(Launch::of_elements(Kernel::Cpy, node.elements()).with(&[src, dst].map(number))),
        // Rows of the same length: elements keep their places.
        (true, false) if from.ne() == node.tensor.ne() && node.tensor.layout().has_dense_rows() => {
            Some(Launch::of_elements(Kernel::Unpack, node.elements() / 4).with(&[number(src)]))
        }
        _ => None,
    }
}

fn glu(node: &Node, op: &op::Glu) -> Launch {
    let (kind, params) = match op.kind {
        op::GluKind::Reglu => (0, [0.0, 0.0]),
        op::GluKind::Geglu => (1, [0.0, 0.0]),
        op::GluKind::Swiglu => (2, [0.0, 0.0]),
        op::GluKind::SwigluOai { alpha, limit } => (3, [alpha, limit]),
    };
    Launch::of_elements(Kernel::Glu, node.elements()).with(&[params[0].to_bits(), params[1].to_bits(), kind])
}

/// Whether columns and weights of a product can be read in wide words.
pub(crate) fn wide(a: &Tensor, b: &Tensor) -> [u32; 2] {
    [is_wide(b, 4), is_wide(a, 8)].map(u32::from)
}

fn mul_mat(node: &Node) -> Option<Launch> {
    let (a, b) = (node.src(0)?, node.src(1)?);
    let [m, n, b2, b3] = node.tensor.ne();
    if n > FEW_COLUMNS {
        return Some(tiles::mul_mat(node, a, b));
    }
    let columns = n.next_power_of_two();
    let rows = rows_of_block(a.dtype(), columns);
    let blocks = m.div_ceil(rows) * n.div_ceil(columns) * b2 * b3;
    let variant = Variant::of(Kernel::mul_mat_vec(a.dtype())?, &[&columns.to_string()]);
    let (warps, shared) = if a.dtype().is_quantized() && columns == 1 {
        warps_of_column(node.card, a, m, blocks)
    } else {
        (warps_of_block(a, m, columns), 0)
    };
    let pass = Pass { variant: variant.with_shared(shared), lanes: 32 * warps as u32, blocks: blocks as u64 };
    Some(of_columns(pass, a, b))
}

fn mul_mat_id(node: &Node) -> Option<Launch> {
    let (a, b) = (node.src(0)?, node.src(1)?);
    let [m, used, tokens, _] = node.tensor.ne();
    if tokens > FEW_COLUMNS && tiles::suits_experts(node, a) {
        return tiles::mul_mat_id(node, a, b);
    }
    let rows = if a.dtype().is_quantized() { EXPERT_ROWS } else { 1 };
    let warps = WARPS.min(MOST_STAGED / window(a.dtype()));
    let blocks = (m.div_ceil(warps * rows) * used * tokens) as u64;
    let shared = if a.dtype().is_quantized() { staged_bytes(a.dtype(), rows, warps) } else { 0 };
    let variant = Variant::of(Kernel::MulMatId, &[a.dtype().name()]).with_shared(shared);
    Some(of_columns(Pass { variant, lanes: 32 * warps as u32, blocks }, a, b))
}

/// Rows of weights that a block takes, as in kernels/mul_mat_vec.cuh.
fn rows_of_block(dtype: DType, columns: usize) -> usize {
    match (dtype.is_quantized(), columns) {
        (true, 2) => 2,
        _ => 4,
    }
}

/// Warps that share the length of these rows: of blocks, a lane takes 32 weights at a time, else four. Where there are many rows, few warps suffice,
/// and each of them has fewer sums to add up; types of 256 and more columns take so much work that this counts.
fn warps_of_block(a: &Tensor, m: usize, columns: usize) -> usize {
    let (n, dtype) = (a.ne()[0], a.dtype());
    let is_many = m >= MANY_ROWS;
    if !dtype.is_quantized() {
        let most = if is_many { MOST_WARPS / 2 } else { MOST_WARPS };
        return n.div_ceil(32 * 4).clamp(1, most);
    }
    let is_much = columns > 2 || dtype.block_len() == 256;
    let most = if is_many && is_much { MOST_WARPS / 4 } else { MOST_WARPS / 2 };
    n.div_ceil(32 * 32).clamp(1, most)
}

/// Warps that share the rows of a block of a product of blocks with one column, and the bytes of shared memory that they need. There is one for each
/// window of the rows, or, where that makes few, for each window of each row.
fn warps_of_column(card: Card, a: &Tensor, m: usize, blocks: usize) -> (usize, u32) {
    let (dtype, rows) = (a.dtype(), rows_of_block(a.dtype(), 1));
    let windows = a.ne()[0].div_ceil(window(dtype)).max(1);
    let is_few = blocks.saturating_mul(windows) < BUSY_WARPS * card.processors;
    let each = rows * windows;
    if is_few && each <= MOST_WARPS && staged_bytes(dtype, 1, each) <= USUAL_SHARED {
        return (each, staged_bytes(dtype, 1, each));
    }
    let is_much = m >= MANY_ROWS && dtype.block_len() == 256;
    let most = if is_much { MOST_WARPS / 4 } else { MOST_WARPS / 2 };
    let warps = windows.min(most).min(MOST_STAGED / window(dtype));
    (warps, staged_bytes(dtype, rows, warps))
}

/// Weights of a row that a warp takes at a time in a product with one column, as in kernels/staged.cuh.
fn window(dtype: DType) -> usize {
    if dtype == DType::MXFP4 { LONG_WINDOW } else { WINDOW }
}

/// Bytes of shared memory of so many warps, each of which has windows of so many rows and of the column.
fn staged_bytes(dtype: DType, rows: usize, warps: usize) -> u32 {
    let weights = window(dtype);
    let of_row = (weights / dtype.block_len() * dtype.block_bytes() + 30) / 16 * 16;
    let has_column = dtype.block_len() == 32 || matches!(dtype, DType::Q4_K | DType::Q5_K | DType::IQ4_XS);
    let of_column = if has_column { weights + weights / 4 } else { 0 };
    (warps * (rows * of_row + of_column)) as u32
}

/// A product row by row: with blocks, columns are made signed bytes first, with a scale for each 32.
fn of_columns(product: Pass, a: &Tensor, b: &Tensor) -> Launch {
    if !a.dtype().is_quantized() {
        return Launch::new(product).with(&wide(a, b));
    }
    let (n, rows) = (b.ne()[0], b.layout().rows());
    // A thread for four elements of a column, a warp at least for each, also of columns that have none.
    let lanes = (n / 4).next_multiple_of(32).clamp(32, LANES as usize);
    let blocks = ((n / 4).div_ceil(lanes) * rows) as u64;
    let quantize = Pass { variant: Variant::of(Kernel::Quantize, &[]), lanes: lanes as u32, blocks };
    let mut launch = Launch::new(quantize).with(&wide(a, b));
    launch.passes.push(product);
    launch.scratch = rows * packed_bytes(n) / 4;
    launch
}

/// Bytes of a column of `n` elements, as in kernels/quantized.cuh.
fn packed_bytes(n: usize) -> usize {
    (n + n / 4).next_multiple_of(32)
}

fn norm(node: &Node, op: &op::Norm) -> Launch {
    let kind = match op.kind {
        op::NormKind::RmsNorm => 0,
        op::NormKind::Norm => 1,
        op::NormKind::L2Norm => 2,
    };
    let wide = node.src(0).is_some_and(|x| is_wide(x, 4)) && is_wide(node.tensor, 4);
    let launch = Launch::of_rows_by(Kernel::Norm, node.tensor.ne()[0], node.rows(), MANY_LANES);
    let lanes = launch.passes.iter().map(|pass| pass.lanes).sum();
    launch.with(&[op.eps.to_bits(), kind, u32::from(wide), lanes])
}

fn set_rows(node: &Node) -> Option<Launch> {
    let (src, dtype) = (node.src(1)?, node.tensor.dtype());
    if dtype.is_quantized() && dtype != DType::Q8_0 {
        return None;
    }
    Some(Launch::of_rows(Kernel::SetRows, src.ne()[0], src.layout().rows()).with(&[number(dtype)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that kernels have by name.
    fn named(file: &str, name: &str) -> Option<u32> {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels").join(file);
        let text = std::fs::read_to_string(path).unwrap();
        let is_constant = |line: &&str| line.starts_with("const u32 ") || line.starts_with("const int ");
        let lists = text.lines().filter(is_constant).map(|line| line["const u32 ".len()..].trim_end_matches(';'));
        lists.flat_map(|list| list.split(", ")).find_map(|pair| pair.strip_prefix(&format!("{name} = "))?.parse().ok())
    }

    #[test]
    fn kernels_number_things_as_the_host_does() {
        for dtype in DType::ALL {
            assert_eq!(named("common.cuh", dtype.name()), Some(number(dtype)), "{dtype}");
        }
        for (i, kind) in UnaryKind::ALL.iter().enumerate() {
            assert_eq!(named("activations.cuh", kind.name()), Some(i as u32), "{kind:?}");
        }
        let unary = UnaryKind::ALL.len() as u32;
        assert_eq!([named("unary.cu", "SCALE"), named("unary.cu", "CLAMP")], [Some(unary), Some(unary + 1)]);
        assert_eq!(named("common.cuh", "RESULT"), Some(op::MAX_SRCS as u32));
        assert_eq!(named("mul_mat_id.cu", "WARPS"), Some(WARPS as u32));
        assert_eq!(named("mul_mat_id.cu", "ROWS_OF_BLOCKS"), Some(EXPERT_ROWS as u32));
        assert_eq!(named("staged.cuh", "WINDOW"), Some(WINDOW as u32));
        assert_eq!(named("staged.cuh", "LONG_WINDOW"), Some(LONG_WINDOW as u32));
        assert_eq!(
            rows_of_block(DType::Q4_0, 1),
            2 * GATED_ROWS,
            "products are joined to gated units with their shared memory"
        );
        assert_eq!(named("mul_mat_vec.cuh", "MOST_WARPS"), Some(MOST_WARPS as u32));
        assert_eq!(named("mul_mat_vec.cuh", "GATED_ROWS"), Some(GATED_ROWS as u32));
        assert_eq!(
            [named("norm.cuh", "SCALED"), named("quantized.cuh", "PACKED")],
            [SCALED, PACKED].map(|i| Some(i as u32))
        );
        assert_eq!(named("mma_tile.cuh", "SHARED_128"), Some(tiles::LARGE.shared));
        assert_eq!(named("mma_tile.cuh", "SHARED_64"), Some(tiles::SMALL.shared));
        assert_eq!(named("experts.cuh", "TILE"), Some(tiles::SMALL.side as u32));
        assert_eq!(named("mul_mat_id_sort.cu", "MOST_EXPERTS"), Some(tiles::MOST_EXPERTS as u32));
        assert_eq!(named("halves.cuh", "DEPTH"), Some(tiles::DEPTH as u32));
        assert_eq!(named("fma_tile.cuh", "TILE"), Some(tiles::SMALL.side as u32));
        assert_eq!(named("select.cuh", "LISTED"), Some(MAX_LISTED as u32));
        assert_eq!(named("argmax.cu", "PART"), Some(ROW_PART as u32));
        assert_eq!(named("log_prob.cu", "PART"), Some(ROW_PART as u32));
        assert_eq!(named("flash_attn_parts.cu", "MOST_PARTS"), Some(attention::MOST_FEW_PARTS as u32));
        assert_eq!(named("attention_tile.cuh", "ROWS"), Some(attention::TILE_ROWS as u32));
        assert_eq!(named("penalty.cu", "PART"), Some(PENALTY_PART as u32));
    }
}
