//! Transfers between queues of one host, by ticket.
//!
//! Whoever comes second copies: an offer that finds its acceptance waiting writes straight into the destination, one that comes
//! first leaves a copy and goes on. So an offer never waits, and no order of commands on different queues can block.

use crate::lock;
use crate::queue::{address, read_slice};
use outboard_core::{Error, Result, Slice, Ticket};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// Most bytes that wait for their acceptance; more is a client that offers what nobody takes.
const MAX_WAITING_BYTES: u64 = 1 << 30;
/// Most transfers that are open, from either side.
const MAX_OPEN: usize = 4096;
/// An offer that was not taken after this long is dropped.
const EXPIRY: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(crate) struct Exchange {
    open: Mutex<HashMap<Ticket, Transfer>>,
    changed: Condvar,
}

/// What is handed over.
type Source<'a> = std::result::Result<&'a Slice, &'a Error>;

#[derive(Debug)]
enum Transfer {
    /// Bytes, or the error that took their place.
    Offered { content: Result<Vec<u8>>, queue: u64, since: Instant },
    /// Somebody waits. The slice keeps its buffer, should the one who waits give up during the copy.
    Wanted(Slice),
    /// An offer writes into the destination.
    Copying,
    /// The bytes are in the destination.
    Copied(Result<()>),
}

impl Exchange {
    /// Hands over `src`, or the error that takes its place, for a queue. The same ticket twice is an error.
    pub(crate) fn offer(&self, queue: u64, ticket: Ticket, src: Source<'_>) -> Result<()> {
        let mut open = lock(&self.open);
        match open.get_mut(&ticket) {
            Some(transfer @ Transfer::Wanted(_)) => {
                let Transfer::Wanted(dst) = std::mem::replace(transfer, Transfer::Copying) else { return Ok(()) };
                drop(open);
                let done = src.map_err(Error::clone).and_then(|src| copy(src, &dst));
                if let Some(transfer) = lock(&self.open).get_mut(&ticket) {
                    *transfer = Transfer::Copied(done);
                }
                self.changed.notify_all();
                return Ok(());
            }
            Some(_) => return Err(Error::Request("a transfer ticket was used twice".into())),
            None => {}
        }
        let full = open.len() >= MAX_OPEN;
        // What ended without its bytes is kept only to tell its acceptance, and gives way first.
        open.retain(|_, t| match t {
            Transfer::Offered { content, since, .. } => since.elapsed() < EXPIRY && !(full && content.is_err()),
            _ => true,
        });
        let size = |t: &Transfer| match t {
            Transfer::Offered { content: Ok(bytes), .. } => bytes.len() as u64,
            _ => 0,
        };
        let waiting: u64 = open.values().map(size).sum();
        let more = src.map_or(0, Slice::len);
        if open.len() >= MAX_OPEN || waiting.saturating_add(more) > MAX_WAITING_BYTES {
            return Err(Error::Request(format!("{} transfers of {waiting} bytes wait already", open.len())));
        }
        drop(open);
        let content = src.map_err(Error::clone).and_then(read_slice);
        let mut open = lock(&self.open);
        // Its acceptance may have come while the bytes were copied: they are taken from the copy then.
        match open.insert(ticket, Transfer::Offered { content, queue, since: Instant::now() }) {
            None | Some(Transfer::Wanted(_)) => {}
            Some(other) => {
                open.insert(ticket, other);
                return Err(Error::Request("a transfer ticket was used twice".into()));
            }
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Fills `dst` with what is offered under a ticket, waiting for it at most `limit`.
    pub(crate) fn accept(&self, ticket: Ticket, dst: &Slice, limit: Duration, cancel: &AtomicBool) -> Result<()> {
        let end = Instant::now() + limit;
        let mut open = lock(&self.open);
        match open.get(&ticket) {
            Some(Transfer::Offered { .. }) => {}
            Some(_) => return Err(Error::Request("a transfer ticket was used twice".into())),
            None if open.len() >= MAX_OPEN => {
                return Err(Error::Request(format!("{} transfers are open already", open.len())));
            }
            None => {
                open.insert(ticket, Transfer::Wanted(dst.clone()));
            }
        }
        loop {
            match open.remove(&ticket) {
                Some(Transfer::Offered { content, .. }) => {
                    drop(open);
                    return write(&content?, dst);
                }
                Some(Transfer::Copied(done)) => return done,
                Some(transfer @ Transfer::Copying) => {
                    open.insert(ticket, transfer);
                }
                other => {
                    if cancel.load(Ordering::Relaxed) {
                        return Err(Error::Cancelled);
                    }
                    if Instant::now() >= end {
                        return Err(Error::Timeout { what: "a tensor from another device".into(), after: limit });
                    }
                    open.insert(ticket, other.unwrap_or_else(|| Transfer::Wanted(dst.clone())));
                }
            }
            open = self.changed.wait_timeout(open, LOOK_AGAIN).unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    /// A queue is gone: what it offered and nobody took becomes `error`, so that its memory is free.
    pub(crate) fn end(&self, queue: u64, error: &Error) {
        for transfer in lock(&self.open).values_mut() {
            if let Transfer::Offered { content, queue: of, .. } = transfer
                && *of == queue
            {
                *content = Err(error.clone());
            }
        }
    }

    #[cfg(test)]
    fn open(&self) -> usize {
        lock(&self.open).len()
    }
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
        exchange.offer(7, Ticket([1; 32]), Ok(&src)).unwrap();
        assert!(exchange.offer(7, Ticket([1; 32]), Ok(&src)).is_err());
        exchange.accept(Ticket([1; 32]), &dst, limit, &cancel).unwrap();
        assert_eq!(read_slice(&dst).unwrap(), b"abcd");

        let late = slice(b"....");
        let (other, to) = (exchange.clone(), late.clone());
        let thread = std::thread::spawn(move || other.accept(Ticket([2; 32]), &to, limit, &AtomicBool::new(false)));
        while exchange.open() == 0 {
            std::thread::yield_now();
        }
        exchange.offer(7, Ticket([2; 32]), Ok(&src)).unwrap();
        thread.join().unwrap().unwrap();
        assert_eq!(read_slice(&late).unwrap(), b"abcd");
        assert_eq!(exchange.open(), 0);
    }

    #[test]
    fn errors_arrive_and_waits_end() {
        let exchange = Exchange::default();
        let dst = slice(b"..");
        let (limit, cancel) = (Duration::from_millis(5), AtomicBool::new(false));
        exchange.offer(7, Ticket([1; 32]), Err(&Error::Cancelled)).unwrap();
        assert_eq!(exchange.accept(Ticket([1; 32]), &dst, limit, &cancel), Err(Error::Cancelled));
        exchange.offer(7, Ticket([2; 32]), Ok(&slice(b"long"))).unwrap();
        assert!(matches!(exchange.accept(Ticket([2; 32]), &dst, limit, &cancel), Err(Error::Request(_))));
        assert!(matches!(exchange.accept(Ticket([3; 32]), &dst, limit, &cancel), Err(Error::Timeout { .. })));
        assert_eq!(exchange.accept(Ticket([3; 32]), &dst, limit, &AtomicBool::new(true)), Err(Error::Cancelled));
        exchange.offer(7, Ticket([4; 32]), Ok(&slice(b"ab"))).unwrap();
        exchange.end(7, &Error::Cancelled);
        assert_eq!(exchange.accept(Ticket([4; 32]), &dst, limit, &cancel), Err(Error::Cancelled));
        assert_eq!(exchange.open(), 0);
    }
}
