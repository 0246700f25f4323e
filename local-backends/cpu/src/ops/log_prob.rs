//! LOG_PROB.

use super::*;
use crate::kernels::rows;
use crate::tensor::checked;

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node) -> Result<(), String> {
    let (x, ids, out) = (node.src(0)?, node.src(1)?, &node.out);
    for r in (0..x.n_rows()).take_while(|_| !cx.aborted()) {
        let row = x.f32s([r, 0, 0]);
        let chosen = checked(ids.int([r, 0, 0, 0]), row.len(), "id")?;
        out.f32s_mut([0, 0, 0])[r] = row[chosen] - rows::log_sum_exp(cx.isa, row);
    }
    Ok(())
}
