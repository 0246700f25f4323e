//! How each format's groups become vectors: the AVX2 versions of [`Format::unpack`] and [`Format::scales`].

use super::pair::UnpackPair;
use super::words::{Transposed, offset_by};
use crate::kernels::format::*;
use outboard_core::quant::{IQ4_VALUES, MXFP4_VALUES, e8m0_half};
use std::arch::x86_64::*;

/// Scales and minimums of the 8 groups of a step: `[0]` alone where a scale covers 32 elements, `[0]` groups 0..8 and `[1]`
/// groups 8..16 where it covers 16.
pub(in crate::kernels) struct VScales {
    pub(in crate::kernels) d: [__m256; 2],
    pub(in crate::kernels) m: [__m256; 2],
}

/// The AVX2 side of a [`Format`], and all of a leaf: whoever has it has the AVX-512 side, too.
pub(in crate::kernels) trait Unpack: Transposed + UnpackPair {
    /// As [`Format::scales`], but groups from `n` up get any finite number; minimums of a signed format are not used.
    ///
    /// # Safety
    /// AVX2 and F16C; `w` points to `n` groups of 32 (1 to 8, and 8 where blocks have 256).
    unsafe fn vscales(w: *const u8, n: usize) -> VScales;

    /// As [`Format::unpack`].
    ///
    /// # Safety
    /// AVX2; `w` points to a step that has group `j`.
    unsafe fn vunpack(w: *const u8, j: usize) -> __m256i;

    /// Group `j` of eight rows, transposed: vector i has the elements 4 i to 4 i + 3 of each row.
    ///
    /// # Safety
    /// As [`Unpack::vunpack`], for each of `w`.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn vunpack_rows(w: &[*const u8; 8], j: usize) -> [__m256i; 8] {
        let mut rows = [_mm256_setzero_si256(); 8];
        for (row, &w) in rows.iter_mut().zip(w) {
            // SAFETY: the caller's.
            *row = unsafe { Self::vunpack(w, j) };
        }
        transpose(rows)
    }

    /// Gives `put` the number of a span and the scales and minimums of eight rows there, for each span of the first `n` groups, and maybe some
    /// of any content for those behind.
    ///
    /// # Safety
    /// As [`Unpack::vscales`], for each of `w`.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn vscales_rows(w: &[*const u8; 8], n: usize, mut put: impl FnMut(usize, __m256, __m256)) {
        let mut rows = [[[_mm256_setzero_si256(); 8]; 2]; 2];
        for (r, &w) in w.iter().enumerate() {
            // SAFETY: the caller's.
            let VScales { d, m } = unsafe { Self::vscales(w, n) };
            for h in 0..2 {
                rows[h][0][r] = _mm256_castps_si256(d[h]);
                rows[h][1][r] = _mm256_castps_si256(m[h]);
            }
        }
        for h in 0..32 / Self::SPAN {
            let (d, m) = (transpose(rows[h][0]), transpose(rows[h][1]));
            for j in 0..8 {
                put(8 * h + j, _mm256_castsi256_ps(d[j]), _mm256_castsi256_ps(m[j]));
            }
        }
    }
}

/// Transposes 8 x 8 lanes of 32 bits.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn transpose(r: [__m256i; 8]) -> [__m256i; 8] {
    let [a0, a1, a2, a3] = transpose_halves([r[0], r[1], r[2], r[3]]);
    let [b0, b1, b2, b3] = transpose_halves([r[4], r[5], r[6], r[7]]);
    let low = |a, b| _mm256_permute2x128_si256::<0x20>(a, b);
    let high = |a, b| _mm256_permute2x128_si256::<0x31>(a, b);
    [low(a0, b0), low(a1, b1), low(a2, b2), low(a3, b3), high(a0, b0), high(a1, b1), high(a2, b2), high(a3, b3)]
}

/// Transposes 4 x 4 lanes of 32 bits in each half.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose_halves([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab, cd),
        _mm256_unpackhi_epi64(ab, cd),
        _mm256_unpacklo_epi64(ab_high, cd_high),
        _mm256_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Bytes of a vector from memory.
///
/// # Safety
/// AVX2; 32 bytes at `p`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(p: *const u8) -> __m256i {
    // SAFETY: the caller's 32 bytes.
    unsafe { _mm256_loadu_si256(p.cast()) }
}

