//! A queue of a remote device.

use crate::buffer::{RemoteBuffer, RemoteExecutable};
use crate::connection::Connection;
use crate::device::RemoteDevice;
use crate::lane::Lane;
use crate::lock;
use crate::session::Session;
use crate::stall::Mark;
use bytes::{Bytes, BytesMut};
use outboard_core::device::{Completer, TraceHook, fresh_uid};
use outboard_core::{Device, Digest, Error, Event, Executable, Pending, Queue, Result, Slice, Ticket};
use outboard_proto::chunk::{self, Direction};
use outboard_proto::limits::{CHUNK, MAX_INLINE};
use outboard_proto::v1::{self, command::Command};
use outboard_proto::{device, frame};
use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Bytes of commands that wait to be sent, for one queue: some thousand.
const COMMAND_LANE: usize = 1 << 20;
/// Bytes of payloads that wait to be sent, for one queue.
const BULK_LANE: usize = 16 << 20;
/// How long the reason of a stream's end may take to be known, after the end itself.
const SAYS_WHY: Duration = Duration::from_millis(200);

/// The part of a queue that its streams share with its user.
pub(crate) struct QueueInner {
    pub(crate) uid: u64,
    connection: Arc<Connection>,
    /// The device's id, for errors.
    device: Arc<str>,
    pub(crate) lane: Arc<Lane>,
    pub(crate) bulk: Arc<Lane>,
    /// Number of the connection that the bulk stream is opened on.
    pub(crate) bulk_connection: usize,
    order: Mutex<Order>,
    sent: AtomicU64,
    failed: OnceLock<Error>,
    waiting: Mutex<HashMap<u64, Waiting>>,
}

/// Held while commands are appended, so that numbers and commands have one order.
#[derive(Default)]
struct Order {
    signals: u64,
    bulk_open: bool,
}

enum Waiting {
    Read { to: Completer<Bytes>, len: u64 },
    Bulk { to: Completer<Bytes>, got: BytesMut, len: usize },
    Done(Completer<()>),
}

impl Waiting {
    /// An answer with bytes, or the error of a server that answers otherwise than it was asked.
    fn give(self, data: Bytes, lost: impl Fn(&'static str) -> Error) {
        match self {
            Waiting::Read { to, len } if data.len() as u64 == len => to.complete(Ok(data)),
            Waiting::Read { .. } => self.fail(lost("answered a read with another number of bytes")),
            other => other.fail(lost("answered a request with bytes that did not ask for them")),
        }
    }

    fn fail(self, error: Error) {
        match self {
            Waiting::Read { to, .. } | Waiting::Bulk { to, .. } => to.complete(Err(error)),
            Waiting::Done(to) => to.complete(Err(error)),
        }
    }
}

impl QueueInner {
    /// Commands that were appended.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// The queue gives this error from now on.
    pub(crate) fn poisoned(&self, error: Error) {
        self.connection.lost_peer(&error);
        let _ = self.failed.set(error);
    }

    /// The queue is lost: all who wait get the error now.
    pub(crate) fn fail(&self, error: &Error) {
        let _ = self.failed.set(error.clone());
        self.lane.break_off();
        self.bulk.break_off();
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        waiting.into_values().for_each(|w| w.fail(error.clone()));
    }

    /// An answer with bytes.
    pub(crate) fn data(&self, request: u64, data: Bytes) {
        let waiting = lock(&self.waiting).remove(&request);
        if let Some(waiting) = waiting {
            waiting.give(data, |why| self.connection.lost(why));
        }
    }

    /// An answer without bytes.
    pub(crate) fn done(&self, request: u64, error: Option<Error>) {
        if let Some(error) = &error {
            self.poisoned(error.clone());
        }
        match (lock(&self.waiting).remove(&request), error) {
            (Some(waiting), Some(error)) => waiting.fail(error),
            (Some(Waiting::Done(to)), None) => to.complete(Ok(())),
            (Some(Waiting::Bulk { to, len: 0, .. }), None) => to.complete(Ok(Bytes::new())),
            (Some(waiting), None) => waiting.fail(self.connection.lost("answered a read without bytes")),
            (None, _) => {}
        }
    }

