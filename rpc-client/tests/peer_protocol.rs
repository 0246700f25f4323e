//! Servers, and clients in their name, that do not keep to the protocol between servers.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;
#[path = "common/ends.rs"]
mod ends;
#[path = "common/plain.rs"]
mod plain;

use bytes::{Bytes, BytesMut};
use common::*;
use ends::*;
use http_body_util::BodyExt;
use hyper::body::Frame;
use outboard_proto::chunk::{self, Direction};
use outboard_proto::v1::outboard_client::OutboardClient;
use outboard_proto::v1::peer_up::Part;
use outboard_proto::v1::peers_client::PeersClient;
use outboard_proto::v1::{self, peer_down};
use outboard_proto::{frame, limits};
use outboard_rpc_server::Server;
use plain::{Conn, http};
use prost::Message;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tonic::body::Body;

/// A stream to a server in the name of another one.
struct Fake {
    to: mpsc::UnboundedSender<Bytes>,
    from: hyper::body::Incoming,
    frames: frame::FrameReader,
}

impl Fake {
    async fn open(addr: SocketAddr) -> Fake {
        let (to, mut rx) = mpsc::unbounded_channel::<Bytes>();
        let body = http_body_util::StreamBody::new({
            let (tx, out) = mpsc::channel(16);
            tokio::spawn(async move {
                while let Some(bytes) = rx.recv().await {
                    if tx.send(Ok::<_, std::convert::Infallible>(Frame::data(bytes))).await.is_err() {
                        return;
                    }
                }
            });
            tokio_stream::wrappers::ReceiverStream::new(out)
        });
        let request = http::Request::post(format!("http://{addr}/outboard.v1.Peer/Push"))
            .header("content-type", "application/grpc")
            .body(Body::new(body))
            .unwrap();
        let from = http(addr).await.send_request(request).await.unwrap().into_body();
        Fake { to, from, frames: frame::FrameReader::new(limits::MAX_PEER_MESSAGE) }
    }

    fn say(&self, part: Part) {
        let mut out = BytesMut::new();
        frame::push(&mut out, &v1::PeerUp { part: Some(part) });
        self.to.send(out.freeze()).unwrap();
    }

    fn chunk(&self, transfer: u64, data: Bytes) {
        self.to.send(chunk::head(Direction::Up, transfer, &data)).unwrap();
        self.to.send(data).unwrap();
    }

    fn push(&self, transfer: u64, session: u64, ticket: impl Into<Vec<u8>>, size: u64) {
        let ticket = ticket.into().into();
        self.say(Part::Push(v1::Push { transfer, session, ticket, size, queue: 1 }));
    }

