//! A queue of a session: carries out the commands of its stream on the device's queue, in their order.
//!
//! A command that is wrong, or that the device's queue refuses, ends the line: the client is told once, the commands behind it
//! are dropped, requests among them are answered with the same error, and so are the queues that wait for its events.

use super::answers::{Answers, Held, Replies, To, done, reply};
use super::flight::{ChunkRoom, Flight, Hold, Inlet, Load};
use super::timeline::Timeline;
use super::{Session, unknown};
use crate::accounts::Share;
use crate::blobs::{Blob, Blobs, DEVICE_WAIT, Receiver, Wrong};
use crate::limits::{BULK_CHUNKS, CUT_STREAM, KNOWN_QUEUES, MARK_COMMANDS, MARK_KIB, OPEN_TIMEOUT};
use crate::lock;
use crate::logs::limited;
use crate::metrics::Metrics;
use crate::peers::Peers;
use crate::peers::link::Link;
use crate::server::Shared;
use outboard_core::{Device, Digest, Error, Pending, Queue, Result, Slice};
use outboard_proto::error;
use outboard_proto::limits::{CHUNK, MAX_INLINE};
use outboard_proto::v1::{self, command::Command, reply::Reply};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use tokio::sync::{mpsc, oneshot};

mod progress;
mod transfers;

use progress::{HeldBy, HeldUp, Meter};
pub(crate) use transfers::Owner;

/// What others see of a queue: its events, its failure, its bulk stream.
pub(crate) struct QueueState {
    failed: OnceLock<Error>,
    processed: AtomicU64,
    metrics: Arc<Metrics>,
    timeline: Mutex<Timeline>,
    /// Once it is open.
    meter: OnceLock<Meter>,
    held: HeldBy,
    /// Ends of the bulk stream's channels, until it takes them.
    pub(crate) bulk: Mutex<Option<BulkEnds>>,
}

/// The bulk stream's ends: where chunks from the client go, and where those for it come from.
pub(crate) struct BulkEnds {
    pub(crate) up: mpsc::Sender<UpChunk>,
    /// Where room for those is taken, before they are read.
    pub(crate) room: Inlet,
    pub(crate) down: mpsc::UnboundedReceiver<Held<v1::Chunk>>,
}

/// A chunk on its way to a queue, and its room until the device's queue has taken it.
pub(crate) type UpChunk = (v1::Chunk, ChunkRoom);

impl QueueState {
    /// The first failure stays.
    /// `true` if it is the first one.
    pub(crate) fn note_failure(&self, error: &Error) -> bool {
        let is_first = self.failed.set(error.clone()).is_ok();
        if is_first {
            self.metrics.error(error);
        }
        is_first
    }

    /// It cannot be opened: who waits for it learns why, frees do not wait for it, and there may be another one.
    fn refuse(&self, session: &Session, error: &Error) {
        self.note_failure(error);
        self.processed.store(u64::MAX, Ordering::Release);
        session.progress.notify_waiters();
    }

    /// Whether it is open.
    fn is_open(&self) -> bool {
        self.processed() != u64::MAX
    }

    /// Commands that the queue has been given.
    pub(crate) fn processed(&self) -> u64 {
        self.processed.load(Ordering::Acquire)
    }
}

/// The side of the stream.
pub(crate) struct QueueRunner {
    session: Arc<Session>,
    /// Where blobs are kept.
    store: Option<Arc<Blobs>>,
    peers: Arc<Peers>,
    handle: u64,
    device: Arc<dyn Device>,
    queue: Retired,
    state: Arc<QueueState>,
    flight: Arc<Flight>,
    /// Enqueued since the last answer or marker.
    unmarked: Load,
    anchor: Slice,
    answers: Answers,
    /// The client has closed the stream: nobody waits for what waits.
    left: Arc<AtomicBool>,
    chunks: Option<mpsc::Receiver<UpChunk>>,
    /// The link that the last offer to another server took, and what the client has said of it.
    link: Option<(v1::PeerTarget, Arc<Link>)>,
    /// Checks and keeps blobs, once there is one.
    blobs: Option<Receiver>,
    /// Blobs came of which it is not known yet whether they are what they were said to be.
    unsettled: bool,
}

/// A queue that is being opened. Dropped before it is done, it is refused.
struct Opening<'a> {
    session: &'a Session,
    state: Option<&'a QueueState>,
}

impl Opening<'_> {
    fn done(mut self) {
        self.state = None;
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.state {
            state.refuse(self.session, &Error::Cancelled);
        }
    }
}

