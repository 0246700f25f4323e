//! Graphs off the wire, run on the reference device, on the CPU device, and on another one where the environment names it. An input is a byte,
//! which says what the leaves hold, and an encoded graph. Tensors lie between guard bytes that nobody may touch.

use crate::mutate::protobuf;
use crate::second::second_device;
use outboard_core::Host;
use outboard_core::{Device, Error, Graph, LeafKind, Placement, Slice, Usage};
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_host::MemoryBudget;
use outboard_proto::graph;
use outboard_reference::reference_device;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::ops::Range;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Bytes between tensors.
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xa5;
/// Most bytes of a graph that is run, and most work, so that an input takes milliseconds.
const MAX_BYTES: usize = 1 << 20;
const MAX_WORK: u64 = 1 << 22;
/// Longest run of such a graph, by far.
const LIMIT: Duration = Duration::from_secs(20);

static DEVICES: LazyLock<Vec<Arc<dyn Device>>> = LazyLock::new(|| {
    let (host, budget) = (Host::new(), MemoryBudget::new(Some(64 << 20)));
    let ours: [Arc<dyn Device>; 2] =
        [reference_device(&host, "REF0", &budget), cpu_device(&host, "CPU0", CpuOptions::with_threads(1), &budget)];
    ours.into_iter().chain(second_device(&host, "SECOND", &budget)).collect()
});

pub(crate) fn run(input: &[u8]) {
    let Some((&seed, bytes)) = input.split_first() else { return };
    let Ok(graph) = graph::decode(bytes) else { return };
    let graph = Arc::new(graph);
    let Some((places, size)) = places(&graph) else { return };
    let work = graph.ids().fold(0u64, |sum, id| {
        sum.saturating_add(graph.flops(id)).saturating_add(graph.tensor(id).layout().elements() as u64)
    });
    if work > MAX_WORK {
        return;
    }
    let image = image(&graph, &places, size, seed);
    for device in DEVICES.iter() {
        on(device, &graph, &places, &image);
    }
}

pub(crate) fn mutate(input: &[u8], rng: &mut StdRng) -> Vec<u8> {
    let Some((&seed, bytes)) = input.split_first() else { return vec![rng.random()] };
    let seed = if rng.random_range(0..8) == 0 { rng.random() } else { seed };
    [&[seed][..], &protobuf(bytes, rng)].concat()
}

/// Where each root lies, and how much memory that takes; `None` if it is too much.
fn places(graph: &Graph) -> Option<(Vec<Option<Range<usize>>>, usize)> {
    let mut end = GUARD;
    let mut places = Vec::new();
    for id in graph.ids() {
        let (t, span) = (graph.tensor(id), graph.tensor(id).layout().span());
        if t.root() != id || span == 0 {
            places.push(None);
            continue;
        }
        let start = end.next_multiple_of(GUARD);
        end = start.checked_add(span)?.checked_add(GUARD).filter(|&end| end <= MAX_BYTES)?;
        places.push(Some(start..start + span));
    }
    Some((places, end.next_multiple_of(GUARD)))
}

/// The memory before the run: small numbers mostly, and some that are none.
fn image(graph: &Graph, places: &[Option<Range<usize>>], size: usize, seed: u8) -> Vec<u8> {
    let mut rng = StdRng::seed_from_u64(seed.into());
    let mut image = vec![GUARD_BYTE; size];
    for (id, place) in graph.ids().zip(places) {
        let (t, Some(place)) = (graph.tensor(id), place) else { continue };
        let bytes = &mut image[place.clone()];
        if t.leaf() == Some(LeafKind::State) && seed % 2 == 0 {
            bytes.fill(0);
        } else if t.dtype() == outboard_core::DType::I32 {
            for value in bytes.chunks_exact_mut(4) {
                let odd = [-1, i32::MIN, i32::MAX, 4, 1000, 0x0100_0000];
                let n = if rng.random_range(0..40) == seed % 41 { odd.choose(&mut rng).copied() } else { None };
                value.copy_from_slice(&n.unwrap_or_else(|| rng.random_range(0..3)).to_le_bytes());
            }
        } else if t.dtype() == outboard_core::DType::F32 {
            for value in bytes.chunks_exact_mut(4) {
                let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, f32::MAX, f32::MIN_POSITIVE / 2.0];
                let x = if rng.random_range(0..60) == seed % 61 { odd.choose(&mut rng).copied() } else { None };
                value.copy_from_slice(&x.unwrap_or_else(|| rng.random_range(-2.0..2.0)).to_le_bytes());
            }
        } else {
            rng.fill(bytes);
        }
    }
    image
}

fn on(device: &Arc<dyn Device>, graph: &Arc<Graph>, places: &[Option<Range<usize>>], image: &[u8]) {
    let whole = Slice::whole(device.alloc(image.len() as u64, Usage::Any).expect("a little memory"));
    let part = |r: &Range<usize>| whole.part(r.start as u64, r.len() as u64).expect("inside");
    let slices = places.iter().map(|p| p.as_ref().map(part)).collect();
    // A node that writes what it reads is refused.
    let Ok(placement) = Placement::new(graph, device.as_ref(), slices) else { return };
    let executable = match device.compile(graph.clone(), placement) {
        Ok(executable) => executable,
        Err(Error::Request(_)) => return,
        Err(e) => panic!("a graph is not {e:?}"),
    };
    let queue = device.queue().expect("a queue");
    queue.write(&whole, image.to_vec().into()).expect("room");
    queue.execute(&executable).expect("room");
    match queue.finish(LIMIT) {
        Ok(()) => {}
        // Row numbers and positions that are not there.
        Err(Error::Device { op: Some(_), detail, .. }) => {
            assert!(!detail.contains("panic") && !detail.contains("CUDA_ERROR"), "{detail}");
        }
        Err(e) => panic!("{e}"),
    }
    let after = device.queue().expect("a queue").read(&whole).expect("room").wait(LIMIT).expect("bytes");
    let mut inside = places.iter().flatten().cloned().collect::<Vec<_>>();
    inside.sort_unstable_by_key(|r| r.start);
    let mut at = 0;
    for r in inside.iter().chain([&(image.len()..image.len())]) {
        assert_eq!(&after[at..r.start], &image[at..r.start], "{}: memory between tensors", device.info().id);
        at = r.end;
    }
    // What nothing writes is what it was.
    for (id, place) in graph.ids().zip(places) {
        let written = graph.ids().any(|n| graph.tensor(n).is_compute() && graph.tensor(n).root() == id);
        if let (Some(place), false) = (place, written) {
            assert_eq!(&after[place.clone()], &image[place.clone()], "{}: {}", device.info().id, graph.label(id));
        }
    }
}
