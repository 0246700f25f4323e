//! The reference of `op::unary`, to the letter of its documentation.

use outboard_core::op::UnaryKind;
use std::f64::consts::{PI, SQRT_2};

pub(in super::super) fn function(kind: UnaryKind, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match kind {
        UnaryKind::Neg => -x,
        UnaryKind::Abs => x.abs(),
        UnaryKind::Sqr => x * x,
        UnaryKind::Sqrt => x.sqrt(),
        UnaryKind::Exp => x.exp(),
        UnaryKind::Log => x.ln(),
        UnaryKind::Sin => x.sin(),
        UnaryKind::Cos => x.cos(),
        UnaryKind::Tanh => x.tanh(),
        // Not f64::max, which would make 0 of NaN.
        UnaryKind::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        UnaryKind::Sigmoid => sigmoid(x),
        UnaryKind::Silu => x * sigmoid(x),
        UnaryKind::Gelu => 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)).tanh()),
        UnaryKind::GeluErf => 0.5 * x * (1.0 + erf(x / SQRT_2)),
        UnaryKind::GeluQuick => x * sigmoid(1.702 * x),
        UnaryKind::Softplus => {
            if x > 30.0 {
                x
            } else {
                x.exp().ln_1p()
            }
        }
    }
}

/// The error function: its Maclaurin series below 3, the continued fraction of its complement above (Abramowitz and Stegun,
/// 7.1.5 and 7.1.14). Good to 1e-12.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    let value = if a < 3.0 {
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term.abs() > 1e-17 * sum.abs() {
            n += 1.0;
            term *= -a * a / n;
            sum += term / (2.0 * n + 1.0);
        }
        2.0 / PI.sqrt() * sum
    } else {
        let fraction = (1..=60).rev().fold(a, |f, k| a + f64::from(k) / 2.0 / f);
        1.0 - (-a * a).exp() / (PI.sqrt() * fraction)
    };
    value.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert!((erf(0.5) - 0.520_499_877_813_046_5).abs() < 1e-12);
        assert!((erf(-2.0) + 0.995_322_265_018_952_7).abs() < 1e-12);
        assert!((erf(3.5) - 0.999_999_256_901_628).abs() < 1e-12);
        assert!((function(UnaryKind::Silu, 1.0) - 0.731_058_578_630_004_9).abs() < 1e-12);
        assert!((function(UnaryKind::Softplus, 0.0) - 2f64.ln()).abs() < 1e-12);
    }
}
