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
    use super::super::Isa;
    use super::super::act::quantize_act;
    use super::super::format::tests::{noise, wild};
    use super::super::mul_mat::{Line, is_supported, mul_mat, scratch_floats};
    use super::*;
    use outboard_core::DType;

    #[test]
    fn with_and_without_sdot_give_the_same_bits() {
        let isas: Vec<Isa> = Isa::available().into_iter().filter(|isa| isa.name().starts_with("neon")).collect();
        if isas.len() < 2 {
            eprintln!("skipped: this processor has no dot-product extension");
            return;
        }
        for dtype in DType::ALL.into_iter().filter(|&d| is_supported(d)) {
            let k = if dtype.block_len() == 256 { 768 } else { 352 };
            let m = 13;
            let w = wild(dtype, k * m, 5);
            for n in [1, 2, 3, 9] {
                let mut x = vec![ActBlock::ZERO; n * act_blocks(k)];
                for (c, x) in x.chunks_exact_mut(act_blocks(k)).enumerate() {
                    quantize_act(Isa::PORTABLE, &noise(k, 7 + c as u32), x);
                }
                let run = |isa: Isa| -> Vec<u32> {
                    let mut y = vec![0f32; m * n];
                    let rows = Rows { data: w.as_ptr(), stride: dtype.row_bytes(k).unwrap(), dtype, k };
                    let out = Out { data: y.as_mut_ptr(), stride: m };
                    let mut room = Line::room(scratch_floats(isa, dtype, k, n));
                    // SAFETY: w has m rows, y m times n elements.
                    unsafe { mul_mat(isa, rows, 0..m, &x, n, out, &mut Scratch::new(&mut room)) };
                    y.iter().map(|v| v.to_bits()).collect()
                };
                assert_eq!(run(isas[0]), run(isas[1]), "{dtype} n {n}");
            }
        }
    }
}
