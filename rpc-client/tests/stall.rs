//! Servers that answer pings and get no further are given up in time, by their name; those that get further are not, however long it
//! takes.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;
#[path = "common/ends.rs"]
mod ends;
#[path = "../../local-backends/reference/tests/common/fated.rs"]
mod fated;
#[path = "common/listen.rs"]
mod listen;

use common::*;
use ends::{End, ends_with, ticket};
use fated::{Fate, fated_device};
use hyper_util::service::TowerToHyperService;
use listen::{Listening, http2};
use outboard_core::Host;
use outboard_core::device::Bytes;
use outboard_core::op::{Binary, BinaryKind};
use outboard_core::*;
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_host::MemoryBudget;
use outboard_proto::v1;
use outboard_proto::v1::outboard_server::{Outboard, OutboardServer};
use outboard_reference::reference_device;
use outboard_rpc_client::{ClientOptions, Endpoint, connect};
use outboard_rpc_server::{Limits, Server, ServerConfig, Trust};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

/// Without progress, a server is given up after this long.
const STALL: Duration = Duration::from_millis(1500);
/// And a little later on a busy machine.
const GIVEN_UP: Duration = Duration::from_millis(4500);

/// A server with the shipped limits and two devices, which have one fate.
fn fated() -> (Server, Arc<Fate>) {
    let (host, budget, fate) = (Host::new(), MemoryBudget::new(Some(MEMORY)), Arc::<Fate>::default());
    let (addr, limits) = ("127.0.0.1:0".parse().unwrap(), Limits::default());
    let devices = ["DEV0", "DEV1"].map(|name| fated_device(&host, name, &budget, &fate)).to_vec();
    (Server::start(ServerConfig { addr, devices, limits, trust: Trust::default() }).unwrap(), fate)
}

fn options() -> ClientOptions {
    ClientOptions { stall_after: STALL, ..ClientOptions::default() }
}

fn patient(server: &Server) -> Vec<Arc<dyn Device>> {
    connect(&[endpoint(server)], &options()).unwrap()
}

/// `y = x + x`, and memory for it.
fn sum(device: &Arc<dyn Device>) -> (Arc<dyn Executable>, Slice) {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[8]).unwrap();
    let y = g.push(Binary { kind: BinaryKind::Add }, &[x, x]).unwrap();
    g.output(y);
    let graph = Arc::new(g.finish().unwrap());
    let whole = buffer(device, 512);
    let slices = vec![Some(whole.part(0, 256).unwrap()), Some(whole.part(256, 256).unwrap())];
    let placement = Placement::new(&graph, device.as_ref(), slices).unwrap();
    (device.compile(graph, placement).unwrap(), whole)
}

/// The error names the server and says this; it came in time.
fn given_up(error: &Error, after: Duration, server: &Server, what: &str) {
    println!("after {after:?}: {error}");
    assert!(matches!(error, Error::Peer { endpoint, .. } if *endpoint == server.local_addr().to_string()), "{error}");
    assert!(error.to_string().contains(what) && error.to_string().contains("restart"), "{error}");
    assert!(after >= STALL / 2 && after < GIVEN_UP, "{after:?}");
}

#[test]
fn a_graph_that_does_not_end() {
    let (server, fate) = fated();
    let devices = patient(&server);
    let (program, memory) = sum(&devices[0]);
    let queue = devices[0].queue().unwrap();
    queue.execute(&program).unwrap();
    queue.finish(WAIT).unwrap();
    fate.hangs.store(true, Ordering::SeqCst);
    let start = Instant::now();
    queue.execute(&program).unwrap();
    let pending = queue.read(&memory).unwrap();
    given_up(&pending.wait(WAIT).unwrap_err(), start.elapsed(), &server, "DEV0 has got no further with a graph");
    // All that waits for that server has its error, and it is not tried again: it would take the session up and hang once more.
    assert!(devices[1].alloc(64, Usage::Any).is_err() && queue.finish(WAIT).is_err());
    drop(queue);
    let start = Instant::now();
    for device in &devices {
        let error = device.resume().unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(1));
    // What it had is free when the lease is over.
    drop((devices, program, memory));
    fate.hangs.store(false, Ordering::SeqCst);
    eventually(Duration::from_secs(15), || server.sessions() == 0);
}

