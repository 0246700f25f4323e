//! What other servers send for one session, and what its queues wait for: brought together by ticket ([`crate::ticket`]), whichever comes
//! first. No I/O; time is an argument.
//!
//! What came and has no queue that takes it is limited for each session, and all clients share the room for it (`room.rs`). What a queue has
//! accepted is on the account of its flight; a tensor that is larger than the queue's own room there is accepted in pieces, and those of
//! its bytes for which no piece has been accepted yet take that shared room as well.

mod deadlines;
mod room;
mod table;
mod transfer;

use crate::limits::PeerLimits;
use crate::lock;
use crate::ticket::Key;
use bytes::Bytes;
use outboard_core::device::Completer;
use outboard_core::{Error, Result, Ticket};
pub(crate) use room::SharedRoom;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use table::Table;
use transfer::Part;

/// The server that a transfer is expected from.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) incarnation: u64,
}

/// Who waits for the next bytes of a transfer, and how many.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) to: Completer<Vec<Bytes>>,
    pub(crate) len: u64,
}

/// What a queue accepts: who waits for the first bytes, or all, and how much it is.
#[derive(Debug)]
pub(crate) struct Acceptance {
    pub(crate) first: Waiter,
    pub(crate) size: u64,
    pub(crate) queue: u64,
    pub(crate) source: Source,
}

/// Which link a transfer came on, its number there, and the number of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Via {
    pub(crate) link: u64,
    pub(crate) transfer: u64,
    pub(crate) queue: u64,
}

/// A push that came to nothing, to be said to its sender.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) via: Via,
    pub(crate) error: Error,
}

/// A transfer that begins, by the key that its bytes are given under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// A queue has accepted it.
    Accepted(Key),
    /// No queue has accepted it yet.
    Early(Key),
}

/// How far a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Coming,
    /// All its bytes have come.
    Complete,
}

/// Where something came from that is known by its ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A link that is known by this number.
    Link(u64),
    Unknown,
}

/// The transfers of one session.
#[derive(Debug)]
pub(crate) struct Inbox {
    limits: PeerLimits,
    table: Mutex<Table>,
}

impl Inbox {
    /// The one of a session of a client, by the uid of its account.
    pub(crate) fn new(limits: PeerLimits, room: &Arc<SharedRoom>, account: u64) -> Inbox {
        Inbox { limits, table: Mutex::new(Table::new(room, account)) }
    }

    /// Works on the table, and then tells those who wait.
    fn with<T>(&self, work: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = lock(&self.table);
        let result = work(&mut table);
        let done = std::mem::take(&mut table.done);
        drop(table);
        done.into_iter().for_each(|(to, result)| to.complete(result));
        result
    }

    /// A queue accepts a transfer. What has come already is handed over now.
    pub(crate) fn accept(&self, now: Instant, ticket: Ticket, acceptance: Acceptance) -> Result<()> {
        self.with(|table| table.accept(now, ticket, acceptance))
    }

    /// A queue that has accepted a transfer in pieces asks for the next one.
    pub(crate) fn accept_more(&self, ticket: &Ticket, waiter: Waiter) -> Result<()> {
        self.with(|table| table.accept_more(ticket, waiter))
    }

    /// A queue will not ask for the rest of a transfer that it has accepted.
    pub(crate) fn give_up(&self, ticket: &Ticket) {
        self.with(|table| table.cancel(Key::new(ticket)));
    }

    /// The acceptance of a transfer comes to nothing: its bytes are dropped when they come.
    pub(crate) fn discard(&self, now: Instant, ticket: Ticket) {
        self.with(|table| table.discard(now, ticket));
    }

    /// Where what has come under a ticket came from; `None` if nothing has.
    pub(crate) fn origin(&self, ticket: &Ticket) -> Option<Origin> {
        lock(&self.table).origin(ticket)
    }

    /// A transfer begins. An error is to be told to its sender; its bytes are to be dropped.
    pub(crate) fn push(&self, now: Instant, via: Via, ticket: Ticket, size: u64) -> Result<Begun> {
        self.with(|table| table.push(now, via, ticket, size))
    }

    /// The next bytes of a transfer, which came in a frame of so many.
    pub(crate) fn data(&self, now: Instant, via: Via, key: Key, data: Bytes, frame: usize) -> Result<Progress> {
        let part = Part::new(data, frame);
        self.with(|table| table.data(now, via, key, part))
    }

    /// The queue that was to send a transfer has failed, before it began or in the middle. Gives the transfer's number if it had begun.
    pub(crate) fn failed(&self, now: Instant, link: u64, ticket: Ticket, error: Error) -> Result<Option<u64>> {
        self.with(|table| table.failed(now, link, ticket, error))
    }

    /// A link from another server is open.
    pub(crate) fn link_opened(&self, incarnation: u64) {
        lock(&self.table).senders.link_opened(incarnation);
    }

    /// A link from another server is over. What was to come on it will not.
    pub(crate) fn link_lost(&self, now: Instant, link: u64, incarnation: u64, why: &str) {
        self.with(|table| table.link_lost(now, link, incarnation, why));
    }

    /// Nothing that came on a link is wanted any more: its session was taken up again.
    pub(crate) fn forget_link(&self, link: u64) {
        self.with(|table| table.cancel_all(|transfer| transfer.link() == Some(link)));
    }

    /// Ends what has waited for too long; what came and was not accepted is to be refused.
    pub(crate) fn expire(&self, now: Instant) -> Vec<Refusal> {
        self.with(|table| table.expire(now, &self.limits))
    }

    /// A queue is gone: nobody waits for what it accepted.
    pub(crate) fn end_queue(&self, queue: u64) {
        self.with(|table| table.cancel_all(|transfer| transfer.queue() == Some(queue)));
    }

    /// The session is gone, and all that was kept for it. Nothing more is taken.
    pub(crate) fn end(&self) {
        self.with(Table::end);
    }

    /// Whether nothing waits and nothing is kept.
    #[cfg(test)]
    fn is_idle(&self) -> bool {
        let table = lock(&self.table);
        table.room.is_free() && table.accepted == 0 && table.slots.is_empty()
    }
}

#[cfg(test)]
mod tests;
