//! The transfers of a session, by ticket, and what each thing that happens makes of them.

use super::deadlines::{Overdue, Senders};
use super::room::{SessionRoom, SharedRoom};
use super::transfer::{Accepted, Arrival, Done, Part, Receiving, Transfer};
use super::{Acceptance, Begun, Origin, Progress, Refusal, Source, Via, Waiter};
use crate::limits::{PeerLimits, WANTED};
use crate::ticket::{Key, Shown, UsedTickets, same, used_twice};
use outboard_core::{Error, Result, Ticket};
use outboard_proto::error;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

#[derive(Debug)]
pub(super) struct Table {
    pub(super) slots: HashMap<Key, Slot>,
    used: UsedTickets,
    pub(super) room: SessionRoom,
    /// Slots of transfers that queues have accepted.
    pub(super) accepted: usize,
    /// To be told to their senders.
    refusals: Vec<Refusal>,
    /// To be given when nothing is locked.
    pub(super) done: Vec<Done>,
    pub(super) senders: Senders,
    /// The session has ended.
    ended: bool,
}

#[derive(Debug)]
pub(super) struct Slot {
    ticket: Ticket,
    /// When it was made, or something came for it.
    pub(super) since: Instant,
    pub(super) transfer: Transfer,
    shown: Shown,
}

impl Slot {
    fn new(ticket: Ticket, now: Instant, transfer: Transfer, shown: Shown) -> Slot {
        Slot { ticket, since: now, transfer, shown }
    }
}

fn wrong_size(sent: u64, accepted: u64) -> Error {
    Error::Request(format!("a transfer of {sent} bytes was accepted as {accepted}"))
}

/// The error of a transfer that a server was to send, which is named later.
fn blame(detail: String) -> Error {
    Error::Peer { endpoint: String::new(), detail }
}

/// An error that came from another server, or blames it, with the name that the client knows that one by.
fn named(error: Error, source: &Source) -> Error {
    match error {
        Error::Peer { endpoint, detail } if endpoint.is_empty() => {
            Error::Peer { endpoint: source.name.clone(), detail }
        }
        error => error::from_wire(error::to_wire(&error), &source.name),
    }
}

impl Table {
    pub(super) fn new(room: &Arc<SharedRoom>, account: u64) -> Table {
        Table {
            slots: HashMap::new(),
            used: UsedTickets::default(),
            room: SessionRoom::new(room, account),
            accepted: 0,
            refusals: Vec::new(),
            done: Vec::new(),
            senders: Senders::default(),
            ended: false,
        }
    }
}

/// What queues do.
impl Table {
    pub(super) fn accept(&mut self, now: Instant, ticket: Ticket, acceptance: Acceptance) -> Result<()> {
        let key = Key::new(&ticket);
        let Some(slot) = self.slots.get(&key) else {
            if self.used.contains(&key) {
                return Err(named(used_twice(), &acceptance.source));
            }
            self.count_accepted()?;
            let transfer = Transfer::Accepted(Accepted::new(acceptance));
            self.slots.insert(key, Slot::new(ticket, now, transfer, Shown::ByReceiver));
            return Ok(());
        };
        if !same(&slot.ticket, &ticket) {
            return Err(Error::Request("a transfer ticket was not random".into()));
        }
        match &slot.transfer {
            Transfer::Early(arrival) if arrival.size == acceptance.size => self.accept_early(key, acceptance),
            Transfer::Early(arrival) => {
                let error = wrong_size(arrival.size, acceptance.size);
                self.refusals.push(Refusal { via: arrival.via, error: error.clone() });
                self.finish(key);
                Err(named(error, &acceptance.source))
            }
            Transfer::FailedEarly { error, .. } => {
                let error = named(error.clone(), &acceptance.source);
                self.accept_failed(now, key, acceptance, error)
            }
            Transfer::Accepted(_) | Transfer::Receiving(_) | Transfer::FailedAccepted { .. } | Transfer::Unwanted => {
                Err(named(used_twice(), &acceptance.source))
            }
        }
    }

