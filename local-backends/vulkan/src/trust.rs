//! Drivers are not believed: what matrix units and products of whole numbers compute is compared with what the plain kernel does when a device is opened.

use crate::allocation::Raw;
use crate::commands::{Lane, barrier, kernel_barrier, run_once};
use crate::gpu::Gpu;
use crate::launch::{PARAMS, Pass, number};
use crate::products::{MOST_ROWS, Product};
use crate::program::{NO_TENSOR, RECORD_BYTES, dispatch, push, record_words, tensor_words};
use crate::units::Units;
use ash::vk;
use gpu_allocator::MemoryLocation;
use outboard_core::op::MAX_SRCS;
use outboard_core::{DType, Result};
use std::sync::Arc;

/// A product: weights of a type, `m` rows of `k`, with `n` columns.
struct Case {
    dtype: DType,
    product: Product,
}

/// What is checked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Checked {
    Units(Units),
    Dot,
}

impl Checked {
    fn name(self) -> &'static str {
        match self {
            Checked::Units(_) => "matrix units",
            Checked::Dot => "products of whole numbers",
        }
    }

    /// Rows, columns and lengths that are no multiples of a tile's: of both tiles of matrix units; with and without columns' sums, and with few columns.
    fn cases(self) -> Vec<Case> {
        let product = |m, n, k| Product { m, n, k, batches: 1, is_wide: true, is_whole: true };
        let of = |dtype, m, n, k| Case { dtype, product: product(m, n, k) };
        match self {
            Checked::Units(_) => vec![of(DType::F16, 72, 40, 80), of(DType::Q4_0, 136, 100, 192)],
            Checked::Dot => {
                vec![of(DType::IQ4_NL, 72, 40, 96), of(DType::Q4_0, 136, 100, 192), of(DType::Q4_0, 70, 7, 192)]
            }
        }
    }

    fn passes(self, product: &Product, dtype: u32) -> Vec<Pass> {
        match self {
            Checked::Units(units) => product.by_units(units, dtype),
            Checked::Dot => product.by_dot(dtype, (64, MOST_ROWS)),
        }
    }

    /// Whether two results of a column are the same: as far as halves can tell, or with columns that bytes hold.
    fn is_same(self, plain: &[f32], fast: &[f32]) -> bool {
        let most = plain.iter().filter(|x| x.is_finite()).fold(0f32, |most, x| most.max(x.abs()));
        let (tolerance, keeps_infinities) = match self {
            Checked::Units(_) => (TOLERANCE, true),
            // An infinity makes a group of bytes NaN.
            Checked::Dot => (TOLERANCE_OF_BYTES, false),
        };
        plain.iter().zip(fast).all(|(a, b)| {
            let is_no_number = !a.is_finite() && (a == b || b.is_nan() && (a.is_nan() || !keeps_infinities));
            is_no_number || (a - b).abs() <= tolerance * most
        })
    }

    fn scratch(self, product: &Product) -> usize {
        match self {
            Checked::Units(_) => product.scratch(),
            Checked::Dot => product.packed(),
        }
    }
}

/// A column with a value that is no half, and one with an infinity.
const LARGE: usize = 3;
const INFINITE: usize = 5;
/// What results may differ by, as a part of the largest of their column: halves have eleven bits.
const TOLERANCE: f32 = 1.0 / 256.0;
const TOLERANCE_OF_BYTES: f32 = 1.0 / 4096.0;

/// Whether it computes what the device's plain kernel does. An error of the device is no yes.
pub(crate) fn is_right(gpu: &Arc<Gpu>, checked: Checked) -> bool {
    let name = checked.name();
    let of_case = |case: &Case| -> Result<bool> {
        let [plain, fast] = results(gpu, checked, case)?;
        Ok(plain.chunks(case.product.m).zip(fast.chunks(case.product.m)).all(|(a, b)| checked.is_same(a, b)))
    };
    checked.cases().iter().all(|case| match of_case(case) {
        Ok(true) => true,
        Ok(false) => {
            let dtype = case.dtype;
            tracing::warn!("{}: its {name} compute wrong results of {dtype}, and are not used", gpu.id);
            false
        }
        Err(error) => {
            tracing::warn!("{}: its {name} cannot be checked, and are not used: {error}", gpu.id);
            false
        }
    })
}

/// Weights that halves hold.
fn weights(dtype: DType, elements: usize) -> Vec<u8> {
    // 1, -1, 0.5, 2, -3, 0, 0.25.
    const HALVES: [u16; 7] = [0x3c00, 0xbc00, 0x3800, 0x4000, 0xc200, 0, 0x3400];
    if dtype == DType::F16 {
        return (0..elements).flat_map(|i| HALVES[(i * 5 + i / 11) % 7].to_le_bytes()).collect();
    }
    // Q4_0 and IQ4_NL: a scale of 1/16 or 1/8, and 16 bytes.
    let block = |b: usize| {
        let scale = if b.is_multiple_of(3) { 0x3000u16 } else { 0x2c00 };
        let bytes = (0..16).map(move |i| ((b * 16 + i) * 53 % 251) as u8);
        scale.to_le_bytes().into_iter().chain(bytes)
    };
    (0..elements / 32).flat_map(block).collect()
}

fn columns(product: &Product) -> Vec<u8> {
    let of = |i: usize| {
        let (column, place) = (i / product.k, i % product.k);
        // Bytes hold it, because one of each group of 32 is the largest.
        let x = if place.is_multiple_of(32) { 127.0 } else { (i * 29 % 97) as f32 - 48.0 } * 0.125;
        match (column, place) {
            (LARGE, _) => 1e6 * x,
            (INFINITE, 7) => f32::INFINITY,
            _ => x,
        }
    };
    (0..product.n * product.k).flat_map(|i| of(i).to_le_bytes()).collect()
}

