//! What other servers send, and what queues wait for: brought together by ticket, whichever comes first. No I/O; time is an
//! argument.

use crate::limits::PeerLimits;
use crate::lock;
use bytes::Bytes;
use outboard_core::device::Completer;
use outboard_core::{Error, Result, Ticket};
use outboard_proto::error;
use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;

/// Bytes that came and are not accepted, of all sessions and connections together.
const MAX_EARLY: Room = Room { bytes: 2 << 30, count: 16 << 10 };
/// The same for one connection from another server.
const MAX_EARLY_CONN: Room = Room { bytes: 1 << 30, count: 8 << 10 };
/// The same for one session: twice what a client hands over before it waits.
const MAX_EARLY_SESSION: Room = Room { bytes: 512 << 20, count: 2 << 10 };
/// Transfers of one session that are accepted and have not come.
const MAX_WANTED: usize = 8 << 10;
/// Tickets that are remembered after their use, of all sessions together.
const MAX_USED: usize = 8 << 10;
/// A transfer of which nothing more comes for this long, while its connection lives, has failed.
const STALLED: Duration = Duration::from_secs(10);
/// Pieces up to this many bytes are copied, so that they do not keep the larger buffer that they came in.
const SMALL: usize = 4 << 10;

/// What is kept, or may be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Room {
    bytes: u64,
    count: u64,
}

impl Room {
    fn fits(&self, size: u64, limit: Room) -> bool {
        self.count < limit.count && self.bytes.saturating_add(size) <= limit.bytes
    }

    fn add(&mut self, size: u64) {
        self.bytes += size;
        self.count += 1;
    }

    fn remove(&mut self, size: u64) {
        self.bytes = self.bytes.saturating_sub(size);
        self.count = self.count.saturating_sub(1);
    }
}

/// Where a slot is found: the session and the first bytes of the ticket. The rest proves that it is the right one, and is
/// compared in constant time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    session: u64,
    first: [u8; 8],
}

impl Key {
    fn new(session: u64, ticket: &Ticket) -> Key {
        let mut first = [0; 8];
        first.iter_mut().zip(ticket.0).for_each(|(to, from)| *to = from);
        Key { session, first }
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

/// An accepted transfer: who waits for it, and how much it is.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) to: Completer<Vec<Bytes>>,
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

/// Which connection a transfer came on, its number there, and the number of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Via {
    pub(crate) conn: u64,
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
    Wanted(Wanted),
    /// Its bytes are coming. What is not accepted counts as early.
    Coming { via: Via, size: u64, got: u64, parts: Vec<Bytes>, wanted: Option<Wanted> },
    /// All has come, or will not come; it is not accepted yet.
    Early { via: Via, size: u64, content: Result<Vec<Bytes>> },
    /// Its queue has failed: what comes is dropped.
    Unwanted,
}

#[derive(Debug, Default)]
struct State {
    slots: HashMap<Key, Slot>,
    /// Tickets that cannot be used again; if a transfer failed before anybody accepted it, with the reason.
    used: HashMap<Key, Option<Error>>,
    used_order: VecDeque<Key>,
    early: Room,
    early_conns: HashMap<u64, Room>,
    early_sessions: HashMap<u64, Room>,
    wanted: HashMap<u64, usize>,
    /// To be said to their senders.
    refusals: Vec<Refusal>,
    /// Connections that are open from each incarnation, and since when there is none.
    sources: HashMap<u64, (usize, Option<Instant>)>,
}

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
    pub(crate) fn new(limits: PeerLimits) -> Inbox {
        Inbox { limits, state: Mutex::default() }
    }

    /// A queue accepts a transfer. What has come already is handed over now.
    pub(crate) fn expect(&self, now: Instant, session: u64, ticket: Ticket, wanted: Wanted) -> Result<()> {
        let mut state = lock(&self.state);
        let key = Key::new(session, &ticket);
        let Some(slot) = state.slots.get_mut(&key) else {
            match state.used.get(&key) {
                Some(Some(error)) => {
                    wanted.to.complete(Err(named(error.clone(), &wanted.source)));
                    return Ok(());
                }
                Some(None) => return Err(named(used_twice(), &wanted.source)),
                None => {}
            }
            let count = state.wanted.entry(session).or_default();
            if *count >= MAX_WANTED {
                return Err(Error::Request(format!("{MAX_WANTED} transfers are accepted already and have not come")));
            }
            *count += 1;
            state.slots.insert(key, Slot { ticket, since: now, kind: Kind::Wanted(wanted) });
            return Ok(());
        };
        if !same(&slot.ticket, &ticket) {
            return Err(Error::Request("a transfer ticket was not random".into()));
        }
        match &mut slot.kind {
            Kind::Coming { via, size, wanted: owner @ None, .. } => {
                if *size != wanted.size {
                    let error = wrong_size(*size, wanted.size);
                    let via = *via;
                    state.fail(key, error.clone());
                    state.refusals.push(Refusal { via, error: error.clone() });
                    return Err(named(error, &wanted.source));
                }
                let (conn, size) = (via.conn, *size);
                *owner = Some(wanted);
                state.release(session, conn, size);
                *state.wanted.entry(session).or_default() += 1;
                Ok(())
            }
            Kind::Early { .. } => {
                let Some(Kind::Early { via, size, content }) = state.finish(key) else { return Ok(()) };
                if content.is_ok() && size != wanted.size {
                    let error = wrong_size(size, wanted.size);
                    state.refusals.push(Refusal { via, error: error.clone() });
                    return Err(named(error, &wanted.source));
                }
                drop(state);
                let content = content.map_err(|e| named(e, &wanted.source));
                wanted.to.complete(content);
                Ok(())
            }
            _ => Err(named(used_twice(), &wanted.source)),
        }
    }

