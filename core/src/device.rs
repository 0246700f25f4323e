//! The traits of a device, the same for one in this process and one behind a network.
//!
//! A [`Device`] has memory ([`Buffer`]), compiled graphs ([`Executable`]) and [`Queue`]s. Everything on a queue enqueues and
//! returns; what a queue was given runs in that order; different queues run side by side. A command that fails poisons its
//! queue: every later command on it, every event after the failure and every read gives that error.

use crate::content::ContentUpload;
use crate::error::{Error, Result};
use crate::graph::{Graph, LeafKind, TensorId};
use crate::progress::Progress;
use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use bytes::Bytes;

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
    /// What it can do, as words: `avx2`, `f16`.
    pub capabilities: Vec<String>,
    /// Offsets of tensors in its buffers must be multiples of this, a power of two.
    pub alignment: usize,
}

/// Memory of a device at one moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// In all.
    pub total: u64,
    /// That an allocation could get now.
    pub free: u64,
}

/// What a buffer is for; a device may place it accordingly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Usage {
    /// Anything.
    Any,
    /// Weights: written once, read often.
    Weights,
    /// Intermediate results and state.
    Compute,
}

/// Longest wait of [`Queue::write_later`], should whoever gives the bytes forget its own deadline: a long prefill takes minutes.
const LATER_LIMIT: Duration = Duration::from_secs(600);

/// One of several clients that share a device, such as a session of a server. See [`Device::for_client`].
#[derive(Clone, Debug)]
pub struct Client {
    /// All queues with this number ([`fresh_uid`]) get as many turns on the device as one queue.
    pub turns: u64,
    /// Clients with this number ([`fresh_uid`]) share the room for transfers that wait as if they were one.
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

/// A point on the timeline of a queue: everything enqueued before it is done. Plain data, numbered by the caller's side, so
/// that recording one costs no round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// Which device, by [`Device::uid`].
    pub device: u64,
    /// Which queue, by [`Queue::uid`].
    pub queue: u64,
    /// Count of events on that queue, from 1.
    pub value: u64,
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

/// Memory of a device. Freed when the last reference is dropped and no enqueued command uses it.
pub trait Buffer: fmt::Debug + Send + Sync {
    /// Size in bytes.
    fn size(&self) -> u64;
    /// The device it belongs to, by [`Device::uid`].
    fn device(&self) -> u64;
    /// Whether it can only be read (a mapped file).
    fn is_read_only(&self) -> bool {
        false
    }
    /// For the device to find its own type.
    fn as_any(&self) -> &dyn Any;
}

/// A range of a buffer, in bounds by construction.
#[derive(Clone, Debug)]
pub struct Slice {
    buffer: Arc<dyn Buffer>,
    offset: u64,
    len: u64,
}

impl Slice {
    /// `len` bytes from `offset`.
    pub fn new(buffer: Arc<dyn Buffer>, offset: u64, len: u64) -> Result<Slice> {
        match offset.checked_add(len) {
            Some(end) if end <= buffer.size() => Ok(Slice { buffer, offset, len }),
            _ => {
                Err(Error::Request(format!("{len} bytes at {offset} are outside a buffer of {} bytes", buffer.size())))
            }
        }
    }

    /// The whole buffer.
    pub fn whole(buffer: Arc<dyn Buffer>) -> Slice {
        let len = buffer.size();
        Slice { buffer, offset: 0, len }
    }

    /// A part of this slice.
    pub fn part(&self, offset: u64, len: u64) -> Result<Slice> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                Ok(Slice { buffer: self.buffer.clone(), offset: self.offset + offset, len })
            }
            _ => Err(Error::Request(format!("{len} bytes at {offset} are outside a slice of {} bytes", self.len))),
        }
    }

    /// The buffer.
    pub fn buffer(&self) -> &Arc<dyn Buffer> {
        &self.buffer
    }

    /// Bytes from the start of the buffer.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Where the tensors of a graph lie: a slice for each root, in bounds by construction.
#[derive(Clone, Debug)]
pub struct Placement(Vec<Option<Slice>>);

