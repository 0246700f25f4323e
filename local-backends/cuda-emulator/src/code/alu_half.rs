//! Arithmetic of f16 and bf16, alone and in pairs: computed in f64 and rounded once.
use super::alu::Alu;
use super::lanes::{AluFn, lanes};
use super::mnemonic::Mnemonic;
use super::num::{Round, add_odd, bf16, f16, to_bf16, to_f16};
use crate::count::Kind;
use crate::ptx::Ty;

/// The function for each of the four types, from an expression over f64.
macro_rules! half {
    ($ty:expr, |$($x:ident),*| $body:expr) => {{
        #[inline(always)]
        fn value($($x: f64),*) -> f64 { $body }
        match $ty {
            Ty::F16 => lanes!(u16 = |$($x: u16),*| to_f16(value($(f16($x).into()),*), Round::Near)),
            Ty::Bf16 => lanes!(u16 = |$($x: u16),*| to_bf16(value($(bf16($x).into()),*), Round::Near)),
            Ty::F16x2 => lanes!(u32 = |$($x: u32),*| {
                let low = to_f16(value($(f16($x as u16).into()),*), Round::Near);
                let high = to_f16(value($(f16(($x >> 16) as u16).into()),*), Round::Near);
                u32::from(low) | u32::from(high) << 16
            }),
            _ => lanes!(u32 = |$($x: u32),*| {
                let low = to_bf16(value($(bf16($x as u16).into()),*), Round::Near);
                let high = to_bf16(value($(bf16(($x >> 16) as u16).into()),*), Round::Near);
                u32::from(low) | u32::from(high) << 16
            }),
        }
    }};
}

/// Signs are bits: NaN keeps its own.
fn sign(base: &str, ty: Ty) -> Option<AluFn> {
    let pair = matches!(ty, Ty::F16x2 | Ty::Bf16x2);
    Some(match (base, pair) {
        ("neg", false) => lanes!(u16 = |a: u16| a ^ 0x8000),
        ("abs", false) => lanes!(u16 = |a: u16| a & 0x7fff),
        ("neg", true) => lanes!(u32 = |a: u32| a ^ 0x8000_8000),
        ("abs", true) => lanes!(u32 = |a: u32| a & 0x7fff_7fff),
        _ => return None,
    })
}

/// An instruction of f16, bf16 or a pair of them.
pub(super) fn select(m: &mut Mnemonic<'_>, ty: Ty) -> Option<Alu> {
    if m.types.len() != 1 || m.round() != Round::Near {
        return None;
    }
    let (nan, approximate) = (m.take("NaN"), m.take("approx"));
    let of = |count: usize, run: AluFn| Some(Alu::new(run, ty, &vec![ty; count], Kind::Half));
    match (m.base, nan, approximate) {
        ("add", false, false) => of(2, half!(ty, |a, b| add_odd(a, b))),
        ("sub", false, false) => of(2, half!(ty, |a, b| add_odd(a, -b))),
        ("mul", false, false) => of(2, half!(ty, |a, b| a * b)),
        ("fma", false, false) => of(3, half!(ty, |a, b, c| add_odd(a * b, c))),
        ("min", false, false) => of(2, half!(ty, |a, b| a.min(b))),
        ("max", false, false) => of(2, half!(ty, |a, b| a.max(b))),
        ("min", true, false) => of(2, half!(ty, |a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) })),
        ("max", true, false) => of(2, half!(ty, |a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) })),
        ("ex2", false, true) => of(1, half!(ty, |a| a.exp2())),
        ("tanh", false, true) => of(1, half!(ty, |a| a.tanh())),
        (base, false, false) => of(1, sign(base, ty)?),
        _ => None,
    }
}