#[test]
fn a_graph_that_takes_long_and_gets_further() {
    let (server, fate) = fated();
    let devices = patient(&server);
    let (program, memory) = sum(&devices[0]);
    let queue = devices[0].queue().unwrap();
    queue.write(&memory.part(0, 32).unwrap(), f32s(&[2.0; 8])).unwrap();
    fate.takes.store(3 * STALL.as_millis() as u64, Ordering::SeqCst);
    let start = Instant::now();
    queue.execute(&program).unwrap();
    assert_eq!(read(queue.as_ref(), &memory.part(256, 32).unwrap()), f32s(&[4.0; 8]));
    assert!(start.elapsed() >= 3 * STALL);
    // A device that cannot say how far it is has longer.
    fate.blind.store(true, Ordering::SeqCst);
    queue.execute(&program).unwrap();
    queue.finish(WAIT).unwrap();
}

/// How long a graph of so many nodes of `n` numbers takes, of which none takes long.
fn long_graph(device: &Arc<dyn Device>, n: usize, nodes: u32) -> Duration {
    let mut g = GraphBuilder::new();
    let x = g.input("x", DType::F32, &[n]).unwrap();
    let mut sum = x;
    for _ in 0..nodes {
        sum = g.push(Binary { kind: BinaryKind::Add }, &[sum, x]).unwrap();
    }
    g.output(sum);
    let graph = Arc::new(g.finish().unwrap());
    let size = 4 * n as u64;
    // Results take turns in two places, as a planner would have it.
    let whole = buffer(device, 3 * size);
    let place = |id: TensorId| if id == x { 0 } else { 1 + id.index() as u64 % 2 };
    let slices = graph.ids().map(|id| Some(whole.part(place(id) * size, size).unwrap())).collect();
    let placement = Placement::new(&graph, device.as_ref(), slices).unwrap();
    let program = device.compile(graph, placement).unwrap();
    let queue = device.queue().unwrap();
    let start = Instant::now();
    queue.execute(&program).unwrap();
    queue.finish(2 * WAIT).unwrap();
    start.elapsed()
}

#[test]
fn devices_count_their_nodes() {
    let host = Host::new();
    let budget = MemoryBudget::new(Some(MEMORY));
    let cpu = cpu_device(&host, "CPU0", CpuOptions::with_threads(1), &budget);
    let (addr, limits) = ("127.0.0.1:0".parse().unwrap(), Limits::default());
    let devices = vec![reference_device(&host, "REF0", &budget), cpu];
    let config = ServerConfig { addr, devices: devices.clone(), limits, trust: Trust::default() };
    let server = Server::start(config).unwrap();
    for ((device, own), n) in patient(&server).iter().zip(&devices).zip([1 << 16, 1 << 20]) {
        // As many as take longer than the limit by far.
        let before = own.progress().unwrap();
        let some = long_graph(device, n, 100);
        assert_eq!(own.progress().unwrap(), before + 100, "{}", own.info().name);
        let mut nodes = (300.0 * STALL.as_secs_f64() / some.as_secs_f64()).ceil().min(50_000.0) as u32;
        let mut took = long_graph(device, n, nodes);
        while took <= STALL && nodes < 50_000 {
            nodes *= 2;
            took = long_graph(device, n, nodes);
        }
        println!("{}: {nodes} nodes in {took:?}", device.info().name);
        assert!(took > STALL, "{took:?}");
    }
}

#[test]
fn behind_the_graph_of_another_client() {
    let (server, fate) = fated();
    let other = devices(&server).swap_remove(0);
    let mine = patient(&server).swap_remove(0);
    let ((theirs, _memory), (program, _mine)) = (sum(&other), sum(&mine));
    let (busy, queue) = (other.queue().unwrap(), mine.queue().unwrap());
    // Its turn comes, as the other one gets further.
    fate.takes.store(2 * STALL.as_millis() as u64, Ordering::SeqCst);
    busy.execute(&theirs).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    queue.execute(&program).unwrap();
    queue.finish(WAIT).unwrap();
    // It does not come.
    fate.takes.store(0, Ordering::SeqCst);
    fate.hangs.store(true, Ordering::SeqCst);
    busy.execute(&theirs).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let start = Instant::now();
    queue.execute(&program).unwrap();
    let error = queue.finish(WAIT).unwrap_err();
    given_up(&error, start.elapsed(), &server, "DEV0 has got no further with the graph of another client");
    fate.hangs.store(false, Ordering::SeqCst);
}

