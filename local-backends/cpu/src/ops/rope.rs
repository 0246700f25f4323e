//! ROPE: angles once per token, then every head of it.

use super::*;
use crate::kernels::rows;
use outboard_core::op::{Rope, RopeMode};
use std::f64::consts::PI;

/// What angles are computed of.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Of {
    op: Rope,
    positions: usize,
    factors: usize,
}

impl Of {
    fn new(node: &Node, op: &Rope) -> Of {
        let positions = node.opt(0).map_or(0, |x| x.ne()[2]);
        Of { op: *op, positions, factors: if node.opt(2).is_some() { op.n_dims / 2 } else { 0 } }
    }

    /// Where everything lies in memory of [`need`] bytes.
    fn place<'m>(&self, memory: &mut Part<'m>) -> Result<Placed<'m>, String> {
        Ok(Placed {
            values: memory.take(self.positions.saturating_mul(self.op.n_dims))?,
            positions: memory.take(self.positions)?,
            factors: memory.take(self.factors)?,
            frequencies: memory.take(self.op.n_dims / 2 * 2)?,
        })
    }
}

struct Placed<'m> {
    /// For each position half of `n_dims` cosines, then as many sines.
    values: &'m mut [f32],
    positions: &'m mut [i32],
    factors: &'m mut [f32],
    /// For each pair its frequency, and how much of it stays as it is.
    frequencies: &'m mut [f64],
}

/// Cosines and sines. They are kept with what they were computed of: the queries and keys of all layers use the same.
pub(crate) struct Angles<'m> {
    memory: Part<'m>,
    of: Option<Of>,
}

pub(crate) fn need(node: &Node, op: &Rope) -> Need {
    let of = Of::new(node, op);
    let values = bytes_of::<f32>(of.positions.saturating_mul(op.n_dims));
    let rest = [bytes_of::<i32>(of.positions), bytes_of::<f32>(of.factors), bytes_of::<f64>(op.n_dims), 4 * 64];
    Need { angles: rest.into_iter().fold(values, u64::saturating_add), ..Need::default() }
}

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node, op: &Rope) -> Result<(), String> {
    let (x, pos, factors, out, isa) = (node.src(0)?, node.src(1)?, node.opt(2), &node.out, cx.isa);
    let position = |t: usize| pos.int([t, 0, 0, 0]);
    let factors = factors.map_or(&[][..], |f| &f.f32s([0, 0, 0])[..op.n_dims / 2]);
    let workers = cx.workers();
    let values = cx.angles.compute(Of::new(node, op), position, factors, &|| workers.aborted())?;
    workers.rows(out, &|at, _| {
        let (cos, sin) = values[at[1] * op.n_dims..][..op.n_dims].split_at(op.n_dims / 2);
        let row = &mut row_of(x, out, at)[..op.n_dims];
        match op.mode {
            RopeMode::Normal => rows::rope_pairs(isa, row, cos, sin),
            RopeMode::Neox => rows::rope_halves(isa, row, cos, sin),
        }
    });
    Ok(())
}

impl<'m> Angles<'m> {
    /// None yet.
    pub(crate) fn new(memory: Part<'m>) -> Angles<'m> {
        Angles { memory, of: None }
    }

    /// Those of these positions. `factors` divide the frequencies, pair by pair; empty for none.
    fn compute(
        &mut self,
        of: Of,
        position: impl Fn(usize) -> i32,
        factors: &[f32],
        stop: &dyn Fn() -> bool,
    ) -> Result<&[f32], String> {
        let Placed { values, positions, factors: kept, frequencies } = of.place(&mut self.memory.borrow())?;
        let same_positions = || positions.iter().enumerate().all(|(t, p)| *p == position(t));
        if self.of == Some(of) && same_positions() && kept == factors {
            return Ok(values);
        }
        self.of = None;
        positions.iter_mut().enumerate().for_each(|(t, p)| *p = position(t));
        kept.copy_from_slice(factors);
        let (op, half) = (&of.op, of.op.n_dims / 2);
        for (pair, to) in frequencies.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let factor = kept.get(pair).map_or(1.0, |f| f64::from(*f));
            let frequency = f64::from(op.freq_base).powf(-2.0 * pair as f64 / op.n_dims as f64) / factor;
            *to = [frequency, ramp(op, pair)];
        }
        let scale = f64::from(op.freq_scale);
        let mut amplitude = f64::from(op.attn_factor);
        if op.ext_factor != 0.0 {
            amplitude *= 1.0 + 0.1 * (1.0 / scale).ln();
        }
        let rows = positions.iter().zip(values.chunks_exact_mut(op.n_dims.max(1)));
        for (&position, values) in rows.take_while(|_| !stop()) {
            let (cos, sin) = values.split_at_mut(half);
            for (pair, [frequency, mix]) in frequencies.as_chunks::<2>().0.iter().enumerate() {
                let angle = f64::from(position) * frequency;
                let (s, c) = (angle * scale * (1.0 - mix) + angle * mix).sin_cos();
                cos[pair] = (c * amplitude) as f32;
                sin[pair] = (s * amplitude) as f32;
            }
        }
        self.of = Some(of).filter(|_| !stop());
        Ok(values)
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
    use crate::kernels::mul_mat::Line;

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
        type Asked = (Rope, Vec<i32>, Vec<f32>);
        let compute = |angles: &mut Angles<'_>, (op, positions, factors): &Asked| {
            let of = Of { op: *op, positions: positions.len(), factors: factors.len() };
            angles.compute(of, |t| positions[t], factors, &|| false).unwrap().to_vec()
        };
        let room = || Line::room(256);
        let fresh = |asked: &Asked| compute(&mut Angles::new(Part::of(&mut room())), asked);
        let mut memory = room();
        let mut kept = Angles::new(Part::of(&mut memory));
        for (i, one) in asked.iter().enumerate() {
            // What comes twice, and what comes behind any other.
            for other in &asked {
                for asked in [one, one] {
                    compute(&mut kept, asked);
                }
                assert_eq!(compute(&mut kept, other), fresh(other), "{other:?} behind {one:?}");
            }
            assert!(asked[..i].iter().all(|before| fresh(before) != fresh(one)), "{one:?} is not another question");
        }
    }
}
