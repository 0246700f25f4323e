//! A GPU as one of our devices.

use crate::allocation::heap;
use crate::cost::Bounds;
use crate::gpu::Gpu;
use crate::instance::{Class, Found, vulkan};
use crate::interposer::Interposer;
use crate::launch::launch;
use crate::memory::GpuBuffer;
use crate::program::Program;
use crate::stream::GpuStream;
use crate::units::Units;
use bytes::Bytes;
use outboard_core::local::{Backend, CardPool, Context, Funds, LocalDevice, MemoryPool, Stream};
use outboard_core::{
    Buffer, Costs, DeviceInfo, DeviceKind, Error, Executable, Graph, Host, MemoryInfo, Placement, Result, TensorId,
    Usage, lock,
};
use outboard_host::MemoryBudget;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Roots begin at multiples of this, which is more than any load needs.
const ALIGNMENT: usize = 32;

/// Clients among whom the driver's allocations, some thousands, are divided.
const CLIENTS: u32 = 8;
/// Allocations at most, if the driver has no limit: each may be a mapping, of which the system gives a process twice as many.
const MOST_ALLOCATIONS: u32 = 32_768;

/// What is not supported, or not in all cases, by ops and by cases of the conformance suite: a CPU device beside it computes that.
pub const UNSUPPORTED: &[&str] = &[
    // Writing blocks, except Q8_0 by SET_ROWS.
    "CAST", "CPY", "SET_ROWS",
];

/// How a device is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The folder that keeps compiled pipelines, whether it is there or not; without one, they are compiled each time.
    pub pipelines: Option<PathBuf>,
    /// How long nothing that the device was given may come to an end before it counts as hanging.
    pub patience: Duration,
    /// What stands before the driver, in tests.
    pub interposer: Option<Interposer>,
    /// Matrix units that the driver does not say it has, in tests.
    pub units: Option<Units>,
    /// Memory that host and device share, as integrated GPUs have it, in tests.
    pub unified: bool,
    /// Long copies as if there were a queue for them, in tests.
    pub copies: bool,
    /// Products of whole numbers also where the driver has no instructions for them, in tests.
    pub dot: bool,
}

impl Default for OpenOptions {
    /// Nothing kept, and patience of ten minutes: as long as queues wait for one another, and longer than a node takes.
    fn default() -> OpenOptions {
        let patience = Duration::from_secs(600);
        OpenOptions {
            pipelines: None,
            patience,
            interposer: None,
            units: None,
            unified: false,
            copies: false,
            dot: false,
        }
    }
}

/// Opens a device of this process in `host`, under this name. A software driver's memory is the host's, of the budget.
pub fn vulkan_device(
    host: &Arc<Host>,
    found: &Found,
    name: &str,
    budget: &Arc<MemoryBudget>,
    options: &OpenOptions,
) -> Result<Arc<LocalDevice>> {
    let gpu = Gpu::open(found.number, name, options)?;
    let software = found.class == Class::Software;
    let total = if software { budget.info().total } else { gpu.memory().total };
    let info = DeviceInfo {
        description: found.description.clone(),
        device_id: found.device_id.clone(),
        memory_pool: if software { budget.name() } else { String::new() },
        max_alloc: gpu.physical.max_alloc,
        alignment: ALIGNMENT,
        unified: gpu.physical.host_alignment.is_some(),
        // Rows of a product are rounded by how many there are, and nothing evens that out.
        costs: Costs { uniform_rows: 1, ..Costs::default() },
        ..DeviceInfo::new(name, found.kind, "vulkan", total)
    };
    let number = found.number;
    let pool: Arc<dyn MemoryPool> =
        if software { budget.clone() } else { CardPool::new(total, move || memory(number).free) };
    let backend = Vulkan {
        number,
        kind: found.kind,
        id: name.into(),
        options: options.clone(),
        gpu: Mutex::new(gpu),
        steps: Arc::default(),
    };
    Ok(LocalDevice::new(host, info, pool, Arc::new(backend)))
}

