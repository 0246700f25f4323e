//! Nodes that one kernel computes together, and graphs that are recorded: the same results as node by node, run after run.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use bytes::Bytes;
use common::*;
use outboard_core::op::{
    Binary, BinaryKind, FlashAttn, Glu, GluKind, MulMat, Norm, NormKind, Permute, Reshape, Rope, RopeMode, Scale,
    SetRows,
};
use outboard_core::quant::quantize_row;
use outboard_core::{DType, Device, Graph, GraphBuilder, Host, Slice, TensorId};
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;

/// Width of the stream, and of the block between.
const WIDTH: usize = 64;
const WIDE: usize = 96;
/// Runs of a graph: kernel by kernel, recorded, and what was recorded again.
const RUNS: usize = 4;

/// Whether a kernel may compute several nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nodes {
    Together,
    /// Between them are others that change nothing.
    Apart,
}

impl Nodes {
    /// What a node reads: `x` itself, or what is made of it and equal.
    fn between(self, g: &mut GraphBuilder, x: TensorId) -> TensorId {
        match self {
            Nodes::Together => x,
            Nodes::Apart => g.push(Scale { scale: 1.0, bias: 0.0 }, &[x]).unwrap(),
        }
    }
}

/// A layer without attention: a norm, two products of it, a gated unit, a product that is added to what came in; and a norm of that, for a product.
fn layer(columns: usize, nodes: Nodes) -> (Graph, Vec<TensorId>, TensorId) {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[WIDTH, columns]).unwrap();
    let scale = g.weight("scale", DType::F32, &[WIDTH]).unwrap();
    let [gate, up] = ["gate", "up"].map(|name| g.weight(name, DType::Q8_0, &[WIDTH, WIDE]).unwrap());
    let down = g.weight("down", DType::Q8_0, &[WIDE, WIDTH]).unwrap();
    let norm = g.push(Norm { kind: NormKind::RmsNorm, eps: 1e-5 }, &[x]).unwrap();
    let norm = nodes.between(&mut g, norm);
    let scaled = g.push(Binary { kind: BinaryKind::Mul }, &[norm, scale]).unwrap();
    let [a, b] = [gate, up].map(|weights| {
        let columns = nodes.between(&mut g, scaled);
        g.push(MulMat, &[weights, columns]).unwrap()
    });
    let gated = g.push(Glu { kind: GluKind::Swiglu }, &[a, b]).unwrap();
    let gated = nodes.between(&mut g, gated);
    let product = g.push(MulMat, &[down, gated]).unwrap();
    let product = nodes.between(&mut g, product);
    let sum = g.push(Binary { kind: BinaryKind::Add }, &[product, x]).unwrap();
    // Columns that no kernel leaves as bytes.
    let square = g.weight("square", DType::Q8_0, &[WIDTH, WIDTH]).unwrap();
    let product = g.push(MulMat, &[square, x]).unwrap();
    let product = nodes.between(&mut g, product);
    let sum = g.push(Binary { kind: BinaryKind::Add }, &[product, sum]).unwrap();
    let between = nodes.between(&mut g, sum);
    let norm = g.push(Norm { kind: NormKind::RmsNorm, eps: 1e-5 }, &[between]).unwrap();
    let scaled = g.push(Binary { kind: BinaryKind::Mul }, &[norm, scale]).unwrap();
    let product = product_of(&mut g, square, scaled, nodes);
    g.output(product);
    (g.finish().unwrap(), vec![x, scale, gate, up, down, square], product)
}

/// Numbers between -1 and 1 that look random.
fn numbers(seed: usize, n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
}

