//! SAMPLE: draws a token from the distribution of a row of logits.
//!
//! Everything that decides is in the op and its sources, so that the same seed gives the same token on any device: the
//! random number is a function of seed and step alone (a counter, not a state).

use super::*;
use crate::sort::sort_by;

/// Sources: logits F32 `[n, rows]` with dense rows, step I32 `[rows]` (the counter of the random numbers, for instance the
/// position). Result: I32 `[rows]`, the index drawn.
///
/// Per row, in this order, as llama.cpp's default chain does: keep the `top_k` largest logits (0: all; ties by index), softmax
/// of what is left, keep the smallest set of the most probable whose sum reaches `top_p`, drop those below `min_p` times the
/// largest probability, divide logits by `temperature`, softmax, draw with [`uniform`]. A temperature of 0 takes the largest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// 0 is greedy; not negative.
    pub temperature: f32,
    /// 0: all.
    pub top_k: usize,
    /// 1: all.
    pub top_p: f32,
    /// 0: all.
    pub min_p: f32,
    /// The seed.
    pub seed: u64,
}

impl OpSpec for Sample {
    const NAMES: &'static [&'static str] = &["SAMPLE"];

    fn name(&self) -> &'static str {
        "SAMPLE"
    }

    fn attrs(&self, attrs: &mut Attrs) {
        attrs
            .float("temperature", self.temperature)
            .int("top_k", self.top_k)
            .float("top_p", self.top_p)
            .float("min_p", self.min_p)
            // In two halves: a parameter has 63 bits.
            .ints("seed", &[(self.seed >> 32) as usize, (self.seed & 0xffff_ffff) as usize]);
    }

    fn from_attrs(_: &str, attrs: &mut AttrReader) -> Result<Self, String> {
        let [high, low] = attrs.ints::<2>("seed")?;
        let half = |v: usize| u32::try_from(v).map_err(|_| "seed must be two numbers of 32 bits".to_owned());
        Ok(Sample {
            temperature: attrs.float("temperature")?,
            top_k: attrs.int("top_k")?,
            top_p: attrs.float("top_p")?,
            min_p: attrs.float("min_p")?,
            seed: u64::from(half(high)?) << 32 | u64::from(half(low)?),
        })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(2, 2)?;
        let x = srcs.f32_rows(0, "logits")?;
        let step = srcs.typed(1, "step", DType::I32)?;
        let [n, rows, x2, x3] = x.ne();
        let matrix = (1..=i32::MAX as usize).contains(&n) && x2 == 1 && x3 == 1;
        check(matrix, || format!("logits must be a matrix with columns, not {x}"))?;
        check(step.ne() == [rows, 1, 1, 1], || format!("step {step} does not suit logits {x}"))?;
        check(self.temperature >= 0.0 && self.temperature.is_finite(), || {
            format!("temperature {} is negative or infinite", self.temperature)
        })?;
        let unit = (0.0..=1.0).contains(&self.top_p) && (0.0..=1.0).contains(&self.min_p);
        check(unit, || format!("top_p {} and min_p {} must be in 0..1", self.top_p, self.min_p))?;
        Inferred::new(DType::I32, [rows, 1, 1, 1])
    }

    fn flops(&self, srcs: &Srcs, _: &Layout) -> u64 {
        8 * srcs.opt(0).map_or(0, |x| x.elements() as u64)
    }
}

