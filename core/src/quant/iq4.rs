//! IQ4_NL and IQ4_XS: nibbles that index a fixed table, denser near zero as weights are.

use super::layout::{IQ4_NL, IQ4_XS};
use super::{extreme, f16_at, inverse, nearest, put_f16};

/// The table of both types, in units of the scale; ascending.
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Index of the value nearest to `x`.
fn index(x: f32) -> u8 {
    (0..15).find(|&i| x < (f32::from(IQ4_VALUES[i]) + f32::from(IQ4_VALUES[i + 1])) / 2.0).unwrap_or(15) as u8
}

/// 32 elements of scale `d`, nibbles as in Q4_0.
fn read_group(d: f32, qs: &[u8], y: &mut [f32]) {
    for j in 0..16 {
        y[j] = d * f32::from(IQ4_VALUES[usize::from(qs[j] & 15)]);
        y[j + 16] = d * f32::from(IQ4_VALUES[usize::from(qs[j] >> 4)]);
    }
}

fn write_group(id: f32, x: &[f32], qs: &mut [u8]) {
    for j in 0..16 {
        qs[j] = index(x[j] * id) | index(x[j + 16] * id) << 4;
    }
}

/// `d * table[q]`.
pub(super) fn read_iq4_nl(b: &[u8; IQ4_NL::BYTES], y: &mut [f32; 32]) {
    read_group(f16_at(b, IQ4_NL::D), &b[IQ4_NL::QS..], y);
}

pub(super) fn write_iq4_nl(x: &[f32; 32], b: &mut [u8; IQ4_NL::BYTES]) {
    let d = put_f16(b, IQ4_NL::D, extreme(x).1 / f32::from(IQ4_VALUES[0]));
    write_group(inverse(d), x, &mut b[IQ4_NL::QS..]);
}

/// Scale of group `j` (of 8): 4 low bits in `scales_l`, 2 high bits in `scales_h`, minus 32.
fn xs_scale(b: &[u8; IQ4_XS::BYTES], j: usize) -> i32 {
    let high = u16::from_le_bytes([b[IQ4_XS::SCALES_H], b[IQ4_XS::SCALES_H + 1]]) >> (2 * j) & 3;
    i32::from(u16::from(b[IQ4_XS::SCALES_L + j / 2] >> (4 * (j % 2)) & 15) | high << 4) - 32
}

/// 8 groups of 32, `d * scale * table[q]`.
pub(super) fn read_iq4_xs(b: &[u8; IQ4_XS::BYTES], y: &mut [f32; 256]) {
    let d = f16_at(b, IQ4_XS::D);
    for (j, y) in y.chunks_exact_mut(32).enumerate() {
        read_group(d * xs_scale(b, j) as f32, &b[IQ4_XS::QS + 16 * j..], y);
    }
}

pub(super) fn write_iq4_xs(x: &[f32; 256], b: &mut [u8; IQ4_XS::BYTES]) {
    b.fill(0);
    let mut scales = [0f32; 8];
    for (s, g) in scales.iter_mut().zip(x.chunks_exact(32)) {
        *s = extreme(g).1 / f32::from(IQ4_VALUES[0]);
    }
    let d = put_f16(b, IQ4_XS::D, extreme(&scales).1 / -32.0);
    let mut high = 0u16;
    for (j, g) in x.chunks_exact(32).enumerate() {
        let s = nearest(scales[j] * inverse(d), -32, 31);
        let u = (s + 32) as u8;
        b[IQ4_XS::SCALES_L + j / 2] |= (u & 15) << (4 * (j % 2));
        high |= u16::from(u >> 4) << (2 * j);
        write_group(inverse(d * s as f32), g, &mut b[IQ4_XS::QS + 16 * j..][..16]);
    }
    b[IQ4_XS::SCALES_H..][..2].copy_from_slice(&high.to_le_bytes());
}