fn bytes_of(dtype: DType, values: &[f32]) -> Bytes {
    let mut bytes = vec![0; dtype.row_bytes(values.len()).unwrap()];
    quantize_row(dtype, values, &mut bytes).unwrap();
    bytes.into()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// What a device computes of the layer, each time with another input.
fn results(device: &dyn Device, columns: usize, nodes: Nodes) -> Vec<Vec<f32>> {
    let (graph, inputs, output) = layer(columns, nodes);
    let types: Vec<_> =
        inputs.iter().map(|&id| (graph.tensor(id).dtype(), graph.tensor(id).layout().elements())).collect();
    let (executable, places) = compile(device, graph).unwrap();
    let place = |id: TensorId| -> &Slice { places[id.index()].as_ref().unwrap() };
    let queue = device.queue().unwrap();
    for (i, (&id, &(dtype, n))) in inputs.iter().zip(&types).enumerate().skip(1) {
        queue.write(place(id), bytes_of(dtype, &numbers(i, n))).unwrap();
    }
    let run = |run: usize| {
        queue.write(place(inputs[0]), bytes_of(DType::F32, &numbers(100 + run, WIDTH * columns))).unwrap();
        queue.execute(&executable).unwrap();
        floats(&read(queue.as_ref(), place(output)))
    };
    (0..RUNS).map(run).collect()
}

#[test]
fn a_layer_is_what_it_is_node_by_node() {
    let _alone = alone();
    let reference = reference_device(&Host::new(), "REF", &MemoryBudget::new(None));
    for columns in [1, 3] {
        let device = device(LONG);
        let apart = results(device.as_ref(), columns, Nodes::Apart);
        emulator().forget();
        let together = results(device.as_ref(), columns, Nodes::Together);
        assert_eq!(together, apart);
        for (got, want) in together.iter().zip(results(reference.as_ref(), columns, Nodes::Together)) {
            let error: f32 = got.iter().zip(&want).map(|(a, b)| (a - b).powi(2)).sum();
            let size: f32 = want.iter().map(|b| b.powi(2)).sum();
            assert!(error < 5e-3 * size && size > 0.0, "{got:?}\n{want:?}");
        }
        let kernels: Vec<_> = emulator().launches("").into_iter().map(|launch| launch.kernel).collect();
        let quantized = kernels.iter().filter(|kernel| *kernel == "quantize").count();
        // A norm, three products, to the last of which something is added, and a gated unit, which of one column is one kernel with its products;
        // a product of columns that are packed before, and the norm of it, which of one column are one kernel; a product.
        let launches = if columns == 1 { 6 } else { 9 };
        assert_eq!((kernels.len(), quantized), (launches * RUNS, RUNS), "{kernels:?}");
    }
}

/// Length of the column of products, and the rows of three of them.
const LENGTH: usize = 512;
const ROWS: [usize; 3] = [70, 5, 64];
/// Rows of a product that is normed: whole fours, more lanes than the product has threads for several of them each, and no whole warps.
const NORMED: usize = 1052;

/// A graph, what is written before it runs, and its outputs.
type Products = (Graph, Vec<TensorId>, Vec<TensorId>);

/// The product of a column with weights.
fn product_of(g: &mut GraphBuilder, weights: TensorId, x: TensorId, nodes: Nodes) -> TensorId {
    let column = nodes.between(g, x);
    g.push(MulMat, &[weights, column]).unwrap()
}

/// Three products of a column, to one of which something is added.
fn three_products(dtype: DType, nodes: Nodes) -> Products {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[LENGTH, 1]).unwrap();
    let added = g.input("added", DType::F32, &[ROWS[1]]).unwrap();
    let weights = ROWS.map(|rows| g.weight(&format!("weights {rows}"), dtype, &[LENGTH, rows]).unwrap());
    let mut made = weights[..2].iter().map(|&weights| product_of(&mut g, weights, x, nodes)).collect::<Vec<_>>();
    made[1] = g.push(Binary { kind: BinaryKind::Add }, &[made[1], added]).unwrap();
    made.push(product_of(&mut g, weights[2], x, nodes));
    for &id in &made {
        g.output(id);
    }
    (g.finish().unwrap(), [&[x, added], &weights[..]].concat(), made)
}

/// A gated unit of two products of a column.
fn gated_unit(dtype: DType, nodes: Nodes) -> Products {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[LENGTH, 1]).unwrap();
    let weights = ["gate", "up"].map(|name| g.weight(name, dtype, &[LENGTH, ROWS[0]]).unwrap());
    let products = weights.map(|weights| product_of(&mut g, weights, x, nodes));
    let gated = g.push(Glu { kind: GluKind::Swiglu }, &products).unwrap();
    g.output(gated);
    (g.finish().unwrap(), [&[x], &weights[..]].concat(), vec![gated])
}

