//! Servers, and clients in their name, that do not keep to the protocol between servers.
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
#[path = "common/proxy.rs"]
#[allow(unreachable_pub)]
mod proxy;

use bytes::Bytes;
use common::*;
use ends::*;
use fake::*;
use outboard_proto::grant::Route;
use outboard_proto::v1;
use outboard_proto::v1::peer_up::Part;
use outboard_rpc_server::Server;
use plain::http_from;
use proxy::Proxy;
use std::time::{Duration, Instant};

/// The incarnation of a server that there is not.
const FROM: u64 = 77;

/// Whether two clients' worth of servers still work.
fn alive(a: &Server, b: &Server) {
    let [x, y] = ends([endpoint(a), endpoint(b)], 64);
    let t = ticket();
    x.queue.fill(&x.memory, 3).unwrap();
    x.offer(t, &x.memory, &y);
    y.accept(t, &y.memory);
    assert_eq!(read(y.queue.as_ref(), &y.memory), [3; 64]);
}

#[test]
fn a_peer_that_says_nothing_or_nonsense() {
    let (a, b) = (server().0, server().0);
    run(async {
        let start = Instant::now();
        let mut silent = Fake::open(b.local_addr()).await;
        let _connected = tokio::net::TcpStream::connect(b.local_addr()).await.unwrap();
        // Something else than the opening; another server's incarnation; no common version.
        let good = Plain::new(&b).await.open(FROM);
        for (part, why) in [
            (Part::Push(v1::Push::default()), "the first message must open the link"),
            (Part::Failed(v1::PushFailed::default()), "the first message must open the link"),
            (Part::Open(v1::OpenPeer { to: good.to.wrapping_add(1), ..good.clone() }), "another server answers"),
            (Part::Open(v1::OpenPeer { min_version: 7, max_version: 9, ..good.clone() }), "no common protocol version"),
            (Part::Open(v1::OpenPeer { min_version: 0, max_version: 0, ..good.clone() }), "no common protocol version"),
        ] {
            let mut fake = Fake::open(b.local_addr()).await;
            fake.say(part);
            let end = fake.next().await.unwrap_err();
            assert!(end.contains(why), "{end}");
        }
        // What cannot be decoded ends the connection, before the link is open and after.
        for opens in [false, true] {
            let mut nonsense = Fake::open(b.local_addr()).await;
            if opens {
                nonsense = Fake::link(b.local_addr(), Plain::new(&b).await.open(FROM)).await;
            }
            nonsense.to.send(Bytes::from_static(&[9; 100])).unwrap();
            let end = nonsense.next().await.unwrap_err();
            assert!(end.contains("connection") || end.contains("not a stream of chunks"), "{end}");
            assert!(nonsense.is_closed().await);
        }
        // Said nothing for its five seconds.
        let end = silent.next().await.unwrap_err();
        assert!(end.contains("said nothing") && start.elapsed() < Duration::from_secs(8), "{end}");
    });
    alive(&a, &b);
}

