//! Transfers between queues of one host, by ticket, whatever the devices.
//!
//! An offer waits for nobody but its own device, so no order of commands on different queues can block. Where it finds its acceptance waiting, its
//! device can write there, and the accepting queue has nothing in flight that was given before, it copies straight into the destination. Otherwise
//! its bytes come to this process's memory in pieces, and the acceptance writes them to its own device as they come, behind what is in flight.
//!
//! What is open is bounded, and no client may have more of it than it leaves to others ([`fair_limit`]), so that one that offers what
//! nobody takes does not keep others from their transfers. Room is taken before a byte is copied. What ended without its bytes is kept
//! only to tell its acceptance, and gives way first.

use super::fair::fair_limit;
use super::stream::COPY_ENDS;
use crate::device::{Slice, Ticket, fresh_uid};
use crate::error::{Bytes as Size, Error, Result};
use crate::lock;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that wait between the devices of one host at most; a client that is alone may have half of them.
pub const OFFERED_BYTES: u64 = 1 << 30;
/// What may be open at most, from either side.
const MOST: Amount = Amount { transfers: 8192, bytes: OFFERED_BYTES };
/// An offer that was not taken after this long is dropped.
const EXPIRY: Duration = Duration::from_secs(120);
/// How often a wait looks whether it is still wanted. What it waits for wakes it.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The same for an offer whose device has to do meanwhile: what is given to that later begins so much later at most.
const LOOK_SOON: Duration = Duration::from_micros(100);

#[derive(Debug)]
pub(crate) struct Exchange {
    open: Mutex<Open>,
    /// Wakes offers that wait for an acceptance.
    accepts: Condvar,
    most: Amount,
}

type Open = HashMap<Ticket, Transfer>;

/// Open transfers, and the bytes that wait for their acceptance.
#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    transfers: u64,
    bytes: u64,
}

/// A queue that offers or accepts, and whose room it uses ([`Client::room`](crate::Client::room)).
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

/// How the bytes of an offer go.
#[derive(Debug)]
pub(crate) enum HandOver {
    /// Straight to where they are awaited; [`Exchange::copied`] tells the acceptance, with this number of the offer.
    Direct(Slice, u64),
    /// By [`Exchange::give`], piece by piece, with this number of the offer.
    Pieces(u64),
    /// Nowhere: there are none, or they are not wanted any more.
    Nowhere,
}

/// What comes for an acceptance.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// The next bytes, to be written behind those of before. Those that fill the destination are the last. What becomes of each is told to
    /// [`Exchange::written`], with this number of the offer.
    Pieces(u64, Vec<Bytes>),
    /// All of them are in their place.
    All,
}

#[derive(Debug)]
struct Transfer {
    /// Who came first.
    by: Party,
    state: State,
    /// Whoever waits for it to change is woken by it alone.
    changed: Arc<Condvar>,
}

#[derive(Debug)]
enum State {
    Offered(Offered),
    /// Somebody waits.
    Wanted(Wanted),
    /// An offer, by its number and its queue, writes into the destination.
    Copying {
        serial: u64,
        queue: u64,
    },
    /// The bytes are in the destination, or the error that took their place.
    Copied(Result<()>),
}

/// A destination that somebody waits to be filled.
#[derive(Debug)]
struct Wanted {
    /// Tells it from other acceptances under the same ticket, which may come when this one was given up.
    serial: u64,
    /// It keeps its buffer, should the one who waits give up during the copy.
    dst: Slice,
    /// The queue has nothing in flight before it, so that others may write there.
    is_ready: bool,
}

/// Bytes that come in pieces.
#[derive(Debug)]
struct Offered {
    /// Tells it from other offers under the same ticket, which may come when this one was given up.
    serial: u64,
    /// The queue that offers them.
    queue: u64,
    /// Somebody accepts them.
    accepted: bool,
    /// All of them.
    len: u64,
    /// How many have come until now.
    received: u64,
    /// How many of these the acceptance has, and how many of those are written.
    taken: u64,
    written: u64,
    pieces: Vec<Bytes>,
    error: Option<Error>,
    since: Instant,
}

