//! The contract of a device, the same for one in this process and one behind a network.
//!
//! A [`Device`] has memory ([`Buffer`]), compiled graphs ([`Executable`]) and [`Queue`]s. Everything on a queue enqueues and
//! returns; what a queue was given runs in that order; different queues run side by side. What a queue promises in detail is said at
//! [`Queue`]. Devices of this process are made of [`crate::local`], which keeps these promises for them.

mod buffer;
mod pending;
mod placement;
mod queue;
mod round_trip;
mod shares;

pub use buffer::{Buffer, Slice, Usage};
pub use bytes::Bytes;
pub use pending::{Completer, Pending};
pub use placement::{PlacedBytes, Placement};
pub use queue::{Event, Executable, PeerTransfer, QUEUE_DEPTH, Queue, Ticket, TraceEvent, TraceHook};
pub use round_trip::RoundTrips;
pub use shares::{TimeRange, TimeShares, covered};

use crate::content::ContentUpload;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, TensorId};
use crate::local::Host;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What kind of hardware a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// Runs on the host's processors.
    Cpu,
    /// A graphics card with memory of its own.
    Gpu,
    /// A graphics processor that shares the host's memory.
    IntegratedGpu,
    /// Another accelerator.
    Accelerator,
    /// Several devices that act as one.
    Meta,
}

impl DeviceKind {
    /// Every kind.
    pub const ALL: [DeviceKind; 5] =
        [DeviceKind::Cpu, DeviceKind::Gpu, DeviceKind::IntegratedGpu, DeviceKind::Accelerator, DeviceKind::Meta];

    /// Name in reports and on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "CPU",
            DeviceKind::Gpu => "GPU",
            DeviceKind::IntegratedGpu => "IGPU",
            DeviceKind::Accelerator => "ACCEL",
            DeviceKind::Meta => "META",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<DeviceKind> {
        DeviceKind::ALL.into_iter().find(|k| k.name() == name)
    }
}

/// What does not change while a device lives.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// Unique among the devices of a run and stable: `NAME` for local ones, `host:port/NAME` for remote ones.
    pub id: String,
    /// Name on its host: `CPU0`, `CUDA1`.
    pub name: String,
    /// Kind of hardware.
    pub kind: DeviceKind,
    /// For people: the model of the processor.
    pub description: String,
    /// Identifies the hardware across restarts, such as the PCI address; empty if there is none.
    pub device_id: String,
    /// Which backend drives it: `cpu`, `reference`, `cuda`.
    pub backend: String,
    /// Bytes of memory in all.
    pub memory_total: u64,
    /// Names the memory, within one endpoint: devices with the same name share it, so that what is free is counted once. Empty if it is
    /// the device's own.
    pub memory_pool: String,
    /// Bytes of the largest allocation.
    pub max_alloc: u64,
    /// What it can do, as words: `avx2`, `f16`.
    pub capabilities: Vec<String>,
    /// Offsets of tensors in its buffers must be multiples of this, a power of two. Views begin anywhere in theirs.
    pub alignment: usize,
    /// What it wants behind weights, and nobody else may use.
    pub weight_tail: WeightTail,
    /// Whether the host's memory and the device's are the same, so that mapped files can be used in place.
    pub unified: bool,
    /// What the time of a graph on it depends on.
    pub costs: Costs,
}

impl DeviceInfo {
    /// A device of this name, which is its id as well, with memory of its own and the plainest properties.
    pub fn new(name: &str, kind: DeviceKind, backend: &str, memory_total: u64) -> DeviceInfo {
        DeviceInfo {
            id: name.to_owned(),
            name: name.to_owned(),
            kind,
            description: String::new(),
            device_id: String::new(),
            backend: backend.to_owned(),
            memory_total,
            memory_pool: String::new(),
            max_alloc: u64::MAX,
            capabilities: Vec::new(),
            alignment: 32,
            weight_tail: WeightTail::NONE,
            unified: kind == DeviceKind::Cpu,
            costs: Costs::default(),
        }
    }