    /// The next bytes of a large answer.
    pub(crate) fn chunk(&self, request: u64, data: &[u8]) {
        let mut waiting = lock(&self.waiting);
        let full = match waiting.get_mut(&request) {
            Some(Waiting::Bulk { got, len, .. }) if got.len() + data.len() <= *len => {
                got.extend_from_slice(data);
                got.len() == *len
            }
            _ => false,
        };
        if full && let Some(Waiting::Bulk { to, got, .. }) = waiting.remove(&request) {
            drop(waiting);
            to.complete(Ok(got.freeze()));
        }
    }

    /// What can be seen of the waits for it; `None` if nothing waits.
    pub(crate) fn mark(&self) -> Option<Mark> {
        let (commands, bulk) = (self.lane.taken(), self.bulk.taken());
        let waiting = lock(&self.waiting);
        if waiting.is_empty() && !commands.callers_wait && !bulk.callers_wait {
            return None;
        }
        let received = |w: &Waiting| if let Waiting::Bulk { got, .. } = w { got.len() as u64 } else { 0 };
        let received = waiting.values().map(received).sum();
        // Numbers of requests go up.
        Some(Mark { oldest: waiting.keys().copied().min(), received, taken: [commands.bytes, bulk.bytes] })
    }

    fn check(&self) -> Result<()> {
        self.failed.get().cloned().map_or_else(|| self.connection.check(), Err)
    }

    /// Appends a command. The caller holds the order if it matters.
    fn push(&self, command: Command) -> Result<()> {
        self.check()?;
        self.sent.fetch_add(1, Ordering::AcqRel);
        let message = v1::Command { command: Some(command) };
        if self.lane.push(|out| frame::push(out, &message)) { Ok(()) } else { Err(self.why_broken()) }
    }

    /// The error of a line that nobody takes from. Whoever has ended its stream says why in a moment.
    fn why_broken(&self) -> Error {
        let start = Instant::now();
        while self.check().is_ok() && start.elapsed() < SAYS_WHY {
            std::thread::sleep(SAYS_WHY / 20);
        }
        self.check().err().unwrap_or_else(|| self.connection.gone())
    }

    fn wait_for(&self, request: u64, waiting: Waiting, command: Command) -> Result<()> {
        lock(&self.waiting).insert(request, waiting);
        let sent = {
            let _order = lock(&self.order);
            self.push(command)
        };
        // If the queue was lost since the check, it may have been before this was in the books.
        let lost = sent.clone().and_then(|()| self.connection.check());
        if let Err(error) = lost
            && let Some(waiting) = lock(&self.waiting).remove(&request)
        {
            waiting.fail(error);
        }
        sent
    }
}

/// The queue as its user holds it.
pub(crate) struct RemoteQueue {
    inner: Arc<QueueInner>,
    device: u64,
    /// Keeps the session.
    _session: Arc<Session>,
}

impl RemoteQueue {
    /// Opens a queue. What goes wrong on the way comes out at its commands.
    pub(crate) fn open(device: &RemoteDevice) -> Result<RemoteQueue> {
        RemoteQueue::open_with(device, 0, BULK_LANE)
    }

    /// Opens a queue whose bulk data goes on the bulk connection of this number, for which some bytes of it may wait.
    pub(crate) fn open_with(device: &RemoteDevice, bulk_connection: usize, ahead: usize) -> Result<RemoteQueue> {
        let session = device.session().clone();
        let connection = session.connection();
        connection.check()?;
        let inner = Arc::new(QueueInner {
            uid: fresh_uid(),
            device: device.info().id.as_str().into(),
            lane: Lane::new(COMMAND_LANE),
            bulk: Lane::new(ahead),
            bulk_connection,
            order: Mutex::default(),
            sent: AtomicU64::new(0),
            failed: OnceLock::new(),
            waiting: Mutex::default(),
            connection,
        });
        let open = v1::OpenQueue {
            session: Some(inner.connection.session.clone()),
            queue: inner.uid,
            device: device.info().name.clone(),
        };
        inner.lane.push(|out| frame::push(out, &v1::Command { command: Some(Command::Open(open)) }));
        inner.connection.open_queue(&inner)?;
        Ok(RemoteQueue { inner, device: device.uid(), _session: session })
    }

