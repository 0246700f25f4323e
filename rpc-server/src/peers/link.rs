//! The sending end of the connection to another server: what it is given to send, from any thread, and whether it is open.

use super::lane::{Head, Lane, Push};
use super::wire::Wire;
use crate::limits::{LANE_BYTES, LANE_NEWS};
use crate::lock;
use crate::logs::limited;
use crate::metrics::Metrics;
use crate::session::flight::Hold;
use crate::session::queue::SendingQueue;
use bytes::{Bytes, BytesMut};
use outboard_core::{Error, Result, Ticket};
use outboard_net::Endpoint;
use outboard_proto::grant::{Proofs, Route};
use outboard_proto::limits::MAX_ADDRESS;
use outboard_proto::v1::{self, peer_up::Part};
use outboard_proto::{error, frame};
use prometheus_client::metrics::counter::Counter;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Instant;
use tokio::sync::{Notify, watch};

/// A device thread sends this many bytes itself; more are left to the event loop, while the device computes on.
const DIRECT: usize = 64 << 10;
/// Queues that are known, before those that are gone are forgotten.
const QUEUES: usize = 64;

/// Where a link leads: all that the client has said of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    pub(crate) endpoint: Endpoint,
    pub(crate) route: Route,
    pub(crate) proofs: Proofs,
}

impl Target {
    /// What the client of a server of this incarnation has said.
    pub(crate) fn new(from: u64, target: &v1::PeerTarget) -> Result<Target> {
        let address = Some(target.address.as_str()).filter(|a| a.len() <= MAX_ADDRESS);
        let endpoint = address.and_then(|a| Endpoint::parse(a).ok());
        let endpoint = endpoint.ok_or_else(|| Error::Request("that is no address of a server".into()))?;
        let proof = |bytes: &[u8]| {
            let no_proof = || Error::Peer {
                endpoint: endpoint.to_string(),
                detail: "the client gives no proof that its session there may be sent to; install the same release \
                         everywhere"
                    .into(),
            };
            bytes.try_into().map_err(|_| no_proof())
        };
        let proofs = Proofs { grant: proof(&target.grant)?, welcome: proof(&target.welcome)? };
        let route = Route { from, to: target.incarnation, session: target.session };
        Ok(Target { endpoint, route, proofs })
    }
}

/// Whether a link is open.
#[derive(Clone, Debug)]
enum Phase {
    Opening,
    Open,
    /// It will not open again.
    Lost(Error),
}

/// What becomes of a link whose connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// It is opened again.
    ForNow,
    /// It refuses what comes.
    ForGood,
}

pub(crate) struct Link {
    pub(crate) target: Target,
    pub(crate) address: String,
    metrics: Arc<Metrics>,
    phase: watch::Sender<Phase>,
    /// Somebody waits for it to open.
    wanted: Notify,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    lane: Lane,
    connection: Connection,
    /// Why the connection has to end.
    broken: Option<&'static str>,
    /// Queues that have sent something, for refusals.
    queues: HashMap<u64, SendingQueue>,
    /// When it was last given something.
    used: Option<Instant>,
}

/// The connection of a link.
#[derive(Default)]
enum Connection {
    #[default]
    None,
    /// The other side has not proven who it is: it gets no more than the greeting.
    Unproven(Wire),
    /// The other side has proven who it is.
    Proven {
        wire: Wire,
        /// Counts bytes that are sent to it.
        sent: Counter,
    },
}

/// A tensor whose parts are being read. Dropped before all of them are on their way, it comes to nothing.
pub(crate) struct Parts {
    link: Arc<Link>,
    stream: u64,
    /// What the receiver is told when this is dropped.
    failed: Option<Error>,
}

impl Parts {
    /// To be called, on any thread, with the next part that was read, and the room that it has in its queue.
    pub(crate) fn part(&self) -> impl FnOnce(Result<Bytes>, Hold) + Send + 'static {
        let (link, stream) = (self.link.clone(), self.stream);
        move |read, hold| {
            let added = read.and_then(|data| link.part(stream, data, hold));
            if let Err(error) = added
                && let Some(queue) = link.abort(stream, &error)
            {
                queue.refused(&error);
            }
        }
    }

    /// All parts will be read.
    pub(crate) fn complete(mut self) {
        self.failed = None;
    }

    /// The rest will not be read; the queue knows why.
    pub(crate) fn fail(mut self, why: &Error) {
        self.failed = Some(why.clone());
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        if let Some(why) = &self.failed {
            self.link.abort(self.stream, why);
        }
    }
}

