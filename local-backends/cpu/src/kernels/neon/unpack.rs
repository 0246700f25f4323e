//! How each format's groups become vectors: the NEON versions of [`Format::unpack`] and [`Format::scales`].

use super::half::widen;
use crate::kernels::format::*;
use outboard_core::quant::{IQ4_VALUES, MXFP4_VALUES, e8m0_half};
use std::arch::aarch64::*;

/// Scales and minimums of a step, four spans to a vector: the first two vectors alone where a scale covers 32 elements.
pub(in crate::kernels) struct VScales {
    pub(in crate::kernels) d: [float32x4_t; 4],
    pub(in crate::kernels) m: [float32x4_t; 4],
}

/// The vector side of a [`Format`].
pub(in crate::kernels) trait Unpack: Format {
    /// As [`Format::scales`], but groups from `n` up get any finite number; minimums of a signed format are not used.
    ///
    /// # Safety
    /// `w` points to `n` groups of 32 (1 to 8, and 8 where blocks have 256).
    unsafe fn vscales(w: *const u8, n: usize) -> VScales;

    /// As [`Format::unpack`]; unsigned bytes are below 64, so that they are signed ones, too.
    ///
    /// # Safety
    /// `w` points to a step that has group `j`.
    unsafe fn vunpack(w: *const u8, j: usize) -> [int8x16_t; 2];
}

/// A group of unsigned bytes on its way.
type Bytes = [uint8x16_t; 2];

/// 32 bytes from memory.
///
/// # Safety
/// 32 bytes at `p`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load(p: *const u8) -> Bytes {
    // SAFETY: the caller's 32 bytes.
    unsafe { [vld1q_u8(p), vld1q_u8(p.add(16))] }
}

#[inline]
#[target_feature(enable = "neon")]
fn signed(v: Bytes) -> [int8x16_t; 2] {
    [vreinterpretq_s8_u8(v[0]), vreinterpretq_s8_u8(v[1])]
}

/// Each byte shifted right by `n` bits (0 to 7).
#[inline]
#[target_feature(enable = "neon")]
fn shifted(v: Bytes, n: usize) -> Bytes {
    if n == 0 {
        return v;
    }
    let by = vdupq_n_s8(-(n as i8));
    [vshlq_u8(v[0], by), vshlq_u8(v[1], by)]
}

#[inline]
#[target_feature(enable = "neon")]
fn masked(v: Bytes, mask: u8) -> Bytes {
    [vandq_u8(v[0], vdupq_n_u8(mask)), vandq_u8(v[1], vdupq_n_u8(mask))]
}

/// `low`'s two bits with those of `high` above.
#[inline]
#[target_feature(enable = "neon")]
fn above2(low: Bytes, high: Bytes) -> Bytes {
    [vsliq_n_u8::<2>(low[0], high[0]), vsliq_n_u8::<2>(low[1], high[1])]
}

/// `low`'s four bits with those of `high` above.
#[inline]
#[target_feature(enable = "neon")]
fn above4(low: Bytes, high: Bytes) -> Bytes {
    [vsliq_n_u8::<4>(low[0], high[0]), vsliq_n_u8::<4>(low[1], high[1])]
}

/// Low halves of 16 bytes, then their high halves.
///
/// # Safety
/// 16 bytes at `p`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn nibbles(p: *const u8) -> Bytes {
    // SAFETY: the caller's 16 bytes.
    let v = unsafe { vld1q_u8(p) };
    [vandq_u8(v, vdupq_n_u8(15)), vshrq_n_u8::<4>(v)]
}

/// [`nibbles`] behind a mask of fifth bits.
///
/// # Safety
/// 20 bytes at `p`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn five(p: *const u8) -> Bytes {
    // SAFETY: the caller's 20 bytes.
    let (mask, v) = unsafe { (p.cast::<u32>().read_unaligned(), vld1q_u8(p.add(4))) };
    let mask = vreinterpretq_u8_u32(vdupq_n_u32(mask));
    // Bytes 0 and 1 of the mask, then 2 and 3, eight times each, and each of these eight shifted by one more bit.
    let which = vcombine_u8(vdup_n_u8(0), vdup_n_u8(1));
    let by = vreinterpretq_s8_u64(vdupq_n_u64(0xf9fa_fbfc_fdfe_ff00));
    let first = vshlq_u8(vqtbl1q_u8(mask, which), by);
    let second = vshlq_u8(vqtbl1q_u8(mask, vaddq_u8(which, vdupq_n_u8(2))), by);
    above4([v, vshrq_n_u8::<4>(v)], masked([first, second], 1))
}