    /// The acceptance of a transfer comes to nothing: its bytes are dropped when they come.
    pub(crate) fn discard(&self, now: Instant, session: u64, ticket: Ticket) {
        let mut state = lock(&self.state);
        let key = Key::new(session, &ticket);
        match state.slots.get(&key).map(|slot| &slot.kind) {
            None => {
                let count = state.wanted.entry(session).or_default();
                if *count < MAX_WANTED {
                    *count += 1;
                    state.slots.insert(key, Slot { ticket, since: now, kind: Kind::Unwanted });
                }
            }
            Some(Kind::Early { .. } | Kind::Coming { wanted: None, .. }) => drop(state.finish(key)),
            Some(_) => {}
        }
    }

    /// Whether something has come under a ticket, and on which connection if that is still known.
    pub(crate) fn has(&self, session: u64, ticket: &Ticket) -> Option<Option<u64>> {
        let state = lock(&self.state);
        let key = Key::new(session, ticket);
        let Some(slot) = state.slots.get(&key) else { return state.used.contains_key(&key).then_some(None) };
        if !same(&slot.ticket, ticket) {
            return None;
        }
        match &slot.kind {
            Kind::Wanted(_) => None,
            Kind::Coming { via, .. } | Kind::Early { via, .. } => Some(Some(via.conn)),
            Kind::Unwanted => Some(None),
        }
    }

    /// A transfer begins; `true` if nobody has accepted it yet. An error is to be told to its sender; its bytes are to be dropped.
    pub(crate) fn push(&self, now: Instant, via: Via, session: u64, ticket: Ticket, size: u64) -> Result<(Key, bool)> {
        let mut state = lock(&self.state);
        let key = Key::new(session, &ticket);
        let Some(slot) = state.slots.get_mut(&key) else {
            if state.used.contains_key(&key) {
                return Err(used_twice());
            }
            state.reserve(session, via.conn, size)?;
            let kind = Kind::Coming { via, size, got: 0, parts: Vec::new(), wanted: None };
            state.slots.insert(key, Slot { ticket, since: now, kind });
            state.arrived(key);
            return Ok((key, true));
        };
        if !same(&slot.ticket, &ticket) {
            return Err(Error::Request("that is not a ticket of this session".into()));
        }
        match std::mem::replace(&mut slot.kind, Kind::Unwanted) {
            Kind::Wanted(wanted) if wanted.size == size => {
                slot.kind = Kind::Coming { via, size, got: 0, parts: Vec::new(), wanted: Some(wanted) };
                slot.since = now;
                if let Some((wanted, parts)) = state.arrived(key) {
                    drop(state);
                    wanted.to.complete(Ok(parts));
                }
                Ok((key, false))
            }
            Kind::Wanted(wanted) => {
                let error = wrong_size(size, wanted.size);
                slot.kind = Kind::Wanted(wanted);
                state.fail(key, error.clone());
                Err(error)
            }
            Kind::Unwanted => {
                slot.kind = Kind::Unwanted;
                state.finish(key);
                Err(Error::Cancelled)
            }
            kind => {
                slot.kind = kind;
                Err(used_twice())
            }
        }
    }

    /// The next bytes of a transfer; `true` after the last ones.
    pub(crate) fn data(&self, now: Instant, via: Via, key: Key, data: Bytes) -> Result<bool> {
        let data = if data.len() <= SMALL { Bytes::copy_from_slice(&data) } else { data };
        let mut state = lock(&self.state);
        let Some(slot) = state.slots.get_mut(&key) else { return Err(Error::Cancelled) };
        let Kind::Coming { via: of, size, got, parts, .. } = &mut slot.kind else { return Err(Error::Cancelled) };
        if *of != via {
            return Err(Error::Cancelled);
        }
        *got += data.len() as u64;
        if *got > *size {
            let error = Error::Request(format!("more than the {size} bytes that were announced"));
            state.fail(key, error.clone());
            return Err(error);
        }
        let done = *got == *size;
        parts.push(data);
        slot.since = now;
        if done && let Some((wanted, parts)) = state.arrived(key) {
            drop(state);
            wanted.to.complete(Ok(parts));
        }
        Ok(done)
    }