impl Placement {
    /// Checks that every root that is not empty has a slice of the device with its size and alignment, that nothing is written to
    /// read-only memory, and that no node writes where it reads: a result may lie on a source only if it takes over that
    /// source's memory as a whole ([`OpSpec::in_place`](crate::op::OpSpec::in_place)). So a kernel never has the same bytes as a source and
    /// as a result. Results whose lives do not meet may share memory.
    ///
    /// `slices` has one entry per tensor; those of views are ignored.
    pub fn new(graph: &Graph, device: &dyn Device, slices: Vec<Option<Slice>>) -> Result<Placement> {
        if slices.len() != graph.tensors().len() {
            return Err(Error::Request(format!("{} places for {} tensors", slices.len(), graph.tensors().len())));
        }
        let placement = Placement(slices);
        for id in graph.ids() {
            let t = graph.tensor(id);
            if t.root() == id && t.layout().span() > 0 {
                placement.check_root(graph, device, id).map_err(|why| wrong_place(graph, id, &why))?;
            }
        }
        for id in graph.nodes() {
            placement.check_node(graph, id).map_err(|why| wrong_place(graph, id, &why))?;
        }
        Ok(placement)
    }

    fn check_root(&self, graph: &Graph, device: &dyn Device, id: TensorId) -> std::result::Result<(), String> {
        let t = graph.tensor(id);
        let slice = self.get(id).ok_or("there is none")?;
        let (needed, align) = (t.layout().span() as u64, device.info().alignment as u64);
        if slice.len() < needed {
            return Err(format!("{} bytes, {needed} needed", slice.len()));
        }
        if slice.offset() % align != 0 {
            return Err(format!("offset {} is not a multiple of {align}", slice.offset()));
        }
        if slice.buffer().device() != device.uid() {
            return Err("it is a buffer of another device".into());
        }
        if slice.buffer().is_read_only() && t.leaf() != Some(LeafKind::Weight) {
            return Err("its memory can only be read".into());
        }
        Ok(())
    }

    /// A node that computes must not write what it reads, unless it takes over one source as a whole.
    fn check_node(&self, graph: &Graph, id: TensorId) -> std::result::Result<(), String> {
        let t = graph.tensor(id);
        let Some(op) = t.op().filter(|op| !op.is_view()) else { return Ok(()) };
        let Some(written) = self.range(graph, id) else { return Ok(()) };
        let mut taken_over = false;
        for (i, source) in t.srcs().iter().enumerate() {
            let Some(source) = source.filter(|_| op.writes() != Some(i)) else { continue };
            let Some(read) = self.range(graph, source).filter(|read| read.meets(&written)) else { continue };
            let whole = read == written && graph.tensor(source).layout() == t.layout();
            if taken_over || !whole || !op.in_place().contains(&i) {
                return Err(format!("its result would lie on its source {}", graph.label(source)));
            }
            taken_over = true;
        }
        Ok(())
    }

    /// Where a tensor lies; `None` if it is empty.
    fn range(&self, graph: &Graph, id: TensorId) -> Option<PlacedBytes> {
        let t = graph.tensor(id);
        let slice = self.get(t.root()).filter(|_| t.layout().span() > 0)?;
        let start = slice.offset() + t.offset() as u64;
        let buffer = Arc::as_ptr(slice.buffer()).cast::<()>();
        Some(PlacedBytes { buffer, start, end: start + t.layout().span() as u64 })
    }

    /// The slice of a root tensor; `None` for views and empty tensors.
    pub fn get(&self, id: TensorId) -> Option<&Slice> {
        self.0.get(id.index()).and_then(Option::as_ref)
    }
}

/// Bytes of a buffer, which is told from others by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlacedBytes {
    buffer: *const (),
    start: u64,
    end: u64,
}

impl PlacedBytes {
    fn meets(&self, other: &PlacedBytes) -> bool {
        self.buffer == other.buffer && self.start < other.end && other.start < self.end
    }
}

fn wrong_place(graph: &Graph, id: TensorId, why: &str) -> Error {
    Error::Request(format!("placement of {}: {why}", graph.label(id)))
}

/// A graph that a device has prepared, executed many times.
pub trait Executable: fmt::Debug + Send + Sync {
    /// For the device to find its own type.
    fn as_any(&self) -> &dyn Any;
}

/// The result of a command that is still under way.
pub struct Pending<T> {
    shared: Arc<Promise<T>>,
    what: Arc<str>,
}

