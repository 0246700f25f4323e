//! MXFP4, of the OCP Microscaling Formats specification 1.0: FP4 (E2M1) elements with a shared power of two.

use super::extreme;
use super::layout::MXFP4;

/// Twice the value of each E2M1 code, so that they are integers; the scale is halved in turn ([`e8m0_half`]).
pub const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of the scale that the exponent `e` stands for: `2^(e - 128)`.
pub fn e8m0_half(e: u8) -> f32 {
    // The two smallest are subnormal.
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}

/// Exponent, nibbles as in Q4_0.
pub(super) fn read_mxfp4(b: &[u8; MXFP4::BYTES], y: &mut [f32; 32]) {
    let d = e8m0_half(b[MXFP4::E]);
    for j in 0..16 {
        y[j] = d * f32::from(MXFP4_VALUES[usize::from(b[MXFP4::QS + j] & 15)]);
        y[j + 16] = d * f32::from(MXFP4_VALUES[usize::from(b[MXFP4::QS + j] >> 4)]);
    }
}

pub(super) fn write_mxfp4(x: &[f32; 32], b: &mut [u8; MXFP4::BYTES]) {
    // The specification's rule: the exponent of the largest element minus that of the largest E2M1 value (6 = 1.5 * 2^2).
    let (largest, _) = extreme(x);
    let exponent = (largest.to_bits() >> 23 & 255) as i32;
    // Below 2 the inverse of the scale is no longer finite.
    b[MXFP4::E] = (exponent - 2).clamp(2, 254) as u8;
    let id = 1.0 / e8m0_half(b[MXFP4::E]);
    let index = |v: f32| {
        let a = (v * id).abs();
        let best =
            (0..7u8).find(|&i| a <= f32::from(MXFP4_VALUES[usize::from(i)] + MXFP4_VALUES[usize::from(i) + 1]) / 2.0);
        best.unwrap_or(7) | u8::from(v < 0.0) << 3
    };
    for j in 0..16 {
        b[MXFP4::QS + j] = index(x[j]) | index(x[j + 16]) << 4;
    }
}
