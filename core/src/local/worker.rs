//! The thread of a local queue: gives commands to the device's stream in order, and sees to it that whoever asked is answered.

use super::completions::{Completions, Rest};
use super::exchange::{Arrival, HandOver, Party, Wait};
use super::host::Host;
use super::stream::{Outcome, Span, Stream};
use super::timeline::Timeline;
use super::turns::Turns;
use crate::device::{Bytes, Completer, Executable, Pending, Slice, Ticket, TraceEvent, TraceHook};
use crate::error::{Error, Result};
use crate::progress::{Doing, Progress};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Longest wait of a queue for another one on this host. A command that takes longer than this is not a wait but a fault.
const WAIT_LIMIT: Duration = Duration::from_secs(600);
/// How often a wait for bytes looks whether it is still wanted. The bytes themselves wake it.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Bytes in which a tensor goes through this process's memory from one device to another: large enough for full speed, and small enough
/// that one device writes what comes while the other one reads what follows.
const PIECE: u64 = 1 << 20;

pub(super) enum Command {
    Write { dst: Slice, data: Bytes },
    WriteLater { dst: Slice, data: Pending<Vec<Bytes>> },
    Read { src: Slice, to: Completer<Bytes> },
    Execute(Arc<dyn Executable>),
    Copy { src: Slice, dst: Slice },
    Fill { dst: Slice, value: u8 },
    Wait { timeline: Arc<Timeline>, value: u64 },
    Signal(u64),
    Marker(Completer<()>),
    Offer { ticket: Ticket, src: Slice },
    Accept { ticket: Ticket, dst: Slice },
}

impl Command {
    fn name(&self) -> &'static str {
        match self {
            Command::Write { .. } | Command::WriteLater { .. } => "write",
            Command::Read { .. } => "read",
            Command::Execute(_) => "execute",
            Command::Copy { .. } => "copy",
            Command::Fill { .. } => "fill",
            Command::Wait { .. } => "wait",
            Command::Signal(_) => "signal",
            Command::Marker(_) => "marker",
            Command::Offer { .. } => "offer",
            Command::Accept { .. } => "accept",
        }
    }

    /// What a queue is at while it runs this.
    fn doing(&self) -> Doing {
        match self {
            Command::Execute(_) => Doing::Turn,
            Command::Wait { .. } | Command::Accept { .. } => Doing::Queue,
            Command::WriteLater { .. } => Doing::Bytes,
            _ => Doing::Copy,
        }
    }
}

/// What the queue and its threads share.
pub(super) struct Common {
    /// The device's uid.
    pub(super) device: u64,
    /// The device's id.
    pub(super) id: Arc<str>,
    /// The queue's uid.
    pub(super) queue: u64,
    pub(super) host: Arc<Host>,
    pub(super) timeline: Arc<Timeline>,
    pub(super) progress: Arc<Progress>,
    pub(super) cancel: Arc<AtomicBool>,
    pub(super) trace: OnceLock<TraceHook>,
    /// The thread that waits for what is in flight, if there is one.
    pub(super) completions: OnceLock<ThreadId>,
}

/// A command that has begun.
#[derive(Clone, Copy)]
struct Begun {
    what: &'static str,
    start: Instant,
}

impl Common {
    /// An error of the device that no op is to blame for.
    pub(super) fn fault(&self, detail: &str) -> Error {
        Error::Device { device: self.id.to_string(), op: None, detail: detail.into() }
    }

    /// The error that has poisoned the queue, if one has.
    fn check(&self) -> Result<()> {
        self.timeline.error().map_or(Ok(()), Err)
    }

    /// A command is done, or has failed.
    fn end(&self, begun: Begun, result: Result<Option<Span>>) {
        let span = match result {
            Ok(span) => span,
            Err(error) => {
                self.timeline.poison(error);
                None
            }
        };
        let Span { start, end } = span.unwrap_or_else(|| Span { start: begun.start, end: Instant::now() });
        let event = TraceEvent { device: &self.id, queue: self.queue, what: begun.what, start, end: end.max(start) };
        self.host.trace(event);
        if let Some(hook) = self.trace.get() {
            hook(event);
        }
    }
}

