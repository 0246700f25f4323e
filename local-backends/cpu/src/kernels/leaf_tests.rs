//! Tests of leaves, written once for all instruction sets. A leaf's own tests say how it is called, and on which [`Kind`] of processor.

use super::Isa;
use super::act::{ActBlock, act_blocks, quantize_act};
use super::format::tests::{noise, weights, wild};
use super::format::{MXFP4, Scales, with_format};
use super::isa::Kind;
use super::mul_mat::{Leaf, Out, Rows, is_supported};
use outboard_core::DType;

/// Whether this processor is of that kind, too; says that a test is skipped if it is not.
pub(super) fn has(kind: Kind) -> bool {
    let has = Isa::available().iter().any(|isa| isa.kind() == kind);
    if !has {
        eprintln!("skipped: this processor is not {kind:?}");
    }
    has
}

/// Makes a row of so many weights.
type RowMaker = fn(DType, usize, u32) -> Vec<u8>;
/// Usual weights, and bytes of the whole range.
const ROW_MAKERS: [RowMaker; 2] = [weights, wild];

/// Rows that are unpacked in a test.
const ROWS: usize = 16;

/// A step of a row, as a leaf unpacks it.
pub(super) struct Unpacked {
    /// If the leaf has a way of its own to unpack them.
    pub(super) scales: Option<Scales>,
    pub(super) groups: Vec<[u8; 32]>,
}

/// How a leaf unpacks steps.
pub(super) trait Unpacks {
    /// Rows at once, at most [`ROWS`].
    const ROWS: usize = 1;
    /// What is added to signed bytes, wrapping; minimums make up for it.
    const BIAS: u8 = 0;

    /// A step of each row.
    ///
    /// # Safety
    /// The leaf's features; each of `rows` is a step of `n` groups.
    unsafe fn unpack<F: Leaf>(rows: &[Vec<u8>], n: usize) -> Vec<Unpacked>;
}

/// Checks that steps of every format, full ones and those at the end of a row, are unpacked as by the plain version of
/// the format.
pub(super) fn unpacks_as_the_plain_version<U: Unpacks>() {
    for dtype in DType::ALL.into_iter().filter(|&dtype| is_supported(dtype)) {
        let sizes: &[usize] = if dtype.block_len() == 256 { &[8] } else { &[8, 5, 2, 1] };
        for (&n, make) in sizes.iter().flat_map(|n| ROW_MAKERS.map(|make| (n, make))) {
            let mut rows: [Vec<u8>; ROWS] = std::array::from_fn(|r| make(dtype, 32 * n, r as u32));
            if dtype == DType::MXFP4 {
                // The least scales, which are subnormal, and a large one.
                rows.iter_mut().zip([0, 1, 2, 250]).for_each(|(row, e)| row[MXFP4::E] = e);
            }
            for rows in rows.chunks(U::ROWS) {
                with_format!(dtype, F => check_unpacked::<U, F>(rows, n));
            }
        }
    }
}

fn check_unpacked<U: Unpacks, F: Leaf>(rows: &[Vec<u8>], n: usize) {
    let dtype = F::DTYPE;
    let bias = if F::BITS == 8 { U::BIAS } else { 0 };
    // SAFETY: the test saw to the features, and the rows have n groups.
    let unpacked = unsafe { U::unpack::<F>(rows, n) };
    assert_eq!(unpacked.len(), rows.len());
    for (r, (row, got)) in rows.iter().zip(unpacked).enumerate() {
        if let Some(scales) = got.scales {
            let want = F::scales(row);
            for i in 0..32 * n / F::SPAN {
                assert_eq!(scales.d[i], want.d[i], "{dtype} row {r} scale {i}");
                assert_eq!(scales.m[i], want.m[i] - f32::from(bias) * want.d[i], "{dtype} row {r} minimum {i}");
            }
        }
        let want: Vec<[u8; 32]> = (0..n).map(|j| F::unpack(row, j).map(|q| q.wrapping_add(bias))).collect();
        assert_eq!(got.groups, want, "{dtype} row {r}");
    }
}

/// 128 bytes as vectors want them.
#[repr(align(64))]
pub(super) struct Bytes(pub(super) [i8; 128]);