#[test]
fn pushes_that_are_wrong_are_refused_and_the_link_lives() {
    let (a, b) = (server().0, server().0);
    run(async {
        let client = Plain::new(&b).await;
        let session = client.id();
        let mut fake = Fake::link(b.local_addr(), client.open(FROM)).await;
        fake.push(1, session ^ 1, [1; 32], 4);
        fake.refuses(1, "another session").await;
        fake.push(2, session, [1; 31], 4);
        fake.refuses(2, "a ticket has 32 bytes, not 31").await;
        fake.push(3, session, [1; 32], u64::MAX);
        fake.refuses(3, "no room").await;
        // Bytes of what was refused, or never announced, are dropped.
        fake.chunk(3, Bytes::from(vec![1; 100_000]));
        fake.chunk(99, Bytes::from_static(b"stray"));
        fake.push(4, session, [2; 32], 3);
        fake.push(4, session, [3; 32], 3);
        fake.refuses(4, "one number used twice").await;
        fake.chunk(4, Bytes::from_static(b"more than that"));
        fake.refuses(4, "more than the 3 bytes").await;
        // News without a ticket, without an error, and of another session are dropped; behind them, the link lives.
        fake.failed(session, Bytes::new(), "no");
        fake.say(Part::Failed(v1::PushFailed { session, ticket: vec![4; 32].into(), error: None }));
        fake.failed(session ^ 1, [4; 32], "no");
        fake.push(5, session, [5; 32], 0);
        fake.push(6, session, [5; 32], 0);
        fake.refuses(6, "ticket was used twice").await;
        // The ticket of the news was not used by it.
        fake.push(7, session, [4; 32], 0);
        fake.push(8, session, [4; 32], 0);
        fake.refuses(8, "ticket was used twice").await;
        // News that is right uses it, and ends what has begun.
        fake.failed(session, [8; 32], "no");
        fake.push(9, session, [8; 32], 0);
        fake.refuses(9, "ticket was used twice").await;
        fake.push(10, session, [10; 32], 8);
        fake.failed(session, [10; 32], "no");
        fake.chunk(10, Bytes::from_static(b"dropped, though it is too long"));
        fake.push(10, session, [11; 32], 0);
        fake.push(11, session, [11; 32], 0);
        fake.refuses(11, "ticket was used twice").await;
        // A second opening ends it.
        fake.say(Part::Open(client.open(FROM)));
        let end = fake.next().await.unwrap_err();
        assert!(end.contains("does not know"), "{end}");
    });
    alive(&a, &b);
}

#[test]
fn what_comes_without_end_is_bounded() {
    let (a, b) = (server().0, server().0);
    run(async {
        let client = Plain::new(&b).await;
        let session = client.id();
        let mut fake = Fake::link(b.local_addr(), client.open(FROM)).await;
        // Announced and never sent, up to what is kept for a stream.
        for i in 0..3000u64 {
            let mut ticket = vec![6; 32];
            ticket[..8].copy_from_slice(&i.to_le_bytes());
            fake.push(i + 1, session, ticket, 1);
        }
        fake.refuses(1025, "too many transfers under way").await;
        fake.refuses(1026, "too many transfers under way").await;
        drop(fake);
    });
    alive(&a, &b);
}

#[test]
fn links_of_a_session_are_bounded() {
    let (a, b) = (server().0, server().0);
    run(async {
        let client = Plain::new(&b).await;
        let mut open = Vec::new();
        for from in 0..64 {
            open.push(Fake::link(b.local_addr(), client.open(from)).await);
        }
        let mut more = Fake::open(b.local_addr()).await;
        more.say(Part::Open(client.open(64)));
        let end = more.next().await.unwrap_err();
        assert!(end.contains("links from 64 servers"), "{end}");
        drop(more);
        // Another session of the same client has some of its own, among the connections of that client.
        let other = Plain::new(&b).await;
        for from in 0..24 {
            open.push(Fake::link(b.local_addr(), other.open(from)).await);
        }
        // One that ends makes room.
        open.remove(0);
        tokio::time::sleep(Duration::from_millis(200)).await;
        open.push(Fake::link(b.local_addr(), client.open(64)).await);
    });
    alive(&a, &b);
}

