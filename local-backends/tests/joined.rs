//! Nodes that one kernel of a Vulkan device computes together are what the reference computes node by node: where heads go to caches, and gated units. Random graphs
//! (`hazards.rs`) have few of these. Without a device, a line says so.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use bytes::Bytes;
use outboard_core::op::{Glu, GluKind, MulMat, Permute, Rope, RopeMode, SetRows};
use outboard_core::quant::{dequantize_row, quantize_row};
use outboard_core::{DType, Device, Graph, GraphBuilder, Host, LeafKind, Placement, Result, Slice, TensorId, Usage};
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;
use outboard_vulkan::{OpenOptions, find, vulkan_device};
use std::sync::Arc;
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(60);
/// Heads are permuted so that a cache has a head's rows one behind the other.
const BY_HEADS: Permute = Permute { axes: [0, 2, 1, 3] };

/// The first device of Vulkan's, and the reference.
fn devices() -> Option<[Arc<dyn Device>; 2]> {
    let Some(found) = find().first() else {
        println!("skipped: there is no Vulkan device");
        return None;
    };
    let (host, budget) = (Host::new(), MemoryBudget::new(None));
    let vulkan = vulkan_device(&host, found, "Vulkan0", &budget, &OpenOptions::default()).unwrap();
    Some([vulkan, reference_device(&host, "REF", &budget)])
}

/// Numbers between -1 and 1 that look random.
fn numbers(seed: usize, n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
}

/// A graph, what is written to its leaves of I32, and the tensors that are looked at. Other leaves get numbers.
struct Case {
    name: String,
    graph: Graph,
    indices: Vec<(TensorId, Vec<i32>)>,
    looked_at: Vec<TensorId>,
}

/// What lies in the tensors that are looked at when the graph has run, and how many steps that took.
fn run(device: &dyn Device, case: &Case) -> Result<(Vec<Vec<f32>>, u64)> {
    let graph = Arc::new(case.graph.clone());
    let place = |id: TensorId| {
        let tensor = graph.tensor(id);
        (tensor.root() == id).then(|| Slice::whole(device.alloc(tensor.layout().span() as u64, Usage::Any).unwrap()))
    };
    let places: Vec<_> = graph.ids().map(place).collect();
    let at = |id: TensorId| places[graph.tensor(id).root().index()].clone().unwrap();
    let placement = Placement::new(&graph, device, places.clone())?;
    let executable = device.compile(graph.clone(), placement)?;
    let queue = device.queue()?;
    for (seed, id) in graph.ids().enumerate().filter(|(_, id)| graph.tensor(*id).leaf().is_some()) {
        let tensor = graph.tensor(id);
        let bytes: Vec<u8> = match case.indices.iter().find(|(of, _)| *of == id) {
            Some((_, indices)) => indices.iter().flat_map(|i| i.to_le_bytes()).collect(),
            None => {
                let mut bytes = vec![0; tensor.layout().span()];
                quantize_row(tensor.dtype(), &numbers(seed, tensor.layout().elements()), &mut bytes).unwrap();
                bytes
            }
        };
        queue.write(&at(id), Bytes::from(bytes))?;
    }
    let before = device.progress();
    queue.execute(&executable)?;
    let ended = queue.finish(WAIT);
    let steps = device.progress().zip(before).map_or(0, |(now, before)| now - before);
    ended?;
    let read = |&id: &TensorId| {
        let (slice, dtype) = (at(id), graph.tensor(id).dtype());
        let bytes = queue.read(&slice)?.wait(WAIT)?;
        let mut values = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
        dequantize_row(dtype, &bytes, &mut values).unwrap();
        Ok(values)
    };
    Ok((case.looked_at.iter().map(read).collect::<Result<_>>()?, steps))
}

/// Both devices compute the same, ours in so many steps.
fn check([ours, reference]: &[Arc<dyn Device>; 2], case: &Case, steps: u64) {
    let name = &case.name;
    let ((got, taken), (want, _)) = (run(ours.as_ref(), case).unwrap(), run(reference.as_ref(), case).unwrap());
    assert_eq!(taken, steps, "{name}: steps");
    for (got, want) in got.iter().zip(&want) {
        let far = got.iter().zip(want).position(|(a, b)| a.is_nan() || (a - b).abs() > 0.02);
        assert_eq!(far, None, "{name}: {:?}, not {:?}", far.map(|i| got[i]), far.map(|i| want[i]));
    }
}

