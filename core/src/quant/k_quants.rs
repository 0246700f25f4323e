//! The K types: 256 elements, f16 scales of the whole, and small integer scales of groups of 16 or 32.

use super::layout::{Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K};
use super::{extreme, f16_at, inverse, min_max, nearest, put_f16};

/// Scale and minimum of group `j` (of 8) of Q4_K and Q5_K: 6 bits each, packed in 12 bytes.
pub fn scale_min_k4(s: &[u8; 12], j: usize) -> (u8, u8) {
    match j {
        0..4 => (s[j] & 63, s[j + 4] & 63),
        _ => (s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4),
    }
}

fn put_scale_min_k4(s: &mut [u8], j: usize, scale: u8, min: u8) {
    if j < 4 {
        s[j] |= scale;
        s[j + 4] |= min;
    } else {
        s[j + 4] = scale & 15 | (min & 15) << 4;
        s[j - 4] |= scale >> 4 << 6;
        s[j] |= min >> 4 << 6;
    }
}

/// Scale of group `j` (of 16) of Q3_K, -32..=31: 4 low bits in 8 bytes, 2 high bits in 4 more.
pub fn q3_k_scale(s: &[u8; 12], j: usize) -> i8 {
    let low = if j < 8 { s[j] & 15 } else { s[j - 8] >> 4 };
    let high = s[8 + j % 4] >> (2 * (j / 4)) & 3;
    (low | high << 4) as i8 - 32
}

/// `N` bytes of `b` from `at`.
fn bytes<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&b[at..at + N]);
    out
}

/// Groups of `G` elements as `scale * q - min`, q in `0..=q_max`, with scales and minimums as integers up to `s_max` times
/// two f16: what Q2_K, Q4_K and Q5_K have in common. Stores d and dmin at `d_at`, gives integer scales, minimums and q.
fn scale_min_groups<const N: usize>(
    x: &[f32; 256],
    q_max: i32,
    s_max: i32,
    b: &mut [u8],
    d_at: usize,
) -> ([u8; N], [u8; N], [u8; 256]) {
    let size = 256 / N;
    let (mut scales, mut mins) = ([0f32; N], [0f32; N]);
    for (j, g) in x.chunks_exact(size).enumerate() {
        let (lo, hi) = min_max(g);
        let lo = lo.min(0.0);
        scales[j] = (hi - lo) / q_max as f32;
        mins[j] = -lo;
    }
    let d = put_f16(b, d_at, extreme(&scales).0 / s_max as f32);
    let dmin = put_f16(b, d_at + 2, extreme(&mins).0 / s_max as f32);
    let (id, idmin) = (inverse(d), inverse(dmin));
    let ls = scales.map(|s| nearest(s * id, 0, s_max) as u8);
    let lm = mins.map(|m| nearest(m * idmin, 0, s_max) as u8);
    let mut q = [0; 256];
    for (i, (q, &v)) in q.iter_mut().zip(x).enumerate() {
        let (s, m) = (d * f32::from(ls[i / size]), dmin * f32::from(lm[i / size]));
        *q = nearest((v + m) * inverse(s), 0, q_max) as u8;
    }
    (ls, lm, q)
}

/// Groups of 16 as `d * scale * q`, q in `-half..half`, integer scales in `-s_half..s_half`: Q3_K and Q6_K. Stores d.
fn scale_groups(x: &[f32; 256], half: i32, s_half: i32, b: &mut [u8], d_at: usize) -> ([i8; 16], [u8; 256]) {
    let mut scales = [0f32; 16];
    for (s, g) in scales.iter_mut().zip(x.chunks_exact(16)) {
        *s = extreme(g).1 / -half as f32;
    }
    let d = put_f16(b, d_at, extreme(&scales).1 / -s_half as f32);
    let id = inverse(d);
    let ls = scales.map(|s| nearest(s * id, -s_half, s_half - 1) as i8);
    let mut q = [0; 256];
    for (i, (q, &v)) in q.iter_mut().zip(x).enumerate() {
        *q = (nearest(v * inverse(d * f32::from(ls[i / 16])), -half, half - 1) + half) as u8;
    }
    (ls, q)
}

