//! A client's session: what it owns, for as long as it is heard.

pub(crate) mod answers;
pub(crate) mod flight;
mod keys;
pub(crate) mod queue;
pub(crate) mod timeline;
mod trace;
mod worker;

use crate::accounts::{Account, AccountShare, Accounted, DeviceMemory};
use crate::devices::Devices;
use crate::io::Traffic;
use crate::limits::{BLOB_CALLS_SESSION, SessionLimits};
use crate::lock;
use crate::logs::limited;
use crate::peers::inbox::Inbox;
use crate::server::{SessionPermit, Shared};
use crate::ticket::Offers;
use keys::Keys;
use outboard_core::device::fresh_uid;
use outboard_core::error::Bytes;
use outboard_core::{Buffer, Client, Device, Error, Executable, Result, Slice, Ticket, Usage};
use outboard_proto::v1;
use queue::QueueState;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::{Notify, Semaphore, watch};
pub(crate) use worker::Worker;

/// An executable.
struct Compiled {
    /// The uid of its device.
    device: u64,
    executable: Arc<dyn Executable>,
    /// Bytes of its encoded graph.
    bytes: u64,
}

pub(crate) struct Session {
    pub(crate) id: u64,
    /// Names it in the log.
    pub(crate) tag: String,
    /// Who may use it.
    pub(crate) keys: Keys,
    pub(crate) client: String,
    pub(crate) account: Arc<Account>,
    _share: AccountShare,
    limits: SessionLimits,
    /// The server's devices as this session has them: what is made of them is its own.
    pub(crate) devices: Devices,
    buffers: Mutex<HashMap<u64, Arc<dyn Buffer>>>,
    executables: Mutex<HashMap<u64, Compiled>>,
    pub(crate) queues: Mutex<HashMap<u64, Arc<QueueState>>>,
    /// Queues whose device queue is still there, and calls about blobs that have begun.
    pub(crate) live_queues: AtomicUsize,
    /// What its queues have offered to each other.
    pub(crate) offers: Offers,
    anchors: Mutex<HashMap<u64, Slice>>,
    /// What comes for it from other servers.
    pub(crate) inbox: Inbox,
    /// Bytes sent to other servers.
    pub(crate) peer_bytes: AtomicU64,
    /// Frees that wait for their fences.
    pub(crate) frees: AtomicUsize,
    /// And their bytes.
    pub(crate) free_bytes: AtomicUsize,
    /// Calls about blobs that are worked on, or may be.
    pub(crate) blob_calls: Arc<Semaphore>,
    /// The right to its control stream: there is one at a time, and so is what takes the session up again.
    pub(crate) control: Arc<Semaphore>,
    /// Something that others may wait for has happened: a command was processed, an event signalled, a queue opened.
    pub(crate) progress: Notify,
    closed: watch::Sender<bool>,
    cleared: AtomicBool,
    traffic: Mutex<Vec<Arc<Traffic>>>,
    pub(crate) trace: Arc<trace::Trace>,
    pub(crate) worker: Worker,
}

impl Session {
    /// A new session with its thread.
    pub(crate) fn start(
        client: String,
        traffic: Arc<Traffic>,
        permit: SessionPermit,
        shared: &Shared,
    ) -> Result<Arc<Session>> {
        let id: u64 = rand::random();
        let tag = format!("{:08x}", id >> 32);
        let memory = Arc::new(DeviceMemory(permit.account.clone()));
        let as_client = Client { turns: fresh_uid(), room: permit.account.uid, account: memory };
        Ok(Arc::new(Session {
            id,
            worker: Worker::start(&tag)?,
            tag,
            keys: Keys::default(),
            client,
            inbox: shared.peers.inbox(&permit.account),
            account: permit.account,
            _share: permit.share,
            limits: permit.limits,
            devices: shared.devices.for_client(&as_client)?,
            buffers: Mutex::default(),
            executables: Mutex::default(),
            queues: Mutex::default(),
            live_queues: AtomicUsize::new(0),
            offers: Offers::default(),
            anchors: Mutex::default(),
            peer_bytes: AtomicU64::new(0),
            frees: AtomicUsize::new(0),
            free_bytes: AtomicUsize::new(0),
            blob_calls: Arc::new(Semaphore::new(BLOB_CALLS_SESSION)),
            control: Arc::new(Semaphore::new(1)),
            progress: Notify::new(),
            closed: watch::Sender::new(false),
            cleared: AtomicBool::new(false),
            traffic: Mutex::new(vec![traffic]),
            trace: Arc::default(),
        }))
    }

