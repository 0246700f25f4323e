//! The matrix product with F32, F16 and BF16 weights.
//!
//! Lanes run along the rows: a tile keeps the sums of a few rows times a few columns in registers, so that each vector that
//! is loaded is used several times; rows meet columns in blocks that stay in the second cache. Every tile adds up in the same order,
//! so that a result does not depend on how many columns there are.

use super::Isa;
use super::ahead::{LINE, piece, rows_on};
use super::mul_mat::{Out, Rows};
use super::simd::{Bf16, Element, F16, Lanes, per_lanes};
use outboard_core::DType;
use std::ops::Range;

/// Bytes of rows that meet all columns before the next rows do, and stay in the second cache meanwhile.
const BLOCK_BYTES: usize = 256 << 10;

/// Bytes of columns that rows meet together, which are read again for every block of rows.
const GROUP_BYTES: usize = 1 << 20;

/// Most rows and columns of a tile.
const MOST_ROWS: usize = 8;
const MOST_COLUMNS: usize = 4;

/// `R` rows times `C` columns. Where `on` is not 0, rows so many bytes on are asked for.
///
/// # Safety
/// L's features; rows and columns of k elements at the pointers.
#[inline(always)]
unsafe fn tile<L: Lanes, W: Element, const R: usize, const C: usize>(
    w: [*const W; R],
    x: [*const f32; C],
    k: usize,
    on: usize,
) -> [[f32; R]; C] {
    // SAFETY: i stays below k.
    unsafe {
        let mut acc = [[L::splat(0.0); R]; C];
        let mut i = 0;
        while i + L::N <= k {
            if on != 0 && i * size_of::<W>() % LINE == 0 {
                w.iter().for_each(|w| piece(w.add(i).cast::<u8>().wrapping_add(on), LINE));
            }
            let mut wv = [L::splat(0.0); R];
            for r in 0..R {
                wv[r] = W::lanes::<L>(w[r].add(i));
            }
            for c in 0..C {
                let xv = L::load(x[c].add(i));
                for r in 0..R {
                    acc[c][r] = acc[c][r].fma(wv[r], xv);
                }
            }
            i += L::N;
        }
        let mut out = [[0.0; R]; C];
        for c in 0..C {
            let mut r = 0;
            while r + 4 <= R {
                let sums = L::sum4([acc[c][r], acc[c][r + 1], acc[c][r + 2], acc[c][r + 3]]);
                out[c][r..r + 4].copy_from_slice(&sums);
                r += 4;
            }
            for r in r..R {
                out[c][r] = acc[c][r].sum();
            }
        }
        if i < k {
            for c in 0..C {
                for r in 0..R {
                    for l in i..k {
                        out[c][r] += (*w[r].add(l)).one() * *x[c].add(l);
                    }
                }
            }
        }
        out
    }
}

/// A tile of rows from `i` and columns from `c`, written to `out`.
///
/// # Safety
/// As [`product`].
#[inline(always)]
unsafe fn place<L: Lanes, W: Element, const R: usize, const C: usize>(
    w: Rows,
    i: usize,
    x: *const f32,
    x_stride: usize,
    c: usize,
    on: usize,
    out: Out,
) {
    // SAFETY: rows i..i + R and columns c..c + C are the caller's.
    unsafe {
        let mut wp = [w.data.cast::<W>(); R];
        for (r, p) in wp.iter_mut().enumerate() {
            *p = w.data.add((i + r) * w.stride).cast();
        }
        let mut xp = [x; C];
        for (j, p) in xp.iter_mut().enumerate() {
            *p = x.add((c + j) * x_stride);
        }
        let y = tile::<L, W, R, C>(wp, xp, w.k, on);
        for (j, y) in y.iter().enumerate() {
            std::ptr::copy_nonoverlapping(y.as_ptr(), out.data.add((c + j) * out.stride + i), R);
        }
    }
}

/// # Safety
/// As [`mul_mat_float`], with W the type of the weights and L's features.
#[inline(always)]
unsafe fn product<L: Lanes, W: Element>(
    w: Rows,
    rows: Range<usize>,
    x: *const f32,
    x_stride: usize,
    n_cols: usize,
    out: Out,
) {
    let block = if rows.len() * w.stride <= BLOCK_BYTES {
        rows.len().max(1)
    } else {
        (BLOCK_BYTES / w.stride).next_multiple_of(MOST_ROWS).max(MOST_ROWS)
    };
    let group = if n_cols * x_stride * size_of::<f32>() <= GROUP_BYTES {
        n_cols.max(1)
    } else {
        (GROUP_BYTES / size_of::<f32>() / x_stride).next_multiple_of(MOST_COLUMNS)
    };
    let ahead = rows_on(w.stride, MOST_ROWS);
    for first in (0..n_cols).step_by(group) {
        let end = (first + group).min(n_cols);
        for i in rows.clone().step_by(block) {
            let here = i..(i + block).min(rows.end);
            // SAFETY: all indices are below the caller's.
            unsafe {
                let (mut c, mut on) = (first, ahead);
                while c + MOST_COLUMNS <= end {
                    // 16 registers hold 2 x 4 sums and what they need, 32 hold 4 x 4.
                    match L::N {
                        16 => strip::<L, W, 4, 4>(w, here.clone(), x, x_stride, c, on, out),
                        _ => strip::<L, W, 2, 4>(w, here.clone(), x, x_stride, c, on, out),
                    }
                    // The others find the rows in the cache.
                    (c, on) = (c + MOST_COLUMNS, 0);
                }
                match end - c {
                    3 => strip::<L, W, 4, 3>(w, here, x, x_stride, c, on, out),
                    2 => strip::<L, W, 4, 2>(w, here, x, x_stride, c, on, out),
                    1 => strip::<L, W, MOST_ROWS, 1>(w, here, x, x_stride, c, on, out),
                    _ => {}
                }
            }
        }
    }
}

