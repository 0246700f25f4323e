//! A client that does not keep to the protocol, over plain gRPC.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;
#[path = "common/plain.rs"]
mod plain;

use bytes::Bytes;
use common::*;
use outboard_proto::v1::command::Command as C;
use outboard_proto::v1::control_reply::Reply as ControlReply;
use outboard_proto::v1::control_request::Request;
use outboard_proto::v1::reply::Reply;
use outboard_proto::v1::{self, error::Kind};
use outboard_rpc_server::Server;
use plain::{Client, Conn, client};
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::Streaming;

async fn hello(client: &mut Client) -> v1::Session {
    plain::hello(client).await.session.unwrap()
}

/// A stream of messages that the test sends one by one.
struct Talk<Q, R> {
    to: mpsc::UnboundedSender<Q>,
    from: Streaming<R>,
}

impl<Q, R> Talk<Q, R> {
    async fn next(&mut self) -> Result<Option<R>, tonic::Status> {
        tokio::time::timeout(Duration::from_secs(10), self.from.message()).await.expect("no reply")
    }
}

macro_rules! talk {
    ($client:expr, $method:ident) => {{
        let (to, mut rx) = mpsc::unbounded_channel();
        let stream = tokio_stream::wrappers::ReceiverStream::new({
            let (tx, out) = mpsc::channel(64);
            tokio::spawn(async move {
                while let Some(message) = rx.recv().await {
                    if tx.send(message).await.is_err() {
                        return;
                    }
                }
            });
            out
        });
        let from = $client.$method(stream).await.unwrap().into_inner();
        Talk { to, from }
    }};
}

fn control(request: Request) -> v1::ControlRequest {
    v1::ControlRequest { request: Some(request) }
}

fn command(command: C) -> v1::Command {
    v1::Command { command: Some(command) }
}

fn slice(buffer: u64, offset: u64, len: u64) -> Option<v1::Slice> {
    Some(v1::Slice { buffer, offset, len })
}

fn open(session: &v1::Session, queue: u64, device: &str) -> v1::Command {
    command(C::Open(v1::OpenQueue { session: Some(session.clone()), queue, device: device.into() }))
}

#[test]
fn any_client_can_list_devices() {
    let (server, _) = server();
    run(async {
        let mut client = client(&server).await;
        let devices = client.devices(v1::DevicesRequest {}).await.unwrap().into_inner().devices;
        assert_eq!(devices.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["REF0", "REF1"]);
        assert_eq!(devices[0].reaches, ["REF0", "REF1"]);
        let memory = client.memory(v1::MemoryRequest { device: "REF1".into() }).await.unwrap().into_inner();
        assert_eq!(memory.total, MEMORY);
        let e = client.memory(v1::MemoryRequest { device: "x".repeat(500) }).await.unwrap_err();
        assert_eq!(e.code(), tonic::Code::InvalidArgument);
        assert!(e.message().len() < 200, "{e}");
    });
}

#[test]
fn wrong_requests_are_answered_and_the_session_lives() {
    let (server, _) = server();
    run(async {
        let mut client = client(&server).await;
        let session = hello(&mut client).await;
        let mut talk = talk!(client, control);
        talk.to.send(control(Request::Attach(session.clone()))).unwrap();
        assert!(matches!(talk.next().await.unwrap().unwrap().reply, Some(ControlReply::Attached(_))));
        let alloc = |buffer, device: &str, size| {
            control(Request::Alloc(v1::Alloc { request: 9, buffer, device: device.into(), size, usage: "NEW".into() }))
        };
        let compile = |graph: &'static [u8], places: &'static [u8]| {
            control(Request::Compile(v1::Compile {
                request: 9,
                executable: 7,
                device: "REF0".into(),
                graph: Bytes::from_static(graph),
                places: Bytes::from_static(places),
            }))
        };
        for (request, ok) in [
            (alloc(1, "REF0", 64), true),
            (alloc(1, "REF0", 64), false),
            (alloc(0, "REF0", 64), false),
            (alloc(2, "NOPE", 64), false),
            (alloc(2, "REF0", u64::MAX), false),
            (alloc(3, "REF1", 0), true),
            (compile(b"\xff\xff\xff", b""), false),
            (compile(b"\x0a\x00", b""), false),
            (compile(b"", b"\x0a\x01\x05"), false),
            (compile(b"", b""), true),
            (alloc(4, "REF0", 64), true),
        ] {
            let text = format!("{request:?}");
            talk.to.send(request).unwrap();
            match talk.next().await.unwrap().unwrap().reply {
                Some(ControlReply::Done(done)) => assert_eq!(done.error.is_none(), ok, "{text}: {done:?}"),
                other => panic!("{other:?}"),
            }
        }
        // Frees of what is not there are no error.
        let free = v1::Free { buffers: vec![1, 1, 99], executables: vec![5, 7], fences: vec![] };
        talk.to.send(control(Request::Free(free))).unwrap();
        talk.to.send(control(Request::Goodbye(v1::Goodbye {}))).unwrap();
        assert!(matches!(talk.next().await.unwrap().unwrap().reply, Some(ControlReply::Bye(_))));
        assert_eq!(server.sessions(), 0);
        assert!(talk.next().await.unwrap().is_none());
    });
}

