//! A remote device, and how to get them.

use crate::buffer::{RemoteBuffer, RemoteExecutable};
use crate::command::{self, Job, client};
use crate::io::NetStats;
use crate::lock;
use crate::options::ClientOptions;
use crate::peers::PeerPath;
use crate::queue::RemoteQueue;
use crate::session::Session;
use bytes::Bytes;
use outboard_core::device::fresh_uid;
use outboard_core::{
    Buffer, ContentUpload, Device, DeviceInfo, Error, Event, Executable, Graph, MemoryInfo, NodeSet, PeerTransfer,
    Pending, Placement, Queue, Result, Slice, Speed, Ticket, Usage, at_once,
};
use outboard_net::{Carrier, Endpoint};
use outboard_proto::device::{MAX_DEVICES, from_wire, speed, usage_name};
use outboard_proto::error::from_status;
use outboard_proto::v1::control_request::Request;
use outboard_proto::v1::outboard_client::OutboardClient;
use outboard_proto::{FEATURE_BLOBS, graph, places, v1};
use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tonic::{Response, Status};

/// Answers about supported ops that a device remembers.
const REMEMBERED_GRAPHS: usize = 64;

/// A device of an rpc-server.
pub struct RemoteDevice {
    uid: u64,
    info: DeviceInfo,
    reaches: HashSet<String>,
    /// Its server takes weights by their digests.
    blobs: bool,
    session: Arc<Session>,
    supported: Mutex<HashMap<Bytes, NodeSet>>,
    speed: Option<Speed>,
}

/// Opens a session with every endpoint, all at once, and gives their devices in the order of the list. If one fails, so does
/// the whole; the error names it.
pub fn connect(endpoints: &[Endpoint], options: &ClientOptions) -> Result<Vec<Arc<dyn Device>>> {
    let opened = at_once(endpoints, |e| command::connect(e, options));
    // All exist before the first error is returned, so that each is ended properly.
    let sessions: Vec<Result<(Arc<Session>, v1::HelloResponse)>> =
        opened.into_iter().map(|r| r.map(Session::new)).collect();
    let open: Vec<_> = sessions.iter().flatten().map(|(session, _)| session.clone()).collect();
    open.iter().for_each(|session| session.connection().peers.set_siblings(&open));
    drop(open);
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for session in sessions {
        let (session, hello) = session?;
        for device in devices_of(&session, &hello)? {
            devices.push(Arc::new(device));
        }
    }
    Ok(devices)
}

fn devices_of(session: &Arc<Session>, hello: &v1::HelloResponse) -> Result<Vec<RemoteDevice>> {
    if hello.devices.is_empty() || hello.devices.len() > MAX_DEVICES {
        return Err(session
            .connection()
            .lost(format!("it has {} devices; 1 to {MAX_DEVICES} are possible", hello.devices.len())));
    }
    if session.devices.len() < hello.devices.len() {
        return Err(session.connection().lost("two of its devices have the same name"));
    }
    let one = |d: &v1::Device| {
        Ok(RemoteDevice {
            uid: fresh_uid(),
            info: from_wire(d, &session.connection().name)?,
            reaches: d.reaches.iter().cloned().collect(),
            blobs: hello.features.iter().any(|f| f == FEATURE_BLOBS),
            session: session.clone(),
            supported: Mutex::default(),
            speed: speed(d.bandwidth, d.flops),
        })
    };
    hello.devices.iter().map(one).collect()
}

impl RemoteDevice {
    /// The remote device behind the trait, if it is one.
    pub fn of(device: &dyn Device) -> Option<&RemoteDevice> {
        device.as_any().downcast_ref()
    }

    /// The endpoint that it is on.
    pub fn endpoint(&self) -> &Endpoint {
        &self.session.endpoint
    }

    /// What carries the bytes; for an `auto://` endpoint, what was chosen.
    pub fn carrier(&self) -> Carrier {
        self.session.connection().dialer.carrier()
    }

    /// Bytes that went to and from its endpoint, for all of its devices together. Asks the server for those between servers, if
    /// there were any.
    pub fn net_stats(&self) -> NetStats {
        NetStats { peer_bytes: self.session.connection().peer_bytes(), ..self.own_net_stats() }
    }

