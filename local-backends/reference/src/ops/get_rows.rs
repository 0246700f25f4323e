//! The reference of `op::get_rows`, to the letter of its documentation.

use super::*;
use outboard_core::DType;

pub(in super::super) fn run(a: &T, ids: &T, out: &T) -> Result<(), String> {
    for [_, i1, i2, i3] in out.rows() {
        let from = [0, checked(ids.int([i1, i2, i3, 0]), a.ne()[1], "row")?, i2, i3];
        match a.dtype() {
            DType::I32 => (0..a.ne()[0]).for_each(|i0| out.set_int([i0, i1, i2, i3], a.int([i0, from[1], i2, i3]))),
            _ => out.set_row([0, i1, i2, i3], &a.row(from)),
        }
    }
    Ok(())
}
