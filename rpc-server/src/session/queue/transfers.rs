//! Offers and acceptances of a queue: within this server by the devices themselves, and to and from other servers.

use super::progress::HeldUp;
use super::{QueueRunner, QueueState};
use crate::lock;
use crate::peers::inbox::{Acceptance, Origin, Source, Waiter};
use crate::peers::lane::{Head, Push};
use crate::peers::link::Link;
use crate::session::Session;
use crate::session::answers::{WeakReplies, WithRoom, reply};
use crate::session::flight::Hold;
use crate::ticket;
use bytes::Bytes;
use outboard_core::{Device, Error, Event, Pending, Result, Slice, Ticket};
use outboard_proto::error;
use outboard_proto::limits::{CHUNK, MAX_ADDRESS};
use outboard_proto::v1::{self, reply::Reply};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// A queue that sends tensors to another server, as those see it who send them: it is told when one comes to nothing.
#[derive(Clone)]
pub(crate) struct SendingQueue {
    /// No other queue of this server has it.
    pub(crate) number: u64,
    session: Weak<Session>,
    state: Weak<QueueState>,
    /// Weak, because the stream of a queue ends with its last sender.
    replies: WeakReplies,
}

impl SendingQueue {
    /// Whether there is still somebody to tell.
    pub(crate) fn lives(&self) -> bool {
        self.state.strong_count() > 0
    }

