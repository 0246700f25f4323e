//! The sending end of the connection to another server: what waits to be sent, and its way into the socket.

use super::wire::{PIECE, Sender, Wire};
use crate::lock;
use crate::logs::limited;
use crate::metrics::{Metrics, Timer};
use crate::session::Session;
use crate::session::flight::Hold;
use crate::session::queue::Owner;
use bytes::{BufMut, Bytes, BytesMut};
use outboard_core::{Error, Result, Ticket};
use outboard_net::Endpoint;
use outboard_proto::chunk::{self, Direction};
use outboard_proto::v1::{self, peer_up::Part};
use outboard_proto::{error, frame};
use prometheus_client::metrics::counter::Counter;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::Waker;
use std::time::Instant;
use tokio::sync::{Notify, watch};

/// Bytes that wait for the connection, of all sessions together: each queue has its own limit below that, which makes its
/// client wait. More means a network that takes nothing.
const LANE_BYTES: u64 = 2 << 30;
/// A device thread sends this many bytes itself; more are left to the event loop, while the device computes on.
const DIRECT: usize = 64 << 10;
/// Payloads up to this many bytes go out in one piece with their heads.
const ONE_WRITE: usize = 16 << 10;
/// Queues that are known, before those that are gone are forgotten.
const OWNERS: usize = 64;

/// Where a link is.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    Opening,
    Open,
    /// It will not open again.
    Lost(Error),
}

pub(crate) struct Link {
    pub(crate) incarnation: u64,
    pub(crate) address: String,
    pub(crate) endpoint: Endpoint,
    metrics: Arc<Metrics>,
    phase: watch::Sender<Phase>,
    /// Somebody waits for it to open.
    wanted: Notify,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    lane: VecDeque<Item>,
    lane_bytes: u64,
    wire: Option<Wire>,
    /// The other side has welcomed us.
    ready: bool,
    transfers: u64,
    /// Queues that have sent something, for refusals.
    owners: HashMap<u64, Owner>,
    users: Vec<Weak<Session>>,
    /// Counts bytes, once the other side has proven to be a server.
    sent: Option<Counter>,
    used: Option<Instant>,
}

enum Item {
    Push(Push),
    /// A message by itself.
    Message(Bytes),
}

/// A tensor to send.
pub(crate) struct Push {
    pub(crate) session: u64,
    pub(crate) ticket: Ticket,
    pub(crate) data: Bytes,
    /// Who is told if it comes to nothing.
    pub(crate) owner: Owner,
    /// Number on the stream, once it has begun.
    pub(crate) transfer: Option<u64>,
    /// Given back when the bytes are on their way.
    pub(crate) _hold: Hold,
    pub(crate) _timer: Timer,
}

impl Item {
    fn len(&self) -> usize {
        match self {
            Item::Push(push) => push.data.len(),
            Item::Message(bytes) => bytes.len(),
        }
    }
}

impl Link {
    pub(crate) fn new(incarnation: u64, endpoint: Endpoint, metrics: &Arc<Metrics>) -> Arc<Link> {
        let address = endpoint.to_string();
        Arc::new(Link {
            incarnation,
            address,
            endpoint,
            metrics: metrics.clone(),
            phase: watch::Sender::new(Phase::Opening),
            wanted: Notify::new(),
            state: Mutex::default(),
        })
    }

    /// A session uses it.
    pub(crate) fn attach(&self, session: &Arc<Session>) {
        let mut state = lock(&self.state);
        if !state.users.iter().any(|s| std::ptr::eq(s.as_ptr(), Arc::as_ptr(session))) {
            state.users.retain(|s| s.strong_count() > 0);
            state.users.push(Arc::downgrade(session));
        }
    }

    /// Whether a session that uses it lives, or something waits.
    pub(crate) fn in_use(&self) -> bool {
        let mut state = lock(&self.state);
        state.users.retain(|s| s.upgrade().is_some_and(|s| !s.is_closed()));
        !state.users.is_empty() || !state.lane.is_empty()
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
        self.add(Item::Push(push));
    }

    /// Tells whoever accepts a tensor that it will not come.
    pub(crate) fn fail(&self, session: u64, ticket: Ticket, why: &Error) {
        let ticket = Bytes::copy_from_slice(&ticket.0);
        let failed = v1::PushFailed { session, ticket, error: Some(error::to_wire(why)) };
        let mut out = BytesMut::new();
        frame::push(&mut out, &v1::PeerUp { part: Some(Part::Failed(failed)) });
        self.add(Item::Message(out.freeze()));
    }

