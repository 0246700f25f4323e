//! What dot products of weight rows with columns have in common, whatever the instruction set: how they are called.

use super::act::ActBlock;
use super::mul_mat::{Out, Rows};
use std::ops::Range;

/// Rows of weights and the columns that they meet.
#[derive(Clone, Copy)]
pub(super) struct Dots {
    /// The first row, and bytes from one to the next.
    pub(super) w: *const u8,
    pub(super) row_bytes: usize,
    pub(super) n_rows: usize,
    /// Groups of 32 weights of a row.
    pub(super) groups: usize,
    pub(super) x: *const ActBlock,
    pub(super) n_cols: usize,
    /// The first row's results.
    pub(super) out: Out,
}

impl Dots {
    /// The rows `rows` of `w` and `n_cols` columns.
    ///
    /// # Safety
    /// The rows are in `w`, and their results in `out`.
    pub(super) unsafe fn new(w: Rows, rows: Range<usize>, x: &[ActBlock], n_cols: usize, out: Out) -> Dots {
        // SAFETY: the caller's.
        let (first, out) =
            unsafe { (w.data.add(rows.start * w.stride), Out { data: out.data.add(rows.start), ..out }) };
        Dots { w: first, row_bytes: w.stride, n_rows: rows.len(), groups: w.k / 32, x: x.as_ptr(), n_cols, out }
    }
}

/// A function `$name` that calls `rows_cols` of the place where this stands, with `$dot` and the features on.
macro_rules! entry {
    ($name:ident, $dot:ty, $features:literal) => {
        /// See [`rows_cols`].
        ///
        /// # Safety
        /// As there.
        #[target_feature(enable = $features)]
        pub(in crate::kernels) unsafe fn $name<F: Unpack>(dots: Dots) {
            // SAFETY: the features are on, the rest is the caller's.
            unsafe { rows_cols::<$dot, F>(dots) }
        }
    };
}
pub(super) use entry;
