//! Prefill: panels of 8 weight rows, unpacked and interleaved once, against tiles of activation columns.
//!
//! As on x86-64, a lane is a row: four bytes of a row's group lie in a 32-bit lane, beside those of the next row, and meet four
//! bytes of a column. SDOT takes those out of a lane of a register that holds sixteen, so that nothing has to be broadcast.

use super::dot::fits;
use super::unpack::Unpack;
use crate::kernels::act::ActBlock;
use crate::kernels::ahead::Ahead;
use crate::kernels::panel::{FILL_COLUMNS, MAX_ROWS, Panels, Part, Tile, mins_at, scales_at, step_floats, tiles};
use std::arch::aarch64::*;
use std::arch::asm;

/// Rows of a panel, two vectors.
const ROWS: usize = 8;

/// Transposes 4 x 4 lanes of 32 bits.
#[inline]
#[target_feature(enable = "neon")]
fn transpose(r: [int32x4_t; 4]) -> [int32x4_t; 4] {
    let wide = |v| vreinterpretq_s64_s32(v);
    let (a, b) = (wide(vtrn1q_s32(r[0], r[1])), wide(vtrn2q_s32(r[0], r[1])));
    let (c, d) = (wide(vtrn1q_s32(r[2], r[3])), wide(vtrn2q_s32(r[2], r[3])));
    let narrow = |v| vreinterpretq_s32_s64(v);
    [narrow(vtrn1q_s64(a, c)), narrow(vtrn1q_s64(b, d)), narrow(vtrn2q_s64(a, c)), narrow(vtrn2q_s64(b, d))]
}

/// Writes `v[i]` to `out + ROWS * i`.
///
/// # Safety
/// `out` is the caller's to write there.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn store(v: [int32x4_t; 4], out: *mut f32) {
    for (i, v) in v.into_iter().enumerate() {
        // SAFETY: the caller's.
        unsafe { vst1q_s32(out.add(ROWS * i).cast(), v) };
    }
}

/// Group `j` of four rows, interleaved, to `out`.
///
/// # Safety
/// Each of `w` points to a step that has group `j`; `out` to the group's place in the panel.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn fill_group<F: Unpack>(w: [*const u8; 4], j: usize, out: *mut f32) {
    // SAFETY: the caller's.
    unsafe {
        let q = [F::vunpack(w[0], j), F::vunpack(w[1], j), F::vunpack(w[2], j), F::vunpack(w[3], j)];
        for half in 0..2 {
            let lanes = |r: usize| vreinterpretq_s32_s8(q[r][half]);
            store(transpose([lanes(0), lanes(1), lanes(2), lanes(3)]), out.add(half * 4 * ROWS));
        }
    }
}

/// Unpacks a panel.
///
/// # Safety
/// Each of `w` points to a row of `groups` groups; `panel` to `ceil(groups / 8)` steps ([`step_floats`]).
#[target_feature(enable = "neon")]
unsafe fn fill<F: Unpack>(w: &[*const u8; MAX_ROWS], groups: usize, panel: *mut f32, ahead: &mut Ahead) {
    let spans = 256 / F::SPAN;
    for b in 0..groups.div_ceil(8) {
        ahead.more(FILL_COLUMNS);
        let n = (groups - 8 * b).min(8);
        for four in 0..ROWS / 4 {
            // SAFETY: steps of the caller's rows and panel.
            unsafe {
                let q_out = panel.add(b * step_floats(ROWS, F::SPAN) + 4 * four);
                let (d_out, m_out) = (q_out.add(scales_at(ROWS)), q_out.add(mins_at(ROWS, F::SPAN)));
                let at = b * F::STEP;
                let w =
                    [w[4 * four].add(at), w[4 * four + 1].add(at), w[4 * four + 2].add(at), w[4 * four + 3].add(at)];
                let s = [F::vscales(w[0], n), F::vscales(w[1], n), F::vscales(w[2], n), F::vscales(w[3], n)];
                for h in 0..spans / 4 {
                    let lanes = |v: float32x4_t| vreinterpretq_s32_f32(v);
                    let d = transpose([lanes(s[0].d[h]), lanes(s[1].d[h]), lanes(s[2].d[h]), lanes(s[3].d[h])]);
                    store(d, d_out.add(4 * h * ROWS));
                    if F::BITS < 8 {
                        let m = transpose([lanes(s[0].m[h]), lanes(s[1].m[h]), lanes(s[2].m[h]), lanes(s[3].m[h])]);
                        store(m, m_out.add(4 * h * ROWS));
                    }
                }
                let out = |j: usize| q_out.add(8 * j * ROWS);
                if F::DTYPE.block_len() == 256 {
                    // One by one, so that shifts are constants.
                    fill_group::<F>(w, 0, out(0));
                    fill_group::<F>(w, 1, out(1));
                    fill_group::<F>(w, 2, out(2));
                    fill_group::<F>(w, 3, out(3));
                    fill_group::<F>(w, 4, out(4));
                    fill_group::<F>(w, 5, out(5));
                    fill_group::<F>(w, 6, out(6));
                    fill_group::<F>(w, 7, out(7));
                } else {
                    for j in 0..n {
                        fill_group::<F>(w, j, out(j));
                    }
                }
            }
        }
    }
}

