//! Prefill: panels of 8 or 16 weight rows, unpacked and interleaved once, against tiles of activation columns.
//!
//! A lane is a row: four bytes of a row's group lie in a 32-bit lane, beside those of the next row, and meet four bytes of a
//! column that are broadcast. So sums stay in their lane, a group's scales are a vector, and what a format costs to unpack is
//! paid once per panel, not once per column.

use super::unpack::Unpack;
use super::words::{Buffer, MAX_WORDS, ROWS, Turned, Words, columns};
use crate::kernels::ahead::Ahead;
use crate::kernels::panel::{FILL, MAX_ROWS, Panels, Part, Tile, step_floats, tiles};
use std::arch::x86_64::*;
use std::ops::Range;

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

/// Unpacks a panel of 8 rows. With `UNSIGNED`, signed bytes become unsigned (plus 128), and minimums make up for it.
///
/// # Safety
/// AVX2 and F16C; each of `w` points to a row of `groups` groups; `panel` to `ceil(groups / 8)` steps ([`step_floats`]), aligned to 64 bytes.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fill8<F: Unpack, const UNSIGNED: bool>(
    w: &[*const u8; MAX_ROWS],
    groups: usize,
    panel: *mut f32,
    ahead: &mut Ahead,
) {
    let w: [_; 8] = std::array::from_fn(|r| w[r]);
    for b in 0..groups.div_ceil(8) {
        ahead.more(FILL);
        let n = (groups - 8 * b).min(8);
        // SAFETY: steps of the caller's rows and panel.
        unsafe {
            let w = w.map(|w| w.add(b * F::STEP));
            let q = panel.add(b * step_floats(8, F::SPAN));
            scales8::<F, UNSIGNED>(&w, n, q.add(64 * 8));
            for j in 0..n {
                let rows = w.map(|w| F::vunpack(w, j));
                for (kk, v) in transpose(rows).into_iter().enumerate() {
                    let v = if UNSIGNED && F::BITS == 8 { _mm256_xor_si256(v, _mm256_set1_epi8(-128)) } else { v };
                    _mm256_store_si256(q.add((j * 8 + kk) * 8).cast(), v);
                }
            }
        }
    }
}

/// Scales and minimums of the `n` groups of a step of 8 rows, to `to` and behind.
///
/// # Safety
/// See [`fill8`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scales8<F: Unpack, const UNSIGNED: bool>(w: &[*const u8; 8], n: usize, to: *mut f32) {
    let mut d = [[_mm256_setzero_si256(); 8]; 2];
    let mut m = d;
    for (r, &w) in w.iter().enumerate() {
        // SAFETY: the caller's rows.
        let s = unsafe { F::vscales(w, n) };
        for h in 0..2 {
            d[h][r] = _mm256_castps_si256(s.d[h]);
            m[h][r] = _mm256_castps_si256(if UNSIGNED && F::BITS == 8 {
                _mm256_mul_ps(s.d[h], _mm256_set1_ps(-128.0))
            } else {
                s.m[h]
            });
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
/// AVX-512 F, BW, DQ, VL; the rest as [`fill8`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn fill16<F: Turned>(w: &[*const u8; MAX_ROWS], groups: usize, panel: *mut f32, ahead: &mut Ahead) {
    const { assert!(F::STEP <= 4 * MAX_WORDS && ROWS == MAX_ROWS) };
    for b in 0..groups.div_ceil(8) {
        ahead.more(FILL);
        let (at, n) = (b * F::STEP, (groups - 8 * b).min(8));
        // SAFETY: steps of the caller's rows and panel.
        unsafe {
            let to = panel.add(b * step_floats(ROWS, F::SPAN));
            if n == 8 && F::BYTES < F::STEP {
                one_by_one::<F>(w, at, to);
            } else {
                let mut buffer = Buffer::new();
                let step = buffer.turn(w, at, if F::STEP == F::BYTES { F::STEP } else { n * F::BYTES });
                scales16::<F>(step, 0..n * (32 / F::SPAN), to);
                (0..n).for_each(|j| group16::<F>(step, j, to));
            }
        }
    }
}

/// A whole step of a format with blocks of 32 elements, each of them as soon as its bytes are turned: they stay in registers.
///
/// # Safety
/// As [`fill16`]: rows with a step at byte `at`, and room for it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn one_by_one<F: Turned>(w: &[*const u8; ROWS], at: usize, to: *mut f32) {
    let mut buffer = Buffer::new();
    // Written out, and without calls, so that places in the buffer are known when this is compiled, and the buffer is registers.
    macro_rules! blocks {
        ($($j:literal)*) => {$(
            let (first, end) = const { (($j * F::BYTES).div_ceil(16), (($j + 1) * F::BYTES).div_ceil(16)) };
            // SAFETY: a step of the caller's rows, of which this block is turned before it is read.
            unsafe {
                for i in first..end {
                    let (at, left) = (at + 16 * i, F::STEP - 16 * i);
                    buffer.put(i, columns(|r| if left < 16 { _mm_maskz_loadu_epi8((1 << left) - 1, w[r].add(at).cast()) } else { _mm_loadu_si128(w[r].add(at).cast()) }));
                }
                scales16::<F>(buffer.words(), $j..$j + 1, to);
                group16::<F>(buffer.words(), $j, to);
            }
        )*};
    }
    blocks!(0 1 2 3 4 5 6 7);
}

