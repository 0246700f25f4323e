//! CONCAT.

use super::*;
use outboard_core::op::Concat;

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &Concat) -> Result<(), String> {
    let (a, b, out) = (node.src(0)?, node.src(1)?, &node.out);
    for_rows(cx, out, &|at| {
        let mut to = out.row(at);
        let mut put = |src: &T, at: [usize; 3]| {
            let bytes = src.row_bytes();
            // SAFETY: dense rows inside their tensors; the extents of the result are those of its sources, added.
            unsafe {
                std::ptr::copy_nonoverlapping(src.row(at), to, bytes);
                to = to.add(bytes);
            }
        };
        if op.dim == 0 {
            // An empty side has no rows to take an address of.
            [a, b].into_iter().filter(|s| s.ne()[0] > 0).for_each(|s| put(s, at));
            return;
        }
        let (split, mut from) = (a.ne()[op.dim], at);
        if at[op.dim - 1] < split {
            put(a, at)
        } else {
            from[op.dim - 1] -= split;
            put(b, from);
        }
    });
    Ok(())
}