    /// The wire's form of a slice of this device.
    fn slice(&self, slice: &Slice) -> Result<Option<v1::Slice>> {
        let handle = RemoteBuffer::handle_of(slice, self.device)?;
        Ok(Some(device::slice(handle, slice)))
    }

    fn same_len(&self, len: u64, dst: &Slice) -> Result<()> {
        if len == dst.len() {
            Ok(())
        } else {
            Err(Error::Request(format!("{}: {len} bytes for a slice of {}", self.inner.device, dst.len())))
        }
    }

    /// Enqueues a command whose order with others matters only to the caller.
    fn enqueue(&self, command: Command) -> Result<()> {
        let _order = lock(&self.inner.order);
        self.inner.push(command)
    }

    /// Gives the queue up: who waits for it gets the error.
    pub(crate) fn fail(&self, error: &Error) {
        self.inner.fail(error);
    }

    /// Fails if the queue has.
    pub(crate) fn check(&self) -> Result<()> {
        self.inner.check()
    }

    /// Writes `data`, under its digest if there is one; `sent` is told the bytes of each part that is on its way.
    pub(crate) fn send(&self, dst: &Slice, data: Bytes, digest: Option<Digest>, sent: &dyn Fn(u64)) -> Result<()> {
        self.same_len(data.len() as u64, dst)?;
        let dst = self.slice(dst)?;
        if data.len() <= MAX_INLINE && digest.is_none() {
            let len = data.len() as u64;
            self.enqueue(Command::Write(v1::Write { dst, data }))?;
            sent(len);
            return Ok(());
        }
        let mut order = lock(&self.inner.order);
        self.ensure_bulk(&mut order)?;
        let transfer = self.inner.connection.fresh();
        let digest = digest.map_or_else(Bytes::new, |d| Bytes::copy_from_slice(&d.0));
        self.inner.push(Command::WriteBulk(v1::WriteBulk { transfer, dst, digest }))?;
        let mut rest = data;
        while !rest.is_empty() {
            let part = rest.split_to(rest.len().min(CHUNK));
            let len = part.len() as u64;
            if !self.inner.bulk.push_payload(chunk::head(Direction::Up, transfer, &part), part) {
                return Err(self.inner.why_broken());
            }
            sent(len);
        }
        Ok(())
    }

    /// Opens the bulk stream before there is anything for it.
    pub(crate) fn prepare_bulk(&self) -> Result<()> {
        self.ensure_bulk(&mut lock(&self.inner.order))
    }

    fn ensure_bulk(&self, order: &mut Order) -> Result<()> {
        if order.bulk_open {
            return Ok(());
        }
        self.inner.connection.open_bulk(&self.inner)?;
        let open = v1::OpenBulk { session: Some(self.inner.connection.session.clone()), queue: self.inner.uid };
        let message = v1::BulkUp { part: Some(v1::bulk_up::Part::Open(open)) };
        self.inner.bulk.push(|out| frame::push(out, &message));
        order.bulk_open = true;
        Ok(())
    }

    /// Hands bytes to another device: of the endpoint, or of the server that `target` names.
    pub(crate) fn offer(&self, ticket: Ticket, src: &Slice, to: &str, target: Option<v1::PeerTarget>) -> Result<()> {
        let ticket = Bytes::copy_from_slice(&ticket.0);
        self.enqueue(Command::Offer(v1::Offer { ticket, src: self.slice(src)?, to: to.to_owned(), target }))
    }

    /// Takes bytes that another device offers, of the server that `source` names if that is known.
    pub(crate) fn accept(&self, ticket: Ticket, dst: &Slice, source: Option<v1::PeerSource>) -> Result<Event> {
        let (ticket, dst) = (Bytes::copy_from_slice(&ticket.0), self.slice(dst)?);
        self.numbered(|value| Command::Accept(v1::Accept { ticket, dst, value, source }))
    }

    /// Enqueues a command that makes the next event.
    fn numbered(&self, make: impl FnOnce(u64) -> Command) -> Result<Event> {
        let mut order = lock(&self.inner.order);
        let value = order.signals + 1;
        self.inner.push(make(value))?;
        order.signals = value;
        Ok(Event { device: self.device, queue: self.inner.uid, value })
    }
}

impl Queue for RemoteQueue {
    fn uid(&self) -> u64 {
        self.inner.uid
    }

