//! Activations in 8 bits: the right side of a quantized product.
//!
//! One format serves every weight type: a scale per 32 elements, and the sums that minimums and offsets are multiplied
//! with. A block has 256 elements because that is the largest block of weights; a shorter rest is filled with zeros.

use super::Isa;
use super::isa::Kind;

/// Elements of a block.
pub const BLOCK: usize = 256;
/// Elements that share a scale.
pub const GROUP: usize = 32;

/// 256 activations: element i is `d[i / 32] * q[i]`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub struct ActBlock {
    /// Elements, -127..=127.
    pub q: [i8; BLOCK],
    /// Scales.
    pub d: [f32; BLOCK / GROUP],
    /// Sums of 32 elements (scaled).
    pub s: [f32; BLOCK / GROUP],
    /// Sums of 16 elements (scaled).
    pub s16: [f32; BLOCK / 16],
    /// Of 16 elements, the sums of the first two of every four and of the other two: what 16-bit sums of bytes are summed up by.
    pub halves: [[i16; 2]; BLOCK / 16],
}

impl ActBlock {
    /// All zeros.
    pub const ZERO: ActBlock =
        ActBlock { q: [0; BLOCK], d: [0.0; 8], s: [0.0; 8], s16: [0.0; 16], halves: [[0; 2]; 16] };
}

/// Blocks of a row of `k` elements.
pub const fn act_blocks(k: usize) -> usize {
    k.div_ceil(BLOCK)
}

/// Quantizes a row. A group that has a NaN or an infinity gives NaN.
///
/// # Panics
/// If `out` has not [`act_blocks`]`(x.len())` blocks.
pub fn quantize_act(isa: Isa, x: &[f32], out: &mut [ActBlock]) {
    assert_eq!(out.len(), act_blocks(x.len()), "blocks of a row of {}", x.len());
    for (x, out) in x.chunks(BLOCK).zip(out) {
        let mut padded;
        let x = match x.try_into() {
            Ok(whole) => whole,
            Err(_) => {
                padded = [0.0; BLOCK];
                padded[..x.len()].copy_from_slice(x);
                &padded
            }
        };
        match isa.kind() {
            Kind::Portable => quantize_block(x, out),
            // SAFETY: an Isa of this kind exists only where AVX2 is.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 | Kind::AvxVnni => unsafe { super::x86::act::quantize_avx2(x, out) },
            // SAFETY: as above, of AVX-512 with VNNI.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { super::x86::act::quantize_avx512(x, out) },
            // SAFETY: as above, of NEON.
            #[cfg(target_arch = "aarch64")]
            Kind::Neon | Kind::NeonDot => unsafe { super::neon::act::quantize_block(x, out) },
        }
    }
}

fn quantize_block(x: &[f32; BLOCK], out: &mut ActBlock) {
    for (j, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
        let largest = x.iter().fold(0f32, |m, v| if v.is_nan() { f32::NAN } else { m.max(v.abs()) });
        // f32::max drops a NaN on either side, so one that was found has to be looked for again.
        let largest = if x.iter().any(|v| v.is_nan()) { f32::NAN } else { largest };
        let d = largest / 127.0;
        let id = if d == 0.0 { 0.0 } else { 1.0 / d };
        out.d[j] = d;
        let mut sums = [0i32; 2];
        for (l, v) in x.iter().enumerate() {
            let q = (v * id).round_ties_even().clamp(-127.0, 127.0) as i8;
            out.q[j * GROUP + l] = q;
            sums[l / 16] += i32::from(q);
        }
        out.s[j] = d * (sums[0] + sums[1]) as f32;
        out.s16[2 * j] = d * sums[0] as f32;
        out.s16[2 * j + 1] = d * sums[1] as f32;
    }
    for (q, halves) in out.q.as_chunks::<4>().0.chunks_exact(4).zip(&mut out.halves) {
        let sum = |at: usize| q.iter().map(|four| i16::from(four[at]) + i16::from(four[at + 1])).sum();
        *halves = [sum(0), sum(2)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::format::tests::noise;

    #[test]
    fn every_isa_gives_the_same_bytes() {
        for k in [32, 64, 256, 576, 1536, 100] {
            let x = noise(k, 3);
            let mut want = vec![ActBlock::ZERO; act_blocks(k)];
            quantize_act(Isa::PORTABLE, &x, &mut want);
            for (i, v) in x.iter().enumerate() {
                let b = &want[i / BLOCK];
                let d = b.d[i % BLOCK / GROUP];
                assert!((f32::from(b.q[i % BLOCK]) * d - v).abs() <= 0.5001 * d);
            }
            for isa in Isa::available() {
                let mut got = vec![ActBlock::ZERO; act_blocks(k)];
                quantize_act(isa, &x, &mut got);
                assert_eq!(want, got, "{} k {k}", isa.name());
            }
        }
    }

    /// The inverse of their scale is infinite.
    #[test]
    fn tiny_numbers_give_the_same_bytes() {
        let mut x: Vec<f32> = noise(BLOCK, 5).iter().map(|v| v * 1e-38).collect();
        x[3] = 0.0;
        let mut want = [ActBlock::ZERO];
        quantize_act(Isa::PORTABLE, &x, &mut want);
        assert!(want[0].q.contains(&-127) && want[0].q[3] == 0);
        for isa in Isa::available() {
            let mut got = [ActBlock::ZERO];
            quantize_act(isa, &x, &mut got);
            assert_eq!(want, got, "{}", isa.name());
        }
    }

    #[test]
    fn bad_numbers_stay_bad() {
        for isa in Isa::available() {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in [0, 7, 8, 31] {
                    let mut x = noise(64, 4);
                    x[at] = bad;
                    let mut b = [ActBlock::ZERO];
                    quantize_act(isa, &x, &mut b);
                    assert!(!b[0].d[0].is_finite() && b[0].d[1].is_finite(), "{} {bad}", isa.name());
                }
            }
        }
    }
}
