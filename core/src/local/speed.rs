//! How fast a device is, measured with the op that a language model spends its time in.

use crate::device::{Device, Placement, Slice, Speed, Usage};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, GraphBuilder};
use crate::op::MulMat;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Weights of the products: more than caches hold, where there is room.
const LARGE: Shape = Shape { rows: 8192, columns: 8192, vectors: 1 };
/// Enough columns to be bound by arithmetic.
const WIDE: Shape = Shape { rows: 2048, columns: 2048, vectors: 128 };
/// Every byte of weights and vectors: memory that nobody has written to may be one page of zeros, and as scales of half precision and
/// as floats this is an ordinary number.
const FILL: u8 = 0x3c;
/// Runs of each; the fastest one counts.
const RUNS: usize = 3;
/// A device that needs longer than this for one product is not measured.
const LIMIT: Duration = Duration::from_secs(3);

/// A matrix of 4-bit weights times some vectors.
#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    columns: usize,
    vectors: usize,
}

/// Measures a device that has nothing else to do.
pub(super) fn measure(device: &dyn Device) -> Result<Speed> {
    let (large, bytes) = product_time(device, LARGE)?;
    let (wide, _) = product_time(device, WIDE)?;
    let operations = 2 * WIDE.rows * WIDE.columns * WIDE.vectors;
    Ok(Speed { bandwidth: bytes as f64 / large.as_secs_f64(), flops: operations as f64 / wide.as_secs_f64() })
}

/// How long one product takes, and the bytes of its weights.
fn product_time(device: &dyn Device, shape: Shape) -> Result<(Duration, u64)> {
    let graph = Arc::new(product(shape)?);
    let mut slices = Vec::new();
    for id in graph.ids() {
        let size = graph.tensor(id).layout().span() as u64;
        slices.push(Some(Slice::whole(device.alloc(size, Usage::Any)?)));
    }
    let weights = slices[0].as_ref().map_or(0, Slice::len);
    let queue = device.queue()?;
    slices.iter().flatten().try_for_each(|slice| queue.fill(slice, FILL))?;
    let placement = Placement::new(&graph, device, slices)?;
    let executable = device.compile(graph, placement)?;
    queue.execute(&executable)?;
    queue.finish(LIMIT)?;
    let mut shortest = Duration::MAX;
    for _ in 0..RUNS {
        let start = Instant::now();
        queue.execute(&executable)?;
        queue.finish(LIMIT)?;
        shortest = shortest.min(start.elapsed());
    }
    Ok((shortest.max(Duration::from_nanos(1)), weights))
}

fn product(shape: Shape) -> Result<Graph> {
    let mut g = GraphBuilder::new();
    let weights = g.weight("weights", DType::Q4_0, &[shape.columns, shape.rows])?;
    let vectors = g.input("vectors", DType::F32, &[shape.columns, shape.vectors])?;
    let product = g.push(MulMat, &[weights, vectors])?;
    g.output(product);
    Ok(g.finish()?)
}
