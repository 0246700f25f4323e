//! Kernels of one row: norms, softmax, activations, element-wise arithmetic, rotary embedding, conversion.
//!
//! They work in place, so that an op may take over its source's memory. Bodies are plain loops that the compiler vectorizes
//! for each instruction set; sums go through `LANES` partial sums, in an order that does not depend on the ISA.

use super::isa::per_isa;
use half::{bf16, f16};
use outboard_core::op::{BinaryKind, GluKind, NormKind, UnaryKind};

/// Partial sums of a reduction: two vectors of the widest kind, to overlap additions.
const LANES: usize = 32;

/// Adding 1.5 * 2^23 leaves the rounded number in the low bits.
pub(super) const EXP_MAGIC: f32 = 12_582_912.0;
/// ln 2 as a number of few bits and what it lacks, so that products with whole numbers are exact.
pub(super) const EXP_LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
/// The polynomial of [`exp`], from the highest power on; 1 and 1 come behind.
pub(super) const EXP_FIRST: f32 = 1.987_569_1e-4;
/// See [`EXP_FIRST`].
pub(super) const EXP_NEXT: [f32; 5] = [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// e^x to about 2 units in the last place: `2^n * p(r)`, with a polynomial on |r| <= ln 2 / 2 (Cephes). No branches.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Beyond, the result is infinity or zero. Not f32::clamp, whose NaN check would be in the way of vectors.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let t = x * std::f32::consts::LOG2_E + EXP_MAGIC;
    let n = (t.to_bits() as i32).wrapping_sub(EXP_MAGIC.to_bits() as i32);
    let nf = t - EXP_MAGIC;
    let [high, low] = EXP_LN_2;
    let r = (x - nf * high) - nf * low;
    let mut p = EXP_FIRST;
    for c in EXP_NEXT {
        p = p * r + c;
    }
    let p = p * r * r + r + 1.0;
    // Two factors, because 2^n itself may be out of range.
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) << 23) as u32);
    p * power(half) * power(n.wrapping_sub(half))
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[inline(always)]
fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// The tanh form: `0.5 x (1 + tanh u) = x sigmoid(2 u)`.
#[inline(always)]
fn gelu(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    x * sigmoid(2.0 * SQRT_2_OVER_PI * x * (1.0 + 0.044715 * x * x))
}

/// The error function, to 1.5e-7 (Abramowitz and Stegun, 7.1.26).
#[inline(always)]
fn erf(x: f32) -> f32 {
    let a = x.abs();
    let t = 1.0 / (1.0 + 0.327_591_1 * a);
    let mut p = 1.061_405_4;
    for c in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
        p = p * t + c;
    }
    (1.0 - p * t * exp(-a * a)).copysign(x)
}

#[inline(always)]
fn each(x: &mut [f32], f: impl Fn(f32) -> f32) {
    for v in x {
        *v = f(*v);
    }
}

#[inline(always)]
fn each2(a: &mut [f32], b: &[f32], f: impl Fn(f32, f32) -> f32) {
    for (a, &b) in a.iter_mut().zip(b) {
        *a = f(*a, b);
    }
}

/// Folds `f` over the elements, in [`LANES`] lanes that are then folded pairwise.
#[inline(always)]
fn fold(x: &[f32], start: f32, f: impl Fn(f32, f32) -> f32, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut acc = [start; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for c in chunks {
        for (a, &v) in acc.iter_mut().zip(c) {
            *a = f(*a, v);
        }
    }
    for (a, &v) in acc.iter_mut().zip(rest) {
        *a = f(*a, v);
    }
    let mut n = LANES / 2;
    while n > 0 {
        for i in 0..n {
            acc[i] = join(acc[i], acc[i + n]);
        }
        n /= 2;
    }
    acc[0]
}

#[inline(always)]
fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    fold(x, 0.0, |a, v| a + f(v), |a, b| a + b)
}

#[inline(always)]
fn max(x: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    fold(x, f32::NEG_INFINITY, larger, larger)
}

