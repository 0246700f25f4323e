//! The reference of `op::norm`, to the letter of its documentation.

use super::*;
use outboard_core::op::{Norm, NormKind};

pub(in super::super) fn run(op: &Norm, x: &T, out: &T) {
    let eps = f64::from(op.eps);
    for row in x.rows() {
        let mut values = x.row(row);
        let n = values.len() as f64;
        let mean = match op.kind {
            NormKind::Norm => values.iter().sum::<f64>() / n,
            _ => 0.0,
        };
        values.iter_mut().for_each(|v| *v -= mean);
        let squares: f64 = values.iter().map(|v| v * v).sum();
        let divisor = match op.kind {
            NormKind::L2Norm => squares.sqrt().max(eps),
            _ => (squares / n + eps).sqrt(),
        };
        values.iter_mut().for_each(|v| *v /= divisor);
        out.set_row(row, &values);
    }
}
