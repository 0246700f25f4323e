//! MUL_MAT.

use super::*;
use crate::kernels::act::{ActBlock, act_blocks, quantize_act};
use crate::kernels::float::mul_mat_float;
use crate::kernels::mul_mat::{Out, Rows, mul_mat, scratch_floats};
use crate::kernels::panel::PANEL_COLUMNS;

/// Rows of weights in a piece are a multiple of this, those of the largest panel.
const ROW_UNIT: usize = 16;
/// Bytes of columns that are worked on together, to stay in the second-level cache while rows go by.
const COLUMN_BYTES: usize = 512 * 1024;
/// Fewest columns for which rows are unpacked again.
const MIN_COLUMNS: usize = 64;
/// Columns of floats that meet rows before it is looked whether the run is still wanted.
const FLOAT_COLUMNS: usize = 4096;

pub(crate) fn need(isa: Isa, node: &Node) -> Need {
    let (Some(a), Some(b)) = (node.opt(0), node.opt(1)) else { return Need::default() };
    if !a.dtype().is_quantized() {
        return Need::default();
    }
    product_need(isa, a, b.n_rows(), b.ne()[1])
}

/// Memory for products of quantized rows with `n_columns` columns, of which `beside` belong to one matrix.
pub(super) fn product_need(isa: Isa, a: &T, n_columns: usize, beside: usize) -> Need {
    let blocks = act_blocks(a.ne()[0]);
    let floats = scratch_floats(isa, a.dtype(), a.ne()[0], beside.min(columns_together(blocks)));
    Need {
        columns: bytes_of::<ActBlock>(n_columns).saturating_mul(blocks as u64),
        thread: bytes_of::<f32>(floats),
        ..Need::default()
    }
}

/// Columns of so many blocks that are worked on together.
fn columns_together(blocks: usize) -> usize {
    (COLUMN_BYTES / (blocks * size_of::<ActBlock>()).max(1)).max(MIN_COLUMNS)
}

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
        quantize(cx.isa, cx.workers(), cx.columns, (b.n_rows(), k), &|r| b.f32s(b.unravel(r)))?;
    }
    for i3 in 0..b3 {
        for i2 in 0..b2 {
            let weights =
                Rows { data: a.row([0, i2 / (b2 / a2), i3 / (b3 / a3)]), stride: a.nb()[1], dtype: a.dtype(), k };
            let result = Out { data: out.row([0, i2, i3]).cast(), stride: m };
            if a.dtype().is_quantized() {
                let first = (i3 * b2 + i2) * n * blocks;
                product(cx.isa, cx.workers(), weights, m, &cx.columns[first..][..n * blocks], n, result);
            } else {
                let (x, stride) = (b.row([0, i2, i3]).cast::<f32>(), b.nb()[1] / 4);
                float_product(cx.isa, cx.workers(), weights, m, (x, stride), n, result);
            }
        }
    }
    Ok(())
}

/// Quantizes `n` columns of `k` elements, given by their number, into `to`.
pub(super) fn quantize<'x>(
    isa: Isa,
    workers: Workers<'_>,
    to: &mut [ActBlock],
    (n, k): (usize, usize),
    column: &(dyn Fn(usize) -> &'x [f32] + Sync),
) -> Result<(), String> {
    let (room, blocks) = (to.len(), act_blocks(k));
    let to = to.get_mut(..n * blocks);
    let to =
        to.ok_or_else(|| format!("{n} columns of {blocks} blocks and room for {room}; this is a bug of Outboard"))?;
    let to = SendPtr(to.as_mut_ptr());
    workers.divide(n, 1, k, &|range, _| {
        for c in range {
            // SAFETY: column c has its own blocks, and each c is in one piece only.
            let to = unsafe { std::slice::from_raw_parts_mut(to.get().add(c * blocks), blocks) };
            quantize_act(isa, column(c), to);
        }
    });
    Ok(())
}

/// `out[i, c] = w[i] . x[c]` with quantized weights, on all threads.
pub(super) fn product(isa: Isa, workers: Workers<'_>, w: Rows, m: usize, x: &[ActBlock], n: usize, out: Out) {
    let blocks = act_blocks(w.k);
    let group = columns_together(blocks);
    let (w, out) = (SendPtr(w), SendPtr(out));
    workers.divide(m, ROW_UNIT, w.get().k * n, &|rows, memory| {
        let Ok(mut scratch) = memory.rest() else { return };
        for (first, count) in column_groups(n, group).take_while(|_| !workers.aborted()) {
            let out = out.get();
            // SAFETY: rows and columns are inside their tensors by the op's shape rule; pieces have different rows of the result.
            unsafe {
                let to = Out { data: out.data.add(first * out.stride), stride: out.stride };
                mul_mat(isa, w.get(), rows.clone(), &x[first * blocks..][..count * blocks], count, to, &mut scratch);
            }
        }
    });
}

/// The columns that are worked on together, `most` at a time: the first of each group and how many. A group is smaller where the rest behind it would
/// be rounded otherwise.
fn column_groups(n: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let left = n - first;
        let count = match left.min(most) {
            count if (1..PANEL_COLUMNS).contains(&(left - count)) => left - PANEL_COLUMNS,
            count => count,
        };
        let group = (first, count);
        first += count;
        (count > 0).then_some(group)
    })
}

/// The same with weights that are floats; `x` is the first column and the floats from one to the next.
pub(super) fn float_product(
    isa: Isa,
    workers: Workers<'_>,
    w: Rows,
    m: usize,
    x: (*const f32, usize),
    n: usize,
    out: Out,
) {
    let shared = SendPtr((w, x, out));
    workers.divide(m, ROW_UNIT, w.k * n, &|rows, _| {
        let (w, (x, stride), out) = shared.get();
        for (first, count) in column_groups(n, FLOAT_COLUMNS).take_while(|_| !workers.aborted()) {
            // SAFETY: as in `product`.
            unsafe {
                let to = Out { data: out.data.add(first * out.stride), stride: out.stride };
                mul_mat_float(isa, w, rows.clone(), x.add(first * stride), stride, count, to);
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_group_is_rounded_otherwise_than_the_rest() {
        for (n, group) in (0..400).flat_map(|n| [64, 85, 170].map(|group| (n, group))) {
            let (mut next, mut least) = (0, usize::MAX);
            for (first, count) in column_groups(n, group) {
                assert!(first == next && (1..=group).contains(&count));
                least = least.min(count);
                next = first + count;
            }
            assert_eq!(next, n);
            assert!(least >= n.min(PANEL_COLUMNS), "{n} in groups of {group}: {least}");
        }
    }
}
