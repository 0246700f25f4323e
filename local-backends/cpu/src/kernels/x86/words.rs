//! Sixteen rows at once, AVX-512: a step of each is transposed to columns of 32 bits, and then unpacked in that form.
//!
//! A lane is a row from the start, as it will be in the panel, so that every instruction works for sixteen rows: on their weights, and on
//! their scales, which row by row would be taken apart as single numbers.

use crate::kernels::format::*;
use outboard_core::quant::{IQ4_VALUES, MXFP4_VALUES};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Rows, the lanes of a vector.
pub(super) const ROWS: usize = 16;

/// Words of the longest step, of Q8_0, made whole 16 bytes.
pub(super) const MAX_WORDS: usize = 68;

/// Where the columns of a step lie meanwhile.
pub(in crate::kernels) struct Buffer([MaybeUninit<__m512i>; MAX_WORDS]);

/// A step of sixteen rows as columns: vector i has the bytes 4 i to 4 i + 3 of each.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct Words<'a>(&'a [MaybeUninit<__m512i>; MAX_WORDS]);

impl Buffer {
    pub(super) const fn new() -> Buffer {
        Buffer([MaybeUninit::uninit(); MAX_WORDS])
    }

    /// Transposes `bytes` bytes (at most those of the longest step) of each row from byte `at` on; up to whole 16 bytes, zeros follow.
    ///
    /// # Safety
    /// AVX-512 F, BW, VL; the rows have these bytes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn transpose(&mut self, w: &[*const u8; ROWS], at: usize, bytes: usize) -> Words<'_> {
        debug_assert!(bytes <= 4 * MAX_WORDS);
        let (full, rest) = (bytes / 16, bytes % 16);
        let places = self.0.as_chunks_mut::<4>().0;
        for (i, to) in places.iter_mut().enumerate().take(full) {
            // SAFETY: whole 16 bytes of the caller's.
            let four = |r: usize| unsafe { _mm_loadu_si128(w[r].add(at + 16 * i).cast()) };
            *to = columns(four).map(MaybeUninit::new);
        }
        if rest > 0 {
            let mask = (1 << rest) - 1;
            // SAFETY: what the mask leaves out is not read.
            let four = |r: usize| unsafe { _mm_maskz_loadu_epi8(mask, w[r].add(at + 16 * full).cast()) };
            places[full] = columns(four).map(MaybeUninit::new);
        }
        Words(&self.0)
    }

    /// Puts four columns, the `i`th of such, in their place.
    #[inline]
    pub(super) fn put(&mut self, i: usize, columns: [__m512i; 4]) {
        self.0.as_chunks_mut().0[i] = columns.map(MaybeUninit::new);
    }

    /// What is there.
    #[inline]
    pub(super) fn words(&self) -> Words<'_> {
        Words(&self.0)
    }
}

/// 16 bytes of each row as columns.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn columns(row: impl Fn(usize) -> __m128i) -> [__m512i; 4] {
    // Every fourth row, so that transposing four by four within 128 bits brings all into order.
    let four = |r: usize| {
        let v = _mm512_castsi128_si512(row(r));
        let v = _mm512_inserti32x4::<1>(v, row(r + 4));
        _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(v, row(r + 8)), row(r + 12))
    };
    let (a, b, c, d) = (four(0), four(1), four(2), four(3));
    let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab, cd),
        _mm512_unpackhi_epi64(ab, cd),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