/// Where things lie in the memory of a case.
struct Places {
    weights: u64,
    columns: u64,
    results: [u64; 2],
    scratch: u64,
    size: u64,
}

fn places(weights: usize, product: &Product, scratch: usize) -> Places {
    // The fault and both records come first.
    let mut size = 64 + 2 * RECORD_BYTES as u64;
    let mut take = |bytes: usize| {
        let at = size.next_multiple_of(256);
        size = at + bytes as u64;
        at
    };
    let (weights, columns) = (take(weights), take(4 * product.n * product.k));
    let results = [take(4 * product.m * product.n), take(4 * product.m * product.n)];
    let scratch = take(4 * scratch);
    Places { weights, columns, results, scratch, size: size + 256 }
}

/// The record of a case, whose memory begins at `base`.
fn record(case: &Case, base: u64, places: &Places, result: u64) -> Vec<u8> {
    let Product { m, n, k, .. } = case.product;
    let tensor = |at: u64, row: usize, element: usize, ne: [usize; 2]| {
        let all = row * ne[1];
        tensor_words(base + at, [ne[0], ne[1], 1, 1].map(|n| n as u32), [element, row, all, all].map(|n| n as u32))
    };
    let row = k / case.dtype.block_len() * case.dtype.block_bytes();
    let mut tensors = [NO_TENSOR; MAX_SRCS + 1];
    tensors[0] = tensor(places.weights, row, case.dtype.block_bytes(), [k, m]);
    tensors[1] = tensor(places.columns, 4 * k, 4, [k, n]);
    tensors[MAX_SRCS] = tensor(result, 4 * m, 4, [m, n]);
    let words = record_words(&tensors, &[0; PARAMS], base + places.scratch);
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// What the plain kernel computes, and what is checked.
fn results(gpu: &Arc<Gpu>, checked: Checked, case: &Case) -> Result<[Vec<f32>; 2]> {
    let (product, dtype) = (&case.product, number(case.dtype));
    let weights = weights(case.dtype, product.m * product.k);
    let places = places(weights.len(), product, checked.scratch(product));
    let raw = gpu.allocate(places.size, MemoryLocation::GpuToCpu)?;
    let none = || gpu.failed("memory that the host cannot address", vk::Result::ERROR_MEMORY_MAP_FAILED);
    let mapped = raw.mapped().ok_or_else(none)?;
    let write = |at: u64, bytes: &[u8]| {
        if at + bytes.len() as u64 > places.size {
            return Err(gpu.failed("a product to check it with", vk::Result::ERROR_OUT_OF_HOST_MEMORY));
        }
        // SAFETY: the memory is mapped and large enough, and the device does not use it yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), mapped.add(at as usize), bytes.len()) };
        Ok(())
    };
    write(0, &vec![0; places.size as usize])?;
    write(places.weights, &weights)?;
    write(places.columns, &columns(product))?;
    let base = raw.address;
    let runs = [vec![product.plain(dtype)], checked.passes(product, dtype)];
    let mut given = Vec::new();
    for (i, passes) in runs.iter().enumerate() {
        let at = 64 + (i * RECORD_BYTES) as u64;
        write(at, &record(case, base, &places, places.results[i]))?;
        let make = |pass: &Pass| {
            let made = gpu.pipelines.get(&pass.variant);
            Ok((made.map_err(|e| gpu.failed("the driver cannot compile its kernel", e))?, pass.groups))
        };
        given.push((push(base + at, base, 0), passes.iter().map(make).collect::<Result<Vec<_>>>()?));
    }
    let raw: Raw = run_once(gpu, raw, |device, commands, _| {
        for (push, pipelines) in &given {
            for &pipeline in pipelines {
                // SAFETY: the command buffer is being recorded; what kernels read and write is kept until they are done.
                unsafe {
                    dispatch(gpu, device, commands, pipeline, push);
                    kernel_barrier(device, commands);
                }
            }
        }
        // SAFETY: as above.
        unsafe { barrier(device, commands, Lane::Compute) };
    })?;
    let mapped = raw.mapped().ok_or_else(none)?;
    Ok(places.results.map(|at| {
        let bytes = 4 * product.m * product.n;
        // SAFETY: the memory is mapped and has these bytes, and the device is done with it.
        let bytes = unsafe { std::slice::from_raw_parts(mapped.add(at as usize), bytes) };
        bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
    }))
}

#[cfg(test)]
mod tests {
    use super::Checked;
    use crate::units::Units;

    #[test]
    fn results_are_the_same_or_not() {
        let (infinity, units) =
            (f32::INFINITY, Checked::Units(Units { m: 8, n: 8, k: 8, subgroup: 8, results: [2, 4] }));
        assert!(units.is_same(&[100.0, 1.0, infinity, f32::NAN], &[100.1, 0.9, infinity, f32::NAN]));
        assert!(!Checked::Dot.is_same(&[100.0, 1.0], &[100.1, 0.9]));
        assert!(Checked::Dot.is_same(&[100.0, 1.0, infinity], &[100.01, 0.99, f32::NAN]));
        assert!(!units.is_same(&[100.0, 1.0, infinity], &[100.0, 1.0, f32::NAN]));
        for wrong in [[100.0, 2.0, infinity], [100.0, 1.0, 3.0], [f32::NAN, 1.0, infinity], [0.0, 1.0, -infinity]] {
            for checked in [units, Checked::Dot] {
                assert!(!checked.is_same(&[100.0, 1.0, infinity], &wrong), "{wrong:?}");
            }
        }
    }
}
