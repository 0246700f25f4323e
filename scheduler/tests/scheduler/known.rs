//! Small graphs whose plans are known, and what is said when there is none.

use crate::devices::{DEADLINE, Oracle, device};
use crate::graphs::content;
use crate::shadow;
use bytes::Bytes;
use outboard_core::Host;
use outboard_core::op::*;
use outboard_core::{
    DType, Device, DeviceKind, Error, Graph, GraphBuilder, LeafKind, NodeSet, Slice, TensorId, Usage, WeightTail,
};
use outboard_host::MemoryBudget;
use outboard_scheduler::memory::MemoryRules;
use outboard_scheduler::split::Place;
use outboard_scheduler::{DeviceView, Hints, Observer, Plan, PlanError, Program, Scheduler, SchedulerOptions, Verdict};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Alignment of every device here.
const MEMORY: MemoryRules = MemoryRules { alignment: 32, max_alloc: u64::MAX, weight_tail: WeightTail::NONE };

/// Devices A, B, .. that support everything: processors of another kind before a CPU, which is the last.
fn views(graph: &Graph, n: usize) -> Vec<DeviceView> {
    let view = |d: usize| DeviceView {
        id: ["A", "B", "C", "D"][d].to_owned(),
        kind: if d + 1 == n { DeviceKind::Cpu } else { DeviceKind::Gpu },
        supports: NodeSet::new(graph.tensors().len(), true),
        memory: MEMORY,
    };
    (0..n).map(view).collect()
}

/// A device that does not support ops of that name.
fn without(mut view: DeviceView, graph: &Graph, op: &str) -> DeviceView {
    let flags = graph.ids().map(|id| graph.tensor(id).op().is_none_or(|o| o.name() != op));
    view.supports = NodeSet::from_flags(flags.collect());
    view
}

fn plan(graph: &Arc<Graph>, n: usize, hints: &Hints) -> Plan {
    let plan = Plan::new(graph.clone(), &views(graph, n), hints, usize::MAX).unwrap();
    shadow::check(&plan, &hints.leaves, &vec![MEMORY; n]);
    plan
}

fn hints(leaves: &[(TensorId, usize)], pins: &[(TensorId, usize)]) -> Hints {
    Hints { leaves: leaves.iter().copied().collect(), pins: pins.iter().copied().collect(), prefer: HashMap::new() }
}

fn finish(g: GraphBuilder) -> Arc<Graph> {
    Arc::new(g.finish().unwrap())
}

/// Device and nodes of each split.
fn cuts(plan: &Plan) -> Vec<(usize, Vec<TensorId>)> {
    plan.splits.splits.iter().map(|s| (s.device, s.nodes.clone())).collect()
}

fn offset(plan: &Plan, place: Place) -> u64 {
    plan.memory.places[&place].offset
}

#[test]
fn layers_go_where_their_weights_are() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[8, 2]).unwrap();
    let w0 = g.weight("w0", DType::F32, &[8, 8]).unwrap();
    let w1 = g.weight("w1", DType::F32, &[8, 8]).unwrap();
    let norm0 = g.push(Norm { kind: NormKind::RmsNorm, eps: 1e-5 }, &[x]).unwrap();
    let a = g.push(MulMat, &[w0, norm0]).unwrap();
    let norm1 = g.push(Norm { kind: NormKind::RmsNorm, eps: 1e-5 }, &[a]).unwrap();
    let b = g.push(MulMat, &[w1, norm1]).unwrap();
    g.name(b, "out");
    g.output(b);
    let plan = plan(&finish(g), 2, &hints(&[(w0, 0), (w1, 1)], &[]));
    assert_eq!(cuts(&plan), [(0, vec![norm0, a, norm1]), (1, vec![b])]);
    assert_eq!(plan.splits.copies.len(), 1);
    assert_eq!((plan.splits.copies[0].tensor, plan.splits.copies[0].bytes), (norm1, 64));
    assert_eq!(plan.splits.inputs, [(x, vec![0])]);
    let text = plan.to_string();
    assert!(text.contains("copy RMS_NORM %5, 64 B: A -> B"), "{text}");
    assert!(text.contains("split 1 on B: 1 nodes, MUL_MAT out .. MUL_MAT out"), "{text}");
}

