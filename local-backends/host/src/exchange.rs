//! Transfers between queues of one host, by ticket.
//!
//! Whoever comes second copies: an offer that finds its acceptance waiting writes straight into the destination, one that comes
//! first leaves a copy and goes on. So an offer never waits, and no order of commands on different queues can block.
//!
//! What is open is bounded, and no group of queues (those of a client's session) may have more of it than it leaves to others, so that
//! one that offers what nobody takes does not keep others from their transfers (dynamic thresholds: Choudhury and Hahne, 1998). What
//! ended without its bytes is kept only to tell its acceptance, and gives way first.

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
    transfers: u64,
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
        let room = self.admit(&mut open, by, src.map_or(0, Slice::len));
        if src.is_ok() {
            // An error always has room: whoever waits for it would wait in vain.
            room?;
        }
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

    /// Makes room for one transfer more with so many bytes, or says that there is none.
    fn admit(&self, open: &mut Open, by: Party, bytes: u64) -> Result<()> {
        open.retain(|_, transfer| !transfer.has_expired());
        self.shares(open, by, bytes).or_else(|_| {
            open.retain(|_, transfer| transfer.by.group != by.group || !transfer.has_failed());
            self.shares(open, by, bytes)
        })
    }

    /// Whether the group would not have more than it leaves to others.
    fn shares(&self, open: &Open, by: Party, bytes: u64) -> Result<()> {
        let (mut mine, mut others) = (Amount::default(), Amount::default());
        for transfer in open.values() {
            let sum = if transfer.by.group == by.group { &mut mine } else { &mut others };
            sum.transfers += 1;
            sum.bytes = sum.bytes.saturating_add(transfer.bytes());
        }
        let left = |most: u64, others: u64| most.saturating_sub(others) / 2;
        let transfers = left(self.most.transfers, others.transfers);
        // What brings no bytes, such as an acceptance that frees some, is not refused for those of before.
        let too_large = bytes > 0 && mine.bytes.saturating_add(bytes) > left(self.most.bytes, others.bytes);
        if mine.transfers >= transfers || too_large {
            return Err(Error::Request(format!(
                "{} transfers with {} are open already, and {} with {} of others: no more can wait",
                mine.transfers,
                Size(mine.bytes),
                others.transfers,
                Size(others.bytes)
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
        let accept = |exchange: &Exchange, n: u8| {
            exchange.accept(ME, ticket(n), &slice(b"0123456789"), Duration::ZERO, &AtomicBool::new(false))
        };
        let offered = |exchange: &Exchange, by: Party, n: u8| exchange.offer(by, ticket(n), Ok(&slice(b"0123456789")));
        // By bytes, and by their number.
        let (by_bytes, by_number) = (Amount { transfers: 100, bytes: 80 }, Amount { transfers: 8, bytes: 1000 });
        for most in [by_bytes, by_number] {
            let exchange = Exchange { most, ..Exchange::default() };
            (0..4).for_each(|n| offered(&exchange, ME, n).unwrap());
            assert!(refused(offered(&exchange, ME, 4)));
            (10..12).for_each(|n| offered(&exchange, OTHER, n).unwrap());
            assert!(refused(offered(&exchange, OTHER, 12)));
            // What is taken makes room; what ended without its bytes does, too, for whoever it was of.
            accept(&exchange, 0).unwrap();
            assert!(refused(offered(&exchange, ME, 4)));
            accept(&exchange, 10).unwrap();
            accept(&exchange, 11).unwrap();
            offered(&exchange, ME, 4).unwrap();
            assert!(refused(offered(&exchange, ME, 5)));
            exchange.end(ME.queue, &Error::Cancelled);
            assert_eq!(accept(&exchange, 1), Err(Error::Cancelled));
            (20..24).for_each(|n| offered(&exchange, ME, n).unwrap());
            // An error needs no room.
            exchange.offer(ME, ticket(24), Err(&Error::Cancelled)).unwrap();
        }
        // Errors that nobody wants do not pile up, and are nobody else's trouble.
        let exchange = Exchange { most: Amount { transfers: 4, bytes: 1000 }, ..Exchange::default() };
        exchange.offer(OTHER, ticket(99), Err(&Error::Cancelled)).unwrap();
        for n in 0..20 {
            offered(&exchange, ME, n).unwrap();
            exchange.end(ME.queue, &Error::Cancelled);
            assert!(exchange.open() <= 4);
        }
        assert_eq!(accept(&exchange, 99), Err(Error::Cancelled));
        // Whoever is over its share since others came may still take what is there, or wait for it.
        let exchange = Exchange { most: by_bytes, ..Exchange::default() };
        (0..4).for_each(|n| offered(&exchange, ME, n).unwrap());
        (10..12).for_each(|n| offered(&exchange, OTHER, n).unwrap());
        assert!(matches!(accept(&exchange, 30), Err(Error::Timeout { .. })));
        let exchange = Exchange { most: Amount { transfers: 1, bytes: 1000 }, ..Exchange::default() };
        assert!(refused(accept(&exchange, 1)));
    }
}
