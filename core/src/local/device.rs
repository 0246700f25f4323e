//! A device of this process, made of a backend.

use super::host::Host;
use super::memory::{Funds, MemoryPool};
use super::queue::LocalQueue;
use super::speed::measure;
use super::stream::Stream;
use super::turns::Turns;
use crate::device::{
    Buffer, Bytes, Client, Device, DeviceInfo, Event, Executable, MemoryInfo, NodeSet, PeerTransfer, Placement, Queue,
    Slice, Speed, Ticket, Usage, fresh_uid,
};
use crate::error::{Bytes as Size, Error, Result};
use crate::graph::{Graph, TensorId};
use crate::lock;
use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// What a backend says of one device.
pub trait Backend: Send + Sync + 'static {
    /// Whether it can compute this node.
    fn supports(&self, graph: &Graph, id: TensorId) -> bool;
    /// The same for every node of a graph, where asking for each costs more.
    fn supports_of(&self, graph: &Graph) -> Result<NodeSet> {
        let flags = graph.ids().map(|id| !graph.tensor(id).is_compute() || self.supports(graph, id));
        Ok(NodeSet::from_flags(flags.collect()))
    }
    /// What one client has of it. Its memory is counted on these funds; nothing that its graphs leave behind, in scratch memory or
    /// anywhere else, can be read by another context. What goes wrong comes out when it is used.
    fn context(&self, funds: Funds) -> Arc<dyn Context>;
    /// A number that changes with every node that it computes ([`Device::progress`]).
    fn progress(&self) -> Option<u64> {
        None
    }
    /// Most graphs that it holds at once, the one that runs included. 1, unless it would idle between graphs: a client that comes waits behind
    /// all of them. Turns order graphs by client and do not exclude them: with more than one, and behind a failure, a graph may be given
    /// while another still runs, so that what they share (scratch memory of a context) is ordered on the device, or belongs to a stream.
    fn graphs_ahead(&self) -> usize {
        1
    }
}

/// What one client has of a device. Its methods are called from any thread, several at once.
pub trait Context: Send + Sync {
    /// New memory, zeroed, of any size, 0 as well; its buffer says [`Funds::device`] and keeps the [`Payment`](super::Payment) for it.
    fn alloc(&self, size: u64, usage: Usage) -> Result<Arc<dyn Buffer>>;
    /// Memory of this host as a read-only buffer, if the device can use it in place.
    fn import(&self, _data: &Bytes) -> Result<Option<Arc<dyn Buffer>>> {
        Ok(None)
    }
    /// Prepares a graph; every node is supported, and every slice is of this device.
    fn compile(&self, graph: Arc<Graph>, placement: Placement) -> Result<Arc<dyn Executable>>;
    /// What a new queue gives its commands to. When `cancel` is set (the queue is dropped, the device aborts; not when a command fails) it stops
    /// what it does within some hundredths of a second. Waits of its outcomes are given the same flag.
    fn stream(&self, cancel: Arc<AtomicBool>) -> Result<Box<dyn Stream>>;
    /// Whether it still has what was made of it; [`Error::Peer`] if that is lost ([`Device::resume`]).
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// A device of this process, as one client has it.
pub struct LocalDevice {
    shared: Arc<Shared>,
    client: Option<Client>,
    funds: Funds,
    context: Arc<dyn Context>,
}

/// What all clients of a device have in common.
pub(super) struct Shared {
    pub(super) uid: u64,
    info: Arc<DeviceInfo>,
    pub(super) id: Arc<str>,
    pub(super) host: Arc<Host>,
    backend: Arc<dyn Backend>,
    pub(super) turns: Arc<Turns>,
    /// What stops each queue.
    cancels: Mutex<Vec<Weak<AtomicBool>>>,
    speed: OnceLock<Option<Speed>>,
}

impl LocalDevice {
    /// A device of `host`, with memory of `pool`.
    pub fn new(
        host: &Arc<Host>,
        info: DeviceInfo,
        pool: Arc<dyn MemoryPool>,
        backend: Arc<dyn Backend>,
    ) -> Arc<LocalDevice> {
        let (uid, info) = (fresh_uid(), Arc::new(info));
        let funds = Funds::new(uid, &info, pool);
        let shared = Shared {
            uid,
            id: info.id.as_str().into(),
            info,
            host: host.clone(),
            turns: Turns::new(backend.graphs_ahead()),
            backend,
            cancels: Mutex::default(),
            speed: OnceLock::new(),
        };
        Arc::new(LocalDevice::of(Arc::new(shared), None, funds))
    }