#[test]
fn a_copy_is_made_once_and_kept_until_its_last_reader() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[64]).unwrap();
    let one = g.push(Scale { scale: 2.0, bias: 0.0 }, &[x]).unwrap();
    let mut pins = vec![(one, 0)];
    let mut last = one;
    // Back and forth, with the first result needed on B each time.
    for i in 0..4 {
        let there = g.push(Binary { kind: BinaryKind::Add }, &[last, one]).unwrap();
        last = g.push(Unary { kind: UnaryKind::Silu }, &[there]).unwrap();
        pins.extend([(there, 1), (last, i % 2)]);
    }
    g.output(last);
    let plan = plan(&finish(g), 2, &hints(&[], &pins));
    let of_one: Vec<usize> = (0..plan.splits.copies.len()).filter(|&n| plan.splits.copies[n].tensor == one).collect();
    assert_eq!(of_one.len(), 1);
    let life = plan.memory.places[&Place::Copy(of_one[0])];
    let reader = plan.memory.places[&Place::Node(pins[pins.len() - 2].0)];
    assert_eq!(life.last, reader.first);
}

#[test]
fn results_take_over_memory_only_where_nobody_needs_it() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[16, 4]).unwrap();
    let scale = |g: &mut GraphBuilder, x| g.push(Scale { scale: 0.5, bias: 1.0 }, &[x]).unwrap();
    let a = scale(&mut g, x);
    let b = scale(&mut g, a);
    let c = scale(&mut g, b);
    let kept = scale(&mut g, c);
    g.output(kept);
    let d = scale(&mut g, kept);
    let twice = g.push(Binary { kind: BinaryKind::Mul }, &[d, d]).unwrap();
    let half = g.push(View { ne: [8, 4, 1, 1], nb: [4, 64, 256, 256], offset: 32 }, &[twice]).unwrap();
    let part = scale(&mut g, half);
    g.output(part);
    let plan = plan(&finish(g), 1, &Hints::default());
    let at = |id| offset(&plan, Place::Node(id));
    assert_eq!((at(a), at(b), at(c)), (at(b), at(c), at(kept)), "a chain runs in place");
    assert_ne!(at(a), offset(&plan, Place::Input(x, 0)), "an input is the caller's");
    assert_ne!(at(d), at(kept), "an output stays");
    assert_ne!(at(twice), at(d), "a source that is read twice stays");
    assert_ne!(at(part), at(twice), "a part of a tensor is not taken over");
    assert_eq!(plan.compute_bytes(), [3 * 256], "input, output and one more; the rest is used again");
}

#[test]
fn memory_is_used_again_in_a_chain() {
    let mut g = GraphBuilder::new();
    let w = g.weight("w", DType::F32, &[32, 32]).unwrap();
    let mut x = g.input("x", DType::F32, &[32, 4]).unwrap();
    for _ in 0..50 {
        x = g.push(MulMat, &[w, x]).unwrap();
    }
    g.output(x);
    let plan = plan(&finish(g), 1, &hints(&[(w, 0)], &[]));
    assert_eq!(plan.compute_bytes(), [2 * 32 * 4 * 4]);
}

