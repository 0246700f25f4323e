//! A device of an upload and its queues, and how bytes get from one device to another.

use super::Upload;
use crate::connection::BULK_CONNECTIONS;
use crate::device::RemoteDevice;
use crate::lock;
use crate::queue::RemoteQueue;
use outboard_core::{Error, PeerTransfer, Result, Slice, Ticket, progress};
use std::sync::OnceLock;
use std::time::Duration;

/// Bytes that devices of an endpoint hand one another before they are waited for: they may lie in the server's memory.
const HANDED_AHEAD: u64 = 128 << 20;
/// Bytes that wait for a connection: little, so that none has much more to send in the end than the others.
const SENT_AHEAD: usize = 2 << 20;
/// Bytes of one transfer between servers: what waits on either side for the other is some of these.
const PART: u64 = 16 << 20;
/// Longest wait for a server to get any further with what it was sent, or with what other servers send it. One that could get further and
/// does not is given up sooner, by its connection.
const FINISH_WAIT: Duration = Duration::from_secs(600);

/// A device, and the queues for its contents: opened when there is something for them.
pub(super) struct Target<'d> {
    pub(super) device: &'d RemoteDevice,
    /// For what this process sends, one for each sender, whose bulk connection it uses.
    sending: [OnceLock<RemoteQueue>; BULK_CONNECTIONS],
    /// For what comes from other servers.
    taking: OnceLock<RemoteQueue>,
}

impl<'d> Target<'d> {
    pub(super) fn new(device: &'d RemoteDevice) -> Target<'d> {
        Target { device, sending: Default::default(), taking: OnceLock::new() }
    }

    /// The queue for what a sender sends.
    pub(super) fn sending(&self, sender: usize) -> Result<&RemoteQueue> {
        let bug = || Error::Misuse(format!("there is no sender {sender}; this is a bug of Outboard"));
        let slot = self.sending.get(sender).ok_or_else(bug)?;
        opened(slot, || RemoteQueue::open_with(self.device, sender, SENT_AHEAD))
    }

    /// The queue for what comes from other servers.
    pub(super) fn taking(&self) -> Result<&RemoteQueue> {
        opened(&self.taking, || RemoteQueue::open(self.device))
    }

    /// The queues that are open.
    pub(super) fn open(&self) -> impl Iterator<Item = &RemoteQueue> {
        self.sending.iter().chain([&self.taking]).filter_map(OnceLock::get)
    }

    /// Waits until its device has done everything.
    pub(super) fn finish(&self) -> Result<()> {
        self.open().try_for_each(|queue| finish(queue, self.device))
    }
}

/// Waits until a queue of a device has done everything, for as long as its server gets further.
pub(super) fn finish(queue: &RemoteQueue, device: &RemoteDevice) -> Result<()> {
    progress::finish(queue, FINISH_WAIT, || device.session().connection().moves())
}

/// The queue of a slot. Of two that are opened at the same time, one is closed again.
fn opened(slot: &OnceLock<RemoteQueue>, open: impl FnOnce() -> Result<RemoteQueue>) -> Result<&RemoteQueue> {
    match slot.get() {
        Some(queue) => Ok(queue),
        None => open().map(|queue| slot.get_or_init(|| queue)),
    }
}

/// A place on a device, and the queue that what comes from or goes to it is in order with.
pub(super) struct End<'e> {
    pub(super) device: &'e RemoteDevice,
    pub(super) queue: &'e RemoteQueue,
    pub(super) slice: &'e Slice,
}

/// Brings bytes from one server straight to another that it reaches.
pub(super) fn transfer(from: &End<'_>, to: &End<'_>) -> Result<()> {
    let mut at = 0;
    while at < from.slice.len() {
        let len = PART.min(from.slice.len() - at);
        let ticket = random_ticket()?;
        from.device.offer(from.queue, ticket, &from.slice.part(at, len)?, to.device)?;
        to.device.accept(to.queue, ticket, &to.slice.part(at, len)?)?;
        at += len;
    }
    Ok(())
}

pub(super) fn random_ticket() -> Result<Ticket> {
    let mut ticket = [0; 32];
    getrandom::fill(&mut ticket).map_err(|e| Error::Misuse(format!("no random numbers: {e}")))?;
    Ok(Ticket(ticket))
}

impl Upload<'_> {
    /// Counts bytes that devices are about to hand one another, and waits for those before if they are many together.
    pub(super) fn count_handed(&self, bytes: u64) -> Result<()> {
        let mut handed = lock(&self.handed);
        if *handed > 0 && *handed + bytes > HANDED_AHEAD {
            self.devices.iter().try_for_each(Target::finish)?;
            *handed = 0;
        }
        *handed += bytes;
        Ok(())
    }
}
