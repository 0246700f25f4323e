//! Random graphs on random devices: the plan is right, and the results are those of one device, bit for bit.

use crate::devices::{DEADLINE, Oracle, device};
use crate::graphs::{Step, build, content, steps};
use crate::shadow;
use bytes::Bytes;
use outboard_core::Host;
use outboard_core::{Device, DeviceKind, Graph, LeafKind, Slice, TensorId, Usage, WeightTail};
use outboard_detached::{DetachedOptions, detached_device};
use outboard_host::MemoryBudget;
use outboard_scheduler::memory::MemoryRules;
use outboard_scheduler::{Hints, Plan, Scheduler, SchedulerOptions};
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// One device of a case.
#[derive(Clone, Debug)]
struct Spec {
    /// Which of two hosts it is on; hosts do not reach each other.
    host: usize,
    cpu: bool,
    alignment: usize,
    /// Its largest allocation is no larger than the largest tensor.
    small: bool,
    /// Bytes that it wants behind weights.
    tail: u64,
    /// It is a card with memory of its own, if it is the one that supports everything.
    card: bool,
    /// Eighths of the ops that it supports, and which.
    share: u64,
    seed: u64,
}

/// Devices and hints of a case. Numbers choose by remainder, so that any will do.
#[derive(Clone, Debug)]
struct World {
    devices: Vec<Spec>,
    /// The device that supports everything.
    able: usize,
    /// Device of each leaf.
    leaves: Vec<usize>,
    pins: Vec<(usize, usize)>,
    prefer: Vec<(usize, usize)>,
    seed: u64,
}

fn worlds() -> impl Strategy<Value = World> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let tails = prop_oneof![Just(0), Just(510), 1..200u64];
    let spec = (0..2usize, flags, 4..8u32, tails, 0..9u64, any::<u64>()).prop_map(
        |(host, (cpu, small, card), align, tail, share, seed)| Spec {
            host,
            cpu,
            alignment: 1 << align,
            small,
            tail,
            card,
            share,
            seed,
        },
    );
    let pairs = || prop::collection::vec((any::<usize>(), 0..4usize), 0..24);
    let devices = prop_oneof![1 => prop::collection::vec(spec.clone(), 1), 8 => prop::collection::vec(spec, 2..=4)];
    let leaves = prop::collection::vec(0..4usize, 16);
    (devices, 0..4usize, leaves, pairs(), pairs(), any::<u64>()).prop_map(
        |(devices, able, leaves, pins, prefer, seed)| {
            let able = able % devices.len();
            World { devices, able, leaves, pins, prefer, seed }
        },
    )
}

impl Spec {
    fn memory(&self, graph: &Graph) -> MemoryRules {
        let alignment = self.alignment;
        let smallest = largest(graph).next_multiple_of(alignment as u64);
        let weight_tail = WeightTail(self.tail);
        MemoryRules { alignment, max_alloc: if self.small { smallest + self.tail } else { u64::MAX }, weight_tail }
    }
}

/// Bytes of the largest tensor.
fn largest(graph: &Graph) -> u64 {
    graph.tensors().iter().map(|t| t.layout().span() as u64).max().unwrap_or(0).max(1)
}

impl World {
    fn supports(&self, device: usize, op: &str) -> bool {
        let spec = &self.devices[device];
        let mut hasher = DefaultHasher::new();
        (spec.seed, op).hash(&mut hasher);
        device == self.able || hasher.finish() % 8 < spec.share
    }

    fn devices(&self, graph: &Graph) -> (Vec<Arc<dyn Device>>, Vec<Arc<MemoryBudget>>) {
        let hosts = [Host::new(), Host::new()];
        let one = |(d, spec): (usize, &Spec)| {
            let (world, kind) = (self.clone(), if spec.cpu { DeviceKind::Cpu } else { DeviceKind::Gpu });
            let (host, name, budget) = (&hosts[spec.host], format!("D{d}"), MemoryBudget::new(None));
            if d == self.able && spec.card {
                let weight_tail = WeightTail(spec.tail);
                let max_alloc = (largest(graph) + spec.tail).next_multiple_of(256);
                let latency = Duration::from_micros(20);
                let options = DetachedOptions { memory: 1 << 30, max_alloc, weight_tail, latency };
                return (detached_device(host, &name, options) as Arc<dyn Device>, budget);
            }
            let supports = move |op: &str| world.supports(d, op);
            let memory = spec.memory(graph);
            (device(host, &name, kind, memory, &budget, supports), budget)
        };
        self.devices.iter().enumerate().map(one).unzip()
    }

