//! What other servers send for one session, and what its queues wait for: brought together by ticket, whichever comes first. No I/O;
//! time is an argument.
//!
//! What came and has no queue that takes it is limited for each session, and all clients share the room for it ([`crate::fair`]).
//! What a queue has accepted is on the account of its flight; a tensor that is larger than the queue's own room there is accepted in
//! pieces, and those of its bytes for which no piece has been accepted yet take that shared room as well.

use crate::fair::Fair;
use crate::limits::{
    INBOX_BYTES, INBOX_BYTES_PER_SESSION, INBOX_COUNT, INBOX_COUNT_PER_SESSION, PeerLimits, SMALL_PIECE, STALLED,
    USED_TICKETS, WANTED,
};
use crate::lock;
use bytes::{Bytes, BytesMut};
use outboard_core::device::Completer;
use outboard_core::error::Bytes as Size;
use outboard_core::{Error, Result, Ticket};
use outboard_proto::error;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;

/// The room for what came and is not accepted, of all sessions.
#[derive(Debug)]
pub(crate) struct Rooms(Mutex<All>);

#[derive(Debug)]
struct All {
    bytes: Fair,
    count: Fair,
}

impl Rooms {
    pub(crate) fn new() -> Arc<Rooms> {
        let all = All { bytes: Fair::new(INBOX_BYTES), count: Fair::new(INBOX_COUNT) };
        Arc::new(Rooms(Mutex::new(all)))
    }
}

/// What one session has of the room. Given back when dropped.
#[derive(Debug)]
struct Room {
    rooms: Arc<Rooms>,
    account: u64,
    bytes: u64,
    count: u64,
}

impl Room {
    fn take(&mut self, bytes: u64, count: u64) -> Result<()> {
        let fits = |mine: u64, more: u64, limit: u64| more == 0 || mine.saturating_add(more) <= limit;
        let within =
            fits(self.bytes, bytes, INBOX_BYTES_PER_SESSION) && fits(self.count, count, INBOX_COUNT_PER_SESSION);
        if !within || !self.take_shared(bytes, count) {
            return Err(Error::Request(format!(
                "no room for {} that no queue takes: {} tensors with {} of this session wait already",
                Size(bytes),
                self.count,
                Size(self.bytes)
            )));
        }
        self.bytes += bytes;
        self.count += count;
        Ok(())
    }

    fn take_shared(&self, bytes: u64, count: u64) -> bool {
        let mut all = lock(&self.rooms.0);
        if !all.bytes.take(self.account, bytes) {
            return false;
        }
        let taken = all.count.take(self.account, count);
        if !taken {
            all.bytes.give(self.account, bytes);
        }
        taken
    }

    fn give(&mut self, bytes: u64, count: u64) {
        if bytes == 0 && count == 0 {
            return;
        }
        let mut all = lock(&self.rooms.0);
        all.bytes.give(self.account, bytes);
        all.count.give(self.account, count);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.count = self.count.saturating_sub(count);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.give(self.bytes, self.count);
    }
}

/// Where a slot is found: the first bytes of the ticket. The rest proves that it is the right one, and is compared in constant time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key([u8; 8]);

impl Key {
    fn new(ticket: &Ticket) -> Key {
        let mut first = [0; 8];
        first.iter_mut().zip(ticket.0).for_each(|(to, from)| *to = from);
        Key(first)
    }
}

fn same(a: &Ticket, b: &Ticket) -> bool {
    a.0[..].ct_eq(&b.0[..]).into()
}

/// The server that a transfer is expected from.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) incarnation: u64,
}

/// Who waits for the next bytes of a transfer, and how many.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) to: Completer<Vec<Bytes>>,
    pub(crate) len: u64,
}

/// An accepted transfer: who waits for its first bytes, or all of it, and how much it is.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) first: Piece,
    pub(crate) size: u64,
    pub(crate) queue: u64,
    pub(crate) source: Source,
}

/// A push that came to nothing, to be said to its sender.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) via: Via,
    pub(crate) error: Error,
}

