//! One transfer from another server: the states that it can be in, and what there is in each.

use super::{Acceptance, Source, Via, Waiter};
use crate::grpc::detach;
use crate::limits::SMALL_PIECE;
use bytes::{Bytes, BytesMut};
use outboard_core::device::Completer;
use outboard_core::{Error, Result};
use std::collections::VecDeque;

/// A result for whoever waits for it.
pub(super) type Done = (Completer<Vec<Bytes>>, Result<Vec<Bytes>>);

#[derive(Debug)]
pub(super) enum Transfer {
    /// A queue has accepted it; nothing has come.
    Accepted(Accepted),
    /// Its bytes are coming, or are all there, and no queue has accepted it.
    Early(Arrival),
    /// A queue has accepted it, and its bytes are coming.
    Receiving(Receiving),
    /// It will not come, says what came on a link, or its end. No queue has accepted it yet: that one will be told.
    FailedEarly { error: Error, link: u64 },
    /// It will not come. Its queue has not asked for all of it yet: it will be told then.
    FailedAccepted { error: Error, queue: u64 },
    /// The queue that was to accept it has failed: what comes is dropped.
    Unwanted,
}

/// What a transfer takes of what is limited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    /// Of the room for what no queue takes: bytes, and transfers.
    pub(super) bytes: u64,
    pub(super) count: u64,
    /// Of the transfers that queues may have accepted.
    pub(super) accepted: usize,
}

impl Transfer {
    /// What it takes in this state.
    pub(super) fn charge(&self) -> Charge {
        match self {
            Transfer::Early(arrival) => Charge { bytes: arrival.size, count: 1, accepted: 0 },
            Transfer::Receiving(receiving) => Charge { bytes: receiving.room, count: 0, accepted: 1 },
            Transfer::FailedEarly { .. } => Charge { bytes: 0, count: 1, accepted: 0 },
            Transfer::Accepted(_) | Transfer::FailedAccepted { .. } | Transfer::Unwanted => {
                Charge { bytes: 0, count: 0, accepted: 1 }
            }
        }
    }

    /// The queue that has accepted it.
    pub(super) fn queue(&self) -> Option<u64> {
        match self {
            Transfer::Accepted(accepted) | Transfer::Receiving(Receiving { accepted, .. }) => Some(accepted.queue),
            Transfer::FailedAccepted { queue, .. } => Some(*queue),
            Transfer::Early(_) | Transfer::FailedEarly { .. } | Transfer::Unwanted => None,
        }
    }

    /// The link that something of it came on.
    pub(super) fn link(&self) -> Option<u64> {
        match self {
            Transfer::Early(arrival) | Transfer::Receiving(Receiving { arrival, .. }) => Some(arrival.via.link),
            Transfer::FailedEarly { link, .. } => Some(*link),
            Transfer::Accepted(_) | Transfer::FailedAccepted { .. } | Transfer::Unwanted => None,
        }
    }
}

/// What a queue has accepted, and who waits for it.
#[derive(Debug)]
pub(super) struct Accepted {
    /// Who waits for the next bytes: several, where a tensor is accepted in pieces.
    waiting: VecDeque<Waiter>,
    /// Bytes that nobody has asked for yet.
    unasked: u64,
    pub(super) size: u64,
    pub(super) queue: u64,
    pub(super) source: Source,
}

impl Accepted {
    pub(super) fn new(acceptance: Acceptance) -> Accepted {
        let Acceptance { first, size, queue, source } = acceptance;
        let unasked = size.saturating_sub(first.len);
        Accepted { waiting: VecDeque::from([first]), unasked, size, queue, source }
    }

    /// Somebody waits for the next bytes behind those that are waited for.
    pub(super) fn ask(&mut self, waiter: Waiter) {
        self.unasked = self.unasked.saturating_sub(waiter.len);
        self.waiting.push_back(waiter);
    }

    /// Whether somebody has waited for all of it, or does.
    pub(super) fn is_asked_for(&self) -> bool {
        self.unasked == 0
    }