    fn hints(&self, graph: &Graph) -> Hints {
        let n = self.devices.len();
        let mut hints = Hints::default();
        for (id, kind) in graph.leaves() {
            let wanted = self.leaves[id.index()] % n;
            let writable = ["SET_ROWS", "CPY"].iter().all(|op| self.supports(wanted, op));
            let device = if kind == LeafKind::Weight || writable { wanted } else { self.able };
            if kind != LeafKind::Input || self.seed % 2 == 0 {
                hints.leaves.insert(id, device);
            }
        }
        let nodes: Vec<TensorId> = graph.nodes().collect();
        // A result that is written into goes with its writers, who may need another device.
        let free = |id: TensorId| {
            let writes = |w: TensorId| w != id && graph.tensor(w).is_compute() && graph.tensor(w).root() == id;
            graph.tensor(id).root() == id && !nodes.iter().any(|&w| writes(w))
        };
        let on = |&(node, device): &(usize, usize)| Some((*nodes.get(node % nodes.len().max(1))?, device % n));
        let able = |&(id, device): &(TensorId, usize)| {
            graph.tensor(id).op().is_some_and(|op| free(id) && self.supports(device, op.name()))
        };
        hints.pins = self.pins.iter().filter_map(on).filter(able).collect();
        hints.prefer = self.prefer.iter().filter_map(on).collect();
        hints
    }
}

fn check_devices(plan: &Plan, world: &World, hints: &Hints) {
    let graph = &plan.graph;
    for split in &plan.splits.splits {
        for &id in &split.nodes {
            let op = graph.tensor(id).op().unwrap();
            assert!(world.supports(split.device, op.name()), "{} on D{}", graph.label(id), split.device);
            assert_eq!(plan.assignment.device(id), Some(split.device));
            if let Some(&pin) = hints.pins.get(&id) {
                assert_eq!(split.device, pin, "{} is pinned", graph.label(id));
            }
        }
    }
}

fn inputs(graph: &Graph, run: u64) -> Vec<(TensorId, Bytes)> {
    let inputs = graph.leaves().filter(|(_, kind)| *kind == LeafKind::Input);
    inputs.map(|(id, _)| (id, content(graph, id, run))).collect()
}

fn check_plan(steps: &[Step], world: &World) {
    let graph = build(steps);
    let hints = world.hints(&graph);
    let scheduler = Scheduler::new(world.devices(&graph).0, SchedulerOptions { deadline: DEADLINE }).unwrap();
    let rules: Vec<MemoryRules> = scheduler.devices().iter().map(|d| MemoryRules::of(d.info())).collect();
    for plan in [scheduler.plan(graph.clone(), &hints), scheduler.plan_observed(graph.clone(), &hints)] {
        let plan = plan.unwrap();
        check_devices(&plan, world, &hints);
        shadow::check(&plan, &hints.leaves, &rules);
        assert!(!plan.to_string().is_empty());
    }
}