/// Some scales and minimums of a step to their places in the panel's step.
///
/// # Safety
/// AVX-512 F, BW; the step has them; room for a step.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn scales16<F: Turned>(step: Words<'_>, which: Range<usize>, to: *mut f32) {
    // SAFETY: the caller's.
    unsafe {
        let d = to.add(64 * ROWS);
        let m = d.add(256 / F::SPAN * ROWS);
        F::each_scale(step, which, |j, scale, min| {
            _mm512_store_ps(d.add(j * ROWS), scale);
            _mm512_store_ps(m.add(j * ROWS), min);
        });
    }
}

/// Group `j` of a step to its place in the panel's step.
///
/// # Safety
/// As [`scales16`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn group16<F: Turned>(step: Words<'_>, j: usize, to: *mut f32) {
    // SAFETY: the caller's.
    unsafe {
        for (kk, v) in F::group(step, j).into_iter().enumerate() {
            _mm512_store_si512(to.add((j * 8 + kk) * ROWS).cast(), v);
        }
    }
}

/// `V` panels of 16 unsigned rows times `N` columns, VNNI.
///
/// # Safety
/// AVX-512 F, VL, BW, DQ, VNNI; the part has `N` columns from `first` on.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
unsafe fn tile16<const N: usize, const V: usize, const SPAN: usize>(part: &Part, first: usize, ahead: &mut Ahead) {
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

/// Products of a span of the panel's 8 rows and of `N` columns, where the two instruction sets of 256 bits differ. Exact.
trait Span<const N: usize, const SPAN: usize> {
    /// By column, the sums of each row.
    ///
    /// # Safety
    /// The implementor's features; `w` points to the span in the panel, aligned to 32 bytes, each of `x` to `SPAN` bytes.
    unsafe fn sums(w: *const __m256i, x: [*const i8; N]) -> [__m256i; N];
}

/// VPMADDUBSW: `DEPTH` products of the format's size, times two, fit 16 bits (0: the bytes are signed and need a sign trick).
enum Pairs<const DEPTH: usize> {}

/// VPDPBUSD of AVX-VNNI, unsigned bytes.
enum Fours {}

/// Four bytes of `x`, the `kk`th, in every lane.
///
/// # Safety
/// AVX2; `x` has them.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn four(x: *const i8, kk: usize) -> __m256i {
    // SAFETY: the caller's.
    _mm256_set1_epi32(unsafe { x.cast::<i32>().add(kk).read_unaligned() })
}

