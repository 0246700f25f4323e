//! Many clients of one server at once, and a server that is told to stop while it has clients.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_core::{Device, Slice, Usage};
use outboard_integration::{Client, RunReport, Server, model};
use outboard_rpc_client::{ClientOptions, Endpoint, connect};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(300);
/// Longer than a server with nothing to do takes to end, on a busy machine, and shorter than it would let sessions go on.
const SOON: Duration = Duration::from_secs(8);

fn run_args<'a>(model: &'a str, rpc: &'a str, prompt: &'a str, n: &'a str) -> Vec<&'a str> {
    let args = ["run", "-m", model, "--rpc", rpc, "-p", prompt, "-n", n];
    [&args[..], &["--temp", "0", "-c", "128", "--ignore-eos", "--json"]].concat()
}

#[test]
fn twenty_four_processes_at_once_get_their_own_texts() {
    const CLIENTS: usize = 24;
    const PROMPTS: [&str; 4] = ["The capital of France is", "def fibonacci(n):", "Once upon a time", "1, 2, 3, 4,"];
    #[derive(serde::Deserialize)]
    struct Timed {
        timings: Timings,
    }
    #[derive(serde::Deserialize)]
    struct Timings {
        decode_tps: f64,
    }
    let Some(path) = model("smollm2") else { return };
    let model = path.to_str().unwrap();
    let size = std::fs::metadata(&path).unwrap().len();
    // What is free counts the server's own clients, as long as the host has more than that available.
    let server = Server::start(&["-d", "cpu:1", "--memory-limit", "5G"]);
    let alone = PROMPTS.map(|p| Client::run(&run_args(model, &server.addr, p, "8"), LIMIT).json::<RunReport>().text);
    let (free, resident) = (server.memory_free(), server.resident());
    let (most, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let reports = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                most.fetch_max(server.resident(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let prompt = |n: usize| PROMPTS[n % PROMPTS.len()];
        let clients: Vec<_> =
            (0..CLIENTS).map(|n| Client::start(&run_args(model, &server.addr, prompt(n), "8"))).collect();
        let reports: Vec<_> = clients.into_iter().map(|client| client.wait(LIMIT)).collect();
        over.store(true, Ordering::Relaxed);
        reports
    });
    for (n, report) in reports.iter().enumerate() {
        assert_eq!(report.json::<RunReport>().text, alone[n % PROMPTS.len()], "client {n}");
    }
    let speeds: Vec<f64> = reports.iter().map(|r| r.json::<Timed>().timings.decode_tps).collect();
    let (slowest, fastest) = speeds.iter().fold((f64::MAX, 0f64), |(s, f), &v| (s.min(v), f.max(v)));
    let grown = most.into_inner().saturating_sub(resident);
    println!(
        "{slowest:.1} to {fastest:.1} tok/s; at most {} MiB more than before, {} MiB the file",
        grown >> 20,
        size >> 20
    );
    // Each has the weights, a small cache, and what is on the way.
    assert!(grown < CLIENTS as u64 * (size + (64 << 20)), "{grown} bytes more for {CLIENTS} clients of {size}");
    let start = Instant::now();
    loop {
        let now = server.memory_free();
        if now >= free {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{} bytes of {free} were not given back", free - now);
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn device_of(server: &Server) -> Arc<dyn Device> {
    connect(&[Endpoint::parse(&server.addr).unwrap()], &ClientOptions::default()).unwrap().swap_remove(0)
}

fn refused_for_draining(server: &Server) {
    let error = connect(&[Endpoint::parse(&server.addr).unwrap()], &ClientOptions::default()).unwrap_err().to_string();
    assert!(error.contains("draining"), "{error}");
}

/// Until the server does what it was told in a signal.
fn drains(server: &Server) {
    let start = Instant::now();
    while connect(&[Endpoint::parse(&server.addr).unwrap()], &ClientOptions::default()).is_ok() {
        assert!(start.elapsed() < SOON, "it takes new sessions");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_server_that_is_told_to_stop_lets_its_clients_finish() {
    for signal in ["TERM", "INT"] {
        let mut server = Server::start(&["-d", "cpu:1", "--drain-timeout", "120"]);
        let device = device_of(&server);
        let queue = device.queue().unwrap();
        let memory = Slice::whole(device.alloc(1 << 20, Usage::Any).unwrap());
        server.signal(signal);
        drains(&server);
        refused_for_draining(&server);
        queue.fill(&memory, 7).unwrap();
        assert!(queue.read(&memory).unwrap().wait(LIMIT).unwrap().iter().all(|&b| b == 7));
        assert!(server.is_running());
        drop((queue, memory, device));
        assert_eq!(server.ends_within(SOON).code(), Some(0));
    }
}

#[test]
fn a_second_signal_and_the_time_limit_end_sessions() {
    let mut server = Server::start(&["-d", "cpu:1", "--drain-timeout", "120"]);
    let _device = device_of(&server);
    server.signal("TERM");
    drains(&server);
    assert!(server.is_running());
    server.signal("TERM");
    assert_eq!(server.ends_within(SOON).code(), Some(0));
    let mut server = Server::start(&["-d", "cpu:1", "--drain-timeout", "1"]);
    let device = device_of(&server);
    server.signal("TERM");
    assert_eq!(server.ends_within(SOON).code(), Some(0));
    assert!(device.alloc(64, Usage::Any).is_err());
}

#[test]
fn a_text_is_written_to_its_end_by_a_server_that_is_told_to_stop() {
    let Some(path) = model("smollm2") else { return };
    let mut server = Server::start(&["-d", "cpu:1", "--drain-timeout", "240"]);
    let args = ["run", "-m", path.to_str().unwrap(), "--rpc", &server.addr, "-p", "Once upon a time", "-n", "64"];
    let args = [&args[..], &["--temp", "0", "-c", "128", "--ignore-eos"]].concat();
    let alone = Client::run(&args, LIMIT).stdout;
    let mut client = Client::start(&args);
    client.wait_for_text(LIMIT);
    server.signal("TERM");
    let done = client.wait(LIMIT);
    assert_eq!((done.code, done.stdout), (Some(0), alone), "{}", done.stderr);
    assert_eq!(server.ends_within(SOON).code(), Some(0));
}