impl Link {
    pub(crate) fn new(target: Target, metrics: &Arc<Metrics>) -> Arc<Link> {
        Arc::new(Link {
            address: target.endpoint.to_string(),
            target,
            metrics: metrics.clone(),
            phase: watch::Sender::new(Phase::Opening),
            wanted: Notify::new(),
            state: Mutex::default(),
        })
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Open)
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Lost(_))
    }

    /// Returns when somebody begins to wait for it to open.
    pub(super) async fn until_wanted(&self) {
        self.wanted.notified().await;
    }

    /// Waits until it is open; the error of the attempt if it cannot be. Attempts have a deadline.
    pub(crate) async fn until_open(&self) -> Result<()> {
        let mut phase = self.phase.subscribe();
        self.wanted.notify_one();
        let reached = phase.wait_for(|phase| !matches!(phase, Phase::Opening)).await;
        match reached.as_deref() {
            Ok(Phase::Open) => Ok(()),
            Ok(Phase::Lost(error)) => Err(error.clone()),
            _ => Err(self.blame("the attempt to connect was given up")),
        }
    }

    /// An error that names the other server.
    pub(crate) fn blame(&self, detail: impl Into<String>) -> Error {
        Error::Peer { endpoint: self.address.clone(), detail: detail.into() }
    }

    /// When it was last given something.
    pub(crate) fn last_used(&self) -> Option<Instant> {
        lock(&self.state).used
    }
}

/// What queues send. Nothing here waits.
impl Link {
    /// Sends a tensor, from any thread.
    pub(crate) fn push(&self, push: Push) {
        let mut state = lock(&self.state);
        if let Err(error) = self.admit(&state, push.data.len()) {
            drop(state);
            push.head.queue.refused(&error);
            return;
        }
        state.note_queue(&push.head.queue);
        state.used = Some(Instant::now());
        state.lane.add_push(push);
        send_on(state);
    }

    /// Begins to send a tensor that is read in parts.
    pub(crate) fn begin(self: &Arc<Self>, head: Head) -> Result<Parts> {
        let mut state = lock(&self.state);
        self.admit(&state, 0)?;
        state.note_queue(&head.queue);
        let stream = state.lane.add_stream(head);
        Ok(Parts { link: self.clone(), stream, failed: Some(Error::Cancelled) })
    }

    /// The next bytes of such a tensor.
    fn part(&self, stream: u64, data: Bytes, hold: Hold) -> Result<()> {
        let mut state = lock(&self.state);
        self.admit(&state, data.len())?;
        // One that is not there was refused, or its connection is lost; the queue knows that.
        if state.lane.add_part(stream, data, hold) {
            state.used = Some(Instant::now());
            wake_loop(state);
        }
        Ok(())
    }

    /// Such a tensor comes to nothing, which the receiver is told. Gives its queue, unless that knows already.
    fn abort(&self, stream: u64, why: &Error) -> Option<SendingQueue> {
        let head = lock(&self.state).lane.remove_stream(stream)?;
        self.fail(head.ticket, why);
        Some(head.queue)
    }

    /// Tells whoever accepts a tensor that it will not come.
    pub(crate) fn fail(&self, ticket: Ticket, why: &Error) {
        let (session, ticket) = (self.target.route.session, Bytes::copy_from_slice(&ticket.0));
        let failed = v1::PushFailed { session, ticket, error: Some(error::to_wire(why)) };
        let mut out = BytesMut::new();
        frame::push(&mut out, &v1::PeerUp { part: Some(Part::Failed(failed)) });
        let mut state = lock(&self.state);
        if self.admit(&state, out.len()).is_err() {
            return;
        }
        if state.lane.messages() >= LANE_NEWS {
            state.broken = Some("it takes too few of the errors that it is told");
            return wake_loop(state);
        }
        state.used = Some(Instant::now());
        state.lane.add_message(out.freeze());
        send_on(state);
    }

