//! The reference of `op::sum_rows`, to the letter of its documentation.

use super::*;
use outboard_core::op::{Reduce, ReduceKind};

pub(in super::super) fn run(op: &Reduce, x: &T, out: &T) {
    if op.kind == ReduceKind::Cumsum {
        for row in x.rows() {
            let mut sums = x.row(row);
            for i in 1..sums.len() {
                sums[i] += sums[i - 1];
            }
            out.set_row(row, &sums);
        }
        return;
    }
    for row in out.rows() {
        let values: Vec<f64> = (0..x.ne()[0]).map(|i0| x.get([i0, row[1], row[2], row[3]])).collect();
        let sum: f64 = values.iter().sum();
        out.set(row, if op.kind == ReduceKind::Mean { sum / values.len() as f64 } else { sum });
    }
}
