//! What a node becomes: a kernel with its constants, how many workgroups it needs, and its parameters. A node that has no launch is not
//! supported.

use crate::attention::flash_attn;
use crate::cost::{Bounds, cost};
use crate::pipelines::{Kernel, Variant};
use crate::products::{mul_mat, mul_mat_id};
use crate::units::Units;
use outboard_core::op::{self, Op, Order, RopeMode, UnaryKind};
use outboard_core::{DType, Graph, Tensor, TensorId};

/// Numbers that an op may give its kernel.
pub(crate) const PARAMS: usize = 18;
/// Longest row that is sorted, every element being compared with all others: far more than models have experts.
pub(crate) const MAX_SORTED: usize = 4096;
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
pub(crate) const ELEMENT_LANES: u32 = 256;
/// Invocations of a workgroup of attention and of products with more than four columns.
pub(crate) const ROW_LANES: u32 = 32;

/// A kernel over so many workgroups.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    pub(crate) variant: Variant,
    pub(crate) groups: u64,
}

impl Pass {
    /// `constants` come behind the size of a workgroup.
    pub(crate) fn new(kernel: Kernel, lanes: u32, constants: &[u32], groups: usize) -> Pass {
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

/// Invocations of a workgroup that works on a row of `n` elements.
pub(crate) fn lanes_of_row(n: usize) -> u32 {
    n.div_ceil(4).next_power_of_two().clamp(32, ELEMENT_LANES as usize) as u32
}

impl Launch {
    /// `constants` come behind the size of a workgroup.
    pub(crate) fn new(kernel: Kernel, lanes: u32, constants: &[u32], groups: usize) -> Launch {
        Launch::of(vec![Pass::new(kernel, lanes, constants, groups)])
    }

    pub(crate) fn of(passes: Vec<Pass>) -> Launch {
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

    pub(crate) fn with(mut self, params: &[u32]) -> Launch {
        self.params[..params.len()].copy_from_slice(params);
        self
    }

    fn with_floats(self, params: &[f32]) -> Launch {
        let bits: Vec<u32> = params.iter().map(|p| p.to_bits()).collect();
        self.with(&bits)
    }
}

/// The copy of so many vectors of 16 bytes.
pub(crate) fn copy_pass(vectors: u32) -> Pass {
    // Each invocation copies two.
    Pass::new(Kernel::Copy, ELEMENT_LANES, &[], vectors.div_ceil(2 * ELEMENT_LANES) as usize)
}

/// A node and its sources.
pub(crate) struct Node<'a> {
    graph: &'a Graph,
    pub(crate) tensor: &'a Tensor,
}

impl<'a> Node<'a> {
    pub(crate) fn src(&self, i: usize) -> Option<&'a Tensor> {
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
pub(crate) fn is_wide(tensor: &Tensor) -> bool {
    tensor.ne()[0] % 4 == 0
        && tensor.offset() % 16 == 0
        && tensor.layout().nb()[1..].iter().all(|stride| stride % 16 == 0)
}

/// Whether rows begin at whole words and have whole pairs of octets.
pub(crate) fn is_whole(tensor: &Tensor) -> bool {
    tensor.ne()[0] % 16 == 0
        && tensor.offset() % 4 == 0
        && tensor.layout().nb()[1..].iter().all(|stride| stride % 4 == 0)
}

/// How a node that computes something is computed; `None` if it is not supported.
pub(crate) fn launch(graph: &Graph, id: TensorId, bounds: &Bounds) -> Option<Launch> {
    let node = Node { graph, tensor: graph.tensor(id) };
    let launch = launch_of(&node, bounds.fast)?;
    let cost = cost(&node, &launch.passes)?;
    bounds.allow(&cost).then_some(Launch { work: cost.work, ..launch })
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
pub(crate) fn positions(node: &Node, op: &op::Penalty) -> Option<usize> {
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
    use crate::attention::MOST_PARTS;
    use crate::products::{MOST_EXPERTS, TILE};
    use outboard_core::{DeviceKind, GraphBuilder};

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