/// A number in `0.0..1.0` from seed, step and row: SplitMix64's finalizer (Steele et al., 2014) over the three.
pub fn uniform(seed: u64, step: i32, row: usize) -> f32 {
    let mix = |mut z: u64| {
        z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let bits = mix(mix(mix(seed) ^ u64::from(step as u32)) ^ row as u64);
    // 24 bits are what an f32 holds exactly.
    (bits >> 40) as f32 / (1u64 << 24) as f32
}

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Candidate {
    logit: f32,
    token: u32,
}

impl Sample {
    /// Candidates that [`Sample::draw`] needs room for with so many logits.
    pub fn room(&self, logits: usize) -> usize {
        if self.is_greedy() { 0 } else { 2 * logits }
    }

    fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    /// The token that the op draws from one row of logits. Defined here, for every host device alike, because the same seed has to
    /// give the same token everywhere. NaN counts as minus infinity. Any token when `stop` has said `true` on the way.
    ///
    /// # Panics
    /// If `room` has fewer than [`Sample::room`] candidates, of any content.
    pub fn draw(&self, logits: &[f32], step: i32, row: usize, room: &mut [Candidate], stop: impl Fn() -> bool) -> i32 {
        let clean = |v: f32| if v.is_nan() { f32::NEG_INFINITY } else { v };
        let mut best = (f32::NEG_INFINITY, 0u32);
        for (i, &v) in logits.iter().enumerate() {
            if v > best.0 {
                best = (v, i as u32);
            }
        }
        if self.is_greedy() {
            return best.1 as i32;
        }
        let (mut kept, buffer) = room.split_at_mut(logits.len());
        for (i, (to, &v)) in kept.iter_mut().zip(logits).enumerate() {
            *to = Candidate { logit: clean(v), token: i as u32 };
        }
        let by_logit =
            |a: &Candidate, b: &Candidate| Order::Descending.compare(a.logit, b.logit).then(a.token.cmp(&b.token));
        if self.top_k > 0 && self.top_k < kept.len() {
            kept.select_nth_unstable_by(self.top_k - 1, by_logit);
            kept = &mut kept[..self.top_k];
        }
        sort_by(kept, buffer, by_logit, stop);
        let weight = |v: f32, t: f32| ((v - best.0) / t).exp();
        if self.top_p < 1.0 {
            let total: f32 = kept.iter().map(|c| weight(c.logit, 1.0)).sum();
            let mut sum = 0.0;
            let last = kept.iter().position(|c| {
                sum += weight(c.logit, 1.0);
                sum >= self.top_p * total
            });
            let count = last.map_or(kept.len(), |k| k + 1);
            kept = &mut kept[..count];
        }
        if self.min_p > 0.0 {
            let count = kept.iter().take_while(|c| weight(c.logit, 1.0) >= self.min_p).count();
            let count = count.max(1).min(kept.len());
            kept = &mut kept[..count];
        }
        let total: f32 = kept.iter().map(|c| weight(c.logit, self.temperature)).sum();
        let target = uniform(self.seed, step, row) * total;
        let mut sum = 0.0;
        for c in kept.iter() {
            sum += weight(c.logit, self.temperature);
            if sum > target {
                return c.token as i32;
            }
        }
        // Rounding left the target at the sum itself: the last one that has any weight.
        kept.iter().rev().find(|c| weight(c.logit, self.temperature) > 0.0).map_or(best.1, |c| c.token) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(sample: &Sample, logits: &[f32], step: i32) -> i32 {
        sample.draw(logits, step, 0, &mut vec![Candidate::default(); sample.room(logits.len())], || false)
    }

    const PLAIN: Sample = Sample { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 7 };

    #[test]
    fn frequencies_follow_the_softmax() {
        let logits = [0.0f32, 1.0, 2.0];
        let mut counts = [0usize; 3];
        for step in 0..20_000 {
            counts[draw(&PLAIN, &logits, step) as usize] += 1;
        }
        let total: f32 = logits.iter().map(|v| v.exp()).sum();
        for (v, n) in logits.iter().zip(counts) {
            let expected = v.exp() / total;
            assert!((n as f32 / 20_000.0 - expected).abs() < 0.02, "{n} of 20000, expected {expected}");
        }
    }

    #[test]
    fn filters_exclude() {
        let logits = [0.0f32, 5.0, 4.0, f32::NAN, -1.0];
        for step in 0..500 {
            assert!([1, 2].contains(&draw(&Sample { top_k: 2, ..PLAIN }, &logits, step)));
            assert_eq!(draw(&Sample { top_p: 0.5, ..PLAIN }, &logits, step), 1);
            assert!([1, 2].contains(&draw(&Sample { min_p: 0.2, ..PLAIN }, &logits, step)));
            assert_eq!(draw(&Sample { temperature: 0.0, ..PLAIN }, &logits, step), 1);
        }
    }

    #[test]
    fn a_row_of_nothing_still_has_an_answer() {
        assert_eq!(draw(&PLAIN, &[f32::NAN, f32::NAN], 0), 0);
    }
}
