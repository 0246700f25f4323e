//! What each op of ours is in ggml. The shape rules of our graph have checked sources; here is what ggml asks beyond them.

use crate::checks::Mask;
use crate::functions::Functions;
use crate::tensors::{Of1, Of2, T};
use crate::translate::Translator;
use outboard_core::op::{BinaryKind, Cast, Clamp, Concat, FlashAttn, GluKind, NormKind, ReduceKind, Rope, UnaryKind};
use outboard_core::{DIMS, DType, DeviceKind, Layout, Op, TensorId};

/// Bytes of ggml's own for one node on processors, at most, and for each thread: nobody pays for them. It keeps the most that a node has needed.
const MOST_WORK: usize = 64 << 20;
const MOST_WORK_OF_THREAD: usize = 1 << 20;
/// Elements of a row of attention, and pairs of one that is turned, on cards.
const MOST_ROW: usize = 1 << 16;
/// Queries, and keys, of a tile of attention, for which each thread has memory.
const ATTENTION_TILE: usize = 64;
/// Bytes for each expert of a product, beside the rows of each: counts and places, in lines of their own.
const OF_EXPERT: usize = 128;

/// Adds what computes node `id`. `None` if ggml, or this device, cannot.
pub(crate) fn node(t: &mut Translator<'_>, id: TensorId, op: &Op) -> Option<()> {
    // Nothing to compute, or nothing to write.
    if t.layout(id).is_empty() || matches!(op, Op::SetRows(_)) && t.is_empty(id, 1) {
        return Some(());
    }
    match op {
        Op::AddId(_) => add_id(t, id),
        Op::Binary(op) => {
            let sources = [rows(t, id, 0)?, rows(t, id, 1)?];
            of2(t, id, |f| binary(f, op.kind), sources)
        }
        Op::Cast(Cast { dtype }) => cast(t, id, *dtype),
        Op::Clamp(op) => clamp(t, id, op),
        Op::Concat(Concat { dim }) => concat(t, id, *dim),
        Op::Cont(_) => {
            let x = t.source(id, 0)?;
            of1(t, id, |f| f.ggml_cont, x)
        }
        Op::Cpy(_) => copy(t, id),
        Op::FlashAttn(op) => attention(t, id, op),
        Op::GetRows(_) => get_rows(t, id),
        Op::Glu(op) => {
            let sources = [contiguous(t, id, 0)?, contiguous(t, id, 1)?];
            glu(t, id, op.kind, sources)
        }
        Op::MulMat(_) => {
            let (a, b) = (t.matrix(id)?, t.source(id, 1)?);
            let sources = [a, t.planes(b)?];
            works_with(t, 0, of_columns(sources))?;
            of2(t, id, |f| f.ggml_mul_mat, sources)
        }
        Op::MulMatId(_) => mul_mat_id(t, id),
        Op::Norm(op) => {
            let x = rows(t, id, 0)?;
            let norm = |f: &Functions| match op.kind {
                NormKind::RmsNorm => f.ggml_rms_norm,
                NormKind::Norm => f.ggml_norm,
                NormKind::L2Norm => f.ggml_l2_norm,
            };
            let normal = t.tensors.norm(x, norm, op.eps)?;
            t.result(id, normal)
        }
        Op::Reduce(op) => {
            let x = contiguous(t, id, 0)?;
            let reduce = |f: &Functions| match op.kind {
                ReduceKind::SumRows => f.ggml_sum_rows,
                ReduceKind::Mean => f.ggml_mean,
                ReduceKind::Cumsum => f.ggml_cumsum,
            };
            of1(t, id, reduce, x)
        }
        Op::Repeat(op) => {
            let x = rows(t, id, 0)?;
            let tiled = t.tensors.repeat(x, op.ne)?;
            t.result(id, tiled)
        }
        Op::Rope(op) => rope(t, id, op),
        Op::Scale(op) => {
            let x = contiguous(t, id, 0)?;
            let scaled = t.tensors.scale(x, op.scale, op.bias)?;
            t.result(id, scaled)
        }
        Op::SetRows(_) => set_rows(t, id),
        Op::SoftMax(op) => {
            let x = contiguous(t, id, 0)?;
            let mask = optional(t, id, 1, |t| contiguous(t, id, 1))?;
            works_with_rows(t, x)?;
            let soft = t.tensors.soft_max(x, mask, op.scale)?;
            t.result(id, soft)
        }
        Op::Unary(op) => {
            let x = contiguous(t, id, 0)?;
            of1(t, id, |f| unary(f, op.kind), x)
        }
        // ggml takes the last of equals, and sorts with a comparison that NaN breaks.
        Op::Argmax(_) | Op::Argsort(_) | Op::TopK(_) => None,
        // It has none.
        Op::LogProb(_) | Op::Penalty(_) | Op::Sample(_) => None,
        Op::Permute(_) | Op::Reshape(_) | Op::View(_) => Some(()),
    }
}

