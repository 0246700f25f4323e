//! TOP_K.

use super::*;
use outboard_core::op::{Order, TopK};
use outboard_core::sort::sort_by;

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &TopK) -> Result<(), String> {
    let (x, out) = (node.src(0)?, &node.out);
    let workers = cx.workers();
    workers.try_rows(x, |at, mut memory| {
        let values = x.f32s(at);
        let (mut order, buffer) = (memory.take::<u32>(values.len())?, memory.take::<u32>(values.len())?);
        order.iter_mut().zip(0..).for_each(|(to, i)| *to = i);
        // The index breaks ties, so that an unstable selection gives what a stable sort would.
        let by = |a: &u32, b: &u32| Order::Descending.compare(values[*a as usize], values[*b as usize]).then(a.cmp(b));
        if op.k > 0 && op.k < order.len() {
            order.select_nth_unstable_by(op.k - 1, by);
        }
        let kept = op.k.min(order.len());
        order = &mut order[..kept];
        sort_by(order, buffer, by, || workers.aborted());
        for (i, index) in order.iter().enumerate() {
            out.set_int([i, at[0], at[1], at[2]], *index as i32);
        }
        Ok(())
    })
}
