//! What must come out whatever a device computes together, in another order, or again: random graphs, in memory that results share, run after run
//! with other inputs. The whole graph has to leave what its nodes leave one by one on the same device, to the bit, and each node what the oracle
//! computes.

mod alone;
mod graph;
mod places;

use crate::case::Check;
use crate::compare::compare;
use crate::fill::Random;
use alone::{Alone, alone};
use bytes::Bytes;
use graph::Made;
use outboard_core::op::Op;
use outboard_core::quant::quantize_row;
use outboard_core::{
    DType, Device, Error, Executable, Graph, LeafKind, Placement, Queue, Result, Slice, TensorId, Usage,
};
use places::Places;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs of a graph: the first, those that a device may have recorded, and those of other weights.
const RUNS: usize = 3;
/// Longest wait for one result: such graphs are small.
const WAIT: Duration = Duration::from_secs(120);
/// What memory holds that nobody has written.
const UNWRITTEN: u8 = 0xa5;

/// How many seconds [`hazards`] takes, and from which seed on.
const SECONDS: &str = "OUTBOARD_HAZARDS";
const SEED: &str = "OUTBOARD_HAZARDS_SEED";
/// What is wrong with a device: so many graphs are told of.
const MOST_WRONG: usize = 4;

/// Runs random graphs for so many seconds, or as `OUTBOARD_HAZARDS` says (from seed `OUTBOARD_HAZARDS_SEED` on). Returns how many graphs the device
/// ran, and what is wrong, of which `also` says more when a graph has run.
pub fn hazards(
    device: &dyn Device,
    oracle: &dyn Device,
    seconds: u64,
    also: impl Fn() -> Vec<String>,
) -> (usize, Vec<String>) {
    let number = |name, otherwise| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let (begun, limit) = (Instant::now(), Duration::from_secs(number(SECONDS, seconds)));
    let (mut ran, mut wrong) = (0, Vec::new());
    for seed in number(SEED, 0).. {
        if begun.elapsed() > limit || wrong.len() >= MOST_WRONG {
            break;
        }
        match one(device, oracle, seed) {
            Ok(Some(done)) => {
                ran += 1;
                wrong.extend(done.err());
            }
            Ok(None) => {}
            Err(error) => wrong.push(format!("seed {seed}: {error}")),
        }
        wrong.extend(also().into_iter().map(|more| format!("seed {seed}: {more}")));
    }
    (ran, wrong)
}

/// The graph of a seed on a device, compared with itself node by node and with the oracle. `None` if the device does not support it; what is wrong
/// is said with the graph. An error means that the run could not go on.
fn one(device: &dyn Device, oracle: &dyn Device, seed: u64) -> Result<Option<Told>> {
    let mut random = Random::of(&format!("hazards {seed}"));
    let made = graph::graph(&mut random).map_err(|e| Error::Misuse(e.to_string()))?;
    let supported = device.supports(&made.graph)?;
    if !made.graph.ids().all(|id| supported.contains(id)) {
        return Ok(None);
    }
    let places = if random.chance(3) { places::apart(&made.graph) } else { places::shared(&made.graph, &mut random) };
    // A node that would write what it reads, because a graph may copy a state onto itself.
    let some = Slice::whole(oracle.alloc(places.size as u64, Usage::Any)?);
    if placement(&made.graph, oracle, &places.of, &some).is_err() {
        return Ok(None);
    }
    let trial = Trial { looked_at: looked_at(&made.graph, &places), made, places };
    let done = trial.run(device, oracle, &mut random)?;
    Ok(Some(done.map_err(|why| format!("seed {seed}: {why}\n{}", trial.text()))))
}

