//! Which function over rows an arithmetic instruction is. `None` of a table is an instruction that the emulator does not know.
use super::lanes::AluFn;
use super::mnemonic::Mnemonic;
use super::op::CompareFn;
use crate::count::Kind;
use crate::ptx::{Result, Ty};

/// An arithmetic instruction: its function, what its result and its sources are, and as what it is counted.
pub(crate) struct Alu {
    pub(crate) run: AluFn,
    pub(crate) dst: Ty,
    pub(crate) src: Vec<Ty>,
    pub(crate) kind: Kind,
}

impl Alu {
    pub(crate) fn new(run: AluFn, dst: Ty, src: &[Ty], kind: Kind) -> Self {
        Self { run, dst, src: src.to_vec(), kind }
    }
}

/// The type without sign, which additions and bits do not ask for.
pub(crate) fn plain(ty: Ty) -> Ty {
    match ty {
        Ty::S(n) | Ty::B(n) => Ty::U(n),
        other => other,
    }
}

/// Twice as wide.
pub(crate) fn widened(ty: Ty) -> Ty {
    match ty {
        Ty::S(n) => Ty::S(n * 2),
        Ty::U(n) => Ty::U(n * 2),
        other => other,
    }
}

/// The arithmetic instruction of this name.
pub(crate) fn select(m: &mut Mnemonic<'_>) -> Result<Alu> {
    let ty = m.ty()?;
    let found = match ty {
        Ty::F32 | Ty::F64 => super::alu_float::select(m, ty),
        Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2 => super::alu_half::select(m, ty),
        _ => super::alu_int::select(m, ty).or_else(|| super::alu_more::select(m, ty)),
    };
    let found = found.ok_or_else(|| m.unknown())?;
    m.finish()?;
    Ok(found)
}

macro_rules! by_type {
    ($ty:expr, |$a:ident, $b:ident| $body:expr; $($case:pat => $t:ty),*) => {
        match $ty { $($case => compare!($t, |$a, $b| $body),)* _ => return None }
    };
}

/// The comparison of this name and type; `ftz` takes numbers below the smallest normal one for zero.
pub(crate) fn compare(name: &str, ty: Ty, ftz: bool) -> Option<CompareFn> {
    use super::lanes::compare;
    macro_rules! integers {
        (|$a:ident, $b:ident| $body:expr) => {
            by_type!(ty, |$a, $b| $body; Ty::U(16) | Ty::B(16) => u16, Ty::U(32) | Ty::B(32) => u32, Ty::U(64) | Ty::B(64) => u64,
                Ty::S(16) => i16, Ty::S(32) => i32, Ty::S(64) => i64)
        };
    }
    macro_rules! floats {
        (|$a:ident, $b:ident| $body:expr) => {
            match ty {
                Ty::F32 if ftz => compare!(f32, |x, y| {
                    let ($a, $b) = (super::num::flush(x), super::num::flush(y));
                    $body
                }),
                Ty::F32 => compare!(f32, |$a, $b| $body),
                Ty::F64 => compare!(f64, |$a, $b| $body),
                Ty::F16 => compare!(u16, |x, y| {
                    let ($a, $b) = (super::num::f16(x), super::num::f16(y));
                    $body
                }),
                Ty::Bf16 => compare!(u16, |x, y| {
                    let ($a, $b) = (super::num::bf16(x), super::num::bf16(y));
                    $body
                }),
                _ => return None,
            }
        };
    }
    if ftz && ty != Ty::F32 {
        return None;
    }
    if matches!(ty, Ty::F32 | Ty::F64 | Ty::F16 | Ty::Bf16) {
        return Some(match name {
            "eq" => floats!(|a, b| a == b),
            "ne" => floats!(|a, b| a != b && !a.is_nan() && !b.is_nan()),
            "lt" => floats!(|a, b| a < b),
            "le" => floats!(|a, b| a <= b),
            "gt" => floats!(|a, b| a > b),
            "ge" => floats!(|a, b| a >= b),
            "equ" => floats!(|a, b| a == b || a.is_nan() || b.is_nan()),
            "neu" => floats!(|a, b| a != b),
            "ltu" => floats!(|a, b| a < b || a.is_nan() || b.is_nan()),
            "leu" => floats!(|a, b| a <= b || a.is_nan() || b.is_nan()),
            "gtu" => floats!(|a, b| a > b || a.is_nan() || b.is_nan()),
            "geu" => floats!(|a, b| a >= b || a.is_nan() || b.is_nan()),
            "num" => floats!(|a, b| !a.is_nan() && !b.is_nan()),
            "nan" => floats!(|a, b| a.is_nan() || b.is_nan()),
            _ => return None,
        });
    }
    Some(match name {
        "eq" => integers!(|a, b| a == b),
        "ne" => integers!(|a, b| a != b),
        "lt" | "lo" => integers!(|a, b| a < b),
        "le" | "ls" => integers!(|a, b| a <= b),
        "gt" | "hi" => integers!(|a, b| a > b),
        "ge" | "hs" => integers!(|a, b| a >= b),
        _ => return None,
    })
}
