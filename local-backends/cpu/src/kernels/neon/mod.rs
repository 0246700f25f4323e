//! Leaves for aarch64: NEON, which every such processor has, and its dot-product extension (SDOT).
//!
//! The two kinds differ only in how bytes are multiplied and added up, which is exact: their results are the same to the bit.

pub(super) mod act;
pub(super) mod dot;
pub(super) mod half;
mod panel;
pub(super) mod unpack;

use super::act::{ActBlock, act_blocks};
use super::dot::Dots;
use super::mul_mat::{Out, Rows, Scratch};
use super::panel::{PANEL_COLUMNS, Panels};
use std::ops::Range;
use unpack::Unpack;

/// The product of some rows with `n_cols` columns; with `sdot`, by the dot-product extension.
///
/// # Safety
/// As [`super::mul_mat::mul_mat`]; with `sdot`, the processor must have the extension.
pub(super) unsafe fn product<F: Unpack>(
    sdot: bool,
    w: Rows,
    rows: Range<usize>,
    x: &[ActBlock],
    n_cols: usize,
    out: Out,
    scratch: &mut Scratch<'_>,
) {
    // SAFETY: rows and columns are the caller's; the extension is there if it is asked for.
    unsafe {
        if n_cols < PANEL_COLUMNS {
            let dot = if sdot { dot::dotprod::<F> } else { dot::neon::<F> };
            return dot(Dots::new(w, rows, x, n_cols, out));
        }
        panels::<F>(sdot).product(w, rows, x, n_cols, out, scratch);
    }
}

fn panels<F: Unpack>(sdot: bool) -> Panels {
    if sdot { panel::panels_dotprod::<F>() } else { panel::panels_neon::<F>() }
}

/// Floats of scratch memory for products of rows of `k` elements with up to `n_cols` columns: fewer columns need no more.
pub(super) fn scratch_floats<F: Unpack>(sdot: bool, k: usize, n_cols: usize) -> usize {
    if n_cols < PANEL_COLUMNS { 0 } else { panels::<F>(sdot).scratch_floats(act_blocks(k), n_cols) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::isa::Kind;
    use crate::kernels::leaf_tests::{Multiplies, give_the_same_products, has};
    use crate::kernels::mul_mat::Line;

    /// By the dot-product extension, or without it.
    enum By<const SDOT: bool> {}

    impl<const SDOT: bool> Multiplies for By<SDOT> {
        unsafe fn multiply<F: Unpack>(w: Rows, n_rows: usize, x: &[ActBlock], n_cols: usize, out: Out) {
            let mut room = Line::room(scratch_floats::<F>(SDOT, w.k, n_cols));
            // SAFETY: the caller's.
            unsafe { product::<F>(SDOT, w, 0..n_rows, x, n_cols, out, &mut Scratch::new(&mut room)) };
        }
    }

    #[test]
    fn with_and_without_sdot_give_the_same_bits() {
        if has(Kind::NeonDot) {
            give_the_same_products::<By<true>, By<false>>(&[1, 2, 3, 9], None);
        }
    }
}
