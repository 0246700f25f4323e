//! Dot products of weight rows with one or two columns of activations: decoding, bound by reading the weights.

use super::unpack::{Unpack, VScales};
use crate::kernels::act::ActBlock;
use crate::kernels::ahead::stream;
use crate::kernels::dot::{Dots, entry};
use std::arch::aarch64::*;
use std::arch::asm;

/// Products of bytes, added up by span, where the two kinds differ. Exact, x not being -128.
pub(in crate::kernels) trait Dot {
    /// Sums of four spans of 32. Bytes of q are signed if `bits` is 8; else they are from 0 up, of so many bits, at most 6.
    ///
    /// # Safety
    /// The implementor's features; 128 bytes at `x`.
    unsafe fn four32(bits: u32, q: [[int8x16_t; 2]; 4], x: *const i8) -> int32x4_t;

    /// Sums of four spans of 16, their bytes from 0 up, of at most 6 bits.
    ///
    /// # Safety
    /// The implementor's features; 64 bytes at `x`.
    unsafe fn four16(bits: u32, q: [int8x16_t; 4], x: *const i8) -> int32x4_t;
}

/// SMULL and SMLAL, whose 16-bit sums hold as many products as their size allows.
#[derive(Debug)]
pub(in crate::kernels) enum Plain {}

/// SDOT.
#[derive(Debug)]
pub(in crate::kernels) enum Sdot {}

/// Sums of the lanes of each vector.
#[inline]
#[target_feature(enable = "neon")]
fn join(v: [int32x4_t; 4]) -> int32x4_t {
    vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]))
}

/// Whether 16 bits hold so many products of an unsigned weight and an activation.
pub(super) const fn fits(bits: u32, products: i32) -> bool {
    ((1 << bits) - 1) * 127 * products <= 0x7fff
}

/// [`join`] of vectors of 16-bit sums that each hold so many products, in as few bits as will do.
#[inline]
#[target_feature(enable = "neon")]
fn join_narrow(bits: u32, products: i32, v: [int16x8_t; 4]) -> int32x4_t {
    if !fits(bits, 2 * products) {
        return join([vpaddlq_s16(v[0]), vpaddlq_s16(v[1]), vpaddlq_s16(v[2]), vpaddlq_s16(v[3])]);
    }
    let (a, b) = (vpaddq_s16(v[0], v[1]), vpaddq_s16(v[2], v[3]));
    if fits(bits, 4 * products) { vpaddlq_s16(vpaddq_s16(a, b)) } else { vpaddq_s32(vpaddlq_s16(a), vpaddlq_s16(b)) }
}

/// Products of the lower and of the upper eight bytes, added to one another.
#[inline]
#[target_feature(enable = "neon")]
fn products(q: int8x16_t, x: int8x16_t) -> int16x8_t {
    vmlal_high_s8(vmull_s8(vget_low_s8(q), vget_low_s8(x)), q, x)
}

/// [`products`] of two vectors. With signed weights, 16 bits hold no more than these of one vector.
#[inline]
#[target_feature(enable = "neon")]
fn products2(q: [int8x16_t; 2], x: [int8x16_t; 2]) -> int16x8_t {
    vmlal_high_s8(vmlal_s8(products(q[0], x[0]), vget_low_s8(q[1]), vget_low_s8(x[1])), q[1], x[1])
}