/// Low halves of 16 bytes, then their high halves.
///
/// # Safety
/// AVX2; 16 bytes at `p`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn nibbles(p: *const u8) -> __m256i {
    // SAFETY: the caller's 16 bytes.
    let v = unsafe { _mm_loadu_si128(p.cast()) };
    _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16::<4>(v), v), _mm256_set1_epi8(15))
}

/// 16 bytes of eight rows from byte `at` on, transposed.
///
/// # Safety
/// AVX2; 16 bytes there in each row.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn sixteen_of_rows(w: &[*const u8; 8], at: usize) -> [__m256i; 4] {
    let mut halves = [_mm256_setzero_si256(); 4];
    for (r, half) in halves.iter_mut().enumerate() {
        // SAFETY: the caller's 16 bytes.
        let [low, high] = [w[r], w[r + 4]].map(|w| unsafe { _mm_loadu_si128(w.add(at).cast()) });
        *half = _mm256_set_m128i(high, low);
    }
    transpose_halves(halves)
}

/// 32 bytes of eight rows from byte `at` on, transposed.
///
/// # Safety
/// AVX2; 32 bytes there in each row.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn bytes_of_rows(w: &[*const u8; 8], at: usize) -> [__m256i; 8] {
    // SAFETY: the caller's.
    let ([a, b, c, d], [e, f, g, h]) = unsafe { (sixteen_of_rows(w, at), sixteen_of_rows(w, at + 16)) };
    [a, b, c, d, e, f, g, h]
}

/// The 32 bits at byte `at` of eight rows.
///
/// # Safety
/// AVX2; 4 bytes there in each row.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn words_of_rows(w: &[*const u8; 8], at: usize) -> __m256i {
    // SAFETY: the caller's 4 bytes.
    let word = |r: usize| unsafe { w[r].add(at).cast::<i32>().read_unaligned() };
    _mm256_setr_epi32(word(0), word(1), word(2), word(3), word(4), word(5), word(6), word(7))
}

/// The f16 at byte `at` of eight rows.
///
/// # Safety
/// AVX2 and F16C; 2 bytes there in each row.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn halves_of_rows(w: &[*const u8; 8], at: usize) -> __m256 {
    // SAFETY: the caller's 2 bytes.
    let half = |r: usize| unsafe { w[r].add(at).cast::<i16>().read_unaligned() };
    _mm256_cvtph_ps(_mm_setr_epi16(half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7)))
}

/// [`nibbles`] of eight rows from byte `at` on, transposed: while they are packed, that is half as much.
///
/// # Safety
/// AVX2; 16 bytes there in each row.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn nibbles_of_rows(w: &[*const u8; 8], at: usize) -> [__m256i; 8] {
    let mask = _mm256_set1_epi8(15);
    // SAFETY: the caller's.
    let [a, b, c, d] = unsafe { sixteen_of_rows(w, at) };
    let low = |v| _mm256_and_si256(v, mask);
    let high = |v| _mm256_and_si256(_mm256_srli_epi16::<4>(v), mask);
    [low(a), low(b), low(c), low(d), high(a), high(b), high(c), high(d)]
}

/// 16 in the bytes whose bit is set in the 32 bits at `p`.
///
/// # Safety
/// AVX2; 4 bytes at `p`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn fifth_bits(p: *const u8) -> __m256i {
    // SAFETY: the caller's 4 bytes.
    let bits = unsafe { p.cast::<i32>().read_unaligned() };
    let spread = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let v = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), spread);
    let mask = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(v, mask), mask), _mm256_set1_epi8(16))
}

/// [`nibbles`] behind a mask of fifth bits.
///
/// # Safety
/// AVX2; 20 bytes at `p`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn five(p: *const u8) -> __m256i {
    // SAFETY: the caller's 20 bytes.
    unsafe { _mm256_or_si256(nibbles(p.add(4)), fifth_bits(p)) }
}

