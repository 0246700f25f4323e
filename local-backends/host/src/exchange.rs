//! Transfers between queues of one host, by ticket.
//!
//! Whoever comes second copies: an offer that finds its acceptance waiting writes straight into the destination, one that comes
//! first leaves a copy and goes on. So an offer never waits, and no order of commands on different queues can block.
//!
//! What is open is bounded, and no group of queues (those of one client) may have more of it than it leaves to others, so that one
//! that offers what nobody takes does not keep others from their transfers (dynamic thresholds: Choudhury and Hahne, 1998).

use crate::lock;
use crate::queue::{address, read_slice};
use outboard_core::error::Bytes as Size;
use outboard_core::{Error, Result, Slice, Ticket};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// What may be open at most, from either side; a group that is alone may have half of it.
const MOST: Amount = Amount { transfers: 8192, bytes: 2 << 30 };
/// An offer that was not taken after this long is dropped.
const EXPIRY: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Exchange {
    open: Mutex<Open>,
    changed: Condvar,
    most: Amount,
}

type Open = HashMap<Ticket, Transfer>;

/// Open transfers, and the bytes that wait for their acceptance.
#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    transfers: usize,
    bytes: u64,
}

/// A queue that offers or accepts, and the group that it is in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Party {
    pub(crate) group: u64,
    pub(crate) queue: u64,
}

/// What is handed over.
type Source<'a> = std::result::Result<&'a Slice, &'a Error>;

#[derive(Debug)]
struct Transfer {
    /// Who came first.
    by: Party,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Bytes, or the error that took their place.
    Offered { content: Result<Vec<u8>>, since: Instant },
    /// Somebody waits. The slice keeps its buffer, should the one who waits give up during the copy.
    Wanted(Slice),
    /// An offer writes into the destination.
    Copying,
    /// The bytes are in the destination.
    Copied(Result<()>),
}

impl Transfer {
    /// Bytes that wait.
    fn bytes(&self) -> u64 {
        match &self.state {
            State::Offered { content: Ok(bytes), .. } => bytes.len() as u64,
            _ => 0,
        }
    }

    /// Whether it is kept only to tell its acceptance an error.
    fn has_failed(&self) -> bool {
        matches!(self.state, State::Offered { content: Err(_), .. })
    }

    fn has_expired(&self) -> bool {
        matches!(self.state, State::Offered { since, .. } if since.elapsed() >= EXPIRY)
    }
}

impl Default for Exchange {
    fn default() -> Exchange {
        Exchange { open: Mutex::default(), changed: Condvar::new(), most: MOST }
    }
}

impl Exchange {
    /// Hands over `src`, or the error that takes its place. The same ticket twice is an error.
    pub(crate) fn offer(&self, by: Party, ticket: Ticket, src: Source<'_>) -> Result<()> {
        let mut open = lock(&self.open);
        if let Some(transfer) = open.get_mut(&ticket) {
            if !matches!(transfer.state, State::Wanted(_)) {
                return Err(used_twice());
            }
            let State::Wanted(dst) = std::mem::replace(&mut transfer.state, State::Copying) else { return Ok(()) };
            drop(open);
            let done = src.map_err(Error::clone).and_then(|src| copy(src, &dst));
            if let Some(transfer) = lock(&self.open).get_mut(&ticket) {
                transfer.state = State::Copied(done);
            }
            self.changed.notify_all();
            return Ok(());
        }
        self.admit(&mut open, by, src.map_or(0, Slice::len))?;
        drop(open);
        let content = src.map_err(Error::clone).and_then(read_slice);
        let state = State::Offered { content, since: Instant::now() };
        let mut open = lock(&self.open);
        // Its acceptance may have come while the bytes were copied: they are taken from the copy then.
        if open.get(&ticket).is_some_and(|transfer| !matches!(transfer.state, State::Wanted(_))) {
            return Err(used_twice());
        }
        open.insert(ticket, Transfer { by, state });
        self.changed.notify_all();
        Ok(())
    }

