//! The reference of `op::top_k`, to the letter of its documentation.

use super::*;
use outboard_core::op::{Order, TopK};

pub(in super::super) fn run(op: &TopK, x: &T, out: &T) {
    for [_, i1, i2, i3] in x.rows() {
        let order = argsort::sorted(&x.row([0, i1, i2, i3]), Order::Descending);
        for (i0, index) in order.into_iter().take(op.k).enumerate() {
            out.set_int([i0, i1, i2, i3], index);
        }
    }
}