/// Checks that `sums(bits, q, x)`, each of `each` products of bytes that lie beside one another, are exact. Bytes of x are not -128; those of
/// q are signed if `bits` is 8, else from 0 up, of so many bits.
pub(super) fn dots_are_exact(name: &str, each: usize, bits: &[u32], sums: impl Fn(u32, &Bytes, &Bytes) -> Vec<i32>) {
    for seed in 0..200u32 {
        let byte = |i: usize| ((i as u32).wrapping_add(seed * 97).wrapping_mul(2654435761) >> 20) as u8;
        // The first rounds are the extremes.
        let x = std::array::from_fn(|i| match seed {
            0 => 127,
            1 => -127,
            _ => (byte(i + 177) as i8).max(-127),
        });
        for &bits in bits {
            let q = std::array::from_fn(|i| match (seed, bits) {
                (0 | 1, 8) => -128,
                (0 | 1, _) => (1 << bits) as i8 - 1,
                (_, 8) => byte(i) as i8,
                _ => (u32::from(byte(i)) % (1 << bits)) as i8,
            });
            let product = |i: usize| i32::from(q[i]) * i32::from(x[i]);
            let want: Vec<i32> = (0..128).step_by(each).map(|from| (from..from + each).map(product).sum()).collect();
            assert_eq!(sums(bits, &Bytes(q), &Bytes(x)), want, "{name}, {bits} bits, by {each}");
        }
    }
}

/// How a leaf multiplies rows with columns.
pub(super) trait Multiplies {
    /// All of `n_rows` rows with `n_cols` columns.
    ///
    /// # Safety
    /// The leaf's features; `w` has the rows, `x` the columns, and `out` room for as many results.
    unsafe fn multiply<F: Leaf>(w: Rows, n_rows: usize, x: &[ActBlock], n_cols: usize, out: Out);
}

/// Checks that two leaves give the same products of every format: of rows of several lengths, some of which end within a step, and of one to
/// many columns. They may be apart by `tolerance` times the largest; without one they are the same to the bit.
pub(super) fn give_the_same_products<A: Multiplies, B: Multiplies>(columns: &[usize], tolerance: Option<f32>) {
    for dtype in DType::ALL.into_iter().filter(|&dtype| is_supported(dtype)) {
        // The last is more than a part of a panel, where columns are few.
        let lengths: &[usize] = if dtype.block_len() == 256 { &[256, 768, 2560] } else { &[32, 160, 576, 2592] };
        for (&k, make) in lengths.iter().flat_map(|k| ROW_MAKERS.map(|make| (k, make))) {
            for &n in columns {
                with_format!(dtype, F => {
                    let w = make(dtype, k * PRODUCT_ROWS, 9);
                    let (a, b) = (product::<A, F>(&w, k, n), product::<B, F>(&w, k, n));
                    check_products(&a, &b, tolerance, &format!("{dtype} k {k} n {n}"));
                });
            }
        }
    }
}

/// Rows of a product: not as many as panels have.
const PRODUCT_ROWS: usize = 21;

fn product<M: Multiplies, F: Leaf>(w: &[u8], k: usize, n: usize) -> Vec<f32> {
    let mut x = vec![ActBlock::ZERO; n * act_blocks(k)];
    for (c, x) in x.chunks_exact_mut(act_blocks(k)).enumerate() {
        quantize_act(Isa::PORTABLE, &noise(k, 40 + c as u32), x);
    }
    let mut y = vec![f32::NAN; PRODUCT_ROWS * n];
    let rows = Rows { data: w.as_ptr(), stride: F::DTYPE.row_bytes(k).unwrap(), dtype: F::DTYPE, k };
    let out = Out { data: y.as_mut_ptr(), stride: PRODUCT_ROWS };
    // SAFETY: as many rows, columns and results; the test saw to the features.
    unsafe { M::multiply::<F>(rows, PRODUCT_ROWS, &x, n, out) };
    y
}

fn check_products(a: &[f32], b: &[f32], tolerance: Option<f32>, what: &str) {
    let size = b.iter().fold(0f32, |a, v| a.max(v.abs()));
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        let same = match tolerance {
            None => a.to_bits() == b.to_bits(),
            Some(part) => (a - b).abs() <= part * size,
        };
        assert!(same, "{what} result {i}: {a} and {b}, of {size}");
    }
}
