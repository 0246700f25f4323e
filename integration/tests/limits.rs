//! What a client can hold of a server, before it has shown who it is and after: real servers with their own limits, and clients
//! that take all they can get.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use bytes::Bytes;
use outboard_core::op::{Unary, UnaryKind};
use outboard_core::{DType, GraphBuilder};
use outboard_fuzz::raw::{Conn, Stream, connect_from};
use outboard_integration::{Client, Server};
use outboard_proto::v1::command::Command as C;
use outboard_proto::v1::control_request::Request as R;
use outboard_proto::{graph, v1};
use outboard_rpc_server::{Limits, worst};
use prost::Message;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;

const MIB: u64 = 1 << 20;

/// What one client can hold by one kind of thing.
fn of_a_client(what: &str) -> u64 {
    let all = worst::account(&Limits::default());
    let part = all.parts.iter().find(|part| part.what == what).expect("a part of what a client can hold");
    part.number * part.each.memory
}

const LIMIT: Duration = Duration::from_secs(60);
/// As soon as the machine lets a client in.
const AT_ONCE: Duration = Duration::from_secs(5);

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

fn address(server: &Server) -> SocketAddr {
    server.addr.parse().unwrap()
}

/// A client that lists devices gets in, soon.
fn gets_in(server: &Server) {
    let start = Instant::now();
    let done = Client::run(&["devices", "--rpc", &server.addr, "--json"], LIMIT);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
}

/// The most memory that a server has while something is done to it, above what it had before.
struct Peak {
    before: u64,
    most: u64,
}

impl Peak {
    fn new(server: &Server) -> Peak {
        Peak { before: server.resident(), most: 0 }
    }

    fn look(&mut self, server: &Server) {
        self.most = self.most.max(server.resident().saturating_sub(self.before));
    }

    /// Looks for so long.
    async fn watch(&mut self, server: &Server, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.look(server);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn is_below(&self, what: &str, bytes: u64) {
        println!("{what}: {} MiB more, {} MiB at most", self.most / MIB, bytes / MIB);
        assert!(self.most <= bytes, "{what}: {} MiB more, which is above {} MiB", self.most / MIB, bytes / MIB);
    }
}

#[test]
fn silent_connections_keep_nobody_out() {
    const EACH: usize = 200;
    let server = Server::start_with_descriptors(1024, &["-d", "cpu:1"]);
    run(async {
        let mut silent = Vec::new();
        for i in 0..3 * EACH {
            let from = Ipv4Addr::new(127, 0, 0, 1 + (i % 3) as u8);
            let connecting = tokio::time::timeout(Duration::from_secs(2), connect_from(from, address(&server)));
            if let Ok(Ok(socket)) = connecting.await {
                silent.push(socket);
            }
        }
        assert!(silent.len() > 2 * EACH, "{}", silent.len());
        gets_in(&server);
        gets_in(&server);
        drop(silent);
    });
}

/// A stream on which far more is sent than a server should take.
async fn flood(conn: &Conn, method: &str, part: &Bytes) -> Option<Stream> {
    let stream = conn.stream(method).await.ok()?;
    // A message of 16 MiB, which has just begun.
    stream.bytes(vec![0, 1, 0, 0, 0]);
    (0..16).for_each(|_| stream.bytes(part.clone()));
    Some(stream)
}

#[test]
fn strangers_hold_little() {
    const CONNECTIONS: usize = 32;
    const STREAMS: usize = 4;
    let server = Server::start(&["-d", "cpu:1"]);
    gets_in(&server);
    let part = Bytes::from(vec![0x0a; 1 << 20]);
    run(async {
        let mut peak = Peak::new(&server);
        let mut open = Vec::new();
        for i in 0..CONNECTIONS {
            let conn = Conn::open_from(Ipv4Addr::new(127, 0, 0, 1 + i as u8 % 4), address(&server)).await.unwrap();
            for method in ["Supports", "Control", "Hello", "PlaceBlobs"] {
                for _ in 0..STREAMS {
                    open.extend(flood(&conn, &format!("outboard.v1.Outboard/{method}"), &part).await);
                }
            }
            peak.look(&server);
        }
        peak.watch(&server, Duration::from_secs(3)).await;
        gets_in(&server);
        peak.is_below("strangers", worst::strangers(&Limits::default()).total().memory);
    });
}

/// A session, and the stream on which it is asked for memory.
struct Session {
    conn: Conn,
    session: v1::Session,
    control: Stream,
}

impl Session {
    async fn new(server: &Server) -> Session {
        let conn = Conn::open(address(server)).await.unwrap();
        let session = conn.hello().await.unwrap().session.unwrap();
        let control = conn.stream("outboard.v1.Outboard/Control").await.unwrap();
        control.message(&v1::ControlRequest { request: Some(R::Attach(session.clone())) }.encode_to_vec());
        Session { conn, session, control }
    }