#[inline(always)]
fn unary_body(kind: UnaryKind, x: &mut [f32]) {
    match kind {
        UnaryKind::Neg => each(x, |v| -v),
        UnaryKind::Abs => each(x, f32::abs),
        UnaryKind::Sqr => each(x, |v| v * v),
        UnaryKind::Sqrt => each(x, f32::sqrt),
        UnaryKind::Exp => each(x, exp),
        UnaryKind::Log => each(x, f32::ln),
        UnaryKind::Sin => each(x, f32::sin),
        UnaryKind::Cos => each(x, f32::cos),
        UnaryKind::Tanh => each(x, f32::tanh),
        // Written so that NaN stays.
        UnaryKind::Relu => each(x, |v| if v < 0.0 { 0.0 } else { v }),
        UnaryKind::Sigmoid => each(x, sigmoid),
        UnaryKind::Silu => each(x, silu),
        UnaryKind::Gelu => each(x, gelu),
        UnaryKind::GeluErf => each(x, |v| 0.5 * v * (1.0 + erf(v * std::f32::consts::FRAC_1_SQRT_2))),
        UnaryKind::GeluQuick => each(x, |v| v * sigmoid(1.702 * v)),
        UnaryKind::Softplus => each(x, |v| if v > 20.0 { v } else { exp(v).ln_1p() }),
    }
}

#[inline(always)]
fn binary_body(kind: BinaryKind, a: &mut [f32], b: &[f32]) {
    match kind {
        BinaryKind::Add => each2(a, b, |a, b| a + b),
        BinaryKind::Sub => each2(a, b, |a, b| a - b),
        BinaryKind::Mul => each2(a, b, |a, b| a * b),
        BinaryKind::Div => each2(a, b, |a, b| a / b),
    }
}

#[inline(always)]
fn binary_one_body(kind: BinaryKind, a: &mut [f32], b: f32) {
    match kind {
        BinaryKind::Add => each(a, |a| a + b),
        BinaryKind::Sub => each(a, |a| a - b),
        BinaryKind::Mul => each(a, |a| a * b),
        BinaryKind::Div => each(a, |a| a / b),
    }
}

#[inline(always)]
fn relu(v: f32) -> f32 {
    if v < 0.0 { 0.0 } else { v }
}

/// See [`GluKind::SwigluOai`]. Comparisons, not `f32::min`, so that NaN stays.
#[inline(always)]
fn swiglu_oai(alpha: f32, limit: f32, gate: f32, up: f32) -> f32 {
    let gate = if gate > limit { limit } else { gate };
    gate * sigmoid(alpha * gate) * (1.0 + clamp_one(up, -limit, limit))
}

#[inline(always)]
fn glu_gate_body(kind: GluKind, gate: &mut [f32], up: &[f32]) {
    match kind {
        GluKind::Reglu => each2(gate, up, |g, u| relu(g) * u),
        GluKind::Geglu => each2(gate, up, |g, u| gelu(g) * u),
        GluKind::Swiglu => each2(gate, up, |g, u| silu(g) * u),
        GluKind::SwigluOai { alpha, limit } => each2(gate, up, |g, u| swiglu_oai(alpha, limit, g, u)),
    }
}

#[inline(always)]
fn glu_up_body(kind: GluKind, gate: &[f32], up: &mut [f32]) {
    match kind {
        GluKind::Reglu => each2(up, gate, |u, g| relu(g) * u),
        GluKind::Geglu => each2(up, gate, |u, g| gelu(g) * u),
        GluKind::Swiglu => each2(up, gate, |u, g| silu(g) * u),
        GluKind::SwigluOai { alpha, limit } => each2(up, gate, |u, g| swiglu_oai(alpha, limit, g, u)),
    }
}

