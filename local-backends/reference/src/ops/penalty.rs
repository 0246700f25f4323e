//! The reference of `op::penalty`, to the letter of its documentation.

use super::*;
use crate::Srcs;
use outboard_core::op::{Penalties, Penalty};

pub(in super::super) fn run(op: &Penalty, srcs: &Srcs, out: &T) -> Result<(), String> {
    let (x, history, steps, params) = (srcs.get(0)?, srcs.get(1)?, srcs.get(2)?, srcs.get(3)?);
    let ([n, ..], [count, ..]) = (x.ne(), history.ne());
    for row in x.rows() {
        let r = row[1];
        let penalties = Penalties::read([0, 1, 2, 3].map(|i| params.get([i, r, 0, 0]) as f32));
        let paging = Paging::of(srcs, 4, r, op.block, count)?;
        let step = checked(steps.int([r, 0, 0, 0]), paging.positions(), "step")?;
        let mut seen = vec![0u32; n];
        for j in (step + 1).saturating_sub(penalties.last_n)..=step {
            let i = paging.row(j)?;
            seen[checked(history.int([i, 0, 0, 0]), n, "token")?] += 1;
        }
        let (repeat, frequency) = (f64::from(penalties.repeat), f64::from(penalties.frequency));
        for (token, (&logit, &seen)) in x.row(row).iter().zip(&seen).enumerate() {
            let scaled = if logit > 0.0 { logit / repeat } else { logit * repeat };
            let value =
                if seen == 0 { logit } else { scaled - f64::from(seen) * frequency - f64::from(penalties.presence) };
            out.set([token, row[1], row[2], row[3]], value);
        }
    }
    Ok(())
}
