//! How many kernels a graph takes: nodes that one computes together, and columns that are made bytes once for all products that read them, and again where they
//! have changed. Without a device, a line says so.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use ash::vk;
use bytes::Bytes;
use outboard_core::local::LocalDevice;
use outboard_core::op::{
    Binary, BinaryKind, Cpy, FlashAttn, Glu, GluKind, MulMat, Norm, NormKind, Permute, Reshape, Rope, RopeMode, SetRows,
};
use outboard_core::{
    DType, Device, Executable, Graph, GraphBuilder, Host, LeafKind, Placement, Slice, TensorId, Usage,
};
use outboard_host::MemoryBudget;
use outboard_vulkan::{Function, Interposer, OpenOptions, find, vulkan_device};
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Kernels that were recorded, and the driver's own function.
static KERNELS: AtomicUsize = AtomicUsize::new(0);
static DISPATCH: AtomicUsize = AtomicUsize::new(0);

unsafe extern "system" fn dispatch(commands: vk::CommandBuffer, x: u32, y: u32, z: u32) {
    KERNELS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: `choose` has put the function of this type there; what whoever calls this has promised to Vulkan.
    unsafe {
        std::mem::transmute::<usize, vk::PFN_vkCmdDispatch>(DISPATCH.load(Ordering::Relaxed))(commands, x, y, z);
    }
}

fn choose(name: &CStr, driver: Function) -> Function {
    if name.to_bytes() != b"vkCmdDispatch" {
        return driver;
    }
    DISPATCH.store(driver.unwrap() as usize, Ordering::Relaxed);
    // SAFETY: a function, which is called by the type of its name.
    Some(unsafe { std::mem::transmute::<*const (), unsafe extern "system" fn()>(dispatch as *const ()) })
}

/// The first device, with products of whole numbers or without, for one test at a time: kernels are counted for all.
fn device(dot: bool) -> Option<(Arc<LocalDevice>, MutexGuard<'static, ()>)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(found) = find().first() else {
        println!("skipped: there is no Vulkan device");
        return None;
    };
    // SAFETY: the function above has the type of its name, and does what Vulkan says.
    let interposer = Some(unsafe { Interposer::new(choose) });
    let options = OpenOptions { interposer, dot, ..OpenOptions::default() };
    Some((vulkan_device(&Host::new(), found, "Vulkan0", &MemoryBudget::new(None), &options).unwrap(), alone))
}

/// A graph with a slice for each root, and how many kernels it takes.
fn compile(device: &dyn Device, graph: Graph) -> (Arc<dyn Executable>, Vec<Option<Slice>>, usize) {
    let graph = Arc::new(graph);
    let place = |id: TensorId| {
        let tensor = graph.tensor(id);
        let size = tensor.layout().span() as u64;
        (tensor.root() == id).then(|| Slice::whole(device.alloc(size, Usage::Any).unwrap()))
    };
    let places: Vec<_> = graph.ids().map(place).collect();
    let placement = Placement::new(&graph, device, places.clone()).unwrap();
    let before = KERNELS.load(Ordering::Relaxed);
    let executable = device.compile(graph, placement).unwrap();
    (executable, places, KERNELS.load(Ordering::Relaxed) - before)
}

/// Rows of Q8_0 whose numbers are all `number`.
fn rows_of(number: u8, rows: usize) -> Bytes {
    let one = 0x3c00u16.to_le_bytes();
    Bytes::from([one.as_slice(), &[number; 32]].concat().repeat(2 * rows))
}

