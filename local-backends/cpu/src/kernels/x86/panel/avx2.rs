//! Panels of 8 rows with 256 bits: AVX2 with FMA and F16C, and the same with AVX-VNNI.
//!
//! Unpacking takes rows one by one, and transposes what comes out. A tile is a panel or two times up to four columns, or a panel times six with
//! AVX-VNNI: its integer sums stay in 16 registers. The two instruction sets differ in how bytes are multiplied ([`Span`]); with VPDPBUSD they
//! are unsigned, those of a signed format plus 128, and minimums make up for it.

use super::super::unpack::Unpack;
use crate::kernels::act::ActBlock;
use crate::kernels::ahead::Ahead;
use crate::kernels::panel::{FILL_COLUMNS, Fill, MAX_ROWS, Panels, Part, Tile, mins_at, scales_at, step_floats, tiles};
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

/// Whether products with AVX2 are of bytes less what stands for zero, and need no minimums. Of 16 elements that is no gain.
const fn takes_zero_off<F: Unpack>() -> bool {
    F::ZERO != 0 && F::SPAN == 32
}

/// Panels with AVX2 and FMA. With two panels, a column's number is read once for both.
pub(in crate::kernels::x86) fn avx2<F: Unpack>() -> Panels {
    macro_rules! both {
        ($span:literal, $depth:literal, $zero:literal, $mins:literal) => {
            (tiles!(4, tile_avx2, 1, $span, $depth, $zero, $mins), tiles!(4, tile_avx2, 2, $span, $depth, $zero, $mins))
        };
    }
    // Sums of two products of 63 * 127 fit 16 bits twice, of 31 * 127 four times, of 15 * 127 eight times, and so do those of 16 * 127, which
    // 5 bits are with what stands for zero taken off.
    let (tiles, pairs): (&[Tile], &[Tile]) = match (F::SPAN, F::BITS, F::ZERO) {
        (32, 8, _) => both!(32, 0, 0, false),
        (32, _, 16) => both!(32, 8, 16, false),
        (32, _, 12) => both!(32, 8, 12, false),
        (32, _, 8) => both!(32, 8, 8, false),
        (32, 6.., _) => both!(32, 2, 0, true),
        (32, 5, _) => both!(32, 4, 0, true),
        (32, _, _) => both!(32, 8, 0, true),
        (_, 8, _) => both!(16, 0, 0, false),
        (_, 6.., _) => both!(16, 2, 0, true),
        (_, _, _) => both!(16, 4, 0, true),
    };
    let (fill, pairs) = (fill::<F, false> as Fill, Some(pairs));
    Panels { rows: ROWS, step: F::STEP, floats: step_floats(ROWS, F::SPAN), fill, tiles, pairs }
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
                for (kk, v) in F::vunpack_rows(&w, j).into_iter().enumerate() {
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
    // SAFETY: the caller's rows and panel.
    unsafe {
        F::vscales_rows(w, n, |j, d, m| {
            let m = if UNSIGNED && F::BITS == 8 { _mm256_mul_ps(d, _mm256_set1_ps(-128.0)) } else { m };
            _mm256_store_ps(to.add(scales_at(ROWS) + j * ROWS), d);
            // The others are not looked at.
            if UNSIGNED || F::BITS < 8 && !takes_zero_off::<F>() {
                _mm256_store_ps(to.add(mins_at(ROWS, F::SPAN) + j * ROWS), m);
            }
        });
    }
}

/// Products of a span of `V` panels' rows and of `N` columns, where the two instruction sets of 256 bits differ. Exact.
pub(super) trait Span<const N: usize, const V: usize, const SPAN: usize> {
    /// By column and panel, the sums of each row.
    ///
    /// # Safety
    /// The implementor's features; each of `w` points to the span in a panel, aligned to 32 bytes, each of `x` has span `g`.
    unsafe fn sums(w: [*const __m256i; V], x: [*const ActBlock; N], g: usize) -> [[__m256i; V]; N];
}

/// VPMADDUBSW: `DEPTH` products of the format's size less `ZERO`, times two, fit 16 bits (0: the bytes are signed and need a sign trick).
enum Pairs<const DEPTH: usize, const ZERO: i16> {}

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

/// Bytes `4 kk` to `4 kk + 3` of the span of each panel's rows.
///
/// # Safety
/// AVX2; the panels have them, aligned to 32 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn fours_of<const V: usize>(w: [*const __m256i; V], kk: usize) -> [__m256i; V] {
    let mut fours = [_mm256_setzero_si256(); V];
    for v in 0..V {
        // SAFETY: the caller's.
        fours[v] = unsafe { _mm256_load_si256(w[v].add(kk)) };
    }
    fours
}