#[test]
fn links_to_other_servers_are_bounded() {
    let a = server().0;
    run(async {
        let mut client = Plain::new(&a).await;
        // Sessions of another server that there are not, with proofs of a secret that its owner has made up.
        let secret = [9; 32];
        let fake = FakeServer::start(proves(secret));
        let mut target = |session: u64| {
            let route = Route { from: client.hello.incarnation, to: 5, session };
            target_of(&secret, route, fake.addr)
        };
        let mut targets: Vec<_> = (0..66).map(&mut target).collect();
        for target in targets.drain(..64) {
            assert_eq!(client.reach(target).await.unwrap(), "");
        }
        assert_eq!((a.peer_links(), fake.opened()), (64, 64));
        let refused = client.reach(targets.remove(0)).await.unwrap_err();
        assert!(refused.message().contains("links to 64 servers"), "{refused:?}");
        // Another session of the same client.
        let mut second = Plain::new(&a).await;
        assert_eq!(second.reach(targets.remove(0)).await.unwrap(), "");
        // They end with the session, and so do their threads.
        client.goodbye().await;
        let start = Instant::now();
        while a.peer_links() != 1 {
            assert!(start.elapsed() < Duration::from_secs(2), "{}", a.peer_links());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

#[test]
#[cfg(target_os = "linux")]
fn room_for_what_nobody_accepts_is_left_to_others() {
    // All of 127.0.0.0/8 is this host on Linux: another address is another client.
    const OTHER: &str = "127.0.0.2";
    let (a, b) = (server().0, server().0);
    run(async {
        let mut kept = Vec::new();
        let mut took = 0;
        // By the sizes that it declares, in as many sessions as it takes.
        for _ in 0..8 {
            let client = Plain::over(http_from(OTHER, b.local_addr()).await, b.local_addr()).await;
            let mut fake = Fake::link(b.local_addr(), client.open(FROM)).await;
            fake.push(1, client.id(), [1; 32], 512 << 20);
            fake.push(2, client.id(), [1; 32], 512 << 20);
            let (transfer, why) = fake.refused().await;
            match transfer {
                1 => assert!(why.contains("no room for 512.0 MiB"), "{why}"),
                _ => assert!(why.contains("used twice"), "{why}"),
            }
            took += transfer - 1;
            kept.push((client, fake));
        }
        assert_eq!(took, 1);
        // Another client has as much, and what is left of that.
        for (size, fits) in [(256 << 20, true), (1, false)] {
            let client = Plain::new(&b).await;
            let mut fake = Fake::link(b.local_addr(), client.open(FROM)).await;
            fake.push(1, client.id(), [1; 32], size);
            fake.push(2, client.id(), [1; 32], size);
            let (transfer, why) = fake.refused().await;
            assert_eq!(transfer == 2, fits, "{why}");
            kept.push((client, fake));
        }
    });
    alive(&a, &b);
}

#[test]
fn news_for_a_server_that_takes_none_is_bounded() {
    let a = server().0;
    run(async {
        let mut client = Plain::new(&a).await;
        let secret = [9; 32];
        let fake = FakeServer::start(proves(secret));
        let proxy = Proxy::start(fake.addr);
        let route = Route { from: client.hello.incarnation, to: 5, session: 6 };
        let target = target_of(&secret, route, proxy.addr);
        assert_eq!(client.reach(target.clone()).await.unwrap(), "");
        proxy.hold(0);
        // Each offer of a queue that has failed is told to the server that it was for.
        let queue = client.queue(1).await;
        queue.send(v1::command::Command::Read(v1::Read { request: 1, src: None, bulk: false }));
        let start = Instant::now();
        let mut sent = 0u64;
        while fake.opened() == 1 {
            // Sooner than the server is found to be silent.
            assert!(start.elapsed() < Duration::from_secs(3), "{sent} are kept");
            for _ in 0..500 {
                sent += 1;
                let mut ticket = vec![3; 32];
                ticket[..8].copy_from_slice(&sent.to_le_bytes());
                let (ticket, target) = (ticket.into(), Some(target.clone()));
                queue.send(v1::command::Command::Offer(v1::Offer { ticket, target, ..Default::default() }));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        println!("given up after {sent}");
    });
}

#[test]
fn a_link_ends_with_the_session_that_it_is_for() {
    let (a, b) = (server().0, server().0);
    run(async {
        // It is taken up again: what was good before is not any more.
        let mut client = Plain::new(&b).await;
        let before = client.open(FROM);
        let mut fake = Fake::link(b.local_addr(), before.clone()).await;
        fake.push(1, client.id(), [1; 32], 0);
        fake.push(2, client.id(), [1; 32], 0);
        fake.refuses(2, "ticket was used twice").await;
        client.resume().await;
        let end = fake.next().await.unwrap_err();
        assert!(end.contains("taken up again"), "{end}");
        let mut late = Fake::open(b.local_addr()).await;
        late.say(Part::Open(before));
        let end = late.next().await.unwrap_err();
        assert!(end.contains("has not asked for this link"), "{end}");
        // With the new secret there is another link; what came on the old one is forgotten, but not that it came.
        let mut fake = Fake::link(b.local_addr(), client.open(FROM)).await;
        fake.push(1, client.id(), [1; 32], 0);
        fake.refuses(1, "ticket was used twice").await;
        let mut other = Fake::link(b.local_addr(), client.open(FROM + 1)).await;
        client.goodbye().await;
        for fake in [&mut fake, &mut other] {
            let end = fake.next().await.unwrap_err();
            assert!(end.contains("the session that it is for has ended"), "{end}");
        }
    });
    alive(&a, &b);
}

#[test]
fn questions_about_peers() {
    let (a, b) = (server().0, server().0);
    run(async {
        let mut client = Plain::new(&a).await;
        let at_b = Plain::new(&b).await;
        let from = client.hello.incarnation;
        let address = b.local_addr();
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ssh = other.local_addr().unwrap();
        std::thread::spawn(move || {
            use std::io::Write;
            let mut open = Vec::new();
            for socket in other.incoming() {
                let mut socket = socket.unwrap();
                let _ = socket.write_all(b"SSH-2.0-OpenSSH_9\r\n");
                open.push(socket);
            }
        });
        let right = at_b.target(from, address);
        let restarted = v1::PeerTarget { incarnation: at_b.hello.incarnation ^ 1, ..right.clone() };
        for (target, obstacle) in [
            (right.clone(), ""),
            (restarted, "another server answers"),
            (at_b.target(from, silent.local_addr().unwrap()), "no answer within 1.5 s"),
            (at_b.target(from, closed), "connection refused; is rpc-server running there"),
            (at_b.target(from, ssh), "it does not speak gRPC: "),
            (at_b.target(from, "no.such.host.invalid:1"), "cannot connect: failed to lookup"),
            (at_b.target(from, "nonsense"), "cannot connect: failed to lookup"),
        ] {
            let start = Instant::now();
            let answer = client.reach(target).await.unwrap();
            println!("{answer}");
            assert_eq!(answer.is_empty(), obstacle.is_empty());
            assert!(answer.contains(obstacle) && !answer.contains('\n'), "{answer}, not {obstacle}");
            assert!(start.elapsed() < Duration::from_secs(3));
        }
        for wrong in ["a b:1".to_owned(), "x".repeat(5000)] {
            let refused = client.reach(at_b.target(from, wrong)).await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument);
            assert!(refused.message().contains("no address of a server"), "{refused:?}");
        }
        let no_session = |refused: tonic::Status| {
            assert_eq!(refused.code(), tonic::Code::Unauthenticated);
            assert!(refused.message().contains("there is no such session"), "{refused:?}");
        };
        let stranger = Some(v1::Session { id: 1, secret: vec![0; 32].into() });
        let request = v1::ReachRequest { session: stranger.clone(), target: Some(right) };
        no_session(client.peers.reach(request).await.unwrap_err());
        no_session(client.peers.traffic(v1::TrafficRequest { session: stranger }).await.unwrap_err());
        let session = client.hello.session.clone();
        let traffic = client.peers.traffic(v1::TrafficRequest { session }).await.unwrap().into_inner();
        assert_eq!(traffic.peer_bytes, 0);
    });
    alive(&a, &b);
}
