//! Every order in which a transfer can be accepted, come, fail and be late, without a network.

use super::transfer::Transfer;
use super::*;
use crate::limits::{INBOX_BYTES, INBOX_BYTES_PER_SESSION, INBOX_COUNT, INBOX_COUNT_PER_SESSION, SMALL_PIECE};
use outboard_core::Pending;
use std::time::Duration;

const A: u64 = 77;
const MIB: u64 = 1 << 20;

struct Rig {
    inbox: Inbox,
    room: Arc<SharedRoom>,
    now: Instant,
}

fn via(transfer: u64) -> Via {
    Via { link: 1, transfer, queue: 9 }
}

fn t(n: u8) -> Ticket {
    Ticket([n; 32])
}

fn key_of(begun: Begun) -> Key {
    let (Begun::Accepted(key) | Begun::Early(key)) = begun;
    key
}

fn text(bytes: &[Bytes]) -> String {
    String::from_utf8(bytes.concat()).unwrap()
}

impl Rig {
    fn new() -> Rig {
        let secs = Duration::from_secs;
        let limits = PeerLimits { accept: secs(100), push: secs(50), no_link: secs(5) };
        let room = SharedRoom::new();
        let rig = Rig { inbox: Inbox::new(limits, &room, 1), room, now: Instant::now() };
        rig.inbox.link_opened(A);
        rig
    }

    /// Another session, of this client or another one.
    fn other(&self, account: u64) -> Rig {
        let inbox = Inbox::new(self.inbox.limits.clone(), &self.room, account);
        inbox.link_opened(A);
        Rig { inbox, room: self.room.clone(), now: self.now }
    }

    /// Bytes and tensors that take room, of all sessions.
    fn taken(&self) -> (u64, u64) {
        self.room.taken()
    }

    fn accept(&self, ticket: Ticket, size: u64) -> Result<Pending<Vec<Bytes>>> {
        self.accept_first(ticket, size, size)
    }

    /// Accepts a tensor in pieces, of which the first has so many bytes.
    fn accept_first(&self, ticket: Ticket, size: u64, len: u64) -> Result<Pending<Vec<Bytes>>> {
        let (to, pending) = Pending::new("a device");
        let source = Source { name: "a:1".into(), incarnation: A };
        let first = Waiter { to, len };
        self.inbox.accept(self.now, ticket, Acceptance { first, size, queue: 3, source })?;
        Ok(pending)
    }

    fn accept_more(&self, ticket: Ticket, len: u64) -> Result<Pending<Vec<Bytes>>> {
        let (to, pending) = Pending::new("a device");
        self.inbox.accept_more(&ticket, Waiter { to, len })?;
        Ok(pending)
    }

    fn begin(&self, transfer: u64, ticket: Ticket, size: u64) -> Result<Key> {
        self.inbox.push(self.now, via(transfer), ticket, size).map(key_of)
    }

    fn data(&self, transfer: u64, key: Key, data: &'static str) -> Result<Progress> {
        self.bytes(transfer, key, Bytes::from_static(data.as_bytes()))
    }

    fn bytes(&self, transfer: u64, key: Key, data: Bytes) -> Result<Progress> {
        let buffer = data.len();
        self.inbox.data(self.now, via(transfer), key, data, buffer)
    }

    fn push(&self, transfer: u64, ticket: Ticket, data: &'static str) -> Result<Progress> {
        let key = self.begin(transfer, ticket, data.len() as u64)?;
        if data.is_empty() { Ok(Progress::Complete) } else { self.data(transfer, key, data) }
    }

    fn later(&mut self, secs: u64) -> Vec<Refusal> {
        self.now += Duration::from_secs(secs);
        self.inbox.expire(self.now)
    }
}

fn got(pending: &mut Pending<Vec<Bytes>>) -> Option<Result<String>> {
    pending.try_take().map(|r| r.map(|parts| text(&parts)))
}