/// Heads of some tokens, rotated and written to rows of a cache of this type.
fn into_cache(mode: RopeMode, dtype: DType, [d, n_dims]: [usize; 2], rows: [i32; 2]) -> Case {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[d, 3, 2]).unwrap();
    let positions = g.input("positions", DType::I32, &[2]).unwrap();
    let ids = g.input("rows", DType::I32, &[2]).unwrap();
    let cache = g.leaf(LeafKind::State, "cache", dtype, &[d, 5, 3]).unwrap();
    let rotated = g.push(Rope::plain(mode, n_dims, 1e4), &[x, positions]).unwrap();
    let heads = g.push(BY_HEADS, &[rotated]).unwrap();
    let written = g.push(SetRows, &[cache, heads, ids]).unwrap();
    g.name(written, "written");
    g.output(written);
    Case {
        name: format!("{mode:?} {dtype} {d} {n_dims}"),
        graph: g.finish().unwrap(),
        indices: vec![(positions, vec![7, 1000]), (ids, rows.to_vec())],
        looked_at: vec![cache],
    }
}

#[test]
fn heads_go_to_caches() {
    let Some(devices) = devices() else { return };
    for mode in [RopeMode::Normal, RopeMode::Neox] {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for sizes in [[64, 64], [64, 32], [33, 32]] {
                check(&devices, &into_cache(mode, dtype, sizes, [4, 1]), 1);
            }
        }
    }
}

#[test]
fn a_row_that_is_not_there_is_named_and_nothing_is_written() {
    let Some([ours, _]) = devices() else { return };
    let case = into_cache(RopeMode::Neox, DType::F16, [64, 64], [4, 5]);
    let error = run(ours.as_ref(), &case).unwrap_err().to_string();
    assert!(error.contains("SET_ROWS written") && error.contains("row 5 is outside 0..5"), "{error}");
}

/// What has gone to a cache is no rotation any more: rows of that are written from there.
#[test]
fn rows_of_a_cache_go_to_another() {
    let Some(devices) = devices() else { return };
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[64, 8, 1]).unwrap();
    let positions = g.input("positions", DType::I32, &[1]).unwrap();
    let [first, second] = [("first", 1), ("second", 8)].map(|(name, n)| g.input(name, DType::I32, &[n]).unwrap());
    let one = g.leaf(LeafKind::State, "one", DType::F32, &[64, 1, 8]).unwrap();
    let other = g.leaf(LeafKind::State, "other", DType::F16, &[64, 9, 1]).unwrap();
    let rotated = g.push(Rope::plain(RopeMode::Neox, 64, 1e4), &[x, positions]).unwrap();
    let heads = g.push(BY_HEADS, &[rotated]).unwrap();
    let written = g.push(SetRows, &[one, heads, first]).unwrap();
    let again = g.push(BY_HEADS, &[written]).unwrap();
    let written = g.push(SetRows, &[other, again, second]).unwrap();
    g.output(written);
    let case = Case {
        name: "from cache to cache".into(),
        graph: g.finish().unwrap(),
        indices: vec![(positions, vec![3]), (first, vec![0]), (second, vec![8, 7, 6, 5, 4, 3, 2, 1])],
        looked_at: vec![one, other],
    };
    check(&devices, &case, 2);
}

#[test]
fn gated_units() {
    let Some(devices) = devices() else { return };
    let oai = GluKind::SwigluOai { alpha: 1.7, limit: 0.5 };
    for kind in [GluKind::Reglu, GluKind::Geglu, GluKind::Swiglu, oai] {
        for dtype in [DType::F16, DType::Q8_0, DType::Q4_K] {
            // Columns, batches, and whether the gate is computed first.
            for (columns, batches, in_order) in [(1, 1, true), (1, 1, false), (3, 2, true)] {
                let mut g = GraphBuilder::new();
                let [a, b] = ["a", "b"].map(|name| g.weight(name, dtype, &[256, 37, batches]).unwrap());
                let x = g.input("x", DType::F32, &[256, columns, batches]).unwrap();
                let [a, b] = [a, b].map(|weights| g.push(MulMat, &[weights, x]).unwrap());
                let unit = g.push(Glu { kind }, &if in_order { [a, b] } else { [b, a] }).unwrap();
                g.output(unit);
                let case = Case {
                    name: format!("{kind:?} {dtype} {columns} {in_order}"),
                    graph: g.finish().unwrap(),
                    indices: Vec::new(),
                    looked_at: vec![unit],
                };
                check(&devices, &case, 1);
            }
        }
    }
}
