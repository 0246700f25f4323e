//! Prefill: panels of 8 or 16 weight rows, unpacked and interleaved once, against tiles of activation columns.
//!
//! A lane is a row: four bytes of a row's group lie in a 32-bit lane, beside those of the next row, and meet four bytes of a
//! column that are broadcast. So sums stay in their lane, a group's scales are a vector, and what a format costs to unpack is
//! paid once per panel, not once per column. What lies where in a panel is said at [`step_floats`](crate::kernels::panel::step_floats).
//!
//! Rounding: the products of a span are summed up exactly, as integers. They are multiplied by the scale of weights times that of
//! activations and added to the float sum, fused; minimums times sums of activations behind them.

mod avx2;
mod avx512;

pub(super) use avx2::{avx2, avxvnni};
pub(super) use avx512::panels as avx512;

#[cfg(test)]
mod tests {
    use super::avx2::{Span, bytes_of, four, fours, fours_of, tile};
    use super::*;
    use crate::kernels::act::{ActBlock, act_blocks};
    use crate::kernels::ahead::Ahead;
    use crate::kernels::isa::Kind;
    use crate::kernels::leaf_tests::{Multiplies, give_the_same_products, has};
    use crate::kernels::mul_mat::{Line, Out, Rows, Scratch};
    use crate::kernels::panel::{Panels, Part, Tile, tiles};
    use crate::kernels::x86::unpack::Unpack;
    use std::arch::x86_64::*;

    /// VPDPBUSD of 256 bits as AVX-512 writes it, for processors that have it in this form alone.
    enum Wide {}

    fours!(Wide, "avx2,avx512vnni,avx512vl", _mm256_dpbusd_epi32);

    /// # Safety
    /// AVX2, FMA, AVX-512 VL and VNNI; the rest as [`tile`].
    #[target_feature(enable = "avx2,fma,avx512vnni,avx512vl")]
    unsafe fn tile_wide<const N: usize, const SPAN: usize>(part: &Part, first: usize, ahead: &mut Ahead) {
        // SAFETY: the features are on, the rest is the caller's.
        unsafe { tile::<Wide, N, 1, SPAN, true>(part, first, ahead) }
    }

    /// # Safety
    /// As [`Multiplies::multiply`].
    unsafe fn multiply(panels: Panels, w: Rows, n_rows: usize, x: &[ActBlock], n_cols: usize, out: Out) {
        let mut room = Line::room(panels.scratch_floats(act_blocks(w.k), n_cols));
        // SAFETY: the caller's.
        unsafe { panels.product(w, 0..n_rows, x, n_cols, out, &mut Scratch::new(&mut room)) };
    }

    enum ByAvx2 {}

    impl Multiplies for ByAvx2 {
        unsafe fn multiply<F: Unpack>(w: Rows, n_rows: usize, x: &[ActBlock], n_cols: usize, out: Out) {
            // SAFETY: the caller's.
            unsafe { multiply(avx2::<F>(), w, n_rows, x, n_cols, out) };
        }
    }

    enum BySinglePanels {}

    impl Multiplies for BySinglePanels {
        unsafe fn multiply<F: Unpack>(w: Rows, n_rows: usize, x: &[ActBlock], n_cols: usize, out: Out) {
            // SAFETY: the caller's.
            unsafe { multiply(Panels { pairs: None, ..avx2::<F>() }, w, n_rows, x, n_cols, out) };
        }
    }

    enum ByAvxVnni {}

    impl Multiplies for ByAvxVnni {
        unsafe fn multiply<F: Unpack>(w: Rows, n_rows: usize, x: &[ActBlock], n_cols: usize, out: Out) {
            // SAFETY: the caller's.
            unsafe { multiply(avxvnni::<F>(), w, n_rows, x, n_cols, out) };
        }
    }

    enum ByWide {}

    impl Multiplies for ByWide {
        unsafe fn multiply<F: Unpack>(w: Rows, n_rows: usize, x: &[ActBlock], n_cols: usize, out: Out) {
            let tiles: &[Tile] = match F::SPAN {
                32 => tiles!(6, tile_wide, 32),
                _ => tiles!(6, tile_wide, 16),
            };
            // SAFETY: the caller's.
            unsafe { multiply(Panels { tiles, ..avxvnni::<F>() }, w, n_rows, x, n_cols, out) };
        }
    }

    enum ByAvx512 {}

    impl Multiplies for ByAvx512 {
        unsafe fn multiply<F: Unpack>(w: Rows, n_rows: usize, x: &[ActBlock], n_cols: usize, out: Out) {
            // SAFETY: the caller's.
            unsafe { multiply(avx512::<F>(n_cols), w, n_rows, x, n_cols, out) };
        }
    }

    #[test]
    fn panels_beside_one_another_do_not_change_a_bit() {
        if has(Kind::Avx2) {
            give_the_same_products::<ByAvx2, BySinglePanels>(&[1, 3, 4, 6, 13], None);
        }
    }

    /// What is added to make bytes unsigned is taken off by minimums, which rounds in another way.
    #[test]
    fn unsigned_bytes_give_the_same_products() {
        let columns = [1, 3, 6, 13];
        if has(Kind::AvxVnni) {
            give_the_same_products::<ByAvxVnni, ByAvx2>(&columns, Some(1e-5));
        }
        if has(Kind::Avx512) {
            give_the_same_products::<ByWide, ByAvx2>(&columns, Some(1e-5));
            give_the_same_products::<ByAvx512, ByAvx2>(&columns, Some(1e-5));
        }
    }
}