#[test]
fn accepted_before_while_and_after_it_comes() {
    let rig = Rig::new();
    let mut before = rig.accept(t(1), 4).unwrap();
    let key = rig.begin(1, t(1), 4).unwrap();
    assert_eq!(rig.data(1, key, "ab"), Ok(Progress::Coming));
    assert_eq!(got(&mut before), None);
    assert_eq!(rig.data(1, key, "cd"), Ok(Progress::Complete));
    assert_eq!(got(&mut before), Some(Ok("abcd".into())));

    let key = rig.begin(2, t(2), 4).unwrap();
    rig.data(2, key, "ab").unwrap();
    let mut amid = rig.accept(t(2), 4).unwrap();
    rig.data(2, key, "ef").unwrap();
    assert_eq!(got(&mut amid), Some(Ok("abef".into())));

    rig.push(3, t(3), "late").unwrap();
    assert_eq!(rig.inbox.origin(&t(3)), Some(Origin::Link(1)));
    assert_eq!(got(&mut rig.accept(t(3), 4).unwrap()), Some(Ok("late".into())));

    let mut empty = rig.accept(t(4), 0).unwrap();
    rig.push(4, t(4), "").unwrap();
    rig.push(5, t(5), "").unwrap();
    assert_eq!(got(&mut empty), Some(Ok(String::new())));
    assert_eq!(got(&mut rig.accept(t(5), 0).unwrap()), Some(Ok(String::new())));
    assert!(rig.inbox.is_idle());
}

#[test]
fn tickets_are_used_once_and_bound_to_size_and_session() {
    let rig = Rig::new();
    let mut pending = rig.accept(t(1), 4).unwrap();
    assert!(rig.accept(t(1), 4).is_err());
    rig.push(1, t(1), "abcd").unwrap();
    assert!(rig.push(2, t(1), "abcd").is_err() && rig.accept(t(1), 4).is_err());
    assert_eq!(got(&mut pending), Some(Ok("abcd".into())));
    rig.push(3, t(2), "abcd").unwrap();
    assert!(rig.push(4, t(2), "abcd").is_err());
    // Sizes, whoever comes first.
    let mut small = rig.accept(t(3), 3).unwrap();
    assert!(rig.push(5, t(3), "abcd").is_err());
    assert!(got(&mut small).unwrap().unwrap_err().to_string().contains("a:1: a transfer of 4 bytes was accepted as 3"));
    rig.push(6, t(4), "abcd").unwrap();
    assert!(rig.accept(t(4), 3).is_err());
    let key = rig.begin(7, t(5), 4).unwrap();
    assert!(rig.accept(t(5), 5).is_err() && rig.data(7, key, "ab") == Err(Error::Cancelled));
    assert_eq!(rig.inbox.expire(rig.now).iter().map(|r| r.via.transfer).collect::<Vec<_>>(), [6, 7]);
    // More than announced.
    let mut long = rig.accept(t(6), 4).unwrap();
    let key = rig.begin(8, t(6), 4).unwrap();
    assert!(rig.data(8, key, "abcde").is_err());
    assert!(got(&mut long).unwrap().is_err());
    // Another session, and a ticket that begins as another one does.
    assert_eq!(rig.other(1).inbox.origin(&t(2)), None);
    let mut near = [2; 32];
    near[31] = 3;
    assert_eq!(rig.inbox.origin(&Ticket(near)), None);
    assert!(rig.push(9, Ticket(near), "abcd").is_err() && rig.accept(Ticket(near), 4).is_err());
    assert_eq!(got(&mut rig.accept(t(2), 4).unwrap()), Some(Ok("abcd".into())));
    assert!(rig.inbox.is_idle());
}