/// `None` if ggml would need too much memory of its own for a node: so many bytes for each thread, and some for all (`ggml_graph_plan` adds them up).
/// What it has for each thread whatever the node is, half a MiB for products of some types, is not counted: no client chooses it.
fn works_with(t: &Translator<'_>, of_thread: usize, of_all: Option<usize>) -> Option<()> {
    let bytes = of_thread.checked_mul(t.heap.threads).and_then(|bytes| bytes.checked_add(of_all?));
    let most = MOST_WORK + t.heap.threads * MOST_WORK_OF_THREAD;
    let fits = bytes.is_some_and(|bytes| bytes <= most);
    (t.heap.device.kind != DeviceKind::Cpu || fits).then_some(())
}

/// The same of a row of F32 for each thread that has one.
fn works_with_rows(t: &Translator<'_>, x: T) -> Option<()> {
    let [n, rows @ ..] = x.layout.ne();
    let each = n.checked_mul(size_of::<f32>())?;
    let at_once = rows.iter().product::<usize>().min(t.heap.threads);
    works_with(t, 0, each.checked_mul(at_once))
}

/// Bytes of the columns of a product, as they meet weights: F32, halves, or blocks of signed bytes with a scale and a sum.
fn of_columns([a, b]: [T; 2]) -> Option<usize> {
    let elements = b.layout.elements();
    match a.layout.dtype() {
        DType::F32 => Some(0),
        dtype if dtype.is_quantized() => Some(elements.checked_mul(36)?.div_ceil(32)),
        _ => elements.checked_mul(size_of::<u16>()),
    }
}

/// Whether ggml makes elements of one type those of another by way of a row of F32.
fn goes_over_f32(from: DType, to: DType) -> bool {
    use DType::{BF16, F16, F32, I32};
    to.is_quantized() || matches!((from, to), (F16, BF16) | (BF16, F16) | (F32, I32) | (I32, F32))
}

fn contiguous(t: &mut Translator<'_>, id: TensorId, i: usize) -> Option<T> {
    let source = t.source(id, i)?;
    t.contiguous(source)
}

fn rows(t: &mut Translator<'_>, id: TensorId, i: usize) -> Option<T> {
    let source = t.source(id, i)?;
    t.rows(source)
}

