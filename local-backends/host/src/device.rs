//! A device whose memory is the host's.

use crate::budget::MemoryBudget;
use crate::buffer::HostBuffer;
use crate::host::Host;
use crate::lock;
use crate::queue::HostQueue;
use crate::turns::Turns;
use bytes::Bytes;
use outboard_core::device::fresh_uid;
use outboard_core::{
    Buffer, Device, DeviceInfo, Error, Event, Executable, Graph, Layout, MemoryInfo, NodeSet, PeerTransfer, Placement,
    Queue, Result, Slice, TensorId, Ticket, Usage,
};
use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

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
    /// A number that changes with every node that its programs have computed ([`Device::progress`]).
    fn progress(&self) -> Option<u64> {
        None
    }
}

/// A graph that is ready to run.
pub trait Program: Send + Sync {
    /// Runs every node in order. Looks at `abort` between nodes at least. Only one program of a device runs at a time.
    fn run(&self, abort: &AtomicBool) -> std::result::Result<(), NodeError>;
}

/// A device in host memory.
pub struct HostDevice {
    uid: u64,
    info: DeviceInfo,
    id: Arc<str>,
    host: Arc<Host>,
    budget: Arc<MemoryBudget>,
    kernels: Arc<dyn Kernels>,
    turns: Arc<Turns>,
    /// What stops each queue.
    cancels: Mutex<Vec<Weak<AtomicBool>>>,
}

impl HostDevice {
    /// A device of `host` with these kernels, on account of `budget`.
    pub fn new(
        host: &Arc<Host>,
        info: DeviceInfo,
        budget: &Arc<MemoryBudget>,
        kernels: Arc<dyn Kernels>,
    ) -> Arc<HostDevice> {
        Arc::new(HostDevice {
            uid: fresh_uid(),
            id: info.id.as_str().into(),
            info,
            host: host.clone(),
            budget: budget.clone(),
            kernels,
            turns: Arc::default(),
            cancels: Mutex::default(),
        })
    }

    /// Stops everything that is enqueued or runs on this device: programs end at their next look at `abort`, and the queues
    /// that there are now are poisoned with [`Error::Cancelled`]. Queues made later work.
    pub fn abort(&self) {
        for cancel in lock(&self.cancels).drain(..) {
            if let Some(cancel) = cancel.upgrade() {
                cancel.store(true, Ordering::Relaxed);
            }
        }
    }

    /// The account that its memory is on, for scratch memory of the backend ([`HostBuffer::new`]).
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }
}

/// A compiled graph. It keeps the buffers that its tensors lie in.
pub(crate) struct HostExecutable {
    pub(crate) device: u64,
    pub(crate) program: Box<dyn Program>,
    _placement: Placement,
}

impl fmt::Debug for HostExecutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostExecutable").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Executable for HostExecutable {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The host buffer behind a slice, if it is one.
pub(crate) fn host_buffer(slice: &Slice) -> Result<&HostBuffer> {
    let buffer = slice.buffer().as_any().downcast_ref::<HostBuffer>();
    buffer.ok_or_else(|| Error::Misuse("a buffer of another kind of device".into()))
}

impl fmt::Debug for HostDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostDevice").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Device for HostDevice {
    fn uid(&self) -> u64 {
        self.uid
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryInfo> {
        Ok(self.budget.info())
    }

    fn supports(&self, graph: &Graph) -> Result<NodeSet> {
        let flags = graph.ids().map(|id| !graph.tensor(id).is_compute() || self.kernels.supports(graph, id));
        Ok(NodeSet::from_flags(flags.collect()))
    }

    fn alloc(&self, size: u64, _: Usage) -> Result<Arc<dyn Buffer>> {
        Ok(Arc::new(HostBuffer::new(size, self.uid, &self.id, &self.budget)?))
    }

    fn import(&self, data: &Bytes) -> Result<Option<Arc<dyn Buffer>>> {
        if data.as_ptr().align_offset(self.info.alignment) != 0 {
            return Ok(None);
        }
        Ok(Some(Arc::new(HostBuffer::import(data.clone(), self.uid))))
    }

    fn compile(&self, graph: Arc<Graph>, placement: Placement) -> Result<Arc<dyn Executable>> {
        let supported = self.supports(&graph)?;
        if let Some(id) = graph.ids().find(|&id| !supported.contains(id)) {
            return Err(Error::Request(format!("{} does not support {}", self.id, graph.label(id))));
        }
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
        let program = self.kernels.compile(graph, tensors)?;
        Ok(Arc::new(HostExecutable { device: self.uid, program, _placement: placement }))
    }

    fn queue(&self) -> Result<Arc<dyn Queue>> {
        let queue = HostQueue::start(self.uid, &self.id, &self.host, &self.turns)?;
        let mut cancels = lock(&self.cancels);
        cancels.retain(|c| c.strong_count() > 0);
        cancels.push(queue.cancel());
        Ok(Arc::new(queue))
    }

    fn progress(&self) -> Option<u64> {
        self.kernels.progress()
    }

    fn peer(&self) -> Option<&dyn PeerTransfer> {
        Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl PeerTransfer for HostDevice {
    fn reaches(&self, to: &dyn Device) -> bool {
        to.as_any().downcast_ref::<HostDevice>().is_some_and(|to| Arc::ptr_eq(&to.host, &self.host))
    }

    fn offer(&self, queue: &dyn Queue, ticket: Ticket, src: &Slice, to: &dyn Device) -> Result<()> {
        if !self.reaches(to) {
            return Err(Error::Misuse(format!("{} does not reach {}", self.id, to.info().id)));
        }
        HostQueue::of(queue)?.offer(ticket, src)
    }

    fn accept(&self, queue: &dyn Queue, ticket: Ticket, dst: &Slice) -> Result<Event> {
        let host_queue = HostQueue::of(queue)?;
        host_queue.accept(ticket, dst)?;
        queue.signal()
    }
}
