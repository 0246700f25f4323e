//! Quantizing activations with AVX2, and with AVX-512.

use crate::kernels::act::{ActBlock, BLOCK};
use std::arch::x86_64::*;

/// As the portable version, bit for bit, with AVX2.
#[target_feature(enable = "avx2")]
pub(in crate::kernels) fn quantize_avx2(x: &[f32; BLOCK], out: &mut ActBlock) {
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
    sum_halves(out);
}

/// [`ActBlock::halves`] of the bytes that are there.
#[inline]
#[target_feature(enable = "avx2")]
fn sum_halves(block: &mut ActBlock) {
    let (ones, order) = (_mm256_set1_epi8(1), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    for (q, halves) in block.q.as_chunks::<64>().0.iter().zip(block.halves.as_chunks_mut::<4>().0) {
        // SAFETY: twice 32 bytes.
        let [a, b] = unsafe { [_mm256_loadu_si256(q.as_ptr().cast()), _mm256_loadu_si256(q[32..].as_ptr().cast())] };
        // Lanes have two sums of two; in each half of a vector lie four lanes of 16 elements.
        let (a, b) = (_mm256_maddubs_epi16(ones, a), _mm256_maddubs_epi16(ones, b));
        let two = _mm256_add_epi16(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let all = _mm256_add_epi16(two, _mm256_shuffle_epi32::<0b01_00_11_10>(two));
        // Lanes 0 and 1 of each half are of a and b.
        let all = _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(all, order));
        // SAFETY: four times two numbers.
        unsafe { _mm_storeu_si128(halves.as_mut_ptr().cast(), all) };
    }
}

/// As the portable version, bit for bit (but for which NaN it is), with AVX-512: the eight groups' maximums, scales and sums are each a vector.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2")]
pub(in crate::kernels) fn quantize_avx512(x: &[f32; BLOCK], out: &mut ActBlock) {
    const GROUPS: usize = BLOCK / 32;
    let load = |i: usize| {
        let v = &x.as_chunks::<16>().0[i];
        // SAFETY: 16 floats.
        unsafe { _mm512_loadu_ps(v.as_ptr()) }
    };
    // As bits, numbers without a sign are in order, and what is none is more than all of them.
    let number = _mm512_set1_epi32(i32::MAX);
    let largest: [__m512i; GROUPS] = std::array::from_fn(|j| {
        let [a, b] = [2 * j, 2 * j + 1].map(|i| _mm512_and_si512(_mm512_castps_si512(load(i)), number));
        _mm512_max_epu32(a, b)
    });
    let d = _mm256_div_ps(_mm256_castsi256_ps(maximums(largest)), _mm256_set1_ps(127.0));
    let some = _mm256_cmp_ps_mask::<_CMP_NEQ_UQ>(d, _mm256_setzero_ps());
    let mut id = [0f32; GROUPS];
    // SAFETY: eight floats each.
    unsafe {
        _mm256_storeu_ps(id.as_mut_ptr(), _mm256_maskz_div_ps(some, _mm256_set1_ps(1.0), d));
        _mm256_storeu_ps(out.d.as_mut_ptr(), d);
    }
    // A tiny d has an infinite inverse; the limits keep the bytes those of the portable version.
    let (lo, hi) = (_mm512_set1_ps(-127.0), _mm512_set1_ps(127.0));
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    let mut sums = [_mm512_setzero_si512(); 4];
    for (k, sums) in sums.iter_mut().enumerate() {
        let i: [__m512i; 4] = std::array::from_fn(|i| {
            let r = _mm512_mul_ps(load(4 * k + i), _mm512_set1_ps(id[2 * k + i / 2]));
            let number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(r, r);
            _mm512_cvtps_epi32(_mm512_min_ps(_mm512_maskz_max_ps(number, r, lo), hi))
        });
        let (low, high) = (_mm512_packs_epi32(i[0], i[1]), _mm512_packs_epi32(i[2], i[3]));
        let q = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(low, high));
        // SAFETY: 64 bytes from k * 64 lie in the 256 of q.
        unsafe { _mm512_storeu_si512(out.q[k * 64..].as_mut_ptr().cast(), q) };
        *sums = _mm512_dpbusd_epi32(*sums, _mm512_set1_epi8(1), q);
    }
    // Four vectors of sums of four, sixteen elements in 128 bits.
    let [a, b, c, e] = sums;
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let ce = _mm512_add_epi32(_mm512_unpacklo_epi32(c, e), _mm512_unpackhi_epi32(c, e));
    let sums = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, ce), _mm512_unpackhi_epi64(ab, ce));
    let sums = _mm512_permutexvar_epi32(order, sums);
    let twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    let d16 = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(d));
    let pairs = _mm512_add_epi32(sums, _mm512_shuffle_epi32::<0b10_11_00_01>(sums));
    // SAFETY: sixteen and eight floats.
    unsafe {
        _mm512_storeu_ps(out.s16.as_mut_ptr(), _mm512_mul_ps(d16, _mm512_cvtepi32_ps(sums)));
        let s = _mm256_cvtepi32_ps(_mm512_cvtepi64_epi32(pairs));
        _mm256_storeu_ps(out.s.as_mut_ptr(), _mm256_mul_ps(d, s));
    }
    sum_halves(out);
}

/// The largest element of each vector, as unsigned numbers.
#[inline]
#[target_feature(enable = "avx512f,avx2")]
fn maximums(v: [__m512i; 8]) -> __m256i {
    // Halves, then quarters: of two vectors, and of four.
    let two = |a, b| _mm512_max_epu32(_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0xee>(a, b));
    let four = |a, b| _mm512_max_epu32(_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
    let low = four(two(v[0], v[1]), two(v[2], v[3]));
    let high = four(two(v[4], v[5]), two(v[6], v[7]));
    // Within 128 bits, those of vectors i and i + 4.
    let v = _mm512_max_epu32(_mm512_unpacklo_epi32(low, high), _mm512_unpackhi_epi32(low, high));
    let v = _mm512_max_epu32(v, _mm512_shuffle_epi32::<0b01_00_11_10>(v));
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, v))
}