#[inline(always)]
fn norm_body(kind: NormKind, eps: f32, x: &mut [f32]) {
    let n = x.len() as f32;
    let factor = match kind {
        NormKind::RmsNorm => 1.0 / (sum(x, |v| v * v) / n + eps).sqrt(),
        NormKind::Norm => {
            let mean = sum(x, |v| v) / n;
            each(x, |v| v - mean);
            1.0 / (sum(x, |v| v * v) / n + eps).sqrt()
        }
        NormKind::L2Norm => {
            let length = sum(x, |v| v * v).sqrt();
            1.0 / if length < eps { eps } else { length }
        }
    };
    each(x, |v| v * factor);
}

#[inline(always)]
fn softmax_body(x: &mut [f32], scale: f32, mask: Option<&[f32]>) {
    match mask {
        Some(mask) => each2(x, mask, |v, m| v * scale + m),
        None => each(x, |v| v * scale),
    }
    let (_, total) = exp_sum(x);
    let factor = if total > 0.0 || total.is_nan() { 1.0 / total } else { 0.0 };
    each(x, |v| v * factor);
}

/// `x = exp(x - m)` with m the largest of x; gives m and the sum. Where m is minus infinity, zeros.
#[inline(always)]
fn exp_sum(x: &mut [f32]) -> (f32, f32) {
    let m = max(x);
    if m == f32::NEG_INFINITY {
        // Everything is excluded, or not a number.
        each(x, |v| if v == f32::NEG_INFINITY { 0.0 } else { v });
        return (m, sum(x, |v| v));
    }
    each(x, |v| exp(v - m));
    (m, sum(x, |v| v))
}

#[inline(always)]
fn log_sum_exp_body(x: &[f32]) -> f32 {
    let m = max(x);
    if m.is_infinite() {
        return m;
    }
    m + sum(x, |v| exp(v - m)).ln()
}

#[inline(always)]
fn sum_body(x: &[f32]) -> f32 {
    sum(x, |v| v)
}

/// Index of the first of the largest; NaN counts as nothing. The search for the index is apart so that both are vectors.
#[inline(always)]
fn argmax_body(x: &[f32]) -> usize {
    let m = max(x);
    x.iter().position(|&v| v == m).unwrap_or(0)
}

#[inline(always)]
fn rope_pairs_body(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    for ((pair, &c), &s) in x.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
        let [a, b] = *pair;
        *pair = [a * c - b * s, a * s + b * c];
    }
}

#[inline(always)]
fn rope_halves_body(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (low, high) = x.split_at_mut(cos.len());
    for (((a, b), &c), &s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
    }
}

#[inline(always)]
fn scale_body(x: &mut [f32], scale: f32, bias: f32) {
    each(x, |v| v * scale + bias);
}

#[inline(always)]
fn clamp_one(v: f32, min: f32, max: f32) -> f32 {
    let v = if v < min { min } else { v };
    if v > max { max } else { v }
}

#[inline(always)]
fn clamp_body(x: &mut [f32], min: f32, max: f32) {
    each(x, |v| clamp_one(v, min, max));
}

#[inline(always)]
fn from_bf16_body(x: &[bf16], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = f32::from_bits(u32::from(x.to_bits()) << 16);
    }
}

