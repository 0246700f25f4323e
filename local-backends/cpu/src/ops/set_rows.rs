//! SET_ROWS.

use super::*;
use crate::kernels::rows;
use crate::tensor::checked;
use half::f16;
use outboard_core::DType;

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node) -> Result<(), String> {
    let (dst, src, ids) = (node.src(0)?, node.src(1)?, node.src(2)?);
    if src.ne().contains(&0) {
        return Ok(());
    }
    let target =
        |[i1, i2, i3]: [usize; 3]| checked(ids.int([i1, i2 % ids.ne()[1], i3 % ids.ne()[2], 0]), dst.ne()[1], "row");
    // All indices are checked before anything is written, so that a wrong one leaves the cache as it was.
    for r in (0..src.n_rows()).take_while(|_| !cx.aborted()) {
        target(src.unravel(r))?;
    }
    // One thread: the cache is small work, and an index that comes twice must not be written by two.
    for r in (0..src.n_rows()).take_while(|_| !cx.aborted()) {
        let at = src.unravel(r);
        let to = [target(at)?, at[1], at[2]];
        match dst.dtype() {
            // SAFETY: a dense row of F16 inside dst, aligned because buffers, offsets and strides are.
            DType::F16 => rows::to_f16(src.f32s(at), unsafe {
                std::slice::from_raw_parts_mut(dst.row(to).cast::<f16>(), dst.ne()[0])
            }),
            DType::I32 => {
                (0..dst.ne()[0]).for_each(|i| dst.set_int([i, to[0], to[1], to[2]], src.int([i, at[0], at[1], at[2]])))
            }
            _ => copy::store_row(dst, to, src.f32s(at))?,
        }
    }
    Ok(())
}
