//! Arithmetic of integers: sums, products, quotients, extremes. Division by zero gives all ones, as on the hardware.
use super::alu::{Alu, widened};
use super::lanes::{AluFn, lanes, unsigned};
use super::mnemonic::Mnemonic;
use crate::count::Kind;
use crate::ptx::Ty;

/// The function over rows for each width and sign.
macro_rules! signed {
    ($ty:expr, |$($x:ident),*| $body:expr) => {
        match $ty {
            Ty::U(16) => lanes!(u16 = |$($x: u16),*| $body),
            Ty::U(32) => lanes!(u32 = |$($x: u32),*| $body),
            Ty::U(64) => lanes!(u64 = |$($x: u64),*| $body),
            Ty::S(16) => lanes!(i16 = |$($x: i16),*| $body),
            Ty::S(32) => lanes!(i32 = |$($x: i32),*| $body),
            Ty::S(64) => lanes!(i64 = |$($x: i64),*| $body),
            _ => return None,
        }
    };
}

macro_rules! negative {
    ($ty:expr, |$x:ident| $body:expr) => {
        match $ty {
            Ty::S(16) => lanes!(i16 = |$x: i16| $body),
            Ty::S(32) => lanes!(i32 = |$x: i32| $body),
            Ty::S(64) => lanes!(i64 = |$x: i64| $body),
            _ => return None,
        }
    };
}

fn wide_product(ty: Ty) -> Option<AluFn> {
    Some(match ty {
        Ty::U(16) => lanes!(u32 = |a: u16, b: u16| u32::from(a) * u32::from(b)),
        Ty::S(16) => lanes!(i32 = |a: i16, b: i16| i32::from(a) * i32::from(b)),
        Ty::U(32) => lanes!(u64 = |a: u32, b: u32| u64::from(a) * u64::from(b)),
        Ty::S(32) => lanes!(i64 = |a: i32, b: i32| i64::from(a) * i64::from(b)),
        _ => return None,
    })
}

fn wide_mad(ty: Ty) -> Option<AluFn> {
    Some(match ty {
        Ty::U(16) => lanes!(u32 = |a: u16, b: u16, c: u32| (u32::from(a) * u32::from(b)).wrapping_add(c)),
        Ty::S(16) => lanes!(i32 = |a: i16, b: i16, c: i32| (i32::from(a) * i32::from(b)).wrapping_add(c)),
        Ty::U(32) => lanes!(u64 = |a: u32, b: u32, c: u64| (u64::from(a) * u64::from(b)).wrapping_add(c)),
        Ty::S(32) => lanes!(i64 = |a: i32, b: i32, c: i64| (i64::from(a) * i64::from(b)).wrapping_add(c)),
        _ => return None,
    })
}

fn high_product(ty: Ty) -> Option<AluFn> {
    Some(match ty {
        Ty::U(16) => lanes!(u16 = |a: u16, b: u16| ((u32::from(a) * u32::from(b)) >> 16) as u16),
        Ty::S(16) => lanes!(i16 = |a: i16, b: i16| ((i32::from(a) * i32::from(b)) >> 16) as i16),
        Ty::U(32) => lanes!(u32 = |a: u32, b: u32| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        Ty::S(32) => lanes!(i32 = |a: i32, b: i32| ((i64::from(a) * i64::from(b)) >> 32) as i32),
        Ty::U(64) => lanes!(u64 = |a: u64, b: u64| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        Ty::S(64) => lanes!(i64 = |a: i64, b: i64| ((i128::from(a) * i128::from(b)) >> 64) as i64),
        _ => return None,
    })
}

fn high_mad(ty: Ty) -> Option<AluFn> {
    Some(match ty {
        Ty::U(32) => {
            lanes!(u32 = |a: u32, b: u32, c: u32| (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c))
        }
        Ty::S(32) => {
            lanes!(i32 = |a: i32, b: i32, c: i32| (((i64::from(a) * i64::from(b)) >> 32) as i32).wrapping_add(c))
        }
        Ty::U(64) => {
            lanes!(u64 = |a: u64, b: u64, c: u64| (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c))
        }
        Ty::S(64) => {
            lanes!(i64 = |a: i64, b: i64, c: i64| (((i128::from(a) * i128::from(b)) >> 64) as i64).wrapping_add(c))
        }
        _ => return None,
    })
}

fn product(m: &mut Mnemonic<'_>, ty: Ty) -> Option<Alu> {
    let add = m.base == "mad";
    let sources = |c: Ty| if add { vec![ty, ty, c] } else { vec![ty, ty] };
    if m.take("wide") {
        let run = if add { wide_mad(ty)? } else { wide_product(ty)? };
        return Some(Alu::new(run, widened(ty), &sources(widened(ty)), Kind::Integer));
    }
    let run = match (m.any(&["lo", "hi"])?, add) {
        ("hi", false) => high_product(ty)?,
        ("hi", true) => high_mad(ty)?,
        (_, false) => unsigned!(ty, |a, b| a.wrapping_mul(b)),
        (_, true) => unsigned!(ty, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
    };
    Some(Alu::new(run, ty, &sources(ty), Kind::Integer))
}

fn saturating(m: &Mnemonic<'_>, ty: Ty) -> Option<Alu> {
    let run = match (m.base, ty) {
        ("add", Ty::S(32)) => lanes!(i32 = |a: i32, b: i32| a.saturating_add(b)),
        ("sub", Ty::S(32)) => lanes!(i32 = |a: i32, b: i32| a.saturating_sub(b)),
        _ => return None,
    };
    Some(Alu::new(run, ty, &[ty, ty], Kind::Integer))
}

/// Arithmetic of two or three integers of one type.
pub(super) fn select(m: &mut Mnemonic<'_>, ty: Ty) -> Option<Alu> {
    if m.take("sat") {
        return saturating(m, ty);
    }
    let two = |run| Some(Alu::new(run, ty, &[ty, ty], Kind::Integer));
    let one = |run| Some(Alu::new(run, ty, &[ty], Kind::Integer));
    match m.base {
        "mul" | "mad" => product(m, ty),
        "add" => two(unsigned!(ty, |a, b| a.wrapping_add(b))),
        "sub" => two(unsigned!(ty, |a, b| a.wrapping_sub(b))),
        "div" => two(signed!(ty, |a, b| if b == 0 { !0 } else { a.wrapping_div(b) })),
        "rem" => two(signed!(ty, |a, b| if b == 0 { a } else { a.wrapping_rem(b) })),
        "min" => two(signed!(ty, |a, b| a.min(b))),
        "max" => two(signed!(ty, |a, b| a.max(b))),
        "abs" => one(negative!(ty, |a| a.wrapping_abs())),
        "neg" => one(negative!(ty, |a| a.wrapping_neg())),
        _ => None,
    }
}
