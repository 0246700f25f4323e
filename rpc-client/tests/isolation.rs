//! What one session leaves in a server, another must not see. On CPU devices, with the limits that are shipped.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;

use common::*;
use outboard_core::Host;
use outboard_core::op::*;
use outboard_core::quant::quantize_row;
use outboard_core::*;
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_fuzz::random::{Content, POISON, RandomGraph};
use outboard_host::MemoryBudget;
use outboard_rpc_server::{Limits, Server, ServerConfig, Trust};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A server as it is shipped: one CPU device, the default limits.
fn shipped(threads: usize) -> (Server, Arc<MemoryBudget>) {
    let (host, budget) = (Host::new(), MemoryBudget::new(Some(MEMORY)));
    let devices = vec![cpu_device(&host, "CPU0", CpuOptions::with_threads(threads), &budget)];
    let addr = "127.0.0.1:0".parse().unwrap();
    let config = ServerConfig { addr, devices, limits: Limits::default(), trust: Trust::default() };
    (Server::start(config).unwrap(), budget)
}

/// A graph with a buffer for each of its tensors.
struct Placed {
    graph: Arc<Graph>,
    slices: Vec<Option<Slice>>,
    executable: Result<Arc<dyn Executable>>,
}

impl Placed {
    fn new(device: &Arc<dyn Device>, graph: Graph) -> Placed {
        let graph = Arc::new(graph);
        let size = |id: TensorId| graph.tensor(id).layout().span() as u64;
        let slices: Vec<_> = graph.ids().map(|id| (size(id) > 0).then(|| buffer(device, size(id)))).collect();
        let placement = Placement::new(&graph, device.as_ref(), slices.clone());
        let executable = placement.and_then(|placement| device.compile(graph.clone(), placement));
        Placed { graph, slices, executable }
    }

    fn slice(&self, id: TensorId) -> Slice {
        self.slices[self.graph.tensor(id).root().index()].clone().unwrap()
    }
}

/// A matrix of Q8_0 that gives back what it is multiplied with.
fn identity(k: usize) -> Vec<u8> {
    let row_bytes = DType::Q8_0.row_bytes(k).unwrap();
    let mut rows = vec![0; k * row_bytes];
    for (i, to) in rows.chunks_exact_mut(row_bytes).enumerate() {
        let mut row = vec![0.0; k];
        row[i] = 1.0;
        quantize_row(DType::Q8_0, &row, to).unwrap();
    }
    rows
}

/// What a graph begins with.
#[derive(Clone, Copy, PartialEq)]
enum First {
    /// A product of a matrix without rows.
    Empty,
    Nothing,
}

/// `y = w . x` with a matrix of Q8_0, behind what comes `first`.
fn product(k: usize, n: usize, first: First) -> (Graph, TensorId, TensorId, TensorId) {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[k, n]).unwrap();
    if first == First::Empty {
        let none = g.weight("none", DType::Q8_0, &[k, 0]).unwrap();
        let nothing = g.push(MulMat, &[none, x]).unwrap();
        g.output(nothing);
    }
    let w = g.weight("w", DType::Q8_0, &[k, k]).unwrap();
    let y = g.push(MulMat, &[w, x]).unwrap();
    g.output(y);
    (g.finish().unwrap(), x, w, y)
}

#[test]
fn a_product_without_rows_does_not_show_what_others_multiplied() {
    const K: usize = 256;
    let (server, _) = shipped(1);
    let [victim, attacker] = [(), ()].map(|()| devices(&server).remove(0));
    let run = |device: &Arc<dyn Device>, queue: &dyn Queue, values: &[f32], first: First| {
        let (graph, x, w, y) = product(K, 1, first);
        let placed = Placed::new(device, graph);
        queue.write(&placed.slice(w), identity(K).into()).unwrap();
        queue.write(&placed.slice(x), f32s(values)).unwrap();
        queue.execute(placed.executable.as_ref().unwrap()).unwrap();
        read(queue, &placed.slice(y))
    };
    let secret: Vec<f32> = (0..K).map(|i| i as f32 - 100.0).collect();
    let (hers, his) = (victim.queue().unwrap(), attacker.queue().unwrap());
    for _ in 0..3 {
        assert_ne!(run(&victim, hers.as_ref(), &secret, First::Nothing), f32s(&[0.0; K]));
        assert_eq!(run(&attacker, his.as_ref(), &[0.0; K], First::Empty), f32s(&[0.0; K]));
    }
}

