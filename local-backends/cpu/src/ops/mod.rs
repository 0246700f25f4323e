//! One file per op, with the name that it has in core: which kernel for which rows, and how work is divided.

pub(crate) mod add_id;
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
use crate::pool::{Pool, Turn};
use crate::program::Node;
use crate::scratch::{Memory, Need, Part, Threads, bytes_of};
use crate::tensor::T;
use outboard_core::Op;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Elements below which dividing the work costs more than it gains.
const MIN_PIECE: usize = 1 << 14;
/// Elements of work after which it is looked whether the run is still wanted: some milliseconds with vectors, some tenths of a second
/// without. Large enough that dividing does not cost.
const MAX_PIECE: usize = 1 << 28;
/// Pieces per thread: enough that one slow thread is not waited for long.
const PIECES_PER_THREAD: usize = 4;
/// Pieces that only [`MAX_PIECE`] asks for are multiples of this, two of the largest panels of a product.
const LARGE_UNIT: usize = 32;

/// How a run is watched from outside.
#[derive(Clone, Copy)]
pub(crate) struct Watch<'a> {
    /// Set when the run is not wanted any more.
    pub(crate) abort: &'a AtomicBool,
    /// Counts pieces of work.
    pub(crate) steps: &'a AtomicU64,
}

impl Watch<'_> {
    fn aborted(&self) -> bool {
        self.abort.load(Ordering::Relaxed)
    }
}

/// What a node is run with.
pub(crate) struct Cx<'a> {
    pub(crate) isa: Isa,
    pub(crate) pool: &'a Pool,
    watch: Watch<'a>,
    /// Quantized columns of the last product.
    columns: &'a mut [ActBlock],
    angles: rope::Angles<'a>,
    shared: Part<'a>,
    threads: Threads<'a>,
}

impl<'a> Cx<'a> {
    pub(crate) fn new(isa: Isa, pool: &'a Pool, watch: Watch<'a>, memory: Memory<'a>) -> Cx<'a> {
        let Memory { columns, angles, shared, threads } = memory;
        Cx { isa, pool, watch, columns, angles: rope::Angles::new(angles), shared, threads }
    }

    /// Whether the run is not wanted any more. Then ops end as soon as they can, and say nothing of it.
    pub(crate) fn aborted(&self) -> bool {
        self.watch.aborted()
    }

    fn workers(&self) -> Workers<'a> {
        Workers { pool: self.pool, watch: self.watch, threads: self.threads }
    }
}

/// The threads of a run, each with memory of its own.
#[derive(Clone, Copy)]
pub(crate) struct Workers<'a> {
    pool: &'a Pool,
    watch: Watch<'a>,
    threads: Threads<'a>,
}

impl Workers<'_> {
    fn aborted(&self) -> bool {
        self.watch.aborted()
    }

    /// Calls `run` once for each of `0..pieces`, with the memory of the thread that it runs on.
    fn run(&self, pieces: usize, run: &(dyn Fn(usize, Part<'_>) + Sync)) {
        self.pool.run(pieces, self.watch.abort, &|Turn { thread, piece }| {
            // SAFETY: no two pieces that are under way have the same thread, and nobody else uses its memory.
            run(piece, unsafe { self.threads.of(thread) });
            self.watch.steps.fetch_add(1, Ordering::Relaxed);
        });
    }

    /// Divides `0..n` among the threads, `cost` elements of work each, in pieces that are multiples of `unit`.
    fn divide(&self, n: usize, unit: usize, cost: usize, run: &(dyn Fn(Range<usize>, Part<'_>) + Sync)) {
        let work = n.saturating_mul(cost);
        let threads = self.pool.threads();
        let shared = if threads == 1 { 1 } else { (threads * PIECES_PER_THREAD).min(work / MIN_PIECE).max(1) };
        let small_enough = work.div_ceil(MAX_PIECE);
        let (pieces, unit) = if small_enough > shared { (small_enough, LARGE_UNIT.max(unit)) } else { (shared, unit) };
        // One very long row is one piece all the same.
        let unit = if cost >= MAX_PIECE / LARGE_UNIT { 1 } else { unit };
        let size = n.div_ceil(pieces.min(n.div_ceil(unit)).max(1)).next_multiple_of(unit);
        self.run(n.div_ceil(size.max(1)), &|piece, memory| run(piece * size..((piece + 1) * size).min(n), memory));
    }

    /// Divides the rows of a tensor.
    fn rows(&self, out: &T, run: &(dyn Fn([usize; 3], Part<'_>) + Sync)) {
        self.divide(out.n_rows(), 1, out.ne()[0], &|rows, mut memory| {
            rows.for_each(|r| run(out.unravel(r), memory.borrow()));
        });
    }

    /// The same for work that can fail: the first error.
    fn try_rows(&self, out: &T, run: impl Fn([usize; 3], Part<'_>) -> Result<(), String> + Sync) -> Result<(), String> {
        let first = FirstError::default();
        self.rows(out, &|at, memory| first.note(run(at, memory)));
        first.result()
    }
}

/// The first error of pieces of work.
#[derive(Default)]
pub(crate) struct FirstError(Mutex<Option<String>>);

impl FirstError {
    fn note(&self, done: Result<(), String>) {
        if let Err(e) = done {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
        }
    }

    fn result(self) -> Result<(), String> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

/// Divides the rows of a tensor among the threads.
pub(crate) fn for_rows(cx: &Cx<'_>, out: &T, run: &(dyn Fn([usize; 3]) + Sync)) {
    cx.workers().rows(out, &|at, _| run(at));
}

/// Scratch memory with which a node runs.
pub(crate) fn need(isa: Isa, node: &Node) -> Need {
    match &node.op {
        Op::Argsort(_) | Op::TopK(_) => argsort::need(node),
        Op::Cast(_) | Op::Cont(_) | Op::Cpy(_) => copy::need(node),
        Op::FlashAttn(op) => flash_attn::need(node, op),
        Op::MulMat(_) => mul_mat::need(isa, node),
        Op::MulMatId(_) => mul_mat_id::need(isa, node),
        Op::Penalty(op) => penalty::need(node, op),
        Op::Rope(op) => rope::need(node, op),
        Op::Sample(_) => sample::need(node),
        Op::SoftMax(_) => soft_max::need(node),
        Op::AddId(_)
        | Op::Argmax(_)
        | Op::Binary(_)
        | Op::Clamp(_)
        | Op::Concat(_)
        | Op::GetRows(_)
        | Op::Glu(_)
        | Op::LogProb(_)
        | Op::Norm(_)
        | Op::Permute(_)
        | Op::Reduce(_)
        | Op::Repeat(_)
        | Op::Reshape(_)
        | Op::Scale(_)
        | Op::SetRows(_)
        | Op::Unary(_)
        | Op::View(_) => Need::default(),
    }
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
