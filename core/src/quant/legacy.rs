//! The types of 32 elements with one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
//!
//! Nibbles: byte j holds element j in its low and element j + 16 in its high half; a fifth bit comes from a 32-bit mask.

use super::layout::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use super::{extreme, f16_at, inverse, min_max, nearest, put_f16};

/// `d * (q - 8)`.
pub(super) fn read_q4_0(b: &[u8; Q4_0::BYTES], y: &mut [f32; 32]) {
    let d = f16_at(b, Q4_0::D);
    for j in 0..16 {
        y[j] = d * (f32::from(b[Q4_0::QS + j] & 15) - 8.0);
        y[j + 16] = d * (f32::from(b[Q4_0::QS + j] >> 4) - 8.0);
    }
}

pub(super) fn write_q4_0(x: &[f32; 32], b: &mut [u8; Q4_0::BYTES]) {
    // The range is -8..=7: the extreme takes -8, whatever its sign.
    let d = extreme(x).1 / -8.0;
    let id = inverse(d);
    put_f16(b, Q4_0::D, d);
    let q = |v: f32| nearest(v * id + 8.0, 0, 15) as u8;
    for j in 0..16 {
        b[Q4_0::QS + j] = q(x[j]) | q(x[j + 16]) << 4;
    }
}

/// `d * q + m`.
pub(super) fn read_q4_1(b: &[u8; Q4_1::BYTES], y: &mut [f32; 32]) {
    let (d, m) = (f16_at(b, Q4_1::D), f16_at(b, Q4_1::M));
    for j in 0..16 {
        y[j] = d * f32::from(b[Q4_1::QS + j] & 15) + m;
        y[j + 16] = d * f32::from(b[Q4_1::QS + j] >> 4) + m;
    }
}

pub(super) fn write_q4_1(x: &[f32; 32], b: &mut [u8; Q4_1::BYTES]) {
    let (lo, hi) = min_max(x);
    let d = (hi - lo) / 15.0;
    let id = inverse(d);
    put_f16(b, Q4_1::D, d);
    put_f16(b, Q4_1::M, lo);
    let q = |v: f32| nearest((v - lo) * id, 0, 15) as u8;
    for j in 0..16 {
        b[Q4_1::QS + j] = q(x[j]) | q(x[j + 16]) << 4;
    }
}

/// Element j of 32 five-bit values.
fn five(qh: &[u8], qs: &[u8], j: usize) -> f32 {
    let low = if j < 16 { qs[j] & 15 } else { qs[j - 16] >> 4 };
    f32::from(low | (qh[j / 8] >> (j % 8) & 1) << 4)
}

/// Writes fifth bits and the nibbles behind them.
fn put_five(qh_qs: &mut [u8], q: [u8; 32]) {
    let mut mask = 0u32;
    for (j, &v) in q.iter().enumerate() {
        mask |= u32::from(v >> 4) << j;
    }
    qh_qs[..4].copy_from_slice(&mask.to_le_bytes());
    for j in 0..16 {
        qh_qs[4 + j] = q[j] & 15 | (q[j + 16] & 15) << 4;
    }
}

/// `d * (q - 16)`.
pub(super) fn read_q5_0(b: &[u8; Q5_0::BYTES], y: &mut [f32; 32]) {
    let d = f16_at(b, Q5_0::D);
    for (j, y) in y.iter_mut().enumerate() {
        *y = d * (five(&b[Q5_0::QH..], &b[Q5_0::QS..], j) - 16.0);
    }
}

pub(super) fn write_q5_0(x: &[f32; 32], b: &mut [u8; Q5_0::BYTES]) {
    let d = extreme(x).1 / -16.0;
    let id = inverse(d);
    put_f16(b, Q5_0::D, d);
    put_five(&mut b[Q5_0::QH..], x.map(|v| nearest(v * id + 16.0, 0, 31) as u8));
}

/// `d * q + m`.
pub(super) fn read_q5_1(b: &[u8; Q5_1::BYTES], y: &mut [f32; 32]) {
    let (d, m) = (f16_at(b, Q5_1::D), f16_at(b, Q5_1::M));
    for (j, y) in y.iter_mut().enumerate() {
        *y = d * five(&b[Q5_1::QH..], &b[Q5_1::QS..], j) + m;
    }
}

pub(super) fn write_q5_1(x: &[f32; 32], b: &mut [u8; Q5_1::BYTES]) {
    let (lo, hi) = min_max(x);
    let d = (hi - lo) / 31.0;
    let id = inverse(d);
    put_f16(b, Q5_1::D, d);
    put_f16(b, Q5_1::M, lo);
    put_five(&mut b[Q5_1::QH..], x.map(|v| nearest((v - lo) * id, 0, 31) as u8));
}

/// `d * q`.
pub(super) fn read_q8_0(b: &[u8; Q8_0::BYTES], y: &mut [f32; 32]) {
    let d = f16_at(b, Q8_0::D);
    for (y, &q) in y.iter_mut().zip(&b[Q8_0::QS..]) {
        *y = d * f32::from(q as i8);
    }
}

pub(super) fn write_q8_0(x: &[f32; 32], b: &mut [u8; Q8_0::BYTES]) {
    let d = extreme(x).0 / 127.0;
    let id = inverse(d);
    put_f16(b, Q8_0::D, d);
    for (q, &v) in b[Q8_0::QS..].iter_mut().zip(x) {
        *q = nearest(v * id, -128, 127) as i8 as u8;
    }
}