/// The thread's side.
pub(super) struct Worker {
    pub(super) common: Arc<Common>,
    pub(super) completions: Completions,
    pub(super) stream: Box<dyn Stream>,
    pub(super) turns: Arc<Turns>,
    /// Queues of a group take turns on the device as one.
    pub(super) group: u64,
    pub(super) party: Party,
}

impl Worker {
    pub(super) fn run(mut self, commands: Receiver<Command>) {
        let common = self.common.clone();
        for command in commands {
            if common.cancel.load(Ordering::Relaxed) {
                common.timeline.poison(Error::Cancelled);
            }
            match common.timeline.error() {
                Some(error) => self.refuse(command, &error),
                // A panic of a stream must not leave anybody waiting.
                None if catch_unwind(AssertUnwindSafe(|| self.step(command))).is_ok() => {}
                None => common.timeline.poison(common.fault("a command panicked; this is a bug of Outboard")),
            }
        }
        // Whoever still waits for this timeline, or for what it offers, waits for nothing.
        let Worker { completions, stream, .. } = self;
        drop(completions);
        drop(stream);
        common.timeline.poison(common.fault("its queue has ended"));
        if let Some(error) = common.timeline.error() {
            common.host.exchange.end(common.queue, &error);
        }
    }

    /// Answers a command with the error that has poisoned the queue.
    fn refuse(&self, command: Command, error: &Error) {
        match command {
            Command::Read { to, .. } => to.complete(Err(error.clone())),
            Command::Marker(to) => to.complete(Err(error.clone())),
            Command::Offer { ticket, .. } => {
                // That it cannot be told is told to whoever waits by the end of the queue.
                let _ = self.common.host.exchange.offer(self.party, ticket, Err(error), |_| false);
            }
            _ => {}
        }
        self.common.progress.done();
    }

    fn step(&mut self, command: Command) {
        let begun = Begun { what: command.name(), start: Instant::now() };
        self.common.progress.begin(command.doing());
        let nothing = |done: Result<()>| done.map(|()| None);
        let empty = || Ok(Outcome::Now(()));
        match command {
            Command::Write { dst, data } => {
                let outcome = if dst.is_empty() { empty() } else { self.stream.write(&dst, data) };
                self.settle(begun, outcome, nothing);
            }
            Command::WriteLater { dst, data } => {
                let done = self.write_later(&dst, data);
                self.settle_done(begun, done);
            }
            Command::Read { src, to } => {
                let none = || Ok(Outcome::Now(Bytes::new()));
                let outcome = if src.is_empty() { none() } else { self.stream.read(&src) };
                self.settle(begun, outcome, |bytes| {
                    let done = bytes.as_ref().map(|_| None).map_err(Error::clone);
                    to.complete(bytes);
                    done
                });
            }
            Command::Execute(executable) => self.execute(begun, executable),
            Command::Copy { src, dst } => {
                let is_itself = src.shares_buffer(&dst) && src.offset() == dst.offset();
                let outcome = if src.is_empty() || is_itself { empty() } else { self.stream.copy(&src, &dst) };
                self.settle(begun, outcome, nothing);
            }
            Command::Fill { dst, value } => {
                let outcome = if dst.is_empty() { empty() } else { self.stream.fill(&dst, value) };
                self.settle(begun, outcome, nothing);
            }
            Command::Wait { timeline, value } => {
                let waited = timeline.wait(value, WAIT_LIMIT, &self.common.cancel, "an event of another queue");
                self.settle_done(begun, waited);
            }
            Command::Signal(value) => {
                let timeline = self.common.timeline.clone();
                let reach = move |done: Result<()>| done.map(|()| timeline.reach(value)).map(|()| None);
                self.settle(begun, Ok(Outcome::Now(())), reach);
            }
            Command::Marker(to) => {
                self.settle(begun, Ok(Outcome::Now(())), |done| {
                    to.complete(done.clone());
                    done.map(|()| None)
                });
            }
            Command::Offer { ticket, src } => self.offer(begun, ticket, &src),
            Command::Accept { ticket, dst } => {
                let done = self.accept(ticket, &dst);
                self.settle_done(begun, done);
            }
        }
    }