#[test]
fn each_wait_has_an_end() {
    let mut rig = Rig::new();
    rig.push(1, t(1), "nobody").unwrap();
    let mut never = rig.accept(t(2), 4).unwrap();
    let mut stalls = rig.accept(t(3), 4).unwrap();
    let key = rig.begin(3, t(3), 4).unwrap();
    rig.data(3, key, "ab").unwrap();
    assert!(rig.later(9).is_empty());
    assert_eq!(rig.later(1).iter().map(|r| r.via.transfer).collect::<Vec<_>>(), [3]);
    assert!(got(&mut stalls).unwrap().unwrap_err().to_string().contains("2 of 4 bytes"));
    assert_eq!(rig.later(40).iter().map(|r| (r.via.transfer, r.via.queue)).collect::<Vec<_>>(), [(1, 9)]);
    // Whoever accepts it now learns why it is gone.
    let late = got(&mut rig.accept(t(1), 6).unwrap()).unwrap().unwrap_err().to_string();
    assert!(late.starts_with("a:1: ") && late.contains("not accepted within 50.0 s"), "{late}");
    assert!(got(&mut never).is_none());
    assert!(rig.later(50).is_empty());
    let error = got(&mut never).unwrap().unwrap_err();
    assert!(matches!(&error, Error::Peer { endpoint, .. } if endpoint == "a:1"), "{error}");
    assert!(rig.inbox.is_idle());
}

#[test]
fn a_lost_link_fails_what_was_to_come_on_it() {
    let mut rig = Rig::new();
    let (mut waits, mut comes) = (rig.accept(t(1), 4).unwrap(), rig.accept(t(2), 4).unwrap());
    let key = rig.begin(2, t(2), 4).unwrap();
    let early = rig.begin(3, t(3), 4).unwrap();
    rig.push(4, t(4), "here").unwrap();
    rig.inbox.link_lost(rig.now, 1, A, "cut");
    for pending in [&mut waits, &mut comes] {
        assert!(got(pending).unwrap().unwrap_err().to_string().contains("lost: cut"));
    }
    assert!(rig.data(2, key, "ab").is_err() && rig.data(3, early, "ab").is_err());
    assert!(got(&mut rig.accept(t(3), 4).unwrap()).unwrap().unwrap_err().to_string().contains("lost: cut"));
    // What had come is there.
    assert_eq!(got(&mut rig.accept(t(4), 4).unwrap()), Some(Ok("here".into())));
    // Without a link there is little patience.
    let mut later = rig.accept(t(5), 4).unwrap();
    rig.later(4);
    assert!(got(&mut later).is_none());
    rig.later(1);
    assert!(got(&mut later).unwrap().unwrap_err().to_string().contains("not connected"));
    let mut patient = rig.accept(t(6), 4).unwrap();
    rig.inbox.link_opened(A);
    rig.later(20);
    assert!(got(&mut patient).is_none());
    assert!(rig.push(6, t(6), "back").is_ok());
    assert!(rig.inbox.is_idle());
}

/// Its queue has been told, and its sender has done nothing wrong.
#[test]
fn what_comes_after_its_acceptance_has_failed_is_dropped_once() {
    let mut rig = Rig::new();
    let ends: [&dyn Fn(&mut Rig); 4] = [
        &|rig| rig.inbox.link_lost(rig.now, 1, A, "cut"),
        &|rig| rig.inbox.end_queue(3),
        &|rig| rig.inbox.give_up(&t(1)),
        &|rig| drop(rig.later(100)),
    ];
    for (i, end) in ends.into_iter().enumerate() {
        for first in [4, 2] {
            rig = rig.other(1);
            let _pending = rig.accept_first(t(1), 4, first).unwrap();
            end(&mut rig);
            rig.inbox.link_opened(A);
            assert_eq!(rig.push(1, t(1), "late"), Err(Error::Cancelled), "{i}, {first}");
            assert_eq!(rig.push(2, t(1), "late").unwrap_err(), crate::ticket::used_twice(), "{i}, {first}");
            // The rest may be asked for behind that, or before.
            drop(rig.accept_more(t(1), 2));
            assert!(rig.push(3, t(1), "late").is_err() && rig.accept(t(1), 4).is_err(), "{i}, {first}");
            assert!(rig.inbox.is_idle() && rig.taken() == (0, 0), "{i}, {first}");
        }
    }
    let _pending = rig.accept_first(t(2), 4, 2).unwrap();
    rig.inbox.link_lost(rig.now, 1, A, "cut");
    assert!(rig.accept_more(t(2), 2).is_err());
    assert_eq!(rig.push(4, t(2), "late"), Err(Error::Cancelled));
}

