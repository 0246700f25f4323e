//! Panels of 16 rows with AVX-512 and VNNI. Bytes are unsigned, those of a signed format plus 128, and minimums make up for it.
//!
//! Unpacking transposes first: words of sixteen rows become vectors, which are then unpacked all at once (`words`). A tile is one panel or two
//! beside one another times up to eight columns, or six: its integer sums, its float sums and the weights that it meets stay in 32 registers.

use super::super::unpack::Unpack;
use super::super::words::{Buffer, MAX_WORDS, ROWS, Transposed, Words, columns};
use crate::kernels::act::ActBlock;
use crate::kernels::ahead::Ahead;
use crate::kernels::panel::{FILL_COLUMNS, MAX_ROWS, Panels, Part, Tile, mins_at, scales_at, step_floats, tiles};
use std::arch::x86_64::*;
use std::ops::Range;

/// Columns from which two panels beside one another are worth their room in the nearest cache.
const PAIR_COLUMNS: usize = 9;

/// Panels for `n_cols` columns.
pub(in crate::kernels::x86) fn panels<F: Unpack>(n_cols: usize) -> Panels {
    // As many sums as registers hold. With two panels, a column's number is read once for both.
    let (tiles, pairs): (&[Tile], &[Tile]) = match F::SPAN {
        32 => (tiles!(8, tile, 1, 32), tiles!(6, tile, 2, 32)),
        _ => (tiles!(8, tile, 1, 16), tiles!(6, tile, 2, 16)),
    };
    let pairs = (n_cols >= PAIR_COLUMNS).then_some(pairs);
    Panels { rows: ROWS, step: F::STEP, floats: step_floats(ROWS, F::SPAN), fill: fill::<F>, tiles, pairs }
}

/// Unpacks a panel.
///
/// # Safety
/// AVX-512 F, BW, DQ, VL; each of `w` points to a row of `groups` groups; `panel` to `ceil(groups / 8)` steps ([`step_floats`]), aligned to
/// 64 bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn fill<F: Transposed>(w: &[*const u8; MAX_ROWS], groups: usize, panel: *mut f32, ahead: &mut Ahead) {
    const { assert!(F::STEP <= 4 * MAX_WORDS && ROWS == MAX_ROWS) };
    for b in 0..groups.div_ceil(8) {
        ahead.more(FILL_COLUMNS);
        let (at, n) = (b * F::STEP, (groups - 8 * b).min(8));
        // SAFETY: steps of the caller's rows and panel.
        unsafe {
            let to = panel.add(b * step_floats(ROWS, F::SPAN));
            if n == 8 && F::BYTES < F::STEP {
                fill_block_by_block::<F>(w, at, to);
            } else {
                let mut buffer = Buffer::new();
                let step = buffer.transpose(w, at, if F::STEP == F::BYTES { F::STEP } else { n * F::BYTES });
                store_scales::<F>(step, 0..n * (32 / F::SPAN), to);
                (0..n).for_each(|j| store_group::<F>(step, j, to));
            }
        }
    }
}

/// Unpacks a whole step of a format with blocks of 32 elements, each of them as soon as its bytes are transposed: they stay in registers.
///
/// # Safety
/// As [`fill`]: rows with a step at byte `at`, and room for it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn fill_block_by_block<F: Transposed>(w: &[*const u8; ROWS], at: usize, to: *mut f32) {
    let mut buffer = Buffer::new();
    // Written out, and without calls, so that places in the buffer are known when this is compiled, and the buffer is registers.
    macro_rules! blocks {
        ($($j:literal)*) => {$(
            let (first, end) = const { (($j * F::BYTES).div_ceil(16), (($j + 1) * F::BYTES).div_ceil(16)) };
            // SAFETY: a step of the caller's rows, of which this block is transposed before it is read.
            unsafe {
                for i in first..end {
                    let (at, left) = (at + 16 * i, F::STEP - 16 * i);
                    buffer.put(i, columns(|r| if left < 16 {
                        _mm_maskz_loadu_epi8((1 << left) - 1, w[r].add(at).cast())
                    } else {
                        _mm_loadu_si128(w[r].add(at).cast())
                    }));
                }
                store_scales::<F>(buffer.words(), $j..$j + 1, to);
                store_group::<F>(buffer.words(), $j, to);
            }
        )*};
    }
    blocks!(0 1 2 3 4 5 6 7);
}

/// Writes some scales and minimums of a step to their places in the panel's step.
///
/// # Safety
/// AVX-512 F, BW; the step has them; room for a step.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn store_scales<F: Transposed>(step: Words<'_>, which: Range<usize>, to: *mut f32) {
    // SAFETY: the caller's.
    unsafe {
        let (d, m) = (to.add(scales_at(ROWS)), to.add(mins_at(ROWS, F::SPAN)));
        F::each_scale(step, which, |j, scale, min| {
            _mm512_store_ps(d.add(j * ROWS), scale);
            _mm512_store_ps(m.add(j * ROWS), min);
        });
    }
}

/// Writes group `j` of a step to its place in the panel's step.
///
/// # Safety
/// As [`store_scales`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn store_group<F: Transposed>(step: Words<'_>, j: usize, to: *mut f32) {
    // SAFETY: the caller's.
    unsafe {
        for (kk, v) in F::group(step, j).into_iter().enumerate() {
            _mm512_store_si512(to.add((j * 8 + kk) * ROWS).cast(), v);
        }
    }
}

/// Float sums of `V` panels and `N` columns.
type Sums<const N: usize, const V: usize> = [[__m512; V]; N];

