//! Several clients of one server, and what they leave behind.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_core::op::{Binary, BinaryKind};
use outboard_core::{DType, GraphBuilder, Placement, Slice, TensorId, Usage};
use outboard_integration::{Client, RunReport, Server, model};
use outboard_rpc_client::{ClientOptions, Endpoint, connect};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(240);
/// The lease of a server, and as much again for a busy machine.
const LEASE: Duration = Duration::from_secs(20);

fn run_args<'a>(model: &'a str, rpc: &'a str, prompt: &'a str, n: &'a str) -> Vec<&'a str> {
    let args = ["run", "-m", model, "--rpc", rpc, "-p", prompt, "-n", n];
    [&args[..], &["--temp", "0", "-c", "512", "--ignore-eos"]].concat()
}

#[test]
fn two_clients_at_once_get_their_own_texts() {
    let Some(path) = model("smollm2") else { return };
    let model = path.to_str().unwrap();
    let server = Server::start(&["-d", "cpu:1"]);
    let prompts = ["The capital of France is", "def fibonacci(n):"];
    let alone = prompts.map(|p| {
        let json = [&run_args(model, &server.addr, p, "256")[..], &["--json"]].concat();
        Client::run(&json, LIMIT).json::<RunReport>().text
    });
    let mut both = prompts.map(|p| Client::start(&run_args(model, &server.addr, p, "256")));
    // Each writes before the other has ended.
    both.iter_mut().for_each(|client| client.wait_for_text(LIMIT));
    let first_ended = both.iter_mut().any(|client| !client.is_running());
    let texts = both.map(|client| {
        let done = client.wait(LIMIT);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        done.stdout
    });
    for (text, alone) in texts.iter().zip(&alone) {
        assert_eq!(text.trim_end_matches('\n'), alone.trim_end_matches('\n'));
    }
    assert!(!first_ended, "one client had ended before the other had written");
}

/// Connects, allocates, uploads, computes; a client as every program with the library is one.
fn short_client(addr: &str, number: u8) {
    const ELEMENTS: usize = 1 << 20;
    let endpoint = Endpoint::parse(addr).unwrap();
    let devices = connect(&[endpoint], &ClientOptions::default()).unwrap();
    let device = &devices[0];
    let mut g = GraphBuilder::new();
    let x = g.state("x", DType::F32, &[ELEMENTS]).unwrap();
    let y = g.push(Binary { kind: BinaryKind::Add }, &[x, x]).unwrap();
    g.output(y);
    let graph = Arc::new(g.finish().unwrap());
    let memory = Slice::whole(device.alloc(8 * ELEMENTS as u64, Usage::Any).unwrap());
    let part = |id: TensorId| memory.part(id.index() as u64 * 4 * ELEMENTS as u64, 4 * ELEMENTS as u64).unwrap();
    let places = graph.ids().map(|id| Some(part(id))).collect();
    let placement = Placement::new(&graph, device.as_ref(), places).unwrap();
    let executable = device.compile(graph.clone(), placement).unwrap();
    let queue = device.queue().unwrap();
    let value = f32::from(number);
    let bytes: Vec<u8> = value.to_le_bytes().repeat(ELEMENTS);
    queue.write(&part(x), bytes.into()).unwrap();
    queue.execute(&executable).unwrap();
    let sum = queue.read(&part(y)).unwrap().wait(LIMIT).unwrap();
    assert!(sum.as_chunks().0.iter().all(|b| f32::from_le_bytes(*b) == 2.0 * value));
}

#[test]
fn two_hundred_clients_leave_nothing_behind() {
    // Of 200 clients, 160 end as they should and 40 are killed at some moment of their life.
    const WELL: usize = 160;
    const KILLED: usize = 40;
    /// What an allocator may keep for itself.
    const RESIDUE: u64 = 24 << 20;
    let server = Server::start(&["-d", "cpu:1", "--memory-limit", "1G"]);
    // The first clients warm up what a server keeps for good (threads, their stacks, code that is read).
    (0..4).for_each(|n| short_client(&server.addr, n));
    let (free, resident) = (server.memory_free(), server.resident());
    let path = model("smollm2");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..KILLED {
                let args = match &path {
                    Some(path) => run_args(path.to_str().unwrap(), &server.addr, "Once", "1000"),
                    // Without a model the clients are killed while they check the server.
                    None => vec!["smoke", "--rpc", &server.addr],
                };
                let mut client = Client::start(&args);
                // From before the connection to the middle of the text.
                std::thread::sleep(Duration::from_millis(n as u64 * 20));
                client.kill();
            }
        });
        scope.spawn(|| (0..WELL).for_each(|n| short_client(&server.addr, (n % 256) as u8)));
    });
    let start = Instant::now();
    loop {
        let (now, bytes) = (server.memory_free(), server.resident());
        if now == free && bytes < resident + RESIDUE {
            println!("as before after {:?}: {bytes} bytes resident, {resident} at the start", start.elapsed());
            return;
        }
        let state = format!("free {now} of {free}, resident {bytes} after {resident}");
        assert!(start.elapsed() < LEASE, "not as before: {state}");
        std::thread::sleep(Duration::from_millis(200));
    }
}
