//! Checks a plan from the definition, without the planner's own notion of time: executes it on a memory whose bytes know what
//! they hold. A tensor that is overwritten while somebody still needs it, a copy that is stale or missing, a byte that was never
//! written: the next one who reads finds it.

use outboard_core::{Graph, LeafKind, TensorId};
use outboard_scheduler::Plan;
use outboard_scheduler::memory::MemoryRules;
use outboard_scheduler::split::{Place, Split};
use std::collections::HashMap;

/// What a byte holds: byte `offset` of a root, as it was after so many writes.
type Byte = Option<(TensorId, usize, u64)>;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Memory {
    Compute(usize),
    Bound(TensorId),
    Constant(usize),
}

struct Shadow<'a> {
    plan: &'a Plan,
    graph: &'a Graph,
    leaves: &'a HashMap<TensorId, usize>,
    memory: HashMap<Memory, Vec<Byte>>,
    /// How often each root was written: by the caller, by its node, by nodes that write into it.
    versions: Vec<u64>,
}

/// Panics unless the plan is right. `leaves` says where weights and state are.
pub(crate) fn check(plan: &Plan, leaves: &HashMap<TensorId, usize>, rules: &[MemoryRules]) {
    let graph = plan.graph.as_ref();
    let computed: Vec<TensorId> = graph.nodes().filter(|&id| graph.tensor(id).is_compute()).collect();
    let planned: Vec<TensorId> = plan.splits.splits.iter().flat_map(|s| s.nodes.clone()).collect();
    assert_eq!(planned, computed, "every node once, in order");
    for (place, a) in &plan.memory.places {
        let (_, offset) = plan.memory.in_buffer(a);
        let MemoryRules { alignment, max_alloc, .. } = rules[a.device];
        assert!(offset % alignment as u64 == 0, "{place:?} is not aligned: {a:?}");
        assert!(a.size == 0 || offset + a.size <= max_alloc, "{place:?} is in two buffers: {a:?}");
        assert!(a.offset + a.size <= plan.compute_bytes()[a.device], "{place:?} is outside the buffer: {a:?}");
    }
    for (d, &bytes) in plan.compute_bytes().iter().enumerate() {
        let all = plan.memory.places.values().filter(|a| a.device == d);
        let sum: u64 = all.map(|a| a.size.next_multiple_of(rules[d].alignment as u64)).sum();
        // Ends of buffers may stay empty: less than the tensor that did not fit there.
        let most = if rules[d].max_alloc == u64::MAX { sum } else { 2 * sum };
        assert!(bytes <= most, "device {d} needs {bytes} bytes for {sum} bytes of tensors");
    }
    let mut shadow = Shadow { plan, graph, leaves, memory: HashMap::new(), versions: vec![0; graph.tensors().len()] };
    shadow.prepare();
    // What one run leaves behind must not help or harm the next.
    for _ in 0..2 {
        shadow.run();
    }
}