    /// Answers a command when the device has done it and all before it: now, or on the thread that waits for those.
    fn settle<T, F>(&mut self, begun: Begun, outcome: Result<Outcome<T>>, answer: F)
    where
        T: Send + 'static,
        F: FnOnce(Result<T>) -> Result<Option<Span>> + Send + 'static,
    {
        match self.at_once(outcome) {
            Ok(result) => {
                self.common.end(begun, answer(result));
                self.common.progress.done();
            }
            Err(outcome) => self.later(move |common| {
                common.end(begun, answer(in_order(outcome, common)));
                common.progress.done_behind();
            }),
        }
    }

    /// The same for a command that the device has nothing to do with any more.
    fn settle_done(&mut self, begun: Begun, done: Result<()>) {
        self.settle(begun, done.map(Outcome::Now), |done| done.map(|()| None));
    }

    /// The same for a part of a command.
    fn settle_part<T, F>(&mut self, outcome: Result<Outcome<T>>, answer: F)
    where
        T: Send + 'static,
        F: FnOnce(Result<T>) -> Result<()> + Send + 'static,
    {
        let poison = |common: &Common, done: Result<()>| {
            if let Err(error) = done {
                common.timeline.poison(error);
            }
        };
        match self.at_once(outcome) {
            Ok(result) => poison(&self.common, answer(result)),
            Err(outcome) => self.later(move |common| poison(common, answer(in_order(outcome, common)))),
        }
    }

    /// What a command has come to, if it is known and nothing is in flight before it that could still fail.
    fn at_once<T>(&self, outcome: Result<Outcome<T>>) -> std::result::Result<Result<T>, Result<Outcome<T>>> {
        // What was in flight has poisoned the queue before it counts as done, if it failed.
        if !self.completions.is_idle() || self.common.check().is_err() {
            return Err(outcome);
        }
        match outcome {
            Ok(Outcome::Now(value)) => Ok(Ok(value)),
            Err(error) => Ok(Err(error)),
            later => Err(later),
        }
    }

    fn later(&mut self, rest: impl FnOnce(&Common) + Send + 'static) {
        let rest: Rest = Box::new(rest);
        if let Err(error) = self.completions.push(rest) {
            self.common.timeline.poison(error);
        }
    }

    fn execute(&mut self, begun: Begun, executable: Arc<dyn Executable>) {
        let Some(turn) = self.turns.take(self.group, self.common.queue, &self.common.cancel) else {
            return self.settle_done(begun, Err(Error::Cancelled));
        };
        if let Err(error) = self.common.check() {
            return self.settle_done(begun, Err(error));
        }
        self.common.progress.begin(Doing::Graph);
        // A panic is a bug of a kernel; it must not take other clients of the device with it.
        let run = catch_unwind(AssertUnwindSafe(|| self.stream.execute(&executable)));
        let outcome = run.unwrap_or_else(|_| Err(self.common.fault("a kernel panicked; this is a bug of Outboard")));
        self.settle(begun, outcome, move |span| {
            drop((turn, executable));
            span.map(Some)
        });
    }

    fn write_later(&mut self, dst: &Slice, mut data: Pending<Vec<Bytes>>) -> Result<()> {
        let end = Instant::now() + WAIT_LIMIT;
        let parts = loop {
            match data.wait_more(LOOK_AGAIN) {
                Some(parts) => break parts?,
                None if self.common.cancel.load(Ordering::Relaxed) => return Err(Error::Cancelled),
                None if Instant::now() >= end => {
                    return Err(Error::Timeout { what: "bytes that were to come".into(), after: WAIT_LIMIT });
                }
                None => self.common.check()?,
            }
        };
        let len: u64 = parts.iter().map(|p| p.len() as u64).sum();
        if len != dst.len() {
            return Err(Error::Request(format!("{len} bytes came for a slice of {}", dst.len())));
        }
        self.write_parts(dst, 0, parts, None).map(drop)
    }