/// The table's value for each index 0..16.
#[inline]
#[target_feature(enable = "neon")]
fn lookup(table: &[i8; 16], index: Bytes) -> [int8x16_t; 2] {
    // SAFETY: the table has 16 bytes.
    let t = unsafe { vld1q_s8(table.as_ptr()) };
    [vqtbl1q_s8(t, index[0]), vqtbl1q_s8(t, index[1])]
}

/// [`MXFP4_VALUES`], made unsigned.
const MXFP4_UNSIGNED: [i8; 16] = {
    let mut t = MXFP4_VALUES;
    let mut i = 0;
    while i < 16 {
        t[i] += MXFP4_OFFSET;
        i += 1;
    }
    t
};

/// The f16 at the start of each of `n` blocks of `bytes` bytes; above, that of the last: reading it is cheaper than not to,
/// and the activations there are zero.
///
/// # Safety
/// `n` (at most 8) blocks at `p`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn block_scales(p: *const u8, bytes: usize, n: usize) -> [float32x4_t; 2] {
    // SAFETY: block i is the caller's, being below n.
    let at = |i: usize| unsafe { p.add(i.min(n - 1) * bytes).cast::<u16>().read_unaligned() };
    let four = |i: usize| {
        let v = vset_lane_u16::<1>(at(i + 1), vdup_n_u16(at(i)));
        vset_lane_u16::<3>(at(i + 3), vset_lane_u16::<2>(at(i + 2), v))
    };
    [widen(four(0)), widen(four(4))]
}

/// The two f16 at the start of each block.
///
/// # Safety
/// As [`block_scales`].
#[inline]
#[target_feature(enable = "neon")]
unsafe fn block_scales_mins(p: *const u8, bytes: usize, n: usize) -> VScales {
    // SAFETY: block i is the caller's, being below n.
    let at = |i: usize| unsafe { p.add(i.min(n - 1) * bytes).cast::<u32>().read_unaligned() };
    let four = |i: usize| {
        let v = vsetq_lane_u32::<1>(at(i + 1), vdupq_n_u32(at(i)));
        vreinterpretq_u16_u32(vsetq_lane_u32::<3>(at(i + 3), vsetq_lane_u32::<2>(at(i + 2), v)))
    };
    let (a, b) = (four(0), four(4));
    let (d, m) = (vuzp1q_u16(a, b), vuzp2q_u16(a, b));
    let both = |v| [widen(vget_low_u16(v)), widen(vget_high_u16(v))];
    eight(both(d), both(m))
}

/// The f16 at `p`, in every lane.
///
/// # Safety
/// 2 bytes at `p`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn one_scale(p: *const u8) -> float32x4_t {
    // SAFETY: the caller's 2 bytes.
    widen(vdup_n_u16(unsafe { p.cast::<u16>().read_unaligned() }))
}

/// Eight unsigned numbers times `by`.
#[inline]
#[target_feature(enable = "neon")]
fn unsigned8(v: uint8x8_t, by: float32x4_t) -> [float32x4_t; 2] {
    let v = vmovl_u8(v);
    let (low, high) = (vmovl_u16(vget_low_u16(v)), vmovl_high_u16(v));
    [vmulq_f32(vcvtq_f32_u32(low), by), vmulq_f32(vcvtq_f32_u32(high), by)]
}

/// Eight signed numbers times `by`.
#[inline]
#[target_feature(enable = "neon")]
fn signed8(v: int8x8_t, by: float32x4_t) -> [float32x4_t; 2] {
    let v = vmovl_s8(v);
    let (low, high) = (vmovl_s16(vget_low_s16(v)), vmovl_high_s16(v));
    [vmulq_f32(vcvtq_f32_s32(low), by), vmulq_f32(vcvtq_f32_s32(high), by)]
}

#[inline]
#[target_feature(enable = "neon")]
fn unsigned16(v: uint8x16_t, by: float32x4_t) -> [float32x4_t; 4] {
    let ([a, b], [c, d]) = (unsigned8(vget_low_u8(v), by), unsigned8(vget_high_u8(v), by));
    [a, b, c, d]
}

#[inline]
#[target_feature(enable = "neon")]
fn signed16(v: int8x16_t, by: float32x4_t) -> [float32x4_t; 4] {
    let ([a, b], [c, d]) = (signed8(vget_low_s8(v), by), signed8(vget_high_s8(v), by));
    [a, b, c, d]
}

