//! Vectors of F32 for what is written once in terms of them: float products and attention.

use super::rows::{EXP_FIRST, EXP_LN_2, EXP_MAGIC, EXP_NEXT};
use half::{bf16, f16};
use std::f32::consts::LOG2_E;

/// A vector of floats. The methods are for `#[inline(always)]` code that runs under the implementor's features.
pub(super) trait Lanes: Copy {
    /// Elements.
    const N: usize;

    /// All elements `v`.
    ///
    /// # Safety
    /// The implementor's features, as for every method.
    unsafe fn splat(v: f32) -> Self;
    /// `N` floats.
    ///
    /// # Safety
    /// They lie at `p`.
    unsafe fn load(p: *const f32) -> Self;
    /// `N` floats of 16 bits.
    ///
    /// # Safety
    /// They lie at `p`.
    unsafe fn load_f16(p: *const u16) -> Self;
    /// `N` bfloat16.
    ///
    /// # Safety
    /// They lie at `p`.
    unsafe fn load_bf16(p: *const u16) -> Self;
    /// Writes `N` floats.
    ///
    /// # Safety
    /// To `p`.
    unsafe fn store(self, p: *mut f32);
    /// `a * b + self`.
    ///
    /// # Safety
    /// Features.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
    /// Sum of the elements.
    ///
    /// # Safety
    /// Features.
    unsafe fn sum(self) -> f32;
    /// Sums of four vectors, each added up as [`Lanes::sum`] does.
    ///
    /// # Safety
    /// Features.
    #[inline(always)]
    unsafe fn sum4(v: [Self; 4]) -> [f32; 4] {
        // SAFETY: the caller's.
        v.map(|v| unsafe { v.sum() })
    }
    /// Transposes `N` rows of `N` elements.
    ///
    /// # Safety
    /// Features.
    unsafe fn transpose(rows: &mut [Self]);
    /// The sums.
    ///
    /// # Safety
    /// Features.
    unsafe fn add(self, b: Self) -> Self;
    /// The larger elements; those of `self` where either is not a number.
    ///
    /// # Safety
    /// Features.
    unsafe fn or_larger(self, b: Self) -> Self;
    /// The largest element, if all are numbers.
    ///
    /// # Safety
    /// Features.
    unsafe fn largest(self) -> f32;
    /// Elements where `a` is less than `b`, elsewhere those of `other`.
    ///
    /// # Safety
    /// Features.
    unsafe fn if_less(self, a: Self, b: Self, other: Self) -> Self;
    /// `2^n`, where `n` is in the lowest bits: any from -126 to 127.
    ///
    /// # Safety
    /// Features.
    unsafe fn power(self) -> Self;
}

/// e^x for each x <= 0, as [`rows::exp`](super::rows::exp) but with fused sums, and zero where that is not a normal number. Each is a
/// chain of instructions that wait for one another, so several vectors go side by side.
///
/// # Safety
/// L's features.
#[inline(always)]
pub(super) unsafe fn exp_negative<L: Lanes, const M: usize>(x: [L; M]) -> [L; M] {
    // SAFETY: the caller's.
    unsafe {
        let (zero, magic) = (L::splat(0.0), L::splat(EXP_MAGIC));
        // e^-87 is the last power of e^-1 that is normal.
        let least = L::splat(-87.0);
        let [high, low] = EXP_LN_2;
        let (mut r, mut t) = (x, [zero; M]);
        for (r, t) in r.iter_mut().zip(&mut t) {
            let y = r.or_larger(least);
            *t = magic.fma(y, L::splat(LOG2_E));
            let n = t.add(L::splat(-EXP_MAGIC));
            *r = y.fma(n, L::splat(-high)).fma(n, L::splat(-low));
        }
        let mut p = [L::splat(EXP_FIRST); M];
        for c in EXP_NEXT {
            for (p, r) in p.iter_mut().zip(r) {
                *p = L::splat(c).fma(*p, r);
            }
        }
        for (((p, r), t), x) in p.iter_mut().zip(r).zip(t).zip(x) {
            let power = t.power();
            *p = zero.if_less(x, least, power.fma(power, r.fma(*p, zero.fma(r, r))));
        }
        p
    }
}

/// Plain Rust, eight lanes: two NEON registers, or whatever the baseline has.
#[derive(Clone, Copy)]
pub(super) struct Plain([f32; 8]);

impl Plain {
    #[inline(always)]
    fn map2(self, b: Plain, f: impl Fn(f32, f32) -> f32) -> Plain {
        let mut out = self.0;
        for (a, b) in out.iter_mut().zip(b.0) {
            *a = f(*a, b);
        }
        Plain(out)
    }