    /// Gives what has come to the queue that accepts it now.
    fn accept_early(&mut self, key: Key, acceptance: Acceptance) -> Result<()> {
        self.count_accepted()?;
        let accepted = Accepted::new(acceptance);
        self.change(key, |transfer| match transfer {
            Transfer::Early(arrival) => Transfer::Receiving(Receiving { arrival, accepted, room: 0 }),
            other => other,
        });
        // It had room for all of it, so that there is some for a part.
        self.hand_over_or_fail(key);
        Ok(())
    }

    /// Fails a queue that accepts what has failed; if in pieces, all of them.
    fn accept_failed(&mut self, now: Instant, key: Key, acceptance: Acceptance, error: Error) -> Result<()> {
        let mut accepted = Accepted::new(acceptance);
        accepted.fail(&error, &mut self.done);
        if accepted.is_asked_for() {
            self.finish(key);
            return Ok(());
        }
        self.count_accepted()?;
        self.change(key, |_| Transfer::FailedAccepted { error, queue: accepted.queue });
        self.touch(key, now);
        Ok(())
    }

    pub(super) fn accept_more(&mut self, ticket: &Ticket, waiter: Waiter) -> Result<()> {
        let key = Key::new(ticket);
        let Some(slot) = self.slots.get_mut(&key) else { return Err(Error::Cancelled) };
        match &mut slot.transfer {
            Transfer::Accepted(accepted) | Transfer::Receiving(Receiving { accepted, .. }) => accepted.ask(waiter),
            Transfer::FailedAccepted { error, .. } => {
                let error = error.clone();
                self.finish(key);
                return Err(error);
            }
            Transfer::Early(_) | Transfer::FailedEarly { .. } | Transfer::Unwanted => return Err(Error::Cancelled),
        }
        self.hand_over_or_fail(key);
        Ok(())
    }

    pub(super) fn discard(&mut self, now: Instant, ticket: Ticket) {
        let key = Key::new(&ticket);
        match self.slots.get(&key).map(|slot| &slot.transfer) {
            None if self.used.contains(&key) => {}
            None => {
                if self.count_accepted().is_ok() {
                    self.slots.insert(key, Slot::new(ticket, now, Transfer::Unwanted, Shown::ByReceiver));
                }
            }
            Some(Transfer::Early(_) | Transfer::FailedEarly { .. }) => drop(self.finish(key)),
            Some(_) => {}
        }
    }

    pub(super) fn origin(&self, ticket: &Ticket) -> Option<Origin> {
        let key = Key::new(ticket);
        let Some(slot) = self.slots.get(&key) else {
            return self.used.contains(&key).then_some(Origin::Unknown);
        };
        if !same(&slot.ticket, ticket) {
            return None;
        }
        match &slot.transfer {
            Transfer::Accepted(_) => None,
            transfer => Some(transfer.link().map_or(Origin::Unknown, Origin::Link)),
        }
    }
}

/// What comes on links.
impl Table {
    /// The sender of a transfer shows its ticket. What the receiver has been told to be lost already is dropped without another error.
    pub(super) fn push(&mut self, now: Instant, via: Via, ticket: Ticket, size: u64) -> Result<Begun> {
        if self.ended {
            return Err(Error::Cancelled);
        }
        let key = Key::new(&ticket);
        let arrival = Arrival::new(via, size);
        let Some(slot) = self.slots.get_mut(&key) else {
            match self.used.show(&key) {
                Some(Shown::BySender) => return Err(used_twice()),
                Some(Shown::ByReceiver) => return Err(Error::Cancelled),
                None => self.room.take(size, 1)?,
            }
            self.slots.insert(key, Slot::new(ticket, now, Transfer::Early(arrival), Shown::BySender));
            return Ok(Begun::Early(key));
        };
        if !same(&slot.ticket, &ticket) {
            return Err(Error::Request("that is not a ticket of this session".into()));
        }
        let shown = std::mem::replace(&mut slot.shown, Shown::BySender);
        match &slot.transfer {
            Transfer::Accepted(accepted) if accepted.size == size => {
                slot.since = now;
                self.change(key, |transfer| match transfer {
                    Transfer::Accepted(accepted) => Transfer::Receiving(Receiving { arrival, accepted, room: 0 }),
                    other => other,
                });
                self.hand_over(key)?;
                Ok(Begun::Accepted(key))
            }
            Transfer::Accepted(accepted) => {
                let error = wrong_size(size, accepted.size);
                self.fail(key, error.clone());
                Err(error)
            }
            Transfer::Unwanted => {
                self.finish(key);
                Err(Error::Cancelled)
            }
            Transfer::FailedAccepted { .. } if shown == Shown::ByReceiver => Err(Error::Cancelled),
            Transfer::Early(_)
            | Transfer::Receiving(_)
            | Transfer::FailedEarly { .. }
            | Transfer::FailedAccepted { .. } => Err(used_twice()),
        }
    }