    fn send(&self, request: R) {
        self.control.message(&v1::ControlRequest { request: Some(request) }.encode_to_vec());
    }

    /// The answer to a request: its error, if it has one.
    async fn ask(&mut self, request: R) -> Result<(), String> {
        self.send(request);
        loop {
            let reply = self.control.next().await?.ok_or("the end")?;
            if let Some(v1::control_reply::Reply::Done(done)) = v1::ControlReply::decode(reply).unwrap().reply {
                return done.error.map_or(Ok(()), |e| Err(format!("{e:?}")));
            }
        }
    }

    async fn alloc(&mut self, buffer: u64, size: u64) -> Result<(), String> {
        self.ask(R::Alloc(v1::Alloc { request: 1, buffer, device: "CPU0".into(), size, usage: "ANY".into() })).await
    }

    async fn queue(&self, queue: u64) -> Stream {
        let stream = self.conn.stream("outboard.v1.Outboard/Queue").await.unwrap();
        let open = v1::OpenQueue { session: Some(self.session.clone()), queue, device: "CPU0".into() };
        stream.message(&v1::Command { command: Some(C::Open(open)) }.encode_to_vec());
        stream
    }
}

/// A graph of so many nodes, each with a name of so many bytes.
fn large_graph(nodes: usize, name: usize) -> Bytes {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[8]).unwrap();
    let mut last = x;
    for i in 0..nodes {
        last = g.push(Unary { kind: UnaryKind::Sqr }, &[x]).unwrap();
        if name > 0 {
            g.name(last, &format!("{i:name$}"));
        }
    }
    g.output(last);
    graph::encode(&g.finish().unwrap()).unwrap()
}

/// The same, each tensor with so many bytes that nobody knows.
fn padded_graph(nodes: usize, padding: usize) -> Bytes {
    let graph = v1::Graph::decode(large_graph(nodes, 0)).unwrap();
    let mut out = Vec::new();
    for tensor in graph.tensors {
        let mut encoded = tensor.encode_to_vec();
        prost::encoding::bytes::encode(1000, &vec![7u8; padding], &mut encoded);
        prost::encoding::bytes::encode(1, &encoded, &mut out);
    }
    out.into()
}

fn supports(session: &v1::Session, graph: &Bytes) -> Bytes {
    let request = v1::SupportsRequest { session: Some(session.clone()), device: "CPU0".into(), graph: graph.clone() };
    outboard_fuzz::raw::framed(&request.encode_to_vec())
}

