//! SAMPLE: draws a token from the distribution of each row of logits.
//!
//! Everything that decides is in the op's sources, a set for each row, so that the same seed gives the same token on any device and beside any
//! other rows. The random number is a function of seed and step alone (a counter, not a state). Weights are whole numbers that follow from
//! logits by operations that round the same everywhere, and sums of whole numbers are the same in any order.

use super::*;
use crate::sort::sort_by;

/// Sources: logits F32 `[n, rows]` with dense rows, params F32 `[4, rows]` and draws I32 `[3, rows]`, as [`Sampler::params`] and
/// [`Sampler::draw_of`] give them. Result: I32 `[rows]`, the index drawn.
///
/// Per row, in this order, as llama.cpp's default chain does: keep the `top_k` largest logits (0: all; ties by index), of what is left keep
/// the smallest set of the most probable whose [`weight`]s reach `top_p` of their sum, drop those below `min_p` times the largest, divide
/// logits by `temperature`, draw with [`uniform`]. A temperature of 0 takes the largest. Parameters may be any numbers: [`Sampler::read`] says
/// what becomes of those that make no sense.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample;

/// How a token is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
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

    fn attrs(&self, _: &mut Attrs) {}

    fn from_attrs(_: &str, _: &mut AttrReader) -> Result<Self, String> {
        Ok(Sample)
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(3, 3)?;
        let x = srcs.f32_rows(0, "logits")?;
        let (params, draws) = (srcs.typed(1, "params", DType::F32)?, srcs.typed(2, "draws", DType::I32)?);
        let [n, rows, x2, x3] = x.ne();
        let matrix = (1..=i32::MAX as usize).contains(&n) && x2 == 1 && x3 == 1;
        check(matrix, || format!("logits must be a matrix with columns, not {x}"))?;
        let suits = params.ne() == [4, rows, 1, 1] && params.has_dense_rows();
        check(suits, || format!("params {params} do not suit logits {x}"))?;
        check(draws.ne() == [3, rows, 1, 1], || format!("draws {draws} do not suit logits {x}"))?;
        Inferred::new(DType::I32, [rows, 1, 1, 1])
    }

    fn flops(&self, srcs: &Srcs, _: &Layout) -> u64 {
        8 * srcs.opt(0).map_or(0, |x| x.elements() as u64)
    }
}