impl Offered {
    fn new(queue: u64, len: u64, error: Option<Error>) -> Offered {
        let (serial, since, pieces) = (fresh_uid(), Instant::now(), Vec::new());
        Offered { serial, queue, accepted: false, len, received: 0, taken: 0, written: 0, pieces, error, since }
    }

    fn fail(&mut self, error: &Error) {
        self.error.get_or_insert_with(|| error.clone());
        self.pieces.clear();
    }
}

impl Transfer {
    fn new(by: Party, state: State) -> Transfer {
        Transfer { by, state, changed: Arc::default() }
    }

    /// Bytes that are to come, wait, or are being written.
    fn bytes(&self) -> u64 {
        match &self.state {
            State::Offered(Offered { len, written, error: None, .. }) => len.saturating_sub(*written),
            State::Offered(Offered { taken, written, .. }) => taken.saturating_sub(*written),
            _ => 0,
        }
    }

    /// Whether it is kept only to tell an error to an acceptance that has not come yet.
    fn has_failed(&self) -> bool {
        matches!(self.state, State::Offered(Offered { error: Some(_), accepted: false, .. }))
    }

    /// Whether all of it has come, long ago, and nobody has taken any.
    fn has_expired(&self) -> bool {
        matches!(&self.state, State::Offered(o) if !o.accepted && o.received == o.len && o.since.elapsed() >= EXPIRY)
    }
}

impl Default for Exchange {
    fn default() -> Exchange {
        Exchange { open: Mutex::default(), accepts: Condvar::new(), most: MOST }
    }
}

impl Exchange {
    /// Begins to hand over so many bytes, or tells the error that takes their place. `reaches` says whether the device can write to a
    /// destination itself. The same ticket twice is an error.
    pub(crate) fn offer(
        &self,
        by: Party,
        ticket: Ticket,
        len: std::result::Result<u64, &Error>,
        reaches: impl Fn(&Slice) -> bool,
    ) -> Result<HandOver> {
        let mut open = lock(&self.open);
        if let Some(transfer) = open.get(&ticket) {
            let State::Wanted(Wanted { dst, is_ready, .. }) = &transfer.state else { return Err(used_twice()) };
            let (dst, is_ready) = (dst.clone(), *is_ready);
            let len = len.map_err(Error::clone).and_then(|len| same_size(len, &dst).map(|()| len));
            let (state, hand_over) = match len {
                Err(error) => (State::Copied(Err(error)), Ok(HandOver::Nowhere)),
                Ok(_) if is_ready && reaches(&dst) => {
                    let serial = fresh_uid();
                    (State::Copying { serial, queue: by.queue }, Ok(HandOver::Direct(dst, serial)))
                }
                Ok(len) => match self.shares(&open, by, len) {
                    Ok(()) => {
                        let offered = Offered { accepted: true, ..Offered::new(by.queue, len, None) };
                        let serial = offered.serial;
                        (State::Offered(offered), Ok(HandOver::Pieces(serial)))
                    }
                    Err(error) => (State::Copied(Err(error.clone())), Err(error)),
                },
            };
            if let Some(transfer) = open.get_mut(&ticket) {
                transfer.state = state;
                transfer.changed.notify_all();
            }
            return hand_over;
        }
        let room = self.admit(&mut open, by, len.unwrap_or(0));
        if len.is_ok() {
            // An error always has room: whoever waits for it would wait in vain.
            room?;
        }
        let offered = Offered::new(by.queue, len.unwrap_or(0), len.err().cloned());
        let serial = offered.serial;
        open.insert(ticket, Transfer::new(by, State::Offered(offered)));
        Ok(if len.is_ok() { HandOver::Pieces(serial) } else { HandOver::Nowhere })
    }