    fn add(&self, item: Item) {
        let mut state = lock(&self.state);
        let lost = match &*self.phase.borrow() {
            Phase::Lost(error) => Some(error.clone()),
            _ if state.lane_bytes.saturating_add(item.len() as u64) > LANE_BYTES => {
                Some(self.blame("too many bytes wait to be sent to it"))
            }
            _ => None,
        };
        if let Some(error) = lost {
            drop(state);
            item.refuse(&error);
            return;
        }
        let direct = state.lane.is_empty() && item.len() <= DIRECT;
        state.used = Some(Instant::now());
        state.lane_bytes += item.len() as u64;
        if let Item::Push(push) = &item
            && !state.owners.contains_key(&push.owner.number)
        {
            if state.owners.len() >= OWNERS {
                state.owners.retain(|_, owner| owner.lives());
            }
            state.owners.insert(push.owner.number, push.owner.clone());
        }
        state.lane.push_back(item);
        if !state.ready {
            return;
        }
        if direct {
            state.pump();
            return;
        }
        wake_loop(state);
    }

    /// The connection is there; what waits stays until the other side has welcomed us.
    pub(crate) fn connected(&self, wire: Wire) {
        let mut state = lock(&self.state);
        state.wire = Some(wire);
        state.ready = false;
    }

    /// The other side has welcomed us.
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
        let wire = state.wire.as_mut()?;
        wire.register(waker);
        state.pump();
        state.wire.as_ref()?.ended().map(str::to_owned)
    }

    /// The connection is over: nothing that waits will be sent. A link that will not open again refuses what comes.
    pub(crate) fn disconnected(&self, why: &Error, for_good: bool) {
        self.phase.send_replace(if for_good { Phase::Lost(why.clone()) } else { Phase::Opening });
        let mut state = lock(&self.state);
        let wire = state.wire.take();
        state.ready = false;
        state.lane_bytes = 0;
        state.transfers = 0;
        let lane = std::mem::take(&mut state.lane);
        drop(state);
        drop(wire);
        lane.into_iter().for_each(|item| item.refuse(why));
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

/// Wakes the event loop of a link, without the lock, which is the first thing that it takes.
fn wake_loop(state: MutexGuard<'_, State>) {
    let waker = state.wire.as_ref().and_then(Wire::waker);
    drop(state);
    waker.iter().for_each(Waker::wake_by_ref);
}

impl Item {
    /// It will not be sent.
    fn refuse(self, error: &Error) {
        match self {
            Item::Push(push) => push.owner.refused(error),
            Item::Message(_) => {}
        }
    }
}

impl State {
    /// Puts on the stream what it takes, and moves the connection on.
    fn pump(&mut self) {
        let State { lane, lane_bytes, wire, ready, transfers, sent, .. } = self;
        let Some(wire) = wire else { return };
        wire.drive(|sender| {
            while *ready && let Some(item) = lane.front_mut() {
                let before = item.len();
                let done = item.send(sender, transfers);
                let bytes = (before - item.len()) as u64;
                *lane_bytes = lane_bytes.saturating_sub(bytes);
                if let Some(sent) = sent {
                    sent.inc_by(bytes);
                }
                match done {
                    None => return,
                    Some(true) => drop(lane.pop_front()),
                    // Others have their turn.
                    Some(false) => lane.rotate_left(1),
                }
            }
        });
    }
}

impl Item {
    /// Sends some of it: whether that was all, or `None` if there is no room.
    fn send(&mut self, sender: &mut Sender<'_, '_>, transfers: &mut u64) -> Option<bool> {
        let push = match self {
            Item::Push(push) => push,
            Item::Message(bytes) => {
                if sender.room(bytes.len()) == 0 {
                    return None;
                }
                sender.send(std::mem::take(bytes));
                return Some(true);
            }
        };
        let room = sender.room(push.data.len().clamp(1, PIECE));
        if room == 0 {
            return None;
        }
        let Some(transfer) = push.transfer else {
            *transfers += 1;
            let transfer = *transfers;
            push.transfer = Some(transfer);
            let head = push.head(transfer);
            push.owner.sent((head.len() + push.data.len()) as u64);
            if push.data.is_empty() {
                sender.send(head.freeze());
                return Some(true);
            }
            if push.data.len() > ONE_WRITE {
                sender.send(head.freeze());
                return push.piece(sender, transfer, room);
            }
            let data = std::mem::take(&mut push.data);
            let mut all = head;
            let chunk = chunk::head(Direction::Up, transfer, &data);
            all.reserve(chunk.len() + data.len());
            all.put(chunk);
            all.put(data);
            sender.send(all.freeze());
            return Some(true);
        };
        push.piece(sender, transfer, room)
    }
}

impl Push {
    fn head(&self, transfer: u64) -> BytesMut {
        let push = v1::Push {
            transfer,
            session: self.session,
            ticket: Bytes::copy_from_slice(&self.ticket.0),
            size: self.data.len() as u64,
            queue: self.owner.number,
        };
        let mut out = BytesMut::new();
        frame::push(&mut out, &v1::PeerUp { part: Some(Part::Push(push)) });
        out
    }

    fn piece(&mut self, sender: &mut Sender<'_, '_>, transfer: u64, room: usize) -> Option<bool> {
        let piece = self.data.split_to(room.min(self.data.len()));
        sender.chunk(transfer, piece);
        Some(self.data.is_empty())
    }
}