/// An optional source: `Some(None)` if it is left out, `None` if it is there and has no place in ggml.
fn optional(
    t: &mut Translator<'_>,
    id: TensorId,
    i: usize,
    get: impl FnOnce(&mut Translator<'_>) -> Option<T>,
) -> Option<Option<T>> {
    if has(t, id, i) { get(t).map(Some) } else { Some(None) }
}

fn has(t: &Translator<'_>, id: TensorId, i: usize) -> bool {
    matches!(t.graph.tensor(id).srcs().get(i), Some(Some(_)))
}

fn of1(t: &mut Translator<'_>, id: TensorId, new: impl Fn(&Functions) -> Of1, a: T) -> Option<()> {
    let layout = t.layout(id);
    let node = t.tensors.of1(layout, new, a)?;
    t.result(id, node)
}

fn of2(t: &mut Translator<'_>, id: TensorId, new: impl Fn(&Functions) -> Of2, sources: [T; 2]) -> Option<()> {
    let layout = t.layout(id);
    let node = t.tensors.of2(layout, new, sources)?;
    t.result(id, node)
}

/// A tensor tiled to a shape, in scratch memory.
pub(crate) fn repeated(t: &mut Translator<'_>, x: T, ne: [usize; DIMS]) -> Option<T> {
    let tiled = t.tensors.repeat(x, ne)?;
    t.scratch_node(tiled)
}

fn binary(f: &Functions, kind: BinaryKind) -> Of2 {
    match kind {
        BinaryKind::Add => f.ggml_add,
        BinaryKind::Sub => f.ggml_sub,
        BinaryKind::Mul => f.ggml_mul,
        BinaryKind::Div => f.ggml_div,
    }
}

fn unary(f: &Functions, kind: UnaryKind) -> Of1 {
    match kind {
        UnaryKind::Neg => f.ggml_neg,
        UnaryKind::Abs => f.ggml_abs,
        UnaryKind::Sqr => f.ggml_sqr,
        UnaryKind::Sqrt => f.ggml_sqrt,
        UnaryKind::Exp => f.ggml_exp,
        UnaryKind::Log => f.ggml_log,
        UnaryKind::Sin => f.ggml_sin,
        UnaryKind::Cos => f.ggml_cos,
        UnaryKind::Tanh => f.ggml_tanh,
        UnaryKind::Relu => f.ggml_relu,
        UnaryKind::Sigmoid => f.ggml_sigmoid,
        UnaryKind::Silu => f.ggml_silu,
        UnaryKind::Gelu => f.ggml_gelu,
        UnaryKind::GeluErf => f.ggml_gelu_erf,
        UnaryKind::GeluQuick => f.ggml_gelu_quick,
        UnaryKind::Softplus => f.ggml_softplus,
    }
}

fn glu(t: &mut Translator<'_>, id: TensorId, kind: GluKind, sources: [T; 2]) -> Option<()> {
    match kind {
        GluKind::Reglu => of2(t, id, |f| f.ggml_reglu_split, sources),
        GluKind::Geglu => of2(t, id, |f| f.ggml_geglu_split, sources),
        GluKind::Swiglu => of2(t, id, |f| f.ggml_swiglu_split, sources),
        GluKind::SwigluOai { alpha, limit } => {
            let node = t.tensors.swiglu_oai(sources, alpha, limit)?;
            t.result(id, node)
        }
    }
}

fn clamp(t: &mut Translator<'_>, id: TensorId, op: &Clamp) -> Option<()> {
    let x = contiguous(t, id, 0)?;
    if t.tensors.functions().clamp_has_a_result {
        let clamped = t.tensors.clamp(x, op.min, op.max)?;
        return t.result(id, clamped);
    }
    let copy = t.tensors.of1(x.layout, |f| f.ggml_cont, x)?;
    t.result(id, copy)?;
    let clamped = t.tensors.clamp(copy, op.min, op.max)?;
    t.written(clamped)
}

/// One behind the other; of a source with nothing in it there is nothing to add.
fn concat(t: &mut Translator<'_>, id: TensorId, dim: usize) -> Option<()> {
    let full: Vec<usize> = (0..2).filter(|&i| !t.is_empty(id, i)).collect();
    if let [only] = full[..] {
        let x = t.source(id, only)?;
        return of1(t, id, |f| f.ggml_cont, x);
    }
    let (layout, sources) = (t.layout(id), [rows(t, id, 0)?, rows(t, id, 1)?]);
    let both = t.tensors.concat(layout, sources, dim)?;
    t.result(id, both)
}

/// Whether ggml rounds to the same blocks as we do: it does not where it looks for the best scales of a super-block.
fn rounds_alike(to: DType) -> bool {
    to.block_len() <= 32
}

/// Floats become one another in one step; blocks are made of F32, and become F32.
fn cast(t: &mut Translator<'_>, id: TensorId, to: DType) -> Option<()> {
    let x = t.source(id, 0)?;
    if to.is_quantized() && (x.layout.dtype() == to || !rounds_alike(to)) {
        return None;
    }
    if x.layout.dtype() == to {
        return of1(t, id, |f| f.ggml_cont, x);
    }
    let x = if to.is_quantized() { as_f32(t, x)? } else { x };
    let x = if x.layout.dtype().is_quantized() { t.contiguous(x)? } else { x };
    if goes_over_f32(x.layout.dtype(), to) {
        works_with_rows(t, x)?;
    }
    let cast = t.tensors.cast(x, to)?;
    t.result(id, cast)
}

/// The same as contiguous F32.
fn as_f32(t: &mut Translator<'_>, x: T) -> Option<T> {
    if x.layout.dtype() == DType::F32 {
        return t.contiguous(x);
    }
    let cast = t.tensors.cast(x, DType::F32)?;
    t.scratch_node(cast)
}

fn copy(t: &mut Translator<'_>, id: TensorId) -> Option<()> {
    let (x, dst) = (t.source(id, 0)?, t.source(id, 1)?);
    let to = dst.layout.dtype();
    // ggml makes blocks only where they lie one behind the other.
    if to.is_quantized() && !(dst.layout.is_contiguous() && rounds_alike(to)) {
        return None;
    }
    let x = if to.is_quantized() { as_f32(t, x)? } else { x };
    let x = if x.layout.dtype().is_quantized() {
        // ggml takes whole blocks apart into elements that lie side by side.
        let whole = dst.layout.is_contiguous() || dst.layout.ne()[0].is_multiple_of(x.layout.dtype().block_len());
        if dst.layout.nb()[0] != to.block_bytes() || !whole {
            return None;
        }
        t.contiguous(x)?
    } else {
        x
    };
    if goes_over_f32(x.layout.dtype(), to) {
        works_with_rows(t, dst)?;
    }
    let copied = t.tensors.of2(dst.layout, |f| f.ggml_cpy, [x, dst])?;
    t.written(copied)
}

fn add_id(t: &mut Translator<'_>, id: TensorId) -> Option<()> {
    let experts = t.graph.src_layouts(id).get(1).copied().flatten()?.ne()[1];
    let ids = t.indices(id, 2, experts, "experts")?;
    if experts == 0 {
        return Some(());
    }
    let (a, b, layout) = (rows(t, id, 0)?, rows(t, id, 1)?, t.layout(id));
    let sum = t.tensors.of3(layout, |f| f.ggml_add_id, [a, b, ids])?;
    t.result(id, sum)
}

fn get_rows(t: &mut Translator<'_>, id: TensorId) -> Option<()> {
    let count = t.graph.src_layouts(id).first().copied().flatten()?.ne()[1];
    let ids = t.indices(id, 1, count, "rows")?;
    if count == 0 {
        return Some(());
    }
    let a = rows(t, id, 0)?;
    of2(t, id, |f| f.ggml_get_rows, [a, ids])
}

fn set_rows(t: &mut Translator<'_>, id: TensorId) -> Option<()> {
    let (dst, src) = match t.layout(id).dtype() {
        // ggml writes rows of floats alone.
        DType::I32 => {
            let srcs = t.graph.tensor(id).srcs();
            (t.bits(srcs.first().copied().flatten()?)?, t.bits(srcs.get(1).copied().flatten()?)?)
        }
        _ => (t.source(id, 0)?, t.source(id, 1)?),
    };
    let dense = dst.layout.nb()[0] == dst.layout.dtype().block_bytes();
    if !dense || !rounds_alike(dst.layout.dtype()) {
        return None;
    }
    let ids = t.indices(id, 2, dst.layout.ne()[1], "rows")?;
    let src = t.rows(src)?;
    works_with_rows(t, src)?;
    let node = t.tensors.of3(dst.layout, |f| f.ggml_set_rows, [dst, src, ids])?;
    t.written(node)
}

fn mul_mat_id(t: &mut Translator<'_>, id: TensorId) -> Option<()> {
    let experts = t.graph.src_layouts(id).first().copied().flatten()?.ne()[2];
    let ids = t.indices(id, 2, experts, "experts")?;
    if experts == 0 {
        return Some(());
    }
    // It makes a list of rows for each expert, in memory of its own.
    let lists = experts.checked_mul(ids.layout.elements()).and_then(|n| n.checked_mul(8));
    if lists.is_none_or(|bytes| bytes > MOST_WORK) {
        return None;
    }
    let (a, b, layout) = (t.matrix(id)?, t.source(id, 1)?, t.layout(id));
    let b = t.planes(b)?;
    let beside = of_columns([a, b])?.checked_add(experts.checked_mul(OF_EXPERT)?);
    works_with(t, 0, beside.and_then(|bytes| bytes.checked_add(lists?)))?;
    let product = t.tensors.of3(layout, |f| f.ggml_mul_mat_id, [a, b, ids])?;
    t.result(id, product)
}

fn rope(t: &mut Translator<'_>, id: TensorId, op: &Rope) -> Option<()> {
    let (x, pos) = (rows(t, id, 0)?, contiguous(t, id, 1)?);
    let factors = optional(t, id, 2, |t| contiguous(t, id, 2))?;
    // It turns all pairs of a row, also those that it then takes as they were, and has a row for each thread.
    let pairs = x.layout.ne()[0] / 2;
    let enough = factors.is_none_or(|factors| factors.layout.ne()[0] >= pairs);
    if !x.layout.ne()[0].is_multiple_of(2) || !enough || pairs > MOST_ROW {
        return None;
    }
    works_with_rows(t, x)?;
    let turned = t.tensors.rope([x, pos], factors, op)?;
    t.result(id, turned)
}

fn attention(t: &mut Translator<'_>, id: TensorId, op: &FlashAttn) -> Option<()> {
    let q = t.source(id, 0)?;
    let q = t.rows_of_fours(q)?;
    let given = optional(t, id, 3, |t| t.source(id, 3))?;
    let srcs = t.graph.tensor(id).srcs();
    let src = |i: usize| srcs.get(i).copied().flatten();
    let is_limited = given.is_none() && src(4).is_some();
    let [k, v] = [1, 2].map(|i| cached(t, id, i, is_limited));
    let (k, v) = (k?, v?);
    let (of_key, of_value) = (k.layout.ne()[0], v.layout.ne()[0]);
    if of_key > MOST_ROW || of_value > MOST_ROW {
        return None;
    }
    // A tile of queries, keys, values and what becomes of them; of one query, what each thread has of every head.
    let tile = 2 * ATTENTION_TILE * (of_key + of_value + ATTENTION_TILE);
    let heads = q.layout.ne()[2].checked_mul(of_value + 2)?.checked_add(of_key + 2 * of_value)?;
    works_with(t, tile.max(heads).checked_mul(size_of::<f32>())?, Some(0))?;
    // The host reads them; elements that share their bytes would be many more than somebody has paid for.
    if [4, 6, 7].into_iter().filter_map(src).any(|id| !t.layout(id).is_disjoint()) {
        return None;
    }
    let seen = match src(4) {
        Some(pos) => {
            let paging = src(6).zip(src(7));
            let (keys, tokens) = (k.layout.ne()[1], q.layout.ne()[1]);
            let (window, block) = (op.window, op.block);
            Some(t.mask(Mask { node: id, pos, paging, window, block, keys, tokens, to: 0 })?)
        }
        None => None,
    };
    let mask = match (given, seen) {
        (None, seen) => seen,
        (Some(given), None) => Some(half(t, given)?),
        (Some(given), Some(seen)) => Some(both(t, given, seen)?),
    };
    // Without a mask ggml 0.25.1 caps what is behind the last key as well, which is then no longer left out.
    if op.softcap != 0.0 && mask.is_none() {
        return None;
    }
    let sinks = optional(t, id, 5, |t| contiguous(t, id, 5))?;
    let layout = t.layout(id);
    let out = t.tensors.attention(layout, [q, k, v], [mask, sinks], op.scale, op.softcap)?;
    t.result(id, out)
}

/// Keys or values of attention: where positions choose what is seen, as many rows as may be.
fn cached(t: &mut Translator<'_>, id: TensorId, i: usize, is_limited: bool) -> Option<T> {
    let all = t.source(id, i)?;
    let [n0, n1, n2, n3] = all.layout.ne();
    if !is_limited || n1 <= t.most_keys {
        return t.rows_of_fours(all);
    }
    let part = Layout::strided(all.layout.dtype(), [n0, t.most_keys, n2, n3], all.layout.nb()).ok()?;
    let part = t.note_view(|tensors| tensors.view(all, part, 0))?;
    t.rows_of_fours(part)
}

/// A mask as contiguous F16.
fn half(t: &mut Translator<'_>, mask: T) -> Option<T> {
    if mask.layout.dtype() == DType::F16 {
        return t.contiguous(mask);
    }
    let cast = t.tensors.cast(mask, DType::F16)?;
    t.scratch_node(cast)
}

/// The sum of two masks.
fn both(t: &mut Translator<'_>, a: T, b: T) -> Option<T> {
    let (a, b) = (as_f32(t, a)?, as_f32(t, b)?);
    let layout = Layout::contiguous(DType::F32, a.layout.ne()).ok()?;
    let sum = t.tensors.of2(layout, |f| f.ggml_add, [a, b])?;
    let sum = t.scratch_node(sum)?;
    half(t, sum)
}
