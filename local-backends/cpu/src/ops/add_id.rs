//! ADD_ID.

use super::*;
use crate::kernels::rows;
use crate::tensor::checked;
use outboard_core::op::BinaryKind;

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node) -> Result<(), String> {
    let (a, b, ids, out, isa) = (node.src(0)?, node.src(1)?, node.src(2)?, &node.out, cx.isa);
    cx.workers().try_rows(out, |at, _| {
        let [s, t, _] = at;
        let expert = checked(ids.int([s, t, 0, 0]), b.ne()[1], "expert")?;
        rows::binary(isa, BinaryKind::Add, row_of(a, out, at), b.f32s([expert, 0, 0]));
        Ok(())
    })
}
