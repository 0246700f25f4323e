//! The reference of `op::flash_attn`, to the letter of its documentation.

use super::*;
use crate::Srcs;
use outboard_core::op::FlashAttn;

pub(in super::super) fn run(op: &FlashAttn, srcs: &Srcs, out: &T) -> Result<(), String> {
    let (q, k, v) = (srcs.get(0)?, srcs.get(1)?, srcs.get(2)?);
    let (mask, sinks) = (srcs.opt(3), srcs.opt(5));
    let [_, n_tokens, n_head, _] = q.ne();
    let [_, n_kv, n_head_kv, _] = k.ne();
    let all = (0..n_tokens).map(|i| keys(op, srcs, n_kv, i)).collect::<Result<Vec<_>, _>>()?;
    for h in 0..n_head {
        let h_kv = h / (n_head / n_head_kv);
        for (i, seen) in all.iter().enumerate() {
            let query = q.row([0, i, h, 0]);
            let logits: Vec<f64> = seen
                .iter()
                .map(|&j| {
                    let dot: f64 = query.iter().zip(k.row([0, j, h_kv, 0])).map(|(a, b)| a * b).sum();
                    let mut logit = dot * f64::from(op.scale);
                    if op.softcap != 0.0 {
                        logit = f64::from(op.softcap) * (logit / f64::from(op.softcap)).tanh();
                    }
                    logit + mask.map_or(0.0, |m| m.get([j, i, 0, 0]))
                })
                .collect();
            let sink = sinks.map(|s| s.get([h, 0, 0, 0]));
            let max = logits.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
            let mut sum = sink.map_or(0.0, |s| (s - max).exp());
            let mut result = vec![0.0; v.ne()[0]];
            for (&j, &logit) in seen.iter().zip(&logits) {
                if logit == f64::NEG_INFINITY {
                    continue;
                }
                let p = (logit - max).exp();
                sum += p;
                result.iter_mut().zip(v.row([0, j, h_kv, 0])).for_each(|(r, v)| *r += p * v);
            }
            if sum > 0.0 {
                result.iter_mut().for_each(|r| *r /= sum);
            }
            out.set_row([0, h, i, 0], &result);
        }
    }
    Ok(())
}

/// The rows of the keys that query `i` sees, in the order of their positions.
fn keys(op: &FlashAttn, srcs: &Srcs, n_kv: usize, i: usize) -> Result<Vec<usize>, String> {
    let Some(pos) = srcs.opt(4) else { return Ok((0..n_kv).collect()) };
    let paging = Paging::of(srcs, 6, i, op.block, n_kv)?;
    let end = checked(pos.int([i, 0, 0, 0]), paging.positions(), "position")? + 1;
    let seen = if op.window > 0 { end.saturating_sub(op.window) } else { 0 }..end;
    seen.map(|j| paging.row(j)).collect()
}