#[test]
fn calls_that_are_given_up_or_never_end_hold_little() {
    const CALLS: usize = 20;
    let server = Server::start(&["-d", "cpu:1"]);
    // Beside the messages, the graph that is looked at: 53 to 97 MiB, the more the busier the host is.
    let most = of_a_client("larger messages") + of_a_client("streams and calls") + 128 * MIB;
    run(async {
        let session = Session::new(&server).await;
        let call = supports(&session.session, &padded_graph(60_000, 200));
        let whole = call.len();
        println!("a call has {whole} bytes");
        let mut peak = Peak::new(&server);
        // From many connections, each given up when all of it is there: one thread does the work of all.
        let mut others = Vec::new();
        for _ in 0..8 {
            others.push(Conn::open(address(&server)).await.unwrap());
        }
        for n in 0..CALLS {
            let mut streams = Vec::new();
            for conn in &others {
                // The session's secret makes the connection one of its client's.
                let traces = v1::TraceRequest { session: Some(session.session.clone()), record: false };
                if n == 0 {
                    conn.call("outboard.v1.Outboard/Trace", &traces.encode_to_vec()).await.unwrap();
                }
                let mut stream = conn.stream("outboard.v1.Outboard/Supports").await.unwrap();
                stream.bytes(call.clone());
                stream.close();
                streams.push(stream);
            }
            peak.watch(&server, Duration::from_millis(150)).await;
        }
        peak.watch(&server, Duration::from_secs(1)).await;
        peak.is_below("calls that were given up", most);
        drop(others);
        // Never ended.
        let mut open = Vec::new();
        for _ in 0..6 * CALLS {
            let mut stream = session.conn.stream("outboard.v1.Outboard/Supports").await.unwrap();
            stream.bytes(call.slice(..whole - 1));
            let _ = tokio::time::timeout(Duration::from_millis(1), stream.next()).await;
            open.push(stream);
        }
        peak.watch(&server, Duration::from_secs(3)).await;
        peak.is_below("calls that do not end", most);
        // Too many are told so, and others get in. Which ones are told is a matter of when they were read.
        let answers = open.into_iter().map(|mut stream| async move { stream.next().await.map(|_| ()) });
        let answers = answers.collect::<tokio::task::JoinSet<_>>().join_all().await;
        let told = answers.iter().filter(|a| a.as_ref().is_err_and(|e| e.contains("ResourceExhausted"))).count();
        println!("{told} of {} calls are told that there is no room", answers.len());
        assert!(told > 0);
        gets_in(&server);
    });
}

#[test]
fn frees_that_wait_hold_little() {
    const FREES: usize = 40;
    let server = Server::start(&["-d", "cpu:1"]);
    run(async {
        let mut session = Session::new(&server).await;
        session.alloc(1, 64).await.unwrap();
        let mut peak = Peak::new(&server);
        // A queue that waits for what never comes.
        let mut queues = Vec::new();
        for number in [5, 6] {
            let mut queue = session.queue(number).await;
            queue.next().await.unwrap();
            queues.push(queue);
        }
        let wait = C::Wait(v1::Wait { queue: 6, value: 1 });
        queues[0].message(&v1::Command { command: Some(wait) }.encode_to_vec());
        let fences = vec![v1::Fence { queue: 5, commands: 100 }; 300_000];
        for _ in 0..FREES {
            let free = v1::Free { buffers: vec![1], executables: vec![], fences: fences.clone() };
            session.send(R::Free(free));
        }
        peak.watch(&server, Duration::from_secs(5)).await;
        peak.is_below("frees", 64 * MIB);
    });
    gets_in(&server);
}

#[test]
fn graphs_of_all_sessions_of_a_client_are_counted_together_and_by_what_they_take() {
    const SESSIONS: usize = 6;
    let server = Server::start(&["-d", "cpu:1"]);
    let most = outboard_rpc_server::ClientLimits::default().graphs;
    let graph = large_graph(60_000, 0);
    let nodes = 60_001u32;
    run(async {
        let mut peak = Peak::new(&server);
        let mut sessions = Vec::new();
        let mut refused = None;
        for _ in 0..SESSIONS {
            let mut session = Session::new(&server).await;
            session.alloc(1, u64::from(nodes) * 32).await.unwrap();
            for executable in 1..=8 {
                let places = v1::Places {
                    tensors: (0..nodes).collect(),
                    buffers: vec![1; nodes as usize],
                    offsets: (0..u64::from(nodes)).map(|n| n * 32).collect(),
                    lens: vec![32; nodes as usize],
                };
                let places = places.encode_to_vec().into();
                let compile =
                    v1::Compile { request: 2, executable, device: "CPU0".into(), graph: graph.clone(), places };
                if let Err(e) = session.ask(R::Compile(compile)).await {
                    refused.get_or_insert(e);
                }
                peak.look(&server);
            }
            sessions.push(session);
        }
        let refused = refused.expect("a graph that is too much");
        println!("{refused}");
        assert!(refused.contains("graphs") && refused.contains("free"), "{refused}");
        // Beside the graphs, the largest messages.
        peak.is_below("graphs", most + of_a_client("larger messages"));
        gets_in(&server);
    });
}

