//! Several clients of one server: their limits, their turns, what they leave to one another, and how a server lets them finish.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::*;
use outboard_core::Host;
use outboard_core::op::{Binary, BinaryKind};
use outboard_core::*;
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;
use outboard_rpc_client::{ClientOptions, connect};
use outboard_rpc_server::{ClientLimits, Limits, Server, ServerConfig, SessionLimits, Trust};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Instant;

/// `state = state + one`, so often in one graph, over so many numbers.
struct Counting {
    graph: Arc<Graph>,
    state: TensorId,
    one: TensorId,
}

fn counting(n: usize, times: usize) -> Counting {
    let mut g = GraphBuilder::new();
    let state = g.state("state", DType::F32, &[n]).unwrap();
    let one = g.input("one", DType::F32, &[n]).unwrap();
    let mut sum = state;
    for _ in 0..times {
        sum = g.push(Binary { kind: BinaryKind::Add }, &[sum, one]).unwrap();
    }
    let stored = g.push(op::Cpy, &[sum, state]).unwrap();
    g.output(stored);
    Counting { graph: Arc::new(g.finish().unwrap()), state, one }
}

/// A client's program on a device, with memory of its own.
struct Own {
    executable: Arc<dyn Executable>,
    queue: Arc<dyn Queue>,
    state: Slice,
    n: usize,
}

impl Own {
    fn new(device: &Arc<dyn Device>, c: &Counting, one: f32) -> Own {
        let size = |id: TensorId| (c.graph.tensor(id).layout().span() as u64).next_multiple_of(256);
        let roots = c.graph.ids().filter(|&id| c.graph.tensor(id).root() == id);
        let whole = buffer(device, roots.map(size).sum());
        let mut at = 0;
        let slices: Vec<_> = c
            .graph
            .ids()
            .map(|id| {
                (c.graph.tensor(id).root() == id).then(|| {
                    at += size(id);
                    whole.part(at - size(id), size(id)).unwrap()
                })
            })
            .collect();
        let bytes = c.graph.tensor(c.state).layout().span() as u64;
        let part = |id: TensorId| slices[id.index()].as_ref().unwrap().part(0, bytes).unwrap();
        let (state, ones) = (part(c.state), part(c.one));
        let placement = Placement::new(&c.graph, device.as_ref(), slices).unwrap();
        let executable = device.compile(c.graph.clone(), placement).unwrap();
        let queue = device.queue().unwrap();
        let n = bytes as usize / 4;
        queue.write(&ones, f32s(&vec![one; n])).unwrap();
        Own { executable, queue, state, n }
    }

    fn run(&self) {
        self.queue.execute(&self.executable).unwrap();
    }

    fn value(&self) -> f32 {
        let bytes = read(self.queue.as_ref(), &self.state);
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        assert!(values.len() == self.n && values.iter().all(|v| *v == values[0]), "not one value: {:?}", &values[..4]);
        values[0]
    }
}

fn connected(server: &Server) -> Arc<dyn Device> {
    devices(server).swap_remove(0)
}

fn refusal(server: &Server) -> String {
    connect(&[endpoint(server)], &ClientOptions::default()).unwrap_err().to_string()
}

