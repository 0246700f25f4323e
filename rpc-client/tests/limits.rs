//! Limits of connections and of clients, tried at what they are by default, and one beyond: who is closed, who waits, who is told.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;
#[allow(dead_code)]
mod hostile;
#[path = "common/pki.rs"]
#[allow(unreachable_pub, dead_code)]
mod pki;

use common::*;
use hostile::{DEVICES, Hostile, Scene, alloc, run, slice};
use outboard_core::Host;
use outboard_fuzz::raw::{Conn, NOTHING, Stream, connect_from, framed};
use outboard_host::MemoryBudget;
use outboard_net::{ClientTls as NetClientTls, Dialer, Meter, TlsFiles as NetTlsFiles};
use outboard_proto::limits::MAX_FREE;
use outboard_proto::v1::command::Command as C;
use outboard_proto::v1::control_reply::Reply;
use outboard_proto::v1::control_request::Request as R;
use outboard_proto::v1::{self};
use outboard_reference::reference_device;
use outboard_rpc_client::{Carrier, ClientOptions, ClientTls, TlsFiles, connect};
use outboard_rpc_server::{ClientLimits, Limits, Server, ServerConfig, ServerTls, Tokens, Trust};
use prost::Message;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::result::Result;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "00112233445566778899aabbccddeeff";
const WRONG: &str = "fedcba9876543210fedcba9876543210";
/// Longer than anything here takes that does not wait for something.
const SOON: Duration = Duration::from_secs(3);

fn request(request: R) -> Vec<u8> {
    v1::ControlRequest { request: Some(request) }.encode_to_vec()
}

async fn control_of(conn: &Conn, first: R) -> Stream {
    let stream = conn.stream("outboard.v1.Outboard/Control").await.unwrap();
    stream.message(&request(first));
    stream
}

async fn answer(stream: &mut Stream) -> Result<Reply, String> {
    let reply = stream.next().await?.ok_or("the end")?;
    Ok(v1::ControlReply::decode(reply).unwrap().reply.unwrap())
}

/// Makes a connection one of the client that the session is of.
async fn belongs(conn: &Conn, session: &v1::Session) -> Result<(), String> {
    let traces = v1::TraceRequest { session: Some(session.clone()), record: false };
    conn.call("outboard.v1.Outboard/Trace", &traces.encode_to_vec()).await.map(drop)
}

/// A graph of so many nodes, which takes some hundredths of a second to decode.
fn large_graph(nodes: usize) -> Vec<u8> {
    let node = hostile::wire([hostile::node("SQR", &[8], &[1])]);
    [hostile::wire([hostile::leaf("x", "F32", &[8], &[])]), node.repeat(nodes)].concat()
}

#[test]
fn a_resume_that_comes_too_late_frees_nothing_of_the_newer() {
    let scene = Scene::new(Limits::default());
    let addr = scene.server.local_addr();
    scene.attack(async |h: &mut Hostile| {
        for round in 0..3 {
            // The thread of the session has much to do, so that both wait.
            let (session, graph) = (Some(h.session.clone()), large_graph(60_000).into());
            let supports = framed(&v1::SupportsRequest { session, device: "REF0".into(), graph }.encode_to_vec());
            let mut busy = Vec::new();
            for _ in 0..64 {
                let mut call = h.conn.stream("outboard.v1.Outboard/Supports").await.unwrap();
                call.bytes(supports.clone());
                call.close();
                busy.push(call);
            }
            busy[0].next().await.unwrap();
            let resume = |buffers: Vec<u64>| {
                R::Resume(v1::Resume { session: Some(h.session.clone()), buffers, executables: vec![] })
            };
            let (old, new) = (Conn::open(addr).await.unwrap(), Conn::open(addr).await.unwrap());
            // Both with the secret that the client knows: it has not got the answer to the first. It has dropped everything when it
            // sends the first, say; what the second keeps must stay.
            let mut stale = control_of(&old, resume(vec![])).await;
            let _ = tokio::time::timeout(Duration::from_millis(200), stale.next()).await;
            let mut current = control_of(&new, resume(vec![1, 2])).await;
            let Reply::Resumed(v1::Resumed { session: Some(session) }) = answer(&mut current).await.unwrap() else {
                panic!("not taken up");
            };
            let late = answer(&mut stale).await;
            assert!(late.as_ref().is_err_and(|e| e.contains("taken up again")), "{late:?}");
            (h.session, h.conn, h.control) = (session, new, current);
            // Both buffers are there.
            for (device, buffer) in [(0, 1), (1, 2)] {
                let fill = C::Fill(v1::Fill { dst: slice(buffer, 0, hostile::SIZE), value: round });
                assert_eq!(h.commands(device, [fill]).await, None, "{}", DEVICES[device]);
            }
        }
    });
}

