//! What a node becomes: a kernel with its constants, how many workgroups it needs, and its parameters. A node that has no launch is not
//! supported.

use crate::pipelines::{Kernel, Variant};
use crate::units::{self, Units};
use outboard_core::op::{self, Op, Order, RopeMode, Srcs, UnaryKind};
use outboard_core::{DType, DeviceKind, Graph, Tensor, TensorId};

/// Numbers that an op may give its kernel.
pub(crate) const PARAMS: usize = 18;

/// Columns up to which a product reads the weights once for all, row by row.
const FEW_COLUMNS: usize = 8;
/// Experts among which many columns are sorted.
const MOST_EXPERTS: usize = 1024;
/// Longest key and value of attention, in elements.
const MAX_HEAD: usize = 576;
/// Longest row that is sorted, every element being compared with all others: far more than models have experts.
const MAX_SORTED: usize = 4096;
/// Longest row in which places are found digit by digit: sums of so many weights have 51 bits.
const MAX_SELECTED: usize = 1 << 20;
/// Most elements that are then sorted.
const MAX_LISTED: usize = 256;
/// Tokens whose places in a window are counted at once.
pub(crate) const PENALTY_PART: usize = 2048;
/// Longest row that goes from ROPE to a cache at once, by way of shared memory.
pub(crate) const CACHE_ROW: usize = 1024;
/// Parameters of a product that its gate has, from this one on.
const GATE_PARAMS: usize = 2;
/// Most elements of a row that are rotated: a table of half as many numbers is made for each node.
const MAX_ROTATED: usize = 4096;
/// Invocations of a workgroup that works on one row, or one element each.
const ELEMENT_LANES: u32 = 256;
/// Invocations of a workgroup of attention and of products with more than four columns.
pub(crate) const ROW_LANES: u32 = 32;
/// Fours of results that an invocation of attention has, all heads together.
const HEAD_RESULTS: usize = 8;
/// Numbers of queries that a workgroup of attention has in shared memory, of which 16 KiB are sure.
const QUERY_NUMBERS: usize = 2048;
/// Operations that a workgroup takes at least, however little it computes: on lavapipe 4 to 12 microseconds. One of attention takes longer.
const WORKGROUP: u64 = 4096;
const WORKGROUP_OF_ATTENTION: u64 = 4 * WORKGROUP;
/// Workgroups of attention that keep a large card busy.
const WORKGROUPS: usize = 768;
/// Parts into which keys are divided at most to have them.
const MOST_PARTS: usize = 32;
/// Rows that a workgroup of a product with few columns takes at once.
pub(crate) const MOST_ROWS: usize = 4;
/// Results of a tile of a product with many columns, on either side.
const TILE: usize = 64;

/// A kernel over so many workgroups.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    pub(crate) variant: Variant,
    pub(crate) groups: u64,
}

impl Pass {
    /// `constants` come behind the size of a workgroup.
    fn new(kernel: Kernel, lanes: u32, constants: &[u32], groups: usize) -> Pass {
        let constants = [&[lanes], constants].concat();
        Pass { variant: Variant { kernel, constants }, groups: groups as u64 }
    }
}

/// How a node is computed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Launch {
    /// One behind the other.
    pub(crate) passes: Vec<Pass>,
    pub(crate) params: [u32; PARAMS],
    /// How many numbers the host prepares for it ([`table`]).
    pub(crate) table: usize,
    /// Numbers that a pass leaves for the next one, where the table would be.
    pub(crate) scratch: usize,
    /// Whether the first pass leaves nothing but the columns of its second source as signed bytes, which other products may read, too.
    pub(crate) packs: bool,
    /// Whether the last pass adds a third source, if there is one.
    pub(crate) adds: bool,
    /// Operations, for the division into submissions.
    pub(crate) work: u64,
}

/// What a device has for products beside plain kernels, and what was seen to compute what it should.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fast {
    /// Matrix units.
    pub(crate) units: Option<Units>,
    /// Products of whole numbers.
    pub(crate) dot: bool,
}

