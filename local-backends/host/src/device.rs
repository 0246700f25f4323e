//! A device whose memory is the host's.

use crate::access::{Footprint, Touched};
use crate::budget::{Funds, MemoryBudget};
use crate::buffer::HostBuffer;
use crate::host::Host;
use crate::lock;
use crate::queue::HostQueue;
use crate::scratch::{Scratch, ScratchNeed};
use crate::turns::Turns;
use bytes::Bytes;
use outboard_core::device::fresh_uid;
use outboard_core::{
    Buffer, Client, Device, DeviceInfo, Error, Event, Executable, Graph, Layout, LeafKind, MemoryInfo, NodeSet,
    PeerTransfer, Placement, Queue, Result, Slice, TensorId, Ticket, Usage,
};
use std::any::Any;
use std::collections::HashSet;
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

/// A device in host memory, as one client has it.
pub struct HostDevice {
    shared: Arc<Shared>,
    client: Option<Client>,
    funds: Funds,
    scratch: Arc<Scratch>,
}

/// What all clients of a device have in common.
struct Shared {
    uid: u64,
    info: Arc<DeviceInfo>,
    id: Arc<str>,
    host: Arc<Host>,
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
        let (uid, info) = (fresh_uid(), Arc::new(info));
        let funds = Funds::new(uid, &info, budget);
        let shared = Shared {
            uid,
            id: info.id.as_str().into(),
            info,
            host: host.clone(),
            kernels,
            turns: Arc::default(),
            cancels: Mutex::default(),
        };
        Arc::new(HostDevice::of(Arc::new(shared), None, funds))
    }

    fn of(shared: Arc<Shared>, client: Option<Client>, funds: Funds) -> HostDevice {
        HostDevice { shared, client, scratch: Scratch::new(funds.clone()), funds }
    }

    /// Stops everything that is enqueued or runs on this device, of all clients: programs end at their next look at `abort`, and the
    /// queues that there are now are poisoned with [`Error::Cancelled`]. Queues made later work.
    pub fn abort(&self) {
        for cancel in lock(&self.shared.cancels).drain(..) {
            if let Some(cancel) = cancel.upgrade() {
                cancel.store(true, Ordering::Relaxed);
            }
        }
    }
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
        f.debug_struct("HostDevice").field("id", &self.shared.id).finish_non_exhaustive()
    }
}

/// What a graph touches: all that is placed, as written, but weights and inputs that no node writes into.
fn footprint(graph: &Graph, placement: &Placement) -> Result<Footprint> {
    let mut touched = Vec::new();
    let computed = graph.nodes().map(|id| graph.tensor(id)).filter(|t| t.is_compute());
    let written: HashSet<TensorId> = computed.map(|t| t.root()).collect();
    for id in graph.ids() {
        let t = graph.tensor(id);
        let Some(slice) = placement.get(id).filter(|_| t.root() == id && t.layout().span() > 0) else { continue };
        let (ptr, len) = (crate::queue::address(slice)?, t.layout().span());
        let only_read = matches!(t.leaf(), Some(LeafKind::Weight | LeafKind::Input)) && !written.contains(&id);
        touched.push(if only_read { Touched::read(ptr, len) } else { Touched::written(ptr, len) });
    }
    Ok(Footprint::new(touched))
}

impl Device for HostDevice {
    fn uid(&self) -> u64 {
        self.shared.uid
    }

    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn memory(&self) -> Result<MemoryInfo> {
        Ok(self.funds.budget().info())
    }

    fn supports(&self, graph: &Graph) -> Result<NodeSet> {
        let kernels = &self.shared.kernels;
        let flags = graph.ids().map(|id| !graph.tensor(id).is_compute() || kernels.supports(graph, id));
        Ok(NodeSet::from_flags(flags.collect()))
    }

    fn alloc(&self, size: u64, _: Usage) -> Result<Arc<dyn Buffer>> {
        Ok(Arc::new(HostBuffer::new(size, &self.funds)?))
    }

    fn import(&self, data: &Bytes) -> Result<Option<Arc<dyn Buffer>>> {
        if data.as_ptr().align_offset(self.shared.info.alignment) != 0 {
            return Ok(None);
        }
        Ok(Some(Arc::new(HostBuffer::import(data.clone(), self.shared.uid))))
    }

    fn compile(&self, graph: Arc<Graph>, placement: Placement) -> Result<Arc<dyn Executable>> {
        let supported = self.supports(&graph)?;
        if let Some(id) = graph.ids().find(|&id| !supported.contains(id)) {
            return Err(Error::Request(format!("{} does not support {}", self.shared.id, graph.label(id))));
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
        let footprint = footprint(&graph, &placement)?;
        let program = self.shared.kernels.compile(graph, tensors)?;
        let scratch = self.scratch.need(program.scratch())?;
        let device = self.shared.uid;
        Ok(Arc::new(HostExecutable { device, program, scratch, footprint, _placement: placement }))
    }

    fn queue(&self) -> Result<Arc<dyn Queue>> {
        let Shared { uid, id, host, turns, cancels, .. } = &*self.shared;
        let queue = HostQueue::start(*uid, id, host, turns, self.client.as_ref())?;
        let mut cancels = lock(cancels);
        cancels.retain(|c| c.strong_count() > 0);
        cancels.push(queue.cancel());
        Ok(Arc::new(queue))
    }

    fn for_client(&self, client: Client) -> Result<Arc<dyn Device>> {
        let funds = self.funds.with_account(client.account.clone());
        Ok(Arc::new(HostDevice::of(self.shared.clone(), Some(client), funds)))
    }

    fn progress(&self) -> Option<u64> {
        self.shared.kernels.progress()
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
        let to = to.as_any().downcast_ref::<HostDevice>();
        to.is_some_and(|to| Arc::ptr_eq(&to.shared.host, &self.shared.host))
    }

    fn offer(&self, queue: &dyn Queue, ticket: Ticket, src: &Slice, to: &dyn Device) -> Result<()> {
        if !self.reaches(to) {
            return Err(Error::Misuse(format!("{} does not reach {}", self.shared.id, to.info().id)));
        }
        HostQueue::of(queue)?.offer(ticket, src)
    }

    fn accept(&self, queue: &dyn Queue, ticket: Ticket, dst: &Slice) -> Result<Event> {
        let host_queue = HostQueue::of(queue)?;
        host_queue.accept(ticket, dst)?;
        queue.signal()
    }
}