    /// # Safety
    /// Eight elements at `p`.
    #[inline(always)]
    unsafe fn load_u16(p: *const u16, f: impl Fn(u16) -> f32) -> Plain {
        // SAFETY: the caller's eight.
        Plain(unsafe { p.cast::<[u16; 8]>().read_unaligned() }.map(f))
    }
}

impl Lanes for Plain {
    const N: usize = 8;

    #[inline(always)]
    unsafe fn splat(v: f32) -> Self {
        Plain([v; 8])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's eight.
        Plain(unsafe { p.cast::<[f32; 8]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: the caller's eight.
        unsafe { Plain::load_u16(p, |v| f16::from_bits(v).to_f32()) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: the caller's eight.
        unsafe { Plain::load_u16(p, |v| bf16::from_bits(v).to_f32()) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's eight.
        unsafe { p.cast::<[f32; 8]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        // Not mul_add, which is a function call where the baseline has no FMA.
        self.map2(a.map2(b, |a, b| a * b), |c, ab| c + ab)
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let [a, b, c, d, e, f, g, h] = self.0;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
    #[inline(always)]
    unsafe fn transpose(rows: &mut [Self]) {
        for i in 1..rows.len() {
            let (before, rest) = rows.split_at_mut(i);
            for (j, above) in before.iter_mut().enumerate() {
                std::mem::swap(&mut above.0[i], &mut rest[0].0[j]);
            }
        }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        self.map2(b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn or_larger(self, b: Self) -> Self {
        self.map2(b, |a, b| if b > a { b } else { a })
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, |m, v| if v > m { v } else { m })
    }
    #[inline(always)]
    unsafe fn if_less(self, a: Self, b: Self, other: Self) -> Self {
        Plain(std::array::from_fn(|i| if a.0[i] < b.0[i] { self.0[i] } else { other.0[i] }))
    }
    #[inline(always)]
    unsafe fn power(self) -> Self {
        Plain(self.0.map(|n| f32::from_bits((n.to_bits() << 23).wrapping_add(1f32.to_bits()))))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Lanes;
    use std::arch::x86_64::*;

    macro_rules! lanes {
        ($v:ty, $n:literal, $features:literal, $set1:ident, $load:ident, $store:ident, $fma:ident,
         half $hv:ident, $cvt:ident, $widen:ident, $shift:ident, $cast:ident, transpose $transpose:ident,
         fold $s:ident => $fold:expr, add $add:ident, max $max:ident, four $m:ident => $four:expr,
         bits $bits:ident $floats:ident $shl:ident $add_bits:ident, less ($v1:ident, $a:ident, $b:ident, $other:ident) => $chosen:expr) => {
            impl Lanes for $v {
                const N: usize = $n;

                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn splat(v: f32) -> Self {
                    $set1(v)
                }
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn load(p: *const f32) -> Self {
                    // SAFETY: the caller's floats.
                    unsafe { $load(p) }
                }
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn load_f16(p: *const u16) -> Self {
                    // SAFETY: the caller's floats.
                    $cvt(unsafe { $hv(p.cast()) })
                }
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn load_bf16(p: *const u16) -> Self {
                    // SAFETY: the caller's floats.
                    $cast($shift::<16>($widen(unsafe { $hv(p.cast()) })))
                }
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn store(self, p: *mut f32) {
                    // SAFETY: the caller's floats.
                    unsafe { $store(p, self) }
                }
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn fma(self, a: Self, b: Self) -> Self {
                    $fma(a, b, self)
                }
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn sum(self) -> f32 {
                    let $s = self;
                    let v = $fold;
                    let pairs = _mm_add_ps(v, _mm_movehdup_ps(v));
                    _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehl_ps(pairs, pairs)))
                }
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn sum4(v: [Self; 4]) -> [f32; 4] {
                    // Not map: what it calls is compiled without the features.
                    let mut folded = [_mm_setzero_ps(); 4];
                    for i in 0..4 {
                        let $s = v[i];
                        folded[i] = $fold;
                    }
                    let [a, b, c, d] = folded;
                    let sums = _mm_hadd_ps(_mm_hadd_ps(a, b), _mm_hadd_ps(c, d));
                    let mut out = [0.0; 4];
                    // SAFETY: room for four.
                    unsafe { _mm_storeu_ps(out.as_mut_ptr(), sums) };
                    out
                }
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn transpose(rows: &mut [Self]) {
                    if let Ok(rows) = rows.try_into() {
                        $transpose(rows);
                    }
                }
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn add(self, b: Self) -> Self {
                    $add(self, b)
                }
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn or_larger(self, b: Self) -> Self {
                    // The second one, if they cannot be compared.
                    $max(b, self)
                }
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn largest(self) -> f32 {
                    let $m = self;
                    let four = $four;
                    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
                    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
                }
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn if_less(self, a: Self, b: Self, other: Self) -> Self {
                    let ($v1, $a, $b, $other) = (self, a, b, other);
                    $chosen
                }
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn power(self) -> Self {
                    $floats($add_bits($shl::<23>($bits(self)), $bits($set1(1.0))))
                }
            }
        };
    }

    /// The first step of transposing, within 128 bits: of rows 4 i to 4 i + 3, vector 4 i + c has in part p the elements 4 p + c.
    macro_rules! transpose_quarters {
        ($rows:ident, $lo:ident, $hi:ident, $pair:ident, $single:ident, $lo_pair:ident, $hi_pair:ident) => {
            for four in $rows.as_chunks_mut::<4>().0 {
                let [a, b, c, d] = *four;
                let (ab, cd) = ($pair($lo(a, b)), $pair($lo(c, d)));
                let (ab_high, cd_high) = ($pair($hi(a, b)), $pair($hi(c, d)));
                four[0] = $single($lo_pair(ab, cd));
                four[1] = $single($hi_pair(ab, cd));
                four[2] = $single($lo_pair(ab_high, cd_high));
                four[3] = $single($hi_pair(ab_high, cd_high));
            }
        };
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn transpose8(rows: &mut [__m256; 8]) {
        transpose_quarters!(
            rows,
            _mm256_unpacklo_ps,
            _mm256_unpackhi_ps,
            _mm256_castps_pd,
            _mm256_castpd_ps,
            _mm256_unpacklo_pd,
            _mm256_unpackhi_pd
        );
        for c in 0..4 {
            let (a, b) = (rows[c], rows[4 + c]);
            rows[c] = _mm256_permute2f128_ps::<0x20>(a, b);
            rows[4 + c] = _mm256_permute2f128_ps::<0x31>(a, b);
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn transpose16(rows: &mut [__m512; 16]) {
        transpose_quarters!(
            rows,
            _mm512_unpacklo_ps,
            _mm512_unpackhi_ps,
            _mm512_castps_pd,
            _mm512_castpd_ps,
            _mm512_unpacklo_pd,
            _mm512_unpackhi_pd
        );
        // 0x88 takes parts 0 and 2 of both, 0xdd parts 1 and 3.
        for c in 0..4 {
            let even = _mm512_shuffle_f32x4::<0x88>(rows[c], rows[4 + c]);
            let odd = _mm512_shuffle_f32x4::<0xdd>(rows[c], rows[4 + c]);
            let even_high = _mm512_shuffle_f32x4::<0x88>(rows[8 + c], rows[12 + c]);
            let odd_high = _mm512_shuffle_f32x4::<0xdd>(rows[8 + c], rows[12 + c]);
            rows[c] = _mm512_shuffle_f32x4::<0x88>(even, even_high);
            rows[4 + c] = _mm512_shuffle_f32x4::<0x88>(odd, odd_high);
            rows[8 + c] = _mm512_shuffle_f32x4::<0xdd>(even, even_high);
            rows[12 + c] = _mm512_shuffle_f32x4::<0xdd>(odd, odd_high);
        }
    }

    lanes!(__m256, 8, "avx2,fma,f16c", _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps,
    half _mm_loadu_si128, _mm256_cvtph_ps, _mm256_cvtepu16_epi32, _mm256_slli_epi32,
    _mm256_castsi256_ps, transpose transpose8, fold v => _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v)),
    add _mm256_add_ps, max _mm256_max_ps, four m => _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps::<1>(m)),
    bits _mm256_castps_si256 _mm256_castsi256_ps _mm256_slli_epi32 _mm256_add_epi32,
    less (v, a, b, other) => _mm256_blendv_ps(other, v, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)));
    lanes!(__m512, 16, "avx512f", _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps,
    half _mm256_loadu_si256, _mm512_cvtph_ps, _mm512_cvtepu16_epi32, _mm512_slli_epi32,
    _mm512_castsi512_ps, transpose transpose16, fold v => {
        let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v)));
        let v = _mm256_add_ps(_mm512_castps512_ps256(v), high);
        _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v))
    }, add _mm512_add_ps, max _mm512_max_ps, four m => {
        let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(m)));
        let m = _mm256_max_ps(_mm512_castps512_ps256(m), high);
        _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps::<1>(m))
    }, bits _mm512_castps_si512 _mm512_castsi512_ps _mm512_slli_epi32 _mm512_add_epi32,
    less (v, a, b, other) => _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), other, v));
}