/// Limits of one node, by the kind of its driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Operations: some seconds of a small card, and about half a minute of a driver on processors.
    pub(crate) work: u64,
    /// Iterations of an invocation's loops, all together: lavapipe ends them without a word after 65,535.
    iterations: u64,
    fast: Fast,
}

impl Bounds {
    /// Those of a card, or of a driver that runs on processors.
    pub(crate) fn of(kind: DeviceKind) -> Bounds {
        match kind {
            DeviceKind::Cpu => Bounds { work: 1 << 34, iterations: 60_000, fast: Fast::default() },
            // The work of a workgroup is not divided: models need less than a tenth of this.
            _ => Bounds { work: 1 << 42, iterations: 1 << 24, fast: Fast::default() },
        }
    }

    /// The same of a device that has this.
    pub(crate) fn with(self, fast: Fast) -> Bounds {
        Bounds { fast, ..self }
    }
}

/// Invocations of a workgroup that works on a row of `n` elements.
fn lanes_of_row(n: usize) -> u32 {
    n.div_ceil(4).next_power_of_two().clamp(32, ELEMENT_LANES as usize) as u32
}

impl Launch {
    /// `constants` come behind the size of a workgroup.
    fn new(kernel: Kernel, lanes: u32, constants: &[u32], groups: usize) -> Launch {
        Launch::of(vec![Pass::new(kernel, lanes, constants, groups)])
    }

    fn of(passes: Vec<Pass>) -> Launch {
        Launch { passes, params: [0; PARAMS], table: 0, scratch: 0, packs: false, adds: false, work: 0 }
    }

    /// One invocation for each of so many elements.
    fn of_elements(kernel: Kernel, constants: &[u32], elements: usize) -> Launch {
        Launch::new(kernel, ELEMENT_LANES, constants, elements.div_ceil(ELEMENT_LANES as usize))
    }

    /// One workgroup for each of so many rows of `n` elements.
    fn of_rows(kernel: Kernel, constants: &[u32], n: usize, rows: usize) -> Launch {
        Launch::new(kernel, lanes_of_row(n), constants, rows)
    }

    /// Of a norm: the same with each row multiplied by another source.
    pub(crate) fn scaled(mut self) -> Launch {
        self.passes.iter_mut().for_each(|pass| pass.variant.constants.push(1));
        self
    }

    /// Of a product with few columns: the same for two matrices, one of which gates what the other makes. The unit has these extents.
    pub(crate) fn gated(mut self, kind: op::GluKind, [m, _, b2, b3]: [usize; 4]) -> Option<Launch> {
        let (kind, numbers) = glu_kind(kind);
        let product = self.passes.last_mut()?;
        let rows = *product.variant.constants.get(2)? as usize / 2;
        product.variant.constants.push(1 + kind);
        product.groups = (m.div_ceil(rows.max(1)) * b2 * b3) as u64;
        self.params[GATE_PARAMS..GATE_PARAMS + 2].copy_from_slice(&numbers.map(f32::to_bits));
        Some(Launch { adds: false, ..self })
    }

    /// Of a ROPE: what is rotated goes to rows of a cache of this type, by its number.
    pub(crate) fn into_cache(mut self, dtype: u32) -> Launch {
        self.passes.iter_mut().for_each(|pass| pass.variant.constants.push(1 + dtype));
        self
    }

    fn with(mut self, params: &[u32]) -> Launch {
        self.params[..params.len()].copy_from_slice(params);
        self
    }

    fn with_floats(self, params: &[f32]) -> Launch {
        let bits: Vec<u32> = params.iter().map(|p| p.to_bits()).collect();
        self.with(&bits)
    }
}

/// A node and its sources.
struct Node<'a> {
    graph: &'a Graph,
    tensor: &'a Tensor,
}

impl<'a> Node<'a> {
    fn src(&self, i: usize) -> Option<&'a Tensor> {
        self.tensor.srcs().get(i).copied().flatten().map(|id| self.graph.tensor(id))
    }

    fn elements(&self) -> usize {
        self.tensor.layout().elements()
    }

    fn rows(&self) -> usize {
        self.tensor.layout().rows()
    }
}

/// The type as shaders number it.
pub(crate) fn number(dtype: DType) -> u32 {
    DType::ALL.iter().position(|&d| d == dtype).unwrap_or(0) as u32
}

