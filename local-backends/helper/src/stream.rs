//! What a queue gives its commands to: they go to the helper at once, and their answers are waited for.

use crate::calls::{HelperClient, InFlight, Reply};
use crate::lock;
use crate::memory::{HelperBuffer, HelperExecutable, buffer};
use crate::message::{Copy, Execute, Fill, PIECE, Request, StreamSlice};
use crate::process::Process;
use bytes::Bytes;
use outboard_core::local::{COPY_ENDS, Outcome, Span, Stream};
use outboard_core::{Error, Executable, Pending, Result, Slice};
use outboard_proto::device::slice;
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of writes under way, at most.
const WINDOW: usize = 8 * PIECE;
/// How often a wait for room looks whether it is still wanted.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

pub(crate) struct HelperStream {
    process: Arc<Process>,
    client: Arc<HelperClient>,
    id: u64,
    cancel: Arc<AtomicBool>,
    /// The helper was told that nothing of it is wanted any more.
    told: Arc<AtomicBool>,
    /// When its queue was first found to be dropped while it copied.
    given_up: Arc<OnceLock<Instant>>,
    window: Arc<Window>,
}

/// Room for bytes under way.
#[derive(Debug, Default)]
struct Window {
    used: Mutex<usize>,
    less: Condvar,
}

/// Bytes that are under way until this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    window: Arc<Window>,
    bytes: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        *lock(&self.window.used) -= self.bytes;
        self.window.less.notify_all();
    }
}

impl Window {
    /// Waits for room, as long as `is_wanted` says so.
    fn take(self: &Arc<Self>, bytes: usize, is_wanted: impl Fn() -> Result<()>) -> Result<Room> {
        let mut used = lock(&self.used);
        while *used > 0 && *used + bytes > WINDOW {
            is_wanted()?;
            (used, _) = self.less.wait_timeout(used, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner);
        }
        *used += bytes;
        Ok(Room { window: self.clone(), bytes })
    }
}

impl HelperStream {
    pub(crate) fn new(
        process: Arc<Process>,
        client: Arc<HelperClient>,
        id: u64,
        cancel: Arc<AtomicBool>,
    ) -> HelperStream {
        HelperStream {
            process,
            client,
            id,
            cancel,
            told: Arc::default(),
            given_up: Arc::default(),
            window: Arc::default(),
        }
    }

    /// The handle of a buffer's part.
    fn part(&self, part: &Slice) -> Result<outboard_proto::v1::Slice> {
        Ok(slice(buffer(&self.process, part)?.id, part))
    }

    fn stream_slice(&self, part: &Slice) -> Result<StreamSlice> {
        Ok(StreamSlice { stream: self.id, slice: Some(self.part(part)?) })
    }

    /// Gives a command, which keeps what it is about until it is answered.
    fn give(&self, request: Request, keeps: Vec<Kept>) -> Pending<Reply> {
        let in_flight = InFlight { _keeps: keeps, client: Some(self.client.clone()), ..InFlight::default() };
        self.process.call(request, Bytes::new(), in_flight)
    }

    /// Waits for an answer later, or tells the helper to stop if it is not wanted any more.
    fn later<T: 'static>(
        &self,
        pending: Pending<Reply>,
        result: impl FnOnce(Reply) -> T + Send + 'static,
    ) -> Outcome<T> {
        let wait = self.waiter();
        Outcome::Later(Box::new(move |cancel| Ok(result(wait(pending, cancel)?))))
    }

    fn waiter(&self) -> impl Fn(Pending<Reply>, &AtomicBool) -> Result<Reply> + Send + 'static {
        let (process, told, id) = (self.process.clone(), self.told.clone(), self.id);
        move |pending, cancel| {
            let reply = process.wait(pending, Some(cancel));
            if matches!(reply, Err(Error::Cancelled)) && !told.swap(true, Ordering::Relaxed) {
                process.tell(Request::Cancel(id));
            }
            reply
        }
    }

    /// Waits for a copy, also when it is cancelled, but not longer than [`COPY_ENDS`] for all of this stream: another queue may wait for where it writes.
    fn waiter_to_end(&self) -> impl Fn(Pending<Reply>, &AtomicBool) -> Result<()> + Send + 'static {
        let (process, told, id) = (self.process.clone(), self.told.clone(), self.id);
        let given_up = self.given_up.clone();
        move |mut pending, cancel| {
            let begun = Instant::now();
            loop {
                if let Some(reply) = pending.wait_more(LOOK_AGAIN) {
                    return reply.map(drop);
                }
                process.look(begun);
                if !cancel.load(Ordering::Relaxed) {
                    continue;
                }
                if !told.swap(true, Ordering::Relaxed) {
                    process.tell(Request::Cancel(id));
                }
                if given_up.get_or_init(Instant::now).elapsed() >= COPY_ENDS {
                    return Err(Error::Cancelled);
                }
            }
        }
    }
}