/// `V` panels times `N` columns.
///
/// # Safety
/// AVX-512 F, BW, DQ, VL, VNNI; the part has `N` columns from `first` on.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
unsafe fn tile<const N: usize, const V: usize, const SPAN: usize>(part: &Part, first: usize, ahead: &mut Ahead) {
    // From a panel to the one beside it.
    let beside = part.groups.div_ceil(8) * step_floats(ROWS, SPAN);
    // SAFETY: the features are on; steps and blocks are within the part, and only its rows are read and written.
    unsafe {
        let (x, out) = part.column(first);
        let mut sum = load_sums::<N, V>(part, out);
        for b in 0..part.groups.div_ceil(8) {
            let step = part.panel.add(b * step_floats(ROWS, SPAN));
            ahead.more(N);
            let cols = part.blocks_of::<N>(x, b);
            for g in 0..(part.groups - 8 * b).min(8) * (32 / SPAN) {
                let products = span_products::<N, V, SPAN>(step, beside, g, cols);
                add_scaled::<N, V, SPAN>(&mut sum, products, step, beside, g, cols);
            }
        }
        store_sums::<N, V>(part, out, sum);
    }
}

/// Integer products of span `g` of the panels' step with that of each column, summed up by row.
///
/// # Safety
/// AVX-512 F, VNNI; the panels and columns have the span.
#[inline(always)]
unsafe fn span_products<const N: usize, const V: usize, const SPAN: usize>(
    step: *const f32,
    beside: usize,
    g: usize,
    cols: [*const ActBlock; N],
) -> [[__m512i; V]; N] {
    // SAFETY: the caller's.
    unsafe {
        let mut acc = [[_mm512_setzero_si512(); V]; N];
        for kk in 0..SPAN / 4 {
            let mut w = [_mm512_setzero_si512(); V];
            for (v, w) in w.iter_mut().enumerate() {
                *w = _mm512_load_si512(step.add(v * beside + (g * (SPAN / 4) + kk) * ROWS).cast());
            }
            for c in 0..N {
                let four = (*cols[c]).q.as_ptr().add(g * SPAN + 4 * kk).cast::<i32>();
                let four = _mm512_set1_epi32(*four);
                for v in 0..V {
                    acc[c][v] = _mm512_dpbusd_epi32(acc[c][v], w[v], four);
                }
            }
        }
        acc
    }
}

/// Adds integer products of span `g` times scales, and minimums times sums of activations.
///
/// # Safety
/// AVX-512 F; the panels and columns have the span.
#[inline(always)]
unsafe fn add_scaled<const N: usize, const V: usize, const SPAN: usize>(
    sum: &mut Sums<N, V>,
    products: [[__m512i; V]; N],
    step: *const f32,
    beside: usize,
    g: usize,
    cols: [*const ActBlock; N],
) {
    // SAFETY: the caller's.
    unsafe {
        let (mut dw, mut mw) = ([_mm512_setzero_ps(); V], [_mm512_setzero_ps(); V]);
        for v in 0..V {
            let at = v * beside + g * ROWS;
            dw[v] = _mm512_load_ps(step.add(scales_at(ROWS) + at));
            mw[v] = _mm512_load_ps(step.add(mins_at(ROWS, SPAN) + at));
        }
        for c in 0..N {
            let dx = _mm512_set1_ps(*(*cols[c]).d.as_ptr().add(g * SPAN / 32));
            let sx = if SPAN == 32 { (*cols[c]).s.as_ptr() } else { (*cols[c]).s16.as_ptr() };
            let sx = _mm512_set1_ps(*sx.add(g));
            for v in 0..V {
                let product = _mm512_cvtepi32_ps(products[c][v]);
                sum[c][v] = _mm512_fmadd_ps(product, _mm512_mul_ps(dw[v], dx), sum[c][v]);
                sum[c][v] = _mm512_fmadd_ps(mw[v], sx, sum[c][v]);
            }
        }
    }
}

/// Rows of panel `v` that are written.
#[inline(always)]
fn row_mask(part: &Part, v: usize) -> __mmask16 {
    ((1u32 << part.rows.saturating_sub(v * ROWS).min(ROWS)) - 1) as __mmask16
}

/// What there is of the parts before.
///
/// # Safety
/// AVX-512 F; `out` has `N` columns.
#[inline(always)]
unsafe fn load_sums<const N: usize, const V: usize>(part: &Part, out: *const f32) -> Sums<N, V> {
    // SAFETY: the mask keeps to the caller's rows.
    unsafe {
        let mut sum = [[_mm512_setzero_ps(); V]; N];
        if part.accumulate {
            for (c, sum) in sum.iter_mut().enumerate() {
                for (v, sum) in sum.iter_mut().enumerate() {
                    *sum = _mm512_maskz_loadu_ps(row_mask(part, v), out.add(c * part.out.stride + v * ROWS));
                }
            }
        }
        sum
    }
}

/// Writes the sums of the rows that are written.
///
/// # Safety
/// As [`load_sums`].
#[inline(always)]
unsafe fn store_sums<const N: usize, const V: usize>(part: &Part, out: *mut f32, sum: Sums<N, V>) {
    for (c, sum) in sum.into_iter().enumerate() {
        for (v, sum) in sum.into_iter().enumerate() {
            // SAFETY: the mask keeps to the caller's rows.
            unsafe { _mm512_mask_storeu_ps(out.add(c * part.out.stride + v * ROWS), row_mask(part, v), sum) };
        }
    }
}