/// A product of a column, what is added to it, and the norm of that.
fn normed_product(dtype: DType, nodes: Nodes) -> Products {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[LENGTH, 1]).unwrap();
    let added = g.input("added", DType::F32, &[NORMED]).unwrap();
    let scale = g.weight("scale", DType::F32, &[NORMED]).unwrap();
    let weights = g.weight("weights", dtype, &[LENGTH, NORMED]).unwrap();
    let product = g.push(MulMat, &[weights, x]).unwrap();
    let sum = g.push(Binary { kind: BinaryKind::Add }, &[product, added]).unwrap();
    let between = nodes.between(&mut g, sum);
    let norm = g.push(Norm { kind: NormKind::RmsNorm, eps: 1e-5 }, &[between]).unwrap();
    let scaled = g.push(Binary { kind: BinaryKind::Mul }, &[norm, scale]).unwrap();
    g.output(sum);
    g.output(scaled);
    (g.finish().unwrap(), vec![x, added, scale, weights], vec![sum, scaled])
}

fn multiplied(device: &dyn Device, (graph, inputs, made): Products) -> Vec<Vec<f32>> {
    let layouts: Vec<_> =
        inputs.iter().map(|&id| (graph.tensor(id).dtype(), graph.tensor(id).layout().elements())).collect();
    let (executable, places) = compile(device, graph).unwrap();
    let queue = device.queue().unwrap();
    for (i, (&id, &(dtype, n))) in inputs.iter().zip(&layouts).enumerate() {
        queue.write(places[id.index()].as_ref().unwrap(), bytes_of(dtype, &numbers(i, n))).unwrap();
    }
    (0..RUNS).for_each(|_| queue.execute(&executable).unwrap());
    made.into_iter().map(|id| floats(&read(queue.as_ref(), places[id.index()].as_ref().unwrap()))).collect()
}

/// Whether each number is about what is wanted, beside the largest one.
fn assert_close(got: &[Vec<f32>], want: &[Vec<f32>], most: f32, dtype: DType) {
    let (got, want) = (got.concat(), want.concat());
    let largest = want.iter().fold(0f32, |most, number| most.max(number.abs()));
    assert!(largest > 0.0 && got.len() == want.len());
    for (got, want) in got.into_iter().zip(want) {
        assert!((got - want).abs() <= most * largest, "{dtype}: {got} for {want}");
    }
}

/// For each type that weights have a function for, the kernel of several products is the one that it is meant to be, and computes what each product
/// would on its own, but for this part of the largest number.
fn products_are_one_kernel(function: &str, products: fn(DType, Nodes) -> Products, rounding: f32) {
    let _alone = alone();
    let device = device(LONG);
    let reference = reference_device(&Host::new(), "REF", &MemoryBudget::new(None));
    let all = functions(80);
    let names = DType::ALL.map(|dtype| (dtype, format!("mul_mat_vec_{}_1_{function}", dtype.name())));
    let names: Vec<_> = names.into_iter().filter(|(_, name)| all.contains(name)).collect();
    assert!(!names.is_empty() && names.len() == all.iter().filter(|name| name.ends_with(function)).count());
    for (dtype, name) in names {
        let apart = multiplied(device.as_ref(), products(dtype, Nodes::Apart));
        emulator().forget();
        let together = multiplied(device.as_ref(), products(dtype, Nodes::Together));
        assert_close(&together, &apart, rounding, dtype);
        assert!(apart.iter().all(|numbers| numbers.iter().any(|&number| number != 0.0)));
        let kernels: Vec<_> = emulator().launches("").into_iter().map(|launch| launch.kernel).collect();
        // Before products of quantized weights the column is packed.
        let passes = if dtype.is_quantized() { 2 } else { 1 };
        assert_eq!(kernels.len(), passes * RUNS, "{kernels:?}");
        assert_eq!(kernels.iter().filter(|kernel| **kernel == name).count(), RUNS, "{kernels:?}");
        let want = multiplied(reference.as_ref(), products(dtype, Nodes::Together));
        assert_close(&together, &want, 0.01, dtype);
    }
}

#[test]
fn products_of_one_column_are_one_kernel() {
    products_are_one_kernel("many", three_products, 0.0);
}

#[test]
fn a_gated_unit_of_one_column_is_one_kernel() {
    // A block takes fewer rows of two products than of one, and other parts of a row are added up first.
    products_are_one_kernel("gated", gated_unit, 1e-6);
}

