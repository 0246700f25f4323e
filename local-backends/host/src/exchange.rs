//! Transfers between queues of one host, by ticket.
//!
//! Whoever comes second copies: an offer that finds its acceptance waiting writes straight into the destination, one that comes
//! first leaves a copy and goes on. So an offer never waits, and no order of commands on different queues can block.
//!
//! What is open is bounded, and no client may have more of it than it leaves to others, so that one that offers what nobody takes
//! does not keep others from their transfers (dynamic thresholds: Choudhury and Hahne, 1998). Room is taken before a byte is
//! copied. What ended without its bytes is kept only to tell its acceptance, and gives way first.

use crate::access::{Accesses, Footprint, Touched};
use crate::lock;
use crate::queue::{address, read_slice};
use outboard_core::error::Bytes as Size;
use outboard_core::{Error, Result, Slice, Ticket};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Bytes that wait between the devices of one host at most; a client that is alone may have half of them.
pub const OFFERED_BYTES: u64 = 1 << 30;
/// What may be open at most, from either side.
const MOST: Amount = Amount { transfers: 8192, bytes: OFFERED_BYTES };
/// An offer that was not taken after this long is dropped.
const EXPIRY: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Exchange {
    open: Mutex<Open>,
    most: Amount,
}

type Open = HashMap<Ticket, Transfer>;

/// Open transfers, and the bytes that wait for their acceptance.
#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    transfers: u64,
    bytes: u64,
}

/// A queue that offers or accepts, and whose room it uses ([`outboard_core::Client::room`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Party {
    pub(crate) room: u64,
    pub(crate) queue: u64,
}

/// How long somebody waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait<'a> {
    pub(crate) limit: Duration,
    pub(crate) cancel: &'a AtomicBool,
}

/// What is handed over.
type Source<'a> = std::result::Result<&'a Slice, &'a Error>;

#[derive(Debug)]
struct Transfer {
    /// Who came first.
    by: Party,
    state: State,
    /// Whoever waits for it to change is woken by it alone.
    changed: Arc<Condvar>,
}

impl Transfer {
    fn new(by: Party, state: State) -> Transfer {
        Transfer { by, state, changed: Arc::default() }
    }
}

#[derive(Debug)]
enum State {
    /// So many bytes are being copied for an offer that nobody waits for yet.
    Reserved(u64),
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
            State::Reserved(bytes) => *bytes,
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
        Exchange { open: Mutex::default(), most: MOST }
    }
}

impl Exchange {
    /// Hands over `src`, or the error that takes its place. The same ticket twice is an error.
    pub(crate) fn offer(
        &self,
        accesses: &Accesses,
        by: Party,
        ticket: Ticket,
        src: Source<'_>,
        cancel: &AtomicBool,
    ) -> Result<()> {
        let mut open = lock(&self.open);
        if let Some(transfer) = open.get_mut(&ticket) {
            if !matches!(transfer.state, State::Wanted(_)) {
                return Err(used_twice());
            }
            let State::Wanted(dst) = std::mem::replace(&mut transfer.state, State::Copying) else { return Ok(()) };
            drop(open);
            let done = src.map_err(Error::clone).and_then(|src| copy(accesses, src, &dst, cancel));
            self.set(ticket, State::Copied(done));
            return Ok(());
        }
        let bytes = src.map_or(0, Slice::len);
        let room = self.admit(&mut open, by, bytes);
        if src.is_ok() {
            // An error always has room: whoever waits for it would wait in vain.
            room?;
        }
        open.insert(ticket, Transfer::new(by, State::Reserved(bytes)));
        drop(open);
        let content = src.map_err(Error::clone).and_then(|src| read_slice(accesses, src, cancel));
        self.set(ticket, State::Offered { content, since: Instant::now() });
        Ok(())
    }

    /// The next state of a transfer, unless whoever waited for it has given up.
    fn set(&self, ticket: Ticket, state: State) {
        if let Some(transfer) = lock(&self.open).get_mut(&ticket) {
            transfer.state = state;
            transfer.changed.notify_all();
        }
    }