    /// Bytes that went to and from its endpoint, without those between servers: nobody is asked.
    pub fn own_net_stats(&self) -> NetStats {
        self.session.connection().counters.stats()
    }

    /// How tensors get from this device to another one. Asked once per pair of servers and remembered; the first time, the
    /// answer may take some seconds.
    pub fn peer_link(&self, to: &RemoteDevice) -> PeerPath {
        if !Arc::ptr_eq(&self.session, &to.session) {
            return self.session.connection().path_to(&to.session.connection());
        }
        if self.reaches.contains(&to.info.name) {
            PeerPath::SameEndpoint
        } else {
            PeerPath::Relayed("the devices of that server do not reach each other".into())
        }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Handle of the buffer behind a slice of this device.
    pub(crate) fn handle(&self, slice: &Slice) -> Result<u64> {
        RemoteBuffer::handle_of(slice, self.uid)
    }

    pub(crate) fn keeps_blobs(&self) -> bool {
        self.blobs
    }

    /// Makes a unary call on the command thread and waits for its answer.
    pub(crate) fn call<T, F>(
        &self,
        what: &str,
        timeout: Duration,
        call: impl FnOnce(OutboardClient<crate::transport::Conn>) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = std::result::Result<Response<T>, Status>> + Send,
    {
        let connection = self.session.connection();
        connection.check()?;
        let (completer, pending) = Pending::new(format!("{}: {what}", self.info.id));
        let name = connection.name.clone();
        let job = Job::Call(Box::new(move |conn| {
            Box::pin(async move {
                let result = call(client(&conn)).await;
                completer.complete(result.map(Response::into_inner).map_err(|status| from_status(&status, &name)));
            })
        }));
        connection.jobs.send(job).map_err(|_| connection.gone())?;
        // A call that ends with its thread is one to a lost endpoint.
        pending.wait(timeout).map_err(|e| match e {
            Error::Device { .. } => connection.check().err().unwrap_or(e),
            Error::Timeout { after, .. } => connection.unanswered(what, after),
            e => e,
        })
    }

    /// Makes a request on the control stream, and waits for its answer; `made` is there before that.
    fn request<T>(&self, what: &str, make: impl FnOnce(u64) -> Request, made: impl FnOnce() -> T) -> Result<T> {
        let connection = self.session.connection();
        let what = format!("{} {what}", self.info.name);
        let pending = connection.request(&what, make)?;
        let made = made();
        match pending.wait(connection.options.call_timeout) {
            Ok(()) => Ok(made),
            Err(Error::Timeout { after, .. }) => Err(connection.unanswered(&what, after)),
            Err(e) => Err(e),
        }
    }

    fn queue_of<'q>(&self, queue: &'q dyn Queue) -> Result<&'q RemoteQueue> {
        let remote = queue.as_any().downcast_ref();
        remote.ok_or_else(|| Error::Misuse(format!("{}: a queue of another kind of device", self.info.id)))
    }
}