/// Groups of 16; a byte of `scales` has the scale low and the minimum high; in each half of
/// 128, byte l of 32 holds elements l, l + 32, l + 64, l + 96.
pub(super) fn read_q2_k(b: &[u8; Q2_K::BYTES], y: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(b, Q2_K::D), f16_at(b, Q2_K::DMIN));
    for (i, y) in y.iter_mut().enumerate() {
        let q = b[Q2_K::QS + i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3;
        let s = b[Q2_K::SCALES + i / 16];
        *y = d * f32::from(s & 15) * f32::from(q) - dmin * f32::from(s >> 4);
    }
}

pub(super) fn write_q2_k(x: &[f32; 256], b: &mut [u8; Q2_K::BYTES]) {
    b.fill(0);
    let (ls, lm, q) = scale_min_groups::<16>(x, 3, 15, b, Q2_K::D);
    for j in 0..16 {
        b[Q2_K::SCALES + j] = ls[j] | lm[j] << 4;
    }
    for (i, &q) in q.iter().enumerate() {
        b[Q2_K::QS + i / 128 * 32 + i % 32] |= q << (2 * (i % 128 / 32));
    }
}

/// As Q2_K with a third bit, which bit i / 32 of hmask byte i % 32 holds, and no minimum.
pub(super) fn read_q3_k(b: &[u8; Q3_K::BYTES], y: &mut [f32; 256]) {
    let (d, scales) = (f16_at(b, Q3_K::D), bytes::<12>(b, Q3_K::SCALES));
    for (i, y) in y.iter_mut().enumerate() {
        let low = b[Q3_K::QS + i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3;
        let high = b[Q3_K::HMASK + i % 32] >> (i / 32) & 1;
        *y = d * f32::from(q3_k_scale(&scales, i / 16)) * (f32::from(low | high << 2) - 4.0);
    }
}

pub(super) fn write_q3_k(x: &[f32; 256], b: &mut [u8; Q3_K::BYTES]) {
    b.fill(0);
    let (ls, q) = scale_groups(x, 4, 32, b, Q3_K::D);
    for (j, &s) in ls.iter().enumerate() {
        let s = (s + 32) as u8;
        b[Q3_K::SCALES + j % 8] |= (s & 15) << (4 * (j / 8));
        b[Q3_K::SCALES + 8 + j % 4] |= s >> 4 << (2 * (j / 4));
    }
    for (i, &q) in q.iter().enumerate() {
        b[Q3_K::QS + i / 128 * 32 + i % 32] |= (q & 3) << (2 * (i % 128 / 32));
        b[Q3_K::HMASK + i % 32] |= q >> 2 << (i / 32);
    }
}

/// The nibble of element `i`: in each quarter of 64, byte l of 32 holds elements l and l + 32.
fn nibble(qs: &[u8], i: usize) -> u8 {
    qs[i / 64 * 32 + i % 32] >> (4 * (i % 64 / 32)) & 15
}

/// Groups of 32, `d * scale * q - dmin * min`.
pub(super) fn read_q4_k(b: &[u8; Q4_K::BYTES], y: &mut [f32; 256]) {
    let (d, dmin, scales) = (f16_at(b, Q4_K::D), f16_at(b, Q4_K::DMIN), bytes::<12>(b, Q4_K::SCALES));
    for (i, y) in y.iter_mut().enumerate() {
        let (s, m) = scale_min_k4(&scales, i / 32);
        *y = d * f32::from(s) * f32::from(nibble(&b[Q4_K::QS..], i)) - dmin * f32::from(m);
    }
}

pub(super) fn write_q4_k(x: &[f32; 256], b: &mut [u8; Q4_K::BYTES]) {
    b.fill(0);
    let (ls, lm, q) = scale_min_groups::<8>(x, 15, 63, b, Q4_K::D);
    for j in 0..8 {
        put_scale_min_k4(&mut b[Q4_K::SCALES..Q4_K::QS], j, ls[j], lm[j]);
    }
    for (i, &q) in q.iter().enumerate() {
        b[Q4_K::QS + i / 64 * 32 + i % 32] |= q << (4 * (i % 64 / 32));
    }
}

/// As Q4_K with a fifth bit, which bit i / 32 of qh byte i % 32 holds.
pub(super) fn read_q5_k(b: &[u8; Q5_K::BYTES], y: &mut [f32; 256]) {
    let (d, dmin, scales) = (f16_at(b, Q5_K::D), f16_at(b, Q5_K::DMIN), bytes::<12>(b, Q5_K::SCALES));
    for (i, y) in y.iter_mut().enumerate() {
        let (s, m) = scale_min_k4(&scales, i / 32);
        let q = nibble(&b[Q5_K::QS..], i) | (b[Q5_K::QH + i % 32] >> (i / 32) & 1) << 4;
        *y = d * f32::from(s) * f32::from(q) - dmin * f32::from(m);
    }
}

pub(super) fn write_q5_k(x: &[f32; 256], b: &mut [u8; Q5_K::BYTES]) {
    b.fill(0);
    let (ls, lm, q) = scale_min_groups::<8>(x, 31, 63, b, Q5_K::D);
    for j in 0..8 {
        put_scale_min_k4(&mut b[Q5_K::SCALES..Q5_K::QH], j, ls[j], lm[j]);
    }
    for (i, &q) in q.iter().enumerate() {
        b[Q5_K::QS + i / 64 * 32 + i % 32] |= (q & 15) << (4 * (i % 64 / 32));
        b[Q5_K::QH + i % 32] |= q >> 4 << (i / 32);
    }
}

/// Where element `i` of a Q6_K block lies: byte and shift of its low nibble, byte and shift of its two high bits. In each
/// half of 128, byte l of 64 holds elements l and l + 64, byte l of 32 the high bits of l, l + 32, l + 64, l + 96.
fn q6_place(i: usize) -> (usize, usize, usize, usize) {
    let (half, r) = (i / 128, i % 128);
    (Q6_K::QL + half * 64 + r % 64, 4 * (r / 64), Q6_K::QH + half * 32 + r % 32, 2 * (r / 32))
}

/// Groups of 16, `d * scale * (q - 32)`.
pub(super) fn read_q6_k(b: &[u8; Q6_K::BYTES], y: &mut [f32; 256]) {
    let d = f16_at(b, Q6_K::D);
    for (i, y) in y.iter_mut().enumerate() {
        let (l, ls, h, hs) = q6_place(i);
        let q = b[l] >> ls & 15 | (b[h] >> hs & 3) << 4;
        *y = d * f32::from(b[Q6_K::SCALES + i / 16] as i8) * (f32::from(q) - 32.0);
    }
}

pub(super) fn write_q6_k(x: &[f32; 256], b: &mut [u8; Q6_K::BYTES]) {
    b.fill(0);
    let (scales, q) = scale_groups(x, 32, 128, b, Q6_K::D);
    for (b, s) in b[Q6_K::SCALES..][..16].iter_mut().zip(scales) {
        *b = s as u8;
    }
    for (i, &q) in q.iter().enumerate() {
        let (l, ls, h, hs) = q6_place(i);
        b[l] |= (q & 15) << ls;
        b[h] |= q >> 4 << hs;
    }
}

/// `d * q`.
pub(super) fn read_q8_k(b: &[u8; Q8_K::BYTES], y: &mut [f32; 256]) {
    let d = f32::from_le_bytes(bytes(b, Q8_K::D));
    for (y, &q) in y.iter_mut().zip(&b[Q8_K::QS..Q8_K::BSUMS]) {
        *y = d * f32::from(q as i8);
    }
}

pub(super) fn write_q8_k(x: &[f32; 256], b: &mut [u8; Q8_K::BYTES]) {
    let d = extreme(x).0 / 127.0;
    let id = inverse(d);
    b[Q8_K::D..][..4].copy_from_slice(&d.to_le_bytes());
    for (j, g) in x.chunks_exact(16).enumerate() {
        let mut sum = 0i16;
        for (l, &v) in g.iter().enumerate() {
            let q = nearest(v * id, -128, 127);
            b[Q8_K::QS + j * 16 + l] = q as u8;
            sum += q as i16;
        }
        b[Q8_K::BSUMS + 2 * j..][..2].copy_from_slice(&sum.to_le_bytes());
    }
}