/// Which link a transfer came on, its number there, and the number of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Via {
    pub(crate) link: u64,
    pub(crate) transfer: u64,
    pub(crate) queue: u64,
}

#[derive(Debug)]
struct Slot {
    ticket: Ticket,
    since: Instant,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Accepted; nothing has come.
    Wanted(Acceptance),
    /// Its bytes are coming, or are there and not accepted yet.
    Coming(Coming),
    /// It will not come, says what came on a link, or its end; it is not accepted yet.
    Lost { error: Error, link: u64 },
    /// It will not come; its acceptance has not asked for all of it yet.
    Failed { error: Error, queue: u64 },
    /// Its queue has failed: what comes is dropped.
    Unwanted,
}

/// What is known of an acceptance.
#[derive(Debug)]
struct Acceptance {
    /// The first who waits; the others, of a tensor that is accepted in pieces, are behind it.
    first: Option<Piece>,
    more: VecDeque<Piece>,
    /// Bytes that nobody has asked for yet.
    rest: u64,
    size: u64,
    queue: u64,
    source: Source,
}

impl Acceptance {
    fn new(wanted: Wanted) -> Acceptance {
        let Wanted { first, size, queue, source } = wanted;
        let rest = size.saturating_sub(first.len);
        Acceptance { first: Some(first), more: VecDeque::new(), rest, size, queue, source }
    }

    /// Bytes that somebody waits for.
    fn asked(&self) -> u64 {
        self.first.iter().chain(&self.more).map(|piece| piece.len).sum()
    }

    /// Who waits for the next bytes, if there are so many.
    fn next(&mut self, there: u64) -> Option<Piece> {
        let piece = self.first.take_if(|piece| piece.len <= there)?;
        self.first = self.more.pop_front();
        Some(piece)
    }
}

/// A transfer that has begun.
#[derive(Debug)]
struct Coming {
    via: Via,
    size: u64,
    got: u64,
    /// What is there and not handed over, and behind that what came in small pieces, in one piece.
    parts: VecDeque<Bytes>,
    small: BytesMut,
    held: u64,
    /// Bytes of the room that it has taken.
    room: u64,
    wanted: Option<Acceptance>,
}