    fn write(&self, dst: &Slice, data: Bytes) -> Result<()> {
        self.send(dst, data, None, &|_| {})
    }

    fn read(&self, src: &Slice) -> Result<Pending<Bytes>> {
        self.inner.check()?;
        let wire = self.slice(src)?;
        let request = self.inner.connection.fresh();
        let (to, pending) = Pending::new(self.inner.device.clone());
        let bulk = src.len() > MAX_INLINE as u64;
        let waiting = if bulk {
            self.prepare_bulk()?;
            let len = usize::try_from(src.len()).unwrap_or(usize::MAX);
            let mut room = Vec::new();
            let no_room = |_| Error::Request(format!("{}: no memory here for {len} bytes", self.inner.device));
            room.try_reserve_exact(len).map_err(no_room)?;
            Waiting::Bulk { to, got: BytesMut::from(Bytes::from(room)), len }
        } else {
            Waiting::Read { to, len: src.len() }
        };
        self.inner.wait_for(request, waiting, Command::Read(v1::Read { request, src: wire, bulk }))?;
        Ok(pending)
    }

    fn execute(&self, executable: &Arc<dyn Executable>) -> Result<()> {
        let executable = RemoteExecutable::handle_of(executable, self.device)?;
        self.enqueue(Command::Execute(v1::Execute { executable }))
    }

    fn copy(&self, src: &Slice, dst: &Slice) -> Result<()> {
        self.same_len(src.len(), dst)?;
        self.enqueue(Command::Copy(v1::Copy { src: self.slice(src)?, dst: self.slice(dst)? }))
    }

    fn fill(&self, dst: &Slice, value: u8) -> Result<()> {
        self.enqueue(Command::Fill(v1::Fill { dst: self.slice(dst)?, value: u32::from(value) }))
    }

    fn wait(&self, event: Event) -> Result<()> {
        if !self.inner.connection.queues.knows(event.queue) {
            return Err(Error::Misuse(format!(
                "{} cannot wait for an event of another endpoint; transfer the data instead",
                self.inner.device
            )));
        }
        self.enqueue(Command::Wait(v1::Wait { queue: event.queue, value: event.value }))
    }

    fn signal(&self) -> Result<Event> {
        self.numbered(|value| Command::Signal(v1::Signal { value }))
    }

    fn write_later(&self, _: &Slice, _: Pending<Vec<Bytes>>) -> Result<()> {
        let id = &self.inner.device;
        Err(Error::Misuse(format!("{id}: bytes that are still to come cannot be enqueued for a remote device")))
    }

    fn marker(&self) -> Result<Pending<()>> {
        self.inner.check()?;
        let request = self.inner.connection.fresh();
        let (to, pending) = Pending::new(self.inner.device.clone());
        self.inner.wait_for(request, Waiting::Done(to), Command::Finish(v1::Finish { request }))?;
        Ok(pending)
    }

    fn failure(&self) -> Option<Error> {
        self.inner.check().err()
    }

    fn set_trace(&self, _: TraceHook) -> Result<()> {
        let id = &self.inner.device;
        Err(Error::Misuse(format!("{id}: its server keeps the times of its commands (Trace)")))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for RemoteQueue {
    fn drop(&mut self) {
        self.inner.lane.close();
        self.inner.bulk.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_gets_as_many_bytes_as_it_asked_for_or_an_error() {
        let lost = |detail: &'static str| Error::Peer { endpoint: "host:1".into(), detail: detail.into() };
        let answer = |waiting: &dyn Fn(Completer<Bytes>) -> Waiting, bytes: &'static [u8]| {
            let (to, mut pending) = Pending::new("dev");
            waiting(to).give(Bytes::from_static(bytes), lost);
            pending.try_take().unwrap()
        };
        let read = |to| Waiting::Read { to, len: 4 };
        assert_eq!(answer(&read, b"four"), Ok(Bytes::from_static(b"four")));
        let wrong = Err(lost("answered a read with another number of bytes"));
        for bytes in [&b""[..], b"one", b"three"] {
            assert_eq!(answer(&read, bytes), wrong, "{bytes:?}");
        }
        // Large answers come in chunks.
        let bulk = |to| Waiting::Bulk { to, got: BytesMut::new(), len: 4 };
        assert!(answer(&bulk, b"four").is_err());
    }
}