/// A device's queue, dropped on the session's thread: that may wait for the device.
struct Retired {
    queue: Option<Arc<dyn Queue>>,
    session: Arc<Session>,
    share: Option<Arc<Share>>,
}

impl Retired {
    fn get(&self) -> Result<&dyn Queue> {
        self.queue.as_deref().ok_or(Error::Cancelled)
    }
}

impl Drop for Retired {
    fn drop(&mut self) {
        let (queue, share, session) = (self.queue.take(), self.share.take(), self.session.clone());
        self.session.worker.post(move || {
            drop(queue);
            drop(share);
            session.live_queues.fetch_sub(1, Ordering::AcqRel);
            session.progress.notify_waiters();
        });
    }
}

impl QueueRunner {
    /// Opens a queue under a new handle, unless the session has been taken up again since `age`.
    pub(crate) async fn open(
        session: &Arc<Session>,
        shared: &Arc<Shared>,
        handle: u64,
        device: &str,
        replies: Replies,
        age: u64,
    ) -> Result<QueueRunner> {
        let (up, chunks) = mpsc::channel(BULK_CHUNKS);
        let (chunks_down, down) = mpsc::unbounded_channel();
        let room = Inlet::new(session.account.payload.clone());
        let state = Arc::new(QueueState {
            failed: OnceLock::new(),
            processed: AtomicU64::new(0),
            metrics: shared.metrics.clone(),
            timeline: Mutex::default(),
            meter: OnceLock::new(),
            held: HeldBy::default(),
            bulk: Mutex::new(Some(BulkEnds { up, room, down })),
        });
        let found = {
            let mut queues = lock(&session.queues);
            if queues.len() >= KNOWN_QUEUES {
                // Those that are closed are kept only for the sake of late waits and frees.
                queues.retain(|_, q| q.is_open());
            }
            if handle == 0 || queues.contains_key(&handle) || queues.len() >= KNOWN_QUEUES {
                return Err(Error::Request(format!(
                    "queue {handle} cannot be made: the handle is 0 or taken, or there are {KNOWN_QUEUES}"
                )));
            }
            let (open, limit) = (queues.values().filter(|q| q.is_open()).count(), session.max_queues());
            queues.insert(handle, state.clone());
            if open < limit {
                session.devices.get(device).cloned()
            } else {
                Err(Error::Request(format!("a session may have {limit} queues at a time; close one first")))
            }
        };
        let device = found.inspect_err(|e| state.refuse(session, e))?;
        // A stream that ends before its queue is open leaves none behind that counts as open.
        let opening = Opening { session, state: Some(&state) };
        let share = session.account.queue();
        let meter = shared.metrics.queue(&device.info().name, session.account.name());
        let depth = meter.depth.clone();
        let (owner, of) = (session.clone(), device.clone());
        let made = session.worker.run(move || {
            // Whoever takes it up waits for the jobs before, and for the queues that they have opened.
            if owner.keys.is_renewed(age) {
                return Err(Error::Cancelled);
            }
            let share = Arc::new(share?);
            let anchor = owner.anchor(of.as_ref())?;
            let queue = of.queue()?;
            owner.trace.watch(queue.as_ref(), handle, &of.info().name, meter)?;
            owner.live_queues.fetch_add(1, Ordering::AcqRel);
            Ok((anchor, Retired { queue: Some(queue), session: owner, share: Some(share) }))
        });
        let made = made.await.inspect_err(|e| state.refuse(session, e));
        session.progress.notify_waiters();
        let (anchor, queue) = made?;
        let _ = state.meter.set(Meter::new(device.clone(), queue.get()?.progress()));
        opening.done();
        let flight = Arc::new(Flight::new(queue.share.clone(), session.account.payload.clone(), depth));
        let answers = Answers { state: state.clone(), replies, chunks: chunks_down };
        Ok(QueueRunner {
            session: session.clone(),
            store: shared.blobs.clone(),
            peers: shared.peers.clone(),
            handle,
            device,
            queue,
            state,
            flight,
            unmarked: Load::default(),
            anchor,
            answers,
            left: Arc::default(),
            chunks: Some(chunks),
            link: None,
            blobs: None,
            unsettled: false,
        })
    }

    /// To be set when the stream has ended.
    pub(crate) fn left(&self) -> Arc<AtomicBool> {
        self.left.clone()
    }