fn contains(result: Result<impl std::fmt::Debug>, parts: &[&str]) {
    let text = result.unwrap_err().to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

#[test]
fn a_session_with_sixteen_queues_gets_no_more_turns_than_one_with_one() {
    const QUEUES: usize = 16;
    const MANY: usize = 40;
    /// Of no other queue, so that it is known by it.
    const FEW: usize = 30;
    let host = Host::new();
    let order: Arc<Mutex<Vec<(Instant, u64)>>> = Arc::default();
    let seen = order.clone();
    host.set_trace(move |e| {
        if e.what == "execute" {
            seen.lock().unwrap().push((e.start, e.queue));
        }
    });
    let device = reference_device(&host, "REF0", &MemoryBudget::new(Some(MEMORY)));
    let (addr, limits) = ("127.0.0.1:0".parse().unwrap(), Limits::default());
    let server = Server::start(ServerConfig { addr, devices: vec![device], limits, trust: Trust::default() }).unwrap();
    let (flood, modest) = (connected(&server), connected(&server));
    // Some milliseconds, so that a thread that has had its turn is back in the line before the next one is over.
    let c = counting(1 << 16, 8);
    let queues: Vec<_> = (0..QUEUES).map(|_| Own::new(&flood, &c, 1.0)).collect();
    let one = Own::new(&modest, &c, 1.0);
    one.queue.finish(WAIT).unwrap();
    for _ in 0..MANY {
        queues.iter().for_each(Own::run);
    }
    (0..FEW).for_each(|_| one.run());
    one.queue.finish(2 * WAIT).unwrap();
    drop(queues);
    let mut order = std::mem::take(&mut *order.lock().unwrap());
    order.sort();
    let mut counts: HashMap<u64, usize> = HashMap::new();
    order.iter().for_each(|(_, queue)| *counts.entry(*queue).or_default() += 1);
    let mine = |(_, queue): &&(Instant, u64)| counts[queue] == FEW && counts.len() > QUEUES;
    let first = order.iter().position(|e| mine(&e)).expect("the modest client's queue");
    let last = order.iter().rposition(|e| mine(&e)).unwrap();
    let others = order[first..=last].iter().filter(|e| !mine(e)).count();
    println!("{others} graphs of the other session while this one had {FEW}");
    // In turns it is FEW - 1. By queues it would be 16 times as many.
    assert!(others <= 3 * FEW, "{others} graphs of the other session while this one had {FEW}");
}

#[test]
fn twenty_four_clients_at_once() {
    const CLIENTS: usize = 24;
    const STEPS: usize = 50;
    let (server, budget) = server();
    let c = Arc::new(counting(1 << 12, 4));
    let start = Arc::new(Barrier::new(CLIENTS));
    let steps: Arc<Vec<std::sync::atomic::AtomicUsize>> = Arc::new((0..CLIENTS).map(|_| 0.into()).collect());
    let before = budget.used();
    let threads: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let (c, start, steps) = (c.clone(), start.clone(), steps.clone());
            let device = connected(&server);
            std::thread::spawn(move || {
                let own = Own::new(&device, &c, n as f32);
                start.wait();
                let mut least = STEPS;
                for step in 1..=STEPS {
                    own.run();
                    // Each step is waited for, as one who reads tokens does.
                    assert_eq!(own.value(), (4 * step * n) as f32, "client {n}, step {step}");
                    steps[n].store(step, std::sync::atomic::Ordering::Relaxed);
                }
                for other in steps.iter() {
                    least = least.min(other.load(std::sync::atomic::Ordering::Relaxed));
                }
                least
            })
        })
        .collect();
    let least: Vec<usize> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    let first = *least.iter().min().unwrap();
    println!("when the first client had {STEPS} steps, every other had {first} at least");
    assert!(first >= STEPS / 10, "a client had {first} steps when another had {STEPS}");
    // Their ends were said to the server, and what they had is free.
    eventually(WAIT, || server.sessions() == 0 && budget.used() == before);
}

#[test]
fn memory_of_one_client_is_zero_for_the_next() {
    let (server, budget) = server();
    // Small memory comes from the allocator, large memory from the system.
    for size in [64u64, 4096, 100_000, 8 << 20] {
        let used = budget.used();
        {
            let device = connected(&server);
            let queue = device.queue().unwrap();
            let secrets: Vec<_> = (0..8).map(|_| buffer(&device, size)).collect();
            secrets.iter().for_each(|s| queue.fill(s, 0xa5).unwrap());
            assert!(read(queue.as_ref(), &secrets[7]).iter().all(|&b| b == 0xa5));
        }
        eventually(WAIT, || server.sessions() == 0 && budget.used() == used);
        let device = connected(&server);
        let queue = device.queue().unwrap();
        for _ in 0..16 {
            let found = read(queue.as_ref(), &buffer(&device, size));
            assert!(found.len() as u64 == size && found.iter().all(|&b| b == 0), "bytes of another client");
        }
    }
}

