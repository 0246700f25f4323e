//! The sending end of the connection to another server: what waits to be sent, and its way into the socket.

use super::wire::{PIECE, Sender, Wire};
use crate::limits::{LANE_BYTES, LANE_NEWS};
use crate::lock;
use crate::logs::limited;
use crate::metrics::{Metrics, Timer};
use crate::session::flight::Hold;
use crate::session::queue::Owner;
use bytes::{BufMut, Bytes, BytesMut};
use outboard_core::{Error, Result, Ticket};
use outboard_net::Endpoint;
use outboard_proto::chunk::{self, Direction};
use outboard_proto::grant::{Proofs, Route};
use outboard_proto::limits::MAX_ADDRESS;
use outboard_proto::v1::{self, peer_up::Part};
use outboard_proto::{error, frame};
use prometheus_client::metrics::counter::Counter;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Instant;
use tokio::sync::{Notify, watch};

/// A device thread sends this many bytes itself; more are left to the event loop, while the device computes on.
const DIRECT: usize = 64 << 10;
/// Payloads up to this many bytes go out in one piece with their heads.
const ONE_WRITE: usize = 16 << 10;
/// Queues that are known, before those that are gone are forgotten.
const OWNERS: usize = 64;

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

/// Where a link is.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    Opening,
    Open,
    /// It will not open again.
    Lost(Error),
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
    /// What has something to send, in turns.
    lane: VecDeque<Item>,
    lane_bytes: u64,
    /// Messages in the lane.
    news: usize,
    /// Tensors that are read from their device in parts.
    streams: HashMap<u64, Stream>,
    next_stream: u64,
    wire: Option<Wire>,
    /// The other side has proven who it is.
    ready: bool,
    /// Why the connection has to end.
    broken: Option<&'static str>,
    transfers: u64,
    /// Queues that have sent something, for refusals.
    owners: HashMap<u64, Owner>,
    /// Counts bytes, once the other side has proven to be a server.
    sent: Option<Counter>,
    used: Option<Instant>,
}

enum Item {
    Push(Push),
    /// Some of a tensor that is read in parts.
    Stream(u64),
    /// A message by itself.
    Message(Bytes),
}

/// A tensor to send.
pub(crate) struct Push {
    pub(crate) head: Head,
    pub(crate) data: Bytes,
    /// Number on the stream, once it has begun.
    pub(crate) transfer: Option<u64>,
    /// Given back when the bytes are on their way.
    pub(crate) _hold: Hold,
}

/// What is said of a tensor before its bytes.
pub(crate) struct Head {
    pub(crate) session: u64,
    pub(crate) ticket: Ticket,
    pub(crate) size: u64,
    /// Who is told if it comes to nothing.
    pub(crate) owner: Owner,
    pub(crate) _timer: Timer,
}