    /// Counts bytes that go to another server.
    pub(crate) fn sent(&self, bytes: u64) {
        if let Some(session) = self.session.upgrade() {
            session.peer_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The queue has failed.
    pub(crate) fn refused(&self, error: &Error) {
        let Some(state) = self.state.upgrade() else { return };
        // What came first is what the client is told, once.
        if state.note_failure(error)
            && let Some(replies) = self.replies.upgrade()
        {
            let _ = replies.send(WithRoom::new(reply(Reply::Failed(error::to_wire(error))), None));
        }
        if let Some(session) = self.session.upgrade() {
            session.progress.notify_waiters();
        }
    }
}

impl QueueRunner {
    /// Hands bytes to another device, here or elsewhere. Whoever accepts them learns if they do not come.
    pub(super) async fn offer(&mut self, c: v1::Offer) -> Result<()> {
        let ticket = ticket::from_wire(&c.ticket)?;
        if let Some(target) = c.target {
            let link = self.link_to(target)?;
            return self.push(ticket, &link, c.src).await;
        }
        let bytes = c.src.as_ref().map_or(0, |src| src.len);
        let offered = match self.session.offer(bytes) {
            Ok(share) => self.offer_here(ticket, c).await.map(|()| share),
            Err(e) => Err(e),
        };
        let failed = offered.as_ref().err().cloned();
        self.session.offered(ticket, offered)?;
        failed.map_or(Ok(()), Err)
    }

    /// An offer of a queue that has failed.
    pub(super) fn offer_nothing(&mut self, c: v1::Offer, why: &Error) {
        let Ok(ticket) = ticket::from_wire(&c.ticket) else { return };
        match c.target {
            None => drop(self.session.offered(ticket, Err(why.clone()))),
            Some(target) => {
                if let Ok(link) = self.link_to(target) {
                    link.fail(ticket, why);
                }
            }
        }
    }

    /// An acceptance of a queue that has failed.
    pub(super) fn accept_nothing(&self, c: &v1::Accept) {
        if let Ok(ticket) = ticket::from_wire(&c.ticket) {
            self.session.offers.forget(ticket);
            self.session.inbox.discard(Instant::now(), ticket);
        }
    }

    /// Fills a slice with what is offered, and signals.
    pub(super) async fn accept(&mut self, c: v1::Accept) -> Result<()> {
        let ticket = ticket::from_wire(&c.ticket)?;
        let dst = self.slice(c.dst)?;
        lock(&self.state.timeline).check_next(c.value)?;
        let event = match c.source {
            Some(source) => self.accept_from_peer(ticket, &dst, source).await?,
            None => self.accept_from_anyone(ticket, &dst).await?,
        };
        lock(&self.state.timeline).signalled(event);
        self.mark()
    }

    async fn offer_here(&mut self, ticket: Ticket, c: v1::Offer) -> Result<()> {
        let device = self.device.clone();
        let src = self.slice(c.src)?;
        let to = self.session.devices.get(&c.to)?.clone();
        let peer = device.peer().ok_or_else(|| no_transfers(device.as_ref()))?;
        if !peer.reaches(to.as_ref()) {
            return Err(Error::Request(format!("{} does not reach {}", device.info().name, to.info().name)));
        }
        self.take(src.len()).await?;
        peer.offer(self.queue.get()?.as_ref(), ticket, &src, to.as_ref())?;
        self.mark()
    }

    /// The link to another server: usually the one that the offer before this one took.
    fn link_to(&mut self, target: v1::PeerTarget) -> Result<Arc<Link>> {
        if let Some((known, link)) = &self.link
            && *known == target
            && !link.is_lost()
        {
            return Ok(link.clone());
        }
        let link = self.peers.link(&self.session, &target)?;
        self.link = Some((target, link.clone()));
        Ok(link)
    }

    /// Sends bytes to another server as soon as the device has them. A large tensor is read in parts, no more at a time than may wait.
    async fn push(&mut self, ticket: Ticket, link: &Arc<Link>, src: Option<v1::Slice>) -> Result<()> {
        let failed = |e: &Error| link.fail(ticket, e);
        let src = self.slice(src).inspect_err(failed)?;
        if src.len() > CHUNK as u64 {
            let head = self.head(ticket, link, src.len()).inspect_err(failed)?;
            return self.push_in_parts(head, link, &src).await;
        }
        self.push_at_once(ticket, link, &src).await.inspect_err(failed)
    }

    fn head(&self, ticket: Ticket, link: &Link, size: u64) -> Result<Head> {
        let queue = SendingQueue {
            number: self.queue.get()?.uid(),
            session: Arc::downgrade(&self.session),
            state: Arc::downgrade(&self.state),
            replies: self.answers.replies.downgrade(),
        };
        let session = link.target.route.session;
        Ok(Head { session, ticket, size, queue, _timer: self.state.metrics.transfer("peer") })
    }

    async fn push_at_once(&mut self, ticket: Ticket, link: &Arc<Link>, src: &Slice) -> Result<()> {
        let (before, hold) = self.take_apart_or_fail(src.len()).await?;
        let pending = self.queue.get()?.read(src)?;
        let head = self.head(ticket, link, src.len())?;
        let link = link.clone();
        pending.then(move |result| {
            drop(before);
            match result {
                Ok(data) => link.push(Push::new(head, data, hold)),
                Err(error) => {
                    head.queue.refused(&error);
                    link.fail(head.ticket, &error);
                }
            }
        });
        Ok(())
    }

    async fn push_in_parts(&mut self, head: Head, link: &Arc<Link>, src: &Slice) -> Result<()> {
        let parts = link.begin(head)?;
        let mut at = 0;
        while at < src.len() {
            let len = (src.len() - at).min(CHUNK as u64);
            let part = parts.part();
            let read = async {
                let (before, hold) = self.take_apart_or_fail(len).await?;
                Ok((before, hold, self.queue.get()?.read(&src.part(at, len)?)?))
            };
            match read.await {
                Ok((before, hold, pending)) => pending.then(move |result| {
                    drop(before);
                    part(result, hold);
                }),
                Err(error) => {
                    parts.fail(&error);
                    return Err(error);
                }
            }
            at += len;
        }
        parts.complete();
        Ok(())
    }

    /// Lets the device's queue wait for bytes of another server. A tensor that is larger than the queue's own room is accepted in pieces.
    async fn accept_from_peer(&mut self, ticket: Ticket, dst: &Slice, source: v1::PeerSource) -> Result<Event> {
        if source.name.len() > MAX_ADDRESS || source.name.chars().any(char::is_control) {
            return Err(Error::Request("that is no name of a server".into()));
        }
        let source = Source { name: source.name, incarnation: source.incarnation };
        let piece = if dst.len() <= self.flight.most() { dst.len() } else { CHUNK as u64 };
        self.take_or_fail(piece).await?;
        let (to, pending) = Pending::new(self.device.info().name.as_str());
        let first = Waiter { to, len: piece };
        let acceptance = Acceptance { first, size: dst.len(), queue: self.handle, source };
        self.session.inbox.accept(Instant::now(), ticket, acceptance)?;
        let taken = self.take_pieces(&ticket, dst, piece, pending).await;
        taken.inspect_err(|_| self.session.inbox.give_up(&ticket))
    }

    /// Lets the device's queue wait for one piece after the other, no more at a time than may wait.
    async fn take_pieces(
        &mut self,
        ticket: &Ticket,
        dst: &Slice,
        mut len: u64,
        mut pending: Pending<Vec<Bytes>>,
    ) -> Result<Event> {
        let mut at = 0;
        loop {
            self.queue.get()?.write_later(&dst.part(at, len)?, pending)?;
            at += len;
            if at == dst.len() {
                // The event is a command of its own.
                self.take_or_fail(0).await?;
                return self.queue.get()?.signal();
            }
            self.mark()?;
            len = len.min(dst.len() - at);
            self.take_or_fail(len).await?;
            let (to, next) = Pending::new(self.device.info().name.as_str());
            self.session.inbox.accept_more(ticket, Waiter { to, len })?;
            pending = next;
        }
    }

    /// Waits for room that another server may have to make, unless the queue fails, or the client closes the stream.
    async fn take_or_fail(&mut self, bytes: u64) -> Result<()> {
        let failed = self.until_failed();
        unless(failed, self.take(bytes)).await
    }

    /// The same for room that a command gives back apart from those before it.
    async fn take_apart_or_fail(&mut self, bytes: u64) -> Result<(Hold, Hold)> {
        let failed = self.until_failed();
        unless(failed, self.take_apart(bytes)).await
    }

    fn until_failed(&self) -> impl Future<Output = Error> + Send + use<> {
        let (session, state, left) = (self.session.clone(), self.state.clone(), self.left.clone());
        async move {
            let over = || {
                let gone = || left.load(Ordering::Acquire).then_some(Error::Cancelled);
                state.failed.get().cloned().or_else(gone)
            };
            session.until(over).await.unwrap_or_else(|error| error)
        }
    }

    /// Waits for an offer of this server, or for bytes of another one that the client did not know yet.
    async fn accept_from_anyone(&mut self, ticket: Ticket, dst: &Slice) -> Result<Event> {
        let held = self.state.hold_up(HeldUp::Server);
        if let Offered::Elsewhere(origin) = self.until_offered(ticket).await? {
            let source = v1::PeerSource { name: self.peers.name_of(origin), incarnation: 0 };
            return self.accept_from_peer(ticket, dst, source).await;
        }
        drop(held);
        self.take(0).await?;
        let peer = self.device.peer().ok_or_else(|| no_transfers(self.device.as_ref()))?;
        peer.accept(self.queue.get()?.as_ref(), ticket, dst)
    }

    /// Waits until something is offered under a ticket. Fails if the offer came to nothing.
    async fn until_offered(&self, ticket: Ticket) -> Result<Offered> {
        let session = &self.session;
        let limit = self.peers.limits.accept;
        let offered = session.until(|| {
            let here = session.offers.accept(ticket).map(|offer| offer.map(|()| Offered::Here));
            let elsewhere = || session.inbox.origin(&ticket).map(|origin| Ok(Offered::Elsewhere(origin)));
            here.or_else(elsewhere).or_else(|| self.gone())
        });
        let late = |_| Error::Timeout { what: "a tensor that nobody has offered".into(), after: limit };
        tokio::time::timeout(limit, offered).await.map_err(late)??
    }
}

/// Where a tensor is offered.
enum Offered {
    /// By a queue of this session.
    Here,
    /// By another server.
    Elsewhere(Origin),
}

/// Something that is waited for, or the error that comes before it.
async fn unless<T>(failed: impl Future<Output = Error>, done: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        biased;
        error = failed => Err(error),
        done = done => done,
    }
}

fn no_transfers(device: &dyn Device) -> Error {
    Error::Request(format!("{} has no direct transfers", device.info().name))
}
