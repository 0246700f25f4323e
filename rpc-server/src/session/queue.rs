//! A queue of a session: carries out the commands of its stream on the device's queue, in their order.
//!
//! A command that is wrong, or that the device's queue refuses, ends the line: the client is told once, the commands behind it
//! are dropped, requests among them are answered with the same error, and so are the queues that wait for its events.

use super::answers::{Answer, Replies, To, done, reply};
use super::flight::{Flight, Load};
use super::timeline::Timeline;
use super::{Session, answers, unknown};
use crate::devices::Devices;
use crate::limits::{BULK_CHUNKS, MARK_COMMANDS, MARK_KIB};
use crate::lock;
use outboard_core::{Device, Error, Queue, Result, Slice, Ticket};
use outboard_proto::limits::{CHUNK, MAX_INLINE, MAX_QUEUES};
use outboard_proto::v1::{self, command::Command, reply::Reply};
use outboard_proto::{SECRET_BYTES, error};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock};
use tokio::sync::mpsc;

/// What others see of a queue: its events, its failure, its bulk stream.
pub(crate) struct QueueState {
    failed: OnceLock<Error>,
    processed: AtomicU64,
    timeline: Mutex<Timeline>,
    /// Ends of the bulk stream's channels, until it takes them.
    pub(crate) bulk: Mutex<Option<BulkEnds>>,
}

/// The bulk stream's ends: where chunks from the client go, and where those for it come from.
pub(crate) struct BulkEnds {
    pub(crate) up: mpsc::Sender<v1::Chunk>,
    pub(crate) down: mpsc::Receiver<v1::Chunk>,
}

impl QueueState {
    /// The first failure stays.
    pub(crate) fn note_failure(&self, error: &Error) {
        let _ = self.failed.set(error.clone());
    }

    /// Commands that the queue has been given.
    pub(crate) fn processed(&self) -> u64 {
        self.processed.load(Ordering::Acquire)
    }
}

/// The side of the stream.
pub(crate) struct QueueRunner {
    session: Arc<Session>,
    devices: Arc<Devices>,
    device: Arc<dyn Device>,
    queue: Retired,
    state: Arc<QueueState>,
    flight: Arc<Flight>,
    /// Enqueued since the last answer or marker.
    unmarked: Load,
    anchor: Slice,
    answers: Sender<Answer>,
    replies: Replies,
    chunks: Option<mpsc::Receiver<v1::Chunk>>,
}

/// A device's queue, dropped on the session's thread: that may wait for the device.
struct Retired {
    queue: Option<Arc<dyn Queue>>,
    session: Arc<Session>,
}

impl Retired {
    fn get(&self) -> Result<&dyn Queue> {
        self.queue.as_deref().ok_or(Error::Cancelled)
    }
}

impl Drop for Retired {
    fn drop(&mut self) {
        let (queue, session) = (self.queue.take(), self.session.clone());
        self.session.worker.post(move || {
            drop(queue);
            session.live_queues.fetch_sub(1, Ordering::AcqRel);
            session.progress.notify_waiters();
        });
    }
}

impl QueueRunner {
    /// Opens a queue under a new handle.
    pub(crate) async fn open(
        session: &Arc<Session>,
        devices: &Arc<Devices>,
        handle: u64,
        device: &str,
        replies: Replies,
    ) -> Result<QueueRunner> {
        let device = devices.get(device)?.clone();
        let (up, chunks) = mpsc::channel(BULK_CHUNKS);
        let (chunks_down, down) = mpsc::channel(BULK_CHUNKS);
        let state = Arc::new(QueueState {
            failed: OnceLock::new(),
            processed: AtomicU64::new(0),
            timeline: Mutex::default(),
            bulk: Mutex::new(Some(BulkEnds { up, down })),
        });
        {
            let mut queues = lock(&session.queues);
            if queues.len() >= MAX_QUEUES {
                // Those that are closed are kept only for the sake of late waits.
                queues.retain(|_, q| q.processed() != u64::MAX);
            }
            if handle == 0 || queues.contains_key(&handle) || queues.len() >= MAX_QUEUES {
                return Err(Error::Request(format!(
                    "queue {handle} cannot be made: the handle is 0 or taken, or there are {MAX_QUEUES}"
                )));
            }
            queues.insert(handle, state.clone());
        }
        let (owner, of) = (session.clone(), device.clone());
        let made = session.worker.run(move || {
            let anchor = owner.anchor(of.as_ref())?;
            let queue = of.queue()?;
            owner.trace.watch(queue.as_ref(), handle, &of.info().name);
            owner.live_queues.fetch_add(1, Ordering::AcqRel);
            Ok((anchor, Retired { queue: Some(queue), session: owner }))
        });
        let made = made.await.inspect_err(|e| state.note_failure(e));
        session.progress.notify_waiters();
        let (anchor, queue) = made?;
        let flight = Arc::new(Flight::new());
        let answers = answers::start(state.clone(), flight.clone(), replies.clone(), chunks_down)?;
        Ok(QueueRunner {
            session: session.clone(),
            devices: devices.clone(),
            device,
            queue,
            state,
            flight,
            unmarked: Load::default(),
            anchor,
            answers,
            replies,
            chunks: Some(chunks),
        })
    }

