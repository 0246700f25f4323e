//! Where the fields of a block lie: the one place that says so, for everybody who reads or writes blocks.
//!
//! Fields are listed in the order of their bytes, as in the structures of `ggml-common.h`, and without gaps. A field's constant is its offset
//! in the block. How the bits of a field are arranged is said where they are read ([`crate::quant`]).

use half::f16;

/// Defines a block format: an offset for each field, and the bytes of a block.
macro_rules! block {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}

        impl $name {
            block!(@offsets 0; $($field: $type,)*);
        }
    };
    (@offsets $at:expr; $field:ident: $type:ty, $($rest:tt)*) => {
        #[doc = concat!("Offset of `", stringify!($field), "`, a `", stringify!($type), "`.")]
        pub const $field: usize = $at;
        block!(@offsets Self::$field + size_of::<$type>(); $($rest)*);
    };
    (@offsets $at:expr;) => {
        /// Bytes of a block.
        pub const BYTES: usize = $at;
    };
}

block! {
    /// 32 elements: scale, nibbles.
    Q4_0 { D: f16, QS: [u8; 16], }
}
block! {
    /// 32 elements: scale, minimum, nibbles.
    Q4_1 { D: f16, M: f16, QS: [u8; 16], }
}
block! {
    /// 32 elements: scale, fifth bits, nibbles.
    Q5_0 { D: f16, QH: [u8; 4], QS: [u8; 16], }
}
block! {
    /// 32 elements: scale, minimum, fifth bits, nibbles.
    Q5_1 { D: f16, M: f16, QH: [u8; 4], QS: [u8; 16], }
}
block! {
    /// 32 elements: scale, signed bytes.
    Q8_0 { D: f16, QS: [i8; 32], }
}
block! {
    /// 16 groups of 16: their scales and minimums, elements, and what scales and minimums are multiplied by.
    Q2_K { SCALES: [u8; 16], QS: [u8; 64], D: f16, DMIN: f16, }
}
block! {
    /// 16 groups of 16: third bits, the two others, scales of groups, and what they are multiplied by.
    Q3_K { HMASK: [u8; 32], QS: [u8; 64], SCALES: [u8; 12], D: f16, }
}
block! {
    /// 8 groups of 32: what scales and minimums are multiplied by, both of each group, nibbles.
    Q4_K { D: f16, DMIN: f16, SCALES: [u8; 12], QS: [u8; 128], }
}
block! {
    /// 8 groups of 32: what scales and minimums are multiplied by, both of each group, fifth bits, nibbles.
    Q5_K { D: f16, DMIN: f16, SCALES: [u8; 12], QH: [u8; 32], QS: [u8; 128], }
}
block! {
    /// 16 groups of 16: nibbles, the two bits above them, scales of groups, and what they are multiplied by.
    Q6_K { QL: [u8; 128], QH: [u8; 64], SCALES: [i8; 16], D: f16, }
}
block! {
    /// 256 elements: scale, signed bytes, and the sums of 16 of them.
    Q8_K { D: f32, QS: [i8; 256], BSUMS: [i16; 16], }
}
block! {
    /// 32 elements: scale, nibbles.
    IQ4_NL { D: f16, QS: [u8; 16], }
}
block! {
    /// 8 groups of 32: what scales are multiplied by, their high bits, their low bits, nibbles.
    IQ4_XS { D: f16, SCALES_H: u16, SCALES_L: [u8; 4], QS: [u8; 128], }
}
block! {
    /// 32 elements: exponent of the scale, nibbles.
    MXFP4 { E: u8, QS: [u8; 16], }
}

// Scales and minimums of both are read by the same code.
const _: () = assert!(Q4_K::D == Q5_K::D && Q4_K::DMIN == Q5_K::DMIN && Q4_K::SCALES == Q5_K::SCALES);