/// A graph of one node that counts.
fn one_node(make: impl FnOnce(&mut GraphBuilder) -> std::result::Result<TensorId, GraphError>) -> Graph {
    let mut g = GraphBuilder::new();
    let node = make(&mut g).unwrap();
    g.output(node);
    g.finish().unwrap()
}

/// A view that says to be much larger than its tensor: all of its rows are the same.
fn repeated(g: &mut GraphBuilder, x: TensorId, ne: [usize; 4]) -> std::result::Result<TensorId, GraphError> {
    g.push(View { ne, nb: [4, 0, 0, 0], offset: 0 }, &[x])
}

#[test]
fn scratch_memory_has_limits_and_does_not_outlive_its_session() {
    let (server, budget) = shipped(2);
    let device = devices(&server).remove(0);
    // A list for each of 2^28 experts was 6.4 GB, of a weight of four bytes.
    let experts = one_node(|g| {
        let w = g.weight("w", DType::F32, &[1])?;
        let w = repeated(g, w, [1, 1, 1 << 28, 1])?;
        let (x, ids) = (g.input("x", DType::F32, &[1, 1, 1])?, g.input("ids", DType::I32, &[1, 1])?);
        g.push(MulMatId, &[w, x, ids])
    });
    let placed = Placed::new(&device, experts);
    let queue = device.queue().unwrap();
    queue.execute(placed.executable.as_ref().unwrap()).unwrap();
    queue.finish(WAIT).unwrap();
    drop(placed);
    eventually(WAIT, || budget.used() == 0);
    // Tiles of keys and values of heads this long are 34 GB.
    const LONG: usize = 1 << 26;
    let attention = one_node(|g| {
        let row = g.input("row", DType::F32, &[LONG])?;
        let all = repeated(g, row, [LONG, 2, 1, 1])?;
        g.push(FlashAttn { scale: 1.0, window: 0, softcap: 0.0, block: 0 }, &[all, all, all])
    });
    let placed = Placed::new(&device, attention);
    let error = placed.executable.as_ref().unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { needed, .. } if *needed > 34 << 30), "{error}");
    assert!(error.to_string().contains("scratch memory"), "{error}");
    drop(placed);
    // Some is given, counts, and is free when the graph has gone.
    let product = || product(4096, 512, First::Nothing).0;
    let tensors: u64 = {
        let graph = product();
        graph.ids().map(|id| graph.tensor(id).layout().span() as u64).sum()
    };
    eventually(WAIT, || budget.used() == 0);
    let placed = Placed::new(&device, product());
    placed.executable.as_ref().unwrap();
    assert!(budget.used() > tensors + (512 << 12), "{} bytes, {tensors} of them tensors", budget.used());
    drop((placed, queue, device));
    eventually(WAIT, || budget.used() == 0);
}

#[test]
fn a_client_that_leaves_in_the_middle_of_a_large_product_leaves_the_device_to_others() {
    // One node of minutes: 2^14 x 2^14 times 2^13 columns, of memory that is 64 KiB but for the result.
    const N: usize = 1 << 14;
    let (server, budget) = shipped(1);
    let large = one_node(|g| {
        let (w, x) = (g.weight("w", DType::F32, &[N])?, g.input("x", DType::F32, &[N])?);
        let (w, x) = (repeated(g, w, [N, N, 1, 1])?, repeated(g, x, [N, N / 2, 1, 1])?);
        g.push(MulMat, &[w, x])
    });
    let [leaves, stays] = [(), ()].map(|()| devices(&server).remove(0));
    let placed = Placed::new(&leaves, large);
    let queue = leaves.queue().unwrap();
    queue.execute(placed.executable.as_ref().unwrap()).unwrap();
    assert!(matches!(queue.finish(std::time::Duration::from_millis(500)), Err(Error::Timeout { .. })));
    drop((placed, queue, leaves));
    let program = program();
    let small = common::Placed::new(&stays, &program);
    let queue = stays.queue().unwrap();
    queue.write(&small.slice(&program, program.x), f32s(&[1.0; 8])).unwrap();
    queue.execute(&small.executable).unwrap();
    let left = std::time::Instant::now();
    assert_eq!(read(queue.as_ref(), &small.slice(&program, program.y)), f32s(&[2.0; 8]));
    assert!(left.elapsed() < WAIT / 2, "the device was held for {:?}", left.elapsed());
    eventually(WAIT, || budget.used() < 1 << 20);
}

