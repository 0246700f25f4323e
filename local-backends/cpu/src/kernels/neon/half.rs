//! F16 to F32 and back, four at a time. FCVTL and FCVTN are part of NEON itself, while Rust gives them only together with
//! arithmetic in F16, which a Cortex-A72 lacks: hence as assembly.

use half::f16;
use std::arch::aarch64::*;
use std::arch::asm;

/// Four F16 (as bits) in F32.
#[inline]
#[target_feature(enable = "neon")]
pub(in crate::kernels) fn widen(v: uint16x4_t) -> float32x4_t {
    let out: float32x4_t;
    // SAFETY: FCVTL reads one register and writes another.
    unsafe {
        asm!("fcvtl {o:v}.4s, {i:v}.4h", o = lateout(vreg) out, i = in(vreg) v,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// Four floats as F16 (bits), rounded to the nearest, to even between two.
#[inline]
#[target_feature(enable = "neon")]
fn narrow(v: float32x4_t) -> uint16x4_t {
    let out: uint16x4_t;
    // SAFETY: FCVTN reads one register and writes another.
    unsafe {
        asm!("fcvtn {o:v}.4h, {i:v}.4s", o = lateout(vreg) out, i = in(vreg) v,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// F16 to F32.
///
/// # Panics
/// If the lengths differ.
pub(in crate::kernels) fn from_f16(x: &[f16], y: &mut [f32]) {
    assert_eq!(x.len(), y.len());
    let ((fours, rest), (y, y_rest)) = (x.as_chunks::<4>(), y.as_chunks_mut::<4>());
    for (x, y) in fours.iter().zip(y) {
        // SAFETY: NEON is part of aarch64; both are four elements, and an f16 is its bits.
        unsafe { vst1q_f32(y.as_mut_ptr(), widen(vld1_u16(x.as_ptr().cast()))) };
    }
    for (x, y) in rest.iter().zip(y_rest) {
        *y = x.to_f32();
    }
}

/// F32 to F16.
///
/// # Panics
/// If the lengths differ.
pub(in crate::kernels) fn to_f16(x: &[f32], y: &mut [f16]) {
    assert_eq!(x.len(), y.len());
    let ((fours, rest), (y, y_rest)) = (x.as_chunks::<4>(), y.as_chunks_mut::<4>());
    for (x, y) in fours.iter().zip(y) {
        // SAFETY: NEON is part of aarch64; both are four elements, and an f16 is its bits.
        unsafe { vst1_u16(y.as_mut_ptr().cast(), narrow(vld1q_f32(x.as_ptr()))) };
    }
    for (x, y) in rest.iter().zip(y_rest) {
        *y = f16::from_f32(*x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the definition gives, by way of F64.
    fn value(bits: u16) -> f64 {
        let (sign, e, m) = (bits >> 15, i32::from(bits >> 10 & 31), f64::from(bits & 1023));
        let v = match e {
            0 => m * 2f64.powi(-24),
            31 if m == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1024.0 + m) * 2f64.powi(e - 25),
        };
        if sign == 1 { -v } else { v }
    }

    #[test]
    fn every_f16_there_and_back() {
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        // Not a multiple of four, so that the rest is tested, too.
        let all = &all[1..];
        let mut y = vec![0f32; all.len()];
        from_f16(all, &mut y);
        let mut back = vec![f16::ZERO; all.len()];
        to_f16(&y, &mut back);
        for ((x, y), back) in all.iter().zip(&y).zip(&back) {
            let want = value(x.to_bits());
            if want.is_nan() {
                assert!(y.is_nan() && back.is_nan(), "{:#x}", x.to_bits());
            } else {
                assert!(f64::from(*y).to_bits() == want.to_bits(), "{:#x} is {want}, not {y}", x.to_bits());
                assert_eq!(x.to_bits(), back.to_bits());
            }
        }
    }

    #[test]
    fn rounding_is_to_even() {
        let positive: Vec<u16> = (0..0x7bff).collect();
        let mut x = Vec::new();
        let mut want = Vec::new();
        for bits in positive {
            let (a, b) = (value(bits), value(bits + 1));
            let middle = ((a + b) / 2.0) as f32;
            x.extend([middle, f32::from_bits(middle.to_bits() - 1), f32::from_bits(middle.to_bits() + 1), -middle]);
            let even = bits + bits % 2;
            want.extend([even, bits, bits + 1, even | 0x8000]);
        }
        x.extend([65519.99, 65520.0, f32::MAX, -1e-9]);
        want.extend([0x7bff, 0x7c00, 0x7c00, 0x8000]);
        let mut got = vec![f16::ZERO; x.len()];
        to_f16(&x, &mut got);
        for ((x, want), got) in x.iter().zip(want).zip(got) {
            assert_eq!(got.to_bits(), want, "{x}");
        }
    }
}