/// Scales and minimums of spans of 32.
#[inline]
#[target_feature(enable = "neon")]
fn eight(d: [float32x4_t; 2], m: [float32x4_t; 2]) -> VScales {
    let zero = vdupq_n_f32(0.0);
    VScales { d: [d[0], d[1], zero, zero], m: [m[0], m[1], zero, zero] }
}

/// Scales of spans of 32 without minimums.
#[inline]
#[target_feature(enable = "neon")]
fn only(d: [float32x4_t; 2]) -> VScales {
    eight(d, [vdupq_n_f32(0.0); 2])
}

/// Scales of spans of 32 with minimums that are a fixed multiple of them.
#[inline]
#[target_feature(enable = "neon")]
fn offset8(d: [float32x4_t; 2], by: f32) -> VScales {
    eight(d, [vmulq_n_f32(d[0], by), vmulq_n_f32(d[1], by)])
}

/// The same for spans of 16.
#[inline]
#[target_feature(enable = "neon")]
fn offset16(d: [float32x4_t; 4], by: f32) -> VScales {
    let [a, b, c, e] = d;
    VScales { d, m: [vmulq_n_f32(a, by), vmulq_n_f32(b, by), vmulq_n_f32(c, by), vmulq_n_f32(e, by)] }
}

macro_rules! unpack {
    ($name:ident, $w:ident, $n:ident, $j:ident, scales $scales:expr, group $group:expr) => {
        impl Unpack for $name {
            #[inline]
            #[target_feature(enable = "neon")]
            unsafe fn vscales($w: *const u8, $n: usize) -> VScales {
                // SAFETY: the caller's step has what its format says, and only that is read.
                unsafe { $scales }
            }

            #[inline]
            #[target_feature(enable = "neon")]
            unsafe fn vunpack($w: *const u8, $j: usize) -> [int8x16_t; 2] {
                // SAFETY: as above, group j being in the step.
                unsafe { $group }
            }
        }
    };
}

unpack!(Q4_0, w, n, j,
    scales offset8(block_scales(w.add(Self::D), Self::BYTES, n), -8.0),
    group signed(nibbles(w.add(j * Self::BYTES + Self::QS))));
unpack!(Q4_1, w, n, j,
    scales block_scales_mins(w.add(Self::D), Self::BYTES, n),
    group signed(nibbles(w.add(j * Self::BYTES + Self::QS))));
unpack!(Q5_0, w, n, j,
    scales offset8(block_scales(w.add(Self::D), Self::BYTES, n), -16.0),
    group signed(five(w.add(j * Self::BYTES + Self::QH))));
unpack!(Q5_1, w, n, j,
    scales block_scales_mins(w.add(Self::D), Self::BYTES, n),
    group signed(five(w.add(j * Self::BYTES + Self::QH))));
unpack!(Q8_0, w, n, j,
    scales only(block_scales(w.add(Self::D), Self::BYTES, n)),
    group signed(load(w.add(j * Self::BYTES + Self::QS))));
unpack!(IQ4_NL, w, n, j,
    scales only(block_scales(w.add(Self::D), Self::BYTES, n)),
    group lookup(&IQ4_VALUES, nibbles(w.add(j * Self::BYTES + Self::QS))));
unpack!(MXFP4, w, n, j,
scales {
    let d: [f32; 8] = [0, 1, 2, 3, 4, 5, 6, 7].map(|i: usize| e8m0_half(*w.add(i.min(n - 1) * Self::BYTES + Self::E)));
    offset8([vld1q_f32(d.as_ptr()), vld1q_f32(d.as_ptr().add(4))], -f32::from(MXFP4_OFFSET))
},
group lookup(&MXFP4_UNSIGNED, nibbles(w.add(j * Self::BYTES + Self::QS))));

