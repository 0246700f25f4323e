//! Devices whose graphs hang, or take long, when a test says so.
#![allow(dead_code, unreachable_pub, missing_docs)]

use outboard_core::Host;
use outboard_core::{Device, DeviceInfo, DeviceKind, Graph, Result, TensorId};
use outboard_host::{Kernels, MemoryBudget, NodeError, Program as HostProgram, Run, TensorPtr, host_device};
use outboard_reference::Reference;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What becomes of the graphs of a device.
#[derive(Default)]
pub struct Fate {
    /// They do not end.
    pub hangs: AtomicBool,
    /// A graph takes this many milliseconds, in which the device says now and then that it gets further.
    pub takes: AtomicU64,
    /// It does not say that.
    pub blind: AtomicBool,
    steps: AtomicU64,
}

/// The reference kernels with such a fate.
struct Fated(Arc<Fate>);

struct FatedProgram {
    inner: Box<dyn HostProgram>,
    fate: Arc<Fate>,
}

impl Kernels for Fated {
    fn supports(&self, graph: &Graph, id: TensorId) -> bool {
        Reference.supports(graph, id)
    }

    fn compile(&self, graph: Arc<Graph>, tensors: Vec<TensorPtr>) -> Result<Box<dyn HostProgram>> {
        Ok(Box::new(FatedProgram { inner: Reference.compile(graph, tensors)?, fate: self.0.clone() }))
    }

    fn progress(&self) -> Option<u64> {
        (!self.0.blind.load(Ordering::SeqCst)).then(|| self.0.steps.load(Ordering::SeqCst))
    }
}

impl HostProgram for FatedProgram {
    fn scratch(&self) -> u64 {
        self.inner.scratch()
    }

    fn run(&self, run: Run<'_>) -> std::result::Result<(), NodeError> {
        let start = Instant::now();
        let takes = || start.elapsed() < Duration::from_millis(self.fate.takes.load(Ordering::SeqCst));
        while self.fate.hangs.load(Ordering::SeqCst) || takes() {
            if run.abort.load(Ordering::Relaxed) {
                return Err(NodeError { node: "a node".into(), detail: None });
            }
            if takes() {
                self.fate.steps.fetch_add(1, Ordering::SeqCst);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.inner.run(run)
    }
}

/// A device with a fate.
pub fn fated_device(host: &Arc<Host>, name: &str, budget: &Arc<MemoryBudget>, fate: &Arc<Fate>) -> Arc<dyn Device> {
    let info = DeviceInfo::new(name, DeviceKind::Cpu, "fated", budget.info().total);
    host_device(host, info, budget, Arc::new(Fated(fate.clone())))
}
