//! REPEAT.

use super::*;

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node) -> Result<(), String> {
    let (x, out) = (node.src(0)?, &node.out);
    let bytes = x.row_bytes();
    for_rows(cx, out, &|at| {
        let from = x.row(x.wrap(at));
        for i in 0..out.ne()[0] / x.ne()[0] {
            // SAFETY: the result's row is a whole number of x's rows.
            unsafe { std::ptr::copy_nonoverlapping(from, out.row(at).add(i * bytes), bytes) };
        }
    });
    Ok(())
}
