//! How fast a device is, measured with the op that a language model spends its time in.

use crate::device::{Device, Placement, Slice, Speed, Usage};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, GraphBuilder};
use crate::op::MulMat;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Columns of the product that reads weights, and of the one that computes.
const VECTORS: [usize; 2] = [1, 128];
/// Rows and columns of the weights, one after the other, until a product takes [`ENOUGH`]. The last one is more than caches hold.
const SIZES: [usize; 5] = [512, 1024, 2048, 4096, 8192];
/// A product that takes so long is measured well.
const ENOUGH: Duration = Duration::from_millis(3);
/// Runs of each; the fastest one counts, because others may use the same processors now and then.
const RUNS: usize = 8;
/// A device that needs longer than this is not measured.
const LIMIT: Duration = Duration::from_secs(3);
/// Every byte of weights and vectors: memory that nobody has written to may be one page of zeros, and as scales of half precision and
/// as floats this is an ordinary number.
const FILL: u8 = 0x3c;

/// One product of a matrix of 4-bit weights.
struct Product {
    /// Bytes of weights.
    bytes: u64,
    /// Floating-point operations.
    flops: u64,
    /// How long it took.
    time: Duration,
}

/// Measures a device. What it does for others meanwhile does not count, but for memory and processors that they share.
pub(super) fn measure(device: &dyn Device) -> Result<Speed> {
    let [read, compute] = VECTORS.map(|vectors| largest_product(device, vectors));
    let (read, compute) = (read?, compute?);
    Ok(Speed {
        bandwidth: read.bytes as f64 / read.time.as_secs_f64(),
        flops: compute.flops as f64 / compute.time.as_secs_f64(),
    })
}

/// The smallest product that takes long enough, or the largest.
fn largest_product(device: &dyn Device, vectors: usize) -> Result<Product> {
    let mut last = Err(Error::Misuse("no product to measure".into()));
    for size in SIZES {
        let product = product_time(device, size, vectors);
        // Where there is no memory for this one, the one before it has to do.
        last = if product.is_ok() { product } else { last.or(product) };
        if last.as_ref().map_or(true, |p| p.time >= ENOUGH) {
            break;
        }
    }
    last
}

fn product_time(device: &dyn Device, size: usize, vectors: usize) -> Result<Product> {
    let graph = Arc::new(product(size, vectors)?);
    let mut slices = Vec::new();
    for id in graph.ids() {
        let t = graph.tensor(id);
        let (bytes, tail) = (t.layout().span() as u64, device.info().weight_tail.of(t.dtype()));
        slices.push(Some(Slice::new(device.alloc(bytes + tail, Usage::Any)?, 0, bytes)?));
    }
    let bytes = slices.first().and_then(Option::as_ref).map_or(0, Slice::len);
    let queue = device.queue()?;
    let times = Arc::new(Mutex::new(Vec::new()));
    let seen = times.clone();
    queue.set_trace(Box::new(move |event| {
        if event.what == "execute" {
            crate::lock(&seen).push(event.end - event.start);
        }
    }))?;
    slices.iter().flatten().try_for_each(|slice| queue.fill(slice, FILL))?;
    let placement = Placement::new(&graph, device, slices)?;
    let executable = device.compile(graph, placement)?;
    // The first one brings what it needs into caches.
    let start = Instant::now();
    for _ in 0..=RUNS {
        queue.execute(&executable)?;
        queue.finish(LIMIT)?;
        if start.elapsed() > LIMIT {
            return Err(Error::Timeout { what: "a product that is measured".into(), after: start.elapsed() });
        }
    }
    let time = crate::lock(&times).iter().skip(1).min().copied().unwrap_or(LIMIT).max(Duration::from_nanos(1));
    Ok(Product { bytes, flops: 2 * (size * size * vectors) as u64, time })
}

fn product(size: usize, vectors: usize) -> Result<Graph> {
    let mut g = GraphBuilder::new();
    let weights = g.weight("weights", DType::Q4_0, &[size, size])?;
    let columns = g.input("vectors", DType::F32, &[size, vectors])?;
    let product = g.push(MulMat, &[weights, columns])?;
    g.output(product);
    Ok(g.finish()?)
}
