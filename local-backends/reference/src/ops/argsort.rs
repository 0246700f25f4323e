//! The reference of `op::argsort`, to the letter of its documentation.

use super::*;
use outboard_core::op::{Argsort, Order};

pub(in super::super) fn run(op: &Argsort, x: &T, out: &T) {
    for [_, i1, i2, i3] in x.rows() {
        for (i0, index) in sorted(&x.row([0, i1, i2, i3]), op.order).into_iter().enumerate() {
            out.set_int([i0, i1, i2, i3], index);
        }
    }
}

/// Indices in order of their values; a stable sort keeps equal ones (0 and -0 are) in the order of their index. NaN comes
/// above everything.
pub(super) fn sorted(values: &[f64], order: Order) -> Vec<i32> {
    let mut indices: Vec<i32> = (0..values.len() as i32).collect();
    indices.sort_by(|&a, &b| {
        let (a, b) = (values[a as usize], values[b as usize]);
        let ascending = a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
        match order {
            Order::Ascending => ascending,
            Order::Descending => ascending.reverse(),
        }
    });
    indices
}