#[test]
fn failures_travel_and_ends_leave_nothing() {
    let mut rig = Rig::new();
    let broken = || Error::Device { device: "GPU0".into(), op: None, detail: "broken".into() };
    let mut waits = rig.accept(t(1), 4).unwrap();
    rig.inbox.failed(rig.now, 1, t(1), broken()).unwrap();
    rig.inbox.failed(rig.now, 1, t(2), broken()).unwrap();
    assert_eq!(got(&mut waits).unwrap().unwrap_err().to_string(), "a:1/GPU0: broken");
    assert_eq!(got(&mut rig.accept(t(2), 4).unwrap()).unwrap().unwrap_err().to_string(), "a:1/GPU0: broken");
    // A queue that has failed wants nothing, whichever comes first.
    rig.inbox.discard(rig.now, t(3));
    assert_eq!(rig.push(3, t(3), "abcd"), Err(Error::Cancelled));
    rig.push(4, t(4), "abcd").unwrap();
    rig.inbox.discard(rig.now, t(4));
    assert!(rig.inbox.is_idle());
    // A queue that ends, a session that ends.
    let mut queue = rig.accept(t(5), 4).unwrap();
    rig.inbox.end_queue(2);
    assert!(got(&mut queue).is_none());
    rig.inbox.end_queue(3);
    assert_eq!(got(&mut queue), Some(Err(Error::Cancelled)));
    let mut session = rig.accept(t(6), 4).unwrap();
    rig.push(7, t(7), "abcd").unwrap();
    rig.begin(8, t(8), 4).unwrap();
    rig.inbox.end();
    assert_eq!(got(&mut session), Some(Err(Error::Cancelled)));
    assert!(rig.later(1000).is_empty() && rig.inbox.is_idle());
    assert!(lock(&rig.inbox.table).slots.is_empty());
}

#[test]
fn what_nobody_accepts_is_bounded() {
    let rig = Rig::new();
    let half = INBOX_BYTES_PER_SESSION / 2;
    let early = |of: &Rig, n: u64, size: u64| of.inbox.push(of.now, via(n), numbered(n), size).map(drop);
    let refused = |result: Result<()>| result.is_err_and(|e| e.to_string().contains("no room"));
    assert!(early(&rig, 1, half).is_ok() && early(&rig, 2, half).is_ok());
    assert!(refused(early(&rig, 3, 1)));
    // Accepted bytes are on the account of their queue.
    let _pending = rig.accept(numbered(1), half).unwrap();
    assert!(early(&rig, 4, half).is_ok());
    for n in 0..2 * INBOX_COUNT_PER_SESSION {
        let result = rig.inbox.failed(rig.now, 2, numbered(1000 + n), Error::Cancelled);
        assert_eq!(result.is_ok(), n < INBOX_COUNT_PER_SESSION - 2, "{n}");
    }
    rig.inbox.end();
    assert_eq!(rig.taken(), (0, 0));
    // Nothing more is kept for a session that has ended.
    assert_eq!(early(&rig, 5000, 1), Err(Error::Cancelled));
    assert!(rig.accept(t(1), 1).is_err() && rig.inbox.failed(rig.now, 1, t(2), Error::Cancelled).is_ok());
    rig.inbox.discard(rig.now, t(3));
    assert!(rig.inbox.is_idle());
}

