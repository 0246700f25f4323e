//! What a quantized type is to the product: groups of 32 weights as bytes, with scales and minimums.
//!
//! A row is walked in steps of 256 elements: one block of a K type, or up to 8 blocks of a type of 32 elements. Here is the
//! plain version of each format, which the vector leaves are compared with.

use half::f16;
use outboard_core::DType;
pub use outboard_core::quant::layout::{
    IQ4_NL, IQ4_XS, MXFP4, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0,
};
use outboard_core::quant::{IQ4_VALUES, MXFP4_VALUES, e8m0_half, q3_k_scale, scale_min_k4};

/// Scales and minimums of a step; the first 8 where a scale covers 32 elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scales {
    /// Factors.
    pub d: [f32; 16],
    /// What is added to the products; zero for a signed format.
    pub m: [f32; 16],
}

/// A quantized type: weight i of a step is `d[i / SPAN] * q[i] + m[i / SPAN]`.
pub trait Format {
    /// Which type.
    const DTYPE: DType;
    /// Elements that share a scale: 16 or 32.
    const SPAN: usize = 32;
    /// Bits of q. With 8, q is signed (`i8`) and there are no minimums; with less, unsigned.
    const BITS: u32;
    /// The q that stands for zero, where that is the same everywhere and minimums only make up for it; 0 where there are none or they are
    /// numbers of their own.
    const ZERO: i16 = 0;
    /// Bytes of a group of 32 where blocks have 32 elements, of the whole step otherwise.
    const BYTES: usize = Self::DTYPE.block_bytes();
    /// Bytes of a whole step.
    const STEP: usize = Self::BYTES * (256 / Self::DTYPE.block_len());

    /// Scales and minimums of the step; groups that `w` does not have get zeros.
    fn scales(w: &[u8]) -> Scales;
    /// Group `j`, which `w` must have.
    fn unpack(w: &[u8], j: usize) -> [u8; 32];
}

/// Calls `$body` with `$F` standing for the format of `$dtype`; `None` if it is not quantized (or Q8_K).
macro_rules! with_format {
    ($dtype:expr, $F:ident => $body:expr) => {{
        use outboard_core::DType;
        use $crate::kernels::format as fmt;
        macro_rules! arm {
            ($t:ident) => {{
                type $F = fmt::$t;
                Some($body)
            }};
        }
        match $dtype {
            DType::Q4_0 => arm!(Q4_0),
            DType::Q4_1 => arm!(Q4_1),
            DType::Q5_0 => arm!(Q5_0),
            DType::Q5_1 => arm!(Q5_1),
            DType::Q8_0 => arm!(Q8_0),
            DType::Q2_K => arm!(Q2_K),
            DType::Q3_K => arm!(Q3_K),
            DType::Q4_K => arm!(Q4_K),
            DType::Q5_K => arm!(Q5_K),
            DType::Q6_K => arm!(Q6_K),
            DType::IQ4_NL => arm!(IQ4_NL),
            DType::IQ4_XS => arm!(IQ4_XS),
            DType::MXFP4 => arm!(MXFP4),
            DType::F32 | DType::F16 | DType::BF16 | DType::I32 | DType::Q8_K => None,
        }
    }};
}
pub(crate) use with_format;

/// `N` bytes of `w` from `at`, as an array: one bounds check in place of one per byte.
fn part<const N: usize>(w: &[u8], at: usize) -> &[u8; N] {
    &w[at..at + N].as_chunks().0[0]
}

fn f16_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

/// Scales of a type of 32 elements: `f` gives scale and minimum of a block.
fn each_block(w: &[u8], bytes: usize, f: impl Fn(&[u8]) -> (f32, f32)) -> Scales {
    let mut s = Scales { d: [0.0; 16], m: [0.0; 16] };
    for (j, b) in w.chunks_exact(bytes).enumerate() {
        (s.d[j], s.m[j]) = f(b);
    }
    s
}

