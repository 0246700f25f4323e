//! Leaves for x86-64: AVX2 with FMA and F16C, the same with AVX-VNNI, and AVX-512 with VNNI.

pub(super) mod act;
pub(super) mod dot;
mod pair;
mod panel;
pub(super) mod unpack;
mod words;

use super::act::{ActBlock, act_blocks};
use super::dot::Dots;
use super::isa::Kind;
use super::mul_mat::{Out, Rows, Scratch};
use super::panel::{PANEL_COLUMNS, Panels};
use std::ops::Range;
use unpack::Unpack;

/// The product of some rows with `n_cols` columns.
///
/// # Safety
/// As [`super::mul_mat::mul_mat`]; the processor must have AVX2, FMA and F16C, and what the kind says.
pub(super) unsafe fn product<F: Unpack>(
    kind: Kind,
    w: Rows,
    rows: Range<usize>,
    x: &[ActBlock],
    n_cols: usize,
    out: Out,
    scratch: &mut Scratch<'_>,
) {
    // SAFETY: rows and columns are the caller's, and so are the extensions.
    unsafe {
        if n_cols < PANEL_COLUMNS {
            let dot = match kind {
                Kind::Avx512 => dot::avx512::<F>,
                Kind::AvxVnni => dot::avxvnni::<F>,
                _ => dot::avx2::<F>,
            };
            return dot(Dots::new(w, rows, x, n_cols, out));
        }
        panels::<F>(kind, n_cols).product(w, rows, x, n_cols, out, scratch);
    }
}

fn panels<F: Unpack>(kind: Kind, n_cols: usize) -> Panels {
    match kind {
        Kind::Avx512 => panel::avx512::<F>(n_cols),
        Kind::AvxVnni => panel::avxvnni::<F>(),
        _ => panel::avx2::<F>(),
    }
}

/// Floats of scratch memory for products of rows of `k` elements with up to `n_cols` columns: fewer columns need no more.
pub(super) fn scratch_floats<F: Unpack>(kind: Kind, k: usize, n_cols: usize) -> usize {
    if n_cols < PANEL_COLUMNS { 0 } else { panels::<F>(kind, n_cols).scratch_floats(act_blocks(k), n_cols) }
}