    /// How its client refers to it.
    pub(crate) fn to_wire(&self) -> v1::Session {
        v1::Session { id: self.id, secret: self.keys.secret() }
    }

    /// Whether this is the secret.
    pub(crate) fn has_secret(&self, secret: &[u8]) -> bool {
        self.keys.age(secret).is_some()
    }

    /// Counts what is heard on another connection as a sign of life.
    pub(crate) fn hear(&self, traffic: &Arc<Traffic>) {
        let mut all = lock(&self.traffic);
        if !all.iter().any(|t| Arc::ptr_eq(t, traffic)) {
            // Those that nobody else holds are of connections that have ended.
            let last = all.iter().map(|t| t.heard()).max();
            all.retain(|t| Arc::strong_count(t) > 1 || Some(t.heard()) == last);
            all.push(traffic.clone());
        }
    }

    /// When the client was last heard.
    pub(crate) fn heard(&self) -> Instant {
        lock(&self.traffic).iter().map(|t| t.heard()).max().unwrap_or_else(Instant::now)
    }

    /// Ends the session: its streams end, and all it owns is freed on its thread.
    pub(crate) fn close(self: &Arc<Self>, why: &str) {
        if self.closed.send_replace(true) {
            return;
        }
        limited!(info, session = self.tag, client = self.client, "session ended: {why}");
        self.inbox.end();
        self.progress.notify_waiters();
        let session = self.clone();
        self.worker.post(move || {
            lock(&session.queues).clear();
            drop(session.offers.take_all());
            // Taken out of the locks first: freeing may take long.
            let executables = std::mem::take(&mut *lock(&session.executables));
            let buffers = std::mem::take(&mut *lock(&session.buffers));
            let anchors = std::mem::take(&mut *lock(&session.anchors));
            drop((executables, buffers, anchors));
            outboard_system::trim_memory();
            session.cleared.store(true, Ordering::Release);
            session.progress.notify_waiters();
        });
    }

    /// Fails if the session was taken up again since it had this age: for what was under way then.
    pub(crate) fn at_age(&self, age: u64) -> Result<&Session> {
        if self.keys.is_renewed(age) { Err(Error::Cancelled) } else { Ok(self) }
    }

    /// Whether it has ended.
    pub(crate) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Completes when the session has been ended.
    pub(crate) async fn until_closed(&self) {
        // An error means that the sender is gone, which `self` holds.
        let _ = self.closed.subscribe().wait_for(|&c| c).await;
    }

