//! ARGSORT.

use super::*;
use outboard_core::op::Argsort;

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &Argsort) -> Result<(), String> {
    let (x, out) = (node.src(0)?, &node.out);
    for_rows(cx, x, &|at| {
        let values = x.f32s(at);
        let mut order: Vec<u32> = (0..values.len() as u32).collect();
        let value = |i: &u32| values[*i as usize];
        order.sort_by(|a, b| op.order.compare(value(a), value(b)));
        for (i, index) in order.into_iter().enumerate() {
            out.set_int([i, at[0], at[1], at[2]], index as i32);
        }
    });
    Ok(())
}
