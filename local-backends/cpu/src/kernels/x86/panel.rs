//! Prefill: panels of 8 or 16 weight rows, unpacked and interleaved once, against tiles of activation columns.
//!
//! A lane is a row: four bytes of a row's group lie in a 32-bit lane, beside those of the next row, and meet four bytes of a
//! column that are broadcast. So sums stay in their lane, a group's scales are a vector, and what a format costs to unpack is
//! paid once per panel, not once per column.

use super::unpack::Unpack;
use super::words::{Buffer, MAX_WORDS, ROWS, Turned};
use crate::kernels::ahead::Ahead;
use crate::kernels::panel::{FILL, MAX_ROWS, Panels, Part, Tile, step_floats, tiles};
use std::arch::x86_64::*;

/// Columns from which two panels beside one another are worth their room in the nearest cache.
const TWO_PANELS: usize = 9;

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

/// Unpacks a panel of 8 rows.
///
/// # Safety
/// AVX2 and F16C; each of `w` points to a row of `groups` groups; `panel` to `ceil(groups / 8)` steps ([`step_floats`]), aligned to 64 bytes.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fill_avx2<F: Unpack>(w: &[*const u8; MAX_ROWS], groups: usize, panel: *mut f32, ahead: &mut Ahead) {
    let w: [_; 8] = std::array::from_fn(|r| w[r]);
    for b in 0..groups.div_ceil(8) {
        ahead.more(FILL);
        let n = (groups - 8 * b).min(8);
        // SAFETY: steps of the caller's rows and panel.
        unsafe {
            let w = w.map(|w| w.add(b * F::STEP));
            let q = panel.add(b * step_floats(8, F::SPAN));
            scales8::<F>(&w, n, q.add(64 * 8));
            for j in 0..n {
                let rows = w.map(|w| F::vunpack(w, j));
                for (kk, v) in transpose(rows).into_iter().enumerate() {
                    _mm256_store_si256(q.add((j * 8 + kk) * 8).cast(), v);
                }
            }
        }
    }
}

/// Scales and minimums of the `n` groups of a step of 8 rows, to `to` and behind.
///
/// # Safety
/// See [`fill_avx2`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scales8<F: Unpack>(w: &[*const u8; 8], n: usize, to: *mut f32) {
    let mut d = [[_mm256_setzero_si256(); 8]; 2];
    let mut m = d;
    for (r, &w) in w.iter().enumerate() {
        // SAFETY: the caller's rows.
        let s = unsafe { F::vscales(w, n) };
        for h in 0..2 {
            d[h][r] = _mm256_castps_si256(s.d[h]);
            m[h][r] = _mm256_castps_si256(s.m[h]);
        }
    }
    for h in 0..32 / F::SPAN {
        for (at, v) in [(0, transpose(d[h])), (256 / F::SPAN * 8, transpose(m[h]))] {
            for (j, v) in v.into_iter().enumerate() {
                // SAFETY: the caller's panel.
                unsafe { _mm256_store_si256(to.add(at + (h * 8 + j) * 8).cast(), v) };
            }
        }
    }
}

/// Unpacks a panel of 16 rows. Signed bytes become unsigned (plus 128), and the minimums make up for it.
///
/// # Safety
/// AVX-512 F, BW, DQ, VL; the rest as [`fill_avx2`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn fill_vnni<F: Turned>(w: &[*const u8; MAX_ROWS], groups: usize, panel: *mut f32, ahead: &mut Ahead) {
    const { assert!(F::STEP <= 4 * MAX_WORDS && ROWS == MAX_ROWS) };
    let mut buffer = Buffer::new();
    for b in 0..groups.div_ceil(8) {
        ahead.more(FILL);
        let n = (groups - 8 * b).min(8);
        // SAFETY: steps of the caller's rows and panel.
        unsafe {
            let step = buffer.turn(w, b * F::STEP, if F::STEP == F::BYTES { F::STEP } else { n * F::BYTES });
            let q = panel.add(b * step_floats(ROWS, F::SPAN));
            let d = q.add(64 * ROWS);
            let m = d.add(256 / F::SPAN * ROWS);
            F::each_scale(step, n * (32 / F::SPAN), |j, scale, min| {
                _mm512_store_ps(d.add(j * ROWS), scale);
                _mm512_store_ps(m.add(j * ROWS), min);
            });
            for j in 0..n {
                for (kk, v) in F::group(step, j).into_iter().enumerate() {
                    _mm512_store_si512(q.add((j * 8 + kk) * ROWS).cast(), v);
                }
            }
        }
    }
}

