//! Quantizing activations with AVX2.

use crate::kernels::act::{ActBlock, BLOCK};
use std::arch::x86_64::*;

/// As the portable version, bit for bit.
#[target_feature(enable = "avx2")]
pub(in crate::kernels) fn quantize_block(x: &[f32; BLOCK], out: &mut ActBlock) {
    let sign = _mm256_set1_ps(-0.0);
    let ones = _mm256_set1_epi16(1);
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for j in 0..BLOCK / 32 {
        let p = x[j * 32..].as_ptr();
        // SAFETY: 32 floats lie behind p, the last index being 7 * 32 + 31.
        let v: [__m256; 4] = unsafe { [0, 8, 16, 24].map(|o| _mm256_loadu_ps(p.add(o))) };
        let [a, b, c, d] = v.map(|v| _mm256_andnot_ps(sign, v));
        let m = _mm256_max_ps(_mm256_max_ps(a, b), _mm256_max_ps(c, d));
        let m = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps::<1>(m));
        let m = _mm_max_ps(m, _mm_movehl_ps(m, m));
        let mut largest = _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
        // The maximum of two drops a NaN, and a NaN must come out of the product again.
        let nan = _mm256_or_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(a, b), _mm256_cmp_ps::<_CMP_UNORD_Q>(c, d));
        if _mm256_movemask_ps(nan) != 0 {
            largest = f32::NAN;
        }
        let d = largest / 127.0;
        let id = if d == 0.0 { 0.0 } else { 1.0 / d };
        // A tiny d has an infinite inverse; the limits keep the bytes those of the portable version.
        let (id, lo, hi) = (_mm256_set1_ps(id), _mm256_set1_ps(-127.0), _mm256_set1_ps(127.0));
        let i = v.map(|v| {
            let r = _mm256_mul_ps(v, id);
            let number = _mm256_cmp_ps::<_CMP_ORD_Q>(r, r);
            let r = _mm256_and_ps(_mm256_min_ps(_mm256_max_ps(r, lo), hi), number);
            _mm256_cvtps_epi32(r)
        });
        let low = _mm256_packs_epi32(i[0], i[1]);
        let high = _mm256_packs_epi32(i[2], i[3]);
        let q = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
        // SAFETY: 32 bytes from j * 32 lie in the 256 of q.
        unsafe { _mm256_storeu_si256(out.q[j * 32..].as_mut_ptr().cast(), q) };
        let sum = |v| {
            let v = _mm256_madd_epi16(v, ones);
            let v = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
            let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
            _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v)))
        };
        let (s0, s1) = (sum(low), sum(high));
        out.d[j] = d;
        out.s[j] = d * (s0 + s1) as f32;
        out.s16[2 * j] = d * s0 as f32;
        out.s16[2 * j + 1] = d * s1 as f32;
    }
}
