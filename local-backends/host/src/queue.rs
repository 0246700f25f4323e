//! The queue of a host device: one named thread that runs commands in order.
//!
//! Different queues run side by side; graphs of one device run one at a time, because they share its threads, and groups of queues
//! take turns. Dropping a queue drops what it has not begun and tells everyone who waits.

use crate::access::{Access, Accesses, Footprint, Touched};
use crate::device::{HostExecutable, NodeError, Run, host_buffer};
use crate::exchange::{Party, Wait};
use crate::host::{Host, TraceEvent, TraceHook};
use crate::lock;
use crate::timeline::Timeline;
use crate::turns::Turns;
use bytes::Bytes;
use outboard_core::device::{Completer, fresh_uid};
use outboard_core::{Client, Doing, Error, Event, Executable, Pending, Progress, Queue, Result, Slice, Ticket};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Commands that wait in a queue before the one who enqueues has to wait: some steps ahead, not a whole upload.
const QUEUE_DEPTH: usize = 1024;
/// Longest wait of a queue for another one on this host. A command that takes longer than this is not a wait but a fault.
const WAIT_LIMIT: Duration = Duration::from_secs(300);
/// How often a wait for bytes looks whether it is still wanted. The bytes themselves wake it.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

enum Command {
    Write { dst: Slice, data: Bytes },
    WriteLater { dst: Slice, data: Pending<Vec<Bytes>> },
    Read { src: Slice, to: Completer<Bytes> },
    Execute(Arc<dyn Executable>),
    Copy { src: Slice, dst: Slice },
    Fill { dst: Slice, value: u8 },
    Wait { timeline: Arc<Timeline>, value: u64 },
    Signal(u64),
    Finish(Completer<()>),
    Offer { ticket: Ticket, src: Slice },
    Accept { ticket: Ticket, dst: Slice },
}

