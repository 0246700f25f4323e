//! The reference of `op::rope`, to the letter of its documentation.

use super::*;
use outboard_core::op::{Rope, RopeMode};
use std::f64::consts::PI;

pub(in super::super) fn run(op: &Rope, x: &T, pos: &T, factors: Option<&T>, out: &T) {
    let half = op.n_dims / 2;
    for row in x.rows() {
        let position = f64::from(pos.int([row[2], 0, 0, 0]));
        let mut values = x.row(row);
        for pair in 0..half {
            let (i, j) = match op.mode {
                RopeMode::Normal => (2 * pair, 2 * pair + 1),
                RopeMode::Neox => (pair, pair + half),
            };
            let factor = factors.map_or(1.0, |f| f.get([pair, 0, 0, 0]));
            let (angle, amplitude) = angle(op, position, pair, factor);
            let (sin, cos) = angle.sin_cos();
            let (a, b) = (values[i], values[j]);
            values[i] = amplitude * (a * cos - b * sin);
            values[j] = amplitude * (a * sin + b * cos);
        }
        out.set_row(row, &values);
    }
}

/// Angle and amplitude of a pair (YaRN, Peng et al., 2023, section 3).
fn angle(op: &Rope, position: f64, pair: usize, factor: f64) -> (f64, f64) {
    let (base, n_dims) = (f64::from(op.freq_base), op.n_dims as f64);
    let full = position * base.powf(-2.0 * pair as f64 / n_dims) / factor;
    let interpolated = f64::from(op.freq_scale) * full;
    let amplitude = f64::from(op.attn_factor);
    if op.ext_factor == 0.0 {
        return (interpolated, amplitude);
    }
    // The pair that makes `turns` rotations over the original context.
    let pair_of = |turns: f64| n_dims * (op.n_ctx_orig as f64 / (turns * 2.0 * PI)).ln() / (2.0 * base.ln());
    let low = pair_of(f64::from(op.beta_fast)).floor().max(0.0);
    let high = pair_of(f64::from(op.beta_slow)).ceil().min(n_dims - 1.0);
    let ramp = 1.0 - ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
    let mix = ramp * f64::from(op.ext_factor);
    let angle = interpolated * (1.0 - mix) + full * mix;
    (angle, amplitude * (1.0 + 0.1 * (1.0 / f64::from(op.freq_scale)).ln()))
}
