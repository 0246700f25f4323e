//! Every order in which a transfer can be accepted, come, fail and be late, without a network.

use super::*;
use outboard_core::Pending;

const SESSION: u64 = 5;
const A: u64 = 77;

struct Rig {
    inbox: Inbox,
    now: Instant,
}

fn via(transfer: u64) -> Via {
    Via { conn: 1, transfer, queue: 9 }
}

fn t(n: u8) -> Ticket {
    Ticket([n; 32])
}

fn text(bytes: &[Bytes]) -> String {
    String::from_utf8(bytes.concat()).unwrap()
}

impl Rig {
    fn new() -> Rig {
        let secs = Duration::from_secs;
        let limits = PeerLimits { accept: secs(100), push: secs(50), no_link: secs(5), linger: secs(30) };
        let rig = Rig { inbox: Inbox::new(limits), now: Instant::now() };
        rig.inbox.opened(A);
        rig
    }

    fn accept(&self, ticket: Ticket, size: u64) -> Result<Pending<Vec<Bytes>>> {
        let (to, pending) = Pending::new("a device");
        let source = Source { name: "a:1".into(), incarnation: A };
        self.inbox.expect(self.now, SESSION, ticket, Wanted { to, size, queue: 3, source })?;
        Ok(pending)
    }

    fn begin(&self, transfer: u64, ticket: Ticket, size: u64) -> Result<Key> {
        self.inbox.push(self.now, via(transfer), SESSION, ticket, size).map(|(key, _)| key)
    }

    fn data(&self, transfer: u64, key: Key, data: &'static str) -> Result<bool> {
        self.inbox.data(self.now, via(transfer), key, Bytes::from_static(data.as_bytes()))
    }

    fn push(&self, transfer: u64, ticket: Ticket, data: &'static str) -> Result<bool> {
        let key = self.begin(transfer, ticket, data.len() as u64)?;
        if data.is_empty() { Ok(true) } else { self.data(transfer, key, data) }
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
    assert!(!rig.data(1, key, "ab").unwrap());
    assert_eq!(got(&mut before), None);
    assert!(rig.data(1, key, "cd").unwrap());
    assert_eq!(got(&mut before), Some(Ok("abcd".into())));

    let key = rig.begin(2, t(2), 4).unwrap();
    rig.data(2, key, "ab").unwrap();
    let mut amid = rig.accept(t(2), 4).unwrap();
    rig.data(2, key, "ef").unwrap();
    assert_eq!(got(&mut amid), Some(Ok("abef".into())));

    rig.push(3, t(3), "late").unwrap();
    assert_eq!(rig.inbox.has(SESSION, &t(3)), Some(Some(1)));
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
    assert_eq!(rig.inbox.has(SESSION + 1, &t(2)), None);
    let mut near = [2; 32];
    near[31] = 3;
    assert_eq!(rig.inbox.has(SESSION, &Ticket(near)), None);
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
    rig.inbox.lost(rig.now, 1, A, "cut");
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
    rig.inbox.opened(A);
    rig.later(20);
    assert!(got(&mut patient).is_none());
    assert!(rig.push(6, t(6), "back").is_ok());
    assert!(rig.inbox.is_idle());
}

#[test]
fn failures_travel_and_ends_leave_nothing() {
    let mut rig = Rig::new();
    let broken = || Error::Device { device: "GPU0".into(), op: None, detail: "broken".into() };
    let mut waits = rig.accept(t(1), 4).unwrap();
    rig.inbox.failed(rig.now, 1, SESSION, t(1), broken()).unwrap();
    rig.inbox.failed(rig.now, 1, SESSION, t(2), broken()).unwrap();
    assert_eq!(got(&mut waits).unwrap().unwrap_err().to_string(), "a:1/GPU0: broken");
    assert_eq!(got(&mut rig.accept(t(2), 4).unwrap()).unwrap().unwrap_err().to_string(), "a:1/GPU0: broken");
    // A queue that has failed wants nothing, whichever comes first.
    rig.inbox.discard(rig.now, SESSION, t(3));
    assert_eq!(rig.push(3, t(3), "abcd"), Err(Error::Cancelled));
    rig.push(4, t(4), "abcd").unwrap();
    rig.inbox.discard(rig.now, SESSION, t(4));
    assert!(rig.inbox.is_idle());
    // A queue that ends, a session that ends.
    let mut queue = rig.accept(t(5), 4).unwrap();
    rig.inbox.end_queue(SESSION, 2);
    assert!(got(&mut queue).is_none());
    rig.inbox.end_queue(SESSION, 3);
    assert_eq!(got(&mut queue), Some(Err(Error::Cancelled)));
    let mut session = rig.accept(t(6), 4).unwrap();
    rig.push(7, t(7), "abcd").unwrap();
    rig.begin(8, t(8), 4).unwrap();
    rig.inbox.end_session(SESSION);
    assert_eq!(got(&mut session), Some(Err(Error::Cancelled)));
    assert!(rig.later(1000).is_empty() && rig.inbox.is_idle());
    assert!(lock(&rig.inbox.state).slots.is_empty());
}

#[test]
fn what_nobody_accepts_is_bounded() {
    let rig = Rig::new();
    let half = MAX_EARLY_SESSION.bytes / 2;
    let other = |session, transfer| {
        let mut ticket = [7; 32];
        ticket[..8].copy_from_slice(&u64::to_le_bytes(transfer));
        rig.inbox.push(rig.now, via(transfer), session, Ticket(ticket), half)
    };
    assert!(other(SESSION, 1).is_ok() && other(SESSION, 2).is_ok());
    assert!(other(SESSION, 3).unwrap_err().to_string().contains("no room"));
    // Other sessions have room of their own, up to what the connection has.
    let ok = (100..200).filter(|&i| other(i, i).is_ok()).count();
    assert_eq!(ok as u64, MAX_EARLY_CONN.bytes / half - 2);
    // Accepted bytes are on the account of their queue.
    let mut ticket = [7; 32];
    ticket[..8].copy_from_slice(&u64::to_le_bytes(1));
    let _pending = rig.accept(Ticket(ticket), half).unwrap();
    assert!(other(SESSION, 4).is_ok());
    for transfer in 0..2 * MAX_EARLY_SESSION.count {
        let mut ticket = [8; 32];
        ticket[..8].copy_from_slice(&u64::to_le_bytes(1000 + transfer));
        let result = rig.inbox.failed(rig.now, 2, 999, Ticket(ticket), Error::Cancelled);
        assert_eq!(result.is_ok(), transfer < MAX_EARLY_SESSION.count);
    }
}