impl<const N: usize, const SPAN: usize, const DEPTH: usize> Span<N, SPAN> for Pairs<DEPTH> {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn sums(w: *const __m256i, x: [*const i8; N]) -> [__m256i; N] {
        let ones = _mm256_set1_epi16(1);
        let mut acc = [_mm256_setzero_si256(); N];
        // SAFETY: the caller's span.
        unsafe {
            if DEPTH == 0 {
                for kk in 0..SPAN / 4 {
                    let w = _mm256_load_si256(w.add(kk));
                    let abs = _mm256_abs_epi8(w);
                    for c in 0..N {
                        let t = _mm256_maddubs_epi16(abs, _mm256_sign_epi8(four(x[c], kk), w));
                        acc[c] = _mm256_add_epi32(acc[c], _mm256_madd_epi16(t, ones));
                    }
                }
                return acc;
            }
            for kk in (0..SPAN / 4).step_by(DEPTH.max(1)) {
                let mut t = [_mm256_setzero_si256(); N];
                for i in 0..DEPTH {
                    let w = _mm256_load_si256(w.add(kk + i));
                    for c in 0..N {
                        let p = _mm256_maddubs_epi16(w, four(x[c], kk + i));
                        t[c] = if i == 0 { p } else { _mm256_add_epi16(t[c], p) };
                    }
                }
                for c in 0..N {
                    acc[c] = _mm256_add_epi32(acc[c], _mm256_madd_epi16(t[c], ones));
                }
            }
        }
        acc
    }
}

/// [`Span`] by VPDPBUSD, which AVX-VNNI and AVX-512 write in their own ways.
macro_rules! fours {
    ($name:ident, $features:literal, $dpbusd:ident) => {
        impl<const N: usize, const SPAN: usize> Span<N, SPAN> for $name {
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn sums(w: *const __m256i, x: [*const i8; N]) -> [__m256i; N] {
                let mut acc = [_mm256_setzero_si256(); N];
                for kk in 0..SPAN / 4 {
                    // SAFETY: the caller's span.
                    unsafe {
                        let w = _mm256_load_si256(w.add(kk));
                        for c in 0..N {
                            acc[c] = $dpbusd(acc[c], w, four(x[c], kk));
                        }
                    }
                }
                acc
            }
        }
    };
}
fours!(Fours, "avx2,avxvnni", _mm256_dpbusd_avx_epi32);

/// A panel of 8 rows times `N` columns.
///
/// # Safety
/// AVX2, FMA and S's features; the part has `N` columns from `first` on.
#[inline(always)]
unsafe fn tile8<S: Span<N, SPAN>, const N: usize, const SPAN: usize, const MINS: bool>(
    part: &Part,
    first: usize,
    ahead: &mut Ahead,
) {
    const R: usize = 8;
    let &Part { panel, groups, blocks, rows, .. } = part;
    // SAFETY: the features are the caller's; steps and blocks are within the part, and only its rows are read and written.
    unsafe {
        let (x, out) = part.column(first);
        let mut sum = [_mm256_setzero_ps(); N];
        if part.go_on {
            for (c, sum) in sum.iter_mut().enumerate() {
                let mut lanes = [0f32; R];
                std::ptr::copy_nonoverlapping(out.add(c * part.out.stride), lanes.as_mut_ptr(), rows);
                *sum = _mm256_loadu_ps(lanes.as_ptr());
            }
        }
        for b in 0..groups.div_ceil(8) {
            let q = panel.add(b * step_floats(R, SPAN));
            let d = q.add(64 * R);
            let m = d.add(256 / SPAN * R);
            ahead.more(N);
            let mut cols = [x; N];
            for (c, col) in cols.iter_mut().enumerate() {
                *col = x.add(c * blocks + b);
            }
            for g in 0..(groups - 8 * b).min(8) * (32 / SPAN) {
                let mut xq = [std::ptr::null(); N];
                for c in 0..N {
                    xq[c] = (*cols[c]).q.as_ptr().add(g * SPAN);
                }
                let i = S::sums(q.add(g * (SPAN / 4) * R).cast(), xq);
                let (dw, mw) = (_mm256_load_ps(d.add(g * R)), _mm256_load_ps(m.add(g * R)));
                for c in 0..N {
                    let dx = _mm256_set1_ps(*(*cols[c]).d.as_ptr().add(g * SPAN / 32));
                    sum[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(i[c]), _mm256_mul_ps(dw, dx), sum[c]);
                    if MINS {
                        let sx = if SPAN == 32 { (*cols[c]).s.as_ptr() } else { (*cols[c]).s16.as_ptr() };
                        sum[c] = _mm256_fmadd_ps(mw, _mm256_set1_ps(*sx.add(g)), sum[c]);
                    }
                }
            }
        }
        for (c, v) in sum.into_iter().enumerate() {
            let mut lanes = [0f32; R];
            _mm256_storeu_ps(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), out.add(c * part.out.stride), rows);
        }
    }
}