    /// Carries out one command, or fails because of what came in its place. `Err` only if the session has ended.
    pub(crate) async fn command(&mut self, command: Result<v1::Command>) -> Result<()> {
        let command = command.map(|c| c.command);
        let request = match &command {
            Ok(Some(Command::Read(c))) => Some(c.request),
            Ok(Some(Command::Finish(c))) => Some(c.request),
            _ => None,
        };
        let failed = self.state.failed.get().cloned();
        let (failed, command) = match command {
            Ok(command) => (failed, command),
            Err(error) => (failed.or(Some(error)), None),
        };
        let result = match (failed, command) {
            (None, Some(command)) => self.apply(command).await,
            (None, None) => Err(Error::Request("a command that this release does not know".into())),
            (Some(error), Some(Command::Offer(c))) => {
                self.offer_nothing(c, &error);
                Err(error)
            }
            (Some(error), Some(Command::Accept(c))) => {
                self.accept_nothing(&c);
                Err(error)
            }
            (Some(error), _) => Err(error),
        };
        self.state.processed.fetch_add(1, Ordering::AcqRel);
        if let Err(error) = result {
            if self.session.is_closed() {
                return Err(error);
            }
            self.fail(request, error).await?;
        }
        self.session.progress.notify_waiters();
        Ok(())
    }

    /// No more blobs come: the stream has ended, or the queue has failed.
    pub(crate) async fn close(&mut self) {
        self.blobs.iter().for_each(Receiver::leave);
        // Nobody hears of another error; what was wrong is cleared.
        let _ = self.settle().await;
    }

    /// Tells the client of a failure: the first time as such, and each request that it made.
    async fn fail(&mut self, request: Option<u64>, error: Error) -> Result<()> {
        // The first error counts; what was wrong of the blobs before, or has not come to its end, is cleared.
        self.close().await;
        self.state.note_failure(&error);
        if let Some(mut chunks) = self.chunks.take() {
            limited!(debug, session = self.session.tag, queue = self.handle, "queue failed: {error}");
            let _ = self.answers.replies.send(Held::new(reply(Reply::Failed(error::to_wire(&error))), None));
            // What is still to come on the bulk stream must not stop its sender.
            tokio::spawn(async move { while chunks.recv().await.is_some() {} });
        }
        if let Some(request) = request {
            self.reply_done(request, Some(&error)).await?;
        }
        Ok(())
    }

    /// Answers a request that the device has nothing to do with, when the client takes its replies.
    async fn reply_done(&mut self, request: u64, failed: Option<&Error>) -> Result<()> {
        let load = tokio::select! {
            biased;
            load = self.flight.command() => load?,
            () = self.session.until_closed() => return Err(Error::Cancelled),
        };
        let hold = Hold::new(&self.flight, load);
        let _ = self.answers.replies.send(Held::new(done(request, failed), Some(hold)));
        Ok(())
    }

    async fn apply(&mut self, command: Command) -> Result<()> {
        // Whoever uses a blob, or asks whether it is there, gets one that was checked.
        let writes = matches!(command, Command::Write(_) | Command::WriteBulk(_));
        if self.unsettled && (!writes || self.blobs.as_ref().is_some_and(Receiver::has_failed)) {
            self.settle().await?;
        }
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
                let blob = self.expect_blob(&c.digest, &dst).await?;
                self.write_bulk(queue.as_ref(), c.transfer, &dst, blob).await
            }
            Command::Read(c) => {
                let src = slice(c.src)?;
                if c.bulk {
                    return self.read_bulk(queue.as_ref(), c.request, &src).await;
                }
                if src.len() > MAX_INLINE as u64 {
                    return Err(Error::Request(format!("a read of {} bytes in the stream", src.len())));
                }
                self.take(src.len()).await?;
                let pending = queue.read(&src)?;
                self.answer(pending, To::Data(c.request));
                Ok(())
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
                let other = self.other(c.queue).await?;
                let ready = || {
                    let event = lock(&other.timeline).event(c.value);
                    event.map(Ok).or_else(|| other.failed.get().cloned().map(Err)).or_else(|| self.gone())
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
            Command::Offer(c) => self.offer(queue.as_ref(), c).await,
            Command::Accept(c) => self.accept(queue.as_ref(), c).await,
            Command::Finish(c) => {
                // A queue whose device has done everything need not be asked.
                if self.unmarked.commands == 0 && self.flight.is_idle() {
                    return self.reply_done(c.request, None).await;
                }
                self.take(0).await?;
                let pending = queue.read(&self.anchor)?;
                self.answer(pending, To::Done(c.request));
                Ok(())
            }
        }
    }

