//! One file per op, with the name that it has in core: which kernel for which rows, and how work is divided.

pub(crate) mod argmax;
pub(crate) mod argsort;
pub(crate) mod binary;
pub(crate) mod concat;
pub(crate) mod copy;
pub(crate) mod flash_attn;
pub(crate) mod get_rows;
pub(crate) mod glu;
pub(crate) mod log_prob;
pub(crate) mod mul_mat;
pub(crate) mod mul_mat_id;
pub(crate) mod penalty;
pub(crate) mod repeat;
pub(crate) mod rope;
pub(crate) mod sample;
pub(crate) mod set_rows;
pub(crate) mod soft_max;
pub(crate) mod sum_rows;
pub(crate) mod top_k;

use crate::Isa;
use crate::kernels::act::ActBlock;
use crate::kernels::mul_mat::Scratch;
use crate::pool::Pool;
use crate::program::Node;
use crate::tensor::T;
use std::cell::RefCell;
use std::ops::Range;

/// Elements below which dividing the work costs more than it gains.
const MIN_PIECE: usize = 1 << 14;
/// Pieces per thread: enough that one slow thread is not waited for long.
const PIECES_PER_THREAD: usize = 4;

/// Memory that a device's programs use while they run.
#[derive(Default)]
pub(crate) struct Work {
    /// Quantized columns.
    pub(crate) columns: Vec<ActBlock>,
    /// Gathered columns and their results (MUL_MAT_ID).
    pub(crate) floats: Vec<f32>,
    pub(crate) results: Vec<f32>,
    /// Cosines and sines (ROPE).
    pub(crate) angles: rope::Angles,
    /// Candidates (SAMPLE).
    pub(crate) candidates: Vec<(f32, u32)>,
}

/// What a node is run with.
pub(crate) struct Cx<'a> {
    pub(crate) isa: Isa,
    pub(crate) pool: &'a Pool,
    pub(crate) work: &'a mut Work,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch::new()) };
}

/// Calls `f` with the scratch memory of this thread.
pub(crate) fn with_scratch<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with(|s| f(&mut s.borrow_mut()))
}

/// Divides `0..n` among the threads of a pool, `cost` elements of work each, in pieces that are multiples of `unit`.
pub(crate) fn divide(pool: &Pool, n: usize, unit: usize, cost: usize, run: &(dyn Fn(Range<usize>) + Sync)) {
    let most = n.saturating_mul(cost) / MIN_PIECE;
    let pieces = (pool.threads() * PIECES_PER_THREAD).min(most).min(n.div_ceil(unit));
    if pool.threads() == 1 || pieces <= 1 {
        return run(0..n);
    }
    let size = n.div_ceil(pieces).next_multiple_of(unit);
    pool.run(n.div_ceil(size), &|piece| run(piece * size..((piece + 1) * size).min(n)));
}

/// Divides the rows of a tensor among the threads.
pub(crate) fn for_rows(cx: &Cx<'_>, out: &T, run: &(dyn Fn([usize; 3]) + Sync)) {
    divide(cx.pool, out.n_rows(), 1, out.ne()[0], &|rows| rows.for_each(|r| run(out.unravel(r))));
}

/// The row of the result, holding what the row of `x` holds; the two may be the same memory. As with [`T::f32s_mut`], the
/// caller is the only one who uses that row of the result meanwhile.
#[allow(clippy::mut_from_ref)]
pub(crate) fn row_of<'a>(x: &T, out: &'a T, at: [usize; 3]) -> &'a mut [f32] {
    if x.row(at) != out.row(at) {
        // SAFETY: both rows are inside their tensors, dense, of the same length; `copy` allows any overlap.
        unsafe { std::ptr::copy(x.row(at), out.row(at), out.row_bytes()) };
    }
    out.f32s_mut(at)
}

/// Applies a kernel that works in place to every row.
pub(crate) fn map(cx: &mut Cx<'_>, node: &Node, f: impl Fn(Isa, &mut [f32]) + Sync) -> Result<(), String> {
    let (x, out, isa) = (node.src(0)?, &node.out, cx.isa);
    for_rows(cx, out, &|at| f(isa, row_of(x, out, at)));
    Ok(())
}