/// A tensor that is read from its device in parts.
struct Stream {
    head: Head,
    /// Number on the stream, once it has begun.
    transfer: Option<u64>,
    /// What was read and not sent, with the room that each part has in its queue.
    parts: VecDeque<(Bytes, Hold)>,
    /// Bytes that are not sent yet.
    left: u64,
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
                && let Some(owner) = link.abort(stream, &error)
            {
                owner.refused(&error);
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

    /// Sends a tensor, from any thread, without waiting.
    pub(crate) fn push(&self, push: Push) {
        let mut state = lock(&self.state);
        if let Err(error) = self.admit(&state, push.data.len()) {
            drop(state);
            push.head.owner.refused(&error);
            return;
        }
        state.knows(&push.head.owner);
        state.add(Item::Push(push));
        send_on(state);
    }

    /// Begins to send a tensor that is read in parts.
    pub(crate) fn begin(self: &Arc<Self>, head: Head) -> Result<Parts> {
        let mut state = lock(&self.state);
        self.admit(&state, 0)?;
        state.knows(&head.owner);
        state.next_stream += 1;
        let stream = state.next_stream;
        let left = head.size;
        state.streams.insert(stream, Stream { head, transfer: None, parts: VecDeque::new(), left });
        Ok(Parts { link: self.clone(), stream, failed: Some(Error::Cancelled) })
    }

    /// The next bytes of such a tensor.
    fn part(&self, stream: u64, data: Bytes, hold: Hold) -> Result<()> {
        let mut state = lock(&self.state);
        self.admit(&state, data.len())?;
        // One that is not there was refused, or its connection is lost; the queue knows that.
        let Some(of) = state.streams.get_mut(&stream) else { return Ok(()) };
        let first = of.parts.is_empty();
        let len = data.len() as u64;
        of.parts.push_back((data, hold));
        state.lane_bytes += len;
        if first {
            state.add(Item::Stream(stream));
        }
        wake_loop(state);
        Ok(())
    }

    /// Such a tensor comes to nothing, which the receiver is told. Gives its queue, unless that knows already.
    fn abort(&self, stream: u64, why: &Error) -> Option<Owner> {
        let mut state = lock(&self.state);
        let Stream { head, parts, .. } = state.streams.remove(&stream)?;
        let waiting: u64 = parts.iter().map(|(data, _)| data.len() as u64).sum();
        state.lane_bytes = state.lane_bytes.saturating_sub(waiting);
        drop(state);
        self.fail(head.ticket, why);
        Some(head.owner)
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
        if state.news >= LANE_NEWS {
            state.broken = Some("it takes too few of the errors that it is told");
            return wake_loop(state);
        }
        state.news += 1;
        state.add(Item::Message(out.freeze()));
        send_on(state);
    }

    /// Whether so many bytes more may wait.
    fn admit(&self, state: &State, bytes: usize) -> Result<()> {
        match &*self.phase.borrow() {
            Phase::Lost(error) => Err(error.clone()),
            _ if state.lane_bytes.saturating_add(bytes as u64) > LANE_BYTES => {
                Err(self.blame("too many bytes wait to be sent to it"))
            }
            _ => Ok(()),
        }
    }

    /// The connection is there; what waits stays until the other side has proven who it is.
    pub(crate) fn connected(&self, wire: Wire) {
        let mut state = lock(&self.state);
        state.wire = Some(wire);
        state.ready = false;
    }

    /// The other side has proven who it is.
    pub(crate) fn welcomed(&self) {
        let mut state = lock(&self.state);
        state.ready = true;
        state.sent.get_or_insert_with(|| self.metrics.to_peer(&self.address));
        wake_loop(state);
        self.phase.send_replace(Phase::Open);
    }

    /// Sends one message before anything else.
    pub(crate) fn greet(&self, message: Bytes) {
        if let Some(wire) = &mut lock(&self.state).wire {
            wire.drive(|sender| sender.send(message));
        }
    }

    /// Moves the connection on; why it has ended, if it has.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<String> {
        let mut state = lock(&self.state);
        let broken = state.broken;
        let wire = state.wire.as_mut()?;
        wire.register(waker);
        if let Some(why) = broken {
            return Some(why.to_owned());
        }
        state.pump();
        state.wire.as_ref()?.ended().map(str::to_owned)
    }

    /// The connection is over: nothing that waits will be sent. A link that will not open again refuses what comes.
    pub(crate) fn disconnected(&self, why: &Error, for_good: bool) {
        self.phase.send_replace(if for_good { Phase::Lost(why.clone()) } else { Phase::Opening });
        let mut state = lock(&self.state);
        let (lane, streams) = (std::mem::take(&mut state.lane), std::mem::take(&mut state.streams));
        let wire = state.wire.take();
        state.ready = false;
        state.broken = None;
        state.lane_bytes = 0;
        state.news = 0;
        state.transfers = 0;
        drop(state);
        drop(wire);
        let pushes =
            lane.into_iter().filter_map(|item| if let Item::Push(push) = item { Some(push.head) } else { None });
        let heads = pushes.chain(streams.into_values().map(|stream| stream.head));
        heads.for_each(|head| head.owner.refused(why));
    }

    /// The other side has refused what a queue has sent.
    pub(crate) fn refused(&self, queue: u64, error: &Error) {
        let owner = lock(&self.state).owners.get(&queue).cloned();
        match owner {
            Some(owner) => owner.refused(error),
            None => limited!(debug, peer = self.address, "a transfer was refused that nobody waits for: {error}"),
        }
    }

    /// When it was last given something.
    pub(crate) fn last_used(&self) -> Option<Instant> {
        lock(&self.state).used
    }
}

impl State {
    /// Notes who is told of refusals.
    fn knows(&mut self, owner: &Owner) {
        if !self.owners.contains_key(&owner.number) {
            if self.owners.len() >= OWNERS {
                self.owners.retain(|_, owner| owner.lives());
            }
            self.owners.insert(owner.number, owner.clone());
        }
    }

    /// Puts something behind what waits.
    fn add(&mut self, item: Item) {
        self.used = Some(Instant::now());
        self.lane_bytes += item.len() as u64;
        self.lane.push_back(item);
    }
}

/// Sends what has just been added: here and now if it is alone and small.
fn send_on(mut state: MutexGuard<'_, State>) {
    if !state.ready {
        return;
    }
    match state.lane.front() {
        Some(item) if state.lane.len() == 1 && item.len() <= DIRECT => state.pump(),
        _ => wake_loop(state),
    }
}

/// Wakes the event loop of a link, without the lock, which is the first thing that it takes.
fn wake_loop(state: MutexGuard<'_, State>) {
    let waker = state.wire.as_ref().and_then(Wire::waker);
    drop(state);
    waker.iter().for_each(Waker::wake_by_ref);
}

impl Item {
    /// Bytes in the lane; those of a stream count when they come.
    fn len(&self) -> usize {
        match self {
            Item::Push(push) => push.data.len(),
            Item::Stream(_) => 0,
            Item::Message(bytes) => bytes.len(),
        }
    }
}