per_isa! {
    /// `x = f(x)`.
    pub fn unary(kind: UnaryKind, x: &mut [f32]) = unary_body
}
per_isa! {
    /// `a = a OP b`, element by element up to the shorter.
    pub fn binary(kind: BinaryKind, a: &mut [f32], b: &[f32]) = binary_body
}
per_isa! {
    /// `a = a OP b` for one b.
    pub fn binary_one(kind: BinaryKind, a: &mut [f32], b: f32) = binary_one_body
}
per_isa! {
    /// `gate = act(gate) * up`.
    pub fn glu_gate(kind: GluKind, gate: &mut [f32], up: &[f32]) = glu_gate_body
}
per_isa! {
    /// `up = act(gate) * up`.
    pub fn glu_up(kind: GluKind, gate: &[f32], up: &mut [f32]) = glu_up_body
}
per_isa! {
    /// Normalises a row.
    pub fn norm(kind: NormKind, eps: f32, x: &mut [f32]) = norm_body
}
per_isa! {
    /// `x = softmax(x * scale + mask)`; zeros if everything is excluded.
    pub fn softmax(x: &mut [f32], scale: f32, mask: Option<&[f32]>) = softmax_body
}
per_isa! {
    /// `log(sum(exp(x)))`.
    pub fn log_sum_exp(x: &[f32]) -> f32 = log_sum_exp_body
}
per_isa! {
    /// Sum of the elements.
    pub fn sum_row(x: &[f32]) -> f32 = sum_body
}
per_isa! {
    /// Index of the first of the largest elements, NaN left aside; 0 if there is none.
    pub fn argmax(x: &[f32]) -> usize = argmax_body
}
per_isa! {
    /// Rotates neighbours: pair i by the angle of `cos[i]`, `sin[i]`.
    pub fn rope_pairs(x: &mut [f32], cos: &[f32], sin: &[f32]) = rope_pairs_body
}
per_isa! {
    /// Rotates element i with element `cos.len() + i`.
    pub fn rope_halves(x: &mut [f32], cos: &[f32], sin: &[f32]) = rope_halves_body
}
per_isa! {
    /// `x = x * scale + bias`.
    pub fn scale(x: &mut [f32], scale: f32, bias: f32) = scale_body
}
per_isa! {
    /// `x = min(max(x, min), max)`; NaN stays.
    pub fn clamp(x: &mut [f32], min: f32, max: f32) = clamp_body
}
per_isa! {
    /// BF16 to F32.
    pub fn from_bf16(x: &[bf16], y: &mut [f32]) = from_bf16_body
}

/// F16 to F32, both of one length.
pub fn from_f16(x: &[f16], y: &mut [f32]) {
    #[cfg(target_arch = "aarch64")]
    super::neon::half::from_f16(x, y);
    #[cfg(not(target_arch = "aarch64"))]
    half::slice::HalfFloatSliceExt::convert_to_f32_slice(x, y);
}