    /// Whether so many bytes more may wait.
    fn admit(&self, state: &State, bytes: usize) -> Result<()> {
        match &*self.phase.borrow() {
            Phase::Lost(error) => Err(error.clone()),
            _ if state.lane.bytes().saturating_add(bytes as u64) > LANE_BYTES => {
                Err(self.blame("too many bytes wait to be sent to it"))
            }
            _ => Ok(()),
        }
    }
}

/// What the link's thread tells of its connection.
impl Link {
    /// The connection is there; what waits stays until the other side has proven who it is.
    pub(super) fn connected(&self, wire: Wire) {
        lock(&self.state).connection = Connection::Unproven(wire);
    }

    /// Sends one message before anything else.
    pub(super) fn greet(&self, message: Bytes) {
        if let Some(wire) = lock(&self.state).connection.wire() {
            wire.drive(|sender| sender.send(message));
        }
    }

    /// The other side has proven who it is.
    pub(super) fn welcomed(&self) {
        let mut state = lock(&self.state);
        let sent = self.metrics.to_peer(&self.address);
        state.connection = std::mem::take(&mut state.connection).proven(sent);
        wake_loop(state);
        self.phase.send_replace(Phase::Open);
    }

    /// Moves the connection on; why it has ended, if it has.
    pub(super) fn poll(&self, waker: &Waker) -> Option<String> {
        let mut state = lock(&self.state);
        let broken = state.broken;
        state.connection.wire()?.register(waker);
        if let Some(why) = broken {
            return Some(why.to_owned());
        }
        state.pump();
        state.connection.wire()?.ended().map(str::to_owned)
    }

    /// The connection is over: nothing that waits will be sent.
    pub(super) fn disconnected(&self, why: &Error, loss: Loss) {
        self.phase.send_replace(match loss {
            Loss::ForNow => Phase::Opening,
            Loss::ForGood => Phase::Lost(why.clone()),
        });
        let mut state = lock(&self.state);
        let lane = state.lane.take();
        let connection = std::mem::take(&mut state.connection);
        state.broken = None;
        drop(state);
        drop(connection);
        lane.into_heads().for_each(|head| head.queue.refused(why));
    }

    /// The other side has refused what a queue has sent.
    pub(super) fn refused(&self, queue: u64, error: &Error) {
        let queue = lock(&self.state).queues.get(&queue).cloned();
        match queue {
            Some(queue) => queue.refused(error),
            None => limited!(debug, peer = self.address, "a transfer was refused that nobody waits for: {error}"),
        }
    }
}

impl Connection {
    fn wire(&mut self) -> Option<&mut Wire> {
        match self {
            Connection::None => None,
            Connection::Unproven(wire) | Connection::Proven { wire, .. } => Some(wire),
        }
    }

    /// The same connection, whose other side has proven who it is.
    fn proven(self, sent: Counter) -> Connection {
        match self {
            Connection::None => Connection::None,
            Connection::Unproven(wire) | Connection::Proven { wire, .. } => Connection::Proven { wire, sent },
        }
    }
}

impl State {
    /// Notes a queue that sends, so that it is told of refusals.
    fn note_queue(&mut self, queue: &SendingQueue) {
        if !self.queues.contains_key(&queue.number) {
            if self.queues.len() >= QUEUES {
                self.queues.retain(|_, queue| queue.lives());
            }
            self.queues.insert(queue.number, queue.clone());
        }
    }

    /// Puts on the stream what it takes, and moves the connection on.
    fn pump(&mut self) {
        let State { lane, connection, .. } = self;
        match connection {
            Connection::None => {}
            Connection::Unproven(wire) => wire.drive(|_| {}),
            Connection::Proven { wire, sent } => wire.drive(|sender| {
                sent.inc_by(lane.send(sender));
            }),
        }
    }
}

/// Sends what has just been added: here and now if it is alone and small.
fn send_on(mut state: MutexGuard<'_, State>) {
    if !matches!(state.connection, Connection::Proven { .. }) {
        return;
    }
    match state.lane.only_item() {
        Some(bytes) if bytes <= DIRECT => state.pump(),
        _ => wake_loop(state),
    }
}

/// Wakes the event loop of a link, without the lock, which is the first thing that it takes.
fn wake_loop(mut state: MutexGuard<'_, State>) {
    let waker = state.connection.wire().and_then(|wire| wire.waker());
    drop(state);
    waker.iter().for_each(Waker::wake_by_ref);
}
