//! What ggml computes otherwise than our reference, and what is left to other devices: by name, with the size and the reason. The conformance
//! suite fails for anything else.

use outboard_core::DeviceKind;

/// Results that differ from the reference's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// An op, or a case of the conformance suite: `GELU`, `GELU infinities and NaN`.
    pub of: &'static str,
    /// The largest normalised mean squared error; infinity where some results are no numbers that should be, or the other way round.
    pub most: f64,
    /// Why.
    pub why: &'static str,
}

/// What is known of a device.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// What it does not support, as names of ops or of cases.
    pub unsupported: &'static [&'static str],
    /// What it computes otherwise.
    pub differs: &'static [Difference],
}

/// What is known of a device of this kind and of ggml's name; of one that was not tried, what Vulkan leaves to others.
pub fn known(kind: DeviceKind, name: &str) -> Known {
    match kind {
        DeviceKind::Cpu => Known { unsupported: UNSUPPORTED, differs: CPU },
        _ if name.starts_with("Vulkan") => Known { unsupported: UNSUPPORTED_ON_CARDS, differs: VULKAN },
        _ => Known { unsupported: UNSUPPORTED_ON_CARDS, differs: &[] },
    }
}

const UNSUPPORTED: &[&str] = &[
    // They are not in ggml.
    "LOG_PROB",
    "PENALTY",
    "SAMPLE",
    // The last of equals, and an order of equals that depends on the machine. A comparison that NaN breaks sorts beyond the row.
    "ARGMAX",
    "ARGSORT",
    "TOP_K",
    "ADD_ID padded, ids from the first columns of a sort",
    "MUL_MAT_ID F32 padded, ids from the first columns of a sort",
    "MUL_MAT_ID Q4_0 padded, ids from the first columns of a sort",
    // Blocks of 256, which it rounds otherwise, and blocks that do not lie side by side.
    "CAST",
    "CPY",
    "SET_ROWS",
    // Sums over nothing, which it leaves as they were.
    "MUL_MAT F32 sum over nothing",
    "MUL_MAT F16 sum over nothing, many columns",
    "MUL_MAT Q4_0 sum over nothing, 1 columns",
    "MUL_MAT Q4_0 no weights at all, 1 columns",
    "MUL_MAT Q8_0 sum over nothing, 20 columns",
    "MUL_MAT Q8_0 no weights at all, 20 columns",
    "MUL_MAT_ID Q4_0 sum over nothing, 3 tokens",
    "MUL_MAT_ID Q4_0 sum over nothing, 20 tokens",
    "SUM_ROWS [0, 3, 1, 1]",
    "FLASH_ATTN_EXT d=64 dv=64 tokens=3 kv=0 heads=3/1 k=F32 v=F32 mask",
    "FLASH_ATTN_EXT d=64 dv=64 tokens=3 kv=0 heads=3/1 k=F16 v=F16 mask",
    "FLASH_ATTN_EXT d=64 dv=64 tokens=3 kv=0 heads=3/1 k=BF16 v=BF16 mask",
    "FLASH_ATTN_EXT d=64 dv=64 tokens=3 kv=0 heads=3/1 k=Q8_0 v=Q8_0 mask",
    // Its own intermediate.
    "GET_ROWS Q8_K n=256 rows=1 count=1 a2=1",
    "GET_ROWS Q8_K n=768 rows=7 count=4 a2=1",
    "GET_ROWS Q8_K n=256 rows=5 count=9 a2=3",
    "GET_ROWS Q8_K padded",
];