impl Command {
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

pub(crate) struct HostQueue {
    uid: u64,
    device: u64,
    id: Arc<str>,
    host: Arc<Host>,
    commands: Option<SyncSender<Command>>,
    /// Events so far. Held while one is enqueued, so that they are enqueued in the order of their numbers.
    signals: Mutex<u64>,
    timeline: Arc<Timeline>,
    progress: Arc<Progress>,
    cancel: Arc<AtomicBool>,
    trace: Arc<OnceLock<TraceHook>>,
    thread: Option<JoinHandle<()>>,
}

/// Calls `hook` after every command that one queue has run, as [`Host::set_trace`] does for all queues of a host. Can be set once for a queue;
/// gives `false` if it was set already, or if the queue is not of a device in host memory.
pub fn trace_queue(queue: &dyn Queue, hook: impl Fn(TraceEvent<'_>) + Send + Sync + 'static) -> bool {
    HostQueue::of(queue).is_ok_and(|queue| queue.trace.set(Box::new(hook)).is_ok())
}

impl HostQueue {
    /// A queue with its thread. Those of no client are each a client of their own to others.
    pub(crate) fn start(
        device: u64,
        id: &Arc<str>,
        host: &Arc<Host>,
        turns: &Arc<Turns>,
        client: Option<&Client>,
    ) -> Result<HostQueue> {
        let uid = fresh_uid();
        let timeline = Arc::new(Timeline::default());
        let progress = Arc::new(Progress::default());
        let cancel = Arc::new(AtomicBool::new(false));
        let trace = Arc::new(OnceLock::new());
        let (group, room) = client.map_or((uid, uid), |client| (client.turns, client.room));
        let (commands, receiver) = sync_channel(QUEUE_DEPTH);
        let worker = Worker {
            device,
            id: id.clone(),
            queue: uid,
            host: host.clone(),
            turns: turns.clone(),
            timeline: timeline.clone(),
            progress: progress.clone(),
            cancel: cancel.clone(),
            trace: trace.clone(),
            group,
            party: Party { room, queue: uid },
            turn: Cell::new(None),
        };
        let thread = std::thread::Builder::new()
            .name(format!("{id} queue"))
            .spawn(move || worker.run(receiver))
            .map_err(|e| Error::Device { device: id.to_string(), op: None, detail: format!("no thread: {e}") })?;
        host.register(uid, &timeline);
        Ok(HostQueue {
            uid,
            device,
            id: id.clone(),
            host: host.clone(),
            commands: Some(commands),
            signals: Mutex::new(0),
            timeline,
            progress,
            cancel,
            trace,
            thread: Some(thread),
        })
    }

    /// What stops it when set.
    pub(crate) fn cancel(&self) -> Weak<AtomicBool> {
        Arc::downgrade(&self.cancel)
    }

    /// The host queue behind the trait.
    pub(crate) fn of(queue: &dyn Queue) -> Result<&HostQueue> {
        queue.as_any().downcast_ref().ok_or_else(|| Error::Misuse("a queue of another kind of device".into()))
    }

    pub(crate) fn offer(&self, ticket: Ticket, src: &Slice) -> Result<()> {
        self.check(src, false)?;
        self.send(Command::Offer { ticket, src: src.clone() })
    }

    pub(crate) fn accept(&self, ticket: Ticket, dst: &Slice) -> Result<()> {
        self.check(dst, true)?;
        self.send(Command::Accept { ticket, dst: dst.clone() })
    }

    /// A slice must be of this device, and writable if it is written.
    fn check(&self, slice: &Slice, write: bool) -> Result<()> {
        host_buffer(slice)?;
        if slice.buffer().device() != self.device {
            return Err(Error::Misuse(format!("{}: a buffer of another device", self.id)));
        }
        if write && slice.buffer().is_read_only() {
            return Err(Error::Request(format!("{}: a write to memory that can only be read", self.id)));
        }
        Ok(())
    }

    fn send(&self, command: Command) -> Result<()> {
        if let Some(error) = self.timeline.error() {
            return Err(error);
        }
        let ended = || Error::Device { device: self.id.to_string(), op: None, detail: "its queue has ended".into() };
        self.commands.as_ref().ok_or_else(ended)?.send(command).map_err(|_| ended())
    }
}

impl Drop for HostQueue {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
        self.commands = None;
        self.host.unregister(self.uid);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Queue for HostQueue {
    fn uid(&self) -> u64 {
        self.uid
    }

    fn write(&self, dst: &Slice, data: Bytes) -> Result<()> {
        self.check(dst, true)?;
        if dst.len() != data.len() as u64 {
            return Err(Error::Request(format!("{} bytes written to a slice of {}", data.len(), dst.len())));
        }
        self.send(Command::Write { dst: dst.clone(), data })
    }

    fn read(&self, src: &Slice) -> Result<Pending<Bytes>> {
        self.check(src, false)?;
        let (to, pending) = Pending::new(self.id.clone());
        self.send(Command::Read { src: src.clone(), to })?;
        Ok(pending)
    }

    fn write_later(&self, dst: &Slice, data: Pending<Vec<Bytes>>) -> Result<()> {
        self.check(dst, true)?;
        self.send(Command::WriteLater { dst: dst.clone(), data })
    }

    fn execute(&self, executable: &Arc<dyn Executable>) -> Result<()> {
        match executable.as_any().downcast_ref::<HostExecutable>() {
            Some(e) if e.device == self.device => self.send(Command::Execute(executable.clone())),
            _ => Err(Error::Misuse(format!("{}: a graph that was compiled for another device", self.id))),
        }
    }

    fn copy(&self, src: &Slice, dst: &Slice) -> Result<()> {
        self.check(src, false)?;
        self.check(dst, true)?;
        if src.len() != dst.len() {
            return Err(Error::Request(format!("{} bytes copied to a slice of {}", src.len(), dst.len())));
        }
        self.send(Command::Copy { src: src.clone(), dst: dst.clone() })
    }

    fn fill(&self, dst: &Slice, value: u8) -> Result<()> {
        self.check(dst, true)?;
        self.send(Command::Fill { dst: dst.clone(), value })
    }

    fn wait(&self, event: Event) -> Result<()> {
        let timeline = self.host.timeline(event.queue);
        let timeline =
            timeline.ok_or_else(|| Error::Request(format!("{}: a wait for a queue that is gone", self.id)))?;
        self.send(Command::Wait { timeline, value: event.value })
    }

    fn signal(&self) -> Result<Event> {
        let mut signals = lock(&self.signals);
        self.send(Command::Signal(*signals + 1))?;
        *signals += 1;
        Ok(Event { device: self.device, queue: self.uid, value: *signals })
    }

    fn finish(&self, timeout: Duration) -> Result<()> {
        let (to, pending) = Pending::new(self.id.clone());
        self.send(Command::Finish(to))?;
        pending.wait(timeout)
    }

    fn progress(&self) -> Option<Arc<Progress>> {
        Some(self.progress.clone())
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// The thread's side.
struct Worker {
    device: u64,
    id: Arc<str>,
    queue: u64,
    host: Arc<Host>,
    turns: Arc<Turns>,
    timeline: Arc<Timeline>,
    progress: Arc<Progress>,
    cancel: Arc<AtomicBool>,
    trace: Arc<OnceLock<TraceHook>>,
    /// Queues of a group take turns on the device as one.
    group: u64,
    party: Party,
    /// From when to when the graph that was run last had its turn.
    turn: Cell<Option<(Instant, Instant)>>,
}

impl Worker {
    fn run(self, commands: Receiver<Command>) {
        let mut poison: Option<Error> = None;
        for command in commands {
            if poison.is_none() && self.cancel.load(Ordering::Relaxed) {
                self.fail(&mut poison, Error::Cancelled);
            }
            let (start, drops) = (Instant::now(), poison.is_some());
            self.progress.begin(command.doing());
            let what = self.step(command, &mut poison);
            self.progress.done();
            if drops {
                continue;
            }
            let (start, end) = self.turn.take().unwrap_or_else(|| (start, Instant::now()));
            let event = TraceEvent { device: &self.id, queue: self.queue, what, start, end };
            self.host.trace(event);
            if let Some(hook) = self.trace.get() {
                hook(event);
            }
        }
        // Whoever still waits for this timeline, or for what it offers, waits for nothing.
        let gone = Error::Device { device: self.id.to_string(), op: None, detail: "its queue has ended".into() };
        let error = poison.unwrap_or(gone);
        self.host.exchange.end(self.queue, &error);
        self.timeline.poison(error);
    }

    fn fail(&self, poison: &mut Option<Error>, error: Error) {
        self.timeline.poison(error.clone());
        *poison = Some(error);
    }

    /// Runs one command, or answers it with the error that has poisoned the queue. Gives the command's name.
    fn step(&self, command: Command, poison: &mut Option<Error>) -> &'static str {
        let result = |run: &dyn Fn() -> Result<()>| match poison {
            Some(_) => Ok(()),
            None => run(),
        };
        let (what, done) = match command {
            Command::Write { dst, data } => ("write", result(&|| self.write(&dst, &data))),
            Command::WriteLater { dst, data } => {
                ("write", if poison.is_none() { self.write_later(&dst, data) } else { Ok(()) })
            }
            Command::Read { src, to } => {
                to.complete(match poison {
                    Some(error) => Err(error.clone()),
                    None => self.read(&src).map(Bytes::from),
                });
                ("read", Ok(()))
            }
            Command::Execute(executable) => ("execute", result(&|| self.execute(executable.as_ref()))),
            Command::Copy { src, dst } => ("copy", result(&|| self.copy(&src, &dst))),
            Command::Fill { dst, value } => ("fill", result(&|| self.fill(&dst, value))),
            Command::Wait { timeline, value } => {
                ("wait", result(&|| timeline.wait(value, WAIT_LIMIT, &self.cancel, "an event of another queue")))
            }
            Command::Signal(value) => {
                if poison.is_none() {
                    self.timeline.reach(value);
                }
                ("signal", Ok(()))
            }
            Command::Finish(to) => {
                to.complete(poison.clone().map_or(Ok(()), Err));
                ("finish", Ok(()))
            }
            Command::Offer { ticket, src } => {
                let src = poison.as_ref().map_or(Ok(&src), Err);
                ("offer", self.host.exchange.offer(&self.host.accesses, self.party, ticket, src, &self.cancel))
            }
            Command::Accept { ticket, dst } => {
                let wait = Wait { limit: WAIT_LIMIT, cancel: &self.cancel };
                let accept = || self.host.exchange.accept(&self.host.accesses, self.party, ticket, &dst, wait);
                ("accept", result(&accept))
            }
        };
        if let Err(error) = done
            && poison.is_none()
        {
            self.fail(poison, error);
        }
        what
    }

    fn write_later(&self, dst: &Slice, mut data: Pending<Vec<Bytes>>) -> Result<()> {
        let end = Instant::now() + WAIT_LIMIT;
        let parts = loop {
            match data.wait_more(LOOK_AGAIN) {
                Some(parts) => break parts?,
                None if self.cancel.load(Ordering::Relaxed) => return Err(Error::Cancelled),
                None if Instant::now() >= end => {
                    return Err(Error::Timeout { what: "bytes that were to come".into(), after: WAIT_LIMIT });
                }
                None => {}
            }
        };
        let len: u64 = parts.iter().map(|p| p.len() as u64).sum();
        if len != dst.len() {
            return Err(Error::Request(format!("{len} bytes came for a slice of {}", dst.len())));
        }
        let mut at = 0;
        for part in parts {
            self.write(&dst.part(at, part.len() as u64)?, &part)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn write(&self, dst: &Slice, data: &[u8]) -> Result<()> {
        let to = address(dst)?;
        let _access = self.begin(vec![Touched::written(to, data.len())])?;
        // SAFETY: `dst` has `data`'s length (checked when it was enqueued), is inside its buffer and writable; nobody else touches
        // it now; `copy` allows overlap, should somebody write a buffer to itself.
        unsafe { std::ptr::copy(data.as_ptr(), to, data.len()) };
        Ok(())
    }

    fn read(&self, src: &Slice) -> Result<Vec<u8>> {
        read_slice(&self.host.accesses, src, &self.cancel)
    }

    fn copy(&self, src: &Slice, dst: &Slice) -> Result<()> {
        let (from, to, len) = (address(src)?, address(dst)?, src.len() as usize);
        let _access = self.begin(vec![Touched::read(from, len), Touched::written(to, len)])?;
        // SAFETY: both are inside their buffers and of equal length (checked when it was enqueued), and nobody else touches them
        // now; `copy` allows overlap.
        unsafe { std::ptr::copy(from, to, len) };
        Ok(())
    }

    fn fill(&self, dst: &Slice, value: u8) -> Result<()> {
        let (to, len) = (address(dst)?, dst.len() as usize);
        let _access = self.begin(vec![Touched::written(to, len)])?;
        // SAFETY: `dst` is inside its buffer and writable, and nobody else touches it now.
        unsafe { std::ptr::write_bytes(to, value, len) };
        Ok(())
    }

    fn begin(&self, touched: Vec<Touched>) -> Result<Access<'_>> {
        self.host.accesses.begin(&Footprint::new(touched), &self.cancel)
    }

    fn execute(&self, executable: &dyn Executable) -> Result<()> {
        let Some(executable) = executable.as_any().downcast_ref::<HostExecutable>().filter(|e| e.device == self.device)
        else {
            return Err(Error::Misuse("a graph that was compiled for another device".into()));
        };
        let Some(_turn) = self.turns.take(self.group, self.queue, &self.cancel) else {
            return Err(Error::Cancelled);
        };
        self.progress.begin(Doing::Graph);
        let began = Instant::now();
        let _access = self.host.accesses.begin(&executable.footprint, &self.cancel)?;
        let run = executable.scratch.with(|scratch| {
            let run = Run { abort: &self.cancel, scratch };
            // A panic is a bug of a kernel; it must not take other clients of the device with it.
            catch_unwind(AssertUnwindSafe(|| executable.program.run(run)))
        });
        self.turn.set(Some((began, Instant::now())));
        match run? {
            Ok(Ok(())) => Ok(()),
            Ok(Err(NodeError { detail: None, .. })) => Err(Error::Cancelled),
            Ok(Err(NodeError { node, detail: Some(detail) })) => {
                Err(Error::Device { device: self.id.to_string(), op: Some(node), detail })
            }
            Err(_) => Err(Error::Device {
                device: self.id.to_string(),
                op: None,
                detail: "a kernel panicked; this is a bug of Outboard".into(),
            }),
        }
    }
}

/// The first byte of a slice of a host buffer.
pub(crate) fn address(slice: &Slice) -> Result<*mut u8> {
    // SAFETY: a slice is inside its buffer by construction.
    Ok(unsafe { host_buffer(slice)?.ptr().add(slice.offset() as usize) })
}

/// A copy of a slice's bytes.
pub(crate) fn read_slice(accesses: &Accesses, src: &Slice, cancel: &AtomicBool) -> Result<Vec<u8>> {
    let from = address(src)?;
    let len = src.len() as usize;
    let mut out = Vec::new();
    let needed = src.len();
    out.try_reserve_exact(len).map_err(|_| Error::OutOfMemory { device: "host".into(), needed, free: 0 })?;
    let _access = accesses.begin(&Footprint::new(vec![Touched::read(from, len)]), cancel)?;
    // SAFETY: `from` is valid for `len` bytes, `out` has room for them, buffers are initialised from the start, and nobody writes
    // here now.
    unsafe {
        std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), len);
        out.set_len(len);
    }
    Ok(out)
}