#[test]
fn what_comes_on_a_stream_of_before_a_resume_comes_too_late() {
    let scene = Scene::new(Limits::default());
    scene.attack(async |h: &mut Hostile| {
        let new = Conn::open(scene.server.local_addr()).await.unwrap();
        let resume = v1::Resume { session: Some(h.session.clone()), buffers: vec![1, 2], executables: vec![] };
        let mut current = control_of(&new, R::Resume(resume)).await;
        let Reply::Resumed(v1::Resumed { session: Some(session) }) = answer(&mut current).await.unwrap() else {
            panic!("not taken up");
        };
        for late in [R::Free(v1::Free { buffers: vec![1, 2], ..Default::default() }), R::Goodbye(v1::Goodbye {})] {
            h.control.message(&request(late));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        (h.session, h.conn, h.control) = (session, new, current);
        let fill = C::Fill(v1::Fill { dst: slice(1, 0, 8), value: 1 });
        assert_eq!(h.commands(0, [fill]).await, None);
    });
}

#[test]
fn a_session_has_one_control_stream_at_a_time() {
    let scene = Scene::new(Limits::default());
    scene.attack(async |h: &mut Hostile| {
        let start = Instant::now();
        let mut second = control_of(&h.conn, R::Attach(h.session.clone())).await;
        let refused = answer(&mut second).await.unwrap_err();
        assert!(refused.contains("has a control stream already"), "{refused}");
        assert!(start.elapsed() > Duration::from_secs(4), "one that is about to end is waited for");
        assert_eq!(h.request(alloc(9, "REF0", 64)).await, Ok(()));
        // When the first has ended, another one gets in.
        let mut third = control_of(&h.conn, R::Attach(h.session.clone())).await;
        h.control.close();
        assert!(matches!(answer(&mut third).await.unwrap(), Reply::Attached(_)));
        h.control = third;
        assert_eq!(h.request(alloc(10, "REF0", 64)).await, Ok(()));
    });
}

#[test]
fn fences_and_waiting_frees_at_their_limits_and_beyond() {
    /// Fences of one request, and requests of a session that wait.
    const FENCES: usize = 1024;
    const WAITING: u64 = 256;
    let scene = Scene::new(Limits::default());
    scene.attack(async |h: &mut Hostile| {
        // A queue that waits for another one, which waits for nothing yet.
        let open = |queue| C::Open(v1::OpenQueue { session: Some(h.session.clone()), queue, device: "REF0".into() });
        let mut queues = Vec::new();
        for queue in [5, 6] {
            let mut stream = h.conn.stream("outboard.v1.Outboard/Queue").await.unwrap();
            stream.message(&v1::Command { command: Some(open(queue)) }.encode_to_vec());
            stream.next().await.unwrap();
            queues.push(stream);
        }
        let command =
            |stream: &Stream, command| stream.message(&v1::Command { command: Some(command) }.encode_to_vec());
        command(&queues[0], C::Wait(v1::Wait { queue: 6, value: 1 }));
        for buffer in 0..WAITING + 2 {
            assert_eq!(h.request(alloc(100 + buffer, "REF0", 64)).await, Ok(()));
        }
        let free = |buffer: u64, fences: Vec<v1::Fence>| {
            request(R::Free(v1::Free { buffers: vec![100 + buffer], executables: vec![], fences }))
        };
        let fence = v1::Fence { queue: 5, commands: 1 };
        // One more fence than there may be: nothing of it is freed, and the stream goes on.
        h.control.message(&free(WAITING + 1, vec![fence; FENCES + 1]));
        // As many as there may be.
        h.control.message(&free(0, vec![fence; FENCES]));
        for buffer in 1..WAITING {
            h.control.message(&free(buffer, vec![fence]));
        }
        // All of those wait; one more makes the stream wait.
        h.settle().await.unwrap();
        h.control.message(&free(WAITING, vec![fence]));
        h.control.message(&request(R::Alloc(v1::Alloc { request: 7, ..Default::default() })));
        let early = tokio::time::timeout(Duration::from_millis(300), h.control.next()).await;
        assert!(early.is_err(), "{early:?}");
        // The event comes: all are freed, in the end.
        command(&queues[1], C::Signal(v1::Signal { value: 1 }));
        assert!(matches!(answer(&mut h.control).await.unwrap(), Reply::Done(v1::Done { request: 7, .. })));
        let start = Instant::now();
        for buffer in 0..=WAITING {
            while let Err(e) = h.request(alloc(100 + buffer, "REF0", 64)).await {
                assert!(e.contains("taken") && start.elapsed() < SOON, "{buffer}: {e}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        let kept = h.request(alloc(100 + WAITING + 1, "REF0", 64)).await.unwrap_err();
        assert!(kept.contains("taken"), "{kept}");
        drop(queues);
    });
}

#[test]
fn a_message_is_one_request_of_its_size() {
    let scene = Scene::new(Limits::default());
    scene.attack(async |h: &mut Hostile| {
        let one = request(alloc(9, "REF0", 64));
        let two = [one.clone(), request(alloc(10, "REF0", 64))].concat();
        // Decoded, its empty fences would take eight times its bytes.
        let mut fences = Vec::new();
        prost::encoding::bytes::encode(4, &[0x1a, 0].repeat(500_000), &mut fences);
        let many = v1::Free { buffers: vec![1; 50 * MAX_FREE], ..Default::default() };
        for (what, message, why) in [
            ("two requests", two, "more than one request"),
            ("many fences", fences, "a request to free of 1000000 bytes"),
            ("many handles", request(R::Free(many)), "a request to free of"),
        ] {
            let refused = h.raw_request(&message).await.unwrap_err();
            assert!(refused.contains(why), "{what}: {refused}");
            h.control = hostile::control(&h.conn, &h.session).await;
        }
        assert_eq!(h.request(alloc(9, "REF0", 64)).await, Ok(()));
        // A call that says that its message is short, and takes room for that.
        let mut call = h.conn.stream("outboard.v1.Outboard/Supports").await.unwrap();
        call.bytes(framed(&[]));
        call.bytes(vec![0u8; 1 << 20]);
        call.close();
        let refused = call.next().await.unwrap_err();
        assert!(refused.contains("more bytes than the message"), "{refused}");
    });
}

#[test]
fn connections_of_a_client_at_their_limit() {
    let scene = Scene::new(Limits::default());
    let (addr, most) = (scene.server.local_addr(), Limits::default().client.connections);
    run(async {
        let first = Conn::open(addr).await.unwrap();
        let session = first.hello().await.unwrap().session.unwrap();
        let mut open = Vec::new();
        let refused = loop {
            let conn = Conn::open(addr).await.unwrap();
            match belongs(&conn, &session).await {
                Ok(()) => open.push(conn),
                Err(refused) => break refused,
            }
            assert!(open.len() <= most, "no limit");
        };
        println!("{refused}");
        assert!(!refused.starts_with(NOTHING), "{refused}");
        // Those of the scene are of the same address.
        let there = scene.server.connections();
        assert!(there == most && open.len() > most - 6, "{there} of {most}, {} of them here", open.len());
        // They are not closed for strangers, and one who has gone makes room.
        let silent: Vec<_> = (0..30).map(|_| TcpStream::connect(addr)).collect();
        for conn in &open {
            belongs(conn, &session).await.unwrap();
        }
        drop(silent);
        open.pop();
        let start = Instant::now();
        while belongs(&Conn::open(addr).await.unwrap(), &session).await.is_err() {
            assert!(start.elapsed() < SOON);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Others have theirs.
        let other = Conn::open_from(Ipv4Addr::new(127, 0, 0, 2), addr).await.unwrap();
        other.hello().await.unwrap();
    });
    scene.unharmed(3);
}

#[test]
fn a_client_with_a_name_is_told_of_its_limit_and_leaves_its_address_to_others() {
    let (server, _, _dir) = guarded();
    let (addr, most) = (server.local_addr(), Limits::default().client.connections);
    run(async {
        let mut open = Vec::new();
        for _ in 0..most {
            let conn = Conn::open(addr).await.unwrap();
            devices_with(&conn, TOKEN).await.unwrap();
            open.push(conn);
        }
        let refused = devices_with(&Conn::open(addr).await.unwrap(), TOKEN).await.unwrap_err();
        assert!(
            refused.contains("laptop has 96 connections here already") && refused.contains("close one"),
            "{refused}"
        );
        devices_with(&Conn::open(addr).await.unwrap(), OTHER).await.unwrap();
        open.pop();
        let start = Instant::now();
        while devices_with(&Conn::open(addr).await.unwrap(), TOKEN).await.is_err() {
            assert!(start.elapsed() < SOON);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

#[test]
fn what_all_sessions_of_a_client_have_is_counted_together() {
    let client = ClientLimits { queues: 3, buffers: 4, graphs: 20_000, ..ClientLimits::default() };
    let (server, _) = server_with(Limits { client, ..Limits::default() });
    let addr = server.local_addr();
    run(async {
        let session = async || {
            let conn = Conn::open(addr).await.unwrap();
            let session = conn.hello().await.unwrap().session.unwrap();
            let control = hostile::control(&conn, &session).await;
            Hostile { conn, session, control, next: 100 }
        };
        let (mut a, mut b) = (session().await, session().await);
        for buffer in [1, 2] {
            a.request(alloc(buffer, "REF0", 4096)).await.unwrap();
            b.request(alloc(buffer, "REF0", 4096)).await.unwrap();
        }
        let full = b.request(alloc(3, "REF0", 64)).await.unwrap_err();
        assert!(full.contains("has 4 buffers here already"), "{full}");
        // A graph counts as a kilobyte for each tensor, and some.
        let graph = |n: u32| {
            let leaves: Vec<_> = (0..n).map(|i| hostile::leaf(&format!("x{i}"), "F32", &[8], &[])).collect();
            hostile::wire(leaves)
        };
        let places = |n: u32| (0..n).map(|t| (t, 1, u64::from(t) * 256, 256)).collect::<Vec<_>>();
        let executable = a.compile_at(0, graph(8), &places(8)).await.unwrap();
        let full = b.compile_at(0, graph(8), &places(8)).await.unwrap_err();
        assert!(full.contains("the graphs of one client may take") && full.contains("free executables"), "{full}");
        a.control.message(&request(R::Free(v1::Free { executables: vec![executable], ..Default::default() })));
        a.settle().await.unwrap();
        b.compile_at(0, graph(8), &places(8)).await.unwrap();
        let mut open = Vec::new();
        for (h, queue) in [(&a, 1), (&a, 2), (&b, 3), (&b, 4)] {
            let mut stream = h.conn.stream("outboard.v1.Outboard/Queue").await.unwrap();
            let command = C::Open(v1::OpenQueue { session: Some(h.session.clone()), queue, device: "REF0".into() });
            stream.message(&v1::Command { command: Some(command) }.encode_to_vec());
            let opened = stream.next().await;
            match queue {
                4 => assert!(opened.as_ref().is_err_and(|e| e.contains("has 3 queues here already")), "{opened:?}"),
                _ => assert!(opened.is_ok(), "{opened:?}"),
            }
            open.push(stream);
        }
    });
}

/// A server that wants a token, without encryption, and the address of its metrics.
fn guarded() -> (Server, SocketAddr, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    std::fs::write(&path, format!("laptop {TOKEN}\ndesk {OTHER}\n")).unwrap();
    let trust = Trust { tokens: Some(Arc::new(Tokens::load(&path).unwrap())), ..Default::default() };
    let mut server = start(trust);
    let metrics = server.serve_metrics("127.0.0.1:0".parse().unwrap()).unwrap();
    (server, metrics, dir)
}

fn start(trust: Trust) -> Server {
    let budget = MemoryBudget::new(Some(MEMORY));
    let devices = vec![reference_device(&Host::new(), "REF0", &budget)];
    let addr = "127.0.0.1:0".parse().unwrap();
    Server::start(ServerConfig { addr, devices, limits: Limits::default(), trust }).unwrap()
}

/// How often something was refused for this reason.
fn refused(metrics: SocketAddr, reason: &str) -> u64 {
    let mut socket = TcpStream::connect(metrics).unwrap();
    write!(socket, "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    let name = format!("outboard_refused_total{{reason=\"{reason}\"}} ");
    text.lines().find_map(|l| l.strip_prefix(&name)).map_or(0, |n| n.parse().unwrap())
}

async fn devices_with(conn: &Conn, token: &str) -> Result<(), String> {
    let call = conn.clone().with_token(token);
    call.call("outboard.v1.Outboard/Devices", &v1::DevicesRequest {}.encode_to_vec()).await.map(drop)
}

#[test]
fn wrong_tokens_end_their_connection_and_slow_down_their_address() {
    let (server, metrics, _dir) = guarded();
    let addr = server.local_addr();
    run(async {
        let start = Instant::now();
        let conn = Conn::open(addr).await.unwrap();
        for _ in 0..3 {
            let e = devices_with(&conn, WRONG).await.unwrap_err();
            assert!(e.contains("does not know this token"), "{e}");
        }
        // 100, 200 and 400 ms.
        assert!(start.elapsed() >= Duration::from_millis(700), "{:?}", start.elapsed());
        // Not even a right one is looked at any more, and then it ends.
        let e = devices_with(&conn, TOKEN).await.unwrap_err();
        assert!(!e.starts_with(NOTHING), "{e}");
        let start = Instant::now();
        while server.connections() > 0 {
            assert!(start.elapsed() < SOON, "the connection is still there");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // More of them at the same time gain nothing.
        let mut guesses = Vec::new();
        for _ in 0..9 {
            guesses.push(tokio::spawn(async move {
                let conn = Conn::open(addr).await.unwrap();
                let start = Instant::now();
                devices_with(&conn, WRONG).await.unwrap_err();
                start.elapsed()
            }));
        }
        let mut longest = Duration::ZERO;
        for guess in guesses {
            longest = longest.max(guess.await.unwrap());
        }
        assert!(longest >= Duration::from_millis(1900), "{longest:?}");
        // Whoever has the right one waits for two seconds at most, and from elsewhere not at all.
        let start = Instant::now();
        devices_with(&Conn::open(addr).await.unwrap(), TOKEN).await.unwrap();
        assert!((1500..3000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
        let start = Instant::now();
        devices_with(&Conn::open_from(Ipv4Addr::new(127, 0, 0, 2), addr).await.unwrap(), TOKEN).await.unwrap();
        assert!(start.elapsed() < Duration::from_millis(1500), "{:?}", start.elapsed());
    });
    assert_eq!(refused(metrics, "token"), 12);
}

#[test]
fn those_who_wait_for_the_answer_to_a_right_token_are_not_closed_for_others() {
    let (server, _, _dir) = guarded();
    let addr = server.local_addr();
    run(async {
        for _ in 0..6 {
            devices_with(&Conn::open(addr).await.unwrap(), WRONG).await.unwrap_err();
        }
        let conn = Conn::open(addr).await.unwrap();
        let answer = devices_with(&conn, TOKEN);
        let flood = async {
            let mut open = Vec::new();
            tokio::time::sleep(Duration::from_millis(300)).await;
            for _ in 0..300 {
                open.push(connect_from(Ipv4Addr::LOCALHOST, addr).await.unwrap());
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        };
        let (answer, ()) = tokio::join!(answer, flood);
        answer.unwrap();
    });
}

#[test]
fn connections_that_are_not_used_are_closed_and_those_of_strangers_sooner() {
    let (server, _, _dir) = guarded();
    let addr = server.local_addr();
    run(async {
        let mut silent = connect_from(Ipv4Addr::LOCALHOST, addr).await.unwrap();
        let strange = Conn::open(addr).await.unwrap();
        strange.call("grpc.health.v1.Health/Check", &[]).await.unwrap();
        let known = Conn::open(addr).await.unwrap();
        devices_with(&known, TOKEN).await.unwrap();
        assert_eq!(server.connections(), 3);
        let start = Instant::now();
        // A stranger cannot stay by asking.
        while server.connections() > 1 {
            assert!(start.elapsed() < Duration::from_secs(14), "{} connections", server.connections());
            let _ = strange.call("grpc.health.v1.Health/Check", &[]).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        assert!(start.elapsed() > Duration::from_secs(8), "{:?}", start.elapsed());
        assert!(matches!(silent.read(&mut [0; 64]).await, Ok(0..64) | Err(_)));
        // One that has shown who it is stays longer, and not for ever.
        tokio::time::sleep(Duration::from_secs(12)).await;
        devices_with(&known, "").await.unwrap();
        let start = Instant::now();
        while server.connections() > 0 {
            assert!(start.elapsed() < Duration::from_secs(36), "an unused connection is still there");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(start.elapsed() > Duration::from_secs(28), "{:?}", start.elapsed());
    });
}

#[test]
fn no_more_is_read_from_strangers_than_a_first_message_takes() {
    /// More than the system keeps of a connection that nobody reads.
    const SENT: usize = 48 << 20;
    let scene = Scene::new(Limits::default());
    let addr = scene.server.local_addr();
    let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8].repeat(4096);
    run(async {
        let mut socket = connect_from(Ipv4Addr::LOCALHOST, addr).await.unwrap();
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let (mut from, mut to) = socket.into_split();
        let reading = tokio::spawn(async move {
            let (mut total, mut part) = (0, vec![0; 1 << 16]);
            while let Ok(n) = from.read(&mut part).await
                && n > 0
            {
                total += n;
            }
            total
        });
        let mut sent = 0;
        let sending = async {
            while sent < SENT {
                match to.write(&ping).await {
                    Ok(n) => sent += n,
                    Err(_) => return,
                }
            }
        };
        let _ = tokio::time::timeout(SOON, sending).await;
        assert!(sent < SENT, "all was taken");
        drop(to);
        let answered = reading.await.unwrap();
        println!("{answered} bytes of answers to {sent} that were sent");
        assert!(answered < 2 << 20, "{answered} bytes of answers");
    });
    scene.unharmed(1);
}

/// Nothing is counted.
struct Nothing;

impl Meter for Nothing {
    fn sent(&self, _: usize) {}
    fn received(&self, _: usize) {}
}

#[test]
fn quic_packets_of_clients_that_never_answer_take_no_places_from_their_address() {
    const PACKETS: usize = 400;
    let dir = tempfile::tempdir().unwrap();
    let ca = pki::Ca::new(dir.path(), "ca");
    let pair = ca.server(&["localhost", "127.0.0.1"], [-1, 1]);
    let tls = ServerTls::load(&pair.cert, &pair.key, None).unwrap();
    let server = start(Trust { tls: Some(tls), ..Default::default() });
    // First packets of many clients, caught by a socket that never answers.
    let hole = UdpSocket::bind("127.0.0.1:0").unwrap();
    hole.set_read_timeout(Some(SOON)).unwrap();
    let at = hole.local_addr().unwrap();
    let files = || NetTlsFiles { ca: Some(ca.file.clone()), ..Default::default() };
    let client_tls = NetClientTls::load(files()).unwrap();
    let calling = std::thread::spawn(move || {
        run(async {
            let endpoint = outboard_rpc_client::Endpoint::parse(&format!("quic://{at}")).unwrap();
            let mut calls = tokio::task::JoinSet::new();
            for _ in 0..PACKETS {
                let dialer = Dialer::new(endpoint.clone(), client_tls.clone());
                calls.spawn(async move { tokio::time::timeout(SOON, dialer.open(Nothing)).await.is_ok() });
            }
            while calls.join_next().await.is_some() {}
        });
    });
    let mut packets = std::collections::HashMap::new();
    let mut buffer = [0; 2048];
    while packets.len() < PACKETS
        && let Ok((n, from)) = hole.recv_from(&mut buffer)
    {
        packets.entry(from).or_insert_with(|| buffer[..n].to_vec());
    }
    calling.join().unwrap();
    // Some may be lost where the system has no room for them.
    assert!(packets.len() > PACKETS / 2, "{} packets", packets.len());
    // As if they came from this address, each from a port of its own that nobody listens on.
    let options = ClientOptions {
        tls: ClientTls::load(TlsFiles { ca: Some(ca.file.clone()), ..Default::default() }).unwrap(),
        ..Default::default()
    };
    for packet in packets.values() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(packet, server.local_addr()).unwrap();
    }
    std::thread::sleep(Duration::from_millis(300));
    println!("{} connections", server.connections());
    assert!(server.connections() <= 40, "{} connections", server.connections());
    for carrier in [Carrier::Quic, Carrier::Tls] {
        let start = Instant::now();
        let devices = connect(&[endpoint(&server).by(carrier)], &options);
        let took = start.elapsed();
        println!("{carrier:?}: {:?} in {took:?}", devices.as_ref().map(Vec::len));
        devices.unwrap();
        assert!(took < Duration::from_secs(3), "{took:?}");
    }
    // Their places are free again when their handshakes have failed.
    eventually(Duration::from_secs(5), || server.connections() == 0);
}

#[test]
fn an_error_of_a_command_that_is_too_large_fails_its_queue_only() {
    let scene = Scene::new(Limits::default());
    scene.attack(async |h: &mut Hostile| {
        let large = C::Write(v1::Write { dst: slice(1, 0, 8), data: vec![0; 1 << 20].into() });
        let failed = h.commands(0, [large]).await.unwrap();
        assert!(failed.contains("a command of") && failed.contains("at most"), "{failed}");
        let fill = C::Fill(v1::Fill { dst: slice(1, 0, 8), value: 1 });
        assert_eq!(h.commands(0, [fill]).await, None);
    });
}
