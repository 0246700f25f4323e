//! Tickets: how the two queues of a transfer find each other.
//!
//! A ticket is 32 random bytes, drawn by the client for one tensor. It gives the same ticket to the queue that offers the tensor and to the
//! queue that accepts it, in either order. It belongs to one session on the server that accepts. It is good for one transfer of one size,
//! and a credential: whoever shows it is believed to be the other side.
//!
//! * Within one server, both queues are of the same session. The acceptance waits here until the offer was made ([`Offers`]); the devices
//!   then bring the bytes together, under the same ticket (`core/src/local/exchange.rs`).
//! * Between servers, the one that offers shows the ticket on a link ([`crate::peers`]), and the acceptance meets it in the inbox of the
//!   session that the link is for ([`crate::peers::inbox`]). Who may open such a link is said at [`outboard_proto::grant`].

use crate::accounts::AccountShare;
use crate::limits::USED_TICKETS;
use crate::lock;
use outboard_core::{Error, Result, Ticket};
use outboard_proto::SECRET_BYTES;
use outboard_proto::limits::MAX_TICKETS;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use subtle::ConstantTimeEq;

/// Reads the ticket of a message.
pub(crate) fn from_wire(bytes: &[u8]) -> Result<Ticket> {
    let ticket: Option<[u8; SECRET_BYTES]> = bytes.try_into().ok();
    ticket.map(Ticket).ok_or_else(|| Error::Request(format!("a ticket has {SECRET_BYTES} bytes, not {}", bytes.len())))
}

/// The error for a ticket that is good no more.
pub(crate) fn used_twice() -> Error {
    Error::Request("a transfer ticket was used twice".into())
}

/// Compares two tickets in constant time.
pub(crate) fn same(a: &Ticket, b: &Ticket) -> bool {
    a.0[..].ct_eq(&b.0[..]).into()
}

/// The first bytes of a ticket, by which a transfer is looked up where strangers may show tickets. The rest proves that it is the right
/// one: [`same`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key([u8; 8]);

impl Key {
    pub(crate) fn new(ticket: &Ticket) -> Key {
        let mut first = [0; 8];
        first.iter_mut().zip(ticket.0).for_each(|(to, from)| *to = from);
        Key(first)
    }
}

/// Which side of a transfer has shown its ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// The one that accepts. The other one may still do so, even when it is too late.
    ByReceiver,
    /// The one that sends, and perhaps the other one, too.
    BySender,
}

/// Tickets that cannot be used again. Beyond a limit, the oldest is forgotten.
#[derive(Debug, Default)]
pub(crate) struct UsedTickets {
    keys: HashMap<Key, Shown>,
    order: VecDeque<Key>,
}

impl UsedTickets {
    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.keys.contains_key(key)
    }

    /// Notes that the sender shows one; gives who had shown it before, if it is used.
    pub(crate) fn show(&mut self, key: &Key) -> Option<Shown> {
        let shown = self.keys.get_mut(key)?;
        Some(std::mem::replace(shown, Shown::BySender))
    }

    pub(crate) fn insert(&mut self, key: Key, shown: Shown) {
        self.keys.insert(key, shown);
        self.order.push_back(key);
        if self.order.len() > USED_TICKETS
            && let Some(old) = self.order.pop_front()
        {
            self.keys.remove(&old);
        }
    }
}

/// What the queues of a session have offered to others of it on this server, and what was not accepted yet: its share of the client's
/// account, or the error if the offer came to nothing.
#[derive(Debug, Default)]
pub(crate) struct Offers(Mutex<HashMap<Ticket, Result<AccountShare>>>);

impl Offers {
    /// Bytes that wait to be accepted.
    pub(crate) fn bytes(&self) -> u64 {
        lock(&self.0).values().filter_map(|offer| offer.as_ref().ok()).map(AccountShare::amount).sum()
    }

    /// Notes what became of an offer.
    pub(crate) fn insert(&self, ticket: Ticket, offer: Result<AccountShare>) -> Result<()> {
        let mut offers = lock(&self.0);
        if offers.len() >= MAX_TICKETS {
            return Err(Error::Request(format!("{MAX_TICKETS} transfers wait to be accepted already")));
        }
        match offers.entry(ticket) {
            Entry::Vacant(entry) => {
                entry.insert(offer);
                Ok(())
            }
            Entry::Occupied(_) => Err(used_twice()),
        }
    }

    /// Accepts the offer of this ticket, if it was made: its error if it came to nothing.
    pub(crate) fn accept(&self, ticket: Ticket) -> Option<Result<()>> {
        let offer = lock(&self.0).remove(&ticket)?;
        Some(offer.map(drop))
    }

    /// Forgets an offer that will not be accepted.
    pub(crate) fn forget(&self, ticket: Ticket) {
        lock(&self.0).remove(&ticket);
    }

    /// Takes out all offers.
    pub(crate) fn take_all(&self) -> HashMap<Ticket, Result<AccountShare>> {
        std::mem::take(&mut *lock(&self.0))
    }
}