/// Low halves of 16 bytes, then high halves.
fn nibbles(b: &[u8]) -> [u8; 32] {
    let b = part::<16>(b, 0);
    std::array::from_fn(|i| if i < 16 { b[i] & 15 } else { b[i - 16] >> 4 })
}

/// [`nibbles`] behind a mask of fifth bits.
fn five(b: &[u8]) -> [u8; 32] {
    let (mask, q) = (u32::from_le_bytes(*part(b, 0)), nibbles(&b[4..]));
    std::array::from_fn(|i| q[i] | ((mask >> i & 1) as u8) << 4)
}

macro_rules! format {
    ($(#[$meta:meta])* $name:ident, bits $bits:literal, $(zero $zero:expr,)? span $span:literal, $w:ident, $j:ident, scales $scales:expr, unpack $unpack:expr) => {
        $(#[$meta])*
        impl Format for $name {
            const DTYPE: DType = DType::$name;
            const SPAN: usize = $span;
            const BITS: u32 = $bits;
            $(const ZERO: i16 = $zero;)?

            fn scales($w: &[u8]) -> Scales {
                $scales
            }

            fn unpack($w: &[u8], $j: usize) -> [u8; 32] {
                $unpack
            }
        }
    };
}

format!(
    /// `d * (q - 8)`.
    Q4_0, bits 4, zero 8, span 32, w, j,
    scales each_block(w, Self::BYTES, |b| (f16_at(b, Self::D), -8.0 * f16_at(b, Self::D))),
    unpack nibbles(&w[j * Self::BYTES + Self::QS..])
);
format!(
    /// `d * q + m`.
    Q4_1, bits 4, span 32, w, j,
    scales each_block(w, Self::BYTES, |b| (f16_at(b, Self::D), f16_at(b, Self::M))),
    unpack nibbles(&w[j * Self::BYTES + Self::QS..])
);
format!(
    /// `d * (q - 16)`.
    Q5_0, bits 5, zero 16, span 32, w, j,
    scales each_block(w, Self::BYTES, |b| (f16_at(b, Self::D), -16.0 * f16_at(b, Self::D))),
    unpack five(&w[j * Self::BYTES + Self::QH..])
);
format!(
    /// `d * q + m`.
    Q5_1, bits 5, span 32, w, j,
    scales each_block(w, Self::BYTES, |b| (f16_at(b, Self::D), f16_at(b, Self::M))),
    unpack five(&w[j * Self::BYTES + Self::QH..])
);
format!(
    /// `d * q`, signed.
    Q8_0, bits 8, span 32, w, j,
    scales each_block(w, Self::BYTES, |b| (f16_at(b, Self::D), 0.0)),
    unpack *part(w, j * Self::BYTES + Self::QS)
);
format!(
    /// `d * scale * q - dmin * min` in groups of 16.
    Q2_K, bits 2, span 16, w, _j,
    scales Scales {
        d: std::array::from_fn(|j| f16_at(w, Self::D) * f32::from(w[Self::SCALES + j] & 15)),
        m: std::array::from_fn(|j| -f16_at(w, Self::DMIN) * f32::from(w[Self::SCALES + j] >> 4)),
    },
    unpack part::<32>(w, Self::QS + _j / 4 * 32).map(|q| q >> (2 * (_j % 4)) & 3)
);
format!(
    /// `d * scale * (q - 4)` in groups of 16.
    Q3_K, bits 3, zero 4, span 16, w, _j,
    scales {
        let packed: [u8; 12] = std::array::from_fn(|i| w[Self::SCALES + i]);
        let d: [f32; 16] = std::array::from_fn(|j| f16_at(w, Self::D) * f32::from(q3_k_scale(&packed, j)));
        Scales { d, m: d.map(|d| -4.0 * d) }
    },
    unpack {
        let (low, high) = (part::<32>(w, Self::QS + _j / 4 * 32), part::<32>(w, Self::HMASK));
        std::array::from_fn(|i| low[i] >> (2 * (_j % 4)) & 3 | (high[i] >> _j & 1) << 2)
    }
);
format!(
    /// `d * scale * q - dmin * min`.
    Q4_K, bits 4, span 32, w, _j,
    scales k4_scales(w),
    unpack part::<32>(w, Self::QS + _j / 2 * 32).map(|q| q >> (4 * (_j % 2)) & 15)
);
format!(
    /// `d * scale * q - dmin * min`.
    Q5_K, bits 5, span 32, w, _j,
    scales k4_scales(w),
    unpack {
        let (low, high) = (part::<32>(w, Self::QS + _j / 2 * 32), part::<32>(w, Self::QH));
        std::array::from_fn(|i| low[i] >> (4 * (_j % 2)) & 15 | (high[i] >> _j & 1) << 4)
    }
);
format!(
    /// `d * scale * (q - 32)` in groups of 16.
    Q6_K, bits 6, zero 32, span 16, w, _j,
    scales {
        let d: [f32; 16] = std::array::from_fn(|j| f16_at(w, Self::D) * f32::from(w[Self::SCALES + j] as i8));
        Scales { d, m: d.map(|d| -32.0 * d) }
    },
    unpack {
        let (half, r) = (_j / 4, _j % 4);
        let (low, high) = (part::<32>(w, Self::QL + half * 64 + r % 2 * 32), part::<32>(w, Self::QH + half * 32));
        std::array::from_fn(|i| low[i] >> (4 * (r / 2)) & 15 | (high[i] >> (2 * r) & 3) << 4)
    }
);
format!(
    /// `d * table[q]`, signed.
    IQ4_NL, bits 8, span 32, w, j,
    scales each_block(w, Self::BYTES, |b| (f16_at(b, Self::D), 0.0)),
    unpack nibbles(&w[j * Self::BYTES + Self::QS..]).map(|q| IQ4_VALUES[usize::from(q)] as u8)
);
format!(
    /// `d * scale * table[q]`, signed.
    IQ4_XS, bits 8, span 32, w, _j,
    scales {
        let high = u16::from_le_bytes([w[Self::SCALES_H], w[Self::SCALES_H + 1]]);
        let scale = |j: usize| i32::from(u16::from(w[Self::SCALES_L + j / 2] >> (4 * (j % 2)) & 15) | (high >> (2 * j) & 3) << 4) - 32;
        Scales { d: std::array::from_fn(|j| if j < 8 { f16_at(w, Self::D) * scale(j) as f32 } else { 0.0 }), m: [0.0; 16] }
    },
    unpack nibbles(&w[Self::QS + _j * 16..]).map(|q| IQ4_VALUES[usize::from(q)] as u8)
);
/// Makes every MXFP4 value (in halves) at least 0.
pub(crate) const MXFP4_OFFSET: i8 = 12;
format!(
    /// `2^e / 2 * (q - 12)`.
    MXFP4, bits 5, zero MXFP4_OFFSET as i16, span 32, w, j,
    scales each_block(w, Self::BYTES, |b| (e8m0_half(b[Self::E]), -f32::from(MXFP4_OFFSET) * e8m0_half(b[Self::E]))),
    unpack nibbles(&w[j * Self::BYTES + Self::QS..]).map(|q| (MXFP4_VALUES[usize::from(q)] + MXFP4_OFFSET) as u8)
);

/// Scales and minimums of Q4_K and Q5_K.
fn k4_scales(w: &[u8]) -> Scales {
    let packed: [u8; 12] = std::array::from_fn(|i| w[Q4_K::SCALES + i]);
    let mut s = Scales { d: [0.0; 16], m: [0.0; 16] };
    for j in 0..8 {
        let (scale, min) = scale_min_k4(&packed, j);
        s.d[j] = f16_at(w, Q4_K::D) * f32::from(scale);
        s.m[j] = -f16_at(w, Q4_K::DMIN) * f32::from(min);
    }
    s
}

/// The 6-bit scales and minimums of Q4_K and Q5_K, a byte each, from the three words that hold them: all eight at once.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
pub(super) fn k4_bytes([a, b, c]: [u32; 3]) -> [u64; 2] {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    [
        pair(a & 0x3f3f_3f3f, c & 0x0f0f_0f0f | (a >> 6 & 0x0303_0303) << 4),
        pair(b & 0x3f3f_3f3f, c >> 4 & 0x0f0f_0f0f | (b >> 6 & 0x0303_0303) << 4),
    ]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use outboard_core::quant::{dequantize_row, quantize_row};

    /// Numbers without a pattern in -1.5..1.5.
    pub(crate) fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut s = seed.wrapping_mul(2654435761);
        let mut next = || {
            s = s.wrapping_mul(1664525).wrapping_add(1013904223);
            (s >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..n).map(|_| next() + next() + next()).collect()
    }

    /// A row of `k` weights of that type.
    pub(crate) fn weights(dtype: DType, k: usize, seed: u32) -> Vec<u8> {
        let mut w = vec![0; dtype.row_bytes(k).unwrap()];
        quantize_row(dtype, &noise(k, seed), &mut w).unwrap();
        w
    }

    /// Bytes without a pattern, but with finite scales: more of a format's range than a quantizer uses.
    pub(crate) fn wild(dtype: DType, k: usize, seed: u32) -> Vec<u8> {
        let n = dtype.row_bytes(k).unwrap();
        let mut w: Vec<u8> = noise(n, seed).iter().map(|v| (v * 1e6) as i32 as u8).collect();
        let one = [0x00, 0x3c];
        for b in w.chunks_exact_mut(dtype.block_bytes()) {
            let at: &[usize] = match dtype {
                DType::Q4_1 => &[Q4_1::D, Q4_1::M],
                DType::Q5_1 => &[Q5_1::D, Q5_1::M],
                DType::Q2_K => &[Q2_K::D, Q2_K::DMIN],
                DType::Q3_K => &[Q3_K::D],
                DType::Q4_K | DType::Q5_K => &[Q4_K::D, Q4_K::DMIN],
                DType::Q6_K => &[Q6_K::D],
                DType::MXFP4 => &[],
                _ => &[Q4_0::D],
            };
            for &at in at {
                let scale = f16::from_f32(f16::from_le_bytes(one).to_f32() * (f32::from(b[at]) - 100.0) / 64.0);
                b[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            }
            if dtype == DType::MXFP4 {
                b[MXFP4::E] = 120 + b[MXFP4::E] % 16;
            }
        }
        w
    }

    #[test]
    fn formats_agree_with_the_definition() {
        for dtype in DType::ALL {
            with_format!(dtype, F => {
                for (seed, k) in [(1, 256), (2, if F::STEP == F::BYTES { 256 } else { 96 })] {
                    for w in [weights(dtype, k, seed), wild(dtype, k, seed)] {
                        let mut want = vec![0.0; k];
                        dequantize_row(dtype, &w, &mut want).unwrap();
                        let s = F::scales(&w);
                        let zero = f32::from(F::ZERO);
                        assert!(F::ZERO == 0 || s.d.iter().zip(&s.m).all(|(d, m)| *m == -zero * d));
                        for (i, want) in want.iter().enumerate() {
                            let q = F::unpack(&w, i / 32)[i % 32];
                            let q = if F::BITS == 8 { f32::from(q as i8) } else { f32::from(q) };
                            let got = s.d[i / F::SPAN] * q + s.m[i / F::SPAN];
                            let size = (s.d[i / F::SPAN] * q).abs() + s.m[i / F::SPAN].abs();
                            assert!((got - want).abs() <= 1e-6 * size, "{dtype} element {i}: {got}, not {want}");
                            assert!(F::BITS == 8 || q < (1 << F::BITS) as f32);
                        }
                    }
                }
            });
        }
    }
}
