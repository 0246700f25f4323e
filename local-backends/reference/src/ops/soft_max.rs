//! The reference of `op::soft_max`, to the letter of its documentation.

use super::*;
use outboard_core::op::SoftMax;

pub(in super::super) fn run(op: &SoftMax, x: &T, mask: Option<&T>, out: &T) {
    for row in x.rows() {
        let mut values = x.row(row);
        values.iter_mut().for_each(|v| *v *= f64::from(op.scale));
        if let Some(mask) = mask {
            let added = mask.row(wrap(row, mask.ne()));
            values.iter_mut().zip(added).for_each(|(v, m)| *v += m);
        }
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if max == f64::NEG_INFINITY {
            values.fill(0.0);
        } else {
            values.iter_mut().for_each(|v| *v = (*v - max).exp());
            let sum: f64 = values.iter().sum();
            values.iter_mut().for_each(|v| *v /= sum);
        }
        out.set_row(row, &values);
    }
}