/// The same for cards: those that have several reasons by their ops.
const UNSUPPORTED_ON_CARDS: &[&str] = &[
    "LOG_PROB",
    "PENALTY",
    "SAMPLE",
    "ARGMAX",
    "ARGSORT",
    "TOP_K",
    "CAST",
    "CPY",
    "SET_ROWS",
    "ADD_ID padded, ids from the first columns of a sort",
    "MUL_MAT_ID F32 padded, ids from the first columns of a sort",
    "MUL_MAT_ID Q4_0 padded, ids from the first columns of a sort",
    "MUL_MAT_ID Q4_0 sum over nothing, 3 tokens",
    "MUL_MAT_ID Q4_0 sum over nothing, 20 tokens",
    "MUL_MAT_ID Q4_0 experts apart",
    "SUM_ROWS [0, 3, 1, 1]",
    // Blocks that do not begin where the device's alignment lets them, BF16 repeated in two dimensions, keys and values of different types.
    "GET_ROWS",
    "MUL_MAT",
    "FLASH_ATTN_EXT",
];

const NUMBER: &str = "a comparison with NaN that takes the other number";
const NOTHING: &str = "a softmax over nothing is 0 / 0";
const TABLE: &str = "values from a table of F16";
/// Seen with AMX and AVX-512 FP16, and not with AVX2 alone.
const PRODUCTS: &str =
    "products of many columns on processors with AMX: activations become F16, small scales become 0, and NaN is lost";

const fn differs(of: &'static str, most: f64, why: &'static str) -> Difference {
    Difference { of, most, why }
}

const CPU: &[Difference] = &[
    differs("GELU", 1e-5, TABLE),
    differs("GELU_QUICK", 1e-5, TABLE),
    differs("GEGLU", 1e-3, TABLE),
    differs("GELU infinities and NaN", f64::INFINITY, "minus infinity times 0 is taken for 0"),
    differs("RELU infinities and NaN", f64::INFINITY, NUMBER),
    differs("CLAMP infinities and NaN", f64::INFINITY, NUMBER),
    differs("SOFT_MAX mask F32 excludes everything", f64::INFINITY, NOTHING),
    differs("SOFT_MAX mask F16 excludes everything", f64::INFINITY, NOTHING),
    differs(
        "FLASH_ATTN_EXT d=64 dv=64 tokens=7 kv=37 heads=6/2 k=Q8_0 v=Q8_0 sharp",
        5e-3,
        "queries are rounded to 8 bits, too, and 40 times the error is in an exponent",
    ),
    differs(
        "FLASH_ATTN_EXT d=64 dv=64 tokens=30 kv=100 heads=8/2 k=F16 v=F16 large queries",
        f64::INFINITY,
        "queries become F16, which has no numbers as large",
    ),
    differs("FLASH_ATTN_EXT F32 tokens=70 garbage behind the last position", f64::INFINITY, MASKED),
    differs("FLASH_ATTN_EXT F16 tokens=70 garbage behind the last position", f64::INFINITY, MASKED),
    differs("MUL_MAT F16 many activations beyond f16", f64::INFINITY, PRODUCTS),
    differs("MUL_MAT F16 tiny weights, many columns", 5e-3, PRODUCTS),
    differs("MUL_MAT Q4_0 tiny weights, many columns", 2.0, PRODUCTS),
    differs("MUL_MAT Q8_0 tiny weights, many columns", 2.0, PRODUCTS),
    differs("MUL_MAT MXFP4 tiny weights, many columns", 2.0, PRODUCTS),
    differs("MUL_MAT Q4_K many columns, some of no numbers", f64::INFINITY, PRODUCTS),
    differs("MUL_MAT Q6_K many columns, some of no numbers", f64::INFINITY, PRODUCTS),
];

/// On processors from 64 queries on, and on cards.
const MASKED: &str = "what a mask hides is computed, and NaN stays NaN";

const HALVES: &str = "products of many columns are of F16: what is larger than its numbers, smaller, or none is lost";
const TWICE: &str = "rows of an expert that a token has chosen twice are not all written: there is room for as many as there are tokens";