impl<const N: usize, const V: usize, const SPAN: usize, const DEPTH: usize, const ZERO: i16> Span<N, V, SPAN>
    for Pairs<DEPTH, ZERO>
{
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn sums(w: [*const __m256i; V], x: [*const ActBlock; N], g: usize) -> [[__m256i; V]; N] {
        // SAFETY: the caller's.
        unsafe {
            let q = bytes_of(x, g * SPAN);
            match (DEPTH, ZERO) {
                (0, _) => signed_sums::<N, V, SPAN>(w, q),
                (_, 0) => unsigned_sums::<N, V, SPAN, DEPTH>(w, q),
                _ => offset_sums::<N, V, SPAN, ZERO>(w, x, g),
            }
        }
    }
}

/// Bytes of each column from `at` on.
///
/// # Safety
/// There are blocks that have them.
#[inline(always)]
pub(super) unsafe fn bytes_of<const N: usize>(x: [*const ActBlock; N], at: usize) -> [*const i8; N] {
    let mut bytes = [std::ptr::null(); N];
    for c in 0..N {
        // SAFETY: the caller's.
        bytes[c] = unsafe { (&raw const (*x[c]).q).cast::<i8>().add(at) };
    }
    bytes
}

/// The same, computed where it stands. Left to itself the compiler goes through a span column by column, and has to put its weights into memory
/// again, as they are more than there are registers.
#[inline]
#[target_feature(enable = "avx2")]
fn in_order(mut v: __m256i) -> __m256i {
    // SAFETY: no instruction.
    unsafe { std::arch::asm!("/* {0} */", inout(ymm_reg) v, options(nomem, nostack, preserves_flags)) };
    v
}

/// [`Span::sums`] of bytes that are signed.
///
/// # Safety
/// As there; AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn signed_sums<const N: usize, const V: usize, const SPAN: usize>(
    w: [*const __m256i; V],
    x: [*const i8; N],
) -> [[__m256i; V]; N] {
    let ones = _mm256_set1_epi16(1);
    let mut acc = [[_mm256_setzero_si256(); V]; N];
    for kk in 0..SPAN / 4 {
        // SAFETY: the caller's span.
        let w = unsafe { fours_of(w, kk) };
        for c in 0..N {
            // SAFETY: as above.
            let x = unsafe { four(x[c], kk) };
            for v in 0..V {
                let products = _mm256_maddubs_epi16(_mm256_abs_epi8(w[v]), _mm256_sign_epi8(x, w[v]));
                acc[c][v] = in_order(_mm256_add_epi32(acc[c][v], _mm256_madd_epi16(products, ones)));
            }
        }
    }
    acc
}

/// [`Span::sums`] of unsigned bytes: `DEPTH` of their products are summed up with 16 bits, and those sums with 32.
///
/// # Safety
/// As there; AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn unsigned_sums<const N: usize, const V: usize, const SPAN: usize, const DEPTH: usize>(
    w: [*const __m256i; V],
    x: [*const i8; N],
) -> [[__m256i; V]; N] {
    let ones = _mm256_set1_epi16(1);
    let mut acc = [[_mm256_setzero_si256(); V]; N];
    for kk in (0..SPAN / 4).step_by(DEPTH) {
        let mut short = [[_mm256_setzero_si256(); V]; N];
        for i in 0..DEPTH {
            // SAFETY: the caller's span.
            let w = unsafe { fours_of(w, kk + i) };
            for c in 0..N {
                // SAFETY: as above.
                let x = unsafe { four(x[c], kk + i) };
                for v in 0..V {
                    let products = _mm256_maddubs_epi16(w[v], x);
                    short[c][v] = if i == 0 { products } else { _mm256_add_epi16(short[c][v], products) };
                    short[c][v] = in_order(short[c][v]);
                }
            }
        }
        for c in 0..N {
            for v in 0..V {
                let sums = _mm256_madd_epi16(short[c][v], ones);
                acc[c][v] = if kk == 0 { sums } else { _mm256_add_epi32(acc[c][v], sums) };
            }
        }
    }
    acc
}

