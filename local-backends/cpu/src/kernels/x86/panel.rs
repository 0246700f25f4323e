//! Prefill: panels of 8 or 16 weight rows, unpacked and interleaved once, against tiles of activation columns.
//!
//! A lane is a row: four bytes of a row's group lie in a 32-bit lane, beside those of the next row, and meet four bytes of a
//! column that are broadcast. So sums stay in their lane, a group's scales are a vector, and what a format costs to unpack is
//! paid once per panel, not once per column.

use super::unpack::{Head, Plain, Unpack};
use crate::kernels::act::ActBlock;
use crate::kernels::panel::{Columns, Tile, step_floats, tiles};
use std::arch::x86_64::*;

/// Most rows of a panel.
pub(in crate::kernels) const MAX_ROWS: usize = 16;

/// Transposes 8 x 8 lanes of 32 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(r: [__m256i; 8]) -> [__m256i; 8] {
    let pair = |a, b| (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (a0, a1) = pair(r[0], r[1]);
    let (a2, a3) = pair(r[2], r[3]);
    let (a4, a5) = pair(r[4], r[5]);
    let (a6, a7) = pair(r[6], r[7]);
    let quad = |a, b| (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let (b0, b1) = quad(a0, a2);
    let (b2, b3) = quad(a1, a3);
    let (b4, b5) = quad(a4, a6);
    let (b6, b7) = quad(a5, a7);
    let low = |a, b| _mm256_permute2x128_si256::<0x20>(a, b);
    let high = |a, b| _mm256_permute2x128_si256::<0x31>(a, b);
    [low(b0, b4), low(b1, b5), low(b2, b6), low(b3, b7), high(b0, b4), high(b1, b5), high(b2, b6), high(b3, b7)]
}

/// Asks for memory that will be read soon.
#[inline]
pub(in crate::kernels) fn fetch(p: *const u8) {
    // SAFETY: fetching is a hint that no address can make fail.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) };
}

/// Unpacks a panel of 8 rows.
///
/// # Safety
/// AVX2 and F16C; each of `w` points to a row of `groups` groups; `panel` to `ceil(groups / 8)` steps ([`step_floats`]), aligned to 64 bytes.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::kernels) unsafe fn fill_avx2<F: Unpack>(w: &[*const u8; 8], groups: usize, panel: *mut f32) {
    for b in 0..groups.div_ceil(8) {
        // SAFETY: steps of the caller's rows and panel.
        unsafe {
            let step = Step::<8>::of::<F>(panel, b);
            let n = (groups - 8 * b).min(8);
            step.scales::<F>(w, b, 0, n);
            for j in 0..n {
                step.group::<F>(w, b, 0, j);
            }
        }
    }
}

/// Unpacks a panel of 16 rows. Signed bytes become unsigned (plus 128), and the minimums make up for it.
///
/// # Safety
/// AVX-512 F and BW; the rest as [`fill_avx2`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(in crate::kernels) unsafe fn fill_vnni<F: Unpack>(w: &[*const u8; 16], groups: usize, panel: *mut f32) {
    for b in 0..groups.div_ceil(8) {
        // SAFETY: steps of the caller's rows and panel.
        unsafe {
            let n = (groups - 8 * b).min(8);
            Step::<16>::of::<F>(panel, b).fill16::<F>(w, b, n);
        }
    }
}

/// A step of a panel of `R` rows: its bytes, scales and minimums.
#[derive(Clone, Copy)]
struct Step<const R: usize> {
    q: *mut f32,
    d: *mut f32,
    m: *mut f32,
}

impl<const R: usize> Step<R> {
    /// Whether bytes are signed ones plus 128: VNNI takes unsigned ones.
    const fn is_biased<F: Unpack>() -> bool {
        R == 16 && F::BITS == 8
    }

    /// # Safety
    /// The panel has step `b`.
    #[inline(always)]
    unsafe fn of<F: Unpack>(panel: *mut f32, b: usize) -> Self {
        // SAFETY: the caller's.
        unsafe {
            let q = panel.add(b * step_floats(R, F::SPAN));
            let d = q.add(64 * R);
            Step { q, d, m: d.add(256 / F::SPAN * R) }
        }
    }