/// Whether kernels can address a tensor: they count its elements, and the bytes from one row to the next, in 32 bits.
fn fits(tensor: &Tensor) -> bool {
    let layout = tensor.layout();
    layout.elements() < 1 << 31
        && layout.nb().iter().all(|&stride| stride < 1 << 32)
        && layout.ne().iter().all(|&n| n < 1 << 31)
}

/// Whether rows can be read 16 bytes at a time. Roots lie on multiples of more.
fn is_wide(tensor: &Tensor) -> bool {
    tensor.ne()[0] % 4 == 0
        && tensor.offset() % 16 == 0
        && tensor.layout().nb()[1..].iter().all(|stride| stride % 16 == 0)
}

/// How a node that computes something is computed; `None` if it is not supported.
pub(crate) fn launch(graph: &Graph, id: TensorId, bounds: &Bounds) -> Option<Launch> {
    let node = Node { graph, tensor: graph.tensor(id) };
    let launch = launch_of(&node, bounds.fast)?;
    let cost = cost(&node)?;
    let groups = launch.passes.iter().fold(0u64, |sum, pass| sum.saturating_add(pass.groups));
    let of_group = if matches!(node.tensor.op(), Some(Op::FlashAttn(_))) { WORKGROUP_OF_ATTENTION } else { WORKGROUP };
    let work = cost.work.max(groups.saturating_mul(of_group));
    (work <= bounds.work && cost.iterations <= bounds.iterations).then_some(Launch { work, ..launch })
}

/// What a node takes.
struct Cost {
    work: u64,
    /// Iterations of an invocation, where they grow with what a client sends.
    iterations: u64,
}

fn cost(node: &Node) -> Option<Cost> {
    let layouts: Vec<_> = (0..node.tensor.srcs().len()).map(|i| node.src(i).map(|src| *src.layout())).collect();
    let op = node.tensor.op()?;
    let flops = op.flops(&Srcs(&layouts), node.tensor.layout());
    let count = |i: usize| node.src(i).map_or(0, |src| src.layout().elements() as u64);
    Some(match op {
        Op::Sample(_) => selection_cost(node)?,
        Op::TopK(_) if node.src(0)?.ne()[0] > MAX_SORTED => selection_cost(node)?,
        Op::Penalty(op) => {
            let positions = positions(node, op)? as u64;
            let parts = (node.src(0)?.ne()[0] as u64).div_ceil(PENALTY_PART as u64);
            let of_row = parts.saturating_mul(positions.saturating_add(2 * PENALTY_PART as u64));
            let rows = node.src(0)?.ne()[1] as u64;
            Cost { work: of_row.saturating_mul(rows), iterations: of_row / 32 }
        }
        Op::Argsort(_) | Op::TopK(_) => {
            let n = node.src(0)?.ne()[0] as u64;
            Cost { work: count(0).saturating_mul(n), iterations: n.div_ceil(256) * n.div_ceil(4) }
        }
        // Every workgroup looks at all indices.
        Op::SetRows(_) => {
            let rows = node.src(1)?.layout().rows() as u64;
            // Each look takes some operations.
            let looks = rows.saturating_mul(count(2)).saturating_mul(4);
            Cost { work: flops.saturating_add(looks), iterations: count(2).div_ceil(32) }
        }
        Op::FlashAttn(op) => {
            let q = node.src(0)?;
            let keys = keys(node, op)? as u64;
            // Short keys and values take the time of whole vectors.
            let lanes = u64::from(ROW_LANES);
            let pair = 2 * (q.ne()[0] as u64).max(lanes) + 2 * (node.tensor.ne()[0] as u64).next_multiple_of(4 * lanes);
            let work = keys.saturating_mul(pair).saturating_mul((q.ne()[1] * q.ne()[2]) as u64);
            // For as many keys as there are lanes: octets of a key, the keys' values, and for each head reductions over subgroups.
            let step = q.ne()[0] as u64 / 8 + lanes + 2 * lanes;
            Cost { work, iterations: keys.div_ceil(lanes).saturating_mul(step) }
        }
        Op::MulMatId(_) if node.tensor.ne()[2] > FEW_COLUMNS => {
            let pairs = (node.tensor.ne()[1] * node.tensor.ne()[2]) as u64;
            let sort = 2 * pairs.div_ceil(ELEMENT_LANES.into()) + pairs / TILE as u64 + 2 * node.src(0)?.ne()[2] as u64;
            Cost { work: flops, iterations: sort.max(node.src(0)?.ne()[0] as u64 / 16) }
        }
        Op::MulMat(_) => Cost { work: flops, iterations: node.src(0)?.ne()[0] as u64 / 16 },
        // Those that go through a row do so three times at most.
        _ => Cost { work: flops, iterations: 3 * node.src(0).map_or(0, |src| src.ne()[0] as u64 / 32) },
    })
}

