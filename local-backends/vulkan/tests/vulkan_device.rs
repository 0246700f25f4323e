//! What a Vulkan device promises beside its results: memory that is cleared and given back, bytes at any place, wrong values that are named.
//! Without a device, a line says so.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use bytes::Bytes;
use outboard_core::local::LocalDevice;
use outboard_core::op::{Binary, BinaryKind, GetRows, MulMat, Norm, NormKind, Rope, RopeMode, Scale, SetRows};
use outboard_core::{
    DType, Device, Error, Executable, Graph, GraphBuilder, Host, Placement, Queue, Slice, TensorId, Usage,
};
use outboard_host::MemoryBudget;
use outboard_vulkan::{OpenOptions, find, vulkan_device};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

/// The first device.
fn device() -> Option<Arc<LocalDevice>> {
    let Some(found) = find().first() else {
        println!("skipped: there is no Vulkan device");
        return None;
    };
    let budget = MemoryBudget::new(Some(1 << 30));
    Some(vulkan_device(&Host::new(), found, "Vulkan0", &budget, &OpenOptions::default()).unwrap())
}

fn slice(device: &dyn Device, size: u64) -> Slice {
    Slice::whole(device.alloc(size, Usage::Any).unwrap())
}

/// A graph with a slice for each root.
fn compile(device: &dyn Device, graph: Graph) -> (Arc<dyn Executable>, Vec<Option<Slice>>) {
    let graph = Arc::new(graph);
    let place = |id: TensorId| {
        let t = graph.tensor(id);
        (t.root() == id).then(|| slice(device, t.layout().span() as u64))
    };
    let places: Vec<_> = graph.ids().map(place).collect();
    let placement = Placement::new(&graph, device, places.clone()).unwrap();
    (device.compile(graph.clone(), placement).unwrap(), places)
}

/// A norm and a product with a row are one kernel.
#[test]
fn a_norm_and_its_scale_are_one_step() {
    let Some(device) = device() else { return };
    let mut g = GraphBuilder::new();
    let (x, scale) = (g.input("x", DType::F32, &[64, 3]).unwrap(), g.input("scale", DType::F32, &[64]).unwrap());
    let normed = g.push(Norm { kind: NormKind::RmsNorm, eps: 1e-6 }, &[x]).unwrap();
    let product = g.push(Binary { kind: BinaryKind::Mul }, &[normed, scale]).unwrap();
    g.output(product);
    let (executable, places) = compile(device.as_ref(), g.finish().unwrap());
    let of = |id: TensorId| places[id.index()].clone().unwrap();
    let queue = device.queue().unwrap();
    let bytes = |numbers: &[f32]| Bytes::from(numbers.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
    let values: Vec<f32> = (0..192).map(|i| (i as f32 * 0.37).sin()).collect();
    let scales: Vec<f32> = (0..64).map(|i| i as f32 - 31.5).collect();
    queue.write(&of(x), bytes(&values)).unwrap();
    queue.write(&of(scale), bytes(&scales)).unwrap();
    let before = device.progress();
    queue.execute(&executable).unwrap();
    let got = read(queue.as_ref(), &of(product));
    assert_eq!(device.progress().zip(before).map(|(now, before)| now - before), Some(1), "steps");
    for (i, got) in got.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).enumerate() {
        let row = &values[i / 64 * 64..][..64];
        let mean = row.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>() / 64.0;
        let want = f64::from(values[i]) / (mean + 1e-6).sqrt() * f64::from(scales[i % 64]);
        assert!((f64::from(got) - want).abs() < 1e-4, "{i}: {got}, not {want}");
    }
    // What was normed is nowhere: nobody else needs it.
    assert!(read(queue.as_ref(), &of(normed)).iter().all(|&byte| byte == 0));
}

/// A product with few columns and what is added to it are one kernel, also where that repeats.
#[test]
fn a_product_and_a_sum_are_one_step() {
    let Some(device) = device() else { return };
    for columns in [1, 3] {
        for added in [[40, 1], [40, columns], [1, columns]] {
            let mut g = GraphBuilder::new();
            let w = g.weight("w", DType::F32, &[64, 40]).unwrap();
            let (x, other) =
                (g.input("x", DType::F32, &[64, columns]).unwrap(), g.input("other", DType::F32, &added).unwrap());
            let product = g.push(MulMat, &[w, x]).unwrap();
            let sum = g.push(Binary { kind: BinaryKind::Add }, &[product, other]).unwrap();
            g.output(sum);
            let (executable, places) = compile(device.as_ref(), g.finish().unwrap());
            let of = |id: TensorId| places[id.index()].clone().unwrap();
            let queue = device.queue().unwrap();
            let bytes = |numbers: &[f32]| Bytes::from(numbers.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
            let numbers = |n: usize, step: f32| (0..n).map(|i| (i as f32 * step).sin()).collect::<Vec<f32>>();
            let [ws, xs, others] =
                [(64 * 40, 0.37), (64 * columns, 0.73), (added[0] * added[1], 1.3)].map(|(n, step)| numbers(n, step));
            for (id, numbers) in [(w, &ws), (x, &xs), (other, &others)] {
                queue.write(&of(id), bytes(numbers)).unwrap();
            }
            let before = device.progress();
            queue.execute(&executable).unwrap();
            let got = read(queue.as_ref(), &of(sum));
            assert_eq!(device.progress().zip(before).map(|(now, before)| now - before), Some(1), "steps");
            for (i, got) in got.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).enumerate() {
                let (m, n) = (i % 40, i / 40);
                let product: f32 = (0..64).map(|k| ws[m * 64 + k] * xs[n * 64 + k]).sum();
                let want = product + others[n % added[1] * added[0] + m % added[0]];
                assert!((got - want).abs() < 1e-3, "{added:?} {m} {n}: {got}, not {want}");
            }
        }
    }
}

