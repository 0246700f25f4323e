//! A device whose memory is the host's.

use crate::access::{Footprint, Touched};
use crate::budget::MemoryBudget;
use crate::buffer::HostBuffer;
use crate::scratch::{Scratch, ScratchNeed};
use crate::stream::{HostStream, address};
use bytes::Bytes;
use outboard_core::local::{Backend, Context, Funds, LocalDevice, Stream};
use outboard_core::{
    Buffer, DeviceInfo, Error, Executable, Graph, Host, Layout, LeafKind, Placement, Result, Slice, TensorId, Usage,
};
use std::any::Any;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A tensor in memory: where its first element is, and how the others follow.
#[derive(Clone, Copy, Debug)]
pub struct TensorPtr {
    /// First element; dangling for an empty tensor.
    pub ptr: *mut u8,
    /// Type, shape, strides. Every element it describes is inside the tensor's buffer.
    pub layout: Layout,
}

// SAFETY: a plain address; what may be done with it is said at `HostBuffer`.
unsafe impl Send for TensorPtr {}
// SAFETY: as above.
unsafe impl Sync for TensorPtr {}

/// Why a node failed.
#[derive(Clone, Debug)]
pub struct NodeError {
    /// Op and name of the node, from [`Graph::label`].
    pub node: String,
    /// What happened; `None` if the run was aborted.
    pub detail: Option<String>,
}

/// What a backend in host memory adds to this crate.
pub trait Kernels: Send + Sync + 'static {
    /// Whether it can compute this node.
    fn supports(&self, graph: &Graph, id: TensorId) -> bool;
    /// Prepares a graph; `tensors` has an entry for each of its tensors. Every node is supported. The memory stays where it is
    /// for as long as the program lives.
    fn compile(&self, graph: Arc<Graph>, tensors: Vec<TensorPtr>) -> Result<Box<dyn Program>>;
    /// A number that changes with every node that its programs have computed ([`Device::progress`](outboard_core::Device::progress)).
    fn progress(&self) -> Option<u64> {
        None
    }
}

/// What a program runs with.
pub struct Run<'a> {
    /// Set when the run is not wanted any more. A program looks at it often: no piece of work between two looks takes more than some
    /// hundredths of a second, as far as shapes allow.
    pub abort: &'a AtomicBool,
    /// [`Program::scratch`] bytes of any content, aligned to [`crate::BUFFER_ALIGN`]. No other client's programs have used them.
    pub scratch: &'a mut [u8],
}

/// A graph that is ready to run.
pub trait Program: Send + Sync {
    /// Bytes that it needs while it runs, beside its tensors. All that depends on shapes is part of this number, not taken from the
    /// program's allocator: so it is counted, and refused when a graph is compiled.
    fn scratch(&self) -> u64 {
        0
    }

    /// Runs every node in order. Only one program of a device runs at a time.
    fn run(&self, run: Run<'_>) -> std::result::Result<(), NodeError>;
}

/// A device of `host` with these kernels, in the host's memory.
pub fn host_device(
    host: &Arc<Host>,
    info: DeviceInfo,
    budget: &Arc<MemoryBudget>,
    kernels: Arc<dyn Kernels>,
) -> Arc<LocalDevice> {
    let info = DeviceInfo { memory_pool: budget.name(), unified: true, ..info };
    LocalDevice::new(host, info, budget.clone(), Arc::new(HostBackend { kernels }))
}

struct HostBackend {
    kernels: Arc<dyn Kernels>,
}

impl Backend for HostBackend {
    fn supports(&self, graph: &Graph, id: TensorId) -> bool {
        self.kernels.supports(graph, id)
    }

    fn context(&self, funds: Funds) -> Arc<dyn Context> {
        let (kernels, scratch) = (self.kernels.clone(), Scratch::new(funds.clone()));
        Arc::new(HostContext { kernels, funds, scratch })
    }

    fn progress(&self) -> Option<u64> {
        self.kernels.progress()
    }
}

/// What one client has of a device in host memory.
struct HostContext {
    kernels: Arc<dyn Kernels>,
    funds: Funds,
    scratch: Arc<Scratch>,
}

/// A compiled graph. It keeps the buffers that its tensors lie in.
pub(crate) struct HostExecutable {
    pub(crate) device: u64,
    pub(crate) program: Box<dyn Program>,
    pub(crate) scratch: ScratchNeed,
    /// What the program touches beside its scratch memory.
    pub(crate) footprint: Footprint,
    _placement: Placement,
}

impl fmt::Debug for HostExecutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostExecutable").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Executable for HostExecutable {
    fn device(&self) -> u64 {
        self.device
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The host buffer behind a slice, if it is one.
pub(crate) fn host_buffer(slice: &Slice) -> Result<&HostBuffer> {
    let buffer = slice.buffer().as_any().downcast_ref::<HostBuffer>();
    buffer.ok_or_else(|| Error::Misuse("a buffer of another kind of device".into()))
}

/// What a graph touches: all that is placed, as written, but weights and inputs that no node writes into.
fn footprint(graph: &Graph, placement: &Placement) -> Result<Footprint> {
    let mut touched = Vec::new();
    let computed = graph.nodes().map(|id| graph.tensor(id)).filter(|t| t.is_compute());
    let written: HashSet<TensorId> = computed.map(|t| t.root()).collect();
    for id in graph.ids() {
        let t = graph.tensor(id);
        let Some(slice) = placement.get(id).filter(|_| t.root() == id && t.layout().span() > 0) else { continue };
        let (ptr, len) = (address(slice)?, t.layout().span());
        let only_read = matches!(t.leaf(), Some(LeafKind::Weight | LeafKind::Input)) && !written.contains(&id);
        touched.push(if only_read { Touched::read(ptr, len) } else { Touched::written(ptr, len) });
    }
    Ok(Footprint::new(touched))
}

impl Context for HostContext {
    fn alloc(&self, size: u64, _: Usage) -> Result<Arc<dyn Buffer>> {
        Ok(Arc::new(HostBuffer::new(size, &self.funds)?))
    }

    fn import(&self, data: &Bytes) -> Result<Option<Arc<dyn Buffer>>> {
        if data.as_ptr().align_offset(self.funds.info().alignment) != 0 {
            return Ok(None);
        }
        Ok(Some(Arc::new(HostBuffer::import(data.clone(), self.funds.device()))))
    }

    fn compile(&self, graph: Arc<Graph>, placement: Placement) -> Result<Arc<dyn Executable>> {
        let mut tensors: Vec<TensorPtr> = Vec::with_capacity(graph.tensors().len());
        for t in graph.tensors() {
            let base = match placement.get(t.root()) {
                // SAFETY: the slice is inside its buffer by construction, and the tensor's span (at its offset, for views)
                // inside the slice: `Placement::new` and the shape rules of views have checked it.
                Some(slice) => unsafe { host_buffer(slice)?.ptr().add(slice.offset() as usize + t.offset()) },
                None => std::ptr::without_provenance_mut(crate::buffer::BUFFER_ALIGN),
            };
            tensors.push(TensorPtr { ptr: base, layout: *t.layout() });
        }
        let footprint = footprint(&graph, &placement)?;
        let program = self.kernels.compile(graph, tensors)?;
        let scratch = self.scratch.need(program.scratch())?;
        let device = self.funds.device();
        Ok(Arc::new(HostExecutable { device, program, scratch, footprint, _placement: placement }))
    }

    fn stream(&self, cancel: Arc<AtomicBool>) -> Result<Box<dyn Stream>> {
        Ok(Box::new(HostStream { id: self.funds.info().id.as_str().into(), cancel }))
    }
}
