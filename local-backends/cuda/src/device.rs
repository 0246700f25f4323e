//! A card, or a part of one, as one of our devices.

use crate::card::Found;
use crate::gpu::Gpu;
use crate::launch::launch;
use crate::memory::GpuBuffer;
use crate::program::Program;
use crate::stream::GpuStream;
use outboard_core::local::{Backend, CardPool, Context, Funds, LocalDevice, Stream};
use outboard_core::{
    Buffer, Costs, DeviceInfo, Error, Executable, Graph, Host, Placement, Result, TensorId, Usage, lock,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Roots begin at multiples of this, which is more than any load needs.
const ALIGNMENT: usize = 32;
/// Bytes of memory that are left to the driver, for code, streams and stacks.
const LEFT_TO_DRIVER: u64 = 64 << 20;

/// What is not supported, or not in all cases, by ops and by cases of the conformance suite: a CPU device beside it computes that.
pub const UNSUPPORTED: &[&str] = &[
    // Writing blocks, except Q8_0 by SET_ROWS.
    "CAST", "CPY", "SET_ROWS",
];

/// How a device is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// How long nothing that the device was given may come to an end before it counts as hanging.
    pub patience: Duration,
}

impl Default for OpenOptions {
    /// Patience of ten minutes: as long as queues wait for one another, and longer than a node takes.
    fn default() -> OpenOptions {
        OpenOptions { patience: Duration::from_secs(600) }
    }
}

/// Opens a device of this process in `host`, under this name. Errors: [`Error::Device`] with what its driver says.
pub fn cuda_device(host: &Arc<Host>, found: &Found, name: &str, options: &OpenOptions) -> Result<Arc<LocalDevice>> {
    let gpu = Gpu::open(found, name, options.patience)?;
    let total = found.memory.saturating_sub(LEFT_TO_DRIVER.min(found.memory / 8));
    let info = DeviceInfo {
        description: found.description.clone(),
        device_id: found.device_id.clone(),
        max_alloc: total,
        capabilities: vec![format!("sm_{}", found.capability)],
        alignment: ALIGNMENT,
        unified: false,
        // Rows of a product are rounded by how many there are, and nothing evens that out.
        costs: Costs { uniform_rows: 1, ..Costs::default() },
        ..DeviceInfo::new(name, found.kind, "cuda", total)
    };
    let open = Arc::new(Mutex::new(gpu));
    let seen = open.clone();
    // Of a context that has failed, nothing is known.
    let pool = CardPool::new(total, move || lock(&seen).clone().memory().map_or(u64::MAX, |memory| memory.free));
    let backend =
        Cuda { found: found.clone(), id: name.into(), options: options.clone(), gpu: open, steps: Arc::default() };
    Ok(LocalDevice::new(host, info, pool, Arc::new(backend)))
}

/// A device.
struct Cuda {
    found: Found,
    id: Arc<str>,
    options: OpenOptions,
    /// The context that is open. One that has failed is opened again for the next who comes.
    gpu: Arc<Mutex<Arc<Gpu>>>,
    /// Nodes that it has computed.
    steps: Arc<AtomicU64>,
}

impl Backend for Cuda {
    fn supports(&self, graph: &Graph, id: TensorId) -> bool {
        launch(graph, id, self.found.card).is_some()
    }

    fn context(&self, funds: Funds) -> Arc<dyn Context> {
        let mut gpu = lock(&self.gpu);
        if gpu.health.is_over() {
            match Gpu::open(&self.found, &self.id, self.options.patience) {
                Ok(again) => *gpu = again,
                // Whoever uses it is told that it is lost.
                Err(why) => tracing::debug!("{} cannot be opened again: {why}", self.id),
            }
        }
        Arc::new(GpuContext { gpu: Arc::downgrade(&gpu), funds, steps: self.steps.clone() })
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
    /// Held by the device while it is open, and by what was made in it: one that has failed does not wait for clients that have nothing of it.
    gpu: Weak<Gpu>,
    funds: Funds,
    steps: Arc<AtomicU64>,
}

impl GpuContext {
    fn gpu(&self) -> Result<Arc<Gpu>> {
        let gone = || {
            let device = self.funds.info().id.clone();
            Error::Device { device, op: None, detail: "its context has failed, and is gone".into() }
        };
        self.gpu.upgrade().ok_or_else(gone)
    }
}

impl Context for GpuContext {
    fn alloc(&self, size: u64, _: Usage) -> Result<Arc<dyn Buffer>> {
        Ok(Arc::new(GpuBuffer::new(&self.gpu()?, &self.funds, size)?))
    }

    fn compile(&self, graph: Arc<Graph>, placement: Placement) -> Result<Arc<dyn Executable>> {
        Ok(Arc::new(Program::new(&self.gpu()?, &self.funds, graph, placement)?))
    }

    fn stream(&self, cancel: Arc<AtomicBool>) -> Result<Box<dyn Stream>> {
        Ok(Box::new(GpuStream::new(&self.gpu()?, cancel, self.steps.clone())?))
    }

    fn check(&self) -> Result<()> {
        let end = self
            .gpu
            .upgrade()
            .map_or_else(|| Some("its context has failed".into()), |gpu| gpu.health.end().map(str::to_owned));
        match end {
            Some(detail) => Err(Error::Peer { endpoint: self.funds.info().id.clone(), detail }),
            None => Ok(()),
        }
    }
}