    /// Fails those who wait.
    pub(super) fn fail(&mut self, error: &Error, done: &mut Vec<Done>) {
        done.extend(self.waiting.drain(..).map(|waiter| (waiter.to, Err(error.clone()))));
    }
}

/// A transfer that is accepted and has begun to come.
#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) arrival: Arrival,
    pub(super) accepted: Accepted,
    /// Bytes of the room that it has taken: those that are there, and that nobody has asked for yet.
    pub(super) room: u64,
}

impl Receiving {
    /// Gives what is there to those who wait for it.
    pub(super) fn hand_over(&mut self, done: &mut Vec<Done>) {
        let Receiving { arrival, accepted, .. } = self;
        while accepted.waiting.front().is_some_and(|waiter| waiter.len <= arrival.held)
            && let Some(waiter) = accepted.waiting.pop_front()
        {
            done.push((waiter.to, Ok(arrival.split(waiter.len))));
        }
    }

    /// Whether all of it was handed over.
    pub(super) fn is_over(&self) -> bool {
        self.accepted.is_asked_for() && self.accepted.waiting.is_empty()
    }

    /// Bytes that are there and that nobody has asked for yet.
    pub(super) fn surplus(&self) -> u64 {
        let asked: u64 = self.accepted.waiting.iter().map(|waiter| waiter.len).sum();
        self.arrival.held.saturating_sub(asked)
    }
}

/// A transfer that has begun: what is there of it.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) via: Via,
    pub(super) size: u64,
    pub(super) received: u64,
    /// What is there and not handed over, and behind that what came in small parts, in one piece.
    pub(super) parts: VecDeque<Bytes>,
    small: BytesMut,
    held: u64,
}

/// Bytes of a transfer that have just come.
pub(super) enum Part {
    /// Joined with others: each by itself would take many times its bytes.
    Small(Bytes),
    Large(Bytes),
}

impl Part {
    /// Bytes of a frame of this size. May copy them.
    pub(super) fn new(data: Bytes, frame: usize) -> Part {
        if data.len() <= SMALL_PIECE { Part::Small(data) } else { Part::Large(detach(data, frame / 2)) }
    }

    pub(super) fn len(&self) -> u64 {
        let (Part::Small(data) | Part::Large(data)) = self;
        data.len() as u64
    }
}

impl Arrival {
    /// One that has just begun.
    pub(super) fn new(via: Via, size: u64) -> Arrival {
        Arrival { via, size, received: 0, parts: VecDeque::new(), small: BytesMut::new(), held: 0 }
    }

    /// Whether all of it has come.
    pub(super) fn is_complete(&self) -> bool {
        self.received == self.size
    }

    /// Whether it ends with this link: it comes there, and is not there yet.
    pub(super) fn ends_with(&self, link: u64) -> bool {
        self.via.link == link && !self.is_complete()
    }

    /// Keeps what has come.
    pub(super) fn keep(&mut self, part: Part) {
        self.held += part.len();
        match part {
            Part::Small(data) => {
                self.small.extend_from_slice(&data);
                if self.small.len() >= SMALL_PIECE {
                    self.join();
                }
            }
            Part::Large(data) => {
                self.join();
                self.parts.push_back(data);
            }
        }
    }

    /// Makes one piece of the small ones so far.
    fn join(&mut self) {
        if !self.small.is_empty() {
            self.parts.push_back(Bytes::copy_from_slice(&self.small));
            self.small.clear();
        }
    }

    /// Takes so many bytes out, which are there.
    fn split(&mut self, len: u64) -> Vec<Bytes> {
        self.join();
        self.held -= len;
        if self.held == 0 {
            return std::mem::take(&mut self.parts).into();
        }
        let mut left = usize::try_from(len).unwrap_or(usize::MAX);
        let mut taken = Vec::new();
        while left > 0
            && let Some(mut part) = self.parts.pop_front()
        {
            let piece = part.split_to(left.min(part.len()));
            left -= piece.len();
            taken.push(piece);
            if !part.is_empty() {
                self.parts.push_front(part);
            }
        }
        taken
    }
}