    /// Fills `dst` with what is offered under a ticket, waiting for it at most `limit`.
    pub(crate) fn accept(
        &self,
        by: Party,
        ticket: Ticket,
        dst: &Slice,
        limit: Duration,
        cancel: &AtomicBool,
    ) -> Result<()> {
        let end = Instant::now() + limit;
        let mut open = lock(&self.open);
        match open.get(&ticket).map(|transfer| &transfer.state) {
            Some(State::Offered { .. }) => {}
            Some(_) => return Err(used_twice()),
            None => {
                self.admit(&mut open, by, 0)?;
                open.insert(ticket, Transfer { by, state: State::Wanted(dst.clone()) });
            }
        }
        loop {
            let transfer = open.remove(&ticket);
            match transfer.map(|t| (t.by, t.state)) {
                Some((_, State::Offered { content, .. })) => {
                    drop(open);
                    return write(&content?, dst);
                }
                Some((_, State::Copied(done))) => return done,
                Some((by, state @ State::Copying)) => {
                    open.insert(ticket, Transfer { by, state });
                }
                Some((_, State::Wanted(_))) | None => {
                    if cancel.load(Ordering::Relaxed) {
                        return Err(Error::Cancelled);
                    }
                    if Instant::now() >= end {
                        return Err(Error::Timeout { what: "a tensor from another device".into(), after: limit });
                    }
                    open.insert(ticket, Transfer { by, state: State::Wanted(dst.clone()) });
                }
            }
            open = self.changed.wait_timeout(open, LOOK_AGAIN).unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    /// A queue is gone: what it offered and nobody took becomes `error`, so that its memory is free.
    pub(crate) fn end(&self, queue: u64, error: &Error) {
        for transfer in lock(&self.open).values_mut().filter(|transfer| transfer.by.queue == queue) {
            if let State::Offered { content, .. } = &mut transfer.state {
                *content = Err(error.clone());
            }
        }
    }

    /// Whether there is room for one transfer more, with so many bytes.
    fn admit(&self, open: &mut Open, by: Party, bytes: u64) -> Result<()> {
        let full = open.len() >= self.most.transfers;
        open.retain(|_, transfer| !(transfer.has_expired() || full && transfer.has_failed()));
        let (mut mine, mut others) = (Amount { transfers: 1, bytes }, Amount::default());
        for transfer in open.values().filter(|transfer| !transfer.has_failed()) {
            let sum = if transfer.by.group == by.group { &mut mine } else { &mut others };
            sum.transfers += 1;
            sum.bytes = sum.bytes.saturating_add(transfer.bytes());
        }
        let left = self.most.bytes.saturating_sub(others.bytes);
        if mine.transfers > self.most.transfers.saturating_sub(others.transfers) / 2 || mine.bytes > left / 2 {
            return Err(Error::Request(format!(
                "{} tensors with {} wait for other devices to take them, and {} transfers of other clients; no more can wait",
                mine.transfers - 1,
                Size(mine.bytes - bytes),
                others.transfers
            )));
        }
        Ok(())
    }

    #[cfg(test)]
    fn open(&self) -> usize {
        lock(&self.open).len()
    }
}

fn used_twice() -> Error {
    Error::Request("a transfer ticket was used twice".into())
}

fn same_size(got: u64, dst: &Slice) -> Result<()> {
    match got == dst.len() {
        true => Ok(()),
        false => Err(Error::Request(format!("a transfer of {got} bytes was accepted as {}", dst.len()))),
    }
}

fn copy(src: &Slice, dst: &Slice) -> Result<()> {
    same_size(src.len(), dst)?;
    // SAFETY: both are inside their buffers and of equal length, the destination was found writable when it was enqueued;
    // `copy` allows overlap.
    unsafe { std::ptr::copy(address(src)?, address(dst)?, src.len() as usize) };
    Ok(())
}

fn write(content: &[u8], dst: &Slice) -> Result<()> {
    same_size(content.len() as u64, dst)?;
    // SAFETY: as in `copy`; the content is a vector of its own.
    unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), address(dst)?, content.len()) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostBuffer, MemoryBudget};
    use std::sync::Arc;

    const ME: Party = Party { group: 1, queue: 7 };
    const OTHER: Party = Party { group: 2, queue: 8 };

    fn slice(content: &[u8]) -> Slice {
        let buffer = HostBuffer::new(content.len() as u64, 1, "d", &MemoryBudget::new(None)).unwrap();
        let slice = Slice::whole(Arc::new(buffer));
        write(content, &slice).unwrap();
        slice
    }

    #[test]
    fn either_side_may_come_first() {
        let exchange = Arc::new(Exchange::default());
        let (cancel, limit) = (AtomicBool::new(false), Duration::from_secs(10));
        let (src, dst) = (slice(b"abcd"), slice(b"...."));
        exchange.offer(ME, Ticket([1; 32]), Ok(&src)).unwrap();
        assert!(exchange.offer(ME, Ticket([1; 32]), Ok(&src)).is_err());
        exchange.accept(ME, Ticket([1; 32]), &dst, limit, &cancel).unwrap();
        assert_eq!(read_slice(&dst).unwrap(), b"abcd");

        let late = slice(b"....");
        let (other, to) = (exchange.clone(), late.clone());
        let thread = std::thread::spawn(move || other.accept(ME, Ticket([2; 32]), &to, limit, &AtomicBool::new(false)));
        while exchange.open() == 0 {
            std::thread::yield_now();
        }
        exchange.offer(ME, Ticket([2; 32]), Ok(&src)).unwrap();
        thread.join().unwrap().unwrap();
        assert_eq!(read_slice(&late).unwrap(), b"abcd");
        assert_eq!(exchange.open(), 0);
    }

    #[test]
    fn errors_arrive_and_waits_end() {
        let exchange = Exchange::default();
        let dst = slice(b"..");
        let (limit, cancel) = (Duration::from_millis(5), AtomicBool::new(false));
        exchange.offer(ME, Ticket([1; 32]), Err(&Error::Cancelled)).unwrap();
        assert_eq!(exchange.accept(ME, Ticket([1; 32]), &dst, limit, &cancel), Err(Error::Cancelled));
        exchange.offer(ME, Ticket([2; 32]), Ok(&slice(b"long"))).unwrap();
        assert!(matches!(exchange.accept(ME, Ticket([2; 32]), &dst, limit, &cancel), Err(Error::Request(_))));
        assert!(matches!(exchange.accept(ME, Ticket([3; 32]), &dst, limit, &cancel), Err(Error::Timeout { .. })));
        assert_eq!(exchange.accept(ME, Ticket([3; 32]), &dst, limit, &AtomicBool::new(true)), Err(Error::Cancelled));
        exchange.offer(ME, Ticket([4; 32]), Ok(&slice(b"ab"))).unwrap();
        exchange.end(7, &Error::Cancelled);
        assert_eq!(exchange.accept(ME, Ticket([4; 32]), &dst, limit, &cancel), Err(Error::Cancelled));
        assert_eq!(exchange.open(), 0);
    }

    #[test]
    fn nobody_takes_more_than_is_left_to_others() {
        let ticket = |n: u8| Ticket([n; 32]);
        let refused =
            |result: Result<()>| matches!(result, Err(Error::Request(why)) if why.contains("no more can wait"));
        let offered = |exchange: &Exchange, by: Party, n: u8| exchange.offer(by, ticket(n), Ok(&slice(b"0123456789")));
        // By bytes, and by their number.
        for most in [Amount { transfers: 100, bytes: 80 }, Amount { transfers: 8, bytes: 1000 }] {
            let exchange = Exchange { most, ..Exchange::default() };
            (0..4).for_each(|n| offered(&exchange, ME, n).unwrap());
            assert!(refused(offered(&exchange, ME, 4)));
            (10..12).for_each(|n| offered(&exchange, OTHER, n).unwrap());
            assert!(refused(offered(&exchange, OTHER, 12)));
            // What is taken, and what nobody can take any more, makes room.
            exchange.accept(OTHER, ticket(0), &slice(b"0123456789"), Duration::ZERO, &AtomicBool::new(false)).unwrap();
            assert!(refused(offered(&exchange, ME, 4)));
            exchange.end(OTHER.queue, &Error::Cancelled);
            offered(&exchange, ME, 4).unwrap();
            assert!(refused(offered(&exchange, ME, 5)));
        }
        // Errors give way where there is no room at all.
        let exchange = Exchange { most: Amount { transfers: 4, bytes: 1000 }, ..Exchange::default() };
        for n in 0..20 {
            offered(&exchange, ME, n).unwrap();
            exchange.end(ME.queue, &Error::Cancelled);
            assert!(exchange.open() <= 4);
        }
        // What waits for an offer counts, too.
        let exchange = Exchange { most: Amount { transfers: 1, bytes: 1000 }, ..Exchange::default() };
        assert!(refused(exchange.accept(ME, ticket(1), &slice(b"."), Duration::ZERO, &AtomicBool::new(false))));
    }
}