    /// Names its memory among all devices of a run: those with the same name share it.
    pub fn pool(&self) -> String {
        if self.memory_pool.is_empty() {
            return self.id.clone();
        }
        let endpoint = self.id.strip_suffix(&self.name).unwrap_or_default();
        format!("{endpoint}{}", self.memory_pool)
    }
}

/// Bytes of zeros that a device wants behind each weight of blocks (quantized), in the weight's buffer: kernels of some cards take rows in
/// tiles, and read the last one beyond its end. What they read is multiplied with zeros, and must not be NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightTail(pub u64);

impl WeightTail {
    /// What most devices want.
    pub const NONE: WeightTail = WeightTail(0);
    /// Most bytes that a device may want: 1000 weights of a model then take 64 MiB more.
    pub const MOST: u64 = 64 << 10;

    /// Bytes behind a weight of this type.
    pub const fn of(self, dtype: DType) -> u64 {
        if dtype.is_quantized() { self.0 } else { 0 }
    }
}

/// What the time of a graph on a device depends on. A row is a token of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Rows from which a larger micro-batch takes no less time per row.
    pub batch_rows: u32,
    /// Rows that take as long as what a run takes beside its rows.
    pub run_rows: f32,
    /// Rows from which the result of a row does not depend, bit by bit, on how many there are; 1 if nothing is said of that.
    pub uniform_rows: u32,
    /// How long an operation of attention takes, in operations of a matrix product with many columns.
    pub attention: f32,
}

impl Default for Costs {
    /// Those of a CPU: what a device that does not say is taken for.
    fn default() -> Costs {
        Costs { batch_rows: 128, run_rows: 7.0, uniform_rows: 3, attention: 3.5 }
    }
}

/// What a device does in a second, as it was measured with a matrix product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Bytes of weights that it reads, for one column.
    pub bandwidth: f64,
    /// Floating-point operations with many columns, a multiplication with an addition being two.
    pub flops: f64,
}

/// Memory of a device at one moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// In all.
    pub total: u64,
    /// That an allocation could get now.
    pub free: u64,
}

/// One of several clients that share a device, such as a session of a server. See [`Device::for_client`].
#[derive(Clone, Debug)]
pub struct Client {
    /// All queues with this number ([`fresh_uid`]) get as many turns on the device as one queue.
    pub turns: u64,
    /// Clients with this number ([`fresh_uid`]) share the room for transfers that wait, and for what a device keeps of theirs, as if they were one.
    pub room: u64,
    /// What the client's memory is counted on, beside the device's own limit.
    pub account: Arc<dyn MemoryAccount>,
}

/// Counts what a client takes of the memory of devices.
pub trait MemoryAccount: fmt::Debug + Send + Sync {
    /// Takes `bytes` of the device with this uid, until what is returned is dropped. [`Error::OutOfMemory`] if the client may not
    /// have so much.
    fn take(&self, device: u64, info: &DeviceInfo, bytes: u64) -> Result<MemoryShare>;
}

/// Bytes on a [`MemoryAccount`], given back when dropped.
pub type MemoryShare = Box<dyn fmt::Debug + Send + Sync>;

/// A number that no other caller in this process gets: the identity of devices and queues in [`Event`].
pub fn fresh_uid() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Which tensors of a graph a device supports, by their place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSet(Vec<bool>);

impl NodeSet {
    /// All of `len`, or none.
    pub fn new(len: usize, value: bool) -> NodeSet {
        NodeSet(vec![value; len])
    }

    /// From one flag per tensor.
    pub fn from_flags(flags: Vec<bool>) -> NodeSet {
        NodeSet(flags)
    }

    /// Whether the tensor is in it.
    pub fn contains(&self, id: TensorId) -> bool {
        self.0.get(id.index()).copied().unwrap_or(false)
    }

    /// One flag per tensor.
    pub fn flags(&self) -> &[bool] {
        &self.0
    }
}