/// What it takes to find places in rows: three of seven digits each, and three passes for the first of all, the list and the result.
fn selection_cost(node: &Node) -> Option<Cost> {
    let (passes, x) = (24, node.src(0)?.layout());
    let (n, lanes) = (x.ne()[0], u64::from(lanes_of_row(x.ne()[0])));
    let iterations = passes * ((n as u64).div_ceil(lanes) + 64);
    Some(Cost { work: (x.rows() as u64).saturating_mul(iterations.saturating_mul(lanes)), iterations })
}

fn launch_of(node: &Node, fast: Fast) -> Option<Launch> {
    let graph = node.graph;
    let all_fit = fits(node.tensor) && node.tensor.sources().all(|src| fits(graph.tensor(src)));
    if !all_fit {
        return None;
    }
    match node.tensor.op()? {
        Op::AddId(_) => Some(Launch::of_elements(Kernel::AddId, &[], node.elements())),
        Op::Argmax(_) => Some(Launch::of_rows(Kernel::Argmax, &[], node.src(0)?.ne()[0], node.src(0)?.ne()[1])),
        Op::Argsort(op) => argsort(node, op.order),
        Op::Binary(op) => Some(Launch::of_elements(Kernel::Binary, &[op.kind as u32], node.elements())),
        Op::Cast(_) | Op::Cont(_) => copy(node, node.src(0)?),
        Op::Cpy(_) => copy(node, node.src(0)?),
        Op::Clamp(op) => Some(unary(node, UnaryKind::ALL.len() as u32 + 1).with_floats(&[op.min, op.max])),
        Op::Concat(op) => Some(Launch::of_elements(Kernel::Concat, &[op.dim as u32], node.elements())),
        Op::FlashAttn(op) => flash_attn(node, op),
        Op::GetRows(_) => get_rows(node),
        Op::Glu(op) => Some(glu(node, op)),
        Op::MulMat(_) => mul_mat(node, fast),
        Op::MulMatId(_) => mul_mat_id(node, fast),
        Op::Norm(op) => Some(norm(node, op)),
        Op::Reduce(op) => Some(Launch::of_rows(
            Kernel::SumRows,
            &[op.kind as u32],
            node.src(0)?.ne()[0],
            node.src(0)?.layout().rows(),
        )),
        Op::Repeat(_) => Some(Launch::of_elements(Kernel::Repeat, &[], node.elements())),
        Op::Rope(op) => rope(node, op),
        Op::Scale(op) => Some(unary(node, UnaryKind::ALL.len() as u32).with_floats(&[op.scale, op.bias])),
        Op::SetRows(_) => set_rows(node),
        Op::SoftMax(op) => Some(soft_max(node, op)),
        Op::Unary(op) => {
            let place = UnaryKind::ALL.iter().position(|&kind| kind == op.kind)?;
            Some(unary(node, place as u32))
        }
        Op::TopK(op) => top_k(node, op),
        Op::LogProb(_) => Some(of_logits(node, Kernel::LogProb, &[])?),
        Op::Penalty(op) => {
            let launch = of_logits(node, Kernel::Penalty, &[PENALTY_PART as u32])?;
            u32::try_from(positions(node, op)?).ok()?;
            Some(launch.with(&[u32::try_from(op.block).ok()?]))
        }
        Op::Sample(_) => of_logits(node, Kernel::Sample, &[]).filter(|_| is_selected(node)),
        Op::Permute(_) | Op::Reshape(_) | Op::View(_) => None,
    }
}

