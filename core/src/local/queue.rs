//! A queue of a local device, as its user holds it: checks commands and gives them to the queue's thread.
//!
//! Different queues run side by side; graphs of one device run one at a time, or as many as it takes ahead, and groups of queues take
//! turns.

use super::completions::Completions;
use super::device::Shared;
use super::exchange::Party;
use super::stream::Stream;
use super::timeline::Timeline;
use super::worker::{Command, Common, Worker};
use crate::device::{
    Bytes, Client, Event, Executable, Pending, QUEUE_DEPTH, Queue, Slice, Ticket, TraceHook, fresh_uid,
};
use crate::error::{Error, Result};
use crate::lock;
use crate::progress::Progress;
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

pub(crate) struct LocalQueue {
    common: Arc<Common>,
    commands: Option<SyncSender<Command>>,
    /// Events so far. Held while one is enqueued, so that they are enqueued in the order of their numbers.
    signals: Mutex<u64>,
    thread: Option<JoinHandle<()>>,
}

/// What a slice is used for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

impl LocalQueue {
    /// A queue with its thread. Those of no client are each a client of their own to others.
    pub(super) fn start(
        device: &Shared,
        client: Option<&Client>,
        stream: Box<dyn Stream>,
        cancel: Arc<AtomicBool>,
    ) -> Result<LocalQueue> {
        let common = Arc::new(Common {
            device: device.uid,
            id: device.id.clone(),
            queue: fresh_uid(),
            host: device.host.clone(),
            timeline: Arc::new(Timeline::default()),
            progress: Arc::new(Progress::default()),
            cancel,
            trace: OnceLock::new(),
            completions: OnceLock::new(),
        });
        let uid = common.queue;
        let (group, room) = client.map_or((uid, uid), |client| (client.turns, client.room));
        let (commands, receiver) = sync_channel(QUEUE_DEPTH);
        let worker = Worker {
            common: common.clone(),
            completions: Completions::new(common.clone()),
            stream,
            turns: device.turns.clone(),
            group,
            party: Party { room, queue: uid },
        };
        let thread = std::thread::Builder::new()
            .name(format!("{} queue", common.id))
            .spawn(move || worker.run(receiver))
            .map_err(|e| common.fault(&format!("no thread: {e}")))?;
        common.host.register(uid, &common.timeline);
        Ok(LocalQueue { common, commands: Some(commands), signals: Mutex::new(0), thread: Some(thread) })
    }

    /// The local queue behind the trait.
    pub(super) fn of(queue: &dyn Queue) -> Result<&LocalQueue> {
        queue.as_any().downcast_ref().ok_or_else(|| Error::Misuse("a queue of another kind of device".into()))
    }

    pub(super) fn offer(&self, ticket: Ticket, src: &Slice) -> Result<()> {
        self.check(src, Access::Read)?;
        self.send(Command::Offer { ticket, src: src.clone() })
    }

    pub(super) fn accept(&self, ticket: Ticket, dst: &Slice) -> Result<()> {
        self.check(dst, Access::Write)?;
        self.send(Command::Accept { ticket, dst: dst.clone() })
    }

    /// A slice must be of this device, and writable if it is written.
    fn check(&self, slice: &Slice, access: Access) -> Result<()> {
        if slice.buffer().device() != self.common.device {
            return Err(Error::Misuse(format!("{}: a buffer of another device", self.common.id)));
        }
        if access == Access::Write && slice.buffer().is_read_only() {
            return Err(Error::Request(format!("{}: a write to memory that can only be read", self.common.id)));
        }
        Ok(())
    }

    fn send(&self, command: Command) -> Result<()> {
        if let Some(error) = self.common.timeline.error() {
            return Err(error);
        }
        let ended = || self.common.fault("its queue has ended");
        self.commands.as_ref().ok_or_else(ended)?.send(command).map_err(|_| ended())
    }
}

impl Drop for LocalQueue {
    fn drop(&mut self) {
        self.common.cancel.store(true, Ordering::Relaxed);
        self.commands = None;
        self.common.host.unregister(self.common.queue);
        let Some(thread) = self.thread.take() else { return };
        // Whoever drops it in an answer, on one of its own threads, cannot wait for them.
        let here = std::thread::current().id();
        if thread.thread().id() != here && self.common.completions.get() != Some(&here) {
            let _ = thread.join();
        }
    }
}

impl Queue for LocalQueue {
    fn uid(&self) -> u64 {
        self.common.queue
    }

    fn write(&self, dst: &Slice, data: Bytes) -> Result<()> {
        self.check(dst, Access::Write)?;
        if dst.len() != data.len() as u64 {
            return Err(Error::Request(format!("{} bytes written to a slice of {}", data.len(), dst.len())));
        }
        self.send(Command::Write { dst: dst.clone(), data })
    }

    fn read(&self, src: &Slice) -> Result<Pending<Bytes>> {
        self.check(src, Access::Read)?;
        let (to, pending) = Pending::new(self.common.id.clone());
        self.send(Command::Read { src: src.clone(), to })?;
        Ok(pending)
    }

    fn write_later(&self, dst: &Slice, data: Pending<Vec<Bytes>>) -> Result<()> {
        self.check(dst, Access::Write)?;
        self.send(Command::WriteLater { dst: dst.clone(), data })
    }

    fn execute(&self, executable: &Arc<dyn Executable>) -> Result<()> {
        if executable.device() != self.common.device {
            return Err(Error::Misuse(format!("{}: a graph that was compiled for another device", self.common.id)));
        }
        self.send(Command::Execute(executable.clone()))
    }

    fn copy(&self, src: &Slice, dst: &Slice) -> Result<()> {
        self.check(src, Access::Read)?;
        self.check(dst, Access::Write)?;
        if src.len() != dst.len() {
            return Err(Error::Request(format!("{} bytes copied to a slice of {}", src.len(), dst.len())));
        }
        let distance = src.offset().abs_diff(dst.offset());
        if src.shares_buffer(dst) && distance > 0 && distance < src.len() {
            return Err(Error::Request(format!("{}: a copy between slices that overlap", self.common.id)));
        }
        self.send(Command::Copy { src: src.clone(), dst: dst.clone() })
    }

    fn fill(&self, dst: &Slice, value: u8) -> Result<()> {
        self.check(dst, Access::Write)?;
        self.send(Command::Fill { dst: dst.clone(), value })
    }

    fn wait(&self, event: Event) -> Result<()> {
        let gone = || Error::Request(format!("{}: a wait for a queue that is gone", self.common.id));
        let timeline = self.common.host.timeline(event.queue).ok_or_else(gone)?;
        self.send(Command::Wait { timeline, value: event.value })
    }

    fn signal(&self) -> Result<Event> {
        let mut signals = lock(&self.signals);
        self.send(Command::Signal(*signals + 1))?;
        *signals += 1;
        Ok(Event { device: self.common.device, queue: self.common.queue, value: *signals })
    }

    fn marker(&self) -> Result<Pending<()>> {
        let (to, pending) = Pending::new(self.common.id.clone());
        self.send(Command::Marker(to))?;
        Ok(pending)
    }

    fn failure(&self) -> Option<Error> {
        self.common.timeline.error()
    }

    fn progress(&self) -> Option<Arc<Progress>> {
        Some(self.common.progress.clone())
    }

    fn set_trace(&self, hook: TraceHook) -> Result<()> {
        let twice = |_| Error::Misuse(format!("{}: a queue has one trace", self.common.id));
        self.common.trace.set(hook).map_err(twice)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
