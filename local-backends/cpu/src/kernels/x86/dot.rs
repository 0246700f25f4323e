//! Dot products of a few weight rows with one column of activations: decoding, bound by reading the weights. A group at a time with 256 bits,
//! two with AVX-512.

use super::unpack::Unpack;
use super::words::BIAS;
use crate::kernels::act::ActBlock;
use crate::kernels::ahead::stream;
use crate::kernels::dot::{Dots, entry};
use std::arch::x86_64::*;
use std::hint::black_box;

/// The 8-bit dot product of 32 pairs as 8 sums of 4, where the instruction sets differ.
pub(in crate::kernels) trait Dot {
    /// Unsigned below 64 times signed.
    ///
    /// # Safety
    /// The implementor's features.
    unsafe fn narrow(q: __m256i, x: __m256i) -> __m256i;

    /// Signed times signed, x not -128.
    ///
    /// # Safety
    /// The implementor's features.
    unsafe fn wide(q: __m256i, x: __m256i) -> __m256i;
}

/// VPMADDUBSW, whose 16-bit sums hold two products of at most 128 * 127.
#[derive(Debug)]
pub(in crate::kernels) enum Avx2 {}

/// VPDPBUSD of AVX-VNNI.
#[derive(Debug)]
pub(in crate::kernels) enum AvxVnni {}

impl Dot for Avx2 {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn narrow(q: __m256i, x: __m256i) -> __m256i {
        _mm256_madd_epi16(_mm256_maddubs_epi16(q, x), _mm256_set1_epi16(1))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn wide(q: __m256i, x: __m256i) -> __m256i {
        let products = _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q));
        _mm256_madd_epi16(products, _mm256_set1_epi16(1))
    }
}

impl Dot for AvxVnni {
    #[inline]
    #[target_feature(enable = "avx2,avxvnni")]
    unsafe fn narrow(q: __m256i, x: __m256i) -> __m256i {
        _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), q, x)
    }

    #[inline]
    #[target_feature(enable = "avx2,avxvnni")]
    unsafe fn wide(q: __m256i, x: __m256i) -> __m256i {
        _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), _mm256_abs_epi8(q), _mm256_sign_epi8(x, q))
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn sum(v: __m256) -> f32 {
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
}

/// One step of `n` groups, added to `acc` (products, of even and odd groups apart, as an addition waits for the one before)
/// and `min` (minimums times sums).
///
/// # Safety
/// AVX2, FMA, F16C and D's features; `w` points to n groups.
#[inline(always)]
unsafe fn step<D: Dot, F: Unpack>(w: *const u8, n: usize, x: &ActBlock, acc: &mut [__m256; 2], min: &mut __m256) {
    // SAFETY: the features are the caller's; all reads are of w's groups and of x.
    unsafe {
        let s = F::vscales(w, n);
        let d = _mm256_load_ps(x.d.as_ptr());
        let mut scales = [0f32; 16];
        if F::SPAN == 32 {
            _mm256_storeu_ps(scales.as_mut_ptr(), _mm256_mul_ps(s.d[0], d));
            if F::BITS < 8 {
                *min = _mm256_fmadd_ps(s.m[0], _mm256_load_ps(x.s.as_ptr()), *min);
            }
        } else {
            let low = _mm256_permutevar8x32_ps(d, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
            let high = _mm256_permutevar8x32_ps(d, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7));
            _mm256_storeu_ps(scales.as_mut_ptr(), _mm256_mul_ps(s.d[0], low));
            _mm256_storeu_ps(scales.as_mut_ptr().add(8), _mm256_mul_ps(s.d[1], high));
            *min = _mm256_fmadd_ps(s.m[0], _mm256_load_ps(x.s16.as_ptr()), *min);
            *min = _mm256_fmadd_ps(s.m[1], _mm256_load_ps(x.s16.as_ptr().add(8)), *min);
        }
        // Taken back from memory, where broadcasting one of them is part of the load; in registers it takes two shuffles.
        let scales = black_box(scales);
        for j in 0..n {
            let xq = _mm256_load_si256(x.q.as_ptr().add(32 * j).cast());
            let q = F::vunpack(w, j);
            let i = if F::BITS == 8 { D::wide(q, xq) } else { D::narrow(q, xq) };
            let s = if F::SPAN == 32 {
                _mm256_set1_ps(scales[j % 8])
            } else {
                // Lanes 0..4 hold the sums of the first 16 elements.
                let two = _mm256_set1_pd(scales.as_ptr().add(2 * j).cast::<f64>().read_unaligned());
                _mm256_permutevar_ps(_mm256_castpd_ps(two), _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1))
            };
            acc[j % 2] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(i), s, acc[j % 2]);
        }
    }
}