    /// Writes parts one behind the other, the first at `at`; gives where the last one ends. Those of a transfer count as its memory until they
    /// are written.
    fn write_parts(
        &mut self,
        dst: &Slice,
        mut at: u64,
        parts: Vec<Bytes>,
        transfer: Option<(Ticket, u64)>,
    ) -> Result<u64> {
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let len = part.len() as u64;
            let outcome = dst.part(at, len).and_then(|place| self.stream.write(&place, part));
            at += len;
            let host = self.common.host.clone();
            self.settle_part(outcome, move |done| {
                if let Some((ticket, serial)) = transfer {
                    host.exchange.written(ticket, serial, done.clone().map(|()| len));
                }
                done
            });
        }
        self.common.check()?;
        Ok(at)
    }

    fn offer(&mut self, begun: Begun, ticket: Ticket, src: &Slice) {
        let (common, stream) = (self.common.clone(), &self.stream);
        if stream.has_peers() {
            let is_over =
                || self.completions.is_idle() || common.check().is_err() || common.cancel.load(Ordering::Relaxed);
            common.host.exchange.wait_for_acceptance(ticket, |dst| stream.reaches(dst), is_over);
        }
        let hand_over = common.host.exchange.offer(self.party, ticket, Ok(src.len()), |dst| stream.reaches(dst));
        match hand_over {
            Ok(HandOver::Direct(dst, serial)) => {
                let outcome = if src.is_empty() { Ok(Outcome::Now(())) } else { self.stream.copy(src, &dst) };
                self.settle(begun, outcome, move |done| {
                    common.host.exchange.copied(ticket, serial, done.clone());
                    match done {
                        // The destination's device has failed: the queue that accepts is told, and this one goes on.
                        Err(Error::Device { device, .. }) if *device != *common.id => Ok(None),
                        done => done.map(|()| None),
                    }
                });
            }
            Ok(HandOver::Pieces(serial)) => {
                self.give_pieces(ticket, serial, src);
                self.settle_done(begun, Ok(()));
            }
            Ok(HandOver::Nowhere) => self.settle_done(begun, Ok(())),
            Err(error) => self.settle_done(begun, Err(error)),
        }
    }

    fn give_pieces(&mut self, ticket: Ticket, serial: u64, src: &Slice) {
        let common = self.common.clone();
        let exchange = &common.host.exchange;
        let mut at = 0;
        while at < src.len() && common.check().is_ok() && exchange.is_wanted(ticket, serial) {
            let len = PIECE.min(src.len() - at);
            let outcome = src.part(at, len).and_then(|part| self.stream.read(&part));
            at += len;
            let host = common.host.clone();
            self.settle_part(outcome, move |piece| {
                let done = piece.as_ref().map(drop).map_err(Error::clone);
                host.exchange.give(ticket, serial, piece);
                done
            });
        }
        if let Err(error) = common.check() {
            // What was not begun because of it does not come.
            exchange.give(ticket, serial, Err(error));
        }
    }

    fn accept(&mut self, ticket: Ticket, dst: &Slice) -> Result<()> {
        let common = self.common.clone();
        let exchange = &common.host.exchange;
        let is_ready = self.completions.is_idle();
        if let Some(serial) = exchange.want(self.party, ticket, dst, is_ready)?
            && !is_ready
        {
            // A wait that was cancelled, or failed, says nothing of what is still in flight.
            self.later(move |common| {
                if common.check().is_ok() {
                    common.host.exchange.set_ready(ticket, serial);
                }
            });
        }
        let mut at = 0;
        loop {
            let wait = Wait { limit: WAIT_LIMIT, cancel: &common.cancel };
            match exchange.next(ticket, dst, wait)? {
                Arrival::All => return Ok(()),
                Arrival::Pieces(serial, pieces) => {
                    at = self.write_parts(dst, at, pieces, Some((ticket, serial)))?;
                    if at == dst.len() {
                        return Ok(());
                    }
                }
            }
        }
    }
}

/// What a command has come to, behind all that was given before it. It is waited for in any case: its turn and its bytes are the device's until
/// then.
fn in_order<T>(outcome: Result<Outcome<T>>, common: &Common) -> Result<T> {
    let done = outcome.and_then(|outcome| wait_for(outcome, common));
    common.check().and(done)
}

fn wait_for<T>(outcome: Outcome<T>, common: &Common) -> Result<T> {
    match outcome {
        Outcome::Now(value) => Ok(value),
        Outcome::Later(wait) => {
            let waited = catch_unwind(AssertUnwindSafe(|| wait(&common.cancel)));
            waited.unwrap_or_else(|_| Err(common.fault("a wait for the device panicked; this is a bug of Outboard")))
        }
    }
}
