//! Reading and writing the element types: scalar, clear, the definition that kernels are tested against.
//!
//! Layouts are those of GGUF. A quantizer here picks scales from the extremes of a block, without a search for the best
//! ones: it makes valid data of every type (caches, conversions, tests), not the best model files.
//! Everything rounds to nearest, ties to even, so that vector kernels can give the same bytes.

use crate::dtype::DType;
use half::{bf16, f16};

mod iq4;
mod k_quants;
pub mod layout;
mod legacy;
mod mxfp4;

pub use iq4::IQ4_VALUES;
pub use k_quants::{q3_k_scale, scale_min_k4};
pub use mxfp4::{MXFP4_VALUES, e8m0_half};

/// Why a row cannot be converted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantError {
    /// The type holds no real numbers.
    #[error("{0} elements cannot be converted to or from F32")]
    NotReal(DType),
    /// The length is no multiple of the block.
    #[error("a row of {elements} elements is not a whole number of {dtype} blocks")]
    Block {
        /// Type of the row.
        dtype: DType,
        /// Its elements.
        elements: usize,
    },
    /// The bytes do not fit the elements.
    #[error("{elements} elements of {dtype} do not take {bytes} bytes")]
    Size {
        /// Type of the row.
        dtype: DType,
        /// Its elements.
        elements: usize,
        /// Bytes given.
        bytes: usize,
    },
}

fn check(dtype: DType, elements: usize, bytes: usize) -> Result<(), QuantError> {
    if dtype == DType::I32 {
        return Err(QuantError::NotReal(dtype));
    }
    if elements % dtype.block_len() != 0 {
        return Err(QuantError::Block { dtype, elements });
    }
    if dtype.row_bytes(elements) != Some(bytes) {
        return Err(QuantError::Size { dtype, elements, bytes });
    }
    Ok(())
}

/// Applies `f` to each block of `B` bytes and `N` elements. Sizes were checked by the caller.
fn read<const B: usize, const N: usize>(src: &[u8], dst: &mut [f32], f: fn(&[u8; B], &mut [f32; N])) {
    for (block, out) in src.as_chunks().0.iter().zip(dst.as_chunks_mut().0) {
        f(block, out);
    }
}

/// The reverse of [`read`].
fn write<const B: usize, const N: usize>(src: &[f32], dst: &mut [u8], f: fn(&[f32; N], &mut [u8; B])) {
    for (x, block) in src.as_chunks().0.iter().zip(dst.as_chunks_mut().0) {
        f(x, block);
    }
}

/// Converts a row of `dst.len()` elements of `dtype`, which `src` must hold exactly, to F32.
pub fn dequantize_row(dtype: DType, src: &[u8], dst: &mut [f32]) -> Result<(), QuantError> {
    check(dtype, dst.len(), src.len())?;
    match dtype {
        DType::F32 => read(src, dst, |b: &[u8; 4], y: &mut [f32; 1]| y[0] = f32::from_le_bytes(*b)),
        DType::F16 => read(src, dst, |b, y: &mut [f32; 1]| y[0] = f16::from_le_bytes(*b).to_f32()),
        DType::BF16 => read(src, dst, |b, y: &mut [f32; 1]| y[0] = bf16::from_le_bytes(*b).to_f32()),
        DType::I32 => return Err(QuantError::NotReal(dtype)),
        DType::Q4_0 => read(src, dst, legacy::read_q4_0),
        DType::Q4_1 => read(src, dst, legacy::read_q4_1),
        DType::Q5_0 => read(src, dst, legacy::read_q5_0),
        DType::Q5_1 => read(src, dst, legacy::read_q5_1),
        DType::Q8_0 => read(src, dst, legacy::read_q8_0),
        DType::Q2_K => read(src, dst, k_quants::read_q2_k),
        DType::Q3_K => read(src, dst, k_quants::read_q3_k),
        DType::Q4_K => read(src, dst, k_quants::read_q4_k),
        DType::Q5_K => read(src, dst, k_quants::read_q5_k),
        DType::Q6_K => read(src, dst, k_quants::read_q6_k),
        DType::Q8_K => read(src, dst, k_quants::read_q8_k),
        DType::IQ4_NL => read(src, dst, iq4::read_iq4_nl),
        DType::IQ4_XS => read(src, dst, iq4::read_iq4_xs),
        DType::MXFP4 => read(src, dst, mxfp4::read_mxfp4),
    }
    Ok(())
}

/// Converts a row of F32 to `dtype`; `dst` must have exactly the bytes that it takes. NaN and infinity in a quantized
/// block spoil that block's values, nothing else.
pub fn quantize_row(dtype: DType, src: &[f32], dst: &mut [u8]) -> Result<(), QuantError> {
    check(dtype, src.len(), dst.len())?;
    match dtype {
        DType::F32 => write(src, dst, |x: &[f32; 1], b: &mut [u8; 4]| *b = x[0].to_le_bytes()),
        DType::F16 => write(src, dst, |x: &[f32; 1], b| *b = f16::from_f32(x[0]).to_le_bytes()),
        DType::BF16 => write(src, dst, |x: &[f32; 1], b| *b = bf16::from_f32(x[0]).to_le_bytes()),
        DType::I32 => return Err(QuantError::NotReal(dtype)),
        DType::Q4_0 => write(src, dst, legacy::write_q4_0),
        DType::Q4_1 => write(src, dst, legacy::write_q4_1),
        DType::Q5_0 => write(src, dst, legacy::write_q5_0),
        DType::Q5_1 => write(src, dst, legacy::write_q5_1),
        DType::Q8_0 => write(src, dst, legacy::write_q8_0),
        DType::Q2_K => write(src, dst, k_quants::write_q2_k),
        DType::Q3_K => write(src, dst, k_quants::write_q3_k),
        DType::Q4_K => write(src, dst, k_quants::write_q4_k),
        DType::Q5_K => write(src, dst, k_quants::write_q5_k),
        DType::Q6_K => write(src, dst, k_quants::write_q6_k),
        DType::Q8_K => write(src, dst, k_quants::write_q8_k),
        DType::IQ4_NL => write(src, dst, iq4::write_iq4_nl),
        DType::IQ4_XS => write(src, dst, iq4::write_iq4_xs),
        DType::MXFP4 => write(src, dst, mxfp4::write_mxfp4),
    }
    Ok(())
}

/// The f16 at the start of `b`, as F32.
fn f16_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

/// Writes `x` as f16 and gives back what was written: quantizers go on with the scale that a reader will see.
fn put_f16(b: &mut [u8], at: usize, x: f32) -> f32 {
    let h = f16::from_f32(x);
    b[at..at + 2].copy_from_slice(&h.to_le_bytes());
    h.to_f32()
}

/// `1 / d`, or 0 where d is 0.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Nearest integer within `lo..=hi`; NaN gives 0 (which every caller's range holds or is near enough to).
fn nearest(x: f32, lo: i32, hi: i32) -> i32 {
    (x.round_ties_even() as i32).clamp(lo, hi)
}

/// Largest absolute value, and the element that has it, with its sign.
fn extreme(x: &[f32]) -> (f32, f32) {
    x.iter().fold((0.0, 0.0), |(a, m), &v| if v.abs() > a { (v.abs(), v) } else { (a, m) })
}

/// Smallest and largest element.
fn min_max(x: &[f32]) -> (f32, f32) {
    x.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), &v| (lo.min(v), hi.max(v)))
}

#[cfg(test)]
mod tests;