#[cfg(target_arch = "aarch64")]
pub(super) use neon::Neon;

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::Lanes;
    use crate::kernels::neon::half::widen;
    use std::arch::aarch64::*;

    /// Two registers: what is kept at a time is then as much as 32 registers hold.
    #[derive(Clone, Copy)]
    pub(in crate::kernels) struct Neon(float32x4_t, float32x4_t);

    impl Lanes for Neon {
        const N: usize = 8;

        #[inline]
        #[target_feature(enable = "neon")]
        unsafe fn splat(v: f32) -> Self {
            Neon(vdupq_n_f32(v), vdupq_n_f32(v))
        }
        #[inline]
        #[target_feature(enable = "neon")]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: the caller's eight.
            unsafe { Neon(vld1q_f32(p), vld1q_f32(p.add(4))) }
        }
        #[inline]
        #[target_feature(enable = "neon")]
        unsafe fn load_f16(p: *const u16) -> Self {
            // SAFETY: the caller's eight.
            let v = unsafe { vld1q_u16(p) };
            Neon(widen(vget_low_u16(v)), widen(vget_high_u16(v)))
        }
        #[inline]
        #[target_feature(enable = "neon")]
        unsafe fn load_bf16(p: *const u16) -> Self {
            // SAFETY: the caller's eight.
            let v = unsafe { vld1q_u16(p) };
            let zero = vdupq_n_u16(0);
            Neon(vreinterpretq_f32_u16(vzip1q_u16(zero, v)), vreinterpretq_f32_u16(vzip2q_u16(zero, v)))
        }
        #[inline]
        #[target_feature(enable = "neon")]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: the caller's eight.
            unsafe {
                vst1q_f32(p, self.0);
                vst1q_f32(p.add(4), self.1);
            }
        }
        #[inline]
        #[target_feature(enable = "neon")]
        unsafe fn fma(self, a: Self, b: Self) -> Self {
            Neon(vfmaq_f32(self.0, a.0, b.0), vfmaq_f32(self.1, a.1, b.1))
        }
        #[inline]
        #[target_feature(enable = "neon")]
        unsafe fn sum(self) -> f32 {
            vaddvq_f32(vaddq_f32(self.0, self.1))
        }
        #[inline]
        #[target_feature(enable = "neon")]
        unsafe fn sum4(v: [Self; 4]) -> [f32; 4] {
            let [a, b, c, d] = v.map(|v| vaddq_f32(v.0, v.1));
            let sums = vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d));
            let mut out = [0.0; 4];
            // SAFETY: room for four.
            unsafe { vst1q_f32(out.as_mut_ptr(), sums) };
            out
        }
        #[inline]
        #[target_feature(enable = "neon")]
        unsafe fn transpose(rows: &mut [Self]) {
            let Ok(rows) = <&mut [Self; 8]>::try_from(rows) else { return };
            let low = transpose4([rows[0].0, rows[1].0, rows[2].0, rows[3].0]);
            let low_behind = transpose4([rows[4].0, rows[5].0, rows[6].0, rows[7].0]);
            let high = transpose4([rows[0].1, rows[1].1, rows[2].1, rows[3].1]);
            let high_behind = transpose4([rows[4].1, rows[5].1, rows[6].1, rows[7].1]);
            for i in 0..4 {
                rows[i] = Neon(low[i], low_behind[i]);
                rows[4 + i] = Neon(high[i], high_behind[i]);
            }
        }
        #[inline]
        #[target_feature(enable = "neon")]
        unsafe fn add(self, b: Self) -> Self {
            Neon(vaddq_f32(self.0, b.0), vaddq_f32(self.1, b.1))
        }
        #[inline]
        #[target_feature(enable = "neon")]
        unsafe fn or_larger(self, b: Self) -> Self {
            let larger = |a, b| vbslq_f32(vcgtq_f32(b, a), b, a);
            Neon(larger(self.0, b.0), larger(self.1, b.1))
        }
        #[inline]
        #[target_feature(enable = "neon")]
        unsafe fn largest(self) -> f32 {
            vmaxvq_f32(vmaxq_f32(self.0, self.1))
        }
        #[inline]
        #[target_feature(enable = "neon")]
        unsafe fn if_less(self, a: Self, b: Self, other: Self) -> Self {
            let chosen = |v, a, b, other| vbslq_f32(vcltq_f32(a, b), v, other);
            Neon(chosen(self.0, a.0, b.0, other.0), chosen(self.1, a.1, b.1, other.1))
        }
        #[inline]
        #[target_feature(enable = "neon")]
        unsafe fn power(self) -> Self {
            let one = vreinterpretq_u32_f32(vdupq_n_f32(1.0));
            let power = |n| vreinterpretq_f32_u32(vaddq_u32(vshlq_n_u32::<23>(vreinterpretq_u32_f32(n)), one));
            Neon(power(self.0), power(self.1))
        }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    fn transpose4([a, b, c, d]: [float32x4_t; 4]) -> [float32x4_t; 4] {
        let (ab, cd) = (vreinterpretq_f64_f32(vtrn1q_f32(a, b)), vreinterpretq_f64_f32(vtrn1q_f32(c, d)));
        let (ab_odd, cd_odd) = (vreinterpretq_f64_f32(vtrn2q_f32(a, b)), vreinterpretq_f64_f32(vtrn2q_f32(c, d)));
        [
            vreinterpretq_f32_f64(vtrn1q_f64(ab, cd)),
            vreinterpretq_f32_f64(vtrn1q_f64(ab_odd, cd_odd)),
            vreinterpretq_f32_f64(vtrn2q_f64(ab, cd)),
            vreinterpretq_f32_f64(vtrn2q_f64(ab_odd, cd_odd)),
        ]
    }
}

