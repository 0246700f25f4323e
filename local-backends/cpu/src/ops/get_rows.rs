//! GET_ROWS.

use super::*;
use crate::program::is_word;
use crate::tensor::checked;

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node) -> Result<(), String> {
    let (a, ids, out) = (node.src(0)?, node.src(1)?, &node.out);
    let rows: Result<Vec<usize>, String> = (0..out.n_rows())
        .map(|r| {
            let [i1, i2, i3] = out.unravel(r);
            checked(ids.int([i1, i2, i3, 0]), a.ne()[1], "row")
        })
        .collect();
    let rows = rows?;
    divide(cx.pool, rows.len(), 1, out.ne()[0], &|range| {
        for r in range {
            let at = out.unravel(r);
            let from = [rows[r], at[1], at[2]];
            if is_word(a.dtype()) {
                // SAFETY: dense rows of words of one length.
                unsafe { std::ptr::copy_nonoverlapping(a.row(from), out.row(at), out.row_bytes()) };
            } else if copy::load_row(a, from, out.f32s_mut(at)).is_err() {
                // The shape rule admits no type that cannot be read.
                out.f32s_mut(at).fill(f32::NAN);
            }
        }
    });
    Ok(())
}
