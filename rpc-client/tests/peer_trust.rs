//! Links between servers belong to what was proven: nobody takes them over, and nobody speaks as a server who is none.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;
#[path = "common/ends.rs"]
mod ends;
#[path = "common/fake.rs"]
mod fake;
#[path = "common/listen.rs"]
mod listen;
#[path = "common/plain.rs"]
mod plain;

use bytes::Bytes;
use common::*;
use ends::*;
use fake::*;
use outboard_proto::v1::outboard_client::OutboardClient;
use outboard_proto::v1::{self, peer_down};
use outboard_rpc_client::PeerPath;
use outboard_rpc_server::Server;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs a test with two servers, and a client that has a session on each.
fn scene(test: impl AsyncFnOnce(Scene)) {
    let (a, b) = (server().0, server().0);
    run(async {
        let (at_a, at_b) = (Plain::new(&a).await, Plain::new(&b).await);
        test(Scene { a, b, at_a, at_b }).await;
    });
}

/// A tensor gets from one to the other.
fn sends(x: &End, y: &End, value: u8) {
    let t = ticket();
    x.queue.fill(&x.memory, value).unwrap();
    x.offer(t, &x.memory, y);
    y.accept(t, &y.memory);
    assert_eq!(read(y.queue.as_ref(), &y.memory), vec![value; y.memory.len() as usize]);
}

/// Two servers, and a client with a session on each.
struct Scene {
    a: Server,
    b: Server,
    at_a: Plain,
    at_b: Plain,
}

impl Scene {
    /// What opens a link to the session on `b`, in the name of `a`.
    fn open(&self) -> v1::OpenPeer {
        self.at_b.open(self.at_a.hello.incarnation)
    }

    /// The session on `b`, as if it were at another address.
    fn target(&self, address: impl ToString) -> v1::PeerTarget {
        self.at_b.target(self.at_a.hello.incarnation, address)
    }
}

#[test]
fn a_link_that_one_client_asked_for_carries_nothing_of_another() {
    scene(async |mut scene| {
        // The attacker has sessions on both servers, so that its program can answer as that server would.
        let proof = bytes(scene.at_b.proofs(scene.at_a.hello.incarnation).welcome);
        let fake = FakeServer::welcomes(1, proof);
        let target = scene.target(fake.addr);
        assert_eq!(scene.at_a.reach(target).await.unwrap(), "");
        assert_eq!(fake.opened(), 1);
        let [x, y] = ends([endpoint(&scene.a), endpoint(&scene.b)], 3000);
        assert_eq!(x.path(&y), PeerPath::Direct);
        for i in 2..12 {
            sends(&x, &y, i);
        }
        assert!(!fake.got_something(), "{:?}", fake.heard());
    });
}

#[test]
fn a_program_that_welcomes_everybody_is_not_the_server() {
    scene(async |mut scene| {
        let right = scene.at_b.proofs(scene.at_a.hello.incarnation);
        let reversed: Bytes = right.welcome.iter().rev().copied().collect();
        let long: Bytes = [&right.welcome[..], &[0]].concat().into();
        let other = scene.at_b.proofs(scene.at_b.hello.incarnation).welcome;
        for (version, proof, why) in [
            (1, Bytes::new(), "could not prove"),
            (1, bytes([0; 32]), "could not prove"),
            (1, bytes(right.grant), "could not prove"),
            (1, reversed, "could not prove"),
            (1, long, "could not prove"),
            (1, bytes(other), "could not prove"),
            (1, bytes(right.welcome).slice(..31), "could not prove"),
            (0, bytes(right.welcome), "as a server of this release"),
            (2, bytes(right.welcome), "as a server of this release"),
        ] {
            let fake = FakeServer::welcomes(version, proof);
            let start = Instant::now();
            let obstacle = scene.at_a.reach(scene.target(fake.addr)).await.unwrap();
            assert!(obstacle.contains(why), "{obstacle:?}, not {why}");
            // Asking again would not help.
            assert!(start.elapsed() < Duration::from_secs(1) && fake.opened() == 1);
            // What was not asked about is not sent either.
            let queue = scene.at_a.queue(ticket_number()).await;
            let offer = v1::Offer {
                ticket: vec![version as u8; 32].into(),
                target: Some(scene.target(fake.addr)),
                ..Default::default()
            };
            queue.send(v1::command::Command::Offer(offer));
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert!(!fake.got_something(), "{:?}", fake.heard());
        }
        assert_eq!(scene.a.peer_links(), 0);
    });
}