/// [`five`] of eight rows from byte `at` on, transposed.
///
/// # Safety
/// AVX2; 20 bytes there in each row.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn five_of_rows(w: &[*const u8; 8], at: usize) -> [__m256i; 8] {
    // SAFETY: the caller's 20 bytes.
    let (masks, mut q) = unsafe { (words_of_rows(w, at), nibbles_of_rows(w, at + 4)) };
    let first = _mm256_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c, 0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c);
    let (each, sixteen) = (_mm256_set1_epi32(0x8040_2010_u32 as i32), _mm256_set1_epi8(16));
    // A bit that is set is 16 or more where it stands.
    let fifth = |bits| _mm256_min_epu8(_mm256_and_si256(bits, each), sixteen);
    for i in 0..4 {
        // Bits of two vectors, four times.
        let bits = _mm256_shuffle_epi8(masks, _mm256_add_epi8(first, _mm256_set1_epi8(i as i8)));
        q[2 * i] = _mm256_or_si256(q[2 * i], fifth(_mm256_slli_epi16::<4>(bits)));
        q[2 * i + 1] = _mm256_or_si256(q[2 * i + 1], fifth(bits));
    }
    q
}

/// Each byte of `v` shifted right by `n` bits and masked.
#[inline]
#[target_feature(enable = "avx2")]
fn bits(v: __m256i, n: usize, mask: i8) -> __m256i {
    _mm256_and_si256(_mm256_srl_epi16(v, _mm_cvtsi32_si128(n as i32)), _mm256_set1_epi8(mask))
}

/// The table's value for each index 0..16.
#[inline]
#[target_feature(enable = "avx2")]
fn lookup(table: &[i8; 16], index: __m256i) -> __m256i {
    // SAFETY: the table has 16 bytes.
    let t = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), index)
}

/// [`lookup`] of eight vectors.
#[inline]
#[target_feature(enable = "avx2")]
fn lookups(table: &[i8; 16], mut index: [__m256i; 8]) -> [__m256i; 8] {
    for v in &mut index {
        *v = lookup(table, *v);
    }
    index
}

/// The f16 at the start of each of `n` blocks of `bytes` bytes; above, that of the last: reading it is cheaper than not to,
/// and the activations there are zero.
///
/// # Safety
/// AVX2 and F16C; `n` (at most 8) blocks at `p`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn block_scales(p: *const u8, bytes: usize, n: usize) -> __m256 {
    // SAFETY: block i is the caller's, being below n.
    let at = |i: usize| unsafe { p.add(i.min(n - 1) * bytes).cast::<i16>().read_unaligned() };
    let v = _mm_setr_epi16(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
    _mm256_cvtph_ps(v)
}

/// The two f16 at the start of each block.
///
/// # Safety
/// As [`block_scales`].
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn block_scales_mins(p: *const u8, bytes: usize, n: usize) -> (__m256, __m256) {
    // SAFETY: block i is the caller's, being below n.
    let at = |i: usize| unsafe { p.add(i.min(n - 1) * bytes).cast::<i32>().read_unaligned() };
    two_halves(_mm256_setr_epi32(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)))
}

/// The first f16 of each lane, and the second.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn two_halves(v: __m256i) -> (__m256, __m256) {
    let apart = _mm256_setr_epi8(
        0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,
    );
    let v = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_shuffle_epi8(v, apart));
    (_mm256_cvtph_ps(_mm256_castsi256_si128(v)), _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(v)))
}

/// The f16 at `p`, in every lane.
///
/// # Safety
/// AVX2 and F16C; 2 bytes at `p`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn one_scale(p: *const u8) -> __m256 {
    // SAFETY: the caller's 2 bytes.
    _mm256_cvtph_ps(_mm_set1_epi16(unsafe { p.cast::<i16>().read_unaligned() }))
}

#[inline]
#[target_feature(enable = "avx2")]
fn unsigned8(bytes: u64) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn signed8(bytes: u64) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(bytes as i64)))
}

/// # Safety
/// 8 bytes at `p`.
#[inline(always)]
unsafe fn word(p: *const u8) -> u64 {
    // SAFETY: the caller's 8 bytes.
    unsafe { p.cast::<u64>().read_unaligned() }
}

/// # Safety
/// 4 bytes at `p`.
#[inline(always)]
unsafe fn half_word(p: *const u8) -> u32 {
    // SAFETY: the caller's 4 bytes.
    unsafe { p.cast::<u32>().read_unaligned() }
}

#[inline]
#[target_feature(enable = "avx2")]
fn only(d: __m256, m: __m256) -> VScales {
    VScales { d: [d, _mm256_setzero_ps()], m: [m, _mm256_setzero_ps()] }
}