#[test]
fn no_client_takes_the_room_of_all() {
    let rig = Rig::new();
    let whole = INBOX_BYTES_PER_SESSION;
    let early = |of: &Rig, n: u64, size: u64| of.inbox.push(of.now, via(n), numbered(n), size).map(drop);
    // One client, with as many sessions as it likes.
    let greedy: Vec<Rig> = (0..20).map(|_| rig.other(1)).collect();
    let took = greedy.iter().filter(|session| early(session, 1, whole).is_ok()).count() as u64;
    assert_eq!(took, INBOX_BYTES / whole / 2);
    // There is still some for others, and for those behind them.
    for (account, most) in [(2, whole / 2), (3, whole / 4), (4, whole / 8)] {
        let session = rig.other(account);
        assert!(early(&session, 1, most + 1).is_err() && early(&session, 1, most).is_ok(), "{account}");
        std::mem::forget(session);
    }
    drop(greedy);
    assert!(early(&rig, 1, whole / 4).is_ok());
    // By number as well.
    let rig = Rig::new();
    let counts = |account| {
        let sessions: Vec<Rig> = (0..20).map(|_| rig.other(account)).collect();
        let all = sessions.iter().flat_map(|session| (0..INBOX_COUNT_PER_SESSION).map(move |n| early(session, n, 0)));
        (all.filter(Result::is_ok).count() as u64, sessions)
    };
    let (first, _kept) = counts(1);
    let (second, _kept) = counts(2);
    assert_eq!((first, second), (INBOX_COUNT / 2, INBOX_COUNT / 4));
}

fn numbered(n: u64) -> Ticket {
    let mut ticket = [7; 32];
    ticket[..8].copy_from_slice(&n.to_le_bytes());
    Ticket(ticket)
}

#[test]
fn sessions_have_nothing_to_do_with_one_another() {
    let (rig, other) = (Rig::new(), Rig::new().other(1));
    let mut waits = rig.accept(t(1), 4).unwrap();
    // The other session fails the same ticket, loses a link from the same server, and ends.
    other.inbox.failed(other.now, 1, t(1), Error::Cancelled).unwrap();
    other.push(1, t(1), "evil").unwrap_err();
    other.inbox.link_lost(other.now, 1, A, "cut");
    other.inbox.end_queue(3);
    other.inbox.end();
    assert!(got(&mut waits).is_none());
    rig.push(2, t(1), "good").unwrap();
    assert_eq!(got(&mut waits), Some(Ok("good".into())));
}

#[test]
fn a_tensor_is_accepted_in_pieces() {
    // The bytes come before, between, and behind the pieces.
    for came in [0, 1, 3, 5, 9, 10] {
        let rig = Rig::new();
        let text = "0123456789";
        let key = if came == 0 { None } else { Some(rig.begin(1, t(1), 10).unwrap()) };
        if let Some(key) = key {
            rig.data(1, key, &text[..came]).unwrap();
        }
        let mut pieces = vec![rig.accept_first(t(1), 10, 4).unwrap()];
        let key = key.unwrap_or_else(|| rig.begin(1, t(1), 10).unwrap());
        pieces.push(rig.accept_more(t(1), 4).unwrap());
        text.split_at(came).1.char_indices().for_each(|(i, c)| {
            if i == 2 {
                pieces.push(rig.accept_more(t(1), 2).unwrap());
            }
            rig.bytes(1, key, Bytes::from(c.to_string())).unwrap();
        });
        if pieces.len() == 2 {
            pieces.push(rig.accept_more(t(1), 2).unwrap());
        }
        let all: Vec<String> = pieces.iter_mut().map(|p| got(p).unwrap().unwrap()).collect();
        assert_eq!(all, ["0123", "4567", "89"], "{came}");
        assert!(rig.inbox.is_idle() && rig.taken() == (0, 0));
        assert!(rig.push(2, t(1), text).is_err());
    }
}