fn ticket_number() -> u64 {
    u64::from_le_bytes(ticket().0[..8].try_into().unwrap())
}

#[test]
fn a_program_that_says_something_else_than_welcome() {
    scene(async |mut scene| {
        let proof = bytes(scene.at_b.proofs(scene.at_a.hello.incarnation).welcome);
        let refused = peer_down::Part::Refused(v1::Refused { transfer: 1, queue: 1, error: None });
        let fake = FakeServer::start(Arc::new(move |_: &v1::OpenPeer| refused.clone()));
        let obstacle = scene.at_a.reach(scene.target(fake.addr)).await.unwrap();
        assert!(obstacle.contains("as a server of this release"), "{obstacle}");
        // With the right proof it is the server, as far as anyone can know.
        let good = FakeServer::welcomes(1, proof);
        assert_eq!(scene.at_a.reach(scene.target(good.addr)).await.unwrap(), "");
    });
}

#[test]
fn nobody_speaks_as_a_server_without_a_proof() {
    scene(async |scene| {
        let right = scene.open();
        let other = Plain::new(&scene.b).await;
        let other_grant = other.open(right.from).grant;
        let not_asked = "has not asked for this link";
        for (what, open, why) in [
            ("what every client knows", v1::OpenPeer { grant: Bytes::new(), ..right.clone() }, "shows no proof"),
            ("no session", v1::OpenPeer { session: 0, grant: Bytes::new(), ..right.clone() }, "shows no proof"),
            ("another sender", v1::OpenPeer { from: right.from ^ 1, ..right.clone() }, not_asked),
            ("the receiver as sender", v1::OpenPeer { from: right.to, ..right.clone() }, not_asked),
            ("another session's proof", v1::OpenPeer { grant: other_grant, ..right.clone() }, not_asked),
            ("another session", v1::OpenPeer { session: other.id(), ..right.clone() }, not_asked),
            ("an unknown session", v1::OpenPeer { session: right.session ^ 1, ..right.clone() }, not_asked),
            ("zeros", v1::OpenPeer { grant: bytes([0; 32]), ..right.clone() }, not_asked),
            ("a part", v1::OpenPeer { grant: right.grant.slice(..31), ..right.clone() }, not_asked),
            ("more", v1::OpenPeer { grant: [&right.grant[..], &[0]].concat().into(), ..right.clone() }, not_asked),
            (
                "the answer's proof",
                v1::OpenPeer { grant: bytes(scene.at_b.proofs(right.from).welcome), ..right.clone() },
                not_asked,
            ),
            ("another receiver", v1::OpenPeer { to: right.to ^ 1, ..right.clone() }, "another server answers"),
        ] {
            let mut fake = Fake::open(scene.b.local_addr()).await;
            fake.say(v1::peer_up::Part::Open(open));
            let end = fake.next().await.unwrap_err();
            assert!(end.contains(why), "{what}: {end}");
        }
        // The server itself proves who it is.
        let mut fake = Fake::open(scene.b.local_addr()).await;
        fake.say(v1::peer_up::Part::Open(right.clone()));
        match fake.next().await.unwrap() {
            peer_down::Part::Welcome(welcome) => {
                assert_eq!(welcome, v1::Welcome { version: 1, proof: bytes(scene.at_b.proofs(right.from).welcome) });
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_client_without_proofs_is_told_so_and_relays() {
    scene(async |mut scene| {
        let address = scene.b.local_addr();
        let right = scene.target(address);
        for target in [
            v1::PeerTarget { grant: Bytes::new(), welcome: Bytes::new(), ..right.clone() },
            v1::PeerTarget { grant: Bytes::new(), ..right.clone() },
            v1::PeerTarget { welcome: Bytes::new(), ..right.clone() },
            v1::PeerTarget { welcome: right.welcome.slice(..31), ..right.clone() },
        ] {
            let obstacle = scene.at_a.reach(target).await.unwrap();
            assert!(obstacle.contains("no proof") && obstacle.contains("same release"), "{obstacle}");
        }
        // Those of another link, too, if with another server's words.
        let turned = scene.at_b.target(scene.at_b.hello.incarnation, address);
        let obstacle = scene.at_a.reach(turned).await.unwrap();
        assert!(obstacle.contains("has not asked for this link"), "{obstacle}");
        assert_eq!(scene.at_a.reach(right).await.unwrap(), "");
    });
}

#[test]
fn a_link_for_one_session_pushes_and_fails_nothing_of_another() {
    scene(async |scene| {
        let other = Plain::new(&scene.b).await.id();
        let mut fake = Fake::link(scene.b.local_addr(), scene.open()).await;
        for transfer in [1, 2] {
            fake.failed(other, [transfer as u8; 32], "taken over");
            fake.push(transfer, other, [transfer as u8; 32], 0);
            let (refused, why) = fake.refused().await;
            assert!(refused == transfer && why.contains("another session"), "{refused}: {why}");
        }
        // For its own it is good.
        fake.push(3, scene.at_b.id(), [3; 32], 0);
        fake.push(4, scene.at_b.id(), [3; 32], 0);
        let (refused, why) = fake.refused().await;
        assert!(refused == 4 && why.contains("used twice"), "{refused}: {why}");
    });
}

#[test]
fn a_link_that_is_lost_fails_nothing_of_another_session() {
    scene(async |scene| {
        let from = scene.at_a.hello.incarnation;
        // The victim waits on `b` for a tensor of `a`, on a link that is open.
        let [x, y] = ends([endpoint(&scene.a), endpoint(&scene.b)], 64);
        sends(&x, &y, 1);
        let (blocked, gate, t) = (x.other(), ticket(), ticket());
        blocked.accept(gate, &x.memory);
        blocked.offer(t, &x.memory, &y);
        y.accept(t, &y.memory);
        y.other().queue.finish(WAIT).unwrap();
        // The attacker's client wants a link from `a` as well, and speaks for that server itself.
        for _ in 0..2 {
            drop(Fake::link(scene.b.local_addr(), scene.at_b.open(from)).await);
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        // What the victim expects is still expected, and comes.
        let open = x.other();
        open.queue.fill(&x.memory, 7).unwrap();
        open.offer(gate, &x.memory, &x);
        assert_eq!(read(y.queue.as_ref(), &y.memory), [7; 64]);
    });
}

#[test]
fn sessions_that_are_taken_up_again_are_linked_anew() {
    let (a, b) = (server().0, server().0);
    let [mut x, mut y] = ends([endpoint(&a), endpoint(&b)], 3000);
    sends(&x, &y, 1);
    // The receiver, the sender, and both: what was asked for before is good for none of them.
    for (i, again) in [[false, true], [true, false], [true, true]].into_iter().enumerate() {
        for (end, again) in [&mut x, &mut y].into_iter().zip(again) {
            if again {
                end.device.resume().unwrap();
                end.queue = end.device.queue().unwrap();
            }
        }
        eventually(Duration::from_secs(1), || a.peer_links() == 0);
        assert_eq!((x.path(&y), y.path(&x)), (PeerPath::Direct, PeerPath::Direct));
        sends(&x, &y, 2 + i as u8);
        sends(&y, &x, 12 + i as u8);
        assert_eq!((a.peer_links(), b.peer_links()), (1, 1));
    }
}

#[test]
fn a_link_is_no_right_to_call_anything_else() {
    scene(async |scene: Scene| {
        let fake = Fake::link(scene.b.local_addr(), scene.open()).await;
        let mut calls = OutboardClient::with_origin(fake.conn(), scene.at_b.origin.clone());
        let hello = v1::HelloRequest { min_version: 1, max_version: 1, client: "a link".into() };
        let trace = v1::TraceRequest { session: Some(scene.at_b.session()), record: false };
        for refused in [
            calls.hello(hello).await.map(drop),
            calls.devices(v1::DevicesRequest {}).await.map(drop),
            // Not even with the secret of the session that it is for.
            calls.trace(trace).await.map(drop),
        ] {
            let refused = refused.unwrap_err();
            assert!(refused.message().contains("a link between servers"), "{refused}");
        }
        assert_eq!(scene.b.sessions(), 1);
    });
}
