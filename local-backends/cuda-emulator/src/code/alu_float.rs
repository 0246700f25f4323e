//! Arithmetic of f32 and f64. Approximate instructions are computed at least as exactly as the hardware does.
use super::alu::Alu;
use super::lanes::{AluFn, lanes};
use super::mnemonic::Mnemonic;
use super::num::{Round, add_odd, flush, saturate, saturate64, to_f32};
use crate::count::Kind;
use crate::ptx::Ty;

/// A function over rows of f32, with what `.ftz` and `.sat` add.
macro_rules! float {
    ($ftz:expr, $sat:expr, |$($x:ident),*| $body:expr) => {
        match ($ftz, $sat) {
            (false, false) => lanes!(f32 = |$($x: f32),*| $body),
            (true, false) => lanes!(f32 = |$($x: f32),*| { $(let $x = flush($x);)* flush($body) }),
            (false, true) => lanes!(f32 = |$($x: f32),*| saturate($body)),
            (true, true) => lanes!(f32 = |$($x: f32),*| { $(let $x = flush($x);)* saturate(flush($body)) }),
        }
    };
}

/// The smaller one; -0 is smaller than 0, and a number is preferred to NaN.
#[inline(always)]
fn min<T: PartialOrd + Copy>(a: T, b: T, negative: impl Fn(T) -> bool) -> T {
    #[allow(clippy::eq_op)]
    if a != a || (a == b && negative(b)) || b < a { b } else { a }
}

/// The larger one; 0 is larger than -0, and a number is preferred to NaN.
#[inline(always)]
fn max<T: PartialOrd + Copy>(a: T, b: T, negative: impl Fn(T) -> bool) -> T {
    #[allow(clippy::eq_op)]
    if a != a || (a == b && !negative(b)) || b > a { b } else { a }
}

/// Sums and products of f32 that are not rounded to the nearest.
fn directed(base: &str, round: Round, ftz: bool, sat: bool) -> Option<AluFn> {
    macro_rules! with {
        ($mode:expr) => {
            match base {
                "add" => float!(ftz, sat, |a, b| to_f32(add_odd(a.into(), b.into()), $mode)),
                "sub" => float!(ftz, sat, |a, b| to_f32(add_odd(a.into(), (-b).into()), $mode)),
                "mul" => float!(ftz, sat, |a, b| to_f32(f64::from(a) * f64::from(b), $mode)),
                "fma" | "mad" => {
                    float!(ftz, sat, |a, b, c| to_f32(add_odd(f64::from(a) * f64::from(b), c.into()), $mode))
                }
                _ => return None,
            }
        };
    }
    Some(match round {
        Round::Near => return None,
        Round::Zero => with!(Round::Zero),
        Round::Down => with!(Round::Down),
        Round::Up => with!(Round::Up),
    })
}

fn sources(base: &str) -> usize {
    match base {
        "fma" | "mad" => 3,
        "add" | "sub" | "mul" | "div" | "min" | "max" | "copysign" => 2,
        _ => 1,
    }
}

/// An instruction of f32 or f64.
pub(super) fn select(m: &mut Mnemonic<'_>, ty: Ty) -> Option<Alu> {
    if m.types.len() != 1 {
        return None;
    }
    if m.base == "mov" {
        let run = if ty == Ty::F32 { lanes!(u32 = |a: u32| a) } else { lanes!(u64 = |a: u64| a) };
        return Some(Alu::new(run, ty, &[ty], Kind::Move));
    }
    let round = m.round();
    let (ftz, sat, nan) = (m.take("ftz"), m.take("sat"), m.take("NaN"));
    let approximate = m.any(&["approx", "full"]).is_some();
    let count = sources(m.base);
    let run = if ty == Ty::F64 {
        if round != Round::Near || ftz || nan || approximate {
            return None;
        }
        double(m.base, sat)?
    } else if round != Round::Near {
        directed(m.base, round, ftz, sat)?
    } else if approximate {
        approximation(m.base, ftz, sat)?
    } else {
        single(m.base, ftz, sat, nan)?
    };
    let special = approximate || matches!(m.base, "div" | "sqrt" | "rcp");
    let kind = if special {
        Kind::Special
    } else if ty == Ty::F64 {
        Kind::Double
    } else {
        Kind::Float
    };
    Some(Alu::new(run, ty, &vec![ty; count], kind))
}

fn single(base: &str, ftz: bool, sat: bool, nan: bool) -> Option<AluFn> {
    if nan {
        return Some(match base {
            "min" => float!(ftz, sat, |a, b| if a.is_nan() || b.is_nan() {
                f32::NAN
            } else {
                min(a, b, f32::is_sign_negative)
            }),
            "max" => float!(ftz, sat, |a, b| if a.is_nan() || b.is_nan() {
                f32::NAN
            } else {
                max(a, b, f32::is_sign_negative)
            }),
            _ => return None,
        });
    }
    Some(match base {
        "add" => float!(ftz, sat, |a, b| a + b),
        "sub" => float!(ftz, sat, |a, b| a - b),
        "mul" => float!(ftz, sat, |a, b| a * b),
        "fma" | "mad" => float!(ftz, sat, |a, b, c| a.mul_add(b, c)),
        "div" => float!(ftz, sat, |a, b| a / b),
        "rcp" => float!(ftz, sat, |a| 1.0 / a),
        "sqrt" => float!(ftz, sat, |a| a.sqrt()),
        "min" => float!(ftz, sat, |a, b| min(a, b, f32::is_sign_negative)),
        "max" => float!(ftz, sat, |a, b| max(a, b, f32::is_sign_negative)),
        "abs" => float!(ftz, sat, |a| a.abs()),
        "neg" => float!(ftz, sat, |a| -a),
        "copysign" => float!(ftz, sat, |a, b| b.copysign(a)),
        _ => return None,
    })
}

fn approximation(base: &str, ftz: bool, sat: bool) -> Option<AluFn> {
    Some(match base {
        "div" => float!(ftz, sat, |a, b| a / b),
        "rcp" => float!(ftz, sat, |a| 1.0 / a),
        "sqrt" => float!(ftz, sat, |a| a.sqrt()),
        "rsqrt" => float!(ftz, sat, |a| (1.0 / f64::from(a).sqrt()) as f32),
        "ex2" => float!(ftz, sat, |a| a.exp2()),
        "lg2" => float!(ftz, sat, |a| a.log2()),
        "sin" => float!(ftz, sat, |a| a.sin()),
        "cos" => float!(ftz, sat, |a| a.cos()),
        "tanh" => float!(ftz, sat, |a| a.tanh()),
        _ => return None,
    })
}

fn double(base: &str, sat: bool) -> Option<AluFn> {
    macro_rules! double {
        (|$($x:ident),*| $body:expr) => {
            if sat { lanes!(f64 = |$($x: f64),*| saturate64($body)) } else { lanes!(f64 = |$($x: f64),*| $body) }
        };
    }
    Some(match base {
        "add" => double!(|a, b| a + b),
        "sub" => double!(|a, b| a - b),
        "mul" => double!(|a, b| a * b),
        "fma" | "mad" => double!(|a, b, c| a.mul_add(b, c)),
        "div" => double!(|a, b| a / b),
        "rcp" => double!(|a| 1.0 / a),
        "sqrt" => double!(|a| a.sqrt()),
        "min" => double!(|a, b| min(a, b, f64::is_sign_negative)),
        "max" => double!(|a, b| max(a, b, f64::is_sign_negative)),
        "abs" => double!(|a| a.abs()),
        "neg" => double!(|a| -a),
        "copysign" => double!(|a, b| b.copysign(a)),
        _ => return None,
    })
}