/// Products of a span of the panel's rows and of `N` columns, where the two kinds differ. Exact.
trait Span<const N: usize, const SPAN: usize> {
    /// By column, the sums of rows 0..4 and 4..8.
    ///
    /// # Safety
    /// The implementor's features; `w` points to the span in the panel, each of `x` to `SPAN` bytes, aligned to 4.
    unsafe fn sums(w: *const i8, x: [*const i8; N]) -> [[int32x4_t; 2]; N];
}

/// SMULL and SMLAL: 16-bit sums, of which each is over every fourth byte and holds at most `DEPTH` products.
enum Plain<const DEPTH: usize> {}

/// SDOT.
enum Sdot {}

/// `sum` plus, in each lane, the product of four bytes of w with four of x, those of lane `LANE`. Assembly, because Rust's own
/// is unstable.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot_lane<const LANE: usize>(mut sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: SDOT reads three registers and writes one of them.
    unsafe {
        asm!("sdot {s:v}.4s, {w:v}.16b, {x:v}.4b[{lane}]",
            s = inlateout(vreg) sum, w = in(vreg) w, x = in(vreg) x, lane = const LANE,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

impl<const N: usize, const SPAN: usize> Span<N, SPAN> for Sdot {
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn sums(w: *const i8, x: [*const i8; N]) -> [[int32x4_t; 2]; N] {
        let mut acc = [[vdupq_n_s32(0); 2]; N];
        for sixteen in 0..SPAN / 16 {
            // SAFETY: sixteen bytes of the caller's columns, and 8 rows of as many from the caller's span.
            unsafe {
                let mut xv = [vdupq_n_s8(0); N];
                for c in 0..N {
                    xv[c] = vld1q_s8(x[c].add(16 * sixteen));
                }
                let at = w.add(16 * ROWS * sixteen);
                macro_rules! four {
                    ($lane:literal) => {
                        for v in 0..2 {
                            let wv = vld1q_s8(at.add($lane * 4 * ROWS + 16 * v));
                            for c in 0..N {
                                acc[c][v] = sdot_lane::<$lane>(acc[c][v], wv, xv[c]);
                            }
                        }
                    };
                }
                four!(0);
                four!(1);
                four!(2);
                four!(3);
            }
        }
        acc
    }
}

impl<const N: usize, const SPAN: usize, const DEPTH: usize> Span<N, SPAN> for Plain<DEPTH> {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn sums(w: *const i8, x: [*const i8; N]) -> [[int32x4_t; 2]; N] {
        // By column and four rows: two rows to a vector.
        let mut acc = [[[vdupq_n_s32(0); 2]; 2]; N];
        let mut t = [[[vdupq_n_s16(0); 2]; 2]; N];
        for sixteen in 0..SPAN / 16 {
            // SAFETY: sixteen bytes of the caller's columns, and 8 rows of as many from the caller's span.
            unsafe {
                let mut xv = [vdupq_n_s32(0); N];
                for c in 0..N {
                    xv[c] = vreinterpretq_s32_s8(vld1q_s8(x[c].add(16 * sixteen)));
                }
                let at = w.add(16 * ROWS * sixteen);
                macro_rules! four {
                    ($lane:literal) => {
                        let wv = [vld1q_s8(at.add($lane * 4 * ROWS)), vld1q_s8(at.add($lane * 4 * ROWS + 16))];
                        for c in 0..N {
                            let four = vreinterpretq_s8_s32(vdupq_laneq_s32::<$lane>(xv[c]));
                            for v in 0..2 {
                                let [low, high] = &mut t[c][v];
                                *low = vmlal_s8(*low, vget_low_s8(wv[v]), vget_low_s8(four));
                                *high = vmlal_high_s8(*high, wv[v], four);
                            }
                        }
                        if (4 * sixteen + $lane + 1) % DEPTH == 0 {
                            for c in 0..N {
                                for v in 0..2 {
                                    for h in 0..2 {
                                        acc[c][v][h] = vpadalq_s16(acc[c][v][h], t[c][v][h]);
                                        t[c][v][h] = vdupq_n_s16(0);
                                    }
                                }
                            }
                        }
                    };
                }
                four!(0);
                four!(1);
                four!(2);
                four!(3);
            }
        }
        let mut out = [[vdupq_n_s32(0); 2]; N];
        for c in 0..N {
            for v in 0..2 {
                out[c][v] = vpaddq_s32(acc[c][v][0], acc[c][v][1]);
            }
        }
        out
    }
}

/// Float sums of a panel's rows, two vectors, and `N` columns.
type Sums<const N: usize> = [[float32x4_t; 2]; N];

/// A panel times `N` columns.
///
/// # Safety
/// S's features; the part has `N` columns from `first` on.
#[inline(always)]
unsafe fn tile<S: Span<N, SPAN>, const N: usize, const SPAN: usize, const MINS: bool>(
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
                let products = S::sums(step.cast::<i8>().add(g * SPAN * ROWS), xq);
                add_scaled::<N, SPAN, MINS>(&mut sum, products, step, g, cols);
            }
        }
        store_sums::<N>(part, out, sum);
    }
}