/// A workgroup for each row of logits.
fn of_logits(node: &Node, kernel: Kernel, constants: &[u32]) -> Option<Launch> {
    let [n, rows, ..] = node.src(0)?.ne();
    Some(Launch::of_rows(kernel, constants, n, rows))
}

/// Positions of the longest history.
fn positions(node: &Node, op: &op::Penalty) -> Option<usize> {
    match op.block {
        0 => Some(node.src(1)?.ne()[0]),
        block => Some(node.src(4)?.ne()[0].saturating_mul(block)),
    }
}

/// Whether places in its rows can be found digit by digit.
fn is_selected(node: &Node) -> bool {
    node.src(0).is_some_and(|x| x.ne()[0] <= MAX_SELECTED)
}

/// The beginning of an ARGSORT, or of long rows what is found digit by digit.
fn top_k(node: &Node, op: &op::TopK) -> Option<Launch> {
    let x = node.src(0)?;
    if x.ne()[0] <= MAX_SORTED {
        return argsort(node, Order::Descending);
    }
    let can = op.k <= MAX_LISTED && is_selected(node);
    can.then(|| Launch::of_rows(Kernel::TopK, &[], x.ne()[0], x.layout().rows()))
}

/// ARGSORT.
fn argsort(node: &Node, order: Order) -> Option<Launch> {
    let [n, rows] = [node.src(0)?.ne()[0], node.src(0)?.layout().rows()];
    if n > MAX_SORTED {
        return None;
    }
    Some(Launch::of_rows(Kernel::Argsort, &[u32::from(order == Order::Descending)], 4 * n, rows))
}

fn unary(node: &Node, kind: u32) -> Launch {
    Launch::of_elements(Kernel::Unary, &[kind], node.elements())
}

/// CPY, CONT and CAST.
fn copy(node: &Node, from: &Tensor) -> Option<Launch> {
    let (src, dst) = (from.dtype(), node.tensor.dtype());
    let types = [number(src), number(dst)];
    match (src.is_quantized(), dst.is_quantized()) {
        (false, false) => Some(Launch::of_elements(Kernel::Cpy, &types, node.elements())),
        // Rows of the same length: elements keep their places.
        (true, false) if from.ne() == node.tensor.ne() && node.tensor.layout().has_dense_rows() => {
            Some(Launch::of_elements(Kernel::Unpack, &types[..1], node.elements() / 4))
        }
        _ => None,
    }
}

fn flash_attn(node: &Node, op: &op::FlashAttn) -> Option<Launch> {
    let [q, k, v] = [node.src(0)?, node.src(1)?, node.src(2)?];
    let mask = node.src(3).map_or(DType::F32, Tensor::dtype);
    let (d, dv) = (q.ne()[0], v.ne()[0]);
    if d > MAX_HEAD || dv > MAX_HEAD {
        return None;
    }
    // Few variants, each of which the driver compiles.
    let length = d.next_multiple_of(64).max(64);
    let fours = dv.div_ceil(4 * ROW_LANES as usize).max(1);
    let most = (HEAD_RESULTS / fours).min(QUERY_NUMBERS / length).max(1);
    let heads = heads_at_once(q.ne()[2] / k.ne()[2].max(1), most);
    let groups = q.ne()[1] * q.ne()[2] / heads;
    let parts = parts_of_keys(groups, keys(node, op)?);
    let [length, fours, heads] = [length, fours, heads].map(|n| n as u32);
    let whole = u32::from(is_whole(k) && is_whole(v));
    let constants = [number(k.dtype()), number(v.dtype()), number(mask), length, fours, heads, whole];
    // Kernels count positions in 32 bits.
    u32::try_from(keys(node, op)?).ok()?;
    let [window, block] = [u32::try_from(op.window).ok()?, u32::try_from(op.block).ok()?];
    let mut launch = Launch::new(Kernel::FlashAttn, ROW_LANES, &constants, groups * parts);
    if parts > 1 {
        let results = q.ne()[1] * q.ne()[2];
        launch.passes.push(Pass::new(Kernel::FlashAttnParts, ROW_LANES, &[], results));
        // Each part has two numbers more than a result.
        launch.scratch = results * parts * (dv + 2).next_multiple_of(4);
    }
    Some(launch.with(&[op.scale.to_bits(), window, op.softcap.to_bits(), block, parts as u32]))
}

