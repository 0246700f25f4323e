//! The matrix product with quantized weights: what it is called with, and which instruction set's it is.

use super::Isa;
use super::act::{ActBlock, act_blocks};
use super::format::{Format, Scales, with_format};
use super::isa::Kind;
#[cfg(target_arch = "aarch64")]
use super::neon;
#[cfg(target_arch = "x86_64")]
use super::x86;
use outboard_core::DType;
use std::ops::Range;

/// Memory that a kernel works in, of any content, aligned to 64 bytes.
#[derive(Debug)]
pub struct Scratch<'m>(&'m mut [Line]);

/// 64 bytes of it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Line([f32; 16]);

impl Line {
    /// Zeros.
    pub const ZERO: Line = Line([0.0; 16]);

    /// Room for so many floats.
    pub fn room(floats: usize) -> Vec<Line> {
        vec![Line::ZERO; floats.div_ceil(16)]
    }
}

impl<'m> Scratch<'m> {
    /// All of these lines.
    pub fn new(lines: &'m mut [Line]) -> Scratch<'m> {
        Scratch(lines)
    }

    /// At least `n` floats of any content.
    ///
    /// # Panics
    /// If there are fewer: whoever calls a kernel gives it what it needs.
    pub fn floats(&mut self, n: usize) -> &mut [f32] {
        let room = self.0.len() * 16;
        assert!(n <= room, "{n} floats of scratch memory where there are {room}");
        // SAFETY: a Line is 16 floats and nothing else, and any float is valid.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), room) }
    }
}

/// Rows of weights in memory.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// The first row.
    pub data: *const u8,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// Type of the elements.
    pub dtype: DType,
    /// Elements of a row, a multiple of the type's block.
    pub k: usize,
}

impl Rows {
    /// All but the first `n`.
    pub(super) fn behind(self, n: usize) -> Rows {
        Rows { data: self.data.wrapping_add(n * self.stride), ..self }
    }

    /// Bytes of the elements of a row.
    pub(super) fn bytes(self) -> usize {
        self.dtype.row_bytes(self.k).unwrap_or(0)
    }
}

/// A result: element (i, c) at `data + c * stride + i`.
#[derive(Clone, Copy, Debug)]
pub struct Out {
    /// Element (0, 0).
    pub data: *mut f32,
    /// Floats from one column to the next.
    pub stride: usize,
}

/// Whether [`mul_mat`] takes weights of this type.
pub fn is_supported(dtype: DType) -> bool {
    with_format!(dtype, F => { F::SPAN }).is_some()
}

/// `out[i, c] = w[i] . x[c]` for the rows `rows` of a quantized type and `n_cols` columns.
///
/// The result of a column does not depend on how rows are divided among calls, but it does, in its last digits, on the ISA and
/// on whether there are few columns or many.
///
/// # Panics
/// If the type is not [`is_supported`].
///
/// # Safety
/// `w` must be valid for reads of `rows`; `x` of `n_cols` columns of [`act_blocks`]`(w.k)` blocks each, behind one another; the
/// elements of `out` in `rows` and `0..n_cols` must be valid for reads and writes, and nobody else's meanwhile.
pub unsafe fn mul_mat(
    isa: Isa,
    w: Rows,
    rows: Range<usize>,
    x: &[ActBlock],
    n_cols: usize,
    out: Out,
    scratch: &mut Scratch<'_>,
) {
    assert!(x.len() >= n_cols * act_blocks(w.k), "{} blocks for {n_cols} columns of {}", x.len(), w.k);
    let Some(product) = with_format!(w.dtype, F => product::<F> as Product) else {
        panic!("no quantized product for {}", w.dtype);
    };
    // SAFETY: the caller's.
    unsafe { product(isa, w, rows, x, n_cols, out, scratch) }
}

#[cfg(target_arch = "aarch64")]
pub(super) use super::neon::unpack::Unpack as Leaf;
#[cfg(target_arch = "x86_64")]
pub(super) use super::x86::unpack::Unpack as Leaf;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use Format as Leaf;

/// Floats of scratch memory with which [`mul_mat`] multiplies rows of `k` elements of this type with up to `n_cols` columns.
pub fn scratch_floats(isa: Isa, dtype: DType, k: usize, n_cols: usize) -> usize {
    with_format!(dtype, F => leaf_floats::<F>(isa, k, n_cols)).unwrap_or(0)
}