#[test]
fn memory_of_a_client_is_limited_over_all_its_sessions_for_as_long_as_it_is_used() {
    let client = ClientLimits { memory: Some(1 << 20), ..ClientLimits::default() };
    let (server, _) = server_with(Limits { client, ..Limits::default() });
    let (a, b) = (devices(&server), devices(&server));
    assert_eq!((a[0].memory().unwrap().total, a[0].memory().unwrap().free), (1 << 20, 1 << 20));
    let held = a[0].alloc(700 << 10, Usage::Any).unwrap();
    assert_eq!(b[0].memory().unwrap().free, 324 << 10);
    let error = b[0].alloc(400 << 10, Usage::Any).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { needed, free, .. } if (needed, free) == (400 << 10, 324 << 10)));
    assert!(error.to_string().contains("one client may have 1.0 MiB there, see --client-memory"), "{error}");
    // On the other device there is as much again.
    b[1].alloc(1 << 20, Usage::Any).unwrap();
    drop(held);
    // A graph keeps its memory on the account.
    let c = counting(1 << 14, 4);
    let own = Own::new(&a[0], &c, 1.0);
    let Own { executable, queue, state, .. } = own;
    drop(state);
    queue.execute(&executable).unwrap();
    queue.finish(WAIT).unwrap();
    assert!(b[0].alloc(1 << 20, Usage::Any).is_err());
    drop((executable, queue));
    eventually(WAIT, || b[0].alloc(1 << 20, Usage::Any).is_ok());
}

#[test]
fn handles_of_a_session_are_limited() {
    let session = SessionLimits { buffers: 3, executables: 2, graph_bytes: 4096, queues: 2, offered_bytes: 100 };
    let (server, _) = server_with(Limits { session, ..Limits::default() });
    let device = connected(&server);
    let kept: Vec<_> = (0..2).map(|_| buffer(&device, 8)).collect();
    let c = counting(8, 1);
    let own = Own::new(&device, &c, 1.0);
    contains(device.alloc(8, Usage::Any), &["3 buffers at a time", "free some first"]);
    let other = device.queue().unwrap();
    other.finish(WAIT).unwrap();
    // A queue says nothing when it is opened; its first answer does.
    contains(device.queue().and_then(|q| q.finish(WAIT)), &["2 queues at a time", "close one first"]);
    drop(kept);
    let compile = |c: &Counting| {
        let memory = buffer(&device, 1 << 20);
        let slices = c.graph.ids().map(|id| Some(memory.part(256 * id.index() as u64, 256).unwrap())).collect();
        device.compile(c.graph.clone(), Placement::new(&c.graph, device.as_ref(), slices).unwrap())
    };
    let second = compile(&c).unwrap();
    contains(compile(&c), &["2 executables at a time", "free some first"]);
    drop(second);
    contains(compile(&counting(8, 500)), &["the graphs of a session may have 4.0 KiB", "free executables"]);
    own.run();
    assert_eq!(own.value(), 1.0);
}

#[test]
fn sessions_and_connections_of_a_client_are_limited() {
    let client = ClientLimits { sessions: 2, ..ClientLimits::default() };
    let (server, _) = server_with(Limits { client, ..Limits::default() });
    let both = [connected(&server), connected(&server)];
    let text = refusal(&server);
    assert!(text.contains("the client at 127.0.0.1 has 2 sessions here already") && text.contains("end one"), "{text}");
    drop(both);
    eventually(WAIT, || server.sessions() == 0);
    connected(&server);
    let client = ClientLimits { connections: 3, ..ClientLimits::default() };
    let (server, _) = server_with(Limits { client, ..Limits::default() });
    let device = connected(&server);
    let idle: Vec<_> = (0..10).map(|_| TcpStream::connect(server.local_addr()).unwrap()).collect();
    eventually(WAIT, || server.connections() == 3);
    // Those who are in stay.
    assert!(device.memory().is_ok());
    drop(idle);
    eventually(WAIT, || connect(&[endpoint(&server)], &ClientOptions::default()).is_ok());
}

fn get(addr: SocketAddr, path: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(addr).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// The value of a metric by its name and labels, 0 if there is none.
fn metric(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.parse().unwrap())
}