/// The other end of a [`Pending`]. Dropped without an answer, the waiter gets an error.
pub struct Completer<T> {
    shared: Arc<Promise<T>>,
    what: Arc<str>,
    answered: bool,
}

type Then<T> = Box<dyn FnOnce(Result<T>) + Send>;

struct Promise<T> {
    state: Mutex<Promised<T>>,
    there: Condvar,
}

enum Promised<T> {
    Waiting,
    /// Nobody waits; this is called with the result.
    Then(Then<T>),
    There(Result<T>),
    Taken,
}

impl<T> Promise<T> {
    /// Every value is whole after each statement, so that a panic elsewhere takes nothing away.
    fn lock(&self) -> MutexGuard<'_, Promised<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Promised<T> {
    fn take(&mut self) -> Option<Result<T>> {
        match std::mem::replace(self, Promised::Taken) {
            Promised::There(result) => Some(result),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl<T> Pending<T> {
    /// A result to be given later; `what` is named if it does not come.
    pub fn new(what: impl Into<Arc<str>>) -> (Completer<T>, Pending<T>) {
        let what = what.into();
        let shared = Arc::new(Promise { state: Mutex::new(Promised::Waiting), there: Condvar::new() });
        (Completer { shared: shared.clone(), what: what.clone(), answered: false }, Pending { shared, what })
    }

    /// A result that is there.
    pub fn ready(result: Result<T>) -> Pending<T> {
        let (completer, pending) = Pending::new("a result that is there");
        completer.complete(result);
        pending
    }

    /// Waits at most `timeout`.
    pub fn wait(mut self, timeout: Duration) -> Result<T> {
        let late = |what: &str| Error::Timeout { what: what.to_owned(), after: timeout };
        self.wait_more(timeout).unwrap_or_else(|| Err(late(&self.what)))
    }

    /// Waits at most `timeout`, and may be asked again if nothing came.
    pub fn wait_more(&mut self, timeout: Duration) -> Option<Result<T>> {
        let state = self.shared.lock();
        let waiting = |state: &mut Promised<T>| matches!(state, Promised::Waiting);
        let waited = self.shared.there.wait_timeout_while(state, timeout, waiting);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.take()
    }

    /// The result if it is there.
    pub fn try_take(&mut self) -> Option<Result<T>> {
        self.shared.lock().take()
    }

    /// Calls `then` with the result as soon as it is there, on the thread that completes it, so that it must not wait; here
    /// and now if it is there already.
    pub fn then(self, then: impl FnOnce(Result<T>) + Send + 'static) {
        let mut state = self.shared.lock();
        match state.take() {
            Some(result) => {
                drop(state);
                then(result);
            }
            None => *state = Promised::Then(Box::new(then)),
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({})", self.what)
    }
}

impl<T> Completer<T> {
    /// Gives the result. A waiter that has gone does not matter.
    pub fn complete(mut self, result: Result<T>) {
        self.give(result);
    }

    fn give(&mut self, result: Result<T>) {
        self.answered = true;
        let mut state = self.shared.lock();
        match std::mem::replace(&mut *state, Promised::Taken) {
            Promised::Then(then) => {
                drop(state);
                then(result);
            }
            _ => {
                *state = Promised::There(result);
                drop(state);
                self.shared.there.notify_all();
            }
        }
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        if !self.answered {
            let (device, detail) = (self.what.to_string(), "ended before it answered".into());
            self.give(Err(Error::Device { device, op: None, detail }));
        }
    }
}

impl<T> fmt::Debug for Completer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Completer({})", self.what)
    }
}

/// Names one transfer between two queues; random, used once.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(pub [u8; 32]);

impl fmt::Debug for Ticket {
    /// A ticket is a credential: only its first bytes are shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

/// An ordered line of commands to a device. Methods enqueue and return; an error from them means that the command was not
/// enqueued (a misuse, or the queue is poisoned already, with the error that poisoned it).
pub trait Queue: Send + Sync {
    /// Its identity in [`Event`].
    fn uid(&self) -> u64;
    /// Copies `data` (of `dst`'s length) to the device.
    fn write(&self, dst: &Slice, data: Bytes) -> Result<()>;
    /// Copies a slice to the host.
    fn read(&self, src: &Slice) -> Result<Pending<Bytes>>;
    /// Copies bytes (together of `dst`'s length) to the device that are still to come: when it is their turn, the queue waits
    /// for them, and an error in their place poisons it. Whoever gives them has a deadline. For a queue that cannot do that,
    /// the caller waits here.
    fn write_later(&self, dst: &Slice, data: Pending<Vec<Bytes>>) -> Result<()> {
        let parts = data.wait(LATER_LIMIT)?;
        self.write(dst, parts.concat().into())
    }
    /// Runs a compiled graph of this device.
    fn execute(&self, executable: &Arc<dyn Executable>) -> Result<()>;
    /// Copies between slices of equal length of this device. They may overlap only if they are the same.
    fn copy(&self, src: &Slice, dst: &Slice) -> Result<()>;
    /// Sets every byte.
    fn fill(&self, dst: &Slice, value: u8) -> Result<()>;
    /// Lets later commands wait until `event` is reached; it is of this device or of one that this device's host shares
    /// with it. If the event's queue is poisoned, this one becomes so too.
    fn wait(&self, event: Event) -> Result<()>;
    /// The point behind everything enqueued so far.
    fn signal(&self) -> Result<Event>;
    /// Waits until everything enqueued so far is done (computed, not only sent), at most `timeout`.
    fn finish(&self, timeout: Duration) -> Result<()>;
    /// How far it is, to be looked at while it works; `None` if it cannot say.
    fn progress(&self) -> Option<Arc<Progress>> {
        None
    }
    /// For the device to find its own type.
    fn as_any(&self) -> &dyn Any;
}

/// How bytes go from one device to another without passing through this process.
pub trait PeerTransfer: Send + Sync {
    /// Whether bytes offered by this device can be accepted by `to`.
    fn reaches(&self, to: &dyn Device) -> bool;
    /// Enqueues on `queue` (of this device): hands `src` to the device `to`, which accepts the same ticket.
    fn offer(&self, queue: &dyn Queue, ticket: Ticket, src: &Slice, to: &dyn Device) -> Result<()>;
    /// Enqueues on `queue` (of this device): fills `dst` with what is offered under `ticket`; later commands wait for it.
    /// An offer whose queue is poisoned poisons this queue with the same error.
    fn accept(&self, queue: &dyn Queue, ticket: Ticket, dst: &Slice) -> Result<Event>;
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
    /// New memory, zeroed. Not enough is [`Error::OutOfMemory`].
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
    /// further, so that it should not be tried again.
    fn resume(&self) -> Result<()> {
        Ok(())
    }
    /// A number that changes while it works, for whomever: at least with every node of a graph that it computes. `None` if it cannot say.
    /// Whoever waits for it gives up a device whose number stands still. For a remote device, what its server has done for this process.
    fn progress(&self) -> Option<u64> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_that_is_dropped_is_an_error() {
        let (completer, pending) = Pending::<u8>::new("CPU0");
        drop(completer);
        assert!(matches!(pending.wait(Duration::from_secs(1)), Err(Error::Device { .. })));
        let (_completer, pending) = Pending::<u8>::new("CPU0");
        assert!(matches!(pending.wait(Duration::from_millis(1)), Err(Error::Timeout { .. })));
        assert_eq!(Pending::ready(Ok(3)).wait(Duration::ZERO), Ok(3));
    }

    #[test]
    fn pending_may_be_asked_again_or_call_back() {
        let (completer, mut pending) = Pending::new("CPU0");
        assert_eq!(pending.try_take(), None);
        assert_eq!(pending.wait_more(Duration::from_millis(1)), None);
        completer.complete(Ok(5));
        assert_eq!(pending.wait_more(Duration::ZERO), Some(Ok(5)));
        let (to, got) = std::sync::mpsc::channel();
        let (early, pending) = Pending::new("CPU0");
        let sender = to.clone();
        pending.then(move |result| sender.send(result).unwrap());
        assert!(got.try_recv().is_err());
        early.complete(Ok(6));
        assert_eq!(got.try_recv().unwrap(), Ok(6));
        let sender = to.clone();
        Pending::ready(Ok(7)).then(move |result| sender.send(result).unwrap());
        assert_eq!(got.try_recv().unwrap(), Ok(7));
        let (dropped, pending) = Pending::<u8>::new("CPU0");
        pending.then(move |result| to.send(result).unwrap());
        drop(dropped);
        assert!(got.try_recv().unwrap().is_err());
    }
}