    /// The next message, or the status at the end; the end of the connection is one, too.
    async fn next(&mut self) -> Result<peer_down::Part, String> {
        let wait = async {
            loop {
                if let Some(message) = self.frames.message().unwrap() {
                    return Ok(v1::PeerDown::decode(message).unwrap().part.unwrap());
                }
                match self.from.frame().await {
                    None => return Err("the end".to_owned()),
                    Some(Err(e)) => return Err(e.to_string()),
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(data) => self.frames.add(&data),
                        Err(trailers) => {
                            let status = tonic::Status::from_header_map(trailers.trailers_ref().unwrap()).unwrap();
                            return Err(status.message().to_owned());
                        }
                    },
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(10), wait).await.expect("no answer")
    }

    async fn refused(&mut self) -> String {
        match self.next().await.unwrap() {
            peer_down::Part::Refused(refused) => match refused.error.unwrap().kind.unwrap() {
                v1::error::Kind::Request(text) => text,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
}

/// A session, its incarnation, and a client for questions about peers.
async fn hello(server: &Server) -> (v1::HelloResponse, PeersClient<Conn>) {
    let conn = Conn(http(server.local_addr()).await);
    let origin: http::Uri = format!("http://{}", server.local_addr()).parse().unwrap();
    let request = v1::HelloRequest { min_version: 1, max_version: 1, client: "test".into() };
    let hello = OutboardClient::with_origin(conn.clone(), origin.clone()).hello(request).await.unwrap().into_inner();
    (hello, PeersClient::with_origin(conn, origin))
}

fn open(to: u64) -> Part {
    Part::Open(v1::OpenPeer { min_version: 1, max_version: 1, from: 77, to, ..Default::default() })
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

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
        let (greeted, _) = hello(&b).await;
        for (part, why) in [
            (Part::Push(v1::Push::default()), "must open the link"),
            (open(greeted.incarnation.wrapping_add(1)), "another server answers"),
            (
                Part::Open(v1::OpenPeer {
                    min_version: 7,
                    max_version: 9,
                    to: greeted.incarnation,
                    ..Default::default()
                }),
                "no common protocol version",
            ),
        ] {
            let mut fake = Fake::open(b.local_addr()).await;
            fake.say(part);
            let end = fake.next().await.unwrap_err();
            assert!(end.contains(why), "{end}");
        }
        let mut nonsense = Fake::open(b.local_addr()).await;
        nonsense.to.send(Bytes::from_static(&[9; 100])).unwrap();
        assert!(nonsense.next().await.is_err());
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
        let (greeted, _) = hello(&b).await;
        let session = greeted.session.unwrap().id;
        let mut fake = Fake::open(b.local_addr()).await;
        fake.say(open(greeted.incarnation));
        assert!(matches!(fake.next().await.unwrap(), peer_down::Part::Welcome(_)));
        fake.push(1, session ^ 1, [1; 32], 4);
        assert!(fake.refused().await.contains("has ended"));
        fake.push(2, session, [1; 31], 4);
        assert!(fake.refused().await.contains("32 bytes"));
        fake.push(3, session, [1; 32], u64::MAX);
        assert!(fake.refused().await.contains("no room"));
        // Bytes of what was refused, or never announced, are dropped.
        fake.chunk(3, Bytes::from(vec![1; 100_000]));
        fake.chunk(99, Bytes::from_static(b"stray"));
        fake.push(4, session, [2; 32], 3);
        fake.push(4, session, [3; 32], 3);
        assert!(fake.refused().await.contains("used twice"));
        fake.chunk(4, Bytes::from_static(b"more than that"));
        assert!(fake.refused().await.contains("more than the 3 bytes"));
        let error = Some(v1::Error { kind: Some(v1::error::Kind::Request("no".into())) });
        fake.say(Part::Failed(v1::PushFailed { session, ticket: Bytes::new(), error }));
        fake.say(Part::Failed(v1::PushFailed { session, ticket: vec![4; 32].into(), error: None }));
        fake.push(5, session, [5; 32], 0);
        fake.push(6, session, [5; 32], 0);
        assert!(fake.refused().await.contains("used twice"));
        // A second opening ends it.
        fake.say(open(greeted.incarnation));
        assert!(fake.next().await.unwrap_err().contains("does not know"));
    });
    alive(&a, &b);
}

#[test]
fn what_comes_without_end_is_bounded() {
    let (a, b) = (server().0, server().0);
    run(async {
        let (greeted, _) = hello(&b).await;
        let session = greeted.session.unwrap().id;
        let mut fake = Fake::open(b.local_addr()).await;
        fake.say(open(greeted.incarnation));
        fake.next().await.unwrap();
        // Announced and never sent, up to what is kept for a stream.
        for i in 0..3000u64 {
            let mut ticket = vec![6; 32];
            ticket[..8].copy_from_slice(&i.to_le_bytes());
            fake.push(i + 1, session, ticket, 1);
        }
        assert!(fake.refused().await.contains("too many"));
        drop(fake);
    });
    alive(&a, &b);
}

#[test]
fn questions_about_peers() {
    let (a, b) = (server().0, server().0);
    run(async {
        let (at_a, mut peers) = hello(&a).await;
        let (at_b, _) = hello(&b).await;
        let session = at_a.session.clone();
        let target = |address: String, incarnation| {
            Some(v1::PeerTarget {
                address,
                incarnation,
                session: at_b.session.clone().unwrap().id,
                ..Default::default()
            })
        };
        let address = b.local_addr().to_string();
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ssh = other.local_addr().unwrap();
        std::thread::spawn(move || {
            use std::io::Write;
            for socket in other.incoming() {
                let _ = socket.unwrap().write_all(b"SSH-2.0-OpenSSH_9\r\n");
            }
        });
        for (target, obstacle) in [
            (target(address.clone(), at_b.incarnation), ""),
            (target(address.clone(), at_b.incarnation ^ 1), "another server answers"),
            (target(silent.local_addr().unwrap().to_string(), 1), "no answer within 1.5 s"),
            (target(closed.to_string(), 2), "connection refused"),
            (target(ssh.to_string(), 3), "t"),
            (target("no.such.host.invalid:1".into(), 4), "cannot connect"),
            (target("nonsense".into(), 5), "cannot connect"),
        ] {
            let start = Instant::now();
            let request = v1::ReachRequest { session: session.clone(), target };
            let answer = peers.reach(request).await.unwrap().into_inner().obstacle;
            println!("{answer}");
            assert_eq!(answer.is_empty(), obstacle.is_empty());
            assert!(answer.contains(obstacle) && !answer.contains('\n'), "{answer}, not {obstacle}");
            assert!(start.elapsed() < Duration::from_secs(3));
        }
        for wrong in ["a b:1".to_owned(), "x".repeat(5000)] {
            let request = v1::ReachRequest { session: session.clone(), target: target(wrong, 6) };
            assert_eq!(peers.reach(request).await.unwrap_err().code(), tonic::Code::InvalidArgument);
        }
        let stranger = Some(v1::Session { id: 1, secret: vec![0; 32].into() });
        let request = v1::ReachRequest { session: stranger.clone(), target: target(address, at_b.incarnation) };
        assert_eq!(peers.reach(request).await.unwrap_err().code(), tonic::Code::Unauthenticated);
        let traffic = peers.traffic(v1::TrafficRequest { session: stranger }).await;
        assert_eq!(traffic.unwrap_err().code(), tonic::Code::Unauthenticated);
        let traffic = peers.traffic(v1::TrafficRequest { session }).await.unwrap().into_inner();
        assert_eq!(traffic.peer_bytes, 0);
    });
    alive(&a, &b);
}