/// One processor with its memory, here or on another host.
pub trait Device: Send + Sync {
    /// Its identity in [`Event`] and [`Buffer`], see [`fresh_uid`].
    fn uid(&self) -> u64;
    /// What does not change.
    fn info(&self) -> &DeviceInfo;
    /// Its memory now.
    fn memory(&self) -> Result<MemoryInfo>;
    /// Which nodes of a graph it can compute; leaves and views count as supported. One round trip for a whole graph if remote.
    fn supports(&self, graph: &Graph) -> Result<NodeSet>;
    /// New memory, zeroed: every byte of it is 0 for whatever queue reads it first. At most [`DeviceInfo::max_alloc`] bytes. Not enough is
    /// [`Error::OutOfMemory`].
    fn alloc(&self, size: u64, usage: Usage) -> Result<Arc<dyn Buffer>>;
    /// Memory that is already there on this host, such as a mapped file, as a read-only buffer without a copy. `None` if the
    /// device cannot use it in place.
    fn import(&self, _data: &Bytes) -> Result<Option<Arc<dyn Buffer>>> {
        Ok(None)
    }
    /// Prepares a graph whose tensors lie where `placement` says. Every node must be supported.
    fn compile(&self, graph: Arc<Graph>, placement: Placement) -> Result<Arc<dyn Executable>>;
    /// A new queue.
    fn queue(&self) -> Result<Arc<dyn Queue>>;
    /// The same device, with the same uid, as one of several clients has it: its memory is counted on the client's account, its
    /// queues take turns with those of other clients, and what its graphs need beside their tensors (scratch memory) is its own, so
    /// that nothing of one client can be read by another. Buffers, executables and queues of one client's device must not be
    /// given to another's.
    fn for_client(&self, _client: Client) -> Result<Arc<dyn Device>> {
        Err(Error::Misuse(format!("{} cannot be shared by clients", self.info().id)))
    }
    /// To be called after a queue has failed with [`Error::Peer`], when all its queues were dropped: makes sure that the device can
    /// be used again, with its buffers and executables as they were and nothing under way. For a remote device that may take
    /// as long as its server keeps them. An error means that they are lost; [`Error::Timeout`], that its server answers and gets no
    /// further, or that its process hung or is not started again for a while, so that it should not be tried again.
    fn resume(&self) -> Result<()> {
        Ok(())
    }
    /// The same device with another uid and nothing on it, where [`Device::resume`] says that what it held is lost and it can be opened again in this
    /// process. `None` for one that still has everything, and for one of a server, which whoever connects to that opens again.
    fn reopened(&self) -> Option<Arc<dyn Device>> {
        None
    }
    /// A number that changes while it works, for whomever: at least with every node of a graph that it computes. `None` if it cannot say.
    /// Whoever waits for it gives up a device whose number stands still. For a remote device, what its server has done for this process.
    fn progress(&self) -> Option<u64> {
        None
    }
    /// What it does in a second. A device of this process measures that when it is first asked, in some tenths of a second, and remembers it;
    /// `None` if it could not, because there was no memory for it or it is too slow. A server measures its devices before it listens.
    fn speed(&self) -> Option<Speed> {
        None
    }
    /// [`Device::speed`] if it was measured already.
    fn known_speed(&self) -> Option<Speed> {
        None
    }
    /// What it shares with the other devices of this process; `None` for a device of another host.
    fn host(&self) -> Option<&Arc<Host>> {
        None
    }
    /// Direct transfers to other devices, if it can.
    fn peer(&self) -> Option<&dyn PeerTransfer> {
        None
    }
    /// How it takes large constant tensors, if there is a better way than writing them through a queue.
    fn content(&self) -> Option<&dyn ContentUpload> {
        None
    }
    /// For the device's own crate to find its type.
    fn as_any(&self) -> &dyn Any;
}

impl fmt::Debug for dyn Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.info().id)
    }
}