impl Words<'_> {
    /// The word at byte `4 i`.
    ///
    /// # Safety
    /// AVX-512 F; the step has it.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn word(self, i: usize) -> __m512i {
        // SAFETY: the caller's.
        unsafe { self.0.get_unchecked(i).assume_init() }
    }

    /// `N` words from any byte on.
    ///
    /// # Safety
    /// As [`Words::word`], for all of them.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn run<const N: usize>(self, byte: usize) -> [__m512i; N] {
        let (first, skip) = (byte / 4, byte % 4);
        // SAFETY: the caller's; what begins within a word ends in the next.
        unsafe {
            if skip == 0 {
                return std::array::from_fn(|i| self.word(first + i));
            }
            // Turned round, each word has its end where it is wanted, and its beginning where the word before needs it.
            let round = _mm512_set1_epi32(8 * skip as i32);
            let turned = |i: usize| _mm512_rorv_epi32(self.word(first + i), round);
            let next = [0, 0x8888_8888_8888_8888, 0xcccc_cccc_cccc_cccc, 0xeeee_eeee_eeee_eeee][skip];
            std::array::from_fn(|i| _mm512_mask_mov_epi8(turned(i), next, turned(i + 1)))
        }
    }

    /// The two f16 of the word at a byte that is a multiple of 4, the first and the second.
    ///
    /// # Safety
    /// As [`Words::word`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn halves(self, byte: usize) -> [__m512; 2] {
        // SAFETY: the caller's.
        let v = unsafe { self.word(byte / 4) };
        let both = _mm512_permutexvar_epi16(apart(0), v);
        let second = _mm512_extracti64x4_epi64::<1>(both);
        [_mm512_castsi512_si256(both), second].map(|v| _mm512_cvtph_ps(v))
    }

    /// The f16 at an even byte.
    ///
    /// # Safety
    /// As [`Words::word`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn half(self, byte: usize) -> __m512 {
        // SAFETY: the caller's.
        let v = unsafe { self.word(byte / 4) };
        let first = _mm512_permutexvar_epi16(apart(byte % 4 / 2), v);
        _mm512_cvtph_ps(_mm512_castsi512_si256(first))
    }

    /// The unsigned byte at any place.
    ///
    /// # Safety
    /// As [`Words::word`].
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn byte(self, byte: usize) -> __m512i {
        // SAFETY: the caller's.
        let v = unsafe { self.word(byte / 4) };
        _mm512_and_si512(right32(v, 8 * (byte % 4)), _mm512_set1_epi32(0xff))
    }

    /// Low halves of the 16 bytes at `byte`, then their high halves.
    ///
    /// # Safety
    /// As [`Words::word`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn nibbles(self, byte: usize) -> [__m512i; 8] {
        // SAFETY: the caller's.
        let v = unsafe { self.run::<4>(byte) };
        std::array::from_fn(|i| if i < 4 { bits(v[i], 0, 15) } else { bits(v[i - 4], 4, 15) })
    }

    /// [`Words::nibbles`] behind a mask of fifth bits.
    ///
    /// # Safety
    /// As [`Words::word`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn five(self, byte: usize) -> [__m512i; 8] {
        // SAFETY: the caller's.
        let ([mask], q) = unsafe { (self.run(byte), self.nibbles(byte + 4)) };
        // What four bits become as bytes.
        let spread = |i: i32| (i & 1 | (i & 2) << 7 | (i & 4) << 14 | (i & 8) << 21) << 4;
        let table: [i32; 16] = std::array::from_fn(|i| spread(i as i32));
        // SAFETY: both are 64 bytes.
        let table: __m512i = unsafe { std::mem::transmute(table) };
        // An index is the lowest four bits of its lane.
        std::array::from_fn(|i| _mm512_or_si512(q[i], _mm512_permutexvar_epi32(right32(mask, 4 * i), table)))
    }

    /// The scales of Q4_K and Q5_K as bytes of words: of groups 0..4 and 4..8, and so the minimums.
    ///
    /// # Safety
    /// As [`Words::word`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn six_bits(self) -> [[__m512i; 2]; 2] {
        // SAFETY: the caller's.
        let [scales, mins, low] = unsafe { self.run(Q4_K::SCALES) };
        [
            [bits(scales, 0, 63), above::<4>(bits(low, 0, 15), bits(scales, 6, 3))],
            [bits(mins, 0, 63), above::<4>(bits(low, 4, 15), bits(mins, 6, 3))],
        ]
    }
}

/// Places of the first 16-bit halves of all lanes, then of the second; with 1, the other way round.
#[inline]
#[target_feature(enable = "avx512f")]
fn apart(first: usize) -> __m512i {
    let places: [i16; 32] = std::array::from_fn(|i| (2 * (i % 16) + ((i / 16) ^ first)) as i16);
    // SAFETY: both are 64 bytes.
    unsafe { std::mem::transmute(places) }
}

/// Each lane shifted right by `n`.
#[inline]
#[target_feature(enable = "avx512f")]
fn right32(v: __m512i, n: usize) -> __m512i {
    if n == 0 { v } else { _mm512_srlv_epi32(v, _mm512_set1_epi32(n as i32)) }
}