/// Bytes that mean something when the graph has run: which nothing has written, or what stays has written last.
fn looked_at(graph: &Graph, places: &Places) -> Vec<bool> {
    let (lives, mut looked_at) = (places::lives(graph), vec![true; places.size]);
    let leaves = graph.ids().filter(|&id| graph.tensor(id).leaf().is_some());
    let written = leaves.chain(graph.nodes().filter(|&id| graph.tensor(id).is_compute()));
    for root in written.map(|id| graph.tensor(id).root()) {
        if let Some(place) = places.of[root.index()].clone() {
            let stays = lives[root.index()].1 == usize::MAX;
            looked_at[place].fill(stays);
        }
    }
    looked_at
}

struct Trial {
    made: Made,
    places: Places,
    looked_at: Vec<bool>,
}

/// A node's graph, compiled.
struct Node {
    id: TensorId,
    alone: Arc<Alone>,
    executable: Arc<dyn Executable>,
}

type Told = std::result::Result<(), String>;

impl Trial {
    fn run(&self, device: &dyn Device, oracle: &dyn Device, random: &mut Random) -> Result<Told> {
        let graph = Arc::new(self.made.graph.clone());
        let memory =
            |device: &dyn Device| Ok::<_, Error>(Slice::whole(device.alloc(self.places.size as u64, Usage::Any)?));
        let (together, apart, of_oracle) = (memory(device)?, memory(device)?, memory(oracle)?);
        let whole = device.compile(graph.clone(), placement(&graph, device, &self.places.of, &together)?)?;
        let nodes = self.nodes(device, &apart)?;
        let right = self.nodes(oracle, &of_oracle)?;
        let (queue, oracles) = (device.queue()?, oracle.queue()?);
        for slice in [&together, &apart] {
            queue.fill(slice, UNWRITTEN)?;
        }
        for run in 0..RUNS {
            for (place, bytes) in self.leaves(run, random) {
                for slice in [&together, &apart] {
                    queue.write(&part(slice, &place)?, bytes.clone())?;
                }
            }
            queue.execute(&whole)?;
            for (node, right) in nodes.iter().zip(&right) {
                if run + 1 < RUNS {
                    queue.execute(&node.executable)?;
                    continue;
                }
                if let Err(why) = self.one(queue.as_ref(), (node, &apart), oracles.as_ref(), (right, &of_oracle))? {
                    return Ok(Err(why));
                }
            }
            let (got, want) = (read(queue.as_ref(), &together)?, read(queue.as_ref(), &apart)?);
            if let Some(at) = (0..self.places.size).find(|&at| self.looked_at[at] && got[at] != want[at]) {
                return Ok(Err(format!("run {run}: byte {at} ({}) is not what nodes leave one by one", self.name(at))));
            }
        }
        Ok(Ok(()))
    }

    fn nodes(&self, device: &dyn Device, memory: &Slice) -> Result<Vec<Node>> {
        let graph = &self.made.graph;
        let nodes = graph.nodes().filter(|&id| graph.tensor(id).is_compute());
        let compile = |id| {
            let alone = alone(graph, &self.places, id).map_err(|e| Error::Misuse(e.to_string()))?;
            let graph = Arc::new(alone.graph.clone());
            let executable = device.compile(graph.clone(), placement(&graph, device, &alone.places, memory)?)?;
            Ok(Node { id, alone: Arc::new(alone), executable })
        };
        nodes.map(compile).collect()
    }

    /// Runs a node on the device, and on the oracle with the same memory.
    fn one(
        &self,
        queue: &dyn Queue,
        (node, memory): (&Node, &Slice),
        oracle: &dyn Queue,
        (right, of_oracle): (&Node, &Slice),
    ) -> Result<Told> {
        let before = read(queue, memory)?;
        queue.execute(&node.executable)?;
        let after = read(queue, memory)?;
        oracle.write(of_oracle, before.clone())?;
        oracle.execute(&right.executable)?;
        let want = read(oracle, of_oracle)?;
        let graph = &self.made.graph;
        let root = graph.tensor(node.id).root();
        let Some(place) = self.places.of[root.index()].clone() else { return Ok(Ok(())) };
        if let Some(at) = (0..self.places.size).find(|&at| !place.contains(&at) && before[at] != after[at]) {
            return Ok(Err(format!("byte {at} ({}) was changed by {}", self.name(at), graph.label(node.id))));
        }
        let layout = graph.tensor(root).layout();
        let compared = compare(layout, &after[place.clone()], &want[place], check(&node.alone.graph));
        Ok(compared.map(|_| ()).map_err(|wrong| format!("{}: {}", graph.label(node.id), wrong.detail)))
    }