/// [`Span::sums`] of unsigned bytes less `ZERO`. Sums of the bytes would not fit 16 bits, and wrap; with `ZERO` times the sums of activations
/// taken off they fit, and wrapping makes no difference.
///
/// # Safety
/// As there; AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn offset_sums<const N: usize, const V: usize, const SPAN: usize, const ZERO: i16>(
    w: [*const __m256i; V],
    x: [*const ActBlock; N],
    g: usize,
) -> [[__m256i; V]; N] {
    // SAFETY: the caller's columns.
    let q = unsafe { bytes_of(x, g * SPAN) };
    let mut sums = [[_mm256_setzero_si256(); V]; N];
    for kk in 0..SPAN / 4 {
        // SAFETY: the caller's span.
        let w = unsafe { fours_of(w, kk) };
        for c in 0..N {
            // SAFETY: as above.
            let (four, zeros) = unsafe {
                let zeros = if kk == 0 { zeros::<SPAN, ZERO>(&*x[c], g) } else { _mm256_setzero_si256() };
                (four(q[c], kk), zeros)
            };
            for v in 0..V {
                let products = _mm256_maddubs_epi16(w[v], four);
                sums[c][v] = in_order(if kk == 0 {
                    _mm256_sub_epi16(products, zeros)
                } else {
                    _mm256_add_epi16(sums[c][v], products)
                });
            }
        }
    }
    for c in 0..N {
        for v in 0..V {
            sums[c][v] = _mm256_madd_epi16(sums[c][v], _mm256_set1_epi16(1));
        }
    }
    sums
}

/// `ZERO` times the sums of activations that 16-bit sums of span `g` have too much, in every lane.
///
/// # Safety
/// AVX2; the block has the span.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn zeros<const SPAN: usize, const ZERO: i16>(x: &ActBlock, g: usize) -> __m256i {
    let halves = x.halves.as_ptr().cast::<i32>();
    // SAFETY: the caller's.
    let at = |i: usize| unsafe { _mm256_set1_epi32(*halves.add(i)) };
    let sums = if SPAN == 32 { _mm256_add_epi16(at(2 * g), at(2 * g + 1)) } else { at(g) };
    _mm256_mullo_epi16(sums, _mm256_set1_epi16(ZERO))
}