/// [`tile8`] by VPMADDUBSW, with minimums unless bytes are signed.
///
/// # Safety
/// AVX2 and FMA; the rest as there.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile_avx2<const N: usize, const SPAN: usize, const DEPTH: usize, const MINS: bool>(
    part: &Part,
    first: usize,
    ahead: &mut Ahead,
) {
    // SAFETY: the features are on, the rest is the caller's.
    unsafe { tile8::<Pairs<DEPTH>, N, SPAN, MINS>(part, first, ahead) }
}

/// [`tile8`] by VPDPBUSD.
///
/// # Safety
/// AVX2, FMA and AVX-VNNI; the rest as there.
#[target_feature(enable = "avx2,fma,avxvnni")]
unsafe fn tile_avxvnni<const N: usize, const SPAN: usize>(part: &Part, first: usize, ahead: &mut Ahead) {
    // SAFETY: the features are on, the rest is the caller's.
    unsafe { tile8::<Fours, N, SPAN, true>(part, first, ahead) }
}

/// Panels for `n_cols` columns with AVX-512 and VNNI.
pub(super) fn avx512<F: Unpack>(n_cols: usize) -> Panels {
    // As many sums as registers hold. With two panels, a column's number is read once for both.
    let (tiles, two): (&[Tile], &[Tile]) = match F::SPAN {
        32 => (tiles!(8, tile16, 1, 32), tiles!(6, tile16, 2, 32)),
        _ => (tiles!(8, tile16, 1, 16), tiles!(6, tile16, 2, 16)),
    };
    let two = (n_cols >= TWO_PANELS).then_some(two);
    Panels { rows: ROWS, step: F::STEP, floats: step_floats(ROWS, F::SPAN), fill: fill16::<F>, tiles, two }
}

/// Panels with AVX2, FMA and AVX-VNNI.
pub(super) fn avxvnni<F: Unpack>() -> Panels {
    let tiles: &[Tile] = match F::SPAN {
        32 => tiles!(6, tile_avxvnni, 32),
        _ => tiles!(6, tile_avxvnni, 16),
    };
    Panels { rows: 8, step: F::STEP, floats: step_floats(8, F::SPAN), fill: fill8::<F, true>, tiles, two: None }
}