#[test]
fn a_server_that_drains_takes_no_new_sessions_and_lets_others_finish() {
    let (mut server, _) = server();
    let at = server.serve_metrics("127.0.0.1:0".parse().unwrap()).unwrap();
    let device = connected(&server);
    let own = Own::new(&device, &counting(64, 1), 1.0);
    own.run();
    assert_eq!((get(at, "/readyz").0, get(at, "/healthz").0), (200, 200));
    server.drain();
    let text = refusal(&server);
    assert!(text.contains("draining") && text.contains("use another server"), "{text}");
    let (status, text) = get(at, "/readyz");
    assert!(status == 503 && text.contains("draining"), "{status} {text}");
    assert_eq!(get(at, "/healthz").0, 200);
    own.run();
    // New queues and memory of a session that goes on, too.
    let more = Own::new(&device, &counting(64, 1), 2.0);
    more.run();
    assert_eq!((own.value(), more.value()), (2.0, 2.0));
    assert_eq!(metric(&get(at, "/metrics").1, "outboard_draining"), 1.0);
    drop((own, more, device));
    eventually(WAIT, || server.sessions() == 0);
}

#[test]
fn metrics_say_what_was_done() {
    let (mut server, _) = server();
    let at = server.serve_metrics("127.0.0.1:0".parse().unwrap()).unwrap();
    let device = connected(&server);
    let own = Own::new(&device, &counting(1 << 10, 1), 1.0);
    (0..5).for_each(|_| own.run());
    let large = buffer(&device, 1 << 20);
    own.queue.write(&large, vec![1; 1 << 20].into()).unwrap();
    assert_eq!(read(own.queue.as_ref(), &large).len(), 1 << 20);
    assert!(device.alloc(u64::MAX / 4, Usage::Any).is_err());
    // Answers come before their room is given back.
    let kind = "outboard_transfer_seconds_count{kind=\"download\"}";
    let idle = |text: &str| metric(text, "outboard_queue_depth{device=\"REF0\"}") == 0.0 && metric(text, kind) == 1.0;
    eventually(WAIT, || idle(&get(at, "/metrics").1));
    let (status, text) = get(at, "/metrics");
    assert!(status == 200 && text.ends_with("# EOF\n"), "{text}");
    let version = env!("CARGO_PKG_VERSION");
    assert!(text.contains(&format!("outboard_build_info{{version=\"{version}\"")), "{text}");
    let value = |name: &str| metric(&text, name);
    let both = "{device=\"REF0\",client=\"anonymous\"}";
    for (name, expected) in [
        ("outboard_sessions{client=\"anonymous\"}", 1.0),
        ("outboard_sessions_opened_total", 1.0),
        (&format!("outboard_executed_graphs_total{both}"), 5.0),
        ("outboard_graph_compute_seconds_count{device=\"REF0\"}", 5.0),
        ("outboard_transfer_seconds_count{kind=\"upload\"}", 1.0),
        ("outboard_transfer_seconds_count{kind=\"download\"}", 1.0),
        ("outboard_errors_total{kind=\"out_of_memory\"}", 1.0),
        ("outboard_device_memory_total_bytes{device=\"REF0\"}", MEMORY as f64),
        ("outboard_queue_depth{device=\"REF0\"}", 0.0),
        ("outboard_draining", 0.0),
    ] {
        assert_eq!(value(name), expected, "{name} in\n{text}");
    }
    let memory = value(&format!("outboard_client_memory_bytes{both}"));
    assert!(memory >= (1 << 20) as f64 && memory < (2 << 20) as f64, "{memory}");
    assert!(value("outboard_connections") >= 1.0);
    for direction in ["sent", "received"] {
        let name = format!("outboard_client_transferred_bytes_total{{client=\"anonymous\",direction=\"{direction}\"}}");
        assert!(value(&name) >= (1 << 20) as f64, "{name} in\n{text}");
    }
    assert_eq!((get(at, "/").0, get(at, "/metrics?x=1").0), (404, 200));
    let mut post = TcpStream::connect(at).unwrap();
    post.write_all(b"POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n").unwrap();
    let mut answer = String::new();
    post.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
    // Garbage ends that connection alone.
    let mut garbage = TcpStream::connect(at).unwrap();
    garbage.write_all(&[0xff; 1 << 15]).unwrap();
    let _ = garbage.read_to_end(&mut Vec::new());
    drop((own, large, device));
    eventually(WAIT, || {
        let text = get(at, "/metrics").1;
        metric(&text, "outboard_sessions{client=\"anonymous\"}") == 0.0
            && metric(&text, &format!("outboard_client_memory_bytes{both}")) == 0.0
    });
}