/// [`Span`] by VPDPBUSD, which AVX-VNNI and AVX-512 write in their own ways.
macro_rules! fours {
    ($name:ident, $features:literal, $dpbusd:ident) => {
        impl<const N: usize, const V: usize, const SPAN: usize> Span<N, V, SPAN> for $name {
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn sums(w: [*const __m256i; V], x: [*const ActBlock; N], g: usize) -> [[__m256i; V]; N] {
                // SAFETY: the caller's columns.
                let x = unsafe { bytes_of(x, g * SPAN) };
                let mut acc = [[_mm256_setzero_si256(); V]; N];
                for kk in 0..SPAN / 4 {
                    // SAFETY: the caller's span.
                    unsafe {
                        let w = fours_of(w, kk);
                        for c in 0..N {
                            let x = four(x[c], kk);
                            for v in 0..V {
                                acc[c][v] = $dpbusd(acc[c][v], w[v], x);
                            }
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

/// Float sums of `V` panels and `N` columns.
type Sums<const N: usize, const V: usize> = [[__m256; V]; N];

/// `V` panels times `N` columns.
///
/// # Safety
/// AVX2, FMA and S's features; the part has `N` columns from `first` on.
#[inline(always)]
pub(super) unsafe fn tile<S, const N: usize, const V: usize, const SPAN: usize, const MINS: bool>(
    part: &Part,
    first: usize,
    ahead: &mut Ahead,
) where
    S: Span<N, V, SPAN>,
{
    // From a panel to the one beside it.
    let beside = part.groups.div_ceil(8) * step_floats(ROWS, SPAN);
    // SAFETY: the features are the caller's; steps and blocks are within the part, and only its rows are read and written.
    unsafe {
        let (x, out) = part.column(first);
        let mut sum = load_sums::<N, V>(part, out);
        for b in 0..part.groups.div_ceil(8) {
            let mut steps = [part.panel.add(b * step_floats(ROWS, SPAN)); V];
            for v in 1..V {
                steps[v] = steps[0].add(v * beside);
            }
            ahead.more(N);
            let cols = part.blocks_of::<N>(x, b);
            for g in 0..(part.groups - 8 * b).min(8) * (32 / SPAN) {
                let mut wq = [std::ptr::null(); V];
                for v in 0..V {
                    wq[v] = steps[v].add(g * (SPAN / 4) * ROWS).cast();
                }
                let products = S::sums(wq, cols, g);
                add_scaled::<N, V, SPAN, MINS>(&mut sum, products, steps, g, cols);
            }
        }
        store_sums::<N, V>(part, out, sum);
    }
}

/// Adds integer products of span `g` times scales and, with `MINS`, minimums times sums of activations.
///
/// # Safety
/// AVX2 and FMA; the panels and columns have the span.
#[inline(always)]
unsafe fn add_scaled<const N: usize, const V: usize, const SPAN: usize, const MINS: bool>(
    sum: &mut Sums<N, V>,
    products: [[__m256i; V]; N],
    steps: [*const f32; V],
    g: usize,
    cols: [*const ActBlock; N],
) {
    // SAFETY: the caller's.
    unsafe {
        let (mut dw, mut mw) = ([_mm256_setzero_ps(); V], [_mm256_setzero_ps(); V]);
        for v in 0..V {
            dw[v] = _mm256_load_ps(steps[v].add(scales_at(ROWS) + g * ROWS));
            mw[v] = _mm256_load_ps(steps[v].add(mins_at(ROWS, SPAN) + g * ROWS));
        }
        for c in 0..N {
            let dx = _mm256_set1_ps(*(*cols[c]).d.as_ptr().add(g * SPAN / 32));
            let sx = if SPAN == 32 { (*cols[c]).s.as_ptr() } else { (*cols[c]).s16.as_ptr() };
            let sx = _mm256_set1_ps(*sx.add(g));
            for v in 0..V {
                let scaled = _mm256_mul_ps(dw[v], dx);
                sum[c][v] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products[c][v]), scaled, sum[c][v]);
                if MINS {
                    sum[c][v] = _mm256_fmadd_ps(mw[v], sx, sum[c][v]);
                }
            }
        }
    }
}

/// What there is of the parts before.
///
/// # Safety
/// AVX2; `out` has `N` columns of the part's rows.
#[inline(always)]
unsafe fn load_sums<const N: usize, const V: usize>(part: &Part, out: *const f32) -> Sums<N, V> {
    // SAFETY: the caller's.
    unsafe {
        let mut sum = [[_mm256_setzero_ps(); V]; N];
        if part.accumulate {
            for (c, sum) in sum.iter_mut().enumerate() {
                for (v, sum) in sum.iter_mut().enumerate() {
                    let (first, rows) = rows_of(part, v);
                    let from = out.add(c * part.out.stride + first);
                    *sum = if rows == ROWS { _mm256_loadu_ps(from) } else { load_some(from, rows) };
                }
            }
        }
        sum
    }
}

/// The first `n` floats of a vector.
///
/// # Safety
/// AVX2; `n` floats at `from`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_some(from: *const f32, n: usize) -> __m256 {
    let mut lanes = [0f32; ROWS];
    // SAFETY: the caller's.
    unsafe {
        std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), n);
        _mm256_loadu_ps(lanes.as_ptr())
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
            let (first, rows) = rows_of(part, v);
            // SAFETY: the caller's.
            unsafe {
                let to = out.add(c * part.out.stride + first);
                if rows == ROWS { _mm256_storeu_ps(to, sum) } else { store_some(to, rows, sum) }
            }
        }
    }
}

/// Writes the first `n` floats of a vector.
///
/// # Safety
/// AVX2; room for `n` floats at `to`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store_some(to: *mut f32, n: usize, v: __m256) {
    let mut lanes = [0f32; ROWS];
    // SAFETY: the caller's.
    unsafe {
        _mm256_storeu_ps(lanes.as_mut_ptr(), v);
        std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, n);
    }
}

/// The first row of panel `v` of a part, and how many are its.
fn rows_of(part: &Part, v: usize) -> (usize, usize) {
    (v * ROWS, (part.rows - v * ROWS).min(ROWS))
}

/// [`tile`] by VPMADDUBSW, with minimums unless bytes are signed.
///
/// # Safety
/// AVX2 and FMA; the rest as there.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile_avx2<
    const N: usize,
    const V: usize,
    const SPAN: usize,
    const DEPTH: usize,
    const ZERO: i16,
    const MINS: bool,
>(
    part: &Part,
    first: usize,
    ahead: &mut Ahead,
) {
    // SAFETY: the features are on, the rest is the caller's.
    unsafe { tile::<Pairs<DEPTH, ZERO>, N, V, SPAN, MINS>(part, first, ahead) }
}

/// [`tile`] by VPDPBUSD.
///
/// # Safety
/// AVX2, FMA and AVX-VNNI; the rest as there.
#[target_feature(enable = "avx2,fma,avxvnni")]
unsafe fn tile_avxvnni<const N: usize, const SPAN: usize>(part: &Part, first: usize, ahead: &mut Ahead) {
    // SAFETY: the features are on, the rest is the caller's.
    unsafe { tile::<Fours, N, 1, SPAN, true>(part, first, ahead) }
}