    /// Carries out one command. `Err` only if the session has ended.
    pub(crate) async fn command(&mut self, command: v1::Command) -> Result<()> {
        let request = match &command.command {
            Some(Command::Read(c)) => Some(c.request),
            Some(Command::Finish(c)) => Some(c.request),
            _ => None,
        };
        let failed = self.state.failed.get().cloned();
        let result = match (failed, command.command) {
            (None, Some(command)) => self.apply(command).await,
            (None, None) => Err(Error::Request("a command that this release does not know".into())),
            (Some(error), Some(Command::Offer(c))) => {
                // Whoever accepts it learns why it does not come.
                if let Ok(ticket) = ticket(&c.ticket) {
                    let _ = self.session.offered(ticket, Some(error.clone()));
                }
                Err(error)
            }
            (Some(error), Some(Command::Accept(c))) => {
                if let Ok(ticket) = ticket(&c.ticket) {
                    self.session.forget_ticket(ticket);
                }
                Err(error)
            }
            (Some(error), _) => Err(error),
        };
        self.state.processed.fetch_add(1, Ordering::AcqRel);
        if let Err(error) = result {
            if self.session.is_closed() {
                return Err(error);
            }
            self.fail(request, error).await;
        }
        self.session.progress.notify_waiters();
        Ok(())
    }

    /// Tells the client of a failure: the first time as such, and each request that it made.
    async fn fail(&mut self, request: Option<u64>, error: Error) {
        self.state.note_failure(&error);
        if let Some(mut chunks) = self.chunks.take() {
            tracing::debug!(session = self.session.tag, "queue failed: {error}");
            let _ = self.replies.send(reply(Reply::Failed(error::to_wire(&error)))).await;
            // What is still to come on the bulk stream must not stop its sender.
            tokio::spawn(async move { while chunks.recv().await.is_some() {} });
        }
        if let Some(request) = request {
            let _ = self.replies.send(done(request, Some(&error))).await;
        }
    }

    async fn apply(&mut self, command: Command) -> Result<()> {
        let queue = self.queue.queue.clone().ok_or(Error::Cancelled)?;
        let device = self.device.clone();
        let slice = |s| self.session.slice(device.as_ref(), s);
        match command {
            Command::Open(_) => Err(Error::Request("the queue is open already".into())),
            Command::Write(c) => {
                let dst = slice(c.dst)?;
                if c.data.len() > MAX_INLINE || c.data.len() as u64 != dst.len() {
                    let len = c.data.len();
                    return Err(Error::Request(format!("{len} bytes for a slice of {}, in the stream", dst.len())));
                }
                self.take(dst.len()).await?;
                queue.write(&dst, c.data)?;
                self.mark()
            }
            Command::WriteBulk(c) => {
                let dst = slice(c.dst)?;
                self.write_bulk(queue.as_ref(), c.transfer, &dst).await
            }
            Command::Read(c) => {
                let src = slice(c.src)?;
                match c.bulk {
                    true => self.read_bulk(queue.as_ref(), c.request, &src).await,
                    false if src.len() > MAX_INLINE as u64 => {
                        Err(Error::Request(format!("a read of {} bytes in the stream", src.len())))
                    }
                    false => {
                        self.take(src.len()).await?;
                        let pending = queue.read(&src)?;
                        self.answer(pending, To::Data(c.request))
                    }
                }
            }
            Command::Execute(c) => {
                let executable = self.session.executable(self.device.as_ref(), c.executable)?;
                self.take(0).await?;
                queue.execute(&executable)?;
                self.mark()
            }
            Command::Copy(c) => {
                let (src, dst) = (slice(c.src)?, slice(c.dst)?);
                self.take(0).await?;
                queue.copy(&src, &dst)?;
                self.mark()
            }
            Command::Fill(c) => {
                let dst = slice(c.dst)?;
                let value = u8::try_from(c.value);
                let value = value.map_err(|_| Error::Request(format!("{} is not a byte to fill with", c.value)))?;
                self.take(0).await?;
                queue.fill(&dst, value)?;
                self.mark()
            }
            Command::Wait(c) => {
                let other = lock(&self.session.queues).get(&c.queue).cloned();
                let other = other.ok_or_else(|| unknown("queue", c.queue))?;
                let ready = || {
                    let event = lock(&other.timeline).event(c.value);
                    event.map(Ok).or_else(|| other.failed.get().cloned().map(Err))
                };
                let event = self.session.until(ready).await??;
                self.take(0).await?;
                queue.wait(event)?;
                self.mark()
            }
            Command::Signal(c) => {
                lock(&self.state.timeline).check_next(c.value)?;
                self.take(0).await?;
                let event = queue.signal()?;
                lock(&self.state.timeline).signalled(event);
                self.mark()
            }
            Command::Offer(c) => {
                let ticket = ticket(&c.ticket)?;
                let offered = self.offer(queue.as_ref(), ticket, c).await;
                self.session.offered(ticket, offered.clone().err())?;
                offered
            }
            Command::Accept(c) => {
                let ticket = ticket(&c.ticket)?;
                let dst = slice(c.dst)?;
                lock(&self.state.timeline).check_next(c.value)?;
                self.session.taken(ticket).await?;
                self.take(0).await?;
                let peer = device.peer().ok_or_else(|| no_transfers(device.as_ref()))?;
                let event = peer.accept(queue.as_ref(), ticket, &dst)?;
                lock(&self.state.timeline).signalled(event);
                self.mark()
            }
            Command::Finish(c) => {
                self.take(0).await?;
                let pending = queue.read(&self.anchor)?;
                self.answer(pending, To::Done(c.request))
            }
        }
    }