    /// Fills `dst` with what is offered under a ticket.
    pub(crate) fn accept(
        &self,
        accesses: &Accesses,
        by: Party,
        ticket: Ticket,
        dst: &Slice,
        wait: Wait<'_>,
    ) -> Result<()> {
        let end = Instant::now() + wait.limit;
        let mut open = lock(&self.open);
        match open.get(&ticket).map(|transfer| &transfer.state) {
            Some(State::Offered { .. } | State::Reserved(_)) => {}
            Some(_) => return Err(used_twice()),
            None => {
                self.admit(&mut open, by, 0)?;
                open.insert(ticket, Transfer::new(by, State::Wanted(dst.clone())));
            }
        }
        loop {
            let wanted = || Transfer::new(by, State::Wanted(dst.clone()));
            let transfer = open.remove(&ticket).unwrap_or_else(wanted);
            match transfer.state {
                State::Offered { content, .. } => {
                    drop(open);
                    return write(accesses, &content?, dst, wait.cancel);
                }
                State::Copied(done) => return done,
                State::Copying | State::Reserved(_) | State::Wanted(_) => {}
            }
            // Whoever gives up leaves nothing behind: what the other side does then is dropped.
            give_up(wait, end)?;
            let changed = transfer.changed.clone();
            open.insert(ticket, transfer);
            open = changed.wait_timeout(open, LOOK_AGAIN).unwrap_or_else(std::sync::PoisonError::into_inner).0;
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
            open.retain(|_, transfer| transfer.by.room != by.room || !transfer.has_failed());
            self.shares(open, by, bytes)
        })
    }

    /// Whether the client would not have more than it leaves to others.
    fn shares(&self, open: &Open, by: Party, bytes: u64) -> Result<()> {
        let (mut mine, mut others) = (Amount::default(), Amount::default());
        for transfer in open.values() {
            let sum = if transfer.by.room == by.room { &mut mine } else { &mut others };
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

/// Fails for a wait that has been given up, or has lasted too long.
fn give_up(wait: Wait<'_>, end: Instant) -> Result<()> {
    if wait.cancel.load(Ordering::Relaxed) {
        return Err(Error::Cancelled);
    }
    if Instant::now() >= end {
        return Err(Error::Timeout { what: "a tensor from another device".into(), after: wait.limit });
    }
    Ok(())
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

fn copy(accesses: &Accesses, src: &Slice, dst: &Slice, cancel: &AtomicBool) -> Result<()> {
    same_size(src.len(), dst)?;
    let (from, to, len) = (address(src)?, address(dst)?, src.len() as usize);
    let touched = vec![Touched::read(from, len), Touched::written(to, len)];
    let _access = accesses.begin(&Footprint::new(touched), cancel)?;
    // SAFETY: both are inside their buffers and of equal length, the destination was found writable when it was enqueued, and nobody
    // else touches them now; `copy` allows overlap.
    unsafe { std::ptr::copy(from, to, len) };
    Ok(())
}

fn write(accesses: &Accesses, content: &[u8], dst: &Slice, cancel: &AtomicBool) -> Result<()> {
    same_size(content.len() as u64, dst)?;
    let to = address(dst)?;
    let _access = accesses.begin(&Footprint::new(vec![Touched::written(to, content.len())]), cancel)?;
    // SAFETY: as in `copy`; the content is a vector of its own.
    unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), to, content.len()) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Funds;
    use crate::{HostBuffer, MemoryBudget};
    use std::sync::Arc;

    const ME: Party = Party { room: 1, queue: 7 };
    const OTHER: Party = Party { room: 2, queue: 8 };
    const LONG: Duration = Duration::from_secs(10);

    fn slice(content: &[u8]) -> Slice {
        let buffer = HostBuffer::new(content.len() as u64, &Funds::for_tests(&MemoryBudget::new(None))).unwrap();
        let slice = Slice::whole(Arc::new(buffer));
        write(&Accesses::default(), content, &slice, &AtomicBool::new(false)).unwrap();
        slice
    }

    fn content(slice: &Slice) -> Vec<u8> {
        read_slice(&Accesses::default(), slice, &AtomicBool::new(false)).unwrap()
    }

    fn offer(exchange: &Exchange, by: Party, ticket: u8, src: Source<'_>) -> Result<()> {
        exchange.offer(&Accesses::default(), by, Ticket([ticket; 32]), src, &AtomicBool::new(false))
    }

    fn accept(exchange: &Exchange, ticket: u8, dst: &Slice, limit: Duration, cancelled: bool) -> Result<()> {
        let cancel = &AtomicBool::new(cancelled);
        exchange.accept(&Accesses::default(), ME, Ticket([ticket; 32]), dst, Wait { limit, cancel })
    }

    #[test]
    fn either_side_may_come_first() {
        let exchange = Arc::new(Exchange::default());
        let (src, dst) = (slice(b"abcd"), slice(b"...."));
        offer(&exchange, ME, 1, Ok(&src)).unwrap();
        assert!(offer(&exchange, ME, 1, Ok(&src)).is_err());
        accept(&exchange, 1, &dst, LONG, false).unwrap();
        assert_eq!(content(&dst), b"abcd");

        let late = slice(b"....");
        let (other, to) = (exchange.clone(), late.clone());
        let thread = std::thread::spawn(move || accept(&other, 2, &to, LONG, false));
        while exchange.open() == 0 {
            std::thread::yield_now();
        }
        offer(&exchange, ME, 2, Ok(&src)).unwrap();
        thread.join().unwrap().unwrap();
        assert_eq!(content(&late), b"abcd");
        assert_eq!(exchange.open(), 0);
    }

    #[test]
    fn errors_arrive_and_waits_end() {
        let exchange = Exchange::default();
        let dst = slice(b"..");
        let short = Duration::from_millis(5);
        offer(&exchange, ME, 1, Err(&Error::Cancelled)).unwrap();
        assert_eq!(accept(&exchange, 1, &dst, short, false), Err(Error::Cancelled));
        offer(&exchange, ME, 2, Ok(&slice(b"long"))).unwrap();
        assert!(matches!(accept(&exchange, 2, &dst, short, false), Err(Error::Request(_))));
        assert!(matches!(accept(&exchange, 3, &dst, short, false), Err(Error::Timeout { .. })));
        assert_eq!(accept(&exchange, 3, &dst, short, true), Err(Error::Cancelled));
        offer(&exchange, ME, 4, Ok(&slice(b"ab"))).unwrap();
        exchange.end(7, &Error::Cancelled);
        assert_eq!(accept(&exchange, 4, &dst, short, false), Err(Error::Cancelled));
        assert_eq!(exchange.open(), 0);
    }

    #[test]
    fn room_is_taken_before_the_bytes_are_copied() {
        let exchange = Arc::new(Exchange { most: Amount { transfers: 100, bytes: 40 }, ..Exchange::default() });
        let accesses = Arc::new(Accesses::default());
        let src = slice(b"0123456789abcdef");
        // Somebody writes where the offers read, so that none of them gets further than to its room.
        let written = Footprint::new(vec![Touched::written(address(&src).unwrap(), 16)]);
        let writes = accesses.begin(&written, &AtomicBool::new(false)).unwrap();
        std::thread::scope(|scope| {
            let offer = |n: u8| {
                let never = AtomicBool::new(false);
                exchange.offer(&accesses, ME, Ticket([n; 32]), Ok(&src), &never)
            };
            let first = scope.spawn(move || offer(1));
            while exchange.open() == 0 {
                std::thread::yield_now();
            }
            assert!(matches!(offer(2), Err(Error::Request(why)) if why.contains("no more can wait")));
            let waits = scope.spawn(|| accept(&exchange, 1, &slice(&[0; 16]), LONG, false));
            drop(writes);
            first.join().unwrap().unwrap();
            waits.join().unwrap().unwrap();
        });
        assert_eq!(exchange.open(), 0);
    }

    #[test]
    fn nobody_takes_more_than_is_left_to_others() {
        let refused =
            |result: Result<()>| matches!(result, Err(Error::Request(why)) if why.contains("no more can wait"));
        let accept = |exchange: &Exchange, n: u8| accept(exchange, n, &slice(b"0123456789"), Duration::ZERO, false);
        let offered = |exchange: &Exchange, by: Party, n: u8| offer(exchange, by, n, Ok(&slice(b"0123456789")));
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
            offer(&exchange, ME, 24, Err(&Error::Cancelled)).unwrap();
        }
        // Errors that nobody wants do not pile up, and are nobody else's trouble.
        let exchange = Exchange { most: Amount { transfers: 4, bytes: 1000 }, ..Exchange::default() };
        offer(&exchange, OTHER, 99, Err(&Error::Cancelled)).unwrap();
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