/// Element types that a float kernel reads as F32.
pub(super) trait Element: Copy {
    /// `L::N` elements.
    ///
    /// # Safety
    /// They lie at `p`; L's features.
    unsafe fn lanes<L: Lanes>(p: *const Self) -> L;
    /// One element.
    fn one(self) -> f32;
}

/// An F16 as bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F16(u16);

/// A bfloat16 as bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bf16(u16);

impl Element for f32 {
    #[inline(always)]
    unsafe fn lanes<L: Lanes>(p: *const f32) -> L {
        // SAFETY: the caller's.
        unsafe { L::load(p) }
    }
    #[inline(always)]
    fn one(self) -> f32 {
        self
    }
}

impl Element for F16 {
    #[inline(always)]
    unsafe fn lanes<L: Lanes>(p: *const F16) -> L {
        // SAFETY: the caller's.
        unsafe { L::load_f16(p.cast()) }
    }
    #[inline(always)]
    fn one(self) -> f32 {
        f16::from_bits(self.0).to_f32()
    }
}

impl Element for Bf16 {
    #[inline(always)]
    unsafe fn lanes<L: Lanes>(p: *const Bf16) -> L {
        // SAFETY: the caller's.
        unsafe { L::load_bf16(p.cast()) }
    }
    #[inline(always)]
    fn one(self) -> f32 {
        bf16::from_bits(self.0).to_f32()
    }
}