    /// Does something that may wait; [`Error::Cancelled`] if the session ends before.
    pub(crate) async fn while_open<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.until_closed() => Err(Error::Cancelled),
        }
    }

    /// Whether everything it owned has been freed.
    pub(crate) fn ended(&self) -> bool {
        self.cleared.load(Ordering::Acquire) && self.live_queues.load(Ordering::Acquire) == 0
    }

    /// Waits until `ready` gives something; [`Error::Cancelled`] if the session ends before.
    pub(crate) async fn until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> Result<T> {
        loop {
            let mut notified = std::pin::pin!(self.progress.notified());
            // From here on no notification is missed.
            notified.as_mut().enable();
            if let Some(value) = ready() {
                return Ok(value);
            }
            if self.is_closed() {
                return Err(Error::Cancelled);
            }
            notified.await;
        }
    }

    /// A slice of one of the session's buffers, which must be of this device.
    pub(crate) fn slice(&self, device: &dyn Device, slice: Option<v1::Slice>) -> Result<Slice> {
        let slice = slice.ok_or_else(|| Error::Request("a slice is missing".into()))?;
        let buffer = lock(&self.buffers).get(&slice.buffer).cloned();
        let buffer = buffer.ok_or_else(|| unknown("buffer", slice.buffer))?;
        if buffer.device() != device.uid() {
            let name = &device.info().name;
            return Err(Error::Request(format!("buffer {} is not of {name}", slice.buffer)));
        }
        Slice::new(buffer, slice.offset, slice.len)
    }

    /// The device, by its uid, of one of the session's buffers.
    pub(crate) fn device_of(&self, buffer: u64) -> Result<u64> {
        lock(&self.buffers).get(&buffer).map(|b| b.device()).ok_or_else(|| unknown("buffer", buffer))
    }

    /// Makes a buffer under a new handle. May block.
    pub(crate) fn alloc(&self, device: &dyn Device, handle: u64, size: u64, usage: Usage) -> Result<()> {
        self.check_handle("buffer", handle, &self.buffers, self.limits.buffers)?;
        let share = self.account.buffer()?;
        let buffer: Arc<dyn Buffer> = Arc::new(Accounted::new(device.alloc(size, usage)?, share));
        insert("buffer", handle, buffer, &self.buffers)
    }

    /// Keeps an executable under a new handle, and its share of memory for as long as it is used.
    pub(crate) fn add_executable(
        &self,
        device: &dyn Device,
        handle: u64,
        executable: Arc<dyn Executable>,
        bytes: u64,
        share: AccountShare,
    ) -> Result<()> {
        let executable: Arc<dyn Executable> = Arc::new(Accounted::new(executable, share));
        insert("executable", handle, Compiled { device: device.uid(), executable, bytes }, &self.executables)
    }

    /// Fails for a handle that cannot be given out, or for a graph of so many bytes that there is no more room for.
    pub(crate) fn check_executable(&self, handle: u64, bytes: u64) -> Result<()> {
        self.check_handle("executable", handle, &self.executables, self.limits.executables)?;
        if self.has_room_for_graph(bytes) {
            Ok(())
        } else {
            Err(Error::Request(format!(
                "a graph of {} on top of {}: the graphs of a session may have {}; free executables that are not needed any more",
                Bytes(bytes),
                Bytes(self.graph_bytes()),
                Bytes(self.limits.graph_bytes)
            )))
        }
    }

    fn check_handle<T>(&self, what: &str, handle: u64, map: &Mutex<HashMap<u64, T>>, limit: usize) -> Result<()> {
        let map = lock(map);
        if handle == 0 || map.contains_key(&handle) {
            return Err(Error::Request(format!("{what} {handle} cannot be made: the handle is 0 or taken")));
        }
        if map.len() >= limit {
            return Err(Error::Request(format!("a session may have {limit} {what}s at a time; free some first")));
        }
        Ok(())
    }

    /// An executable of this device.
    pub(crate) fn executable(&self, device: &dyn Device, handle: u64) -> Result<Arc<dyn Executable>> {
        match lock(&self.executables).get(&handle) {
            Some(e) if e.device == device.uid() => Ok(e.executable.clone()),
            Some(_) => Err(Error::Request(format!("executable {handle} is not of {}", device.info().name))),
            None => Err(unknown("executable", handle)),
        }
    }

    /// Forgets handles; those it does not know were never made or are forgotten already. May block.
    pub(crate) fn free(&self, buffers: &[u64], executables: &[u64]) {
        let executables: Vec<_> = {
            let mut map = lock(&self.executables);
            executables.iter().filter_map(|h| map.remove(h)).collect()
        };
        let buffers: Vec<_> = {
            let mut map = lock(&self.buffers);
            buffers.iter().filter_map(|h| map.remove(h)).collect()
        };
        drop((executables, buffers));
    }

    /// Takes out of the books all handles but these, and what else its queues have left. To drop it may block.
    pub(crate) fn all_but(&self, buffers: &[u64], executables: &[u64]) -> impl Sized + use<> {
        let queues = std::mem::take(&mut *lock(&self.queues));
        let offers = self.offers.take_all();
        (take_all_but(buffers, &self.buffers), take_all_but(executables, &self.executables), queues, offers)
    }

    /// No bytes, of this device: reading them tells how far a queue is. May block.
    pub(crate) fn anchor(&self, device: &dyn Device) -> Result<Slice> {
        if let Some(slice) = lock(&self.anchors).get(&device.uid()) {
            return Ok(slice.clone());
        }
        let slice = Slice::whole(device.alloc(0, Usage::Any)?);
        lock(&self.anchors).insert(device.uid(), slice.clone());
        Ok(slice)
    }

    /// Notes what became of an offer, for its acceptance: its share of what is offered, or why there is nothing.
    pub(crate) fn offered(&self, ticket: Ticket, offer: Result<AccountShare>) -> Result<()> {
        self.offers.insert(ticket, offer)?;
        self.progress.notify_waiters();
        Ok(())
    }

    /// A share for so many bytes more that are offered. Fails if they cannot be before others are accepted.
    pub(crate) fn offer(&self, bytes: u64) -> Result<AccountShare> {
        let waiting = self.offers.bytes();
        let limit = self.limits.offered_bytes;
        // One tensor may have any size.
        if waiting == 0 || waiting.saturating_add(bytes) <= limit {
            self.account.offer(bytes)
        } else {
            Err(Error::Request(format!(
                "{} offered to other devices and {} not yet accepted: a session may have {} of that; accept some first",
                Bytes(bytes),
                Bytes(waiting),
                Bytes(limit)
            )))
        }
    }

    fn graph_bytes(&self) -> u64 {
        lock(&self.executables).values().map(|e| e.bytes).sum()
    }

    fn has_room_for_graph(&self, bytes: u64) -> bool {
        self.graph_bytes().saturating_add(bytes) <= self.limits.graph_bytes
    }

    /// Whether it may have no more buffers.
    pub(crate) fn is_full_of_buffers(&self) -> bool {
        lock(&self.buffers).len() >= self.limits.buffers
    }

    /// Whether it may have no graph of so many bytes, which takes so many in memory.
    pub(crate) fn is_full_of_graphs(&self, bytes: u64, takes: u64) -> bool {
        lock(&self.executables).len() >= self.limits.executables
            || !self.has_room_for_graph(bytes)
            || self.account.is_full_of_graphs(takes)
    }

    /// Most queues that it may have at a time.
    pub(crate) fn max_queues(&self) -> usize {
        self.limits.queues
    }
}

fn take_all_but<T>(kept: &[u64], map: &Mutex<HashMap<u64, T>>) -> Vec<T> {
    let kept: HashSet<u64> = kept.iter().copied().collect();
    lock(map).extract_if(|handle, _| !kept.contains(handle)).map(|(_, it)| it).collect()
}

fn insert<T>(what: &str, handle: u64, value: T, map: &Mutex<HashMap<u64, T>>) -> Result<()> {
    match lock(map).entry(handle) {
        Entry::Vacant(entry) => {
            entry.insert(value);
            Ok(())
        }
        Entry::Occupied(_) => Err(Error::Request(format!("{what} {handle} is taken"))),
    }
}

/// The error for a handle that this session does not have.
pub(crate) fn unknown(what: &str, handle: u64) -> Error {
    Error::Request(format!("{what} {handle} is unknown in this session"))
}
