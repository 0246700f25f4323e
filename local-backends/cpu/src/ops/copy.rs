//! CPY, CAST, CONT: elements in order of their index, converted.

use super::*;
use crate::program::is_word;
use half::{bf16, f16};
use outboard_core::DType;
use outboard_core::quant::{dequantize_row, quantize_row};

/// Elements are moved as they are.
fn moves(src: &T, out: &T) -> bool {
    src.ne() == out.ne() && src.dtype() == out.dtype() && !src.dtype().is_quantized()
}

/// Rows become rows of another type.
fn converts_rows(src: &T, out: &T) -> bool {
    src.ne() == out.ne() && src.dtype() != DType::I32
}

pub(crate) fn need(node: &Node) -> Need {
    let Some(src) = node.opt(0) else { return Need::default() };
    let out = &node.out;
    if moves(src, out) {
        return Need::default();
    }
    if converts_rows(src, out) {
        return Need { thread: bytes_of::<f32>(src.ne()[0]), ..Need::default() };
    }
    // The elements as I32 or F32.
    Need { shared: bytes_of::<f32>(src.ne().iter().product()), ..Need::default() }
}

pub(crate) fn run(cx: &mut Cx<'_>, node: &Node) -> Result<(), String> {
    let src = node.src(0)?;
    let out = &node.out;
    if moves(src, out) {
        for_rows(cx, out, &|at| move_row(src, out, at));
        return Ok(());
    }
    if converts_rows(src, out) {
        return cx.workers().try_rows(out, |at, mut memory| {
            let values = memory.take::<f32>(src.ne()[0])?;
            load_row(src, at, values)?;
            store_row(out, at, values)
        });
    }
    // Other shapes of as many elements: rare, so simple.
    let workers = cx.workers();
    let mut shared = cx.shared.borrow();
    let n = src.ne().iter().product();
    if src.dtype() == DType::I32 {
        let all = shared.take::<i32>(n)?;
        let wanted = |i: &[usize; 4]| i[0] > 0 || !workers.aborted();
        all.iter_mut().zip(indices(src).take_while(wanted)).for_each(|(to, i)| *to = src.int(i));
        all.iter().zip(indices(out).take_while(wanted)).for_each(|(from, i)| out.set_int(i, *from));
        return Ok(());
    }
    let all = shared.take::<f32>(n)?;
    for (r, row) in all.chunks_mut(src.ne()[0].max(1)).enumerate().take_while(|_| !workers.aborted()) {
        load_row(src, src.unravel(r), row)?;
    }
    let rows = all.chunks(out.ne()[0].max(1)).enumerate().take_while(|_| !workers.aborted());
    rows.into_iter().try_for_each(|(r, row)| store_row(out, out.unravel(r), row))
}

fn indices(t: &T) -> impl Iterator<Item = [usize; 4]> + use<> {
    let t = *t;
    (0..t.n_rows()).flat_map(move |r| {
        let [i1, i2, i3] = t.unravel(r);
        (0..t.ne()[0]).map(move |i0| [i0, i1, i2, i3])
    })
}

/// Copies a row between tensors of one type, whatever their strides.
fn move_row(src: &T, out: &T, at: [usize; 3]) {
    let (from, to) = (src.row(at), out.row(at));
    let (step_from, step_to) = (src.nb()[0], out.nb()[0]);
    // SAFETY: rows of tensors of one shape and type; elements are as far apart as their strides say.
    unsafe {
        if src.has_dense_rows() && out.has_dense_rows() {
            std::ptr::copy(from, to, out.row_bytes());
        } else if is_word(src.dtype()) {
            for i in 0..src.ne()[0] {
                let value = from.add(i * step_from).cast::<u32>().read_unaligned();
                to.add(i * step_to).cast::<u32>().write_unaligned(value);
            }
        } else {
            for i in 0..src.ne()[0] {
                let value = from.add(i * step_from).cast::<u16>().read_unaligned();
                to.add(i * step_to).cast::<u16>().write_unaligned(value);
            }
        }
    }
}

/// A row of real numbers of any type and stride as F32.
pub(crate) fn load_row(src: &T, at: [usize; 3], values: &mut [f32]) -> Result<(), String> {
    let (from, step) = (src.row(at), src.nb()[0]);
    if src.dtype().is_quantized() {
        // SAFETY: rows of quantized types are dense and inside their tensor.
        let bytes = unsafe { std::slice::from_raw_parts(from, src.row_bytes()) };
        return dequantize_row(src.dtype(), bytes, values).map_err(|e| e.to_string());
    }
    for (i, value) in values.iter_mut().enumerate() {
        // SAFETY: element i of the row.
        *value = unsafe {
            let p = from.add(i * step);
            match src.dtype() {
                DType::F32 => p.cast::<f32>().read_unaligned(),
                DType::F16 => p.cast::<f16>().read_unaligned().to_f32(),
                _ => p.cast::<bf16>().read_unaligned().to_f32(),
            }
        };
    }
    Ok(())
}

/// Writes a row of real numbers in any type and stride.
pub(crate) fn store_row(out: &T, at: [usize; 3], values: &[f32]) -> Result<(), String> {
    let (to, step) = (out.row(at), out.nb()[0]);
    if out.dtype().is_quantized() {
        // SAFETY: rows of quantized types are dense and inside their tensor; nobody else has this row.
        let bytes = unsafe { std::slice::from_raw_parts_mut(to, out.row_bytes()) };
        return quantize_row(out.dtype(), values, bytes).map_err(|e| e.to_string());
    }
    for (i, &value) in values.iter().enumerate() {
        // SAFETY: element i of the row.
        unsafe {
            let p = to.add(i * step);
            match out.dtype() {
                DType::F32 => p.cast::<f32>().write_unaligned(value),
                DType::F16 => p.cast::<f16>().write_unaligned(f16::from_f32(value)),
                _ => p.cast::<bf16>().write_unaligned(bf16::from_f32(value)),
            }
        }
    }
    Ok(())
}