    /// Scales and minimums of 8 rows from `first` on, of which step `b` has `n` groups.
    ///
    /// # Safety
    /// See [`fill_avx2`].
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales<F: Unpack>(self, w: &[*const u8; R], b: usize, first: usize, n: usize) {
        let mut d = [[_mm256_setzero_si256(); 8]; 2];
        let mut m = d;
        // SAFETY: the caller's rows and panel.
        unsafe {
            for r in 0..8 {
                let mut s = F::vscales(w[first + r].add(b * F::STEP), n);
                if Self::is_biased::<F>() {
                    s.m = s.d.map(|d| _mm256_mul_ps(d, _mm256_set1_ps(-128.0)));
                }
                for h in 0..2 {
                    d[h][r] = _mm256_castps_si256(s.d[h]);
                    m[h][r] = _mm256_castps_si256(s.m[h]);
                }
            }
            for h in 0..32 / F::SPAN {
                for (out, v) in [(self.d, transpose(d[h])), (self.m, transpose(m[h]))] {
                    for (j, v) in v.into_iter().enumerate() {
                        _mm256_store_si256(out.add((h * 8 + j) * R + first).cast(), v);
                    }
                }
            }
        }
    }

    /// Bytes of group `j` of 8 rows from `first` on.
    ///
    /// # Safety
    /// See [`fill_avx2`].
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group<F: Unpack>(self, w: &[*const u8; R], b: usize, first: usize, j: usize) {
        let mut q = [_mm256_setzero_si256(); 8];
        // SAFETY: the caller's rows and panel.
        unsafe {
            for (r, q) in q.iter_mut().enumerate() {
                *q = F::vunpack(w[first + r].add(b * F::STEP), j);
                if Self::is_biased::<F>() {
                    *q = _mm256_xor_si256(*q, _mm256_set1_epi8(-128));
                }
            }
            for (kk, v) in transpose(q).into_iter().enumerate() {
                _mm256_store_si256(self.q.add((j * 8 + kk) * R + first).cast(), v);
            }
        }
    }
}

impl Step<16> {
    /// Step `b` of the rows, of `n` groups.
    ///
    /// # Safety
    /// See [`fill_vnni`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn fill16<F: Unpack>(self, w: &[*const u8; 16], b: usize, n: usize) {
        // SAFETY: the caller's rows and panel.
        unsafe {
            if F::HEAD.is_none() {
                self.scales::<F>(w, b, 0, n);
                self.scales::<F>(w, b, 8, n);
            }
            for j in 0..n {
                let at = b * F::STEP + j * F::BYTES;
                if let Some(head) = F::HEAD {
                    let (d, m) = heads(w, at, if Self::is_biased::<F>() { Head::Scale(-128.0) } else { head });
                    _mm512_store_ps(self.d.add(j * 16), d);
                    _mm512_store_ps(self.m.add(j * 16), m);
                }
                let fifteen = _mm512_set1_epi8(15);
                let high = |v| _mm512_and_si512(_mm512_srli_epi16::<4>(v), fifteen);
                let mut q = [_mm512_setzero_si512(); 8];
                match F::PLAIN {
                    Some(Plain::Nibbles(skip)) => {
                        let both = columns(w, at + skip);
                        for kk in 0..4 {
                            q[kk] = _mm512_and_si512(both[kk], fifteen);
                            q[4 + kk] = high(both[kk]);
                        }
                    }
                    Some(Plain::Bytes(skip)) => {
                        let (first, second) = (columns(w, at + skip), columns(w, at + skip + 16));
                        for kk in 0..4 {
                            (q[kk], q[4 + kk]) = (first[kk], second[kk]);
                        }
                    }
                    Some(Plain::Halves(skip)) => {
                        let at = b * F::STEP + skip + j / 2 * 32;
                        let (first, second) = (columns(w, at), columns(w, at + 16));
                        let shift = _mm_cvtsi32_si128(4 * (j % 2) as i32);
                        let half = |v| _mm512_and_si512(_mm512_srl_epi16(v, shift), fifteen);
                        for kk in 0..4 {
                            (q[kk], q[4 + kk]) = (half(first[kk]), half(second[kk]));
                        }
                    }
                    None => {
                        self.group::<F>(w, b, 0, j);
                        self.group::<F>(w, b, 8, j);
                        continue;
                    }
                }
                let to = self.q.add(j * 8 * 16);
                for kk in 0..8 {
                    let v =
                        if Self::is_biased::<F>() { _mm512_xor_si512(q[kk], _mm512_set1_epi8(-128)) } else { q[kk] };
                    _mm512_store_si512(to.add(kk * 16).cast(), v);
                }
            }
        }
    }
}