#[test]
fn wrong_commands_fail_their_queue_only() {
    let (server, _) = server();
    run(async {
        let mut client = client(&server).await;
        let session = hello(&mut client).await;
        let mut talk = talk!(client, control);
        talk.to.send(control(Request::Attach(session.clone()))).unwrap();
        for (buffer, device) in [(1, "REF0"), (2, "REF1")] {
            let device = device.into();
            let alloc = v1::Alloc { request: 9, buffer, device, size: 64, usage: "ANY".into() };
            talk.to.send(control(Request::Alloc(alloc))).unwrap();
        }
        for _ in 0..3 {
            talk.next().await.unwrap().unwrap();
        }
        let finish = || command(C::Finish(v1::Finish { request: 5 }));
        let read = |src, bulk| command(C::Read(v1::Read { request: 5, src, bulk }));
        let fill = |dst, value| command(C::Fill(v1::Fill { dst, value }));
        let wrong = [
            v1::Command { command: None },
            open(&session, 99, "REF0"),
            fill(slice(3, 0, 1), 0),
            fill(slice(2, 0, 1), 0),
            fill(slice(1, 0, 65), 0),
            fill(slice(1, u64::MAX, 2), 0),
            fill(slice(1, 0, 1), 256),
            fill(None, 0),
            read(slice(1, 60, 5), false),
            read(slice(1, 60, u64::MAX), true),
            command(C::Write(v1::Write { dst: slice(1, 0, 5), data: Bytes::from_static(b"four") })),
            command(C::Copy(v1::Copy { src: slice(1, 0, 5), dst: slice(1, 8, 4) })),
            command(C::Execute(v1::Execute { executable: 1 })),
            command(C::Wait(v1::Wait { queue: 12345, value: 1 })),
            command(C::Signal(v1::Signal { value: 2 })),
            command(C::Signal(v1::Signal { value: u64::MAX })),
            command(C::Offer(v1::Offer { ticket: Bytes::new(), src: slice(1, 0, 1), to: "REF1".into(), target: None })),
            command(C::Offer(v1::Offer {
                ticket: vec![1; 32].into(),
                src: slice(1, 0, 1),
                to: "NOPE".into(),
                target: None,
            })),
            command(C::Accept(v1::Accept { ticket: vec![1; 31].into(), dst: slice(1, 0, 1), value: 1, source: None })),
        ];
        for (i, bad) in wrong.into_iter().enumerate() {
            let text = format!("{bad:?}");
            let mut queue = talk!(client, queue);
            queue.to.send(open(&session, 100 + i as u64, "REF0")).unwrap();
            assert!(matches!(queue.next().await.unwrap().unwrap().reply, Some(Reply::Opened(_))));
            queue.to.send(fill(slice(1, 0, 64), 1)).unwrap();
            queue.to.send(bad).unwrap();
            queue.to.send(finish()).unwrap();
            let Some(Reply::Failed(failed)) = queue.next().await.unwrap().unwrap().reply else { panic!("{text}") };
            assert!(matches!(failed.kind, Some(Kind::Request(_))), "{text}: {failed:?}");
            loop {
                match queue.next().await.unwrap().unwrap().reply {
                    Some(Reply::Done(done)) => {
                        assert_eq!(done.error, Some(failed.clone()), "{text}");
                        if !text.contains("Read") || done.request == 5 {
                            break;
                        }
                    }
                    other => panic!("{text}: {other:?}"),
                }
            }
        }
        // After all of that, a queue works.
        let mut queue = talk!(client, queue);
        queue.to.send(open(&session, 500, "REF0")).unwrap();
        queue.to.send(finish()).unwrap();
        assert!(matches!(queue.next().await.unwrap().unwrap().reply, Some(Reply::Opened(_))));
        let Some(Reply::Done(done)) = queue.next().await.unwrap().unwrap().reply else { panic!() };
        assert_eq!((done.request, done.error), (5, None));
    });
}