/// Two products read what a gated unit leaves as signed bytes; between them is a step that leaves nothing there.
#[test]
fn readers_of_a_gated_unit_may_be_apart() {
    let _alone = alone();
    let graph = || {
        let mut g = GraphBuilder::new();
        let x = g.input("x", DType::F32, &[LENGTH, 1]).unwrap();
        let weights = ["gate", "up"].map(|name| g.weight(name, DType::Q8_0, &[LENGTH, WIDTH]).unwrap());
        let readers = ["first", "second"].map(|name| g.weight(name, DType::Q8_0, &[WIDTH, ROWS[0]]).unwrap());
        let products = weights.map(|weights| g.push(MulMat, &[weights, x]).unwrap());
        let gated = g.push(Glu { kind: GluKind::Swiglu }, &products).unwrap();
        let first = g.push(MulMat, &[readers[0], gated]).unwrap();
        let scaled = g.push(Scale { scale: 2.0, bias: 0.0 }, &[first]).unwrap();
        let second = g.push(MulMat, &[readers[1], gated]).unwrap();
        g.output(scaled);
        g.output(second);
        (g.finish().unwrap(), [&[x], &weights[..], &readers[..]].concat(), vec![scaled, second])
    };
    let reference = reference_device(&Host::new(), "REF", &MemoryBudget::new(None));
    let want = multiplied(reference.as_ref(), graph());
    assert_close(&multiplied(device(LONG).as_ref(), graph()), &want, 0.02, DType::Q8_0);
}

#[test]
fn a_norm_of_a_product_with_one_column_is_one_kernel_with_it() {
    products_are_one_kernel("normed", normed_product, 0.0);
}

/// Heads of queries, and of keys and values; length of each; tokens; rows of a cache.
const HEADS: [usize; 2] = [4, 2];
const HEAD: usize = 32;
const TOKENS: usize = 3;
const CACHE: usize = 8;

/// What is before attention, with the tensors that it writes: rotated queries and keys, and both caches.
fn rotations(nodes: Nodes) -> (Graph, Vec<TensorId>, Vec<TensorId>) {
    let mut g = GraphBuilder::new();
    let x = HEADS.map(|heads| g.input(&format!("x {heads}"), DType::F32, &[HEAD, heads, TOKENS]).unwrap());
    let v = g.input("values", DType::F32, &[HEAD, HEADS[1], TOKENS]).unwrap();
    let positions = g.input("positions", DType::I32, &[TOKENS]).unwrap();
    let rows = g.input("rows", DType::I32, &[TOKENS]).unwrap();
    let caches = ["keys", "cached values"].map(|name| g.input(name, DType::F16, &[HEAD, CACHE, HEADS[1]]).unwrap());
    let rotated = x.map(|x| g.push(Rope::plain(RopeMode::Neox, HEAD, 1e4), &[x, positions]).unwrap());
    let keys = nodes.between(&mut g, rotated[1]);
    let mut written = rotated.to_vec();
    for (heads, cache) in [keys, v].into_iter().zip(caches) {
        let src = g.push(Permute { axes: [0, 2, 1, 3] }, &[heads]).unwrap();
        written.push(g.push(SetRows, &[cache, src, rows]).unwrap());
    }
    for &id in &written {
        g.output(id);
    }
    (g.finish().unwrap(), [&x[..], &[v, positions, rows]].concat(), written)
}

/// What lies in the memory of results behind the rotations.
fn rotated(device: &dyn Device, nodes: Nodes) -> Vec<Bytes> {
    let (graph, inputs, written) = rotations(nodes);
    let roots: Vec<_> = written.iter().map(|&id| graph.tensor(id).root()).collect();
    let layouts: Vec<_> =
        inputs.iter().map(|&id| (graph.tensor(id).dtype(), graph.tensor(id).layout().elements())).collect();
    let (executable, places) = compile(device, graph).unwrap();
    let place = |id: TensorId| -> &Slice { places[id.index()].as_ref().unwrap() };
    let queue = device.queue().unwrap();
    for (i, (&id, &(dtype, n))) in inputs.iter().zip(&layouts).enumerate() {
        let bytes = match dtype {
            DType::I32 => (0..n as i32).rev().flat_map(|i| (2 * i + 1).to_le_bytes()).collect::<Vec<_>>().into(),
            dtype => bytes_of(dtype, &numbers(i, n)),
        };
        queue.write(place(id), bytes).unwrap();
    }
    (0..RUNS).for_each(|_| queue.execute(&executable).unwrap());
    roots.into_iter().map(|id| read(queue.as_ref(), place(id))).collect()
}

