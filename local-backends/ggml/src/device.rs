//! A device of the library as one of ours.

use crate::devices::GgmlDevice;
use crate::memory::{CardPool, GgmlBuffer, Heap};
use crate::program::Program;
use crate::stream::GgmlStream;
use crate::translate::Translator;
use outboard_core::local::{Backend, Context, Funds, LocalDevice, MemoryPool, Stream};
use outboard_core::{
    Buffer, Costs, DeviceInfo, DeviceKind, Executable, Graph, Host, Placement, Result, TensorId, Usage,
};
use outboard_host::MemoryBudget;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Opens a device of ggml in `host`, under this name. One that runs on processors gets so many threads, and memory of the budget.
pub fn ggml_device(
    host: &Arc<Host>,
    device: &GgmlDevice,
    name: &str,
    threads: usize,
    budget: &Arc<MemoryBudget>,
) -> Arc<LocalDevice> {
    let heap = Arc::new(Heap::new(device.clone()));
    let in_host_memory = device.kind == DeviceKind::Cpu;
    let total = if in_host_memory { budget.info().total } else { device.memory().total };
    let pool: Arc<dyn MemoryPool> = if in_host_memory { budget.clone() } else { CardPool::new(&heap, total) };
    let info = DeviceInfo {
        description: device.description.clone(),
        device_id: device.device_id.clone(),
        memory_pool: if in_host_memory { budget.name() } else { String::new() },
        max_alloc: heap.max_alloc,
        capabilities: vec![format!("ggml {}", device.library().version())],
        alignment: heap.alignment.max(32),
        unified: false,
        // Rows of a product are rounded by how many there are, and nothing evens that out.
        costs: Costs { uniform_rows: 1, ..Costs::default() },
        ..DeviceInfo::new(name, device.kind, "ggml", total)
    };
    LocalDevice::new(host, info, pool, Arc::new(Ggml { heap, threads, steps: Arc::default() }))
}

/// A device.
struct Ggml {
    heap: Arc<Heap>,
    threads: usize,
    /// Nodes that it has computed.
    steps: Arc<AtomicU64>,
}

impl Backend for Ggml {
    fn supports(&self, graph: &Graph, id: TensorId) -> bool {
        Translator::new(graph, &self.heap).node(id).is_some()
    }

    fn context(&self, funds: Funds) -> Arc<dyn Context> {
        let (heap, steps) = (self.heap.clone(), self.steps.clone());
        Arc::new(GgmlContext { heap, threads: self.threads, steps, funds })
    }

    fn progress(&self) -> Option<u64> {
        Some(self.steps.load(Ordering::Relaxed))
    }
}

/// What one client has of it.
struct GgmlContext {
    heap: Arc<Heap>,
    threads: usize,
    steps: Arc<AtomicU64>,
    funds: Funds,
}

impl Context for GgmlContext {
    fn alloc(&self, size: u64, _: Usage) -> Result<Arc<dyn Buffer>> {
        Ok(Arc::new(GgmlBuffer::new(&self.heap, &self.funds, size)?))
    }

    fn compile(&self, graph: Arc<Graph>, placement: Placement) -> Result<Arc<dyn Executable>> {
        Ok(Arc::new(Program::new(&self.heap, &self.funds, graph, placement)?))
    }

    fn stream(&self, cancel: Arc<AtomicBool>) -> Result<Box<dyn Stream>> {
        Ok(Box::new(GgmlStream {
            heap: self.heap.clone(),
            id: self.funds.info().id.as_str().into(),
            cancel,
            threads: self.threads,
            steps: self.steps.clone(),
            backend: None,
        }))
    }
}
