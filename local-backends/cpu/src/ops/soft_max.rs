//! SOFT_MAX.

use super::*;
use crate::kernels::rows;
use outboard_core::DType;
use outboard_core::op::SoftMax;

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &SoftMax) -> Result<(), String> {
    let (x, mask, out, isa) = (node.src(0)?, node.opt(1), &node.out, cx.isa);
    for_rows(cx, out, &|at| {
        let row = row_of(x, out, at);
        match mask {
            None => rows::softmax(isa, row, op.scale, None),
            Some(mask) if mask.dtype() == DType::F32 => {
                rows::softmax(isa, row, op.scale, Some(mask.f32s(mask.wrap(at))));
            }
            Some(mask) => with_scratch(|scratch| {
                let values = &mut scratch.floats(row.len())[..row.len()];
                // The shape rule admits F32 and F16 masks only, which can be read.
                if copy::load_row(mask, mask.wrap(at), values).is_err() {
                    values.fill(f32::NAN);
                }
                rows::softmax(isa, row, op.scale, Some(values));
            }),
        }
    });
    Ok(())
}