/// A scale with a minimum that is a fixed multiple of it.
#[inline]
#[target_feature(enable = "avx2")]
fn times(d: __m256, by: f32) -> (__m256, __m256) {
    (d, _mm256_mul_ps(d, _mm256_set1_ps(by)))
}

/// Scales with minimums that are a fixed multiple of them.
#[inline]
#[target_feature(enable = "avx2")]
fn offset(d: [__m256; 2], by: f32) -> VScales {
    VScales { d, m: d.map(|d| _mm256_mul_ps(d, _mm256_set1_ps(by))) }
}

macro_rules! unpack {
    (
        $name:ident, $w:ident, $n:ident, $j:ident, scales $scales:expr, group $group:expr
        $(, rows $rows:expr)? $(, scales of rows $scales_of_rows:expr)?
    ) => {
        impl Unpack for $name {
            #[inline]
            #[target_feature(enable = "avx2,f16c")]
            unsafe fn vscales($w: *const u8, $n: usize) -> VScales {
                // SAFETY: the caller's step has what its format says, and only that is read.
                unsafe { $scales }
            }

            #[inline]
            #[target_feature(enable = "avx2,f16c")]
            unsafe fn vunpack($w: *const u8, $j: usize) -> __m256i {
                // SAFETY: as above, group j being in the step.
                unsafe { $group }
            }

            $(
                #[inline]
                #[target_feature(enable = "avx2,f16c")]
                unsafe fn vunpack_rows($w: &[*const u8; 8], $j: usize) -> [__m256i; 8] {
                    // SAFETY: as above, for each row.
                    unsafe { $rows }
                }
            )?

            $(
                #[inline]
                #[target_feature(enable = "avx2,f16c")]
                unsafe fn vscales_rows($w: &[*const u8; 8], $n: usize, mut put: impl FnMut(usize, __m256, __m256)) {
                    for $j in 0..$n {
                        // SAFETY: as above, for each row.
                        let (d, m): (__m256, __m256) = unsafe { $scales_of_rows };
                        put($j, d, m);
                    }
                }
            )?
        }
    };
}

unpack!(Q4_0, w, n, j,
    scales offset([block_scales(w.add(Self::D), Self::BYTES, n), _mm256_setzero_ps()], -8.0),
    group nibbles(w.add(j * Self::BYTES + Self::QS)),
    rows nibbles_of_rows(w, j * Self::BYTES + Self::QS),
    scales of rows times(halves_of_rows(w, j * Self::BYTES + Self::D), -8.0));
unpack!(Q4_1, w, n, j,
    scales {
        let (d, m) = block_scales_mins(w.add(Self::D), Self::BYTES, n);
        only(d, m)
    },
    group nibbles(w.add(j * Self::BYTES + Self::QS)),
    rows nibbles_of_rows(w, j * Self::BYTES + Self::QS),
    scales of rows two_halves(words_of_rows(w, j * Self::BYTES + Self::D)));
unpack!(Q5_0, w, n, j,
    scales offset([block_scales(w.add(Self::D), Self::BYTES, n), _mm256_setzero_ps()], -16.0),
    group five(w.add(j * Self::BYTES + Self::QH)),
    rows five_of_rows(w, j * Self::BYTES + Self::QH),
    scales of rows times(halves_of_rows(w, j * Self::BYTES + Self::D), -16.0));
unpack!(Q5_1, w, n, j,
    scales {
        let (d, m) = block_scales_mins(w.add(Self::D), Self::BYTES, n);
        only(d, m)
    },
    group five(w.add(j * Self::BYTES + Self::QH)),
    rows five_of_rows(w, j * Self::BYTES + Self::QH),
    scales of rows two_halves(words_of_rows(w, j * Self::BYTES + Self::D)));
unpack!(Q8_0, w, n, j,
    scales only(block_scales(w.add(Self::D), Self::BYTES, n), _mm256_setzero_ps()),
    group load(w.add(j * Self::BYTES + Self::QS)),
    rows bytes_of_rows(w, j * Self::BYTES + Self::QS),
    scales of rows (halves_of_rows(w, j * Self::BYTES + Self::D), _mm256_setzero_ps()));
