//! TOP_K.

use super::*;
use outboard_core::op::{Order, TopK};

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &TopK) -> Result<(), String> {
    let (x, out) = (node.src(0)?, &node.out);
    for_rows(cx, x, &|at| {
        let values = x.f32s(at);
        let mut order: Vec<u32> = (0..values.len() as u32).collect();
        // The index breaks ties, so that an unstable selection gives what a stable sort would.
        let by = |a: &u32, b: &u32| Order::Descending.compare(values[*a as usize], values[*b as usize]).then(a.cmp(b));
        if op.k > 0 && op.k < order.len() {
            order.select_nth_unstable_by(op.k - 1, by);
        }
        order.truncate(op.k);
        order.sort_unstable_by(by);
        for (i, index) in order.into_iter().enumerate() {
            out.set_int([i, at[0], at[1], at[2]], index as i32);
        }
    });
    Ok(())
}