/// Streams do not wait for one another: a free may come before the queue is open whose commands it has to wait for.
#[test]
fn frees_wait_for_commands_of_queues_that_are_not_open_yet() {
    let (server, _) = server();
    run(async {
        let mut client = client(&server).await;
        let session = hello(&mut client).await;
        let mut talk = talk!(client, control);
        talk.to.send(control(Request::Attach(session.clone()))).unwrap();
        let alloc = |buffer| {
            let (device, usage) = ("REF0".into(), "ANY".into());
            control(Request::Alloc(v1::Alloc { request: buffer, buffer, device, size: 64, usage }))
        };
        let free = |buffer, queue| {
            let fences = vec![v1::Fence { queue, commands: 2 }];
            control(Request::Free(v1::Free { buffers: vec![buffer], executables: Vec::new(), fences }))
        };
        for message in [alloc(1), free(1, 7), alloc(2)] {
            talk.to.send(message).unwrap();
        }
        for _ in 0..3 {
            talk.next().await.unwrap().unwrap();
        }
        let fill = || command(C::Fill(v1::Fill { dst: slice(1, 0, 64), value: 7 }));
        let read = |request| command(C::Read(v1::Read { request, src: slice(1, 0, 2), bulk: false }));
        let mut queue = talk!(client, queue);
        for message in [open(&session, 7, "REF0"), fill(), read(3)] {
            queue.to.send(message).unwrap();
        }
        assert!(matches!(queue.next().await.unwrap().unwrap().reply, Some(Reply::Opened(_))));
        let Some(Reply::Data(data)) = queue.next().await.unwrap().unwrap().reply else { panic!("freed too early") };
        assert_eq!((data.request, &data.data[..]), (3, &[7, 7][..]));
        // It is freed behind them.
        let mut freed = false;
        for request in 4..200 {
            queue.to.send(read(request)).unwrap();
            match queue.next().await.unwrap().unwrap().reply {
                Some(Reply::Data(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
                Some(Reply::Failed(_)) => {
                    freed = true;
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(freed);
    });
}

/// As frees do, so do waits.
#[test]
fn waits_may_come_before_the_queue_that_they_wait_for() {
    let (server, _) = server();
    run(async {
        let mut client = client(&server).await;
        let session = hello(&mut client).await;
        let finish = || command(C::Finish(v1::Finish { request: 1 }));
        let mut first = talk!(client, queue);
        for message in [open(&session, 7, "REF0"), command(C::Wait(v1::Wait { queue: 8, value: 1 })), finish()] {
            first.to.send(message).unwrap();
        }
        assert!(matches!(first.next().await.unwrap().unwrap().reply, Some(Reply::Opened(_))));
        let early = tokio::time::timeout(Duration::from_millis(300), first.next()).await;
        assert!(early.is_err(), "{early:?}");
        let second = talk!(client, queue);
        for message in [open(&session, 8, "REF0"), command(C::Signal(v1::Signal { value: 1 }))] {
            second.to.send(message).unwrap();
        }
        let reply = first.next().await.unwrap().unwrap().reply;
        assert!(matches!(reply, Some(Reply::Done(v1::Done { request: 1, .. }))), "{reply:?}");
        // One that cannot be opened fails who waits for it, at once.
        first.to.send(command(C::Wait(v1::Wait { queue: 9, value: 1 }))).unwrap();
        let third = talk!(client, queue);
        third.to.send(open(&session, 9, "NONE")).unwrap();
        let Some(Reply::Failed(failed)) = first.next().await.unwrap().unwrap().reply else { panic!("not failed") };
        assert!(format!("{failed:?}").contains("no device"), "{failed:?}");
    });
}

#[test]
fn sessions_need_their_secret() {
    let (server, _) = server();
    run(async {
        let mut client = client(&server).await;
        let session = hello(&mut client).await;
        let mut other = hello(&mut client).await;
        other.secret = Bytes::from(vec![0; 32]);
        for bad in [
            v1::Session { secret: Bytes::new(), ..session.clone() },
            v1::Session { secret: other.secret.clone(), ..session.clone() },
            v1::Session { id: session.id ^ 1, ..session.clone() },
        ] {
            let mut talk = talk!(client, control);
            talk.to.send(control(Request::Attach(bad.clone()))).unwrap();
            assert_eq!(talk.next().await.unwrap_err().code(), tonic::Code::Unauthenticated);
            let mut queue = talk!(client, queue);
            queue.to.send(open(&bad, 1, "REF0")).unwrap();
            assert_eq!(queue.next().await.unwrap_err().code(), tonic::Code::Unauthenticated);
        }
        // Handles of another session are unknown.
        let mut talk = talk!(client, control);
        talk.to.send(control(Request::Attach(session.clone()))).unwrap();
        let alloc = v1::Alloc { request: 9, buffer: 1, device: "REF0".into(), size: 64, usage: "ANY".into() };
        talk.to.send(control(Request::Alloc(alloc))).unwrap();
        talk.next().await.unwrap();
        talk.next().await.unwrap();
        let second = hello(&mut client).await;
        let mut queue = talk!(client, queue);
        queue.to.send(open(&second, 1, "REF0")).unwrap();
        queue.to.send(command(C::Read(v1::Read { request: 1, src: slice(1, 0, 64), bulk: false }))).unwrap();
        queue.next().await.unwrap();
        let Some(Reply::Failed(failed)) = queue.next().await.unwrap().unwrap().reply else { panic!() };
        assert!(matches!(failed.kind, Some(Kind::Request(text)) if text.contains("unknown in this session")));
    });
}

#[test]
fn health_and_reflection_are_there() {
    let (server, _) = server();
    run(async {
        let client = client(&server).await;
        drop(client);
        let http = plain::http(server.local_addr()).await;
        let origin: http::Uri = format!("http://{}", server.local_addr()).parse().unwrap();
        let mut health = tonic_health::pb::health_client::HealthClient::with_origin(Conn(http.clone()), origin.clone());
        for (service, ok) in [("", true), ("outboard.v1.Outboard", true), ("no.such.Service", false)] {
            let request = tonic_health::pb::HealthCheckRequest { service: service.into() };
            let status = health.check(request).await.map(|r| r.into_inner().status);
            assert_eq!(status.as_ref().is_ok_and(|&s| s == 1), ok, "{service}: {status:?}");
        }
        use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
        use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
        use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
        let mut reflection = ServerReflectionClient::with_origin(Conn(http), origin);
        let request = tonic_reflection::pb::v1::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let mut answers = reflection.server_reflection_info(tokio_stream::iter([request])).await.unwrap().into_inner();
        let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
        let MessageResponse::ListServicesResponse(list) = answer else { panic!("{answer:?}") };
        let names: Vec<_> = list.service.iter().map(|s| s.name.as_str()).collect();
        assert!(names.contains(&"outboard.v1.Outboard") && names.contains(&"grpc.health.v1.Health"), "{names:?}");
    });
}

#[test]
fn blobs_go_only_where_the_session_may_write() {
    use outboard_core::Digest;
    use outboard_proto::blobs::{Blob, Place, encode_places, encode_question};
    let dir = tempfile::tempdir().unwrap();
    let host = outboard_core::Host::new();
    let budget = outboard_host::MemoryBudget::new(Some(MEMORY));
    let devices = vec![outboard_reference::reference_device(&host, "REF0", &budget)];
    let addr = "127.0.0.1:0".parse().unwrap();
    let options = outboard_rpc_server::BlobOptions { cache: Some(dir.path().into()), ..Default::default() };
    let blobs = outboard_rpc_server::Blobs::open(&options).unwrap();
    let config = outboard_rpc_server::ServerConfig {
        addr,
        devices,
        limits: outboard_rpc_server::Limits::default(),
        trust: outboard_rpc_server::Trust::default(),
    };
    let server = Server::start_with(config, Some(blobs)).unwrap();
    let data = [7; 5000];
    let digest = Digest(*blake3::hash(&data).as_bytes());
    std::fs::write(dir.path().join(digest.to_string()), data).unwrap();
    run(async {
        let mut client = client(&server).await;
        let (mine, other) = (hello(&mut client).await, hello(&mut client).await);
        let alloc = |request| v1::Alloc { request, buffer: 1, device: "REF0".into(), size: 8000, usage: "ANY".into() };
        let mut talks = Vec::new();
        for session in [&mine, &other] {
            let mut talk = talk!(client, control);
            talk.to.send(control(Request::Attach(session.clone()))).unwrap();
            // The other session's buffer has a number of its own.
            let buffer = if session == &mine { 1 } else { 2 };
            talk.to.send(control(Request::Alloc(v1::Alloc { buffer, ..alloc(1) }))).unwrap();
            assert!(matches!(talk.next().await.unwrap().unwrap().reply, Some(ControlReply::Attached(_))));
            assert!(matches!(talk.next().await.unwrap().unwrap().reply, Some(ControlReply::Done(_))));
            talks.push(talk);
        }
        let have = |session: &v1::Session, blobs: Bytes| v1::HaveBlobsRequest { session: Some(session.clone()), blobs };
        let place =
            |place: Place| v1::PlaceBlobsRequest { session: Some(mine.clone()), blobs: encode_places(&[place]) };
        let blob = Blob { digest, len: 5000 };
        let question = encode_question(&[blob, Blob { len: 4999, ..blob }, Blob { digest: Digest([1; 32]), ..blob }]);
        let answer = client.have_blobs(have(&mine, question.clone())).await.unwrap().into_inner();
        assert_eq!(answer.have[..], [1]);
        let nobody = v1::Session { id: mine.id, secret: other.secret.clone() };
        assert!(client.have_blobs(have(&nobody, question)).await.is_err());
        assert!(client.have_blobs(have(&mine, Bytes::from(vec![0xff; 50]))).await.is_err());
        let good = Place { blob, buffer: 1, offset: 3000 };
        for wrong in [
            Place { buffer: 2, ..good },
            Place { buffer: 0, ..good },
            Place { offset: 3001, ..good },
            Place { offset: u64::MAX, ..good },
            Place { blob: Blob { len: u64::MAX, ..blob }, ..good },
        ] {
            let status = client.place_blobs(place(wrong)).await.unwrap_err();
            assert_eq!(status.code(), tonic::Code::InvalidArgument, "{wrong:?}: {status}");
        }
        // A wrong length finds nothing, and harms nobody.
        let short = Place { blob: Blob { len: 4999, ..blob }, ..good };
        assert_eq!(client.place_blobs(place(short)).await.unwrap().into_inner().placed[..], [0]);
        assert_eq!(client.place_blobs(place(good)).await.unwrap().into_inner().placed[..], [1]);
        let mut queue = talk!(client, queue);
        queue.to.send(open(&mine, 9, "REF0")).unwrap();
        queue.to.send(command(C::Read(v1::Read { request: 1, src: slice(1, 2999, 5001), bulk: false }))).unwrap();
        // A digest that is none fails the queue that uses it.
        let digest = Bytes::from_static(&[1; 31]);
        queue.to.send(command(C::WriteBulk(v1::WriteBulk { transfer: 2, dst: slice(1, 0, 5000), digest }))).unwrap();
        assert!(matches!(queue.next().await.unwrap().unwrap().reply, Some(Reply::Opened(_))));
        let mut replies = Vec::new();
        for _ in 0..2 {
            replies.push(queue.next().await.unwrap().unwrap().reply.unwrap());
        }
        let data = replies.iter().find_map(|r| if let Reply::Data(d) = r { Some(d.data.clone()) } else { None });
        let expected = [&[0][..], &[7; 5000]].concat();
        assert_eq!(data.unwrap(), expected);
        assert!(replies.iter().any(|r| matches!(r, Reply::Failed(_))));
    });
}
