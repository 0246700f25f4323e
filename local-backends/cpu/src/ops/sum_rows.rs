//! SUM_ROWS, MEAN, CUMSUM.

use super::*;
use crate::kernels::rows;
use outboard_core::op::{Reduce, ReduceKind};

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &Reduce) -> Result<(), String> {
    let (x, out, isa) = (node.src(0)?, &node.out, cx.isa);
    if op.kind == ReduceKind::Cumsum {
        for_rows(cx, out, &|at| {
            let row = row_of(x, out, at);
            let mut sum = 0.0f64;
            for v in row {
                sum += f64::from(*v);
                *v = sum as f32;
            }
        });
        return Ok(());
    }
    let empty = x.ne()[0] == 0;
    cx.workers().divide(out.n_rows(), 1, x.ne()[0], &|range, _| {
        for r in range {
            let at = out.unravel(r);
            let sum = if empty { 0.0 } else { rows::sum_row(isa, x.f32s(at)) };
            out.f32s_mut(at)[0] = if op.kind == ReduceKind::Mean { sum / x.ne()[0] as f32 } else { sum };
        }
    });
    Ok(())
}