impl Coming {
    /// Keeps what has come. Small pieces are joined: each by itself would take many times its bytes.
    fn keep(&mut self, data: Bytes, is_small: bool) {
        self.held += data.len() as u64;
        if is_small {
            self.small.extend_from_slice(&data);
        }
        if !is_small || self.small.len() >= SMALL_PIECE {
            self.join();
        }
        if !is_small {
            self.parts.push_back(data);
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

/// Whom a result is for.
type Done = (Completer<Vec<Bytes>>, Result<Vec<Bytes>>);

#[derive(Debug)]
struct State {
    slots: HashMap<Key, Slot>,
    /// Tickets that cannot be used again.
    used: HashSet<Key>,
    used_order: VecDeque<Key>,
    room: Room,
    /// Slots that queues have made.
    wanted: usize,
    /// To be said to their senders.
    refusals: Vec<Refusal>,
    /// To be given when nothing is locked.
    done: Vec<Done>,
    /// Links that are open from each incarnation, and since when there is none.
    sources: HashMap<u64, (usize, Option<Instant>)>,
    /// The session has ended.
    ended: bool,
}

/// The transfers of one session.
#[derive(Debug)]
pub(crate) struct Inbox {
    limits: PeerLimits,
    state: Mutex<State>,
}

fn used_twice() -> Error {
    Error::Request("a transfer ticket was used twice".into())
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

impl Inbox {
    /// The one of a session of a client, by the uid of its account.
    pub(crate) fn new(limits: PeerLimits, rooms: &Arc<Rooms>, account: u64) -> Inbox {
        let state = State {
            slots: HashMap::new(),
            used: HashSet::new(),
            used_order: VecDeque::new(),
            room: Room { rooms: rooms.clone(), account, bytes: 0, count: 0 },
            wanted: 0,
            refusals: Vec::new(),
            done: Vec::new(),
            sources: HashMap::new(),
            ended: false,
        };
        Inbox { limits, state: Mutex::new(state) }
    }

    /// Works on the state, and then tells those who wait.
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = lock(&self.state);
        let result = work(&mut state);
        let done = std::mem::take(&mut state.done);
        drop(state);
        done.into_iter().for_each(|(to, result)| to.complete(result));
        result
    }

    /// A queue accepts a transfer. What has come already is handed over now.
    pub(crate) fn expect(&self, now: Instant, ticket: Ticket, wanted: Wanted) -> Result<()> {
        self.with(|state| state.expect(now, ticket, wanted))
    }

    /// A queue that has accepted a transfer in pieces asks for the next one.
    pub(crate) fn more(&self, ticket: &Ticket, piece: Piece) -> Result<()> {
        self.with(|state| state.more(Key::new(ticket), piece))
    }

    /// A queue will not ask for the rest of a transfer that it has accepted.
    pub(crate) fn give_up(&self, ticket: &Ticket) {
        self.with(|state| state.cancel(Key::new(ticket)));
    }

    /// The acceptance of a transfer comes to nothing: its bytes are dropped when they come.
    pub(crate) fn discard(&self, now: Instant, ticket: Ticket) {
        self.with(|state| state.discard(now, ticket));
    }

    /// Whether something has come under a ticket, and on which link if that is still known.
    pub(crate) fn has(&self, ticket: &Ticket) -> Option<Option<u64>> {
        let state = lock(&self.state);
        let key = Key::new(ticket);
        let Some(slot) = state.slots.get(&key) else { return state.used.contains(&key).then_some(None) };
        if !same(&slot.ticket, ticket) {
            return None;
        }
        match &slot.kind {
            Kind::Wanted(_) => None,
            Kind::Coming(coming) => Some(Some(coming.via.link)),
            Kind::Lost { link, .. } => Some(Some(*link)),
            Kind::Failed { .. } | Kind::Unwanted => Some(None),
        }
    }

    /// A transfer begins; `true` if nobody has accepted it yet. An error is to be told to its sender; its bytes are to be dropped.
    pub(crate) fn push(&self, now: Instant, via: Via, ticket: Ticket, size: u64) -> Result<(Key, bool)> {
        self.with(|state| state.push(now, via, ticket, size))
    }

    /// The next bytes of a transfer, which came in a buffer of so many; `true` after the last ones.
    pub(crate) fn data(&self, now: Instant, via: Via, key: Key, data: Bytes, buffer: usize) -> Result<bool> {
        let is_small = data.len() <= SMALL_PIECE;
        let keeps_more = !is_small && data.len() < buffer / 2;
        let data = if keeps_more { Bytes::copy_from_slice(&data) } else { data };
        self.with(|state| state.data(now, via, key, data, is_small))
    }

    /// The queue that was to send a transfer has failed, before it began or in the middle. Gives the transfer's number if it had begun.
    pub(crate) fn failed(&self, now: Instant, link: u64, ticket: Ticket, error: Error) -> Result<Option<u64>> {
        self.with(|state| state.failed(now, link, ticket, error))
    }

    /// A link from another server is open.
    pub(crate) fn opened(&self, incarnation: u64) {
        let mut state = lock(&self.state);
        let source = state.sources.entry(incarnation).or_default();
        source.0 += 1;
        source.1 = None;
    }

    /// A link from another server is over. What was to come on it will not.
    pub(crate) fn lost(&self, now: Instant, link: u64, incarnation: u64, why: &str) {
        self.with(|state| state.lost(now, link, incarnation, why));
    }

    /// Nothing that came on a link is wanted any more: its session was taken up again.
    pub(crate) fn forget(&self, link: u64) {
        self.with(|state| {
            for key in state.keys(|slot| slot.kind.link() == Some(link)) {
                state.cancel(key);
            }
        });
    }

    /// Ends what has waited for too long; what came and was not accepted is to be refused.
    pub(crate) fn expire(&self, now: Instant) -> Vec<Refusal> {
        self.with(|state| state.expire(now, &self.limits))
    }

    /// A queue is gone: nobody waits for what it accepted.
    pub(crate) fn end_queue(&self, queue: u64) {
        self.with(|state| {
            for key in state.keys(|slot| slot.kind.queue() == Some(queue)) {
                state.cancel(key);
            }
        });
    }

    /// The session is gone, and all that was kept for it. Nothing more is taken.
    pub(crate) fn end(&self) {
        self.with(|state| {
            state.ended = true;
            for key in state.keys(|_| true) {
                state.cancel(key);
            }
            state.used = HashSet::new();
            state.used_order = VecDeque::new();
            state.sources = HashMap::new();
            state.refusals = Vec::new();
        });
    }

    /// Whether nothing waits and nothing is kept.
    #[cfg(test)]
    fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        (state.room.bytes, state.room.count, state.wanted) == (0, 0, 0) && state.slots.is_empty()
    }
}

impl Kind {
    /// The queue that has accepted it.
    fn queue(&self) -> Option<u64> {
        match self {
            Kind::Wanted(wanted) | Kind::Coming(Coming { wanted: Some(wanted), .. }) => Some(wanted.queue),
            Kind::Failed { queue, .. } => Some(*queue),
            _ => None,
        }
    }

    /// The link that something of it came on.
    fn link(&self) -> Option<u64> {
        match self {
            Kind::Coming(coming) => Some(coming.via.link),
            Kind::Lost { link, .. } => Some(*link),
            _ => None,
        }
    }
}

impl State {
    fn keys(&self, of: impl Fn(&Slot) -> bool) -> Vec<Key> {
        self.slots.iter().filter(|(_, slot)| of(slot)).map(|(key, _)| *key).collect()
    }

    fn expect(&mut self, now: Instant, ticket: Ticket, wanted: Wanted) -> Result<()> {
        let key = Key::new(&ticket);
        let Some(slot) = self.slots.get_mut(&key) else {
            if self.used.contains(&key) {
                return Err(named(used_twice(), &wanted.source));
            }
            self.count_wanted()?;
            let kind = Kind::Wanted(Acceptance::new(wanted));
            self.slots.insert(key, Slot { ticket, since: now, kind });
            return Ok(());
        };
        if !same(&slot.ticket, &ticket) {
            return Err(Error::Request("a transfer ticket was not random".into()));
        }
        match &mut slot.kind {
            Kind::Coming(Coming { wanted: Some(_), .. }) | Kind::Wanted(_) | Kind::Failed { .. } | Kind::Unwanted => {
                Err(named(used_twice(), &wanted.source))
            }
            Kind::Coming(coming) if coming.size != wanted.size => {
                let error = wrong_size(coming.size, wanted.size);
                let via = coming.via;
                self.finish(key);
                self.refusals.push(Refusal { via, error: error.clone() });
                Err(named(error, &wanted.source))
            }
            Kind::Coming(_) => {
                self.count_wanted()?;
                self.accept(key, wanted);
                Ok(())
            }
            Kind::Lost { error, .. } => {
                let error = named(error.clone(), &wanted.source);
                let Acceptance { first, rest, queue, .. } = Acceptance::new(wanted);
                self.done.extend(first.map(|piece| (piece.to, Err(error.clone()))));
                if rest == 0 {
                    self.finish(key);
                    return Ok(());
                }
                self.count_wanted()?;
                self.room.give(0, 1);
                self.slots.insert(key, Slot { ticket, since: now, kind: Kind::Failed { error, queue } });
                Ok(())
            }
        }
    }

    /// One more slot of a queue.
    fn count_wanted(&mut self) -> Result<()> {
        if self.ended {
            return Err(Error::Cancelled);
        }
        if self.wanted >= WANTED {
            return Err(Error::Request(format!("{WANTED} transfers are accepted already and have not come")));
        }
        self.wanted += 1;
        Ok(())
    }

    /// Takes what is coming off the room that it had, and gives it to those who have accepted it.
    fn accept(&mut self, key: Key, wanted: Wanted) {
        let Some(Slot { kind: Kind::Coming(coming), .. }) = self.slots.get_mut(&key) else { return };
        coming.wanted = Some(Acceptance::new(wanted));
        self.room.give(coming.room, 1);
        coming.room = 0;
        // It had room for all of it, so that there is some for a part.
        if let Err(error) = self.hand_over(key) {
            self.fail(key, error);
        }
    }

    fn more(&mut self, key: Key, piece: Piece) -> Result<()> {
        let Some(slot) = self.slots.get_mut(&key) else { return Err(Error::Cancelled) };
        let wanted = match &mut slot.kind {
            Kind::Wanted(wanted) | Kind::Coming(Coming { wanted: Some(wanted), .. }) => wanted,
            Kind::Failed { error, .. } => {
                let error = error.clone();
                self.finish(key);
                return Err(error);
            }
            _ => return Err(Error::Cancelled),
        };
        wanted.rest = wanted.rest.saturating_sub(piece.len);
        match wanted.first {
            Some(_) => wanted.more.push_back(piece),
            None => wanted.first = Some(piece),
        }
        if let Err(error) = self.hand_over(key) {
            self.fail(key, error);
        }
        Ok(())
    }

    /// Gives what is there to those who wait for it, ends the transfer behind the last byte, and settles its room.
    fn hand_over(&mut self, key: Key) -> Result<()> {
        let Some(Slot { kind: Kind::Coming(coming), .. }) = self.slots.get_mut(&key) else { return Ok(()) };
        let Some(mut wanted) = coming.wanted.take() else { return Ok(()) };
        while let Some(piece) = wanted.next(coming.held) {
            self.done.push((piece.to, Ok(coming.split(piece.len))));
        }
        let over = wanted.rest == 0 && wanted.first.is_none();
        let beyond = coming.held.saturating_sub(wanted.asked());
        coming.wanted = Some(wanted);
        if over {
            self.finish(key);
            return Ok(());
        }
        if beyond <= coming.room {
            self.room.give(coming.room - beyond, 0);
        } else {
            self.room.take(beyond - coming.room, 0)?;
        }
        coming.room = beyond;
        Ok(())
    }

    fn discard(&mut self, now: Instant, ticket: Ticket) {
        let key = Key::new(&ticket);
        match self.slots.get(&key).map(|slot| &slot.kind) {
            None if self.used.contains(&key) => {}
            None => {
                if self.count_wanted().is_ok() {
                    self.slots.insert(key, Slot { ticket, since: now, kind: Kind::Unwanted });
                }
            }
            Some(Kind::Coming(Coming { wanted: None, .. }) | Kind::Lost { .. }) => drop(self.finish(key)),
            Some(_) => {}
        }
    }

    fn push(&mut self, now: Instant, via: Via, ticket: Ticket, size: u64) -> Result<(Key, bool)> {
        if self.ended {
            return Err(Error::Cancelled);
        }
        let key = Key::new(&ticket);
        let coming = |wanted, room| {
            let (parts, small, got, held) = (VecDeque::new(), BytesMut::new(), 0, 0);
            Kind::Coming(Coming { via, size, got, parts, small, held, room, wanted })
        };
        let Some(slot) = self.slots.get_mut(&key) else {
            if self.used.contains(&key) {
                return Err(used_twice());
            }
            self.room.take(size, 1)?;
            self.slots.insert(key, Slot { ticket, since: now, kind: coming(None, size) });
            return Ok((key, true));
        };
        if !same(&slot.ticket, &ticket) {
            return Err(Error::Request("that is not a ticket of this session".into()));
        }
        match std::mem::replace(&mut slot.kind, Kind::Unwanted) {
            Kind::Wanted(wanted) if wanted.size == size => {
                slot.kind = coming(Some(wanted), 0);
                slot.since = now;
                self.hand_over(key)?;
                Ok((key, false))
            }
            Kind::Wanted(wanted) => {
                let error = wrong_size(size, wanted.size);
                slot.kind = Kind::Wanted(wanted);
                self.fail(key, error.clone());
                Err(error)
            }
            Kind::Unwanted => {
                self.finish(key);
                Err(Error::Cancelled)
            }
            kind => {
                slot.kind = kind;
                Err(used_twice())
            }
        }
    }

    fn data(&mut self, now: Instant, via: Via, key: Key, data: Bytes, is_small: bool) -> Result<bool> {
        let Some(slot) = self.slots.get_mut(&key) else { return Err(Error::Cancelled) };
        let Kind::Coming(coming) = &mut slot.kind else { return Err(Error::Cancelled) };
        if coming.via != via {
            return Err(Error::Cancelled);
        }
        let len = data.len() as u64;
        coming.got += len;
        if coming.got > coming.size {
            let error = Error::Request(format!("more than the {} bytes that were announced", coming.size));
            self.fail(key, error.clone());
            return Err(error);
        }
        let done = coming.got == coming.size;
        coming.keep(data, is_small);
        slot.since = now;
        if let Err(error) = self.hand_over(key) {
            self.fail(key, error.clone());
            return Err(error);
        }
        Ok(done)
    }

    fn failed(&mut self, now: Instant, link: u64, ticket: Ticket, error: Error) -> Result<Option<u64>> {
        let key = Key::new(&ticket);
        let Some(slot) = self.slots.get(&key) else {
            if !self.ended && !self.used.contains(&key) {
                self.room.take(0, 1)?;
                self.slots.insert(key, Slot { ticket, since: now, kind: Kind::Lost { error, link } });
            }
            return Ok(None);
        };
        if !same(&slot.ticket, &ticket) {
            return Ok(None);
        }
        let begun = match &slot.kind {
            Kind::Wanted(_) => None,
            Kind::Coming(coming) if coming.via.link == link && coming.got < coming.size => Some(coming.via.transfer),
            _ => return Ok(None),
        };
        self.fail(key, error);
        Ok(begun)
    }

    fn lost(&mut self, now: Instant, link: u64, incarnation: u64, why: &str) {
        if let Some(source) = self.sources.get_mut(&incarnation) {
            source.0 = source.0.saturating_sub(1);
            source.1 = (source.0 == 0).then_some(now);
        }
        let hit = |slot: &Slot| match &slot.kind {
            Kind::Wanted(wanted) => wanted.source.incarnation == incarnation,
            Kind::Coming(coming) => coming.via.link == link && coming.got < coming.size,
            _ => false,
        };
        for key in self.keys(hit) {
            self.fail(key, blame(format!("the connection that tensors come on was lost: {why}")));
        }
    }

    fn expire(&mut self, now: Instant, limits: &PeerLimits) -> Vec<Refusal> {
        let (mut late, mut old) = (Vec::new(), Vec::new());
        let mut refusals = std::mem::take(&mut self.refusals);
        for (key, slot) in &self.slots {
            let age = now.saturating_duration_since(slot.since);
            let secs = age.as_secs_f64();
            match &slot.kind {
                Kind::Wanted(wanted) => late.extend(self.overdue(now, age, wanted, limits).map(|why| (*key, why))),
                Kind::Coming(Coming { size, got, via, .. }) if got < size && age >= STALLED => {
                    let why = format!("a tensor stopped coming for {secs:.1} s, {got} of {size} bytes were there");
                    refusals.push(Refusal { via: *via, error: Error::Request(why.clone()) });
                    late.push((*key, why));
                }
                Kind::Coming(Coming { size, got, via, wanted: None, .. }) if got == size && age >= limits.push => {
                    let why = format!("a tensor was not accepted within {secs:.1} s");
                    refusals.push(Refusal { via: *via, error: Error::Request(why.clone()) });
                    late.push((*key, why));
                }
                Kind::Lost { .. } if age >= limits.push => old.push(*key),
                Kind::Unwanted | Kind::Failed { .. } if age >= limits.accept => old.push(*key),
                _ => {}
            }
        }
        for (key, why) in late {
            self.fail(key, blame(why));
            if let Some(slot) = self.slots.get_mut(&key) {
                slot.since = now;
            }
        }
        for key in old {
            self.finish(key);
        }
        let kept = limits.no_link * 2;
        let recent = |gone: Option<Instant>| gone.is_some_and(|at| now.saturating_duration_since(at) < kept);
        self.sources.retain(|_, (open, gone)| *open > 0 || recent(*gone));
        refusals
    }

    /// Why what a queue waits for will not come any more, if it has waited for too long.
    fn overdue(&self, now: Instant, age: Duration, wanted: &Acceptance, limits: &PeerLimits) -> Option<String> {
        let (open, gone) = self.sources.get(&wanted.source.incarnation).copied().unwrap_or_default();
        let without = gone.map_or(age, |at| age.min(now.saturating_duration_since(at)));
        if open == 0 && without >= limits.no_link {
            return Some(format!("it has not connected to send a tensor within {:.1} s", without.as_secs_f64()));
        }
        let secs = age.as_secs_f64();
        (age >= limits.accept).then(|| format!("a tensor that it was to send did not come within {secs:.1} s"))
    }

    /// Ends a transfer, whatever it is; its ticket is used. Gives what it was.
    fn finish(&mut self, key: Key) -> Option<Kind> {
        let kind = self.slots.remove(&key)?.kind;
        match &kind {
            Kind::Wanted(_) | Kind::Unwanted | Kind::Failed { .. } => self.wanted = self.wanted.saturating_sub(1),
            Kind::Coming(Coming { wanted: Some(_), room, .. }) => {
                self.wanted = self.wanted.saturating_sub(1);
                self.room.give(*room, 0);
            }
            Kind::Coming(Coming { wanted: None, room, .. }) => self.room.give(*room, 1),
            Kind::Lost { .. } => self.room.give(0, 1),
        }
        self.used.insert(key);
        self.used_order.push_back(key);
        if self.used_order.len() > USED_TICKETS
            && let Some(old) = self.used_order.pop_front()
        {
            self.used.remove(&old);
        }
        Some(kind)
    }

    /// Ends a transfer that nobody wants any more, and tells those who wait.
    fn cancel(&mut self, key: Key) {
        if let Some(Kind::Wanted(wanted) | Kind::Coming(Coming { wanted: Some(wanted), .. })) = self.finish(key) {
            let waiting = wanted.first.into_iter().chain(wanted.more);
            self.done.extend(waiting.map(|piece| (piece.to, Err(Error::Cancelled))));
        }
    }

    /// Ends a transfer with an error. It is kept for whoever has not accepted it yet, or has not asked for all of it.
    fn fail(&mut self, key: Key, error: Error) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        match std::mem::replace(&mut slot.kind, Kind::Unwanted) {
            Kind::Wanted(wanted) => self.fail_accepted(key, wanted, 0, error),
            Kind::Coming(Coming { wanted: Some(wanted), room, .. }) => self.fail_accepted(key, wanted, room, error),
            Kind::Coming(Coming { wanted: None, room, via, .. }) => {
                slot.kind = Kind::Lost { error, link: via.link };
                self.room.give(room, 0);
            }
            kind => slot.kind = kind,
        }
    }

    /// The same for one that is accepted and had so much of the room; its slot counts as one of its queue.
    fn fail_accepted(&mut self, key: Key, wanted: Acceptance, room: u64, error: Error) {
        let error = named(error, &wanted.source);
        let Acceptance { first, more, rest, queue, .. } = wanted;
        self.room.give(room, 0);
        self.done.extend(first.into_iter().chain(more).map(|piece| (piece.to, Err(error.clone()))));
        if rest == 0 {
            self.finish(key);
        } else if let Some(slot) = self.slots.get_mut(&key) {
            slot.kind = Kind::Failed { error, queue };
        }
    }
}

#[cfg(test)]
#[path = "inbox_tests.rs"]
mod tests;
