//! The reference of `op::set_rows`, to the letter of its documentation.

use super::*;
use crate::tensor::Index;
use outboard_core::DType;

pub(in super::super) fn run(dst: &T, src: &T, ids: &T) -> Result<(), String> {
    let n = dst.ne()[1];
    let [_, n1, n2, _] = ids.ne();
    let target = |[_, i1, i2, i3]: Index| Ok([0, checked(ids.int([i1, i2 % n1, i3 % n2, 0]), n, "row")?, i2, i3]);
    let targets: Result<Vec<_>, String> = src.rows().map(target).collect();
    for (from, to) in src.rows().zip(targets?) {
        match src.dtype() {
            DType::I32 => (0..src.ne()[0])
                .for_each(|i| dst.set_int([i, to[1], to[2], to[3]], src.int([i, from[1], from[2], from[3]]))),
            _ => dst.set_row(to, &src.row(from)),
        }
    }
    Ok(())
}
