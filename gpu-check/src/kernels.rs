//! Products of the shape of an 8B model, timed beside the rate at which the device copies.

use crate::Outcome;
use crate::random::{Random, weights};
use anyhow::{Result, bail};
use bytes::Bytes;
use outboard_core::op::MulMat;
use outboard_core::{DType, Device, Executable, Graph, GraphBuilder, Placement, Queue, Slice, TensorId, Usage};
use outboard_output as output;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Length of a row, and rows, as of a model of 8B.
const LENGTH: usize = 4096;
const ROWS: usize = 4096;
/// Columns of products: of decoding, of a few sequences, of a prompt.
const COLUMNS: [usize; 5] = [1, 2, 4, 8, 512];
/// Bytes of weights of a graph, so that none is in a cache when it is read again.
const BYTES: usize = 512 << 20;
/// Runs of a graph that are timed together, and how often that is done.
const RUNS: usize = 4;
const REPETITIONS: usize = 5;
/// Work before times are taken: a card that was idle has a low clock.
const WARM: Duration = Duration::from_millis(200);
/// Bytes of a copy.
const COPY: u64 = 1 << 30;
/// Longest wait for anything.
const LONG: Duration = Duration::from_secs(60);

pub(crate) fn run(devices: &[Arc<dyn Device>], types: &[DType]) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut report = Vec::new();
    for device in devices {
        match of_device(device.as_ref(), types) {
            Ok(rows) => report.push(rows),
            Err(why) => outcome.wrong.push(format!("{}: {why:#}", device.info().id)),
        }
    }
    outcome.report = report.into();
    Ok(outcome)
}

fn of_device(device: &dyn Device, types: &[DType]) -> Result<Value> {
    let id = &device.info().id;
    let copied = copy_rate(device)?;
    output::out(format_args!("{id} copies {:.0} GB/s, read and written\n", copied / 1e9))?;
    let mut rows = Vec::new();
    for &dtype in types {
        for columns in COLUMNS {
            let Some(product) = product(device, dtype, columns)? else {
                output::out(format_args!("{id} {dtype} x {columns}: not supported\n"))?;
                continue;
            };
            let (us, bytes) = (1e6 * product.seconds, product.bytes as f64);
            let (rate, flops) = (bytes / product.seconds, 2.0 * (LENGTH * ROWS * columns) as f64 / product.seconds);
            output::out(format_args!(
                "{id} {dtype:<5} {ROWS}x{LENGTH} x {columns:>3}: {us:8.1} us, {:5.0} GB/s ({:3.0} % of a copy), {:6.1} TFLOP/s\n",
                rate / 1e9,
                100.0 * rate / copied,
                flops / 1e12
            ))?;
            rows.push(json!({ "type": dtype.name(), "columns": columns, "us": us, "bytes": bytes, "flops": flops }));
        }
    }
    Ok(json!({ "device": id, "copy_bytes_per_second": copied, "products": rows }))
}

/// Bytes read and written in a second by a copy on the device.
fn copy_rate(device: &dyn Device) -> Result<f64> {
    let size = COPY.min(device.info().memory_total / 8);
    let [from, to] = [device.alloc(size, Usage::Any)?, device.alloc(size, Usage::Any)?].map(Slice::whole);
    let queue = device.queue()?;
    queue.fill(&from, 0x35)?;
    let seconds = median(queue.as_ref(), || Ok(queue.copy(&from, &to).map(drop)?))?;
    Ok(2.0 * size as f64 / seconds)
}

struct Product {
    /// Of one.
    seconds: f64,
    /// Weights, columns and results of one.
    bytes: usize,
}

/// Products with different weights, one behind the other; `None` if there is no kernel for it.
fn product(device: &dyn Device, dtype: DType, columns: usize) -> Result<Option<Product>> {
    let weight = ROWS * LENGTH / dtype.block_len() * dtype.block_bytes();
    let count = (BYTES / weight).max(2);
    let mut g = GraphBuilder::new();
    let column = g.input("columns", DType::F32, &[LENGTH, columns])?;
    let mut matrices = Vec::new();
    for i in 0..count {
        let matrix = g.weight(&format!("weights {i}"), dtype, &[LENGTH, ROWS])?;
        let product = g.push(MulMat, &[matrix, column])?;
        g.output(product);
        matrices.push(matrix);
    }
    let graph = Arc::new(g.finish()?);
    if graph.nodes().any(|node| !device.supports(&graph).is_ok_and(|set| set.contains(node))) {
        return Ok(None);
    }
    let (executable, places) = compile(device, &graph)?;
    let queue = device.queue()?;
    let data = Bytes::from(weights(dtype, ROWS * LENGTH)?);
    for matrix in matrices {
        queue.write(place(&places, matrix)?, data.clone())?;
    }
    let mut random = Random(2);
    let floats: Vec<u8> = (0..LENGTH * columns).flat_map(|_| random.float().to_le_bytes()).collect();
    queue.write(place(&places, column)?, floats.into())?;
    queue.finish(LONG)?;
    let seconds = median(queue.as_ref(), || Ok(queue.execute(&executable).map(drop)?))?;
    Ok(Some(Product { seconds: seconds / count as f64, bytes: weight + 4 * columns * (LENGTH + ROWS) }))
}

/// Seconds of a command on a card that works, the median of several measurements, each of some of them one behind the other.
fn median(queue: &dyn Queue, command: impl Fn() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    while begun.elapsed() < WARM {
        command()?;
        queue.finish(LONG)?;
    }
    let mut times = Vec::new();
    for _ in 0..REPETITIONS {
        let begun = Instant::now();
        (0..RUNS).try_for_each(|_| command())?;
        queue.finish(LONG)?;
        times.push(begun.elapsed().as_secs_f64() / RUNS as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[REPETITIONS / 2])
}

type Places = Vec<Option<Slice>>;

/// The graph with memory for each of its roots.
fn compile(device: &dyn Device, graph: &Arc<Graph>) -> Result<(Arc<dyn Executable>, Places)> {
    let mut places = Vec::new();
    for id in graph.ids() {
        let tensor = graph.tensor(id);
        let size = tensor.layout().span() as u64 + device.info().weight_tail.0;
        places.push(if tensor.root() == id { Some(Slice::whole(device.alloc(size, Usage::Any)?)) } else { None });
    }
    let sized = graph.ids().zip(&places).map(|(id, place)| {
        let span = graph.tensor(id).layout().span() as u64;
        place.as_ref().map(|place| place.part(0, span)).transpose()
    });
    let places = sized.collect::<std::result::Result<Places, _>>()?;
    let placement = Placement::new(graph, device, places.clone())?;
    Ok((device.compile(graph.clone(), placement)?, places))
}

fn place(places: &Places, id: TensorId) -> Result<&Slice> {
    let Some(Some(slice)) = places.get(id.index()) else { bail!("a tensor without memory of its own") };
    Ok(slice)
}
