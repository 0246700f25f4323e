//! Two groups of a row in one vector, AVX-512: what dot products meet with 64 activations.

use super::words::{BIAS, broadcast_table, offset_by};
use crate::kernels::format::*;
use outboard_core::quant::{IQ4_VALUES, MXFP4_VALUES};
use std::arch::x86_64::*;

/// The AVX-512 side of a [`Format`] row by row. Bytes are unsigned, those of a signed format plus 128.
pub(in crate::kernels) trait UnpackPair: Format {
    /// Groups `2 * j` and `2 * j + 1`, one behind the other.
    ///
    /// # Safety
    /// AVX-512 F, BW, VL; `w` points to a step that has both.
    unsafe fn vunpack_pair(w: *const u8, j: usize) -> __m512i;
}

macro_rules! pair {
    ($name:ident, $w:ident, $j:ident, $both:expr) => {
        impl UnpackPair for $name {
            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
            unsafe fn vunpack_pair($w: *const u8, $j: usize) -> __m512i {
                // SAFETY: the caller's step has both groups, and only they and their block's other fields are read.
                unsafe { $both }
            }
        }
    };
}

/// Each byte of the first half shifted right by `n[0]`, of the second by `n[1]`, and masked.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn bits(v: __m512i, n: [usize; 2], mask: i8) -> __m512i {
    let [a, b] = n.map(|n| _mm256_set1_epi16(n as i16));
    let by = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b);
    _mm512_and_si512(_mm512_srlv_epi16(v, by), _mm512_set1_epi8(mask))
}

/// 32 bytes from memory, twice.
///
/// # Safety
/// AVX-512 F; 32 bytes at `p`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn twice(p: *const u8) -> __m512i {
    // SAFETY: the caller's bytes.
    _mm512_broadcast_i64x4(unsafe { _mm256_loadu_si256(p.cast()) })
}

/// `v` plus `more` in the bytes where `high` has the bit `n[0]`, in the first half, and `n[1]`, in the second.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn plus(v: __m512i, high: __m512i, n: [usize; 2], more: i8) -> __m512i {
    let [a, b] = n.map(|n| _mm256_set1_epi8(1i8 << n));
    let which = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b);
    _mm512_mask_add_epi8(v, _mm512_test_epi8_mask(high, which), v, _mm512_set1_epi8(more))
}

/// Low halves of 16 bytes, their high halves, and the same of 16 others.
///
/// # Safety
/// AVX-512 F, BW, VL; 16 bytes at each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn nibbles(a: *const u8, b: *const u8) -> __m512i {
    // SAFETY: the caller's bytes.
    let (a, b) = unsafe { (_mm_loadu_si128(a.cast()), _mm_loadu_si128(b.cast())) };
    let v = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(a), 0xff00, b);
    let four = 0x0004_0004_0004_0004;
    let by = _mm512_setr_epi64(0, 0, four, four, 0, 0, four, four);
    _mm512_and_si512(_mm512_srlv_epi16(v, by), _mm512_set1_epi8(15))
}

/// [`nibbles`] of two blocks of `BYTES` from `w` on, whose bytes are behind `skip` others.
///
/// # Safety
/// AVX-512 F, BW, VL; two blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn blocks(w: *const u8, bytes: usize, skip: usize) -> __m512i {
    // SAFETY: the caller's blocks.
    unsafe { nibbles(w.add(skip), w.add(bytes + skip)) }
}

/// [`blocks`] of five bits: the fifth of each byte is in 32 bits right before the others.
///
/// # Safety
/// As [`blocks`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn five(w: *const u8, bytes: usize, skip: usize) -> __m512i {
    // SAFETY: the caller's blocks.
    unsafe {
        let fifth = |w: *const u8| u64::from(w.add(skip - 4).cast::<u32>().read_unaligned());
        let v = blocks(w, bytes, skip);
        _mm512_mask_add_epi8(v, fifth(w) | fifth(w.add(bytes)) << 32, v, _mm512_set1_epi8(16))
    }
}

/// The table's value for each byte below 16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn lookup(table: [i8; 16], index: __m512i) -> __m512i {
    _mm512_shuffle_epi8(broadcast_table(table), index)
}