/// Each byte shifted right by `n` and masked.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn bits(v: __m512i, n: usize, mask: i8) -> __m512i {
    let v = if n == 0 { v } else { _mm512_srlv_epi16(v, _mm512_set1_epi16(n as i16)) };
    _mm512_and_si512(v, _mm512_set1_epi8(mask))
}

/// Each byte of `low`, which has `N` bits, with that of `high` above them.
#[inline]
#[target_feature(enable = "avx512f")]
fn above<const N: u32>(low: __m512i, high: __m512i) -> __m512i {
    _mm512_or_si512(low, _mm512_slli_epi32::<N>(high))
}

/// A table in each quarter of a vector, as VPSHUFB wants it.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn broadcast_table(table: [i8; 16]) -> __m512i {
    // SAFETY: both are 16 bytes.
    _mm512_broadcast_i32x4(unsafe { std::mem::transmute::<[i8; 16], __m128i>(table) })
}

/// The table's value for each byte below 16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn lookup(table: [i8; 16], index: [__m512i; 8]) -> [__m512i; 8] {
    let table = broadcast_table(table);
    index.map(|i| _mm512_shuffle_epi8(table, i))
}

/// A table with `offset` added to each value, wrapping.
pub(super) const fn offset_by(mut table: [i8; 16], offset: i8) -> [i8; 16] {
    let mut i = 0;
    while i < 16 {
        table[i] = table[i].wrapping_add(offset);
        i += 1;
    }
    table
}

/// The byte `j` of words, as a number.
#[inline]
#[target_feature(enable = "avx512f")]
fn number(words: &[__m512i], j: usize) -> __m512 {
    _mm512_cvtepi32_ps(_mm512_and_si512(right32(words[j / 4], 8 * (j % 4)), _mm512_set1_epi32(0xff)))
}

/// Added to signed bytes, with wrapping, it makes them 128 more and unsigned, as VPDPBUSD wants them; as a minimum it makes up for it.
pub(super) const BIAS: i8 = -128;

/// The AVX-512 side of a [`Format`]. Bytes are unsigned, those of a signed format plus 128.
pub(in crate::kernels) trait Transposed: Format {
    /// Bytes of group `j`: vector i has the elements 4 i to 4 i + 3 of each row.
    ///
    /// # Safety
    /// AVX-512 F, BW; the step has the group.
    unsafe fn group(w: Words<'_>, j: usize) -> [__m512i; 8];

    /// Gives `put` scales and minimums of these groups of `SPAN` elements, with their number.
    ///
    /// # Safety
    /// AVX-512 F, BW; the step has the groups.
    unsafe fn each_scale(w: Words<'_>, which: Range<usize>, put: impl FnMut(usize, __m512, __m512));
}

macro_rules! transposed {
    ($name:ident, $w:ident, $j:ident, $group:expr, each $one:expr) => {
        transposed!($name, $w, $j, $group, |which, put| for $j in which {
            let (d, m): (__m512, __m512) = $one;
            put($j, d, m);
        });
    };
    ($name:ident, $w:ident, $j:ident, $group:expr, |$which:ident, $put:ident| $scales:expr) => {
        impl Transposed for $name {
            #[inline]
            #[target_feature(enable = "avx512f,avx512bw")]
            unsafe fn group($w: Words<'_>, $j: usize) -> [__m512i; 8] {
                // SAFETY: the caller's step has what its format says, and only that is read.
                unsafe { $group }
            }

            #[inline]
            #[target_feature(enable = "avx512f,avx512bw")]
            unsafe fn each_scale($w: Words<'_>, $which: Range<usize>, mut $put: impl FnMut(usize, __m512, __m512)) {
                // SAFETY: as above.
                unsafe { $scales }
            }
        }
    };
}

/// A scale with a minimum that is so many times as large.
#[inline]
#[target_feature(enable = "avx512f")]
fn times(d: __m512, by: f32) -> (__m512, __m512) {
    (d, _mm512_mul_ps(d, _mm512_set1_ps(by)))
}

transposed!(Q4_0, w, j, w.nibbles(Self::BYTES * j + Self::QS), each times(w.half(Self::BYTES * j + Self::D), -8.0));
transposed!(Q4_1, w, j, w.nibbles(Self::BYTES * j + Self::QS), each w.halves(Self::BYTES * j + Self::D).into());
transposed!(Q5_0, w, j, w.five(Self::BYTES * j + Self::QH), each times(w.half(Self::BYTES * j + Self::D), -16.0));
transposed!(Q5_1, w, j, w.five(Self::BYTES * j + Self::QH), each w.halves(Self::BYTES * j + Self::D).into());
transposed!(
    Q8_0, w, j,
    w.run(Self::BYTES * j + Self::QS).map(|v| _mm512_xor_si512(v, _mm512_set1_epi8(BIAS))),
    each times(w.half(Self::BYTES * j + Self::D), f32::from(BIAS))
);
transposed!(
    IQ4_NL, w, j,
    lookup(const { offset_by(IQ4_VALUES, BIAS) }, w.nibbles(Self::BYTES * j + Self::QS)),
    each times(w.half(Self::BYTES * j + Self::D), f32::from(BIAS))
);
transposed!(
    MXFP4, w, j,
    lookup(const { offset_by(MXFP4_VALUES, MXFP4_OFFSET) }, w.nibbles(Self::BYTES * j + Self::QS)),
    each {
        // 2^(e - 128); the two smallest are subnormal.
        let e = w.byte(Self::BYTES * j + Self::E);
        let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
        let least = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), e);
        let d = _mm512_mask_mov_epi32(normal, _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2)), least);
        times(_mm512_castsi512_ps(d), -f32::from(MXFP4_OFFSET))
    }
);

