//! Panels of 8 rows with 256 bits: AVX2 with FMA and F16C, and the same with AVX-VNNI.
//!
//! Unpacking takes rows one by one, and transposes what comes out. A tile is a panel times up to four columns, or six with AVX-VNNI: its integer
//! sums and its float sums stay in 16 registers. The two instruction sets differ in how bytes are multiplied ([`Span`]); with VPDPBUSD they
//! are unsigned, those of a signed format plus 128, and minimums make up for it.

use super::super::unpack::Unpack;
use crate::kernels::act::ActBlock;
use crate::kernels::ahead::Ahead;
use crate::kernels::panel::{FILL_COLUMNS, MAX_ROWS, Panels, Part, Tile, mins_at, scales_at, step_floats, tiles};
use std::arch::x86_64::*;

/// Rows of a panel.
const ROWS: usize = 8;

/// Panels with AVX2, FMA and AVX-VNNI.
pub(in crate::kernels::x86) fn avxvnni<F: Unpack>() -> Panels {
    let tiles: &[Tile] = match F::SPAN {
        32 => tiles!(6, tile_avxvnni, 32),
        _ => tiles!(6, tile_avxvnni, 16),
    };
    Panels { rows: ROWS, step: F::STEP, floats: step_floats(ROWS, F::SPAN), fill: fill::<F, true>, tiles, pairs: None }
}

/// Panels with AVX2 and FMA.
pub(in crate::kernels::x86) fn avx2<F: Unpack>() -> Panels {
    // Two products of 63 * 127 fit 16 bits twice, two of 31 * 127 four times.
    let tiles: &[Tile] = match (F::SPAN, F::BITS) {
        (32, 8) => tiles!(4, tile_avx2, 32, 0, false),
        (32, 6..) => tiles!(4, tile_avx2, 32, 2, true),
        (32, _) => tiles!(4, tile_avx2, 32, 4, true),
        (_, 8) => tiles!(4, tile_avx2, 16, 0, false),
        (_, 6..) => tiles!(4, tile_avx2, 16, 2, true),
        (_, _) => tiles!(4, tile_avx2, 16, 4, true),
    };
    Panels { rows: ROWS, step: F::STEP, floats: step_floats(ROWS, F::SPAN), fill: fill::<F, false>, tiles, pairs: None }
}

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

/// Unpacks a panel. With `UNSIGNED`, signed bytes become unsigned (plus 128), and minimums make up for it.
///
/// # Safety
/// AVX2 and F16C; each of `w` points to a row of `groups` groups; `panel` to `ceil(groups / 8)` steps ([`step_floats`]), aligned to 64 bytes.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fill<F: Unpack, const UNSIGNED: bool>(
    w: &[*const u8; MAX_ROWS],
    groups: usize,
    panel: *mut f32,
    ahead: &mut Ahead,
) {
    let w: [_; ROWS] = std::array::from_fn(|r| w[r]);
    for b in 0..groups.div_ceil(8) {
        ahead.more(FILL_COLUMNS);
        let n = (groups - 8 * b).min(8);
        // SAFETY: steps of the caller's rows and panel.
        unsafe {
            let w = w.map(|w| w.add(b * F::STEP));
            let q = panel.add(b * step_floats(ROWS, F::SPAN));
            store_scales::<F, UNSIGNED>(&w, n, q);
            for j in 0..n {
                let rows = w.map(|w| F::vunpack(w, j));
                for (kk, v) in transpose(rows).into_iter().enumerate() {
                    let v = if UNSIGNED && F::BITS == 8 { _mm256_xor_si256(v, _mm256_set1_epi8(-128)) } else { v };
                    _mm256_store_si256(q.add((j * 8 + kk) * ROWS).cast(), v);
                }
            }
        }
    }
}

/// Writes scales and minimums of the `n` groups of a step of each row to their places in the panel's step.
///
/// # Safety
/// See [`fill`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store_scales<F: Unpack, const UNSIGNED: bool>(w: &[*const u8; ROWS], n: usize, to: *mut f32) {
    let mut d = [[_mm256_setzero_si256(); ROWS]; 2];
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
        for (at, v) in [(scales_at(ROWS), transpose(d[h])), (mins_at(ROWS, F::SPAN), transpose(m[h]))] {
            for (j, v) in v.into_iter().enumerate() {
                // SAFETY: the caller's panel.
                unsafe { _mm256_store_si256(to.add(at + (h * 8 + j) * ROWS).cast(), v) };
            }
        }
    }
}