#[test]
fn columns_are_made_bytes_once_for_all_who_read_them() {
    let Some((device, _alone)) = device(true) else { return };
    for columns in [3, 20] {
        let mut g = GraphBuilder::new();
        let weights = ["a", "b", "c"].map(|name| g.weight(name, DType::Q8_0, &[64, 32]).unwrap());
        let x = g.leaf(LeafKind::State, "x", DType::F32, &[64, columns]).unwrap();
        let other = g.input("other", DType::F32, &[64, columns]).unwrap();
        let first = g.push(MulMat, &[weights[0], x]).unwrap();
        let second = g.push(MulMat, &[weights[1], x]).unwrap();
        let copied = g.push(Cpy, &[other, x]).unwrap();
        // The same tensor, which has other numbers now.
        let third = g.push(MulMat, &[weights[2], x]).unwrap();
        for id in [first, second, copied, third] {
            g.output(id);
        }
        let (executable, places, kernels) = compile(device.as_ref(), g.finish().unwrap());
        let queue = device.queue().unwrap();
        let at = |id: TensorId| places[id.index()].clone().unwrap();
        for (i, &id) in weights.iter().enumerate() {
            queue.write(&at(id), rows_of(i as u8 + 1, 32)).unwrap();
        }
        for (id, number) in [(x, 1f32), (other, -2f32)] {
            queue.write(&at(id), Bytes::from(number.to_le_bytes().repeat(64 * columns))).unwrap();
        }
        queue.execute(&executable).unwrap();
        for (id, want) in [(first, 64.0), (second, 128.0), (third, -384.0f32)] {
            let result = queue.read(&at(id)).unwrap().wait(LONG).unwrap();
            let mut results = result.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word));
            assert!(results.all(|got| (got - want).abs() < 1e-3), "{columns} columns: {want}");
        }
        // Three products and a copy; columns twice, but for matrix units, to whose products they come as halves, each time.
        let by_units = columns > 8 && std::env::var_os("OUTBOARD_VULKAN_UNITS").is_some_and(|value| !value.is_empty());
        assert_eq!(kernels, if by_units { 7 } else { 6 }, "{columns} columns; are there matrix units? {by_units}");
    }
}

/// Elements of a head, heads of queries, heads of keys and values, the width of the block between, and positions.
const HEAD: usize = 64;
const HEADS: [usize; 2] = [4, 2];
const WIDE: usize = 512;
const KEYS: usize = 64;

/// A layer of a llama with one token, with its number.
fn layer(g: &mut GraphBuilder, x: TensorId, number: usize, [positions, rows]: [TensorId; 2]) -> TensorId {
    let width = HEAD * HEADS[0];
    let weight = |g: &mut GraphBuilder, name: &str, ne: [usize; 2]| {
        g.weight(&format!("{name} {number}"), DType::Q8_0, &ne).unwrap()
    };
    let normed = |g: &mut GraphBuilder, x, name: &str| {
        let scale = g.weight(&format!("{name} {number}"), DType::F32, &[width]).unwrap();
        let norm = g.push(Norm { kind: NormKind::RmsNorm, eps: 1e-5 }, &[x]).unwrap();
        g.push(Binary { kind: BinaryKind::Mul }, &[norm, scale]).unwrap()
    };
    let column = normed(g, x, "attention");
    let of_heads = [("q", HEADS[0]), ("k", HEADS[1]), ("v", HEADS[1])].map(|(name, heads)| {
        let weights = weight(g, name, [width, HEAD * heads]);
        (g.push(MulMat, &[weights, column]).unwrap(), heads)
    });
    let [q, k, v] = of_heads.map(|(x, heads)| g.push(Reshape { ne: [HEAD, heads, 1, 1] }, &[x]).unwrap());
    let rotated = [q, k].map(|x| g.push(Rope::plain(RopeMode::Neox, HEAD, 1e4), &[x, positions]).unwrap());
    let axes = Permute { axes: [0, 2, 1, 3] };
    let caches = [("keys", rotated[1]), ("values", v)].map(|(name, x)| {
        let cache = g.leaf(LeafKind::State, &format!("{name} {number}"), DType::F16, &[HEAD, KEYS, HEADS[1]]).unwrap();
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
    let products = ["gate", "up"].map(|name| {
        let weights = weight(g, name, [width, WIDE]);
        g.push(MulMat, &[weights, column]).unwrap()
    });
    let gated = g.push(Glu { kind: GluKind::Swiglu }, &products).unwrap();
    added(g, "down", WIDE, gated, x)
}

/// Norm, three products, both rotations and what goes to caches, attention, its product with the sum, norm, gated unit, product with the sum. That they are right is
/// seen with random graphs (`local-backends/tests/hazards.rs`).
#[test]
fn a_layer_of_a_dense_model_takes_twelve_kernels() {
    let Some((device, _alone)) = device(false) else { return };
    let kernels = [1, 3].map(|layers| {
        let mut g = GraphBuilder::new();
        let mut x = g.input("x", DType::F32, &[HEAD * HEADS[0], 1]).unwrap();
        let inputs = ["positions", "rows"].map(|name| g.input(name, DType::I32, &[1]).unwrap());
        for number in 0..layers {
            x = layer(&mut g, x, number, inputs);
        }
        g.output(x);
        compile(device.as_ref(), g.finish().unwrap()).2
    });
    assert_eq!(kernels, [12, 36]);
}