    pub(super) fn data(&mut self, now: Instant, via: Via, key: Key, part: Part) -> Result<Progress> {
        let Some(slot) = self.slots.get_mut(&key) else { return Err(Error::Cancelled) };
        let (Transfer::Early(arrival) | Transfer::Receiving(Receiving { arrival, .. })) = &mut slot.transfer else {
            return Err(Error::Cancelled);
        };
        if arrival.via != via {
            return Err(Error::Cancelled);
        }
        arrival.received += part.len();
        if arrival.received > arrival.size {
            let error = Error::Request(format!("more than the {} bytes that were announced", arrival.size));
            self.fail(key, error.clone());
            return Err(error);
        }
        let progress = if arrival.is_complete() { Progress::Complete } else { Progress::Coming };
        arrival.keep(part);
        slot.since = now;
        if let Err(error) = self.hand_over(key) {
            self.fail(key, error.clone());
            return Err(error);
        }
        Ok(progress)
    }

    pub(super) fn failed(&mut self, now: Instant, link: u64, ticket: Ticket, error: Error) -> Result<Option<u64>> {
        let key = Key::new(&ticket);
        let Some(slot) = self.slots.get_mut(&key) else {
            if !self.ended && !self.used.contains(&key) {
                self.room.take(0, 1)?;
                let transfer = Transfer::FailedEarly { error, link };
                self.slots.insert(key, Slot::new(ticket, now, transfer, Shown::BySender));
            }
            return Ok(None);
        };
        if !same(&slot.ticket, &ticket) {
            return Ok(None);
        }
        slot.shown = Shown::BySender;
        let begun = match &slot.transfer {
            Transfer::Accepted(_) => None,
            Transfer::Early(arrival) | Transfer::Receiving(Receiving { arrival, .. }) if arrival.ends_with(link) => {
                Some(arrival.via.transfer)
            }
            _ => return Ok(None),
        };
        self.fail(key, error);
        Ok(begun)
    }

    pub(super) fn link_lost(&mut self, now: Instant, link: u64, incarnation: u64, why: &str) {
        self.senders.link_lost(now, incarnation);
        let was_to_come = |slot: &Slot| match &slot.transfer {
            Transfer::Accepted(accepted) => accepted.source.incarnation == incarnation,
            Transfer::Early(arrival) | Transfer::Receiving(Receiving { arrival, .. }) => arrival.ends_with(link),
            _ => false,
        };
        for key in self.keys(was_to_come) {
            self.fail(key, blame(format!("the connection that tensors come on was lost: {why}")));
        }
    }
}

/// How transfers end.
impl Table {
    /// Ends what has taken too long; gives what is to be told to senders.
    pub(super) fn expire(&mut self, now: Instant, limits: &PeerLimits) -> Vec<Refusal> {
        let mut refusals = std::mem::take(&mut self.refusals);
        let overdue = |(key, slot): (&Key, &Slot)| Some((*key, self.overdue(now, slot, limits)?));
        let all: Vec<(Key, Overdue)> = self.slots.iter().filter_map(overdue).collect();
        for (key, overdue) in all {
            let why = match overdue {
                Overdue::Fails { why } => why,
                Overdue::IsRefused { via, why } => {
                    refusals.push(Refusal { via, error: Error::Request(why.clone()) });
                    why
                }
                Overdue::IsForgotten => {
                    self.finish(key);
                    continue;
                }
            };
            self.fail(key, blame(why));
            self.touch(key, now);
        }
        self.senders.forget_gone(now, limits);
        refusals
    }