#[test]
fn rotations_and_what_goes_to_caches_are_one_kernel() {
    let _alone = alone();
    let device = device(LONG);
    let apart = rotated(device.as_ref(), Nodes::Apart);
    emulator().forget();
    assert_eq!(rotated(device.as_ref(), Nodes::Together), apart);
    let kernels: Vec<_> = emulator().launches("").into_iter().map(|launch| launch.kernel).collect();
    assert_eq!(kernels, ["rope_cache"; RUNS]);
    assert!(apart.iter().all(|bytes| bytes.iter().any(|&byte| byte != 0)));
}

/// Length of a head that attention has kernels of few queries for, heads of queries and of what they share, and keys, which are two parts.
const LONG_HEAD: usize = 64;
const LONG_HEADS: [usize; 2] = [2, 1];
const KEYS: usize = 64;

/// A layer of a dense model, of one token: attention and a gated unit, each added to what came in.
fn dense_layer(g: &mut GraphBuilder, x: TensorId, number: usize, inputs: [TensorId; 2]) -> TensorId {
    let width = LONG_HEAD * LONG_HEADS[0];
    let [positions, rows] = inputs;
    let weight = |g: &mut GraphBuilder, name: &str, [k, m]: [usize; 2]| {
        g.weight(&format!("{name} {number}"), DType::Q8_0, &[k, m]).unwrap()
    };
    let normed = |g: &mut GraphBuilder, x, name: &str| {
        let scale = g.weight(&format!("{name} {number}"), DType::F32, &[width]).unwrap();
        let norm = g.push(Norm { kind: NormKind::RmsNorm, eps: 1e-5 }, &[x]).unwrap();
        g.push(Binary { kind: BinaryKind::Mul }, &[norm, scale]).unwrap()
    };
    let column = normed(g, x, "attention");
    let heads = [LONG_HEADS[0], LONG_HEADS[1], LONG_HEADS[1]];
    let weights = ["q", "k", "v"].iter().zip(heads).map(|(name, n)| weight(g, name, [width, LONG_HEAD * n]));
    let weights: Vec<_> = weights.collect();
    let products: Vec<_> = weights.into_iter().map(|weights| g.push(MulMat, &[weights, column]).unwrap()).collect();
    let in_heads =
        |g: &mut GraphBuilder, i: usize| g.push(Reshape { ne: [LONG_HEAD, heads[i], 1, 1] }, &[products[i]]).unwrap();
    let [q, k, v] = [0, 1, 2].map(|i| in_heads(g, i));
    let rotated = [q, k].map(|x| g.push(Rope::plain(RopeMode::Neox, LONG_HEAD, 1e4), &[x, positions]).unwrap());
    let axes = Permute { axes: [0, 2, 1, 3] };
    let caches = [("keys", rotated[1]), ("values", v)].map(|(name, x)| {
        let cache = g.input(&format!("{name} {number}"), DType::F16, &[LONG_HEAD, KEYS, LONG_HEADS[1]]).unwrap();
        let x = g.push(axes, &[x]).unwrap();
        g.push(SetRows, &[cache, x, rows]).unwrap()
    });
    let q = g.push(axes, &[rotated[0]]).unwrap();
    let op = FlashAttn { scale: 0.1, window: 0, softcap: 0.0, block: 0 };
    let sources = [Some(q), Some(caches[0]), Some(caches[1]), None, Some(positions), None, None, None];
    let attention = g.push_opt(op, &sources).unwrap();
    let attention = g.push(Reshape { ne: [width, 1, 1, 1] }, &[attention]).unwrap();
    let added = |g: &mut GraphBuilder, name: &str, k: usize, column, to| {
        let weights = weight(g, name, [k, width]);
        let product = g.push(MulMat, &[weights, column]).unwrap();
        g.push(Binary { kind: BinaryKind::Add }, &[product, to]).unwrap()
    };
    let x = added(g, "output", width, attention, x);
    let column = normed(g, x, "feed-forward");
    let [gate, up] = ["gate", "up"].map(|name| weight(g, name, [width, WIDE]));
    let products = [gate, up].map(|weights| g.push(MulMat, &[weights, column]).unwrap());
    let gated = g.push(Glu { kind: GluKind::Swiglu }, &products).unwrap();
    added(g, "down", WIDE, gated, x)
}

