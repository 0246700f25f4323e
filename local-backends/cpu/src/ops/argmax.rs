//! ARGMAX.

use super::*;
use crate::kernels::rows;

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node) -> Result<(), String> {
    let (x, out, isa) = (node.src(0)?, &node.out, cx.isa);
    for_rows(cx, x, &|at| out.set_int([at[0], 0, 0, 0], rows::argmax(isa, x.f32s(at)) as i32));
    Ok(())
}
