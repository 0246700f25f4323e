//! The reference of `op::argmax`, to the letter of its documentation.

use super::*;

pub(in super::super) fn run(x: &T, out: &T) {
    for row in x.rows() {
        let mut best = (f64::NEG_INFINITY, 0);
        for (i, v) in x.row(row).into_iter().enumerate() {
            if v > best.0 {
                best = (v, i as i32);
            }
        }
        out.set_int([row[1], 0, 0, 0], best.1);
    }
}