impl State {
    /// Puts on the stream what it takes, and moves the connection on.
    fn pump(&mut self) {
        let State { lane, lane_bytes, news, streams, wire, ready, transfers, sent, .. } = self;
        let Some(wire) = wire else { return };
        wire.drive(|sender| {
            while *ready && let Some(item) = lane.front_mut() {
                let (turn, bytes) = match item {
                    Item::Push(push) => push.send(sender, transfers),
                    // One that is not there any more was refused.
                    Item::Stream(stream) => {
                        streams.get_mut(stream).map_or((Turn::Over, 0), |s| s.send(sender, transfers))
                    }
                    Item::Message(bytes) => send_message(bytes, sender, news),
                };
                *lane_bytes = lane_bytes.saturating_sub(bytes as u64);
                if let Some(sent) = sent {
                    sent.inc_by(bytes as u64);
                }
                match turn {
                    Turn::NoRoom => return,
                    Turn::More => lane.rotate_left(1),
                    Turn::Over => {
                        if let Some(Item::Stream(stream)) = lane.pop_front()
                            && streams.get(&stream).is_some_and(|s| s.left == 0)
                        {
                            streams.remove(&stream);
                        }
                    }
                }
            }
        });
    }
}

/// What became of a turn, and how many bytes were sent in it.
type Sent = (Turn, usize);

enum Turn {
    /// Nothing more can be sent now.
    NoRoom,
    /// There is more, but others have their turn.
    More,
    /// That was all of it, or all that is there.
    Over,
}

fn send_message(bytes: &mut Bytes, sender: &mut Sender<'_, '_>, news: &mut usize) -> Sent {
    let len = bytes.len();
    if sender.room(len) == 0 {
        return (Turn::NoRoom, 0);
    }
    sender.send(std::mem::take(bytes));
    *news = news.saturating_sub(1);
    (Turn::Over, len)
}

impl Push {
    /// Sends some of it.
    fn send(&mut self, sender: &mut Sender<'_, '_>, transfers: &mut u64) -> Sent {
        let room = sender.room(self.data.len().clamp(1, PIECE));
        if room == 0 {
            return (Turn::NoRoom, 0);
        }
        let len = self.data.len();
        let Some(transfer) = self.transfer else {
            let (transfer, head) = self.head.begin(transfers);
            self.transfer = Some(transfer);
            if len == 0 {
                sender.send(head.freeze());
                return (Turn::Over, 0);
            }
            if len > ONE_WRITE {
                sender.send(head.freeze());
                return piece(&mut self.data, transfer, sender, room);
            }
            let data = std::mem::take(&mut self.data);
            let mut all = head;
            let chunk = chunk::head(Direction::Up, transfer, &data);
            all.reserve(chunk.len() + data.len());
            all.put(chunk);
            all.put(data);
            sender.send(all.freeze());
            return (Turn::Over, len);
        };
        piece(&mut self.data, transfer, sender, room)
    }
}

impl Stream {
    /// Sends some of what was read.
    fn send(&mut self, sender: &mut Sender<'_, '_>, transfers: &mut u64) -> Sent {
        let Some((data, _)) = self.parts.front_mut() else { return (Turn::Over, 0) };
        let room = sender.room(data.len().clamp(1, PIECE));
        if room == 0 {
            return (Turn::NoRoom, 0);
        }
        let transfer = match self.transfer {
            Some(transfer) => transfer,
            None => {
                let (transfer, head) = self.head.begin(transfers);
                sender.send(head.freeze());
                *self.transfer.insert(transfer)
            }
        };
        let (turn, bytes) = piece(data, transfer, sender, room);
        self.left = self.left.saturating_sub(bytes as u64);
        if let Turn::Over = turn {
            self.parts.pop_front();
        }
        (if self.parts.is_empty() { Turn::Over } else { Turn::More }, bytes)
    }
}

impl Head {
    /// Gives the tensor its number on the stream, and what is sent before its bytes.
    fn begin(&self, transfers: &mut u64) -> (u64, BytesMut) {
        *transfers += 1;
        let push = v1::Push {
            transfer: *transfers,
            session: self.session,
            ticket: Bytes::copy_from_slice(&self.ticket.0),
            size: self.size,
            queue: self.owner.number,
        };
        let mut out = BytesMut::new();
        frame::push(&mut out, &v1::PeerUp { part: Some(Part::Push(push)) });
        self.owner.sent(out.len() as u64 + self.size);
        (*transfers, out)
    }
}

/// Sends as much of `data` as there is room for.
fn piece(data: &mut Bytes, transfer: u64, sender: &mut Sender<'_, '_>, room: usize) -> Sent {
    let piece = data.split_to(room.min(data.len()));
    let bytes = piece.len();
    sender.chunk(transfer, piece);
    (if data.is_empty() { Turn::Over } else { Turn::More }, bytes)
}
