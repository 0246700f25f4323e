//! The reference of `op::mul_mat`, to the letter of its documentation.

use super::*;

pub(in super::super) fn run(a: &T, b: &T, out: &T) {
    let [_, _, a2, a3] = a.ne();
    let [_, _, b2, b3] = out.ne();
    if b.is_empty() || a.is_empty() {
        // A sum over nothing.
        out.indices().for_each(|i| out.set(i, 0.0));
        return;
    }
    for i3 in 0..b3 {
        for i2 in 0..b2 {
            let (j2, j3) = (i2 / (b2 / a2), i3 / (b3 / a3));
            let columns: Vec<Vec<f64>> = (0..b.ne()[1]).map(|n| b.row([0, n, i2, i3])).collect();
            for m in 0..out.ne()[0] {
                let row = a.row([0, m, j2, j3]);
                for (n, column) in columns.iter().enumerate() {
                    out.set([m, n, i2, i3], row.iter().zip(column).map(|(x, y)| x * y).sum());
                }
            }
        }
    }
}
