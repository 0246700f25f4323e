//! The reference of `op::penalty`, to the letter of its documentation.

use super::*;
use outboard_core::op::Penalty;

pub(in super::super) fn run(op: &Penalty, x: &T, history: &T, steps: &T, out: &T) -> Result<(), String> {
    let ([n, ..], [count, ..]) = (x.ne(), history.ne());
    for row in x.rows() {
        let step = checked(steps.int([row[1], 0, 0, 0]), count, "step")?;
        let mut seen = vec![0u32; n];
        for i in (step + 1).saturating_sub(op.last_n)..=step {
            seen[checked(history.int([i, 0, 0, 0]), n, "token")?] += 1;
        }
        let (repeat, frequency) = (f64::from(op.repeat), f64::from(op.frequency));
        for (token, (&logit, &seen)) in x.row(row).iter().zip(&seen).enumerate() {
            let scaled = if logit > 0.0 { logit / repeat } else { logit * repeat };
            let value = if seen == 0 { logit } else { scaled - f64::from(seen) * frequency - f64::from(op.presence) };
            out.set([token, row[1], row[2], row[3]], value);
        }
    }
    Ok(())
}