    /// The queue that was to send a transfer has failed.
    pub(crate) fn failed(&self, now: Instant, conn: u64, session: u64, ticket: Ticket, error: Error) -> Result<()> {
        let mut state = lock(&self.state);
        let key = Key::new(session, &ticket);
        match state.slots.get(&key) {
            None if state.used.contains_key(&key) => {}
            None => {
                state.reserve(session, conn, 0)?;
                let kind = Kind::Early { via: Via { conn, transfer: 0, queue: 0 }, size: 0, content: Err(error) };
                state.slots.insert(key, Slot { ticket, since: now, kind });
            }
            Some(slot) if same(&slot.ticket, &ticket) && matches!(slot.kind, Kind::Wanted(_)) => {
                state.fail(key, error);
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// A connection from another server is open.
    pub(crate) fn opened(&self, incarnation: u64) {
        let mut state = lock(&self.state);
        let source = state.sources.entry(incarnation).or_default();
        source.0 += 1;
        source.1 = None;
    }

    /// A connection from another server is over. What was to come on it will not.
    pub(crate) fn lost(&self, now: Instant, conn: u64, incarnation: u64, why: &str) {
        let mut state = lock(&self.state);
        if let Some(source) = state.sources.get_mut(&incarnation) {
            source.0 = source.0.saturating_sub(1);
            source.1 = (source.0 == 0).then_some(now);
        }
        let hit = |slot: &Slot| match &slot.kind {
            Kind::Wanted(wanted) => wanted.source.incarnation == incarnation,
            Kind::Coming { via, .. } => via.conn == conn,
            _ => false,
        };
        for key in state.keys(|_, slot| hit(slot)) {
            state.fail(key, blame(format!("the connection that tensors come on was lost: {why}")));
        }
    }

    /// Ends what has waited for too long; what came and was not accepted is to be refused.
    pub(crate) fn expire(&self, now: Instant) -> Vec<Refusal> {
        let mut state = lock(&self.state);
        let (mut late, mut refusals) = (Vec::new(), std::mem::take(&mut state.refusals));
        for (key, slot) in &state.slots {
            let age = now.saturating_duration_since(slot.since);
            let secs = age.as_secs_f64();
            let why = match &slot.kind {
                Kind::Wanted(wanted) => {
                    let (open, gone) = state.sources.get(&wanted.source.incarnation).copied().unwrap_or_default();
                    let without = gone.map_or(age, |at| age.min(now.saturating_duration_since(at)));
                    if open == 0 && without >= self.limits.no_link {
                        Some(format!("it has not connected to send a tensor within {:.1} s", without.as_secs_f64()))
                    } else if age >= self.limits.accept {
                        Some(format!("a tensor that it was to send did not come within {secs:.1} s"))
                    } else {
                        None
                    }
                }
                Kind::Coming { size, got, via, .. } if age >= STALLED => {
                    let why = format!("a tensor stopped coming for {secs:.1} s, {got} of {size} bytes were there");
                    refusals.push(Refusal { via: *via, error: Error::Request(why.clone()) });
                    Some(why)
                }
                Kind::Early { via, .. } if age >= self.limits.push => {
                    let why = format!("a tensor was not accepted within {secs:.1} s");
                    refusals.push(Refusal { via: *via, error: Error::Request(why.clone()) });
                    Some(why)
                }
                Kind::Unwanted if age >= self.limits.accept => Some(String::new()),
                _ => None,
            };
            late.extend(why.map(|why| (*key, why)));
        }
        for (key, why) in late {
            state.fail(key, blame(why));
        }
        let live: Vec<u64> = state.sources.iter().filter(|(_, s)| s.0 > 0).map(|(&i, _)| i).collect();
        let kept = self.limits.no_link * 2;
        state.sources.retain(|i, s| live.contains(i) || s.1.is_some_and(|at| now.saturating_duration_since(at) < kept));
        refusals
    }

    /// A queue is gone: nobody waits for what it accepted.
    pub(crate) fn end_queue(&self, session: u64, queue: u64) {
        let mut state = lock(&self.state);
        let of = |slot: &Slot| slot.kind.wanted().is_some_and(|wanted| wanted.queue == queue);
        let keys = state.keys(|key, slot| key.session == session && of(slot));
        keys.into_iter().for_each(|key| state.fail(key, Error::Cancelled));
    }

    /// A session is gone, and all that was kept for it.
    pub(crate) fn end_session(&self, session: u64) {
        let mut state = lock(&self.state);
        let keys = state.keys(|key, _| key.session == session);
        keys.into_iter().for_each(|key| state.fail(key, Error::Cancelled));
        state.used.retain(|key, _| key.session != session);
        state.used_order.retain(|key| key.session != session);
    }

    /// Whether nothing waits and nothing is kept.
    #[cfg(test)]
    fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        let idle = state.early == Room::default() && state.early_conns.is_empty() && state.early_sessions.is_empty();
        idle && state.wanted.is_empty()
    }
}

impl Kind {
    fn wanted(&self) -> Option<&Wanted> {
        match self {
            Kind::Wanted(wanted) | Kind::Coming { wanted: Some(wanted), .. } => Some(wanted),
            _ => None,
        }
    }
}

impl State {
    fn keys(&self, of: impl Fn(&Key, &Slot) -> bool) -> Vec<Key> {
        self.slots.iter().filter(|(key, slot)| of(key, slot)).map(|(key, _)| *key).collect()
    }

    /// Takes room for what is not accepted yet.
    fn reserve(&mut self, session: u64, conn: u64, size: u64) -> Result<()> {
        let of_conn = self.early_conns.get(&conn).copied().unwrap_or_default();
        let of_session = self.early_sessions.get(&session).copied().unwrap_or_default();
        if !self.early.fits(size, MAX_EARLY)
            || !of_conn.fits(size, MAX_EARLY_CONN)
            || !of_session.fits(size, MAX_EARLY_SESSION)
        {
            let Room { bytes, count } = of_session;
            return Err(Error::Request(format!(
                "no room for {size} bytes that nobody accepts: {count} transfers of {bytes} bytes wait already"
            )));
        }
        self.early.add(size);
        self.early_conns.entry(conn).or_default().add(size);
        self.early_sessions.entry(session).or_default().add(size);
        Ok(())
    }

    fn release(&mut self, session: u64, conn: u64, size: u64) {
        self.early.remove(size);
        if let Some(room) = self.early_conns.get_mut(&conn) {
            room.remove(size);
            if room.count == 0 {
                self.early_conns.remove(&conn);
            }
        }
        if let Some(room) = self.early_sessions.get_mut(&session) {
            room.remove(size);
            if room.count == 0 {
                self.early_sessions.remove(&session);
            }
        }
    }

    /// Ends a transfer, whatever it is; its ticket is used. Gives what it was.
    fn finish(&mut self, key: Key) -> Option<Kind> {
        let kind = self.slots.remove(&key)?.kind;
        match &kind {
            Kind::Wanted(_) | Kind::Unwanted | Kind::Coming { wanted: Some(_), .. } => {
                if let Some(count) = self.wanted.get_mut(&key.session) {
                    *count = count.saturating_sub(1);
                    if *count == 0 {
                        self.wanted.remove(&key.session);
                    }
                }
            }
            Kind::Coming { via, size, wanted: None, .. } | Kind::Early { via, size, .. } => {
                self.release(key.session, via.conn, *size);
            }
        }
        self.used.insert(key, None);
        self.used_order.push_back(key);
        if self.used_order.len() > MAX_USED
            && let Some(old) = self.used_order.pop_front()
        {
            self.used.remove(&old);
        }
        Some(kind)
    }

    /// If all bytes of a transfer are there: gives them with whoever accepted it, or keeps them.
    fn arrived(&mut self, key: Key) -> Option<(Wanted, Vec<Bytes>)> {
        let slot = self.slots.get_mut(&key)?;
        let Kind::Coming { via, size, got, parts, wanted } = &mut slot.kind else { return None };
        if got != size {
            return None;
        }
        if wanted.is_none() {
            let content = Ok(std::mem::take(parts));
            slot.kind = Kind::Early { via: *via, size: *size, content };
            return None;
        }
        match self.finish(key) {
            Some(Kind::Coming { parts, wanted: Some(wanted), .. }) => Some((wanted, parts)),
            _ => None,
        }
    }

    /// Ends a transfer with an error. What nobody has accepted yet keeps it for its acceptance, for as long as its ticket is
    /// remembered.
    fn fail(&mut self, key: Key, error: Error) {
        match self.finish(key) {
            Some(Kind::Wanted(wanted) | Kind::Coming { wanted: Some(wanted), .. }) => {
                let error = named(error, &wanted.source);
                wanted.to.complete(Err(error));
            }
            Some(_) => drop(self.used.insert(key, Some(error))),
            None => {}
        }
    }
}

#[cfg(test)]
#[path = "inbox_tests.rs"]
mod tests;