    async fn offer(&mut self, queue: &dyn Queue, ticket: Ticket, c: v1::Offer) -> Result<()> {
        let device = self.device.clone();
        let src = self.session.slice(device.as_ref(), c.src)?;
        let to = self.devices.get(&c.to)?.clone();
        let peer = device.peer().ok_or_else(|| no_transfers(device.as_ref()))?;
        if !peer.reaches(to.as_ref()) {
            return Err(Error::Request(format!("{} does not reach {}", device.info().name, to.info().name)));
        }
        self.take(src.len()).await?;
        peer.offer(queue, ticket, &src, to.as_ref())?;
        self.mark()
    }

    /// Writes chunks as they come, straight to their place.
    async fn write_bulk(&mut self, queue: &dyn Queue, transfer: u64, dst: &Slice) -> Result<()> {
        let mut at = 0;
        while at < dst.len() {
            let session = self.session.clone();
            let chunks = self.chunks.as_mut().ok_or(Error::Cancelled)?;
            let chunk = tokio::select! {
                chunk = chunks.recv() => chunk,
                () = session.until_closed() => return Err(Error::Cancelled),
            };
            let chunk = chunk.ok_or_else(|| Error::Request("the bulk stream ended before its payload".into()))?;
            let len = chunk.data.len() as u64;
            if chunk.transfer != transfer || len == 0 || len > dst.len() - at {
                return Err(Error::Request(format!(
                    "{len} bytes of transfer {} came instead of {} of transfer {transfer}",
                    chunk.transfer,
                    dst.len() - at
                )));
            }
            self.take(len).await?;
            queue.write(&dst.part(at, len)?, chunk.data)?;
            self.mark()?;
            at += len;
        }
        Ok(())
    }

    /// Reads in chunks, no more at a time than may wait.
    async fn read_bulk(&mut self, queue: &dyn Queue, request: u64, src: &Slice) -> Result<()> {
        let mut at = 0;
        while at < src.len() {
            let len = (src.len() - at).min(CHUNK as u64);
            self.take(len).await?;
            let pending = queue.read(&src.part(at, len)?)?;
            self.answer(pending, To::Chunk(request))?;
            at += len;
        }
        match src.is_empty() {
            true => {
                let _ = self.replies.send(done(request, None)).await;
                Ok(())
            }
            false => Ok(()),
        }
    }

    /// Waits for room for a command.
    async fn take(&mut self, bytes: u64) -> Result<()> {
        let session = self.session.clone();
        tokio::select! {
            biased;
            load = self.flight.take(bytes) => self.unmarked += load?,
            () = session.until_closed() => return Err(Error::Cancelled),
        }
        Ok(())
    }

    /// Hands a result to the answering thread. All before it is done when it comes.
    fn answer(&mut self, pending: outboard_core::Pending<bytes::Bytes>, to: To) -> Result<()> {
        let load = std::mem::take(&mut self.unmarked);
        self.answers.send(Answer { pending, to, load }).map_err(|_| Error::Cancelled)
    }

    /// After enough commands, asks how far the device is.
    fn mark(&mut self) -> Result<()> {
        if self.unmarked.commands < MARK_COMMANDS && self.unmarked.kib < MARK_KIB {
            return Ok(());
        }
        let pending = self.queue.get()?.read(&self.anchor)?;
        self.answer(pending, To::Mark)
    }
}

impl Drop for QueueRunner {
    fn drop(&mut self) {
        // Whoever waits for an event that will not come any more learns it.
        self.state.note_failure(&Error::Request("a queue was closed before the event that was waited for".into()));
        self.state.processed.store(u64::MAX, Ordering::Release);
        self.session.progress.notify_waiters();
    }
}

fn ticket(bytes: &[u8]) -> Result<Ticket> {
    let ticket: Option<[u8; SECRET_BYTES]> = bytes.try_into().ok();
    ticket.map(Ticket).ok_or_else(|| Error::Request(format!("a ticket has {SECRET_BYTES} bytes, not {}", bytes.len())))
}

fn no_transfers(device: &dyn Device) -> Error {
    Error::Request(format!("{} has no direct transfers", device.info().name))
}
