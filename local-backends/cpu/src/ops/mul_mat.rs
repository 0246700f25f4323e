//! MUL_MAT.

use super::*;
use crate::kernels::act::{ActBlock, act_blocks, quantize_act};
use crate::kernels::float::mul_mat_float;
use crate::kernels::mul_mat::{Out, Rows, mul_mat};

/// Rows of weights in a piece are a multiple of this, those of the largest panel.
const ROW_UNIT: usize = 16;
/// Bytes of columns that are worked on together, to stay in the second-level cache while rows go by.
const COLUMN_BYTES: usize = 512 * 1024;
/// Fewest columns for which rows are unpacked again.
const MIN_COLUMNS: usize = 64;

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node) -> Result<(), String> {
    let (a, b, out) = (node.src(0)?, node.src(1)?, &node.out);
    if a.ne()[0] == 0 {
        (0..out.n_rows()).for_each(|r| out.f32s_mut(out.unravel(r)).fill(0.0));
        return Ok(());
    }
    let [k, m, a2, a3] = a.ne();
    let [_, n, b2, b3] = b.ne();
    let blocks = act_blocks(k);
    if a.dtype().is_quantized() && !node.same_columns {
        quantize(cx, b, blocks);
    }
    for i3 in 0..b3 {
        for i2 in 0..b2 {
            let weights =
                Rows { data: a.row([0, i2 / (b2 / a2), i3 / (b3 / a3)]), stride: a.nb()[1], dtype: a.dtype(), k };
            let result = Out { data: out.row([0, i2, i3]).cast(), stride: m };
            if a.dtype().is_quantized() {
                let first = (i3 * b2 + i2) * n * blocks;
                product(cx.isa, cx.pool, weights, m, &cx.work.columns[first..][..n * blocks], n, result);
            } else {
                let (x, stride) = (b.row([0, i2, i3]).cast::<f32>(), b.nb()[1] / 4);
                float_product(cx.isa, cx.pool, weights, m, (x, stride), n, result);
            }
        }
    }
    Ok(())
}

/// Quantizes every row of `b` into `cx.work.columns`.
fn quantize(cx: &mut Cx<'_>, b: &T, blocks: usize) {
    let n = b.n_rows();
    cx.work.columns.resize(n * blocks, ActBlock::ZERO);
    let columns = SendPtr(cx.work.columns.as_mut_ptr());
    let isa = cx.isa;
    divide(cx.pool, n, 1, b.ne()[0], &|range| {
        for r in range {
            // SAFETY: row r has its own blocks, and each r is in one piece only.
            let column = unsafe { std::slice::from_raw_parts_mut(columns.get().add(r * blocks), blocks) };
            quantize_act(isa, b.f32s(b.unravel(r)), column);
        }
    });
}

/// `out[i, c] = w[i] . x[c]` with quantized weights, on all threads.
pub(super) fn product(isa: Isa, pool: &Pool, w: Rows, m: usize, x: &[ActBlock], n: usize, out: Out) {
    let blocks = act_blocks(w.k);
    let bytes = blocks * size_of::<ActBlock>();
    let group = (COLUMN_BYTES / bytes).max(MIN_COLUMNS);
    let (w, out) = (SendPtr(w), SendPtr(out));
    divide(pool, m, ROW_UNIT, w.get().k * n, &|rows| {
        with_scratch(|scratch| {
            for first in (0..n).step_by(group) {
                let count = (n - first).min(group);
                let out = out.get();
                // SAFETY: rows and columns are inside their tensors by the op's shape rule; pieces have different rows of the result.
                unsafe {
                    let to = Out { data: out.data.add(first * out.stride), stride: out.stride };
                    mul_mat(isa, w.get(), rows.clone(), &x[first * blocks..][..count * blocks], count, to, scratch);
                }
            }
        });
    });
}

/// The same with weights that are floats; `x` is the first column and the floats from one to the next.
pub(super) fn float_product(isa: Isa, pool: &Pool, w: Rows, m: usize, x: (*const f32, usize), n: usize, out: Out) {
    let shared = SendPtr((w, x, out));
    divide(pool, m, ROW_UNIT, w.k * n, &|rows| {
        let (w, (x, stride), out) = shared.get();
        // SAFETY: as in `product`.
        unsafe { mul_mat_float(isa, w, rows, x, stride, n, out) };
    });
}

/// Addresses that pieces of work share; what each piece writes is its own.
#[derive(Clone, Copy)]
pub(super) struct SendPtr<P: Copy>(pub(super) P);

// SAFETY: an address is a number; the uses say why they do not collide.
unsafe impl<P: Copy> Send for SendPtr<P> {}
// SAFETY: as above.
unsafe impl<P: Copy> Sync for SendPtr<P> {}

impl<P: Copy> SendPtr<P> {
    pub(super) fn get(&self) -> P {
        self.0
    }
}