impl Device for RemoteDevice {
    fn uid(&self) -> u64 {
        self.uid
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryInfo> {
        let request = v1::MemoryRequest { device: self.info.name.clone() };
        let memory = self.call("memory", self.session.connection().options.call_timeout, |mut client| async move {
            client.memory(request).await
        })?;
        Ok(MemoryInfo { total: memory.total, free: memory.free })
    }

    fn speed(&self) -> Option<Speed> {
        self.speed
    }

    fn known_speed(&self) -> Option<Speed> {
        self.speed
    }

    fn supports(&self, graph: &Graph) -> Result<NodeSet> {
        let encoded = graph::encode(graph)?;
        if let Some(known) = lock(&self.supported).get(&encoded) {
            return Ok(known.clone());
        }
        let request = v1::SupportsRequest {
            session: Some(self.session.connection().session.clone()),
            device: self.info.name.clone(),
            graph: encoded.clone(),
        };
        let answer =
            self.call("supported ops", self.session.connection().options.call_timeout, |mut client| async move {
                client.supports(request).await
            })?;
        let flags = graph::bits_to_flags(&answer.supported, graph.tensors().len());
        let set =
            NodeSet::from_flags(flags.ok_or_else(|| {
                self.session.connection().lost("answered about another number of nodes than was asked")
            })?);
        let mut supported = lock(&self.supported);
        if supported.len() >= REMEMBERED_GRAPHS {
            supported.clear();
        }
        supported.insert(encoded, set.clone());
        Ok(set)
    }

    fn alloc(&self, size: u64, usage: Usage) -> Result<Arc<dyn Buffer>> {
        let connection = self.session.connection();
        let handle = connection.fresh();
        let device = self.info.name.clone();
        let usage = usage_name(usage).to_owned();
        let make = |request| Request::Alloc(v1::Alloc { request, buffer: handle, device, size, usage });
        // Made before the wait: if that fails, a late success is freed.
        let buffer = || RemoteBuffer::new(handle, size, self.uid, &self.session);
        Ok(Arc::new(self.request(&format!("allocates {size} bytes"), make, buffer)?))
    }

    fn compile(&self, graph: Arc<Graph>, placement: Placement) -> Result<Arc<dyn Executable>> {
        let connection = self.session.connection();
        let handle = connection.fresh();
        let encoded = graph::encode(&graph)?;
        let places = places::encode(&graph, &placement, |slice| self.handle(slice))?;
        let device = self.info.name.clone();
        let compile =
            |request| Request::Compile(v1::Compile { request, executable: handle, device, graph: encoded, places });
        let executable = || RemoteExecutable::new(handle, self.uid, &self.session);
        Ok(Arc::new(self.request("compiles a graph", compile, executable)?))
    }

    fn resume(&self) -> Result<()> {
        self.session.resume().map_err(|error| match error {
            // What the others held is lost with it.
            Error::Device { device, detail, .. } if device != self.info.id => {
                self.session.connection().lost(format!("its session is lost with {device}: {detail}"))
            }
            // Its server has waited, not this client.
            Error::Device { device, detail, .. } => {
                Error::Timeout { what: format!("{device}: {detail}"), after: Duration::ZERO }
            }
            error => error,
        })
    }

    fn queue(&self) -> Result<Arc<dyn Queue>> {
        Ok(Arc::new(RemoteQueue::open(self)?))
    }

    fn progress(&self) -> Option<u64> {
        Some(self.session.connection().moves())
    }

    fn peer(&self) -> Option<&dyn PeerTransfer> {
        Some(self)
    }

    fn content(&self) -> Option<&dyn ContentUpload> {
        Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl PeerTransfer for RemoteDevice {
    /// Devices of the same endpoint, where that one says so, and devices of servers that this one's can connect to.
    fn reaches(&self, to: &dyn Device) -> bool {
        RemoteDevice::of(to).is_some_and(|to| !matches!(self.peer_link(to), PeerPath::Relayed(_)))
    }

    fn offer(&self, queue: &dyn Queue, ticket: Ticket, src: &Slice, to: &dyn Device) -> Result<()> {
        let queue = self.queue_of(queue)?;
        // Who is lost says so; asking for the way there would only find that there is none.
        queue.check()?;
        let not_reached = || Error::Misuse(format!("{} does not reach {}", self.info.id, to.info().id));
        let to = RemoteDevice::of(to).ok_or_else(not_reached)?;
        to.session.connection().check()?;
        let target = if Arc::ptr_eq(&self.session, &to.session) {
            if let PeerPath::Relayed(_) = self.peer_link(to) {
                return Err(not_reached());
            }
            None
        } else {
            Some(self.session.connection().target(&to.session.connection()).ok_or_else(not_reached)?)
        };
        if target.is_some() {
            self.session.connection().sends_to_peers();
            to.session.connection().peers.expect(ticket, &self.session.connection());
        }
        queue.offer(ticket, src, &to.info.name, target)
    }

    fn accept(&self, queue: &dyn Queue, ticket: Ticket, dst: &Slice) -> Result<Event> {
        self.queue_of(queue)?.accept(ticket, dst, self.session.connection().peers.source(ticket))
    }
}
