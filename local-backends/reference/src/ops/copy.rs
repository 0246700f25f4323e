//! CPY, CAST and CONT: elements in order of their index, converted.

use super::*;
use outboard_core::DType;

pub(in super::super) fn run(src: &T, dst: &T) {
    if src.dtype() == DType::I32 {
        src.indices().zip(dst.indices()).for_each(|(from, to)| dst.set_int(to, src.int(from)));
    } else if src.dtype().is_quantized() || dst.dtype().is_quantized() {
        // Quantized types go row by row; the shape rule saw to it that rows match, or that one side has plain elements.
        let values: Vec<f64> = src.rows().flat_map(|row| src.row(row)).collect();
        let n = dst.ne()[0].max(1);
        dst.rows().zip(values.chunks(n)).for_each(|(row, values)| dst.set_row(row, values));
    } else {
        src.indices().zip(dst.indices()).for_each(|(from, to)| dst.set(to, src.get(from)));
    }
}