/// Two devices write and read one cache in turns.
fn cache_graph() -> (Arc<Graph>, TensorId, Hints) {
    let mut g = GraphBuilder::new();
    let cache = g.state("cache", DType::F16, &[8, 6]).unwrap();
    let x = g.input("x", DType::F32, &[8, 1]).unwrap();
    let ids = g.input("ids", DType::I32, &[1]).unwrap();
    let row = g.push(View { ne: [8, 2, 1, 1], nb: [2, 16, 96, 96], offset: 32 }, &[cache]).unwrap();
    let before = g.push(Cont, &[row]).unwrap();
    let set = g.push(SetRows, &[cache, x, ids]).unwrap();
    // The view is older than the write; the memory it shows is not.
    let after = g.push(Cont, &[row]).unwrap();
    let all = g.push(Cont, &[set]).unwrap();
    for id in [before, after, all, cache, row] {
        g.output(id);
    }
    (finish(g), cache, hints(&[(cache, 0)], &[(before, 1), (after, 1), (all, 1)]))
}

#[test]
fn a_cache_is_copied_again_after_a_write() {
    let (graph, cache, hints) = cache_graph();
    let plan = plan(&graph, 2, &hints);
    let copied: Vec<_> = plan.splits.copies.iter().map(|c| (c.source, c.offset, c.bytes, c.constant)).collect();
    let part = (Place::Bound(cache), 32, 32, false);
    assert_eq!(copied, [part, part, (Place::Bound(cache), 0, 96, false)]);
    assert_eq!(plan.splits.splits.iter().map(|s| s.device).collect::<Vec<_>>(), [1, 0, 1]);
    // What changes from run to run is not a weight for the device either.
    for split in &plan.splits.splits {
        assert!(split.graph.leaves().all(|(_, kind)| kind != LeafKind::Weight));
    }
}

#[test]
fn inputs_that_are_written_have_one_home() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[8]).unwrap();
    let y = g.input("y", DType::F32, &[8]).unwrap();
    let first = g.push(Unary { kind: UnaryKind::Exp }, &[x]).unwrap();
    let set = g.push(Cpy, &[y, x]).unwrap();
    let second = g.push(Unary { kind: UnaryKind::Exp }, &[x]).unwrap();
    g.output(first);
    g.output(second);
    let plan = plan(&finish(g), 2, &hints(&[], &[(first, 1), (set, 0), (second, 1)]));
    assert_eq!(plan.assignment.device(x), Some(0));
    let kinds = |split: usize| plan.splits.splits[split].graph.leaves().map(|(_, kind)| kind).collect::<Vec<_>>();
    assert_eq!(cuts(&plan), [(1, vec![first]), (0, vec![set]), (1, vec![second])]);
    assert_eq!(kinds(1), [LeafKind::Input, LeafKind::State], "y, and x that is written");
    assert_eq!(plan.splits.copies.iter().map(|c| c.source).collect::<Vec<_>>(), [Place::Input(x, 0); 2]);
}

#[test]
fn copies_of_weights_have_the_tail_that_their_device_wants() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[32, 1]).unwrap();
    let blocks = g.weight("blocks", DType::Q8_0, &[32, 32]).unwrap();
    let floats = g.weight("floats", DType::F32, &[32, 1]).unwrap();
    let product = g.push(MulMat, &[blocks, x]).unwrap();
    let y = g.push(Binary { kind: BinaryKind::Add }, &[product, floats]).unwrap();
    g.output(y);
    let graph = finish(g);
    let hints = hints(&[(blocks, 1), (floats, 1)], &[(product, 0), (y, 0)]);
    let copied = |tail| {
        let mut devices = views(&graph, 2);
        devices[0].memory.weight_tail = WeightTail(tail);
        Plan::new(graph.clone(), &devices, &hints, usize::MAX).unwrap().weight_copy_bytes()
    };
    assert_eq!(copied(0), [32 * 34 + 128, 0]);
    assert_eq!(copied(510), [32 * 34 + 510 + 128, 0]);
}