/// All rows times `C` columns from `c`, `R` rows at a time. Where `on` is not 0, rows so many bytes on are asked for.
///
/// # Safety
/// As [`product`].
#[inline(always)]
unsafe fn strip<L: Lanes, W: Element, const R: usize, const C: usize>(
    w: Rows,
    rows: Range<usize>,
    x: *const f32,
    x_stride: usize,
    c: usize,
    on: usize,
    out: Out,
) {
    // SAFETY: all indices are below the caller's.
    unsafe {
        let mut i = rows.start;
        while i + R <= rows.end {
            place::<L, W, R, C>(w, i, x, x_stride, c, on, out);
            i += R;
        }
        while i < rows.end {
            place::<L, W, 1, C>(w, i, x, x_stride, c, on, out);
            i += 1;
        }
    }
}

per_lanes! {
    /// # Safety
    /// As [`mul_mat_float`].
    unsafe fn dispatch<W>(w: Rows, rows: Range<usize>, x: *const f32, x_stride: usize, n_cols: usize, out: Out) = product
}

/// `out[i, c] = w[i] . x[c]` for the rows `rows` of F32, F16 or BF16 and `n_cols` columns, `x_stride` floats apart.
///
/// # Panics
/// If the weights are of another type.
///
/// # Safety
/// `w` must be valid for reads of `rows`, aligned to its elements; `x` of `n_cols` columns of `w.k` floats; the elements of `out`
/// in `rows` and `0..n_cols` must be valid for writes and nobody else's meanwhile.
pub unsafe fn mul_mat_float(
    isa: Isa,
    w: Rows,
    rows: Range<usize>,
    x: *const f32,
    x_stride: usize,
    n_cols: usize,
    out: Out,
) {
    // SAFETY: the caller's.
    unsafe {
        match w.dtype {
            DType::F32 => dispatch::<f32>(isa, w, rows, x, x_stride, n_cols, out),
            DType::F16 => dispatch::<F16>(isa, w, rows, x, x_stride, n_cols, out),
            DType::BF16 => dispatch::<Bf16>(isa, w, rows, x, x_stride, n_cols, out),
            other => panic!("no float product for {other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::format::tests::{noise, weights};
    use outboard_core::quant::dequantize_row;

    #[test]
    fn products_agree_with_f64() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            // The last takes several blocks of rows and groups of columns.
            for (m, n, k) in [(1, 1, 1), (7, 1, 64), (9, 6, 100), (5, 4, 3), (13, 17, 575), (75, 67, 4200)] {
                let w = weights(dtype, m * k, 5);
                let mut wf = vec![0.0; m * k];
                dequantize_row(dtype, &w, &mut wf).unwrap();
                // The weights may lie anywhere that suits their elements.
                let mut aligned = vec![0u32; w.len() / 4 + 1];
                // SAFETY: the bytes fit, and any bytes are a u32.
                unsafe { std::ptr::copy_nonoverlapping(w.as_ptr(), aligned.as_mut_ptr().cast(), w.len()) };
                let stride = k + 3;
                let x = noise(n * stride, 6);
                let dot =
                    |w: &[f32], x: &[f32]| -> f64 { w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum() };
                let columns = x.chunks_exact(stride);
                let want: Vec<f64> = columns.flat_map(|x| wf.chunks_exact(k).map(move |w| dot(w, x))).collect();
                for isa in Isa::available() {
                    let mut y = vec![f32::NAN; m * n];
                    let rows = Rows { data: aligned.as_ptr().cast(), stride: k * dtype.block_bytes(), dtype, k };
                    let out = Out { data: y.as_mut_ptr(), stride: m };
                    for part in [0..m / 3, m / 3..m] {
                        // SAFETY: sizes as above.
                        unsafe { mul_mat_float(isa, rows, part, x.as_ptr(), stride, n, out) };
                    }
                    for c in 0..n {
                        for i in 0..m {
                            let want = want[c * m + i];
                            let got = f64::from(y[c * m + i]);
                            assert!((got - want).abs() < 1e-4, "{dtype} {} {m}x{n}x{k}: {got}, not {want}", isa.name());
                        }
                    }
                }
            }
        }
    }
}