/// F32 to F16, both of one length.
pub fn to_f16(x: &[f32], y: &mut [f16]) {
    #[cfg(target_arch = "aarch64")]
    super::neon::half::to_f16(x, y);
    #[cfg(not(target_arch = "aarch64"))]
    half::slice::HalfFloatSliceExt::convert_from_f32_slice(y, x);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Isa;
    use crate::kernels::format::tests::noise;

    fn close(got: &[f32], want: impl Iterator<Item = f64>, tolerance: f64, what: &str) {
        for (i, (&g, w)) in got.iter().zip(want).enumerate() {
            let error = (f64::from(g) - w).abs();
            assert!(error <= tolerance * w.abs().max(1e-3), "{what} element {i}: {g}, not {w}");
        }
    }

    #[test]
    fn exp_is_exp() {
        for isa in Isa::available() {
            let x: Vec<f32> = (-1040..=890).map(|i| i as f32 * 0.1).collect();
            let mut y = x.clone();
            unary(isa, UnaryKind::Exp, &mut y);
            for (x, y) in x.iter().zip(y) {
                let want = f64::from(*x).exp();
                let error = (f64::from(y) - want).abs();
                let fine = error <= 3e-7 * want || error < 2e-45 || (want > 3.4e38 && y.is_infinite());
                assert!(fine, "{}: exp {x} is {want}, not {y}", isa.name());
            }
            let mut odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
            unary(isa, UnaryKind::Exp, &mut odd);
            assert!(odd[0].is_nan() && odd[1] == f32::INFINITY && odd[2] == 0.0);
        }
    }

    #[test]
    fn unaries() {
        let x: Vec<f32> = noise(301, 1).iter().map(|v| v * 6.0).collect();
        for isa in Isa::available() {
            for kind in UnaryKind::ALL {
                let positive = matches!(kind, UnaryKind::Log | UnaryKind::Sqrt);
                let x: Vec<f32> = x.iter().map(|v| if positive { v.abs() + 0.1 } else { *v }).collect();
                let mut y = x.clone();
                unary(isa, *kind, &mut y);
                let want = x.iter().map(|&v| {
                    let v = f64::from(v);
                    let sig = |v: f64| 1.0 / (1.0 + (-v).exp());
                    match kind {
                        UnaryKind::Neg => -v,
                        UnaryKind::Abs => v.abs(),
                        UnaryKind::Sqr => v * v,
                        UnaryKind::Sqrt => v.sqrt(),
                        UnaryKind::Exp => v.exp(),
                        UnaryKind::Log => v.ln(),
                        UnaryKind::Sin => v.sin(),
                        UnaryKind::Cos => v.cos(),
                        UnaryKind::Tanh => v.tanh(),
                        UnaryKind::Relu => v.max(0.0),
                        UnaryKind::Sigmoid => sig(v),
                        UnaryKind::Silu => v * sig(v),
                        UnaryKind::Gelu => 0.5 * v * (1.0 + (0.7978845608028654 * v * (1.0 + 0.044715 * v * v)).tanh()),
                        UnaryKind::GeluErf => {
                            // The integral, by Simpson's rule.
                            let z = v / 2f64.sqrt();
                            let f = |t: f64| (-t * t).exp();
                            let h = z / 200.0;
                            let s: f64 = (0..200)
                                .map(|i| {
                                    let t = i as f64 * h;
                                    (f(t) + 4.0 * f(t + h / 2.0) + f(t + h)) * h / 6.0
                                })
                                .sum();
                            0.5 * v * (1.0 + s * 2.0 / std::f64::consts::PI.sqrt())
                        }
                        UnaryKind::GeluQuick => v * sig(1.702 * v),
                        UnaryKind::Softplus => v.exp().ln_1p(),
                    }
                });
                close(&y, want, 1e-3, &format!("{} {}", isa.name(), kind.name()));
            }
        }
    }

    #[test]
    fn binaries_and_glu() {
        let (a, b) = (noise(77, 1), noise(77, 2));
        for isa in Isa::available() {
            for kind in BinaryKind::ALL {
                let f = |a: f32, b: f32| match kind {
                    BinaryKind::Add => a + b,
                    BinaryKind::Sub => a - b,
                    BinaryKind::Mul => a * b,
                    BinaryKind::Div => a / b,
                };
                let mut y = a.clone();
                binary(isa, *kind, &mut y, &b);
                assert!(y.iter().zip(a.iter().zip(&b)).all(|(y, (a, b))| *y == f(*a, *b)));
                let mut y = a.clone();
                binary_one(isa, *kind, &mut y, 0.3);
                assert!(y.iter().zip(&a).all(|(y, a)| *y == f(*a, 0.3)));
            }
            for kind in GluKind::ALL {
                let (mut gate, mut up) = (a.clone(), b.clone());
                glu_gate(isa, *kind, &mut gate, &b);
                glu_up(isa, *kind, &a, &mut up);
                assert_eq!(gate, up);
                let act = match kind {
                    GluKind::Reglu => UnaryKind::Relu,
                    GluKind::Geglu => UnaryKind::Gelu,
                    GluKind::Swiglu => UnaryKind::Silu,
                    GluKind::SwigluOai { .. } => continue,
                };
                let mut want = a.clone();
                unary(isa, act, &mut want);
                binary(isa, BinaryKind::Mul, &mut want, &b);
                assert_eq!(gate, want);
            }
        }
    }

    #[test]
    fn swiglu_oai_of_limits() {
        let noise = |seed| noise(77, seed).into_iter().map(|v| v * 3.0).collect::<Vec<f32>>();
        let (a, b) = (noise(1), noise(2));
        let (alpha, limit) = (1.3, 1.5);
        let want = |(&gate, &up): (&f32, &f32)| {
            let (gate, up) = (f64::from(gate).min(limit), f64::from(up).clamp(-limit, limit));
            gate / (1.0 + (-alpha * gate).exp()) * (1.0 + up)
        };
        for isa in Isa::available() {
            let mut y = a.clone();
            glu_gate(isa, GluKind::SwigluOai { alpha: alpha as f32, limit: limit as f32 }, &mut y, &b);
            close(&y, a.iter().zip(&b).map(want), 1e-5, isa.name());
        }
    }

    #[test]
    fn norms_and_softmax() {
        for n in [1, 31, 64, 577] {
            let x = noise(n, 9);
            let f = |i: usize| f64::from(x[i]);
            let mean = (0..n).map(f).sum::<f64>() / n as f64;
            let squares = (0..n).map(|i| f(i) * f(i)).sum::<f64>();
            let var = (0..n).map(|i| (f(i) - mean).powi(2)).sum::<f64>() / n as f64;
            let mask: Vec<f32> = (0..n).map(|i| if i % 3 == 1 { f32::NEG_INFINITY } else { 0.5 }).collect();
            for isa in Isa::available() {
                let run = |kind| {
                    let mut y = x.clone();
                    norm(isa, kind, 1e-5, &mut y);
                    y
                };
                let rms = (squares / n as f64 + 1e-5).sqrt();
                close(&run(NormKind::RmsNorm), (0..n).map(|i| f(i) / rms), 1e-5, "rms");
                close(&run(NormKind::Norm), (0..n).map(|i| (f(i) - mean) / (var + 1e-5).sqrt()), 1e-3, "norm");
                close(&run(NormKind::L2Norm), (0..n).map(|i| f(i) / squares.sqrt()), 1e-5, "l2");

                let mut y = x.clone();
                softmax(isa, &mut y, 2.0, Some(&mask));
                let e = |i: usize| if i % 3 == 1 { 0.0 } else { (2.0 * f(i)).exp() };
                let total: f64 = (0..n).map(e).sum();
                close(&y, (0..n).map(|i| e(i) / total), 1e-5, "softmax");
                let lse = log_sum_exp(isa, &x);
                let want = (0..n).map(|i| f(i).exp()).sum::<f64>().ln();
                assert!((f64::from(lse) - want).abs() < 1e-5);

                let mut y = x.clone();
                softmax(isa, &mut y, 1.0, Some(&vec![f32::NEG_INFINITY; n]));
                assert_eq!(y, vec![0.0; n]);
                let mut y = x.clone();
                y[n / 2] = f32::NAN;
                softmax(isa, &mut y, 1.0, None);
                assert!(y.iter().all(|v| v.is_nan()), "{} n {n}", isa.name());
            }
        }
    }

    #[test]
    fn argmax_ties_and_nan() {
        for isa in Isa::available() {
            let mut x = noise(1000, 3);
            x[777] = 9.0;
            x[900] = 9.0;
            x[5] = f32::NAN;
            assert_eq!(argmax(isa, &x), 777);
            assert_eq!(argmax(isa, &[f32::NAN; 40]), 0);
            assert_eq!(argmax(isa, &[f32::NEG_INFINITY; 40]), 0);
        }
    }

    #[test]
    fn rope_rotates() {
        let (cos, sin): (Vec<f32>, Vec<f32>) = (0..5).map(|i| ((i as f32).cos(), (i as f32).sin())).unzip();
        let x = noise(12, 8);
        for isa in Isa::available() {
            let (mut p, mut h) = (x.clone(), x.clone());
            rope_pairs(isa, &mut p[..10], &cos, &sin);
            rope_halves(isa, &mut h[..10], &cos, &sin);
            for i in 0..5 {
                let turn = |a: f32, b: f32| [a * cos[i] - b * sin[i], a * sin[i] + b * cos[i]];
                assert_eq!([p[2 * i], p[2 * i + 1]], turn(x[2 * i], x[2 * i + 1]));
                assert_eq!([h[i], h[i + 5]], turn(x[i], x[i + 5]));
            }
            assert_eq!(p[10..], x[10..]);
            assert_eq!(h[10..], x[10..]);
        }
    }
}