#[test]
fn a_result_that_is_written_stays_with_its_writers() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[8, 6]).unwrap();
    let w = g.weight("w", DType::F32, &[8, 1]).unwrap();
    let a = g.push(Binary { kind: BinaryKind::Add }, &[x, w]).unwrap();
    let top = g.push(View { ne: [8, 1, 1, 1], nb: [4, 32, 32, 32], offset: 0 }, &[a]).unwrap();
    let set = g.push(Cpy, &[w, top]).unwrap();
    g.output(a);
    let graph = finish(g);
    // A has the weight, but cannot write the result.
    let [first, second] = views(&graph, 2).try_into().unwrap();
    let devices = [without(first, &graph, "CPY"), second];
    let plan = Plan::new(graph.clone(), &devices, &hints(&[(w, 0)], &[]), usize::MAX).unwrap();
    assert_eq!(cuts(&plan), [(1, vec![a, set])]);
    assert!(plan.splits.copies.iter().all(|c| c.constant));
    assert_eq!(plan.weight_copy_bytes(), [0, 32]);
    let [first, second] = devices;
    let devices = [first, without(second, &graph, "ADD")];
    let e = Plan::new(graph, &devices, &hints(&[(w, 0)], &[]), usize::MAX).unwrap_err().to_string();
    assert_eq!(e, "ADD %2: no device supports both it and CPY %4, which use the same memory (A, B); add a CPU device");
}

#[test]
fn errors_name_the_node_and_the_devices() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[8, 6]).unwrap();
    let cache = g.state("cache", DType::F32, &[8, 6]).unwrap();
    let y = g.push(Unary { kind: UnaryKind::Silu }, &[x]).unwrap();
    g.name(y, "ffn_act");
    let set = g.push(Cpy, &[y, cache]).unwrap();
    let graph = finish(g);
    let error = |devices: &[DeviceView], hints: &Hints| {
        Plan::new(graph.clone(), devices, hints, usize::MAX).unwrap_err().to_string()
    };
    let both = views(&graph, 2);
    let [a, b] = views(&graph, 2).try_into().unwrap();
    let home = [(cache, 0)];
    assert_eq!(error(&both, &Hints::default()), "tensor cache is in no device's memory");
    assert_eq!(error(&[], &hints(&home, &[])), "there are no devices to run on");
    for bad in [
        hints(&[(cache, 2)], &[]),
        hints(&home, &[(cache, 2)]),
        Hints { prefer: [(cache, 2)].into(), ..hints(&home, &[]) },
    ] {
        assert_eq!(error(&both, &bad), "leaf cache: it should be on device 2, but there are 2 devices, counted from 0");
    }
    let nothing = |mut view: DeviceView| {
        view.supports = NodeSet::new(0, false);
        view
    };
    let e = error(&[a.clone(), nothing(b.clone())], &hints(&[(cache, 1)], &[]));
    assert_eq!(e, "CPY %3: it writes memory of B, which does not support it");
    let neither = [without(a.clone(), &graph, "SILU"), without(b.clone(), &graph, "SILU")];
    let e = error(&neither, &hints(&home, &[]));
    assert_eq!(e, "SILU ffn_act: no device supports it (A, B); add a CPU device");
    let e = error(&[without(a, &graph, "SILU"), b], &hints(&home, &[(y, 0)]));
    assert_eq!(e, "SILU ffn_act: it is pinned to A, which does not support it");
    let e = error(&both, &hints(&home, &[(set, 1)]));
    assert_eq!(e, "CPY %3: it is pinned to B, but it writes leaf cache, which is on A");
    assert_eq!(
        Plan::new(graph.clone(), &both, &hints(&[], &[]), 1).unwrap_err(),
        PlanError::Unbound("cache".to_owned())
    );
}

#[test]
fn long_names_that_begin_alike_are_told_apart() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[8]).unwrap();
    let [a, b] = [0.5, 2.0].map(|scale| g.push(Scale { scale, bias: 0.0 }, &[x]).unwrap());
    g.name(a, &"ä".repeat(200));
    g.name(b, &"ä".repeat(200));
    let sum = g.push(Binary { kind: BinaryKind::Add }, &[a, b]).unwrap();
    let back = g.push(Binary { kind: BinaryKind::Mul }, &[a, b]).unwrap();
    g.output(sum);
    g.output(back);
    let plan = plan(&finish(g), 2, &hints(&[], &[(a, 0), (b, 0), (sum, 1), (back, 0)]));
    assert_eq!(plan.splits.splits.len(), 3);
}