/// Panels with AVX2 and FMA.
pub(super) fn avx2<F: Unpack>() -> Panels {
    // Two products of 63 * 127 fit 16 bits twice, two of 31 * 127 four times.
    let tiles: &[Tile] = match (F::SPAN, F::BITS) {
        (32, 8) => tiles!(4, tile_avx2, 32, 0, false),
        (32, 6..) => tiles!(4, tile_avx2, 32, 2, true),
        (32, _) => tiles!(4, tile_avx2, 32, 4, true),
        (_, 8) => tiles!(4, tile_avx2, 16, 0, false),
        (_, 6..) => tiles!(4, tile_avx2, 16, 2, true),
        (_, _) => tiles!(4, tile_avx2, 16, 4, true),
    };
    Panels { rows: 8, step: F::STEP, floats: step_floats(8, F::SPAN), fill: fill8::<F, false>, tiles, two: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Isa;
    use crate::kernels::act::{ActBlock, act_blocks, quantize_act};
    use crate::kernels::format::tests::{noise, wild};
    use crate::kernels::format::{self, with_format};
    use crate::kernels::isa::Kind;
    use crate::kernels::mul_mat::{Line, Out, Rows, Scratch, is_supported};
    use outboard_core::DType;

    /// VPDPBUSD of 256 bits as AVX-512 writes it, for processors that have it in this form alone.
    enum Wide {}

    fours!(Wide, "avx2,avx512vnni,avx512vl", _mm256_dpbusd_epi32);

    /// # Safety
    /// AVX2, FMA, AVX-512 VL and VNNI; the rest as [`tile8`].
    #[target_feature(enable = "avx2,fma,avx512vnni,avx512vl")]
    unsafe fn tile_wide<const N: usize, const SPAN: usize>(part: &Part, first: usize, ahead: &mut Ahead) {
        // SAFETY: the features are on, the rest is the caller's.
        unsafe { tile8::<Wide, N, SPAN, true>(part, first, ahead) }
    }

    /// [`avxvnni`]'s panels against [`avx2`]'s.
    fn check<F: Unpack>(tiles: &'static [Tile]) {
        // More than a part, where columns are few.
        let (k, m, most) = (if F::DTYPE.block_len() == 256 { 2560 } else { 2592 }, 21, 13);
        let w = wild(F::DTYPE, k * m, 9);
        let blocks = act_blocks(k);
        let mut x = vec![ActBlock::ZERO; most * blocks];
        for (c, x) in x.chunks_exact_mut(blocks).enumerate() {
            quantize_act(Isa::PORTABLE, &noise(k, 40 + c as u32), x);
        }
        for n in [1, 3, 6, most] {
            let product = |panels: Panels| {
                let mut y = vec![f32::NAN; m * n];
                let rows = Rows { data: w.as_ptr(), stride: F::DTYPE.row_bytes(k).unwrap(), dtype: F::DTYPE, k };
                let out = Out { data: y.as_mut_ptr(), stride: m };
                let mut room = Line::room(panels.scratch_floats(blocks, n));
                // SAFETY: w has m rows, y m times n elements; the caller saw to the features.
                unsafe { panels.product(rows, 0..m, &x, n, out, &mut Scratch::new(&mut room)) };
                y
            };
            let (got, want) = (product(Panels { tiles, ..avxvnni::<F>() }), product(avx2::<F>()));
            let size = want.iter().fold(0f32, |a, v| a.max(v.abs()));
            for (got, want) in got.iter().zip(&want) {
                assert!((got - want).abs() <= 1e-5 * size, "{} n {n}: {got}, not {want} of {size}", F::DTYPE);
            }
        }
    }

    #[test]
    fn unsigned_bytes_give_the_same_products() {
        let kinds: Vec<Kind> = Isa::available().into_iter().map(Isa::kind).collect();
        let [narrow, wide] = [Kind::AvxVnni, Kind::Avx512].map(|kind| kinds.contains(&kind));
        if !narrow && !wide {
            eprintln!("skipped: this processor has no VPDPBUSD");
            return;
        }
        for dtype in DType::ALL.into_iter().filter(|&d| is_supported(d)) {
            with_format!(dtype, F => {
                if narrow {
                    check::<F>(avxvnni::<F>().tiles);
                }
                if wide {
                    check::<F>(match <F as format::Format>::SPAN {
                        32 => tiles!(6, tile_wide, 32),
                        _ => tiles!(6, tile_wide, 16),
                    });
                }
            });
        }
    }
}