unpack!(Q2_K, w, _n, j,
scales {
    let (d, m, v) = (one_scale(w.add(Self::D)), vnegq_f32(one_scale(w.add(Self::DMIN))), vld1q_u8(w.add(Self::SCALES)));
    VScales { d: unsigned16(vandq_u8(v, vdupq_n_u8(15)), d), m: unsigned16(vshrq_n_u8::<4>(v), m) }
},
group signed(masked(shifted(load(w.add(Self::QS + j / 4 * 32)), 2 * (j % 4)), 3)));
unpack!(Q3_K, w, _n, j,
scales {
    // 16 low halves in 8 bytes; their high bits, four to a byte, in 4 bytes.
    let s = w.add(Self::SCALES).cast::<u64>().read_unaligned();
    let high = w.add(Self::SCALES + 8).cast::<u32>().read_unaligned();
    let two = |shift: u32| u64::from(high >> shift & 0x0303_0303) << 4;
    let low = 0x0f0f_0f0f_0f0f_0f0f;
    let first = vcreate_s8(s & low | two(0) | two(2) << 32);
    let second = vcreate_s8(s >> 4 & low | two(4) | two(6) << 32);
    let s = vsubq_s8(vcombine_s8(first, second), vdupq_n_s8(32));
    offset16(signed16(s, one_scale(w.add(Self::D))), -4.0)
},
group {
    let low = shifted(load(w.add(Self::QS + j / 4 * 32)), 2 * (j % 4));
    signed(above2(low, masked(shifted(load(w.add(Self::HMASK)), j), 1)))
});
unpack!(Q4_K, w, _n, j,
scales k4_scales(w),
group {
    let v = load(w.add(Self::QS + j / 2 * 32));
    signed(if j % 2 == 0 { masked(v, 15) } else { shifted(v, 4) })
});
unpack!(Q5_K, w, _n, j,
scales k4_scales(w),
group {
    let low = shifted(load(w.add(Self::QS + j / 2 * 32)), 4 * (j % 2));
    signed(above4(low, masked(shifted(load(w.add(Self::QH)), j), 1)))
});
unpack!(Q6_K, w, _n, j,
scales offset16(signed16(vld1q_s8(w.add(Self::SCALES).cast()), one_scale(w.add(Self::D))), -32.0),
group {
    let r = j % 4;
    let low = shifted(load(w.add(Self::QL + j / 4 * 64 + r % 2 * 32)), 4 * (r / 2));
    signed(above4(low, masked(shifted(load(w.add(Self::QH + j / 4 * 32)), 2 * r), 3)))
});
unpack!(IQ4_XS, w, _n, j,
scales {
    let low = vcreate_u8(u64::from(w.add(Self::SCALES_L).cast::<u32>().read_unaligned()));
    let low = vzip1_u8(vand_u8(low, vdup_n_u8(15)), vshr_n_u8::<4>(low));
    let by: [i16; 8] = [0, -2, -4, -6, -8, -10, -12, -14];
    let high = vshlq_u16(vdupq_n_u16(w.add(Self::SCALES_H).cast::<u16>().read_unaligned()), vld1q_s16(by.as_ptr()));
    let s = vsli_n_u8::<4>(low, vand_u8(vmovn_u16(high), vdup_n_u8(3)));
    only(signed8(vsub_s8(vreinterpret_s8_u8(s), vdup_n_s8(32)), one_scale(w.add(Self::D))))
},
group lookup(&IQ4_VALUES, nibbles(w.add(Self::QS + j * 16))));

/// Scales and minimums of Q4_K and Q5_K, 6 bits each in 12 bytes.
///
/// # Safety
/// 16 bytes at `w`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn k4_scales(w: *const u8) -> VScales {
    // SAFETY: the caller's 16 bytes.
    let packed = unsafe { w.add(Q4_K::SCALES).cast::<[u32; 3]>().read_unaligned() };
    let [d, m] = k4_bytes(packed).map(|bytes| vcreate_u8(bytes));
    // SAFETY: as above.
    let (sd, sm) = unsafe { (one_scale(w.add(Q4_K::D)), one_scale(w.add(Q4_K::DMIN))) };
    eight(unsigned8(d, sd), unsigned8(m, vnegq_f32(sm)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::leaf_tests::{Unpacked, Unpacks, unpacks_as_the_plain_version};

    enum Neon {}

    impl Unpacks for Neon {
        unsafe fn unpack<F: Unpack>(rows: &[Vec<u8>], n: usize) -> Vec<Unpacked> {
            let lanes = |v: [float32x4_t; 4]| -> [f32; 16] {
                // SAFETY: both are 64 bytes of floats.
                unsafe { std::mem::transmute(v) }
            };
            let step = |w: &Vec<u8>| {
                // SAFETY: the caller's.
                let VScales { d, m } = unsafe { F::vscales(w.as_ptr(), n) };
                // SAFETY: the caller's; both are 32 bytes.
                let groups = (0..n).map(|j| unsafe { std::mem::transmute(F::vunpack(w.as_ptr(), j)) }).collect();
                Unpacked { scales: Some(Scales { d: lanes(d), m: lanes(m) }), groups }
            };
            rows.iter().map(step).collect()
        }
    }

    #[test]
    fn rows_are_unpacked_as_by_the_plain_version() {
        unpacks_as_the_plain_version::<Neon>();
    }
}