    /// Whether an offer is still open: nobody has given it up, and it has not failed.
    pub(crate) fn is_wanted(&self, ticket: Ticket, serial: u64) -> bool {
        match lock(&self.open).get(&ticket).map(|transfer| &transfer.state) {
            Some(State::Offered(offered)) => offered.serial == serial && offered.error.is_none(),
            _ => false,
        }
    }

    /// The next piece of an offer, or the error that ends it. Nothing happens if whoever waited for it has given up.
    pub(crate) fn give(&self, ticket: Ticket, serial: u64, piece: Result<Bytes>) {
        let mut open = lock(&self.open);
        let Some(transfer) = open.get_mut(&ticket) else { return };
        let State::Offered(offered) = &mut transfer.state else { return };
        if offered.serial != serial {
            return;
        }
        match piece {
            Ok(piece) if offered.error.is_none() && offered.received + piece.len() as u64 <= offered.len => {
                offered.received += piece.len() as u64;
                offered.pieces.push(piece);
            }
            Ok(_) => {}
            Err(error) if offered.received < offered.len => offered.fail(&error),
            Err(_) => {}
        }
        transfer.changed.notify_all();
    }

    /// An offer has written to its destination, or failed to.
    pub(crate) fn copied(&self, ticket: Ticket, serial: u64, done: Result<()>) {
        if let Some(transfer) = lock(&self.open).get_mut(&ticket)
            && matches!(transfer.state, State::Copying { serial: copying, .. } if copying == serial)
        {
            transfer.state = State::Copied(done);
            transfer.changed.notify_all();
        }
    }

    /// So many bytes that an acceptance was given are written, or cannot be: then it wants no more.
    pub(crate) fn written(&self, ticket: Ticket, serial: u64, written: Result<u64>) {
        let mut open = lock(&self.open);
        let Some(Transfer { state: State::Offered(offered), .. }) = open.get_mut(&ticket) else { return };
        if offered.serial != serial {
            return;
        }
        offered.written += written.as_ref().copied().unwrap_or(0);
        if written.is_err() || offered.written >= offered.len {
            open.remove(&ticket);
        }
    }

    /// Begins to wait for what is offered under a ticket and is to fill `dst`. `is_ready` says whether the queue has nothing in flight. If
    /// nothing is offered yet, there is a number for [`Exchange::set_ready`].
    pub(crate) fn want(&self, by: Party, ticket: Ticket, dst: &Slice, is_ready: bool) -> Result<Option<u64>> {
        let mut open = lock(&self.open);
        match open.get_mut(&ticket).map(|transfer| &mut transfer.state) {
            Some(State::Offered(offered)) if !offered.accepted => {
                offered.accepted = true;
                Ok(None)
            }
            Some(_) => Err(used_twice()),
            None => {
                self.admit(&mut open, by, 0)?;
                let wanted = Wanted { serial: fresh_uid(), dst: dst.clone(), is_ready };
                let serial = wanted.serial;
                open.insert(ticket, Transfer::new(by, State::Wanted(wanted)));
                self.accepts.notify_all();
                Ok(Some(serial))
            }
        }
    }

    /// All that was in flight before an acceptance is done: from now on what is offered may be written to its destination directly.
    pub(crate) fn set_ready(&self, ticket: Ticket, serial: u64) {
        if let Some(Transfer { state: State::Wanted(wanted), .. }) = lock(&self.open).get_mut(&ticket)
            && wanted.serial == serial
        {
            wanted.is_ready = true;
            self.accepts.notify_all();
        }
    }

