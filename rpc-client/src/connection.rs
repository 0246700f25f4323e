//! A connection to an endpoint, shared with its threads: the lines to the server, who waits for it, and whether it is lost.

mod books;
mod end;

use crate::bulk;
use crate::command::Job;
use crate::io::Counters;
use crate::lane::Lane;
use crate::lock;
use crate::options::ClientOptions;
use crate::peers::Peers;
use crate::queue::QueueInner;
use crate::stall::{CONTROL, Mark};
use books::{Frees, Queues, Requests};
use end::{End, Moves};
use outboard_core::{Error, Pending, Result};
use outboard_net::{Carrier, Dialer};
use outboard_proto::error::from_wire;
use outboard_proto::v1::control_request::Request;
use outboard_proto::{frame, v1};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

/// Bytes of requests that wait for the control stream: a graph or two.
const CONTROL_LANE: usize = 4 << 20;
/// Connections for bulk data, at most. One alone does not always fill a line: congestion control by rate (BBR) sends a little less
/// than it has seen to arrive, and one that has lost a packet takes a while.
pub(crate) const BULK_CONNECTIONS: usize = 2;

/// A connection to an endpoint.
pub(crate) struct Connection {
    /// Opens connections to the endpoint.
    pub(crate) dialer: Dialer,
    /// The endpoint as text, for errors.
    pub(crate) name: Arc<str>,
    pub(crate) options: ClientOptions,
    /// The session as its server knows it: number and secret.
    pub(crate) session: v1::Session,
    pub(crate) incarnation: u64,
    pub(crate) peers: Arc<Peers>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) control: Arc<Lane>,
    end: End,
    moves: Moves,
    next: Arc<AtomicU64>,
    requests: Requests,
    pub(crate) frees: Frees,
    pub(crate) queues: Queues,
    pub(crate) jobs: UnboundedSender<Job>,
    /// Bulk connections that are open, and where their queues go.
    bulk: [Mutex<Option<UnboundedSender<Arc<QueueInner>>>>; BULK_CONNECTIONS],
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

impl Connection {
    pub(crate) fn new(
        dialer: Dialer,
        options: ClientOptions,
        (session, incarnation): (v1::Session, u64),
        lasting: Lasting,
        control: Arc<Lane>,
        jobs: UnboundedSender<Job>,
    ) -> Arc<Connection> {
        let Lasting { peers, counters, next } = lasting;
        Arc::new(Connection {
            name: dialer.endpoint().to_string().into(),
            dialer,
            options,
            session,
            incarnation,
            peers,
            counters,
            control,
            end: End::new(),
            moves: Moves::default(),
            next,
            requests: Requests::default(),
            frees: Frees::default(),
            queues: Queues::default(),
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
        self.end.check()
    }

    /// The error of a line that nobody takes from.
    pub(crate) fn gone(&self) -> Error {
        self.end.reason().cloned().unwrap_or_else(|| self.lost("the connection has ended"))
    }

    /// Declares the endpoint lost: everything that waits for it fails now.
    pub(crate) fn kill(&self, error: Error) {
        self.end.set(error);
        let error = self.gone();
        self.control.break_off();
        self.requests.fail(&error);
        self.queues.live().iter().for_each(|q| q.fail(&error));
    }

    /// Declares the endpoint lost because it gets no further: its session is not taken up again.
    pub(crate) fn give_up(&self, why: impl Into<String>) {
        self.end.set_stalled();
        self.kill(self.lost(why));
    }

    /// Whether it was lost because it got no further.
    pub(crate) fn is_given_up(&self) -> bool {
        self.end.is_stalled()
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
        let mut marks: Vec<_> = self.queues.live().iter().filter_map(|q| Some((q.uid, q.mark()?))).collect();
        let taken = self.control.taken();
        if taken.callers_wait {
            marks.push((CONTROL, Mark { taken: [taken.bytes, 0], ..Mark::default() }));
        }
        marks
    }

    /// Notes that the server has got further.
    pub(crate) fn moved(&self) {
        self.moves.add();
    }

    /// A number that has changed if the server has got further while something waited for it.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.count()
    }

    /// Another server waits for this one.
    pub(crate) fn want(&self) {
        self.moves.want();
    }

    /// Whether another server was seen to wait for this one, not longer ago than this.
    pub(crate) fn is_wanted(&self, within: Duration) -> bool {
        self.moves.are_wanted(within)
    }

    /// This server waits for others: those that send to it.
    pub(crate) fn want_senders(&self) {
        self.peers.senders().iter().for_each(|sender| sender.want());
    }

    /// Notes that the last user has let go.
    pub(crate) fn leave(&self) {
        self.end.leave();
    }

    /// Whether the last user has let go, so that an end is no failure.
    pub(crate) fn leaving(&self) -> bool {
        self.end.leaving()
    }

    /// Completes when the connection is over.
    pub(crate) async fn until_over(&self) {
        self.end.reached().await;
    }

    /// Sends a request on the control stream; `make` gets its number.
    pub(crate) fn request(&self, what: &str, make: impl FnOnce(u64) -> Request) -> Result<Pending<()>> {
        self.check()?;
        let number = self.fresh();
        let pending = self.requests.expect(number, format!("{}: {what}", self.name));
        self.flush_frees();
        let message = v1::ControlRequest { request: Some(make(number)) };
        if !self.control.push(|out| frame::push(out, &message)) {
            self.answered(number, Err(self.gone()));
        }
        Ok(pending)
    }

    /// A request on the control stream was answered.
    pub(crate) fn answered(&self, number: u64, result: Result<()>) {
        self.requests.answered(number, result);
    }

    /// Lets the server forget a buffer, soon.
    pub(crate) fn free_buffer(&self, handle: u64) {
        self.frees.buffer(handle);
    }

    /// Lets the server forget an executable, soon.
    pub(crate) fn free_executable(&self, handle: u64) {
        self.frees.executable(handle);
    }

    /// Sends what was freed.
    pub(crate) fn flush_frees(&self) {
        self.frees.flush(&self.queues, |request| {
            let message = v1::ControlRequest { request: Some(request) };
            self.control.push_now(|out| frame::push(out, &message));
        });
    }

    /// Takes a queue into the books and opens its stream.
    pub(crate) fn open_queue(&self, queue: &Arc<QueueInner>) -> Result<()> {
        self.queues.add(queue);
        self.jobs.send(Job::Open(queue.clone())).map_err(|_| self.gone())?;
        // If the endpoint was lost in between, the queue may not have been told.
        self.check()
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