/// A random graph in one buffer, with room between its tensors that nothing writes.
struct Random {
    random: RandomGraph,
    seed: u64,
    places: Vec<Option<std::ops::Range<u64>>>,
    size: u64,
}

impl Random {
    fn new(seed: u64) -> Random {
        let random = RandomGraph::new(seed);
        let (mut places, mut size) = (Vec::new(), 64);
        for t in random.graph.ids().map(|id| (id, random.graph.tensor(id))) {
            let span = t.1.layout().span() as u64;
            places.push((t.1.root() == t.0 && span > 0).then_some(size..size + span));
            size =
                if places.last().is_some_and(Option::is_some) { (size + span + 64).next_multiple_of(64) } else { size };
        }
        Random { random, seed, places, size }
    }

    /// Runs it on a device: all of its memory afterwards, or the error of the node that failed.
    fn run(
        &self,
        device: &Arc<dyn Device>,
        queue: &dyn Queue,
        content: Content,
    ) -> std::result::Result<Vec<u8>, String> {
        let whole = buffer(device, self.size);
        let part = |r: &std::ops::Range<u64>| whole.part(r.start, r.end - r.start).unwrap();
        if content == Content::Poison {
            queue.fill(&whole, POISON).unwrap();
        }
        for (id, _) in self.random.graph.leaves() {
            if let Some(place) = &self.places[id.index()] {
                queue.write(&part(place), self.random.content(id, content, self.seed).into()).unwrap();
            }
        }
        let graph = Arc::new(self.random.graph.clone());
        let slices = self.places.iter().map(|place| place.as_ref().map(part)).collect();
        let placement = Placement::new(&graph, device.as_ref(), slices).unwrap();
        queue.execute(&device.compile(graph, placement).unwrap()).map_err(|e| e.to_string())?;
        Ok(queue.read(&whole).unwrap().wait(WAIT).map_err(|e| e.to_string())?.to_vec())
    }
}

#[test]
fn ten_thousand_graphs_beside_a_poisoned_session_compute_what_they_do_alone() {
    const GRAPHS: u64 = 10_000;
    let (server, _) = shipped(2);
    let (host, budget) = (Host::new(), MemoryBudget::new(Some(MEMORY)));
    let alone = cpu_device(&host, "CPU0", CpuOptions::with_threads(2), &budget);
    let queue_alone = alone.queue().unwrap();
    let done = AtomicBool::new(false);
    let poisoned = AtomicU64::new(0);
    std::thread::scope(|scope| {
        // Every byte of this session is poison: its buffers, what it computes with, and so what its graphs leave anywhere.
        scope.spawn(|| {
            let device = devices(&server).remove(0);
            let queue = device.queue().unwrap();
            for seed in GRAPHS.. {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                Random::new(seed).run(&device, queue.as_ref(), Content::Poison).unwrap();
                poisoned.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _done = Done(&done);
        let device = devices(&server).remove(0);
        let queue = device.queue().unwrap();
        let mut ops = HashSet::new();
        for seed in 0..GRAPHS {
            let random = Random::new(seed);
            let expected = random.run(&alone, queue_alone.as_ref(), Content::Numbers).unwrap();
            let got = random.run(&device, queue.as_ref(), Content::Numbers).unwrap();
            let differs = expected.iter().zip(&got).position(|(a, b)| a != b);
            assert_eq!(differs, None, "graph {seed}, byte {differs:?}: {:?}", random.random.graph);
            let graph = &random.random.graph;
            ops.extend(graph.nodes().filter_map(|id| graph.tensor(id).op().map(Op::name)));
        }
        let missing: Vec<_> = Op::names().filter(|name| !ops.contains(name)).collect();
        assert!(missing.is_empty(), "no graph had {missing:?}");
    });
    let poisoned = poisoned.into_inner();
    assert!(poisoned > GRAPHS / 20, "the other session has run {poisoned} graphs only");
}

/// Tells the other thread to end, however this one does.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
