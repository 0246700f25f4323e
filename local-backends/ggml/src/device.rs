//! A device of the library as one of ours.

use crate::devices::GgmlDevice;
use crate::memory::{GgmlBuffer, Heap};
use crate::program::Program;
use crate::stream::{Engine, GgmlStream};
use crate::translate::Translator;
use outboard_core::local::{Backend, CardPool, Context, Funds, LocalDevice, MemoryPool, Stream};
use outboard_core::{
    Buffer, Costs, DeviceInfo, DeviceKind, Executable, Graph, Host, Placement, Result, TensorId, Usage,
};
use outboard_host::MemoryBudget;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Opens a device of a library of this process in `host`, under this name. One that runs on processors gets so many threads, and memory of the budget.
pub fn ggml_device(
    host: &Arc<Host>,
    device: &GgmlDevice,
    name: &str,
    threads: usize,
    budget: &Arc<MemoryBudget>,
) -> Arc<LocalDevice> {
    let heap = Arc::new(Heap::new(device.clone(), threads));
    let info = within(info(&heap, name), budget);
    let card = heap.clone();
    let pool: Arc<dyn MemoryPool> = match info.kind {
        DeviceKind::Cpu => budget.clone(),
        _ => CardPool::new(info.memory_total, move || card.device.memory().free),
    };
    LocalDevice::new(host, info, pool, Arc::new(Ggml(Arc::new(Engine::new(heap, name)))))
}

/// What such a device is under this name.
pub(crate) fn info(heap: &Heap, name: &str) -> DeviceInfo {
    let device = &heap.device;
    DeviceInfo {
        description: device.description.clone(),
        device_id: device.device_id.clone(),
        max_alloc: heap.max_alloc,
        capabilities: vec![format!("ggml {}", device.library().version())],
        alignment: heap.alignment.max(32),
        weight_tail: heap.weight_tail,
        unified: false,
        // Rows of a product are rounded by how many there are, and nothing evens that out.
        costs: Costs { uniform_rows: 1, ..Costs::default() },
        ..DeviceInfo::new(name, device.kind, "ggml", device.memory().total)
    }
}

/// The same with the host's memory, if it runs on the host's processors.
pub(crate) fn within(info: DeviceInfo, budget: &MemoryBudget) -> DeviceInfo {
    if info.kind != DeviceKind::Cpu {
        return info;
    }
    DeviceInfo { memory_total: budget.info().total, memory_pool: budget.name(), ..info }
}

/// A device.
struct Ggml(Arc<Engine>);

impl Backend for Ggml {
    fn supports(&self, graph: &Graph, id: TensorId) -> bool {
        Translator::new(graph, &self.0.heap).node(id).is_some()
    }

    fn context(&self, funds: Funds) -> Arc<dyn Context> {
        Arc::new(GgmlContext { engine: self.0.clone(), funds })
    }

    fn progress(&self) -> Option<u64> {
        Some(self.0.steps())
    }
}

/// What one client has of it.
struct GgmlContext {
    engine: Arc<Engine>,
    funds: Funds,
}

impl Context for GgmlContext {
    fn alloc(&self, size: u64, _: Usage) -> Result<Arc<dyn Buffer>> {
        Ok(Arc::new(GgmlBuffer::new(&self.engine.heap, &self.funds, size)?))
    }

    fn compile(&self, graph: Arc<Graph>, placement: Placement) -> Result<Arc<dyn Executable>> {
        Ok(Arc::new(Program::new(&self.engine.heap, &self.funds, graph, placement)?))
    }

    fn stream(&self, cancel: Arc<AtomicBool>) -> Result<Box<dyn Stream>> {
        Ok(Box::new(GgmlStream::new(self.engine.clone(), cancel)))
    }
}