unpack!(IQ4_NL, w, n, j,
    scales only(block_scales(w.add(Self::D), Self::BYTES, n), _mm256_setzero_ps()),
    group lookup(&IQ4_VALUES, nibbles(w.add(j * Self::BYTES + Self::QS))),
    rows lookups(&IQ4_VALUES, nibbles_of_rows(w, j * Self::BYTES + Self::QS)),
    scales of rows (halves_of_rows(w, j * Self::BYTES + Self::D), _mm256_setzero_ps()));
unpack!(MXFP4, w, n, j,
scales {
    let d: [f32; 8] = [0, 1, 2, 3, 4, 5, 6, 7].map(|i: usize| e8m0_half(*w.add(i.min(n - 1) * Self::BYTES + Self::E)));
        offset([_mm256_loadu_ps(d.as_ptr()), _mm256_setzero_ps()], -f32::from(MXFP4_OFFSET))
},
group {
    let v = lookup(&MXFP4_VALUES, nibbles(w.add(j * Self::BYTES + Self::QS)));
    _mm256_add_epi8(v, _mm256_set1_epi8(MXFP4_OFFSET))
},
rows lookups(&const { offset_by(MXFP4_VALUES, MXFP4_OFFSET) }, nibbles_of_rows(w, j * Self::BYTES + Self::QS)));

unpack!(Q2_K, w, _n, j,
    scales {
        let (d, m) = (one_scale(w.add(Self::D)), _mm256_sub_ps(_mm256_setzero_ps(), one_scale(w.add(Self::DMIN))));
        let low = 0x0f0f_0f0f_0f0f_0f0f;
        let s = [word(w.add(Self::SCALES)), word(w.add(Self::SCALES + 8))];
        VScales {
            d: s.map(|s| _mm256_mul_ps(d, unsigned8(s & low))),
            m: s.map(|s| _mm256_mul_ps(m, unsigned8(s >> 4 & low))),
        }
    },
    group bits(load(w.add(Self::QS + j / 4 * 32)), 2 * (j % 4), 3));
unpack!(Q3_K, w, _n, j,
scales {
    // 16 low halves in 8 bytes; their high bits, four to a byte, in 4 bytes.
    let (s, high) = (word(w.add(Self::SCALES)), half_word(w.add(Self::SCALES + 8)));
    let low = 0x0f0f_0f0f_0f0f_0f0f;
    let two = |shift: u32| u64::from(high >> shift & 0x0303_0303) << 4;
    let d = one_scale(w.add(Self::D));
    let minus = _mm256_set1_ps(32.0);
    let first = unsigned8(s & low | two(0) | two(2) << 32);
    let second = unsigned8(s >> 4 & low | two(4) | two(6) << 32);
    offset([first, second].map(|s| _mm256_mul_ps(d, _mm256_sub_ps(s, minus))), -4.0)
},
group {
    let low = bits(load(w.add(Self::QS + j / 4 * 32)), 2 * (j % 4), 3);
    let high = bits(load(w.add(Self::HMASK)), j, 1);
    _mm256_or_si256(low, _mm256_slli_epi16::<2>(high))
});
unpack!(Q4_K, w, _n, j,
    scales k4_scales(w),
    group bits(load(w.add(Self::QS + j / 2 * 32)), 4 * (j % 2), 15));
unpack!(Q5_K, w, _n, j,
scales k4_scales(w),
group {
    let low = bits(load(w.add(Self::QS + j / 2 * 32)), 4 * (j % 2), 15);
    let high = bits(load(w.add(Self::QH)), j, 1);
    _mm256_or_si256(low, _mm256_slli_epi16::<4>(high))
});
unpack!(Q6_K, w, _n, j,
scales {
    let d = one_scale(w.add(Self::D));
    offset([word(w.add(Self::SCALES)), word(w.add(Self::SCALES + 8))].map(|s| _mm256_mul_ps(d, signed8(s))), -32.0)
},
group {
    let r = j % 4;
    let low = bits(load(w.add(Self::QL + j / 4 * 64 + r % 2 * 32)), 4 * (r / 2), 15);
    let high = bits(load(w.add(Self::QH + j / 4 * 32)), 2 * r, 3);
    _mm256_or_si256(low, _mm256_slli_epi16::<4>(high))
});
unpack!(IQ4_XS, w, _n, j,
    scales {
        let mut s = [0u8; 8];
        let high = w.add(Self::SCALES_H).cast::<u16>().read_unaligned();
        for (i, s) in s.iter_mut().enumerate() {
            *s = *w.add(Self::SCALES_L + i / 2) >> (4 * (i % 2)) & 15 | ((high >> (2 * i) & 3) as u8) << 4;
        }
        let s = _mm256_sub_ps(unsigned8(u64::from_le_bytes(s)), _mm256_set1_ps(32.0));
        only(_mm256_mul_ps(one_scale(w.add(Self::D)), s), _mm256_setzero_ps())
    },
    group lookup(&IQ4_VALUES, nibbles(w.add(Self::QS + j * 16))));