/// 16 bytes of each row from byte `at` on as columns: four of them in each lane, which is a row's.
///
/// # Safety
/// AVX-512 F; the rows have them.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn columns(w: &[*const u8; 16], at: usize) -> [__m512i; 4] {
    // SAFETY: the caller's.
    let row = |r: usize| unsafe { _mm_loadu_si128(w[r].add(at).cast()) };
    // Every fourth row, so that turning four by four within 128 bits brings all into order.
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

/// Scales and minimums at byte `at` of each row.
///
/// # Safety
/// AVX-512 F; the rows have four bytes there.
#[inline]
#[target_feature(enable = "avx512f,f16c")]
unsafe fn heads(w: &[*const u8; 16], at: usize, head: Head) -> (__m512, __m512) {
    // SAFETY: the caller's.
    let v = w.map(|w| unsafe { w.add(at).cast::<i32>().read_unaligned() });
    // SAFETY: 16 numbers.
    let v = unsafe { _mm512_loadu_si512(v.as_ptr().cast()) };
    let low = |v| _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v));
    let d = low(v);
    match head {
        Head::Scale(by) => (d, _mm512_mul_ps(d, _mm512_set1_ps(by))),
        Head::Both => (d, low(_mm512_srli_epi32::<16>(v))),
    }
}

/// A panel of 16 unsigned rows times `N` columns, VNNI. Rows from `rows` up are not written.
///
/// # Safety
/// AVX-512 F, VL, BW, DQ, VNNI; a panel of `groups` groups; `N` columns of blocks, `blocks` apart; the addressed `out`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
#[allow(clippy::too_many_arguments)]
unsafe fn tile_vnni<const N: usize, const SPAN: usize>(
    panel: *const f32,
    groups: usize,
    x: *const ActBlock,
    blocks: usize,
    out: *mut f32,
    out_stride: usize,
    rows: usize,
) {
    const R: usize = 16;
    let mut sum = [_mm512_setzero_ps(); N];
    for b in 0..groups.div_ceil(8) {
        // SAFETY: steps and blocks within the caller's counts.
        unsafe {
            let q = panel.add(b * step_floats(R, SPAN));
            let d = q.add(64 * R);
            let m = d.add(256 / SPAN * R);
            let mut cols = [x; N];
            for (c, col) in cols.iter_mut().enumerate() {
                *col = x.add(c * blocks + b);
            }
            for g in 0..(groups - 8 * b).min(8) * (32 / SPAN) {
                let mut acc = [_mm512_setzero_si512(); N];
                for kk in 0..SPAN / 4 {
                    let w = _mm512_load_si512(q.add((g * (SPAN / 4) + kk) * R).cast());
                    for c in 0..N {
                        let four = (*cols[c]).q.as_ptr().add(g * SPAN + 4 * kk).cast::<i32>();
                        acc[c] = _mm512_dpbusd_epi32(acc[c], w, _mm512_set1_epi32(*four));
                    }
                }
                let (dw, mw) = (_mm512_load_ps(d.add(g * R)), _mm512_load_ps(m.add(g * R)));
                for c in 0..N {
                    let dx = _mm512_set1_ps(*(*cols[c]).d.as_ptr().add(g * SPAN / 32));
                    let sx = if SPAN == 32 { (*cols[c]).s.as_ptr() } else { (*cols[c]).s16.as_ptr() };
                    sum[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[c]), _mm512_mul_ps(dw, dx), sum[c]);
                    sum[c] = _mm512_fmadd_ps(mw, _mm512_set1_ps(*sx.add(g)), sum[c]);
                }
            }
        }
    }
    let mask = ((1u32 << rows) - 1) as __mmask16;
    for (c, v) in sum.into_iter().enumerate() {
        // SAFETY: the mask keeps to the caller's rows.
        unsafe { _mm512_mask_storeu_ps(out.add(c * out_stride), mask, v) };
    }
}

