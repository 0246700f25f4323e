//! Quantizing activations with NEON.

use crate::kernels::act::{ActBlock, BLOCK};
use std::arch::aarch64::*;

/// As the portable version, bit for bit.
#[target_feature(enable = "neon")]
pub(in crate::kernels) fn quantize_block(x: &[f32; BLOCK], out: &mut ActBlock) {
    for j in 0..BLOCK / 32 {
        let p = x[j * 32..].as_ptr();
        // SAFETY: 32 floats lie behind p, the last index being 7 * 32 + 31.
        let v: [float32x4_t; 8] = unsafe { [0, 4, 8, 12, 16, 20, 24, 28].map(|o| vld1q_f32(p.add(o))) };
        let [a, b, c, d, e, f, g, h] = v.map(|v| vabsq_f32(v));
        let (m, n) = (vmaxq_f32(vmaxq_f32(a, b), vmaxq_f32(c, d)), vmaxq_f32(vmaxq_f32(e, f), vmaxq_f32(g, h)));
        // NEON's maximum of a number and a NaN is NaN, which must come out of the product again.
        let largest = vmaxvq_f32(vmaxq_f32(m, n));
        let d = largest / 127.0;
        let id = if d == 0.0 { 0.0 } else { 1.0 / d };
        // Rounds to even; NaN becomes 0, and a tiny d with an infinite inverse the largest integers, which saturate below.
        let i = v.map(|v| vcvtnq_s32_f32(vmulq_n_f32(v, id)));
        let narrow = |i: [int32x4_t; 4]| {
            let low = vqmovn_high_s32(vqmovn_s32(i[0]), i[1]);
            let high = vqmovn_high_s32(vqmovn_s32(i[2]), i[3]);
            vmaxq_s8(vqmovn_high_s16(vqmovn_s16(low), high), vdupq_n_s8(-127))
        };
        let (low, high) = (narrow([i[0], i[1], i[2], i[3]]), narrow([i[4], i[5], i[6], i[7]]));
        let q = out.q[j * 32..].as_mut_ptr();
        // SAFETY: 32 bytes from j * 32 lie in the 256 of q.
        unsafe {
            vst1q_s8(q, low);
            vst1q_s8(q.add(16), high);
        }
        let (s0, s1) = (i32::from(vaddlvq_s8(low)), i32::from(vaddlvq_s8(high)));
        out.d[j] = d;
        out.s[j] = d * (s0 + s1) as f32;
        out.s16[2 * j] = d * s0 as f32;
        out.s16[2 * j + 1] = d * s1 as f32;
        let halves = |q: int8x16_t| {
            // Lanes of 32 bits have two sums of two.
            let v = vpaddlq_s8(q);
            let v = vaddq_s16(v, vextq_s16::<4>(v, v));
            let v = vaddq_s16(v, vextq_s16::<2>(v, v));
            [vgetq_lane_s16::<0>(v), vgetq_lane_s16::<1>(v)]
        };
        out.halves[2 * j] = halves(low);
        out.halves[2 * j + 1] = halves(high);
    }
}