/// One row of a table of four.
fn lookup(g: &mut GraphBuilder) -> [TensorId; 3] {
    let (table, rows) = (g.input("table", DType::F32, &[64, 4]).unwrap(), g.input("rows", DType::I32, &[1]).unwrap());
    let picked = g.push(GetRows, &[table, rows]).unwrap();
    g.name(picked, "picked");
    g.output(picked);
    [table, rows, picked]
}

fn read(queue: &dyn Queue, slice: &Slice) -> Bytes {
    queue.read(slice).unwrap().wait(LONG).unwrap()
}

#[test]
fn memory_is_cleared_and_given_back() {
    let Some(device) = device() else { return };
    let free = device.memory().unwrap().free;
    let queue = device.queue().unwrap();
    for size in [1, 4096, 20 << 20] {
        let first = slice(device.as_ref(), size);
        queue.fill(&first, 0x5e).unwrap();
        assert!(read(queue.as_ref(), &first).iter().all(|&byte| byte == 0x5e), "{size}");
        drop(first);
        // A card's driver has needs of its own.
        let now = device.memory().unwrap().free;
        assert!(now + (1 << 20) > free, "{size}: {now} of {free}, the queue holds what it has done");
        let second = slice(device.as_ref(), size);
        assert!(read(queue.as_ref(), &second).iter().all(|&byte| byte == 0), "{size}");
    }
}