impl Dot for Plain {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn four32(bits: u32, q: [[int8x16_t; 2]; 4], x: *const i8) -> int32x4_t {
        // SAFETY: 32 bytes from 32 * i lie in the caller's 128.
        let x = |i: usize| unsafe { [vld1q_s8(x.add(32 * i)), vld1q_s8(x.add(32 * i + 16))] };
        if bits == 8 {
            let one = |i: usize| {
                let (q, x) = (q[i], x(i));
                vpadalq_s16(vpaddlq_s16(products(q[0], x[0])), products(q[1], x[1]))
            };
            return join([one(0), one(1), one(2), one(3)]);
        }
        let one = |i: usize| products2(q[i], x(i));
        join_narrow(bits, 4, [one(0), one(1), one(2), one(3)])
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn four16(bits: u32, q: [int8x16_t; 4], x: *const i8) -> int32x4_t {
        // SAFETY: 16 bytes from 16 * i lie in the caller's 64.
        let one = |i: usize| products(q[i], unsafe { vld1q_s8(x.add(16 * i)) });
        join_narrow(bits, 2, [one(0), one(1), one(2), one(3)])
    }
}

/// `sum` plus, in each lane, the product of four bytes of q with four of x. Assembly, because Rust's own is unstable.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut sum: int32x4_t, q: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: SDOT reads three registers and writes one of them.
    unsafe {
        asm!("sdot {s:v}.4s, {q:v}.16b, {x:v}.16b", s = inlateout(vreg) sum, q = in(vreg) q, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

impl Dot for Sdot {
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn four32(_: u32, q: [[int8x16_t; 2]; 4], x: *const i8) -> int32x4_t {
        // SAFETY: 16 bytes from 32 * i + 16 * h lie in the caller's 128.
        let x = |i: usize, h: usize| unsafe { vld1q_s8(x.add(32 * i + 16 * h)) };
        let one = |i: usize| sdot(sdot(vdupq_n_s32(0), q[i][0], x(i, 0)), q[i][1], x(i, 1));
        join([one(0), one(1), one(2), one(3)])
    }

    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn four16(_: u32, q: [int8x16_t; 4], x: *const i8) -> int32x4_t {
        // SAFETY: 16 bytes from 16 * i lie in the caller's 64.
        let one = |i: usize| sdot(vdupq_n_s32(0), q[i], unsafe { vld1q_s8(x.add(16 * i)) });
        join([one(0), one(1), one(2), one(3)])
    }
}

/// What a row and a column add up to on the way: products of the first and the second half of the vectors of scales, and minimums
/// times sums.
type Sums = [float32x4_t; 3];

/// One half of a step (0 or 1) of `n` groups, whose scales are `s`, times `C` columns, added to `sums`.
///
/// # Safety
/// D's features; `w` points to n groups, each of `x` to a block.
#[inline(always)]
unsafe fn half_step<D: Dot, F: Unpack, const HALF: usize, const C: usize>(
    w: *const u8,
    n: usize,
    s: &VScales,
    x: [*const ActBlock; C],
    sums: &mut [Sums; C],
) {
    // SAFETY: the features are the caller's; all reads are of w's groups and of blocks of x.
    unsafe {
        let group = |j: usize| if j < n { F::vunpack(w, j) } else { [vdupq_n_s8(0); 2] };
        let q = [group(4 * HALF), group(4 * HALF + 1), group(4 * HALF + 2), group(4 * HALF + 3)];
        for c in 0..C {
            let (x, sums) = (&*x[c], &mut sums[c]);
            let d = vld1q_f32(x.d.as_ptr().add(4 * HALF));
            let xq = x.q.as_ptr().add(128 * HALF);
            if F::SPAN == 32 {
                let i = vcvtq_f32_s32(D::four32(F::BITS, q, xq));
                sums[HALF] = vfmaq_f32(sums[HALF], i, vmulq_f32(s.d[HALF], d));
                if F::BITS < 8 {
                    sums[2] = vfmaq_f32(sums[2], s.m[HALF], vld1q_f32(x.s.as_ptr().add(4 * HALF)));
                }
            } else {
                let spans = [[q[0][0], q[0][1], q[1][0], q[1][1]], [q[2][0], q[2][1], q[3][0], q[3][1]]];
                let d = [vzip1q_f32(d, d), vzip2q_f32(d, d)];
                for h in 0..2 {
                    let at = 2 * HALF + h;
                    let i = vcvtq_f32_s32(D::four16(F::BITS, spans[h], xq.add(64 * h)));
                    sums[h] = vfmaq_f32(sums[h], i, vmulq_f32(s.d[at], d[h]));
                    sums[2] = vfmaq_f32(sums[2], s.m[at], vld1q_f32(x.s16.as_ptr().add(4 * at)));
                }
            }
        }
    }
}

/// One step of `n` groups times `C` columns, added to `sums`. The halves are not a loop, so that shifts and places are constants.
///
/// # Safety
/// As [`half_step`].
#[inline(always)]
unsafe fn step<D: Dot, F: Unpack, const C: usize>(
    w: *const u8,
    n: usize,
    x: [*const ActBlock; C],
    sums: &mut [Sums; C],
) {
    // SAFETY: the caller's.
    unsafe {
        let s = F::vscales(w, n);
        half_step::<D, F, 0, C>(w, n, &s, x, sums);
        half_step::<D, F, 1, C>(w, n, &s, x, sums);
    }
}

/// Dot products of a row of `groups` groups of 32 with `C` columns, whose blocks lie `blocks` apart.
///
/// # Safety
/// D's features; `w` points to a row, `x` to the columns' blocks.
#[inline(always)]
unsafe fn row<D: Dot, F: Unpack, const C: usize>(
    w: *const u8,
    groups: usize,
    x: *const ActBlock,
    blocks: usize,
) -> [f32; C] {
    // SAFETY: steps and blocks of the caller's row and columns.
    unsafe {
        let mut sums = [[vdupq_n_f32(0.0); 3]; C];
        let mut cols = [x; C];
        for (c, col) in cols.iter_mut().enumerate() {
            *col = x.add(c * blocks);
        }
        let full = groups / 8;
        for b in 0..full {
            let w = w.add(b * F::STEP);
            stream(w, F::STEP);
            step::<D, F, C>(w, 8, cols, &mut sums);
            for col in &mut cols {
                *col = col.add(1);
            }
        }
        if F::DTYPE.block_len() == 32 && groups % 8 != 0 {
            let (w, n) = (w.add(full * F::STEP), groups % 8);
            stream(w, n * F::BYTES);
            step::<D, F, C>(w, n, cols, &mut sums);
        }
        let mut out = [0.0; C];
        for (out, s) in out.iter_mut().zip(sums) {
            *out = vaddvq_f32(vaddq_f32(vaddq_f32(s[0], s[1]), s[2]));
        }
        out
    }
}

/// `out[i, c] = w[i] . x[c]` for `n_rows` rows and `n_cols` columns.
///
/// # Safety
/// D's features; `n_rows` rows of `groups` groups, `row_bytes` apart; `n_cols` columns of `ceil(groups / 8)` blocks behind one
/// another; the addressed floats of `out` belong to the caller alone.
#[inline(always)]
unsafe fn rows_cols<D: Dot, F: Unpack>(dots: Dots) {
    let Dots { w, row_bytes, n_rows, groups, x, n_cols, out } = dots;
    let blocks = groups.div_ceil(8);
    for i in 0..n_rows {
        let mut c = 0;
        // SAFETY: indices stay below the caller's counts.
        unsafe {
            let w = w.add(i * row_bytes);
            while c + 2 <= n_cols {
                let y: [f32; 2] = row::<D, F, 2>(w, groups, x.add(c * blocks), blocks);
                *out.data.add(c * out.stride + i) = y[0];
                *out.data.add((c + 1) * out.stride + i) = y[1];
                c += 2;
            }
            if c < n_cols {
                [*out.data.add(c * out.stride + i)] = row::<D, F, 1>(w, groups, x.add(c * blocks), blocks);
            }
        }
    }
}

entry!(neon, Plain, "neon");
entry!(dotprod, Sdot, "neon,dotprod");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::isa::Kind;
    use crate::kernels::leaf_tests::{Bytes, dots_are_exact, has};

    fn check<D: Dot>(name: &str) {
        let lanes = |v| -> [i32; 4] {
            // SAFETY: both are 16 bytes.
            unsafe { std::mem::transmute::<int32x4_t, [i32; 4]>(v) }
        };
        // SAFETY: 16 bytes from 16 * i lie in the 128.
        let vector = |q: &[i8; 128], i: usize| unsafe { vld1q_s8(q.as_ptr().add(16 * i)) };
        dots_are_exact(name, 32, &[1, 2, 3, 4, 5, 6, 8], |bits, Bytes(q), Bytes(x)| {
            let pair = |i: usize| [vector(q, 2 * i), vector(q, 2 * i + 1)];
            // SAFETY: the caller saw to the features.
            lanes(unsafe { D::four32(bits, [pair(0), pair(1), pair(2), pair(3)], x.as_ptr()) }).into()
        });
        dots_are_exact(name, 16, &[1, 2, 3, 4, 5, 6], |bits, Bytes(q), Bytes(x)| {
            let half = |h: usize| {
                let q = [0, 1, 2, 3].map(|i| vector(q, 4 * h + i));
                // SAFETY: 64 bytes from 64 * h lie in the 128, and the caller saw to the features.
                lanes(unsafe { D::four16(bits, q, x.as_ptr().add(64 * h)) })
            };
            (0..2).flat_map(half).collect()
        });
    }

    #[test]
    fn sums_of_products_are_exact() {
        check::<Plain>("plain");
        if has(Kind::NeonDot) {
            check::<Sdot>("sdot");
        }
    }
}