/// A panel of 8 rows times `N` columns, AVX2. `DEPTH` products of the format's size, times two, fit 16 bits (0: the bytes are
/// signed and need a sign trick).
///
/// # Safety
/// AVX2 and FMA; the rest as [`tile_vnni`].
#[target_feature(enable = "avx2,fma")]
#[allow(clippy::too_many_arguments)]
unsafe fn tile_avx2<const N: usize, const SPAN: usize, const DEPTH: usize>(
    panel: *const f32,
    groups: usize,
    x: *const ActBlock,
    blocks: usize,
    out: *mut f32,
    out_stride: usize,
    rows: usize,
) {
    const R: usize = 8;
    let ones = _mm256_set1_epi16(1);
    let mut sum = [_mm256_setzero_ps(); N];
    for b in 0..groups.div_ceil(8) {
        // SAFETY: steps and blocks within the caller's counts.
        unsafe {
            let q = panel.add(b * step_floats(R, SPAN));
            let d = q.add(64 * R);
            let m = d.add(256 / SPAN * R);
            let mut cols = [x; N];
            for (c, col) in cols.iter_mut().enumerate() {
                *col = x.add(c * blocks + b);
            }
            for g in 0..(groups - 8 * b).min(8) * (32 / SPAN) {
                let at = g * (SPAN / 4);
                let four = |c: usize, kk: usize| _mm256_set1_epi32(*(*cols[c]).q.as_ptr().cast::<i32>().add(at + kk));
                let mut acc = [_mm256_setzero_si256(); N];
                if DEPTH == 0 {
                    for kk in 0..SPAN / 4 {
                        let w = _mm256_load_si256(q.add((at + kk) * R).cast());
                        let abs = _mm256_abs_epi8(w);
                        for c in 0..N {
                            let t = _mm256_maddubs_epi16(abs, _mm256_sign_epi8(four(c, kk), w));
                            acc[c] = _mm256_add_epi32(acc[c], _mm256_madd_epi16(t, ones));
                        }
                    }
                } else {
                    for kk in (0..SPAN / 4).step_by(DEPTH.max(1)) {
                        let mut t = [_mm256_setzero_si256(); N];
                        for i in 0..DEPTH {
                            let w = _mm256_load_si256(q.add((at + kk + i) * R).cast());
                            for c in 0..N {
                                let p = _mm256_maddubs_epi16(w, four(c, kk + i));
                                t[c] = if i == 0 { p } else { _mm256_add_epi16(t[c], p) };
                            }
                        }
                        for c in 0..N {
                            acc[c] = _mm256_add_epi32(acc[c], _mm256_madd_epi16(t[c], ones));
                        }
                    }
                }
                let (dw, mw) = (_mm256_load_ps(d.add(g * R)), _mm256_load_ps(m.add(g * R)));
                for c in 0..N {
                    let dx = _mm256_set1_ps(*(*cols[c]).d.as_ptr().add(g * SPAN / 32));
                    sum[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[c]), _mm256_mul_ps(dw, dx), sum[c]);
                    if DEPTH != 0 {
                        let sx = if SPAN == 32 { (*cols[c]).s.as_ptr() } else { (*cols[c]).s16.as_ptr() };
                        sum[c] = _mm256_fmadd_ps(mw, _mm256_set1_ps(*sx.add(g)), sum[c]);
                    }
                }
            }
        }
    }
    for (c, v) in sum.into_iter().enumerate() {
        // SAFETY: only the caller's rows are written.
        unsafe {
            let mut lanes = [0f32; R];
            _mm256_storeu_ps(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), out.add(c * out_stride), rows);
        }
    }
}

/// A panel times `n_cols` columns.
///
/// # Safety
/// AVX-512 with VNNI; see [`tile_vnni`].
pub(in crate::kernels) unsafe fn panel_vnni<F: Unpack>(columns: Columns) {
    const WIDE: usize = 8;
    let (wide, tiles): (Tile, [Tile; 4]) = match F::SPAN {
        32 => (tile_vnni::<WIDE, 32>, tiles!(tile_vnni, 32)),
        _ => (tile_vnni::<WIDE, 16>, tiles!(tile_vnni, 16)),
    };
    // SAFETY: the caller's panel, columns and output.
    unsafe { columns.each(wide, WIDE, tiles) }
}

/// A panel times `n_cols` columns.
///
/// # Safety
/// AVX2 and FMA; see [`tile_avx2`].
pub(in crate::kernels) unsafe fn panel_avx2<F: Unpack>(columns: Columns) {
    // Two products of 63 * 127 fit 16 bits twice, two of 31 * 127 four times.
    let tiles: [Tile; 4] = match (F::SPAN, F::BITS) {
        (32, 8) => tiles!(tile_avx2, 32, 0),
        (32, 6..) => tiles!(tile_avx2, 32, 2),
        (32, _) => tiles!(tile_avx2, 32, 4),
        (_, 8) => tiles!(tile_avx2, 16, 0),
        (_, 6..) => tiles!(tile_avx2, 16, 2),
        (_, _) => tiles!(tile_avx2, 16, 4),
    };
    // SAFETY: the caller's panel, columns and output.
    unsafe { columns.each(tiles[3], 4, tiles) }
}