/// What a token costs in launches: at most eight for a layer is the goal.
#[test]
fn a_layer_of_a_dense_model_takes_seven_kernels() {
    let _alone = alone();
    let device = device(LONG);
    let mut g = GraphBuilder::new();
    let width = LONG_HEAD * LONG_HEADS[0];
    let mut x = g.input("x", DType::F32, &[width, 1]).unwrap();
    let inputs = ["positions", "rows"].map(|name| g.input(name, DType::I32, &[1]).unwrap());
    for number in 0..2 {
        x = dense_layer(&mut g, x, number, inputs);
    }
    let norm = g.push(Norm { kind: NormKind::RmsNorm, eps: 1e-5 }, &[x]).unwrap();
    g.output(norm);
    let (executable, _places) = compile(device.as_ref(), g.finish().unwrap()).unwrap();
    let queue = device.queue().unwrap();
    emulator().forget();
    queue.execute(&executable).unwrap();
    queue.finish(LONG).unwrap();
    let kernels: Vec<_> = emulator().launches("").into_iter().map(|launch| launch.kernel).collect();
    let layer = [
        "mul_mat_vec_Q8_0_1_many",
        "rope_cache",
        "flash_attn_few_64_4",
        "flash_attn_parts",
        "mul_mat_vec_Q8_0_1_normed",
        "mul_mat_vec_Q8_0_1_gated",
        "mul_mat_vec_Q8_0_1_normed",
    ];
    assert_eq!(kernels, [&["norm"][..], &layer, &layer].concat());
}

/// One graph on two queues at once: its runs follow one another, so that each finds what it has left itself.
#[test]
fn runs_of_a_graph_follow_one_another() {
    let _alone = alone();
    let device = device(LONG);
    let (graph, inputs, output) = layer(3, Nodes::Together);
    let layouts: Vec<_> = inputs.iter().map(|&id| *graph.tensor(id).layout()).collect();
    let (executable, places) = compile(device.as_ref(), graph).unwrap();
    let place = |id: TensorId| -> &Slice { places[id.index()].as_ref().unwrap() };
    let queues = [(); 2].map(|()| device.queue().unwrap());
    for (i, (&id, layout)) in inputs.iter().zip(&layouts).enumerate() {
        queues[0].write(place(id), bytes_of(layout.dtype(), &numbers(i, layout.elements()))).unwrap();
    }
    queues[0].execute(&executable).unwrap();
    let want = read(queues[0].as_ref(), place(output));
    for round in 0..20 {
        queues.iter().for_each(|queue| queue.execute(&executable).unwrap());
        for queue in &queues {
            assert_eq!(read(queue.as_ref(), place(output)), want, "{round}");
        }
    }
}

#[test]
fn what_runs_again_is_recorded_once_and_given_back() {
    let _alone = alone();
    let device = device(LONG);
    let (graph, ..) = layer(1, Nodes::Together);
    let (executable, places) = compile(device.as_ref(), graph).unwrap();
    let queue = device.queue().unwrap();
    for graphs in [0, 1, 1] {
        queue.execute(&executable).unwrap();
        queue.finish(LONG).unwrap();
        assert_eq!(emulator().live().graphs, graphs);
    }
    drop((queue, executable, places));
    wait_for(|| emulator().live().graphs == 0, || "the graph is kept".into());
}

#[test]
fn where_nothing_can_be_recorded_kernels_are_given_one_by_one() {
    let _alone = alone();
    let device = device(LONG);
    let want = results(device.as_ref(), 1, Nodes::Together);
    for call in ["cuGraphCreate", "cuGraphAddKernelNode_v2", "cuGraphInstantiateWithFlags"] {
        emulator().fail_call(call, 0, 1);
        assert_eq!(results(device.as_ref(), 1, Nodes::Together), want, "{call}");
        assert_eq!(emulator().live().graphs, 0, "{call}");
    }
    emulator().fail_call("cuGraphLaunch", 0, 1);
    let (graph, ..) = layer(1, Nodes::Together);
    let (executable, _places) = compile(device.as_ref(), graph).unwrap();
    let queue = device.queue().unwrap();
    queue.execute(&executable).unwrap();
    queue.execute(&executable).unwrap();
    let error = queue.finish(LONG).unwrap_err();
    assert!(error.to_string().contains("CUDA_ERROR_INVALID_VALUE"), "{error}");
}