/// Keys that a query may see.
fn keys(node: &Node, op: &op::FlashAttn) -> Option<usize> {
    match op.block {
        0 => Some(node.src(1)?.ne()[1]),
        block => Some(node.src(6)?.ne()[0].saturating_mul(block)),
    }
}

/// Heads that a workgroup of attention takes of those that share keys, so many at most.
fn heads_at_once(sharing: usize, most: usize) -> usize {
    (1..=most).rev().find(|&heads| sharing.is_multiple_of(heads)).unwrap_or(1)
}

/// Parts into which keys are divided, so that a card has enough workgroups where there are few queries.
fn parts_of_keys(groups: usize, keys: usize) -> usize {
    let wanted = WORKGROUPS.div_ceil(groups.max(1));
    wanted.min(keys.div_ceil(2 * ROW_LANES as usize)).clamp(1, MOST_PARTS)
}

fn get_rows(node: &Node) -> Option<Launch> {
    let table = node.src(0)?;
    Some(Launch::of_rows(Kernel::GetRows, &[number(table.dtype())], table.ne()[0], node.rows()))
}

/// A kind of gated unit as shaders number it, and its numbers.
fn glu_kind(kind: op::GluKind) -> (u32, [f32; 2]) {
    match kind {
        op::GluKind::Reglu => (0, [0.0, 0.0]),
        op::GluKind::Geglu => (1, [0.0, 0.0]),
        op::GluKind::Swiglu => (2, [0.0, 0.0]),
        op::GluKind::SwigluOai { alpha, limit } => (3, [alpha, limit]),
    }
}

fn glu(node: &Node, op: &op::Glu) -> Launch {
    let (kind, numbers) = glu_kind(op.kind);
    Launch::of_elements(Kernel::Glu, &[kind], node.elements()).with_floats(&numbers)
}

/// Whether rows begin at whole words and have whole pairs of octets.
fn is_whole(tensor: &Tensor) -> bool {
    tensor.ne()[0] % 16 == 0
        && tensor.offset() % 4 == 0
        && tensor.layout().nb()[1..].iter().all(|stride| stride % 4 == 0)
}

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