transposed!(Q2_K, w, j, w.run::<8>(Self::QS + j / 4 * 32).map(|v| bits(v, 2 * (j % 4), 3)), |which, put| {
    let packed = w.run::<4>(Self::SCALES);
    k_scales(w.halves(Self::D), &packed.map(|v| bits(v, 0, 15)), &packed.map(|v| bits(v, 4, 15)), which, &mut put);
});
transposed!(
    Q3_K,
    w,
    j,
    {
        let (low, high) = (w.run::<8>(Self::QS + j / 4 * 32), w.run::<8>(Self::HMASK));
        std::array::from_fn(|i| above::<2>(bits(low[i], 2 * (j % 4), 3), bits(high[i], j, 1)))
    },
    |which, put| {
        // 16 low halves in two words; their high bits, four to a byte, in a third.
        let (d, [first, second, high]) = (w.half(Self::D), w.run(Self::SCALES));
        let low = [first, second];
        let scale: [_; 4] = std::array::from_fn(|i| above::<4>(bits(low[i % 2], i / 2 * 4, 15), bits(high, 2 * i, 3)));
        for j in which {
            let (d, m) = times(_mm512_mul_ps(d, _mm512_sub_ps(number(&scale, j), _mm512_set1_ps(32.0))), -4.0);
            put(j, d, m);
        }
    }
);
transposed!(Q4_K, w, j, w.run::<8>(Self::QS + j / 2 * 32).map(|v| bits(v, 4 * (j % 2), 15)), |which, put| k4_scales(
    w, which, &mut put
));
transposed!(
    Q5_K,
    w,
    j,
    {
        let (low, high) = (w.run::<8>(Self::QS + j / 2 * 32), w.run::<8>(Self::QH));
        std::array::from_fn(|i| above::<4>(bits(low[i], 4 * (j % 2), 15), bits(high[i], j, 1)))
    },
    |which, put| k4_scales(w, which, &mut put)
);
transposed!(
    Q6_K,
    w,
    j,
    {
        let (half, r) = (j / 4, j % 4);
        let (low, high) = (w.run::<8>(Self::QL + half * 64 + r % 2 * 32), w.run::<8>(Self::QH + half * 32));
        std::array::from_fn(|i| above::<4>(bits(low[i], 4 * (r / 2), 15), bits(high[i], 2 * r, 3)))
    },
    |which, put| {
        let d = w.half(Self::D);
        for j in which {
            // To the top of the lane and back, which keeps the sign.
            let top = _mm512_sllv_epi32(w.word((Self::SCALES + j) / 4), _mm512_set1_epi32(24 - 8 * (j % 4) as i32));
            let (d, m) = times(_mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(top))), -32.0);
            put(j, d, m);
        }
    }
);
transposed!(IQ4_XS, w, j, lookup(const { offset_by(IQ4_VALUES, BIAS) }, w.nibbles(Self::QS + 16 * j)), |which, put| {
    let high = _mm512_srli_epi32::<{ 8 * (IQ4_XS::SCALES_H % 4) as u32 }>(w.word(Self::SCALES_H / 4));
    let (d, low) = (w.half(Self::D), w.word(Self::SCALES_L / 4));
    for j in which {
        let low = _mm512_and_si512(right32(low, 4 * j), _mm512_set1_epi32(15));
        let high = _mm512_slli_epi32::<4>(_mm512_and_si512(right32(high, 2 * j), _mm512_set1_epi32(3)));
        let scale = _mm512_sub_epi32(_mm512_or_si512(low, high), _mm512_set1_epi32(32));
        let (d, m) = times(_mm512_mul_ps(d, _mm512_cvtepi32_ps(scale)), f32::from(BIAS));
        put(j, d, m);
    }
});