/// Whoever enqueues more than a server takes waits, and gets the error in its place.
#[test]
fn lines_that_are_full() {
    for size in [0, 1 << 20] {
        let (server, fate) = fated();
        let devices = patient(&server);
        let (program, _memory) = sum(&devices[0]);
        let target = buffer(&devices[0], 1 << 20);
        let queue = devices[0].queue().unwrap();
        fate.hangs.store(true, Ordering::SeqCst);
        queue.execute(&program).unwrap();
        let mut start = Instant::now();
        let data = Bytes::from(vec![7; 1 << 20]);
        let error = loop {
            let before = Instant::now();
            let sent = match size {
                0 => queue.write(&target.part(0, 60 << 10).unwrap(), data.slice(..60 << 10)),
                _ => queue.write(&target, data.clone()),
            };
            if let Err(error) = sent {
                break error;
            }
            // From when it has to wait.
            if before.elapsed() < Duration::from_millis(50) {
                start = Instant::now();
            }
        };
        given_up(&error, start.elapsed(), &server, "DEV0 has got no further with a graph");
        fate.hangs.store(false, Ordering::SeqCst);
    }
}

/// A server that waits for another one is not to blame: that one is, though nobody here waits for it.
#[test]
fn the_right_one_of_two_servers() {
    let ((sender, fate), (receiver, _)) = (fated(), fated());
    let [from, to] = ends_with([endpoint(&sender), endpoint(&receiver)], &options(), 1 << 16);
    let pass = |from: &End, to: &End| {
        let ticket = ticket();
        from.offer(ticket, &from.memory, to);
        to.accept(ticket, &to.memory);
    };
    pass(&from, &to);
    to.queue.finish(WAIT).unwrap();
    let (program, _memory) = sum(&from.device);
    // One that takes long keeps nobody from waiting.
    fate.takes.store(2 * STALL.as_millis() as u64, Ordering::SeqCst);
    from.queue.execute(&program).unwrap();
    pass(&from, &to);
    to.queue.finish(WAIT).unwrap();
    fate.takes.store(0, Ordering::SeqCst);
    fate.hangs.store(true, Ordering::SeqCst);
    let start = Instant::now();
    from.queue.execute(&program).unwrap();
    pass(&from, &to);
    let error = to.queue.finish(WAIT).unwrap_err();
    given_up(&error, start.elapsed(), &sender, "DEV0 has got no further with a graph");
    given_up(&from.queue.finish(WAIT).unwrap_err(), start.elapsed(), &sender, "DEV0 has got no further with a graph");
    // And the receiver is as good as before.
    to.device.resume().unwrap();
    let queue = to.device.queue().unwrap();
    queue.fill(&to.memory, 3).unwrap();
    queue.finish(WAIT).unwrap();
    fate.hangs.store(false, Ordering::SeqCst);
}

/// What a fake server says to the question how far it is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Says {
    /// Nothing.
    Nothing,
    /// That there are no queues.
    NoQueues,
    /// That it does not know the question.
    Unknown,
}

/// A server that opens sessions and queues, answers pings, and does nothing.
#[derive(Clone)]
struct Fake(Says);

type Replies<T> = Pin<Box<dyn Stream<Item = std::result::Result<T, Status>> + Send>>;
type Answer<T> = std::result::Result<Response<T>, Status>;

/// A stream on which nothing more comes.
fn replies<T: Send + 'static>(first: Option<T>) -> Answer<Replies<T>> {
    Ok(Response::new(Box::pin(tokio_stream::iter(first.map(Ok)).chain(tokio_stream::pending()))))
}

#[tonic::async_trait]
impl Outboard for Fake {
    async fn hello(&self, _: Request<v1::HelloRequest>) -> Answer<v1::HelloResponse> {
        let device = v1::Device {
            name: "DEV0".into(),
            kind: "CPU".into(),
            backend: "fake".into(),
            memory_total: MEMORY,
            memory_free: MEMORY,
            alignment: 32,
            ..Default::default()
        };
        let session = v1::Session { id: 1, secret: vec![1; 32].into() };
        Ok(Response::new(v1::HelloResponse {
            version: 1,
            session: Some(session),
            incarnation: 1,
            devices: vec![device],
            lease_ms: 10_000,
            ..Default::default()
        }))
    }

