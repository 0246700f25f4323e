//! SET_ROWS.

use super::*;
use crate::kernels::rows;
use crate::tensor::checked;
use half::f16;
use outboard_core::DType;

/// Rows between two looks at whether the run is still wanted.
const LOOK: usize = 1 << 10;

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node) -> Result<(), String> {
    let (dst, src, ids) = (node.src(0)?, node.src(1)?, node.src(2)?);
    if src.ne().contains(&0) {
        return Ok(());
    }
    let [count, i1, i2, _] = ids.ne();
    let target = |i: usize, j: usize, k: usize| checked(ids.int([i, j, k, 0]), dst.ne()[1], "row");
    // All indices are checked before anything is written, so that a wrong one leaves the cache as it was.
    for (k, j) in (0..i2).flat_map(|k| (0..i1).map(move |j| (k, j))).take_while(|_| !cx.aborted()) {
        wanted(cx, count).try_for_each(|i| target(i, j, k).map(drop))?;
    }
    // One thread: the cache is small work, and an index that comes twice must not be written by two.
    let [_, _, d2, d3] = src.ne();
    for (k, j) in (0..d3).flat_map(|k| (0..d2).map(move |j| (k, j))).take_while(|_| !cx.aborted()) {
        for i in wanted(cx, count) {
            write(dst, src, target(i, j % i1, k % i2)?, [i, j, k])?;
        }
    }
    Ok(())
}

/// So many rows, while the run is wanted.
fn wanted<'a>(cx: &'a Cx<'_>, count: usize) -> impl Iterator<Item = usize> + use<'a> {
    (0..count).take_while(|i| i % LOOK > 0 || !cx.aborted())
}

/// Writes row `from` of `src` to the row of `dst` with this index.
fn write(dst: &T, src: &T, index: usize, from: [usize; 3]) -> Result<(), String> {
    let to = [index, from[1], from[2]];
    match dst.dtype() {
        // SAFETY: a dense row of F16 inside dst, aligned because buffers, offsets and strides are.
        DType::F16 => rows::to_f16(src.f32s(from), unsafe {
            std::slice::from_raw_parts_mut(dst.row(to).cast::<f16>(), dst.ne()[0])
        }),
        DType::I32 => (0..dst.ne()[0]).for_each(|i| {
            dst.set_int([i, to[0], to[1], to[2]], src.int([i, from[0], from[1], from[2]]));
        }),
        _ => copy::store_row(dst, to, src.f32s(from))?,
    }
    Ok(())
}
