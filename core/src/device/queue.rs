//! The line of commands of a device, the points on it, and how bytes go from one device to another.

use super::{Device, Pending, Slice};
use crate::error::{Error, Result};
use crate::progress::Progress;
use bytes::Bytes;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Commands that a queue takes at least before a call has to wait for room: many steps of a generation, not a whole upload.
pub const QUEUE_DEPTH: usize = 1024;

/// A point on the timeline of a queue: everything enqueued before it is done. Plain data, numbered by the caller's side, so
/// that recording one costs no round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// Which device, by [`Device::uid`].
    pub device: u64,
    /// Which queue, by [`Queue::uid`].
    pub queue: u64,
    /// Count of events on that queue, from 1.
    pub value: u64,
}

/// A graph that a device has prepared, executed many times. It keeps the buffers that its tensors lie in.
pub trait Executable: fmt::Debug + Send + Sync {
    /// The device it was compiled for, by [`Device::uid`].
    fn device(&self) -> u64;
    /// For the device to find its own type.
    fn as_any(&self) -> &dyn Any;
}

/// Names one transfer between two queues; random, used once.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(pub [u8; 32]);

impl fmt::Debug for Ticket {
    /// A ticket is a credential: only its first bytes are shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

/// One command that a queue has run, or failed at.
#[derive(Clone, Copy, Debug)]
pub struct TraceEvent<'a> {
    /// The device's id.
    pub device: &'a str,
    /// The queue's uid.
    pub queue: u64,
    /// Which command: the name of the method of [`Queue`], `offer` or `accept`.
    pub what: &'static str,
    /// When the device was given it; for a graph, when the device began with it. A device with a clock of its own converts.
    pub start: Instant,
    /// When it was done.
    pub end: Instant,
}

/// Is told of commands of a queue, on a thread of the queue, so that it must not wait.
pub type TraceHook = Box<dyn Fn(TraceEvent<'_>) + Send + Sync>;

/// An ordered line of commands to a device.
///
/// * **Enqueue and return.** No method waits for the device, but [`Queue::finish`]. A queue takes [`QUEUE_DEPTH`] commands that are not
///   done before a call waits for room. Commands run in the order in which they were enqueued. Calls of several threads are enqueued in
///   some order, each whole.
/// * **What may overlap.** Commands of different queues run side by side, and a device may run a copy beside a graph of another queue. Who
///   touches the same bytes from two queues, and writes, orders them by an event or a transfer; what is read otherwise is unspecified,
///   but never another client's.
/// * **Errors.** An error from a method means that the command was not enqueued: a misuse, or the queue is poisoned already, with the error
///   that poisoned it. A command that fails poisons its queue: no later command is answered but with that error, events behind it are
///   never reached, and whoever waits for one gets the error. What the device had already been given may still write to its own destinations. What values are wrong (row ids, positions, expert ids) a device may find late: at the latest
///   before the next read, marker or signal behind the graph gives its answer.
/// * **Dropping** a queue drops what it has not begun, stops what it has as soon as the device can, and gives everyone who waits for it an
///   error. It returns when the device touches nothing for this queue any more.
pub trait Queue: Send + Sync {
    /// Its identity in [`Event`].
    fn uid(&self) -> u64;
    /// Copies `data` (of `dst`'s length) to the device.
    fn write(&self, dst: &Slice, data: Bytes) -> Result<()>;
    /// Copies a slice to the host.
    fn read(&self, src: &Slice) -> Result<Pending<Bytes>>;
    /// Copies bytes (together of `dst`'s length) to the device that are still to come: when it is their turn, the queue waits
    /// for them, and an error in their place poisons it. Whoever gives them has a deadline. The call itself never waits for them; a queue
    /// that cannot do this refuses it.
    fn write_later(&self, dst: &Slice, data: Pending<Vec<Bytes>>) -> Result<()>;
    /// Runs a compiled graph of this device.
    fn execute(&self, executable: &Arc<dyn Executable>) -> Result<()>;
    /// Copies between slices of equal length of this device. They may overlap only if they are the same.
    fn copy(&self, src: &Slice, dst: &Slice) -> Result<()>;
    /// Sets every byte.
    fn fill(&self, dst: &Slice, value: u8) -> Result<()>;
    /// Lets later commands wait until `event` is reached; it is of this device or of one that this device's host shares
    /// with it. If the event's queue is poisoned, this one becomes so too; if the event is not reached in ten minutes, as well.
    fn wait(&self, event: Event) -> Result<()>;
    /// The point behind everything enqueued so far.
    fn signal(&self) -> Result<Event>;
    /// Answered when everything enqueued so far is done (computed, not only sent).
    fn marker(&self) -> Result<Pending<()>>;
    /// Waits until everything enqueued so far is done, at most `timeout`.
    fn finish(&self, timeout: Duration) -> Result<()> {
        self.marker()?.wait(timeout)
    }
    /// The error that its commands give from now on, if it has failed; `None` if that is not known. Who waits for another queue, which may wait for
    /// what this one was to hand it, looks at it.
    fn failure(&self) -> Option<Error> {
        None
    }
    /// How far it is, to be looked at while it works; `None` if it cannot say, as where its commands run on another host.
    fn progress(&self) -> Option<Arc<Progress>> {
        None
    }
    /// Calls `hook` after every command from now on, with its times. A queue has one hook. [`Error::Misuse`](crate::Error::Misuse) for a
    /// second one, and for a queue whose commands run on another host: its server keeps their times.
    fn set_trace(&self, hook: TraceHook) -> Result<()>;
    /// For the device to find its own type.
    fn as_any(&self) -> &dyn Any;
}

/// How bytes go from one device to another without passing through the caller.
pub trait PeerTransfer: Send + Sync {
    /// Whether bytes offered by this device can be accepted by `to`.
    fn reaches(&self, to: &dyn Device) -> bool;
    /// Enqueues on `queue` (of this device): hands `src` to the device `to`, which accepts the same ticket.
    fn offer(&self, queue: &dyn Queue, ticket: Ticket, src: &Slice, to: &dyn Device) -> Result<()>;
    /// Enqueues on `queue` (of this device): fills `dst` with what is offered under `ticket`; later commands wait for it.
    /// An offer whose queue is poisoned poisons this queue with the same error.
    fn accept(&self, queue: &dyn Queue, ticket: Ticket, dst: &Slice) -> Result<Event>;
}
