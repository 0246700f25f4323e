//! What dot products of weight rows with columns have in common, whatever the instruction set: how they are called.

/// A function `$name` that calls `rows_cols` of the place where this stands, with `$dot` and the features on.
macro_rules! entry {
    ($name:ident, $dot:ty, $features:literal) => {
        /// See [`rows_cols`].
        ///
        /// # Safety
        /// As there.
        #[target_feature(enable = $features)]
        #[allow(clippy::too_many_arguments)]
        pub(in crate::kernels) unsafe fn $name<F: Unpack>(
            w: *const u8,
            row_bytes: usize,
            n_rows: usize,
            groups: usize,
            x: *const ActBlock,
            n_cols: usize,
            out: *mut f32,
            out_stride: usize,
        ) {
            // SAFETY: the features are on, the rest is the caller's.
            unsafe { rows_cols::<$dot, F>(w, row_bytes, n_rows, groups, x, n_cols, out, out_stride) }
        }
    };
}
pub(super) use entry;
