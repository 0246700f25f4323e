//! Element types and the sizes of their blocks.
//!
//! The layouts are those of GGUF (the file format's specification and its `ggml-common.h` structures): a quantized
//! type stores `block_len` elements of one row in `block_bytes` bytes. What lies where in them is said in [`crate::quant::layout`].

use crate::quant::layout;
use std::fmt;

/// The element type of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[allow(non_camel_case_types)]
pub enum DType {
    /// 32-bit IEEE float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// bfloat16.
    BF16,
    /// 32-bit signed integer: token ids, row indices, positions.
    I32,
    /// 4-bit, scale (f16): 32 elements in 18 bytes.
    Q4_0,
    /// 4-bit, scale and minimum (f16): 32 elements in 20 bytes.
    Q4_1,
    /// 5-bit, scale: 32 elements in 22 bytes.
    Q5_0,
    /// 5-bit, scale and minimum: 32 elements in 24 bytes.
    Q5_1,
    /// 8-bit, scale: 32 elements in 34 bytes.
    Q8_0,
    /// 2-bit with 4-bit scales and minimums: 256 elements in 84 bytes.
    Q2_K,
    /// 3-bit with 6-bit scales: 256 elements in 110 bytes.
    Q3_K,
    /// 4-bit with 6-bit scales and minimums: 256 elements in 144 bytes.
    Q4_K,
    /// 5-bit with 6-bit scales and minimums: 256 elements in 176 bytes.
    Q5_K,
    /// 6-bit with 8-bit scales: 256 elements in 210 bytes.
    Q6_K,
    /// 8-bit with an f32 scale and the sums of 16 elements: 256 elements in 292 bytes. An intermediate of matrix
    /// products (the activation's side), never a weight in a file.
    Q8_K,
    /// 4-bit indices into a fixed non-linear table, scale: 32 elements in 18 bytes.
    IQ4_NL,
    /// 4-bit non-linear with 6-bit scales: 256 elements in 136 bytes.
    IQ4_XS,
    /// OCP microscaling FP4 (E2M1) with a shared E8M0 exponent: 32 elements in 17 bytes.
    MXFP4,
}

impl DType {
    /// Every type, in a fixed order.
    pub const ALL: [DType; 18] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::I32,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q8_0,
        DType::Q2_K,
        DType::Q3_K,
        DType::Q4_K,
        DType::Q5_K,
        DType::Q6_K,
        DType::Q8_K,
        DType::IQ4_NL,
        DType::IQ4_XS,
        DType::MXFP4,
    ];

    /// Name, the same on the wire, in reports and in ggml.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::F16 => "F16",
            DType::BF16 => "BF16",
            DType::I32 => "I32",
            DType::Q4_0 => "Q4_0",
            DType::Q4_1 => "Q4_1",
            DType::Q5_0 => "Q5_0",
            DType::Q5_1 => "Q5_1",
            DType::Q8_0 => "Q8_0",
            DType::Q2_K => "Q2_K",
            DType::Q3_K => "Q3_K",
            DType::Q4_K => "Q4_K",
            DType::Q5_K => "Q5_K",
            DType::Q6_K => "Q6_K",
            DType::Q8_K => "Q8_K",
            DType::IQ4_NL => "IQ4_NL",
            DType::IQ4_XS => "IQ4_XS",
            DType::MXFP4 => "MXFP4",
        }
    }

    /// The type of that name, if there is one.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }

    /// Elements in a block; 1 for types that are not quantized.
    pub const fn block_len(self) -> usize {
        match self {
            DType::F32 | DType::F16 | DType::BF16 | DType::I32 => 1,
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => 32,
            DType::IQ4_NL | DType::MXFP4 => 32,
            DType::Q2_K | DType::Q3_K | DType::Q4_K | DType::Q5_K | DType::Q6_K | DType::Q8_K => 256,
            DType::IQ4_XS => 256,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::Q4_0 => layout::Q4_0::BYTES,
            DType::Q4_1 => layout::Q4_1::BYTES,
            DType::Q5_0 => layout::Q5_0::BYTES,
            DType::Q5_1 => layout::Q5_1::BYTES,
            DType::Q8_0 => layout::Q8_0::BYTES,
            DType::Q2_K => layout::Q2_K::BYTES,
            DType::Q3_K => layout::Q3_K::BYTES,
            DType::Q4_K => layout::Q4_K::BYTES,
            DType::Q5_K => layout::Q5_K::BYTES,
            DType::Q6_K => layout::Q6_K::BYTES,
            DType::Q8_K => layout::Q8_K::BYTES,
            DType::IQ4_NL => layout::IQ4_NL::BYTES,
            DType::IQ4_XS => layout::IQ4_XS::BYTES,
            DType::MXFP4 => layout::MXFP4::BYTES,
        }
    }

    /// Whether elements come in blocks, so that single ones have no address.
    pub const fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Whether this is F32, F16 or BF16.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Bytes of a contiguous row of `n` elements; `None` if `n` is not a multiple of the block or the size overflows.
    pub const fn row_bytes(self, n: usize) -> Option<usize> {
        if n % self.block_len() != 0 {
            return None;
        }
        (n / self.block_len()).checked_mul(self.block_bytes())
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for d in DType::ALL {
            assert_eq!(DType::from_name(d.name()), Some(d));
        }
        assert_eq!(DType::from_name("Q9_9"), None);
    }

    #[test]
    fn row_bytes_needs_whole_blocks() {
        assert_eq!(DType::Q4_1.row_bytes(576), Some(18 * 20));
        assert_eq!(DType::Q4_K.row_bytes(576), None);
        assert_eq!(DType::F16.row_bytes(3), Some(6));
        assert_eq!(DType::F32.row_bytes(usize::MAX), None);
    }
}