pair!(Q4_0, w, j, blocks(w.add(2 * j * Self::BYTES), Self::BYTES, Self::QS));
pair!(Q4_1, w, j, blocks(w.add(2 * j * Self::BYTES), Self::BYTES, Self::QS));
pair!(Q5_0, w, j, five(w.add(2 * j * Self::BYTES), Self::BYTES, Self::QS));
pair!(Q5_1, w, j, five(w.add(2 * j * Self::BYTES), Self::BYTES, Self::QS));
pair!(Q8_0, w, j, {
    let at = |i: usize| _mm256_loadu_si256(w.add((2 * j + i) * Self::BYTES + Self::QS).cast());
    let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(at(0)), at(1));
    _mm512_xor_si512(both, _mm512_set1_epi8(BIAS))
});
pair!(
    IQ4_NL,
    w,
    j,
    lookup(const { offset_by(IQ4_VALUES, BIAS) }, blocks(w.add(2 * j * Self::BYTES), Self::BYTES, Self::QS))
);
pair!(MXFP4, w, j, {
    lookup(const { offset_by(MXFP4_VALUES, MXFP4_OFFSET) }, blocks(w.add(2 * j * Self::BYTES), Self::BYTES, Self::QS))
});
pair!(Q2_K, w, j, bits(twice(w.add(Self::QS + j / 2 * 32)), [j % 2 * 4, j % 2 * 4 + 2], 3));
pair!(Q3_K, w, j, {
    let low = bits(twice(w.add(Self::QS + j / 2 * 32)), [j % 2 * 4, j % 2 * 4 + 2], 3);
    plus(low, twice(w.add(Self::HMASK)), [2 * j, 2 * j + 1], 4)
});
pair!(Q4_K, w, j, bits(twice(w.add(Self::QS + 32 * j)), [0, 4], 15));
pair!(
    Q5_K,
    w,
    j,
    plus(bits(twice(w.add(Self::QS + 32 * j)), [0, 4], 15), twice(w.add(Self::QH)), [2 * j, 2 * j + 1], 16)
);
pair!(Q6_K, w, j, {
    let low = _mm512_loadu_si512(w.add(Self::QL + j / 2 * 64).cast());
    let low = if j % 2 == 0 { low } else { _mm512_srli_epi16::<4>(low) };
    let high = bits(twice(w.add(Self::QH + j / 2 * 32)), [j % 2 * 4, j % 2 * 4 + 2], 3);
    _mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi8(15)), _mm512_slli_epi16::<4>(high))
});
pair!(
    IQ4_XS,
    w,
    j,
    lookup(const { offset_by(IQ4_VALUES, BIAS) }, nibbles(w.add(Self::QS + 32 * j), w.add(Self::QS + 32 * j + 16)))
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::isa::Kind;
    use crate::kernels::leaf_tests::{Unpacked, Unpacks, has, unpacks_as_the_plain_version};
    use crate::kernels::x86::unpack::Unpack;

    enum Pairs {}

    impl Unpacks for Pairs {
        const BIAS: u8 = BIAS as u8;

        unsafe fn unpack<F: Unpack>(rows: &[Vec<u8>], n: usize) -> Vec<Unpacked> {
            let step = |w: &Vec<u8>| {
                let pair = |j: usize| -> [[u8; 32]; 2] {
                    // SAFETY: the caller's; both are 64 bytes.
                    unsafe { std::mem::transmute(F::vunpack_pair(w.as_ptr(), j)) }
                };
                let mut groups: Vec<[u8; 32]> = (0..n / 2).flat_map(pair).collect();
                if n % 2 == 1 {
                    // As dot products take it.
                    // SAFETY: the caller's; both are 32 bytes.
                    let last: [u8; 32] = unsafe { std::mem::transmute(F::vunpack(w.as_ptr(), n - 1)) };
                    groups.push(last.map(|q| if F::BITS == 8 { q.wrapping_add(BIAS as u8) } else { q }));
                }
                Unpacked { scales: None, groups }
            };
            rows.iter().map(step).collect()
        }
    }

    #[test]
    fn pairs_are_unpacked_as_by_the_plain_version() {
        if has(Kind::Avx512) {
            unpacks_as_the_plain_version::<Pairs>();
        }
    }
}