    fn of(shared: Arc<Shared>, client: Option<Client>, funds: Funds) -> LocalDevice {
        let context = shared.backend.context(funds.clone());
        LocalDevice { shared, client, funds, context }
    }

    /// Stops everything that is enqueued or runs on this device, of all clients: the queues that there are now are poisoned with
    /// [`Error::Cancelled`]. Queues made later work.
    pub fn abort(&self) {
        for cancel in lock(&self.shared.cancels).drain(..) {
            if let Some(cancel) = cancel.upgrade() {
                cancel.store(true, Ordering::Relaxed);
            }
        }
    }
}

impl fmt::Debug for LocalDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalDevice").field("id", &self.shared.id).finish_non_exhaustive()
    }
}

impl Device for LocalDevice {
    fn uid(&self) -> u64 {
        self.shared.uid
    }

    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn memory(&self) -> Result<MemoryInfo> {
        Ok(self.funds.memory())
    }

    fn supports(&self, graph: &Graph) -> Result<NodeSet> {
        self.shared.backend.supports_of(graph)
    }

    fn alloc(&self, size: u64, usage: Usage) -> Result<Arc<dyn Buffer>> {
        let most = self.shared.info.max_alloc;
        if size > most {
            let (id, size, most) = (&self.shared.id, Size(size), Size(most));
            return Err(Error::Request(format!("{id}: {size} in one allocation, {most} is the largest it has")));
        }
        self.context.alloc(size, usage)
    }

    fn import(&self, data: &Bytes) -> Result<Option<Arc<dyn Buffer>>> {
        self.context.import(data)
    }

    fn compile(&self, graph: Arc<Graph>, placement: Placement) -> Result<Arc<dyn Executable>> {
        let supported = self.supports(&graph)?;
        if let Some(id) = graph.ids().find(|&id| !supported.contains(id)) {
            return Err(Error::Request(format!("{} does not support {}", self.shared.id, graph.label(id))));
        }
        placement.check(&graph, self)?;
        self.context.compile(graph, placement)
    }

    fn queue(&self) -> Result<Arc<dyn Queue>> {
        let cancel = Arc::new(AtomicBool::new(false));
        let stream = self.context.stream(cancel.clone())?;
        let weak = Arc::downgrade(&cancel);
        let queue = LocalQueue::start(&self.shared, self.client.as_ref(), stream, cancel)?;
        let mut cancels = lock(&self.shared.cancels);
        cancels.retain(|c| c.strong_count() > 0);
        cancels.push(weak);
        Ok(Arc::new(queue))
    }

    fn for_client(&self, client: Client) -> Result<Arc<dyn Device>> {
        let funds = self.funds.of_client(&client);
        Ok(Arc::new(LocalDevice::of(self.shared.clone(), Some(client), funds)))
    }

    fn resume(&self) -> Result<()> {
        self.context.check()
    }

    fn reopened(&self) -> Option<Arc<dyn Device>> {
        // A session of a server does not begin again on its own.
        if self.client.is_some() || self.context.check().is_ok() {
            return None;
        }
        let Shared { info, host, backend, speed, .. } = &*self.shared;
        let again = LocalDevice::new(host, DeviceInfo::clone(info), self.funds.pool(), backend.clone());
        if let Some(speed) = speed.get() {
            let _ = again.shared.speed.set(*speed);
        }
        Some(again)
    }

    fn progress(&self) -> Option<u64> {
        self.shared.backend.progress()
    }

    fn speed(&self) -> Option<Speed> {
        *self.shared.speed.get_or_init(|| measure(self).ok())
    }

    fn known_speed(&self) -> Option<Speed> {
        self.shared.speed.get().copied().flatten()
    }

    fn host(&self) -> Option<&Arc<Host>> {
        Some(&self.shared.host)
    }

    fn peer(&self) -> Option<&dyn PeerTransfer> {
        Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl PeerTransfer for LocalDevice {
    fn reaches(&self, to: &dyn Device) -> bool {
        to.host().is_some_and(|host| Arc::ptr_eq(host, &self.shared.host))
    }

    fn offer(&self, queue: &dyn Queue, ticket: Ticket, src: &Slice, to: &dyn Device) -> Result<()> {
        if !self.reaches(to) {
            return Err(Error::Misuse(format!("{} does not reach {}", self.shared.id, to.info().id)));
        }
        LocalQueue::of(queue)?.offer(ticket, src)
    }

    fn accept(&self, queue: &dyn Queue, ticket: Ticket, dst: &Slice) -> Result<Event> {
        let local = LocalQueue::of(queue)?;
        local.accept(ticket, dst)?;
        queue.signal()
    }
}