/// What a command keeps until the device is done with it.
pub(crate) type Kept = Arc<dyn Any + Send + Sync>;

/// A slice as what is kept.
fn kept(slice: &Slice) -> Kept {
    Arc::new(slice.clone())
}

impl Stream for HelperStream {
    fn write(&mut self, dst: &Slice, data: Bytes) -> Result<Outcome<()>> {
        let start = Instant::now();
        let mut last = None;
        let mut at = 0;
        while at < data.len() {
            let piece = data.slice(at..data.len().min(at + PIECE));
            let place = dst.part(at as u64, piece.len() as u64)?;
            at += piece.len();
            let room = self.window.take(piece.len(), || {
                self.process.look(start);
                let wanted = !self.cancel.load(Ordering::Relaxed);
                if wanted { self.process.check() } else { Err(Error::Cancelled) }
            })?;
            let request = Request::Write(self.stream_slice(&place)?);
            let client = Some(self.client.clone());
            let in_flight = InFlight { _keeps: vec![kept(&place)], _room: Some(room), payer: None, client };
            last = Some(self.process.call(request, piece, in_flight));
        }
        // The queue in the helper stops at a piece that fails, so that the last one fails as well.
        Ok(last.map_or(Outcome::Now(()), |last| self.later(last, drop)))
    }

    fn read(&mut self, src: &Slice) -> Result<Outcome<Bytes>> {
        let len = src.len();
        let starts = (0..len).step_by(PIECE);
        let piece = |at: u64| {
            let part = src.part(at, (len - at).min(PIECE as u64))?;
            Ok(self.give(Request::Read(self.stream_slice(&part)?), vec![kept(&part)]))
        };
        let mut pieces = starts.map(piece).collect::<Result<Vec<_>>>()?;
        if pieces.len() == 1 {
            let only = pieces.remove(0);
            // Where they are the helper may write again.
            return Ok(self.later(only, |reply| Bytes::copy_from_slice(&reply.bytes)));
        }
        let wait = self.waiter();
        Ok(Outcome::Later(Box::new(move |cancel| {
            let mut all = Vec::new();
            let no_memory = |_| Error::OutOfMemory { device: "host".into(), needed: len, free: 0 };
            all.try_reserve_exact(usize::try_from(len).unwrap_or(usize::MAX)).map_err(no_memory)?;
            for piece in pieces {
                all.extend_from_slice(&wait(piece, cancel)?.bytes);
            }
            Ok(all.into())
        })))
    }

    fn copy(&mut self, src: &Slice, dst: &Slice) -> Result<Outcome<()>> {
        let what = Copy { stream: self.id, from: Some(self.part(src)?), to: Some(self.part(dst)?) };
        let pending = self.give(Request::Copy(what), vec![kept(src), kept(dst)]);
        let wait = self.waiter_to_end();
        Ok(Outcome::Later(Box::new(move |cancel| wait(pending, cancel))))
    }

    fn fill(&mut self, dst: &Slice, value: u8) -> Result<Outcome<()>> {
        let what = Fill { stream: self.id, slice: Some(self.part(dst)?), value: value.into() };
        let pending = self.give(Request::Fill(what), vec![kept(dst)]);
        Ok(self.later(pending, drop))
    }

    fn execute(&mut self, executable: &Arc<dyn Executable>) -> Result<Outcome<Span>> {
        let wrong = || Error::Misuse("a graph that was compiled for another kind of device".into());
        let compiled: &HelperExecutable = executable.as_any().downcast_ref().ok_or_else(wrong)?;
        compiled.process.check()?;
        let what = Execute { stream: self.id, executable: compiled.id };
        let pending = self.give(Request::Execute(what), vec![Arc::new(executable.clone())]);
        Ok(self.later(pending, |reply| {
            let took = Duration::from_nanos(reply.done.nanos);
            Span { start: reply.at.checked_sub(took).unwrap_or(reply.at), end: reply.at }
        }))
    }

    fn reaches(&self, dst: &Slice) -> bool {
        let same = dst.buffer().as_any().downcast_ref::<HelperBuffer>();
        same.is_some_and(|buffer| Arc::ptr_eq(&buffer.process, &self.process))
    }
}

impl Drop for HelperStream {
    fn drop(&mut self) {
        // Either nothing is under way behind this, or the helper has ended.
        let _ = self.process.ask(Request::End(self.id));
    }
}
