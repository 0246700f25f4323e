//! What everything of one endpoint shares: its session, its lines, who waits for it, and whether it is lost.

use crate::bulk;
use crate::command::{Connected, Job};
use crate::io::Counters;
use crate::lane::Lane;
use crate::lock;
use crate::options::ClientOptions;
use crate::peers::Peers;
use crate::queue::QueueInner;
use crate::resume::resume;
use crate::stall::{CONTROL, Mark};
use outboard_core::device::Completer;
use outboard_core::{Error, Pending, Result};
use outboard_net::{Carrier, Dialer, Endpoint};
use outboard_proto::FEATURE_RESUME;
use outboard_proto::error::from_wire;
use outboard_proto::limits::MAX_FREE;
use outboard_proto::v1::control_request::Request;
use outboard_proto::{frame, v1};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{Notify, watch};

/// Bytes of requests that wait for the control stream: a graph or two.
const CONTROL_LANE: usize = 4 << 20;
/// Connections for bulk data, at most. One alone does not always fill a line: congestion control by rate (BBR) sends a little less
/// than it has seen to arrive, and one that has lost a packet takes a while.
pub(crate) const BULK_CONNECTIONS: usize = 2;
/// How long the last one who lets go of an endpoint waits for the server to have freed all.
const GOODBYE: Duration = Duration::from_secs(2);
/// Longest time that a session is tried to be taken up again, whatever its server says: a run has better things to do.
const MAX_LEASE: Duration = Duration::from_secs(60);

/// The state of a connection to an endpoint, shared with its threads.
pub(crate) struct Shared {
    /// Opens connections to the endpoint.
    pub(crate) dialer: Dialer,
    /// The endpoint as text, for errors.
    pub(crate) name: Arc<str>,
    pub(crate) options: ClientOptions,
    pub(crate) session: v1::Session,
    pub(crate) incarnation: u64,
    pub(crate) peers: Arc<Peers>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) control: Arc<Lane>,
    /// Set when the connection is over, to the reason.
    dead: OnceLock<Error>,
    /// Whether that is because the server has got no further.
    stalled: AtomicBool,
    /// Changes while the server does something that is waited for.
    moves: AtomicU64,
    /// When another server that waits for this one was last seen to.
    wanted: Mutex<Option<Instant>>,
    over: watch::Sender<bool>,
    leaving: AtomicBool,
    next: Arc<AtomicU64>,
    /// Requests on the control stream.
    waiting: Mutex<HashMap<u64, Completer<()>>>,
    frees: Mutex<Frees>,
    pub(crate) freed: Notify,
    queues: Mutex<Queues>,
    pub(crate) jobs: UnboundedSender<Job>,
    /// Bulk connections that are open, and where their queues go.
    bulk: [Mutex<Option<UnboundedSender<Arc<QueueInner>>>>; BULK_CONNECTIONS],
}

#[derive(Default)]
struct Frees {
    buffers: Vec<u64>,
    executables: Vec<u64>,
}

#[derive(Default)]
struct Queues {
    live: HashMap<u64, Weak<QueueInner>>,
    /// All that ever were: their events can be waited for.
    known: HashSet<u64>,
}

/// What the connections of one session have in common, one after another.
#[derive(Clone, Default)]
pub(crate) struct Lasting {
    pub(crate) peers: Arc<Peers>,
    pub(crate) counters: Arc<Counters>,
    /// The next handle.
    next: Arc<AtomicU64>,
}

/// The line of a control stream that begins with this request.
pub(crate) fn control_lane(first: Request) -> Arc<Lane> {
    let control = Lane::new(CONTROL_LANE);
    control.push(|out| frame::push(out, &v1::ControlRequest { request: Some(first) }));
    control
}

impl Shared {
    pub(crate) fn new(
        dialer: Dialer,
        options: ClientOptions,
        (session, incarnation): (v1::Session, u64),
        lasting: Lasting,
        control: Arc<Lane>,
        jobs: UnboundedSender<Job>,
    ) -> Arc<Shared> {
        let Lasting { peers, counters, next } = lasting;
        Arc::new(Shared {
            name: dialer.endpoint().to_string().into(),
            dialer,
            options,
            session,
            incarnation,
            peers,
            counters,
            control,
            dead: OnceLock::new(),
            stalled: AtomicBool::new(false),
            moves: AtomicU64::new(0),
            wanted: Mutex::default(),
            over: watch::Sender::new(false),
            leaving: AtomicBool::new(false),
            next,
            waiting: Mutex::default(),
            frees: Mutex::default(),
            freed: Notify::new(),
            queues: Mutex::default(),
            jobs,
            bulk: Default::default(),
        })
    }

