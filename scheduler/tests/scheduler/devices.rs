//! Devices for tests: the reference kernels, restricted to some ops, that take their time now and then; and an oracle that runs
//! a graph without the scheduler.

use bytes::Bytes;
use outboard_core::Host;
use outboard_core::{
    Device, DeviceInfo, DeviceKind, Executable, Graph, LeafKind, Placement, Queue, Result, Slice, TensorId, Usage,
};
use outboard_host::{Kernels, MemoryBudget, NodeError, Program, Run, TensorPtr, host_device};
use outboard_reference::{Reference, reference_device};
use outboard_scheduler::memory::MemoryRules;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Which ops a device supports.
pub(crate) type Supports = Arc<dyn Fn(&str) -> bool + Send + Sync>;

struct Limited {
    supports: Supports,
    runs: Arc<AtomicU64>,
}

impl Kernels for Limited {
    fn supports(&self, graph: &Graph, id: TensorId) -> bool {
        graph.tensor(id).op().is_some_and(|op| (self.supports)(op.name()))
    }

    fn compile(&self, graph: Arc<Graph>, tensors: Vec<TensorPtr>) -> Result<Box<dyn Program>> {
        Ok(Box::new(Uneven { program: Reference.compile(graph, tensors)?, runs: self.runs.clone() }))
    }
}

/// Waits before some runs, so that queues overtake each other where they may.
struct Uneven {
    program: Box<dyn Program>,
    runs: Arc<AtomicU64>,
}

impl Program for Uneven {
    fn scratch(&self) -> u64 {
        self.program.scratch()
    }

    fn run(&self, run: Run<'_>) -> std::result::Result<(), NodeError> {
        if self.runs.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 == 0 {
            std::thread::sleep(Duration::from_micros(20));
        }
        self.program.run(run)
    }
}

/// A device that computes only what `supports` says.
pub(crate) fn device(
    host: &Arc<Host>,
    name: &str,
    kind: DeviceKind,
    memory: MemoryRules,
    budget: &Arc<MemoryBudget>,
    supports: impl Fn(&str) -> bool + Send + Sync + 'static,
) -> Arc<dyn Device> {
    let MemoryRules { alignment, max_alloc, weight_tail } = memory;
    let info =
        DeviceInfo { alignment, max_alloc, weight_tail, ..DeviceInfo::new(name, kind, "test", budget.info().total) };
    host_device(host, info, budget, Arc::new(Limited { supports: Arc::new(supports), runs: Arc::default() }))
}

/// A graph on one device as it stands: every root with a buffer of its own, nothing cut, nothing shared.
pub(crate) struct Oracle {
    graph: Arc<Graph>,
    queue: Arc<dyn Queue>,
    executable: Arc<dyn Executable>,
    slices: HashMap<TensorId, Slice>,
}

impl Oracle {
    pub(crate) fn new(graph: &Arc<Graph>, leaves: &HashMap<TensorId, Bytes>) -> Oracle {
        let device = reference_device(&Host::new(), "oracle", &MemoryBudget::new(None));
        let queue = device.queue().unwrap();
        let mut slices = HashMap::new();
        for id in graph.ids().filter(|&id| graph.tensor(id).root() == id) {
            let size = graph.tensor(id).layout().span() as u64;
            let slice = Slice::new(device.alloc(size.max(1), Usage::Any).unwrap(), 0, size).unwrap();
            if let Some(data) = leaves.get(&id) {
                queue.write(&slice, data.clone()).unwrap();
            }
            slices.insert(id, slice);
        }
        let places = graph.ids().map(|id| slices.get(&id).cloned()).collect();
        let placement = Placement::new(graph, device.as_ref(), places).unwrap();
        let executable = device.compile(graph.clone(), placement).unwrap();
        Oracle { graph: graph.clone(), queue, executable, slices }
    }

    /// Runs the graph and gives its outputs.
    pub(crate) fn run(&self, inputs: &[(TensorId, Bytes)]) -> Vec<(TensorId, Bytes)> {
        for (id, data) in inputs {
            self.queue.write(&self.slices[id], data.clone()).unwrap();
        }
        self.queue.execute(&self.executable).unwrap();
        self.graph.outputs().map(|id| (id, self.read(id))).collect()
    }

    /// Every state.
    pub(crate) fn states(&self) -> Vec<(TensorId, Bytes)> {
        let states = self.graph.leaves().filter(|(_, kind)| *kind == LeafKind::State);
        states.map(|(id, _)| (id, self.read(id))).collect()
    }

    fn read(&self, id: TensorId) -> Bytes {
        let t = self.graph.tensor(id);
        let slice = self.slices[&t.root()].part(t.offset() as u64, t.layout().span() as u64).unwrap();
        self.queue.read(&slice).unwrap().wait(DEADLINE).unwrap()
    }
}