    /// Waits until an offer may be copied straight to its destination, or it is known that it cannot be, or `is_over` says that it is too late.
    pub(crate) fn wait_for_acceptance(
        &self,
        ticket: Ticket,
        reaches: impl Fn(&Slice) -> bool,
        is_over: impl Fn() -> bool,
    ) {
        let mut open = lock(&self.open);
        loop {
            let may_come = match open.get(&ticket).map(|transfer| &transfer.state) {
                None => true,
                Some(State::Wanted(wanted)) => !wanted.is_ready && reaches(&wanted.dst),
                Some(_) => false,
            };
            if !may_come || is_over() {
                return;
            }
            open = self.accepts.wait_timeout(open, LOOK_SOON).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for what comes next to fill `dst`. An error ends the transfer, and so does [`Arrival::All`].
    pub(crate) fn next(&self, ticket: Ticket, dst: &Slice, wait: Wait<'_>) -> Result<Arrival> {
        let end = Instant::now() + wait.limit;
        let mut given_up = None;
        let mut open = lock(&self.open);
        loop {
            // Whoever gives up leaves nothing behind: what the other side does then is dropped.
            let mut transfer = open.remove(&ticket).ok_or_else(expired)?;
            match transfer.state {
                State::Copied(done) => return done.map(|()| Arrival::All),
                State::Offered(Offered { error: Some(error), .. }) => return Err(error),
                State::Offered(mut offered) => {
                    same_size(offered.len, dst)?;
                    if offered.taken == offered.len {
                        return Ok(Arrival::All);
                    }
                    let (serial, pieces) = (offered.serial, std::mem::take(&mut offered.pieces));
                    offered.taken = offered.received;
                    transfer.state = State::Offered(offered);
                    if !pieces.is_empty() {
                        // It stays for as long as these are not written: they are memory of the host.
                        open.insert(ticket, transfer);
                        return Ok(Arrival::Pieces(serial, pieces));
                    }
                }
                State::Copying { .. } | State::Wanted(_) => {}
            }
            if let Err(why) = give_up(wait, end) {
                let since = *given_up.get_or_insert_with(Instant::now);
                if !matches!(transfer.state, State::Copying { .. }) || since.elapsed() >= COPY_ENDS {
                    return Err(why);
                }
            }
            let changed = transfer.changed.clone();
            open.insert(ticket, transfer);
            open = changed.wait_timeout(open, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A queue is gone: what it offered and nobody took becomes `error`, so that its memory is free.
    pub(crate) fn end(&self, queue: u64, error: &Error) {
        for transfer in lock(&self.open).values_mut() {
            match &mut transfer.state {
                // What has come as a whole to an acceptance is its own by now.
                State::Offered(o) if o.queue == queue && !(o.accepted && o.received == o.len) => o.fail(error),
                State::Copying { queue: copying, .. } if *copying == queue => {
                    transfer.state = State::Copied(Err(error.clone()));
                }
                _ => continue,
            }
            transfer.changed.notify_all();
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
        let transfers = fair_limit(self.most.transfers, others.transfers);
        // What brings no bytes, such as an acceptance that frees some, is not refused for those of before.
        let limit = fair_limit(self.most.bytes, others.bytes);
        let too_large = bytes > 0 && mine.bytes.saturating_add(bytes) > limit;
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

fn expired() -> Error {
    Error::Request("a transfer was given up while somebody waited for it".into())
}

fn same_size(got: u64, dst: &Slice) -> Result<()> {
    if got == dst.len() {
        return Ok(());
    }
    Err(Error::Request(format!("a transfer of {got} bytes was accepted as {}", dst.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Buffer;
    use std::any::Any;

    const ME: Party = Party { room: 1, queue: 7 };
    const OTHER: Party = Party { room: 2, queue: 8 };
    const LONG: Duration = Duration::from_secs(10);

    #[derive(Debug)]
    struct Memory(u64);

    impl Buffer for Memory {
        fn size(&self) -> u64 {
            self.0
        }

        fn device(&self) -> u64 {
            1
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    fn slice(size: u64) -> Slice {
        Slice::whole(Arc::new(Memory(size)))
    }

    fn ticket(n: u8) -> Ticket {
        Ticket([n; 32])
    }

    /// Offers bytes in pieces of three.
    fn offer(exchange: &Exchange, by: Party, n: u8, bytes: std::result::Result<&[u8], &Error>) -> Result<()> {
        let hand_over = exchange.offer(by, ticket(n), bytes.map(|b| b.len() as u64), |_| false)?;
        if let (HandOver::Pieces(serial), Ok(bytes)) = (hand_over, bytes) {
            bytes.chunks(3).for_each(|piece| exchange.give(ticket(n), serial, Ok(Bytes::copy_from_slice(piece))));
        }
        Ok(())
    }

    fn accept(exchange: &Exchange, n: u8, size: u64, limit: Duration, cancelled: bool) -> Result<Vec<u8>> {
        let (dst, cancel) = (slice(size), &AtomicBool::new(cancelled));
        exchange.want(ME, ticket(n), &dst, true)?;
        let mut got = Vec::new();
        loop {
            match exchange.next(ticket(n), &dst, Wait { limit, cancel })? {
                Arrival::Pieces(serial, pieces) => {
                    let bytes = pieces.concat();
                    exchange.written(ticket(n), serial, Ok(bytes.len() as u64));
                    got.extend(bytes);
                }
                Arrival::All => return Ok(got),
            }
            if got.len() as u64 == size {
                return Ok(got);
            }
        }
    }

    fn pieces(hand_over: Result<HandOver>) -> u64 {
        match hand_over {
            Ok(HandOver::Pieces(serial)) => serial,
            other => panic!("{other:?}"),
        }
    }

    fn wait_for_one(exchange: &Exchange) {
        while exchange.open() == 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn either_side_may_come_first() {
        let exchange = Exchange::default();
        offer(&exchange, ME, 1, Ok(b"abcd")).unwrap();
        assert!(offer(&exchange, ME, 1, Ok(b"abcd")).is_err());
        assert_eq!(accept(&exchange, 1, 4, LONG, false).unwrap(), b"abcd");
        offer(&exchange, ME, 1, Ok(b"")).unwrap();
        assert_eq!(accept(&exchange, 1, 0, LONG, false).unwrap(), b"");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| accept(&exchange, 2, 4, LONG, false));
            wait_for_one(&exchange);
            offer(&exchange, OTHER, 2, Ok(b"abcd")).unwrap();
            assert_eq!(waits.join().unwrap().unwrap(), b"abcd");
            // A device that can write there does.
            let waits = scope.spawn(|| accept(&exchange, 3, 4, LONG, false));
            wait_for_one(&exchange);
            let hand_over = exchange.offer(OTHER, ticket(3), Ok(4), |_| true).unwrap();
            let HandOver::Direct(dst, serial) = hand_over else { panic!("{hand_over:?}") };
            assert_eq!(dst.len(), 4);
            exchange.copied(ticket(3), serial + 1, Err(Error::Cancelled));
            exchange.copied(ticket(3), serial, Ok(()));
            assert_eq!(waits.join().unwrap().unwrap(), b"", "nothing of it comes by here");
            // What is too long is not copied.
            let waits = scope.spawn(|| accept(&exchange, 4, 4, LONG, false));
            wait_for_one(&exchange);
            assert!(matches!(exchange.offer(OTHER, ticket(4), Ok(5), |_| true), Ok(HandOver::Nowhere)));
            assert!(matches!(waits.join().unwrap(), Err(Error::Request(_))));
        });
        assert_eq!(exchange.open(), 0);
    }

    #[test]
    fn errors_arrive_and_waits_end() {
        let exchange = Exchange::default();
        let short = Duration::from_millis(5);
        offer(&exchange, ME, 1, Err(&Error::Cancelled)).unwrap();
        assert_eq!(accept(&exchange, 1, 2, short, false), Err(Error::Cancelled));
        offer(&exchange, ME, 2, Ok(b"long")).unwrap();
        assert!(matches!(accept(&exchange, 2, 2, short, false), Err(Error::Request(_))));
        assert!(matches!(accept(&exchange, 3, 2, short, false), Err(Error::Timeout { .. })));
        assert_eq!(accept(&exchange, 3, 2, short, true), Err(Error::Cancelled));
        offer(&exchange, ME, 4, Ok(b"ab")).unwrap();
        exchange.end(7, &Error::Cancelled);
        assert_eq!(accept(&exchange, 4, 2, short, false), Err(Error::Cancelled));
        // An offer that ends in the middle, whoever came first.
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| accept(&exchange, 5, 4, LONG, false));
            wait_for_one(&exchange);
            let serial = pieces(exchange.offer(OTHER, ticket(5), Ok(4), |_| false));
            exchange.give(ticket(5), serial, Ok(Bytes::from_static(b"ab")));
            exchange.end(OTHER.queue, &Error::Cancelled);
            assert_eq!(waits.join().unwrap(), Err(Error::Cancelled));
        });
        assert_eq!(exchange.open(), 0);
    }

    #[test]
    fn room_is_taken_before_the_bytes_come() {
        let exchange = Exchange { most: Amount { transfers: 100, bytes: 40 }, ..Exchange::default() };
        let serial = pieces(exchange.offer(ME, ticket(1), Ok(16), |_| false));
        let refused = exchange.offer(ME, ticket(2), Ok(16), |_| false);
        assert!(matches!(refused, Err(Error::Request(why)) if why.contains("no more can wait")));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| accept(&exchange, 1, 16, LONG, false));
            exchange.give(ticket(1), serial, Ok(Bytes::from_static(&[1; 9])));
            exchange.give(ticket(1), serial, Ok(Bytes::from_static(&[2; 7])));
            assert_eq!(waits.join().unwrap().unwrap(), [[1; 9].as_slice(), &[2; 7]].concat());
            // Pieces for somebody who waits already need as much room; what goes straight needs none.
            let refused = |waits: Result<Vec<u8>>| matches!(waits, Err(Error::Request(why)) if why.contains("no more"));
            let waits = scope.spawn(|| accept(&exchange, 3, 21, LONG, false));
            wait_for_one(&exchange);
            assert!(exchange.offer(ME, ticket(3), Ok(21), |_| false).is_err());
            assert!(refused(waits.join().unwrap()));
            let waits = scope.spawn(|| accept(&exchange, 4, 21, LONG, false));
            wait_for_one(&exchange);
            let hand_over = exchange.offer(ME, ticket(4), Ok(21), |_| true).unwrap();
            let HandOver::Direct(_, serial) = hand_over else { panic!("{hand_over:?}") };
            exchange.copied(ticket(4), serial, Ok(()));
            assert!(waits.join().unwrap().is_ok());
        });
        assert_eq!(exchange.open(), 0);
    }

    /// What is in flight before an acceptance would come behind a direct copy.
    #[test]
    fn nobody_writes_to_a_destination_before_it_is_ready() {
        let exchange = Exchange::default();
        let dst = slice(4);
        let want = |n: u8| exchange.want(ME, ticket(n), &dst, false).unwrap().unwrap();
        want(1);
        pieces(exchange.offer(OTHER, ticket(1), Ok(4), |_| true));
        let second = want(2);
        // That of another acceptance changes nothing.
        exchange.set_ready(ticket(2), second + 1);
        pieces(exchange.offer(OTHER, ticket(2), Ok(4), |_| true));
        let third = want(3);
        exchange.set_ready(ticket(3), third);
        assert!(matches!(exchange.offer(OTHER, ticket(3), Ok(4), |_| true), Ok(HandOver::Direct(..))));
        // What was offered before comes in pieces.
        pieces(exchange.offer(OTHER, ticket(4), Ok(4), |_| true));
        assert_eq!(exchange.want(ME, ticket(4), &dst, true), Ok(None));
    }

    /// A queue that is dropped returns when nothing touches its memory for it any more.
    #[test]
    fn an_acceptance_that_is_given_up_waits_for_the_copy() {
        let exchange = Exchange::default();
        let (dst, cancel) = (slice(4), AtomicBool::new(false));
        exchange.want(ME, ticket(1), &dst, true).unwrap();
        let Ok(HandOver::Direct(_, serial)) = exchange.offer(OTHER, ticket(1), Ok(4), |_| true) else { panic!() };
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| exchange.next(ticket(1), &dst, Wait { limit: LONG, cancel: &cancel }));
            cancel.store(true, Ordering::Relaxed);
            std::thread::sleep(3 * LOOK_AGAIN);
            assert!(!waits.is_finished());
            exchange.copied(ticket(1), serial, Ok(()));
            assert!(matches!(waits.join().unwrap(), Ok(Arrival::All)));
        });
        assert_eq!(exchange.open(), 0);
    }

    /// A ticket that is used again, when its first transfer was given up, is another transfer.
    #[test]
    fn bytes_of_an_offer_that_was_given_up_go_nowhere() {
        let exchange = Exchange { most: Amount { transfers: 100, bytes: 80 }, ..Exchange::default() };
        let first = pieces(exchange.offer(ME, ticket(1), Ok(30), |_| false));
        assert!(matches!(accept(&exchange, 1, 7, LONG, false), Err(Error::Request(_))));
        assert!(!exchange.is_wanted(ticket(1), first));
        let second = pieces(exchange.offer(ME, ticket(1), Ok(1), |_| false));
        exchange.give(ticket(1), first, Ok(Bytes::from_static(&[0; 30])));
        exchange.give(ticket(1), second, Ok(Bytes::from_static(&[0; 2])));
        exchange.give(ticket(1), second, Ok(Bytes::from_static(&[7])));
        assert_eq!(lock(&exchange.open)[&ticket(1)].bytes(), 1);
        assert_eq!(accept(&exchange, 1, 1, LONG, false).unwrap(), [7]);
        assert_eq!(exchange.open(), 0);
    }

    /// What an acceptance has and has not written yet is memory that others cannot have.
    #[test]
    fn bytes_count_until_they_are_written() {
        let exchange = Exchange { most: Amount { transfers: 100, bytes: 80 }, ..Exchange::default() };
        let (dst, cancel) = (slice(40), AtomicBool::new(false));
        offer(&exchange, ME, 1, Ok(&[1; 40])).unwrap();
        exchange.want(ME, ticket(1), &dst, true).unwrap();
        assert!(
            matches!(exchange.want(ME, ticket(1), &dst, true), Err(Error::Request(_))),
            "one acceptance to an offer"
        );
        let wait = Wait { limit: LONG, cancel: &cancel };
        let Arrival::Pieces(serial, _) = exchange.next(ticket(1), &dst, wait).unwrap() else { panic!("all of it") };
        assert!(offer(&exchange, ME, 2, Ok(&[2; 10])).is_err());
        // The queue that offered may go: it has come as a whole.
        exchange.end(ME.queue, &Error::Cancelled);
        exchange.written(ticket(1), serial, Ok(30));
        offer(&exchange, ME, 3, Ok(&[2; 10])).unwrap();
        exchange.written(ticket(1), serial, Err(Error::Cancelled));
        offer(&exchange, ME, 4, Ok(&[2; 20])).unwrap();
        assert_eq!(exchange.open(), 2);
    }

    #[test]
    fn nobody_takes_more_than_is_left_to_others() {
        let refused =
            |result: Result<()>| matches!(result, Err(Error::Request(why)) if why.contains("no more can wait"));
        let accept = |exchange: &Exchange, n: u8| accept(exchange, n, 10, Duration::ZERO, false);
        let offered = |exchange: &Exchange, by: Party, n: u8| offer(exchange, by, n, Ok(b"0123456789"));
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
        assert!(refused(accept(&exchange, 1).map(drop)));
    }
}