    /// A number that this session has not used: handles and requests are never reused.
    pub(crate) fn fresh(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// What a further connection of the session goes on with.
    pub(crate) fn lasting(&self) -> Lasting {
        Lasting { peers: self.peers.clone(), counters: self.counters.clone(), next: self.next.clone() }
    }

    /// Whether a queue was ever opened on this connection.
    fn has_queues(&self) -> bool {
        !lock(&self.queues).known.is_empty()
    }

    /// An error that blames the endpoint.
    pub(crate) fn lost(&self, detail: impl Into<String>) -> Error {
        Error::Peer { endpoint: self.name.to_string(), detail: detail.into() }
    }

    /// An error that the server has told. If it blames a server that was given up here, the reason for that says more.
    pub(crate) fn error(&self, error: v1::Error) -> Error {
        let error = from_wire(error, &self.name);
        let Error::Peer { endpoint, .. } = &error else { return error };
        let senders = self.peers.senders();
        let given_up = senders.iter().find(|sender| *sender.name == **endpoint && sender.is_given_up());
        given_up.and_then(|sender| sender.check().err()).unwrap_or(error)
    }

    /// Fails if the endpoint is lost.
    pub(crate) fn check(&self) -> Result<()> {
        self.dead.get().cloned().map_or(Ok(()), Err)
    }

    /// The error of a line that nobody takes from.
    pub(crate) fn gone(&self) -> Error {
        self.dead.get().cloned().unwrap_or_else(|| self.lost("the connection has ended"))
    }

    /// Declares the endpoint lost: everything that waits for it fails now.
    pub(crate) fn kill(&self, error: Error) {
        let _ = self.dead.set(error);
        let error = self.gone();
        self.over.send_replace(true);
        self.control.break_off();
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        waiting.into_values().for_each(|w| w.complete(Err(error.clone())));
        let queues: Vec<_> = lock(&self.queues).live.values().filter_map(Weak::upgrade).collect();
        queues.iter().for_each(|q| q.fail(&error));
    }

    /// Declares the endpoint lost because it gets no further: its session is not taken up again.
    pub(crate) fn give_up(&self, why: impl Into<String>) {
        if self.dead.get().is_none() {
            self.stalled.store(true, Ordering::Release);
        }
        self.kill(self.lost(why));
    }

    /// Whether it was lost because it got no further.
    fn is_given_up(&self) -> bool {
        self.stalled.load(Ordering::Acquire)
    }

    /// Declares the endpoint lost because a call was not answered in time.
    pub(crate) fn unanswered(&self, what: &str, after: Duration) -> Error {
        self.give_up(format!(
            "no answer for {:.0} s ({what}), though the connection is alive; restart that server, or leave it out of the list",
            after.as_secs_f64()
        ));
        self.gone()
    }

    /// What can be seen of everything that waits for the endpoint, by queue.
    pub(crate) fn marks(&self) -> Vec<(u64, Mark)> {
        let queues: Vec<_> = lock(&self.queues).live.values().filter_map(Weak::upgrade).collect();
        let mut marks: Vec<_> = queues.iter().filter_map(|q| Some((q.uid, q.mark()?))).collect();
        let (taken, waits) = self.control.taken();
        if waits {
            marks.push((CONTROL, Mark { taken: [taken, 0], ..Mark::default() }));
        }
        marks
    }

    /// Notes that the server has got further.
    pub(crate) fn moved(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that has changed if the server has got further while something waited for it.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    /// Another server waits for this one.
    pub(crate) fn want(&self) {
        *lock(&self.wanted) = Some(Instant::now());
    }

    /// Whether another server was seen to wait for this one, not longer ago than this.
    pub(crate) fn is_wanted(&self, within: Duration) -> bool {
        lock(&self.wanted).is_some_and(|at| at.elapsed() <= within)
    }

    /// This server waits for others: those that send to it.
    pub(crate) fn want_senders(&self) {
        self.peers.senders().iter().for_each(|sender| sender.want());
    }

    /// Whether the last user has let go, so that an end is no failure.
    pub(crate) fn leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Completes when the connection is over.
    pub(crate) async fn until_over(&self) {
        // An error means that the sender is gone, which `self` holds.
        let _ = self.over.subscribe().wait_for(|&over| over).await;
    }

    /// Sends a request on the control stream; `make` gets its number.
    pub(crate) fn request(&self, what: &str, make: impl FnOnce(u64) -> Request) -> Result<Pending<()>> {
        self.check()?;
        let number = self.fresh();
        let (completer, pending) = Pending::new(format!("{}: {what}", self.name));
        lock(&self.waiting).insert(number, completer);
        self.flush_frees();
        let message = v1::ControlRequest { request: Some(make(number)) };
        if !self.control.push(|out| frame::push(out, &message)) {
            self.answered(number, Err(self.gone()));
        }
        Ok(pending)
    }

    /// A request on the control stream was answered.
    pub(crate) fn answered(&self, number: u64, result: Result<()>) {
        if let Some(completer) = lock(&self.waiting).remove(&number) {
            completer.complete(result);
        }
    }

    /// Lets the server forget a buffer, soon.
    pub(crate) fn free_buffer(&self, handle: u64) {
        lock(&self.frees).buffers.push(handle);
        self.freed.notify_one();
    }

    /// Lets the server forget an executable, soon.
    pub(crate) fn free_executable(&self, handle: u64) {
        lock(&self.frees).executables.push(handle);
        self.freed.notify_one();
    }

    /// Sends what was freed. The fences tell the server to wait for the commands that were enqueued before.
    pub(crate) fn flush_frees(&self) {
        // Held until they are in line: an allocation behind them must find the memory free.
        let mut frees = lock(&self.frees);
        let Frees { buffers, executables } = std::mem::take(&mut *frees);
        if buffers.is_empty() && executables.is_empty() {
            return;
        }
        let queues: Vec<_> = lock(&self.queues).live.values().filter_map(Weak::upgrade).collect();
        let fences: Vec<_> = queues.iter().map(|q| v1::Fence { queue: q.uid, commands: q.sent() }).collect();
        let (mut buffers, mut executables) = (buffers.chunks(MAX_FREE), executables.chunks(MAX_FREE));
        loop {
            let (b, e) = (buffers.next(), executables.next());
            if b.is_none() && e.is_none() {
                return;
            }
            let request = Request::Free(v1::Free {
                buffers: b.unwrap_or_default().to_vec(),
                executables: e.unwrap_or_default().to_vec(),
                fences: fences.clone(),
            });
            let message = v1::ControlRequest { request: Some(request) };
            self.control.push_now(|out| frame::push(out, &message));
        }
    }

    /// Takes a queue into the books and opens its stream.
    pub(crate) fn open_queue(&self, queue: &Arc<QueueInner>) -> Result<()> {
        {
            let mut queues = lock(&self.queues);
            queues.live.retain(|_, q| q.strong_count() > 0);
            queues.live.insert(queue.uid, Arc::downgrade(queue));
            queues.known.insert(queue.uid);
        }
        self.jobs.send(Job::Open(queue.clone())).map_err(|_| self.gone())?;
        // If the endpoint was lost in between, the queue may not have been told.
        self.check()
    }

    /// Whether a queue is of this endpoint.
    pub(crate) fn knows_queue(&self, uid: u64) -> bool {
        lock(&self.queues).known.contains(&uid)
    }

    /// Bulk connections that there can be. On QUIC all are streams of one connection, with one congestion control: a second stream would
    /// gain nothing, and both together could take the room that commands need.
    pub(crate) fn bulk_connections(&self) -> usize {
        match self.dialer.carrier() {
            Carrier::Quic => 1,
            _ => BULK_CONNECTIONS,
        }
    }

    /// Opens the bulk stream of a queue on the connection that it is to have, which is opened first if it is not there.
    pub(crate) fn open_bulk(self: &Arc<Self>, queue: &Arc<QueueInner>) -> Result<()> {
        let unknown = || Error::Misuse(format!("there is no bulk connection {}", queue.bulk_connection));
        let mut slot = lock(self.bulk.get(queue.bulk_connection).ok_or_else(unknown)?);
        let queues = match &*slot {
            Some(queues) => queues,
            None => slot.insert(bulk::start(self, queue.bulk_connection)?),
        };
        queues.send(queue.clone()).map_err(|_| self.gone())
    }

    /// Forgets a bulk connection, so that the next queue opens another, unless queues are on their way to this one.
    pub(crate) fn leave_bulk(&self, number: usize, todo: &UnboundedReceiver<Arc<QueueInner>>) -> bool {
        let slot = self.bulk.get(number).map(lock).filter(|_| todo.is_empty());
        slot.is_some_and(|mut slot| slot.take().is_some())
    }
}

/// Held by all that uses an endpoint. When the last one is gone, the session ends.
pub(crate) struct Link {
    pub(crate) endpoint: Endpoint,
    now: Mutex<Running>,
    /// Held while the session is taken up again.
    resuming: Mutex<()>,
    /// How long the server keeps the session without hearing from this client; `None` if it cannot be taken up again.
    lease: Option<Duration>,
    held: Mutex<Held>,
}

/// The connection of a session.
struct Running {
    shared: Arc<Shared>,
    /// Ends when the command thread does.
    ended: Receiver<()>,
}

/// Handles that are in use here: what the server is to keep.
#[derive(Clone, Default)]
pub(crate) struct Held {
    pub(crate) buffers: HashSet<u64>,
    pub(crate) executables: HashSet<u64>,
}

impl Link {
    pub(crate) fn new(Connected { shared, hello, ended }: Connected) -> (Arc<Link>, v1::HelloResponse) {
        let resumable = hello.features.iter().any(|f| f == FEATURE_RESUME);
        let link = Link {
            endpoint: shared.dialer.endpoint().clone(),
            now: Mutex::new(Running { shared, ended }),
            resuming: Mutex::default(),
            lease: resumable.then_some(Duration::from_millis(hello.lease_ms).min(MAX_LEASE)),
            held: Mutex::default(),
        };
        (Arc::new(link), hello)
    }

    /// The connection that the session has now.
    pub(crate) fn shared(&self) -> Arc<Shared> {
        lock(&self.now).shared.clone()
    }

    /// Takes the session up again on a new connection: what it holds stays, its queues are given up. Nothing is done where no queue
    /// has been opened since the last time.
    pub(crate) fn resume(&self) -> Result<()> {
        let _one = lock(&self.resuming);
        let old = self.shared();
        let lost = old.check().err();
        if old.is_given_up() {
            let (what, after) = (format!("{} to get any further", old.name), old.options.stall_after);
            return Err(Error::Timeout { what, after });
        }
        if lost.is_none() && !old.has_queues() {
            return Ok(());
        }
        let Some(lease) = self.lease else {
            return Err(lost.unwrap_or_else(|| old.lost("it cannot take up a session again; install a newer release")));
        };
        old.kill(old.lost("its queues were given up"));
        let held = lock(&self.held).clone();
        let (shared, ended) = resume(&old, &held, lease).map_err(|why| match (lost, why) {
            (Some(Error::Peer { endpoint, detail }), Error::Peer { detail: why, .. }) => {
                Error::Peer { endpoint, detail: format!("{detail}, and its session is lost: {why}") }
            }
            (_, why) => why,
        })?;
        *lock(&self.now) = Running { shared: shared.clone(), ended };
        // What was dropped in the meantime was said to nobody.
        let now = lock(&self.held);
        held.buffers.difference(&now.buffers).for_each(|&handle| shared.free_buffer(handle));
        held.executables.difference(&now.executables).for_each(|&handle| shared.free_executable(handle));
        Ok(())
    }

    /// Notes a buffer.
    pub(crate) fn hold_buffer(&self, handle: u64) {
        lock(&self.held).buffers.insert(handle);
    }

    /// Notes an executable.
    pub(crate) fn hold_executable(&self, handle: u64) {
        lock(&self.held).executables.insert(handle);
    }

    /// Lets the server forget a buffer, soon.
    pub(crate) fn free_buffer(&self, handle: u64) {
        lock(&self.held).buffers.remove(&handle);
        self.shared().free_buffer(handle);
    }

    /// Lets the server forget an executable, soon.
    pub(crate) fn free_executable(&self, handle: u64) {
        lock(&self.held).executables.remove(&handle);
        self.shared().free_executable(handle);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let now = lock(&self.now);
        let shared = &now.shared;
        shared.leaving.store(true, Ordering::Release);
        shared.control.push_now(|out| out.extend_from_slice(&frame::goodbye()));
        shared.control.close();
        let _ = now.ended.recv_timeout(GOODBYE);
        shared.kill(shared.lost("the session was ended"));
    }
}