#[test]
fn pieces_that_nobody_has_accepted_take_room() {
    let rig = Rig::new();
    let size = 2 * INBOX_BYTES_PER_SESSION;
    let piece = Bytes::from(vec![1; MIB as usize]);
    let mut first = rig.accept_first(t(1), size, MIB).unwrap();
    let key = rig.begin(1, t(1), size).unwrap();
    assert_eq!(rig.taken(), (0, 0));
    rig.bytes(1, key, piece.slice(..100)).unwrap();
    assert_eq!(rig.taken(), (0, 0));
    rig.bytes(1, key, piece.slice(100..)).unwrap();
    rig.bytes(1, key, piece.slice(..100)).unwrap();
    assert!(first.try_take().is_some());
    assert_eq!(rig.taken(), (100, 0));
    let mut second = rig.accept_more(t(1), MIB).unwrap();
    assert_eq!(rig.taken(), (0, 0));
    // More than there is room for.
    let mut came = 0;
    let error = loop {
        match rig.bytes(1, key, piece.clone()) {
            Ok(_) => came += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(came, INBOX_BYTES_PER_SESSION / MIB);
    assert!(error.to_string().contains("no room"), "{error}");
    assert!(second.try_take().is_some_and(|read| read.is_ok()));
    assert_eq!(rig.taken(), (0, 0));
    // Whoever asks for the rest learns it.
    let error = rig.accept_more(t(1), MIB).unwrap_err();
    assert!(error.to_string().contains("a:1") && error.to_string().contains("no room"), "{error}");
    assert!(rig.inbox.is_idle());
}

#[test]
fn a_tensor_fails_between_its_pieces() {
    let mut rig = Rig::new();
    let broken = || Error::Device { device: "GPU0".into(), op: None, detail: "broken".into() };
    let fails: [&dyn Fn(&mut Rig); 4] = [
        &|rig| assert_eq!(rig.inbox.failed(rig.now, 1, t(1), broken()), Ok(Some(1))),
        &|rig| rig.inbox.link_lost(rig.now, 1, A, "broken"),
        &|rig| drop(rig.data(1, Key::new(&t(1)), "more than ten bytes").unwrap_err()),
        &|rig| assert_eq!(rig.later(10).len(), 1),
    ];
    for (i, fail) in fails.into_iter().enumerate() {
        rig = rig.other(1);
        let mut first = rig.accept_first(t(1), 10, 4).unwrap();
        let key = rig.begin(1, t(1), 10).unwrap();
        rig.data(1, key, "012345").unwrap();
        assert_eq!(got(&mut first), Some(Ok("0123".into())));
        let mut second = rig.accept_more(t(1), 4).unwrap();
        fail(&mut rig);
        let (error, rest) = (got(&mut second).unwrap().unwrap_err(), rig.accept_more(t(1), 2).unwrap_err());
        assert!(error.to_string().starts_with("a:1") && error == rest, "{i}: {error}, {rest}");
        assert!(rig.inbox.is_idle() && rig.taken() == (0, 0), "{i}");
    }
    // Nobody asks for the rest any more.
    let _first = rig.accept_first(t(2), 10, 4).unwrap();
    rig.inbox.failed(rig.now, 1, t(2), broken()).unwrap();
    rig.inbox.end_queue(3);
    assert!(rig.inbox.is_idle());
    // It failed before it was accepted.
    rig.inbox.failed(rig.now, 1, t(3), broken()).unwrap();
    let mut first = rig.accept_first(t(3), 10, 4).unwrap();
    let error = got(&mut first).unwrap().unwrap_err();
    assert_eq!(rig.accept_more(t(3), 4).unwrap_err(), error);
    assert!(rig.inbox.is_idle() && rig.taken() == (0, 0));
}

#[test]
fn a_queue_that_fails_in_the_middle_of_a_tensor() {
    let rig = Rig::new();
    let broken = || Error::Device { device: "GPU0".into(), op: None, detail: "broken".into() };
    let failed = |link, ticket| rig.inbox.failed(rig.now, link, ticket, broken()).unwrap();
    let mut waits = rig.accept(t(1), 4).unwrap();
    let key = rig.begin(1, t(1), 4).unwrap();
    rig.data(1, key, "ab").unwrap();
    // Only on its own link.
    assert_eq!(failed(2, t(1)), None);
    assert!(got(&mut waits).is_none());
    assert_eq!(failed(1, t(1)), Some(1));
    assert_eq!(got(&mut waits).unwrap().unwrap_err().to_string(), "a:1/GPU0: broken");
    assert_eq!(rig.data(1, key, "cd"), Err(Error::Cancelled));
    // Before it is accepted; and not when all of it is there.
    let key = rig.begin(2, t(2), 4).unwrap();
    rig.data(2, key, "ab").unwrap();
    assert_eq!(failed(1, t(2)), Some(2));
    assert_eq!(rig.taken(), (0, 1));
    assert_eq!(got(&mut rig.accept(t(2), 4).unwrap()).unwrap().unwrap_err().to_string(), "a:1/GPU0: broken");
    rig.push(3, t(3), "here").unwrap();
    assert_eq!(failed(1, t(3)), None);
    assert_eq!(got(&mut rig.accept(t(3), 4).unwrap()), Some(Ok("here".into())));
    assert!(rig.inbox.is_idle());
}

#[test]
fn what_came_for_a_session_before_it_was_taken_up_again_is_forgotten() {
    let rig = Rig::new();
    rig.push(1, t(1), "early").unwrap();
    let key = rig.begin(2, t(2), 4).unwrap();
    rig.data(2, key, "ab").unwrap();
    let mut waits = rig.accept(t(3), 4).unwrap();
    rig.begin(3, t(3), 4).unwrap();
    rig.inbox.failed(rig.now, 1, t(4), Error::Cancelled).unwrap();
    let kept = key_of(rig.inbox.push(rig.now, Via { link: 2, transfer: 1, queue: 1 }, t(5), 4).unwrap());
    rig.inbox.forget_link(1);
    assert_eq!(got(&mut waits), Some(Err(Error::Cancelled)));
    assert_eq!(rig.taken(), (4, 1));
    rig.inbox.data(rig.now, Via { link: 2, transfer: 1, queue: 1 }, kept, Bytes::from_static(b"kept"), 4).unwrap();
    assert_eq!(got(&mut rig.accept(t(5), 4).unwrap()), Some(Ok("kept".into())));
    assert!(rig.inbox.is_idle());
}

#[test]
fn a_small_piece_keeps_no_large_buffer() {
    let rig = Rig::new();
    let buffer = Bytes::from(vec![1; 1 << 20]);
    let key = rig.begin(1, t(1), 1 << 20).unwrap();
    for (len, copied) in [(100, true), (SMALL_PIECE, true), (100_000, true), (600_000, false)] {
        rig.inbox.data(rig.now, via(1), key, buffer.slice(..len), buffer.len()).unwrap();
        let table = lock(&rig.inbox.table);
        let Transfer::Early(arrival) = &table.slots[&key].transfer else { panic!() };
        assert_eq!(arrival.parts.iter().all(|part| part.as_ptr() != buffer.as_ptr()), copied, "{len}");
    }
}

#[test]
fn small_pieces_are_joined() {
    let rig = Rig::new();
    let bytes: Vec<u8> = (0..3 * SMALL_PIECE).map(|i| i as u8).collect();
    let key = rig.begin(1, t(1), bytes.len() as u64).unwrap();
    for byte in bytes.chunks(1) {
        rig.inbox.data(rig.now, via(1), key, Bytes::copy_from_slice(byte), 1 << 20).unwrap();
    }
    let got = rig.accept(t(1), bytes.len() as u64).unwrap();
    let parts = got.wait(Duration::from_secs(1)).unwrap();
    assert!(parts.len() <= 3 && parts.concat() == bytes, "{} parts", parts.len());
}
