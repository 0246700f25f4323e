//! ARGSORT.

use super::*;
use outboard_core::op::Argsort;
use outboard_core::sort::sort_by;

/// The order of a row, and as much to merge with. TOP_K needs the same.
pub(crate) fn need(node: &Node) -> Need {
    let row = node.opt(0).map_or(0, |x| x.ne()[0]);
    Need { thread: bytes_of::<u32>(row).saturating_mul(2).saturating_add(64), ..Need::default() }
}

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &Argsort) -> Result<(), String> {
    let (x, out) = (node.src(0)?, &node.out);
    let workers = cx.workers();
    workers.try_rows(x, |at, mut memory| {
        let values = x.f32s(at);
        let (order, buffer) = (memory.take::<u32>(values.len())?, memory.take::<u32>(values.len())?);
        order.iter_mut().zip(0..).for_each(|(to, i)| *to = i);
        let value = |i: &u32| values[*i as usize];
        // The index keeps equal elements in their order.
        let by = |a: &u32, b: &u32| op.order.compare(value(a), value(b)).then(a.cmp(b));
        sort_by(order, buffer, by, || workers.aborted());
        for (i, index) in order.iter().enumerate() {
            out.set_int([i, at[0], at[1], at[2]], *index as i32);
        }
        Ok(())
    })
}
