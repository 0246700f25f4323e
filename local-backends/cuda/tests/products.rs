//! Products of blocks with few columns: rows of any length that begin at any place where blocks may, also of experts and of products that are one kernel.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::*;
use outboard_core::op::{Glu, GluKind, MulMat, MulMatId, Norm, NormKind, View};
use outboard_core::quant::quantize_row;
use outboard_core::{DType, Device, Graph, GraphBuilder, Host, TensorId};
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;

/// Rows of weights: no multiple of what a block of threads takes.
const ROWS: usize = 21;
/// Lengths of rows, in times 256: less than a warp takes of a row at a time, as much as all of them do, and more.
const LENGTHS: [usize; 4] = [1, 9, 32, 37];

/// Numbers between -1 and 1 that look random.
fn numbers(seed: usize, n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
}

/// A row of weights as blocks.
fn row(dtype: DType, n: usize, seed: usize) -> Vec<u8> {
    let mut bytes = vec![0; dtype.row_bytes(n).unwrap()];
    quantize_row(dtype, &numbers(seed, n), &mut bytes).unwrap();
    bytes
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// What a graph reads, and the bytes of it.
type Inputs = Vec<(TensorId, Vec<u8>)>;

/// What a device computes of a graph: the outputs, one behind the other.
fn outputs(device: &dyn Device, (graph, inputs): (Graph, Inputs)) -> Vec<f32> {
    let outputs: Vec<_> = graph.ids().filter(|&id| graph.tensor(id).is_output()).collect();
    let (executable, places) = compile(device, graph).unwrap();
    let at = |id: TensorId| places[id.index()].as_ref().unwrap();
    let queue = device.queue().unwrap();
    for (id, bytes) in inputs {
        queue.write(at(id), bytes.into()).unwrap();
    }
    queue.execute(&executable).unwrap();
    let bytes = outputs.into_iter().flat_map(|id| read(queue.as_ref(), at(id)));
    bytes.collect::<Vec<u8>>().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn is_near(got: &[f32], want: &[f32]) -> bool {
    let error: f32 = got.iter().zip(want).map(|(a, b)| (a - b).powi(2)).sum();
    let size: f32 = want.iter().map(|b| b.powi(2)).sum();
    got.len() == want.len() && error < 1e-3 * size
}

/// The types of blocks, each with lengths of rows; also such as are no whole number of 64.
fn types_and_lengths() -> impl Iterator<Item = (DType, usize)> {
    let types = DType::ALL.into_iter().filter(|dtype| dtype.is_quantized() && *dtype != DType::Q8_K);
    types.flat_map(|dtype| {
        LENGTHS.map(|length| (dtype, if dtype.block_len() == 32 { 256 * length - 32 } else { 256 * length }))
    })
}

/// The product with so many columns of rows that begin `offset` bytes behind one another's ends, and behind where the weights begin. What is between
/// them is 0xff.
fn product(dtype: DType, [n, columns]: [usize; 2], offset: usize) -> (Graph, Inputs) {
    let row_bytes = dtype.row_bytes(n).unwrap();
    let stride = row_bytes + offset;
    // Room for the last row, in whole rows.
    let room = (ROWS * stride).div_ceil(row_bytes);
    let mut g = GraphBuilder::new();
    let weights = g.weight("weights", dtype, &[n, room]).unwrap();
    let column = g.input("column", DType::F32, &[n, columns]).unwrap();
    let nb = [dtype.block_bytes(), stride, ROWS * stride, ROWS * stride];
    let rows = g.push(View { ne: [n, ROWS, 1, 1], nb, offset }, &[weights]).unwrap();
    let product = g.push(MulMat, &[rows, column]).unwrap();
    g.output(product);
    let mut bytes = vec![0xff; room * row_bytes];
    for r in 0..ROWS {
        bytes[offset + r * stride..][..row_bytes].copy_from_slice(&row(dtype, n, r));
    }
    (g.finish().unwrap(), vec![(weights, bytes), (column, floats(&numbers(100, n * columns)))])
}

/// Blocks of a type begin at a multiple of so many bytes.
fn unit(dtype: DType) -> usize {
    [4, 2, 1].into_iter().find(|unit| dtype.block_bytes() % unit == 0).unwrap()
}

#[test]
fn rows_of_blocks_may_be_long_and_begin_anywhere() {
    let (device, host) = (device(LONG), Host::new());
    let reference = reference_device(&host, "REF", &MemoryBudget::new(None));
    for (dtype, n) in types_and_lengths() {
        for columns in [1, 2, 3, 5, 8] {
            let shape = [n, columns];
            let want = outputs(reference.as_ref(), product(dtype, shape, 0));
            let first = outputs(device.as_ref(), product(dtype, shape, 0));
            assert!(is_near(&first, &want), "{dtype}, {shape:?}: {first:?}, not {want:?}");
            for offset in (1..16 / unit(dtype)).map(|i| i * unit(dtype)) {
                assert_eq!(
                    outputs(device.as_ref(), product(dtype, shape, offset)),
                    first,
                    "{dtype}, {shape:?} at {offset}"
                );
            }
        }
    }
}

/// The bytes of rows of weights, one behind the other.
fn rows_of(dtype: DType, n: usize, rows: usize) -> Vec<u8> {
    (0..rows).flat_map(|r| row(dtype, n, r)).collect()
}

/// Three products of a column, a gated unit of two, and a norm of one.
fn joined(dtype: DType, n: usize) -> (Graph, Inputs) {
    let mut g = GraphBuilder::new();
    let column = g.input("column", DType::F32, &[n, 1]).unwrap();
    let mut inputs = vec![(column, floats(&numbers(100, n)))];
    let mut product = |g: &mut GraphBuilder, name: &str, rows: usize| {
        let weights = g.weight(name, dtype, &[n, rows]).unwrap();
        inputs.push((weights, rows_of(dtype, n, rows)));
        g.push(MulMat, &[weights, column]).unwrap()
    };
    for (name, rows) in [("q", 10), ("k", 6), ("v", 6)] {
        let made = product(&mut g, name, rows);
        g.output(made);
    }
    let [gate, up] = ["gate", "up"].map(|name| product(&mut g, name, 64));
    let unit = g.push(Glu { kind: GluKind::Swiglu }, &[gate, up]).unwrap();
    g.output(unit);
    let made = product(&mut g, "out", 32);
    let norm = g.push(Norm { kind: NormKind::RmsNorm, eps: 1e-5 }, &[made]).unwrap();
    g.output(norm);
    (g.finish().unwrap(), inputs)
}

/// Products of experts, of which each token has two.
fn of_experts(dtype: DType, n: usize) -> (Graph, Inputs) {
    let (rows, experts, tokens) = (18, 3, 2);
    let mut g = GraphBuilder::new();
    let weights = g.weight("weights", dtype, &[n, rows, experts]).unwrap();
    let columns = g.input("columns", DType::F32, &[n, 2, tokens]).unwrap();
    let ids = g.input("ids", DType::I32, &[2, tokens]).unwrap();
    let product = g.push(MulMatId, &[weights, columns, ids]).unwrap();
    g.output(product);
    let ids_of_tokens = [2i32, 0, 1, 2].iter().flat_map(|id| id.to_le_bytes()).collect();
    let inputs = vec![
        (weights, rows_of(dtype, n, rows * experts)),
        (columns, floats(&numbers(100, 2 * n * tokens))),
        (ids, ids_of_tokens),
    ];
    (g.finish().unwrap(), inputs)
}

#[test]
fn joined_products_and_experts_may_have_long_rows() {
    let (device, host) = (device(LONG), Host::new());
    let reference = reference_device(&host, "REF", &MemoryBudget::new(None));
    for (dtype, n) in types_and_lengths() {
        for graph in [joined, of_experts] {
            let want = outputs(reference.as_ref(), graph(dtype, n));
            let got = outputs(device.as_ref(), graph(dtype, n));
            assert!(is_near(&got, &want), "{dtype} of {n}: {got:?}, not {want:?}");
        }
    }
    let kernels: Vec<_> = emulator().launches("").into_iter().map(|launch| launch.kernel).collect();
    for end in ["_many", "_gated", "_normed"] {
        assert!(kernels.iter().any(|kernel| kernel.ends_with(end)), "{end}: {kernels:?}");
    }
}