/// `V` panels of 16 unsigned rows times `N` columns, VNNI.
///
/// # Safety
/// AVX-512 F, VL, BW, DQ, VNNI; the part has `N` columns from `first` on.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
unsafe fn tile_vnni<const N: usize, const V: usize, const SPAN: usize>(part: &Part, first: usize, ahead: &mut Ahead) {
    const R: usize = ROWS;
    let &Part { panel, groups, blocks, rows, .. } = part;
    // SAFETY: the caller's columns.
    let (x, out) = unsafe { part.column(first) };
    let next = groups.div_ceil(8) * step_floats(R, SPAN);
    let mask = |v: usize| ((1u32 << rows.saturating_sub(v * R).min(R)) - 1) as __mmask16;
    let mut sum = [[_mm512_setzero_ps(); V]; N];
    if part.go_on {
        for (c, sum) in sum.iter_mut().enumerate() {
            for (v, sum) in sum.iter_mut().enumerate() {
                // SAFETY: the mask keeps to the caller's rows.
                *sum = unsafe { _mm512_maskz_loadu_ps(mask(v), out.add(c * part.out.stride + v * R)) };
            }
        }
    }
    for b in 0..groups.div_ceil(8) {
        // SAFETY: steps and blocks within the caller's counts.
        unsafe {
            let q = panel.add(b * step_floats(R, SPAN));
            let d = q.add(64 * R);
            let m = d.add(256 / SPAN * R);
            ahead.more(N);
            let mut cols = [x; N];
            for (c, col) in cols.iter_mut().enumerate() {
                *col = x.add(c * blocks + b);
            }
            for g in 0..(groups - 8 * b).min(8) * (32 / SPAN) {
                let mut acc = [[_mm512_setzero_si512(); V]; N];
                for kk in 0..SPAN / 4 {
                    let mut w = [_mm512_setzero_si512(); V];
                    for (v, w) in w.iter_mut().enumerate() {
                        *w = _mm512_load_si512(q.add(v * next + (g * (SPAN / 4) + kk) * R).cast());
                    }
                    for c in 0..N {
                        let four = (*cols[c]).q.as_ptr().add(g * SPAN + 4 * kk).cast::<i32>();
                        let four = _mm512_set1_epi32(*four);
                        for v in 0..V {
                            acc[c][v] = _mm512_dpbusd_epi32(acc[c][v], w[v], four);
                        }
                    }
                }
                let (mut dw, mut mw) = ([_mm512_setzero_ps(); V], [_mm512_setzero_ps(); V]);
                for v in 0..V {
                    dw[v] = _mm512_load_ps(d.add(v * next + g * R));
                    mw[v] = _mm512_load_ps(m.add(v * next + g * R));
                }
                for c in 0..N {
                    let dx = _mm512_set1_ps(*(*cols[c]).d.as_ptr().add(g * SPAN / 32));
                    let sx = if SPAN == 32 { (*cols[c]).s.as_ptr() } else { (*cols[c]).s16.as_ptr() };
                    let sx = _mm512_set1_ps(*sx.add(g));
                    for v in 0..V {
                        let product = _mm512_cvtepi32_ps(acc[c][v]);
                        sum[c][v] = _mm512_fmadd_ps(product, _mm512_mul_ps(dw[v], dx), sum[c][v]);
                        sum[c][v] = _mm512_fmadd_ps(mw[v], sx, sum[c][v]);
                    }
                }
            }
        }
    }
    for (c, sum) in sum.into_iter().enumerate() {
        for (v, sum) in sum.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { _mm512_mask_storeu_ps(out.add(c * part.out.stride + v * R), mask(v), sum) };
        }
    }
}

/// A panel of 8 rows times `N` columns, AVX2. `DEPTH` products of the format's size, times two, fit 16 bits (0: the bytes are
/// signed and need a sign trick).
///
/// # Safety
/// AVX2 and FMA; the rest as [`tile_vnni`].
#[target_feature(enable = "avx2,fma")]
unsafe fn tile_avx2<const N: usize, const SPAN: usize, const DEPTH: usize>(
    part: &Part,
    first: usize,
    ahead: &mut Ahead,
) {
    const R: usize = 8;
    let &Part { panel, groups, blocks, rows, .. } = part;
    // SAFETY: the caller's columns.
    let (x, out) = unsafe { part.column(first) };
    let ones = _mm256_set1_epi16(1);
    let mut sum = [_mm256_setzero_ps(); N];
    if part.go_on {
        for (c, sum) in sum.iter_mut().enumerate() {
            let mut lanes = [0f32; R];
            // SAFETY: only the caller's rows are read.
            unsafe {
                std::ptr::copy_nonoverlapping(out.add(c * part.out.stride), lanes.as_mut_ptr(), rows);
                *sum = _mm256_loadu_ps(lanes.as_ptr());
            }
        }
    }
    for b in 0..groups.div_ceil(8) {
        // SAFETY: steps and blocks within the caller's counts.
        unsafe {
            let q = panel.add(b * step_floats(R, SPAN));
            let d = q.add(64 * R);
            let m = d.add(256 / SPAN * R);
            ahead.more(N);
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
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), out.add(c * part.out.stride), rows);
        }
    }
}

/// Panels for `n_cols` columns with AVX-512 and VNNI.
pub(super) fn panels_vnni<F: Unpack>(n_cols: usize) -> Panels {
    let two = n_cols >= TWO_PANELS;
    // As many sums as registers hold. With two panels, a column's number is read once for both.
    let tiles: &[Tile] = match (two, F::SPAN) {
        (false, 32) => tiles!(8, tile_vnni, 1, 32),
        (false, _) => tiles!(8, tile_vnni, 1, 16),
        (true, 32) => tiles!(6, tile_vnni, 2, 32),
        (true, _) => tiles!(6, tile_vnni, 2, 16),
    };
    let (beside, floats) = (1 + usize::from(two), step_floats(ROWS, F::SPAN));
    Panels { rows: ROWS, beside, step: F::STEP, floats, fill: fill_vnni::<F>, tiles }
}

/// Panels with AVX2 and FMA.
pub(super) fn panels_avx2<F: Unpack>() -> Panels {
    // Two products of 63 * 127 fit 16 bits twice, two of 31 * 127 four times.
    let tiles: &[Tile] = match (F::SPAN, F::BITS) {
        (32, 8) => tiles!(4, tile_avx2, 32, 0),
        (32, 6..) => tiles!(4, tile_avx2, 32, 2),
        (32, _) => tiles!(4, tile_avx2, 32, 4),
        (_, 8) => tiles!(4, tile_avx2, 16, 0),
        (_, 6..) => tiles!(4, tile_avx2, 16, 2),
        (_, _) => tiles!(4, tile_avx2, 16, 4),
    };
    let floats = step_floats(8, F::SPAN);
    Panels { rows: 8, beside: 1, step: F::STEP, floats, fill: fill_avx2::<F>, tiles }
}