/// The copy of so many vectors of 16 bytes.
pub(crate) fn copy_pass(vectors: u32) -> Pass {
    // Each invocation copies two.
    Pass::new(Kernel::Copy, ELEMENT_LANES, &[], vectors.div_ceil(2 * ELEMENT_LANES) as usize)
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

fn mul_mat(node: &Node, fast: Fast) -> Option<Launch> {
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

fn mul_mat_id(node: &Node, fast: Fast) -> Option<Launch> {
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

fn norm(node: &Node, op: &op::Norm) -> Launch {
    let kind = match op.kind {
        op::NormKind::RmsNorm => 0,
        op::NormKind::Norm => 1,
        op::NormKind::L2Norm => 2,
    };
    Launch::of_rows(Kernel::Norm, &[kind], node.tensor.ne()[0], node.rows()).with_floats(&[op.eps])
}

/// The numbers that the host prepares for a node.
pub(crate) fn table(graph: &Graph, id: TensorId) -> Vec<f32> {
    match graph.tensor(id).op() {
        Some(Op::Rope(op)) => op.rates(),
        _ => Vec::new(),
    }
}

fn rope(node: &Node, op: &op::Rope) -> Option<Launch> {
    if op.n_dims > MAX_ROTATED {
        return None;
    }
    let neox = u32::from(op.mode == RopeMode::Neox);
    let launch = Launch::of_rows(Kernel::Rope, &[neox], node.tensor.ne()[0], node.rows());
    Some(Launch { table: op.n_dims / 2, ..launch.with(&[op.n_dims as u32, op.amplitude().to_bits()]) })
}

fn set_rows(node: &Node) -> Option<Launch> {
    let (src, dtype) = (node.src(1)?, node.tensor.dtype());
    if dtype.is_quantized() && dtype != DType::Q8_0 {
        return None;
    }
    Some(Launch::of_rows(Kernel::SetRows, &[number(dtype)], src.ne()[0], src.layout().rows()))
}

fn soft_max(node: &Node, op: &op::SoftMax) -> Launch {
    let mask = node.src(1).map_or(DType::F32, Tensor::dtype);
    Launch::of_rows(Kernel::SoftMax, &[number(mask)], node.tensor.ne()[0], node.rows()).with_floats(&[op.scale])
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_core::GraphBuilder;

    /// Numbers that kernels have by name.
    fn named(file: &str, name: &str) -> Option<u32> {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders").join(file);
        let text = std::fs::read_to_string(path).unwrap();
        let constants = text.lines().filter_map(|line| line.strip_prefix("const uint "));
        let mut pairs = constants.flat_map(|list| list.trim_end_matches(';').split(", "));
        pairs.find_map(|pair| pair.strip_prefix(&format!("{name} = "))?.parse().ok())
    }

    /// A kernel has a workgroup for each of them, which takes its time however short they are.
    #[test]
    fn many_short_rows_are_work() {
        let is_supported = |rows: usize, build: fn(&mut GraphBuilder, usize) -> TensorId| {
            let mut g = GraphBuilder::new();
            let result = build(&mut g, rows);
            g.output(result);
            launch(&g.finish().unwrap(), result, &Bounds::of(DeviceKind::Cpu)).is_some()
        };
        let norm = |g: &mut GraphBuilder, rows: usize| {
            let x = g.input("x", DType::F32, &[1, rows]).unwrap();
            g.push(op::Norm { kind: op::NormKind::RmsNorm, eps: 1e-5 }, &[x]).unwrap()
        };
        let batches = |g: &mut GraphBuilder, n: usize| {
            let [a, b] = ["a", "b"].map(|name| g.input(name, DType::F32, &[1, 1, n]).unwrap());
            g.push(op::MulMat, &[a, b]).unwrap()
        };
        let chosen = |g: &mut GraphBuilder, rows: usize| {
            let x = g.input("x", DType::F32, &[1, rows]).unwrap();
            g.push(op::TopK { k: 1 }, &[x]).unwrap()
        };
        for build in [norm as fn(&mut GraphBuilder, usize) -> TensorId, batches, chosen] {
            assert!(is_supported(1 << 19, build) && !is_supported(1 << 23, build));
        }
    }

    #[test]
    fn kernels_number_things_as_the_host_does() {
        for dtype in DType::ALL {
            assert_eq!(named("common.glsl", dtype.name()), Some(number(dtype)), "{dtype}");
        }
        for (i, kind) in UnaryKind::ALL.iter().enumerate() {
            assert_eq!(named("activations.glsl", kind.name()), Some(i as u32), "{kind:?}");
        }
        let unary = UnaryKind::ALL.len() as u32;
        assert_eq!([named("unary.comp", "SCALE"), named("unary.comp", "CLAMP")], [Some(unary), Some(unary + 1)]);
        assert_eq!(named("common.glsl", "RESULT"), Some(op::MAX_SRCS as u32));
        let common = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/common.glsl")).unwrap();
        assert!(common.contains(&format!("param({PARAMS})")), "what is behind the parameters");
        assert_eq!(named("results.glsl", "TILE"), Some(TILE as u32));
        assert_eq!(named("mul_mat_id_sort.comp", "TILE"), Some(TILE as u32));
        assert_eq!(named("mul_mat_id_sort.comp", "MOST_EXPERTS"), Some(MOST_EXPERTS as u32));
        assert_eq!(named("flash_attn_parts.comp", "MOST_PARTS"), Some(MOST_PARTS as u32));
        assert_eq!(named("select.glsl", "LISTED"), Some(MAX_LISTED as u32));
        assert_eq!(named("rope.comp", "CACHE_ROW"), Some(CACHE_ROW as u32));
        assert_eq!(named("mul_mat_vec.glsl", "GATE_PARAMS"), Some(GATE_PARAMS as u32));
    }
}