/// The memory of a device, as its driver sees it.
fn memory(number: usize) -> MemoryInfo {
    let of = vulkan().and_then(|vulkan| Some(heap(vulkan, vulkan.physical.get(number)?)));
    of.unwrap_or(MemoryInfo { total: 0, free: 0 })
}

/// A device.
struct Vulkan {
    number: usize,
    kind: DeviceKind,
    id: Arc<str>,
    options: OpenOptions,
    /// The one that is open. A lost one is opened again for the next who comes.
    gpu: Mutex<Arc<Gpu>>,
    /// Nodes that it has computed.
    steps: Arc<AtomicU64>,
}

impl Backend for Vulkan {
    fn supports(&self, graph: &Graph, id: TensorId) -> bool {
        launch(graph, id, &Bounds::of(self.kind)).is_some()
    }

    fn context(&self, funds: Funds) -> Arc<dyn Context> {
        let mut gpu = lock(&self.gpu);
        if gpu.health.is_over() {
            match Gpu::open(self.number, &self.id, &self.options) {
                Ok(again) => *gpu = again,
                // Whoever uses it is told that it is lost.
                Err(why) => tracing::debug!("{} cannot be opened again: {why}", self.id),
            }
        }
        Arc::new(GpuContext { gpu: gpu.clone(), funds, steps: self.steps.clone(), allocations: Mutex::default() })
    }

    fn progress(&self) -> Option<u64> {
        Some(self.steps.load(Ordering::Relaxed))
    }

    fn graphs_ahead(&self) -> usize {
        2
    }
}

/// What one client has of it.
struct GpuContext {
    gpu: Arc<Gpu>,
    funds: Funds,
    steps: Arc<AtomicU64>,
    /// Its buffers and graphs, each an allocation of the driver's.
    allocations: Mutex<Vec<Weak<()>>>,
}

impl GpuContext {
    /// A place among the client's allocations, kept as long as what has it.
    fn place(&self) -> Result<Arc<()>> {
        let most = self.gpu.physical.limits.max_memory_allocation_count.min(MOST_ALLOCATIONS) / CLIENTS;
        let mut taken = lock(&self.allocations);
        taken.retain(|place| place.strong_count() > 0);
        if taken.len() as u64 >= u64::from(most) {
            let id = &self.funds.info().id;
            return Err(Error::Request(format!("{id}: a client has {most} buffers and graphs at most, and has them")));
        }
        let place = Arc::new(());
        taken.push(Arc::downgrade(&place));
        Ok(place)
    }
}

impl Context for GpuContext {
    fn alloc(&self, size: u64, _: Usage) -> Result<Arc<dyn Buffer>> {
        let place = self.place()?;
        Ok(Arc::new(GpuBuffer::new(&self.gpu, &self.funds, size)?.counted_by(place)))
    }

    fn import(&self, data: &Bytes) -> Result<Option<Arc<dyn Buffer>>> {
        let place = self.place()?;
        match GpuBuffer::import(&self.gpu, &self.funds, data) {
            Ok(buffer) => Ok(Some(Arc::new(buffer.counted_by(place)))),
            Err(why) => {
                tracing::debug!("{}: {} bytes are not used in place: {why}", self.funds.info().id, data.len());
                Ok(None)
            }
        }
    }

    fn compile(&self, graph: Arc<Graph>, placement: Placement) -> Result<Arc<dyn Executable>> {
        let place = self.place()?;
        Ok(Arc::new(Program::new(&self.gpu, &self.funds, graph, placement, place)?))
    }

    fn stream(&self, cancel: Arc<AtomicBool>) -> Result<Box<dyn Stream>> {
        Ok(Box::new(GpuStream::new(&self.gpu, cancel, self.steps.clone())?))
    }

    fn check(&self) -> Result<()> {
        let id = &self.funds.info().id;
        match self.gpu.health.end() {
            None => Ok(()),
            Some(why) if self.gpu.health.is_lost() => Err(Error::Peer { endpoint: id.clone(), detail: why.into() }),
            // It would hang again.
            Some(why) => Err(Error::Timeout { what: format!("{id}: {why}"), after: Duration::ZERO }),
        }
    }
}