/// Adds integer products of span `g` times scales and, with `MINS`, minimums times sums of activations.
///
/// # Safety
/// The panel and columns have the span.
#[inline(always)]
unsafe fn add_scaled<const N: usize, const SPAN: usize, const MINS: bool>(
    sum: &mut Sums<N>,
    products: [[int32x4_t; 2]; N],
    step: *const f32,
    g: usize,
    cols: [*const ActBlock; N],
) {
    // SAFETY: the caller's.
    unsafe {
        let (d, m) = (step.add(scales_at(ROWS) + g * ROWS), step.add(mins_at(ROWS, SPAN) + g * ROWS));
        for c in 0..N {
            let x = &*cols[c];
            let dx = *x.d.as_ptr().add(g * SPAN / 32);
            for v in 0..2 {
                let dw = vld1q_f32(d.add(4 * v));
                sum[c][v] = vfmaq_f32(sum[c][v], vcvtq_f32_s32(products[c][v]), vmulq_n_f32(dw, dx));
                if MINS {
                    let sx = if SPAN == 32 { *x.s.as_ptr().add(g) } else { *x.s16.as_ptr().add(g) };
                    sum[c][v] = vfmaq_n_f32(sum[c][v], vld1q_f32(m.add(4 * v)), sx);
                }
            }
        }
    }
}

/// What there is of the parts before.
///
/// # Safety
/// `out` has `N` columns of the part's rows.
#[inline(always)]
unsafe fn load_sums<const N: usize>(part: &Part, out: *const f32) -> Sums<N> {
    // SAFETY: the caller's.
    unsafe {
        let mut sum = [[vdupq_n_f32(0.0); 2]; N];
        if part.accumulate {
            for (c, v) in sum.iter_mut().enumerate() {
                let mut lanes = [0f32; ROWS];
                std::ptr::copy_nonoverlapping(out.add(c * part.out.stride), lanes.as_mut_ptr(), part.rows);
                *v = [vld1q_f32(lanes.as_ptr()), vld1q_f32(lanes.as_ptr().add(4))];
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
            vst1q_f32(lanes.as_mut_ptr(), v[0]);
            vst1q_f32(lanes.as_mut_ptr().add(4), v[1]);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), out.add(c * part.out.stride), part.rows);
        }
    }
}

/// [`tile`] by SDOT.
///
/// # Safety
/// The dot-product extension; the rest as there.
#[target_feature(enable = "neon,dotprod")]
unsafe fn tile_dotprod<const N: usize, const SPAN: usize, const MINS: bool>(
    part: &Part,
    first: usize,
    ahead: &mut Ahead,
) {
    // SAFETY: the features are on, the rest is the caller's.
    unsafe { tile::<Sdot, N, SPAN, MINS>(part, first, ahead) }
}

/// [`tile`] by SMULL and SMLAL, with minimums unless `DEPTH` is that of signed bytes.
///
/// # Safety
/// As there.
#[target_feature(enable = "neon")]
unsafe fn tile_neon<const N: usize, const SPAN: usize, const DEPTH: usize, const MINS: bool>(
    part: &Part,
    first: usize,
    ahead: &mut Ahead,
) {
    // SAFETY: the caller's.
    unsafe { tile::<Plain<DEPTH>, N, SPAN, MINS>(part, first, ahead) }
}

/// Panels with the dot-product extension.
pub(super) fn panels_dotprod<F: Unpack>() -> Panels {
    panels::<F>(match (F::SPAN, F::BITS) {
        (32, 8) => tiles!(4, tile_dotprod, 32, false),
        (32, _) => tiles!(4, tile_dotprod, 32, true),
        (_, _) => tiles!(4, tile_dotprod, 16, true),
    })
}

/// Panels without it.
pub(super) fn panels_neon<F: Unpack>() -> Panels {
    const { assert!(F::BITS == 8 && F::SPAN == 32 || F::BITS < 8 && fits(F::BITS, F::SPAN as i32 / 4)) };
    // As many columns as leave everything in registers.
    panels::<F>(match (F::SPAN, F::BITS) {
        (32, 8) => tiles!(2, tile_neon, 32, 2, false),
        (32, _) => tiles!(2, tile_neon, 32, 8, true),
        (_, _) => tiles!(3, tile_neon, 16, 4, true),
    })
}

/// Panels with these tiles.
fn panels<F: Unpack>(tiles: &'static [Tile]) -> Panels {
    Panels { rows: ROWS, step: F::STEP, floats: step_floats(ROWS, F::SPAN), fill: fill::<F>, tiles, pairs: None }
}