    /// What leaves hold before a run: state only before the first, weights before some.
    fn leaves(&self, run: usize, random: &mut Random) -> Vec<(Range<usize>, Bytes)> {
        let mut all = Vec::new();
        for (id, kind) in self.made.graph.leaves() {
            let Some(place) = self.places.of[id.index()].clone() else { continue };
            let is_new = run == 0 || kind == LeafKind::Input || kind == LeafKind::Weight && run == RUNS - 1;
            if is_new {
                all.push((place, self.content(id, kind, random)));
            }
        }
        all
    }

    fn content(&self, id: TensorId, kind: LeafKind, random: &mut Random) -> Bytes {
        let layout = self.made.graph.tensor(id).layout();
        let mut bytes = vec![0; layout.span()];
        if layout.dtype() == DType::I32 {
            let bound = self.made.bounds.get(&id).copied().unwrap_or(1);
            for row in bytes.chunks_exact_mut(4 * layout.ne()[0]) {
                let mut rows: Vec<usize> = (0..bound).collect();
                for number in row.as_chunks_mut::<4>().0 {
                    *number = (rows.swap_remove(random.below(rows.len())) as i32).to_le_bytes();
                }
            }
        } else {
            let most = if kind == LeafKind::Weight { 0.3 } else { 1.0 };
            let values: Vec<f32> = (0..layout.elements()).map(|_| most * (2.0 * random.unit() - 1.0)).collect();
            // Types that weights have can be written.
            let _ = quantize_row(layout.dtype(), &values, &mut bytes);
        }
        bytes.into()
    }

    /// What lies at a byte.
    fn name(&self, at: usize) -> String {
        let here = |id: &TensorId| self.places.of[id.index()].as_ref().is_some_and(|place| place.contains(&at));
        let names: Vec<_> = self.made.graph.ids().filter(here).map(|id| self.made.graph.label(id)).collect();
        if names.is_empty() { "nothing".into() } else { names.join(", ") }
    }

    /// The graph, a line for each tensor.
    fn text(&self) -> String {
        let graph = &self.made.graph;
        let line = |id: TensorId| {
            let tensor = graph.tensor(id);
            let (sources, place) = (tensor.srcs(), &self.places.of[id.index()]);
            let output = if tensor.is_output() { " output" } else { "" };
            format!("{id:?} {} {} of {sources:?} at {place:?}{output}\n", graph.label(id), tensor.layout())
        };
        graph.ids().map(line).collect()
    }
}

fn part(whole: &Slice, place: &Range<usize>) -> Result<Slice> {
    whole.part(place.start as u64, place.len() as u64)
}

fn read(queue: &dyn Queue, slice: &Slice) -> Result<Bytes> {
    queue.read(slice)?.wait(WAIT)
}

fn placement(graph: &Graph, device: &dyn Device, places: &[Option<Range<usize>>], whole: &Slice) -> Result<Placement> {
    let slices = places.iter().map(|place| place.as_ref().map(|place| part(whole, place)).transpose());
    Placement::new(graph, device, slices.collect::<Result<_>>()?)
}

/// How near a node's result has to be.
fn check(graph: &Graph) -> Check {
    let op = graph.nodes().filter_map(|id| graph.tensor(id).op()).next_back();
    match op {
        Some(Op::MulMat(_) | Op::MulMatId(_) | Op::FlashAttn(_)) => Check::PRODUCT,
        Some(Op::Argmax(_)) => Check::Exact,
        _ => Check::SOFT_MAX,
    }
}
