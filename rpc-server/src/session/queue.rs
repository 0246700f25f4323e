//! A queue of a session: carries out the commands of its stream on the device's queue, in their order.
//!
//! A command that is wrong, or that the device's queue refuses, ends the line: the client is told once, the commands behind it
//! are dropped, requests among them are answered with the same error, and so are the queues that wait for its events.

use super::answers::{Answers, To, WithRoom, done, reply};
use super::flight::{Flight, Hold, Load};
use super::{Session, unknown};
use crate::blobs::{Blobs, Receiver};
use crate::limits::OPEN_TIMEOUT;
use crate::lock;
use crate::logs::limited;
use crate::peers::Peers;
use crate::peers::link::Link;
use outboard_core::{Device, Error, Queue, Result, Slice};
use outboard_proto::error;
use outboard_proto::limits::MAX_INLINE;
use outboard_proto::v1::{self, command::Command, reply::Reply};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc;

mod bulk;
mod open;
mod progress;
mod room;
mod state;
mod transfers;

use open::DeviceQueue;
pub(crate) use state::{BulkEnds, QueueState, UpChunk};
pub(crate) use transfers::SendingQueue;

/// A queue, as its stream has it.
pub(crate) struct QueueRunner {
    session: Arc<Session>,
    /// Where blobs are kept.
    store: Option<Arc<Blobs>>,
    peers: Arc<Peers>,
    handle: u64,
    device: Arc<dyn Device>,
    queue: DeviceQueue,
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

impl QueueRunner {
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
        let result = match (self.state.failed.get().cloned(), command) {
            (None, Ok(Some(command))) => self.apply(command).await,
            (None, Ok(None)) => Err(Error::Request("a command that this release does not know".into())),
            (None, Err(error)) => Err(error),
            (Some(error), command) => {
                self.drop_command(command.ok().flatten(), &error);
                Err(error)
            }
        };
        self.state.count_command();
        if let Err(error) = result {
            if self.session.is_closed() {
                return Err(error);
            }
            self.fail(request, error).await?;
        }
        self.session.progress.notify_waiters();
        Ok(())
    }

    /// Drops a command behind a failure. Whoever waits for the other side of a transfer is told.
    fn drop_command(&mut self, command: Option<Command>, why: &Error) {
        match command {
            Some(Command::Offer(c)) => self.offer_nothing(c, why),
            Some(Command::Accept(c)) => self.accept_nothing(&c),
            _ => {}
        }
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
            let _ = self.answers.replies.send(WithRoom::new(reply(Reply::Failed(error::to_wire(&error))), None));
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
        let load = self.session.while_open(self.flight.command()).await??;
        let hold = Hold::new(&self.flight, load);
        let _ = self.answers.replies.send(WithRoom::new(done(request, failed), Some(hold)));
        Ok(())
    }

    /// Carries out one command of a queue that has not failed.
    async fn apply(&mut self, command: Command) -> Result<()> {
        // Whoever uses a blob, or asks whether it is there, gets one that was checked.
        let writes = matches!(command, Command::Write(_) | Command::WriteBulk(_));
        if self.unsettled && (!writes || self.blobs.as_ref().is_some_and(Receiver::has_failed)) {
            self.settle().await?;
        }
        match command {
            Command::Open(_) => Err(Error::Request("the queue is open already".into())),
            Command::Write(c) => self.write(c).await,
            Command::WriteBulk(c) => self.write_bulk(c).await,
            Command::Read(c) => self.read(c).await,
            Command::Execute(c) => {
                let executable = self.session.executable(self.device.as_ref(), c.executable)?;
                self.enqueue(0, |queue| queue.execute(&executable)).await
            }
            Command::Copy(c) => {
                let (src, dst) = (self.slice(c.src)?, self.slice(c.dst)?);
                self.enqueue(0, |queue| queue.copy(&src, &dst)).await
            }
            Command::Fill(c) => {
                let dst = self.slice(c.dst)?;
                let value = u8::try_from(c.value);
                let value = value.map_err(|_| Error::Request(format!("{} is not a byte to fill with", c.value)))?;
                self.enqueue(0, |queue| queue.fill(&dst, value)).await
            }
            Command::Wait(c) => self.wait(c).await,
            Command::Signal(c) => {
                lock(&self.state.timeline).check_next(c.value)?;
                let state = self.state.clone();
                self.enqueue(0, |queue| queue.signal().map(|event| lock(&state.timeline).signalled(event))).await
            }
            Command::Offer(c) => self.offer(c).await,
            Command::Accept(c) => self.accept(c).await,
            Command::Finish(c) => self.finish(c.request).await,
        }
    }

    /// Gives the device's queue a command with so many bytes of payload, when there is room for it.
    async fn enqueue(&mut self, bytes: u64, command: impl FnOnce(&dyn Queue) -> Result<()>) -> Result<()> {
        self.take(bytes).await?;
        command(self.queue.get()?.as_ref())?;
        self.mark()
    }

    /// Writes bytes that came with the command.
    async fn write(&mut self, c: v1::Write) -> Result<()> {
        let dst = self.slice(c.dst)?;
        if c.data.len() > MAX_INLINE || c.data.len() as u64 != dst.len() {
            let len = c.data.len();
            return Err(Error::Request(format!("{len} bytes for a slice of {}, in the stream", dst.len())));
        }
        self.enqueue(dst.len(), |queue| queue.write(&dst, c.data)).await
    }

    /// Reads a slice, for a reply or for the bulk stream.
    async fn read(&mut self, c: v1::Read) -> Result<()> {
        let src = self.slice(c.src)?;
        if c.bulk {
            return self.read_bulk(c.request, &src).await;
        }
        if src.len() > MAX_INLINE as u64 {
            return Err(Error::Request(format!("a read of {} bytes in the stream", src.len())));
        }
        self.take(src.len()).await?;
        let pending = self.queue.get()?.read(&src)?;
        self.answer(pending, To::Data(c.request));
        Ok(())
    }

    /// Lets the device's queue wait for an event of another queue, as soon as that is known.
    async fn wait(&mut self, c: v1::Wait) -> Result<()> {
        let other = self.other(c.queue).await?;
        let ready = || {
            let event = lock(&other.timeline).event(c.value);
            event.map(Ok).or_else(|| other.failed.get().cloned().map(Err)).or_else(|| self.gone())
        };
        let event = self.session.until(ready).await??;
        self.enqueue(0, |queue| queue.wait(event)).await
    }

    /// Answers when everything so far is done. A queue whose device has done everything need not be asked.
    async fn finish(&mut self, request: u64) -> Result<()> {
        if self.unmarked.commands == 0 && self.flight.is_idle() {
            return self.reply_done(request, None).await;
        }
        self.take(0).await?;
        let pending = self.queue.get()?.read(&self.anchor)?;
        self.answer(pending, To::Done(request));
        Ok(())
    }

    /// A slice of a buffer of the session on this queue's device.
    fn slice(&self, slice: Option<v1::Slice>) -> Result<Slice> {
        self.session.slice(self.device.as_ref(), slice)
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
}

impl Drop for QueueRunner {
    fn drop(&mut self) {
        drop(self.hold());
        self.session.inbox.end_queue(self.handle);
        // Whoever waits for an event that will not come any more learns it.
        let closed = Error::Request("a queue was closed before the event that was waited for".into());
        let _ = self.state.failed.set(closed);
        self.state.close(&self.session);
    }
}
