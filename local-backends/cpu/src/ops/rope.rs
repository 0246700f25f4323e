//! ROPE: angles once per token, then every head of it.

use super::*;
use crate::kernels::rows;
use outboard_core::op::{Rope, RopeMode};
use std::f64::consts::PI;

/// Cosines and sines, and what they were computed of: the queries and keys of all layers use the same.
#[derive(Default)]
pub(crate) struct Angles {
    of: Option<(Rope, Vec<i32>, Vec<f32>)>,
    /// For each position half of `n_dims` cosines, then as many sines.
    values: Vec<f32>,
}

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &Rope) -> Result<(), String> {
    let (x, pos, factors, out, isa) = (node.src(0)?, node.src(1)?, node.opt(2), &node.out, cx.isa);
    let (half, n_tokens) = (op.n_dims / 2, x.ne()[2]);
    let positions: Vec<i32> = (0..n_tokens).map(|t| pos.int([t, 0, 0, 0])).collect();
    let factors = factors.map_or(Vec::new(), |f| f.f32s([0, 0, 0])[..half].to_vec());
    let mut angles = std::mem::take(&mut cx.work.angles);
    angles.compute(op, positions, factors);
    let values = &angles.values;
    for_rows(cx, out, &|at| {
        let (cos, sin) = values[at[1] * op.n_dims..][..op.n_dims].split_at(half);
        let row = &mut row_of(x, out, at)[..op.n_dims];
        match op.mode {
            RopeMode::Normal => rows::rope_pairs(isa, row, cos, sin),
            RopeMode::Neox => rows::rope_halves(isa, row, cos, sin),
        }
    });
    cx.work.angles = angles;
    Ok(())
}

impl Angles {
    /// Those of these positions. `factors` divide the frequencies, pair by pair; empty for none.
    fn compute(&mut self, op: &Rope, positions: Vec<i32>, factors: Vec<f32>) {
        let of = Some((*op, positions, factors));
        if self.of == of {
            return;
        }
        self.of = of;
        let Some((_, positions, factors)) = &self.of else { return };
        let half = op.n_dims / 2;
        let frequencies: Vec<(f64, f64)> = (0..half)
            .map(|pair| {
                let factor = factors.get(pair).map_or(1.0, |f| f64::from(*f));
                (f64::from(op.freq_base).powf(-2.0 * pair as f64 / op.n_dims as f64) / factor, ramp(op, pair))
            })
            .collect();
        let scale = f64::from(op.freq_scale);
        let mut amplitude = f64::from(op.attn_factor);
        if op.ext_factor != 0.0 {
            amplitude *= 1.0 + 0.1 * (1.0 / scale).ln();
        }
        self.values.clear();
        self.values.resize(positions.len() * op.n_dims, 0.0);
        for (&position, values) in positions.iter().zip(self.values.chunks_exact_mut(op.n_dims.max(1))) {
            let (cos, sin) = values.split_at_mut(half);
            for (pair, &(frequency, mix)) in frequencies.iter().enumerate() {
                let angle = f64::from(position) * frequency;
                let (s, c) = (angle * scale * (1.0 - mix) + angle * mix).sin_cos();
                cos[pair] = (c * amplitude) as f32;
                sin[pair] = (s * amplitude) as f32;
            }
        }
    }
}

/// How much of a pair's frequency stays as it is (YaRN, Peng et al., 2023): 0 where it is interpolated.
fn ramp(op: &Rope, pair: usize) -> f64 {
    if op.ext_factor == 0.0 {
        return 0.0;
    }
    let (base, n_dims) = (f64::from(op.freq_base), op.n_dims as f64);
    let pair_of = |turns: f64| n_dims * (op.n_ctx_orig as f64 / (turns * 2.0 * PI)).ln() / (2.0 * base.ln());
    let low = pair_of(f64::from(op.beta_fast)).floor().max(0.0);
    let high = pair_of(f64::from(op.beta_slow)).ceil().min(n_dims - 1.0);
    let t = ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
    (1.0 - t) * f64::from(op.ext_factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angles_are_those_of_what_is_asked_for() {
        let plain = Rope::plain(RopeMode::Normal, 8, 10_000.0);
        let yarn = Rope { ext_factor: 1.0, freq_scale: 0.25, n_ctx_orig: 64, beta_fast: 32.0, beta_slow: 1.0, ..plain };
        let asked = [
            (plain, vec![0, 5, 9], vec![]),
            (plain, vec![0, 5, 8], vec![]),
            (plain, vec![5], vec![]),
            (plain, vec![5], vec![1.0, 2.0, 1.0, 4.0]),
            (plain, vec![5], vec![1.0, 2.0, 1.0, 8.0]),
            (Rope { n_dims: 4, ..plain }, vec![5], vec![]),
            (Rope { freq_base: 500.0, ..plain }, vec![5], vec![]),
            (yarn, vec![5], vec![]),
            (Rope { attn_factor: 2.0, ..yarn }, vec![5], vec![]),
        ];
        let fresh = |(op, positions, factors): &(Rope, Vec<i32>, Vec<f32>)| {
            let mut angles = Angles::default();
            angles.compute(op, positions.clone(), factors.clone());
            angles.values
        };
        let mut kept = Angles::default();
        for (i, one) in asked.iter().enumerate() {
            // What comes twice, and what comes behind any other.
            for other in &asked {
                for (op, positions, factors) in [one, one, other] {
                    kept.compute(op, positions.clone(), factors.clone());
                }
                assert_eq!(kept.values, fresh(other), "{other:?} behind {one:?}");
            }
            assert!(asked[..i].iter().all(|before| fresh(before) != fresh(one)), "{one:?} is not another question");
        }
    }
}
