//! The CPU device: kernels chosen for the processor at run time, run by a pool of threads of its own.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod kernels;
mod ops;
mod paging;
mod pool;
mod program;
mod scratch;
mod tensor;

pub use kernels::Isa;
pub use pool::{Pool, Turn};

use outboard_core::Host;
use outboard_core::{Costs, Device, DeviceInfo, DeviceKind, Graph, Result, TensorId};
use outboard_host::{Kernels, MemoryBudget, Program, TensorPtr, host_device};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Measured: a CPU takes as long per token with 128 as with 512, and 64 rows at a time take 3 % longer for each than 128 do. With 5 in
/// place of 7, two devices are 1 % slower at prompts of 512 tokens; with 6 or 8 they are as fast. One row or two are other kernels' work than
/// more of them. Attention is compared with products of quantized weights.
const COSTS: Costs = Costs { batch_rows: 128, run_rows: 7.0, uniform_rows: 3, attention: 3.5 };

/// How a CPU device is set up.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Threads that compute; at least 1.
    pub threads: usize,
    /// Instruction set of the kernels.
    pub isa: Isa,
}

impl CpuOptions {
    /// That many threads and the best kernels there are.
    pub fn with_threads(threads: usize) -> CpuOptions {
        CpuOptions { threads, isa: Isa::detect() }
    }
}

/// A CPU device of `host` with its own threads. Several of them share the host's memory through `budget`.
pub fn cpu_device(host: &Arc<Host>, name: &str, options: CpuOptions, budget: &Arc<MemoryBudget>) -> Arc<dyn Device> {
    let threads = options.threads.max(1);
    let info = DeviceInfo {
        description: format!("{} ({threads} thread{})", processor_name(), if threads == 1 { "" } else { "s" }),
        capabilities: vec![options.isa.name().to_owned()],
        // That of tensors in GGUF files, so that mapped weights are used where they are.
        alignment: 32,
        costs: COSTS,
        ..DeviceInfo::new(name, DeviceKind::Cpu, "cpu", budget.info().total)
    };
    let shared = Shared { isa: options.isa, pool: Pool::new(threads, name), steps: AtomicU64::new(0) };
    let kernels = CpuKernels { shared: Arc::new(shared) };
    host_device(host, info, budget, Arc::new(kernels))
}

/// What the programs of one device share: nothing that holds data of any of them.
struct Shared {
    isa: Isa,
    pool: Pool,
    /// Goes up with every piece of work that is done, so that a client can tell a long graph from a device that hangs.
    steps: AtomicU64,
}

struct CpuKernels {
    shared: Arc<Shared>,
}

impl Kernels for CpuKernels {
    fn supports(&self, graph: &Graph, id: TensorId) -> bool {
        program::supports(graph, id)
    }

    fn compile(&self, graph: Arc<Graph>, tensors: Vec<TensorPtr>) -> Result<Box<dyn Program>> {
        Ok(Box::new(program::CpuProgram::new(self.shared.clone(), &graph, &tensors)))
    }

    fn progress(&self) -> Option<u64> {
        Some(self.shared.steps.load(Ordering::Relaxed))
    }
}

/// The processor's name for people, where the system tells it.
fn processor_name() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = cpuinfo.lines().find(|l| l.starts_with("model name"));
    let name = line.and_then(|l| l.split(':').nth(1)).map(str::trim).filter(|n| !n.is_empty());
    name.map_or_else(|| format!("{} processor", std::env::consts::ARCH), str::to_owned)
}