/// Dot product of a row of `groups` groups of 32 with a column.
///
/// # Safety
/// AVX2, FMA, F16C and D's features; `w` points to a row, `x` to its blocks.
#[inline(always)]
unsafe fn row<D: Dot, F: Unpack>(w: *const u8, groups: usize, x: *const ActBlock) -> f32 {
    // SAFETY: steps and blocks of the caller's row and column.
    unsafe {
        let mut acc = [_mm256_setzero_ps(); 2];
        let mut min = _mm256_setzero_ps();
        let full = groups / 8;
        for b in 0..full {
            let w = w.add(b * F::STEP);
            stream(w, F::STEP);
            step::<D, F>(w, 8, &*x.add(b), &mut acc, &mut min);
        }
        if groups % 8 != 0 {
            let (w, n) = (w.add(full * F::STEP), groups % 8);
            stream(w, n * F::BYTES);
            step::<D, F>(w, n, &*x.add(full), &mut acc, &mut min);
        }
        sum(_mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), min))
    }
}

/// As [`step`] to the last bit, two groups at a time, with AVX-512: `acc` has the sums of even groups in its first half, and those of odd
/// ones in the second.
///
/// # Safety
/// AVX-512 F, BW, DQ, VL, VNNI; the rest as [`step`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn step_of_pairs<F: Unpack, const FULL: bool>(
    w: *const u8,
    n: usize,
    x: &ActBlock,
    acc: &mut __m512,
    min: &mut __m256,
) {
    // SAFETY: all reads are of w's groups and of x, which has zeros where the row has ended.
    unsafe {
        let s = F::vscales(w, n);
        let d = _mm256_load_ps(x.d.as_ptr());
        let scales = if F::SPAN == 32 {
            if F::BITS < 8 {
                *min = _mm256_fmadd_ps(s.m[0], _mm256_load_ps(x.s.as_ptr()), *min);
            }
            _mm512_castps256_ps512(_mm256_mul_ps(s.d[0], d))
        } else {
            *min = _mm256_fmadd_ps(s.m[0], _mm256_load_ps(x.s16.as_ptr()), *min);
            *min = _mm256_fmadd_ps(s.m[1], _mm256_load_ps(x.s16.as_ptr().add(8)), *min);
            let doubled = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
            let all = _mm512_insertf32x8::<1>(_mm512_castps256_ps512(s.d[0]), s.d[1]);
            _mm512_mul_ps(all, _mm512_permutexvar_ps(doubled, _mm512_castps256_ps512(d)))
        };
        // Lanes of the scales of the first two groups.
        let first = match F::SPAN {
            32 => _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
            _ => _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
        };
        // All four times, so that each is compiled for itself.
        for j in 0..4 {
            let q = if FULL || 2 * j + 1 < n {
                F::vunpack_pair(w, j)
            } else if 2 * j < n {
                let q = F::vunpack(w, 2 * j);
                _mm512_zextsi256_si512(if F::BITS == 8 { _mm256_xor_si256(q, _mm256_set1_epi8(BIAS)) } else { q })
            } else {
                break;
            };
            let xq = _mm512_load_si512(x.q.as_ptr().add(64 * j).cast());
            let dot = |q| _mm512_dpbusd_epi32(_mm512_setzero_si512(), q, xq);
            // What signed bytes have become more by being unsigned is taken off again.
            let i = if F::BITS == 8 { _mm512_sub_epi32(dot(q), dot(_mm512_set1_epi8(BIAS))) } else { dot(q) };
            let lanes = _mm512_add_epi32(first, _mm512_set1_epi32((64 / F::SPAN * j) as i32));
            *acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(i), _mm512_permutexvar_ps(lanes, scales), *acc);
        }
    }
}