    async fn devices(&self, _: Request<v1::DevicesRequest>) -> Answer<v1::DevicesResponse> {
        std::future::pending().await
    }
    async fn memory(&self, _: Request<v1::MemoryRequest>) -> Answer<v1::MemoryResponse> {
        std::future::pending().await
    }
    async fn supports(&self, _: Request<v1::SupportsRequest>) -> Answer<v1::SupportsResponse> {
        std::future::pending().await
    }
    async fn progress(&self, _: Request<v1::ProgressRequest>) -> Answer<v1::ProgressResponse> {
        match self.0 {
            Says::Nothing => std::future::pending().await,
            Says::NoQueues => Ok(Response::new(v1::ProgressResponse::default())),
            Says::Unknown => Err(Status::unimplemented("an older release")),
        }
    }
    async fn trace(&self, _: Request<v1::TraceRequest>) -> Answer<v1::TraceResponse> {
        std::future::pending().await
    }
    async fn have_blobs(&self, _: Request<v1::HaveBlobsRequest>) -> Answer<v1::HaveBlobsResponse> {
        std::future::pending().await
    }
    async fn place_blobs(&self, _: Request<v1::PlaceBlobsRequest>) -> Answer<v1::PlaceBlobsResponse> {
        std::future::pending().await
    }
    async fn check_blobs(&self, _: Request<v1::CheckBlobsRequest>) -> Answer<v1::CheckBlobsResponse> {
        std::future::pending().await
    }

    type ControlStream = Replies<v1::ControlReply>;

    async fn control(&self, _: Request<Streaming<v1::ControlRequest>>) -> Answer<Self::ControlStream> {
        replies(Some(v1::ControlReply { reply: Some(v1::control_reply::Reply::Attached(v1::Attached {})) }))
    }

    type QueueStream = Replies<v1::Reply>;

    async fn queue(&self, _: Request<Streaming<v1::Command>>) -> Answer<Self::QueueStream> {
        replies(None)
    }
}

/// Starts a fake on a port of its own; it lives as long as this process.
fn fake(says: Says) -> Endpoint {
    let listening = Listening::start(move |socket| {
        let service = TowerToHyperService::new(OutboardServer::new(Fake(says)));
        let (builder, io) = http2(socket);
        tokio::spawn(builder.serve_connection(io, service));
    });
    Endpoint::parse(&listening.for_ever().to_string()).unwrap()
}

#[test]
fn servers_that_do_nothing_at_all() {
    for (says, stall_after, what) in [
        (Says::Nothing, STALL, "it answers pings, but no requests"),
        (Says::NoQueues, STALL, "it has done nothing of what it was asked"),
        (Says::Unknown, STALL / 10, "it has done nothing of what it was asked"),
    ] {
        let endpoint = fake(says);
        let options = ClientOptions { stall_after, ..ClientOptions::default() };
        let device = connect(std::slice::from_ref(&endpoint), &options).unwrap().swap_remove(0);
        let queue = device.queue().unwrap();
        let start = Instant::now();
        let error = queue.finish(WAIT).unwrap_err();
        println!("{says:?}, after {:?}: {error}", start.elapsed());
        assert!(matches!(&error, Error::Peer { endpoint: e, .. } if *e == endpoint.to_string()), "{error}");
        assert!(error.to_string().contains(what), "{error}");
        assert!(start.elapsed() >= STALL / 2 && start.elapsed() < GIVEN_UP, "{:?}", start.elapsed());
        let again = device.resume().unwrap_err();
        assert!(matches!(again, Error::Timeout { .. }), "{again}");
    }
}

/// Calls and requests have deadlines of their own; a server that does not keep them is lost in the same way.
#[test]
fn calls_that_are_not_answered() {
    type Call = fn(&Arc<dyn Device>) -> Result<()>;
    let calls: [(Call, &str); 3] = [
        (|d| d.memory().map(drop), "memory"),
        (|d| d.alloc(64, Usage::Any).map(drop), "DEV0 allocates 64 bytes"),
        (|d| d.supports(&program().graph).map(drop), "supported ops"),
    ];
    for (call, what) in calls {
        let endpoint = fake(Says::Nothing);
        let options = ClientOptions { call_timeout: STALL, ..ClientOptions::default() };
        let device = connect(std::slice::from_ref(&endpoint), &options).unwrap().swap_remove(0);
        let queue = device.queue().unwrap();
        let start = Instant::now();
        let error = call(&device).unwrap_err();
        println!("after {:?}: {error}", start.elapsed());
        assert!(matches!(&error, Error::Peer { endpoint: e, .. } if *e == endpoint.to_string()), "{error}");
        assert!(error.to_string().contains(what) && error.to_string().contains("no answer for 2 s"), "{error}");
        assert!(start.elapsed() < GIVEN_UP, "{:?}", start.elapsed());
        assert!(queue.finish(WAIT).is_err());
    }
}