fn test_devices(n: usize) -> Vec<Arc<dyn Device>> {
    let host = Host::new();
    let one =
        |d: usize| device(&host, ["A", "B", "C", "D"][d], DeviceKind::Cpu, MEMORY, &MemoryBudget::new(None), |_| true);
    (0..n).map(one).collect()
}

fn bind(scheduler: &Scheduler, graph: &Graph, hints: &Hints) -> HashMap<TensorId, Slice> {
    let leaves = graph.leaves().filter(|(_, kind)| *kind != LeafKind::Input);
    let bind = |(id, _): (TensorId, LeafKind)| {
        let size = graph.tensor(id).layout().span() as u64;
        (id, Slice::whole(scheduler.devices()[hints.leaves[&id]].alloc(size, Usage::Any).unwrap()))
    };
    leaves.map(bind).collect()
}

#[test]
fn graphs_without_nodes_and_empty_graphs() {
    let mut scheduler = Scheduler::new(test_devices(2), SchedulerOptions::default()).unwrap();
    let empty = scheduler.plan(finish(GraphBuilder::new()), &Hints::default()).unwrap();
    let program = scheduler.prepare(empty, &HashMap::new()).unwrap();
    scheduler.run(&program, &[]).unwrap();

    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[4, 2]).unwrap();
    g.output(x);
    let row = g.push(View { ne: [4, 1, 1, 1], nb: [4, 16, 16, 16], offset: 16 }, &[x]).unwrap();
    let w = g.weight("w", DType::F32, &[3]).unwrap();
    let none = g.input("none", DType::F32, &[4, 0]).unwrap();
    let nothing = g.push(Scale { scale: 2.0, bias: 0.0 }, &[none]).unwrap();
    for id in [row, w, none, nothing] {
        g.output(id);
    }
    let graph = finish(g);
    let hints = hints(&[(w, 1)], &[(nothing, 1)]);
    let bound = bind(&scheduler, &graph, &hints);
    let plan = scheduler.plan(graph.clone(), &hints).unwrap();
    let program = scheduler.prepare(plan, &bound).unwrap();
    let data = content(&graph, x, 1);
    scheduler.run(&program, &[(x, data.clone()), (none, Bytes::new())]).unwrap();
    let read = |id| scheduler.read(&program, id).unwrap().wait(DEADLINE).unwrap();
    assert_eq!((read(x), read(row)), (data.clone(), data.slice(16..)));
    assert_eq!((read(w), read(none), read(nothing)), (Bytes::from(vec![0; 12]), Bytes::new(), Bytes::new()));
}

#[test]
fn what_a_run_needs_is_checked_before_it() {
    let (graph, cache, hints) = cache_graph();
    let mut scheduler = Scheduler::new(test_devices(2), SchedulerOptions::default()).unwrap();
    let plan = scheduler.plan(graph.clone(), &hints).unwrap();
    let mut error = |memory: &[(usize, u64)]| {
        let slice =
            |&(d, size): &(usize, u64)| (cache, Slice::whole(scheduler.devices()[d].alloc(size, Usage::Any).unwrap()));
        scheduler.prepare(plan.clone(), &memory.iter().map(slice).collect()).unwrap_err().to_string()
    };
    assert_eq!(error(&[]), "misuse: leaf cache on A: it was given no memory");
    assert_eq!(error(&[(0, 95)]), "misuse: leaf cache on A: it was given 95 bytes of memory, 96 are needed");
    assert_eq!(error(&[(1, 96)]), "misuse: leaf cache on A: it was given memory of another device");
    let mut one = Scheduler::new(test_devices(1), SchedulerOptions::default()).unwrap();
    assert!(matches!(one.prepare(plan.clone(), &HashMap::new()), Err(Error::Misuse(_))));

    let bound = bind(&scheduler, &graph, &hints);
    let program = scheduler.prepare(plan, &bound).unwrap();
    let (x, ids) = (graph.find("x").unwrap(), graph.find("ids").unwrap());
    let row = content(&graph, x, 1);
    let error = |inputs: &[(TensorId, Bytes)]| scheduler.run(&program, inputs).unwrap_err().to_string();
    assert_eq!(error(&[(x, row.clone())]), "misuse: input ids is missing");
    assert_eq!(error(&[(x, row.slice(1..)), (ids, row.slice(..4))]), "misuse: input x: 31 bytes for 32");
    assert!(scheduler.read(&program, x).is_err(), "not an output");
    assert!(Scheduler::new(Vec::new(), SchedulerOptions::default()).is_err());
}