/// `out[i, c] = w[i] . x[c]` for `n_rows` rows and `n_cols` columns. One row at a time: memory is fastest as one
/// stream, and two or four rows side by side (tried) took up to twice as long.
///
/// # Safety
/// AVX2, FMA, F16C and D's features; `n_rows` rows of `groups` groups, `row_bytes` apart; `n_cols` columns of
/// `ceil(groups / 8)` blocks behind one another; the addressed floats of `out` belong to the caller alone.
#[inline(always)]
unsafe fn rows_cols<D: Dot, F: Unpack>(dots: Dots) {
    let Dots { w, row_bytes, n_rows, groups, x, n_cols, out } = dots;
    let blocks = groups.div_ceil(8);
    for i in 0..n_rows {
        for c in 0..n_cols {
            // SAFETY: indices stay below the caller's counts.
            unsafe { *out.data.add(c * out.stride + i) = row::<D, F>(w.add(i * row_bytes), groups, x.add(c * blocks)) };
        }
    }
}

entry!(avx2, Avx2, "avx2,fma,f16c");
entry!(avxvnni, AvxVnni, "avx2,fma,f16c,avxvnni");

/// As [`rows_cols`], with AVX-512.
///
/// # Safety
/// As [`step_of_pairs`]; the rest as there.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in crate::kernels) unsafe fn avx512<F: Unpack>(dots: Dots) {
    let Dots { w, row_bytes, n_rows, groups, x, n_cols, out } = dots;
    let (full, rest) = (groups / 8, groups % 8);
    for i in 0..n_rows {
        for c in 0..n_cols {
            // SAFETY: steps and blocks of the caller's rows and columns, and its results.
            unsafe {
                let (w, x) = (w.add(i * row_bytes), x.add(c * groups.div_ceil(8)));
                let mut acc = _mm512_setzero_ps();
                let mut min = _mm256_setzero_ps();
                for b in 0..full {
                    let w = w.add(b * F::STEP);
                    stream(w, F::STEP);
                    step_of_pairs::<F, true>(w, 8, &*x.add(b), &mut acc, &mut min);
                }
                if rest != 0 {
                    let w = w.add(full * F::STEP);
                    stream(w, rest * F::BYTES);
                    step_of_pairs::<F, false>(w, rest, &*x.add(full), &mut acc, &mut min);
                }
                let halves = _mm256_add_ps(_mm512_castps512_ps256(acc), _mm512_extractf32x8_ps::<1>(acc));
                *out.data.add(c * out.stride + i) = sum(_mm256_add_ps(halves, min));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::isa::Kind;
    use crate::kernels::leaf_tests::{Bytes, Multiplies, dots_are_exact, give_the_same_products, has};
    use crate::kernels::mul_mat::{Out, Rows};

    fn check<D: Dot>(name: &str) {
        dots_are_exact(name, 4, &[1, 2, 3, 4, 5, 6, 8], |bits, Bytes(q), Bytes(x)| {
            let sums = |i: usize| -> [i32; 8] {
                // SAFETY: 32 bytes from 32 * i lie in the 128, and the caller saw to the features.
                unsafe {
                    let [q, x] = [q, x].map(|v| _mm256_loadu_si256(v.as_ptr().add(32 * i).cast()));
                    std::mem::transmute(if bits == 8 { D::wide(q, x) } else { D::narrow(q, x) })
                }
            };
            (0..4).flat_map(sums).collect()
        });
    }

    #[test]
    fn sums_of_products_are_exact() {
        if has(Kind::Avx2) {
            check::<Avx2>("avx2");
        }
        if has(Kind::AvxVnni) {
            check::<AvxVnni>("avx-vnni");
        }
    }

    enum ByGroups {}

    impl Multiplies for ByGroups {
        unsafe fn multiply<F: Unpack>(w: Rows, n_rows: usize, x: &[ActBlock], n_cols: usize, out: Out) {
            // SAFETY: the caller's.
            unsafe { avx2::<F>(Dots::new(w, 0..n_rows, x, n_cols, out)) };
        }
    }

    enum ByPairs {}

    impl Multiplies for ByPairs {
        unsafe fn multiply<F: Unpack>(w: Rows, n_rows: usize, x: &[ActBlock], n_cols: usize, out: Out) {
            // SAFETY: the caller's.
            unsafe { avx512::<F>(Dots::new(w, 0..n_rows, x, n_cols, out)) };
        }
    }

    #[test]
    fn pairs_of_groups_do_not_change_a_bit() {
        if has(Kind::Avx512) {
            give_the_same_products::<ByPairs, ByGroups>(&[1, 2], None);
        }
    }
}
