//! The reference of `op::log_prob`, to the letter of its documentation.

use super::*;

pub(in super::super) fn run(x: &T, ids: &T, out: &T) -> Result<(), String> {
    for row in x.rows() {
        let values = x.row(row);
        let at = [row[1], 0, 0, 0];
        let chosen = checked(ids.int(at), values.len(), "id")?;
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = values.iter().map(|v| (v - max).exp()).sum();
        out.set(at, values[chosen] - max - sum.ln());
    }
    Ok(())
}