#[test]
fn a_run_can_be_stopped_and_observed() {
    struct Seen(Vec<TensorId>, usize);
    impl Observer for Seen {
        fn wants(&mut self, graph: &Graph, node: TensorId) -> bool {
            graph.tensor(node).op().is_some_and(|op| op.name() == "CONT")
        }
        fn node(&mut self, graph: &Graph, node: TensorId, value: &[u8]) -> Verdict {
            assert_eq!(value.len(), graph.tensor(node).layout().span());
            self.0.push(node);
            if self.0.len() == self.1 { Verdict::Cancel } else { Verdict::Continue }
        }
    }
    let (graph, _, hints) = cache_graph();
    let mut scheduler = Scheduler::new(test_devices(2), SchedulerOptions::default()).unwrap();
    let bound = bind(&scheduler, &graph, &hints);
    let plan = scheduler.plan_observed(graph.clone(), &hints).unwrap();
    let program = scheduler.prepare(plan, &bound).unwrap();
    let inputs: Vec<_> = ["x", "ids"].map(|n| graph.find(n).unwrap()).map(|id| (id, content(&graph, id, 3))).into();
    let mut seen = Seen(Vec::new(), 2);
    assert_eq!(scheduler.run_observed(&program, &inputs, &mut seen), Err(Error::Cancelled));
    let mut all = Seen(Vec::new(), usize::MAX);
    scheduler.run_observed(&program, &inputs, &mut all).unwrap();
    assert_eq!((seen.0.len(), all.0.len()), (2, 3));
    scheduler.cancel_token().store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(scheduler.run(&program, &inputs), Err(Error::Cancelled));
    scheduler.cancel_token().store(false, std::sync::atomic::Ordering::Relaxed);
    scheduler.run(&program, &inputs).unwrap();
}

#[test]
fn results_lie_in_several_buffers_where_one_is_too_small() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[64]).unwrap();
    let parts: Vec<TensorId> = (0..5).map(|i| g.push(Scale { scale: i as f32, bias: 0.0 }, &[x]).unwrap()).collect();
    parts.iter().for_each(|&id| {
        g.output(id);
    });
    let graph = finish(g);
    // Two tensors to a buffer, and a rest that none fits into.
    let small = MemoryRules { max_alloc: 2 * 256 + 100, ..MEMORY };
    let mut views = views(&graph, 1);
    views[0].memory = small;
    let plan = Plan::new(graph.clone(), &views, &Hints::default(), usize::MAX).unwrap();
    shadow::check(&plan, &HashMap::new(), &[small]);
    assert!(plan.compute_bytes()[0] > 2 * 2 * 256);
    views[0].memory.max_alloc = 255;
    let error = Plan::new(graph, &views, &Hints::default(), usize::MAX).unwrap_err().to_string();
    assert_eq!(error, "leaf x is 256 B large, and A allocates 255 B at once at most");
}