/// Scales and minimums of Q2_K, Q4_K and Q5_K: two numbers times a byte of `scales` and of `mins` for each of these groups.
#[inline]
#[target_feature(enable = "avx512f")]
fn k_scales(
    [d, m]: [__m512; 2],
    scales: &[__m512i],
    mins: &[__m512i],
    which: Range<usize>,
    put: &mut impl FnMut(usize, __m512, __m512),
) {
    let m = _mm512_sub_ps(_mm512_setzero_ps(), m);
    for j in which {
        put(j, _mm512_mul_ps(d, number(scales, j)), _mm512_mul_ps(m, number(mins, j)));
    }
}

/// Those of Q4_K and Q5_K, 6 bits each in 12 bytes.
///
/// # Safety
/// See [`Transposed::each_scale`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn k4_scales(w: Words<'_>, which: Range<usize>, put: &mut impl FnMut(usize, __m512, __m512)) {
    // SAFETY: the caller's step begins with both.
    let (both, [scales, mins]) = unsafe { (w.halves(Q4_K::D), w.six_bits()) };
    k_scales(both, &scales, &mins, which, put);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::isa::Kind;
    use crate::kernels::leaf_tests::{Unpacked, Unpacks, has, unpacks_as_the_plain_version};
    use crate::kernels::x86::unpack::Unpack;

    enum Sixteen {}

    impl Unpacks for Sixteen {
        const ROWS: usize = ROWS;
        const BIAS: u8 = BIAS as u8;

        unsafe fn unpack<F: Unpack>(rows: &[Vec<u8>], n: usize) -> Vec<Unpacked> {
            let lanes = |v: __m512| -> [f32; ROWS] {
                // SAFETY: both are 64 bytes of floats.
                unsafe { std::mem::transmute(v) }
            };
            let pointers: [*const u8; ROWS] = std::array::from_fn(|r| rows[r].as_ptr());
            let mut scales = [Scales { d: [0.0; 16], m: [0.0; 16] }; ROWS];
            let mut groups = [const { Vec::new() }; ROWS];
            let mut buffer = Buffer::new();
            let mut next = 0;
            // SAFETY: the caller's.
            unsafe {
                let step = buffer.transpose(&pointers, 0, rows[0].len());
                F::each_scale(step, 0..n * (32 / F::SPAN), |i, d, m| {
                    assert_eq!(i, next);
                    next += 1;
                    for (scales, (d, m)) in scales.iter_mut().zip(lanes(d).into_iter().zip(lanes(m))) {
                        (scales.d[i], scales.m[i]) = (d, m);
                    }
                });
                for j in 0..n {
                    let words = std::mem::transmute::<[__m512i; 8], [[[u8; 4]; ROWS]; 8]>(F::group(step, j));
                    for (r, groups) in groups.iter_mut().enumerate() {
                        groups.push(std::array::from_fn(|i| words[i / 4][r][i % 4]));
                    }
                }
            }
            assert_eq!(next, n * (32 / F::SPAN));
            scales.into_iter().zip(groups).map(|(s, groups)| Unpacked { scales: Some(s), groups }).collect()
        }
    }

    #[test]
    fn sixteen_rows_are_unpacked_as_by_the_plain_version() {
        if has(Kind::Avx512) {
            unpacks_as_the_plain_version::<Sixteen>();
        }
    }
}
