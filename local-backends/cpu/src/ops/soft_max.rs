//! SOFT_MAX.

use super::*;
use crate::kernels::rows;
use outboard_core::DType;
use outboard_core::op::SoftMax;

/// A mask that is not F32 is converted row by row.
pub(crate) fn need(node: &Node) -> Need {
    let converted = node.opt(1).filter(|mask| mask.dtype() != DType::F32);
    Need { thread: bytes_of::<f32>(converted.map_or(0, |mask| mask.ne()[0])), ..Need::default() }
}

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &SoftMax) -> Result<(), String> {
    let (x, mask, out, isa) = (node.src(0)?, node.opt(1), &node.out, cx.isa);
    cx.workers().try_rows(out, |at, mut memory| {
        let row = row_of(x, out, at);
        match mask {
            None => rows::softmax(isa, row, op.scale, None),
            Some(mask) if mask.dtype() == DType::F32 => {
                rows::softmax(isa, row, op.scale, Some(mask.f32s(mask.wrap(at))));
            }
            Some(mask) => {
                let values = memory.take::<f32>(mask.ne()[0])?;
                copy::load_row(mask, mask.wrap(at), values)?;
                rows::softmax(isa, row, op.scale, Some(values));
            }
        }
        Ok(())
    })
}