    /// Another queue of the session. Streams do not wait for one another: its own may be slower.
    async fn other(&self, handle: u64) -> Result<Arc<QueueState>> {
        let find = || lock(&self.session.queues).get(&handle).cloned().map(Ok).or_else(|| self.gone());
        let found = tokio::time::timeout(OPEN_TIMEOUT, self.session.until(find)).await;
        found.unwrap_or_else(|_| Ok(Err(unknown("queue", handle))))?
    }

    /// Ends a wait whose client has closed the stream.
    fn gone<T>(&self) -> Option<Result<T>> {
        self.left.load(Ordering::Acquire).then_some(Err(Error::Cancelled))
    }

    /// If a payload has a digest, prepares for checking it and keeping it.
    async fn expect_blob(&mut self, digest: &[u8], dst: &Slice) -> Result<bool> {
        if digest.is_empty() || dst.is_empty() {
            return Ok(false);
        }
        let wrong = || Error::Request(format!("a digest has {} bytes, not {}", Digest::BYTES, digest.len()));
        let digest = Digest::from_slice(digest).ok_or_else(wrong)?;
        let session = self.session.clone();
        let blobs = match &mut self.blobs {
            Some(blobs) => blobs,
            none => none.insert(Receiver::start(self.store.clone(), &session.account)?),
        };
        self.unsettled = true;
        tokio::select! {
            begun = blobs.begin(Blob { digest, len: dst.len() }, dst.clone()) => begun.map(|()| true),
            () = session.until_closed() => Err(Error::Cancelled),
        }
    }

    /// Waits until the blobs so far are checked. If some were wrong, fails when the device has cleared their places.
    async fn settle(&mut self) -> Result<()> {
        let Some(blobs) = self.blobs.as_ref().filter(|_| self.unsettled) else { return Ok(()) };
        let session = self.session.clone();
        let held = self.state.hold_up(HeldUp::Disk);
        let wrong = tokio::select! {
            wrong = blobs.settle() => wrong?,
            () = session.until_closed() => return Err(Error::Cancelled),
        };
        drop(held);
        self.unsettled = false;
        let Some(Wrong { error, places }) = wrong else { return Ok(()) };
        for place in places {
            self.take(0).await?;
            self.queue.get()?.fill(&place, 0)?;
        }
        self.until_done().await?;
        Err(error)
    }

    /// Waits until the device has done everything so far.
    async fn until_done(&mut self) -> Result<()> {
        self.take(0).await?;
        let (to, done) = oneshot::channel();
        let hold = self.hold();
        self.queue.get()?.read(&self.anchor)?.then(move |result| {
            drop(hold);
            // Whoever does not wait any more does not matter.
            let _ = to.send(result.map(drop));
        });
        let late = || Error::Timeout { what: "a device to take what was sent".into(), after: DEVICE_WAIT };
        tokio::select! {
            done = tokio::time::timeout(DEVICE_WAIT, done) => done.map_err(|_| late())?.map_err(|_| Error::Cancelled)?,
            () = self.session.until_closed() => Err(Error::Cancelled),
        }
    }

    /// Writes chunks as they come, straight to their place, and shows those of a blob to its receiver.
    async fn write_bulk(&mut self, queue: &dyn Queue, transfer: u64, dst: &Slice, blob: bool) -> Result<()> {
        let _timer = self.state.metrics.transfer("upload");
        let mut at = 0;
        while at < dst.len() {
            let session = self.session.clone();
            let chunks = self.chunks.as_mut().ok_or(Error::Cancelled)?;
            let chunk = tokio::select! {
                chunk = chunks.recv() => chunk,
                () = session.until_closed() => return Err(Error::Cancelled),
            };
            let Some((chunk, room)) = chunk else {
                // Whose connection was lost finds that out itself, and says better than this what is to be done.
                tokio::select! {
                    () = tokio::time::sleep(CUT_STREAM) => {}
                    () = session.until_closed() => return Err(Error::Cancelled),
                }
                let detail = "the stream of bulk data ended in the middle of a payload: its connection was lost, or the client has closed it";
                return Err(Error::Request(detail.into()));
            };
            let len = chunk.data.len() as u64;
            if chunk.transfer != transfer || len == 0 || len > dst.len() - at {
                return Err(Error::Request(format!(
                    "{len} bytes of transfer {} came instead of {} of transfer {transfer}",
                    chunk.transfer,
                    dst.len() - at
                )));
            }
            if blob {
                self.show(chunk.data.clone()).await?;
            }
            self.take(len).await?;
            drop(room);
            queue.write(&dst.part(at, len)?, chunk.data)?;
            self.mark()?;
            at += len;
        }
        Ok(())
    }