/// Defines an unsafe function that runs one generic body with the lanes of the chosen ISA: `$body::<Lanes>(args)`, or
/// `$body::<Lanes, W>(args)` if it is generic over W.
macro_rules! per_lanes {
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident$(<$W:ident>)?($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis unsafe fn $name$(<$W: $crate::kernels::simd::Element>)?(isa: $crate::kernels::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn avx2$(<$W: $crate::kernels::simd::Element>)?($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the features are on, the rest is the caller's.
                unsafe { $body::<std::arch::x86_64::__m256 $(, $W)?>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn avx512$(<$W: $crate::kernels::simd::Element>)?($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above.
                unsafe { $body::<std::arch::x86_64::__m512 $(, $W)?>($($arg),*) }
            }
            match isa.kind() {
                // SAFETY: the caller's.
                $crate::kernels::isa::Kind::Portable => unsafe { $body::<$crate::kernels::simd::Plain $(, $W)?>($($arg),*) },
                // SAFETY: an Isa of this kind exists only where these features are; the rest is the caller's.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::isa::Kind::Avx2 | $crate::kernels::isa::Kind::AvxVnni => unsafe {
                    avx2$(::<$W>)?($($arg),*)
                },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::isa::Kind::Avx512 => unsafe { avx512$(::<$W>)?($($arg),*) },
                // SAFETY: NEON is aarch64's baseline; the rest is the caller's.
                #[cfg(target_arch = "aarch64")]
                $crate::kernels::isa::Kind::Neon | $crate::kernels::isa::Kind::NeonDot => unsafe {
                    $body::<$crate::kernels::simd::Neon $(, $W)?>($($arg),*)
                },
            }
        }
    };
}
pub(super) use per_lanes;