fn leaf_floats<F: Leaf>(isa: Isa, k: usize, n_cols: usize) -> usize {
    match isa.kind() {
        Kind::Portable => 0,
        #[cfg(target_arch = "aarch64")]
        kind => neon::scratch_floats::<F>(kind == Kind::NeonDot, k, n_cols),
        #[cfg(target_arch = "x86_64")]
        kind => x86::scratch_floats::<F>(kind, k, n_cols),
    }
}

type Product = unsafe fn(Isa, Rows, Range<usize>, &[ActBlock], usize, Out, &mut Scratch<'_>);

/// # Safety
/// See [`mul_mat`].
unsafe fn product<F: Leaf>(
    isa: Isa,
    w: Rows,
    rows: Range<usize>,
    x: &[ActBlock],
    n_cols: usize,
    out: Out,
    scratch: &mut Scratch<'_>,
) {
    debug_assert_eq!(w.k % F::DTYPE.block_len(), 0);
    if rows.is_empty() || n_cols == 0 {
        return;
    }
    match isa.kind() {
        // SAFETY: the caller's.
        Kind::Portable => unsafe { portable::<F>(w, rows, x, n_cols, out) },
        // SAFETY: the caller's memory; a processor of this kind has the extension.
        #[cfg(target_arch = "aarch64")]
        kind => unsafe { neon::product::<F>(kind == Kind::NeonDot, w, rows, x, n_cols, out, scratch) },
        // SAFETY: the caller's memory; the ISA is there.
        #[cfg(target_arch = "x86_64")]
        kind => unsafe { x86::product::<F>(kind, w, rows, x, n_cols, out, scratch) },
    }
}

/// A step of a row, unpacked.
#[derive(Clone, Copy)]
struct Step {
    q: [i16; 256],
    scales: Scales,
}

/// Each step of a row is unpacked once, then met with every column.
///
/// # Safety
/// See [`mul_mat`].
unsafe fn portable<F: Format>(w: Rows, rows: Range<usize>, x: &[ActBlock], n_cols: usize, out: Out) {
    let blocks = act_blocks(w.k);
    let bytes = w.bytes();
    for i in rows {
        // SAFETY: row i is the caller's.
        let row = unsafe { std::slice::from_raw_parts(w.data.add(i * w.stride), bytes) };
        // SAFETY: the elements of row i are the caller's.
        let sum = |c: usize| unsafe { &mut *out.data.add(c * out.stride + i) };
        (0..n_cols).for_each(|c| *sum(c) = 0.0);
        for (b, step) in row.chunks(F::STEP).enumerate() {
            let mut unpacked = Step { q: [0; 256], scales: F::scales(step) };
            let groups = step.len() / F::BYTES * (F::DTYPE.block_len() / 32);
            for (j, to) in unpacked.q.as_chunks_mut::<32>().0.iter_mut().enumerate().take(groups) {
                *to = F::unpack(step, j).map(|q| if F::BITS == 8 { i16::from(q as i8) } else { i16::from(q) });
            }
            // Where a row ends within a step, the activations are zero, and so is what they meet.
            (0..n_cols).for_each(|c| *sum(c) += portable_step::<F>(&unpacked, &x[c * blocks + b]));
        }
    }
}

/// A step of weights times one of activations.
#[inline]
fn portable_step<F: Format>(w: &Step, x: &ActBlock) -> f32 {
    let (wq, xq) = (w.q.as_chunks::<16>().0, x.q.as_chunks::<16>().0);
    let (d, m) = (&w.scales.d, &w.scales.m);
    let dot = |h: usize| -> i32 { wq[h].iter().zip(&xq[h]).map(|(&w, &x)| i32::from(w) * i32::from(x)).sum() };
    let mut sum = 0.0;
    for j in 0..8 {
        if F::SPAN == 32 {
            sum += x.d[j] * d[j] * (dot(2 * j) + dot(2 * j + 1)) as f32 + m[j] * x.s[j];
        } else {
            sum += x.d[j] * (d[2 * j] * dot(2 * j) as f32 + d[2 * j + 1] * dot(2 * j + 1) as f32);
            sum += m[2 * j] * x.s16[2 * j] + m[2 * j + 1] * x.s16[2 * j + 1];
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::act::quantize_act;
    use crate::kernels::format::tests::{noise, weights, wild};
    use crate::kernels::format::*;
    use outboard_core::quant::dequantize_row;

    /// The product of dequantized weights with what the activations became, in f64.
    fn reference(dtype: DType, w: &[u8], k: usize, x: &[ActBlock], n: usize) -> Vec<f64> {
        let stride = dtype.row_bytes(k).unwrap();
        let rows: Vec<Vec<f32>> = w
            .chunks_exact(stride)
            .map(|r| {
                let mut y = vec![0.0; k];
                dequantize_row(dtype, r, &mut y).unwrap();
                y
            })
            .collect();
        let blocks = act_blocks(k);
        let mut out = Vec::new();
        for c in 0..n {
            let value = |i: usize| {
                let b = &x[c * blocks + i / 256];
                f64::from(b.d[i % 256 / 32]) * f64::from(b.q[i % 256])
            };
            out.extend(rows.iter().map(|r| r.iter().enumerate().map(|(i, &v)| f64::from(v) * value(i)).sum::<f64>()));
        }
        out
    }

    fn nmse(want: &[f64], got: &[f32]) -> f64 {
        let error: f64 = want.iter().zip(got).map(|(a, &b)| (a - f64::from(b)).powi(2)).sum();
        error / want.iter().map(|a| a * a).sum::<f64>().max(1e-30)
    }

    #[test]
    fn every_type_isa_and_shape_gives_the_product() {
        for dtype in DType::ALL.into_iter().filter(|&d| is_supported(d)) {
            let ks: &[usize] = if dtype.block_len() == 256 { &[256, 768] } else { &[32, 160, 576] };
            for (&k, make) in
                ks.iter().flat_map(|k| [(k, weights as fn(_, _, u32) -> _), (k, wild as fn(_, _, u32) -> _)])
            {
                let m = 69;
                let w: Vec<u8> = make(dtype, k * m, 11);
                for n in [1, 2, 3, 4, 5, 7, 8, 9, 17] {
                    let blocks = act_blocks(k);
                    let mut x = vec![ActBlock::ZERO; n * blocks];
                    for c in 0..n {
                        quantize_act(Isa::PORTABLE, &noise(k, 100 + c as u32), &mut x[c * blocks..][..blocks]);
                    }
                    let want = reference(dtype, &w, k, &x, n);
                    for isa in Isa::available() {
                        let stride = dtype.row_bytes(k).unwrap();
                        let rows = Rows { data: w.as_ptr(), stride, dtype, k };
                        let product = |parts: &[Range<usize>]| {
                            let mut y = vec![f32::NAN; m * n];
                            let out = Out { data: y.as_mut_ptr(), stride: m };
                            let mut room = Line::room(scratch_floats(isa, dtype, k, n));
                            let mut scratch = Scratch::new(&mut room);
                            for part in parts {
                                // SAFETY: w has m rows, y m times n elements.
                                unsafe { mul_mat(isa, rows, part.clone(), &x, n, out, &mut scratch) };
                            }
                            y
                        };
                        let y = product(&[0..19, 19..m]);
                        let error = nmse(&want, &y);
                        assert!(error < 1e-10, "{dtype} {} k {k} n {n}: NMSE {error}", isa.name());
                        let bits = |y: &[f32]| y.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                        let whole = product(std::slice::from_ref(&(0..m)));
                        assert_eq!(bits(&y), bits(&whole), "{dtype} {} k {k} n {n}: in pieces", isa.name());
                    }
                }
            }
        }
    }

    /// Long rows meet few columns in parts, and many as a whole.
    #[test]
    fn parts_of_rows_do_not_change_a_bit() {
        for dtype in DType::ALL.into_iter().filter(|&d| is_supported(d)) {
            // Parts of more than one size with panels of 16 rows, and not whole steps where the type has smaller blocks.
            let k = if dtype.block_len() == 256 { 2560 } else { 2592 };
            let (m, most) = (37, 65);
            let w = weights(dtype, k * m, 12);
            let blocks = act_blocks(k);
            let mut x = vec![ActBlock::ZERO; most * blocks];
            for (c, x) in x.chunks_exact_mut(blocks).enumerate() {
                quantize_act(Isa::PORTABLE, &noise(k, 200 + c as u32), x);
            }
            for isa in Isa::available() {
                let product = |n: usize| -> Vec<u32> {
                    let mut y = vec![f32::NAN; m * n];
                    let rows = Rows { data: w.as_ptr(), stride: dtype.row_bytes(k).unwrap(), dtype, k };
                    let out = Out { data: y.as_mut_ptr(), stride: m };
                    let mut room = Line::room(scratch_floats(isa, dtype, k, n));
                    // SAFETY: w has m rows, y m times n elements.
                    unsafe { mul_mat(isa, rows, 0..m, &x[..n * blocks], n, out, &mut Scratch::new(&mut room)) };
                    y.iter().map(|v| v.to_bits()).collect()
                };
                let whole = product(most);
                for n in [3, 8, 9, 64] {
                    assert_eq!(product(n), whole[..m * n], "{dtype} {} {n} columns", isa.name());
                }
            }
            let want = reference(dtype, &w, k, &x, 3);
            let mut y = vec![f32::NAN; m * 3];
            let rows = Rows { data: w.as_ptr(), stride: dtype.row_bytes(k).unwrap(), dtype, k };
            let out = Out { data: y.as_mut_ptr(), stride: m };
            let mut room = Line::room(scratch_floats(Isa::detect(), dtype, k, 3));
            // SAFETY: as above.
            unsafe { mul_mat(Isa::detect(), rows, 0..m, &x[..3 * blocks], 3, out, &mut Scratch::new(&mut room)) };
            assert!(nmse(&want, &y) < 1e-10, "{dtype}: {}", nmse(&want, &y));
        }
    }

    #[test]
    fn rows_without_elements_give_zero() {
        for isa in Isa::available() {
            for n in [1, 3, 20] {
                let mut y = vec![f32::NAN; 5 * n];
                let rows = Rows { data: [].as_ptr(), stride: 0, dtype: DType::Q4_0, k: 0 };
                let out = Out { data: y.as_mut_ptr(), stride: 5 };
                // SAFETY: nothing is read, and y has 5 times n elements.
                unsafe { mul_mat(isa, rows, 0..5, &[], n, out, &mut Scratch::new(&mut [])) };
                assert_eq!(y, vec![0.0; 5 * n], "{} {n}", isa.name());
            }
        }
    }

    /// The largest bytes meet the largest activations, in every combination of signs: 16-bit sums must hold them.
    #[test]
    fn nothing_saturates() {
        for dtype in DType::ALL.into_iter().filter(|&d| is_supported(d)) {
            let (k, m, n) = (512, 16, 8);
            for fill in [0x00, 0xff, 0x80, 0x7f] {
                let mut w = wild(dtype, k * m, 3);
                for b in w.chunks_exact_mut(dtype.block_bytes()) {
                    let elements = match dtype {
                        DType::Q4_0 => Q4_0::QS..b.len(),
                        DType::Q4_1 => Q4_1::QS..b.len(),
                        DType::Q5_0 => Q5_0::QH..b.len(),
                        DType::Q5_1 => Q5_1::QH..b.len(),
                        DType::Q8_0 => Q8_0::QS..b.len(),
                        DType::Q2_K => Q2_K::QS..Q2_K::D,
                        DType::Q3_K => Q3_K::HMASK..Q3_K::SCALES,
                        DType::Q4_K => Q4_K::QS..b.len(),
                        DType::Q5_K => Q5_K::QH..b.len(),
                        DType::Q6_K => Q6_K::QL..Q6_K::SCALES,
                        DType::IQ4_NL => IQ4_NL::QS..b.len(),
                        DType::IQ4_XS => IQ4_XS::QS..b.len(),
                        DType::MXFP4 => MXFP4::QS..b.len(),
                        other => panic!("{other} is not supported"),
                    };
                    b[elements].fill(fill);
                }
                let blocks = act_blocks(k);
                let mut x = vec![ActBlock::ZERO; n * blocks];
                for c in 0..n {
                    let v = |i: usize| if (i >> c) % 2 == 1 { 1.0 } else { -1.0 };
                    quantize_act(Isa::PORTABLE, &(0..k).map(v).collect::<Vec<f32>>(), &mut x[c * blocks..][..blocks]);
                }
                let want = reference(dtype, &w, k, &x, n);
                for isa in Isa::available() {
                    for cols in [1, n] {
                        let rows = Rows { data: w.as_ptr(), stride: dtype.row_bytes(k).unwrap(), dtype, k };
                        let mut y = vec![f32::NAN; m * cols];
                        let out = Out { data: y.as_mut_ptr(), stride: m };
                        let mut room = Line::room(scratch_floats(isa, dtype, k, cols));
                        // SAFETY: w has m rows, y m times cols elements.
                        unsafe { mul_mat(isa, rows, 0..m, &x, cols, out, &mut Scratch::new(&mut room)) };
                        let size: f64 = want.iter().map(|v| v.abs()).fold(0.0, f64::max);
                        for (got, want) in y.iter().zip(&want) {
                            let error = (f64::from(*got) - want).abs();
                            assert!(
                                error <= 1e-4 * size.max(100.0),
                                "{dtype} {} {fill:#x}: {got}, not {want}",
                                isa.name()
                            );
                        }
                    }
                }
            }
        }
    }
}