/// Runs may be enqueued without end and without a read; what devices hand each other meanwhile is bounded.
#[test]
fn running_far_ahead_is_bounded() {
    const RUNS: u64 = 2000;
    let mut g = GraphBuilder::new();
    let sum = g.state("sum", DType::F32, &[8]).unwrap();
    let x = g.input("x", DType::F32, &[8]).unwrap();
    let away = g.push(Scale { scale: 0.5, bias: 0.0 }, &[x]).unwrap();
    let more = g.push(Binary { kind: BinaryKind::Add }, &[sum, away]).unwrap();
    g.push(Cpy, &[more, sum]).unwrap();
    g.output(sum);
    let graph = finish(g);
    let hints = hints(&[(sum, 0)], &[(away, 1), (more, 0)]);
    // Transfers that were offered since the queues were last waited for, and the most of them.
    let open = Arc::new(Mutex::new((0, 0)));
    let host = Host::new();
    let seen = open.clone();
    host.set_trace(move |event| {
        let mut open = seen.lock().unwrap();
        match (event.device, event.what) {
            ("B", "offer") => open.0 += 1,
            ("B", "marker") => open.0 = 0,
            _ => {}
        }
        open.1 = open.1.max(open.0);
    });
    let budget = MemoryBudget::new(None);
    let devices = ["A", "B"].map(|name| device(&host, name, DeviceKind::Cpu, MEMORY, &budget, |_| true));
    let mut scheduler = Scheduler::new(devices.into(), SchedulerOptions { deadline: DEADLINE }).unwrap();
    let bound = bind(&scheduler, &graph, &hints);
    let plan = scheduler.plan(graph.clone(), &hints).unwrap();
    assert_eq!(plan.splits.copies.len(), 1);
    let program = scheduler.prepare(plan, &bound).unwrap();
    let oracle = Oracle::new(&graph, &HashMap::new());
    let mut last = None;
    for run in 0..RUNS {
        let inputs = [(x, content(&graph, x, run))];
        scheduler.run(&program, &inputs).unwrap();
        last = Some(oracle.run(&inputs));
    }
    let result = scheduler.read(&program, sum).unwrap().wait(DEADLINE).unwrap();
    assert_eq!(vec![(sum, result)], last.unwrap());
    let most = open.lock().unwrap().1;
    assert!(most > 1 && most <= 256, "{most} transfers at once");
}

/// A program of nodes on these devices, each of what the one before gives.
fn line_of(scheduler: &mut Scheduler, devices: &[usize]) -> Program {
    let mut g = GraphBuilder::new();
    let mut last = g.input("x", DType::F32, &[8]).unwrap();
    let mut pins = Vec::new();
    for &device in devices {
        last = g.push(Scale { scale: 3.0, bias: 1.0 }, &[last]).unwrap();
        pins.push((last, device));
    }
    g.output(last);
    let plan = scheduler.plan(finish(g), &hints(&[], &pins)).unwrap();
    scheduler.prepare(plan, &HashMap::new()).unwrap()
}

/// A run does not begin on a device where an older one, which it may depend on, has enqueued nothing yet.
#[test]
fn runs_do_not_begin_before_what_others_do_there() {
    let (host, budget) = (Host::new(), MemoryBudget::new(None));
    let devices = ["A", "B", "C"].map(|name| device(&host, name, DeviceKind::Cpu, MEMORY, &budget, |_| true));
    let mut scheduler = Scheduler::new(devices.into(), SchedulerOptions { deadline: DEADLINE }).unwrap();
    let [ring, line, alone, elsewhere, late, twice] =
        [&[0, 1, 0][..], &[0, 1], &[0], &[1, 2], &[1, 0, 2, 0], &[0, 1, 0, 1]]
            .map(|devices| line_of(&mut scheduler, devices));
    let leading = |program: &Program| program.plan().splits.leading(program.graph());
    assert_eq!([&ring, &line, &alone, &elsewhere, &late, &twice].map(leading), [2, 1, 0, 1, 3, 3]);
    let may = |new: &Program, old: &Program| new.may_begin_before_rest_of(old);
    assert!(may(&ring, &ring) && may(&line, &ring), "all begin on A, in their order");
    assert!(!may(&ring, &alone), "it has enqueued nothing");
    assert!(may(&alone, &ring), "nothing begins");
    assert!(!may(&elsewhere, &line) && !may(&ring, &line), "B has not got what the line does there");
    assert!(!may(&late, &line), "nor here, where A is begun");
    assert!(
        !may(&twice, &ring),
        "A has not got what comes back in the ring, and would have what comes back in this one"
    );
}