/// A number of 24 bits from seed and step: SplitMix64's finalizer (Steele et al., 2014) over both.
pub fn uniform(seed: u64, step: i32) -> u32 {
    let mix = |mut z: u64| {
        z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let bits = mix(mix(mix(seed) ^ u64::from(step as u32)));
    (bits >> 40) as u32
}

/// So many parts has a whole: of a draw, of `top_p` and of a halving.
const UNIT: f32 = (1 << 24) as f32;
/// The highest temperature; the lowest is one over it.
const HOTTEST: f32 = (1 << 20) as f32;
/// The weight of the most probable token.
pub const FULL_WEIGHT: u32 = 1 << 31;

/// What a token weighs whose logit is so far below the largest, both divided by the temperature: `2^31 * exp(-distance)` to about 2e-9 of the
/// largest weight, never less for what is nearer. Whole numbers from the first product on, so that every device gets the same.
pub fn weight(distance: f32) -> u32 {
    let halvings = distance * std::f32::consts::LOG2_E;
    // Also of what is no number.
    if halvings.is_nan() || halvings >= 32.0 {
        return 0;
    }
    let fixed = (halvings * UNIT) as u32;
    let high = |a: u32, b: u32| ((u64::from(a) * u64::from(b)) >> 32) as u32;
    let fraction = fixed << 8;
    let sum = POWER_OF_HALF.iter().rev().fold(0, |sum, &c| c - high(fraction, sum));
    (FULL_WEIGHT - (high(fraction, sum) >> 1)) >> (fixed >> 24)
}

/// `2^-t = 1 - t * (c0 - t * (c1 - ...))` on `0..1`: interpolation in Chebyshev's places, in units of 2^-32.
const POWER_OF_HALF: [u32; 7] = [0xb172_17f7, 0x3d7f_7bcb, 0x0e35_8127, 0x0276_41a9, 0x0057_28b0, 0x0009_c200, 0xbda6];

/// So many parts of 2^24 of a sum.
fn share(sum: u64, parts: u32) -> u64 {
    ((u128::from(sum) * u128::from(parts)) >> 24) as u64
}

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Candidate {
    logit: f32,
    token: u32,
}

impl Sample {
    /// Candidates that [`Sampler::draw`] needs room for with so many logits.
    pub fn room(logits: usize) -> usize {
        logits.saturating_mul(2)
    }
}

impl Sampler {
    /// Takes the most probable token.
    pub const GREEDY: Sampler = Sampler { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };

    /// What the op takes of it as params: temperature, top_k, top_p, min_p.
    pub fn params(&self) -> [f32; 4] {
        [self.temperature, self.top_k as f32, self.top_p, self.min_p]
    }

    /// What the op takes for a draw: the seed's lower and upper half, and the step, the counter of the random numbers (for instance the position).
    pub fn draw_of(&self, step: i32) -> [i32; 3] {
        [self.seed as i32, (self.seed >> 32) as i32, step]
    }

    /// The sampler and the step of a row. A temperature that is not positive, or infinite, is 0, any other between 2^-20 and 2^20; a `top_k` below
    /// 1 is all, and a `top_p` or `min_p` outside `0..1` the nearest that is inside; what is no number is as if it were not there.
    pub fn read([temperature, top_k, top_p, min_p]: [f32; 4], [low, high, step]: [i32; 3]) -> (Sampler, i32) {
        let unit = |v: f32, none: f32| if v.is_nan() { none } else { v.clamp(0.0, 1.0) };
        let sampler = Sampler {
            temperature: if temperature > 0.0 && temperature.is_finite() {
                temperature.clamp(1.0 / HOTTEST, HOTTEST)
            } else {
                0.0
            },
            // NaN becomes 0.
            top_k: top_k as usize,
            top_p: unit(top_p, 1.0),
            min_p: unit(min_p, 0.0),
            seed: u64::from(high as u32) << 32 | u64::from(low as u32),
        };
        (sampler, step)
    }

    /// Whether it takes the largest logit.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    /// The token that the op draws from one row of logits. Defined here, for every host device alike, because the same seed has to
    /// give the same token everywhere. NaN counts as minus infinity. Any token when `stop` has said `true` on the way.
    ///
    /// # Panics
    /// If `room` has fewer than [`Sample::room`] candidates, of any content. A greedy one needs none.
    pub fn draw(&self, logits: &[f32], step: i32, room: &mut [Candidate], stop: impl Fn() -> bool) -> i32 {
        let clean = |v: f32| if v.is_nan() { f32::NEG_INFINITY } else { v };
        let mut best = (f32::NEG_INFINITY, 0u32);
        for (i, &v) in logits.iter().enumerate() {
            if v > best.0 {
                best = (v, i as u32);
            }
        }
        // Where nothing is above minus infinity, the first.
        if self.is_greedy() || best.0 == f32::NEG_INFINITY {
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
        let weight_at = |c: &Candidate, scale: f32| {
            if c.logit == best.0 { FULL_WEIGHT } else { weight((best.0 - c.logit) * scale) }
        };
        let sum_of = |kept: &[Candidate], scale: f32| kept.iter().map(|c| u64::from(weight_at(c, scale))).sum::<u64>();
        // The place at which the sum of weights goes beyond a number that is below the sum of all.
        let place_of = |kept: &[Candidate], scale: f32, number: u64| {
            let mut sum = 0;
            kept.iter().position(|c| {
                sum += u64::from(weight_at(c, scale));
                sum > number
            })
        };
        if self.top_p < 1.0 {
            let needed = share(sum_of(kept, 1.0), (self.top_p * UNIT) as u32);
            let last = place_of(kept, 1.0, needed.saturating_sub(1)).unwrap_or(0);
            kept = &mut kept[..=last];
        }
        let least = (self.min_p * FULL_WEIGHT as f32) as u32;
        let count = kept.iter().take_while(|c| weight_at(c, 1.0) >= least).count();
        kept = &mut kept[..count];
        let scale = 1.0 / self.temperature;
        let number = share(sum_of(kept, scale), uniform(self.seed, step));
        place_of(kept, scale, number).map_or(best.1, |place| kept[place].token) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(sampler: &Sampler, logits: &[f32], step: i32) -> i32 {
        sampler.draw(logits, step, &mut vec![Candidate::default(); Sample::room(logits.len())], || false)
    }

    const PLAIN: Sampler = Sampler { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 7 };

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
            assert!([1, 2].contains(&draw(&Sampler { top_k: 2, ..PLAIN }, &logits, step)));
            assert_eq!(draw(&Sampler { top_p: 0.5, ..PLAIN }, &logits, step), 1);
            assert!([1, 2].contains(&draw(&Sampler { min_p: 0.2, ..PLAIN }, &logits, step)));
            assert_eq!(draw(&Sampler { temperature: 0.0, ..PLAIN }, &logits, step), 1);
        }
    }

    #[test]
    fn weights_are_powers_of_e() {
        let mut before = FULL_WEIGHT;
        for i in 0..100_000 {
            let distance = i as f32 * 2.3e-4;
            let got = weight(distance);
            let want = (-f64::from(distance)).exp() * f64::from(FULL_WEIGHT);
            // The product's rounding, and a few units of the whole numbers.
            let off = want * f64::from(distance) * 1.3e-7 + want * 2.0 / f64::from(1 << 24) + 8.0;
            assert!((f64::from(got) - want).abs() <= off, "{distance}: {got}, not {want}");
            assert!(got <= before, "{distance}: {got} after {before}");
            before = got;
        }
        assert_eq!([0.0, 22.3, f32::INFINITY, f32::NAN].map(weight), [FULL_WEIGHT, 0, 0, 0]);
    }

    #[test]
    fn a_row_of_nothing_still_has_an_answer() {
        assert_eq!(draw(&PLAIN, &[f32::NAN, f32::NAN], 0), 0);
    }

    #[test]
    fn parameters_travel_as_rows_of_numbers() {
        let usual = Sampler { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, seed: u64::MAX - 3 };
        assert_eq!(Sampler::read(usual.params(), usual.draw_of(-7)), (usual, -7));
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let none = Sampler { seed: 1, ..Sampler::GREEDY };
        assert_eq!(Sampler::read([nan; 4], [1, 0, 0]).0, none);
        assert_eq!(Sampler::read([-1.0, -1.0, 7.0, -7.0], [1, 0, 0]).0, none);
        assert_eq!(Sampler::read([inf, inf, 1.0, 0.0], [1, 0, 0]).0, Sampler { top_k: usize::MAX, ..none });
    }
}