    /// Ends the transfers that this is true of: nobody wants them any more, and those who wait are told.
    pub(super) fn cancel_all(&mut self, of: impl Fn(&Transfer) -> bool) {
        for key in self.keys(|slot| of(&slot.transfer)) {
            self.cancel(key);
        }
    }

    /// Ends a transfer that nobody wants any more, and tells those who wait.
    pub(super) fn cancel(&mut self, key: Key) {
        if let Some(Transfer::Accepted(mut accepted) | Transfer::Receiving(Receiving { mut accepted, .. })) =
            self.finish(key)
        {
            accepted.fail(&Error::Cancelled, &mut self.done);
        }
    }

    /// The session has ended: nothing is kept, and nothing more is taken.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.cancel_all(|_| true);
        self.used = UsedTickets::default();
        self.senders = Senders::default();
        self.refusals = Vec::new();
    }

    /// Ends a transfer with an error, which is kept for whoever has not accepted it yet, or has not asked for all of it.
    fn fail(&mut self, key: Key, error: Error) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        let accepted = match &mut slot.transfer {
            Transfer::Accepted(accepted) | Transfer::Receiving(Receiving { accepted, .. }) => accepted,
            Transfer::Early(arrival) => {
                let link = arrival.via.link;
                return self.change(key, |_| Transfer::FailedEarly { error, link });
            }
            Transfer::FailedEarly { .. } | Transfer::FailedAccepted { .. } | Transfer::Unwanted => return,
        };
        let (error, queue) = (named(error, &accepted.source), accepted.queue);
        accepted.fail(&error, &mut self.done);
        if accepted.is_asked_for() {
            self.finish(key);
        } else {
            self.change(key, |_| Transfer::FailedAccepted { error, queue });
        }
    }

    /// Gives what is there to those who wait for it, ends the transfer behind the last byte, and settles its room.
    fn hand_over(&mut self, key: Key) -> Result<()> {
        let Some(Slot { transfer: Transfer::Receiving(receiving), .. }) = self.slots.get_mut(&key) else {
            return Ok(());
        };
        receiving.hand_over(&mut self.done);
        if receiving.is_over() {
            self.finish(key);
            return Ok(());
        }
        let surplus = receiving.surplus();
        if surplus <= receiving.room {
            self.room.give(receiving.room - surplus, 0);
        } else {
            self.room.take(surplus - receiving.room, 0)?;
        }
        receiving.room = surplus;
        Ok(())
    }

    fn hand_over_or_fail(&mut self, key: Key) {
        if let Err(error) = self.hand_over(key) {
            self.fail(key, error);
        }
    }
}

/// Slots, and what they take.
impl Table {
    fn keys(&self, of: impl Fn(&Slot) -> bool) -> Vec<Key> {
        self.slots.iter().filter(|(_, slot)| of(slot)).map(|(key, _)| *key).collect()
    }

    fn touch(&mut self, key: Key, now: Instant) {
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.since = now;
        }
    }

    /// Counts one more transfer that a queue has accepted.
    fn count_accepted(&mut self) -> Result<()> {
        if self.ended {
            return Err(Error::Cancelled);
        }
        if self.accepted >= WANTED {
            return Err(Error::Request(format!("{WANTED} transfers are accepted already and have not come")));
        }
        self.accepted += 1;
        Ok(())
    }

    /// Brings a transfer into another state, and gives back the room that it does not take there. Room that a state takes more than the one
    /// before is taken by the caller.
    fn change(&mut self, key: Key, change: impl FnOnce(Transfer) -> Transfer) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        let before = slot.transfer.charge();
        slot.transfer = change(std::mem::replace(&mut slot.transfer, Transfer::Unwanted));
        let after = slot.transfer.charge();
        self.room.give(before.bytes.saturating_sub(after.bytes), before.count.saturating_sub(after.count));
    }

    /// Ends a transfer, whatever it is; its ticket is used. Gives what it was.
    fn finish(&mut self, key: Key) -> Option<Transfer> {
        let Slot { transfer, shown, .. } = self.slots.remove(&key)?;
        let charge = transfer.charge();
        self.room.give(charge.bytes, charge.count);
        self.accepted = self.accepted.saturating_sub(charge.accepted);
        self.used.insert(key, shown);
        Some(transfer)
    }
}