fn check_runs(steps: &[Step], world: &World) {
    let graph = build(steps);
    let hints = world.hints(&graph);
    let (devices, budgets) = world.devices(&graph);
    let mut scheduler = Scheduler::new(devices, SchedulerOptions { deadline: DEADLINE }).unwrap();
    let used = |budgets: &[Arc<MemoryBudget>]| budgets.iter().map(|b| b.used()).collect::<Vec<_>>();

    let mut bound = HashMap::new();
    let mut contents = HashMap::new();
    for (id, _) in graph.leaves().filter(|(_, kind)| *kind != LeafKind::Input) {
        let data = content(&graph, id, world.seed);
        let (device, len) = (&scheduler.devices()[hints.leaves[&id]], data.len() as u64);
        let tail = device.info().weight_tail.of(graph.tensor(id).dtype());
        bound.insert(id, Slice::new(device.alloc(len + tail, Usage::Any).unwrap(), 0, len).unwrap());
        contents.insert(id, data);
    }
    let write = |scheduler: &Scheduler| {
        for (id, data) in &contents {
            scheduler.queue(hints.leaves[id]).unwrap().write(&bound[id], data.clone()).unwrap();
        }
    };
    // Weights may come before or after the graphs are compiled.
    if world.seed % 3 == 0 {
        write(&scheduler);
    }
    // The first program takes scratch memory for the kernels as well, which those behind it share.
    let _first = scheduler.prepare(scheduler.plan(graph.clone(), &hints).unwrap(), &bound).unwrap();
    let before = used(&budgets);
    let plan = scheduler.plan(graph.clone(), &hints).unwrap();
    // A device whose results are all empty may take a byte for each.
    let expected: Vec<u64> =
        plan.compute_bytes().iter().zip(plan.weight_copy_bytes()).map(|(&compute, copies)| compute + copies).collect();
    let whole = scheduler.prepare(plan, &bound).unwrap();
    for (d, after) in used(&budgets).into_iter().enumerate() {
        let slack = graph.tensors().len() as u64 * 2;
        assert!(after - before[d] <= expected[d] + slack, "D{d} took more than {} bytes", expected[d]);
    }
    let plan = scheduler.plan_observed(graph.clone(), &hints).unwrap();
    let pieces = scheduler.prepare(plan, &bound).unwrap();
    if world.seed % 3 != 0 {
        write(&scheduler);
    }

    let oracle = Oracle::new(&graph, &contents);
    let mut expected = Vec::new();
    let mut results = Vec::new();
    // Everything is enqueued before the first result is looked at, and where nothing is kept from run to run, runs begin before others end.
    let stateless = !graph.leaves().any(|(_, kind)| kind == LeafKind::State);
    let ahead = if stateless { world.seed % 4 } else { 0 };
    let mut begun = VecDeque::new();
    let mut end = |(run, program, rest)| {
        scheduler.end(program, rest).unwrap();
        let read = |id: TensorId| (run, graph.label(id), scheduler.read(program, id).unwrap());
        results.extend(graph.outputs().map(read));
    };
    for (run, program) in [&whole, &whole, &pieces, &whole, &pieces].into_iter().enumerate() {
        let inputs = inputs(&graph, world.seed ^ run as u64);
        expected.extend(oracle.run(&inputs));
        begun.push_back((run, program, scheduler.begin(program, inputs).unwrap()));
        if begun.len() as u64 > ahead {
            begun.pop_front().into_iter().for_each(&mut end);
        }
    }
    begun.into_iter().for_each(end);
    assert_eq!(results.len(), expected.len());
    for ((run, label, result), (_, expected)) in results.into_iter().zip(expected) {
        assert_eq!(result.wait(DEADLINE).unwrap(), expected, "{label} of run {run}");
    }
    for (id, expected) in oracle.states() {
        let result = scheduler.queue(hints.leaves[&id]).unwrap().read(&bound[&id]).unwrap().wait(DEADLINE).unwrap();
        assert_eq!(result, expected, "{} after all runs", graph.label(id));
    }
    scheduler.finish().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1500) })]

    #[test]
    fn plans_are_right(steps in steps(), world in worlds()) {
        check_plan(&steps, &world);
    }

    #[test]
    fn results_are_those_of_one_device(steps in steps(), world in worlds()) {
        check_runs(&steps, &world);
    }
}

#[test]
fn random_graphs_are_not_trivial() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut nodes, mut copies, mut versions, mut in_place) = (0, 0, 0, 0);
    let mut ops = std::collections::HashSet::new();
    for _ in 0..200 {
        let (steps, world) = (steps(), worlds()).new_tree(&mut runner).unwrap().current();
        let graph = build(&steps);
        let scheduler = Scheduler::new(world.devices(&graph).0, SchedulerOptions::default()).unwrap();
        let plan = scheduler.plan(graph.clone(), &world.hints(&graph)).unwrap();
        nodes += plan.splits.splits.iter().map(|s| s.nodes.len()).sum::<usize>();
        copies += plan.splits.copies.len();
        let mut copied: Vec<_> = plan.splits.copies.iter().map(|c| (c.tensor, c.to)).collect();
        copied.sort();
        copied.dedup();
        versions += plan.splits.copies.len() - copied.len();
        let mut places: Vec<_> = plan.memory.places.values().filter(|a| a.size > 0).collect();
        places.sort_by_key(|a| (a.device, a.offset, a.first));
        in_place += places
            .windows(2)
            .filter(|w| (w[0].device, w[0].offset, w[0].last) == (w[1].device, w[1].offset, w[1].first))
            .count();
        ops.extend(graph.nodes().map(|id| graph.tensor(id).op().unwrap().name()));
    }
    assert!(nodes > 200 * 8, "{nodes} nodes");
    assert!(copies > 200 * 3, "{copies} copies");
    assert!(versions > 3, "{versions} tensors are copied again after a write");
    assert!(in_place > 100, "{in_place} results take over memory");
    assert!(ops.len() > 25, "{ops:?}");
}