/// Scales and minimums of Q4_K and Q5_K, 6 bits each in 12 bytes.
///
/// # Safety
/// AVX2 and F16C; 16 bytes at `w`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn k4_scales(w: *const u8) -> VScales {
    // SAFETY: the caller's 16 bytes.
    let [d, m] = k4_bytes(unsafe { w.add(Q4_K::SCALES).cast::<[u32; 3]>().read_unaligned() });
    // SAFETY: as above.
    let (sd, sm) = unsafe { (one_scale(w.add(Q4_K::D)), one_scale(w.add(Q4_K::DMIN))) };
    let sm = _mm256_sub_ps(_mm256_setzero_ps(), sm);
    only(_mm256_mul_ps(sd, unsigned8(d)), _mm256_mul_ps(sm, unsigned8(m)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::isa::Kind;
    use crate::kernels::leaf_tests::{Unpacked, Unpacks, has, unpacks_as_the_plain_version};

    enum Avx2 {}

    impl Unpacks for Avx2 {
        unsafe fn unpack<F: Unpack>(rows: &[Vec<u8>], n: usize) -> Vec<Unpacked> {
            let lanes = |v: [__m256; 2]| -> [f32; 16] {
                // SAFETY: both are 64 bytes of floats.
                unsafe { std::mem::transmute(v) }
            };
            let step = |w: &Vec<u8>| {
                // SAFETY: the caller's.
                let VScales { d, m } = unsafe { F::vscales(w.as_ptr(), n) };
                // SAFETY: the caller's; both are 32 bytes.
                let groups = (0..n).map(|j| unsafe { std::mem::transmute(F::vunpack(w.as_ptr(), j)) }).collect();
                Unpacked { scales: Some(Scales { d: lanes(d), m: lanes(m) }), groups }
            };
            rows.iter().map(step).collect()
        }
    }

    enum Avx2Rows {}

    impl Unpacks for Avx2Rows {
        const ROWS: usize = 8;

        unsafe fn unpack<F: Unpack>(rows: &[Vec<u8>], n: usize) -> Vec<Unpacked> {
            let w = std::array::from_fn(|r| rows[r].as_ptr());
            // SAFETY: the caller's; both are 8 times 32 bytes.
            let words = |j| -> [[[u8; 4]; 8]; 8] { unsafe { std::mem::transmute(F::vunpack_rows(&w, j)) } };
            let columns: Vec<_> = (0..n).map(words).collect();
            let group = |words: &[[[u8; 4]; 8]; 8], r: usize| std::array::from_fn(|i| words[i / 4][r][i % 4]);
            let groups = |r| columns.iter().map(|words| group(words, r)).collect();
            let mut scales = [Scales { d: [0.0; 16], m: [0.0; 16] }; 8];
            let lanes = |v: __m256| -> [f32; 8] {
                // SAFETY: both are 32 bytes of floats.
                unsafe { std::mem::transmute(v) }
            };
            // SAFETY: the caller's.
            unsafe {
                F::vscales_rows(&w, n, |j, d, m| {
                    for (scales, (d, m)) in scales.iter_mut().zip(lanes(d).into_iter().zip(lanes(m))) {
                        (scales.d[j], scales.m[j]) = (d, m);
                    }
                });
            }
            (0..rows.len()).map(|r| Unpacked { scales: Some(scales[r]), groups: groups(r) }).collect()
        }
    }

    #[test]
    fn rows_are_unpacked_as_by_the_plain_version() {
        if has(Kind::Avx2) {
            unpacks_as_the_plain_version::<Avx2>();
            unpacks_as_the_plain_version::<Avx2Rows>();
        }
    }
}