impl Shadow<'_> {
    fn prepare(&mut self) {
        for (d, &bytes) in self.plan.compute_bytes().iter().enumerate() {
            self.memory.insert(Memory::Compute(d), vec![None; bytes as usize]);
        }
        for (id, kind) in self.graph.leaves().filter(|(_, kind)| *kind != LeafKind::Input) {
            assert!(self.leaves.contains_key(&id), "{kind:?} has no home");
            let size = self.graph.tensor(id).layout().span();
            self.memory.insert(Memory::Bound(id), (0..size).map(|i| Some((id, i, 0))).collect());
        }
        for (number, copy) in self.plan.splits.copies.iter().enumerate().filter(|(_, c)| c.constant) {
            self.memory.insert(Memory::Constant(number), vec![None; copy.bytes]);
            self.copy(number);
        }
    }

    fn run(&mut self) {
        for (id, devices) in &self.plan.splits.inputs {
            self.versions[id.index()] += 1;
            for &device in devices {
                self.write(Place::Input(*id, device), device, *id);
            }
        }
        for split in &self.plan.splits.splits {
            for &number in &split.copies {
                let copy = &self.plan.splits.copies[number];
                assert_eq!(copy.to, split.device);
                assert!(!copy.constant);
                self.copy(number);
            }
            let nodes = split.graph.nodes().filter(|&id| split.graph.tensor(id).is_compute());
            let nodes: Vec<TensorId> = nodes.collect();
            assert_eq!(nodes.len(), split.nodes.len());
            for (&id, node) in split.nodes.iter().zip(nodes) {
                self.node(split, id, node);
            }
        }
        for id in self.graph.outputs() {
            let t = self.graph.tensor(id);
            let (device, place) = self.plan.splits.homes[t.root().index()].unwrap();
            self.read(place, device, 0, id);
        }
    }

    /// The memory of a place, and where in it the place begins.
    fn locate(&self, place: Place, device: usize) -> (Memory, usize) {
        match place {
            Place::Bound(id) => {
                assert_eq!(self.leaves[&id], device, "{} is used in place from afar", self.graph.label(id));
                (Memory::Bound(id), 0)
            }
            Place::Copy(number) if self.plan.splits.copies[number].constant => {
                assert_eq!(self.plan.splits.copies[number].to, device);
                (Memory::Constant(number), 0)
            }
            _ => {
                let a = self.plan.memory.places[&place];
                assert_eq!(a.device, device, "{place:?} is used from afar");
                (Memory::Compute(device), a.offset as usize)
            }
        }
    }

    /// The bytes of tensor `id`, the first of which is `offset` behind the start of `place`, are what they should be now.
    fn read(&self, place: Place, device: usize, offset: usize, id: TensorId) {
        let t = self.graph.tensor(id);
        // In a copy the tensor's first byte comes first, elsewhere the root's.
        let offset = if let Place::Copy(_) = place { offset } else { offset + t.offset() };
        let (memory, base) = self.locate(place, device);
        for i in 0..t.layout().span() {
            let expected = Some((t.root(), t.offset() + i, self.versions[t.root().index()]));
            let found = self.memory[&memory][base + offset + i];
            assert_eq!(found, expected, "byte {i} of {} in {place:?}", self.graph.label(id));
        }
    }

    /// All of a root is new in a place.
    fn write(&mut self, place: Place, device: usize, root: TensorId) {
        let (memory, base) = self.locate(place, device);
        let version = self.versions[root.index()];
        let size = self.graph.tensor(root).layout().span();
        let bytes = self.memory.get_mut(&memory).unwrap();
        bytes[base..base + size].iter_mut().enumerate().for_each(|(i, b)| *b = Some((root, i, version)));
    }

    fn copy(&mut self, number: usize) {
        let copy = &self.plan.splits.copies[number];
        let t = self.graph.tensor(copy.tensor);
        assert_ne!(copy.from, copy.to);
        assert_eq!((copy.offset, copy.bytes), (t.offset(), t.layout().span()));
        self.read(copy.source, copy.from, 0, copy.tensor);
        let (from, at) = self.locate(copy.source, copy.from);
        let bytes = self.memory[&from][at + copy.offset..][..copy.bytes].to_vec();
        let (to, at) = self.locate(Place::Copy(number), copy.to);
        self.memory.get_mut(&to).unwrap()[at..at + copy.bytes].copy_from_slice(&bytes);
    }

    /// Reads what a node reads, then writes what it writes. `id` is the node in the full graph, `node` in the split's.
    fn node(&mut self, split: &Split, id: TensorId, node: TensorId) {
        let (t, local) = (self.graph.tensor(id), split.graph.tensor(node));
        assert_eq!((t.op(), t.layout()), (local.op(), local.layout()));
        let place = |id: TensorId| split.places[split.graph.tensor(id).root().index()].unwrap();
        let range = |id: TensorId| {
            let (memory, base) = self.locate(place(id), split.device);
            let start = base + split.graph.tensor(id).offset();
            (memory, start, start + split.graph.tensor(id).layout().span())
        };
        let out = range(node);
        let writes = t.op().and_then(|op| op.writes());
        for (i, (source, src)) in t.srcs().iter().zip(local.srcs()).enumerate() {
            let (Some(source), Some(src)) = (*source, *src) else {
                assert_eq!(source, src);
                continue;
            };
            let (full, here) = (self.graph.tensor(source), split.graph.tensor(src));
            assert_eq!(full.layout(), here.layout());
            match place(src) {
                // A copy of the root holds it from its first byte on, a copy of a view from the view's.
                Place::Copy(number) => {
                    let begin = self.graph.tensor(self.plan.splits.copies[number].tensor).offset();
                    assert_eq!(begin + here.offset(), full.offset());
                    self.read(place(src), split.device, here.offset(), source);
                }
                place => {
                    assert_eq!(here.offset(), full.offset());
                    self.read(place, split.device, 0, source);
                }
            }
            let used = range(src);
            let overlap = used.0 == out.0 && used.1 < out.2 && out.1 < used.2;
            let in_place =
                t.op().is_some_and(|op| op.in_place().contains(&i)) && (used.1, full.layout()) == (out.1, t.layout());
            let written = writes.is_some() && full.root() == t.root();
            assert!(!overlap || in_place || written, "{} overwrites source {i} while it reads", self.graph.label(id));
        }
        let root = t.root();
        self.versions[root.index()] += 1;
        let place = place(node);
        if writes.is_some() {
            // Must be the memory itself, not a copy.
            let here = split.graph.tensor(split.graph.tensor(node).root());
            assert_eq!(here.layout(), self.graph.tensor(root).layout());
            assert_eq!(Some((split.device, place)), self.plan.splits.homes[root.index()]);
        } else {
            assert_eq!(place, Place::Node(id));
        }
        self.write(place, split.device, root);
    }
}