/// Products of a span of the panel's rows and of `N` columns, where the two instruction sets of 256 bits differ. Exact.
pub(super) trait Span<const N: usize, const SPAN: usize> {
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
pub(super) unsafe fn four(x: *const i8, kk: usize) -> __m256i {
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
#[cfg(test)]
pub(super) use fours;
fours!(Fours, "avx2,avxvnni", _mm256_dpbusd_avx_epi32);

/// Float sums of `N` columns.
type Sums<const N: usize> = [__m256; N];

/// A panel times `N` columns.
///
/// # Safety
/// AVX2, FMA and S's features; the part has `N` columns from `first` on.
#[inline(always)]
pub(super) unsafe fn tile<S: Span<N, SPAN>, const N: usize, const SPAN: usize, const MINS: bool>(
    part: &Part,
    first: usize,
    ahead: &mut Ahead,
) {
    // SAFETY: the features are the caller's; steps and blocks are within the part, and only its rows are read and written.
    unsafe {
        let (x, out) = part.column(first);
        let mut sum = load_sums::<N>(part, out);
        for b in 0..part.groups.div_ceil(8) {
            let step = part.panel.add(b * step_floats(ROWS, SPAN));
            ahead.more(N);
            let cols = part.blocks_of::<N>(x, b);
            for g in 0..(part.groups - 8 * b).min(8) * (32 / SPAN) {
                let mut xq = [std::ptr::null(); N];
                for c in 0..N {
                    xq[c] = (*cols[c]).q.as_ptr().add(g * SPAN);
                }
                let products = S::sums(step.add(g * (SPAN / 4) * ROWS).cast(), xq);
                add_scaled::<N, SPAN, MINS>(&mut sum, products, step, g, cols);
            }
        }
        store_sums::<N>(part, out, sum);
    }
}

/// Adds integer products of span `g` times scales and, with `MINS`, minimums times sums of activations.
///
/// # Safety
/// AVX2 and FMA; the panel and columns have the span.
#[inline(always)]
unsafe fn add_scaled<const N: usize, const SPAN: usize, const MINS: bool>(
    sum: &mut Sums<N>,
    products: [__m256i; N],
    step: *const f32,
    g: usize,
    cols: [*const ActBlock; N],
) {
    // SAFETY: the caller's.
    unsafe {
        let dw = _mm256_load_ps(step.add(scales_at(ROWS) + g * ROWS));
        let mw = _mm256_load_ps(step.add(mins_at(ROWS, SPAN) + g * ROWS));
        for c in 0..N {
            let dx = _mm256_set1_ps(*(*cols[c]).d.as_ptr().add(g * SPAN / 32));
            sum[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products[c]), _mm256_mul_ps(dw, dx), sum[c]);
            if MINS {
                let sx = if SPAN == 32 { (*cols[c]).s.as_ptr() } else { (*cols[c]).s16.as_ptr() };
                sum[c] = _mm256_fmadd_ps(mw, _mm256_set1_ps(*sx.add(g)), sum[c]);
            }
        }
    }
}

/// What there is of the parts before.
///
/// # Safety
/// AVX2; `out` has `N` columns of the part's rows.
#[inline(always)]
unsafe fn load_sums<const N: usize>(part: &Part, out: *const f32) -> Sums<N> {
    // SAFETY: the caller's.
    unsafe {
        let mut sum = [_mm256_setzero_ps(); N];
        if part.accumulate {
            for (c, sum) in sum.iter_mut().enumerate() {
                let mut lanes = [0f32; ROWS];
                std::ptr::copy_nonoverlapping(out.add(c * part.out.stride), lanes.as_mut_ptr(), part.rows);
                *sum = _mm256_loadu_ps(lanes.as_ptr());
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
unsafe fn store_sums<const N: usize>(part: &Part, out: *mut f32, sum: Sums<N>) {
    for (c, v) in sum.into_iter().enumerate() {
        let mut lanes = [0f32; ROWS];
        // SAFETY: the caller's.
        unsafe {
            _mm256_storeu_ps(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), out.add(c * part.out.stride), part.rows);
        }
    }
}

/// [`tile`] by VPMADDUBSW, with minimums unless bytes are signed.
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
    unsafe { tile::<Pairs<DEPTH>, N, SPAN, MINS>(part, first, ahead) }
}

/// [`tile`] by VPDPBUSD.
///
/// # Safety
/// AVX2, FMA and AVX-VNNI; the rest as there.
#[target_feature(enable = "avx2,fma,avxvnni")]
unsafe fn tile_avxvnni<const N: usize, const SPAN: usize>(part: &Part, first: usize, ahead: &mut Ahead) {
    // SAFETY: the features are on, the rest is the caller's.
    unsafe { tile::<Fours, N, SPAN, true>(part, first, ahead) }
}