#[test]
fn a_graph_holds_nothing_when_it_is_done() {
    let Some(device) = device() else { return };
    let free = device.memory().unwrap().free;
    let mut g = GraphBuilder::new();
    let [_, _, picked] = lookup(&mut g);
    let (executable, places) = compile(device.as_ref(), g.finish().unwrap());
    let queue = device.queue().unwrap();
    queue.execute(&executable).unwrap();
    let result = places[picked.index()].clone().unwrap();
    assert_eq!(read(queue.as_ref(), &result).len(), 256);
    queue.finish(LONG).unwrap();
    drop((executable, places, result));
    let end = Instant::now() + LONG;
    while device.memory().unwrap().free + 4096 < free {
        assert!(Instant::now() < end, "{} of {free}", device.memory().unwrap().free);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn bytes_go_to_any_place() {
    let Some(device) = device() else { return };
    let queue = device.queue().unwrap();
    let len = (17 << 20) + 5;
    let whole = slice(device.as_ref(), len);
    let bytes: Vec<u8> = (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    queue.write(&whole, bytes.clone().into()).unwrap();
    let mut want = bytes;
    for (at, n, value) in [(0, 1, 1), (3, 2, 2), (5, 9, 3), (1001, 4096, 4), (len - 3, 3, 5)] {
        queue.fill(&whole.part(at, n).unwrap(), value).unwrap();
        want[at as usize..(at + n) as usize].fill(value);
    }
    queue.copy(&whole.part(1, 1000).unwrap(), &whole.part(7003, 1000).unwrap()).unwrap();
    want.copy_within(1..1001, 7003);
    assert!(read(queue.as_ref(), &whole) == want);
    let part = whole.part(4097, 333).unwrap();
    assert!(read(queue.as_ref(), &part) == want[4097..4430]);
}

#[test]
fn a_wrong_value_is_named_and_the_next_run_is_right() {
    let Some(device) = device() else { return };
    let mut g = GraphBuilder::new();
    let [table, rows, picked] = lookup(&mut g).map(|id| id.index());
    let (executable, places) = compile(device.as_ref(), g.finish().unwrap());
    let at = |i: usize| places[i].as_ref().unwrap();
    for wrong in [4, -1, i32::MIN, i32::MAX] {
        let queue = device.queue().unwrap();
        queue.write(at(rows), Bytes::copy_from_slice(&wrong.to_le_bytes())).unwrap();
        queue.execute(&executable).unwrap();
        let error = queue.finish(LONG).unwrap_err();
        let Error::Device { device, op: Some(op), detail } = &error else { panic!("{error:?}") };
        assert!(device == "Vulkan0" && op.contains("picked"), "{error:?}");
        assert_eq!(detail, &format!("row {wrong} is outside 0..4"));
    }
    let queue = device.queue().unwrap();
    queue.fill(at(table), 0x3f).unwrap();
    queue.write(at(rows), Bytes::copy_from_slice(&3i32.to_le_bytes())).unwrap();
    queue.execute(&executable).unwrap();
    assert!(read(queue.as_ref(), at(picked)).iter().all(|&byte| byte == 0x3f));
}

/// Blocks may begin at any byte; nothing beside them is written.
#[test]
fn blocks_at_odd_bytes() {
    let Some(device) = device() else { return };
    let mut g = GraphBuilder::new();
    let bytes = g.state("bytes", DType::Q8_0, &[32, 3]).unwrap();
    let view = outboard_core::op::View { ne: [32, 2, 1, 1], nb: [34, 35, 70, 70], offset: 3 };
    let dst = g.push(view, &[bytes]).unwrap();
    let (src, ids) = (g.input("src", DType::F32, &[32, 2]).unwrap(), g.input("ids", DType::I32, &[2]).unwrap());
    let set = g.push(SetRows, &[dst, src, ids]).unwrap();
    g.output(set);
    let (executable, places) = compile(device.as_ref(), g.finish().unwrap());
    let queue = device.queue().unwrap();
    let at = |id: TensorId| places[id.index()].as_ref().unwrap();
    queue.fill(at(bytes), 0xee).unwrap();
    let values: Vec<u8> = (0..64).flat_map(|i| ((i % 32 - 16) as f32 * 1.37).to_le_bytes()).collect();
    queue.write(at(src), values.into()).unwrap();
    queue.write(at(ids), [0i32, 1].map(i32::to_le_bytes).concat().into()).unwrap();
    queue.execute(&executable).unwrap();
    let got = read(queue.as_ref(), at(bytes));
    assert!(got[..3].iter().chain(&got[37..38]).chain(&got[72..]).all(|&byte| byte == 0xee), "{got:x?}");
    assert_eq!(got[3..37], got[38..72], "rows of the same numbers");
    // The scale, 16 * 1.37 / 127 as a half, and the first element, which is -127 of it.
    let scale = u16::from_le_bytes([got[3], got[4]]);
    assert!((0x3185..=0x3187).contains(&scale), "{scale:#x}");
    assert_eq!(got[5] as i8, -127);
}

/// A driver takes memory for each kernel that it has recorded.
#[test]
fn commands_are_paid_for() {
    const NODES: usize = 1000;
    let Some(device) = device() else { return };
    let y = slice(device.as_ref(), 4);
    let mut g = GraphBuilder::new();
    let mut last = g.input("x", DType::F32, &[1]).unwrap();
    for _ in 0..NODES {
        last = g.push(Scale { scale: 1.0, bias: 1.0 }, &[last]).unwrap();
    }
    g.output(last);
    let graph = Arc::new(g.finish().unwrap());
    let placement = Placement::new(&graph, device.as_ref(), vec![Some(y.clone()); graph.tensors().len()]).unwrap();
    let before = device.memory().unwrap().free;
    let executable = device.compile(graph, placement).unwrap();
    let taken = before - device.memory().unwrap().free;
    assert!(taken >= 1024 * NODES as u64, "{taken}");
    let queue = device.queue().unwrap();
    queue.execute(&executable).unwrap();
    assert_eq!(read(queue.as_ref(), &y), (NODES as f32).to_le_bytes().to_vec());
    drop((executable, queue));
    assert_eq!(device.memory().unwrap().free, before);
}

/// What would keep the host or the device busy for long is not supported; asking costs next to nothing.
#[test]
fn work_is_bounded() {
    let Some(device) = device() else { return };
    let supported = |g: GraphBuilder, id: TensorId| device.supports(&g.finish().unwrap()).unwrap().contains(id);
    let start = Instant::now();
    let mut g = GraphBuilder::new();
    let n = (1 << 31) - 2;
    let (x, pos) = (g.input("x", DType::F32, &[n, 1, 1]).unwrap(), g.input("pos", DType::I32, &[1]).unwrap());
    let rotated = g.push(Rope::plain(RopeMode::Neox, n, 10000.0), &[x, pos]).unwrap();
    assert!(!supported(g, rotated));
    let mut g = GraphBuilder::new();
    let dst = g.state("dst", DType::F32, &[1, 1 << 24]).unwrap();
    let src = g.input("src", DType::F32, &[1, 1 << 24]).unwrap();
    let ids = g.input("ids", DType::I32, &[1 << 24]).unwrap();
    let set = g.push(SetRows, &[dst, src, ids]).unwrap();
    assert!(!supported(g, set));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}