/// On lavapipe, all cases.
const VULKAN: &[Difference] = &[
    differs("GEGLU", 1e-4, "a hyperbolic tangent near -1"),
    differs("SWIGLU_OAI infinities and NaN, limit 7", f64::INFINITY, NUMBER),
    differs("SWIGLU_OAI infinities and NaN, limit inf", f64::INFINITY, NUMBER),
    differs("RELU infinities and NaN", f64::INFINITY, NUMBER),
    differs("CLAMP infinities and NaN", f64::INFINITY, NUMBER),
    differs("SOFT_MAX mask F32 excludes everything", f64::INFINITY, NOTHING),
    differs("SOFT_MAX mask F16 excludes everything", f64::INFINITY, NOTHING),
    // By vectors of 256 bits, and not by those of 512.
    differs(
        "FLASH_ATTN_EXT d=64 dv=64 tokens=1 kv=37 heads=6/2 k=F16 v=F16 nothing is seen",
        f64::INFINITY,
        "a softmax over nothing is the smallest of all numbers",
    ),
    differs("FLASH_ATTN_EXT F32 tokens=1 garbage behind the last position", f64::INFINITY, MASKED),
    differs("FLASH_ATTN_EXT F32 tokens=6 garbage behind the last position", f64::INFINITY, MASKED),
    differs("FLASH_ATTN_EXT BF16 tokens=1 garbage behind the last position", f64::INFINITY, MASKED),
    differs("FLASH_ATTN_EXT BF16 tokens=6 garbage behind the last position", f64::INFINITY, MASKED),
    differs("FLASH_ATTN_EXT F16 tokens=1 garbage behind the last position", f64::INFINITY, MASKED),
    differs("FLASH_ATTN_EXT F16 tokens=6 garbage behind the last position", f64::INFINITY, MASKED),
    differs("FLASH_ATTN_EXT F32 tokens=70 garbage behind the last position", f64::INFINITY, MASKED),
    differs("FLASH_ATTN_EXT BF16 tokens=70 garbage behind the last position", f64::INFINITY, MASKED),
    differs("FLASH_ATTN_EXT F16 tokens=70 garbage behind the last position", f64::INFINITY, MASKED),
    differs("MUL_MAT F16 many activations beyond f16", f64::INFINITY, HALVES),
    differs("MUL_MAT F16 many columns, some of no numbers", f64::INFINITY, HALVES),
    differs("MUL_MAT F16 tiny weights, many columns", 2.0, HALVES),
    differs("MUL_MAT Q4_0 many activations beyond f16", f64::INFINITY, HALVES),
    differs("MUL_MAT Q4_0 many columns, some of no numbers", f64::INFINITY, HALVES),
    differs("MUL_MAT Q4_0 tiny weights, many columns", 2.0, HALVES),
    differs("MUL_MAT Q8_0 many activations beyond f16", f64::INFINITY, HALVES),
    differs("MUL_MAT Q8_0 many columns, some of no numbers", f64::INFINITY, HALVES),
    differs("MUL_MAT Q8_0 tiny weights, many columns", 2.0, HALVES),
    differs("MUL_MAT Q4_K many activations beyond f16", f64::INFINITY, HALVES),
    differs("MUL_MAT Q4_K many columns, some of no numbers", f64::INFINITY, HALVES),
    differs("MUL_MAT Q4_K tiny weights, many columns", 2.0, HALVES),
    differs("MUL_MAT Q6_K many activations beyond f16", f64::INFINITY, HALVES),
    differs("MUL_MAT Q6_K many columns, some of no numbers", f64::INFINITY, HALVES),
    differs("MUL_MAT Q6_K tiny weights, many columns", 2.0, HALVES),
    differs("MUL_MAT MXFP4 many activations beyond f16", f64::INFINITY, HALVES),
    differs("MUL_MAT MXFP4 many columns, some of no numbers", f64::INFINITY, HALVES),
    differs("MUL_MAT MXFP4 tiny weights, many columns", 2.0, HALVES),
    differs("MUL_MAT_ID F32 one expert for all", f64::INFINITY, TWICE),
    differs("MUL_MAT_ID Q4_0 one expert for all", f64::INFINITY, TWICE),
];