/// x on B, doubled on A, and again on B: runs begin on B before others come back to it.
#[test]
fn runs_that_begin_before_others_end() {
    const AHEAD: u64 = 3;
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[8]).unwrap();
    let scaled = |g: &mut GraphBuilder, scale: f32, id: TensorId| g.push(Scale { scale, bias: 1.0 }, &[id]).unwrap();
    let first = scaled(&mut g, 3.0, x);
    let middle = scaled(&mut g, 5.0, first);
    let back = scaled(&mut g, 7.0, middle);
    let sum = g.push(Binary { kind: BinaryKind::Add }, &[back, x]).unwrap();
    g.output(sum);
    let graph = finish(g);
    let hints = hints(&[], &[(first, 1), (middle, 0), (back, 1), (sum, 1)]);
    let commands = Arc::new(Mutex::new(Vec::new()));
    let (host, seen) = (Host::new(), commands.clone());
    host.set_trace(move |event| seen.lock().unwrap().push(format!("{} {}", event.device, event.what)));
    let budget = MemoryBudget::new(None);
    let devices = ["A", "B"].map(|name| device(&host, name, DeviceKind::Cpu, MEMORY, &budget, |_| true));
    let mut scheduler = Scheduler::new(devices.into(), SchedulerOptions { deadline: DEADLINE }).unwrap();
    let plan = scheduler.plan(graph.clone(), &hints).unwrap();
    assert_eq!((plan.splits.splits.len(), plan.splits.leading(&graph)), (3, 2));
    let program = scheduler.prepare(plan, &HashMap::new()).unwrap();
    let oracle = Oracle::new(&graph, &HashMap::new());
    let inputs = |run: u64| vec![(x, content(&graph, x, run))];
    let mut begun: Vec<_> = (0..=AHEAD).map(|run| scheduler.begin(&program, inputs(run)).unwrap()).collect();
    scheduler.finish().unwrap();
    // Those that come back to B are still to come.
    let count = |what: &str| commands.lock().unwrap().iter().filter(|c| c.ends_with(what)).count();
    assert_eq!(["A execute", "B execute"].map(count), [AHEAD as usize + 1; 2], "{commands:?}");
    // Which are cancelled leave nothing behind.
    scheduler.cancel_token().store(true, std::sync::atomic::Ordering::Relaxed);
    let cancelled = begun.remove(0);
    assert_eq!(scheduler.end(&program, cancelled), Err(Error::Cancelled));
    scheduler.cancel_token().store(false, std::sync::atomic::Ordering::Relaxed);
    for (run, rest) in (1..).zip(begun) {
        scheduler.end(&program, rest).unwrap();
        let result = scheduler.read(&program, sum).unwrap().wait(DEADLINE).unwrap();
        assert_eq!(vec![(sum, result)], oracle.run(&inputs(run)), "run {run}");
    }
    assert_eq!(count(" offer"), count(" accept"), "{commands:?}");
    // The rest of another program's run is not this one's.
    let again =
        scheduler.prepare(scheduler.plan(finish(GraphBuilder::new()), &Hints::default()).unwrap(), &HashMap::new());
    let other = again.unwrap();
    let rest = scheduler.begin(&program, inputs(9)).unwrap();
    assert!(matches!(scheduler.end(&other, rest), Err(Error::Misuse(_))));
}
