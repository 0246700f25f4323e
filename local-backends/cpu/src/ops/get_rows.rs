//! GET_ROWS.

use super::*;
use crate::program::is_word;
use crate::tensor::checked;

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node) -> Result<(), String> {
    let (a, ids, out) = (node.src(0)?, node.src(1)?, &node.out);
    cx.workers().try_rows(out, |at, _| {
        let [i1, i2, i3] = at;
        let from = [checked(ids.int([i1, i2, i3, 0]), a.ne()[1], "row")?, at[1], at[2]];
        if is_word(a.dtype()) {
            // SAFETY: dense rows of words of one length, in memory that does not overlap.
            unsafe { std::ptr::copy_nonoverlapping(a.row(from), out.row(at), out.row_bytes()) };
            return Ok(());
        }
        copy::load_row(a, from, out.f32s_mut(at))
    })
}