    /// Shows bytes of a blob to its receiver. They take room on the way until it has hashed them, too.
    async fn show(&mut self, data: bytes::Bytes) -> Result<()> {
        let load = self.payload(data.len() as u64).await?;
        let hold = Hold::new(&self.flight, load);
        let Some(blobs) = &self.blobs else { return Ok(()) };
        let _held = self.state.hold_up(HeldUp::Disk);
        tokio::select! {
            biased;
            shown = blobs.data(data, hold) => shown,
            () = self.session.until_closed() => Err(Error::Cancelled),
        }
    }

    /// Reads in chunks, no more at a time than may wait.
    async fn read_bulk(&mut self, queue: &dyn Queue, request: u64, src: &Slice) -> Result<()> {
        let _timer = self.state.metrics.transfer("download");
        let mut at = 0;
        while at < src.len() {
            let len = (src.len() - at).min(CHUNK as u64);
            self.take(len).await?;
            let pending = queue.read(&src.part(at, len)?)?;
            self.answer(pending, To::Chunk(request));
            at += len;
        }
        if src.is_empty() { self.reply_done(request, None).await } else { Ok(()) }
    }

    /// Waits for room for a command with so many bytes of payload.
    async fn take(&mut self, bytes: u64) -> Result<()> {
        let (session, flight) = (self.session.clone(), self.flight.clone());
        let load = tokio::select! {
            biased;
            load = flight.command() => load?,
            () = session.until_closed() => return Err(Error::Cancelled),
        };
        let mut hold = Hold::new(&flight, load);
        if bytes > 0 {
            // Its own place is not part of what is marked.
            hold.load += self.payload(bytes).await?;
        }
        self.unmarked += std::mem::take(&mut hold.load);
        Ok(())
    }

    /// Waits for room for a payload.
    async fn payload(&mut self, bytes: u64) -> Result<Load> {
        if let Some(load) = self.flight.try_payload(bytes) {
            return Ok(load);
        }
        // What it waits for may be its own, which is given back only behind a mark.
        self.mark_payloads()?;
        let session = self.session.clone();
        tokio::select! {
            biased;
            load = self.flight.payload(bytes) => load,
            () = session.until_closed() => Err(Error::Cancelled),
        }
    }

    /// Waits for room for a command that gives it back apart from those before it. Gives what those have, and what it has.
    async fn take_apart(&mut self, bytes: u64) -> Result<(Hold, Hold)> {
        match self.flight.try_payload(bytes) {
            Some(payload) => {
                let before = self.hold();
                self.unmarked += payload;
                self.take(0).await?;
                Ok((before, self.hold()))
            }
            None => {
                self.mark_payloads()?;
                let before = self.hold();
                self.take(bytes).await?;
                Ok((before, self.hold()))
            }
        }
    }

    /// Sends a result when it is there. All before it is done then.
    fn answer(&mut self, pending: Pending<bytes::Bytes>, to: To) {
        let hold = self.hold();
        self.answers.when(pending, to, hold);
    }

    /// What was taken since the last answer.
    fn hold(&mut self) -> Hold {
        Hold::new(&self.flight, std::mem::take(&mut self.unmarked))
    }

    /// After enough commands, asks how far the device is.
    fn mark(&mut self) -> Result<()> {
        if self.unmarked.commands < MARK_COMMANDS && self.unmarked.kib() < MARK_KIB { Ok(()) } else { self.mark_now() }
    }

    /// Where a command waits for payloads since the last mark, they need one, or it waits for ever.
    fn mark_payloads(&mut self) -> Result<()> {
        if self.unmarked.kib() > 0 { self.mark_now() } else { Ok(()) }
    }

    fn mark_now(&mut self) -> Result<()> {
        let pending = self.queue.get()?.read(&self.anchor)?;
        self.answer(pending, To::Mark);
        Ok(())
    }
}

impl Drop for QueueRunner {
    fn drop(&mut self) {
        drop(self.hold());
        self.session.inbox.end_queue(self.handle);
        // Whoever waits for an event that will not come any more learns it.
        let closed = Error::Request("a queue was closed before the event that was waited for".into());
        let _ = self.state.failed.set(closed);
        self.state.processed.store(u64::MAX, Ordering::Release);
        self.session.progress.notify_waiters();
    }
}