#[test]
fn what_nobody_takes_from_connections_of_a_client_is_bounded() {
    const CONNECTIONS: u64 = 60;
    // For each connection a chunk, a window, and some for itself.
    let most = of_a_client("connections with bulk data")
        + of_a_client("payloads beyond those of each queue, in KiB")
        + CONNECTIONS * 3 * MIB;
    let server = Server::start(&["-d", "cpu:1"]);
    let part = Bytes::from(vec![1; 1 << 20]);
    let head = outboard_proto::chunk::head(outboard_proto::chunk::Direction::Up, 1, &part);
    run(async {
        let session = Session::new(&server).await;
        let mut peak = Peak::new(&server);
        let mut open = Vec::new();
        for n in 0..CONNECTIONS {
            // Nothing is written on the queues: what comes on their bulk streams waits.
            let mut queue = session.queue(n + 1).await;
            queue.next().await.unwrap();
            let conn = Conn::open(address(&server)).await.unwrap();
            let bulk = conn.stream("outboard.v1.Bulk/Transfer").await.unwrap();
            let begin = v1::OpenBulk { session: Some(session.session.clone()), queue: n + 1 };
            bulk.message(&v1::BulkUp { part: Some(v1::bulk_up::Part::Open(begin)) }.encode_to_vec());
            for _ in 0..40 {
                bulk.bytes(head.clone());
                bulk.bytes(part.clone());
            }
            peak.look(&server);
            open.push((queue, conn, bulk));
        }
        peak.watch(&server, Duration::from_secs(3)).await;
        peak.is_below("bulk data", most);
        gets_in(&server);
    });
}

/// The start of a connection, and as many calls as it may have, each with as many headers as it may have, in few bytes: they are
/// said once and then meant by their numbers.
fn calls_of_many_headers(calls: u32) -> Vec<u8> {
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let len = (payload.len() as u32).to_be_bytes();
        [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    out.extend(frame(4, 0, 0, &[]));
    let path = b"/outboard.v1.Outboard/Hello";
    // POST, http, the path and an authority.
    let mut common = vec![0x83, 0x86, 0x04, path.len() as u8];
    common.extend(path);
    common.extend([0x01, 0x01, b'x']);
    let (mut first, mut other) = (common.clone(), common);
    for n in 0..112u8 {
        first.extend([0x40, 0x02, b'a' + n / 26, b'a' + n % 26, 0]);
        // The newest is 62.
        let index = 62 + n;
        match index {
            62..127 => other.push(0x80 | index),
            _ => other.extend([0xff, index - 127]),
        }
    }
    for call in 0..calls {
        let headers = if call == 0 { &first } else { &other };
        out.extend(frame(1, 4, 2 * call + 1, headers));
    }
    out
}

#[test]
fn headers_and_silence_of_strangers_hold_little() {
    const CONNECTIONS: u64 = 90;
    let server = Server::start(&["-d", "cpu:1"]);
    gets_in(&server);
    run(async {
        for (what, bytes) in [
            ("silence", Vec::new()),
            ("a preface", calls_of_many_headers(0)),
            ("one call", calls_of_many_headers(1)),
            ("headers", calls_of_many_headers(160)),
        ] {
            let mut peak = Peak::new(&server);
            let mut open = Vec::new();
            for i in 0..CONNECTIONS {
                let from = Ipv4Addr::new(127, 0, 0, 1 + (i % 4) as u8);
                let mut socket = connect_from(from, address(&server)).await.unwrap();
                socket.write_all(&bytes).await.unwrap();
                open.push(socket);
            }
            peak.watch(&server, Duration::from_secs(2)).await;
            println!("{} KiB for each", peak.most / CONNECTIONS / 1024);
            peak.is_below(what, CONNECTIONS * worst::stranger(&Limits::default()).total().memory);
            gets_in(&server);
        }
    });
}
