//! LOG_PROB.

use super::*;
use crate::kernels::rows;
use crate::tensor::checked;

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node) -> Result<(), String> {
    let (x, ids, out) = (node.src(0)?, node.src(1)?, &node.out);
    let isa = cx.isa;
    cx.workers().try_rows(x, |at, _| {
        let row = x.f32s(at);
        let chosen = checked(ids.int([at[0], 0, 0, 0]), row.len(), "id")?;
        out.set_float([at[0], 0, 0, 0], row[chosen] - rows::log_sum_exp(isa, row));
        Ok(())
    })
}
